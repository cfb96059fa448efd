//! K04: an answer is an answer, a transient failure is tried again, a permanent one is not. Its TLS half is in `k04_tls`.

use mcp_reconnect::core::{Breaker, FailureClass, ParkReason, Refusal, Status, WakeCause};
use mcp_reconnect::{Builder, CallError, Connection, Event, Events};
use mcp_reconnect_tests::fake::FakeHttp;
use rmcp::model::CallToolResponse;

use super::k02::{soon, wave};
use super::{builder, ready, serve};
use crate::support::*;

/// Fast steps, for outages that are shown by their order and not by their length.
pub(super) fn fast(builder: Builder) -> Builder {
    builder
        .config(config(|config| config.min_dial_interval(millis(10)).backoff(millis(50)).demand_interval(millis(50))))
}

/// Waits for the next failure that is told, with its class and its cause.
pub(super) async fn next_failure(events: &mut Events) -> (Status, FailureClass, String) {
    loop {
        match soon(events.next()).await.expect("a connection") {
            Event::Status { status, failure: Some(failure), cause }
                if matches!(status, Status::TransientFailure | Status::Parked(_)) =>
            {
                return (status, failure, cause.as_deref().unwrap_or_default().to_owned());
            }
            _ => {}
        }
    }
}

/// Waits until the connection is up again, having parked never.
pub(super) async fn until_back(events: &mut Events) {
    let seen = soon(until_status(events, |status| matches!(status, Status::Ready(_) | Status::Parked(_)))).await;
    assert!(matches!(seen.last(), Some(Status::Ready(_))), "{seen:?}");
}

/// Whatever was answered, the first session still serves, and nothing counts against it.
async fn assert_untouched(server: &FakeHttp, connection: Connection, events: Events) {
    let snapshot = connection.snapshot();
    assert_eq!((snapshot.status, snapshot.breaker), (Status::Ready(epoch(1)), Breaker::Closed { strikes: 0 }));
    assert_eq!((snapshot.stats.failures, snapshot.stats.no_replies, snapshot.stats.dials), (0, 0, 1));
    assert_eq!(server.ledger().initializes(), 1);
    assert_eq!(drain_statuses(connection, events).await, [Status::Shutdown]);
}

/// Also R013. The window is as long as it takes to see what is done in it: a call in vain, and three more dials.
#[tokio::test]
async fn k04_transient_404() {
    for status in [404, 502, 503] {
        let server = serve("sessions none\nget status 405").await;
        let connection = fast(builder(&server)).build().unwrap();
        let mut events = connection.events();
        assert_eq!(until_ready(&mut events).await, 1);
        assert_eq!(text(connection.call_tool(tool_with("write", "one")).await), "one");
        server
            .set_script(&format!("sessions none\npost status {status} \"not here\" header content-type text/plain"))
            .await
            .unwrap();

        // In the window a call fails by type, at the latest when its own wait is over, and the state says so.
        let impatient = mcp_reconnect::CallOptions { max_wait: millis(100), ..within(secs(1800)) };
        let outcome = soon(connection.call_tool_with(tool("write"), &impatient)).await;
        match (&outcome, status) {
            (Err(CallError::Refused { why: Refusal::NotInTime, cause: Some(cause), .. }), 404) => {
                assert!(cause.contains("404"), "{cause}");
            }
            (Err(CallError::NotSent { class: FailureClass::Transport, cause, .. }), 404) => {
                assert!(cause.contains("404"), "{cause}");
            }
            // It may have run.
            (Err(CallError::OutcomeUnknown { class: FailureClass::Transport, cause, .. }), 502 | 503) => {
                assert!(cause.contains(&status.to_string()), "{cause}");
            }
            other => panic!("{other:?}"),
        }
        let (state, class, cause) = next_failure(&mut events).await;
        // A 5xx to a request without a session id is the endpoint's; anything else may be the session's.
        let expected = if status == 404 { FailureClass::SessionGone } else { FailureClass::Transport };
        assert_eq!((state, class), (Status::TransientFailure, expected));
        assert!(cause.contains(&status.to_string()), "{cause}");
        let refused = server.ledger().answered(status);
        soon(server.watch().wait_until(|ledger| ledger.answered(status) >= refused + 3)).await;
        assert!(!matches!(connection.snapshot().status, Status::Ready(_)), "it is not");

        // One that has time waits for the end of it, and nobody has to do anything.
        let patient = {
            let connection = connection.clone();
            tokio::spawn(async move { connection.call_tool(tool_with("write", "two")).await })
        };
        server.set_script("sessions none").await.unwrap();
        until_back(&mut events).await;
        assert_eq!(text(soon(patient).await.unwrap()), "two", "{status}");
        wave(&connection, 3).await;
        assert_eq!(server.ledger().executions("write"), 1 + 1 + 3, "{status}");
    }
}

