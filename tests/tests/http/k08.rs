//! K08: never give up for good, never shout while waiting.
//!
//! An outage of a minute is one that outlasts the ladder here: `park_after` is half a second, and what comes after is
//! steered by what the connection tells.

use std::time::Duration;

use async_trait::async_trait;
use mcp_reconnect::core::{ConfigBuilder, FailureClass, ParkReason, Refusal, Status, WakeCause};
use mcp_reconnect::http::HttpConnector;
use mcp_reconnect::link::{Attempt, ConnectError, Connector, Link};
use mcp_reconnect::{CallError, Connection, Event, Events, HttpServer};
use mcp_reconnect_tests::fake::FakeHttp;
use tokio::sync::watch;

use super::k02::{soon, wave};
use super::{builder, ready, serve};
use crate::k08::Warnings;
use crate::support::*;

/// A ladder of a few steps, then parked.
fn short_ladder(config: ConfigBuilder) -> ConfigBuilder {
    config.min_dial_interval(millis(10)).backoff(millis(50)).demand_interval(millis(50)).park_after(millis(500))
}

fn connect(server: &FakeHttp, change: impl FnOnce(ConfigBuilder) -> ConfigBuilder) -> Connection {
    builder(server).config(config(|config| change(short_ladder(config)))).build().unwrap()
}

async fn until_parked(events: &mut Events) -> Vec<Status> {
    soon(until_status(events, |status| matches!(status, Status::Parked(_)))).await
}

/// Ways to be down.
const DEAD: [&str; 6] = [
    "initialize status 502",
    "post status 503",
    "post status 404 \"404 page not found\"",
    "post reset",
    "post cut",
    "list error -32603 \"broken\"",
];

/// H-outage-60s and R027: the ladder, then parked, then Ready by the slow probe alone.
#[tokio::test]
async fn k08_outage_60s() {
    let server = serve("").await;
    let connection = connect(&server, |config| config.park_probe(millis(700)).park_probe_max(secs(5)));
    let mut events = connection.events();
    assert_eq!(until_ready(&mut events).await, 1);
    wave(&connection, 1).await;
    server.down().await;
    let seen = until_parked(&mut events).await;
    assert_eq!(seen.last(), Some(&Status::Parked(ParkReason::Exhausted)));
    assert!(seen.contains(&Status::TransientFailure), "a ladder before: {seen:?}");
    assert!(connection.snapshot().stats.failures >= 3, "{:?}", connection.snapshot().stats);
    assert!(connection.catalogue().is_none());
    server.up().await;
    assert!(matches!(soon(next_status(&mut events)).await, Status::Ready(_)), "nothing else is told");
    assert!(connection.snapshot().stats.probes >= 1);
    wave(&connection, 3).await;
}

/// The same with a call as soon as it is up; the probe is an hour away.
#[tokio::test]
async fn k08_outage_ends_with_a_call() {
    for dead in ["refused", "post status 503", "restart"] {
        let server = serve("").await;
        let connection = connect(&server, |config| config.park_probe(secs(3600)).park_probe_max(secs(3600)));
        let mut events = connection.events();
        assert_eq!(until_ready(&mut events).await, 1);
        if dead == "post status 503" {
            server.set_script(dead).await.unwrap();
            connection.invalidate(epoch(1), "start anew");
        } else {
            server.down().await;
        }
        until_parked(&mut events).await;
        server.set_script("").await.unwrap();
        match dead {
            "restart" => server.restart().await,
            _ => server.up().await,
        }
        assert_eq!(text(soon(connection.call_tool(tool_with("write", "wake up"))).await), "wake up", "{dead}");
        assert!(matches!(soon(next_status(&mut events)).await, Status::Ready(_)), "{dead}");
        assert_eq!((connection.snapshot().stats.probes, server.ledger().executions("write")), (0, 1), "{dead}");
    }
}

