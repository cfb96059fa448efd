//! A config file that is read again whenever it changes.

use std::collections::BTreeSet;
use std::error::Error;
use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::Stream;
use notify::event::{AccessKind, AccessMode};
use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher as _};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep_until, timeout_at};
use tokio_util::task::AbortOnDropHandle;

use super::{ConfigErrors, FleetConfig, Parsed, ProblemKind};

/// The outcome of one reading of the file.
type Version = Result<Parsed, ConfigErrors>;

/// How many times [`WatchOptions::settle`] a file that never comes to rest may put its reading off.
const RESTLESS: u32 = 10;

/// A config file that is read again whenever it changes.
///
/// The file is watched by its directory: editors that put another file in its place are seen, and so are symbolic links
/// that come to point elsewhere. What is read the same as before is no change. The directory itself must stay.
///
/// ```no_run
/// use mcp_reconnect::config::Watcher;
/// use mcp_reconnect::fleet::Fleet;
///
/// # async fn host(fleet: Fleet) -> Result<(), Box<dyn std::error::Error>> {
/// let mut watcher = Watcher::new("mcp.json")?;
/// while let Some(version) = watcher.next().await {
///     match version {
///         Ok(parsed) => println!("{}", fleet.apply(parsed.config)),
///         // What runs goes on as it is.
///         Err(errors) => eprintln!("{errors}"),
///     }
/// }
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Watcher {
    path: PathBuf,
    versions: watch::Receiver<Option<Version>>,
    _reader: AbortOnDropHandle<()>,
}

/// How patient a [`Watcher`] is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WatchOptions {
    /// How long the file must have been left alone before it is read: it may be written in several steps. One that is
    /// never left alone is read after ten times this. Default 100 ms.
    pub settle: Duration,
    /// How long it may be away, unreadable or no JSON before that is told: it may be in the middle of being replaced.
    /// What is read first is told at once. Default 1 s.
    pub patience: Duration,
}

impl Default for WatchOptions {
    fn default() -> Self {
        Self { settle: Duration::from_millis(100), patience: Duration::from_secs(1) }
    }
}

/// Why a file cannot be watched.
#[derive(Debug)]
#[non_exhaustive]
pub enum WatchError {
    /// There is no tokio runtime.
    NoRuntime,
    /// The path names no file.
    NoFile {
        /// The path.
        path: PathBuf,
    },
    /// The system does not watch this directory.
    Directory {
        /// The directory.
        path: PathBuf,
        /// Why, in words.
        cause: Box<str>,
    },
}

impl fmt::Display for WatchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoRuntime => f.write_str("there is no tokio runtime"),
            Self::NoFile { path } => write!(f, "{} names no file", path.display()),
            Self::Directory { path, cause } => write!(f, "{} cannot be watched: {cause}", path.display()),
        }
    }
}

impl Error for WatchError {}

impl Watcher {
    /// Watches the file at this path, which need not be there yet, with the variables of this process.
    ///
    /// # Errors
    ///
    /// A directory that is not there or cannot be watched, and no tokio runtime.
    pub fn new(path: impl AsRef<Path>) -> Result<Self, WatchError> {
        Self::with(path, WatchOptions::default())
    }

    /// Watches with these intervals.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new).
    pub fn with(path: impl AsRef<Path>, options: WatchOptions) -> Result<Self, WatchError> {
        let path = path.as_ref().to_path_buf();
        let runtime = tokio::runtime::Handle::try_current().map_err(|_| WatchError::NoRuntime)?;
        let (told, versions) = watch::channel(None);
        let mut reader = Reader::new(&path, options)?;
        // Before it is read for the first time: no change falls in between.
        reader.follow()?;
        let reader = runtime.spawn(async move { reader.run(&told).await });
        Ok(Self { path, versions, _reader: AbortOnDropHandle::new(reader) })
    }

    /// The path, as it was given.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file as it is now, at first; then as it is after each change: everything that is wrong with it where
    /// something is. Versions that were not waited for in time are left out, never the last.
    ///
    /// Cancel safe. `None` when the runtime that the watcher was made on ends.
    pub async fn next(&mut self) -> Option<Result<Parsed, ConfigErrors>> {
        loop {
            self.versions.changed().await.ok()?;
            if let Some(version) = self.versions.borrow_and_update().clone() {
                return Some(version);
            }
        }
    }

    /// Turns it into a stream of the versions.
    pub fn into_stream(self) -> impl Stream<Item = Result<Parsed, ConfigErrors>> + Send {
        futures::stream::unfold(self, async |mut watcher| Some((watcher.next().await?, watcher)))
    }
}

struct Reader {
    path: PathBuf,
    options: WatchOptions,
    changed: Arc<Notify>,
    /// Whether the file is reached through links: then any name may be one of them.
    linked: Arc<AtomicBool>,
    system: RecommendedWatcher,
    watched: BTreeSet<PathBuf>,
}

