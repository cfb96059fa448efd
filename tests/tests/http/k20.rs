//! K20: what the circuit breaker counts, and what it must never hold up.

use futures::future::join_all;
use mcp_reconnect::core::{Breaker, Refusal, Status};
use mcp_reconnect::{CallError, Connection};
use tokio::time::{Instant, sleep_until};

use super::{builder, ready, serve};
use crate::support::*;

const CLOSED: Breaker = Breaker::Closed { strikes: 0 };

/// Calls of `write` that get no reply.
async fn strike(connection: &Connection, times: usize) {
    for _ in 0..times {
        let answer = connection.call_tool_with(tool("write"), &within(millis(50))).await;
        assert!(matches!(answer, Err(CallError::DeadlineExceeded { .. })), "{answer:?}");
    }
}

/// When the open breaker lets the next caller through, as this refused caller is told.
async fn refused_until(connection: &Connection) -> Instant {
    match connection.call_tool(tool("echo")).await {
        Err(CallError::Refused { why: Refusal::BreakerOpen, retry_at: Some(at), .. }) => at,
        other => panic!("{other:?}"),
    }
}

/// Also R078: tripped, down, and up again. The first call after the time that callers were told is served.
#[tokio::test]
async fn k20_wedge() {
    let server = serve("ping never\ncall write never").await;
    let knobs = config(|knobs| knobs.breaker_open(secs(1)));
    let connection = builder(&server).config(knobs).build().unwrap();
    let mut events = connection.events();
    until_ready(&mut events).await;
    strike(&connection, 5).await;
    let until = refused_until(&connection).await;
    server.down().await;
    until_status(&mut events, |status| status == Status::TransientFailure).await;
    server.set_script("").await.unwrap();
    server.up().await;
    sleep_until(until).await;
    assert_eq!(text(connection.call_tool_with(tool_with("write", "up"), &within(secs(60))).await), "up");
    assert_eq!(connection.snapshot().breaker, CLOSED);
    assert_eq!(server.ledger().executions("write"), 1);
}

/// Also R079.
#[tokio::test]
async fn k20_window() {
    let (server, connection, mut events) = ready("spawn 2:\n initialize delay 500ms").await;
    server.restart().await;
    connection.invalidate(epoch(1), "restarted");
    until_status(&mut events, |status| status == Status::Connecting).await;
    for answer in join_all((0..20).map(|_| connection.call_tool(tool_with("write", "in the window")))).await {
        assert_eq!(text(answer), "in the window");
    }
    assert_eq!(connection.snapshot().breaker, CLOSED);
    assert_eq!((server.ledger().initializes(), server.ledger().executions("write")), (2, 20));
}

/// Also R080. Answers that are cut are no strikes either, and end no session; a server that is gone refuses by its
/// state, with the time of the next try.
#[tokio::test]
async fn k20_app_errors() {
    let script = "call write is-error \"bad URL\"\ncall echo error -32603 \"bad URL\"\ncall write#11..13 commit, cut";
    let (server, connection, mut events) = ready(script).await;
    for _ in 0..10 {
        connection.call_tool(tool("write")).await.unwrap();
        assert!(matches!(connection.call_tool(tool("echo")).await, Err(CallError::Server { .. })));
    }
    assert_eq!(connection.snapshot().breaker, CLOSED);
    for _ in 0..3 {
        let cut = connection.call_tool(tool("write")).await;
        assert!(matches!(cut, Err(CallError::OutcomeUnknown { .. })), "{cut:?}");
    }
    assert_eq!((connection.snapshot().breaker, server.ledger().initializes()), (CLOSED, 1));
    server.down().await;
    until_status(&mut events, |status| status == Status::TransientFailure).await;
    match connection.call_tool_with(tool("write"), &within(millis(100))).await {
        Err(CallError::Refused { why: Refusal::NotInTime | Refusal::Parked(_), retry_at: Some(_), .. }) => {}
        other => panic!("{other:?}"),
    }
    assert_eq!((connection.snapshot().breaker, connection.snapshot().stats.breaker_opened), (CLOSED, 0));
}

/// Statuses are answers: whatever they say of a call, none of them is a strike.
#[tokio::test]
async fn k20_statuses_are_no_strikes() {
    for status in [400, 403, 413, 429, 500, 503] {
        let (_server, connection, _events) = ready(&format!("call write status {status}")).await;
        for _ in 0..6 {
            let answer = connection.call_tool(tool("write")).await;
            assert!(answer.is_err(), "{status}");
            assert_eq!(connection.snapshot().breaker, CLOSED, "{status}: {answer:?}");
        }
        assert_eq!(connection.snapshot().stats.no_replies, 0, "{status}");
    }
}

#[tokio::test]
async fn k20_half_open_lets_one_caller_through_and_success_closes() {
    let server = serve("ping never\ncall write never").await;
    let knobs = config(|knobs| knobs.breaker_open(secs(2)));
    let connection = builder(&server).config(knobs).build().unwrap();
    connection.session().await.unwrap();
    strike(&connection, 5).await;
    sleep_until(refused_until(&connection).await).await;
    let answers = join_all((0..20).map(|_| connection.call_tool(tool_with("echo", "probe")))).await;
    assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 1);
    assert_eq!(text(connection.call_tool(tool_with("echo", "again")).await), "again");
    assert_eq!((connection.snapshot().breaker, server.ledger().calls("echo")), (CLOSED, 2));
}
