//! Nothing that is secret in a config is shown, however much is logged.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use super::{Done, Home};

const SECRET: &str = "hunter2hunter2";

/// A config with secrets: of a server behind HTTP that is there, and of one in shell.
fn home(port: &str) -> Home {
    let home = Home::new(&json!({}));
    let mut servers = home.servers(&json!({ "shell": "shell" }));
    servers["shell"]["env"]["TOKEN"] = SECRET.into();
    servers["shell"]["args"].as_array_mut().expect("arguments").push(SECRET.into());
    let http = |address: &str| {
        json!({ "url": format!("http://{address}/mcp?key={SECRET}"),
            "headers": { "Authorization": format!("Bearer {SECRET}"), "X-Api-Key": SECRET } })
    };
    servers["http"] = http(port);
    servers["refused"] = http("127.0.0.1:1");
    servers["nowhere"] = json!({ "command": "/nowhere/server", "args": [SECRET], "env": { "TOKEN": SECRET } });
    home.write(&json!({ "mcpServers": servers }).to_string());
    home
}

#[track_caller]
fn assert_silent(done: &Done) {
    assert!(done.stderr.contains(" INFO "), "it logs: {done:?}");
    for (place, text) in [("stdout", &done.stdout), ("stderr", &done.stderr)] {
        let shown = text.lines().find(|line| line.contains(SECRET));
        assert_eq!(shown, None, "{place}");
    }
}

#[test]
fn no_command_shows_a_secret() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut server = Command::new(env!("CARGO_BIN_EXE_mcp-reconnect"));
    server.args(["demo-server", "--listen", "127.0.0.1:0", "--dir"]).arg(dir.path());
    let mut server = server.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
    let mut lines = BufReader::new(server.stdout.take().expect("piped")).lines();
    let address = lines.next().expect("an address").expect("UTF-8");
    let home = home(&address);

    let check = home.run(&["check", "--log", "trace"]);
    check.assert_ended(1, &[]);
    assert!(check.stdout.lines().any(|line| line.starts_with("ok    http ")), "it is reached: {check:?}");
    assert_silent(&check);
    let tools = home.run(&["tools", "--log", "trace"]);
    tools.assert_ended(3, &[]);
    assert_silent(&tools);
    for server in ["shell", "http", "refused", "nowhere"] {
        // One that is refused is tried again until then.
        assert_silent(&home.run(&["call", server, "say", "--timeout", "1s", "--log", "trace"]));
    }
    assert_silent(&home.run(&["call", "http", "echo", r#"{ "text": "x" }"#, "--log", "trace"]));

    let mut watch = home.command(&["watch", "--json", "--status-every", "100ms", "--log", "trace"]);
    let mut watch = watch.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    let mut stderr = watch.stderr.take().expect("piped");
    let log = std::thread::spawn(move || {
        let mut text = String::new();
        stderr.read_to_string(&mut text).map(|_| text)
    });
    let mut stdout = String::new();
    let mut snapshots = 0;
    for line in BufReader::new(watch.stdout.take().expect("piped")).lines() {
        stdout += &(line.expect("UTF-8") + "\n");
        if stdout.lines().next_back().is_some_and(|line| line.contains(r#""event":"snapshot""#)) {
            snapshots += 1;
            if snapshots == 10 {
                kill_process(Pid::from_child(&watch), Signal::TERM).expect("it runs");
            }
        }
    }
    let status = watch.wait().expect("a status").code();
    let stderr = log.join().expect("no panic").expect("UTF-8");
    let done = Done { status, stdout, stderr };
    done.assert_ended(0, &[]);
    assert_silent(&done);
    home.assert_clean();
    drop(server.stdin.take());
    assert!(server.wait().is_ok());
}
