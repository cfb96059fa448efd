//! The ground truth: what every spawn of a fake server saw and did.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::Instant;

use super::http::HttpEvent;
use super::process::{ProcessState, process_state};

/// One line of the ledger.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// The spawn that wrote it, counted from 1.
    pub spawn: u32,
    /// When, in milliseconds: in memory since the ledger was made (tokio's clock), in a file since 1970.
    pub at: u64,
    /// What happened.
    #[serde(flatten)]
    pub event: Event,
}

/// What happened to a fake server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Event {
    /// It was started.
    Spawned {
        /// Its process; `None` in memory.
        pid: Option<u32>,
    },
    /// It was to be alone, and another process of its kind was still there.
    Crowded,
    /// It started a process of its own.
    Grandchild {
        /// That process.
        pid: u32,
    },
    /// It read a request.
    Request {
        /// The method.
        method: String,
        /// The id.
        id: Value,
        /// The tool, for `tools/call`.
        tool: Option<String>,
        /// The protocol version that the request's `_meta` states (since 2026-07-28).
        version: Option<String>,
        /// The params, as they came.
        params: Value,
    },
    /// It read a notification.
    Notification {
        /// The method.
        method: String,
        /// The params, as they came.
        params: Value,
    },
    /// It read an answer to a request of its own.
    Answer {
        /// The method of its request; empty for an answer to nothing.
        method: String,
        /// The whole message.
        message: Value,
    },
    /// It read a line that is no JSON-RPC message.
    Garbage {
        /// The line.
        line: String,
    },
    /// It ran a tool.
    Executed {
        /// The tool.
        tool: String,
        /// The id of the call.
        id: Value,
    },
    /// Its input ended.
    Eof,
    /// It ends by its own decision.
    Exit {
        /// `exit N`, `kill`, `eof`, `TERM`, ….
        reason: String,
    },
    /// Not in a process: it is gone, whoever ended it.
    Ended,
    /// What happened to it as an HTTP server.
    Http(HttpEvent),
}

/// What the ledger says at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ledger {
    entries: Vec<Entry>,
}

impl Ledger {
    /// Reads a ledger file. One that is not there is empty.
    ///
    /// # Errors
    ///
    /// It cannot be read, or a whole line of it is no entry.
    pub fn read(path: &Path) -> io::Result<Self> {
        match std::fs::read_to_string(path) {
            Ok(text) => Self::from_lines(&text),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(error),
        }
    }

    /// A last line without its end is being written, and left out.
    fn from_lines(text: &str) -> io::Result<Self> {
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        let entries = whole.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
        Ok(Self { entries })
    }

    /// Every entry, in the order of writing.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The same, of one spawn only.
    #[must_use]
    pub fn of_spawn(&self, spawn: u32) -> Self {
        Self { entries: self.entries.iter().filter(|entry| entry.spawn == spawn).cloned().collect() }
    }

    pub(crate) fn extend(&mut self, entries: Vec<Entry>) {
        self.entries.extend(entries);
    }

    pub(crate) fn count(&self, fits: impl Fn(&Event) -> bool) -> usize {
        self.entries.iter().filter(|entry| fits(&entry.event)).count()
    }

    /// How many were started.
    pub fn spawns(&self) -> usize {
        self.count(|event| matches!(event, Event::Spawned { .. }))
    }

    /// When each was started, in milliseconds (see [`Entry::at`]).
    pub fn spawn_times(&self) -> Vec<u64> {
        let spawned = self.entries.iter().filter(|entry| matches!(entry.event, Event::Spawned { .. }));
        spawned.map(|entry| entry.at).collect()
    }

    /// How many requests of this method were read.
    pub fn requests(&self, method: &str) -> usize {
        self.count(|event| matches!(event, Event::Request { method: m, .. } if m == method))
    }

    /// How many `initialize` were read.
    pub fn initializes(&self) -> usize {
        self.requests("initialize")
    }

    /// How many `server/discover` were read.
    pub fn discovers(&self) -> usize {
        self.requests("server/discover")
    }

