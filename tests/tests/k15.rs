//! K15: overlapping and cancelled connects.

use std::collections::HashSet;
use std::sync::Arc;

use mcp_reconnect::core::{Status, WakeCause};
use mcp_reconnect::{CallError, Connection, Session};
use mcp_reconnect_tests::fake::FakeServer;
use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use crate::support::*;

/// Every step of the handshake takes a second: probe, `initialize`, list.
const STEPWISE: &str = "discover delay 1s, error -32601 \"unknown\"\ninitialize delay 1s\nlist delay 1s";
/// The points at which something is given up: 20 of them, before, in and at the end of every step.
fn points() -> impl Iterator<Item = std::time::Duration> {
    (0..20).map(|point| millis(point * 160))
}

async fn fifty<T: Send + 'static, F: Future<Output = T> + Send + 'static>(ask: impl Fn(usize) -> F) -> Vec<T> {
    let asking: JoinSet<T> = (0..50).map(ask).collect();
    asking.join_all().await
}

fn epochs(sessions: &[Arc<Session>]) -> HashSet<u64> {
    sessions.iter().map(|session| session.epoch().get()).collect()
}

/// Also R056.
#[tokio::test(start_paused = true)]
async fn k15_fifty_callers() {
    let server = memory("initialize delay 500ms");
    let connection = connect(&server);
    let sessions = fifty(|_| {
        let connection = connection.clone();
        async move { connection.session().await.unwrap() }
    })
    .await;
    assert_eq!(epochs(&sessions), HashSet::from([1]));
    assert_eq!((server.ledger().spawns(), server.ledger().initializes()), (1, 1));
}

/// The same with real processes, and everybody also asks for the attempt.
#[tokio::test]
async fn k15_r056_fifty_callers_wake_at_once() {
    let server = process("initialize delay 500ms");
    let connection = connect_process(&server);
    let sessions = fifty(|_| {
        let connection = connection.clone();
        async move {
            connection.wake(WakeCause::Operator);
            connection.resumed();
            connection.session().await.unwrap()
        }
    });
    let sessions = timeout(secs(60), sessions).await.unwrap();
    assert_eq!(epochs(&sessions), HashSet::from([1]));
    drop(sessions);
    connection.shutdown().await;
    let ledger = server.ledger().unwrap();
    assert_eq!((ledger.spawns(), ledger.live_pids(), ledger.zombies()), (1, vec![], vec![]));
}

/// Everybody saw epoch 1 fail, says so, and wants another one.
#[tokio::test(start_paused = true)]
async fn k15_fifty_complaints_are_one_rebuild() {
    let server = memory("initialize delay 500ms");
    let connection = connect(&server);
    connection.session().await.unwrap();
    tokio::time::sleep(secs(20)).await;
    let sessions = fifty(|number| {
        let connection = connection.clone();
        async move {
            // Not all of them at the same time, and some when the next attempt runs or is over.
            tokio::time::sleep(millis(number as u64 * 20)).await;
            connection.invalidate(epoch(1), format!("caller {number}"));
            connection.session_after(epoch(1)).await.unwrap()
        }
    })
    .await;
    assert_eq!(epochs(&sessions), HashSet::from([2]));
    assert_eq!((server.ledger().spawns(), server.ledger().live_links()), (2, 1));
}

/// Also R057: whoever waits for a session stops waiting; the attempt goes on, and is the next one's too.
#[tokio::test(start_paused = true)]
async fn k15_cancel_anywhere() {
    for point in points() {
        let server = memory(STEPWISE);
        let connection = connect(&server);
        let waiting = async { tokio::join!(connection.session(), connection.call_tool(tool("write"))).0 };
        // Ready after three seconds: the later points find a session.
        let gave_up = timeout(point, waiting).await.is_err();
        assert_eq!(gave_up, point < secs(3), "{point:?}");
        assert_eq!(connection.session().await.unwrap().epoch(), epoch(1), "{point:?}");
        assert_eq!(text(connection.call_tool(tool_with("echo", "fine")).await), "fine");
        let ledger = server.ledger();
        assert_eq!((ledger.spawns(), ledger.initializes(), ledger.live_links()), (1, 1, 1), "{point:?}");
        // What was given up before it was sent is not sent later.
        assert_eq!(ledger.calls("write"), usize::from(!gave_up));
        assert!(ledger.cancelled().is_empty());
    }
}

