//! A host in front of a front, and a server behind it that is played in raw text.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use mcp_reconnect::core::FailureClass;
use mcp_reconnect::front::{Front, FrontOptions, HostEnd};
use mcp_reconnect::link::{Attempt, ConnectError, Connector, Ended, Link, LinkControl, LinkFacts, Outbound};
use mcp_reconnect::{Builder, Connection};
use mcp_reconnect_tests::fake::FakeServer;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::support::builder;

/// How many frames a link queues, each way.
const CAPACITY: usize = 64;

/// How long a test waits for what must come: virtual time, which passes when nothing else can happen.
const PATIENCE: Duration = Duration::from_secs(3_600);

pub(crate) const LEGACY: &str = r#"{"protocolVersion":"2025-11-25","capabilities":{"roots":{"listChanged":true},"sampling":{},"elicitation":{}},"clientInfo":{"name":"host","version":"1"}}"#;

/// The `_meta` of a modern host.
pub(crate) const MODERN: &str = r#"{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"host","version":"1"},"io.modelcontextprotocol/clientCapabilities":{"sampling":{},"elicitation":{}}}"#;

/// The parts of a message as they are.
#[derive(Deserialize)]
pub(crate) struct Raw<'a> {
    #[serde(borrow)]
    pub(crate) id: Option<&'a RawValue>,
    pub(crate) method: Option<String>,
    #[serde(borrow)]
    pub(crate) params: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(crate) result: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(crate) error: Option<&'a RawValue>,
}

impl<'a> Raw<'a> {
    pub(crate) fn of(text: &'a str) -> Self {
        serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    pub(crate) fn id(&self) -> &'a str {
        self.id.expect("an id").get()
    }

    pub(crate) fn params(&self) -> &'a str {
        self.params.expect("parameters").get()
    }
}

/// A request.
pub(crate) fn request(id: impl std::fmt::Display, method: &str, params: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#)
}

/// A call of a tool without arguments.
pub(crate) fn call(id: impl std::fmt::Display, tool: &str) -> String {
    request(id, "tools/call", &format!(r#"{{"name":"{tool}","arguments":{{"text":"{tool}"}}}}"#))
}

pub(crate) fn cancelled(id: impl std::fmt::Display) -> String {
    format!(r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{id}}}}}"#)
}

/// The text of a call's result.
pub(crate) fn text_of(answer: &Value) -> &str {
    answer["result"]["content"][0]["text"].as_str().unwrap_or_else(|| panic!("no text: {answer}"))
}

/// A host's session.
pub(crate) struct Host {
    pub(crate) to_front: Option<mpsc::Sender<Box<str>>>,
    pub(crate) from_front: mpsc::Receiver<Box<str>>,
    pub(crate) session: JoinHandle<()>,
    pub(crate) stop: CancellationToken,
    /// What came while something else was waited for.
    others: VecDeque<String>,
}

impl Host {
    pub(crate) fn new(upstream: Builder, options: FrontOptions) -> Self {
        let stop = CancellationToken::new();
        Self::served(Front::new(upstream, options).open(stop.clone()), stop)
    }

