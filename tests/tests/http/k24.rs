//! K24: how long a request lives, and how its end is told.

use mcp_reconnect::core::replay::Sent;
use mcp_reconnect::core::{Breaker, FailureClass, Status};
use mcp_reconnect::{CallError, CallOptions};

use super::{builder, ready, serve};
use crate::support::*;

/// Also R095: progress in the call's own stream, for longer than its timeout.
#[tokio::test]
async fn k24_progress() {
    let (server, connection, _events) = ready("call write progress 12 every 200ms, reply \"done\"").await;
    assert_eq!(text(connection.call_tool_with(tool("write"), &within(secs(2))).await), "done");
    assert!(server.ledger().cancelled().is_empty());
}

/// Also R095: progress of something else does not extend.
#[tokio::test]
async fn k24_progress_foreign() {
    let (server, connection, _events) = ready("call write progress 100000 every 20ms foreign").await;
    let answer = connection.call_tool_with(tool("write"), &within(millis(300))).await;
    assert!(matches!(answer, Err(CallError::DeadlineExceeded { sent: Sent::Maybe, .. })), "{answer:?}");
    let ledger = server.watch().wait_until(|ledger| !ledger.cancelled().is_empty()).await;
    assert_eq!(cancellations(&ledger), call_ids(&ledger, "write"));
}

/// However much progress it makes, the cap ends it.
#[tokio::test]
async fn k24_progress_up_to_the_cap() {
    let (server, connection, _events) = ready("call write progress 100000 every 20ms").await;
    let options = CallOptions { max_timeout: Some(millis(600)), ..within(millis(500)) };
    let answer = connection.call_tool_with(tool("write"), &options).await;
    assert!(matches!(answer, Err(CallError::DeadlineExceeded { .. })), "{answer:?}");
    server.watch().wait_until(|ledger| ledger.cancelled().len() == 1).await;
}

/// Also R096: a caller stops waiting. The exchange ends on the wire and the server is told once; neither the session nor
/// another call is disturbed, and the next epoch hears nothing of it.
#[tokio::test]
async fn k24_cancel() {
    let (server, connection, mut events) = ready("spawn 1:\n call write never").await;
    let watch = server.watch();
    let asked = watch.wait_until(|ledger| ledger.calls("write") == 1);
    tokio::select! {
        answer = connection.call_tool(tool("write")) => panic!("{answer:?}"),
        _ = asked => {}
    }
    let ledger = server.watch().wait_until(|ledger| ledger.cancelled().len() == 1 && ledger.abandoned() == 1).await;
    assert_eq!(cancellations(&ledger), call_ids(&ledger, "write"));
    assert!(
        ledger.asked().all(|asked| asked.method.as_deref() != Some("notifications/cancelled")
            || asked.session.as_deref() == Some("A1"))
    );
    assert_eq!(text(connection.call_tool(tool_with("echo", "on")).await), "on");
    server.restart().await;
    assert_eq!(text(connection.call_tool(tool_with("echo", "two")).await), "two");
    assert_eq!(until_ready(&mut events).await, 2);
    assert_eq!(server.ledger().posts_of("notifications/cancelled"), 1);
}

#[tokio::test]
async fn k24_timeout_cancels_once() {
    let (server, connection, events) = ready("ping never\ncall write never").await;
    for count in 1..=3_usize {
        let answer = connection.call_tool_with(tool("write"), &within(millis(200))).await;
        assert!(matches!(answer, Err(CallError::DeadlineExceeded { sent: Sent::Maybe, .. })), "{answer:?}");
        server.watch().wait_until(|ledger| ledger.cancelled().len() == count && ledger.abandoned() == count).await;
    }
    assert_eq!(connection.snapshot().breaker, Breaker::Closed { strikes: 3 });
    let ledger = server.ledger();
    assert_eq!(cancellations(&ledger), call_ids(&ledger, "write"));
    assert_eq!(drain_statuses(connection, events).await, [Status::Shutdown]);
}

