//! What of a configuration is changed under a connection, what needs another one, and what cannot be used.

use std::sync::Arc;

use mcp_reconnect::config::{Connect, ServerConfig};
use mcp_reconnect::core::ParkReason;
use mcp_reconnect::fleet::{Fleet, Outcome, Select};
use mcp_reconnect::{BuildError, EraPolicy, Require, ServerState};
use mcp_reconnect_tests::fake::FakeServer;
use tokio::time::{Instant, sleep};

use super::support::*;
use crate::support::{config as knobs, memory, millis, secs, within};

#[tokio::test(start_paused = true)]
async fn what_needs_another_connection_replaces_it() {
    let changes: [fn(&mut ServerConfig); 2] =
        [|server| server.era = EraPolicy::Legacy, |server| server.require = Require::None];
    for change in changes {
        let server = memory("");
        let fleet = fleet();
        fleet.apply(config(&[("a", &server)]));
        all_ready(&fleet, &["a"]).await;
        assert_eq!(outcomes(&fleet.apply(only("a", with(&server, change)))), ["a: replaced"]);
        all_ready(&fleet, &["a"]).await;
        assert_eq!((server.ledger().spawns(), most_live(&server)), (2, 1));
        assert_eq!(outcomes(&fleet.apply(only("a", with(&server, change)))), ["a: untouched"]);
        fleet.shutdown().await;
    }
}

/// A Ready server is tuned so: the same session goes on. What comes after it shows what the tuning does.
async fn retuned(script: &str, change: fn(&mut ServerConfig)) -> (Arc<FakeServer>, Fleet) {
    let server = memory(script);
    let fleet = fleet();
    fleet.apply(config(&[("a", &server)]));
    all_ready(&fleet, &["a"]).await;
    sleep(secs(20)).await;
    let before = server.ledger().entries().len();
    assert_eq!(outcomes(&fleet.apply(only("a", with(&server, change)))), ["a: retuned"]);
    assert_eq!(outcomes(&fleet.apply(only("a", with(&server, change)))), ["a: untouched"]);
    sleep(millis(1)).await;
    assert_eq!((epoch_of(&fleet, "a"), server.ledger().entries().len()), (1, before));
    (server, fleet)
}