    /// How many calls of this tool were read.
    pub fn calls(&self, tool: &str) -> usize {
        self.count(|event| matches!(event, Event::Request { tool: Some(t), .. } if t == tool))
    }

    /// How many times this tool was run.
    pub fn executions(&self, tool: &str) -> usize {
        self.count(|event| matches!(event, Event::Executed { tool: t, .. } if t == tool))
    }

    /// How many notifications of this method were read.
    pub fn notifications(&self, method: &str) -> usize {
        self.count(|event| matches!(event, Event::Notification { method: m, .. } if m == method))
    }

    /// The spawn and the request id of every cancellation that was read.
    pub fn cancelled(&self) -> Vec<(u32, &Value)> {
        let cancelled = self.entries.iter().filter_map(|entry| match &entry.event {
            Event::Notification { method, params } if method == "notifications/cancelled" => {
                Some((entry.spawn, &params["requestId"]))
            }
            _ => None,
        });
        cancelled.collect()
    }

    /// The answers to the server's own requests of this method, as whole messages.
    pub fn answers(&self, method: &str) -> Vec<&Value> {
        let answers = self.entries.iter().filter_map(|entry| match &entry.event {
            Event::Answer { method: m, message } if m == method => Some(message),
            _ => None,
        });
        answers.collect()
    }

    /// How many lines were no message.
    pub fn garbage(&self) -> usize {
        self.count(|event| matches!(event, Event::Garbage { .. }))
    }

    /// The spawn and the reason of every end that a server decided.
    pub fn exits(&self) -> Vec<(u32, &str)> {
        let exits = self.entries.iter().filter_map(|entry| match &entry.event {
            Event::Exit { reason } => Some((entry.spawn, &**reason)),
            _ => None,
        });
        exits.collect()
    }

    /// Every process: servers and grandchildren, in the order of their start.
    pub fn pids(&self) -> Vec<u32> {
        let pids = self.entries.iter().filter_map(|entry| match entry.event {
            Event::Spawned { pid } => pid,
            Event::Grandchild { pid } => Some(pid),
            _ => None,
        });
        pids.collect()
    }

    /// Those of [`pids`](Self::pids) that run now.
    pub fn live_pids(&self) -> Vec<u32> {
        self.pids().into_iter().filter(|pid| process_state(*pid) == Some(ProcessState::Running)).collect()
    }

    /// Those of [`pids`](Self::pids) that have ended but were not waited for.
    pub fn zombies(&self) -> Vec<u32> {
        self.pids().into_iter().filter(|pid| process_state(*pid) == Some(ProcessState::Zombie)).collect()
    }

    /// In memory: how many links are open now.
    pub fn live_links(&self) -> usize {
        self.spawns() - self.count(|event| *event == Event::Ended)
    }
}

/// Follows a ledger while it grows. Cheap to clone.
#[derive(Clone, Debug)]
pub struct LedgerWatch(watch::Receiver<Ledger>);

impl LedgerWatch {
    pub(crate) fn new(receiver: watch::Receiver<Ledger>) -> Self {
        Self(receiver)
    }

    /// What it says now.
    pub fn snapshot(&self) -> Ledger {
        self.0.borrow().clone()
    }

    /// Waits until it says so, and returns what it says then. Nothing is missed and nothing is polled; there is no
    /// deadline, so tests of real processes put a generous one around it.
    pub async fn wait_until(&self, mut done: impl FnMut(&Ledger) -> bool) -> Ledger {
        let found = self.0.clone().wait_for(|ledger| done(ledger)).await.map(|ledger| ledger.clone());
        match found {
            Ok(ledger) => ledger,
            // The writer is gone and nothing will change any more.
            Err(_) => std::future::pending().await,
        }
    }
}

/// Where one spawn writes.
#[derive(Clone, Debug)]
pub struct LedgerWriter {
    spawn: u32,
    to: Arc<Store>,
}

