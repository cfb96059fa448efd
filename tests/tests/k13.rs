//! K13: sleep and wake, and a status that never lies.

use std::time::Duration;

use mcp_reconnect::core::{FailureClass, State, Status};
use mcp_reconnect::stdio::StdioConnector;
use mcp_reconnect::{Connection, Event, Events};
use mcp_reconnect_tests::fake::{Entry, Event as Seen};
use mcp_reconnect_tests::link::process_command;
use rustix::process::{Pid, Signal, kill_process};
use tokio::time::{Instant, timeout};

use crate::support::*;

/// The host sleeps: the clock is somewhere else all of a sudden, and the host knows why.
async fn sleeps(connections: &[Connection], how_long: Duration) {
    for connection in connections {
        connection.resumed();
    }
    tokio::time::advance(how_long).await;
}

const NETWORK_DOWN: &str = "initialize exit 1";

/// Also R047, but for the gate that bounds what many connections dial at once.
#[tokio::test(start_paused = true)]
async fn k13_wake_herd() {
    let spread = config(|config| config.redial_spread(millis(250)));
    let servers: Vec<_> = (0..8).map(|_| memory("spawn 1:\n after 2h exit 1")).collect();
    let connections: Vec<_> = servers
        .iter()
        .enumerate()
        .map(|(seed, server)| builder(server).config(spread).seed(seed as u64).build().unwrap())
        .collect();
    let mut all_events: Vec<_> = connections.iter().map(Connection::events).collect();
    for events in &mut all_events {
        until_ready(events).await;
    }
    servers.iter().for_each(|server| server.set_script(NETWORK_DOWN).unwrap());
    sleeps(&connections, secs(7200)).await;
    tokio::time::sleep(secs(5)).await;
    servers.iter().for_each(|server| server.set_script("").unwrap());
    let mut first_redials = Vec::new();
    for ((connection, server), mut events) in connections.iter().zip(&servers).zip(all_events) {
        let until = until_status(&mut events, |status| matches!(status, Status::Ready(_))).await;
        assert!(!until.iter().any(|status| matches!(status, Status::Parked(_))), "{until:?}");
        assert!(connection.catalogue().is_some());
        let ledger = server.ledger();
        assert!(ledger.spawns() <= 7, "no hot loop: {:?}", ledger.spawn_times());
        first_redials.push(ledger.spawn_times()[1]);
    }
    first_redials.sort_unstable();
    let (first, last) = (first_redials[0], first_redials[7]);
    first_redials.dedup();
    assert_eq!(first_redials.len(), 8, "no two dial in the same instant: {first_redials:?}");
    assert!(last - first <= 250, "{first_redials:?}");
}

/// Eight healthy servers are asked after a sleep, not all in the same instant, and none is redialled.
#[tokio::test(start_paused = true)]
async fn k13_wake_asks_the_healthy_once_and_spread() {
    let spread = config(|config| config.redial_spread(millis(250)).keepalive(secs(86_400)));
    let servers: Vec<_> = (0..8).map(|_| memory("")).collect();
    let connections: Vec<_> = servers
        .iter()
        .enumerate()
        .map(|(seed, server)| builder(server).config(spread).seed(seed as u64).build().unwrap())
        .collect();
    for connection in &connections {
        connection.session().await.unwrap();
    }
    sleeps(&connections, secs(7200)).await;
    tokio::time::sleep(secs(60)).await;
    let mut asked = Vec::new();
    for server in &servers {
        assert_eq!((server.ledger().spawns(), server.ledger().requests("ping")), (1, 1));
        let is_ping = |entry: &&Entry| matches!(&entry.event, Seen::Request { method, .. } if method == "ping");
        asked.push(server.ledger().entries().iter().find(is_ping).unwrap().at);
    }
    asked.sort_unstable();
    assert!(asked[7] - asked[0] <= 250, "{asked:?}");
    asked.dedup();
    assert!(asked.len() > 4, "spread: {asked:?}");
}

