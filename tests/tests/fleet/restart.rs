//! A host that is started again goes on where it stopped.

use std::path::Path;
use std::sync::Arc;

use mcp_reconnect::ServerState;
use mcp_reconnect::config::{CataloguePolicy, Connect, FleetConfig};
use mcp_reconnect::core::{Failure, FailureClass, ParkReason};
use mcp_reconnect::fleet::Fleet;
use mcp_reconnect::fleet::state::StateFile;
use mcp_reconnect_tests::fake::FakeServer;
use tempfile::TempDir;
use tokio::time::sleep;

use super::support::*;
use crate::support::{memory, millis, secs};

/// A host's next process.
fn host(dir: &TempDir) -> Fleet {
    Fleet::builder().seed(7).state_file(StateFile::new(path(dir))).build().unwrap()
}

fn path(dir: &TempDir) -> impl AsRef<Path> + Into<std::path::PathBuf> {
    dir.path().join("state.json")
}

#[tokio::test(start_paused = true)]
async fn a_parked_server_is_not_dialled_before_its_time() {
    let dir = TempDir::new().unwrap();
    let (dead, fine) = (memory("initialize exit 1"), memory(""));
    let both = || config(&[("dead", &dead), ("fine", &fine)]);
    let fleet = host(&dir);
    let mut events = fleet.events();
    fleet.apply(both());
    until_parked(&mut events, "dead", ParkReason::Exhausted).await;
    sleep(secs(5)).await;
    let left = status(&fleet, "dead").next_dial.expect("a probe is due");
    fleet.shutdown().await;
    let dials = dead.ledger().spawns();
    for demanded in [false, true] {
        let fleet = host(&dir);
        assert_eq!(outcomes(&fleet.apply(both())), ["dead: started", "fine: started"]);
        all_ready(&fleet, &["fine"]).await;
        assert_eq!(status(&fleet, "dead").park_reason, Some(ParkReason::Exhausted));
        assert_eq!(tools(&fleet), ["fine__echo", "fine__write"]);
        if demanded {
            // Whoever registers it again asks for it.
            assert_eq!(outcomes(&fleet.apply(both())), ["dead: woken", "fine: untouched"]);
            dead.set_script("").unwrap();
            until_ready(&mut fleet.events(), "dead").await;
            assert_eq!(dead.ledger().spawns(), dials + 1);
        } else {
            // Of the wall clock, the test has used next to nothing.
            assert!(left > secs(40), "{left:?}");
            sleep(left - secs(30)).await;
            assert_eq!(dead.ledger().spawns(), dials);
        }
        fleet.shutdown().await;
    }
}

/// A server asked to be left alone for ten minutes: the next process leaves it alone for the rest of them, whoever asks,
/// and can say why.
#[tokio::test(start_paused = true)]
async fn a_rate_limit_holds_in_the_next_process() {
    let dir = TempDir::new().unwrap();
    let server = memory("");
    let limited = Failure { class: FailureClass::RateLimited, retry_after: Some(secs(600)) };
    let gate = Gate::shut(&server, limited);
    let config = || only("a", by(1, gate.clone()));
    let first = host(&dir);
    first.apply(config());
    sleep(secs(100)).await;
    assert_eq!((gate.tries(), state(&first, "a")), (1, ServerState::TransientFailure));
    first.shutdown().await;
    gate.open();
    let second = host(&dir);
    second.apply(config());
    let failure = status(&second, "a").last_failure.expect("it is not over");
    assert_eq!((failure.class, failure.cause.as_deref()), (FailureClass::RateLimited, Some("the gate is shut")));
    for _ in 0..10 {
        let refused = second.connection("a").unwrap().session().await.unwrap_err().to_string();
        assert!(refused.contains("the gate is shut"), "{refused}");
        sleep(secs(30)).await;
    }
    assert_eq!(gate.tries(), 1);
    let left = status(&second, "a").next_dial.unwrap();
    assert!(left > secs(150) && left < secs(260), "{left:?}"); // up to a tenth late
    sleep(left + secs(1)).await;
    assert_eq!((gate.tries(), state(&second, "a")), (2, ServerState::Ready));
    second.shutdown().await;
}

