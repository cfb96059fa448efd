//! K09: no trigger dials faster than the pace allows, and never twice at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use mcp_reconnect::core::{Epoch, Status, WakeCause};
use mcp_reconnect::{CallError, CallOptions, Connection};
use mcp_reconnect_tests::fake::{Event as Entry, FakeServer, Ledger};
use tokio::time::{Instant, sleep};

use crate::support::*;

/// How many links were open at most.
pub(crate) fn most_at_once(ledger: &Ledger) -> usize {
    let mut most = 0;
    let mut live = 0;
    for entry in ledger.entries() {
        match entry.event {
            Entry::Spawned { .. } => live += 1,
            Entry::Ended => live -= 1,
            _ => {}
        }
        most = most.max(live);
    }
    most
}

/// From the end of each spawn to the start of the next one, in milliseconds.
pub(crate) fn waits(ledger: &Ledger) -> Vec<u64> {
    let ends = ledger.entries().iter().filter(|entry| entry.event == Entry::Ended).map(|entry| entry.at);
    ledger.spawn_times().into_iter().skip(1).zip(ends).map(|(next, end)| next - end).collect()
}

/// Whether these waits, the first of them `from` steps up, are those of the ladder.
pub(crate) fn climb(waits: &[u64], from: u32) -> bool {
    waits.iter().zip(from..).all(|(wait, step)| {
        let step = 1000 * 2_u64.pow(step.min(6)).min(60);
        (step / 2..=step + 1).contains(wait)
    })
}

fn closest(times: &[u64]) -> u64 {
    times.windows(2).map(|pair| pair[1] - pair[0]).min().expect("more than one")
}

/// Also R032, without HTTP.
#[tokio::test(start_paused = true)]
async fn k09_caller_storm() {
    let server = memory("after 1s exit 1");
    let connection = connect(&server);
    let [asked, slow] = [0, 0].map(AtomicUsize::new).map(Arc::new);
    let began = Instant::now();
    let storm = (0..200).map(async |number| {
        // A few want it now or not at all.
        let max_wait = if number % 10 == 0 { millis(500) } else { secs(4) };
        let options = CallOptions { max_wait, ..within(secs(5)) };
        while began.elapsed() < secs(60) {
            let before = Instant::now();
            match connection.call_tool_with(tool("missing"), &options).await {
                Err(CallError::NotOffered { .. } | CallError::Refused { .. }) => {}
                other => panic!("{other:?}"),
            }
            asked.fetch_add(1, Ordering::Relaxed);
            if before.elapsed() > max_wait {
                slow.fetch_add(1, Ordering::Relaxed);
            }
            sleep(millis(10)).await;
        }
    });
    futures::future::join_all(storm).await;
    let ledger = server.ledger();
    assert!(asked.load(Ordering::Relaxed) > 10_000);
    assert_eq!((slow.load(Ordering::Relaxed), ledger.calls("missing")), (0, 0));
    assert_eq!(most_at_once(&ledger), 1);
    // At best one dial per half a `demand_interval`, after the first steps of the ladder.
    assert!(ledger.spawns() <= 4 + 60_000 / (2_500 + 1_000), "{:?}", ledger.spawn_times());
    assert!(ledger.spawns() >= 8, "{:?}", ledger.spawn_times());
}

/// Carries the connection through `rounds` failures of one kind, each a second after Ready.
async fn failing(script: &str, trigger: impl AsyncFn(&Connection, u64), keepalive: Duration) -> Vec<u64> {
    let server = memory(script);
    let config = config(|config| config.keepalive(keepalive).ping_timeout(millis(200)));
    let connection = builder(&server).config(config).build().unwrap();
    let mut events = connection.events();
    for _ in 0..6 {
        let ready = until_ready(&mut events).await;
        trigger(&connection, ready).await;
        assert_eq!(next_status(&mut events).await, Status::TransientFailure, "{script}");
    }
    until_ready(&mut events).await;
    assert_eq!(most_at_once(&server.ledger()), 1, "{script}");
    waits(&server.ledger())
}

/// Also R033.
#[tokio::test(start_paused = true)]
async fn k09_four_routes() {
    let never = Duration::from_secs(3600);
    let by_itself = async |_: &Connection, _| {};
    let keepalive = failing("ping#2.. never", by_itself, millis(500)).await;
    let eof = failing("after 1s close stdout", by_itself, never).await;
    let exit = failing("after 1s exit 0", by_itself, never).await;
    let call = async |connection: &Connection, _| {
        sleep(secs(1)).await;
        let options = CallOptions { max_wait: millis(1), ..CallOptions::default() };
        assert!(connection.call_tool_with(tool("write"), &options).await.is_err());
    };
    let call_error = failing("call * error -32000 \"Server not initialized\"", call, never).await;
    let dies_in_call = failing("call * kill", call, never).await;
    let user = async |connection: &Connection, ready| {
        sleep(secs(1)).await;
        for _ in 0..20 {
            connection.invalidate(epoch(ready), "the user wants another one");
        }
    };
    let user = failing("", user, never).await;
    for route in [&keepalive, &eof, &exit, &dies_in_call, &user] {
        assert_eq!(route.len(), 6);
        assert_eq!(route[0], 0, "the first rebuild is due at once: {route:?}");
        assert!(climb(&route[1..], 0), "{route:?}");
    }
    // What the gate refused is to be sent once more, so its caller asks for a session: `demand_interval` after the dial.
    assert!(call_error[0] == 0 && climb(&call_error[1..4], 0), "{call_error:?}");
    assert_eq!(call_error[4..], [4_000; 2]);
    // The same seed even waits the same.
    assert_eq!((&eof, &eof, &eof), (&exit, &dies_in_call, &user));
}

