//! A host in front of many fake servers in memory.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use mcp_reconnect::config::{Custom, FleetConfig, ServerConfig};
use mcp_reconnect::front::{FrontAll, FrontAllOptions, FrontOptions};
use mcp_reconnect::link::{Attempt, ConnectError, Connector, Link, LinkControl};
use mcp_reconnect_tests::fake::FakeServer;
use mcp_reconnect_tests::link::MemoryConnector;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::front::support::{Control, Host as Session};
use crate::support::secs;

/// A server that is reached like this.
pub(crate) fn by(connector: impl Connector) -> ServerConfig {
    ServerConfig::new(Custom::new("1", connector))
}

/// A fake server in memory.
pub(crate) fn of(server: &Arc<FakeServer>) -> ServerConfig {
    by(MemoryConnector(server.clone()))
}

/// A config with these servers.
pub(crate) fn config(servers: &[(&str, &Arc<FakeServer>)]) -> FleetConfig {
    servers.iter().fold(FleetConfig::default(), |config, (name, server)| config.with(*name, of(server)))
}

/// A host, and how it is served.
pub(crate) struct Host {
    session: Session,
    next: u64,
}

impl Host {
    /// Before all of these servers.
    pub(crate) fn of(config: FleetConfig) -> Self {
        Self::with(config, |_| {})
    }

    /// The same, with something else about the front.
    pub(crate) fn with(config: FleetConfig, change: impl FnOnce(&mut FrontAllOptions)) -> Self {
        let mut options = FrontAllOptions::default();
        change(&mut options);
        let front = FrontAll::new(config, options, |_, _| FrontOptions::default());
        let stop = CancellationToken::new();
        Self { session: Session::served(front.open(stop.clone()), stop), next: 0 }
    }

    /// Before one server.
    pub(crate) fn of_one(server: &Arc<FakeServer>, change: impl FnOnce(&mut FrontOptions)) -> Self {
        let mut options = FrontOptions::default();
        change(&mut options);
        Self { session: Session::new(crate::support::builder(server), options), next: 0 }
    }

    /// Before all of these servers, and greeted.
    pub(crate) async fn greeted(config: FleetConfig) -> Self {
        let mut host = Self::of(config);
        host.initialize().await;
        host
    }

    pub(crate) async fn initialize(&mut self) -> Value {
        let params = json!({ "protocolVersion": "2025-11-25", "clientInfo": { "name": "host", "version": "1" },
            "capabilities": { "roots": { "listChanged": true }, "sampling": {} } });
        let greeting = self.ask("initialize", params).await;
        self.tell("notifications/initialized", json!({})).await;
        greeting["result"].clone()
    }

    pub(crate) async fn say(&self, text: String) {
        self.session.say(&text).await;
    }

    pub(crate) async fn tell(&self, method: &str, params: Value) {
        self.say(json!({ "jsonrpc": "2.0", "method": method, "params": params }).to_string()).await;
    }

    /// Asks for something; its id.
    pub(crate) async fn begin(&mut self, method: &str, params: Value) -> u64 {
        self.next += 1;
        self.say(json!({ "jsonrpc": "2.0", "id": self.next, "method": method, "params": params }).to_string()).await;
        self.next
    }

    /// The answer to it.
    pub(crate) async fn answer(&mut self, id: u64) -> Value {
        self.hear(|message| message["method"].is_null() && message["id"] == id).await
    }

    /// Asks, and waits for the answer.
    pub(crate) async fn ask(&mut self, method: &str, params: Value) -> Value {
        let id = self.begin(method, params).await;
        self.answer(id).await
    }

    /// Calls a tool; the text of its result.
    pub(crate) async fn call(&mut self, tool: &str, text: &str) -> String {
        let answer = self.ask("tools/call", json!({ "name": tool, "arguments": { "text": text } })).await;
        text_of(&answer)
    }

    /// The names in a list.
    pub(crate) async fn names(&mut self, list: &str) -> Vec<String> {
        let (member, key) = match list {
            "tools/list" => ("tools", "name"),
            "prompts/list" => ("prompts", "name"),
            "resources/list" => ("resources", "uri"),
            "resources/templates/list" => ("resourceTemplates", "uriTemplate"),
            other => panic!("no list: {other}"),
        };
        let answer = self.ask(list, json!({})).await;
        let items = answer["result"][member].as_array().unwrap_or_else(|| panic!("{answer}"));
        items.iter().map(|item| item[key].as_str().unwrap().to_owned()).collect()
    }

    /// The next message of which this is true.
    pub(crate) async fn hear(&mut self, wanted: impl Fn(&Value) -> bool) -> Value {
        serde_json::from_str(&self.hear_text(wanted).await).unwrap()
    }

    /// The next request or notification of this method.
    pub(crate) async fn told(&mut self, method: &str) -> Value {
        self.hear(|message| message["method"] == method).await
    }

