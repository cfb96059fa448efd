//! K21: herds and rate limits.

use std::time::Duration;

use futures::future::join_all;
use mcp_reconnect::core::{Breaker, FailureClass, Refusal, State, Status, Then, WakeCause};
use mcp_reconnect::http::HttpConnector;
use mcp_reconnect::link::Connector;
use mcp_reconnect::{CallError, Connection, Events, HttpServer};
use mcp_reconnect_tests::fake::FakeHttp;

use super::clock::{quiet, skip};
use super::{builder, ready, serve};
use crate::support::*;

/// Waits for a dial to fail, and for how long the server is left alone after it: what the machine has set itself.
async fn next_wait(connection: &Connection, events: &mut Events) -> Duration {
    until_status(events, |status| status == Status::TransientFailure).await;
    wait(connection)
}

fn wait(connection: &Connection) -> Duration {
    let snapshot = connection.snapshot();
    match snapshot.state {
        State::TransientFailure { retry_at } | State::Closing { then: Then::Retry { at: retry_at }, .. } => {
            retry_at.since(snapshot.since)
        }
        other => panic!("{other:?}"),
    }
}

/// Dials now, whatever was asked for, and waits for the failure.
async fn wait_after_wake(connection: &Connection, events: &mut Events) -> Duration {
    connection.wake(WakeCause::Operator);
    next_wait(connection, events).await
}

fn limited(connection: &Connection) -> bool {
    connection.snapshot().failure == Some(FailureClass::RateLimited)
}

/// When the server read each request that began a dial, in milliseconds.
fn dials(server: &FakeHttp) -> Vec<u64> {
    let ledger = server.ledger();
    let dials = ledger.entries().iter().filter(|entry| match &entry.event {
        mcp_reconnect_tests::fake::Event::Http(mcp_reconnect_tests::fake::HttpEvent::Asked(asked)) => {
            matches!(asked.method.as_deref(), Some("server/discover"))
        }
        _ => false,
    });
    dials.map(|entry| entry.at).collect()
}

/// Also R083 and R084. A wake lifts a hint, so each of these stands for itself; that a shorter one does not shorten is
/// [`k21_a_later_shorter_hint_does_not_shorten`].
#[tokio::test]
async fn k21_429() {
    let server = serve("post status 429 header retry-after 60").await;
    let knobs = config(|knobs| knobs.retry_after_max(secs(7200)));
    let connection = builder(&server).config(knobs).build().unwrap();
    let mut events = connection.events();
    let first = next_wait(&connection, &mut events).await;
    assert!(first >= secs(60) && first < secs(70), "{first:?}");
    for (hint, least, most) in [
        ("7", secs(7), secs(8)),
        ("99999", secs(7200), secs(7200)),
        ("99999999999999999999999", secs(7200), secs(7200)),
        ("date 1h", secs(3500), secs(3600)),
        ("0", secs(0), secs(60)),
        ("\"Sun, 06 Nov 1994 08:49:37 GMT\"", secs(0), secs(60)),
        ("soon", secs(0), secs(60)),
        ("-5", secs(0), secs(60)),
        ("7.5", secs(0), secs(60)),
        ("none", secs(0), secs(60)),
    ] {
        server.set_script(&format!("post status 429 header retry-after {hint}")).await.unwrap();
        let wait = wait_after_wake(&connection, &mut events).await;
        assert!(wait >= least && wait <= most, "{hint}: {wait:?}");
        assert!(limited(&connection));
    }
    server.set_script("").await.unwrap();
    connection.wake(WakeCause::Operator);
    until_ready(&mut events).await;
    assert_eq!((server.ledger().answered(429), connection.snapshot().stats.failures), (11, 11));
}

/// The hint is obeyed: nobody knocks before it is over, whoever asks for a session.
#[tokio::test]
async fn k21_a_later_shorter_hint_does_not_shorten() {
    let server = serve(
        "post#1 status 429 header retry-after 2
         post#2 status 429 header retry-after 1
         post#3 status 429 header retry-after soon",
    )
    .await;
    let knobs = config(|knobs| knobs.backoff(millis(20)).backoff_max(millis(20)).min_dial_interval(millis(10)));
    let connection = builder(&server).config(knobs).build().unwrap();
    let mut events = connection.events();
    assert!(next_wait(&connection, &mut events).await >= secs(2));
    // A caller does not shorten it either.
    match connection.call_tool_with(tool("write"), &within(millis(50))).await {
        Err(CallError::Refused { why: Refusal::NotInTime, .. }) => {}
        other => panic!("{other:?}"),
    }
    assert!(next_wait(&connection, &mut events).await >= secs(2));
    let garbage = next_wait(&connection, &mut events).await;
    assert!(garbage <= millis(20), "without a hint, its step: {garbage:?}");
    assert_eq!(until_ready(&mut events).await, 4);
    let dials = dials(&server);
    assert!(dials[1] - dials[0] >= 2000 && dials[2] - dials[1] >= 2000, "{dials:?}");
}

