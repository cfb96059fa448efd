//! Any sequence of configurations, failures, wakes and parks, against what must come of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use mcp_reconnect::ServerState;
use mcp_reconnect::config::{Connect, FleetConfig, ServerConfig};
use mcp_reconnect::core::{ParkReason, WakeCause};
use mcp_reconnect::fleet::{Fleet, FleetEvents, Outcome};
use mcp_reconnect_tests::fake::FakeServer;
use proptest::prelude::*;
use tokio::time::sleep;

use super::support::*;
use crate::support::{config as knobs, memory, millis, secs};

const NAMES: [&str; 4] = ["a", "b", "c", "d"];

/// What a configuration says of one server; not there at all where it is `None`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Wanted {
    enabled: bool,
    version: u32,
    knob: u64,
    lazy: bool,
}

#[derive(Clone, Debug)]
enum Step {
    Apply([Option<Wanted>; 4]),
    /// Its spawn dies, and the next ones live.
    Kill(usize),
    /// Its spawn dies, and the next ones too.
    Break(usize),
    Heal(usize),
    Wake(usize),
    Park(usize),
    /// Somebody shuts it down by its handle.
    End(usize),
    Resume,
    Wait(u64),
}

fn wanted() -> impl Strategy<Value = Option<Wanted>> {
    let some = (prop::bool::weighted(0.8), 1..3_u32, 0..2_u64, prop::bool::weighted(0.2));
    let some = some.prop_map(|(enabled, version, knob, lazy)| Wanted { enabled, version, knob, lazy });
    prop::option::weighted(0.8, some)
}

fn step() -> impl Strategy<Value = Step> {
    let waits = [0, 1, 60, 400, 900, 5_000, 31_000, 90_000, 400_000];
    prop_oneof![
        4 => prop::array::uniform4(wanted()).prop_map(Step::Apply),
        1 => (0..4_usize).prop_map(Step::Kill),
        2 => (0..4_usize).prop_map(Step::Break),
        1 => (0..4_usize).prop_map(Step::Heal),
        1 => (0..4_usize).prop_map(Step::Wake),
        1 => (0..4_usize).prop_map(Step::Park),
        1 => (0..4_usize).prop_map(Step::End),
        1 => Just(Step::Resume),
        5 => prop::sample::select(waits.to_vec()).prop_map(Step::Wait),
    ]
}

struct World {
    fakes: Vec<(Arc<FakeServer>, Killable)>,
    fleet: Fleet,
    events: FleetEvents,
    mirror: Mirror,
    /// What was applied last.
    known: BTreeMap<&'static str, Wanted>,
}

impl World {
    fn new() -> Self {
        let fake = |name: &&str| memory(&good(name));
        let fakes = NAMES.iter().map(fake).map(|fake| (fake.clone(), Killable::new(&fake))).collect();
        let (fleet, events) = watched();
        Self { fakes, fleet, events, mirror: Mirror::default(), known: BTreeMap::new() }
    }

    fn config(&self, all: &[Option<Wanted>; 4]) -> FleetConfig {
        let mut config = FleetConfig::default();
        for ((name, wanted), (_, way)) in NAMES.into_iter().zip(all).zip(&self.fakes) {
            if let Some(wanted) = wanted {
                let mut server: ServerConfig = by(wanted.version, way.clone());
                server.enabled = wanted.enabled;
                server.connect = if wanted.lazy { Connect::OnDemand } else { Connect::Eager };
                server.machine = knobs(|config| config.keepalive(secs(40 + wanted.knob)));
                config = config.with(name, server);
            }
        }
        config
    }

    /// What must become of it, by what is known and how it stands.
    fn expected(&self, name: &'static str, wanted: Option<Wanted>) -> Option<Outcome> {
        let was = self.known.get(name);
        let Some(wanted) = wanted else { return was.map(|_| Outcome::Removed) };
        Some(match was {
            _ if !wanted.enabled => Outcome::Disabled,
            None | Some(Wanted { enabled: false, .. }) => Outcome::Started,
            Some(_) if state(&self.fleet, name) == ServerState::Shutdown => Outcome::Started,
            Some(was) if was.version != wanted.version => Outcome::Replaced,
            Some(was) if *was != wanted => Outcome::Retuned,
            Some(_) => {
                let status = status(&self.fleet, name);
                // A probe that is under way is due at no time.
                match (status.state, status.park_reason) {
                    (ServerState::Idle, _) if wanted.lazy => Outcome::Untouched,
                    (ServerState::TransientFailure | ServerState::Idle, _) => Outcome::Woken,
                    (ServerState::Parked, Some(ParkReason::Exhausted | ParkReason::Flapping))
                        if status.next_dial.is_some() =>
                    {
                        Outcome::Woken
                    }
                    _ => Outcome::Untouched,
                }
            }
        })
    }

