//! Two hundred servers in one process: healthy, refusing and silent ones, at a common pace.

use std::collections::BTreeMap;
use std::sync::Arc;

use mcp_reconnect::config::{FleetConfig, ServerConfig};
use mcp_reconnect::core::Status;
use mcp_reconnect::fleet::{Fleet, FleetEvent, FleetEvents, Select};
use mcp_reconnect::{Event, ServerState};
use mcp_reconnect_tests::fake::FakeServer;
use tokio::time::{Instant, advance, sleep};

use super::support::*;
use crate::support::{config as knobs, memory, millis, secs};

const HEALTHY: &str = "initialize delay 50ms";
const REFUSING: &str = "initialize exit 1";
const SILENT: &str = "discover never\ninitialize never";

struct Storm {
    servers: Vec<(String, Arc<FakeServer>)>,
    fleet: Fleet,
    events: FleetEvents,
    began: Instant,
}

fn kind(at: usize) -> &'static str {
    [HEALTHY, REFUSING, SILENT][at % 3]
}

impl Storm {
    fn new(count: usize, max_dials: u8, kind: impl Fn(usize) -> &'static str) -> Self {
        let servers = (0..count).map(|at| (format!("s{at:03}"), memory(kind(at)))).collect();
        let (fleet, events) = watched();
        let storm = Self { servers, fleet, events, began: Instant::now() };
        storm.fleet.apply(storm.config(max_dials));
        storm
    }

    fn config(&self, max_dials: u8) -> FleetConfig {
        let machine = knobs(|config| config.redial_spread(millis(250)).keepalive(secs(86_400)));
        let of = |fake: &Arc<FakeServer>| -> ServerConfig { with(fake, |server| server.machine = machine) };
        let mut config =
            self.servers.iter().fold(FleetConfig::default(), |all, (name, fake)| all.with(name.as_str(), of(fake)));
        config.max_dials = max_dials;
        config
    }

    fn healthy(&self) -> Select {
        Select::Named(self.servers.iter().step_by(3).map(|(name, _)| name.as_str().into()).collect())
    }

    /// How many dials held a slot at the same time, at most, among those from `from` on: a dial holds it until its server
    /// has listed, or for a second. By what the servers saw alone.
    fn most_slots(&self, from: u64) -> usize {
        let mut dials = Vec::new();
        for (_, server) in &self.servers {
            let ledger = server.ledger();
            for (spawn, began) in (1..).zip(ledger.spawn_times()) {
                let listed = times(&ledger.of_spawn(spawn), "tools/list").first().copied();
                dials.push((began, listed.unwrap_or(u64::MAX).min(began + 1_000)));
            }
        }
        let at = |now: u64| dials.iter().filter(|(began, ended)| *began <= now && now < *ended).count();
        // A dial that is ready in the very millisecond in which it began held none.
        dials.iter().filter(|(began, _)| *began >= from).map(|(began, _)| at(*began)).max().unwrap_or(0)
    }

    /// Since the beginning, as the ledgers count.
    fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap()
    }
}

/// What was told of each server, in order.
fn statuses(events: &mut FleetEvents) -> BTreeMap<Arc<str>, Vec<Status>> {
    let mut of: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for event in told(events) {
        match event {
            FleetEvent::Server { server, event: Event::Status { status, .. } } => {
                of.entry(server).or_default().push(status);
            }
            FleetEvent::Missed { count } => panic!("missed {count} events"),
            _ => {}
        }
    }
    of
}

#[tokio::test(start_paused = true)]
async fn the_healthy_are_ready_soon_whatever_the_others_do() {
    let mut storm = Storm::new(200, 32, kind);
    // In the order of their names: for each healthy one there are two that hold a slot for a second.
    let readiness = storm.fleet.ready(&storm.healthy(), secs(60)).await;
    assert!(readiness.is_complete(), "{readiness:?}");
    // 133 others, 32 of them a second, and three at a time of fifty milliseconds each.
    assert!(storm.began.elapsed() < secs(5), "{:?}", storm.began.elapsed());
    assert!(storm.fleet.tools().len() == 67 * 2, "the others offer nothing");
    let first = statuses(&mut storm.events);
    sleep(secs(600)).await;
    assert_eq!(storm.most_slots(0), 32, "never more, and all of them are used");
    // The trouble of others is not told as theirs.
    let alone = {
        let mut alone = Storm::new(1, 32, kind);
        alone.fleet.ready(&alone.healthy(), secs(60)).await;
        let told = statuses(&mut alone.events).remove("s000").unwrap();
        alone.fleet.shutdown().await;
        told
    };
    let later = statuses(&mut storm.events);
    for (name, server) in storm.servers.iter().step_by(3) {
        assert_eq!((&first[&**name], later.get(&**name)), (&alone, None));
        assert_eq!(server.ledger().spawns(), 1);
    }
    let called = storm.fleet.call_tool("s000__echo", None).await;
    assert!(called.is_ok(), "{called:?}");
    storm.fleet.shutdown().await;
    assert!(storm.servers.iter().all(|(_, server)| server.ledger().live_links() == 0 && most_live(server) == 1));
}

