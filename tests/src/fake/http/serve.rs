//! One spawn of a fake HTTP server: its engine and its connections.

use std::sync::Arc;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::exchange;
use super::host::HttpHost;
use super::message::Connection;
use crate::fake::engine::{self, Inbound};
use crate::fake::host::{Exit, Frame};
use crate::fake::ledger::LedgerWriter;
use crate::fake::script::{Plan, SharedPlan, Signal};

/// A running spawn; dropping it ends it.
#[derive(Debug)]
pub(crate) struct Incarnation {
    pub(crate) host: Arc<HttpHost>,
    frames: mpsc::Sender<Frame>,
    engine: JoinSet<Exit>,
    connections: JoinSet<()>,
}

impl Incarnation {
    pub(crate) fn new(plan: Plan, ledger: LedgerWriter, signals: mpsc::UnboundedReceiver<Signal>) -> Self {
        let plan = SharedPlan::from(plan);
        let host = Arc::new(HttpHost::new(plan.clone(), ledger.clone()));
        let (frames, inbound) = mpsc::channel(1);
        let mut engine = JoinSet::new();
        engine.spawn(engine::serve(plan, ledger, Inbound { frames: inbound, signals }, Arc::clone(&host)));
        Self { host, frames, engine, connections: JoinSet::new() }
    }

    pub(crate) fn accept(&mut self, stream: TcpStream) {
        // A connection that is broken already shows it soon enough.
        stream.set_nodelay(true).ok();
        let (host, frames) = (Arc::clone(&self.host), self.frames.clone());
        let mut resets = host.resets();
        self.connections.spawn(async move {
            let mut connection = Connection::new(stream, Arc::clone(&host));
            tokio::select! {
                biased;
                _ = resets.changed() => {
                    // A socket that is gone already needs no reset.
                    connection.reset().ok();
                }
                () = converse(&mut connection, &host, &frames) => {}
            }
        });
    }

    /// Waits for its own end.
    pub(crate) async fn exited(&mut self) -> Exit {
        loop {
            tokio::select! {
                Some(exit) = self.engine.join_next() => match exit {
                    Ok(exit) => return exit,
                    Err(error) => resume(error),
                },
                Some(ended) = self.connections.join_next(), if !self.connections.is_empty() => {
                    if let Err(error) = ended {
                        resume(error);
                    }
                }
                else => return Exit::Killed,
            }
        }
    }

    /// Closes every connection.
    pub(crate) async fn disconnect(&mut self) {
        self.connections.shutdown().await;
    }

    /// Ends it as a kill would.
    pub(crate) async fn end(mut self) {
        self.engine.shutdown().await;
        self.disconnect().await;
    }
}

/// Answers until the connection ends; what is not HTTP ends it.
async fn converse(connection: &mut Connection, host: &Arc<HttpHost>, frames: &mpsc::Sender<Frame>) {
    while let Ok(Some(request)) = connection.request().await {
        if !exchange::answer(connection, host, frames, request).await {
            return;
        }
    }
}

/// A task that panicked must not look like a server that closes connections.
fn resume(error: tokio::task::JoinError) {
    if let Ok(panic) = error.try_into_panic() {
        std::panic::resume_unwind(panic);
    }
}

/// Plays `plan` as an HTTP server, until the script or a signal ends it.
pub async fn serve_http(
    plan: Plan,
    ledger: LedgerWriter,
    signals: mpsc::UnboundedReceiver<Signal>,
    listener: TcpListener,
) -> Exit {
    let mut incarnation = Incarnation::new(plan, ledger, signals);
    loop {
        tokio::select! {
            exit = incarnation.exited() => return exit,
            accepted = listener.accept() => {
                if let Ok((stream, _)) = accepted {
                    incarnation.accept(stream);
                }
            }
        }
    }
}
