//! A child process as a [`Link`]: the parts of `mcp-reconnect-stdio`, assembled and driven.

use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use futures::FutureExt;
use futures::future::BoxFuture;
use mcp_reconnect_core::FailureClass;
use mcp_reconnect_stdio::{FrameReader, FrameWriter, Server, ServerCommand, ServerControl, ServerStdout};
use tokio::process::ChildStdin;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::link::{
    Attempt, ConnectError, Connector, Ended, INBOUND_CAPACITY, Link, LinkControl, LinkFacts, OUTBOUND_CAPACITY,
    Outbound, SendFailure, WHY_TIMEOUT,
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
        spawn(read(stdout, Arc::clone(&server), frames_in, Arc::clone(&end)).boxed());
        spawn(write(stdin, frames_out, Arc::clone(&end)).boxed());
        let drained = Arc::clone(&server);
        spawn(async move { drained.drain_stderr().await }.boxed());
        Ok(Link { outbound, inbound, control: Arc::new(StdioControl { server, end, stop }) })
    }

    fn close_bound(&self) -> Duration {
        self.command.graces.total()
    }
}

/// The end of a link, which both of its directions share.
#[derive(Debug, Default)]
struct End {
    token: CancellationToken,
    cause: OnceLock<Cause>,
}

#[derive(Debug)]
enum Cause {
    /// A pipe was closed: most likely the server has ended, and how says more.
    Symptom(Arc<str>),
    /// The server did what no link survives.
    Fault(Arc<str>),
}

impl End {
    /// Ends both directions. The first cause stays.
    fn because(&self, cause: Cause) {
        self.cause.get_or_init(|| cause);
        self.token.cancel();
    }
}

/// Carries frames in until the server ends, its stdout does, or the other direction has. What the server has written by
/// then is still delivered.
async fn read(
    mut stdout: FrameReader<ServerStdout>,
    server: Arc<ServerControl>,
    frames: mpsc::Sender<Box<str>>,
    end: Arc<End>,
) {
    // However the reader ends, the writer ends with it.
    let _end = end.token.clone().drop_guard();
    let mut exited = pin!(server.exited());
    let mut ended = false;
    loop {
        let frame = if ended {
            stdout.leftover()
        } else {
            tokio::select! {
                frame = stdout.next() => frame,
                // A process that the server left behind may hold stdout open.
                _ = &mut exited => {
                    ended = true;
                    continue;
                }
                () = end.token.cancelled() => {
                    ended = true;
                    continue;
                }
            }
        };
        match frame {
            Ok(Some(frame)) => {
                if frames.send(frame).await.is_err() {
                    return;
                }
            }
            Ok(None) => return end.because(Cause::Symptom("stdout was closed".into())),
            Err(error) => return end.because(Cause::Fault(error.to_string().into())),
        }
    }
}

/// Carries frames out until the link ends. Those that are queued then are dropped, which reports them as not sent.
async fn write(mut stdin: FrameWriter<ChildStdin>, mut frames: mpsc::Receiver<Outbound>, end: Arc<End>) {
    let carry = async {
        loop {
            let mut frame = tokio::select! {
                biased;
                () = stdin.closed() => return,
                frame = frames.recv() => match frame {
                    Some(frame) => frame,
                    None => return,
                },
            };
            if !frame.begin() {
                continue;
            }
            match stdin.write(frame.frame()).await {
                Ok(()) => frame.finish(Ok(())),
                Err(error) => {
                    let cause: Arc<str> = error.to_string().into();
                    let failure = FailureClass::Transport.into();
                    frame.finish(Err(SendFailure { failure, sent: error.sent, cause: Arc::clone(&cause) }));
                    // A server that may still talk but hears nothing is of no use.
                    return end.because(Cause::Symptom(cause));
                }
            }
        }
    };
    end.token.run_until_cancelled(carry).await;
}

/// Dropping it kills what is left of the server.
struct StdioControl {
    server: Arc<ServerControl>,
    end: Arc<End>,
    /// Stops the link's tasks.
    stop: CancellationToken,
}

impl LinkControl for StdioControl {
    fn kill(&self) {
        self.server.kill();
    }

    fn close(&self) -> BoxFuture<'_, Ended> {
        async {
            // Nobody is interested in frames any more, and a reader that waits for somebody to take one would keep the
            // server from ending. The close reads what comes.
            self.stop.cancel();
            ended(self.server.close().await.to_string())
        }
        .boxed()
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

    fn why(&self) -> BoxFuture<'_, Ended> {
        async {
            if let Some(Cause::Fault(fault)) = self.end.cause.get() {
                return ended(Arc::clone(fault));
            }
            let last_words = async {
                self.server.exited().await;
                self.server.drain_stderr().await;
            };
            // Late is no error: what is known by then is told.
            drop(timeout(WHY_TIMEOUT, last_words).await);
            match (self.server.exit(), self.end.cause.get()) {
                (Some(exit), _) => ended(exit.to_string()),
                (None, Some(Cause::Symptom(cause) | Cause::Fault(cause))) => {
                    ended(format!("{cause}, though the process runs on"))
                }
                (None, None) => ended("the process runs"),
            }
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
