//! Sessions.

use std::time::Duration;

use axum::http::StatusCode;
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use super::{IDLE, MAX_SESSIONS, Rig, SOON};

fn call(id: impl Into<Value>, token: Option<u64>) -> Value {
    let mut params = json!({ "name": "t" });
    if let Some(token) = token {
        params["_meta"] = json!({ "progressToken": token });
    }
    json!({ "jsonrpc": "2.0", "id": id.into(), "method": "tools/call", "params": params })
}

fn progress(token: u64) -> Value {
    json!({ "jsonrpc": "2.0", "method": "notifications/progress", "params": { "progressToken": token, "progress": 1 } })
}

fn log(text: &str) -> Value {
    json!({ "jsonrpc": "2.0", "method": "notifications/message", "params": { "level": "info", "data": text } })
}

#[tokio::test(start_paused = true)]
async fn each_session_has_a_front_of_its_own() {
    let mut rig = Rig::new();
    let (one, mut front_one) = rig.session("2025-11-25").await;
    let (two, mut front_two) = rig.session("2025-06-18").await;
    assert_ne!(one, two);
    assert_eq!(one.len(), 32);
    for (session, front) in [(&two, &mut front_two), (&one, &mut front_one)] {
        let sent = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
        let answer = rig.post(&[("mcp-session-id", session)], &sent).await.unwrap();
        assert_eq!(answer.status, StatusCode::ACCEPTED);
        assert_eq!(front.heard().await, sent);
    }
    front_one.silent().await;
    front_two.silent().await;
}

#[tokio::test(start_paused = true)]
async fn bytes_go_through_as_they_are() {
    let mut rig = Rig::new();
    let (session, mut far) = rig.session("2025-11-25").await;
    let sent =
        r#"{"x":1,"id":"\u0061","jsonrpc":"2.0","params":{"n":1.50,  "big":12345678901234567890123},"method":"m"}"#;
    let answer = tokio::spawn(rig.send("POST", &[("mcp-session-id", &session)], sent));
    assert_eq!(&*far.from_host.recv().await.unwrap(), sent);
    let back = r#"{"result":{"n":1.50,  "e":1e400},"extra":[],"id":"\u0061","jsonrpc":"2.0"}"#;
    far.to_host.send(back.into()).await.unwrap();
    let mut answer = answer.await.unwrap();
    answer.block().await; // the priming event
    assert_eq!(answer.block().await.as_deref(), Some(&*format!("id: 2-1\ndata: {back}")));
    assert_eq!(answer.block().await, None);
}

#[tokio::test(start_paused = true)]
async fn a_message_with_line_breaks_is_one_line_for_its_front() {
    let mut rig = Rig::new();
    let (session, mut far) = rig.session("2025-11-25").await;
    let sent = "{\r\n\"jsonrpc\":\"2.0\",\n\"method\":\"m\"}";
    assert_eq!(rig.send("POST", &[("mcp-session-id", &session)], sent).await.status, StatusCode::ACCEPTED);
    assert_eq!(far.heard().await["method"], "m");
}

#[tokio::test(start_paused = true)]
async fn a_session_that_is_not_there_is_not_found() {
    let mut rig = Rig::new();
    let (session, far) = rig.session("2025-11-25").await;
    let stale = &[("mcp-session-id", "00000000000000000000000000000000")];
    let (mut answer, missing) = (rig.post(stale, &call(1, None)).await.unwrap(), rig.post(&[], &call(1, None)));
    assert_eq!((answer.status, answer.code().await), (StatusCode::NOT_FOUND, -32001));
    assert_eq!(missing.await.unwrap().status, StatusCode::BAD_REQUEST);
    for method in ["GET", "DELETE"] {
        assert_eq!(rig.send(method, stale, "").await.status, StatusCode::NOT_FOUND, "{method}");
    }
    let again = json!({ "jsonrpc": "2.0", "id": 9, "method": "initialize", "params": {} });
    let mut answer = rig.post(&[("mcp-session-id", &session)], &again).await.unwrap();
    assert_eq!((answer.status, answer.json().await["id"].clone()), (StatusCode::BAD_REQUEST, json!(9)));
    drop(far);
}

