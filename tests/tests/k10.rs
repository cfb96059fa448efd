//! K10: only a session that lasted refunds anything.

use mcp_reconnect::core::{Config, ParkReason, Refusal, Status};
use mcp_reconnect::{CallError, Connection};
use mcp_reconnect_tests::link::process_connector;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::k08::until_parked;
use crate::k09::{climb, most_at_once, waits};
use crate::support::*;

const TEN_MINUTES: u64 = 600;

/// Also R035.
#[tokio::test(start_paused = true)]
async fn k10_handshake_exit0() {
    // However it spends its short life, and however it ends.
    for life in [
        "list ok, exit 0",
        "on initialized exit 0",
        "initialize ok, exit 0",
        "list ok, kill",
        "list ok, close stdout",
        "after 500ms exit 0",
        "after 9s exit 0",
        "list notify message x3, ok, exit 0",
    ] {
        let server = memory(life);
        let connection = connect(&server);
        let began = Instant::now();
        sleep_until(began + secs(TEN_MINUTES)).await;
        let ledger = server.ledger();
        let bound = Config::default().max_dials_unasked(secs(TEN_MINUTES)) + 1; // the first loss is redialled at once
        assert!(ledger.spawns() as u64 <= bound && bound <= 15, "{life}: {} of {bound}", ledger.spawns());
        assert!(ledger.spawns() >= 5, "{life}: {}", ledger.spawns());
        assert_eq!(most_at_once(&ledger), 1, "{life}");
        let status = connection.snapshot().status;
        assert!(matches!(status, Status::Parked(ParkReason::Flapping | ParkReason::Exhausted)), "{life}: {status}");
        assert!(connection.catalogue().is_none(), "{life}");
    }
}

#[tokio::test(start_paused = true)]
async fn k10_a_flapping_server_is_parked_as_such() {
    let server = memory("list ok, exit 0");
    let connection = connect(&server);
    let mut events = connection.events();
    let began = Instant::now();
    let seen = until_parked(&mut events).await;
    assert_eq!(seen.last(), Some(&Status::Parked(ParkReason::Flapping)));
    assert!(began.elapsed() <= Config::default().park_after(), "{:?}", began.elapsed());
    let readies = seen.iter().filter(|status| matches!(status, Status::Ready(_))).count();
    assert_eq!(readies, server.ledger().spawns(), "each was Ready once, and none of them proved anything");
    // Like a dead one: what a caller gets says when and why.
    let options = mcp_reconnect::CallOptions { max_wait: millis(1), ..within(secs(60)) };
    sleep(millis(1)).await;
    match connection.call_tool_with(tool("write"), &options).await {
        Err(CallError::Refused {
            why: Refusal::Parked(ParkReason::Flapping),
            retry_at: Some(_),
            cause: Some(cause),
        }) => {
            assert!(cause.contains("status 0"), "{cause}");
        }
        other => panic!("{other:?}"),
    }
}

/// Also R036.
#[tokio::test(start_paused = true)]
async fn k10_uptime_mix() {
    let server = memory(
        "spawn 1..5:\n after 100ms exit 1\n\
         spawn 6:\n after 20s exit 1\n\
         spawn 7:\n after 100ms exit 1",
    );
    let connection = connect(&server);
    let mut events = connection.events();
    let seen = until_status(&mut events, |status| status == Status::Ready(epoch(8))).await;
    assert!(!seen.iter().any(|status| matches!(status, Status::Parked(_))), "{seen:?}");
    let waits = waits(&server.ledger());
    // `min_dial_interval` after the dial, not yet a step; then the ladder.
    assert_eq!(waits[0], 400, "{waits:?}");
    assert!(climb(&waits[1..5], 0), "{waits:?}");
    // The sixth was proven: at once, and from the first step again.
    assert_eq!(waits[5], 0, "{waits:?}");
    assert!(climb(&waits[6..7], 0), "{waits:?}");
}

#[tokio::test(start_paused = true)]
async fn k10_proven_is_a_matter_of_uptime_alone() {
    for (uptime, proven) in [("9900ms", false), ("10100ms", true)] {
        let server = memory(&format!("after {uptime} exit 0"));
        let connection = connect(&server);
        let events = connection.events();
        let began = Instant::now();
        // Calls that are served prove nothing earlier.
        while began.elapsed() < secs(300) {
            drop(connection.call_tool(tool_with("echo", "hello")).await);
            sleep(secs(2)).await;
        }
        let seen = drain_statuses(connection, events).await;
        let parked = seen.iter().any(|status| matches!(status, Status::Parked(ParkReason::Flapping)));
        assert_eq!(parked, !proven, "{uptime}: {seen:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn k10_a_server_that_dies_of_each_call_is_flapping() {
    let server = memory("call * ok, exit 0");
    let connection = connect(&server);
    let (mut served, mut refused, mut parked) = (0, 0, false);
    let began = Instant::now();
    while began.elapsed() < secs(TEN_MINUTES) {
        match connection.call_tool(tool_with("write", "one more")).await {
            Ok(_) => served += 1,
            Err(CallError::Refused { .. }) => refused += 1,
            Err(other) => panic!("{other:?}"),
        }
        sleep(millis(100)).await;
        parked |= connection.snapshot().status == Status::Parked(ParkReason::Flapping);
    }
    // Callers are served all the time, at the pace that callers may ask for.
    let dials = server.ledger().spawns();
    assert!(dials <= 600 / 5 + 15, "{dials}");
    assert!(served >= 100, "{served} served, {refused} refused");
    assert_eq!(server.ledger().executions("write"), served);
    assert!(parked, "served calls prove nothing");
}

#[tokio::test(start_paused = true)]
async fn k10_one_good_session_among_probes_ends_the_episode() {
    // Parked for an hour, then a session that lasts, then a loss: everything is fresh.
    let server = memory("until 3600s:\n list ok, exit 0\nfrom 3600s:\n after 1h exit 0");
    let connection = connect(&server);
    let mut events = connection.events();
    until_parked(&mut events).await;
    sleep(secs(3600)).await;
    let options = mcp_reconnect::CallOptions { max_wait: secs(20), ..within(secs(60)) };
    assert_eq!(text(connection.call_tool_with(tool_with("echo", "up"), &options).await), "up");
    let spawns = server.ledger().spawns();
    sleep(secs(3700)).await;
    assert!(matches!(connection.snapshot().status, Status::Ready(_)), "{:?}", connection.snapshot());
    let ledger = server.ledger();
    assert_eq!(ledger.spawns(), spawns + 1);
    assert_eq!(waits(&ledger).last(), Some(&0));
    assert_eq!(connection.snapshot().probe_doublings, 0);
}

#[tokio::test]
async fn k10_handshake_exit0_of_processes_leaves_nothing() {
    let server = process("list ok, exit 0");
    let quick = config(|config| {
        config.min_dial_interval(millis(20)).backoff(millis(40)).demand_interval(millis(100)).park_after(millis(1500))
    });
    let connection = Connection::builder(process_connector(&server)).config(quick).seed(7).build().unwrap();
    let mut events = connection.events();
    timeout(secs(60), async {
        until_parked(&mut events).await;
        connection.shutdown().await;
    })
    .await
    .expect("a hang");
    let ledger = server.ledger().unwrap();
    assert!((2..=12).contains(&ledger.spawns()), "{}", ledger.spawns());
    assert_eq!((ledger.live_pids(), ledger.zombies()), (vec![], vec![]));
}
