//! Which server a request goes to.

use std::time::Duration;

use futures::FutureExt as _;
use mcp_reconnect_tests::fake::{Entry, Event, FakeServer};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::support::*;
use crate::support::{memory, secs};

#[tokio::test(start_paused = true)]
async fn calls_go_to_the_server_of_the_tool() {
    let (a, b) = (memory(""), memory(""));
    let mut host = Host::greeted(config(&[("a", &a), ("b", &b)])).await;
    // Without a list before.
    assert_eq!(host.call("b__write", "1").await, "1");
    host.names("tools/list").await;
    assert_eq!(host.call("a__write", "2").await, "2");
    assert_eq!((a.ledger().executions("write"), b.ledger().executions("write")), (1, 1));
}

/// A host that kept the names of its tools need not list them, nor wait for servers to be there.
#[tokio::test(start_paused = true)]
async fn a_call_waits_for_servers_that_may_have_the_tool() {
    let (a, b) = (memory(""), memory("tools read.text\ninitialize delay 2s"));
    let mut host = Host::of(config(&[("a", &a), ("files", &b)]));
    let words =
        json!({ "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": { "name": "h", "version": "1" } });
    host.begin("initialize", words).await;
    assert_eq!(host.call("files__read_text_4522d997", "1").await, "1");
    assert_eq!(b.ledger().executions("read.text"), 1);
}

