//! K11: the optional standing stream is not the connection.

use mcp_reconnect::Connection;
use mcp_reconnect::core::{Config, Status};
use mcp_reconnect_tests::fake::FakeHttp;

use super::clock::{quick, skip, turns};
use super::k02::soon;
use super::{builder, ready, serve};
use crate::support::*;

/// An idle minute after the other: each ends with a ping, and with a call behind which nothing is on its way.
async fn idles(server: &FakeHttp, connection: &Connection, minutes: usize) {
    let before = server.ledger().requests("ping");
    for minute in 1..=minutes {
        skip(secs(75)).await;
        server.watch().wait_until(|ledger| ledger.requests("ping") >= before + minute).await;
        assert_eq!(text(connection.call_tool(tool_with("echo", "fine")).await), "fine");
    }
}

/// Also R038 and R040. An hour is 48 idle stretches of 75 s.
#[tokio::test]
async fn k11_get_refused() {
    for answer in [
        "status 400",
        "status 404",
        "status 405",
        "status 406",
        "status 501",
        "status 200 '{}'",
        "status 200 \"hello\" header content-type text/html",
        "status 200 header content-type none",
        "status 415",
        "status 202",
        "status 204",
        "status 404 \"Session not found\"",
        "status 400 '{\"jsonrpc\":\"2.0\",\"error\":{\"code\":-32000,\"message\":\"Bad Request: Server not initialized\"},\"id\":null}'",
    ] {
        let (server, connection, mut events) = ready(&format!("get {answer}")).await;
        server.watch().wait_until(|ledger| ledger.gets() == 1).await;
        idles(&server, &connection, 48).await;
        assert_eq!(connection.snapshot().status, Status::Ready(epoch(1)), "{answer}");
        assert_eq!((server.ledger().gets(), server.ledger().initializes()), (1, 1), "{answer}");
        // The next epoch asks again, once.
        server.restart().await;
        assert_eq!(text(connection.call_tool(tool_with("write", "again")).await), "again", "{answer}");
        assert_eq!(until_ready(&mut events).await, 2);
        server.watch().wait_until(|ledger| ledger.gets() == 2).await;
        idles(&server, &connection, 3).await;
        assert_eq!((server.ledger().gets(), server.ledger().initializes()), (2, 2), "{answer}");
    }
}

/// Also R039: two hours in stretches of 75 s.
#[tokio::test]
async fn k11_get_silent() {
    let (server, connection, events) = ready("").await;
    server.watch().wait_until(|ledger| ledger.open_streams() == 1).await;
    idles(&server, &connection, 100).await;
    let ledger = server.ledger();
    assert_eq!((ledger.gets(), ledger.open_streams(), ledger.initializes(), ledger.abandoned()), (1, 1, 1, 0));
    assert_eq!(drain_statuses(connection, events).await, [Status::Shutdown]);
}

/// Two hours at once, without a ping between: nothing on the stream has a deadline.
#[tokio::test]
async fn k11_get_silent_without_pings() {
    let server = serve("").await;
    let quiet: Config = config(|config| config.keepalive(secs(86_400)));
    let connection = builder(&server).config(quiet).build().unwrap();
    connection.session().await.unwrap();
    server.watch().wait_until(|ledger| ledger.open_streams() == 1).await;
    skip(secs(7200)).await;
    assert_eq!(text(connection.call_tool(tool_with("write", "fine")).await), "fine");
    let ledger = server.ledger();
    assert_eq!((ledger.gets(), ledger.open_streams(), ledger.initializes()), (1, 1, 1));
}

/// A stream that the server or something between ends now and then is opened again, and that is all.
#[tokio::test]
async fn k11_get_cut_now_and_then() {
    for end in ["cut", "end", "reset"] {
        let (server, connection, events) = ready(&format!("get ok, retry 1ms, delay 120s, {end}")).await;
        for number in 1..=5 {
            server.watch().wait_until(|ledger| ledger.streams() == number && ledger.open_streams() == 1).await;
            skip(secs(121)).await;
        }
        assert_eq!(text(connection.call_tool(tool_with("write", "fine")).await), "fine");
        assert_eq!(server.ledger().initializes(), 1, "{end}");
        assert_eq!(drain_statuses(connection, events).await, [Status::Shutdown], "{end}");
    }
}

/// What else a first GET meets is no session loss; it is asked for again, once a minute at most.
#[tokio::test]
async fn k11_get_refused_for_now() {
    for answer in ["status 401", "status 401 header www-authenticate Bearer", "status 403", "status 410"] {
        let (server, connection, events) = ready(&format!("get {answer}")).await;
        server.watch().wait_until(|ledger| ledger.gets() == 1).await;
        idles(&server, &connection, 48).await;
        let ledger = server.ledger();
        assert!((10..=75).contains(&ledger.gets()), "{answer}: {}", ledger.gets());
        assert_eq!(ledger.initializes(), 1, "{answer}");
        assert_eq!(drain_statuses(connection, events).await, [Status::Shutdown], "{answer}");
    }
}