/// The route that never gets as far as Ready.
#[tokio::test(start_paused = true)]
async fn k09_list_failures_climb_too() {
    for script in ["list error -32603 \"broken\"", "list exit 1", "initialize exit 1"] {
        let server = memory(script);
        let connection = connect(&server);
        let watch = server.watch();
        watch.wait_until(|ledger| ledger.spawns() == 6).await;
        assert!(climb(&waits(&server.ledger()), 0), "{script}: {:?}", waits(&server.ledger()));
        assert_eq!(most_at_once(&server.ledger()), 1, "{script}");
        connection.shutdown().await;
    }
}

/// Whatever is asked for, and however often: `min_dial_interval`.
#[tokio::test(start_paused = true)]
async fn k09_no_trigger_is_unpaced() {
    type Trigger = fn(&Connection);
    let triggers: [(&str, Trigger); 8] = [
        ("operator", |connection| connection.wake(WakeCause::Operator)),
        ("config", |connection| connection.wake(WakeCause::Config)),
        ("credentials", |connection| connection.wake(WakeCause::Credentials)),
        ("resumed", Connection::resumed),
        ("park and wake", |connection| {
            connection.park();
            connection.wake(WakeCause::Operator);
        }),
        ("invalidate", |connection| {
            if let Status::Ready(epoch) = connection.snapshot().status {
                connection.invalidate(epoch, "not good enough");
            }
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
    for script in ["initialize exit 1", "list exit 1", "after 100ms exit 1", "", "initialize delay 100ms, exit 1"] {
        for (name, trigger) in triggers {
            let server = memory(script);
            let connection = connect(&server);
            let began = Instant::now();
            while began.elapsed() < secs(10) {
                trigger(&connection);
                sleep(millis(10)).await;
            }
            connection.shutdown().await;
            let ledger = server.ledger();
            assert_eq!((most_at_once(&ledger), ledger.live_links()), (1, 0), "{name}, {script}");
            assert!(ledger.spawns() <= 21, "{name}, {script}: {}", ledger.spawns());
            if ledger.spawns() > 1 {
                assert!(closest(&ledger.spawn_times()) >= 500, "{name}, {script}: {:?}", ledger.spawn_times());
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn k09_a_hundred_complaints_about_one_session_are_one_rebuild() {
    let server = memory("");
    let connection = connect(&server);
    let mut events = connection.events();
    assert_eq!(until_ready(&mut events).await, 1);
    let complain = |connection: &Connection| (0..100).for_each(|_| connection.invalidate(epoch(1), "broken"));
    complain(&connection);
    assert_eq!(until_ready(&mut events).await, 2);
    // Those who come late complain about the dead.
    complain(&connection);
    sleep(secs(60)).await;
    assert_eq!(connection.snapshot().status, Status::Ready(epoch(2)));
    assert_eq!((server.ledger().spawns(), server.ledger().initializes()), (2, 2));
}

#[tokio::test(start_paused = true)]
async fn k09_no_user_stops_a_healthy_session_or_start() {
    let server = memory("initialize delay 5s");
    let connection = connect(&server);
    for _ in 0..1000 {
        connection.wake(WakeCause::Operator);
        sleep(millis(10)).await;
    }
    assert_eq!(connection.snapshot().status, Status::Ready(epoch(1)));
    assert_eq!(server.ledger().spawns(), 1);
}

/// Callers without end on a server that never comes back: what they cost is bounded by the hour.
#[tokio::test(start_paused = true)]
async fn k09_callers_of_a_dead_server_cost_a_bounded_number_of_dials() {
    for script in ["initialize exit 1", "list ok, exit 1", "initialize never"] {
        let server: Arc<FakeServer> = memory(script);
        let connection = connect(&server);
        let options = CallOptions { max_wait: secs(10), ..CallOptions::default() };
        let began = Instant::now();
        let callers = (0..5).map(|_| async {
            while began.elapsed() < secs(3600) {
                assert!(connection.call_tool_with(tool("write"), &options).await.is_err(), "{script}");
                sleep(millis(100)).await;
            }
        });
        futures::future::join_all(callers).await;
        let ledger = server.ledger();
        assert_eq!(most_at_once(&ledger), 1, "{script}");
        // One per half a `demand_interval` while it is not parked yet, one per `demand_interval` from then on.
        assert!(ledger.spawns() <= 3600 / 5 + 60, "{script}: {}", ledger.spawns());
        let last = ledger.spawn_times().windows(2).map(|pair| pair[1] - pair[0]).next_back().unwrap();
        assert!(last >= 5_000, "{script}: {last}");
    }
}

/// Who waits for a session after the one that is still there counts as waiting as soon as that one is lost.
#[tokio::test(start_paused = true)]
async fn k09_waiting_since_before_the_loss() {
    let server = memory("spawn 1:\n after 20s exit 1\nspawn 2..:\n start exit 1");
    let options = CallOptions { max_wait: secs(3_600), ..CallOptions::default() };
    let connection = builder(&server).call_options(options).build().unwrap();
    // Not by asking for it: who asked counts as waiting for as long as it would have waited.
    until_ready(&mut connection.events()).await;
    let epoch = Epoch::FIRST;
    let waiting = tokio::spawn({
        let connection = connection.clone();
        async move { connection.session_after(epoch).await.map(drop) }
    });
    // The first minute's ladder, then the probes of a parked server: both at the pace of somebody who waits.
    for (after, least) in [(48, 10), (572, 90)] {
        tokio::time::sleep(secs(after)).await;
        assert!(!waiting.is_finished(), "{waiting:?}");
        let dials = connection.snapshot().stats.dials;
        assert!(dials >= least, "{dials} dials, not {least}, in which somebody waited");
    }
    waiting.abort();
}
