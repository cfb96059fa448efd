//! What surrounds a playing script: a process, or a task in memory.

use std::io;
use std::sync::Arc;

use serde_json::Value;

use super::http::HttpOutput;
use super::script::{Action, Signal};

/// The world of one spawn.
pub trait Host: Send + Sync + 'static {
    /// Writes to the client; returns when that is done, or when nobody reads any more.
    fn write(&self, to: &Route, output: Output) -> impl Future<Output = ()> + Send;

    /// Whether there are requests of HTTP; without, [`Output::Http`] never comes.
    fn speaks_http(&self) -> bool {
        false
    }

    /// A message that gets no answer was read, and is in the ledger.
    fn accepted(&self, _: &Route) {}

    /// Writes to the error output.
    fn stderr(&self, bytes: Vec<u8>) -> impl Future<Output = ()> + Send;

    /// Ends the output; what is written later is dropped.
    fn close_stdout(&self);

    /// Starts a process that outlives this one; returns its pid, or `None` where there are no processes.
    ///
    /// # Errors
    ///
    /// It cannot be started.
    fn grandchild(&self, grandchild: Grandchild) -> io::Result<Option<u32>>;

    /// Listens on a loopback port for the rest of the spawn's life.
    ///
    /// # Errors
    ///
    /// The port is taken.
    fn bind(&self, port: u16) -> io::Result<()>;

    /// Reads nothing from the client any more, and keeps the input open.
    fn deaf(&self);

    /// From now on the end of the input does not end this spawn: its host has to.
    fn unattended(&self);
}

/// What goes to the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// A message, without its line end.
    Frame(String),
    /// The same, as the answer that its request waits for.
    Answer(String),
    /// Bytes as they are.
    Raw(Vec<u8>),
    /// What only an HTTP server can do.
    Http(HttpOutput),
}

/// Where a message came from, and its answer goes to. Over stdio there is nothing to tell apart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Route {
    /// The request of HTTP; `None`: a standing stream.
    pub(crate) exchange: Option<u64>,
    /// Its session; `None`: none, or all.
    pub(crate) session: Option<Arc<str>>,
}

/// What comes to the engine.
#[derive(Debug)]
pub struct Frame {
    pub(crate) kind: FrameKind,
    pub(crate) route: Route,
}

#[derive(Debug)]
pub(crate) enum FrameKind {
    Message(Box<str>),
    /// A request of HTTP, before its message is looked at: which lines decide about it, the first that there are.
    /// The id is the message's.
    Gate {
        subjects: &'static [&'static str],
        default: Vec<Action>,
        id: Value,
    },
    /// The client has given up its request of HTTP.
    Gone,
}

impl From<Box<str>> for Frame {
    fn from(line: Box<str>) -> Self {
        Self { kind: FrameKind::Message(line), route: Route::default() }
    }
}

/// What a grandchild does; it does nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grandchild {
    /// Keeps the output of its parent open.
    pub hold_stdout: bool,
    /// Survives SIGTERM.
    pub ignore_term: bool,
}

/// How a spawn ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// With this code.
    Code(i32),
    /// By SIGKILL.
    Killed,
    /// By this signal's default action.
    Terminated(Signal),
}
