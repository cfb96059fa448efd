//! `mcp-reconnect proxy` as a host runs it: real processes, pipes and signals, in front of fake servers.

mod arguments;
mod end;
mod payload;
mod pipes;
mod recording;
mod secrets;
mod status;
mod upstream;

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Output, Stdio};
use std::time::Duration;

use mcp_reconnect_tests::fake::FakeProcess;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncWrite, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, Command};

/// Far beyond anything a slow machine needs; reaching it is a failure, not a measurement.
const SOON: Duration = Duration::from_secs(90);

async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(SOON, future).await.expect("it should have happened by now")
}

/// The command of the package `mcp-reconnect-cli`; `cargo test --workspace` builds it.
fn program() -> PathBuf {
    let program = Path::new(env!("CARGO_BIN_EXE_fake-server")).with_file_name("mcp-reconnect");
    assert!(program.exists(), "cargo build --workspace --all-features");
    program
}

/// Where a front keeps what it keeps, and its log goes.
struct Home(TempDir);

impl Home {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a directory"))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// The command with these arguments; its stderr goes to a file.
    fn command(&self, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Command {
        self.program(program(), args)
    }

    fn program(&self, program: impl AsRef<OsStr>, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Command {
        let mut command = Command::new(program);
        command.args(args).env_remove("MCP_RECONNECT_LOG").current_dir(self.0.path());
        for (variable, name) in [("HOME", "home"), ("XDG_CACHE_HOME", "cache"), ("XDG_RUNTIME_DIR", "run")] {
            command.env(variable, self.path(name));
        }
        let log = File::options().create(true).append(true).open(self.path("stderr")).expect("a log");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log).kill_on_drop(true);
        command
    }

    /// What the command does that needs no host.
    async fn run(&self, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Output {
        let mut command = self.command(args);
        command.stdin(Stdio::null()).stderr(Stdio::piped());
        soon(command.output()).await.expect("it starts")
    }

    fn stderr(&self) -> String {
        fs::read_to_string(self.path("stderr")).expect("a log")
    }
}

/// A host with its server's place taken by a front. Every line of stdout is checked to be a message.
struct Host {
    front: Child,
    stdin: Option<Box<dyn AsyncWrite + Send + Unpin>>,
    stdout: Lines<BufReader<Box<dyn AsyncRead + Send + Unpin>>>,
    next_id: u64,
    /// What came beside answers.
    told: Vec<Value>,
}

impl Host {
    fn start(command: &mut Command) -> Self {
        let mut front = command.spawn().expect("it starts");
        let (stdin, stdout) = (front.stdin.take().expect("piped"), front.stdout.take().expect("piped"));
        Self::over(front, stdin, stdout)
    }

    /// With the other ends of its stdin and its stdout.
    fn over(
        front: Child,
        stdin: impl AsyncWrite + Send + Unpin + 'static,
        stdout: impl AsyncRead + Send + Unpin + 'static,
    ) -> Self {
        let stdout: Box<dyn AsyncRead + Send + Unpin> = Box::new(stdout);
        let stdout = BufReader::new(stdout).lines();
        Self { front, stdin: Some(Box::new(stdin)), stdout, next_id: 0, told: Vec::new() }
    }

    /// In front of this server, with these options.
    fn of(home: &Home, options: &[&str], server: &FakeProcess) -> Self {
        Self::start(&mut home.command(in_front_of(options, server)))
    }

    async fn write(&mut self, text: &str) {
        let stdin = self.stdin.as_mut().expect("it is open");
        soon(stdin.write_all(text.as_bytes())).await.expect("it is read");
    }

    async fn say(&mut self, message: &Value) {
        self.write(&format!("{message}\n")).await;
    }

    /// The next message; `None`: stdout was closed.
    async fn next(&mut self) -> Option<Value> {
        let line = soon(self.stdout.next_line()).await.expect("UTF-8")?;
        let message: Value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"));
        assert_eq!(message["jsonrpc"], "2.0", "{line}");
        Some(message)
    }

    /// Asks without waiting; the id.
    async fn ask(&mut self, method: &str, params: Value) -> u64 {
        self.next_id += 1;
        self.say(&json!({ "jsonrpc": "2.0", "id": self.next_id, "method": method, "params": params })).await;
        self.next_id
    }

    /// The answer with this id; what else comes is kept.
    async fn answer(&mut self, id: u64) -> Value {
        loop {
            let message = self.next().await.expect("the session goes on");
            if message["id"] == id && message["method"].is_null() {
                return message;
            }
            self.told.push(message);
        }
    }

    async fn request(&mut self, method: &str, params: Value) -> Value {
        let id = self.ask(method, params).await;
        self.answer(id).await
    }

    /// Begins the session as a host of 2025-11-25: the result.
    async fn initialize(&mut self) -> Value {
        let client = json!({ "name": "host", "version": "1" });
        let params = json!({ "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client });
        let answer = self.request("initialize", params).await;
        self.say(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" })).await;
        answer["result"].clone()
    }

    async fn call(&mut self, tool: &str, text: &str) -> Value {
        self.request("tools/call", json!({ "name": tool, "arguments": { "text": text } })).await
    }

    /// Calls the tool `echo`, which must say it back.
    async fn echo(&mut self, text: &str) {
        let answer = self.call("echo", text).await;
        assert_eq!(answer["result"]["content"][0]["text"], text, "{answer}");
    }

    /// Waits for a message that is no answer.
    async fn until_told(&mut self, method: &str) {
        let told = |message: &Value| message["method"] == method;
        while !self.told.iter().any(told) {
            let message = self.next().await.expect("the session goes on");
            self.told.push(message);
        }
        self.told.retain(|message| !told(message));
    }

    fn pid(&self) -> Pid {
        let pid = self.front.id().and_then(|pid| i32::try_from(pid).ok());
        pid.and_then(Pid::from_raw).expect("it runs")
    }

    fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).expect("it runs");
    }

    async fn ended(&mut self) -> ExitStatus {
        soon(self.front.wait()).await.expect("a status")
    }

    /// Ends the session as a host does.
    async fn close(&mut self) -> Option<i32> {
        self.stdin = None;
        self.ended().await.code()
    }
}

/// The arguments of a front with these options for this server.
fn in_front_of(options: &[&str], server: &FakeProcess) -> Vec<OsString> {
    let mut args: Vec<OsString> = vec!["proxy".into()];
    args.extend(options.iter().map(Into::into));
    args.extend(["--".into(), server.program().into()]);
    args.extend(server.args());
    args
}

/// No process of the server runs any more, however it came to be. (Whose parent is gone is the system's to bury.)
#[track_caller]
fn nothing_is_left(server: &FakeProcess) {
    let ledger = server.ledger().expect("a ledger");
    assert!(!ledger.pids().is_empty(), "there was one");
    assert_eq!(ledger.live_pids(), [0; 0]);
}