    /// The host of this session.
    pub(crate) fn served(
        (HostEnd { to_front, from_front }, session): (HostEnd, impl Future<Output = ()> + Send + 'static),
        stop: CancellationToken,
    ) -> Self {
        let session = tokio::spawn(session);
        Self { to_front: Some(to_front), from_front, session, stop, others: VecDeque::new() }
    }

    /// In front of a fake server.
    pub(crate) fn of(server: &Arc<FakeServer>) -> Self {
        Self::new(builder(server), FrontOptions::default())
    }

    /// A legacy host that is initialized.
    pub(crate) async fn legacy(server: &Arc<FakeServer>) -> Self {
        let mut host = Self::of(server);
        host.initialize().await;
        host
    }

    pub(crate) async fn initialize(&mut self) -> Value {
        self.say(&request(r#""init""#, "initialize", LEGACY)).await;
        let answer = self.answer(r#""init""#).await;
        assert!(answer["result"].is_object(), "{answer}");
        self.say(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#).await;
        answer
    }

    pub(crate) async fn say(&self, text: &str) {
        self.to_front.as_ref().expect("not closed").send(text.into()).await.expect("the front reads");
    }

    /// The next message, as it is.
    pub(crate) async fn hear(&mut self) -> String {
        match self.others.pop_front() {
            Some(text) => text,
            None => self.receive().await,
        }
    }

    async fn receive(&mut self) -> String {
        match timeout(PATIENCE, self.from_front.recv()).await {
            Ok(Some(text)) => text.into(),
            Ok(None) => panic!("the front has ended"),
            Err(_) => panic!("nothing came"),
        }
    }

    /// The next message of which this is true, as it is; what else comes is kept.
    pub(crate) async fn find(&mut self, wanted: impl Fn(&str) -> bool) -> String {
        if let Some(at) = self.others.iter().position(|text| wanted(text)) {
            return self.others.remove(at).unwrap();
        }
        loop {
            let text = self.receive().await;
            if wanted(&text) {
                return text;
            }
            self.others.push_back(text);
        }
    }

    /// The answer to this request, as it is; what else comes is kept.
    pub(crate) async fn answer_text(&mut self, id: &str) -> String {
        self.find(|text| {
            let raw = Raw::of(text);
            raw.method.is_none() && raw.id.is_some_and(|own| own.get() == id)
        })
        .await
    }

    /// What has come and was not asked for.
    pub(crate) fn unread(&mut self) -> impl Iterator<Item = &str> {
        while let Some(Some(text)) = tokio::task::unconstrained(self.from_front.recv()).now_or_never() {
            self.others.push_back(text.into());
        }
        self.others.iter().map(String::as_str)
    }

    pub(crate) async fn answer(&mut self, id: impl std::fmt::Display) -> Value {
        serde_json::from_str(&self.answer_text(&id.to_string()).await).unwrap()
    }

    /// Asks, and gives the answer.
    pub(crate) async fn ask(&mut self, id: impl std::fmt::Display, method: &str, params: &str) -> Value {
        self.say(&request(&id, method, params)).await;
        self.answer(id).await
    }

    /// Calls a tool, and gives the answer.
    pub(crate) async fn call(&mut self, id: impl std::fmt::Display, tool: &str) -> Value {
        self.say(&call(&id, tool)).await;
        self.answer(id).await
    }

    /// The next message of this method, which must be the next that came.
    pub(crate) async fn expect(&mut self, method: &str) -> Value {
        let text = self.hear().await;
        let message: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(message["method"], method, "{text}");
        message
    }

    /// What has come once nothing can happen any more in this time.
    pub(crate) async fn within(&mut self, time: Duration) -> Vec<String> {
        let until = tokio::time::Instant::now() + time;
        while let Ok(Some(text)) = tokio::time::timeout_at(until, self.from_front.recv()).await {
            self.others.push_back(text.into());
        }
        self.others.drain(..).collect()
    }

    /// What has come once nothing can happen any more without time.
    pub(crate) async fn rest(&mut self) -> Vec<String> {
        self.within(Duration::from_millis(1)).await
    }

    /// The methods of what comes in this time, answers left out.
    pub(crate) async fn told(&mut self, time: Duration) -> Vec<String> {
        self.within(time).await.iter().filter_map(|text| Raw::of(text).method).collect()
    }

    /// The host goes, and waits for the end of everything.
    pub(crate) async fn leave(mut self) {
        self.to_front = None;
        timeout(PATIENCE, &mut self.session).await.expect("the session ends").unwrap();
    }
}

/// Links to servers that the test plays itself.
pub(crate) struct Stage {
    links: mpsc::UnboundedReceiver<Far>,
}

struct StageConnector(mpsc::UnboundedSender<Far>);

/// The server's end of a link.
pub(crate) struct Far {
    frames: mpsc::Receiver<Outbound>,
    inbound: mpsc::Sender<Box<str>>,
}

/// The control of a link that ends when its token is cancelled.
pub(crate) struct Control(pub(crate) CancellationToken);

impl LinkControl for Control {
    fn kill(&self) {
        self.0.cancel();
    }

    fn close(&self) -> BoxFuture<'_, Ended> {
        self.0.cancel();
        self.why()
    }

    fn facts(&self) -> LinkFacts {
        LinkFacts::default()
    }

    fn why(&self) -> BoxFuture<'_, Ended> {
        let cause = "the test has hung up".into();
        std::future::ready(Ended { failure: FailureClass::Transport.into(), cause }).boxed()
    }
}

#[async_trait]
impl Connector for StageConnector {
    async fn connect(&self, attempt: Attempt) -> Result<Link, ConnectError> {
        let (outbound, frames) = mpsc::channel(CAPACITY);
        let (far_inbound, mut said) = mpsc::channel::<Box<str>>(CAPACITY);
        let (sender, inbound) = mpsc::channel(CAPACITY);
        let end = CancellationToken::new();
        let ended = end.clone();
        attempt.tasks.spawn(async move {
            let carry = async {
                while let Some(frame) = said.recv().await {
                    if sender.send(frame).await.is_err() {
                        return;
                    }
                }
            };
            tokio::select! {
                () = carry => {}
                () = ended.cancelled() => {}
                () = attempt.cancel.cancelled() => {}
            }
        });
        let refused = |_| ConnectError::new(FailureClass::Transport, "the test is over");
        self.0.send(Far { frames, inbound: far_inbound }).map_err(refused)?;
        Ok(Link { outbound, inbound, control: Arc::new(Control(end)) })
    }
}

impl Stage {
    /// A host, and the servers that it will be given.
    pub(crate) fn new(options: FrontOptions) -> (Host, Self) {
        let (sender, links) = mpsc::unbounded_channel();
        let upstream = Connection::builder(StageConnector(sender)).name("played").seed(7);
        (Host::new(upstream, options), Self { links })
    }

    /// The next link that is dialled.
    pub(crate) async fn far(&mut self) -> Far {
        timeout(PATIENCE, self.links.recv()).await.expect("a dial").expect("the connector is there")
    }

    /// A legacy host, initialized, with a legacy server of these capabilities.
    pub(crate) async fn legacy(capabilities: &str) -> (Host, Self, Far) {
        let (mut host, mut stage) = Self::new(FrontOptions::default());
        host.say(&request(r#""init""#, "initialize", LEGACY)).await;
        let mut far = stage.far().await;
        far.greet(capabilities).await;
        host.answer(r#""init""#).await;
        host.say(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#).await;
        (host, stage, far)
    }
}

impl Far {
    /// The next message that was not given up, as it is.
    pub(crate) async fn hear(&mut self) -> String {
        loop {
            let frame = timeout(PATIENCE, self.frames.recv()).await.expect("something is said");
            let mut frame = frame.expect("the link is there");
            if frame.begin() {
                let text = frame.frame().to_owned();
                frame.finish(Ok(()));
                return text;
            }
        }
    }

    /// The next message, which must be of this method.
    pub(crate) async fn expect(&mut self, method: &str) -> String {
        let text = self.hear().await;
        assert_eq!(Raw::of(&text).method.as_deref(), Some(method), "{text}");
        text
    }

    /// What has come once nothing can happen any more without time.
    pub(crate) async fn rest(&mut self) -> Vec<String> {
        let mut rest = Vec::new();
        while let Ok(text) = timeout(Duration::from_millis(1), self.hear()).await {
            rest.push(text);
        }
        rest
    }

    pub(crate) async fn say(&self, text: &str) {
        self.inbound.send(text.into()).await.expect("the front reads");
    }

    /// Answers this request with this member.
    pub(crate) async fn answer(&self, request: &str, member: &str, value: &str) {
        let id = Raw::of(request).id();
        self.say(&format!("{{ \"jsonrpc\" : \"2.0\",\"{member}\": {value} , \"id\": {id} }}")).await;
    }

    /// The handshake of a legacy server; gives the parameters of its `initialize`.
    pub(crate) async fn greet(&mut self, capabilities: &str) -> String {
        let initialize = self.expect("initialize").await;
        let result = format!(
            r#"{{"protocolVersion":"2025-11-25","capabilities":{capabilities},"serverInfo":{{"name":"far","version":"1"}}}}"#
        );
        self.answer(&initialize, "result", &result).await;
        self.expect("notifications/initialized").await;
        Raw::of(&initialize).params().to_owned()
    }

    /// The handshake of a modern server that was taken for a legacy one first, if it was.
    pub(crate) async fn discover(&mut self, capabilities: &str) {
        let mut first = self.hear().await;
        if Raw::of(&first).method.as_deref() == Some("initialize") {
            self.answer(&first, "error", r#"{"code":-32601,"message":"no such method"}"#).await;
            first = self.hear().await;
        }
        assert_eq!(Raw::of(&first).method.as_deref(), Some("server/discover"), "{first}");
        let result = json!({
            "resultType": "complete", "supportedVersions": ["2026-07-28"], "ttlMs": 0, "cacheScope": "private",
            "capabilities": serde_json::from_str::<Value>(capabilities).unwrap(),
            "_meta": { "io.modelcontextprotocol/serverInfo": { "name": "far", "version": "1" } },
        });
        self.answer(&first, "result", &result.to_string()).await;
    }
}
