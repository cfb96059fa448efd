use http::HeaderValue;

use super::*;

fn now() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777) // Sun, 06 Nov 1994 08:49:37 GMT
}

/// A request of a session over HTTP; without the shortcut by words.
const SESSION: Asked<'_> = Asked { id: Some("7"), session: true, established: true, words: false };
/// One of an era, or of a server, without session ids.
const NO_ID: Asked<'_> = Asked { session: false, ..SESSION };
const HANDSHAKE: Asked<'_> = Asked { id: Some("7"), session: false, established: false, words: false };
const WITH_WORDS: Asked<'_> = Asked { words: true, ..SESSION };

fn classified(asked: Asked<'_>, status: u16, headers: &[(&'static str, &'static str)], body: &str) -> Classification {
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        map.append(*name, HeaderValue::from_static(value));
    }
    classify(asked, StatusCode::from_u16(status).unwrap(), &map, body, now())
}

#[track_caller]
fn refused(asked: Asked<'_>, status: u16, body: &str) -> Refusal {
    match classified(asked, status, &[], body) {
        Classification::Refused(refusal) => refusal,
        other => panic!("{status} {body}: {other:?}"),
    }
}

/// Answers of real servers to a session id from before their restart, where no handler ran: their words are enough.
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
    ("a gate behind a 503", 503, r#"{"error":{"code":-32001,"message":"Session not found"},"id":null}"#),
    ("an empty 404", 404, ""),
    ("410", 410, "gone"),
    ("one JSON error in words", 401, r#"{"error":"Session not found"}"#),
];

#[test]
fn a_session_is_lost_by_404_and_410_and_by_known_words() {
    let gone = |refusal: &Refusal| {
        (refusal.failure, refusal.reach, refusal.sent, refusal.gate)
            == (FailureClass::SessionGone.into(), Reach::Session, Sent::Refused, true)
    };
    for (who, status, body) in STALE {
        assert!(gone(&refused(WITH_WORDS, *status, body)), "{who}");
        // Without the shortcut it is asked, and a gate says that nothing ran.
        match classified(SESSION, *status, &[], body) {
            // A 401 in these words is no matter of the credentials.
            Classification::Refused(refusal) if matches!(status, 401 | 404 | 410) => assert!(gone(&refusal), "{who}"),
            Classification::Refused(refusal) => {
                assert_eq!((refusal.reach, refusal.sent, refusal.gate), (Reach::Doubt, Sent::Maybe, true), "{who}");
            }
            Classification::Unauthorized(_) => assert_eq!(*status, 401, "{who}"),
            Classification::Answer => panic!("{who}"),
        }
    }
    for sentence in GATE_SENTENCES {
        assert!(gone(&refused(WITH_WORDS, 400, sentence)), "{sentence}");
        assert!(gone(&refused(WITH_WORDS, 400, &format!("Bad Request: {sentence}."))), "{sentence}");
    }
}

#[test]
fn without_a_session_id_nothing_is_lost_without_asking() {
    for asked in [NO_ID, HANDSHAKE, Asked { words: true, ..NO_ID }] {
        for (who, status, body) in STALE {
            if let Classification::Refused(refusal) = classified(asked, *status, &[], body) {
                assert_eq!(refusal.reach, Reach::Doubt, "{who}");
            }
        }
    }
    // A notification or a response gets no answer, and raises no doubt.
    for (who, status, body) in STALE {
        if let Classification::Refused(refusal) = classified(Asked { id: None, ..WITH_WORDS }, *status, &[], body) {
            assert_eq!(refusal.reach, Reach::Exchange, "{who}");
        }
    }
}

#[test]
fn an_answer_under_our_id_is_delivered_whatever_it_says() {
    for message in ["boom", "Session not found", "Server not initialized"] {
        for status in [400, 403, 404, 405, 410, 500, 503] {
            for code in [-32603, -32001, -32020, -32022, -32601] {
                let body = format!(r#"{{"jsonrpc":"2.0","id":7,"error":{{"code":{code},"message":"{message}"}}}}"#);
                assert_eq!(classified(WITH_WORDS, status, &[], &body), Classification::Answer, "{status} {body}");
                let other = body.replace('7', "8");
                assert_ne!(classified(WITH_WORDS, status, &[], &other), Classification::Answer, "{status} {other}");
            }
        }
    }
}

/// How far a request got, as long as the session answers other questions, and when it refuses them in the same way.
#[test]
fn what_was_refused_has_not_run_where_that_is_known() {
    for status in 300..600 {
        let Classification::Refused(refusal) = classified(SESSION, status, &[], "") else {
            assert_eq!(status, 401);
            continue;
        };
        let (sent, gate) = match status {
            404 | 410 => (Sent::Refused, true), // lost
            405..=407 | 411 | 413..=415 | 417 | 421 | 425 | 426 | 428 | 429 | 431 | 511 => (Sent::Refused, true),
            400 | 402 | 403 | 501 => (Sent::Maybe, true),
            _ => (Sent::Maybe, false),
        };
        assert_eq!((refusal.sent, refusal.gate), (sent, gate), "{status}");
        let reach = match status {
            404 | 410 => Reach::Session,
            429 => Reach::Exchange,
            _ => Reach::Doubt,
        };
        assert_eq!(refusal.reach, reach, "{status}");
    }
}

#[test]
fn before_the_handshake_is_over_nothing_runs() {
    for status in [400, 403, 404, 405, 406, 415] {
        assert_eq!(refused(HANDSHAKE, status, "").sent, Sent::Refused, "{status}");
    }
    for status in [408, 500, 502, 503, 504] {
        assert_eq!(refused(HANDSHAKE, status, "").sent, Sent::Maybe, "{status}");
    }
}

#[test]
fn a_403_without_a_challenge_is_about_the_sender_or_a_doubt() {
    assert_eq!(refused(HANDSHAKE, 403, "").failure.class, FailureClass::Permanent);
    for asked in [SESSION, NO_ID] {
        let refusal = refused(asked, 403, "");
        assert_eq!((refusal.failure.class, refusal.reach), (FailureClass::Transport, Reach::Doubt));
    }
    assert_eq!(refused(HANDSHAKE, 407, "").failure.class, FailureClass::Permanent);
    assert_eq!(refused(SESSION, 407, "").failure.class, FailureClass::Permanent);
}

#[test]
fn the_codes_of_the_modern_era_are_told_apart() {
    let error = |code: i64| format!(r#"{{"jsonrpc":"2.0","id":null,"error":{{"code":{code},"message":"no"}}}}"#);
    for status in [200, 400, 500] {
        for (code, reach, sent) in [
            (-32020, Reach::Exchange, Sent::Refused),
            (-32021, Reach::Exchange, Sent::Maybe),
            (-32022, Reach::Doubt, Sent::Refused),
            (-32603, Reach::Doubt, Sent::Maybe),
        ] {
            let body = error(code);
            let refusal = match status {
                200 => nothing(NO_ID, StatusCode::OK, Message::read(&body).unwrap().rpc_error()),
                _ => refused(NO_ID, status, &body),
            };
            assert_eq!((refusal.reach, refusal.sent), (reach, sent), "{status} {code}");
            assert_eq!(refusal.rpc, Some((code, "no".into())));
        }
    }
}

#[test]
fn a_challenge_asks_for_a_login_in_whatever_words() {
    let challenge = [("www-authenticate", "Bearer error=\"invalid_token\"")];
    for status in [401, 403] {
        let found = classified(WITH_WORDS, status, &challenge, "Unauthorized: Session not found");
        assert_eq!(found, Classification::Unauthorized("Bearer error=\"invalid_token\"".into()), "{status}");
    }
    assert_eq!(classified(SESSION, 401, &[], "nope"), Classification::Unauthorized(String::new()));
    // A refused login is not the tool's answer.
    let body = r#"{"jsonrpc":"2.0","id":7,"error":{"code":-32603,"message":"boom"}}"#;
    assert_eq!(classified(SESSION, 401, &[], body), Classification::Unauthorized(String::new()));
}

#[test]
fn hints_are_read() {
    let seconds = Some(Duration::from_secs(7));
    for value in ["7", "Sun, 06 Nov 1994 08:49:44 GMT"] {
        for (status, class) in
            [(429, FailureClass::RateLimited), (503, FailureClass::Transport), (408, FailureClass::Transport)]
        {
            let found = classified(SESSION, status, &[("retry-after", value)], "");
            let Classification::Refused(refusal) = found else { panic!("{found:?}") };
            assert_eq!(refusal.failure, Failure { class, retry_after: seconds }, "{status} {value}");
        }
    }
    let found = classified(SESSION, 429, &[("retry-after", "soon")], "");
    assert!(matches!(found, Classification::Refused(refusal) if refusal.failure.retry_after.is_none()));
    let found = classified(WITH_WORDS, 429, &[], "Session not found");
    assert!(matches!(found, Classification::Refused(refusal) if refusal.reach == Reach::Exchange));
    let gate = r#"{"id":null,"error":{"code":-32001,"message":"Session not found"}}"#;
    assert_eq!(refused(WITH_WORDS, 429, gate).failure.class, FailureClass::RateLimited);
    // A session that is lost is asked for anew at once.
    let found = classified(SESSION, 404, &[("retry-after", "7")], "");
    assert!(matches!(found, Classification::Refused(refusal) if refusal.failure == FailureClass::SessionGone.into()));
}

#[test]
fn gates_are_whole_sentences_with_their_codes() {
    for (code, message, gate) in [
        (-32000, "Bad Request: Server not initialized", true),
        (-32001, "Session not found", true),
        (32600, "Session terminated.", true),
        (-32602, "Invalid request parameters", true),
        (-32005, "Session 'A1' not found or expired. Please re-initialize the connection.", true),
        (-32602, "Invalid request parameters: query", false),
        (-32602, "Session not found", false),
        (-32000, "browser session not found: tab 3", false),
        (-32005, "Session 'A1' not found", false),
        (-32603, "Session 'A1' not found or expired. Please re-initialize the connection.", false),
    ] {
        assert_eq!(comes_before_handlers(code, message), gate, "{code} {message}");
    }
    // They are no shortcut: such an error may be about the request.
    for gate in GATES {
        assert!(!is_gate_error(gate.code, gate.says), "{}", gate.server);
    }
}
