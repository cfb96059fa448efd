//! Registrations from everywhere at once, and the end of a fleet.

use std::sync::Arc;

use mcp_reconnect::ServerState;
use mcp_reconnect::config::FleetConfig;
use mcp_reconnect::core::WakeCause;
use mcp_reconnect::fleet::Outcome;
use mcp_reconnect_tests::fake::FakeServer;
use tokio::time::{Instant, sleep, timeout};

use super::support::*;
use crate::support::{config as knobs, memory, millis, secs};

const DEAD: &str = "initialize exit 1";

/// A server that closes slowly: three of the seven seconds that it is given.
const SLOW: &str = "on EOF delay 3s, exit 0";

/// From many tasks at once, on many threads.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_hundred_at_once_are_as_one() {
    let servers: Vec<_> = (0..5).map(|_| memory("")).collect();
    let all = |servers: &[Arc<FakeServer>]| {
        servers
            .iter()
            .zip(0..)
            .fold(FleetConfig::default(), |all, (fake, at)| all.with(format!("s{at}"), server(fake, 1)))
    };
    let fleet = fleet();
    let applies: Vec<_> = (0..100)
        .map(|_| {
            let (fleet, config) = (fleet.clone(), all(&servers));
            tokio::spawn(async move { fleet.apply(config) })
        })
        .collect();
    let mut started = 0;
    for apply in applies {
        let report = apply.await.unwrap();
        started += report.servers.values().filter(|outcome| **outcome == Outcome::Started).count();
    }
    assert_eq!(started, 5);
    all_ready(&fleet, &["s0", "s1", "s2", "s3", "s4"]).await;
    assert!(servers.iter().all(|server| server.ledger().spawns() == 1));
    assert_eq!(tools(&fleet).len(), 10);
    fleet.shutdown().await;
    assert!(servers.iter().all(|server| server.ledger().live_links() == 0));
}

/// Against each other: other versions, wakes, parks, and at last a shutdown in the midst of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn applies_race_with_everything_else() {
    let fake = memory("");
    let brisk = knobs(|config| config.backoff(millis(20)).min_dial_interval(millis(10)).demand_interval(millis(20)));
    let version = |version| {
        let mut config = server(&fake, version);
        config.machine = brisk;
        config
    };
    let fleet = fleet();
    fleet.apply(only("a", version(0)));
    let race = |rounds: u32| {
        let tasks = (0..8_u32).map(|task| {
            let (fleet, configs) = (fleet.clone(), [0, 1, 2].map(version));
            tokio::spawn(async move {
                for round in 0..rounds {
                    match (task + round) % 5 {
                        0 => drop(fleet.apply(only("a", configs[(round % 3) as usize].clone()))),
                        1 => _ = fleet.wake("a", WakeCause::Operator),
                        2 => _ = fleet.park("a"),
                        3 => drop(fleet.apply(FleetConfig::default())),
                        _ => fleet.resumed(),
                    }
                    tokio::task::yield_now().await;
                }
            })
        });
        futures::future::join_all(tasks.collect::<Vec<_>>())
    };
    race(100).await;
    fleet.apply(only("a", version(9)));
    all_ready(&fleet, &["a"]).await;
    assert_eq!((most_live(&fake), tools(&fleet).len()), (1, 2));
    tokio::join!(race(100), fleet.shutdown());
    fleet.shutdown().await;
    assert_eq!((most_live(&fake), fake.ledger().live_links()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn after_a_shutdown_nothing_is_started_and_everything_says_so() {
    let (server, off) = (memory(SLOW), memory(""));
    let fleet = fleet();
    let config = || config(&[("a", &server)]).with("off", with(&off, |server| server.enabled = false));
    fleet.apply(config());
    all_ready(&fleet, &["a"]).await;
    let mut events = fleet.events();
    let began = Instant::now();
    tokio::join!(fleet.shutdown(), fleet.shutdown());
    assert_eq!((began.elapsed().as_secs(), server.ledger().live_links()), (3, 0));
    assert_eq!(words(&mut events, secs(1)).await, ["tools -a__echo -a__write"]);
    assert_eq!(outcomes(&fleet.apply(config())), [""; 0]);
    sleep(secs(60)).await;
    assert_eq!((server.ledger().spawns(), off.ledger().spawns()), (1, 0));
    assert_eq!((state(&fleet, "a"), state(&fleet, "off")), (ServerState::Shutdown, ServerState::Disabled));
    assert!(fleet.call_tool("a__echo", None).await.is_err() && fleet.connection("a").is_none());
    fleet.shutdown().await;
}

/// Dropped, whatever its servers are at: no task and no link is left.
#[tokio::test(start_paused = true)]
async fn a_fleet_that_is_dropped_leaves_nothing() {
    let [ready, slow, dialling, dead, waiting] = ["", SLOW, "initialize never", DEAD, ""].map(memory);
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let before = tasks();
    let fleet = fleet();
    fleet.apply(config(&[("r", &ready), ("s", &slow), ("d", &dialling), ("x", &dead), ("w", &waiting)]));
    all_ready(&fleet, &["r", "s", "w"]).await;
    let mut events = fleet.events();
    fleet.apply(config(&[("r", &ready), ("s", &slow), ("d", &dialling), ("x", &dead)]).with("w", server(&waiting, 2)));
    drop(fleet);
    sleep(secs(15)).await;
    for server in [&ready, &slow, &dialling, &dead, &waiting] {
        assert_eq!(server.ledger().live_links(), 0);
    }
    assert_eq!(tasks(), before);
    while let Some(event) = timeout(secs(1), events.next()).await.expect("the end is told") {
        drop(event);
    }
}

/// A call does not hold the fleet: it is settled by the end.
#[tokio::test(start_paused = true)]
async fn a_shutdown_settles_calls() {
    let server = memory("call write never");
    let fleet = fleet();
    fleet.apply(config(&[("a", &server)]));
    all_ready(&fleet, &["a"]).await;
    let (called, ()) = tokio::join!(fleet.call_tool("a__write", None), async {
        server.watch().wait_until(|ledger| ledger.calls("write") == 1).await;
        fleet.shutdown().await;
    });
    let error = called.unwrap_err();
    assert!(error.to_string().contains("may have run"), "{error}");
    assert_eq!(server.ledger().live_links(), 0);
}
