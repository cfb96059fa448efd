//! K12: keepalive raises no false alarm over HTTP either.

use mcp_reconnect::core::{FailureClass, PingSupport, Status};
use mcp_reconnect::{Connection, Event};
use mcp_reconnect_tests::fake::{FakeHttp, Ledger};

use super::clock::{quiet, skip, turns};
use super::{builder, ready, serve};
use crate::support::*;

/// Idle stretches of 75 s, each long enough for a ping to be due, which is waited for.
async fn idles(server: &FakeHttp, connection: &Connection, stretches: usize) {
    for _ in 0..stretches {
        let before = server.ledger().requests("ping");
        skip(secs(75)).await;
        server.watch().wait_until(|ledger| ledger.requests("ping") > before).await;
        assert_eq!(text(connection.call_tool(tool_with("echo", "fine")).await), "fine");
    }
}

/// The same where nobody asks any more.
async fn idles_unasked(connection: &Connection, stretches: usize) {
    for _ in 0..stretches {
        skip(secs(75)).await;
        turns().await;
        assert_eq!(text(connection.call_tool(tool_with("echo", "fine")).await), "fine");
    }
}

fn is_ready(connection: &Connection, number: u64) -> bool {
    connection.snapshot().status == Status::Ready(epoch(number))
}

/// Also R042.
#[tokio::test]
async fn k12_no_ping() {
    for unknown in [
        "error \"Unknown method: ping\"",
        "error 0 \"Unknown method: ping\"",
        "error -32601 \"Method not found\"",
        "error -32603 \"internal error\"",
        "with-status 400, error -32601 \"Method not found\"",
        "with-status 404, error -32601 \"Method not found\"",
        "with-status 500, error -32603 \"internal error\"",
    ] {
        let (server, connection, events) = ready(&format!("ping {unknown}")).await;
        skip(secs(75)).await;
        server.watch().wait_until(|ledger| ledger.requests("ping") == 1).await;
        quiet(&server, &connection).await;
        assert_eq!(connection.snapshot().pings, PingSupport::Refuses);
        idles_unasked(&connection, 47).await;
        let ledger = server.ledger();
        assert_eq!((ledger.requests("ping"), ledger.initializes()), (1, 1), "{unknown}");
        assert_eq!(drain_statuses(connection, events).await, [Status::Shutdown], "{unknown}");
    }
}

/// It is the server's way, not the session's.
#[tokio::test]
async fn k12_no_ping_is_remembered_across_epochs() {
    let (server, connection, mut events) = ready("ping error \"Unknown method: ping\"").await;
    skip(secs(75)).await;
    server.watch().wait_until(|ledger| ledger.requests("ping") == 1).await;
    quiet(&server, &connection).await;
    assert_eq!(connection.snapshot().pings, PingSupport::Refuses);
    server.restart().await;
    assert_eq!(text(connection.call_tool(tool_with("write", "again")).await), "again");
    assert_eq!(until_ready(&mut events).await, 2);
    idles_unasked(&connection, 10).await;
    assert_eq!((server.ledger().of_spawn(2).requests("ping"), server.ledger().initializes()), (0, 2));
}

/// What refuses pings without being MCP about it is there all the same.
#[tokio::test]
async fn k12_refused_is_alive() {
    for refused in ["status 429", "status 429 header retry-after 7"] {
        let (server, connection, events) = ready(&format!("ping {refused}")).await;
        for _ in 0..10 {
            let before = server.ledger().requests("ping");
            skip(secs(75)).await;
            let done =
                |ledger: &Ledger| ledger.requests("ping") > before && ledger.open_requests() == ledger.open_streams();
            server.watch().wait_until(done).await;
            // Nothing else comes in that could count as life.
            turns().await;
        }
        assert_eq!(server.ledger().initializes(), 1, "{refused}");
        assert_eq!(drain_statuses(connection, events).await, [Status::Shutdown], "{refused}");
    }
}

/// One ping that fails on its way is no verdict either.
#[tokio::test]
async fn k12_one_failed_ping() {
    for failure in ["cut", "reset", "end", "headers-only", "status 503", "status 502 \"<html>\"", "status 504"] {
        let (server, connection, events) = ready(&format!("ping#1 {failure}")).await;
        idles(&server, &connection, 3).await;
        assert_eq!(server.ledger().initializes(), 1, "{failure}");
        assert_eq!(drain_statuses(connection, events).await, [Status::Shutdown], "{failure}");
    }
}

#[tokio::test]
async fn k12_one_missed_ping_is_no_verdict() {
    let (server, connection, events) = ready("ping#1 never").await;
    skip(secs(75)).await;
    server.watch().wait_until(|ledger| ledger.requests("ping") == 1).await;
    skip(secs(20)).await;
    server.watch().wait_until(|ledger| ledger.requests("ping") == 2).await;
    assert_eq!(text(connection.call_tool(tool_with("echo", "fine")).await), "fine");
    idles(&server, &connection, 3).await;
    assert_eq!((server.ledger().initializes(), server.ledger().open_requests()), (1, 1), "the stream alone is open");
    assert_eq!(drain_statuses(connection, events).await, [Status::Shutdown]);
}

/// Also R044.
#[tokio::test]
async fn k12_heavy_list() {
    let server = serve("list delay 40s").await;
    let patient = config(|config| config.connect_timeout(secs(60)));
    let connection = builder(&server).config(patient).build().unwrap();
    let mut events = connection.events();
    server.watch().wait_until(|ledger| ledger.requests("tools/list") == 1).await;
    skip(secs(40)).await;
    assert_eq!(until_ready(&mut events).await, 1);
    idles(&server, &connection, 48).await;
    let ledger = server.ledger();
    assert_eq!((ledger.initializes(), ledger.requests("tools/list")), (1, 1));
    assert_eq!(drain_statuses(connection, events).await, [Status::Shutdown]);
}

