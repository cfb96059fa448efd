//! The era without sessions.

use std::time::Duration;

use axum::http::StatusCode;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::{Answer, Far, Rig, SOON, SessionKind};

const SUBSCRIPTION: &str = "io.modelcontextprotocol/subscriptionId";

/// A request as a host of this era makes it.
fn ask(rig: &Rig, id: impl Into<Value>, method: &str, params: Value, headers: &[(&str, &str)]) -> JoinHandle<Answer> {
    let mut params = params;
    let meta = params.as_object_mut().unwrap().entry("_meta").or_insert_with(|| json!({})).as_object_mut().unwrap();
    meta.insert("io.modelcontextprotocol/protocolVersion".into(), "2026-07-28".into());
    meta.insert("io.modelcontextprotocol/clientCapabilities".into(), json!({}));
    let name = params["name"].as_str().map(str::to_owned);
    let message = json!({ "jsonrpc": "2.0", "id": id.into(), "method": method, "params": params });
    let mut all = vec![("mcp-protocol-version", "2026-07-28"), ("mcp-method", method)];
    all.extend(name.as_deref().map(|name| ("mcp-name", name)));
    all.extend(headers);
    rig.post(&all, &message)
}

async fn front(rig: &mut Rig) -> Far {
    let far = rig.front().await;
    assert_eq!(far.kind, SessionKind::Modern);
    far
}

#[tokio::test(start_paused = true)]
async fn hosts_share_a_front_and_keep_their_ids() {
    let mut rig = Rig::new();
    let one = ask(&rig, 1, "tools/list", json!({}), &[]);
    let mut far = front(&mut rig).await;
    let first = far.heard().await;
    let two = ask(&rig, "1", "tools/list", json!({}), &[]);
    let second = far.heard().await;
    let three = ask(&rig, 1, "tools/list", json!({}), &[]);
    let third = far.heard().await;
    assert!(first["id"] != second["id"] && second["id"] != third["id"] && first["id"] != third["id"]);
    for (request, result) in [(&third, 3), (&first, 1), (&second, 2)] {
        far.answer(request, json!(result)).await;
    }
    for (answer, id, result) in [(one, json!(1), 1), (two, json!("1"), 2), (three, json!(1), 3)] {
        let mut answer = answer.await.unwrap();
        assert_eq!((answer.status, answer.header("mcp-session-id")), (StatusCode::OK, ""));
        assert_eq!(answer.json().await, json!({ "jsonrpc": "2.0", "id": id, "result": result }));
    }
    assert!(rig.fronts.try_recv().is_err(), "one front");
}

