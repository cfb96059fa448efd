use http::HeaderValue;

use super::*;

fn now() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777) // Sun, 06 Nov 1994 08:49:37 GMT
}

fn verdict(session: bool, status: u16, headers: &[(&'static str, &'static str)], body: &str) -> Classification {
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        map.append(*name, HeaderValue::from_static(value));
    }
    classify(Asked { id: Some("7"), session }, StatusCode::from_u16(status).unwrap(), &map, body, now())
}

/// What real servers answer to a session id from before their restart.
const STALE: &[(&str, u16, &str)] = &[
    (
        "server-everything 2026.8.31",
        400,
        r#"{"jsonrpc":"2.0","error":{"code":-32000,"message":"Bad Request: No valid session ID provided"}}"#,
    ),
    (
        "TypeScript SDK, one transport per process",
        400,
        r#"{"jsonrpc":"2.0","error":{"code":-32000,"message":"Bad Request: Server not initialized"},"id":null}"#,
    ),
    (
        "TypeScript SDK, simpleStreamableHttp",
        404,
        r#"{"jsonrpc":"2.0","error":{"code":-32001,"message":"Session not found"},"id":null}"#,
    ),
    (
        "Python mcp 2.3, fastmcp 4.2",
        404,
        r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"Session not found"}}"#,
    ),
    (
        "Python mcp 1.30, fastmcp 2.14",
        404,
        r#"{"jsonrpc":"2.0","id":"server-error","error":{"code":-32600,"message":"Session not found"}}"#,
    ),
    ("rmcp 3.11", 404, "Not Found: Session not found"),
    ("codex#12869", 401, "Unauthorized: Session not found"),
    ("pi-mcp-adapter#184", 400, r#"{"error":{"code":-32000,"message":"Server not initialized"},"id":7}"#),
    ("a gate behind a 503", 503, r#"{"error":{"code":-32001,"message":"Session not found"},"id":null}"#),
    ("a gate behind a 503, with our id", 503, r#"{"error":{"code":-32001,"message":"Session not found"},"id":7}"#),
    ("an empty 404", 404, ""),
    ("410", 410, "gone"),
    ("404 with our id", 404, r#"{"error":{"code":-32001,"message":"no such session"},"id":7}"#),
    ("one JSON error in words", 401, r#"{"error":"Session not found"}"#),
];

#[test]
fn a_session_is_lost_by_the_table() {
    for (who, status, body) in STALE {
        assert_eq!(verdict(true, *status, &[], body), Classification::SessionGone, "{who}");
        assert_eq!(Classification::SessionGone.sent(), Sent::Refused);
    }
}

#[test]
fn without_a_session_id_nothing_is_lost() {
    for (who, status, body) in STALE {
        assert_ne!(verdict(false, *status, &[], body), Classification::SessionGone, "{who}");
    }
    assert_eq!(verdict(false, 404, &[], "<html>"), Classification::NotFound);
    assert_eq!(Classification::NotFound.failure(), FailureClass::Transport.into());
}

#[test]
fn every_row_of_the_table_is_met_by_an_example() {
    for loss in SESSION_LOSS {
        assert!(STALE.iter().any(|(_, status, _)| *status == loss.status), "{} ({})", loss.status, loss.who);
    }
    for sentence in GATE_SENTENCES {
        assert_eq!(verdict(true, 400, &[], sentence), Classification::SessionGone, "{sentence}");
        assert_eq!(
            verdict(true, 400, &[], &format!("Bad Request: {sentence}.")),
            Classification::SessionGone,
            "{sentence}"
        );
    }
}

#[test]
fn a_bad_request_of_another_kind_loses_no_session() {
    for body in [
        r#"{"error":{"code":-32602,"message":"browser session not found: tab 3"},"id":null}"#,
        "Bad Request: Unsupported protocol version (supported: 2025-06-18)",
        "",
    ] {
        assert_eq!(verdict(true, 400, &[], body), Classification::Refused, "{body}");
    }
    // From 2026-07-28 on unknown methods are a 404.
    let body = r#"{"jsonrpc":"2.0","id":7,"error":{"code":-32601,"message":"Method not found"}}"#;
    assert_eq!(verdict(true, 404, &[], body), Classification::Answer);
}

#[test]
fn an_error_with_our_id_is_the_answer_whatever_the_status() {
    for status in [400, 403, 404, 405, 500, 503] {
        let body = r#"{"jsonrpc":"2.0","id":7,"error":{"code":-32603,"message":"boom"}}"#;
        assert_eq!(verdict(false, status, &[], body), Classification::Answer, "{status}");
        let other = r#"{"jsonrpc":"2.0","id":8,"error":{"code":-32603,"message":"boom"}}"#;
        assert_ne!(verdict(false, status, &[], other), Classification::Answer, "{status}");
    }
}

#[test]
fn a_challenge_asks_for_a_login_whatever_its_words() {
    let challenge = [("www-authenticate", "Bearer error=\"invalid_token\"")];
    for status in [401, 403] {
        let found = verdict(true, status, &challenge, "Unauthorized: Session not found");
        assert_eq!(found, Classification::Unauthorized("Bearer error=\"invalid_token\"".into()), "{status}");
        assert_eq!((found.failure().class, found.sent()), (FailureClass::NeedsAuth, Sent::Refused));
    }
    assert_eq!(verdict(true, 401, &[], "nope"), Classification::Unauthorized(String::new()));
    assert_eq!(verdict(true, 403, &[], "nope"), Classification::Forbidden);
}

#[test]
fn hints_of_429_and_503_are_read() {
    let seconds = Some(Duration::from_secs(7));
    assert_eq!(verdict(true, 429, &[("retry-after", "7")], ""), Classification::RateLimited(seconds));
    assert_eq!(verdict(true, 503, &[("retry-after", "7")], ""), Classification::ServerError(seconds));
    let date = [("retry-after", "Sun, 06 Nov 1994 08:49:44 GMT")];
    assert_eq!(verdict(false, 429, &date, ""), Classification::RateLimited(seconds));
    assert_eq!(verdict(false, 429, &[("retry-after", "soon")], ""), Classification::RateLimited(None));
    assert_eq!(verdict(false, 502, &[], "<html>"), Classification::ServerError(None));
    let failure = Classification::RateLimited(seconds).failure();
    assert_eq!(failure, Failure { class: FailureClass::RateLimited, retry_after: seconds });
    assert_eq!(Classification::ServerError(seconds).failure().class, FailureClass::Transport);
    assert_eq!(Classification::RateLimited(None).sent(), Sent::Refused);
    assert_eq!(Classification::ServerError(None).sent(), Sent::Maybe);
}

#[test]
fn what_a_legacy_endpoint_says_to_a_probe_is_a_refusal() {
    for status in [400, 404, 405, 406, 415] {
        let found = verdict(false, status, &[], "");
        assert_eq!((found.failure().class, found.sent()), (FailureClass::Transport, Sent::Refused), "{status}");
    }
    for status in [500, 502, 503, 504] {
        assert_eq!(verdict(false, status, &[], "").sent(), Sent::Maybe, "{status}");
    }
}
