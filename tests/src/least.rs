//! The least link that MCP can go over, and the least rmcp transport on the same: what is measured is not theirs.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use mcp_reconnect::core::FailureClass;
use mcp_reconnect::link::{Attempt, ConnectError, Connector, Ended, Link, LinkControl, LinkFacts, Outbound};
use rmcp::model::{ClientJsonRpcMessage, ServerJsonRpcMessage};
use rmcp::service::RunningService;
use rmcp::transport::Transport;
use rmcp::{RoleClient, ServiceExt as _};
use tokio::sync::{Semaphore, mpsc};

/// How many frames a link queues, each way.
const CAPACITY: usize = 64;

/// The least server, with a count of its messages.
#[derive(Debug)]
pub struct Server {
    /// With one tool, or without any.
    tools: bool,
    /// How many requests and notifications came.
    heard: AtomicU64,
    /// Closed: `initialize` is not answered.
    open: Semaphore,
}

impl Server {
    /// A server with one tool, `echo`, or without any.
    pub fn new(tools: bool) -> Arc<Self> {
        Arc::new(Self { tools, heard: AtomicU64::new(0), open: Semaphore::new(Semaphore::MAX_PERMITS) })
    }

    /// A server that does not answer `initialize` before [`open`](Self::open).
    pub fn closed(tools: bool) -> Arc<Self> {
        Arc::new(Self { tools, heard: AtomicU64::new(0), open: Semaphore::new(0) })
    }

    /// Lets it answer `initialize`.
    pub fn open(&self) {
        self.open.add_permits(1_000_000);
    }

    /// How many requests and notifications came so far.
    pub fn heard(&self) -> u64 {
        self.heard.load(Ordering::Relaxed)
    }

    /// Plays one incarnation of it, until its client is gone.
    async fn serve(self: Arc<Self>, mut frames: mpsc::Receiver<Outbound>, answers: mpsc::Sender<Box<str>>) {
        while let Some(mut frame) = frames.recv().await {
            self.heard.fetch_add(1, Ordering::Relaxed);
            if !frame.begin() {
                continue;
            }
            let answer = self.answer(frame.frame()).await;
            frame.finish(Ok(()));
            if let Some(answer) = answer
                && answers.send(answer).await.is_err()
            {
                return;
            }
        }
    }

    /// The answer to a frame, if it is owed one; counts nothing.
    pub async fn answer(&self, frame: &str) -> Option<Box<str>> {
        #[derive(serde::Deserialize)]
        struct Request<'a> {
            id: Option<u64>,
            #[serde(borrow)]
            method: Cow<'a, str>,
        }
        let Request { id, method } = serde_json::from_str(frame).ok()?;
        let id = id?;
        let result = match &*method {
            "initialize" => {
                drop(self.open.acquire().await);
                if self.tools { INITIALIZED_TOOLS } else { INITIALIZED }
            }
            "tools/list" => TOOLS,
            "tools/call" => CALLED,
            _ => "{}",
        };
        Some(format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#).into())
    }

    /// Its task, and the ends of its link.
    fn start(self: &Arc<Self>) -> (impl Future<Output = ()> + use<>, Ends) {
        let (outbound, frames) = mpsc::channel(CAPACITY);
        let (answers, inbound) = mpsc::channel(CAPACITY);
        (self.clone().serve(frames, answers), Ends { outbound, inbound })
    }
}

const INITIALIZED: &str =
    r#"{"protocolVersion":"2025-11-25","capabilities":{},"serverInfo":{"name":"least","version":"1"}}"#;
const INITIALIZED_TOOLS: &str =
    r#"{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"least","version":"1"}}"#;
const TOOLS: &str = r#"{"tools":[{"name":"echo","inputSchema":{"type":"object"}}]}"#;
const CALLED: &str = r#"{"content":[{"type":"text","text":"done"}]}"#;

struct Ends {
    outbound: mpsc::Sender<Outbound>,
    inbound: mpsc::Receiver<Box<str>>,
}

/// Links to the spawns of a [`Server`].
#[derive(Debug)]
pub struct Least(pub Arc<Server>);

#[async_trait]
impl Connector for Least {
    async fn connect(&self, attempt: Attempt) -> Result<Link, ConnectError> {
        let (serve, Ends { outbound, inbound }) = self.0.start();
        attempt.tasks.spawn(async move {
            tokio::select! {
                () = serve => {}
                () = attempt.cancel.cancelled() => {}
            }
        });
        Ok(Link { outbound, inbound, control: Arc::new(Nothing) })
    }
}

struct Nothing;

impl LinkControl for Nothing {
    fn kill(&self) {}

    fn close(&self) -> BoxFuture<'_, Ended> {
        self.why()
    }

    fn facts(&self) -> LinkFacts {
        LinkFacts::default()
    }

    fn why(&self) -> BoxFuture<'_, Ended> {
        std::future::ready(Ended { failure: FailureClass::Transport.into(), cause: "closed".into() }).boxed()
    }
}

/// rmcp's client on the same link, with nothing between.
///
/// # Panics
///
/// Without a session: outside a runtime, or from a server that does not answer.
pub async fn bare(server: &Arc<Server>) -> RunningService<RoleClient, ()> {
    let (serve, ends) = server.start();
    let token = tokio_util::sync::CancellationToken::new();
    tokio::spawn(async move {
        tokio::select! {
            () = serve => {}
            () = token.cancelled() => {}
        }
    });
    ().serve(ends).await.expect("a session")
}

impl Transport<RoleClient> for Ends {
    type Error = std::io::Error;

    fn send(&mut self, item: ClientJsonRpcMessage) -> impl Future<Output = Result<(), Self::Error>> + Send + 'static {
        let outbound = self.outbound.clone();
        async move {
            let frame = serde_json::to_string(&item)?;
            let sent = outbound.send(Outbound::detached(frame.into())).await;
            sent.map_err(|_| std::io::ErrorKind::BrokenPipe.into())
        }
    }

    async fn receive(&mut self) -> Option<ServerJsonRpcMessage> {
        serde_json::from_str(&self.inbound.recv().await?).ok()
    }

    async fn close(&mut self) -> Result<(), Self::Error> {
        Ok(())
    }
}
