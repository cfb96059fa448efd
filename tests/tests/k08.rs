//! K08: never give up for good, never shout while waiting.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, LazyLock, Mutex};

use mcp_reconnect::core::{Config, FailureClass, ParkReason, Refusal, State, Status, WakeCause};
use mcp_reconnect::{CallError, CallOptions, Connection, Event, Events};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::DefaultGuard;
use tracing::{Dispatch, Level, Metadata, Subscriber};

use crate::k09::{climb, waits};
use crate::support::*;

/// A server that dies while it is initialized, until then.
fn down_until(seconds: u64) -> String {
    format!("until {seconds}s:\n initialize exit 1")
}

/// Waits for a park, which comes within minutes.
pub(crate) async fn until_parked(events: &mut Events) -> Vec<Status> {
    let parked = until_status(events, |status| matches!(status, Status::Parked(_)));
    timeout(secs(3600), parked).await.expect("it parks")
}

/// H-outage-60s and R027, without HTTP, and for an outage that is long enough to park.
#[tokio::test(start_paused = true)]
async fn k08_outage_ends_in_a_probe() {
    let server = memory(&down_until(120));
    let connection = connect(&server);
    let mut events = connection.events();
    let began = Instant::now();
    let seen = until_parked(&mut events).await;
    assert_eq!(seen.last(), Some(&Status::Parked(ParkReason::Exhausted)));
    assert!(began.elapsed() <= Config::default().park_after(), "{:?}", began.elapsed());
    assert!(climb(&waits(&server.ledger()), 0), "{:?}", waits(&server.ledger()));
    // Nobody asks for it.
    assert_eq!(next_status(&mut events).await, Status::Ready(epoch(server.ledger().spawns() as u64)));
    // One probe interval, up to a fifth late, from when it could have worked.
    let probe = Config::default().park_probe() * 2; // the second probe's
    assert!(began.elapsed() <= secs(120) + probe + probe / 5, "{:?}", began.elapsed());
    assert_eq!(text(connection.call_tool(tool_with("echo", "back")).await), "back");
}

#[tokio::test(start_paused = true)]
async fn k08_outage_60s() {
    let server = memory(&down_until(60));
    let connection = connect(&server);
    let mut events = connection.events();
    let began = Instant::now();
    until_ready(&mut events).await;
    assert!(began.elapsed() <= secs(60 + 72), "{:?}", began.elapsed());
}

/// The same outage, and a call soon after its end.
#[tokio::test(start_paused = true)]
async fn k08_outage_ends_with_a_call() {
    let server = memory(&down_until(300));
    let connection = connect(&server);
    until_parked(&mut connection.events()).await;
    sleep_until(Instant::now() + secs(300)).await;
    let last = *server.ledger().spawn_times().last().unwrap();
    assert!(matches!(connection.snapshot().status, Status::Parked(_)), "the script leaves the park to the call");
    let asked = Instant::now();
    assert_eq!(text(connection.call_tool(tool_with("echo", "wake up")).await), "wake up");
    assert!(asked.elapsed() < secs(1), "{:?}, last dial at {last}", asked.elapsed());
}

/// Every wake ends the wait of every park, once the server is back.
#[tokio::test(start_paused = true)]
async fn k08_wakes_end_a_park() {
    type Wake = fn(&Connection);
    let wakes: [(&str, Wake); 4] = [
        ("operator", |connection| connection.wake(WakeCause::Operator)),
        ("config", |connection| connection.wake(WakeCause::Config)),
        ("credentials", |connection| connection.wake(WakeCause::Credentials)),
        ("resumed", Connection::resumed),
    ];
    let dead = ["initialize exit 1", "list ok, exit 1", "initialize never", "initialize only 2031-01-01"];
    for (name, wake) in wakes {
        for script in dead {
            let server = memory(script);
            let connection = connect(&server);
            let mut events = connection.events();
            let seen = until_parked(&mut events).await;
            if name == "resumed" && seen.last() == Some(&Status::Parked(ParkReason::Permanent)) {
                continue; // no network that comes back makes that one work
            }
            sleep(secs(20)).await;
            server.set_script("").unwrap();
            let asked = Instant::now();
            wake(&connection);
            until_ready(&mut events).await;
            assert!(asked.elapsed() < secs(1), "{name}, {script}: {:?}", asked.elapsed());
        }
    }
}

