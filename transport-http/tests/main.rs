//! The client against a server that does exactly what a test says.

mod addresses;
mod answers;
mod credentials;
mod exchange;
mod network;
mod servers;
mod standing;
mod streams;
mod support;
mod tls;

use std::sync::{Arc, Mutex};

use mcp_reconnect_http::{ExchangeError, HttpClient, HttpServer, OnStage, Stage};
use tokio::sync::mpsc;
use tokio::time::timeout;

use support::{PATIENCE, Request, Server, Step, answer};

/// A client of this server, and what comes in.
struct Peer {
    client: Arc<HttpClient>,
    frames: mpsc::Sender<Box<str>>,
    inbound: mpsc::Receiver<Box<str>>,
}

impl Peer {
    fn new(server: &Server) -> Self {
        Self::of(&HttpServer::new(&server.url()).unwrap())
    }

    fn of(server: &HttpServer) -> Self {
        let (frames, inbound) = mpsc::channel(64);
        Self { client: Arc::new(server.open(false).unwrap()), frames, inbound }
    }

    /// One exchange to its end, the rest of its body included.
    async fn exchange(&self, frame: &str) -> Result<(), ExchangeError> {
        in_time(async {
            self.client.exchange(frame, &self.frames).await?.drain().await;
            Ok(())
        })
        .await
    }

    async fn initialize(&self) {
        self.exchange(r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{}}"#).await.unwrap();
        self.client.negotiated("2025-11-25");
        assert_eq!(self.client.session_id().as_deref(), Some("S1"));
    }

    /// The frames that have come in so far.
    fn received(&mut self) -> Vec<Box<str>> {
        std::iter::from_fn(|| self.inbound.try_recv().ok()).collect()
    }
}

/// The stages of requests as they come.
fn stages() -> (Arc<Mutex<Vec<Stage>>>, OnStage) {
    let stages = Arc::new(Mutex::new(Vec::new()));
    let log = stages.clone();
    let on_stage = move |stage| {
        log.lock().unwrap().push(stage);
        true
    };
    (stages, Arc::new(on_stage))
}

async fn in_time<T>(future: impl Future<Output = T>) -> T {
    timeout(PATIENCE, future).await.expect("the test hangs")
}

const CALL: &str = r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"t"}}"#;
const RESULT: &str = r#"{"jsonrpc":"2.0","id":7,"result":{}}"#;

/// Begins the session `S1`; everything else is for the test.
fn begin(request: &Request) -> Option<Vec<Step>> {
    (request.rpc() == "initialize").then(|| {
        let headers = [("content-type", "application/json"), ("Mcp-Session-Id", "S1")];
        answer(200, &headers, &request.result("{}"))
    })
}
