//! A host is greeted at once, whatever the server does; what it was promised is made good.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use mcp_reconnect::Connection;
use mcp_reconnect::core::FailureClass;
use mcp_reconnect::front::FrontOptions;
use mcp_reconnect::link::{Attempt, ConnectError, Connector, Link};
use mcp_reconnect_tests::fake::FakeServer;
use rmcp::model::{
    InitializeResult, ListPromptsResult, ListResourceTemplatesResult, ListResourcesResult, ListToolsResult,
};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::support::{Host, LEGACY, request, text_of};
use crate::support::{builder, memory, secs};

const CHANGED: &str = "notifications/tools/list_changed";
/// All that a server may have.
const GUESS: [&str; 5] = ["completions", "logging", "prompts", "resources", "tools"];

/// What the host was told, and how long that took.
async fn greeted(host: &mut Host) -> (Value, Duration) {
    let began = Instant::now();
    let answer = host.initialize().await;
    let took = began.elapsed();
    let said: InitializeResult = serde_json::from_value(answer["result"].clone()).unwrap();
    assert_eq!(said.protocol_version.as_str(), "2025-11-25");
    (answer["result"].clone(), took)
}

fn members(value: &Value) -> Vec<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

async fn tools(host: &mut Host) -> Vec<String> {
    let answer = host.ask(r#""tools""#, "tools/list", "{}").await;
    let list: ListToolsResult = serde_json::from_value(answer["result"].clone()).unwrap();
    list.tools.into_iter().map(|tool| tool.name.into_owned()).collect()
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_there_is_waited_for() {
    let server = memory("server:\n initialize delay 4s\n info slow 1");
    let mut host = Host::of(&server);
    let (said, took) = greeted(&mut host).await;
    assert_eq!((&said["serverInfo"]["name"], took), (&json!("slow"), secs(4)));
    assert_eq!(members(&said["capabilities"]), ["tools"]);
    assert_eq!(tools(&mut host).await, ["echo", "write"]);
    // What it does not have it does not have.
    assert_eq!(host.told(secs(60)).await, [] as [&str; 0]);
    host.leave().await;
}

#[tokio::test(start_paused = true)]
async fn a_slow_server_is_promised_and_then_announced_once() {
    let server = memory("server:\n initialize delay 20s");
    let mut host = Host::of(&server);
    let began = Instant::now();
    let (said, took) = greeted(&mut host).await;
    assert_eq!((took, members(&said["capabilities"])), (secs(5), GUESS.to_vec()));
    for (name, changes) in [("tools", true), ("prompts", true), ("resources", true)] {
        assert_eq!(said["capabilities"][name]["listChanged"], changes, "{said}");
    }
    assert_eq!(said["serverInfo"]["name"], "mcp-reconnect");
    assert_eq!(tools(&mut host).await, [] as [&str; 0]);
    assert_eq!(began.elapsed(), secs(10));
    assert_eq!(host.told(secs(60)).await, [CHANGED]);
    assert_eq!(tools(&mut host).await, ["echo", "write"]);
    // What it turns out not to have is empty.
    let prompts: ListPromptsResult = list(&mut host, "prompts/list").await;
    let resources: ListResourcesResult = list(&mut host, "resources/list").await;
    let templates: ListResourceTemplatesResult = list(&mut host, "resources/templates/list").await;
    assert!(prompts.prompts.is_empty() && resources.resources.is_empty() && templates.resource_templates.is_empty());
    let ledger = server.ledger();
    assert_eq!(ledger.requests("prompts/list") + ledger.requests("resources/list"), 0);
    assert_eq!(host.ask(7, "vendor/unknown", "{}").await["error"]["code"], -32601);
    assert_eq!(host.told(secs(60)).await, [] as [&str; 0]);
    host.leave().await;
}

async fn list<T: serde::de::DeserializeOwned>(host: &mut Host, method: &str) -> T {
    let answer = host.ask(r#""list""#, method, "{}").await;
    serde_json::from_value(answer["result"].clone()).unwrap_or_else(|error| panic!("{error}: {answer}"))
}

#[tokio::test(start_paused = true)]
async fn a_list_that_a_server_refuses_after_a_promise_is_empty() {
    let server =
        memory("server:\n initialize delay 8s\n capabilities tools, prompts\n prompts/list error -32601 \"no\"");
    let mut host = Host::of(&server);
    greeted(&mut host).await;
    let prompts: ListPromptsResult = list(&mut host, "prompts/list").await;
    assert!(prompts.prompts.is_empty());
    assert_eq!(server.ledger().spawns(), 1);
    host.leave().await;
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_down_or_hangs_holds_nothing_up() {
    for script in
        ["server:\n start exit 1", "server:\n initialize never", "server:\n list never", "server:\n start mute"]
    {
        let server = memory(script);
        let mut host = Host::of(&server);
        let (said, took) = greeted(&mut host).await;
        assert_eq!((took, members(&said["capabilities"])), (secs(5), GUESS.to_vec()), "{script}");
        assert_eq!(host.ask(1, "ping", "{}").await["result"], json!({}));
        assert_eq!(tools(&mut host).await, [] as [&str; 0]);
        host.leave().await;
        assert_eq!(server.ledger().live_links(), 0, "{script}");
    }
}

/// A server that is not there, and will not be.
struct Refusing;

#[async_trait]
impl Connector for Refusing {
    async fn connect(&self, _: Attempt) -> Result<Link, ConnectError> {
        Err(ConnectError::new(FailureClass::Permanent, "no such command"))
    }
}

#[tokio::test(start_paused = true)]
async fn a_parked_server_is_tried_for_a_call_and_not_for_a_greeting() {
    let mut host = Host::new(Connection::builder(Refusing).name("gone"), FrontOptions::default());
    let (said, took) = greeted(&mut host).await;
    assert_eq!((took, members(&said["capabilities"])), (Duration::ZERO, GUESS.to_vec()));
    let began = Instant::now();
    assert_eq!(tools(&mut host).await, [] as [&str; 0]);
    let answer = host.call(1, "echo").await;
    // As long as a list, and a call, wait for a session.
    assert_eq!(began.elapsed(), secs(5) + secs(30));
    let data = &answer["error"]["data"];
    assert_eq!((&answer["error"]["code"], &data["outcome"]), (&json!(-32010), &json!("not_sent")));
    assert_eq!((&data["class"], &data["server"]), (&json!("permanent"), &json!("gone")));
    assert!(data["reason"].as_str().unwrap().contains("no such command"), "{answer}");
    host.leave().await;
}

/// In front of this server, with this cache.
fn cached(server: &Arc<FakeServer>, path: &Path) -> Host {
    let mut options = FrontOptions::default();
    options.cache = Some(path.into());
    Host::new(builder(server), options)
}

#[tokio::test(start_paused = true)]
async fn an_earlier_run_is_remembered() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("sub/there.json");
    let info = "server:\n info there 5\n prompts p\n";
    let mut host = cached(&memory(info), &path);
    let (first, _) = greeted(&mut host).await;
    host.within(secs(5)).await;
    host.leave().await;
    assert!(path.is_file());
    assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "nothing else is left there");

    // The same, slow: told at once as it was, and nothing has changed when it is there.
    let mut host = cached(&memory(&format!("{info} initialize delay 30s")), &path);
    let (said, took) = greeted(&mut host).await;
    assert_eq!((said, took), (first.clone(), secs(5)));
    assert_eq!(tools(&mut host).await, ["echo", "write"]);
    let prompts: ListPromptsResult = list(&mut host, "prompts/list").await;
    assert_eq!(prompts.prompts[0].name, "p");
    assert_eq!(host.told(secs(120)).await, [] as [&str; 0]);
    assert_eq!(text_of(&host.call(1, "echo").await), "echo");
    host.leave().await;

    // Another one, slow: what has changed is announced once.
    let mut host = cached(&memory(&format!("{info} tools other\n initialize delay 30s")), &path);
    assert_eq!(greeted(&mut host).await.0, first);
    assert_eq!(tools(&mut host).await, ["echo", "write"]);
    list::<ListPromptsResult>(&mut host, "prompts/list").await;
    assert_eq!(host.told(secs(120)).await, [CHANGED]);
    assert_eq!(tools(&mut host).await, ["other"]);
    host.leave().await;

    // That is what the next run knows; of the other era it is told in the host's.
    let mut host = cached(&memory("server:\n era modern\n discover delay 6s\n initialize delay 6s"), &path);
    greeted(&mut host).await;
    assert_eq!(tools(&mut host).await, ["other"]);
    host.within(secs(120)).await;
    host.leave().await;
    let mut host = cached(&memory("server:\n initialize never\n discover never"), &path);
    let (said, _) = greeted(&mut host).await;
    assert_eq!(said["serverInfo"], json!({ "name": "fake", "version": "1" }));
    assert_eq!(members(&said["capabilities"]), ["tools"]);
    host.leave().await;
}

#[tokio::test(start_paused = true)]
async fn a_cache_that_cannot_be_read_is_left_out() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cache.json");
    let mut host = cached(&memory(""), &path);
    greeted(&mut host).await;
    host.within(secs(5)).await;
    host.leave().await;
    let whole = std::fs::read_to_string(&path).unwrap();
    let older = whole.replacen(r#""version":1"#, r#""version":0"#, 1);
    assert_ne!(older, whole);
    for broken in ["", "{", "[]", r#"{"version":1}"#, &older, &whole[..whole.len() / 2], "\u{0}\u{1}"] {
        std::fs::write(&path, broken).unwrap();
        let mut host = cached(&memory("server:\n initialize delay 10s"), &path);
        let (said, took) = greeted(&mut host).await;
        assert_eq!((took, members(&said["capabilities"])), (secs(5), GUESS.to_vec()), "{broken}");
        host.within(secs(30)).await;
        host.leave().await;
        assert_eq!(std::fs::read_to_string(&path).unwrap(), whole, "written anew after {broken}");
    }
    // No place for it at all.
    let mut host = cached(&memory(""), dir.path());
    greeted(&mut host).await;
    assert_eq!(tools(&mut host).await, ["echo", "write"]);
    host.leave().await;
}

#[tokio::test(start_paused = true)]
async fn a_request_before_the_answer_to_initialize_is_served() {
    let server = memory("server:\n initialize delay 2s");
    let mut host = Host::of(&server);
    host.say(&request(1, "initialize", LEGACY)).await;
    host.say(&request(2, "tools/list", "{}")).await;
    assert!(host.answer(2).await["result"]["tools"].is_array());
    host.answer(1).await;
    host.leave().await;
}
