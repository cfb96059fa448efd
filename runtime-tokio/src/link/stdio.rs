//! A child process as a [`Link`]: the parts of `mcp-reconnect-stdio`, assembled and driven.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::FutureExt;
use futures::future::BoxFuture;
use mcp_reconnect_core::FailureClass;
use mcp_reconnect_stdio::{FrameReader, Ladder, Server, ServerCommand, ServerControl, last_words};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::link::lines::{Cause, End, read, write};
use crate::link::{
    Attempt, ConnectError, Connector, Ended, INBOUND_CAPACITY, Link, LinkControl, LinkFacts, OUTBOUND_CAPACITY,
    WHY_TIMEOUT,
};

/// Opens links to a server that runs as a child of this process: each is a new process, which ends with its link.
///
/// Unix only.
#[derive(Clone, Debug)]
pub struct StdioConnector {
    command: ServerCommand,
}

impl StdioConnector {
    /// Starts servers by this command.
    pub fn new(command: ServerCommand) -> Self {
        Self { command }
    }

    /// The command.
    pub fn command(&self) -> &ServerCommand {
        &self.command
    }
}

#[async_trait]
impl Connector for StdioConnector {
    /// # Panics
    ///
    /// Outside a tokio runtime with I/O and time enabled.
    async fn connect(&self, attempt: Attempt) -> Result<Link, ConnectError> {
        let Server { stdout, stdin, control: server } =
            self.command.spawn().map_err(|error| ConnectError::new(error.class, error.to_string()))?;
        let (outbound, frames_out) = mpsc::channel(OUTBOUND_CAPACITY);
        let (frames_in, inbound) = mpsc::channel(INBOUND_CAPACITY);
        let end = Arc::new(End::default());
        let stop = attempt.cancel.child_token();
        let spawn = |task: BoxFuture<'static, ()>| attempt.tasks.spawn(stop.clone().run_until_cancelled_owned(task));
        let exited = CancellationToken::new();
        let exits = exited.clone().cancelled_owned();
        spawn(read(stdout, FrameReader::leftover, exits, frames_in, Arc::clone(&end)).boxed());
        spawn(write(stdin, frames_out, Arc::clone(&end)).boxed());
        let drained = Arc::clone(&server);
        // Not the reader's to wait for: a task that waits for a process asks the system at each wake-up.
        let exit = async move {
            let exit = async {
                drained.exited().await;
                exited.cancel();
            };
            tokio::join!(exit, drained.drain_stderr());
        };
        spawn(exit.boxed());
        Ok(Link { outbound, inbound, control: Arc::new(StdioControl { server, end, stop }) })
    }

    fn close_bound(&self) -> Duration {
        self.command.graces.total()
    }
}

/// Dropping it kills what is left of the server.
struct StdioControl {
    server: Arc<ServerControl>,
    end: Arc<End>,
    /// Stops the link's tasks.
    stop: CancellationToken,
}

impl StdioControl {
    async fn close_by(&self, ladder: Ladder) -> Ended {
        // Nobody is interested in frames any more, and a reader that waits for somebody to take one would keep the server
        // from ending. The close reads what comes.
        self.stop.cancel();
        ended(self.server.close(ladder).await.to_string())
    }
}

impl LinkControl for StdioControl {
    fn kill(&self) {
        self.server.kill();
    }

    fn close(&self) -> BoxFuture<'_, Ended> {
        self.close_by(Ladder::Polite).boxed()
    }

    fn close_wedged(&self) -> BoxFuture<'_, Ended> {
        self.close_by(Ladder::Wedged).boxed()
    }

    fn facts(&self) -> LinkFacts {
        LinkFacts {
            pid: Some(self.server.pid()),
            last_byte: self.server.last_byte(),
            noise: self.server.noise(),
            stderr_tail: self.server.stderr_tail(),
            ..LinkFacts::default()
        }
    }

    fn first_byte(&self) -> BoxFuture<'_, ()> {
        self.server.first_byte().boxed()
    }

    fn survives(&self) -> bool {
        !self.stop.is_cancelled() && !self.end.has_come()
    }

    fn why(&self) -> BoxFuture<'_, Ended> {
        async {
            if let Some(Cause::Fault(fault)) = self.end.cause() {
                return ended(Arc::clone(fault));
            }
            let end = async {
                self.server.exited().await;
                self.server.drain_stderr().await;
            };
            // Late is no error: what is known by then is told.
            drop(timeout(WHY_TIMEOUT, end).await);
            if let Some(exit) = self.server.exit() {
                // What was closed from here has not ended by itself.
                let class = if self.stop.is_cancelled() { FailureClass::Transport } else { exit.class() };
                return Ended { failure: class.into(), cause: exit.to_string().into() };
            }
            let cause = match self.end.cause() {
                Some(Cause::Deaf(cause) | Cause::Fault(cause)) => cause,
                Some(Cause::Eof) => "stdout was closed",
                None => return ended("the process runs"),
            };
            let last_words = last_words(&self.server.stderr_tail());
            ended(format!("{cause}, though the process runs on{last_words}"))
        }
        .boxed()
    }
}

impl Drop for StdioControl {
    fn drop(&mut self) {
        self.server.kill();
        self.stop.cancel();
    }
}

fn ended(cause: impl Into<Arc<str>>) -> Ended {
    Ended { failure: FailureClass::Transport.into(), cause: cause.into() }
}
