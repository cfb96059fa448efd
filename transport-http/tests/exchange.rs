//! One request and its answer.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use mcp_reconnect_core::replay::Sent;
use mcp_reconnect_core::{Failure, FailureClass};
use mcp_reconnect_http::{HttpServer, LONGEST_HINT, Reach, Stage};
use tokio::sync::Semaphore;

use crate::support::{End, Server, Step, answer, event, json, sse, status};
use crate::{CALL, Peer, RESULT, begin, in_time, stages};

#[tokio::test]
async fn an_answer_comes_as_json_as_a_batch_and_as_a_stream() {
    let ping = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;
    for (steps, frames) in [
        (json(RESULT), vec![RESULT]),
        (json(&format!("[{ping},{RESULT}]")), vec![ping, RESULT]),
        (answer(200, &[], RESULT), vec![RESULT]),
        (answer(200, &[("content-type", "Application/JSON; charset=utf-8")], RESULT), vec![RESULT]),
        (sse(&[], &[&event(ping), &event(RESULT)], End::Clean), vec![ping, RESULT]),
        (sse(&[], &[&event(RESULT)], End::Cut), vec![RESULT]),
    ] {
        let server = Server::start(move |_| steps.clone()).await;
        let mut peer = Peer::new(&server);
        peer.exchange(CALL).await.unwrap();
        assert_eq!(peer.received().iter().map(|frame| &**frame).collect::<Vec<_>>(), frames);
    }
}

#[tokio::test]
async fn a_request_says_what_it_accepts() {
    let server = Server::start(|_| json(RESULT)).await;
    let custom = HttpServer::new(&server.url()).unwrap().header("X-Api-Key", "k").unwrap();
    Peer::of(&custom).exchange(CALL).await.unwrap();
    let request = &server.requests()[0];
    assert_eq!(request.header("accept"), Some("application/json, text/event-stream"));
    assert_eq!(request.header("content-type"), Some("application/json"));
    assert_eq!(request.header("x-api-key"), Some("k"));
    assert_eq!((request.session(), request.header("mcp-protocol-version")), (None, None));
}

#[tokio::test]
async fn an_answer_is_over_though_the_stream_goes_on() {
    let server = Server::start(|_| sse(&[], &[&event(RESULT)], End::Hold)).await;
    let peer = Peer::new(&server);
    let rest = in_time(peer.client.exchange(CALL, &peer.frames)).await.unwrap();
    drop(rest);
    server.until_open(0).await;
}

#[tokio::test]
async fn connections_are_used_again() {
    let server = Server::start(|request| match request.rpc().as_str() {
        "tools/call" => sse(&[], &[&event(RESULT)], End::Clean),
        "missing" => answer(404, &[], "not here"),
        _ => status(202),
    })
    .await;
    let peer = Peer::new(&server);
    for frame in [CALL, r#"{"jsonrpc":"2.0","method":"notifications/x"}"#, r#"{"id":7,"method":"missing"}"#, CALL] {
        drop(peer.exchange(frame).await);
    }
    assert!(server.requests().iter().all(|request| request.connection == 0), "{:?}", server.requests());
}

#[tokio::test]
async fn the_rest_of_a_stream_is_read_so_that_its_connection_is_used_again() {
    let end = Arc::new(Semaphore::new(0));
    let permits = end.clone();
    let server = Server::start(move |_| {
        let mut steps = sse(&[], &[&event(RESULT)], End::Clean);
        steps.insert(steps.len() - 1, Step::Wait(permits.clone()));
        steps
    })
    .await;
    let peer = Peer::new(&server);
    for _ in 0..2 {
        let rest = in_time(peer.client.exchange(CALL, &peer.frames)).await.unwrap();
        end.add_permits(1);
        in_time(rest.drain()).await;
    }
    assert!(server.requests().iter().all(|request| request.connection == 0));
}

#[tokio::test]
async fn a_dropped_exchange_ends_on_the_wire() {
    for steps in [vec![Step::Hold], sse(&[], &[": hi\n\n"], End::Hold)] {
        let server = Server::start(move |_| steps.clone()).await;
        let peer = Peer::new(&server);
        tokio::select! {
            _ = peer.client.exchange(CALL, &peer.frames) => panic!("no answer was given"),
            () = server.until("the call", |log| log.len() == 1) => {}
        }
        server.until_open(0).await;
    }
}