#[tokio::test]
async fn k12_ping_fails_with_call() {
    for failure in ["error \"Unknown method: ping\"", "status 503", "cut", "status 400", "status 429"] {
        let server = serve(&format!("ping {failure}\nping#2.. ok\ncall write delay 5s, reply \"done\"")).await;
        asked_during_a_call(&server, "ping").await;
        assert_eq!(server.ledger().initializes(), 1, "{failure}");
    }
}

/// Also R045.
#[tokio::test]
async fn k12_r045_modern_ping_fails_with_call() {
    for failure in ["error -32601 \"gone\"", "error -32603 \"internal error\"", "error \"Unknown method\""] {
        let server = serve(&format!("era modern\ndiscover#2.. {failure}\ncall write delay 5s, reply \"done\"")).await;
        let connection = asked_during_a_call(&server, "server/discover").await;
        quiet(&server, &connection).await;
        assert_eq!(connection.snapshot().pings, PingSupport::Refuses);
        idles_unasked(&connection, 10).await;
        assert_eq!((server.ledger().discovers(), server.ledger().requests("ping")), (2, 0), "{failure}");
        assert!(is_ready(&connection, 1), "{failure}");
    }
}

/// The host wakes in the middle of a call, which has the server asked whatever it is busy with.
async fn asked_during_a_call(server: &FakeHttp, question: &str) -> Connection {
    let connection = builder(server).build().unwrap();
    let mut events = connection.events();
    until_ready(&mut events).await;
    let asked = server.ledger().requests(question);
    let asker = connection.clone();
    let call = tokio::spawn(async move { asker.call_tool(tool("write")).await });
    server.watch().wait_until(|ledger| ledger.calls("write") == 1).await;
    // A second later, so that nothing that came before counts as the answer.
    skip(secs(1)).await;
    connection.resumed();
    server.watch().wait_until(|ledger| ledger.posts_of(question) > asked).await;
    assert_eq!(text(connection.call_tool(tool_with("echo", "beside it")).await), "beside it");
    skip(secs(5)).await;
    assert_eq!(text(call.await.unwrap()), "done");
    assert_eq!(connection.snapshot().stats.pings, 1);
    let ledger = server.ledger();
    assert_eq!((ledger.executions("write"), ledger.posts_of("tools/call"), ledger.cancelled().len()), (1, 2, 0));
    assert!(is_ready(&connection, 1), "{connection:?}");
    connection
}

/// Who works is not asked: the answer comes after four minutes.
#[tokio::test]
async fn k12_busy_240s() {
    let (server, connection, _events) = ready("call write delay 240s, reply \"done\"").await;
    let asker = connection.clone();
    let call = tokio::spawn(async move { asker.call_tool_with(tool("write"), &within(secs(300))).await });
    server.watch().wait_until(|ledger| ledger.calls("write") == 1).await;
    for _ in 0..4 {
        skip(secs(60)).await;
    }
    assert_eq!(text(call.await.unwrap()), "done");
    assert!(is_ready(&connection, 1), "{connection:?}");
    assert_eq!((server.ledger().requests("ping"), server.ledger().initializes()), (0, 1));
}

/// A frozen server is found out, by two questions and not by one.
#[tokio::test]
async fn k12_silence_is_a_verdict_in_the_end() {
    let (server, connection, mut events) = ready("").await;
    assert_eq!(text(connection.call_tool(tool_with("echo", "fine")).await), "fine");
    server.freeze().await;
    skip(secs(75)).await;
    skip(secs(21)).await;
    assert!(is_ready(&connection, 1), "{connection:?}");
    skip(secs(21)).await;
    loop {
        if let Event::Status { status: Status::TransientFailure, failure, .. } = events.next().await.unwrap() {
            assert_eq!(failure, Some(FailureClass::Unresponsive));
            break;
        }
    }
    assert_eq!(connection.snapshot().stats.pings, 2);
    server.thaw().await;
    assert_eq!(until_ready(&mut events).await, 2);
}

/// A server that fails at every ping, and at nothing else, is left alone in the end, as one that ignores them is.
#[tokio::test]
async fn k12_a_server_that_fails_at_pings_is_left_alone_in_the_end() {
    for failure in ["status 501", "status 500 \"Unknown method: ping\"", "cut"] {
        let (server, connection, _events) = ready(&format!("ping {failure}")).await;
        idles_unasked(&connection, 10).await;
        let initializes = server.ledger().initializes();
        assert!(initializes <= 3, "{failure}: {initializes} sessions for ten idle stretches");
    }
}

/// A ping that is refused, by a server that answers when it is asked something else, is one that it does not know.
#[tokio::test]
async fn k12_refused_by_a_server_that_is_well() {
    for refused in ["status 400 \"no\"", "status 405", "status 403", "status 413"] {
        let (server, connection, events) = ready(&format!("ping {refused}")).await;
        skip(secs(75)).await;
        server.watch().wait_until(|ledger| ledger.requests("ping") == 1 && ledger.requests("tools/list") == 2).await;
        turns().await;
        assert_eq!(text(connection.call_tool(tool_with("echo", "fine")).await), "fine", "{refused}");
        assert_eq!(server.ledger().initializes(), 1, "{refused}");
        assert_eq!(drain_statuses(connection, events).await, [Status::Shutdown], "{refused}");
    }
}