#[tokio::test(start_paused = true)]
async fn a_deleted_session_ends_its_front_and_what_is_open() {
    let mut rig = Rig::new();
    let (session, mut far) = rig.session("2025-11-25").await;
    let headers = &[("mcp-session-id", &*session)];
    let mut open = rig.post(headers, &call("a", None)).await.unwrap();
    far.heard().await;
    let mut standing = rig.send("GET", headers, "").await;
    assert_eq!(rig.send("DELETE", headers, "").await.status, StatusCode::NO_CONTENT);
    let told = open.told().await;
    assert_eq!((&told["id"], &told["error"]["data"]["outcome"]), (&json!("a"), &json!("unknown")));
    assert_eq!(open.message().await, None);
    assert_eq!(standing.message().await, None);
    far.ended().await;
    assert_eq!(rig.post(headers, &call(1, None)).await.unwrap().status, StatusCode::NOT_FOUND);
}

#[tokio::test(start_paused = true)]
async fn a_session_ends_with_its_front() {
    let mut rig = Rig::new();
    let (session, mut far) = rig.session("2025-11-25").await;
    let headers = &[("mcp-session-id", &*session)];
    let mut open = rig.post(headers, &call(1, None)).await.unwrap();
    far.heard().await;
    drop(far);
    assert_eq!(open.told().await["error"]["code"], -32001);
    assert_eq!(rig.post(headers, &call(2, None)).await.unwrap().status, StatusCode::NOT_FOUND);
}

#[tokio::test(start_paused = true)]
async fn no_session_comes_of_a_refused_or_abandoned_handshake() {
    let mut rig = Rig::new();
    let initialize = json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {} });
    let answer = rig.post(&[], &initialize);
    let mut far = rig.front().await;
    far.heard().await;
    far.say(json!({ "jsonrpc": "2.0", "id": 0, "error": { "code": -32602, "message": "no" } })).await;
    let mut answer = answer.await.unwrap();
    assert_eq!(answer.header("mcp-session-id"), "");
    assert_eq!(answer.code().await, -32602);
    far.ended().await;

    for _ in 0..2 * MAX_SESSIONS {
        let answer = rig.post(&[], &initialize);
        let mut far = rig.front().await;
        far.heard().await;
        answer.abort(); // the host goes away
        far.ended().await;
    }
}

#[tokio::test(start_paused = true)]
async fn sessions_are_bounded() {
    let mut rig = Rig::new();
    let mut fronts = Vec::new();
    for _ in 0..MAX_SESSIONS {
        fronts.push(rig.session("2025-11-25").await);
    }
    let initialize = json!({ "jsonrpc": "2.0", "id": 7, "method": "initialize", "params": {} });
    let answer = rig.post(&[], &initialize);
    let mut answer = timeout(SOON, answer).await.expect("a refusal").unwrap();
    assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_ne!(answer.header("retry-after"), "");
    assert_eq!(answer.json().await["id"], 7);
    rig.send("DELETE", &[("mcp-session-id", &fronts[0].0)], "").await;
    fronts[0].1.ended().await;
    rig.session("2025-11-25").await;
}

#[tokio::test(start_paused = true)]
async fn an_abandoned_session_ends_and_a_used_one_stays() {
    let mut rig = Rig::new();
    let (session, mut far) = rig.session("2025-11-25").await;
    let headers = &[("mcp-session-id", &*session)];
    let standing = rig.send("GET", headers, "").await;
    sleep(3 * IDLE).await;
    far.silent().await; // still there, for it is read
    drop(standing);
    sleep(IDLE / 2).await;
    let ping = json!({ "jsonrpc": "2.0", "method": "x" });
    assert_eq!(rig.post(headers, &ping).await.unwrap().status, StatusCode::ACCEPTED);
    far.heard().await;
    sleep(IDLE - Duration::from_secs(1)).await;
    far.silent().await;
    sleep(Duration::from_secs(2)).await;
    far.ended().await;
    assert_eq!(rig.post(headers, &ping).await.unwrap().status, StatusCode::NOT_FOUND);
}

#[tokio::test(start_paused = true)]
async fn an_open_request_keeps_its_session_while_its_host_waits() {
    let mut rig = Rig::new();
    let (session, mut far) = rig.session("2025-11-25").await;
    let mut answer = rig.post(&[("mcp-session-id", &session)], &call(1, None)).await.unwrap();
    let request = far.heard().await;
    sleep(3 * IDLE).await;
    far.answer(&request, json!("late")).await;
    assert_eq!(answer.told().await["result"], "late");
}

#[tokio::test(start_paused = true)]
async fn events_begin_with_a_place_to_resume_from_where_hosts_know_it() {
    let mut rig = Rig::new();
    // The handshake was the first stream.
    for (version, first) in
        [("2025-11-25", "id: 2-0\nretry: 1000\ndata: "), ("2025-06-18", ": open"), ("2024-11-05", ": open")]
    {
        let (session, mut far) = rig.session(version).await;
        let mut answer = rig.post(&[("mcp-session-id", &session)], &call(1, None)).await.unwrap();
        far.heard().await;
        assert_eq!(answer.block().await.as_deref(), Some(first));
        rig.send("DELETE", &[("mcp-session-id", &session)], "").await;
        far.ended().await;
    }
}

