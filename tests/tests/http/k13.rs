//! K13: sleep and wake, and a status that never lies, over HTTP.

use std::time::Duration;

use futures::future::join_all;
use mcp_reconnect::core::{FailureClass, Status, WakeCause};
use mcp_reconnect::{Connection, Event, Events};
use mcp_reconnect_tests::fake::FakeHttp;

use super::clock::{quick, skip};
use super::{builder, ready, serve};
use crate::support::*;

/// The host sleeps: the clock is somewhere else all of a sudden, and the host knows why.
async fn sleeps(connections: &[Connection], how_long: Duration) {
    connections.iter().for_each(Connection::resumed);
    skip(how_long).await;
}

/// Also R047, but for the gate that bounds what many connections dial at once.
#[tokio::test]
async fn k13_wake_herd() {
    let spread = config(|config| quick(config).redial_spread(millis(250)));
    let servers = join_all((0..8).map(|_| serve(""))).await;
    let connections: Vec<_> =
        (0..8).map(|number| builder(&servers[number]).config(spread).seed(number as u64).build().unwrap()).collect();
    let mut all_events: Vec<_> = connections.iter().map(Connection::events).collect();
    for events in &mut all_events {
        until_ready(events).await;
    }
    join_all(servers.iter().map(FakeHttp::down)).await;
    sleeps(&connections, secs(7200)).await;
    // The network is back when everybody has been refused twice.
    for events in &mut all_events {
        for _ in 0..2 {
            let seen = until_status(events, |status| status == Status::TransientFailure).await;
            assert!(!seen.iter().any(|status| matches!(status, Status::Parked(_))), "{seen:?}");
        }
    }
    join_all(servers.iter().map(FakeHttp::up)).await;
    for (connection, events) in connections.iter().zip(&mut all_events) {
        let seen = until_status(events, |status| matches!(status, Status::Ready(_))).await;
        assert!(!seen.iter().any(|status| matches!(status, Status::Parked(_))), "{seen:?}");
        assert!(connection.catalogue().is_some());
        let dials = connection.snapshot().stats.dials;
        assert!(dials <= 20, "no hot loop: {dials}");
    }
}

/// Healthy servers are asked once after a sleep, and none is redialled.
#[tokio::test]
async fn k13_wake_asks_the_healthy_once() {
    let spread = config(|config| config.redial_spread(millis(50)).keepalive(secs(86_400)));
    let servers = join_all((0..8).map(|_| serve(""))).await;
    let connections: Vec<_> =
        (0..8).map(|number| builder(&servers[number]).config(spread).seed(number as u64).build().unwrap()).collect();
    for connection in &connections {
        connection.session().await.unwrap();
    }
    sleeps(&connections, secs(7200)).await;
    for (server, connection) in servers.iter().zip(&connections) {
        server.watch().wait_until(|ledger| ledger.requests("ping") == 1).await;
        assert_eq!(text(connection.call_tool(tool_with("echo", "fine")).await), "fine");
        assert_eq!((server.ledger().initializes(), server.ledger().requests("ping")), (1, 1));
    }
}

/// The sockets did not survive the sleep, the session did: nobody notices.
#[tokio::test]
async fn k13_old_sockets_after_wake() {
    let (server, connection, events) = ready("").await;
    assert_eq!(text(connection.call_tool(tool_with("write", "before")).await), "before");
    server.disconnect().await;
    sleeps(std::slice::from_ref(&connection), secs(7200)).await;
    assert_eq!(text(connection.call_tool(tool_with("write", "after")).await), "after");
    // Asked for its life by the keepalive, by the stream that was cut, or by both.
    server.watch().wait_until(|ledger| ledger.requests("ping") >= 1).await;
    assert_eq!((server.ledger().initializes(), server.ledger().executions("write")), (1, 2));
    assert_eq!(drain_statuses(connection, events).await, [Status::Shutdown]);
}

/// The session did not: that is found out without any call. There is no standing stream that could tell.
#[tokio::test]
async fn k13_session_lost_in_sleep() {
    let server = serve("get status 405").await;
    let never_by_itself = config(|config| quick(config).keepalive(secs(86_400)));
    let connection = builder(&server).config(never_by_itself).build().unwrap();
    let mut events = connection.events();
    until_ready(&mut events).await;
    server.forget_sessions().await;
    sleeps(std::slice::from_ref(&connection), secs(7200)).await;
    assert_eq!(until_ready(&mut events).await, 2);
    let ledger = server.ledger();
    assert_eq!((ledger.initializes(), ledger.initializes_with_session(), ledger.deletes().len()), (2, 0, 0));
}

