//! K15: overlapping and cancelled connects over HTTP.

use std::collections::HashSet;
use std::sync::Arc;

use mcp_reconnect::core::{Status, WakeCause};
use mcp_reconnect::{CallError, Connection, Session};
use mcp_reconnect_tests::fake::{FakeHttp, HttpEvent, Ledger};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;

use super::clock::{quick, quiet, skip, turns};
use super::{builder, ready, serve};
use crate::support::*;

/// Where a start can be: what the server has been asked, and what it does about it for ten seconds.
const POINTS: [(&str, &str); 20] = [
    ("server/discover", "post delay 10s, ok"),
    ("server/discover", "missing delay 10s, status 400 \"Session ID is required\""),
    ("server/discover", "sessions none\ndiscover headers, delay 10s, error -32601 \"unknown\""),
    ("initialize", "initialize delay 10s"),
    ("initialize", "initialize headers, delay 10s"),
    ("initialize", "initialize headers, stdout \": wait\\n\", delay 10s"),
    ("initialize", "initialize headers, request ping, delay 10s"),
    ("initialize", "initialize delay 10s, error -32602 \"no\" '{\"supported\":[\"2025-03-26\"]}'\ninitialize#2 ok"),
    ("notifications/initialized", "post#3 delay 10s, ok"),
    ("notifications/initialized", "answers json\npost#3 delay 10s, ok"),
    ("tools/list", "list delay 10s"),
    ("tools/list", "list headers, delay 10s"),
    ("tools/list", "list headers, event-id e1, delay 10s"),
    ("tools/list", "answers json\nlist delay 10s"),
    ("tools/list", "paging 3\nlist#2 delay 10s"),
    ("tools/list", "paging 3\nlist#3 delay 10s"),
    ("tools/list", "get delay 10s, ok\nlist delay 10s"),
    ("tools/list", "get status 405\nlist delay 10s"),
    ("tools/list", "sessions none\nlist delay 10s"),
    ("server/discover", "era modern\ndiscover delay 10s"),
];

fn asked(ledger: &Ledger, method: &str) -> bool {
    ledger.posts_of(method) > 0
}

async fn fifty<T: Send + 'static, F: Future<Output = T> + Send + 'static>(ask: impl Fn(usize) -> F) -> Vec<T> {
    let asking: JoinSet<T> = (0..50).map(ask).collect();
    asking.join_all().await
}

fn epochs(sessions: &[Arc<Session>]) -> HashSet<u64> {
    sessions.iter().map(|session| session.epoch().get()).collect()
}

#[tokio::test]
async fn k15_fifty_callers() {
    let server = serve("initialize delay 500ms").await;
    let connection = builder(&server).build().unwrap();
    let sessions = fifty(|number| {
        let connection = connection.clone();
        async move {
            if number % 2 == 0 {
                connection.wake(WakeCause::Operator);
                connection.resumed();
            }
            connection.session().await.unwrap()
        }
    })
    .await;
    assert_eq!(epochs(&sessions), HashSet::from([1]));
    assert_eq!((server.ledger().initializes(), server.ledger().sessions().len()), (1, 1));
}

/// Everybody saw epoch 1 fail, says so, and wants another one.
#[tokio::test]
async fn k15_fifty_complaints_are_one_rebuild() {
    let (server, connection, _events) = ready("initialize delay 50ms").await;
    let sessions = fifty(|number| {
        let connection = connection.clone();
        async move {
            connection.invalidate(epoch(1), format!("caller {number}"));
            connection.session_after(epoch(1)).await.unwrap()
        }
    })
    .await;
    assert_eq!(epochs(&sessions), HashSet::from([2]));
    assert_eq!((server.ledger().initializes(), server.ledger().live_sessions().len()), (2, 1));
}