    pub(crate) async fn hear_text(&mut self, wanted: impl Fn(&Value) -> bool) -> String {
        let matches = |text: &str| wanted(&serde_json::from_str(text).unwrap_or_else(|_| panic!("no JSON: {text}")));
        self.session.find(matches).await
    }

    /// Everything of this method that was told so far and not asked for.
    pub(crate) fn unread(&mut self, method: &str) -> Vec<Value> {
        let messages = self.session.unread().map(|text| serde_json::from_str::<Value>(text).unwrap());
        messages.filter(|message| message["method"] == method).collect()
    }

    /// Tells the front to end, and waits until nothing is left.
    pub(crate) async fn stop(self) {
        self.session.stop.cancel();
        timeout(secs(60), self.session.session).await.expect("it ends").unwrap();
    }

    /// Drops its session.
    pub(crate) fn abort(&self) {
        self.session.session.abort();
    }

    /// Ends its session, and waits until nothing is left.
    pub(crate) async fn leave(self) {
        self.session.leave().await;
    }
}

/// The text of a call's result.
pub(crate) fn text_of(answer: &Value) -> String {
    answer["result"]["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
}

/// The error of an answer.
pub(crate) fn error_of(answer: &Value) -> (i64, &str) {
    let error = &answer["error"];
    (error["code"].as_i64().unwrap_or_else(|| panic!("{answer}")), error["message"].as_str().unwrap())
}

/// `_meta` of a modern host.
pub(crate) fn modern() -> Value {
    json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": { "name": "host", "version": "1" },
        "io.modelcontextprotocol/clientCapabilities": {},
    })
}

/// A legacy server in its own words: the result of each method, byte for byte.
#[derive(Clone)]
pub(crate) struct Verbatim {
    results: Arc<[(&'static str, String)]>,
    /// What it read.
    pub(crate) read: Arc<Mutex<Vec<String>>>,
}

impl Verbatim {
    pub(crate) fn new(results: impl IntoIterator<Item = (&'static str, String)>) -> Self {
        let greeting =
            r#"{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"v","version":"1"}}"#;
        let greeting = ("initialize", greeting.to_owned());
        Self { results: results.into_iter().chain([greeting]).collect(), read: Arc::default() }
    }
}

#[async_trait]
impl Connector for Verbatim {
    async fn connect(&self, attempt: Attempt) -> Result<Link, ConnectError> {
        let (outbound, mut frames) = mpsc::channel::<mcp_reconnect::link::Outbound>(16);
        let (answers, inbound) = mpsc::channel::<Box<str>>(16);
        let (server, cancel, closed) = (self.clone(), attempt.cancel.clone(), CancellationToken::new());
        let end = closed.clone();
        let serve = async move {
            while let Some(mut frame) = frames.recv().await {
                if !frame.begin() {
                    continue;
                }
                let text = frame.frame().to_owned();
                frame.finish(Ok(()));
                server.read.lock().unwrap().push(text.clone());
                let message: Value = serde_json::from_str(&text).unwrap();
                if message["id"].is_null() {
                    continue;
                }
                let result = server.results.iter().find(|(method, _)| message["method"] == *method);
                let outcome = match result {
                    Some((_, result)) => format!(r#""result":{result}"#),
                    None => r#""error":{"code":-32601,"message":"no such method"}"#.to_owned(),
                };
                let answer = format!(r#"{{"jsonrpc":"2.0","id":{},{outcome}}}"#, message["id"]);
                if answers.send(answer.into()).await.is_err() {
                    return;
                }
            }
        };
        attempt.tasks.spawn(async move {
            tokio::select! {
                () = serve => {}
                () = cancel.cancelled() => {}
                () = end.cancelled() => {}
            }
        });
        Ok(Link { outbound, inbound, control: Arc::new(Control(closed)) })
    }
}

/// A way to a fake server whose spawns can be killed from outside.
#[derive(Clone)]
pub(crate) struct Killable(MemoryConnector, Arc<Mutex<Option<Arc<dyn LinkControl>>>>);

impl Killable {
    pub(crate) fn new(server: &Arc<FakeServer>) -> Self {
        Self(MemoryConnector(server.clone()), Arc::default())
    }

    /// Kills the last spawn.
    pub(crate) fn kill(&self) {
        if let Some(control) = self.1.lock().unwrap().take() {
            control.kill();
        }
    }
}

#[async_trait]
impl Connector for Killable {
    async fn connect(&self, attempt: Attempt) -> Result<Link, ConnectError> {
        let link = self.0.connect(attempt).await?;
        *self.1.lock().unwrap() = Some(link.control.clone());
        Ok(link)
    }

    fn close_bound(&self) -> Duration {
        self.0.close_bound()
    }
}
