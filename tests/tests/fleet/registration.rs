//! What registering again and again does to servers that are there.

use std::sync::Arc;

use mcp_reconnect::ServerState;
use mcp_reconnect::config::{Connect, FleetConfig};
use mcp_reconnect::core::{FailureClass, ParkReason, Status};
use mcp_reconnect::fleet::{Fleet, FleetEvent, Select};
use mcp_reconnect_tests::fake::{FakeServer, Ledger};
use mcp_reconnect_tests::link::MemoryConnector;
use tokio::time::{Instant, sleep};

use super::support::*;
use crate::support::{config as knobs, memory, millis, secs};

const DEAD: &str = "initialize exit 1";

/// A server that closes slowly: three of the seven seconds that it is given.
const SLOW: &str = "on EOF delay 3s, exit 0";

#[tokio::test(start_paused = true)]
async fn the_same_config_twice_does_nothing_the_second_time() {
    let (one, two) = (memory(""), memory("tools a"));
    let fleet = fleet();
    assert_eq!(outcomes(&fleet.apply(config(&[("one", &one), ("two", &two)]))), ["one: started", "two: started"]);
    all_ready(&fleet, &["one", "two"]).await;
    assert_eq!(tools(&fleet), ["one__echo", "one__write", "two__a"]);
    let (before, mut events) = (one.ledger().entries().len(), fleet.events());
    for _ in 0..10 {
        let again = fleet.apply(config(&[("one", &one), ("two", &two)]));
        assert_eq!(outcomes(&again), ["one: untouched", "two: untouched"]);
        sleep(secs(1)).await;
    }
    assert_eq!(one.ledger().entries().len(), before, "not a word to the server");
    assert!(told(&mut events).is_empty());
    sleep(secs(60)).await;
    assert_eq!((one.ledger().spawns(), two.ledger().spawns()), (1, 1));
    let called = fleet.call_tool("one__echo", None).await;
    assert!(called.is_ok(), "{called:?}");
    assert_eq!(outcomes(&fleet.apply(FleetConfig::default())), ["one: removed", "two: removed"]);
    assert_eq!(tools(&fleet), [""; 0]);
    fleet.shutdown().await;
    assert_eq!((one.ledger().live_links(), two.ledger().live_links()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn an_empty_config_is_one() {
    let fleet = fleet();
    assert_eq!(outcomes(&fleet.apply(FleetConfig::default())), [""; 0]);
    assert!(fleet.ready(&Select::All, secs(1)).await.is_complete());
    assert!(fleet.status().is_empty() && fleet.tools().is_empty() && fleet.names().is_empty());
    fleet.shutdown().await;
}

/// The stale entry that blocks its registration for ever, in its first form: it waits for its next try.
#[tokio::test(start_paused = true)]
async fn a_server_that_backs_off_is_woken_and_not_rebuilt() {
    let server = memory(&format!("spawn 1:\n {DEAD}"));
    let slow = knobs(|config| config.backoff(secs(40)));
    let config = || only("a", with(&server, |server| server.machine = slow));
    let (fleet, mut events) = watched();
    fleet.apply(config());
    until(&mut events, "a", |status| status == Status::TransientFailure).await;
    sleep(secs(8)).await;
    assert_eq!(outcomes(&fleet.apply(config())), ["a: woken"]);
    all_ready(&fleet, &["a"]).await;
    assert_eq!(server.ledger().spawn_times(), [0, 8_000]);
    assert_eq!(epoch_of(&fleet, "a"), 2, "the same connection");
    fleet.shutdown().await;
}

/// In its second form: it is parked.
#[tokio::test(start_paused = true)]
async fn a_parked_server_is_woken_and_not_rebuilt() {
    let server = memory(DEAD);
    let (fleet, mut events) = watched();
    fleet.apply(config(&[("a", &server)]));
    until_parked(&mut events, "a", ParkReason::Exhausted).await;
    server.set_script("").unwrap();
    sleep(secs(10)).await;
    let dials = status(&fleet, "a").stats.dials;
    assert_eq!(outcomes(&fleet.apply(config(&[("a", &server)]))), ["a: woken"]);
    until_ready(&mut events, "a").await;
    assert_eq!((status(&fleet, "a").stats.dials, epoch_of(&fleet, "a")), (dials + 1, dials + 1));
    assert_eq!(outcomes(&fleet.apply(config(&[("a", &server)]))), ["a: untouched"]);
    fleet.shutdown().await;
}

/// However often: a dead server is dialled as for a caller who never stops asking.
#[tokio::test(start_paused = true)]
async fn registering_without_end_keeps_the_pace() {
    let server = memory(DEAD);
    let fleet = fleet();
    for _ in 0..6_000 {
        fleet.apply(config(&[("a", &server)]));
        sleep(millis(100)).await;
    }
    let times = server.ledger().spawn_times();
    // Ten minutes, a dial in five seconds at most, and the first steps of the ladder.
    assert!((60..=130).contains(&times.len()), "{} dials", times.len());
    assert!(times.windows(2).all(|pair| pair[1] - pair[0] >= 500), "{times:?}");
    fleet.shutdown().await;
}

/// A registration is no use of a session: it would keep from rest what nobody calls.
#[tokio::test(start_paused = true)]
async fn a_registration_does_not_keep_a_session_from_its_rest() {
    let server = memory("");
    let machine = knobs(|config| config.idle_timeout(Some(secs(60))));
    let lazy = || only("a", with(&server, |server| (server.machine, server.connect) = (machine, Connect::OnDemand)));
    let fleet = fleet();
    fleet.apply(lazy());
    fleet.connection("a").unwrap().session().await.unwrap();
    for _ in 0..14 {
        sleep(secs(10)).await;
        assert_eq!(outcomes(&fleet.apply(lazy())), ["a: untouched"]);
    }
    assert_eq!((state(&fleet, "a"), server.ledger().spawns()), (ServerState::Idle, 1));
    fleet.shutdown().await;
}

/// How much a server was told, pings apart: they come by themselves.
fn heard(ledger: &Ledger) -> usize {
    ledger.entries().len() - ledger.requests("ping")
}

/// Everything at once: each gets what it needs, and no other is touched.
#[tokio::test(start_paused = true)]
async fn one_call_touches_only_what_it_must() {
    let fake = || memory("");
    let (healthy, disabled, enabled, new, gone, moved, tuned) =
        (fake(), fake(), fake(), fake(), fake(), fake(), fake());
    let (backing, dead, auth, permanent, requested, bad) = (memory(DEAD), memory(DEAD), fake(), fake(), fake(), fake());
    let slow = knobs(|config| config.backoff(secs(3_600)).backoff_max(secs(3_600)).park_after(secs(7_200)));
    let off = |server: &Arc<FakeServer>| with(server, |server| server.enabled = false);
    let common = || {
        config(&[("healthy", &healthy), ("dead", &dead), ("requested", &requested)])
            .with("backing", with(&backing, |server| server.machine = slow))
            .with("auth", unreachable(FailureClass::NeedsAuth, &auth))
            .with("permanent", unreachable(FailureClass::Permanent, &permanent))
            .with("disabled", off(&disabled))
    };
    let (fleet, mut events) = watched();
    let first = common()
        .with("enabled", off(&enabled))
        .with("gone", server(&gone, 1))
        .with("moved", server(&moved, 1))
        .with("tuned", server(&tuned, 1));
    fleet.apply(first);
    assert!(fleet.park("requested"));
    until_parked(&mut events, "dead", ParkReason::Exhausted).await;
    let parked = |name: &str| status(&fleet, name).park_reason;
    assert_eq!(
        [parked("auth"), parked("permanent"), parked("requested")],
        [Some(ParkReason::NeedsAuth), Some(ParkReason::Permanent), Some(ParkReason::Requested)]
    );
    sleep(secs(10)).await;
    drop(told(&mut events));
    let quiet = [&healthy, &auth, &permanent, &requested, &disabled, &tuned];
    let before = quiet.map(|server| heard(&server.ledger()));
    [&backing, &dead].into_iter().for_each(|server| server.set_script("").unwrap());
    let second = common()
        .with("enabled", server(&enabled, 1))
        .with("new", server(&new, 1))
        .with("moved", server(&moved, 2))
        .with("tuned", with(&tuned, |server| server.max_in_flight = std::num::NonZeroU32::new(1)))
        .with("bad", with(&bad, |server| server.machine = knobs(|config| config.close_timeout(secs(7)))));
    let report = fleet.apply(second);
    let told: Vec<_> = told(&mut events)
        .iter()
        .filter_map(|event| match event {
            FleetEvent::Applied { server, outcome } => Some(format!("{server}: {outcome}")),
            _ => None,
        })
        .collect();
    let close = "`close_timeout` is 7s, not above the close ladder of the transport (7s)";
    let bad_outcome = format!("bad: failed: {close}");
    let done = [
        "backing: woken",
        &bad_outcome,
        "dead: woken",
        "enabled: started",
        "gone: removed",
        "moved: replaced",
        "new: started",
        "permanent: woken",
        "tuned: retuned",
    ];
    assert_eq!(told, done, "only what changed is told");
    let mut all = [&done[..], &["auth: untouched", "disabled: disabled", "healthy: untouched"]].concat();
    all.push("requested: untouched");
    all.sort_unstable();
    assert_eq!(outcomes(&report), all);
    until_ready(&mut events, "dead").await;
    all_ready(&fleet, &["backing", "dead", "enabled", "healthy", "moved", "new", "tuned"]).await;
    assert_eq!(quiet.map(|server| heard(&server.ledger())), before, "not a word to these");
    assert_eq!((gone.ledger().live_links(), bad.ledger().spawns()), (0, 0));
    assert_eq!([&moved, &new, &enabled, &gone].map(|server| server.ledger().spawns()), [2, 1, 1, 1]);
    assert!(!fleet.names().iter().any(|name| matches!(&**name, "bad" | "gone")));
    fleet.shutdown().await;
}

/// The fresh session that a stale wake tears down, and the second connection beside the first: whatever the attempt is
/// at when its server is registered again.
#[tokio::test(start_paused = true)]
async fn registering_while_it_connects_makes_no_second_connection() {
    for (phase, script, after) in [
        ("dialling", "", secs(5)),
        ("waiting for the handshake", "initialize delay 5s", secs(0)),
        ("listing", "list delay 5s", secs(0)),
    ] {
        let server = memory(script);
        let config = || only("a", by(1, Detour { to: MemoryConnector(server.clone()), after, fails: None }));
        let fleet = fleet();
        fleet.apply(config());
        for _ in 0..45 {
            sleep(millis(100)).await;
            assert_eq!(state(&fleet, "a"), ServerState::Connecting, "{phase}");
            assert_eq!(outcomes(&fleet.apply(config())), ["a: untouched"], "{phase}");
        }
        all_ready(&fleet, &["a"]).await;
        sleep(secs(300)).await;
        assert_eq!((epoch_of(&fleet, "a"), server.ledger().spawns()), (1, 1), "{phase}");
        fleet.shutdown().await;
    }
}

#[tokio::test(start_paused = true)]
async fn registering_while_it_closes_redials_once() {
    let server = memory(&format!("spawn 1:\n {SLOW}"));
    let fleet = fleet();
    fleet.apply(config(&[("a", &server)]));
    all_ready(&fleet, &["a"]).await;
    sleep(secs(20)).await;
    fleet.connection("a").unwrap().invalidate(crate::support::epoch(1), "a test");
    for _ in 0..30 {
        sleep(millis(50)).await;
        assert_eq!(outcomes(&fleet.apply(config(&[("a", &server)]))), ["a: woken"]);
    }
    all_ready(&fleet, &["a"]).await;
    sleep(secs(300)).await;
    assert_eq!((epoch_of(&fleet, "a"), server.ledger().spawns(), most_live(&server)), (2, 2, 1));
    fleet.shutdown().await;
}

/// A probe of a parked server is under way: nothing is left to be brought forward.
#[tokio::test(start_paused = true)]
async fn registering_while_it_is_probed_is_no_wake() {
    let server = memory(DEAD);
    let (fleet, mut events) = watched();
    fleet.apply(config(&[("a", &server)]));
    until_parked(&mut events, "a", ParkReason::Exhausted).await;
    server.set_script("initialize delay 10s").unwrap();
    let spawns = server.ledger().spawns();
    server.watch().wait_until(|ledger| ledger.spawns() > spawns).await;
    sleep(secs(1)).await;
    assert_eq!(state(&fleet, "a"), ServerState::Parked, "until it is Ready");
    assert_eq!(outcomes(&fleet.apply(config(&[("a", &server)]))), ["a: untouched"]);
    until_ready(&mut events, "a").await;
    assert_eq!(server.ledger().spawns(), spawns + 1);
    fleet.shutdown().await;
}

/// A disabled server is known and not dialled; what it was asked for is refused.
#[tokio::test(start_paused = true)]
async fn a_disabled_server_is_not_dialled() {
    let server = memory("");
    let fleet = fleet();
    fleet.apply(only("a", with(&server, |server| server.enabled = false)));
    sleep(secs(3_600)).await;
    assert_eq!((state(&fleet, "a"), server.ledger().spawns()), (ServerState::Disabled, 0));
    let readiness = fleet.ready(&Select::Named(vec!["a".into(), "nobody".into()]), secs(60)).await;
    let states: Vec<_> = readiness.not_ready.iter().map(|status| status.state).collect();
    assert_eq!(states, [ServerState::Disabled, ServerState::Disabled]);
    fleet.shutdown().await;
}

/// Nobody waits for a bad server longer than until it is known to be one.
#[tokio::test(start_paused = true)]
async fn waiting_for_all_ends_when_the_bad_ones_are_known() {
    let (good, bad, silent) = (memory(""), memory(""), memory("discover never\ninitialize never"));
    let fleet = fleet();
    fleet.apply(config(&[("good", &good)]).with("bad", unreachable(FailureClass::Permanent, &bad)));
    let began = Instant::now();
    let readiness = fleet.ready(&Select::All, secs(60)).await;
    assert_eq!((readiness.ready, began.elapsed().as_secs()), (vec!["good".into()], 0));
    fleet.apply(config(&[("good", &good), ("silent", &silent)]));
    let began = Instant::now();
    let readiness = fleet.ready(&Select::All, secs(5)).await;
    assert_eq!((readiness.ready, began.elapsed()), (vec!["good".into()], secs(5)));
    assert_eq!(readiness.not_ready[0].state, ServerState::Connecting);
    fleet.shutdown().await;
}

/// Each session has a client handler that knows whose it is.
#[tokio::test(start_paused = true)]
async fn handlers_are_made_for_each_server_and_epoch() {
    let (one, two) = (memory("spawn 1:\n after 20s exit 1"), memory(""));
    let made = Arc::new(std::sync::Mutex::new(Vec::new()));
    let notes = made.clone();
    let fleet = Fleet::builder()
        .handler(move |server, epoch| notes.lock().unwrap().push((server.to_owned(), epoch.get())))
        .build()
        .unwrap();
    fleet.apply(config(&[("one", &one), ("two", &two)]));
    sleep(secs(60)).await;
    let mut made = made.lock().unwrap().clone();
    made.sort_unstable();
    assert_eq!(made, [("one".to_owned(), 1), ("one".to_owned(), 2), ("two".to_owned(), 1)]);
    fleet.shutdown().await;
}

/// A parked server that was asked for is waited for until that has come to an end; one that nobody asked for is not.
#[tokio::test(start_paused = true)]
async fn waiting_for_a_parked_server_that_is_registered_again() {
    let server = memory(DEAD);
    let (fleet, mut events) = watched();
    fleet.apply(config(&[("a", &server)]));
    until_parked(&mut events, "a", ParkReason::Exhausted).await;
    for (script, asked, complete, takes) in [
        (DEAD, false, false, 0),
        ("initialize delay 2s, exit 1", true, false, 2),
        ("initialize delay 2s", true, true, 2),
    ] {
        sleep(secs(10)).await;
        server.set_script(script).unwrap();
        if asked {
            assert_eq!(outcomes(&fleet.apply(config(&[("a", &server)]))), ["a: woken"]);
        }
        let began = Instant::now();
        assert_eq!(fleet.ready(&Select::All, secs(60)).await.is_complete(), complete, "{script}");
        assert_eq!(began.elapsed().as_secs(), takes, "{script}");
    }
    fleet.shutdown().await;
}

/// The same right after it was parked: its dial comes as soon as for a caller.
#[tokio::test(start_paused = true)]
async fn waiting_for_a_server_that_was_parked_just_now() {
    let server = memory(DEAD);
    let (fleet, mut events) = watched();
    fleet.apply(config(&[("a", &server)]));
    until_parked(&mut events, "a", ParkReason::Exhausted).await;
    server.set_script("").unwrap();
    assert_eq!(outcomes(&fleet.apply(config(&[("a", &server)]))), ["a: woken"]);
    all_ready(&fleet, &["a"]).await;
    fleet.park("a");
    let began = Instant::now();
    assert!(!fleet.ready(&Select::All, secs(60)).await.is_complete());
    assert_eq!(began.elapsed().as_secs(), 0, "who rests on request is not waited for");
    fleet.shutdown().await;
}
