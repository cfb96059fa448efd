//! `mcp-reconnect demo`, as a user runs it, and the arguments of the command.

use std::io::{BufRead as _, BufReader, Lines, Read as _, Write as _};
use std::net::TcpListener;
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process, kill_process_group, test_kill_process_group};
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
        Self::start_with(args, Stdio::inherit())
    }

    fn start_with(args: &[&str], stderr: Stdio) -> Self {
        let tmp = tempfile::tempdir().expect("a directory");
        let mut command = command(args);
        command.env("TMPDIR", tmp.path()).stdout(Stdio::piped()).stderr(stderr);
        let mut child = command.spawn().expect("it starts");
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
        assert_eq!(test_kill_process_group(group(server)), Err(Errno::SRCH), "the server lives on: {server}");
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

/// The process group of the server that an event tells of.
fn group(server: &Value) -> Pid {
    server["pid"].as_i64().and_then(|pid| Pid::from_raw(pid.try_into().ok()?)).expect("a pid")
}

/// The embedded server behind HTTP, run by the test. Ends by force when it is dropped.
struct Server {
    child: Child,
    address: String,
    dir: TempDir,
    /// It ends when this does.
    _stdin: ChildStdin,
}

impl Server {
    fn start(address: &str) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().to_str().expect("UTF-8");
        let mut command = command(&["demo-server", "--listen", address, "--dir", path]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
        let stdout = BufReader::new(child.stdout.take().expect("piped"));
        let address = stdout.lines().next().expect("an address").expect("UTF-8");
        let stdin = child.stdin.take().expect("piped");
        Self { child, address, dir, _stdin: stdin }
    }

    fn url(&self) -> String {
        format!("http://{}/mcp", self.address)
    }

    /// Another one at the same address.
    fn restart(self) -> Self {
        let address = self.address.clone();
        drop(self);
        Self::start(&address)
    }

    fn assert_nothing_ran(&self) {
        assert!(!self.dir.path().join("ledger").exists(), "a tool was called");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Each call has one outcome, and the ledger agrees with it.
fn assert_sums(tool: &Value) {
    let count = |what: &str| tool[what].as_u64().unwrap_or_else(|| panic!("{what} of {tool}"));
    let outcomes = ["answered", "server_error", "outcome_unknown", "deadline_exceeded", "not_sent", "lost"];
    assert_eq!(count("calls"), outcomes.map(count).iter().sum::<u64>(), "{tool}");
    assert!(count("answered") >= 4, "{tool}");
    assert!(count("deadline_exceeded") >= 1, "one hung: {tool}");
    assert_eq!(count("runs"), count("answered") + count("uncertain_ran") + count("repeats"), "{tool}");
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
        assert_sums(tool);
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
fn the_demo_over_http_loses_no_call_and_doubles_none() {
    let output = run(&["demo", "--http", "--json"]);
    let summary = summary(&output);
    assert_eq!(output.status.code(), Some(0), "{summary}\n{}", stderr(&output));
    assert_eq!((&summary["ok"], &summary["lost"], &summary["doubled"]), (&true.into(), &0.into(), &0.into()));
    assert!(summary["epochs"].as_u64() >= Some(4), "{summary}");
    let rebuilt: Vec<_> = summary["rebuilds"].as_array().unwrap().iter().map(|rebuild| &rebuild["fault"]).collect();
    assert_eq!(rebuilt, ["restart", "freeze", "unavailable"]);
    for tool in summary["tools"].as_array().unwrap() {
        assert_sums(tool);
    }

    let events = events(&output);
    let of = |kind: &str| events.iter().filter(|event| event["event"] == *kind).collect::<Vec<_>>();
    // Only a restart makes it another process.
    let (faults, reliefs) = (of("fault"), of("relief"));
    let same: Vec<_> = faults.iter().zip(&reliefs).map(|(fault, relief)| fault["pid"] == relief["pid"]).collect();
    assert_eq!(same, [false, true, true], "{faults:?} {reliefs:?}");
    assert!(reliefs.iter().zip(&faults).all(|(relief, fault)| relief["fault"] == fault["fault"]));
    let mut sessions: Vec<_> = events.iter().filter_map(|event| event["session"].as_str()).collect();
    assert_eq!(sessions.len() as u64, summary["epochs"], "one each: {sessions:?}");
    sessions.sort_unstable();
    sessions.dedup();
    assert_eq!(sessions.len() as u64, summary["epochs"], "none twice: {sessions:?}");
    let unavailable = |event: &Value| event["cause"].as_str().is_some_and(|cause| cause.contains("HTTP 503"));
    assert!(events.iter().any(unavailable), "{events:?}");
}

#[test]
fn a_call_that_ran_twice_over_http_is_a_doubled_one() {
    let output = run(&["demo", "--http", "--json", "--faults", "restart", "--misdeed", "double-run"]);
    let summary = summary(&output);
    assert_eq!(output.status.code(), Some(1), "{summary}");
    assert_eq!((&summary["ok"], &summary["lost"], &summary["doubled"]), (&false.into(), &0.into(), &1.into()));
}

#[test]
fn an_interrupt_ends_a_server_behind_http() {
    let mut demo = Demo::start(&["demo", "--http", "--json"]);
    let server = demo.until(|event| event["status"] == "READY");
    assert_eq!(demo.interrupt(), Some(130));
    demo.assert_clean(&server);
}

#[test]
fn an_interrupt_ends_a_server_that_is_frozen() {
    let mut demo = Demo::start(&["demo", "--http", "--json", "--faults", "freeze"]);
    let frozen = demo.until(|event| event["event"] == "fault");
    assert_eq!(demo.interrupt(), Some(130));
    demo.assert_clean(&frozen);
}

#[test]
fn a_server_behind_http_ends_with_a_demo_that_is_killed() {
    let mut demo = Demo::start_with(&["demo", "--http", "--json"], Stdio::piped());
    let mut stderr = demo.child.stderr.take().expect("piped");
    let server = demo.until(|event| event["status"] == "READY");
    demo.child.kill().expect("it runs");
    // The server has it as well: it ends with the last of them.
    let (end, ended) = mpsc::channel();
    thread::spawn(move || end.send(stderr.read_to_end(&mut Vec::new()).is_ok()));
    let ended = ended.recv_timeout(Duration::from_secs(60));
    if ended != Ok(true) {
        kill_process_group(group(&server), Signal::KILL).expect("it lives on");
    }
    assert_eq!(ended, Ok(true), "the server lives on: {server}");
}

#[test]
fn a_url_is_called_for_the_time_that_was_asked_for() {
    let server = Server::start("127.0.0.1:0");
    let output = run(&["demo", "--json", "--for", "1", "--url", &server.url()]);
    let called = summary(&output);
    assert_eq!(output.status.code(), Some(0), "{called}\n{}", stderr(&output));
    assert_eq!((&called["epochs"], &called["lost"], &called["doubled"]), (&1.into(), &0.into(), &Value::Null));
    // Its tools need an argument: it is pinged.
    assert_eq!(called["tools"][0]["tool"], "ping");
    assert!(called["tools"][0]["answered"].as_u64() >= Some(1), "{called}");
    let start = &events(&output)[0];
    assert_eq!((&start["server"], &start["seconds"]), (&server.url().into(), &1.into()));
    assert_eq!((&start["rounds"], &start["faults"]), (&Value::Null, &Value::Array(Vec::new())));
    server.assert_nothing_ran();
}

#[test]
fn a_url_whose_server_is_restarted_is_rebuilt() {
    let mut server = Server::start("127.0.0.1:0");
    let mut demo = Demo::start(&["demo", "--json", "--for", "3600", "--url", &server.url()]);
    demo.until(|event| event["event"] == "calling");
    for _ in 0..2 {
        server = server.restart();
        let rebuilt = demo.until(|event| event["event"] == "rebuilt");
        assert_eq!((&rebuilt["round"], &rebuilt["fault"]), (&Value::Null, &Value::Null), "{rebuilt}");
    }
    assert_eq!(demo.interrupt(), Some(130));
}

#[test]
fn a_url_whose_server_does_not_come_back_is_an_error() {
    let server = Server::start("127.0.0.1:0");
    let mut demo = Demo::start(&["demo", "--json", "--for", "5", "--url", &server.url()]);
    demo.until(|event| event["event"] == "calling");
    drop(server);
    let summary = demo.until(|event| event["event"] == "summary");
    let error = summary["error"].as_str().unwrap_or_default();
    assert!(error.starts_with("there was no new session yet when the time was over; last failure: "), "{summary}");
    assert_eq!(demo.child.wait().expect("a status").code(), Some(1));
}

#[test]
fn a_url_without_a_server_is_told_with_its_cause() {
    let output = run(&["demo", "--json", "--url", "http://127.0.0.1:1/mcp"]);
    assert_eq!(output.status.code(), Some(1));
    let error = summary(&output)["error"].as_str().unwrap_or_default().to_owned();
    assert!(error.starts_with("the server cannot be reached: "), "{error}");
    assert!(error.to_lowercase().contains("connection refused"), "{error}");
}

#[test]
fn headers_go_with_every_request_to_the_url() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}/mcp", listener.local_addr().expect("an address"));
    let asked = thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a client");
        let head = BufReader::new(&stream).lines().map(|line| line.expect("UTF-8").to_lowercase());
        let head: Vec<_> = head.take_while(|line| !line.is_empty()).collect();
        let refused = b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n";
        stream.write_all(refused).expect("it reads");
        head
    });
    let output = run(&["demo", "--json", "--url", &url, "--header", "X-Api-Key: a b", "--header", "X-Other:c"]);
    let head = asked.join().expect("a request");
    for line in ["x-api-key: a b", "x-other: c"] {
        assert!(head.iter().any(|sent| sent == line), "{line}: {head:?}");
    }
    assert_eq!(output.status.code(), Some(1));
    let error = summary(&output)["error"].as_str().unwrap_or_default().to_owned();
    assert!(error.starts_with("the server is parked ("), "{error}");
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
        (&["demo", "--faults", "freeze"], ["'freeze' for '--faults <FAULT>'", "needs '--http'"]),
        (&["demo", "--http", "--faults", "restart,hang"], ["'hang' for '--faults <FAULT>'", "leave '--http' out"]),
        (&["demo", "--http", "--", "server"], ["'--http'", "COMMAND"]),
        (&["demo", "--http", "--tool", "echo"], ["--url <URL>", "COMMAND"]),
        (&["demo", "--url", "ftp://a/"], ["'ftp://a/' for '--url <URL>'", "no http or https URL"]),
        (&["demo", "--url", "a b"], ["'a b' for '--url <URL>'", "URL cannot be read"]),
        (&["demo", "--url", "http://a/", "--http"], ["--http", "--url <URL>"]),
        (&["demo", "--url", "http://a/", "--", "server"], ["--url <URL>", "COMMAND"]),
        (&["demo", "--url", "http://a/", "--faults", "kill"], ["--url <URL>", "--faults <FAULT>"]),
        (&["demo", "--url", "http://a/", "--rounds", "2"], ["--url <URL>", "--rounds <N>"]),
        (&["demo", "--url", "http://a/", "--for", "0"], ["--for <SECONDS>", "'0'"]),
        (&["demo", "--url", "http://a/", "--header", "X"], ["'X' for '--header <NAME: VALUE>'", "no colon"]),
        (&["demo", "--url", "http://a/", "--header", "Accept: x"], ["'Accept: x' for '--header", "belongs to"]),
        (&["demo", "--for", "3"], ["not provided", "--url <URL>"]),
        (&["demo", "--header", "A: b"], ["not provided", "--url <URL>"]),
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