/// Also R084: what a server asked for before it served has no effect on the next outage.
#[tokio::test]
async fn k21_success_clears_the_hint() {
    let server = serve("post#1 status 429 header retry-after 600").await;
    let knobs = config(|knobs| knobs.retry_after_max(secs(1)).redial_spread(millis(0)));
    let connection = builder(&server).config(knobs).build().unwrap();
    let mut events = connection.events();
    assert_eq!(next_wait(&connection, &mut events).await, secs(1), "capped");
    assert_eq!(until_ready(&mut events).await, 2);
    server.set_script("post status 503").await.unwrap();
    connection.invalidate(epoch(2), "a test");
    // The first redial comes at once, the second when its step says so.
    until_status(&mut events, |status| status == Status::Connecting).await;
    let wait = next_wait(&connection, &mut events).await;
    assert!(wait < secs(1) * 2, "{wait:?}");
    assert!(!limited(&connection));
}

/// A server that is down and says for how long is left alone that long; it is an outage nonetheless.
#[tokio::test]
async fn k21_503_with_and_without_a_hint() {
    let server = serve("post status 503 header retry-after 60").await;
    let knobs = config(|knobs| knobs.park_after(secs(3600)));
    let connection = builder(&server).config(knobs).build().unwrap();
    let mut events = connection.events();
    let hinted = next_wait(&connection, &mut events).await;
    assert!(hinted >= secs(60), "{hinted:?}");
    assert_eq!(connection.snapshot().failure, Some(FailureClass::Transport));
    for hint in ["none", "tomorrow"] {
        server.set_script(&format!("post status 503 header retry-after {hint}")).await.unwrap();
        let bare = wait_after_wake(&connection, &mut events).await;
        assert!(bare < secs(60), "{hint}: {bare:?}");
    }
}

/// However long it is limited, it is never parked and nothing is withdrawn; the same answers as 503 park.
#[tokio::test]
async fn k21_a_rate_limit_is_no_outage() {
    for (status, parks) in [(429, false), (503, true)] {
        let server = serve(&format!("post status {status}")).await;
        let knobs = config(|knobs| {
            knobs.backoff(millis(4)).backoff_max(millis(4)).min_dial_interval(millis(2)).park_after(millis(1))
        });
        let connection = builder(&server).config(knobs).build().unwrap();
        let mut events = connection.events();
        server.watch().wait_until(|ledger| parks || ledger.answered(429) >= 6).await;
        if parks {
            until_status(&mut events, |status| matches!(status, Status::Parked(_))).await;
            continue;
        }
        server.set_script("").await.unwrap();
        let seen = until_status(&mut events, |status| matches!(status, Status::Ready(_))).await;
        assert!(!seen.iter().any(|status| matches!(status, Status::Parked(_))), "{seen:?}");
        assert_eq!(connection.snapshot().breaker, Breaker::Closed { strikes: 0 });
    }
}