/// A login, or another environment, is found by the next start: one try, and where nothing was cured, no more than that.
/// A host that is started again and again does not dial each time.
#[tokio::test(start_paused = true)]
async fn a_start_is_one_try_of_what_may_have_been_cured() {
    for (class, reason) in
        [(FailureClass::NeedsAuth, ParkReason::NeedsAuth), (FailureClass::Permanent, ParkReason::Permanent)]
    {
        let dir = TempDir::new().unwrap();
        let server = memory("");
        let gate = Gate::shut(&server, class);
        let config = || only("a", by(1, gate.clone()));
        let first = host(&dir);
        let mut events = first.events();
        first.apply(config());
        until_parked(&mut events, "a", reason).await;
        sleep(secs(3)).await;
        first.shutdown().await;
        // Two seconds are left of the five after the last dial.
        for _ in 0..3 {
            let next = host(&dir);
            next.apply(config());
            let told = status(&next, "a");
            assert_eq!(
                (told.park_reason, told.last_failure.unwrap().cause.as_deref()),
                (Some(reason), Some("the gate is shut"))
            );
            sleep(millis(500)).await;
            assert_eq!(gate.tries(), 1);
            next.shutdown().await;
        }
        let second = host(&dir);
        second.apply(config());
        sleep(secs(1)).await;
        assert_eq!(gate.tries(), 2, "{reason}: half a second was left");
        sleep(secs(20)).await;
        assert_eq!((gate.tries(), status(&second, "a").park_reason), (2, Some(reason)));
        second.shutdown().await;
        gate.open();
        let last = host(&dir);
        last.apply(config());
        sleep(secs(1)).await;
        assert_eq!((gate.tries(), state(&last, "a")), (3, ServerState::Ready), "{reason}");
        last.shutdown().await;
    }
}

/// The era is known: no probe. What was listed is offered until the server has listed anew.
#[tokio::test(start_paused = true)]
async fn era_and_tools_are_known_before_the_first_session() {
    let dir = TempDir::new().unwrap();
    let server = memory("initialize delay 2s");
    let first = host(&dir);
    first.apply(config(&[("a", &server)]));
    all_ready(&first, &["a"]).await;
    assert_eq!(server.ledger().discovers(), 1);
    first.shutdown().await;
    server.set_script("initialize delay 2s\ntools write, more").unwrap();
    let second = host(&dir);
    let mut events = second.events();
    second.apply(config(&[("a", &server)]));
    assert_eq!(tools(&second), ["a__echo", "a__write"]);
    assert!(second.tools().iter().all(|tool| tool.stale));
    // Who calls one waits for the session.
    assert!(second.call_tool("a__write", None).await.is_ok());
    assert_eq!((server.ledger().discovers(), server.ledger().spawns()), (1, 2));
    let told = words(&mut events, secs(1)).await;
    assert_eq!(told, ["tools +a__echo +a__write", "started", "tools +a__more -a__echo", "READY(1)"]);
    second.shutdown().await;
}

/// A lazy server is known by what it listed in an earlier process, and dialled by the first call.
#[tokio::test(start_paused = true)]
async fn a_lazy_server_is_dialled_by_the_first_call_by_name() {
    let dir = TempDir::new().unwrap();
    let server = memory("");
    let lazy = || only("a", with(&server, |server| server.connect = Connect::OnDemand));
    let first = host(&dir);
    first.apply(lazy());
    first.connection("a").unwrap().session().await.unwrap();
    first.shutdown().await;
    let second = host(&dir);
    second.apply(lazy());
    sleep(secs(60)).await;
    assert_eq!((tools(&second).len(), server.ledger().spawns(), state(&second, "a")), (2, 1, ServerState::Idle));
    assert!(second.call_tool("a__echo", None).await.is_ok());
    assert_eq!(server.ledger().spawns(), 2);
    second.shutdown().await;
}

