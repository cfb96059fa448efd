//! The command `mcp-reconnect`, as a user runs it: real processes, real signals.

use std::io::{BufRead as _, BufReader, Lines};
use std::process::{Child, ChildStdout, Command, Output, Stdio};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process, test_kill_process_group};
use serde_json::Value;
use tempfile::TempDir;

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mcp-reconnect"));
    command.args(args).env_remove("MCP_RECONNECT_LOG").stdin(Stdio::null());
    command
}

fn run(args: &[&str]) -> Output {
    command(args).output().expect("the command starts")
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn events(output: &Output) -> Vec<Value> {
    let text = std::str::from_utf8(&output.stdout).expect("UTF-8");
    text.lines().map(|line| serde_json::from_str(line).expect(line)).collect()
}

/// The last line, which must be the summary.
fn summary(output: &Output) -> Value {
    let last = events(output).pop().unwrap_or_else(|| panic!("no line: {}", stderr(output)));
    assert_eq!(last["event"], "summary", "{last}");
    last
}

/// A demo under way, with its own place for temporary files. Ends by force when it is dropped.
struct Demo {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    tmp: TempDir,
}

impl Demo {
    fn start(args: &[&str]) -> Self {
        let tmp = tempfile::tempdir().expect("a directory");
        let mut child = command(args).env("TMPDIR", tmp.path()).stdout(Stdio::piped()).spawn().expect("it starts");
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        Self { child, lines, tmp }
    }

    /// Reads up to the first event for which this holds.
    fn until(&mut self, wanted: impl Fn(&Value) -> bool) -> Value {
        for line in &mut self.lines {
            let event = serde_json::from_str(&line.expect("UTF-8")).expect("JSON");
            if wanted(&event) {
                return event;
            }
        }
        panic!("the demo has ended before that");
    }

    /// Interrupts it; its exit status, when everything is read.
    fn interrupt(&mut self) -> Option<i32> {
        kill_process(Pid::from_child(&self.child), Signal::INT).expect("it runs");
        for line in &mut self.lines {
            line.expect("UTF-8");
        }
        self.child.wait().expect("a status").code()
    }

    /// Asserts that nothing is left of it and of this server.
    fn assert_clean(&self, server: &Value) {
        let group = server["pid"].as_i64().and_then(|pid| Pid::from_raw(pid.try_into().ok()?)).expect("a pid");
        assert_eq!(test_kill_process_group(group), Err(Errno::SRCH), "the server lives on: {server}");
        let left: Vec<_> = self.tmp.path().read_dir().expect("a directory").collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        // It has ended, unless the test fails.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

#[test]
fn the_demo_loses_no_call_and_doubles_none() {
    let output = run(&["demo", "--json"]);
    let summary = summary(&output);
    assert_eq!(output.status.code(), Some(0), "{summary}\n{}", stderr(&output));
    assert_eq!((&summary["ok"], &summary["lost"], &summary["doubled"]), (&true.into(), &0.into(), &0.into()));
    assert!(summary["epochs"].as_u64() >= Some(4), "{summary}");
    let rebuilt: Vec<_> = summary["rebuilds"].as_array().unwrap().iter().map(|rebuild| &rebuild["fault"]).collect();
    assert_eq!(rebuilt, ["kill", "hang", "crash_loop"]);
    let tools = summary["tools"].as_array().unwrap();
    assert_eq!(tools.iter().map(|tool| tool["annotated"].as_bool()).collect::<Vec<_>>(), [Some(true), Some(false)]);
    for tool in tools {
        let count = |what: &str| tool[what].as_u64().unwrap_or_else(|| panic!("{what} of {tool}"));
        let outcomes = ["answered", "server_error", "outcome_unknown", "deadline_exceeded", "not_sent", "lost"];
        assert_eq!(count("calls"), outcomes.map(count).iter().sum::<u64>(), "{tool}");
        assert!(count("answered") >= 4, "{tool}");
        assert!(count("deadline_exceeded") >= 1, "one hung: {tool}");
        assert_eq!(count("runs"), count("answered") + count("uncertain_ran") + count("repeats"), "{tool}");
    }
    let faults = events(&output).iter().filter(|event| event["event"] == "fault").count();
    assert_eq!(faults, 3);
    // Three servers of the crash loop, told with their exit status.
    let crashes = events(&output)
        .iter()
        .filter(|event| event["cause"].as_str().is_some_and(|cause| cause.starts_with("exited with status 3")))
        .filter(|event| event["status"] == "TRANSIENT_FAILURE")
        .count();
    assert_eq!(crashes, 3);
}

#[test]
fn a_wrong_answer_is_a_lost_call() {
    let output = run(&["demo", "--json", "--faults", "kill", "--misdeed", "wrong-answer"]);
    let summary = summary(&output);
    assert_eq!(output.status.code(), Some(1), "{summary}");
    assert_eq!((&summary["ok"], &summary["lost"], &summary["doubled"]), (&false.into(), &1.into(), &0.into()));
}

#[test]
fn a_call_that_ran_twice_is_a_doubled_one() {
    let output = run(&["demo", "--json", "--faults", "kill", "--misdeed", "double-run"]);
    let summary = summary(&output);
    assert_eq!(output.status.code(), Some(1), "{summary}");
    assert_eq!((&summary["ok"], &summary["lost"], &summary["doubled"]), (&false.into(), &0.into(), &1.into()));
}

#[test]
fn an_interrupt_ends_everything() {
    let mut demo = Demo::start(&["demo", "--json"]);
    let server = demo.until(|event| event["status"] == "READY");
    assert_eq!(demo.interrupt(), Some(130));
    demo.assert_clean(&server);
}

#[test]
fn an_interrupt_ends_a_server_that_hangs() {
    let mut demo = Demo::start(&["demo", "--json", "--faults", "hang"]);
    let hung = demo.until(|event| event["event"] == "fault");
    assert_eq!(demo.interrupt(), Some(130));
    demo.assert_clean(&hung);
}

#[test]
fn a_server_that_was_named_is_killed_and_hung() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().to_str().expect("UTF-8");
    let server = env!("CARGO_BIN_EXE_mcp-reconnect");
    // Its tools need an argument: it is pinged.
    let output = run(&["demo", "--json", "--", server, "demo-server", "--dir", dir]);
    let pinged = summary(&output);
    assert_eq!(output.status.code(), Some(0), "{pinged}\n{}", stderr(&output));
    assert_eq!((&pinged["epochs"], &pinged["doubled"]), (&3.into(), &Value::Null));
    assert_eq!(pinged["tools"][0]["tool"], "ping");
}

#[test]
fn a_server_that_does_not_start_is_told_with_its_cause() {
    let missing = run(&["demo", "--", "/nowhere/server"]);
    assert_eq!(missing.status.code(), Some(1));
    let told = String::from_utf8_lossy(&missing.stdout).into_owned();
    assert!(told.contains("command \"/nowhere/server\": No such file or directory"), "{told}");

    let failing = run(&["demo", "--json", "--", "sh", "-c", "echo no config >&2; exit 4"]);
    assert_eq!(failing.status.code(), Some(1));
    let error = summary(&failing)["error"].as_str().unwrap_or_default().to_owned();
    assert_eq!(error, "the server does not start: exited with status 4; stderr: no config");
}

#[test]
fn bad_arguments_are_named_with_their_value() {
    for (args, named) in [
        (&["demo", "--rounds", "0"][..], ["--rounds <N>", "'0'"]),
        (&["demo", "--rounds", "many"], ["--rounds <N>", "'many'"]),
        (&["demo", "--faults", "kill,flood"], ["--faults <FAULT>", "'flood'"]),
        (&["demo", "--faults", "crash-loop", "--", "server"], ["--faults <FAULT>", "'crash-loop'"]),
        (&["demo", "--call-timeout", "0"], ["--call-timeout <SECONDS>", "'0'"]),
        (&["demo", "server"], ["unexpected argument", "'server'"]),
        (&["dmeo"], ["unrecognized subcommand", "'dmeo'"]),
    ] {
        let output = run(args);
        let error = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {error}");
        for part in named {
            assert!(error.contains(part), "{args:?}: {error}");
        }
    }
    let output = command(&["demo"]).env("MCP_RECONNECT_LOG", "mcp_reconnect=loud").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("'mcp_reconnect=loud' for 'MCP_RECONNECT_LOG'"), "{}", stderr(&output));
}

#[test]
fn help_and_version_are_told() {
    let help = run(&["--help"]);
    assert_eq!(help.status.code(), Some(0));
    let text = String::from_utf8_lossy(&help.stdout).into_owned();
    assert!(text.contains("demo") && !text.contains("demo-server"), "{text}");
    let version = run(&["--version"]);
    assert_eq!(String::from_utf8_lossy(&version.stdout), format!("mcp-reconnect {}\n", env!("CARGO_PKG_VERSION")));
}