/// Also R083: a call is told, typed, with the delay. It did not run, is not sent again, and the session stays.
#[tokio::test]
async fn k21_429_at_a_call() {
    let (server, connection, events) = ready("").await;
    for (hint, least, most) in [
        ("7", Some(secs(7)), Some(secs(7))),
        ("date 1h", Some(secs(3500)), Some(secs(3600))),
        ("99999", Some(secs(99999)), Some(secs(99999))),
        ("soon", None, None),
        ("none", None, None),
    ] {
        let limit = format!("call write status 429 \"slow down\" header retry-after {hint}");
        server.set_script(&limit).await.unwrap();
        let posts = server.ledger().posts();
        match connection.call_tool(tool("write")).await {
            Err(error @ CallError::RateLimited { epoch: asked, retry_after, .. }) => {
                assert!(error.not_run() && error.to_string().contains("slow down"), "{error}");
                assert_eq!(asked, epoch(1));
                assert!(retry_after >= least && retry_after <= most, "{hint}: {retry_after:?}");
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(server.ledger().posts(), posts + 1, "asked once");
        // Other calls are not held up.
        assert_eq!(text(connection.call_tool(tool_with("echo", "fine")).await), "fine");
    }
    assert_eq!(connection.snapshot().stats.failures, 0);
    assert_eq!(server.ledger().executions("write"), 0);
    assert_eq!(drain_statuses(connection, events).await, [Status::Shutdown]);
}

/// A read-only tool is not sent again either: that would be one request more for who wants fewer.
#[tokio::test]
async fn k21_429_at_calls_is_no_strike() {
    let (server, connection, events) = ready("call * status 429 header retry-after 1").await;
    for _ in 0..3 {
        for answer in join_all((0..20).map(|_| connection.call_tool(tool("echo")))).await {
            assert!(matches!(answer, Err(CallError::RateLimited { .. })), "{answer:?}");
        }
        assert_eq!(connection.snapshot().breaker, Breaker::Closed { strikes: 0 });
    }
    assert_eq!(server.ledger().posts_of("tools/call"), 60);
    assert_eq!(drain_statuses(connection, events).await, [Status::Shutdown]);
}

/// Nor are pings that are limited pings that are missed.
#[tokio::test]
async fn k21_429_at_pings() {
    let server = serve("ping status 429 header retry-after 60").await;
    let knobs = config(|knobs| knobs.keepalive(millis(20)).ping_timeout(millis(500)).ping_misses(2));
    let connection = builder(&server).config(knobs).build().unwrap();
    let mut events = connection.events();
    assert_eq!(until_ready(&mut events).await, 1);
    server.watch().wait_until(|ledger| ledger.requests("ping") >= 5).await;
    assert_eq!(text(connection.call_tool(tool_with("write", "there")).await), "there");
    assert_eq!(drain_statuses(connection, events).await, [Status::Shutdown]);
}

/// A question about the session that is limited, or forbidden, was answered: by a server that is there.
#[tokio::test]
async fn k21_429_at_a_question() {
    for status in [429, 403] {
        let (server, connection, events) =
            ready(&format!("get status 405\ncall write#1 commit, cut\nping status {status}")).await;
        let outcome = connection.call_tool(tool("write")).await;
        assert!(matches!(outcome, Err(CallError::OutcomeUnknown { .. })), "{status}: {outcome:?}");
        assert_eq!(server.watch().wait_until(|ledger| ledger.answered(status) > 0).await.posts_of("ping"), 1);
        assert_eq!(text(connection.call_tool(tool_with("write", "fine")).await), "fine");
        assert_eq!(server.ledger().initializes(), 1, "{status}");
        assert_eq!(drain_statuses(connection, events).await, [Status::Shutdown], "{status}");
    }
}

/// Wherever in a dial it comes, it is a rate limit and not a server that speaks another protocol or offers no tools.
#[tokio::test]
async fn k21_429_anywhere_in_a_dial() {
    for line in ["post", "initialize", "list"] {
        let server = serve(&format!("{line}#1 status 429 header retry-after 600")).await;
        let connection = builder(&server).build().unwrap();
        let mut events = connection.events();
        let wait = next_wait(&connection, &mut events).await;
        assert!(wait >= secs(600) && limited(&connection), "{line}: {wait:?}");
        connection.wake(WakeCause::Operator);
        assert_eq!(until_ready(&mut events).await, 2, "{line}");
        // What the failed dial began is not left behind.
        assert_eq!(server.ledger().live_sessions().len(), 1, "{line}: {:?}", server.ledger().live_sessions());
    }
}

/// The standing stream that is limited is opened when the limit is over, and nothing else comes of it.
#[tokio::test]
async fn k21_429_at_the_standing_stream() {
    let (server, connection, events) = ready("get#1 status 429 header retry-after 50").await;
    server.watch().wait_until(|ledger| ledger.answered(429) == 1).await;
    quiet(&server, &connection).await;
    skip(secs(49)).await;
    quiet(&server, &connection).await;
    assert_eq!(server.ledger().gets(), 1);
    skip(secs(2)).await;
    server.watch().wait_until(|ledger| ledger.open_streams() == 1).await;
    assert_eq!(server.ledger().gets(), 2);
    assert_eq!(drain_statuses(connection, events).await, [Status::Shutdown]);
}

/// The substance of `reboot-20` and R082: the waits of twenty connections that fail at the same time, by their seeds.
#[tokio::test]
async fn k21_reboot_20() {
    let server = serve("").await;
    server.down().await;
    let mut buckets = [0_u32; 5];
    for seed in 0..20 {
        let connection = builder(&server).seed(seed).build().unwrap();
        let wait = next_wait(&connection, &mut connection.events()).await;
        assert!(wait >= millis(500) && wait < secs(1), "the first step has its jitter: {wait:?}");
        buckets[usize::try_from((wait.as_millis() - 500) / 100).unwrap()] += 1;
    }
    assert!(buckets.iter().all(|bucket| *bucket <= 8), "{buckets:?}");
}

/// Twenty connections to a server that reboots are back without a second of silence between the first and the last,
/// and none of them knocks twice.
#[tokio::test]
async fn k21_a_restart_under_twenty_connections() {
    let server = serve("").await;
    let connections: Vec<_> = (0..20).map(|seed| builder(&server).seed(seed).build().unwrap()).collect();
    for connection in &connections {
        connection.session().await.unwrap();
    }
    server.restart().await;
    let answers = join_all(connections.iter().map(|connection| connection.call_tool(tool_with("echo", "one")))).await;
    for answer in answers {
        assert_eq!(text(answer), "one");
    }
    let ledger = server.ledger();
    assert_eq!((ledger.of_spawn(2).initializes(), ledger.executions("echo")), (20, 20));
}

/// Unless the host says otherwise: who lost the same server at the same time does not come back at the same time.
#[test]
fn k21_redials_are_spread_by_default() {
    let connector = HttpConnector::new(HttpServer::new("http://localhost/mcp").unwrap());
    assert_eq!(connector.config(), config(|knobs| knobs.redial_spread(millis(250))));
    assert_ne!(connector.config(), config(|knobs| knobs));
}
