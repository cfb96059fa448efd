//! What is not let in, and what is no message.

use axum::body::Body;
use axum::http::StatusCode;
use serde_json::json;

use super::super::message::BODY_LIMIT;
use super::Rig;

#[tokio::test(start_paused = true)]
async fn only_this_machine_is_let_in() {
    let mut rig = Rig::new();
    let ping = json!({ "jsonrpc": "2.0", "id": 1, "method": "ping" });
    for headers in [
        &[("host", "evil.example")] as &[_],
        &[("origin", "http://evil.example")],
        &[("origin", "null")],
        &[("host", "evil.example:80"), ("origin", "http://localhost")],
    ] {
        for method in ["POST", "GET", "DELETE"] {
            let answer = rig.send(method, headers, ping.to_string()).await;
            assert_eq!(answer.status, StatusCode::FORBIDDEN, "{method} {headers:?}");
        }
    }
    let answer = rig.send("POST", &[("origin", "http://localhost:3000")], ping.to_string()).await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST, "let in, but without a session");
    assert!(rig.fronts.try_recv().is_err());
}

#[tokio::test(start_paused = true)]
async fn pages_that_are_let_in_are_told_what_they_may_send() {
    let rig = Rig::new();
    let page = ("origin", "http://localhost:3000");
    let asked = ("access-control-request-headers", "mcp-session-id");
    let answer = rig.send("OPTIONS", &[page, asked], "").await;
    assert_eq!(answer.status, StatusCode::NO_CONTENT);
    assert_eq!(answer.header("access-control-allow-origin"), page.1);
    assert_eq!(answer.header("access-control-allow-headers"), asked.1);
    assert!(answer.header("access-control-allow-methods").contains("POST"));
    let answer = rig.send("POST", &[page], "{").await;
    assert_eq!(answer.header("access-control-allow-origin"), page.1);
    assert_eq!(answer.header("access-control-expose-headers"), "mcp-session-id");
    let answer = rig.send("OPTIONS", &[], "").await;
    assert_eq!((answer.status, answer.header("access-control-allow-origin")), (StatusCode::METHOD_NOT_ALLOWED, ""));
    let answer = rig.send("OPTIONS", &[("origin", "http://evil.example"), asked], "").await;
    assert_eq!((answer.status, answer.header("access-control-allow-origin")), (StatusCode::FORBIDDEN, ""));
}

#[tokio::test(start_paused = true)]
async fn a_body_that_does_not_come_is_not_waited_for() {
    let rig = Rig::new();
    let body = Body::from_stream(futures::stream::pending::<Result<axum::body::Bytes, std::convert::Infallible>>());
    assert_eq!(rig.send("POST", &[], body).await.status, StatusCode::REQUEST_TIMEOUT);
}

#[tokio::test(start_paused = true)]
async fn what_is_no_message_is_told_so() {
    let mut rig = Rig::new();
    for (body, code) in [
        ("", -32700),
        ("{", -32700),
        ("\u{feff}{}", -32700),
        ("[]", -32600),
        (r#"[{"jsonrpc":"2.0","id":1,"method":"ping"}]"#, -32600),
        ("{}", -32600),
        ("7", -32600),
        (r#"{"jsonrpc":"2.0","id":{},"method":"ping"}"#, -32600),
        (r#"{"jsonrpc":"2.0","id":1,"id":2,"method":"ping"}"#, -32600),
    ] {
        let mut answer = rig.send("POST", &[], body).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{body}");
        assert_eq!(answer.code().await, code, "{body}");
    }
    let mut answer = rig.send("POST", &[], vec![b'"', 0xff, b'"']).await;
    assert_eq!((answer.status, answer.code().await), (StatusCode::BAD_REQUEST, -32700));
    assert!(rig.fronts.try_recv().is_err());
}

#[tokio::test(start_paused = true)]
async fn forms_that_nobody_speaks_are_refused() {
    let rig = Rig::new();
    for (method, headers, status) in [
        ("POST", [("content-type", "text/plain")], StatusCode::UNSUPPORTED_MEDIA_TYPE),
        ("POST", [("accept", "text/html")], StatusCode::NOT_ACCEPTABLE),
        ("PUT", [("accept", "*/*")], StatusCode::METHOD_NOT_ALLOWED),
        ("HEAD", [("accept", "*/*")], StatusCode::METHOD_NOT_ALLOWED),
        ("GET", [("accept", "*/*")], StatusCode::BAD_REQUEST),
        ("DELETE", [("accept", "*/*")], StatusCode::BAD_REQUEST),
        ("GET", [("mcp-protocol-version", "2026-07-28")], StatusCode::METHOD_NOT_ALLOWED),
    ] {
        let answer = rig.send(method, &headers, r#"{"jsonrpc":"2.0","method":"x"}"#).await;
        assert_eq!(answer.status, status, "{method} {headers:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_is_bounded() {
    let rig = Rig::new();
    let claimed = (BODY_LIMIT + 1).to_string();
    let answer = rig.send("POST", &[("content-length", &claimed)], "{}").await;
    assert_eq!(answer.status, StatusCode::PAYLOAD_TOO_LARGE);
    // One that does not say how long it is: 64 pieces of 1 MiB, and a last byte.
    let piece = axum::body::Bytes::from(vec![b' '; BODY_LIMIT / 64]);
    let pieces = (0..64).map(move |_| piece.clone()).chain([axum::body::Bytes::from_static(b" ")]);
    let body = Body::from_stream(futures::stream::iter(pieces.map(Ok::<_, std::convert::Infallible>)));
    let answer = rig.send("POST", &[], body).await;
    assert_eq!(answer.status, StatusCode::PAYLOAD_TOO_LARGE);
}
