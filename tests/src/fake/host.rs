//! What surrounds a playing script: a process, or a task in memory.

use std::io;

use super::script::Signal;

/// The world of one spawn.
pub trait Host: Send + Sync + 'static {
    /// Writes to the client; returns when that is done, or when nobody reads any more.
    fn write(&self, output: Output) -> impl Future<Output = ()> + Send;

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
    /// Bytes as they are.
    Raw(Vec<u8>),
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
