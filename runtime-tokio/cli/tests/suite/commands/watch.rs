//! `mcp-reconnect watch` without a terminal.

use std::io::{BufRead as _, BufReader, Lines};
use std::process::{Child, ChildStdout, Stdio};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde_json::{Value, json};

use super::Home;

/// A watch under way. Ends by force when it is dropped.
struct Watch {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Watch {
    fn start(home: &Home, args: &[&str]) -> Self {
        let mut command = home.command(args);
        let mut child = command.args(["--log", "off"]).stdout(Stdio::piped()).spawn().expect("it starts");
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        Self { child, lines }
    }

    /// Reads up to the first event for which this holds; that event, and those before it.
    fn until(&mut self, wanted: impl Fn(&Value) -> bool) -> (Value, Vec<Value>) {
        let mut before = Vec::new();
        for line in &mut self.lines {
            let event: Value = serde_json::from_str(&line.expect("UTF-8")).expect("JSON");
            assert!(event["time"].as_str().is_some_and(|time| time.ends_with('Z')), "{event}");
            if wanted(&event) {
                return (event, before);
            }
            before.push(event);
        }
        panic!("the watch has ended before that: {before:#?}");
    }

    fn until_state(&mut self, server: &str, state: &str) -> Value {
        self.until(|event| event["event"] == "status" && event["server"] == *server && event["state"] == *state).0
    }

    fn until_applied(&mut self, server: &str) -> (Value, Vec<Value>) {
        self.until(|event| event["event"] == "applied" && event["server"] == *server)
    }

    /// Its exit status after this signal, when everything is read.
    fn end(&mut self, signal: Signal) -> Option<i32> {
        kill_process(Pid::from_child(&self.child), signal).expect("it runs");
        for line in &mut self.lines {
            line.expect("UTF-8");
        }
        self.child.wait().expect("a status").code()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // It has ended, unless the test fails.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

#[test]
fn a_server_that_is_killed_comes_back() {
    let home = Home::new(&json!({ "a": "shell", "missing": { "command": "/nowhere/server" } }));
    let mut watch = Watch::start(&home, &["watch", "--json"]);
    let (config, before) = watch.until(|event| event["event"] == "config");
    assert!(before.is_empty());
    assert_eq!((&config["errors"], &config["warnings"]), (&json!([]), &json!([])));
    let (applied, _) = watch.until_applied("a");
    assert_eq!(applied["outcome"], "started");
    let parked = watch.until_state("missing", "parked");
    assert_eq!((&parked["park_reason"], &parked["failure"]), (&"permanent".into(), &"permanent".into()));
    let (tools, _) = watch.until(|event| event["event"] == "tools");
    assert_eq!(tools["added"][0], "a__die");
    let (catalogue, _) = watch.until(|event| event["event"] == "catalogue");
    assert_eq!(catalogue["tools"]["added"].as_array().map(Vec::len), Some(6), "{catalogue}");
    assert_eq!(watch.until_state("a", "ready")["epoch"], 1);

    kill_process_group(home.groups("a")[0], Signal::KILL).expect("it runs");
    let down = watch.until_state("a", "transient_failure");
    assert_eq!((&down["failure"], &down["cause"]), (&"transport".into(), &"killed by signal 9 (SIGKILL)".into()));
    assert!(watch.until_state("a", "ready")["epoch"].as_u64() > Some(1));

    assert_eq!(watch.end(Signal::TERM), Some(0));
    home.assert_clean();
    assert!(home.groups("a").len() >= 2);
}

#[test]
fn a_changed_config_is_applied_and_a_broken_one_is_not() {
    let home = Home::new(&json!({ "a": "shell" }));
    let mut watch = Watch::start(&home, &["watch", "--json", "--status-every", "50ms"]);
    watch.until_state("a", "ready");
    let both = json!({ "mcpServers": home.servers(&json!({ "a": "shell", "b": "shell" })) }).to_string();
    home.write(&both);
    let (applied, before) = watch.until_applied("b");
    assert_eq!(applied["outcome"], "started");
    assert!(before.iter().any(|event| event["event"] == "config"), "{before:?}");
    watch.until_state("b", "ready");

    home.write(r#"{ "mcpServers": { "a": { "command": 1 }, "b": {} } }"#);
    let (broken, _) = watch.until(|event| event["event"] == "config");
    assert_eq!(broken["errors"].as_array().map(Vec::len), Some(2), "{broken}");
    let (after, before) = watch.until(|event| event["event"] == "snapshot");
    assert!(before.is_empty(), "{before:?}");
    let states: Vec<_> = after["servers"].as_array().unwrap().iter().map(|server| &server["state"]).collect();
    assert_eq!(states, ["ready", "ready"]);

    home.write(&json!({ "mcpServers": home.servers(&json!({ "b": "shell" })) }).to_string());
    assert_eq!(watch.until_applied("a").0["outcome"], "removed");
    let (last, _) = watch.until(|event| event["event"] == "snapshot");
    assert_eq!(last["servers"][0]["name"], "b");
    assert_eq!(last["servers"][0]["session"]["epoch"], 1, "it was left alone: {last}");

    assert_eq!(watch.end(Signal::INT), Some(0));
    home.assert_clean();
    assert_eq!((home.groups("a").len(), home.groups("b").len()), (1, 1));
}

#[test]
fn a_config_that_is_wrong_at_the_start_is_2() {
    let home = Home::new(&json!({ "a": { "command": 1 }, "b": { "url": 1 }, "c": "shell" }));
    let done = home.run(&["watch", "--json"]);
    done.assert_ended(2, &["server `a`", "server `b`"]);
    assert_eq!(done.stdout, "");
    assert!(!home.was_started("c"));
    std::fs::remove_file(home.config()).expect("it is there");
    home.run(&["watch"]).assert_ended(2, &["cannot be read"]);
}

#[test]
fn a_watch_that_nobody_reads_ends_and_leaves_nothing() {
    let home = Home::new(&json!({ "a": "shell" }));
    let mut child =
        home.command(&["watch", "--status-every", "50ms", "--log", "off"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let ready = |line: &String| line.contains(r#""state":"ready""#);
    assert!(lines.any(|line| ready(&line.expect("UTF-8"))));
    drop(lines);
    assert_eq!(child.wait().expect("a status").code(), Some(1));
    home.assert_clean();
}

#[test]
fn a_log_file_takes_the_log() {
    let home = Home::new(&json!({ "a": "shell" }));
    let log = home.dir.path().join("log");
    let path = log.to_str().expect("UTF-8");
    let mut command = home.command(&["watch", "--json", "--log-file", path]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    assert!(lines.any(|line| line.expect("UTF-8").contains(r#""state":"ready""#)));
    kill_process(Pid::from_child(&child), Signal::TERM).expect("it runs");
    lines.for_each(|line| drop(line.expect("UTF-8")));
    let done = child.wait_with_output().expect("a status");
    assert_eq!((done.status.code(), &*done.stderr), (Some(0), &b""[..]));
    let text = std::fs::read_to_string(log).expect("a log");
    assert!(text.contains("status=READY(1)") && !text.contains('\x1b'), "{text}");
    home.assert_clean();
}