/// R048 for a server that is no child: it accepts and reads nothing.
#[tokio::test]
async fn k13_r048_deaf_after_wake() {
    let server = serve("").await;
    let never_by_itself = config(|config| config.keepalive(secs(86_400)));
    let connection = builder(&server).config(never_by_itself).build().unwrap();
    let mut events = connection.events();
    until_ready(&mut events).await;
    server.freeze().await;
    sleeps(std::slice::from_ref(&connection), secs(8 * 3600)).await;
    // Two questions of 20 s each.
    skip(secs(21)).await;
    skip(secs(21)).await;
    assert_eq!(next_status(&mut events).await, Status::TransientFailure);
    assert_eq!(connection.snapshot().failure, Some(FailureClass::Unresponsive));
    assert_eq!(next_status(&mut events).await, Status::Connecting);
    server.thaw().await;
    assert_eq!(until_ready(&mut events).await, 2);
}

/// An outage that began before the sleep has not lasted through it: the sleep burns no budget.
#[tokio::test]
async fn k13_sleep_does_not_count_as_outage() {
    let (server, connection, mut events) = ready("").await;
    server.down().await;
    until_status(&mut events, |status| status == Status::TransientFailure).await;
    sleeps(std::slice::from_ref(&connection), secs(7200)).await;
    until_status(&mut events, |status| status == Status::TransientFailure).await;
    server.up().await;
    let seen = until_status(&mut events, |status| matches!(status, Status::Ready(_))).await;
    assert!(!seen.iter().any(|status| matches!(status, Status::Parked(_))), "{seen:?}");
}

/// Also R049. Nobody reads while it happens; everything is there afterwards, in order.
#[tokio::test]
async fn k13_event_order() {
    let server = serve("spawn 1:\n call write kill").await;
    let connection = builder(&server).config(config(quick)).build().unwrap();
    let (mut slow, mut other, mut steering) = (connection.events(), connection.events(), connection.events());
    until_ready(&mut steering).await;
    let killed = connection.call_tool(tool("write"));
    let (killed, ()) = tokio::join!(killed, async {
        until_status(&mut steering, |status| status == Status::TransientFailure).await;
        server.up().await;
    });
    assert!(killed.is_err());
    let number = until_ready(&mut steering).await;
    let mut expected = vec![Status::Connecting, Status::Ready(epoch(1))];
    // The first dials may find the port closed.
    for _ in 2..=number {
        expected.extend([Status::TransientFailure, Status::Connecting]);
    }
    expected.push(Status::Ready(epoch(number)));
    for (number, status) in expected.iter().enumerate() {
        let (seen, failure, cause) = next_status_event(&mut slow).await;
        assert_eq!((seen, next_status(&mut other).await), (*status, *status), "event {number}");
        if *status == Status::TransientFailure {
            assert!(
                matches!(failure, Some(FailureClass::Transport | FailureClass::Refused | FailureClass::SessionGone)),
                "{failure:?}"
            );
            assert!(cause.is_some_and(|cause| !cause.is_empty()));
        }
    }
    assert_eq!(connection.snapshot().status, *expected.last().unwrap());
    assert_eq!(drain_statuses(connection, slow).await, [Status::Shutdown]);
}

async fn next_status_event(events: &mut Events) -> (Status, Option<FailureClass>, Option<String>) {
    loop {
        if let Event::Status { status, failure, cause } = events.next().await.unwrap() {
            return (status, failure, cause.map(|cause| cause.to_string()));
        }
    }
}

/// Through restarts, outages, parks and the end: each event says something new, and what the last one says holds when
/// nothing is under way.
#[tokio::test]
async fn k13_snapshot_is_the_last_event() {
    let server = serve("").await;
    let connection = builder(&server).config(config(quick)).build().unwrap();
    let mut events = connection.events();
    let mut seen = vec![connection.snapshot().status];
    for round in 0..10 {
        let ready = until_status(&mut events, |status| matches!(status, Status::Ready(_))).await;
        seen.extend(ready);
        assert_eq!(seen.last(), Some(&connection.snapshot().status), "{seen:?}");
        match round % 3 {
            0 => server.restart().await,
            1 => {
                server.down().await;
                seen.extend(until_status(&mut events, |status| status == Status::TransientFailure).await);
                server.up().await;
            }
            _ => {
                connection.park();
                seen.extend(until_status(&mut events, |status| matches!(status, Status::Parked(_))).await);
                assert_eq!(seen.last(), Some(&connection.snapshot().status), "{seen:?}");
                connection.wake(WakeCause::Operator);
            }
        }
    }
    seen.extend(drain_statuses(connection, events).await);
    assert!(seen.windows(2).all(|pair| pair[0] != pair[1]), "{seen:?}");
    let ready: Vec<_> = seen.iter().filter(|status| matches!(status, Status::Ready(_))).collect();
    assert!(ready.len() >= 10 && ready.windows(2).all(|pair| pair[0] != pair[1]), "{seen:?}");
    assert_eq!(seen.last(), Some(&Status::Shutdown));
}
