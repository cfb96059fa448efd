//! The meaning of an answer, or of its absence, for the request and the session.

use mcp_reconnect_core::replay::Sent;
use mcp_reconnect_core::{Failure, FailureClass};
use mcp_reconnect_http::{HttpServer, LONGEST_HINT, Reach};

use crate::support::{End, Server, Step, answer, event, json, sse, status};
use crate::{CALL, Peer, RESULT, begin, in_time};

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

/// For the runtime, which asks the session whether it was meant.
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