#[tokio::test(start_paused = true)]
async fn progress_goes_to_the_request_with_its_token() {
    let mut rig = Rig::new();
    let (session, mut far) = rig.session("2025-11-25").await;
    let headers = &[("mcp-session-id", &*session)];
    let mut one = rig.post(headers, &call(1, Some(10))).await.unwrap();
    let mut two = rig.post(headers, &call(2, Some(20))).await.unwrap();
    let (first, second) = (far.heard().await, far.heard().await);
    far.say(progress(20)).await;
    far.say(progress(10)).await;
    assert_eq!(one.told().await["params"]["progressToken"], 10);
    assert_eq!(two.told().await["params"]["progressToken"], 20);
    far.answer(&second, json!(2)).await;
    far.answer(&first, json!(1)).await;
    assert_eq!(two.told().await["result"], 2);
    assert_eq!(one.told().await["result"], 1);
    assert_eq!((one.message().await, two.message().await), (None, None));
}

#[tokio::test(start_paused = true)]
async fn an_unnamed_message_goes_to_the_only_stream_else_the_oldest() {
    let mut rig = Rig::new();
    let (session, mut far) = rig.session("2025-11-25").await;
    let headers = &[("mcp-session-id", &*session)];
    let mut standing = rig.send("GET", headers, "").await;
    far.say(log("nobody asks")).await;
    assert_eq!(standing.told().await["params"]["data"], "nobody asks");
    let mut one = rig.post(headers, &call(1, None)).await.unwrap();
    far.heard().await;
    far.say(log("the only one")).await;
    assert_eq!(one.told().await["params"]["data"], "the only one");
    let mut two = rig.post(headers, &call(2, None)).await.unwrap();
    far.heard().await;
    let request = json!({ "jsonrpc": "2.0", "id": 5, "method": "roots/list" });
    far.say(request.clone()).await;
    assert_eq!(standing.told().await, request);
    drop(standing);
    far.say(log("the oldest")).await;
    assert_eq!(one.told().await["params"]["data"], "the oldest");
    two.quiet().await;
    let reply = json!({ "jsonrpc": "2.0", "id": 5, "result": { "roots": [] } });
    assert_eq!(rig.post(headers, &reply).await.unwrap().status, StatusCode::ACCEPTED);
    assert_eq!(far.heard().await, reply);
}

#[tokio::test(start_paused = true)]
async fn what_nobody_reads_waits_for_the_standing_stream() {
    let mut rig = Rig::new();
    let (session, far) = rig.session("2025-11-25").await;
    far.say(log("early")).await;
    let mut standing = rig.send("GET", &[("mcp-session-id", &session)], "").await;
    assert_eq!(standing.told().await["params"]["data"], "early");
}

#[tokio::test(start_paused = true)]
async fn there_is_one_standing_stream() {
    let mut rig = Rig::new();
    let (session, far) = rig.session("2025-11-25").await;
    let headers = [("mcp-session-id", &*session), ("accept", "text/event-stream")];
    let standing = rig.send("GET", &headers, "").await;
    assert_eq!(rig.send("GET", &headers, "").await.status, StatusCode::CONFLICT);
    drop(standing);
    let mut standing = rig.send("GET", &headers, "").await;
    assert!(standing.is_events());
    standing.block().await;
    assert_eq!(standing.block().await.as_deref(), Some(": alive"));
    // Who resumes says that its stream was cut, whatever it looks like from here.
    let mut resumed = rig.send("GET", &[&headers as &[_], &[("last-event-id", "0-0")]].concat(), "").await;
    assert_eq!(standing.message().await, None);
    far.say(log("x")).await;
    assert_eq!(resumed.told().await["params"]["data"], "x");
    let answer = rig.send("GET", &[("mcp-session-id", &*session), ("accept", "application/json")], "").await;
    assert_eq!(answer.status, StatusCode::NOT_ACCEPTABLE);
}