/// The whole connection is given up at each point: nothing of it is left, soon.
#[tokio::test(start_paused = true)]
async fn k15_r057_dropped_anywhere() {
    for point in points() {
        let before = Handle::current().metrics().num_alive_tasks();
        let server = memory(STEPWISE);
        let connection = connect(&server);
        let mut events = connection.events();
        drop(timeout(point, connection.session()).await);
        drop(connection);
        let dropped = Instant::now();
        while events.next().await.is_some() {}
        assert!(dropped.elapsed() <= secs(8), "{point:?}: {:?}", dropped.elapsed());
        assert_eq!(server.ledger().live_links(), 0, "{point:?}");
        settle().await;
        assert_eq!(Handle::current().metrics().num_alive_tasks(), before, "{point:?}");
    }
}

/// Lets tasks that are about to end end.
async fn settle() {
    tokio::time::sleep(millis(1)).await;
}

/// The attempt is abandoned at each point: by a park, by a complaint about its epoch, by its deadline. What it opened is
/// closed before the next attempt opens anything.
#[tokio::test(start_paused = true)]
async fn k15_abandoned_anywhere() {
    type Abandon = fn(&Connection);
    let park: Abandon = |connection| {
        connection.park();
        connection.wake(WakeCause::Operator);
    };
    let complain: Abandon = |connection| connection.invalidate(epoch(1), "a test");
    for abandon in [park, complain] {
        for point in points().take_while(|point| *point < secs(3)) {
            let server = memory(STEPWISE);
            let connection = connect(&server);
            let mut events = connection.events();
            tokio::time::sleep(point).await;
            abandon(&connection);
            assert_eq!(until_ready(&mut events).await, 2, "{point:?}");
            one_at_a_time(&server);
            assert_eq!(text(connection.call_tool(tool_with("echo", "fine")).await), "fine");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn k15_deadline_anywhere() {
    for (step, slow) in
        ["discover delay 8s, error -32601 \"unknown\"", "initialize delay 8s", "list delay 8s"].iter().enumerate()
    {
        let server = memory(slow);
        let quick = config(|config| config.connect_timeout(secs(1)));
        let connection = builder(&server).config(quick).build().unwrap();
        let mut events = connection.events();
        let ready = until_ready(&mut events).await;
        // An `initialize` that is sent beside the unanswered probe is answered at once.
        assert_eq!(ready, if step == 0 { 1 } else { 5 }, "{slow}");
        one_at_a_time(&server);
    }
}

/// No spawn began while another one was there.
fn one_at_a_time(server: &Arc<FakeServer>) {
    use mcp_reconnect_tests::fake::Event as Seen;
    let mut live = 0;
    for entry in server.ledger().entries() {
        match entry.event {
            Seen::Spawned { .. } => live += 1,
            Seen::Ended => live -= 1,
            _ => {}
        }
        assert!(live <= 1, "{:?}", server.ledger());
    }
}

/// R058, on a pipe.
#[tokio::test(start_paused = true)]
async fn k15_cancel_call() {
    let server = memory("call write commit, delay 10s, ok");
    let connection = connect(&server);
    connection.session().await.unwrap();
    // Another one is under way beside it.
    let other = tokio::spawn({
        let connection = connection.clone();
        async move { connection.call_tool(tool_with("write", "other")).await }
    });
    assert!(timeout(secs(1), connection.call_tool(tool_with("write", "cancelled"))).await.is_err());
    assert_eq!(text(connection.call_tool(tool_with("echo", "next")).await), "next");
    assert_eq!(text(other.await.unwrap()), "other");
    let ledger = server.ledger();
    assert_eq!((ledger.spawns(), ledger.calls("write"), ledger.cancelled().len()), (1, 2, 1));
    assert_eq!(connection.snapshot().status, Status::Ready(epoch(1)));
}

/// The server does not survive being told: that is repaired without anybody who asks, and the calls beside it are
/// told the truth.
#[tokio::test(start_paused = true)]
async fn k15_r058_server_dies_of_a_cancel() {
    let server = memory("spawn 1:\n call write commit, delay 10s, ok\n on cancelled exit 1");
    let connection = connect(&server);
    let mut events = connection.events();
    until_ready(&mut events).await;
    let other = tokio::spawn({
        let connection = connection.clone();
        async move { connection.call_tool(tool_with("write", "other")).await }
    });
    assert!(timeout(secs(1), connection.call_tool(tool("write"))).await.is_err());
    assert_eq!(until_ready(&mut events).await, 2);
    assert!(matches!(other.await.unwrap(), Err(CallError::OutcomeUnknown { epoch: failed, .. }) if failed == epoch(1)));
    assert_eq!((server.ledger().spawns(), server.ledger().calls("write")), (2, 2));
}
