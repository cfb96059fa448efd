//! A host of the modern era.

use serde_json::{Value, json};

use super::support::*;
use crate::support::{memory, secs};

fn with_meta(mut params: Value) -> Value {
    params["_meta"] = modern();
    params
}

#[tokio::test(start_paused = true)]
async fn servers_of_both_eras_are_one() {
    let (old, new) = (memory("tools x\nresources r:///old"), memory("era modern\ntools y, z\npaging 2"));
    let mut host = Host::of(config(&[("old", &old), ("new", &new)]));
    let discovered = host.ask("server/discover", with_meta(json!({}))).await;
    let discovered = &discovered["result"];
    assert_eq!(discovered["supportedVersions"], json!(["2026-07-28"]));
    assert_eq!(discovered["resultType"], "complete");
    assert_eq!(discovered["_meta"]["io.modelcontextprotocol/serverInfo"]["name"], "mcp-reconnect");
    assert!(discovered["capabilities"]["resources"].is_object() && discovered["capabilities"]["tools"].is_object());
    let list = host.ask("tools/list", with_meta(json!({}))).await;
    let names: Vec<_> = list["result"]["tools"].as_array().unwrap().iter().map(|tool| tool["name"].clone()).collect();
    assert_eq!(names, ["new__y", "new__z", "old__x"]);
    for name in ["old__x", "new__z"] {
        let answer = host.ask("tools/call", with_meta(json!({ "name": name, "arguments": { "text": name } }))).await;
        assert_eq!(text_of(&answer), name);
    }
    host.leave().await;
}

/// The first message may be any.
#[tokio::test(start_paused = true)]
async fn a_call_may_come_first() {
    let new = memory("era modern");
    let mut host = Host::of(config(&[("new", &new)]));
    let answer = host.ask("tools/call", with_meta(json!({ "name": "new__write", "arguments": { "text": "1" } }))).await;
    assert_eq!(text_of(&answer), "1");
    // Of a server, too, whose name says nothing.
    let (new, other) = (memory("era modern\ntools read.text"), memory(""));
    let mut host = Host::of(config(&[("files", &new), ("other", &other)]));
    let call = json!({ "name": "files__read_text_4522d997", "arguments": { "text": "1" } });
    assert_eq!(text_of(&host.ask("tools/call", with_meta(call)).await), "1");
    assert_eq!(other.ledger().spawns(), 1);
}

#[tokio::test(start_paused = true)]
async fn one_stream_is_of_all_servers() {
    let script = "era modern\nresources r:///a\nafter 20s notify tools/list_changed\nafter 30s notify resources/updated '{\"uri\":\"r:///a\"}'";
    let a = memory(script);
    let b =
        memory("tools x\nresources r:///b\nafter 40s notify tools/list_changed\nafter 50s notify prompts/list_changed");
    let mut host = Host::of(config(&[("a", &a), ("b", &b)]));
    host.ask("server/discover", with_meta(json!({}))).await;
    let wanted = json!({ "toolsListChanged": true, "resourceSubscriptions": ["r:///a"] });
    let request = json!({ "jsonrpc": "2.0", "id": "my stream", "method": "subscriptions/listen",
        "params": with_meta(json!({ "notifications": wanted })) });
    host.say(request.to_string()).await;
    let stream = |message: &Value| message["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"].clone();
    let acknowledged = host.hear(|_| true).await;
    assert_eq!(acknowledged["method"], "notifications/subscriptions/acknowledged");
    assert_eq!((stream(&acknowledged), &acknowledged["params"]["notifications"]), (json!("my stream"), &wanted));
    for method in ["tools/list_changed", "resources/updated", "tools/list_changed"] {
        let told = host.hear(|_| true).await;
        assert_eq!(told["method"], format!("notifications/{method}"));
        assert_eq!(stream(&told), "my stream");
    }
    assert_eq!(b.ledger().requests("resources/subscribe"), 0, "what is a's is not b's");
    host.tell("notifications/cancelled", json!({ "requestId": "my stream" })).await;
    tokio::time::sleep(secs(60)).await;
    assert_eq!(host.hear(|message| message["id"].is_null()).now(), None);
    host.leave().await;
}

trait Now {
    fn now(self) -> Option<Value>;
}

impl<F: Future<Output = Value>> Now for F {
    fn now(self) -> Option<Value> {
        futures::FutureExt::now_or_never(self)
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_for_nothing_is_refused() {
    let a = memory("era modern");
    let mut host = Host::of(config(&[("a", &a)]));
    for params in [json!({}), json!({ "notifications": 1 })] {
        assert_eq!(error_of(&host.ask("subscriptions/listen", with_meta(params)).await).0, -32_602);
    }
}