#[tokio::test(start_paused = true)]
async fn retuned_keepalive() {
    let (server, fleet) =
        retuned("", |server| server.machine = knobs(|config| config.keepalive(secs(25)).ping_timeout(secs(5)))).await;
    assert_eq!(server.ledger().requests("ping"), 0);
    sleep(secs(10)).await;
    assert_eq!(server.ledger().requests("ping"), 1);
    fleet.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn retuned_idle_timeout_and_lifetime() {
    let (server, fleet) =
        retuned("", |server| server.machine = knobs(|config| config.idle_timeout(Some(secs(30))))).await;
    sleep(secs(29)).await;
    assert_eq!(state(&fleet, "a"), ServerState::Ready);
    // Its use is noted when it is looked at: by twice its time at the latest.
    sleep(secs(32)).await;
    assert_eq!((state(&fleet, "a"), server.ledger().live_links()), (ServerState::Idle, 0));
    fleet.shutdown().await;
    let (server, fleet) =
        retuned("", |server| server.machine = knobs(|config| config.max_lifetime(Some(secs(50))))).await;
    sleep(secs(120)).await;
    assert_eq!((state(&fleet, "a"), server.ledger().spawns()), (ServerState::Ready, 3));
    fleet.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn retuned_calls() {
    let (_server, fleet) = retuned("call echo never", |server| server.calls = within(secs(2))).await;
    let began = Instant::now();
    let error = fleet.call_tool("a__echo", None).await.unwrap_err();
    assert!(error.to_string().starts_with("a: no answer by the deadline"), "{error}");
    assert_eq!(began.elapsed(), secs(2));
    fleet.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn retuned_breaker() {
    let (server, fleet) = retuned("ping never\ncall echo never", |server| {
        server.machine = knobs(|config| config.breaker_strikes(1).breaker_open(secs(1_000)));
        server.calls = within(secs(2));
    })
    .await;
    drop(fleet.call_tool("a__echo", None).await);
    let error = fleet.call_tool("a__echo", None).await.unwrap_err();
    assert!(error.to_string().contains("circuit breaker"), "{error}");
    assert_eq!(server.ledger().calls("echo"), 1);
    fleet.shutdown().await;
}

/// The pace of the next outage.
#[tokio::test(start_paused = true)]
async fn retuned_pace() {
    let (server, fleet) = retuned("from 30s:\n initialize exit 1\nspawn 1:\n after 40s exit 1", |server| {
        server.machine = knobs(|config| {
            config.backoff(secs(10)).backoff_max(secs(10)).min_dial_interval(secs(4)).park_after(secs(3_600))
        });
    })
    .await;
    sleep(secs(120)).await;
    let times = server.ledger().spawn_times();
    assert!(times.len() > 5 && times[2..].windows(2).all(|pair| pair[1] - pair[0] >= 5_000), "{times:?}");
    fleet.shutdown().await;
}

/// It counts from the next probe on: a server that became another one is probed at its next epoch.
#[tokio::test(start_paused = true)]
async fn retuned_probe_patience() {
    let script = "start stdout \"hello\\n\"\ndiscover never\ninfo other 2\nspawn 1:\n info fake 1";
    let (server, fleet) = retuned(script, |server| server.probe_patience = secs(7)).await;
    assert_eq!(times(&server.ledger(), "initialize"), [2_000]);
    for epoch in [1, 2] {
        fleet.connection("a").unwrap().invalidate(crate::support::epoch(epoch), "a test");
        let next = usize::try_from(epoch + 1).unwrap();
        server.watch().wait_until(|ledger| ledger.spawns() == next && ledger.initializes() == next).await;
        all_ready(&fleet, &["a"]).await;
    }
    let third = server.ledger().of_spawn(3);
    assert_eq!(times(&third, "initialize")[0] - third.spawn_times()[0], 7_000);
    fleet.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn from_on_demand_to_eager_and_back() {
    let server = memory("");
    let lazy = || only("a", with(&server, |server| server.connect = Connect::OnDemand));
    let fleet = fleet();
    assert_eq!(outcomes(&fleet.apply(lazy())), ["a: started"]);
    sleep(secs(60)).await;
    assert_eq!(outcomes(&fleet.apply(lazy())), ["a: untouched"]);
    assert_eq!((state(&fleet, "a"), server.ledger().spawns()), (ServerState::Idle, 0));
    assert!(fleet.ready(&Select::All, secs(1)).await.is_complete(), "nobody waits for it");
    assert_eq!(outcomes(&fleet.apply(config(&[("a", &server)]))), ["a: retuned"]);
    all_ready(&fleet, &["a"]).await;
    assert_eq!(outcomes(&fleet.apply(lazy())), ["a: retuned"]);
    assert_eq!((epoch_of(&fleet, "a"), server.ledger().spawns()), (1, 1));
    fleet.shutdown().await;
}

/// `close_timeout` below the ladder: told, and what is there goes on as it was.
#[tokio::test(start_paused = true)]
async fn a_config_that_cannot_be_used_changes_nothing() {
    let (one, two) = (memory(""), memory(""));
    let bad = |version| {
        let mut config = server(&one, version);
        config.machine = knobs(|config| config.close_timeout(secs(5)));
        config.tools.exclude = vec!["echo".into()];
        config
    };
    let fleet = fleet();
    let failed = |outcome: &Outcome| matches!(outcome, Outcome::Failed(BuildError::CloseTimeout { ladder, .. }) if *ladder == secs(7));
    let report = fleet.apply(config(&[("two", &two)]).with("one", bad(1)));
    assert!(failed(&report.servers["one"]) && report.servers["two"] == Outcome::Started, "{report}");
    assert!(fleet.connection("one").is_none());
    fleet.apply(config(&[("one", &one), ("two", &two)]));
    all_ready(&fleet, &["one", "two"]).await;
    for version in [1, 2] {
        let report = fleet.apply(config(&[("two", &two)]).with("one", bad(version)));
        assert!(failed(&report.servers["one"]) && report.servers["two"] == Outcome::Untouched, "{report}");
    }
    sleep(secs(20)).await;
    assert_eq!(tools(&fleet), ["one__echo", "one__write", "two__echo", "two__write"]);
    assert_eq!((one.ledger().spawns(), two.ledger().spawns()), (1, 1));
    assert_eq!(outcomes(&fleet.apply(config(&[("one", &one), ("two", &two)]))), ["one: untouched", "two: untouched"]);
    fleet.shutdown().await;
}

/// A number of dials that cannot be is no reason to register nothing.
#[tokio::test(start_paused = true)]
async fn a_gate_that_cannot_be_changes_nothing() {
    let server = memory("");
    let fleet = fleet();
    let mut config = config(&[("a", &server)]);
    config.max_dials = 0;
    fleet.apply(config);
    all_ready(&fleet, &["a"]).await;
    fleet.shutdown().await;
}

/// Tuned while it has no session, it is tried with it.
#[tokio::test(start_paused = true)]
async fn a_retuned_server_without_a_session_is_woken() {
    let server = memory("initialize exit 1");
    let (fleet, mut events) = watched();
    fleet.apply(config(&[("a", &server)]));
    until_parked(&mut events, "a", ParkReason::Exhausted).await;
    sleep(secs(10)).await;
    server.set_script("").unwrap();
    let (dials, began) = (server.ledger().spawns(), Instant::now());
    let tuned = only("a", with(&server, |server| server.calls = within(secs(2))));
    assert_eq!(outcomes(&fleet.apply(tuned)), ["a: retuned"]);
    until_ready(&mut events, "a").await;
    assert_eq!((server.ledger().spawns(), began.elapsed().as_secs()), (dials + 1, 0));
    fleet.shutdown().await;
}
