//! K09: no trigger dials faster than the pace allows, and never twice at once.
//!
//! Rates are shown by least times: so many dials cannot take less than their waits, on whatever machine.

use std::collections::BTreeSet;
use std::time::Duration;

use futures::future::join_all;
use mcp_reconnect::core::{Status, WakeCause};
use mcp_reconnect::{CallError, CallOptions, Connection};
use mcp_reconnect_tests::fake::{Event as Entry, FakeHttp, HttpEvent, Ledger};
use tokio::time::Instant;

use super::k02::{soon, wave};
use super::{builder, ready, serve};
use crate::support::*;

/// How many `initialize` were under way at most.
fn most_at_once(ledger: &Ledger) -> usize {
    let (mut open, mut most) = (BTreeSet::new(), 0);
    for entry in ledger.entries() {
        match &entry.event {
            Entry::Http(HttpEvent::Asked(asked)) if asked.method.as_deref() == Some("initialize") => {
                open.insert((entry.spawn, asked.exchange));
            }
            Entry::Http(HttpEvent::Finished { exchange, .. }) => _ = open.remove(&(entry.spawn, *exchange)),
            _ => {}
        }
        most = most.max(open.len());
    }
    most
}

/// The least time that so many steps of a ladder from `first` take, each drawn from the upper half of its step.
fn least(first: Duration, steps: u32) -> Duration {
    (0..steps).map(|step| first * 2_u32.pow(step) / 2).sum()
}

/// Also R032. The server is restarted as soon as it is Ready, each time.
#[tokio::test]
async fn k09_caller_storm() {
    let server = serve("").await;
    let demand = millis(400);
    let config = config(|config| config.min_dial_interval(millis(50)).backoff(millis(200)).demand_interval(demand));
    let began = Instant::now();
    let connection = builder(&server).config(config).build().unwrap();
    let mut events = connection.events();
    let flapping = async {
        for _ in 0..8 {
            until_ready(&mut events).await;
            server.restart().await;
        }
    };
    let storm = async |number: u64| {
        // A few want it now or not at all.
        let max_wait = if number.is_multiple_of(10) { millis(20) } else { secs(10) };
        let options = CallOptions { max_wait, ..CallOptions::default() };
        loop {
            match connection.call_tool_with(tool("missing"), &options).await {
                Err(CallError::NotOffered { .. } | CallError::Refused { .. }) => {}
                other => panic!("{other:?}"),
            }
            tokio::time::sleep(millis(10)).await;
        }
    };
    soon(async {
        tokio::select! {
            () = flapping => {}
            _ = join_all((0..200).map(storm)) => {}
        }
    })
    .await;
    let (dials, took) = (connection.snapshot().stats.dials, began.elapsed());
    let ledger = server.ledger();
    assert_eq!((most_at_once(&ledger), ledger.posts_of("tools/call")), (1, 0));
    assert!(dials >= 8);
    // The first is free and the second at once; from then on half a `demand_interval` at least, but for the first steps.
    let bound = 4 + u64::try_from(took.as_millis() / (demand / 2).as_millis()).unwrap();
    assert!(dials <= bound, "{dials} dials in {took:?}");
}

/// Carries the connection through failures of one kind, each as soon as it is Ready; how long they took in all.
async fn failing(script: &str, keepalive: Duration, trigger: impl AsyncFn(&FakeHttp, &Connection, u64)) -> Duration {
    const ROUNDS: u32 = 5;
    let server = serve(script).await;
    let config = config(|config| {
        let config = config.keepalive(keepalive).ping_timeout(secs(1)).ping_misses(1);
        config.min_dial_interval(millis(10)).backoff(millis(60)).demand_interval(secs(30))
    });
    let connection = builder(&server).config(config).build().unwrap();
    let mut events = connection.events();
    let began = Instant::now();
    for round in 1..=ROUNDS {
        let ready = soon(until_ready(&mut events)).await;
        assert_eq!(ready, u64::from(round), "{script}: no dial beside those of the ladder");
        trigger(&server, &connection, ready).await;
        assert_eq!(soon(next_status(&mut events)).await, Status::TransientFailure, "{script}");
    }
    soon(until_ready(&mut events)).await;
    let took = began.elapsed();
    assert_eq!(most_at_once(&server.ledger()), 1, "{script}");
    assert_eq!(connection.snapshot().stats.dials, u64::from(ROUNDS) + 1, "{script}");
    // The first rebuild is due at once, each of the others is a step of the ladder.
    assert!(took >= least(millis(60), ROUNDS - 1), "{script}: {took:?}");
    took
}

/// Also R033, over HTTP: keepalive, stream, call, gate, user, restart and outage, all on the one ladder.
#[tokio::test]
async fn k09_four_routes() {
    let never = secs(3600);
    let by_itself = async |_: &FakeHttp, _: &Connection, _| {};
    let impatient = CallOptions { max_wait: millis(1), ..CallOptions::default() };
    let call = async |_: &FakeHttp, connection: &Connection, _| {
        assert!(connection.call_tool_with(tool("write"), &impatient).await.is_err());
    };
    let user = async |_: &FakeHttp, connection: &Connection, ready| {
        (0..20).for_each(|_| connection.invalidate(epoch(ready), "the user wants another one"));
    };
    let restart = async |server: &FakeHttp, _: &Connection, _| {
        // A stream that was never open tells of no loss.
        server.watch().wait_until(|ledger| ledger.open_streams() == 1).await;
        server.restart().await;
    };
    let forget = async |server: &FakeHttp, _: &Connection, _| server.forget_sessions().await;
    soon(async {
        tokio::join!(
            failing("ping#2.. never", millis(100), by_itself),
            failing("ping status 404", millis(100), by_itself),
            failing("get status 405", millis(100), forget),
            failing("get status 405\nstale status 400 \"Server not initialized\"", millis(100), forget),
            failing("call * status 404", never, call),
            failing("call * status 410", never, call),
            failing("", never, user),
            failing("", never, restart),
            failing("get ok, retry 10ms", never, restart),
        )
    })
    .await;
}

