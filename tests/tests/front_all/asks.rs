//! What servers ask of the host, and tell it.

use mcp_reconnect::config::FleetConfig;
use serde_json::json;

use super::support::*;
use crate::support::memory;

#[tokio::test(start_paused = true)]
async fn each_answer_finds_the_server_that_asked() {
    let script = "call write request roots wait, request sampling wait";
    let (a, b) = (memory(script), memory(script));
    let mut host = Host::greeted(config(&[("a", &a), ("b", &b)])).await;
    let calls = [
        host.begin("tools/call", json!({ "name": "a__write" })).await,
        host.begin("tools/call", json!({ "name": "b__write" })).await,
    ];
    let (first, second) = (host.told("roots/list").await, host.told("roots/list").await);
    assert_ne!(first["id"], second["id"]);
    // The later one first.
    for asked in [&second, &first] {
        let uri = format!("file:///{}", asked["id"]);
        let answer = json!({ "jsonrpc": "2.0", "id": asked["id"], "result": { "roots": [{ "uri": uri }] } });
        host.say(answer.to_string()).await;
    }
    for _ in 0..2 {
        let asked = host.told("sampling/createMessage").await;
        let error = json!({ "code": -1, "message": "no", "data": { "id": asked["id"] } });
        host.say(json!({ "jsonrpc": "2.0", "id": asked["id"], "error": error }).to_string()).await;
    }
    for id in calls {
        assert!(host.answer(id).await["result"].is_object());
    }
    let roots = |server: &mcp_reconnect_tests::fake::FakeServer| {
        let ledger = server.ledger();
        let answers = ledger.answers("roots/list");
        assert_eq!((answers.len(), ledger.answers("sampling/createMessage").len()), (1, 1));
        answers[0]["result"]["roots"][0]["uri"].as_str().unwrap().to_owned()
    };
    let mut got = [roots(&a), roots(&b)];
    got.sort_unstable();
    let mut expected = [&first, &second].map(|asked| format!("file:///{}", asked["id"]));
    expected.sort_unstable();
    assert_eq!(got, expected);
    assert_ne!(got[0], got[1]);
}

#[tokio::test(start_paused = true)]
async fn a_question_is_taken_back_when_its_server_dies() {
    let (a, b) = (memory("call write request roots wait"), memory(""));
    let way = Killable::new(&a);
    let mut host = Host::greeted(FleetConfig::default().with("a", by(way.clone())).with("b", of(&b))).await;
    let call = host.begin("tools/call", json!({ "name": "a__write" })).await;
    let asked = host.told("roots/list").await;
    way.kill();
    let cancelled = host.told("notifications/cancelled").await;
    assert_eq!(cancelled["params"]["requestId"], asked["id"]);
    let answer = host.answer(call).await;
    assert_eq!(answer["error"]["data"]["outcome"], "unknown");
    // Its answer is for nobody, and another server's question has another id.
    host.say(json!({ "jsonrpc": "2.0", "id": asked["id"], "result": {} }).to_string()).await;
    assert_eq!(host.call("b__echo", "on").await, "on");
    assert_eq!(a.ledger().answers("roots/list").len(), 0);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_asked_before_the_greeting() {
    let a = memory("on initialized request roots");
    let hung = memory("initialize never");
    let mut host = Host::of(config(&[("a", &a), ("hung", &hung)]));
    let greeted = host.begin("initialize", json!({ "protocolVersion": "2025-11-25", "capabilities": { "roots": {} }, "clientInfo": { "name": "h", "version": "1" } })).await;
    let first = host.hear(|_| true).await;
    assert_eq!(first["id"], greeted, "{first}");
    host.told("roots/list").await;
}

#[tokio::test(start_paused = true)]
async fn what_the_host_tells_is_for_all_but_progress() {
    let script = "call write request sampling wait";
    let (a, b) = (memory(script), memory(""));
    let mut host = Host::greeted(config(&[("a", &a), ("b", &b)])).await;
    host.names("tools/list").await;
    host.tell("notifications/roots/list_changed", json!({})).await;
    host.tell("notifications/progress", json!({ "progressToken": 7, "progress": 1 })).await;
    for server in [&a, &b] {
        let watch = server.watch();
        watch.wait_until(|ledger| ledger.notifications("notifications/roots/list_changed") == 1).await;
    }
    assert_eq!(host.call("b__echo", "x").await, "x");
    for server in [&a, &b] {
        assert_eq!(server.ledger().notifications("notifications/progress"), 0, "nobody waits for it");
    }
}