/// Every wake ends the wait of every such park.
#[tokio::test]
async fn k08_wakes_end_a_park() {
    type Wake = fn(&Connection);
    let wakes: [(&str, Wake); 4] = [
        ("operator", |connection| connection.wake(WakeCause::Operator)),
        ("config", |connection| connection.wake(WakeCause::Config)),
        ("credentials", |connection| connection.wake(WakeCause::Credentials)),
        ("resumed", Connection::resumed),
    ];
    let parks = DEAD.iter().flat_map(|dead| wakes.iter().map(move |(name, wake)| (*dead, *name, *wake)));
    // What comes while a session is being closed is not for a park yet.
    let parks = parks.filter(|(dead, name, _)| *name != "resumed" || !dead.starts_with("list"));
    let parks = parks.map(|(dead, name, wake)| async move {
        let server = serve(dead).await;
        let connection = connect(&server, |config| config.park_probe(secs(3600)).park_probe_max(secs(3600)));
        let mut events = connection.events();
        assert_eq!(until_parked(&mut events).await.last(), Some(&Status::Parked(ParkReason::Exhausted)), "{dead}");
        server.set_script("").await.unwrap();
        wake(&connection);
        assert!(matches!(soon(next_status(&mut events)).await, Status::Ready(_)), "{name}, {dead}");
        wave(&connection, 1).await;
    });
    futures::future::join_all(parks).await;
}

/// Also R028.
#[tokio::test]
async fn k08_502_once() {
    for trouble in ["status 502", "status 503", "reset"] {
        let server = serve(&format!("initialize#1 {trouble}")).await;
        let connection = builder(&server).build().unwrap();
        let mut events = connection.events();
        let seen = soon(until_status(&mut events, |status| matches!(status, Status::Ready(_)))).await;
        assert_eq!(seen, [Status::Connecting, Status::TransientFailure, Status::Connecting, Status::Ready(epoch(2))]);
        assert_eq!(server.ledger().initializes(), 2, "{trouble}");
        assert_eq!(connection.snapshot().stats.dials, 2, "{trouble}");
        wave(&connection, 1).await;
    }
}

/// I08b: what never worked is tried until it parks as what once did.
#[tokio::test]
async fn k08_first_connect_has_the_same_ladder() {
    for dead in ["post status 503", "refused"] {
        let kill = async |server: &FakeHttp| match dead {
            "refused" => server.down().await,
            script => server.set_script(script).await.unwrap(),
        };
        let never = serve("").await;
        kill(&never).await;
        let first = connect(&never, |config| config);
        let mut events = first.events();
        let seen = until_parked(&mut events).await;
        assert_eq!(seen.last(), Some(&Status::Parked(ParkReason::Exhausted)), "{dead}");

        let once = serve("").await;
        let again = connect(&once, |config| config);
        let mut events = again.events();
        assert_eq!(until_ready(&mut events).await, 1);
        kill(&once).await;
        again.invalidate(epoch(1), "start anew");
        let seen = until_parked(&mut events).await;
        assert_eq!(seen.last(), Some(&Status::Parked(ParkReason::Exhausted)), "{dead}");
        // Both have made the few dials that the same half second has room for.
        for failures in [first.snapshot().stats.failures, again.snapshot().stats.failures - 1] {
            assert!((2..=6).contains(&failures), "{dead}: {failures}");
        }
    }
}

/// Counts the dials, those that no server sees included.
struct Counted(HttpConnector, watch::Sender<u64>);

#[async_trait]
impl Connector for Counted {
    async fn connect(&self, attempt: Attempt) -> Result<Link, ConnectError> {
        self.1.send_modify(|dials| *dials += 1);
        self.0.connect(attempt).await
    }

    fn close_bound(&self) -> Duration {
        self.0.close_bound()
    }
}