#[tokio::test(start_paused = true)]
async fn nothing_but_ids_and_tokens_is_rewritten() {
    let mut rig = Rig::new();
    let meta = r#""_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","progressToken":"t","io.modelcontextprotocol/clientCapabilities":{}}"#;
    let sent = format!(r#"{{"id":"a b", "method":"m","params":{{"n":1.50, {meta}}},"x":0,"jsonrpc":"2.0"}}"#);
    let headers = [("mcp-protocol-version", "2026-07-28"), ("mcp-method", "m")];
    let answer = tokio::spawn(rig.send("POST", &headers, sent.clone()));
    let mut far = front(&mut rig).await;
    let heard = far.from_host.recv().await.unwrap();
    assert_eq!(&*heard, sent.replace(r#""a b""#, "1").replace(r#""t""#, "1"));
    let said = r#"{"method":"notifications/progress", "params":{"progress":1.0,"progressToken":1},"jsonrpc":"2.0"}"#;
    far.to_host.send(said.into()).await.unwrap();
    far.to_host.send(r#"{"result":{"n":1.50, "e":1e400},"id":1,"jsonrpc":"2.0","x":0}"#.into()).await.unwrap();
    let mut answer = answer.await.unwrap();
    assert_eq!(answer.block().await.as_deref(), Some(": open"));
    assert_eq!(answer.block().await.unwrap(), format!("data: {}", said.replace(":1}", r#":"t"}"#)));
    let back = r#"data: {"result":{"n":1.50, "e":1e400},"id":"a b","jsonrpc":"2.0","x":0}"#;
    assert_eq!(answer.block().await.as_deref(), Some(back));
    assert_eq!(answer.block().await, None);
}

#[tokio::test(start_paused = true)]
async fn progress_goes_to_the_host_whose_token_it_is() {
    let mut rig = Rig::new();
    let params = json!({ "name": "t", "_meta": { "progressToken": 0 } });
    let one = ask(&rig, 1, "tools/call", params.clone(), &[]);
    let mut far = front(&mut rig).await;
    let first = far.heard().await;
    let two = ask(&rig, 1, "tools/call", params, &[]);
    let second = far.heard().await;
    let progress = |request: &Value, progress: u64| {
        let params = json!({ "progressToken": request["params"]["_meta"]["progressToken"], "progress": progress });
        json!({ "jsonrpc": "2.0", "method": "notifications/progress", "params": params })
    };
    far.say(progress(&second, 2)).await;
    far.say(progress(&first, 1)).await;
    for (answer, expected) in [(one, 1), (two, 2)] {
        let mut answer = answer.await.unwrap();
        assert_eq!(answer.told().await["params"], json!({ "progressToken": 0, "progress": expected }));
        answer.quiet().await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_error_has_the_status_that_belongs_to_it() {
    let mut rig = Rig::new();
    let mut far = None;
    for (code, status) in [(-32601, 404), (-32020, 400), (-32021, 400), (-32022, 400), (-32602, 200), (-32000, 200)] {
        let answer = ask(&rig, 7, "tools/list", json!({}), &[]);
        if far.is_none() {
            far = Some(front(&mut rig).await);
        }
        let far = far.as_mut().unwrap();
        let request = far.heard().await;
        far.say(json!({ "jsonrpc": "2.0", "id": request["id"], "error": { "code": code, "message": "" } })).await;
        let mut answer = answer.await.unwrap();
        assert_eq!(answer.status.as_u16(), status, "{code}");
        let told = answer.json().await;
        assert_eq!((&told["id"], &told["error"]["code"]), (&json!(7), &json!(code)));
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_takes_long_is_a_stream_that_shows_life() {
    let mut rig = Rig::new();
    let answer = ask(&rig, 1, "tools/list", json!({}), &[]);
    let mut far = front(&mut rig).await;
    let request = far.heard().await;
    let mut answer = answer.await.unwrap(); // of paused time
    assert!(answer.is_events());
    assert_eq!(answer.block().await.as_deref(), Some(": open"));
    assert_eq!(answer.block().await.as_deref(), Some(": alive"));
    far.answer(&request, json!(1)).await;
    assert_eq!(answer.told().await["result"], 1);
    assert_eq!(answer.message().await, None);
    let answer = ask(&rig, 2, "tools/list", json!({}), &[("accept", "application/json")]);
    let request = far.heard().await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    far.answer(&request, json!(2)).await;
    assert_eq!(answer.await.unwrap().json().await["result"], 2);
}

#[tokio::test(start_paused = true)]
async fn a_host_that_goes_away_cancels_its_request() {
    let mut rig = Rig::new();
    let waiting = ask(&rig, 1, "tools/list", json!({}), &[]);
    let mut far = front(&mut rig).await;
    let first = far.heard().await;
    waiting.abort();
    let cancelled = far.heard().await;
    assert_eq!(cancelled["method"], "notifications/cancelled");
    assert_eq!(cancelled["params"]["requestId"], first["id"]);

    let streaming = ask(&rig, 1, "tools/call", json!({ "name": "t", "_meta": { "progressToken": 4 } }), &[]);
    let second = far.heard().await;
    let token = &second["params"]["_meta"]["progressToken"];
    let params = json!({ "progressToken": token, "progress": 1 });
    far.say(json!({ "jsonrpc": "2.0", "method": "notifications/progress", "params": params })).await;
    let mut streaming = streaming.await.unwrap();
    streaming.told().await;
    drop(streaming);
    assert_eq!(far.heard().await["params"]["requestId"], second["id"]);

    // Answered is answered; and the front's late answer to one that was cancelled is nobody's.
    let answered = ask(&rig, 1, "tools/list", json!({}), &[]);
    let third = far.heard().await;
    far.answer(&first, json!("late")).await;
    far.answer(&third, json!("third")).await;
    let mut answered = answered.await.unwrap();
    assert_eq!(answered.json().await["result"], "third");
    drop(answered);
    far.silent().await;
}

#[tokio::test(start_paused = true)]
async fn a_cancellation_that_is_posted_harms_no_other_host() {
    let mut rig = Rig::new();
    let answer = ask(&rig, 1, "tools/list", json!({}), &[]);
    let mut far = front(&mut rig).await;
    let request = far.heard().await;
    let cancelled = json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": 1 } });
    let headers = [("mcp-protocol-version", "2026-07-28"), ("mcp-method", "notifications/cancelled")];
    assert_eq!(rig.post(&headers, &cancelled).await.unwrap().status, StatusCode::ACCEPTED);
    far.silent().await;
    far.answer(&request, json!(1)).await;
    assert_eq!(answer.await.unwrap().json().await["result"], 1);
}

#[tokio::test(start_paused = true)]
async fn a_subscription_is_a_stream_of_its_own() {
    let mut rig = Rig::new();
    let params = || json!({ "notifications": { "toolsListChanged": true } });
    let one = ask(&rig, 5, "subscriptions/listen", params(), &[]);
    let mut far = front(&mut rig).await;
    let first = far.heard().await;
    let two = ask(&rig, "five", "subscriptions/listen", params(), &[]);
    let second = far.heard().await;
    let notice = |request: &Value, method: &str, text: bool| {
        let id = if text { json!(request["id"].to_string()) } else { request["id"].clone() };
        json!({ "jsonrpc": "2.0", "method": method, "params": { "_meta": { SUBSCRIPTION: id } } })
    };
    far.say(notice(&first, "notifications/subscriptions/acknowledged", false)).await;
    far.say(notice(&second, "notifications/subscriptions/acknowledged", true)).await;
    let (mut one, mut two) = (one.await.unwrap(), two.await.unwrap());
    assert_eq!(one.told().await["params"]["_meta"][SUBSCRIPTION], json!(5));
    assert_eq!(two.told().await["params"]["_meta"][SUBSCRIPTION], json!("five"));
    far.say(notice(&first, "notifications/tools/list_changed", true)).await;
    let told = one.told().await;
    assert_eq!(told["method"], "notifications/tools/list_changed");
    assert_eq!(told["params"]["_meta"][SUBSCRIPTION], json!("5"), "as the server wrote it: a text");
    two.quiet().await;
    far.answer(&second, json!({ "_meta": { SUBSCRIPTION: second["id"] } })).await;
    assert_eq!(
        two.told().await,
        json!({ "jsonrpc": "2.0", "id": "five", "result": { "_meta": { SUBSCRIPTION: "five" } } })
    );
    assert_eq!(two.message().await, None);
    drop(one);
    assert_eq!(far.heard().await["params"]["requestId"], first["id"]);
}

#[tokio::test(start_paused = true)]
async fn a_log_message_is_for_the_only_request_that_asked_for_logs() {
    let mut rig = Rig::new();
    let logging = || json!({ "name": "t", "_meta": { "io.modelcontextprotocol/logLevel": "info" } });
    let log = |text: &str| json!({ "jsonrpc": "2.0", "method": "notifications/message", "params": { "data": text } });
    let silent = ask(&rig, 1, "tools/call", json!({ "name": "t" }), &[]);
    let mut far = front(&mut rig).await;
    let plain = far.heard().await;
    let one = ask(&rig, 2, "tools/call", logging(), &[]);
    let first = far.heard().await;
    far.say(log("for one")).await;
    let mut one = one.await.unwrap();
    assert_eq!(one.told().await["params"]["data"], "for one");
    let two = ask(&rig, 3, "tools/call", logging(), &[]);
    let second = far.heard().await;
    far.say(log("whose?")).await;
    one.quiet().await;
    for request in [&plain, &first, &second] {
        far.answer(request, json!(0)).await;
    }
    assert!(one.told().await["result"].is_number());
    assert_eq!(two.await.unwrap().json().await["id"], 3);
    assert_eq!(silent.await.unwrap().json().await["id"], 1);
}

#[tokio::test(start_paused = true)]
async fn a_request_of_the_server_is_refused() {
    let mut rig = Rig::new();
    let answer = ask(&rig, 1, "tools/call", json!({ "name": "t" }), &[]);
    let mut far = front(&mut rig).await;
    let request = far.heard().await;
    far.say(json!({ "jsonrpc": "2.0", "id": "s", "method": "sampling/createMessage" })).await;
    let refused = far.heard().await;
    assert_eq!((&refused["id"], &refused["error"]["code"]), (&json!("s"), &json!(-32601)));
    far.answer(&request, json!(0)).await;
    assert_eq!(answer.await.unwrap().json().await["result"], 0);
}

#[tokio::test(start_paused = true)]
async fn headers_that_a_listed_tool_asks_for_are_held_to_the_call() {
    let mut rig = Rig::new();
    let list = ask(&rig, 1, "tools/list", json!({}), &[]);
    let mut far = front(&mut rig).await;
    let request = far.heard().await;
    let schema = json!({ "type": "object", "properties": { "r": { "type": "string", "x-mcp-header": "Region" } } });
    far.answer(&request, json!({ "tools": [{ "name": "t", "inputSchema": schema }] })).await;
    list.await.unwrap();
    let call = json!({ "name": "t", "arguments": { "r": "eu" } });
    let mut answer = ask(&rig, 2, "tools/call", call.clone(), &[]).await.unwrap();
    assert_eq!((answer.status, answer.code().await), (StatusCode::BAD_REQUEST, -32020));
    let answer = ask(&rig, 3, "tools/call", call, &[("mcp-param-region", "eu")]);
    let request = far.heard().await;
    far.answer(&request, json!(1)).await;
    assert_eq!(answer.await.unwrap().json().await["result"], 1);
}

#[tokio::test(start_paused = true)]
async fn a_request_unlike_its_headers_does_not_reach_the_front() {
    let mut rig = Rig::new();
    let mut answer = ask(&rig, 4, "tools/list", json!({}), &[("mcp-method", "x")]).await.unwrap();
    assert_eq!(answer.status, StatusCode::BAD_REQUEST);
    let told = answer.json().await;
    assert_eq!((&told["id"], &told["error"]["code"]), (&json!(4), &json!(-32020)));
    let bare = json!({ "jsonrpc": "2.0", "id": 5, "method": "server/discover", "params": {} });
    let mut answer = rig.post(&[], &bare).await.unwrap();
    assert_eq!((answer.status, answer.code().await), (StatusCode::BAD_REQUEST, -32602));
    let mut answer = ask(&rig, 6, "initialize", json!({}), &[]).await.unwrap();
    assert_eq!((answer.status, answer.code().await), (StatusCode::NOT_FOUND, -32601));
    assert!(rig.fronts.try_recv().is_err());
}

#[tokio::test(start_paused = true)]
async fn a_front_that_ends_is_replaced_and_its_requests_are_told() {
    let mut rig = Rig::new();
    let lost = ask(&rig, 1, "tools/list", json!({}), &[]);
    let mut far = front(&mut rig).await;
    far.heard().await;
    drop(far);
    let told = lost.await.unwrap().json().await;
    assert_eq!((&told["id"], &told["error"]["code"]), (&json!(1), &json!(-32001)));
    let again = ask(&rig, 2, "tools/list", json!({}), &[]);
    let mut far = front(&mut rig).await;
    let request = far.heard().await;
    far.answer(&request, json!(2)).await;
    assert_eq!(again.await.unwrap().json().await["result"], 2);
    rig.stop.cancel();
    far.ended().await;
    assert_eq!(ask(&rig, 3, "tools/list", json!({}), &[]).await.unwrap().status, StatusCode::SERVICE_UNAVAILABLE);
}

#[tokio::test(start_paused = true)]
async fn a_host_that_does_not_read_is_cut_off_and_holds_up_nobody() {
    let mut rig = Rig::new();
    let slow = ask(&rig, 1, "tools/call", json!({ "name": "t", "_meta": { "progressToken": 1 } }), &[]);
    let mut far = front(&mut rig).await;
    let request = far.heard().await;
    let params = json!({ "progressToken": request["id"], "progress": 1 });
    let progress = json!({ "jsonrpc": "2.0", "method": "notifications/progress", "params": params });
    far.say(progress.clone()).await;
    let mut slow = slow.await.unwrap();
    for _ in 0..1000 {
        tokio::time::timeout(SOON, far.say(progress.clone())).await.unwrap();
    }
    assert_eq!(far.heard().await["params"]["requestId"], request["id"]);
    let other = ask(&rig, 2, "tools/list", json!({}), &[]);
    let request = far.heard().await;
    far.answer(&request, json!(2)).await;
    assert_eq!(other.await.unwrap().json().await["result"], 2);
    let mut seen = 0;
    while let Some((_, told)) = slow.message().await {
        assert_eq!(told["method"], "notifications/progress");
        seen += 1;
    }
    assert!((200..300).contains(&seen), "{seen}");
}