impl Reader {
    fn new(path: &Path, options: WatchOptions) -> Result<Self, WatchError> {
        let no_file = || WatchError::NoFile { path: path.to_path_buf() };
        let path = std::path::absolute(path).map_err(|_| no_file())?;
        let name = path.file_name().ok_or_else(no_file)?.to_os_string();
        let (changed, linked) = (Arc::new(Notify::new()), Arc::new(AtomicBool::new(false)));
        let (notice, any_name) = (changed.clone(), linked.clone());
        let handler = move |event: notify::Result<notify::Event>| {
            // After an error nobody knows what was missed.
            if event.is_ok_and(|event| !concerns(&event, &name, any_name.load(Ordering::Relaxed))) {
                return;
            }
            notice.notify_one();
        };
        let system = notify::recommended_watcher(handler)
            .map_err(|error| WatchError::Directory { path: path.clone(), cause: error.to_string().into() })?;
        Ok(Self { path, options, changed, linked, system, watched: BTreeSet::new() })
    }

    async fn run(mut self, told: &watch::Sender<Option<Version>>) {
        // Until when the file may still be in the middle of being replaced.
        let mut until = None;
        loop {
            // Where its link leads may be another place now; one that cannot be watched is read all the same.
            if let Err(error) = self.follow() {
                tracing::warn!("{error}");
            }
            let Ok(version) = self.read().await else { return };
            let is_first = told.borrow().is_none();
            if !is_first && is_unfinished(&version) {
                let until = *until.get_or_insert_with(|| Instant::now() + self.options.patience);
                if timeout_at(until, self.changed.notified()).await.is_ok() {
                    self.settle().await;
                    continue;
                }
            }
            until = None;
            told.send_if_modified(|last| {
                let is_new = last.as_ref() != Some(&version);
                *last = Some(version);
                is_new
            });
            self.changed.notified().await;
            self.settle().await;
        }
    }

    /// Fails only when the runtime ends.
    async fn read(&self) -> Result<Version, tokio::task::JoinError> {
        let path = self.path.clone();
        tokio::task::spawn_blocking(move || FleetConfig::load(path)).await
    }

    /// Returns when the file was left alone.
    async fn settle(&self) {
        let settle = self.options.settle;
        let at_last = Instant::now() + settle.saturating_mul(RESTLESS);
        loop {
            let quiet = at_last.min(Instant::now() + settle);
            tokio::select! {
                biased;
                () = sleep_until(quiet) => return,
                () = self.changed.notified() => {}
            }
        }
    }

    /// Watches where the file is, and where its link leads.
    fn follow(&mut self) -> Result<(), WatchError> {
        let directory = |path: &Path| path.parent().map(Path::to_path_buf);
        let target = std::fs::canonicalize(&self.path).ok();
        let is_linked = std::fs::symlink_metadata(&self.path).is_ok_and(|file| file.is_symlink());
        self.linked.store(is_linked, Ordering::Relaxed);
        let mut wanted = BTreeSet::from_iter(directory(&self.path));
        wanted.extend(target.filter(|_| is_linked).as_deref().and_then(directory));
        for gone in self.watched.difference(&wanted) {
            drop(self.system.unwatch(gone)); // it may be gone for good
        }
        self.watched.retain(|path| wanted.contains(path));
        for path in wanted {
            if !self.watched.contains(&path) {
                let watched = self.system.watch(&path, RecursiveMode::NonRecursive);
                watched.map_err(|error| refused(&path, &error))?;
                self.watched.insert(path);
            }
        }
        Ok(())
    }
}

fn refused(path: &Path, error: &notify::Error) -> WatchError {
    let cause = match &error.kind {
        notify::ErrorKind::Io(error) => io_cause(error),
        notify::ErrorKind::PathNotFound => "there is no such directory".into(),
        notify::ErrorKind::MaxFilesWatch => "the system's limit of watches is reached".into(),
        _ => error.to_string().into(),
    };
    WatchError::Directory { path: path.to_path_buf(), cause }
}

fn io_cause(error: &io::Error) -> Box<str> {
    error.to_string().into()
}

/// Whether something may have become of the file. That it was read is nothing: else each look would lead to the next.
fn concerns(event: &notify::Event, name: &OsString, any_name: bool) -> bool {
    match event.kind {
        EventKind::Access(AccessKind::Close(AccessMode::Write)) => {}
        EventKind::Access(_) => return false,
        EventKind::Any | EventKind::Create(_) | EventKind::Modify(_) | EventKind::Remove(_) | EventKind::Other => {}
    }
    let is_named = |path: &PathBuf| path.file_name().is_some_and(|found| found == name);
    any_name || event.paths.is_empty() || event.need_rescan() || event.paths.iter().any(is_named)
}

/// Whether this may be a file whose writer is not done.
fn is_unfinished(version: &Version) -> bool {
    let is = |kind: &ProblemKind| matches!(kind, ProblemKind::Unreadable | ProblemKind::Syntax { .. });
    version.as_ref().is_err_and(|errors| errors.problems.iter().any(|problem| is(&problem.kind)))
}

#[cfg(test)]
mod tests;