/// One that stood for a while has made good for those that ended at once before it.
#[tokio::test]
async fn k11_get_ends_at_once_now_and_then() {
    let quick: Vec<_> = [1, 2, 3, 5, 6, 7].iter().map(|number| format!("get#{number} ok, retry 1ms, end")).collect();
    let (server, connection, events) =
        ready(&format!("{}\nget#4 ok, retry 1ms, delay 120s, end", quick.join("\n"))).await;
    for (streams, open) in [(1, 0), (2, 0), (3, 0), (4, 1), (5, 0), (6, 0), (7, 0), (8, 1)] {
        soon(server.watch().wait_until(|ledger| ledger.streams() == streams && ledger.open_streams() == open)).await;
        turns().await;
        // The waits are 1, 2, 4 s, and after the one that stood for two minutes the same again.
        skip(if streams == 4 { secs(121) } else { secs(4) }).await;
    }
    assert_eq!(text(connection.call_tool(tool_with("write", "fine")).await), "fine");
    assert_eq!(drain_statuses(connection, events).await, [Status::Shutdown]);
}

/// One that ends as soon as it is open is no success, whatever time the server names for the next try: it is opened
/// again once a minute at most.
#[tokio::test]
async fn k11_get_ends_at_once() {
    for end in ["retry 1ms, end", "retry 0ms, end", "retry 1ms, cut", "event-id e1, retry 1ms, end"] {
        let (server, connection, events) = ready(&format!("get ok, {end}\nresume ok, {end}")).await;
        server.watch().wait_until(|ledger| ledger.gets() == 2 && ledger.open_requests() == 0).await;
        assert_eq!(text(connection.call_tool(tool_with("echo", "fine")).await), "fine");
        turns().await;
        for _ in 0..20 {
            skip(secs(75)).await;
            turns().await;
            assert_eq!(text(connection.call_tool(tool_with("echo", "fine")).await), "fine");
        }
        let ledger = server.ledger();
        // Some of them before the waits had grown.
        assert!((10..=2 + 6 + 25).contains(&ledger.gets()), "{end}: {}", ledger.gets());
        assert_eq!(ledger.initializes(), 1, "{end}");
        assert_eq!(drain_statuses(connection, events).await, [Status::Shutdown], "{end}");
    }
}

/// What fails on this route alone is not the session, and not asked for ever.
#[tokio::test]
async fn k11_get_fails_otherwise() {
    for failure in ["status 500", "status 503 header retry-after 1", "reset", "cut", "status 429 header retry-after 1"]
    {
        let (server, connection, events) = ready(&format!("get {failure}")).await;
        server.watch().wait_until(|ledger| ledger.gets() == 2).await;
        assert_eq!(text(connection.call_tool(tool_with("write", "fine")).await), "fine", "{failure}");
        assert_eq!(server.ledger().initializes(), 1, "{failure}");
        assert_eq!(drain_statuses(connection, events).await, [Status::Shutdown], "{failure}");
    }
}

/// Ready does not wait for the stream, and neither do calls.
#[tokio::test]
async fn k11_get_never_answered() {
    for never in ["never", "black-hole", "delay 1h, status 405"] {
        let (server, connection, events) = ready(&format!("get {never}")).await;
        server.watch().wait_until(|ledger| ledger.gets() == 1).await;
        idles(&server, &connection, 3).await;
        assert_eq!((server.ledger().gets(), server.ledger().initializes()), (1, 1), "{never}");
        assert_eq!(drain_statuses(connection, events).await, [Status::Shutdown], "{never}");
    }
}

/// A 404 for the id on a stream that was open before is the session's end, seen without any call.
#[tokio::test]
async fn k11_get_tells_of_a_lost_session() {
    let server = serve("get ok, delay 60s, cut").await;
    let connection = builder(&server).config(config(quick)).build().unwrap();
    let mut events = connection.events();
    until_ready(&mut events).await;
    server.watch().wait_until(|ledger| ledger.open_streams() == 1).await;
    server.forget_sessions().await;
    skip(secs(61)).await;
    assert_eq!(until_ready(&mut events).await, 2);
    assert_eq!(server.ledger().posts_of("tools/call"), 0);
    assert_eq!(server.ledger().initializes_with_session(), 0);
}

/// The stateless era and servers without sessions: no GET in the one, one at most in the other.
#[tokio::test]
async fn k11_no_session_no_stream() {
    let (server, connection, _events) = ready("era modern").await;
    for _ in 0..3 {
        skip(secs(75)).await;
        assert_eq!(text(connection.call_tool(tool_with("write", "fine")).await), "fine");
    }
    assert_eq!((server.ledger().gets(), server.ledger().initializes()), (0, 0));
    let (server, connection, events) = ready("sessions none\nget status 405").await;
    server.watch().wait_until(|ledger| ledger.gets() == 1).await;
    idles(&server, &connection, 3).await;
    assert_eq!((server.ledger().gets(), server.ledger().initializes()), (1, 1));
    assert_eq!(drain_statuses(connection, events).await, [Status::Shutdown]);
}