/// Calls that have ended have nothing to cancel: answered, refused, or lost with their session.
#[tokio::test]
async fn k24_nothing_to_cancel() {
    let (server, connection, mut events) =
        ready("spawn 1:\n call write#2 commit, disconnect, never\n call write#3 status 429").await;
    assert_eq!(text(connection.call_tool(tool_with("write", "one")).await), "one");
    let cut = connection.call_tool(tool("write")).await;
    assert!(matches!(cut, Err(CallError::OutcomeUnknown { .. })), "{cut:?}");
    let limited = connection.call_tool(tool("write")).await;
    assert!(matches!(limited, Err(CallError::RateLimited { .. })), "{limited:?}");
    server.restart().await;
    assert_eq!(text(connection.call_tool(tool_with("echo", "two")).await), "two");
    assert_eq!(until_ready(&mut events).await, 2);
    assert_eq!(server.ledger().posts_of("notifications/cancelled"), 0);
}

/// The session is gone by the time the caller gives up: the cancellation is refused with it, and is not sent again.
#[tokio::test]
async fn k24_a_cancellation_does_not_outlive_its_session() {
    let (server, connection, mut events) = ready("call write never").await;
    let watch = server.watch();
    let asked = watch.wait_until(|ledger| ledger.calls("write") == 1);
    tokio::select! {
        answer = connection.call_tool(tool("write")) => panic!("{answer:?}"),
        _ = asked => server.forget_sessions().await,
    }
    assert_eq!(text(connection.call_tool(tool_with("echo", "two")).await), "two");
    assert_eq!(until_ready(&mut events).await, 2);
    let ledger = server.ledger();
    assert!(ledger.posts_of("notifications/cancelled") <= 1);
    assert!(
        ledger.asked().all(|asked| asked.method.as_deref() != Some("notifications/cancelled")
            || asked.session.as_deref() == Some("A1"))
    );
}

/// Also R097: a server that accepts and says nothing does not hold the next call hostage.
#[tokio::test]
async fn k24_stuck() {
    let server = serve("").await;
    let knobs = config(|knobs| {
        let knobs = knobs.ping_timeout(secs(1)).ping_misses(1);
        knobs.connect_timeout(millis(500)).connect_timeout_max(secs(2)).demand_interval(millis(600))
    });
    let connection = builder(&server).config(knobs).build().unwrap();
    let mut events = connection.events();
    let first = until_ready(&mut events).await;
    server.freeze().await;
    let stuck = connection.call_tool_with(tool("write"), &within(millis(200))).await;
    assert!(matches!(stuck, Err(CallError::DeadlineExceeded { .. })), "{stuck:?}");
    match connection.call_tool_with(tool("write"), &within(secs(1800))).await {
        Err(CallError::OutcomeUnknown { epoch: failed, class, .. }) => {
            assert_eq!((failed, class), (epoch(first), FailureClass::Unresponsive));
        }
        Err(CallError::Refused { .. }) => {}
        other => panic!("{other:?}"),
    }
    server.thaw().await;
    assert!(until_ready(&mut events).await > first);
    assert_eq!(text(connection.call_tool(tool_with("echo", "two")).await), "two");
}

/// One slow call is no stuck server: what answers pings is kept.
#[tokio::test]
async fn k24_a_timeout_alone_recycles_nothing() {
    let (server, connection, events) = ready("call write never").await;
    let answer = connection.call_tool_with(tool("write"), &within(millis(100))).await;
    assert!(matches!(answer, Err(CallError::DeadlineExceeded { .. })), "{answer:?}");
    server.watch().wait_until(|ledger| ledger.requests("ping") == 1).await;
    assert_eq!(text(connection.call_tool(tool_with("echo", "two")).await), "two");
    assert_eq!(server.ledger().initializes(), 1);
    assert_eq!(drain_statuses(connection, events).await, [Status::Shutdown]);
}
