//! The endpoint without sockets: requests go in, a scripted front answers, time is paused.

mod legacy;
mod modern;
mod refusals;

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, BodyDataStream};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode};
use futures::StreamExt as _;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::endpoint::{Endpoint, endpoint};
use super::guard::Guard;
use super::hub::Hub;
use super::session::Sessions;
use super::{Opener, SessionKind};
use crate::front::HostEnd;

const BOTH: (&str, &str) = ("accept", "application/json, text/event-stream");
/// How long something is waited for that must come: of paused time.
const SOON: Duration = Duration::from_millis(100);
pub(super) const IDLE: Duration = Duration::from_secs(60);
pub(super) const MAX_SESSIONS: usize = 3;

/// An endpoint, and the fronts that it opened.
struct Rig {
    endpoint: Arc<Endpoint>,
    fronts: mpsc::UnboundedReceiver<Far>,
    stop: CancellationToken,
}

/// The far end of a front, played by the test.
struct Far {
    kind: SessionKind,
    from_host: mpsc::Receiver<Box<str>>,
    to_host: mpsc::Sender<Box<str>>,
}

impl Far {
    /// The next message of the hosts.
    async fn heard(&mut self) -> Value {
        let message = timeout(SOON, self.from_host.recv()).await.expect("nothing was said").expect("the host has gone");
        assert!(!message.contains('\n'));
        serde_json::from_str(&message).expect("no JSON")
    }

    /// The end of the hosts' input.
    async fn ended(&mut self) {
        let heard = timeout(SOON, self.from_host.recv()).await.expect("the hosts are still there");
        assert_eq!(heard, None);
    }

    async fn silent(&mut self) {
        if let Ok(heard) = timeout(SOON, self.from_host.recv()).await {
            panic!("{heard:?} was said");
        }
    }

    async fn say(&self, message: Value) {
        self.to_host.send(message.to_string().into()).await.expect("nobody listens");
    }

    async fn answer(&self, request: &Value, result: Value) {
        self.say(json!({ "jsonrpc": "2.0", "id": request["id"], "result": result })).await;
    }
}

impl Rig {
    fn new() -> Self {
        let (opened, fronts) = mpsc::unbounded_channel();
        let opener: Opener = Arc::new(move |kind| {
            let (to_front, from_host) = mpsc::channel(16);
            let (to_host, from_front) = mpsc::channel(16);
            drop(opened.send(Far { kind, from_host, to_host }));
            HostEnd { to_front, from_front }
        });
        let (stop, tasks) = (CancellationToken::new(), TaskTracker::new());
        let endpoint = Arc::new(Endpoint {
            guard: Guard { local_only: true, allowed: Vec::new() },
            sessions: Sessions::new(opener.clone(), MAX_SESSIONS, IDLE, stop.clone(), tasks.clone()),
            hub: Hub::new(opener, stop.clone(), tasks),
        });
        Self { endpoint, fronts, stop }
    }

    /// Sends a request; what the headers leave out is as a host has it.
    fn send(
        &self,
        method: &str,
        headers: &[(&str, &str)],
        body: impl Into<Body>,
    ) -> impl Future<Output = Answer> + Send + 'static {
        let mut request = Request::builder().method(method).uri("/mcp");
        let usual = [("host", "127.0.0.1:80"), ("content-type", "application/json"), BOTH];
        let left_out = usual.iter().filter(|(usual, _)| headers.iter().all(|(name, _)| name != usual));
        for (name, value) in headers.iter().chain(left_out) {
            request = request.header(*name, *value);
        }
        let request = request.body(body.into()).expect("a request");
        let endpoint_state = self.endpoint.clone();
        async move {
            let response = endpoint(State(endpoint_state), request).await;
            let (parts, body) = response.into_parts();
            Answer { status: parts.status, headers: parts.headers, body: body.into_data_stream(), rest: String::new() }
        }
    }

    fn post(&self, headers: &[(&str, &str)], message: &Value) -> tokio::task::JoinHandle<Answer> {
        tokio::spawn(self.send("POST", headers, message.to_string()))
    }

    /// A session that stands, and its front.
    async fn session(&mut self, version: &str) -> (String, Far) {
        let params = json!({ "protocolVersion": version, "capabilities": {} });
        let answer = self.post(&[], &json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params }));
        let mut far = self.front().await;
        assert_eq!(far.kind, SessionKind::Legacy);
        let request = far.heard().await;
        far.answer(&request, json!({ "protocolVersion": version })).await;
        let mut answer = answer.await.expect("an answer");
        assert_eq!(answer.status, StatusCode::OK);
        let session = answer.header("mcp-session-id").to_owned();
        assert_eq!(answer.json().await["result"]["protocolVersion"], version);
        (session, far)
    }

    async fn front(&mut self) -> Far {
        timeout(SOON, self.fronts.recv()).await.expect("no front was opened").expect("the endpoint has gone")
    }
}

struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    body: BodyDataStream,
    rest: String,
}

impl Answer {
    fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }

    fn is_events(&self) -> bool {
        self.header("content-type") == "text/event-stream"
    }

    async fn json(&mut self) -> Value {
        assert_eq!(self.header("content-type"), "application/json");
        let mut text = String::new();
        while let Some(chunk) = self.body.next().await {
            text.push_str(std::str::from_utf8(&chunk.expect("a chunk")).expect("text"));
        }
        serde_json::from_str(&text).expect("JSON")
    }

    /// The code of a refusal.
    async fn code(&mut self) -> i64 {
        self.json().await["error"]["code"].as_i64().expect("an error")
    }

    /// The next block of a stream: an event or a comment.
    async fn block(&mut self) -> Option<String> {
        loop {
            if let Some((block, rest)) = self.rest.split_once("\n\n") {
                let block = block.to_owned();
                self.rest = rest.to_owned();
                return Some(block);
            }
            let chunk = self.body.next().await?.expect("a chunk");
            self.rest.push_str(std::str::from_utf8(&chunk).expect("text"));
        }
    }

    /// The next message of a stream, and its id; `None` at the end.
    async fn message(&mut self) -> Option<(String, Value)> {
        assert!(self.is_events());
        while let Some(block) = self.block().await {
            let of = |name: &str| block.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().to_owned();
            let data = of("data: ");
            if !data.is_empty() {
                return Some((of("id: "), serde_json::from_str(&data).expect("JSON")));
            }
        }
        None
    }

    /// The next message that must come, without its place.
    async fn told(&mut self) -> Value {
        timeout(SOON, self.message()).await.expect("nothing came").expect("the stream has ended").1
    }

    async fn quiet(&mut self) {
        if let Ok(came) = timeout(SOON, self.message()).await {
            panic!("{came:?} came");
        }
    }
}
