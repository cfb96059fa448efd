//! What a host sets up while there is no session is set up in the next.

use std::sync::Arc;

use mcp_reconnect::front::FrontOptions;
use mcp_reconnect_tests::fake::{Event, FakeServer, Ledger};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::eras::asked;
use super::support::Host;
use crate::support::{builder, memory, secs};

const LEVEL: &str = "logging/setLevel";
const SUBSCRIBE: &str = "resources/subscribe";
const UNSUBSCRIBE: &str = "resources/unsubscribe";

/// A server with these lines, which can be told a level and subscriptions.
fn settable(lines: &str) -> Arc<FakeServer> {
    memory(&format!("server:\n capabilities tools, resources(subscribe), logging\n resources file:///a\n{lines}"))
}

/// Sets something up without a session; checks that it is taken, and that nobody waits longer for that than for a start.
async fn set(host: &mut Host, method: &str, params: &str) {
    let began = Instant::now();
    let answer = host.ask(r#""set""#, method, params).await;
    assert_eq!(answer["result"], json!({}), "{answer}");
    assert!(began.elapsed() <= secs(5), "{method}: {:?}", began.elapsed());
}

async fn until_asked(server: &FakeServer, method: &str) {
    let watch = server.watch();
    let asked = watch.wait_until(|ledger| ledger.requests(method) > 0);
    tokio::time::timeout(secs(3_600), asked).await.expect("it is set up");
}

/// The methods of the requests that were read, in order.
fn methods(ledger: &Ledger) -> Vec<String> {
    let methods = ledger.entries().iter().filter_map(|entry| match &entry.event {
        Event::Request { method, .. } => Some(method.clone()),
        _ => None,
    });
    methods.collect()
}

#[tokio::test(start_paused = true)]
async fn settings_made_while_the_server_is_down_hold_later() {
    let server = settable("until 40s:\n start exit 1");
    let mut host = Host::legacy(&server).await;
    set(&mut host, LEVEL, r#"{"level":"info"}"#).await;
    set(&mut host, LEVEL, r#"{"level":"error","x":1}"#).await;
    set(&mut host, SUBSCRIBE, r#"{"uri":"file:///a"}"#).await;
    set(&mut host, SUBSCRIBE, r#"{"uri":"file:///b"}"#).await;
    set(&mut host, UNSUBSCRIBE, r#"{"uri":"file:///b"}"#).await;
    assert_eq!(server.ledger().initializes(), 0, "it is down yet");
    host.within(secs(120)).await;
    let ledger = server.ledger();
    assert_eq!(asked(&ledger, LEVEL), [json!({ "level": "error" })]);
    assert_eq!(asked(&ledger, SUBSCRIBE), [json!({ "uri": "file:///a" })]);
    assert_eq!(asked(&ledger, UNSUBSCRIBE), [] as [Value; 0]);
    host.leave().await;
}

#[tokio::test(start_paused = true)]
async fn a_modern_servers_stream_is_for_settings_made_before_it() {
    let server = settable(" era modern\nuntil 20s:\n start exit 1");
    let mut host = Host::legacy(&server).await;
    set(&mut host, SUBSCRIBE, r#"{"uri":"file:///a"}"#).await;
    host.within(secs(120)).await;
    let streams = asked(&server.ledger(), "subscriptions/listen");
    assert_eq!(streams[0]["notifications"]["resourceSubscriptions"], json!(["file:///a"]));
    host.leave().await;
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_read_is_not_taken() {
    let server = settable("until 300s:\n start exit 1");
    let mut host = Host::legacy(&server).await;
    for (method, params) in [
        (LEVEL, r#"{"level":"loud"}"#),
        (SUBSCRIBE, r#"{"uri":7}"#),
        (SUBSCRIBE, "{}"),
        ("tools/call", r#"{"level":"info"}"#),
    ] {
        let answer = host.ask(1, method, params).await;
        assert_eq!(answer["error"]["code"], -32010, "{method} {params}: {answer}");
    }
    host.leave().await;
}

#[tokio::test(start_paused = true)]
async fn what_a_server_refuses_is_not_set_up_in_the_next_session() {
    let server = settable(
        " tools die\n call die kill\n resources/subscribe error -32002 \"none\"\n logging/setLevel error -32603 \"no\"",
    );
    let mut host = Host::legacy(&server).await;
    assert_eq!(host.ask(1, SUBSCRIBE, r#"{"uri":"file:///a"}"#).await["error"]["code"], -32002);
    assert_eq!(host.ask(2, LEVEL, r#"{"level":"info"}"#).await["error"]["code"], -32603);
    host.call(3, "die").await;
    host.within(secs(30)).await;
    let ledger = server.ledger();
    assert_eq!((ledger.spawns(), ledger.requests(SUBSCRIBE), ledger.requests(LEVEL)), (2, 1, 1));
    host.leave().await;
}

#[tokio::test(start_paused = true)]
async fn settings_made_while_tools_are_listed_hold_in_that_session() {
    let server = settable(" list delay 25s");
    let mut host = Host::legacy(&server).await;
    set(&mut host, LEVEL, r#"{"level":"error"}"#).await;
    set(&mut host, SUBSCRIBE, r#"{"uri":"file:///a"}"#).await;
    assert_eq!(methods(&server.ledger()), ["initialize", "tools/list"], "they are listed yet");
    host.within(secs(60)).await;
    let methods = methods(&server.ledger());
    assert_eq!(methods[..4], ["initialize", "tools/list", LEVEL, SUBSCRIBE]);
    assert_eq!(methods.iter().filter(|method| [LEVEL, SUBSCRIBE].contains(&method.as_str())).count(), 2);
    assert_eq!(server.ledger().spawns(), 1);
    host.leave().await;
}

#[tokio::test(start_paused = true)]
async fn settings_made_during_another_set_up_hold_in_that_session() {
    // The first is set up before the tools are listed, the second and the third while what came before is set up.
    let server = settable(
        " resources/subscribe delay 4s\n logging/setLevel delay 4s\n\
         until 20s:\n start exit 1",
    );
    let mut options = FrontOptions::default();
    options.start_wait = secs(1);
    let mut host = Host::new(builder(&server), options);
    host.initialize().await;
    set(&mut host, LEVEL, r#"{"level":"error"}"#).await;
    until_asked(&server, LEVEL).await;
    set(&mut host, SUBSCRIBE, r#"{"uri":"file:///a"}"#).await;
    until_asked(&server, SUBSCRIBE).await;
    set(&mut host, SUBSCRIBE, r#"{"uri":"file:///b"}"#).await;
    host.within(secs(120)).await;
    let ledger = server.ledger();
    assert_eq!(ledger.initializes(), 1);
    let subscribed = asked(&ledger, SUBSCRIBE);
    assert_eq!(subscribed.last(), Some(&json!({ "uri": "file:///b" })), "{subscribed:?}");
    host.leave().await;
}