#[derive(Debug)]
enum Store {
    Memory { ledger: watch::Sender<Ledger>, since: Instant },
    File { file: File, bell: Option<UnixDatagram> },
}

impl LedgerWriter {
    pub(crate) fn memory(ledger: watch::Sender<Ledger>, since: Instant, spawn: u32) -> Self {
        Self { spawn, to: Arc::new(Store::Memory { ledger, since }) }
    }

    /// The number of the spawn.
    pub fn spawn(&self) -> u32 {
        self.spawn
    }

    /// Writes what happened; returns when every reader can see it.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn record(&self, event: Event) -> io::Result<()> {
        match &*self.to {
            Store::Memory { ledger, since } => {
                let at = u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX);
                ledger.send_modify(|ledger| ledger.entries.push(Entry { spawn: self.spawn, at, event }));
            }
            Store::File { file, bell } => {
                let mut line = serde_json::to_vec(&Entry { spawn: self.spawn, at: now(), event })?;
                line.push(b'\n');
                // One write of an appending file: lines of many processes do not mix.
                (&*file).write_all(&line)?;
                if let Some(bell) = bell {
                    // Full means that the reader has yet to look, and will see this line too; gone means nobody looks.
                    drop(bell.send(&[]));
                }
            }
        }
        Ok(())
    }

    /// Reads everything that was written so far.
    ///
    /// # Errors
    ///
    /// The file cannot be read.
    pub fn read(&self) -> io::Result<Ledger> {
        match &*self.to {
            Store::Memory { ledger, .. } => Ok(ledger.borrow().clone()),
            Store::File { file, .. } => read(file),
        }
    }
}

/// A process's claim on the next spawn number, which holds the ledger file's lock.
#[derive(Debug)]
pub struct SpawnClaim {
    file: File,
    spawn: u32,
    since_first: Duration,
}

impl SpawnClaim {
    /// Waits for the lock, and counts the spawns before.
    ///
    /// # Errors
    ///
    /// The file cannot be opened, locked or read.
    pub fn new(path: &Path) -> io::Result<Self> {
        let file = File::options().read(true).append(true).create(true).open(path)?;
        rustix::fs::flock(&file, FlockOperation::LockExclusive)?;
        let spawned = read(&file)?.spawn_times();
        let spawn = u32::try_from(spawned.len()).unwrap_or(u32::MAX).saturating_add(1);
        let since_first = spawned.first().map_or(0, |first| now().saturating_sub(*first));
        Ok(Self { file, spawn, since_first: Duration::from_millis(since_first) })
    }

    /// The number, counted from 1.
    pub fn spawn(&self) -> u32 {
        self.spawn
    }

    /// How long ago the first spawn was.
    pub fn since_first(&self) -> Duration {
        self.since_first
    }

    /// Records the spawn and lets the lock go. Each entry is followed by an empty datagram to `bell`, if given.
    ///
    /// # Errors
    ///
    /// The file cannot be written, or nobody has bound `bell`.
    pub fn record(self, bell: Option<&Path>) -> io::Result<LedgerWriter> {
        let bell = bell.map(ring).transpose()?;
        let writer = LedgerWriter { spawn: self.spawn, to: Arc::new(Store::File { file: self.file, bell }) };
        writer.record(Event::Spawned { pid: Some(std::process::id()) })?;
        if let Store::File { file, .. } = &*writer.to {
            rustix::fs::flock(file, FlockOperation::Unlock)?;
        }
        Ok(writer)
    }
}

fn ring(path: &Path) -> io::Result<UnixDatagram> {
    let bell = UnixDatagram::unbound()?;
    bell.connect(path)?;
    bell.set_nonblocking(true)?;
    Ok(bell)
}

fn read(mut file: &File) -> io::Result<Ledger> {
    let mut text = String::new();
    file.rewind()?;
    file.read_to_string(&mut text)?;
    Ledger::from_lines(&text)
}

#[expect(clippy::disallowed_methods, reason = "the only clock that processes share")]
fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