/// Also R057: whoever waits for a session stops waiting; the attempt goes on, and is the next one's too.
#[tokio::test]
async fn k15_cancel_anywhere() {
    for (method, script) in POINTS {
        let server = serve(script).await;
        let connection = builder(&server).build().unwrap();
        let waiting: JoinHandle<_> = tokio::spawn({
            let connection = connection.clone();
            async move { tokio::join!(connection.session(), connection.call_tool(tool("write"))).0 }
        });
        server.watch().wait_until(|ledger| asked(ledger, method)).await;
        waiting.abort();
        assert!(waiting.await.unwrap_err().is_cancelled());
        let next = tokio::spawn({
            let connection = connection.clone();
            async move { connection.session().await }
        });
        if script.starts_with("post delay") {
            // Every step takes ten seconds.
            server.set_script("").await.unwrap();
        }
        // The server has begun to wait.
        turns().await;
        skip(secs(10)).await;
        assert_eq!(next.await.unwrap().unwrap().epoch(), epoch(1), "{script}");
        assert_eq!(text(connection.call_tool(tool_with("echo", "fine")).await), "fine");
        let ledger = server.ledger();
        assert_eq!((ledger.calls("write"), ledger.cancelled().len(), connection.snapshot().stats.dials), (0, 0, 1));
        assert!(ledger.sessions().len() <= 1, "{script}");
    }
}

/// The whole connection is given up at each point: nothing of it is left at the server.
#[tokio::test]
async fn k15_r057_dropped_anywhere() {
    for (method, script) in POINTS {
        let server = serve(script).await;
        let connection = builder(&server).build().unwrap();
        let mut events = connection.events();
        server.watch().wait_until(|ledger| asked(ledger, method)).await;
        drop(connection);
        while events.next().await.is_some() {}
        let left = |ledger: &Ledger| (ledger.open_connections(), ledger.open_requests());
        let ledger = server.watch().wait_until(|ledger| left(ledger) == (0, 0)).await;
        let (connections, posts) = (ledger.connections(), ledger.posts());
        // A session that was begun was ended, where its id had come.
        if method == "tools/list" {
            assert_eq!((ledger.live_sessions(), ledger.deletes().len()), (vec![], ledger.sessions().len()), "{script}");
        }
        skip(secs(3600)).await;
        assert_eq!((server.ledger().connections(), server.ledger().posts()), (connections, posts), "{script}");
    }
}

/// The attempt is abandoned at each point, by a park and by a complaint about its epoch: its requests are over
/// before the next attempt asks anything.
#[tokio::test]
async fn k15_abandoned_anywhere() {
    for (method, script) in POINTS {
        for how in ["park", "complaint"] {
            let server = serve(script).await;
            let connection = builder(&server).config(config(quick)).build().unwrap();
            let mut events = connection.events();
            server.watch().wait_until(|ledger| asked(ledger, method)).await;
            server.set_script("").await.unwrap();
            match how {
                "park" => {
                    connection.park();
                    connection.wake(WakeCause::Operator);
                }
                _ => connection.invalidate(epoch(1), "a test"),
            }
            assert_eq!(until_ready(&mut events).await, 2, "{how}: {script}");
            assert_eq!(text(connection.call_tool(tool_with("echo", "fine")).await), "fine");
            let ledger = server.ledger();
            if method == "tools/list" {
                // Its id had come, so it was released.
                assert!(ledger.live_sessions().len() <= 1, "{how}: {script}");
            }
            assert_eq!(overlaps(&ledger), 0, "{how}: {script}");
        }
    }
}

#[tokio::test]
async fn k15_deadline_anywhere() {
    for (method, script) in [("initialize", "initialize#1 never"), ("tools/list", "list#1 never")] {
        let server = serve(script).await;
        let connection = builder(&server).config(config(quick)).build().unwrap();
        let mut events = connection.events();
        server.watch().wait_until(|ledger| asked(ledger, method)).await;
        skip(secs(31)).await;
        assert_eq!(until_ready(&mut events).await, 2, "{script}");
        assert_eq!(overlaps(&server.ledger()), 0, "{script}");
        quiet(&server, &connection).await;
        assert_eq!(server.ledger().open_streams(), 1);
    }
}

