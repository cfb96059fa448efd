//! Real files and the system's own notices. No assertion is about time: where a file may be away it may be so for an
//! hour, and where that is to be told it is told at once.

use std::fs;
use std::os::unix::fs::symlink;

use tempfile::TempDir;

use super::*;

/// Long enough for every step of a test to fall within it.
const NEVER: Duration = Duration::from_secs(3_600);

fn server(name: &str) -> String {
    format!(r#"{{ "mcpServers": {{ "{name}": {{ "command": "server" }} }} }}"#)
}

/// A directory with a config, and its watcher, which has told the first version.
async fn watched(patience: Duration) -> (TempDir, PathBuf, Watcher) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("mcp.json");
    fs::write(&path, server("first")).unwrap();
    let mut watcher = Watcher::with(&path, WatchOptions { patience, ..WatchOptions::default() }).unwrap();
    assert_eq!(only(next(&mut watcher).await), "first");
    (dir, path, watcher)
}

/// The next version; a watcher that reports nothing more has failed.
async fn next(watcher: &mut Watcher) -> Option<Version> {
    let told = tokio::time::timeout(Duration::from_secs(60), watcher.next()).await;
    told.expect("it tells of a change")
}

/// The one server of a version.
#[track_caller]
fn only(version: Option<Version>) -> String {
    let parsed = version.expect("the runtime lives").expect("it is right");
    let names: Vec<_> = parsed.config.servers.keys().map(ToString::to_string).collect();
    names.join(" ")
}

#[track_caller]
fn wrong(version: Option<Version>) -> ConfigErrors {
    version.expect("the runtime lives").expect_err("it is wrong")
}

#[tokio::test]
async fn a_file_that_is_written_anew_is_read_again() {
    let (_dir, path, mut watcher) = watched(NEVER).await;
    for name in ["second", "third"] {
        fs::write(&path, server(name)).unwrap();
        assert_eq!(only(next(&mut watcher).await), name);
    }
}

#[tokio::test]
async fn a_file_that_another_is_renamed_to_is_read_again() {
    let (dir, path, mut watcher) = watched(NEVER).await;
    for name in ["second", "third"] {
        let other = dir.path().join("mcp.json.tmp");
        fs::write(&other, server(name)).unwrap();
        fs::rename(&other, &path).unwrap();
        assert_eq!(only(next(&mut watcher).await), name);
    }
}

#[tokio::test]
async fn a_file_that_is_away_for_a_moment_is_not_told() {
    let (_dir, path, mut watcher) = watched(NEVER).await;
    fs::remove_file(&path).unwrap();
    // Long enough for a watcher without patience to tell it.
    tokio::time::sleep(WatchOptions::default().settle * 4).await;
    fs::write(&path, server("second")).unwrap();
    assert_eq!(only(next(&mut watcher).await), "second");
}