    fn apply(&mut self, all: &[Option<Wanted>; 4]) {
        let mut expected = BTreeMap::new();
        let mut epochs = Vec::new();
        for (name, wanted) in NAMES.into_iter().zip(all) {
            if let Some(outcome) = self.expected(name, *wanted) {
                if outcome == Outcome::Untouched || outcome == Outcome::Retuned {
                    epochs.push((name, status(&self.fleet, name).session.map(|session| session.epoch)));
                }
                expected.insert(Arc::from(name), outcome);
            }
        }
        let report = self.fleet.apply(self.config(all));
        assert_eq!(report.servers, expected);
        for (name, epoch) in epochs {
            assert_eq!(status(&self.fleet, name).session.map(|session| session.epoch), epoch);
        }
        self.known = NAMES.into_iter().zip(all).filter_map(|(name, wanted)| Some((name, (*wanted)?))).collect();
        let names: Vec<_> = self.fleet.names().iter().map(ToString::to_string).collect();
        assert_eq!(names, self.known.keys().map(ToString::to_string).collect::<Vec<_>>());
    }

    async fn step(&mut self, step: &Step) {
        match step {
            Step::Apply(all) => self.apply(all),
            Step::Kill(at) => self.fakes[*at].1.kill(),
            Step::Break(at) => {
                self.fakes[*at].0.set_script("initialize exit 1").unwrap();
                self.fakes[*at].1.kill();
            }
            Step::Heal(at) => self.fakes[*at].0.set_script(&good(NAMES[*at])).unwrap(),
            Step::Wake(at) => _ = self.fleet.wake(NAMES[*at], WakeCause::Operator),
            Step::Park(at) => _ = self.fleet.park(NAMES[*at]),
            Step::End(at) => {
                if let Some(connection) = self.fleet.connection(NAMES[*at]) {
                    tokio::spawn(async move { connection.shutdown().await });
                }
            }
            Step::Resume => self.fleet.resumed(),
            Step::Wait(time) => sleep(millis(*time)).await,
        }
        self.check();
    }

    /// What holds at every moment.
    fn check(&mut self) {
        self.mirror.follow(&self.fleet, told(&mut self.events));
        let mut offered = Vec::new();
        for (name, wanted) in &self.known {
            let state = state(&self.fleet, name);
            assert_eq!(state == ServerState::Disabled, !wanted.enabled, "{name}");
            let connection = self.fleet.connection(name);
            assert_eq!(connection.is_some(), wanted.enabled, "{name}");
            let published = connection.is_some_and(|connection| connection.catalogue().is_some());
            assert!(published || state != ServerState::Ready, "{name} is Ready without tools");
            let over = matches!(state, ServerState::Parked | ServerState::Shutdown);
            assert!(!published || !over, "{name} is {state:?} with tools");
            if published {
                offered.extend([format!("{name}__only_{name}"), format!("{name}__same")]);
            }
        }
        assert_eq!(tools(&self.fleet), offered);
        for ((fake, _), name) in self.fakes.iter().zip(NAMES) {
            assert!(fake.ledger().live_links() <= 1, "two of {name}");
        }
    }

    /// All is well again, and nobody asks: whoever is wanted is Ready, but who rests on request, or
    /// was never asked for.
    async fn recover(&mut self) {
        for ((fake, _), name) in self.fakes.iter().zip(NAMES) {
            fake.set_script(&good(name)).unwrap();
        }
        sleep(secs(20 * 60)).await;
        self.check();
        for (name, wanted) in &self.known {
            if wanted.enabled {
                let status = status(&self.fleet, name);
                let rests = status.park_reason == Some(ParkReason::Requested)
                    || status.state == ServerState::Shutdown
                    || (status.state == ServerState::Idle && wanted.lazy);
                assert!(rests || status.state == ServerState::Ready, "{status:?}");
            }
        }
        let alive = self.fleet.status().iter().filter(|status| status.state == ServerState::Ready).count();
        let links: usize = self.fakes.iter().map(|(fake, _)| fake.ledger().live_links()).sum();
        assert_eq!(links, alive);
    }
}

/// A server that takes its time with everything.
fn good(name: &str) -> String {
    format!("tools only_{name}, same\ninitialize delay 200ms\nlist delay 300ms\non EOF delay 1500ms, exit 0")
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn any_sequence_comes_out_as_it_must(steps in prop::collection::vec(step(), 1..60)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let mut world = World::new();
            for step in &steps {
                world.step(step).await;
            }
            world.recover().await;
            world.fleet.shutdown().await;
            for (fake, _) in &world.fakes {
                assert_eq!((fake.ledger().live_links(), most_live(fake).min(2)), (0, most_live(fake).min(1)));
            }
        });
    }
}