/// An outage that began before the sleep has not lasted through it: the sleep burns no budget.
#[tokio::test(start_paused = true)]
async fn k13_sleep_does_not_count_as_outage() {
    let server = memory("spawn 1:\n after 20s exit 1\nspawn 2..:\n initialize exit 1");
    let connection = connect(&server);
    let mut events = connection.events();
    until_ready(&mut events).await;
    assert_eq!(next_status(&mut events).await, Status::TransientFailure);
    tokio::time::sleep(secs(20)).await;
    sleeps(std::slice::from_ref(&connection), secs(7200)).await;
    tokio::time::sleep(secs(5)).await;
    server.set_script("").unwrap();
    let until = until_status(&mut events, |status| matches!(status, Status::Ready(_))).await;
    assert!(!until.iter().any(|status| matches!(status, Status::Parked(_))), "{until:?}");
}

/// A wake is also a reason for a parked server to be tried, within the pace of a caller.
#[tokio::test(start_paused = true)]
async fn k13_wake_tries_a_parked_server() {
    let server = memory(NETWORK_DOWN);
    let connection = connect(&server);
    let mut events = connection.events();
    until_status(&mut events, |status| matches!(status, Status::Parked(_))).await;
    tokio::time::sleep(secs(10)).await;
    server.set_script("").unwrap();
    let woken = Instant::now();
    connection.resumed();
    until_ready(&mut events).await;
    assert!(woken.elapsed() < secs(1), "{:?}", woken.elapsed());
}

/// Also R048.
#[tokio::test(start_paused = true)]
async fn k13_deaf_after_wake() {
    let server = memory("spawn 1:\n ignore TERM\n after 20s deaf");
    let never_by_itself = config(|config| config.keepalive(secs(86_400)));
    let connection = builder(&server).config(never_by_itself).build().unwrap();
    let mut events = connection.events();
    until_ready(&mut events).await;
    tokio::time::sleep(secs(30)).await;
    sleeps(std::slice::from_ref(&connection), secs(8 * 3600)).await;
    let woken = Instant::now();
    // Two questions of 20 s each.
    assert_eq!(next_status(&mut events).await, Status::TransientFailure);
    assert_eq!(woken.elapsed(), secs(40));
    assert_eq!(connection.snapshot().failure, Some(FailureClass::Unresponsive));
    assert_eq!(next_status(&mut events).await, Status::Connecting);
    // Never two at a time: the first was killed before.
    assert_eq!(server.ledger().live_links(), 1);
    assert_eq!(until_ready(&mut events).await, 2);
    assert!(woken.elapsed() <= secs(48), "{:?}", woken.elapsed());
}

/// The same with a child that is frozen: it hears neither the end of its input nor SIGTERM.
#[tokio::test]
async fn k13_r048_frozen_child() {
    let server = process("");
    let mut command = process_command(&server);
    command.graces.eof = millis(50);
    command.graces.term = millis(50);
    let quick = config(|config| config.ping_timeout(millis(200)));
    let connection =
        Connection::builder(StdioConnector::new(command)).config(quick).name("fake").seed(7).build().unwrap();
    let mut events = connection.events();
    timeout(secs(60), async {
        until_ready(&mut events).await;
        let pid = connection.session().await.unwrap().facts().pid.unwrap();
        let raw = Pid::from_raw(pid.try_into().unwrap()).unwrap();
        kill_process(raw, Signal::STOP).unwrap();
        connection.resumed();
        assert_eq!(next_status(&mut events).await, Status::TransientFailure);
        assert_eq!(until_ready(&mut events).await, 2);
        let ledger = server.ledger().unwrap();
        assert!(!ledger.live_pids().contains(&pid), "{ledger:?}");
        connection.shutdown().await;
        let ledger = server.ledger().unwrap();
        assert_eq!((ledger.live_pids(), ledger.zombies()), (vec![], vec![]));
    })
    .await
    .unwrap();
}