/// The same with one bad answer only, to the call itself: the session is asked, and stays.
#[tokio::test]
async fn k04_one_transient_answer() {
    for status in [404, 502, 503] {
        let script = format!("sessions none\ncall write#1 status {status} \"not here\"");
        let (server, connection, events) = ready(&script).await;
        let outcome = soon(connection.call_tool(tool("write"))).await;
        match outcome {
            // The gate that a 404 might have been lets the question through, so it was none.
            Err(CallError::OutcomeUnknown { class: FailureClass::Transport, .. }) => {}
            other => panic!("{status}: {other:?}"),
        }
        wave(&connection, 3).await;
        assert_untouched(&server, connection, events).await;
    }
}

/// Also R014: errors of the tool as such, in a stream, in a document, and with a status of their own.
#[tokio::test]
async fn k04_app_errors() {
    for how in ["", "answers json", "sessions none"] {
        for status in ["", "with-status 400, ", "with-status 404, ", "with-status 500, "] {
            if how != "sessions none" && status.contains("404") {
                continue; // with a session id, 404 is the session's, whatever is in it
            }
            let script = format!(
                "{how}\ncall write#1 {status}error -32602 \"bad path\" '{{\"path\":\"/x\"}}'\ncall write#2 is-error \"no such file\""
            );
            let (server, connection, events) = ready(&script).await;
            match soon(connection.call_tool(tool("write"))).await {
                Err(CallError::Server { epoch: answered, error, .. }) => {
                    assert_eq!((answered, error.code.0, &*error.message), (epoch(1), -32602, "bad path"));
                    assert_eq!(error.data, Some(serde_json::json!({"path": "/x"})));
                }
                other => panic!("{how} {status}: {other:?}"),
            }
            match soon(connection.call_tool(tool("write"))).await {
                Ok(CallToolResponse::Complete(result)) => {
                    assert_eq!(result.is_error, Some(true));
                    assert_eq!(text(Ok(CallToolResponse::Complete(result))), "no such file");
                }
                other => panic!("{how} {status}: {other:?}"),
            }
            assert_eq!((server.ledger().calls("write"), server.ledger().posts_of("ping")), (2, 0), "{how} {status}");
            assert_untouched(&server, connection, events).await;
        }
    }
}

/// The texts are those that clients match strings in.
#[tokio::test]
async fn k04_no_error_of_a_tool_is_sent_again_or_breaks_the_session() {
    let errors = [
        (-32602, "Session not found"),
        (-32603, "ECONNRESET: connection closed"),
        (-32000, "Connection closed"),
        (-32001, "Request timed out"),
        (-32002, "404 Not Found"),
        (401, "Unauthorized"),
        (503, "Service Unavailable"),
    ];
    let lines: Vec<_> =
        (1..).zip(errors).map(|(n, (code, text))| format!("call echo#{n} error {code} {text:?}")).collect();
    let (server, connection, events) = ready(&lines.join("\n")).await;
    for (code, text) in errors {
        match soon(connection.call_tool(tool("echo"))).await {
            Err(CallError::Server { error, .. }) => assert_eq!((error.code.0, &*error.message), (code, text)),
            other => panic!("{code}: {other:?}"),
        }
    }
    assert_eq!(server.ledger().calls("echo"), errors.len());
    assert_untouched(&server, connection, events).await;
}

