use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use tempfile::{TempDir, tempdir};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use super::super::saver::{FINISH_TIMEOUT, SAVE_INTERVAL};
use super::*;

/// A saver of a state that says which change was the last one.
struct Scene {
    folder: TempDir,
    saver: Option<Saver>,
    running: JoinHandle<()>,
    changes: Arc<AtomicUsize>,
    /// When the state was collected, in time since the start.
    collected: Arc<Mutex<Vec<Duration>>>,
    warnings: Arc<Mutex<Vec<StateWarning>>>,
}

fn state(changes: usize) -> SavedState {
    SavedState::from_iter([(format!("change {changes}"), server("d", Status::Idle, None, None))])
}

impl Scene {
    fn new() -> Self {
        let folder = tempdir().unwrap();
        let changes = Arc::new(AtomicUsize::new(0));
        let collected = Arc::<Mutex<Vec<_>>>::default();
        let warnings = Arc::<Mutex<Vec<_>>>::default();
        let start = Instant::now();
        let collect = {
            let (changes, collected) = (changes.clone(), collected.clone());
            move || {
                collected.lock().unwrap().push(start.elapsed());
                state(changes.load(Ordering::Relaxed))
            }
        };
        let warn = {
            let warnings = warnings.clone();
            move |warning: &StateWarning| warnings.lock().unwrap().push(warning.clone())
        };
        let file = StateFile::new(folder.path().join("sub/state.json"));
        let (saver, run) = Saver::new(file, collect, warn);
        Self { folder, saver: Some(saver), running: tokio::spawn(run), changes, collected, warnings }
    }

    fn saver(&self) -> &Saver {
        self.saver.as_ref().unwrap()
    }

    fn change(&self) {
        self.changes.fetch_add(1, Ordering::Relaxed);
        self.saver().changed();
    }

    fn sub(&self) -> PathBuf {
        self.folder.path().join("sub")
    }

    /// Which change the file holds; `None`: there is no file.
    fn in_file(&self) -> Option<usize> {
        let (state, warnings) = StateFile::new(self.sub().join("state.json")).load();
        assert_eq!(warnings, []);
        state.iter().next().map(|(name, _)| name.strip_prefix("change ").unwrap().parse().unwrap())
    }

    fn collected(&self) -> Vec<Duration> {
        self.collected.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn warned(&self) -> usize {
        self.warnings.lock().unwrap().len()
    }

    /// Paused time does not go on while a write runs.
    async fn quiet(&self) {
        sleep(3 * SAVE_INTERVAL).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_burst_is_one_write_a_second_after_it_began() {
    let scene = Scene::new();
    scene.quiet().await;
    assert_eq!((scene.in_file(), scene.collected()), (None, vec![]));
    for _ in 0..100 {
        scene.change();
        sleep(SAVE_INTERVAL / 1000).await;
    }
    scene.quiet().await;
    assert_eq!((scene.in_file(), scene.collected()), (Some(100), vec![4 * SECOND]));
    // And nothing more without a change.
    sleep(1000 * SAVE_INTERVAL).await;
    assert_eq!(scene.collected().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn endless_changes_are_written_once_a_second_and_at_the_end() {
    let scene = Scene::new();
    for step in 0..1000_u32 {
        scene.change();
        sleep(Duration::from_millis(u64::from(step * 7919 % 41))).await;
    }
    let took = *scene.collected().last().unwrap();
    scene.quiet().await;
    assert_eq!(scene.in_file(), Some(1000));
    let at = scene.collected();
    assert!(at.windows(2).all(|pair| pair[1] - pair[0] >= SAVE_INTERVAL), "{at:?}");
    assert!(at.len() as u64 >= took.as_secs() * 9 / 10, "starved: {at:?}");
}

#[tokio::test(start_paused = true)]
async fn the_end_is_written_at_once() {
    for (changes, wait) in [(0, false), (1, false), (1, true)] {
        let scene = Scene::new();
        for _ in 0..changes {
            scene.change();
        }
        if wait {
            sleep(SAVE_INTERVAL / 2).await;
        }
        let began = Instant::now();
        scene.saver().finish().await.unwrap();
        assert_eq!(began.elapsed(), Duration::ZERO);
        assert_eq!((scene.in_file(), scene.collected().len()), (Some(changes), 1));
        // Nothing is written after it.
        scene.change();
        scene.quiet().await;
        assert!(scene.running.is_finished());
        assert_eq!(scene.in_file(), Some(changes));
        scene.saver().finish().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn it_ends_with_its_last_handle_and_leaves_nothing_unwritten() {
    let mut scene = Scene::new();
    scene.change();
    let other = scene.saver().clone();
    drop(scene.saver.take());
    scene.quiet().await;
    assert_eq!((scene.in_file(), scene.running.is_finished()), (Some(1), false));
    scene.changes.store(2, Ordering::Relaxed);
    other.changed();
    drop(other);
    (&mut scene.running).await.unwrap();
    assert_eq!((scene.in_file(), scene.collected().len()), (Some(2), 2));

    let mut scene = Scene::new();
    drop(scene.saver.take());
    (&mut scene.running).await.unwrap();
    assert_eq!((scene.in_file(), scene.collected().len()), (None, 0));
}

#[tokio::test(start_paused = true)]
async fn failing_writes_are_one_warning_until_one_goes_well() {
    let mut scene = Scene::new();
    scene.change();
    scene.quiet().await;
    assert_eq!((scene.in_file(), scene.warned()), (Some(1), 0));
    for round in 1..=2 {
        // The folder is gone, and something is in its place.
        fs::remove_dir_all(scene.sub()).unwrap();
        fs::write(scene.sub(), "").unwrap();
        for _ in 0..3 {
            scene.change();
            scene.quiet().await;
            assert_eq!(scene.warned(), round);
        }
        fs::remove_file(scene.sub()).unwrap();
        if round == 1 {
            scene.change();
            scene.quiet().await;
            assert_eq!((scene.in_file(), scene.warned()), (Some(5), 1));
        }
    }
    // The end is one more try, without a change.
    drop(scene.saver.take());
    (&mut scene.running).await.unwrap();
    assert_eq!((scene.in_file(), scene.warned()), (Some(8), 2));
}

#[tokio::test(start_paused = true)]
async fn the_end_says_what_went_wrong() {
    let scene = Scene::new();
    fs::write(scene.sub(), "").unwrap();
    let warning = scene.saver().finish().await.unwrap_err();
    assert!(matches!(warning.problem, StateProblem::Io { .. }), "{warning}");
    assert_eq!(scene.warnings.lock().unwrap().as_slice(), [warning]);

    let unfinished = |result: Result<(), StateWarning>| {
        let problem = result.unwrap_err().problem;
        assert_eq!(problem, StateProblem::Unfinished);
    };
    // Nobody runs it.
    let file = StateFile::new(scene.folder.path().join("state.json"));
    let (saver, run) = Saver::new(file, SavedState::default, |_| ());
    let began = Instant::now();
    unfinished(saver.finish().await);
    assert_eq!(began.elapsed(), FINISH_TIMEOUT);
    drop(run);
    unfinished(saver.finish().await);
    assert_eq!(began.elapsed(), FINISH_TIMEOUT);
}