/// Also R029. The weeks are a probe interval of two milliseconds.
#[tokio::test]
async fn k08_dead_for_weeks() {
    for (script, reason, probes) in [
        ("refused", ParkReason::Exhausted, 1_000),
        ("initialize status 503", ParkReason::Exhausted, 200),
        ("initialize status 404", ParkReason::Exhausted, 200),
        ("initialize only 2031-01-01", ParkReason::Permanent, 200),
    ] {
        let (warnings, _guard) = Warnings::of_this_thread();
        let server = serve(if script == "refused" { "" } else { script }).await;
        if script == "refused" {
            server.down().await;
        }
        let config = config(|config| {
            let config = config.min_dial_interval(millis(1)).backoff(millis(2)).demand_interval(millis(1));
            config.park_after(millis(20)).park_probe(millis(2)).park_probe_max(millis(2))
        });
        let dials = watch::Sender::new(0);
        let counted = Counted(HttpConnector::new(HttpServer::new(&server.url()).unwrap()), dials.clone());
        let connection = Connection::builder(counted).config(config).seed(7).build().unwrap();
        let mut events = connection.events();
        assert_eq!(until_parked(&mut events).await.last(), Some(&Status::Parked(reason)), "{script}");
        let enough = connection.snapshot().stats.dials + probes + 1;
        soon(dials.subscribe().wait_for(|dials| *dials >= enough)).await.unwrap();
        let snapshot = connection.snapshot();
        assert_eq!(snapshot.status, Status::Parked(reason), "{script}");
        let stats = snapshot.stats;
        assert!(stats.probes >= probes && stats.failures >= probes, "the repeats are counted: {stats:?}");
        assert_eq!(drain_statuses(connection, events).await, [Status::Shutdown], "{script}: one notice per episode");
        let logged = warnings.logged();
        assert_eq!(logged.values().sum::<usize>(), 1, "{script}: {logged:?}");
        // Nothing piles up.
        soon(server.watch().wait_until(|ledger| ledger.open_connections() == 0)).await;
    }
}

/// What was withdrawn comes back with the session, and a new episode is a new notice.
#[tokio::test]
async fn k08_each_episode_has_one_notice() {
    let server = serve("").await;
    let connection =
        connect(&server, |config| config.stable_after(millis(1)).park_probe(secs(3600)).park_probe_max(secs(3600)));
    let mut events = connection.events();
    assert_eq!(until_ready(&mut events).await, 1);
    for _ in 0..3 {
        assert!(connection.catalogue().is_some());
        wave(&connection, 1).await;
        server.down().await;
        let (mut parked, mut withdrawn) = (0, 0);
        while parked == 0 {
            match soon(events.next()).await.expect("an event") {
                Event::Status { status: Status::Parked(reason), failure, .. } => {
                    assert!(matches!(reason, ParkReason::Exhausted | ParkReason::Flapping), "{reason:?}");
                    assert_eq!(failure, Some(FailureClass::Refused));
                    parked += 1;
                }
                Event::Withdrawn => withdrawn += 1,
                _ => {}
            }
        }
        assert_eq!(withdrawn, 1);
        assert!(connection.catalogue().is_none());
        server.restart().await;
        assert_eq!(text(soon(connection.call_tool(tool_with("write", "again"))).await), "again");
        assert!(matches!(soon(next_status(&mut events)).await, Status::Ready(_)));
    }
}

/// Requested is the one park that waits for a word: the session is released, and calls do not bring it back.
#[tokio::test]
async fn k08_a_requested_park_rests_until_woken() {
    let (server, connection, mut events) = ready("").await;
    connection.park();
    assert_eq!(soon(next_status(&mut events)).await, Status::Parked(ParkReason::Requested));
    let ledger = soon(server.watch().wait_until(|ledger| ledger.open_connections() == 0)).await;
    assert_eq!((ledger.deletes(), ledger.live_sessions()), (vec!["A1"], vec![]));
    for _ in 0..10 {
        let outcome = soon(connection.call_tool(tool("echo"))).await;
        assert!(
            matches!(outcome, Err(CallError::Refused { why: Refusal::Parked(ParkReason::Requested), .. })),
            "{outcome:?}"
        );
    }
    assert_eq!(server.ledger().connections(), ledger.connections());
    connection.wake(WakeCause::Operator);
    assert_eq!(soon(until_ready(&mut events)).await, 2);
}