/// The routes that never get as far as Ready.
#[tokio::test]
async fn k09_start_failures_climb_too() {
    let failures = 6;
    for script in
        ["list error -32603 \"broken\"", "list status 503", "initialize status 502", "post status 404", "post reset"]
    {
        let server = serve(script).await;
        let config = config(|config| config.min_dial_interval(millis(10)).backoff(millis(40)));
        let began = Instant::now();
        let connection = builder(&server).config(config).build().unwrap();
        let mut events = connection.events();
        for _ in 0..failures {
            soon(until_status(&mut events, |status| status == Status::TransientFailure)).await;
        }
        let took = began.elapsed();
        assert!(took >= least(millis(40), failures - 1), "{script}: {took:?}");
        assert!(most_at_once(&server.ledger()) <= 1, "{script}");
        soon(connection.shutdown()).await;
    }
}

/// Whatever is asked for, and however often: `min_dial_interval`.
#[tokio::test]
async fn k09_no_trigger_is_unpaced() {
    type Trigger = fn(&Connection);
    let triggers: [(&str, Trigger); 6] = [
        ("operator", |connection| connection.wake(WakeCause::Operator)),
        ("credentials", |connection| connection.wake(WakeCause::Credentials)),
        ("resumed", Connection::resumed),
        ("park and wake", |connection| {
            connection.park();
            connection.wake(WakeCause::Operator);
        }),
        ("invalidate and wake", |connection| {
            if let Status::Ready(epoch) = connection.snapshot().status {
                connection.invalidate(epoch, "not good enough");
            }
            connection.wake(WakeCause::Operator);
        }),
        ("session", |connection| {
            let connection = connection.clone();
            drop(tokio::spawn(async move { drop(connection.session_after(epoch(1_000)).await) }));
        }),
    ];
    let gap = millis(100);
    for script in ["", "initialize status 502", "post status 404", "list cut"] {
        let storms = triggers.map(|(name, trigger)| async move {
            let server = serve(script).await;
            let config = config(|config| config.min_dial_interval(gap).backoff(gap * 2).demand_interval(gap));
            let began = Instant::now();
            let connection = builder(&server).config(config).build().unwrap();
            for _ in 0..200 {
                trigger(&connection);
                tokio::time::sleep(millis(5)).await;
            }
            let (dials, took) = (connection.snapshot().stats.dials, began.elapsed());
            soon(connection.shutdown()).await;
            let ledger = soon(server.watch().wait_until(|ledger| ledger.open_connections() == 0)).await;
            assert!(most_at_once(&ledger) <= 1, "{name}, {script}");
            let bound = 1 + u64::try_from(took.as_millis() / gap.as_millis()).unwrap();
            assert!((1..=bound).contains(&dials), "{name}, {script}: {dials} dials in {took:?}");
        });
        join_all(storms).await;
    }
}

#[tokio::test]
async fn k09_a_hundred_complaints_about_one_session_are_one_rebuild() {
    let (server, connection, mut events) = ready("").await;
    let complain = || (0..100).for_each(|_| connection.invalidate(epoch(1), "broken"));
    complain();
    assert_eq!(soon(until_ready(&mut events)).await, 2);
    // Those who come late complain about the dead.
    complain();
    wave(&connection, 20).await;
    assert_eq!(connection.snapshot().status, Status::Ready(epoch(2)));
    assert_eq!((server.ledger().initializes(), connection.snapshot().stats.dials), (2, 2));
}

/// A hundred calls that the same outage breaks are one rebuild as well, whatever each of them saw.
#[tokio::test]
async fn k09_a_hundred_broken_calls_are_one_rebuild() {
    let (server, connection, mut events) = ready("spawn 1:\n call * commit, never").await;
    let options = within(secs(1800));
    let calls = (0..100).map(|_| connection.call_tool_with(tool_with("echo", "x"), &options));
    let restart = async {
        server.watch().wait_until(|ledger| ledger.executions("echo") == 100).await;
        server.restart().await;
    };
    let (answers, ()) = soon(async { tokio::join!(join_all(calls), restart) }).await;
    answers.into_iter().for_each(|answer| assert_eq!(text(answer), "x"));
    assert_eq!(soon(until_ready(&mut events)).await, 2);
    let ledger = server.ledger();
    assert_eq!((ledger.initializes(), ledger.executions("echo"), connection.snapshot().stats.dials), (2, 200, 2));
    assert_eq!(most_at_once(&ledger), 1);
}

/// A healthy session or start is not disturbed by whoever asks for one.
#[tokio::test]
async fn k09_no_user_stops_a_healthy_session_or_start() {
    // The start ends when a second client has come.
    let server = serve("initialize hold 2, ok").await;
    let connection = builder(&server).build().unwrap();
    let mut events = connection.events();
    soon(server.watch().wait_until(|ledger| ledger.initializes() == 1)).await;
    (0..1000).for_each(|_| connection.wake(WakeCause::Operator));
    let other = builder(&server).build().unwrap();
    let mut other_events = other.events();
    assert_eq!(soon(until_ready(&mut events)).await, 1);
    (0..1000).for_each(|_| connection.wake(WakeCause::Operator));
    wave(&connection, 3).await;
    soon(until_ready(&mut other_events)).await;
    assert_eq!((server.ledger().initializes(), connection.snapshot().stats.dials), (2, 1));
}