/// I04b, the transient ones: each is tried again, unasked.
#[tokio::test]
async fn k04_transient_starts_are_tried_again() {
    for trouble in [
        "status 404",
        "status 404 \"404 page not found\" header content-type text/plain",
        "status 408",
        "status 429",
        "status 500",
        "status 502 \"<html>Bad Gateway</html>\" header content-type text/html",
        "status 503",
        "status 504",
        "reset",
        "cut",
        "headers-only",
        "end",
        "cut after 10, ok",
        "error -32603 \"warming up\"",
        "result '{}'",
        "with-status 500, error -32603 \"warming up\"",
    ] {
        for line in ["initialize", "list"] {
            if line == "list" && trouble.starts_with("status 404") {
                continue; // with an id: K02
            }
            let lines: Vec<_> = (1..=3).map(|n| format!("{line}#{n} {trouble}")).collect();
            let server = serve(&lines.join("\n")).await;
            let connection = fast(builder(&server)).build().unwrap();
            let mut events = connection.events();
            let seen =
                soon(until_status(&mut events, |status| matches!(status, Status::Ready(_) | Status::Parked(_)))).await;
            assert_eq!(seen.last(), Some(&Status::Ready(epoch(4))), "{line} {trouble}: {seen:?}");
            assert_eq!(connection.snapshot().stats.failures, 3, "{line} {trouble}");
            if line == "initialize" {
                assert_eq!(server.ledger().posts_of("ping"), 0, "{trouble}: without a session there is no question");
            }
            wave(&connection, 1).await;
        }
    }
}

/// The same before there is a server at all.
#[tokio::test]
async fn k04_a_refused_connection_is_transient() {
    let server = serve("").await;
    server.down().await;
    let connection = fast(builder(&server)).build().unwrap();
    let mut events = connection.events();
    for _ in 0..3 {
        let (state, class, cause) = next_failure(&mut events).await;
        assert_eq!((state, class), (Status::TransientFailure, FailureClass::Refused));
        assert!(cause.contains(&server.address().to_string()) && cause.contains("refused"), "{cause}");
    }
    server.up().await;
    until_back(&mut events).await;
    wave(&connection, 1).await;
}

/// I04b, those that no further try can help.
#[tokio::test]
async fn k04_permanent() {
    for (script, reason, says) in [
        ("initialize only 2031-01-01", ParkReason::Permanent, "2031-01-01"),
        ("post status 403 \"not you\"", ParkReason::Permanent, "not you"),
        ("post status 200 \"<html>\" header content-type text/html", ParkReason::Permanent, "answers with a web page"),
    ] {
        let server = serve(script).await;
        let connection = fast(builder(&server)).build().unwrap();
        let (state, _, cause) = next_failure(&mut connection.events()).await;
        assert_eq!(state, Status::Parked(reason), "{script}");
        assert!(cause.contains(says), "{script}: {cause}");
        // It is tried for callers (how often is the core's test), and they are told what came of it.
        for _ in 0..10 {
            match soon(connection.call_tool(tool("echo"))).await {
                Err(CallError::Refused { why: Refusal::Parked(parked), cause: Some(told), .. }) => {
                    assert_eq!((parked, &*told), (reason, &*cause), "{script}");
                }
                other => panic!("{script}: {other:?}"),
            }
        }
        let dials = connection.snapshot().stats.dials;
        assert!((2..=11).contains(&dials), "{script}: {dials}");
        // Whoever repaired it says so.
        server.set_script("").await.unwrap();
        let mut events = connection.events();
        connection.wake(WakeCause::Config);
        assert_eq!(soon(until_ready(&mut events)).await, dials + 1, "{script}");
    }
}

/// I04d: status and text of the server reach whoever asks.
#[tokio::test]
async fn k04_the_cause_reaches_whoever_asks() {
    let server = serve("initialize status 502 \"licence server unreachable\"").await;
    let config = config(|config| config.backoff(secs(30)).demand_interval(secs(30)));
    let connection = builder(&server).config(config).build().unwrap();
    let (_, class, cause) = next_failure(&mut connection.events()).await;
    assert_eq!(class, FailureClass::Transport);
    assert!(cause.contains("502") && cause.contains("licence server unreachable"), "{cause}");
    assert_eq!(connection.last_failure().as_deref(), Some(&*cause));
    match soon(connection.call_tool(tool("echo"))).await {
        Err(error @ CallError::Refused { .. }) => assert!(error.to_string().contains(&cause), "{error}"),
        other => panic!("{other:?}"),
    }
}
