//! The signals that end a command.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Those that ask a process to end. While this lives they do nothing else.
pub(super) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    /// The terminal is gone.
    hangup: Signal,
}

impl Signals {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    /// The next signal, as the exit status that tells of it.
    pub(super) async fn next(&mut self) -> u8 {
        tokio::select! {
            Some(()) = self.interrupt.recv() => 130,
            Some(()) = self.terminate.recv() => 143,
            Some(()) = self.hangup.recv() => 129,
            else => std::future::pending().await,
        }
    }
}