/// Eight hours asleep: what was healthy is asked, spread over its quarter of a second, and goes on; all others are tried
/// again at the pace of the gate.
#[tokio::test(start_paused = true)]
async fn after_a_sleep_nobody_is_trampled() {
    let mut storm = Storm::new(200, 32, kind);
    sleep(secs(600)).await;
    drop(told(&mut storm.events));
    storm.fleet.resumed();
    advance(secs(8 * 3_600)).await;
    let woke = storm.now();
    sleep(secs(1_200)).await;
    assert!(storm.most_slots(0) <= 32);
    let later = statuses(&mut storm.events);
    let mut asked = Vec::new();
    for (at, (name, server)) in storm.servers.iter().enumerate() {
        if at % 3 == 0 {
            assert_eq!((later.get(&**name), server.ledger().spawns()), (None, 1));
            let pings: Vec<_> = times(&server.ledger(), "ping").into_iter().filter(|at| *at >= woke).collect();
            assert_eq!(pings.len(), 1, "asked once");
            asked.extend(pings);
        } else {
            let dials = server.ledger().spawn_times().into_iter().filter(|at| *at >= woke).count();
            assert!((1..=12).contains(&dials), "{name}: {dials} dials");
        }
    }
    asked.sort_unstable();
    assert!(asked[asked.len() - 1] - asked[0] <= 250, "{asked:?}");
    asked.dedup();
    assert!(asked.len() > 30, "spread: {asked:?}");
    storm.fleet.shutdown().await;
}

/// All are healthy and all are lost at once: they are back as fast as they can be.
#[tokio::test(start_paused = true)]
async fn when_all_are_lost_at_once_all_come_back() {
    let storm = Storm::new(200, 32, |_| "initialize delay 50ms\nspawn 1:\n after 30s exit 1\n initialize delay 50ms");
    storm.fleet.ready(&Select::All, secs(60)).await;
    // Two hundred of fifty milliseconds each, thirty-two at a time.
    assert!(storm.began.elapsed() < millis(400), "{:?}", storm.began.elapsed());
    sleep(secs(29)).await;
    sleep(millis(2_500)).await;
    assert!(storm.fleet.status().iter().all(|status| status.state == ServerState::Ready));
    assert!(storm.servers.iter().all(|(_, server)| server.ledger().spawns() == 2));
    assert!(storm.most_slots(0) <= 32);
    storm.fleet.shutdown().await;
}

/// The number of slots is the last config's, from then on.
#[tokio::test(start_paused = true)]
async fn the_gate_is_resized_at_run_time() {
    for (before, after) in [(32, 4), (2, 16)] {
        let storm = Storm::new(120, before, |at| [SILENT, REFUSING][at % 2]);
        sleep(millis(1_500)).await;
        assert_eq!(storm.most_slots(0), usize::from(before));
        storm.fleet.apply(storm.config(after));
        // What has a slot keeps it for its second.
        let since = storm.now() + u64::from(before > after) * 1_000;
        sleep(secs(20)).await;
        assert_eq!(storm.most_slots(since), usize::from(after));
        storm.fleet.shutdown().await;
    }
}

/// One that waits for its turn is shut down, replaced and removed at once.
#[tokio::test(start_paused = true)]
async fn who_waits_at_the_gate_holds_up_nobody() {
    let storm = Storm::new(40, 1, |_| SILENT);
    sleep(secs(2)).await;
    let began = Instant::now();
    let healthy = memory("");
    // All but the one that dials are gone, and with them their turns.
    let mut config = config(&[("z", &healthy)]);
    config.max_dials = 1;
    storm.fleet.apply(config);
    let readiness = storm.fleet.ready(&Select::All, secs(60)).await;
    assert!(readiness.is_complete() && began.elapsed() <= secs(1), "{:?} {readiness:?}", began.elapsed());
    storm.fleet.shutdown().await;
}

/// The waits of each server are its own, so that they do not dial in step, and the same in each process of one seed.
#[tokio::test(start_paused = true)]
async fn waits_differ_by_server_and_repeat_by_seed() {
    let mut runs = Vec::new();
    for _ in 0..2 {
        let storm = Storm::new(20, 128, |_| REFUSING);
        sleep(secs(50)).await;
        let dials: Vec<_> = storm.servers.iter().map(|(_, server)| server.ledger().spawn_times()).collect();
        assert!(dials.iter().all(|dials| dials.len() > 4), "{dials:?}");
        storm.fleet.shutdown().await;
        runs.push(dials);
    }
    assert_eq!(runs[0], runs[1]);
    let mut seconds: Vec<_> = runs[0].iter().map(|dials| dials[1]).collect();
    seconds.sort_unstable();
    seconds.dedup();
    assert!(seconds.len() > 15, "{seconds:?}");
}
