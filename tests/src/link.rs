//! Connectors that lead to fake servers, and to faults of the link itself.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use mcp_reconnect::link::{Attempt, ConnectError, Connector, Ended, Link, LinkControl, LinkFacts, Outbound};
use mcp_reconnect::stdio::StdioConnector;
use mcp_reconnect_core::FailureClass;
use mcp_reconnect_stdio::ServerCommand;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::fake::{Exit, FakeHandle, FakeProcess, FakeServer, Signal};

/// How many frames a link queues, each way.
const CAPACITY: usize = 64;
/// How long a link may take to say why it ended.
const WHY_TIMEOUT: Duration = Duration::from_millis(250);

/// How long a fake spawn has after the end of its input, and after SIGTERM: as a real child.
const GRACES: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(2));

/// Links to the spawns of a [`FakeServer`]: no process, so time may be paused.
#[derive(Clone, Debug)]
pub struct MemoryConnector(pub Arc<FakeServer>);

#[async_trait]
impl Connector for MemoryConnector {
    async fn connect(&self, attempt: Attempt) -> Result<Link, ConnectError> {
        let link = self.0.spawn();
        let (outbound, mut frames) = mpsc::channel::<Outbound>(CAPACITY);
        let to_server = link.to_server;
        let write = async move {
            while let Some(mut frame) = frames.recv().await {
                // The room in the pipe comes first: what waits for it has not been sent.
                let Ok(room) = to_server.reserve().await else { return };
                if frame.begin() {
                    room.send(frame.frame().into());
                    frame.finish(Ok(()));
                }
            }
        };
        let input = CancellationToken::new();
        let closed = input.clone();
        attempt.tasks.spawn(async move {
            tokio::select! {
                () = write => {}
                () = closed.cancelled() => {}
                () = attempt.cancel.cancelled() => {}
            }
        });
        let control = MemoryControl { handle: link.handle, input };
        Ok(Link { outbound, inbound: link.from_server, control: Arc::new(control) })
    }

    fn close_bound(&self) -> Duration {
        GRACES.0 + GRACES.1
    }
}

struct MemoryControl {
    handle: FakeHandle,
    /// Cancelled: the server's input ends.
    input: CancellationToken,
}

impl LinkControl for MemoryControl {
    fn kill(&self) {
        self.handle.kill();
    }

    fn close(&self) -> BoxFuture<'_, Ended> {
        async {
            self.input.cancel();
            if timeout(GRACES.0, self.handle.ended()).await.is_err() {
                self.handle.signal(Signal::Term);
                if timeout(GRACES.1, self.handle.ended()).await.is_err() {
                    self.handle.kill();
                }
            }
            ended(Some(self.handle.ended().await))
        }
        .boxed()
    }

    fn facts(&self) -> LinkFacts {
        LinkFacts { pid: Some(self.handle.spawn()), ..LinkFacts::default() }
    }

    fn why(&self) -> BoxFuture<'_, Ended> {
        async { ended(timeout(WHY_TIMEOUT, self.handle.ended()).await.ok()) }.boxed()
    }
}

impl Drop for MemoryControl {
    fn drop(&mut self) {
        self.handle.kill();
    }
}

fn ended(exit: Option<Exit>) -> Ended {
    let cause = match exit {
        Some(Exit::Code(code)) => format!("exited with status {code}"),
        Some(Exit::Killed) => "killed by SIGKILL".into(),
        Some(Exit::Terminated(signal)) => format!("ended by {signal:?}"),
        None => "closed its output".into(),
    };
    Ended { failure: FailureClass::Transport.into(), cause: cause.into() }
}

/// Links to the spawns of a [`FakeProcess`]: real children.
pub fn process_connector(server: &FakeProcess) -> StdioConnector {
    StdioConnector::new(process_command(server))
}

/// The command behind [`process_connector`], to set more of it.
pub fn process_command(server: &FakeProcess) -> ServerCommand {
    let mut command = ServerCommand::new(server.program());
    command.args = server.args();
    command
}