/// How many requests were open on connections of one attempt when another attempt asked for something: each has
/// connections of its own.
fn overlaps(ledger: &Ledger) -> usize {
    let begins = |asked: &mcp_reconnect_tests::fake::Asked| {
        asked.session.is_none() && asked.method.as_deref() == Some("initialize")
    };
    let (mut open, mut overlaps) = (HashSet::new(), 0);
    for entry in ledger.entries() {
        let mcp_reconnect_tests::fake::Event::Http(event) = &entry.event else { continue };
        match event {
            HttpEvent::Asked(asked) => {
                if begins(asked) {
                    overlaps += open.len();
                }
                open.insert(asked.exchange);
            }
            HttpEvent::Finished { exchange, .. } => _ = open.remove(exchange),
            _ => {}
        }
    }
    overlaps
}

/// Also R058: the server is told, and that is all.
#[tokio::test]
async fn k15_cancel_call() {
    for extra in ["", "answers json", "get status 405", "sessions none"] {
        let (server, connection, _events) = ready(&format!("{extra}\ncall write commit, delay 10s, ok")).await;
        let [other, cancelled] = ["other", "cancelled"].map(|name| {
            let connection = connection.clone();
            tokio::spawn(async move { connection.call_tool(tool_with("write", name)).await })
        });
        server.watch().wait_until(|ledger| ledger.calls("write") == 2).await;
        skip(secs(1)).await;
        cancelled.abort();
        server.watch().wait_until(|ledger| ledger.cancelled().len() == 1 && ledger.abandoned() == 1).await;
        assert_eq!(text(connection.call_tool(tool_with("echo", "next")).await), "next");
        skip(secs(9)).await;
        assert_eq!(text(other.await.unwrap()), "other");
        let ledger = server.ledger();
        assert_eq!((ledger.initializes(), ledger.posts_of("tools/call"), ledger.cancelled().len()), (1, 3, 1));
        assert_eq!(connection.snapshot().status, Status::Ready(epoch(1)));
    }
}

/// The stateless era: closing the stream is the cancellation.
#[tokio::test]
async fn k15_cancel_call_modern() {
    let (server, connection, _events) = ready("era modern\ncall write commit, delay 10s, ok").await;
    let call = tokio::spawn({
        let connection = connection.clone();
        async move { connection.call_tool(tool("write")).await }
    });
    server.watch().wait_until(|ledger| ledger.calls("write") == 1).await;
    call.abort();
    server.watch().wait_until(|ledger| ledger.abandoned() == 1).await;
    assert_eq!(text(connection.call_tool(tool_with("echo", "next")).await), "next");
    assert_eq!(connection.snapshot().status, Status::Ready(epoch(1)));
}

/// The server does not take it well: that is repaired without anybody who asks, and the call beside it is told the
/// truth.
#[tokio::test]
async fn k15_r058_server_dies_of_a_cancel() {
    for (how, next) in [("disconnect", 1), ("forget, disconnect", 2), ("exit 1", 2), ("kill", 2)] {
        let script = format!("respawn 10ms\nspawn 1:\n call write commit, delay 10s, ok\n on cancelled {how}");
        let server: FakeHttp = serve(&script).await;
        let connection: Connection = builder(&server).config(config(quick)).build().unwrap();
        let mut events = connection.events();
        until_ready(&mut events).await;
        server.watch().wait_until(|ledger| ledger.open_streams() == 1).await;
        let [other, cancelled] = ["other", "cancelled"].map(|name| {
            let connection = connection.clone();
            tokio::spawn(async move { connection.call_tool(tool_with("write", name)).await })
        });
        server.watch().wait_until(|ledger| ledger.calls("write") == 2).await;
        cancelled.abort();
        let other = other.await.unwrap();
        assert!(matches!(other, Err(CallError::OutcomeUnknown { epoch: e, .. }) if e == epoch(1)), "{how}: {other:?}");
        if next > 1 {
            assert!(timeout(secs(60), until_ready(&mut events)).await.unwrap() >= next, "{how}");
        }
        server.watch().wait_until(|ledger| ledger.open_streams() == 1 && ledger.streams() > 1).await;
        assert_eq!(text(connection.call_tool(tool_with("echo", "next")).await), "next");
        let ledger = server.ledger();
        assert_eq!((ledger.initializes() as u64, ledger.calls("write")), (next, 2), "{how}");
    }
}
