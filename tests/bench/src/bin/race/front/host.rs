//! The host, the same before all: JSON-RPC as text, over the pipes of a child or by POST.

use std::collections::HashMap;
use std::process::Stdio;
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use rustix::process::{Pid, Signal, kill_process_group};
use serde::Deserialize;
use serde_json::json;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

/// How long a start may take: Python starts slowly.
const START: Duration = Duration::from_secs(60);
/// How long an answer may take.
const ANSWER: Duration = Duration::from_secs(20);
/// How long a child may take to end by itself.
const END: Duration = Duration::from_secs(10);

const SESSION: &str = "mcp-session-id";

/// One session.
pub(crate) struct Host {
    channel: Channel,
    last: u64,
}

enum Channel {
    Lines(Box<Lines>),
    Posts(Posts),
}

struct Lines {
    child: Child,
    group: Pid,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

struct Posts {
    client: reqwest::Client,
    url: String,
    session: Option<String>,
    open: FuturesUnordered<BoxFuture<'static, Result<Posted, String>>>,
}

/// An answer to a POST, and the session that it names.
struct Posted {
    text: String,
    session: Option<String>,
}

/// Some calls.
#[derive(Default)]
pub(crate) struct Calls {
    /// Of the answers as they should be.
    pub(crate) times: Vec<f64>,
    /// The others.
    pub(crate) failed: u64,
    /// From the first word to the last.
    pub(crate) took: Duration,
}

/// How calls are made.
#[derive(Clone, Copy)]
pub(crate) struct Load {
    /// Bytes of the text that is sent and comes back.
    pub(crate) size: usize,
    /// How many are under way at any time.
    pub(crate) at_once: usize,
}

#[derive(Deserialize)]
struct Message {
    id: Option<u64>,
    result: Option<CallResult>,
}

#[derive(Deserialize)]
struct CallResult {
    #[serde(default)]
    content: Vec<Content>,
    #[serde(default, rename = "isError")]
    is_error: bool,
}

#[derive(Deserialize)]
struct Content {
    text: Option<String>,
}

impl Host {
    /// Starts what it speaks to, and the session.
    pub(crate) async fn start(mut command: Command) -> Result<Self, String> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| format!("{}: {error}", command.as_std().get_program().to_string_lossy()))?;
        let group = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        let (Some(group), Some(stdin), Some(stdout)) = (group, child.stdin.take(), child.stdout.take()) else {
            return Err("a child without an id or pipes".into());
        };
        let lines = Lines { child, group, stdin, stdout: BufReader::with_capacity(64 * 1024, stdout) };
        Self { channel: Channel::Lines(Box::new(lines)), last: 0 }.initialized().await
    }

    /// Begins a session at this URL.
    pub(crate) async fn connect(url: String) -> Result<Self, String> {
        _ = rustls::crypto::ring::default_provider().install_default(); // it may be there already
        let client = reqwest::Client::builder().no_proxy().build().map_err(|error| error.to_string())?;
        let posts = Posts { client, url, session: None, open: FuturesUnordered::new() };
        Self { channel: Channel::Posts(posts), last: 0 }.initialized().await
    }

    async fn initialized(mut self) -> Result<Self, String> {
        let client = json!({ "name": "race", "version": "1" });
        let params = json!({ "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client });
        self.send("initialize", Some(0), &params.to_string()).await?;
        timeout(START, self.answer()).await.map_err(|_| "no answer to `initialize`")??;
        self.send("notifications/initialized", None, "{}").await?;
        if let Channel::Posts(posts) = &mut self.channel {
            posts.open.next().await.transpose()?;
        }
        // Some proxies want to be asked for the tools before they are called.
        self.last += 1;
        self.send("tools/list", Some(self.last), "{}").await?;
        timeout(START, self.answer()).await.map_err(|_| "no answer to `tools/list`")??;
        Ok(self)
    }

    /// Calls `echo` until enough calls were made or the time is up.
    pub(crate) async fn call(&mut self, load: Load, most: usize, bound: Duration) -> Result<Calls, String> {
        let mut calls = Calls::default();
        let mut open = HashMap::new();
        let begin = Instant::now();
        let mut begun = 0;
        loop {
            while open.len() < load.at_once && begun < most && begin.elapsed() < bound {
                self.last += 1;
                begun += 1;
                let text = format!("{:0>1$}", self.last, load.size);
                let params = format!(r#"{{"name":"echo","arguments":{{"text":"{text}"}}}}"#);
                let sent = Instant::now();
                self.send("tools/call", Some(self.last), &params).await?;
                open.insert(self.last, (text, sent));
            }
            if open.is_empty() {
                calls.took = begin.elapsed();
                return Ok(calls);
            }
            let Message { id, result } = timeout(ANSWER, self.answer()).await.map_err(|_| "no answer to a call")??;
            let Some((text, sent)) = id.and_then(|id| open.remove(&id)) else { continue };
            let took = sent.elapsed();
            let said = result.filter(|result| !result.is_error).and_then(|mut result| result.content.pop()?.text);
            if said.as_ref() == Some(&text) {
                calls.times.push(took.as_secs_f64());
            } else {
                calls.failed += 1;
            }
        }
    }

    async fn send(&mut self, method: &str, id: Option<u64>, params: &str) -> Result<(), String> {
        let id = id.map(|id| format!(r#""id":{id},"#)).unwrap_or_default();
        let mut frame = format!(r#"{{"jsonrpc":"2.0",{id}"method":"{method}","params":{params}}}"#);
        match &mut self.channel {
            Channel::Lines(lines) => {
                frame.push('\n');
                lines.stdin.write_all(frame.as_bytes()).await.map_err(|error| error.to_string())
            }
            Channel::Posts(posts) => {
                posts.post(frame);
                Ok(())
            }
        }
    }

    /// The next answer.
    async fn answer(&mut self) -> Result<Message, String> {
        loop {
            let text = match &mut self.channel {
                Channel::Lines(lines) => {
                    let mut line = String::new();
                    let read = lines.stdout.read_line(&mut line).await.map_err(|error| error.to_string())?;
                    if read == 0 {
                        return Err("it has closed stdout".into());
                    }
                    line
                }
                Channel::Posts(posts) => {
                    let Posted { text, session } = posts.open.next().await.ok_or("nothing was asked")??;
                    posts.session = session.or(posts.session.take());
                    text
                }
            };
            // Anything else is a notification, or a line of a log.
            if let Ok(message @ Message { id: Some(_), .. }) = serde_json::from_str(&text) {
                return Ok(message);
            }
        }
    }

    /// Ends it, politely where that is possible.
    pub(crate) async fn end(self) {
        if let Channel::Lines(lines) = self.channel {
            let Lines { mut child, stdin, stdout, group } = *lines;
            drop((stdin, stdout));
            if timeout(END, child.wait()).await.is_err() {
                _ = kill_process_group(group, Signal::KILL);
            }
        }
    }
}

impl Posts {
    fn post(&mut self, frame: String) {
        let mut request = self.client.post(&self.url).body(frame);
        request = request.header("content-type", "application/json");
        request = request.header("accept", "application/json, text/event-stream");
        if let Some(session) = &self.session {
            request = request.header(SESSION, session).header("mcp-protocol-version", "2025-11-25");
        }
        self.open.push(Box::pin(async move {
            let answer = request.send().await.map_err(|error| error.to_string())?;
            let status = answer.status();
            if !status.is_success() {
                return Err(format!("HTTP {status}"));
            }
            let header = |name: &str| answer.headers().get(name).and_then(|value| value.to_str().ok());
            let session = header(SESSION).map(str::to_owned);
            let streams = header("content-type").is_some_and(|kind| kind.starts_with("text/event-stream"));
            let mut text = answer.text().await.map_err(|error| error.to_string())?;
            if streams {
                // The answer is the last event.
                let data = text.lines().rev().find_map(|line| line.strip_prefix("data:"));
                text = data.unwrap_or_default().to_owned();
            }
            Ok(Posted { text, session })
        }));
    }
}