/// H-502-once and R028, without HTTP.
#[tokio::test(start_paused = true)]
async fn k08_refused_once() {
    let server = memory("spawn 1:\n initialize error -32603 \"502 Bad Gateway\"");
    let connection = connect(&server);
    let mut events = connection.events();
    let began = Instant::now();
    assert_eq!(until_ready(&mut events).await, 2);
    assert!(began.elapsed() <= secs(1), "{:?}", began.elapsed());
    assert_eq!(server.ledger().initializes(), 2);
    assert_eq!(text(connection.call_tool(tool_with("echo", "fine")).await), "fine");
}

/// I08b: what never worked is not tried less than what once did.
#[tokio::test(start_paused = true)]
async fn k08_first_connect_has_the_same_ladder() {
    let first = memory("initialize exit 1");
    let again = memory("spawn 1:\n after 20s exit 1\nspawn 2..:\n initialize exit 1");
    let (connections, watches) = ([connect(&first), connect(&again)], [first.watch(), again.watch()]);
    watches[0].wait_until(|ledger| ledger.spawns() == 6).await;
    watches[1].wait_until(|ledger| ledger.spawns() == 7).await;
    let [first, again] = [waits(&first.ledger()), waits(&again.ledger())];
    assert!(climb(&first, 0), "{first:?}");
    assert_eq!(again[0], 0, "a proven session's loss is redialled at once: {again:?}");
    assert!(climb(&again[1..], 0), "{again:?}");
    drop(connections);
}

/// I08a: whatever it waits for, it does not wait for ever.
#[tokio::test(start_paused = true)]
async fn k08_every_wait_has_an_end() {
    for script in [
        "initialize exit 1",
        "list ok, exit 0",
        "initialize never",
        "initialize only 2031-01-01",
        "list error -32603 \"broken\"",
        "after 3s exit 1",
    ] {
        let server = memory(script);
        let connection = connect(&server);
        for _ in 0..500 {
            sleep(secs(7)).await;
            let snapshot = connection.snapshot();
            let armed = match snapshot.state {
                State::Ready { .. } => true,
                state => state.next_timeout().is_some(),
            };
            assert!(armed, "{script}: {snapshot:?}");
        }
        let dials = connection.snapshot().stats.dials;
        sleep(secs(3 * 3600)).await;
        assert!(connection.snapshot().stats.dials > dials, "{script}");
        // And when it works again, so does the connection.
        server.set_script("").unwrap();
        sleep(secs(900 + 180)).await;
        assert!(matches!(connection.snapshot().status, Status::Ready(_)), "{script}: {:?}", connection.snapshot());
    }
}

/// A thousand probes of a server that is parked for this reason: what was told since, and how often what was logged.
async fn a_thousand_probes(script: &str, reason: ParkReason) -> (Vec<Status>, BTreeMap<String, usize>) {
    let (warnings, _guard) = Warnings::of_this_thread();
    let server = memory(script);
    let connection = connect(&server);
    let mut events = connection.events();
    assert_eq!(until_parked(&mut events).await.last(), Some(&Status::Parked(reason)), "{script}");
    let mut told = Vec::new();
    let began = Instant::now();
    while connection.snapshot().stats.probes < 1_000 {
        assert!(began.elapsed() < secs(30 * 24 * 3600), "{script}: {:?}", connection.snapshot().stats);
        if let Ok(status) = timeout(secs(24 * 3600), next_status(&mut events)).await {
            told.push(status);
        }
    }
    let snapshot = connection.snapshot();
    assert!(snapshot.stats.failures >= 1_000, "the repeats are counted: {:?}", snapshot.stats);
    connection.shutdown().await;
    let logged = warnings.logged();
    (told, logged)
}

/// Also R029.
#[tokio::test(start_paused = true)]
async fn k08_dead_for_weeks() {
    for (script, reason) in [
        ("initialize exit 1", ParkReason::Exhausted),
        ("initialize never", ParkReason::Exhausted),
        ("list error -32603 \"broken\"", ParkReason::Exhausted),
        ("initialize only 2031-01-01", ParkReason::Permanent),
    ] {
        let (told, logged) = a_thousand_probes(script, reason).await;
        assert_eq!(told, [], "{script}: one notice per episode");
        assert_eq!(logged.values().sum::<usize>(), 1, "{script}: {logged:?}");
    }
}

/// Each probe is Ready for a moment and may say so, but it does not shout.
#[tokio::test(start_paused = true)]
async fn k08_flapping_for_weeks() {
    let (told, logged) = a_thousand_probes("list ok, exit 1", ParkReason::Flapping).await;
    assert!(told.iter().all(|status| matches!(status, Status::Ready(_) | Status::Parked(ParkReason::Flapping))));
    assert!(logged.values().sum::<usize>() <= 2, "{logged:?}");
}