#[tokio::test(start_paused = true)]
async fn a_host_that_lost_its_stream_gets_the_answer_all_the_same() {
    let mut rig = Rig::new();
    let (session, mut far) = rig.session("2025-11-25").await;
    let headers = &[("mcp-session-id", &*session)];
    let mut answer = rig.post(headers, &call(1, Some(1))).await.unwrap();
    let request = far.heard().await;
    far.say(progress(1)).await;
    let (place, _) = answer.message().await.unwrap();
    drop(answer); // cut; the request goes on
    far.silent().await;
    far.say(progress(1)).await;
    far.answer(&request, json!("done")).await;
    far.silent().await;
    let mut resumed = rig.send("GET", &[headers as &[_], &[("last-event-id", &*place)]].concat(), "").await;
    assert_eq!(resumed.told().await["method"], "notifications/progress");
    let (last, told) = resumed.message().await.unwrap();
    assert_eq!(told["result"], "done");
    assert_eq!(resumed.message().await, None);
    // Nothing comes behind the answer, and nothing of a stream that is not known.
    for over in [&*last, "99-1", "x", ""] {
        let answer = rig.send("GET", &[headers as &[_], &[("last-event-id", over)]].concat(), "").await;
        assert_eq!(answer.status, StatusCode::METHOD_NOT_ALLOWED, "{over}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_host_that_takes_no_events_gets_json_and_nothing_else() {
    let mut rig = Rig::new();
    let (session, mut far) = rig.session("2025-11-25").await;
    let headers = [("mcp-session-id", &*session), ("accept", "application/json")];
    let answer = rig.post(&headers, &call(1, None));
    let request = far.heard().await;
    far.say(log("for the standing stream")).await;
    far.answer(&request, json!(1)).await;
    assert_eq!(answer.await.unwrap().json().await["result"], 1);
    let mut standing = rig.send("GET", &[("mcp-session-id", &session)], "").await;
    assert_eq!(standing.told().await["params"]["data"], "for the standing stream");
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_request_leaves_no_stream_behind() {
    let mut rig = Rig::new();
    let (session, mut far) = rig.session("2025-11-25").await;
    let headers = &[("mcp-session-id", &*session)];
    let mut answer = rig.post(headers, &call(1, None)).await.unwrap();
    let request = far.heard().await;
    let cancelled = json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": 1 } });
    assert_eq!(rig.post(headers, &cancelled).await.unwrap().status, StatusCode::ACCEPTED);
    assert_eq!(far.heard().await, cancelled);
    assert_eq!(answer.told().await["error"]["code"], -32800);
    assert_eq!(answer.message().await, None);
    far.answer(&request, json!("late")).await;
    let mut again = rig.post(headers, &call(1, None)).await.unwrap();
    let request = far.heard().await;
    far.answer(&request, json!("new")).await;
    assert_eq!(again.told().await["result"], "new");
}

#[tokio::test(start_paused = true)]
async fn ids_are_used_once_at_a_time() {
    let mut rig = Rig::new();
    let (session, mut far) = rig.session("2025-11-25").await;
    let headers = &[("mcp-session-id", &*session)];
    let mut one = rig.post(headers, &call(1, None)).await.unwrap();
    let request = far.heard().await;
    let mut again = rig.post(headers, &call(1, None)).await.unwrap();
    assert_eq!((again.status, again.code().await), (StatusCode::BAD_REQUEST, -32600));
    let mut text = rig.post(headers, &call("1", None)).await.unwrap();
    let other = far.heard().await;
    far.answer(&other, json!("text")).await;
    far.answer(&request, json!("number")).await;
    assert_eq!((&one.told().await["result"], &text.told().await["result"]), (&json!("number"), &json!("text")));
}

#[tokio::test(start_paused = true)]
async fn versions_that_nobody_knows_are_refused() {
    let mut rig = Rig::new();
    let (session, mut far) = rig.session("2025-11-25").await;
    let ping = json!({ "jsonrpc": "2.0", "method": "x" });
    for (version, status) in [
        ("2025-11-25", StatusCode::ACCEPTED),
        ("2025-03-26", StatusCode::ACCEPTED),
        ("1999-01-01", StatusCode::BAD_REQUEST),
    ] {
        let headers = &[("mcp-session-id", &*session), ("mcp-protocol-version", version)];
        assert_eq!(rig.post(headers, &ping).await.unwrap().status, status, "{version}");
    }
    far.heard().await;
}

#[tokio::test(start_paused = true)]
async fn a_stop_ends_every_session() {
    let mut rig = Rig::new();
    let (session, mut far) = rig.session("2025-11-25").await;
    let headers = &[("mcp-session-id", &*session)];
    let mut open = rig.post(headers, &call(1, None)).await.unwrap();
    far.heard().await;
    rig.stop.cancel();
    assert_eq!(open.told().await["error"]["code"], -32001);
    assert_eq!(open.message().await, None);
    far.ended().await;
    let initialize = json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {} });
    assert_eq!(rig.post(&[], &initialize).await.unwrap().status, StatusCode::SERVICE_UNAVAILABLE);
}