/// Of another configuration of the server, only what was approved counts.
#[tokio::test(start_paused = true)]
async fn another_configuration_starts_anew() {
    let dir = TempDir::new().unwrap();
    let server = memory("");
    let first = host(&dir);
    first.apply(config(&[("a", &server)]));
    all_ready(&first, &["a"]).await;
    first.shutdown().await;
    let second = host(&dir);
    second.apply(only("a", super::support::server(&server, 2)));
    assert_eq!(tools(&second), [""; 0]);
    all_ready(&second, &["a"]).await;
    assert_eq!(server.ledger().discovers(), 2);
    second.shutdown().await;
}

const CHANGED: &str = "tools a(desc \"other\")";

fn refusing(server: &Arc<FakeServer>, enabled: bool) -> FleetConfig {
    only("a", with(server, |server| (server.on_change, server.enabled) = (CataloguePolicy::Refuse, enabled)))
}

/// What a host knew of a tool is known to its next process, whatever happened between: the server was there to the end,
/// was disabled, was disabled through a whole process, or the first process ended without a word.
#[tokio::test(start_paused = true)]
async fn approvals_are_kept() {
    for disabled in [false, true] {
        for shut_down in [true, false] {
            let dir = TempDir::new().unwrap();
            let server = memory("tools a(desc \"one\")");
            let first = host(&dir);
            first.apply(refusing(&server, true));
            all_ready(&first, &["a"]).await;
            sleep(secs(5)).await;
            if disabled {
                first.apply(refusing(&server, false));
                first.apply(refusing(&server, false));
                sleep(secs(5)).await;
            }
            if shut_down {
                first.shutdown().await;
            }
            drop(first);
            server.set_script(CHANGED).unwrap();
            sleep(secs(30)).await;
            if disabled {
                let between = host(&dir);
                between.apply(refusing(&server, false));
                sleep(secs(5)).await;
                between.shutdown().await;
            }
            let last = host(&dir);
            last.apply(refusing(&server, true));
            all_ready(&last, &["a"]).await;
            assert_eq!((tools(&last).len(), last.withheld().len()), (0, 1), "{disabled} {shut_down}");
            last.shutdown().await;
        }
    }
}

/// What changed just before a fleet was dropped is in the file: not nothing.
#[tokio::test(start_paused = true)]
async fn a_fleet_that_is_dropped_keeps_what_it_knew() {
    let dir = TempDir::new().unwrap();
    let server = memory("");
    let first = host(&dir);
    first.apply(config(&[("a", &server)]));
    all_ready(&first, &["a"]).await;
    drop(first);
    sleep(secs(30)).await;
    let second = host(&dir);
    second.apply(config(&[("a", &server)]));
    assert_eq!(tools(&second), ["a__echo", "a__write"]);
    all_ready(&second, &["a"]).await;
    assert_eq!(server.ledger().discovers(), 1);
    second.shutdown().await;
}

/// A server that was removed is forgotten, also where it was disabled all the time.
#[tokio::test(start_paused = true)]
async fn a_removed_server_is_forgotten() {
    for disabled_first in [false, true] {
        let dir = TempDir::new().unwrap();
        let server = memory("tools a(desc \"one\")");
        let first = host(&dir);
        first.apply(refusing(&server, true));
        all_ready(&first, &["a"]).await;
        first.shutdown().await;
        let second = host(&dir);
        second.apply(refusing(&server, !disabled_first));
        second.apply(FleetConfig::default());
        second.shutdown().await;
        server.set_script(CHANGED).unwrap();
        let third = host(&dir);
        third.apply(refusing(&server, true));
        all_ready(&third, &["a"]).await;
        assert_eq!((tools(&third).len(), third.withheld().len()), (1, 0), "seen for the first time");
        third.shutdown().await;
    }
}

/// Neither a clean shutdown nor a park of it makes a server park in the next process.
#[tokio::test(start_paused = true)]
async fn a_healthy_server_is_dialled_at_once() {
    let dir = TempDir::new().unwrap();
    let server = memory("");
    for spawns in 1..=3 {
        let fleet = host(&dir);
        fleet.apply(config(&[("a", &server)]));
        let began = tokio::time::Instant::now();
        all_ready(&fleet, &["a"]).await;
        assert_eq!((server.ledger().spawns(), began.elapsed().as_millis()), (spawns, 0));
        fleet.shutdown().await;
    }
}