#[tokio::test(start_paused = true)]
async fn an_unknown_name_is_refused_with_what_is_close() {
    let (a, b) = (memory("tools read_file\nprompts greeting"), memory(""));
    let mut host = Host::greeted(config(&[("a", &a), ("b", &b)])).await;
    let answer = host.ask("tools/call", json!({ "name": "a__raed_file" })).await;
    let (code, message) = error_of(&answer);
    assert!(code == -32_602 && message.contains("there is `a__read_file`"), "{message}");
    let answer = host.ask("tools/call", json!({ "name": "read_file" })).await;
    assert_eq!(error_of(&answer).0, -32_602);
    let answer = host.ask("prompts/get", json!({ "name": "greetings" })).await;
    let (code, message) = error_of(&answer);
    assert!(code == -32_602 && message.contains("there is `greeting`"), "{message}");
    let answer = host.ask("tools/call", json!({ "arguments": {} })).await;
    assert_eq!(error_of(&answer), (-32_602, "`name` is missing, or no string"));
    assert_eq!((a.ledger().requests("tools/call"), b.ledger().requests("tools/call")), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn resources_go_by_list_then_template_then_in_turn() {
    let a = memory("resources file:///a\ntemplates file:///{name}\nresources/read error -32002 \"none\"");
    let b = memory("resources file:///b\ntemplates file:///logs-{day}, db://{+any}");
    let c = memory("resources x:///c\nresources/read error -32002 \"c has none\"");
    let mut host = Host::greeted(config(&[("a", &a), ("b", &b), ("c", &c)])).await;
    let reads = |server: &FakeServer| server.ledger().requests("resources/read");
    let mut expected = [0, 0, 0];
    for (uri, at, by) in [
        ("file:///b", 1, "listed"),
        ("file:///other", 0, "a template"),
        ("file:///logs-1", 1, "the template that fits best"),
        ("db://x/y/z", 1, "another template"),
        ("x:///c", 2, "listed"),
    ] {
        host.ask("resources/read", json!({ "uri": uri })).await;
        expected[at] += 1;
        assert_eq!([reads(&a), reads(&b), reads(&c)], expected, "{uri}: {by}");
    }
    let answer = host.ask("resources/read", json!({ "uri": "nobody:s" })).await;
    assert!(answer["result"]["contents"].is_array(), "{answer}");
    assert_eq!([reads(&a), reads(&b), reads(&c)], [expected[0] + 1, expected[1] + 1, expected[2]]);
}

#[tokio::test(start_paused = true)]
async fn a_subscription_is_ended_where_it_began() {
    let (a, b) = (memory("resources r:///a\nresources/subscribe error -32002 \"none\""), memory("resources r:///b"));
    let mut host = Host::greeted(config(&[("a", &a), ("b", &b)])).await;
    for method in ["resources/subscribe", "resources/unsubscribe"] {
        assert_eq!(host.ask(method, json!({ "uri": "not:listed" })).await["result"], json!({}));
    }
    let of = |server: &FakeServer| {
        ["resources/subscribe", "resources/unsubscribe"].map(|method| server.ledger().requests(method))
    };
    assert_eq!((of(&a), of(&b)), ([1, 0], [1, 1]));
}

#[tokio::test(start_paused = true)]
async fn completions_go_by_what_is_completed() {
    let a = memory("capabilities tools, prompts, completions\nprompts p");
    let b = memory("capabilities tools, resources, completions\ntemplates t:///{x}");
    let mut host = Host::greeted(config(&[("a", &a), ("b", &b)])).await;
    let argument = json!({ "name": "x", "value": "" });
    for reference in
        [json!({ "type": "ref/resource", "uri": "t:///{x}" }), json!({ "type": "ref/prompt", "name": "p" })]
    {
        let answer = host.ask("completion/complete", json!({ "ref": reference, "argument": argument })).await;
        assert!(answer["result"]["completion"].is_object(), "{answer}");
    }
    let of = |server: &FakeServer| server.ledger().requests("completion/complete");
    assert_eq!((of(&a), of(&b)), (1, 1));
    let nobody = json!({ "ref": { "type": "ref/prompt", "name": "none" }, "argument": argument });
    assert_eq!(error_of(&host.ask("completion/complete", nobody).await).0, -32_602);
}

#[tokio::test(start_paused = true)]
async fn a_log_level_is_everybodys() {
    let logging = "capabilities tools, logging";
    let (a, b, c) = (memory(logging), memory(""), memory(&format!("{logging}\nuntil 100s:\ninitialize never")));
    let mut host = Host::greeted(config(&[("a", &a), ("b", &b), ("c", &c)])).await;
    let began = Instant::now();
    assert_eq!(host.ask("logging/setLevel", json!({ "level": "debug" })).await["result"], json!({}));
    assert!(began.elapsed() <= secs(5), "nobody waits for one that is not there");
    assert_eq!((a.ledger().requests("logging/setLevel"), b.ledger().requests("logging/setLevel")), (1, 0));
    // One that comes late gets it as well.
    let ledger = c.watch();
    let later = ledger.wait_until(|ledger| ledger.requests("logging/setLevel") > 0);
    tokio::time::timeout(Duration::from_secs(3_600), later).await.expect("the level was forgotten");
}

#[tokio::test(start_paused = true)]
async fn nobody_knows_other_methods() {
    let a = memory("");
    let mut host = Host::greeted(config(&[("a", &a)])).await;
    for method in ["tasks/get", "x/y", "prompts/list", "logging/setLevel"] {
        assert_eq!(error_of(&host.ask(method, json!({})).await).0, -32_601, "{method}");
    }
    assert_eq!(a.ledger().requests("x/y"), 0);
}

#[tokio::test(start_paused = true)]
async fn a_cancellation_follows_its_request_and_progress_comes_back() {
    let a = memory("call write progress 2 every 1s, never");
    let b = memory("");
    let mut host = Host::greeted(config(&[("a", &a), ("b", &b)])).await;
    let id = host.begin("tools/call", json!({ "name": "a__write", "_meta": { "progressToken": "mine" } })).await;
    for _ in 0..2 {
        assert_eq!(host.told("notifications/progress").await["params"]["progressToken"], "mine");
    }
    host.tell("notifications/cancelled", json!({ "requestId": id })).await;
    let watch = a.watch();
    let told = watch.wait_until(|ledger| !ledger.cancelled().is_empty());
    tokio::time::timeout(secs(1), told).await.expect("the server was told");
    assert_eq!((a.ledger().cancelled().len(), b.ledger().cancelled().len()), (1, 0));
    // The id may be used again, and is not answered twice.
    let again = json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": { "name": "b__write" } });
    host.say(again.to_string()).await;
    assert!(host.answer(id).await["result"].is_object());
}

#[tokio::test(start_paused = true)]
async fn an_id_is_open_once() {
    let a = memory("call write never");
    let mut host = Host::greeted(config(&[("a", &a)])).await;
    let id = host.begin("tools/call", json!({ "name": "a__write" })).await;
    let again = json!({ "jsonrpc": "2.0", "id": id, "method": "tools/list" });
    host.say(again.to_string()).await;
    assert_eq!(error_of(&host.answer(id).await).0, -32_600);
    host.say("[]".to_owned()).await;
    assert_eq!(error_of(&host.hear(|message| message["id"].is_null()).await).0, -32_600);
    host.say("{".to_owned()).await;
    assert_eq!(error_of(&host.hear(|message| message["id"].is_null()).await).0, -32_700);
}

#[tokio::test(start_paused = true)]
async fn a_cancellation_says_what_the_host_has_said() {
    let a = memory("call write never\nprompts p\nprompts/get never\nprompts/list#2.. never");
    let mut host = Host::greeted(config(&[("a", &a), ("b", &memory(""))])).await;
    tokio::time::sleep(secs(1)).await;
    let requests = [
        ("tools/call", json!({ "name": "a__write" })),
        ("prompts/get", json!({ "name": "p" })),
        ("prompts/list", json!({})),
    ];
    for (at, (method, params)) in requests.into_iter().enumerate() {
        let id = host.begin(method, params).await;
        tokio::time::sleep(secs(1)).await;
        host.tell("notifications/cancelled", json!({ "requestId": id, "reason": "the user has left", "x": [1, at] }))
            .await;
        let told = a.watch();
        let told = told.wait_until(|ledger| ledger.cancelled().len() > at);
        tokio::time::timeout(secs(1), told).await.expect("the server was told");
        let said: Vec<_> = a.ledger().entries().iter().filter_map(cancellation).collect();
        assert_eq!((&said[at]["reason"], &said[at]["x"]), (&json!("the user has left"), &json!([1, at])), "{method}");
    }
    host.leave().await;
}

fn cancellation(entry: &Entry) -> Option<Value> {
    match &entry.event {
        Event::Notification { method, params } if method == "notifications/cancelled" => Some(params.clone()),
        _ => None,
    }
}

/// An answer that cannot be read is answered with nothing, else two sides would go on for ever.
#[tokio::test(start_paused = true)]
async fn an_answer_that_cannot_be_read_is_not_answered() {
    let a = memory("");
    let mut host = Host::greeted(config(&[("a", &a)])).await;
    host.say(r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"what?"}}"#.to_owned()).await;
    host.ask("ping", json!({})).await;
    assert_eq!(host.hear(|message| message["error"].is_object()).now_or_never(), None);
    host.leave().await;
}