#[tokio::test]
async fn a_session_id_comes_from_a_good_answer_to_initialize_only() {
    for (code, rpc, held) in [(200, "initialize", true), (400, "initialize", false), (200, "tools/list", false)] {
        let server = Server::start(move |request| {
            answer(code, &[("content-type", "application/json"), ("mcp-session-id", "S1")], &request.result("{}"))
        })
        .await;
        let peer = Peer::new(&server);
        drop(peer.exchange(&format!(r#"{{"jsonrpc":"2.0","id":7,"method":"{rpc}"}}"#)).await);
        assert_eq!(peer.client.session_id().is_some(), held, "{code} {rpc}");
    }
}

#[tokio::test]
async fn after_the_loss_nothing_carries_the_id() {
    let server = Server::start(|request| begin(request).unwrap_or_else(|| status(404))).await;
    let peer = Peer::new(&server);
    peer.initialize().await;
    let error = peer.exchange(CALL).await.unwrap_err();
    assert_eq!(
        (error.failure.class, error.sent, error.reach),
        (FailureClass::SessionGone, Sent::Refused, Reach::Session)
    );
    let error = peer.exchange(CALL).await.unwrap_err();
    assert_eq!((error.failure.class, error.sent), (FailureClass::SessionGone, Sent::No));
    assert!(in_time(peer.client.probe()).await.is_err());
    in_time(peer.client.close()).await;
    assert_eq!(peer.client.left_behind(), None);
    // A new session begins without it.
    peer.initialize().await;
    let sessions: Vec<_> = server.requests().iter().map(|request| request.session().map(str::to_owned)).collect();
    assert_eq!(sessions, [None, Some("S1".into()), None]);
}

#[tokio::test]
async fn a_live_session_is_deleted_once_and_without_patience() {
    for deleted in [status(200), status(405), status(404), vec![Step::Hold], vec![Step::Reset]] {
        let server = Server::start(move |request| begin(request).unwrap_or_else(|| deleted.clone())).await;
        let quick = HttpServer::new(&server.url()).unwrap().close_timeout(Duration::from_secs(3));
        let peer = Peer::of(&quick);
        peer.initialize().await;
        in_time(peer.client.close()).await;
        in_time(peer.client.close()).await;
        let deletes: Vec<_> = server.requests().into_iter().filter(|request| request.method == "DELETE").collect();
        assert_eq!(deletes.len(), 1);
        assert_eq!((deletes[0].session(), deletes[0].header("mcp-protocol-version")), (Some("S1"), Some("2025-11-25")));
        drop(peer);
        server.until_open(0).await;
    }
}

#[tokio::test]
async fn an_error_with_our_id_is_the_answer_whatever_the_status() {
    let error = r#"{"jsonrpc":"2.0","id":7,"error":{"code":-32603,"message":"boom"}}"#;
    for code in [400, 404, 500] {
        let server = Server::start(move |_| answer(code, &[("content-type", "application/json")], error)).await;
        let mut peer = Peer::new(&server);
        peer.exchange(CALL).await.unwrap();
        assert_eq!(peer.received(), [error.into()]);
    }
}

#[tokio::test]
async fn what_is_no_answer_fails_the_request_at_once() {
    use Reach::{Doubt, Exchange};
    use Sent::{Maybe, Refused};
    for (steps, sent, reach) in [
        (status(202), Maybe, Doubt),
        (status(204), Maybe, Doubt),
        (json(" "), Maybe, Doubt),
        (answer(200, &[("content-type", "text/html")], "<html>login</html>"), Maybe, Doubt),
        (json("{not json"), Maybe, Doubt),
        (json(r#"{"jsonrpc":"2.0","id":8,"result":{}}"#), Maybe, Doubt),
        (json(r#"{"jsonrpc":"2.0","id":8,"error":{"code":-32001,"message":"Session not found"}}"#), Maybe, Doubt),
        (json(r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"parse error"}}"#), Maybe, Doubt),
        (json(r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32020,"message":"no"}}"#), Refused, Exchange),
        (json(r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32022,"message":"no"}}"#), Refused, Doubt),
        (answer(400, &[], r#"{"id":"server-error","error":{"code":-32600,"message":"no"}}"#), Maybe, Doubt),
        (status(403), Maybe, Doubt),
        (status(405), Refused, Doubt),
        (status(408), Maybe, Doubt),
        (answer(302, &[("location", "/elsewhere")], ""), Maybe, Doubt),
        (answer(500, &[], ""), Maybe, Doubt),
        (vec![Step::Close], Maybe, Doubt),
        (vec![Step::Reset], Maybe, Doubt),
        (vec![Step::Write(b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n{".to_vec()), Step::Close], Maybe, Doubt),
        (vec![Step::Write(b"what?\r\n\r\n".to_vec()), Step::Close], Maybe, Doubt),
        (sse(&[], &[], End::Clean), Maybe, Doubt),
        (sse(&[], &[&event(r#"{"id":null,"error":{"code":-32600,"message":"no"}}"#)], End::Hold), Maybe, Doubt),
        (sse(&[], &[": hi\n\n"], End::Reset), Maybe, Doubt),
    ] {
        let server = Server::start(move |request| begin(request).unwrap_or_else(|| steps.clone())).await;
        let peer = Peer::new(&server);
        peer.initialize().await;
        let error = peer.exchange(CALL).await.unwrap_err();
        assert_eq!((error.sent, error.reach, error.failure.class), (sent, reach, FailureClass::Transport), "{error}");
        // Sent once, whatever became of it.
        assert_eq!(server.count("tools/call"), 1, "{error}");
        assert!(peer.client.session_id().is_some());
    }
}

/// What the refusal was, for the one who asks the session whether it was meant.
#[tokio::test]
async fn a_refusal_is_told_by_status_code_and_words() {
    let tower = r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32005,"message":"Session 'A' not found or expired. Please re-initialize the connection."}}"#;
    for (steps, code, message, gate) in [
        (json(tower), -32005, "Session 'A' not found or expired. Please re-initialize the connection.", true),
        (answer(400, &[], r#"{"id":null,"error":{"code":-32600,"message":"no"}}"#), -32600, "no", true),
        (json(r#"{"id":8,"error":{"code":-32600,"message":"no"}}"#), -32600, "no", false),
    ] {
        let server = Server::start(move |request| begin(request).unwrap_or_else(|| steps.clone())).await;
        let peer = Peer::new(&server);
        peer.initialize().await;
        let error = peer.exchange(CALL).await.unwrap_err();
        assert_eq!((error.rpc, error.gate), (Some((code, message.into())), gate));
    }
}

/// The shortcut says no more than asking would: without it the same answers are doubts that count as refused.
#[tokio::test]
async fn known_words_are_a_shortcut_that_can_be_left_out() {
    for words in [true, false] {
        for steps in [
            answer(400, &[], r#"{"id":null,"error":{"code":-32000,"message":"Bad Request: Server not initialized"}}"#),
            answer(503, &[], r#"{"id":null,"error":{"code":-32001,"message":"Session not found"}}"#),
            json(r#"{"id":null,"error":{"code":-32001,"message":"Session not found"}}"#),
        ] {
            let server = Server::start(move |request| begin(request).unwrap_or_else(|| steps.clone())).await;
            let to = HttpServer::new(&server.url()).unwrap();
            let peer = Peer::of(&if words { to } else { to.without_words() });
            peer.initialize().await;
            let error = peer.exchange(CALL).await.unwrap_err();
            let reach = if words { Reach::Session } else { Reach::Doubt };
            assert_eq!((error.reach, error.gate), (reach, true), "{error}");
            assert_eq!(peer.client.session_id().is_some(), !words);
        }
    }
}

/// Whatever a tool says of a session of its own.
#[tokio::test]
async fn an_answer_in_gate_words_is_an_answer() {
    let error = r#"{"jsonrpc":"2.0","id":7,"error":{"code":-32600,"message":"Session not found"}}"#;
    for code in [200, 400, 404] {
        let steps = answer(code, &[("content-type", "application/json")], error);
        let server = Server::start(move |request| begin(request).unwrap_or_else(|| steps.clone())).await;
        let mut peer = Peer::new(&server);
        peer.initialize().await;
        peer.received();
        let rest = in_time(peer.client.exchange(CALL, &peer.frames)).await.unwrap();
        assert_eq!(rest.status(), code);
        assert_eq!(peer.received(), [error.into()]);
        assert!(peer.client.session_id().is_some());
    }
}

#[tokio::test]
async fn what_is_no_request_raises_no_doubt() {
    for code in [400, 401, 403, 404, 410, 500] {
        let server = Server::start(move |request| begin(request).unwrap_or_else(|| status(code))).await;
        let peer = Peer::new(&server);
        peer.initialize().await;
        for frame in [r#"{"jsonrpc":"2.0","method":"notifications/x"}"#, r#"{"jsonrpc":"2.0","id":1,"result":{}}"#] {
            let error = peer.exchange(frame).await.unwrap_err();
            assert_eq!(error.reach, Reach::Exchange, "{code}: {error}");
        }
        assert!(peer.client.session_id().is_some());
    }
}

#[tokio::test]
async fn bodies_that_are_not_quite_clean_are_read() {
    let replaced = "{\"jsonrpc\":\"2.0\",\"id\":7,\"result\":\"caf\u{fffd}\"}";
    let body = [&b"{\"jsonrpc\":\"2.0\",\"id\":7,\"result\":\"caf"[..], b"\xe9\"}"].concat();
    let head = format!("HTTP/1.1 200 X\r\ncontent-length: {}\r\n\r\n", body.len());
    let latin1 = [head.into_bytes(), body].concat();
    let ping = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;
    for (steps, frames) in [
        (json(&format!("\u{feff}{RESULT}")), vec![RESULT]),
        (vec![Step::Write(latin1), Step::Close], vec![replaced]),
        (sse(&[], &[&event(&format!("[{ping},{RESULT}]"))], End::Hold), vec![ping, RESULT]),
    ] {
        let server = Server::start(move |_| steps.clone()).await;
        let mut peer = Peer::new(&server);
        peer.exchange(CALL).await.unwrap();
        assert_eq!(peer.received().iter().map(|frame| &**frame).collect::<Vec<_>>(), frames);
    }
}

#[tokio::test]
async fn a_web_page_is_no_endpoint() {
    let page = answer(200, &[("content-type", "text/html; charset=utf-8")], "<!doctype html><html>log in</html>");
    let server = Server::start(move |_| page.clone()).await;
    let peer = Peer::new(&server);
    for method in ["initialize", "server/discover"] {
        let error = peer.exchange(&format!(r#"{{"jsonrpc":"2.0","id":7,"method":"{method}"}}"#)).await.unwrap_err();
        assert_eq!(error.failure.class, FailureClass::Permanent);
        assert!(error.cause.contains("answers with a web page"), "{error}");
    }
    // Whose session was well before, it is a doubt.
    peer.client.negotiated("2026-07-28");
    let error = peer.exchange(r#"{"jsonrpc":"2.0","id":7,"method":"server/discover"}"#).await.unwrap_err();
    assert_eq!((error.failure.class, error.reach), (FailureClass::Transport, Reach::Doubt));
    // An answer by a server that does not know what it is called.
    let steps = answer(200, &[("content-type", "text/html")], RESULT);
    let server = Server::start(move |_| steps.clone()).await;
    Peer::new(&server).exchange(r#"{"jsonrpc":"2.0","id":7,"method":"initialize"}"#).await.unwrap();
}

#[tokio::test]
async fn no_hint_is_too_long_for_arithmetic() {
    for hint in ["99999999999999999999", "Fri, 31 Dec 9999 23:59:59 GMT"] {
        for (code, class) in [(429, FailureClass::RateLimited), (503, FailureClass::Transport)] {
            let server = Server::start(move |_| answer(code, &[("retry-after", hint)], "")).await;
            let error = Peer::new(&server).exchange(CALL).await.unwrap_err();
            assert_eq!(error.failure, Failure { class, retry_after: Some(LONGEST_HINT) });
        }
    }
}

#[tokio::test]
async fn a_request_tells_when_it_leaves() {
    let (stages, on_stage) = stages();
    let server = Server::start(|_| json(RESULT)).await;
    let peer = Peer::new(&server);
    for _ in 0..2 {
        in_time(peer.client.exchange_in_stages(CALL, &peer.frames, on_stage.clone())).await.unwrap().drain().await;
    }
    // The second one over a connection that is there.
    assert_eq!(*stages.lock().unwrap(), [Stage::Sent, Stage::Sent]);
    assert_eq!(server.requests()[0].header("content-length"), Some(&*CALL.len().to_string()));
    server.stop().await;
    for _ in 0..2 {
        drop(in_time(peer.client.exchange_in_stages(CALL, &peer.frames, on_stage.clone())).await);
    }
    // Without a connection it does not leave.
    assert_eq!(*stages.lock().unwrap(), [Stage::Sent, Stage::Sent, Stage::Waiting, Stage::Waiting]);
}

#[tokio::test]
async fn a_request_that_was_taken_back_does_not_leave() {
    let server = Server::start(|_| json(RESULT)).await;
    let peer = Peer::new(&server);
    let error = in_time(peer.client.exchange_in_stages(CALL, &peer.frames, Arc::new(|_| false))).await.unwrap_err();
    assert_eq!(error.sent, Sent::No, "{error}");
    drop(peer);
    server.until_open(0).await;
    assert!(server.requests().is_empty());
}

#[tokio::test]
async fn a_session_that_was_given_up_is_released_by_the_next_client() {
    let server = Server::start(|request| begin(request).unwrap_or_else(|| status(202))).await;
    let peer = Peer::new(&server);
    peer.initialize().await;
    assert_eq!(peer.client.left_behind(), None);
    peer.client.disown();
    in_time(peer.client.close()).await;
    let left = peer.client.left_behind().unwrap();
    in_time(peer.client.another(false).release(&left)).await;
    let last = server.requests().pop().unwrap();
    assert_eq!((last.method.as_str(), last.session(), server.count("DELETE")), ("DELETE", Some("S1"), 1));
}

#[tokio::test]
async fn memory_is_bounded_by_the_frame_limit() {
    let limit = NonZeroUsize::new(1000).unwrap();
    let body = |bytes: usize| {
        let frame = |padding: &str| format!(r#"{{"jsonrpc":"2.0","id":7,"result":{{"x":"{padding}"}}}}"#);
        frame(&"x".repeat(bytes - frame("").len()))
    };
    let endless = || {
        let mut steps = vec![Step::Write(b"HTTP/1.1 200 OK\r\n\r\n".to_vec())];
        steps.extend((0..100).map(|_| Step::Write(vec![b' '; 100])));
        steps.push(Step::Hold);
        steps
    };
    for (steps, fits) in [
        (json(&body(1000)), true),
        (json(&body(1001)), false),
        (endless(), false),
        (sse(&[], &[&event(&body(1000))], End::Clean), true),
        (sse(&[], &[&event(&body(1001))], End::Clean), false),
        (sse(&[], &[&format!("data: {}", "x".repeat(2000))], End::Hold), false),
    ] {
        let server = Server::start(move |_| steps.clone()).await;
        let peer = Peer::of(&HttpServer::new(&server.url()).unwrap().frame_limit(limit));
        let outcome = peer.exchange(CALL).await;
        assert_eq!(outcome.is_ok(), fits, "{outcome:?}");
        if let Err(error) = outcome {
            assert!(error.cause.contains("1000 bytes"), "{error}");
            assert_eq!(error.reach, Reach::Exchange);
        }
        drop(peer);
        server.until_open(0).await;
    }
}

#[tokio::test]
async fn a_cut_stream_is_resumed_after_its_last_event() {
    let resumes = AtomicU32::new(0);
    let server = Server::start(move |request| {
        if let Some(steps) = begin(request) {
            return steps;
        }
        match request.header("last-event-id") {
            None => sse(&[], &["id: e1\nretry: 1\ndata:\n\n", "id: e2\ndata: {\"half"], End::Cut),
            // Three times without a new id, then another id, then the answer.
            Some("e1") if resumes.fetch_add(1, Ordering::SeqCst) < 2 => sse(&[], &[": nothing yet\n\n"], End::Clean),
            Some("e1") => sse(&[], &[&format!("id: e2\n{}", event(r#"{"method":"n"}"#))], End::Reset),
            Some(_) => sse(&[], &[&format!("id: e3\n{}", event(RESULT))], End::Clean),
        }
    })
    .await;
    let mut peer = Peer::new(&server);
    peer.initialize().await;
    peer.received();
    peer.exchange(CALL).await.unwrap();
    assert_eq!(peer.received(), [r#"{"method":"n"}"#.into(), RESULT.into()]);
    let resumed: Vec<_> = server.requests().into_iter().filter(|request| request.method == "GET").collect();
    let ids: Vec<_> = resumed.iter().filter_map(|request| request.header("last-event-id")).collect();
    assert_eq!(ids, ["e1", "e1", "e1", "e2"]);
    assert!(resumed.iter().all(|request| request.session() == Some("S1")));
    assert_eq!(server.count("tools/call"), 1);
}

#[tokio::test]
async fn a_stream_is_resumed_three_times_in_vain_and_no_more() {
    let server =
        Server::start(|request| begin(request).unwrap_or_else(|| sse(&[], &["id: e1\nretry: 1\n\n"], End::Cut))).await;
    let peer = Peer::new(&server);
    peer.initialize().await;
    let error = peer.exchange(CALL).await.unwrap_err();
    assert_eq!((error.sent, error.reach), (Sent::Maybe, Reach::Doubt), "{error}");
    assert_eq!(server.count("GET"), 3);
}

/// A server that lets its client poll, by a new event id each time, is polled.
#[tokio::test]
async fn a_stream_that_goes_on_by_ids_alone_is_resumed() {
    let streams = AtomicU32::new(0);
    let server = Server::start(move |request| {
        begin(request).unwrap_or_else(|| {
            let stream = streams.fetch_add(1, Ordering::SeqCst);
            let answer = if stream == 5 { event(RESULT) } else { String::new() };
            sse(&[], &[&format!("id: e{stream}\nretry: 0\n\n{answer}")], End::Clean)
        })
    })
    .await;
    let peer = Peer::new(&server);
    peer.initialize().await;
    peer.exchange(CALL).await.unwrap();
    assert_eq!((server.count("GET"), server.count("tools/call")), (5, 1));
}

#[tokio::test]
async fn no_wait_for_the_rest_of_a_stream_is_longer_than_the_bound() {
    let gets = AtomicU32::new(0);
    let server = Server::start(move |request| {
        begin(request).unwrap_or_else(|| match request.method.as_str() {
            "GET" if gets.fetch_add(1, Ordering::SeqCst) == 0 => answer(503, &[("retry-after", "99999999999999")], ""),
            "GET" => sse(&[], &[&event(RESULT)], End::Clean),
            _ => sse(&[], &["id: e1\nretry: 4294967295\n\n"], End::Cut),
        })
    })
    .await;
    let bounded = HttpServer::new(&server.url()).unwrap().retry_after_max(Duration::from_millis(50));
    let peer = Peer::of(&bounded);
    peer.initialize().await;
    peer.exchange(CALL).await.unwrap();
}

#[tokio::test]
async fn a_stream_is_not_resumed_where_that_makes_no_sense() {
    // No event id; a server that does not resume; a session that is lost meanwhile; the modern era.
    for (events, version, get, gets, class) in [
        ("retry: 1\n\n", "2025-11-25", 405, 0, FailureClass::Transport),
        ("id: e1\nretry: 1\n\n", "2025-11-25", 405, 1, FailureClass::Transport),
        ("id: e1\nretry: 1\n\n", "2025-11-25", 404, 1, FailureClass::Transport),
        ("id: e\u{7f}1\nretry: 1\n\n", "2025-11-25", 405, 0, FailureClass::Transport),
        ("id: e1\nretry: 1\n\n", "2026-07-28", 405, 0, FailureClass::Transport),
    ] {
        let server = Server::start(move |request| match request.method.as_str() {
            "GET" => status(get),
            _ => begin(request).unwrap_or_else(|| sse(&[], &[events], End::Cut)),
        })
        .await;
        let peer = Peer::new(&server);
        peer.initialize().await;
        peer.client.negotiated(version);
        let error = peer.exchange(CALL).await.unwrap_err();
        assert_eq!((error.sent, error.failure.class, error.reach), (Sent::Maybe, class, Reach::Doubt), "{error}");
        assert_eq!(server.count("GET"), gets, "{error}");
    }
}

#[tokio::test]
async fn a_probe_asks_what_the_era_knows() {
    let server = Server::start(|request| begin(request).unwrap_or_else(|| json(&request.result("{}")))).await;
    let mut peer = Peer::new(&server);
    peer.initialize().await;
    peer.received();
    in_time(peer.client.probe()).await.unwrap();
    let discover = r#"{"jsonrpc":"2.0","id":1,"method":"server/discover","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}}"#;
    peer.exchange(discover).await.unwrap();
    peer.received();
    peer.client.negotiated("2026-07-28");
    in_time(peer.client.probe()).await.unwrap();
    let rpcs: Vec<_> = server.requests().iter().map(|request| request.rpc()).collect();
    assert_eq!(rpcs, ["initialize", "ping", "server/discover", "server/discover"]);
    let last = server.requests().pop().unwrap();
    assert_eq!(last.json()["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"], "2026-07-28");
    // Nobody is told of the answers.
    assert!(peer.received().is_empty());
}
