use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead as _, BufReader, ErrorKind};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;

use tempfile::{TempDir, tempdir};

use super::super::file::parse;
use super::super::warning::MAX_SIZE;
use super::*;

fn file_in(folder: &TempDir) -> StateFile {
    StateFile::new(folder.path().join("state.json"))
}

/// The names in the folder.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort_unstable();
    names
}

/// The problem with a file of which nothing can be used.
fn problem_of(file: &StateFile) -> StateProblem {
    let (state, mut warnings) = file.load();
    assert_eq!((state.iter().count(), warnings.len()), (0, 1), "{warnings:?}");
    let warning = warnings.remove(0);
    assert_eq!(warning.path, file.path());
    assert!(warning.to_string().contains("state.json"), "{warning}");
    warning.problem
}

fn assert_loads(file: &StateFile, expected: &SavedState) {
    let (state, warnings) = file.load();
    assert_eq!(warnings, []);
    assert_eq!(as_json(&state), as_json(expected));
}

fn saved(state: &SavedState) -> Vec<u8> {
    let folder = tempdir().unwrap();
    let file = file_in(&folder);
    file.save(state).unwrap();
    fs::read(file.path()).unwrap()
}

#[test]
fn what_is_saved_is_loaded() {
    let folder = tempdir().unwrap();
    let file = file_in(&folder);
    assert_loads(&file, &SavedState::default());
    for state in [sample(), SavedState::default(), sample()] {
        file.save(&state).unwrap();
        assert_loads(&file, &state);
        assert_eq!(names(folder.path()), ["state.json"]);
    }
    // To the letter.
    let (state, _) = file.load();
    let tools = state.server("ready \"ü\"", "d1").unwrap().catalogue().unwrap().tools;
    assert_eq!(tools.items()[0].json().get(), ODD_TOOL);
    let text = fs::read_to_string(file.path()).unwrap();
    assert!(text.contains(ODD_TOOL) && text.starts_with(r#"{"format":"mcp-reconnect-state","version":2,"servers":{"#));
}

#[test]
fn a_file_laid_out_anew_or_by_a_later_release_is_read() {
    let folder = tempdir().unwrap();
    let file = file_in(&folder);
    let mut content: Value = serde_json::from_slice(&saved(&sample())).unwrap();
    content["comment"] = json!("x");
    content["servers"]["parked"]["also"] = json!([1]);
    content["servers"]["parked"]["memory"]["also"] = json!({});
    content["servers"]["parked"]["era"] = json!({ "also": 1, "era": "modern" });
    let mut expected = sample();
    expected.servers.get_mut("parked").unwrap().era = EraFacts { era: Some(Era::Modern), ..EraFacts::default() };
    fs::write(file.path(), serde_json::to_string_pretty(&content).unwrap()).unwrap();
    let (state, warnings) = file.load();
    assert_eq!(warnings, []);
    assert_eq!(as_json(&state), as_json(&expected));
    file.save(&sample()).unwrap();
    assert_loads(&file, &sample());
}

#[test]
fn an_unreadable_entry_or_tool_costs_no_other_one() {
    let folder = tempdir().unwrap();
    let file = file_in(&folder);
    let mut content: Value = serde_json::from_slice(&saved(&sample())).unwrap();
    content["servers"]["parked"]["memory"]["status"] = json!({ "hibernating": 7 });
    content["servers"]["ready \"ü\""]["tools"] =
        json!([{ "nameless": 1 }, { "name": "good", "inputSchema": { "type": "object" } }, 7]);
    fs::write(file.path(), content.to_string()).unwrap();
    let (state, warnings) = file.load();
    assert_eq!(state.iter().map(|(name, _)| name).collect::<Vec<_>>(), ["never met", "ready \"ü\""]);
    assert!(
        matches!(&warnings[..], [StateWarning { problem: StateProblem::Server { name, reason }, .. }]
            if name == "parked" && reason.contains("hibernating")),
        "{warnings:?}"
    );
    let catalogue = state.server("ready \"ü\"", "d1").unwrap().catalogue().unwrap();
    assert_eq!(catalogue.tools.items().len(), 1);
    assert!(catalogue.tool("good").is_some());
}

#[test]
fn members_of_a_later_release_are_kept() {
    let folder = tempdir().unwrap();
    let file = file_in(&folder);
    for version in [1, 2] {
        let mut content: Value = serde_json::from_slice(&saved(&sample())).unwrap();
        content["version"] = json!(version);
        content["later"] = json!({ "deep": [1, "ü"] });
        for name in ["parked", "never met", "ready \"ü\""] {
            content["servers"][name]["session"] = json!({ "id": name });
        }
        content["servers"]["never met"]["cause"] = json!("it is known, and was of another time");
        content["servers"]["gone"] = content["servers"]["parked"].clone();
        fs::write(file.path(), content.to_string()).unwrap();
        let (mut state, warnings) = file.load();
        assert_eq!(warnings, []);
        state.remove("gone");
        state.insert("parked", server("another digest", Status::Idle, None, None));
        state.insert("never met", server("d3", Status::Idle, None, None));
        // However often it is written.
        for _ in 0..2 {
            file.save(&state).unwrap();
            let is: Value = serde_json::from_slice(&fs::read(file.path()).unwrap()).unwrap();
            let mut wanted = serde_json::to_value(&state).unwrap();
            for name in ["never met", "ready \"ü\""] {
                wanted[name]["session"] = json!({ "id": name });
            }
            let head = json!({ "format": "mcp-reconnect-state", "version": 2, "servers": wanted, "later": { "deep": [1, "ü"] } });
            assert_eq!(is, head);
        }
    }
}

/// Every member that is written is known: none of it is taken for a later release's and kept beside the new one.
#[test]
fn no_member_is_written_twice() {
    let folder = tempdir().unwrap();
    let file = file_in(&folder);
    let mut full = limited();
    full.tools = sample().servers["ready \"ü\""].tools.clone();
    full.approvals = json!({ "odd": "sha256:00" });
    file.save(&SavedState::from_iter([("a".to_owned(), full.clone())])).unwrap();
    let whole = fs::read(file.path()).unwrap();
    file.save(&SavedState::from_iter([("a".to_owned(), full)])).unwrap();
    assert_eq!(fs::read(file.path()).unwrap(), whole);
    let bare = SavedState::from_iter([("a".to_owned(), server("d1", Status::Idle, None, None))]);
    file.save(&bare).unwrap();
    assert_eq!(fs::read(file.path()).unwrap(), saved(&bare));
}

/// Wherever it ends, it is known as ours, and nothing of it is used.
#[test]
fn a_file_that_ends_too_early_is_damaged() {
    let whole = saved(&sample());
    assert!(parse(&whole).is_ok());
    for end in 1..whole.len() {
        let parsed = parse(&whole[..end]);
        assert!(matches!(parsed, Err(StateProblem::Damaged(_))), "{end}: {parsed:?}");
    }
    for end in [1, 20, 40, whole.len() / 2, whole.len() - 1] {
        let folder = tempdir().unwrap();
        let file = file_in(&folder);
        fs::write(file.path(), &whole[..end]).unwrap();
        assert!(matches!(problem_of(&file), StateProblem::Damaged(_)), "{end}");
        file.save(&sample()).unwrap();
        assert_loads(&file, &sample());
        assert_eq!(fs::read(folder.path().join("state.json.bak")).unwrap(), &whole[..end]);
        assert_eq!(names(folder.path()), ["state.json", "state.json.bak"]);
    }
}

#[test]
fn a_copy_of_a_damaged_file_replaces_nothing() {
    let folder = tempdir().unwrap();
    let file = file_in(&folder);
    let kept = folder.path().join("state.json.bak");
    fs::write(&kept, "precious").unwrap();
    fs::write(file.path(), r#"{"format":"mcp-reconnect-state","version":1,"servers":[]}"#).unwrap();
    assert!(matches!(problem_of(&file), StateProblem::Damaged(_)));
    file.save(&sample()).unwrap();
    assert_eq!(fs::read_to_string(kept).unwrap(), "precious");
}

/// One byte changed anywhere: never a panic, and what is not ours any more is not written over.
#[test]
fn a_file_with_a_wrong_byte_is_read_in_part_or_not_at_all() {
    let whole = saved(&sample());
    for at in 0..whole.len() {
        for byte in [0, b' ', b'"', b'9', b'}', 0xff] {
            let mut bytes = whole.clone();
            bytes[at] = byte;
            if let Ok(kept) = parse(&bytes) {
                for json in kept.servers.values() {
                    drop(serde_json::from_str::<SavedServer>(json.get()));
                }
            }
        }
    }
}

#[test]
fn what_is_not_ours_stays_as_it_is() {
    let version = |version: &str| format!(r#"{{"format":"mcp-reconnect-state","version":{version},"servers":{{}}}}"#);
    for (content, problem) in [
        (b"{}".to_vec(), StateProblem::Foreign),
        (b"[]".to_vec(), StateProblem::Foreign),
        (b"\n".to_vec(), StateProblem::Foreign),
        (b"#!/bin/sh\n".to_vec(), StateProblem::Foreign),
        (b"\xff\xfe{\0".to_vec(), StateProblem::Foreign),
        (br#"{"mcpServers":{}}"#.to_vec(), StateProblem::Foreign),
        (br#"{"format":"mcp-reconnect-states","version":1,"servers":{}}"#.to_vec(), StateProblem::Foreign),
        (br#"{"format":1,"version":1,"servers":{}}"#.to_vec(), StateProblem::Foreign),
        (br#"{ "format":"mcp-reconnect-state","version":1,"#.to_vec(), StateProblem::Foreign),
        (version("3").into_bytes(), StateProblem::Version("3".into())),
        (version("11").into_bytes(), StateProblem::Version("11".into())),
        (version("0").into_bytes(), StateProblem::Version("0".into())),
        (version("\"1.1\"").into_bytes(), StateProblem::Version("\"1.1\"".into())),
        (br#"{"format":"mcp-reconnect-state"}"#.to_vec(), StateProblem::Version("unknown".into())),
        (br#"{"version":7,"format":"mcp-reconnect-state"}"#.to_vec(), StateProblem::Version("7".into())),
    ] {
        let folder = tempdir().unwrap();
        let file = file_in(&folder);
        fs::write(file.path(), &content).unwrap();
        assert_eq!(problem_of(&file), problem);
        assert_eq!(file.save(&sample()).unwrap_err(), problem.clone().at(file.path()));
        assert_eq!(fs::read(file.path()).unwrap(), content);
        assert_eq!(names(folder.path()), ["state.json"], "{problem:?}");
        // When it is gone, there is a place.
        fs::remove_file(file.path()).unwrap();
        file.save(&sample()).unwrap();
        assert_loads(&file, &sample());
    }
}

#[test]
fn a_file_that_is_too_large_is_neither_read_nor_written() {
    let folder = tempdir().unwrap();
    let file = file_in(&folder);
    fs::File::create(file.path()).unwrap().set_len(MAX_SIZE + 1).unwrap();
    assert_eq!(problem_of(&file), StateProblem::TooLarge);
    assert_eq!(file.save(&sample()).unwrap_err().problem, StateProblem::TooLarge);
    assert_eq!(fs::metadata(file.path()).unwrap().len(), MAX_SIZE + 1);
    // Nor is a state that would be one.
    fs::remove_file(file.path()).unwrap();
    let mut state = sample();
    state.servers.get_mut("parked").unwrap().approvals = "x".repeat(MAX_SIZE as usize).into();
    assert_eq!(file.save(&state).unwrap_err().problem, StateProblem::TooLarge);
    assert!(names(folder.path()).is_empty());
}

#[test]
fn an_empty_file_is_ours() {
    let folder = tempdir().unwrap();
    let file = file_in(&folder);
    fs::write(file.path(), "").unwrap();
    assert_loads(&file, &SavedState::default());
    file.save(&sample()).unwrap();
    assert_loads(&file, &sample());
}

#[test]
fn what_is_no_file_is_left_alone() {
    let folder = tempdir().unwrap();
    let file = file_in(&folder);
    fs::create_dir(file.path()).unwrap();
    assert_eq!(problem_of(&file), StateProblem::NotAFile);
    assert_eq!(file.save(&sample()).unwrap_err().problem, StateProblem::NotAFile);
    assert!(file.path().is_dir());
    // A file where its folder should be.
    let below = folder.path().join("file");
    fs::write(&below, "").unwrap();
    let file = StateFile::new(below.join("state.json"));
    let expected = |problem: &StateProblem| {
        matches!(problem, StateProblem::Io { action: "read it", kind: ErrorKind::NotADirectory, .. })
    };
    let problem = problem_of(&file);
    assert!(expected(&problem), "{problem:?}");
    assert!(expected(&file.save(&sample()).unwrap_err().problem));
}

#[test]
fn several_who_write_at_once_never_mix() {
    let folder = tempdir().unwrap();
    let file = file_in(&folder);
    let states = [0, 1].map(|writer| {
        let servers = 0..200 * (writer + 1);
        SavedState::from_iter(servers.map(|at| (format!("{writer}/{at}"), server("d", Status::Idle, None, None))))
    });
    let expected = states.each_ref().map(as_json);
    file.save(&states[0]).unwrap();
    thread::scope(|scope| {
        for state in &states {
            scope.spawn(|| (0..20).for_each(|_| file.save(state).unwrap()));
        }
        for _ in 0..40 {
            let (state, warnings) = file.load();
            assert_eq!(warnings, []);
            assert!(expected.contains(&as_json(&state)));
        }
    });
    assert_eq!(names(folder.path()), ["state.json"]);
}

/// The child of [`a_writer_that_is_killed_leaves_a_whole_file`].
#[test]
#[ignore = "writes until it is killed"]
fn write_for_ever() {
    let Some(path) = std::env::var_os("STATE_FILE") else { return };
    let file = StateFile::new(path);
    for writes in 0.. {
        let servers = (0..300).map(|at| (format!("{writes}/{at}"), server("d", Status::Idle, None, None)));
        file.save(&SavedState::from_iter(servers)).unwrap();
        println!("written");
    }
}

struct KilledOnDrop(Child);

impl Drop for KilledOnDrop {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

#[test]
fn a_writer_that_is_killed_leaves_a_whole_file() {
    let folder = tempdir().unwrap();
    let file = file_in(&folder);
    for writes in 1..=8 {
        let mut child = Command::new(std::env::current_exe().unwrap());
        let this = module_path!().split_once("::").unwrap().1;
        child.args(["--exact", &format!("{this}::write_for_ever"), "--ignored", "--nocapture"]);
        child.env("STATE_FILE", file.path()).stdout(Stdio::piped());
        let mut child = KilledOnDrop(child.spawn().unwrap());
        let lines = BufReader::new(child.0.stdout.take().unwrap()).lines();
        let written = lines.map(Result::unwrap).filter(|line| line.contains("written")).take(writes).count();
        assert_eq!(written, writes);
        drop(child);
        let (state, warnings) = file.load();
        assert_eq!(warnings, []);
        let of: BTreeSet<_> = state.iter().filter_map(|(name, _)| name.split_once('/')).map(|n| n.0).collect();
        assert_eq!((state.iter().count(), of.len()), (300, 1));
    }
    // A file that it may have left is gone an hour later.
    for name in names(folder.path()) {
        let file = fs::File::options().write(true).open(folder.path().join(name)).unwrap();
        let modified = file.metadata().unwrap().modified().unwrap();
        file.set_modified(modified - Duration::from_secs(3700)).unwrap();
    }
    file.load();
    assert_eq!(names(folder.path()), ["state.json"]);
}

#[test]
fn only_old_temporary_files_of_this_state_file_are_removed() {
    let folder = tempdir().unwrap();
    let file = file_in(&folder);
    file.save(&sample()).unwrap();
    let make = |name: &str, age: Duration| {
        let file = fs::File::create(folder.path().join(name)).unwrap();
        let modified = file.metadata().unwrap().modified().unwrap();
        file.set_modified(modified - age).unwrap();
    };
    make(".state.json.aaaaaa.tmp", 3700 * SECOND);
    make(".state.json.bbbbbb.tmp", 3500 * SECOND);
    make(".other.json.cccccc.tmp", 3700 * SECOND);
    make("state.json.dddddd.tmp", 3700 * SECOND);
    make(".state.json.eeeeee", 3700 * SECOND);
    fs::create_dir(folder.path().join(".state.json.ffffff.tmp")).unwrap();
    assert_loads(&file, &sample());
    assert_eq!(
        names(folder.path()),
        [
            ".other.json.cccccc.tmp",
            ".state.json.bbbbbb.tmp",
            ".state.json.eeeeee",
            ".state.json.ffffff.tmp",
            "state.json",
            "state.json.dddddd.tmp",
        ]
    );
}

#[cfg(unix)]
mod unix {
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    use std::os::unix::net::UnixListener;

    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn its_owner_alone_reads_it() {
        let folder = tempdir().unwrap();
        let file = StateFile::new(folder.path().join("a/b/state.json"));
        file.save(&sample()).unwrap();
        assert_eq!(mode(file.path()), 0o600);
        assert_eq!((mode(&folder.path().join("a")), mode(&folder.path().join("a/b"))), (0o700, 0o700));
        fs::set_permissions(file.path(), fs::Permissions::from_mode(0o644)).unwrap();
        file.save(&sample()).unwrap();
        assert_eq!(mode(file.path()), 0o600);
    }

    #[test]
    fn what_may_not_be_read_is_not_written() {
        let folder = tempdir().unwrap();
        let file = file_in(&folder);
        file.save(&sample()).unwrap();
        fs::set_permissions(file.path(), fs::Permissions::from_mode(0o000)).unwrap();
        if fs::File::open(file.path()).is_ok() {
            eprintln!("not tested: this user may read everything");
            return;
        }
        let expected = |problem: &StateProblem| {
            matches!(problem, StateProblem::Io { action: "read it", kind: ErrorKind::PermissionDenied, .. })
        };
        assert!(expected(&problem_of(&file)));
        assert!(expected(&file.save(&sample()).unwrap_err().problem));
    }

    #[test]
    fn a_socket_is_no_file() {
        let folder = tempdir().unwrap();
        let file = file_in(&folder);
        let _listener = UnixListener::bind(file.path()).unwrap();
        assert_eq!(problem_of(&file), StateProblem::NotAFile);
        assert_eq!(file.save(&sample()).unwrap_err().problem, StateProblem::NotAFile);
        assert_eq!(names(folder.path()), ["state.json"]);
    }

    #[test]
    fn a_symbolic_link_is_followed_and_stays() {
        let folder = tempdir().unwrap();
        let real = folder.path().join("real");
        fs::create_dir(&real).unwrap();
        // Through another one, to a file that does not exist yet.
        symlink("real/second", folder.path().join("state.json")).unwrap();
        symlink("target.json", real.join("second")).unwrap();
        let file = file_in(&folder);
        assert_loads(&file, &SavedState::default());
        file.save(&SavedState::default()).unwrap();
        file.save(&sample()).unwrap();
        assert_loads(&file, &sample());
        assert_loads(&StateFile::new(real.join("target.json")), &sample());
        assert_eq!(fs::read_link(file.path()).unwrap(), Path::new("real/second"));
        assert_eq!(
            (names(folder.path()), names(&real)),
            (vec!["real".to_owned(), "state.json".to_owned()], vec!["second".to_owned(), "target.json".to_owned()],)
        );
    }

    #[test]
    fn symbolic_links_in_a_circle_stay() {
        let folder = tempdir().unwrap();
        let file = file_in(&folder);
        symlink("other", file.path()).unwrap();
        symlink("state.json", folder.path().join("other")).unwrap();
        assert!(matches!(problem_of(&file), StateProblem::Io { action: "find it", .. }));
        assert!(matches!(file.save(&sample()).unwrap_err().problem, StateProblem::Io { action: "find it", .. }));
        assert_eq!(names(folder.path()), ["other", "state.json"]);
    }
}