/// Also R049. Nobody reads while it happens; everything is there afterwards, in order.
#[tokio::test(start_paused = true)]
async fn k13_event_order() {
    let server = memory("spawn 1:\n after 20s exit 3");
    let connection = connect(&server);
    let mut slow = connection.events();
    let mut other = connection.events();
    tokio::time::sleep(secs(60)).await;
    let expected = [
        Status::Connecting,
        Status::Ready(epoch(1)),
        Status::TransientFailure,
        Status::Connecting,
        Status::Ready(epoch(2)),
    ];
    for status in expected {
        match next_status_event(&mut slow).await {
            (seen, Some(FailureClass::Transport), Some(cause)) if status == Status::TransientFailure => {
                assert_eq!(seen, status);
                assert!(cause.contains("status 3"), "{cause}");
            }
            (seen, ..) => assert_eq!(seen, status),
        }
        assert_eq!(next_status(&mut other).await, status);
    }
    assert_eq!(connection.snapshot().status, Status::Ready(epoch(2)));
    assert_eq!(drain_statuses(connection, slow).await, [Status::Shutdown]);
}

async fn next_status_event(events: &mut Events) -> (Status, Option<FailureClass>, Option<String>) {
    loop {
        if let Event::Status { status, failure, cause } = events.next().await.unwrap() {
            return (status, failure, cause.map(|cause| cause.to_string()));
        }
    }
}

/// Whenever nothing is under way the snapshot is what the last event said, through crashes, parks, wakes and the end;
/// and no event repeats the one before.
#[tokio::test(start_paused = true)]
async fn k13_snapshot_is_the_last_event() {
    let server = memory("spawn 1:\n after 20s exit 3\nspawn 2..9:\n initialize exit 1");
    let connection = connect(&server);
    let mut events = connection.events();
    let mut seen = vec![connection.snapshot().status];
    for second in 0..600_u32 {
        match second {
            200 => connection.park(),
            300 => connection.wake(mcp_reconnect::core::WakeCause::Operator),
            400 => connection.invalidate(connection.snapshot().state.live_epoch().unwrap(), "a test"),
            500 => connection.shutdown().await,
            _ => {}
        }
        // Between the seconds everything happens that has to.
        tokio::time::sleep(millis(999)).await;
        while let Ok(Some(event)) = timeout(millis(1), events.next()).await {
            if let Event::Status { status, .. } = event {
                assert_ne!(seen.last(), Some(&status), "{seen:?}");
                seen.push(status);
            }
        }
        let snapshot = connection.snapshot();
        assert_eq!(seen.last(), Some(&snapshot.status), "{seen:?}");
        assert_eq!(matches!(snapshot.status, Status::Ready(_)), matches!(snapshot.state, State::Ready { .. }));
    }
    assert!(seen.iter().filter(|status| matches!(status, Status::Ready(_))).count() >= 3, "{seen:?}");
    assert!(seen.iter().any(|status| matches!(status, Status::Parked(_))), "{seen:?}");
    assert_eq!(seen.last(), Some(&Status::Shutdown));
}

/// Who reads too slowly is told how much is missing, and gets the rest in order.
#[tokio::test(start_paused = true)]
async fn k13_a_laggard_is_told() {
    let server = memory("");
    let brisk = config(|config| config.stable_after(millis(1)));
    let connection = builder(&server).config(brisk).build().unwrap();
    let mut laggard = connection.events();
    let mut prompt = connection.events();
    let mut seen = 0;
    for number in 1..=150 {
        loop {
            let event = prompt.next().await.unwrap();
            seen += 1;
            if matches!(event, Event::Status { status, .. } if status == Status::Ready(epoch(number))) {
                break;
            }
            assert!(!matches!(event, Event::Missed { .. }));
        }
        tokio::time::sleep(secs(1)).await;
        connection.invalidate(epoch(number), "a test");
    }
    drop(prompt);
    until_ready(&mut connection.events()).await;
    connection.shutdown().await;
    drop(connection);
    let (mut missed, mut got, mut last) = (0, 0, None);
    while let Some(event) = laggard.next().await {
        match event {
            Event::Missed { count } => missed += count,
            Event::Status { status, .. } => {
                got += 1;
                last = Some(status);
            }
            _ => got += 1,
        }
    }
    assert!(missed > 0 && missed + got >= seen, "{missed} + {got}, {seen}");
    assert_eq!(last, Some(Status::Shutdown));
}
