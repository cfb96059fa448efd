//! `mcp-reconnect check`, and where configs are looked for.

use std::process::Command;

use serde_json::json;

use super::{Done, Home};

#[test]
fn a_config_whose_servers_are_reached_is_0() {
    let home = Home::new(&json!({ "a": "shell", "off": { "command": "sh", "disabled": true, "wokring": 1 } }));
    let done = home.run(&["check"]);
    done.assert_ended(0, &["warning: ", "`wokring`"]);
    let lines: Vec<_> = done.stdout.lines().collect();
    assert!(
        lines[0].starts_with("ok    a    ") && lines[0].ends_with("shell 1, legacy 2025-11-25, 6 tools"),
        "{done:?}"
    );
    assert!(lines[1].starts_with("off   off  ") && lines[1].ends_with("disabled"), "{done:?}");
    assert_eq!(home.groups("a").len(), 1, "one connect");
}

#[test]
fn a_server_that_fails_is_told_with_state_class_and_cause() {
    let home = Home::new(&json!({
        "a": "shell",
        "broken": { "command": "sh", "args": ["-c", "echo $$ >>\"$PIDS/broken\"; echo no key >&2; exit 4"] },
        "missing": { "command": "/nowhere/server" },
        "refused": { "url": "http://127.0.0.1:1/mcp" },
    }));
    let pids = home.pids();
    let done = Done::of(home.command(&["check"]).env("PIDS", &pids));
    home.assert_clean();
    done.assert_ended(1, &[]);
    let line = |server: &str| {
        let line = done.stdout.lines().find(|line| line.split_whitespace().nth(1) == Some(server));
        line.unwrap_or_else(|| panic!("{server}: {done:?}"))
    };
    assert!(line("a").starts_with("ok "), "{done:?}");
    for (server, state, cause) in [
        ("broken", "transient_failure, transport: ", "exited with status 4; stderr: no key"),
        ("missing", "parked (permanent), permanent: ", "No such file or directory"),
        ("refused", "transient_failure, refused: ", "Connection refused"),
    ] {
        let line = line(server);
        assert!(line.starts_with("fail ") && line.contains(state) && line.contains(cause), "{line}");
    }
}

#[test]
fn a_silent_server_is_waited_for_as_asked_and_no_other_retried() {
    let silent = "echo $$ >>\"$PIDS/silent\"; while read -r line; do :; done";
    let broken = "echo $$ >>\"$PIDS/broken\"; read -r line; exit 4";
    let home = Home::new(&json!({
        "silent": { "command": "sh", "args": ["-c", silent] },
        "broken": { "command": "sh", "args": ["-c", broken] },
    }));
    let pids = home.pids();
    let done = Done::of(home.command(&["check", "--wait", "3s"]).env("PIDS", &pids));
    home.assert_clean();
    done.assert_ended(1, &[]);
    assert!(done.stdout.ends_with("connecting: no session in time\n"), "{done:?}");
    // The probe of its era ended the server: it was started once more, within the same attempt.
    assert_eq!(home.groups("broken").len(), 2, "one connect");
}

#[test]
fn a_config_that_is_wrong_is_2_with_all_that_is_wrong() {
    let home = Home::new(&json!({ "a": { "command": 1 }, "b": { "url": "ftp://x/" }, "c": "shell" }));
    let done = home.run(&["check"]);
    done.assert_ended(2, &["server `a`", "server `b`"]);
    assert!(done.stderr.lines().filter(|line| line.starts_with("error: ")).count() >= 2, "{done:?}");
    assert!(!home.was_started("c"));
    home.run(&["check", "--wait", "0"]).assert_ended(2, &["'0' for '--wait <DURATION>'"]);
}

#[test]
fn without_a_path_the_usual_places_are_looked_through() {
    let home = Home::new(&json!({ "a": "shell" }));
    let away = tempfile::tempdir().expect("a directory");
    let check = |cwd: &std::path::Path| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_mcp-reconnect"));
        command.arg("check").current_dir(cwd).env("HOME", away.path());
        Done::of(command.env_remove("XDG_CONFIG_HOME").env_remove("MCP_RECONNECT_LOG"))
    };
    let found = check(home.dir.path());
    home.assert_clean();
    found.assert_ended(0, &["config: ", "mcp-reconnect.json\n"]);
    check(away.path()).assert_ended(2, &["no config", "/mcp-reconnect.json\n", "/.mcp.json\n", "/.claude.json\n"]);
}