/// Callers and wakes in vain do not make it shout either.
#[tokio::test(start_paused = true)]
async fn k08_a_park_episode_is_told_once_whatever_is_tried() {
    let server = memory("initialize exit 1");
    let connection = connect(&server);
    let mut events = connection.events();
    until_parked(&mut events).await;
    for _ in 0..20 {
        connection.wake(WakeCause::Operator);
        let options = CallOptions { max_wait: secs(6), ..CallOptions::default() };
        match connection.call_tool_with(tool("echo"), &options).await {
            Err(CallError::Refused {
                why: Refusal::Parked(ParkReason::Exhausted),
                retry_at: Some(_),
                cause: Some(_),
            }) => {}
            other => panic!("{other:?}"),
        }
        assert!(connection.catalogue().is_none());
        sleep(secs(30)).await;
    }
    assert!(server.ledger().spawns() > 20);
    assert_eq!(drain_statuses(connection, events).await, [Status::Shutdown]);
}

/// What was withdrawn comes back with the session, and a new episode is a new notice.
#[tokio::test(start_paused = true)]
async fn k08_each_episode_has_one_notice() {
    let server = memory("");
    let connection = connect(&server);
    let mut events = connection.events();
    until_ready(&mut events).await;
    for _ in 0..3 {
        assert!(connection.catalogue().is_some());
        sleep(secs(20)).await;
        server.set_script("initialize exit 1").unwrap();
        if let Status::Ready(epoch) = connection.snapshot().status {
            connection.invalidate(epoch, "the machine room is on fire");
        }
        let (mut parked, mut withdrawn) = (0, 0);
        while parked == 0 {
            match events.next().await.expect("an event") {
                Event::Status { status: Status::Parked(reason), failure, .. } => {
                    assert_eq!((reason, failure), (ParkReason::Exhausted, Some(FailureClass::Transport)));
                    parked += 1;
                }
                Event::Withdrawn => withdrawn += 1,
                _ => {}
            }
        }
        assert_eq!(withdrawn, 1);
        assert!(connection.catalogue().is_none());
        sleep(secs(600)).await;
        server.set_script("").unwrap();
        assert_eq!(text(connection.call_tool(tool_with("echo", "again")).await), "again");
        assert!(matches!(next_status(&mut events).await, Status::Ready(_)));
    }
}

/// Requested is the one park that waits for a word, and then not a moment longer.
#[tokio::test(start_paused = true)]
async fn k08_a_requested_park_rests_until_woken() {
    let server = memory("");
    let connection = connect(&server);
    let mut events = connection.events();
    until_ready(&mut events).await;
    connection.park();
    assert_eq!(next_status(&mut events).await, Status::Parked(ParkReason::Requested));
    sleep(secs(30 * 24 * 3600)).await;
    let outcome = connection.call_tool(tool("echo")).await;
    assert!(
        matches!(outcome, Err(CallError::Refused { why: Refusal::Parked(ParkReason::Requested), .. })),
        "{outcome:?}"
    );
    assert_eq!(server.ledger().spawns(), 1);
    let asked = Instant::now();
    connection.wake(WakeCause::Operator);
    assert_eq!(until_ready(&mut events).await, 2);
    assert!(asked.elapsed() < secs(1));
}

/// Counts what is logged as a warning or worse, by its text.
#[derive(Clone, Default)]
pub(crate) struct Warnings(Arc<Mutex<BTreeMap<String, usize>>>);

impl Warnings {
    pub(crate) fn of_this_thread() -> (Self, DefaultGuard) {
        // Where there is one subscriber only, whether it wants an event is asked once, on whichever thread comes
        // first, and another test's thread has none: with two, both are asked.
        static OTHER: LazyLock<Dispatch> = LazyLock::new(|| Dispatch::new(Warnings::default()));
        LazyLock::force(&OTHER);
        let warnings = Self::default();
        (warnings.clone(), tracing::subscriber::set_default(warnings))
    }

    /// What was logged so far, and how often.
    pub(crate) fn logged(&self) -> BTreeMap<String, usize> {
        self.0.lock().unwrap().clone()
    }
}

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && *metadata.level() <= Level::WARN
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        struct Message(String);
        impl Visit for Message {
            fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
                if field.name() == "message" {
                    self.0 = format!("{value:?}");
                }
            }
        }
        let mut message = Message(String::new());
        event.record(&mut message);
        *self.0.lock().unwrap().entry(message.0).or_default() += 1;
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}