#[tokio::test]
async fn a_file_that_is_half_written_is_not_told() {
    let (_dir, path, mut watcher) = watched(NEVER).await;
    fs::write(&path, r#"{ "mcpServers": { "#).unwrap();
    tokio::time::sleep(WatchOptions::default().settle * 4).await;
    fs::write(&path, server("second")).unwrap();
    assert_eq!(only(next(&mut watcher).await), "second");
}

#[tokio::test]
async fn a_file_that_stays_away_is_told_and_so_is_its_return() {
    let (_dir, path, mut watcher) = watched(Duration::ZERO).await;
    fs::remove_file(&path).unwrap();
    assert_eq!(wrong(next(&mut watcher).await).problems[0].kind, ProblemKind::Unreadable);
    fs::write(&path, server("first")).unwrap();
    // Between the two it may be seen empty.
    loop {
        match next(&mut watcher).await {
            Some(Err(errors)) => assert!(matches!(errors.problems[0].kind, ProblemKind::Syntax { .. }), "{errors}"),
            version => break assert_eq!(only(version), "first"),
        }
    }
}

#[tokio::test]
async fn a_broken_version_is_told_with_all_that_is_wrong() {
    let (_dir, path, mut watcher) = watched(NEVER).await;
    fs::write(&path, r#"{ "mcpServers": { "a": { "command": 1 }, "b": { "url": "x" } } }"#).unwrap();
    let errors = wrong(next(&mut watcher).await);
    let servers: Vec<_> = errors.problems.iter().map(|problem| problem.server.as_deref()).collect();
    assert_eq!(servers, [Some("a"), Some("b")], "{errors}");
}

#[tokio::test]
async fn an_equal_text_or_a_changed_neighbour_is_no_change() {
    let (dir, path, mut watcher) = watched(NEVER).await;
    fs::write(&path, server("first") + "\n\n").unwrap();
    fs::write(dir.path().join("other.json"), server("other")).unwrap();
    drop(fs::read(&path).unwrap());
    tokio::time::sleep(WatchOptions::default().settle * 4).await;
    fs::write(&path, server("second")).unwrap();
    assert_eq!(only(next(&mut watcher).await), "second", "the first that is told");
}

#[tokio::test]
async fn a_link_that_comes_to_point_elsewhere_is_followed() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["one", "two"] {
        fs::create_dir(dir.path().join(name)).unwrap();
        fs::write(dir.path().join(name).join("mcp.json"), server(name)).unwrap();
    }
    // As mounted config maps are: a link to a file in a directory that is a link.
    let (data, path) = (dir.path().join("data"), dir.path().join("mcp.json"));
    symlink("one", &data).unwrap();
    symlink("data/mcp.json", &path).unwrap();
    let mut watcher = Watcher::with(&path, WatchOptions { patience: NEVER, ..WatchOptions::default() }).unwrap();
    assert_eq!(only(next(&mut watcher).await), "one");
    let other = dir.path().join("data.tmp");
    symlink("two", &other).unwrap();
    fs::rename(&other, &data).unwrap();
    assert_eq!(only(next(&mut watcher).await), "two");
    // And what is there is watched from now on.
    fs::write(dir.path().join("two/mcp.json"), server("three")).unwrap();
    assert_eq!(only(next(&mut watcher).await), "three");
}

#[tokio::test]
async fn a_file_may_come_later_but_not_its_directory() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("mcp.json");
    let mut watcher = Watcher::new(&path).unwrap();
    assert_eq!(wrong(next(&mut watcher).await).problems[0].kind, ProblemKind::Unreadable);
    let other = dir.path().join("new");
    fs::write(&other, server("first")).unwrap();
    fs::rename(&other, &path).unwrap();
    assert_eq!(only(next(&mut watcher).await), "first");
    let nowhere = Watcher::new(dir.path().join("nowhere/mcp.json")).unwrap_err().to_string();
    assert!(nowhere.contains("nowhere cannot be watched: "), "{nowhere}");
    assert!(matches!(Watcher::new("/"), Err(WatchError::NoFile { .. })));
}

#[test]
fn a_runtime_is_needed() {
    assert!(matches!(Watcher::new("mcp.json"), Err(WatchError::NoRuntime)));
}

#[test]
fn to_read_a_file_is_no_change_of_it() {
    use notify::event::{CreateKind, Flag, ModifyKind, RemoveKind, RenameMode};

    let of = |kind, path: &str, any_name| {
        let event = notify::Event::new(kind).add_path(path.into());
        concerns(&event, &"mcp.json".into(), any_name)
    };
    for kind in [
        EventKind::Access(AccessKind::Open(AccessMode::Any)),
        EventKind::Access(AccessKind::Close(AccessMode::Read)),
        EventKind::Access(AccessKind::Read),
    ] {
        assert!(!of(kind, "/a/mcp.json", true), "{kind:?}: each look would lead to the next");
    }
    for kind in [
        EventKind::Access(AccessKind::Close(AccessMode::Write)),
        EventKind::Create(CreateKind::File),
        EventKind::Modify(ModifyKind::Name(RenameMode::To)),
        EventKind::Remove(RemoveKind::File),
    ] {
        assert!(of(kind, "/a/mcp.json", false) && of(kind, "/a/..data", true), "{kind:?}");
        assert!(!of(kind, "/a/other.json", false), "{kind:?}");
    }
    let rescan = notify::Event::new(EventKind::Other).set_flag(Flag::Rescan);
    assert!(concerns(&rescan, &"mcp.json".into(), false));
}
