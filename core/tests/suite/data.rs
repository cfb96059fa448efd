//! Data that is kept, copied and written down: memory, snapshots, serde, sizes.

use std::time::Duration;

use mcp_reconnect_checker::{Checker, Rules, Walk};
use mcp_reconnect_core::{
    Admission, Config, ConfigError, ConnectionMachine, DialGate, Failure, FailureClass, Input, Memory, Output,
    ParkReason, PingSupport, ReadyFlags, State, Status, Timestamp, WakeCause,
};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use crate::cases;
use crate::sim::{HEALTHY, HOUR, REFUSES, Server, Sim, at, knobs, secs};

#[test]
fn the_machine_is_small() {
    assert!(size_of::<ConnectionMachine>() <= 576, "{} bytes", size_of::<ConnectionMachine>());
}

/// The jitter of one seed, written down: the same on every target.
#[test]
fn r04_the_dial_times_of_a_seed_are_these() {
    let mut sim = Sim::new(Config::default(), 42, |_, _| REFUSES);
    sim.give(Input::Connect { until: sim.now });
    sim.run_for(secs(300));
    let nanos: Vec<u64> = sim.dials.iter().map(|dial| dial.as_nanos()).collect();
    assert_eq!(nanos, DIALS_OF_42);
}

const DIALS_OF_42: [u64; 9] = [
    0,
    880_782_440,
    2_050_692_833,
    4_617_895_093,
    10_004_657_959,
    18_318_899_307,
    48_220_548_532,
    117_838_131_053,
    246_006_475_987,
];

fn parked(class: FailureClass) -> Sim {
    let mut sim = Sim::new(Config::default(), 5, move |_, _| Server::Refuses(secs(0), class.into()));
    sim.give(Input::Connect { until: sim.now });
    sim.run_for(secs(120));
    assert!(matches!(sim.status(), Status::Parked(_)));
    sim
}

#[test]
fn restore_goes_on_where_a_parked_machine_stopped() {
    let sim = parked(FailureClass::Transport);
    let memory = sim.snapshot().memory(sim.now);
    let left = memory.next_dial_in.expect("an exhausted server is probed");
    let mut machine = ConnectionMachine::restore(Config::default(), 6, at(1_000.0), memory);
    assert_eq!(machine.snapshot().status, Status::Parked(ParkReason::Exhausted));
    assert_eq!(machine.next_timeout(), Some(at(1_000.0) + left), "no earlier dial for having been restarted");
    let early = machine.handle(at(1_000.0), Input::Tick);
    assert_eq!(early.iter().count(), 0);
    let due = machine.handle(at(1_000.0) + left, Input::Tick);
    assert!(due.iter().any(|output| matches!(output, Output::Dial { .. })));
    assert_eq!(machine.snapshot().probe_doublings, memory.probe_doublings + 1);
}

/// A host that is started again and again, with callers waiting each time, does not dial each time: not sooner than
/// `demand_interval` after the last dial of the process before, and where that is not known, after the start.
#[test]
fn restore_paces_callers_by_the_last_dial() {
    for server in [Server::Refuses(secs(0), FailureClass::Transport.into()), Server::Silent] {
        let mut sim = Sim::new(Config::default(), 5, move |_, _| server);
        sim.connect(secs(10));
        sim.run_for(HOUR);
        let memory = sim.snapshot().memory(sim.now);
        assert_eq!(memory.last_dial_ago, sim.dials.last().map(|last| sim.now.since(*last)));
        for (ago, due) in
            [(None, 105.0), (Some(0), 105.0), (Some(3), 102.0), (Some(4_999), 100.0), (Some(9_999), 100.0)]
        {
            let memory = Memory { last_dial_ago: ago.map(secs), ..memory };
            let mut machine = ConnectionMachine::restore(Config::default(), 6, at(100.0), memory);
            let asked = machine.handle(at(100.0), Input::Connect { until: at(130.0) });
            let dialled = asked.iter().any(|output| matches!(output, Output::Dial { .. }));
            assert_eq!(dialled, due <= 100.0, "{ago:?}: {asked:?}");
            assert!(dialled || machine.next_timeout() == Some(at(due)), "{ago:?}: {:?}", machine.next_timeout());
        }
    }
}

#[test]
fn restore_keeps_the_reason_and_tries_once_what_may_have_been_cured() {
    for (class, reason) in
        [(FailureClass::NeedsAuth, ParkReason::NeedsAuth), (FailureClass::Permanent, ParkReason::Permanent)]
    {
        let sim = parked(class);
        let memory = sim.snapshot().memory(sim.now);
        assert_eq!((memory.failure, memory.hint_in), (Some(class), None));
        for (ago, due) in [(None, 5.0), (Some(secs(1)), 4.0), (Some(HOUR), 0.0)] {
            let now = at(50.0);
            let memory = Memory { last_dial_ago: ago, ..memory };
            let mut machine = ConnectionMachine::restore(Config::default(), 6, now, memory);
            assert_eq!(machine.snapshot().status, Status::Parked(reason));
            let due = now + Duration::from_secs_f64(due);
            assert_eq!(machine.next_timeout(), Some(due), "one try, {ago:?}");
            let tick = machine.handle(due, Input::Tick);
            assert!(tick.iter().any(|output| matches!(output, Output::Dial { interactive: false, .. })), "{tick:?}");
            let epoch = machine.snapshot().state.live_epoch().expect("a dial");
            let failed = machine.handle(due, Input::Gone { epoch, failure: class.into() });
            assert_eq!(failed.wake_at().is_some(), reason.probes(), "and no more by itself where a user is needed");
            let _asked = machine.handle(due + HOUR, Input::Connect { until: due + 2 * HOUR });
            let dialled = matches!(machine.snapshot().state, State::Connecting { .. });
            assert_eq!(dialled, reason.probes(), "nor for a caller");
        }
    }
    let mut sim = Sim::new(Config::default(), 5, |_, _| HEALTHY);
    sim.give(Input::Park);
    let mut machine = ConnectionMachine::restore(Config::default(), 6, at(0.0), sim.snapshot().memory(sim.now));
    let wake = machine.handle(at(1.0), Input::Wake(WakeCause::Credentials));
    assert_eq!(wake.iter().count(), 0, "credentials do not lift a park that was asked for");
}

#[test]
fn restore_of_a_running_connection_is_idle_and_knows_the_server() {
    let mut sim = Sim::new(Config::default(), 5, |dial, _| if dial == 1 { Server::Silent } else { HEALTHY });
    sim.give(Input::Connect { until: sim.now });
    sim.run_for(HOUR);
    assert!(matches!(sim.status(), Status::Ready(_)));
    let memory = Memory { last_dial_ago: Some(Duration::ZERO), ..sim.snapshot().memory(sim.now) };
    let mut machine = ConnectionMachine::restore(Config::default(), 6, at(0.0), memory);
    let restored = machine.snapshot();
    assert_eq!((restored.status, restored.state), (Status::Idle, State::Idle));
    let asked = machine.handle(at(0.0), Input::Connect { until: at(0.0) });
    assert!(asked.iter().any(|output| matches!(output, Output::Dial { .. })), "at once: {asked:?}");
    assert_eq!(restored.start_timeout, secs(60), "the start deadline that worked");
    assert_eq!(restored.pings, PingSupport::Answers);
}

#[test]
fn restore_cuts_what_is_out_of_range() {
    let memory = Memory {
        status: Status::Parked(ParkReason::Exhausted),
        next_dial_in: Some(Duration::MAX),
        start_timeout: Duration::ZERO,
        pings: PingSupport::Unknown,
        probe_doublings: 255,
        failure: None,
        hint_in: Some(Duration::MAX),
        last_dial_ago: Some(Duration::MAX),
    };
    let config = Config::default();
    let machine = ConnectionMachine::restore(config, 6, Timestamp::MAX, memory);
    assert_eq!(machine.snapshot().start_timeout, config.connect_timeout());
    let longest = config.park_probe_max().max(config.retry_after_max());
    assert_eq!(machine.next_timeout(), Some(Timestamp::MAX + longest + longest / 5), "as late as a fresh park's probe");
    assert_eq!(machine.snapshot().hint_until, Some(Timestamp::MAX + config.retry_after_max()));
    let long = Memory { start_timeout: Duration::MAX, ..memory };
    let machine = ConnectionMachine::restore(config, 6, at(0.0), long);
    assert_eq!(machine.snapshot().start_timeout, config.connect_timeout_max());
}

#[test]
fn restore_in_an_outage_dials_when_it_would_have() {
    let mut sim = Sim::new(Config::default(), 5, |_, _| REFUSES);
    sim.give(Input::Connect { until: sim.now });
    sim.run_for(secs(20));
    let memory = sim.snapshot().memory(sim.now);
    assert_eq!(memory.status, Status::TransientFailure);
    let mut machine = ConnectionMachine::restore(Config::default(), 6, at(7.0), memory);
    let due = at(7.0) + memory.next_dial_in.expect("a dial is due");
    assert_eq!(machine.next_timeout(), Some(due));
    assert!(machine.handle(due, Input::Tick).iter().any(|output| matches!(output, Output::Dial { .. })));
}

/// A rate limit outlives the process: neither its own schedule nor a caller dials before the hint is over, and the
/// outage clock does not run.
#[test]
fn restore_keeps_a_rate_limit() {
    let hint = Some(secs(600));
    let limited = Failure { class: FailureClass::RateLimited, retry_after: hint };
    let mut sim = Sim::new(Config::default(), 5, move |_, _| Server::Refuses(secs(0), limited));
    sim.connect(secs(10));
    sim.run_for(secs(100));
    let memory = sim.snapshot().memory(sim.now);
    assert_eq!((memory.failure, memory.hint_in), (Some(FailureClass::RateLimited), Some(secs(500))));
    let mut machine = ConnectionMachine::restore(Config::default(), 6, at(0.0), memory);
    let asked = machine.handle(at(1.0), Input::Connect { until: at(60.0) });
    let refused = asked.iter().any(|output| matches!(output, Output::Admit(Admission::Refuse { .. })));
    assert!(refused, "{asked:?}");
    assert_eq!(machine.next_timeout(), Some(at(500.0)));
    let _dial = machine.handle(at(500.0), Input::Tick);
    let epoch = machine.snapshot().state.live_epoch().expect("a dial");
    let _failed = machine.handle(at(500.0), Input::Gone { epoch, failure: FailureClass::Transport.into() });
    assert_eq!(machine.snapshot().status, Status::TransientFailure, "an outage begins now");
    // One without a hint is not hurried by callers either.
    let unhinted = Memory { hint_in: None, next_dial_in: Some(secs(40)), ..memory };
    let mut machine = ConnectionMachine::restore(Config::default(), 6, at(0.0), unhinted);
    let _asked = machine.handle(at(1.0), Input::Connect { until: at(60.0) });
    assert_eq!(machine.next_timeout(), Some(at(40.0)));
    // The same for a server in an outage that asks for time.
    let memory = Memory { failure: Some(FailureClass::Transport), ..memory };
    let mut machine = ConnectionMachine::restore(Config::default(), 6, at(0.0), memory);
    let _asked = machine.handle(at(1.0), Input::Connect { until: at(60.0) });
    assert_eq!(machine.next_timeout(), Some(at(500.0)));
}

/// Whatever a state file says, the machine that reads it goes on by the rules and comes back.
#[test]
fn restore_of_any_memory_comes_back() {
    let words = prop::collection::vec(any::<u64>(), 3..80);
    let run = TestRunner::new(cases(3_000)).run(&words, |words| {
        let bytes: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
        let mut walk = Walk::new(&bytes);
        let mut checker = Checker::new(walk.config(), walk.seed(), walk.start(), Rules::only(1));
        let mut last = walk.start();
        while let Some((now, input)) = walk.step(checker.machine()) {
            let _checked = checker.step(now, input);
            last = last.max(now);
        }
        let memory = checker.machine().snapshot().memory(last);
        let mut now = at(5.0);
        let mut machine = ConnectionMachine::restore(walk.config(), walk.seed(), now, memory);
        if let Status::Parked(reason) = memory.status {
            prop_assert_eq!(machine.snapshot().status, Status::Parked(reason));
        }
        for _ in 0..20 {
            let input = match machine.snapshot().state {
                State::Ready { .. } => return Ok(()),
                State::Connecting { epoch, ready, .. } => {
                    let missing = ReadyFlags::ALL.into_iter().find(|flag| !ready.contains(*flag));
                    Input::Reached { epoch, flag: missing.expect("not complete") }
                }
                State::Idle => Input::Connect { until: now },
                State::Parked { probe_at: None } => Input::Wake(WakeCause::Operator),
                State::Parked { .. } | State::TransientFailure { .. } | State::Closing { .. } | State::Shutdown => {
                    now = machine.next_timeout().expect("a deadline is held");
                    Input::Tick
                }
            };
            let out = machine.handle(now, input);
            prop_assert!(out.wake_at().is_none_or(|at| at > now));
        }
        panic!("stuck in {:?}", machine.snapshot().state);
    });
    if let Err(error) = run {
        panic!("{error}");
    }
}

#[test]
fn bad_knobs_are_refused_by_name() {
    let error = |of: fn(mcp_reconnect_core::ConfigBuilder) -> mcp_reconnect_core::ConfigBuilder| {
        of(Config::builder()).build().expect_err("a bad value").to_string()
    };
    assert_eq!(error(|knobs| knobs.backoff(Duration::ZERO)), "`backoff` is zero");
    assert_eq!(error(|knobs| knobs.ping_misses(0)), "`ping_misses` is zero");
    assert_eq!(error(|knobs| knobs.breaker_strikes(0)), "`breaker_strikes` is zero");
    assert_eq!(error(|knobs| knobs.idle_timeout(Some(Duration::ZERO))), "`idle_timeout` is zero");
    let month = secs(30 * 24 * 3_600);
    assert_eq!(knobs(|knobs| knobs.keepalive(secs(30 * 24 * 3_600))).keepalive(), month);
    let longer = error(|knobs| knobs.keepalive(secs(30 * 24 * 3_600) + Duration::from_nanos(1)));
    assert!(longer.starts_with("`keepalive` is "), "{longer}");
    assert!(error(|knobs| knobs.max_lifetime(Some(Duration::MAX))).starts_with("`max_lifetime` is "));
    for (message, knob, least) in [
        (error(|knobs| knobs.connect_timeout(secs(301))), "connect_timeout_max", "connect_timeout"),
        (error(|knobs| knobs.backoff_max(Duration::from_millis(999))), "backoff_max", "backoff"),
        (error(|knobs| knobs.park_probe_max(secs(59))), "park_probe_max", "park_probe"),
        (error(|knobs| knobs.demand_interval(Duration::from_millis(499))), "demand_interval", "min_dial_interval"),
        (error(|knobs| knobs.min_dial_interval(Duration::from_millis(501))), "backoff / 2", "min_dial_interval"),
    ] {
        assert!(message.contains(&format!("`{knob}`")) && message.contains(&format!("`{least}`")), "{message}");
    }
    assert!(knobs(|knobs| knobs.redial_spread(Duration::ZERO)).redial_spread().is_zero());
    let bad = Config::builder().backoff(Duration::ZERO);
    assert_eq!(bad.build(), Err(ConfigError::Zero { knob: "backoff" }));
    assert_eq!(Config::try_from(bad), bad.build());
    assert_eq!(Config::try_from(Config::builder().keepalive(secs(1))), Config::builder().keepalive(secs(1)).build());
}

#[test]
fn a_number_of_slots_that_cannot_be_is_told_with_what_can() {
    let error = DialGate::new(129).expect_err("too many");
    assert_eq!(error.to_string(), "`max_dials` is 129, not between 1 and 128");
}

#[test]
fn the_knobs_of_a_machine_are_those_of_its_last_retune() {
    let (old, new) = (knobs(|knobs| knobs.keepalive(secs(7))), knobs(|knobs| knobs.keepalive(secs(8))));
    let mut machine = ConnectionMachine::new(old, 5, at(0.0));
    assert_eq!(machine.config(), &old);
    let _nothing = machine.handle(at(0.0), Input::Retune(new));
    assert_eq!(machine.config(), &new);
}

#[cfg(feature = "serde")]
mod serde_round_trips {
    use mcp_reconnect_core::Snapshot;

    use super::*;

    fn same<T: serde::Serialize + serde::de::DeserializeOwned + PartialEq + std::fmt::Debug>(value: &T) {
        let text = serde_json::to_string(value).expect("plain data serializes");
        let back: T = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error} in {text}"));
        assert_eq!(&back, value, "{text}");
    }

    /// At the end of time a deadline is later than any time that is given; it must come back from a file all the same.
    #[test]
    fn a_deadline_after_the_end_of_time_survives_serde() {
        let mut machine = ConnectionMachine::new(Config::default(), 5, Timestamp::MAX);
        let deadline = machine.handle(Timestamp::MAX, Input::Connect { until: Timestamp::MAX }).wake_at();
        assert!(deadline > Some(Timestamp::MAX));
        let text = serde_json::to_string(&(machine.snapshot(), deadline)).expect("data");
        assert_eq!(
            serde_json::from_str::<(Snapshot, Option<Timestamp>)>(&text).expect("data"),
            (machine.snapshot(), deadline)
        );
    }

    #[test]
    fn what_walks_come_through_survives_json() {
        let words = prop::collection::vec(any::<u64>(), 3..60);
        let run = TestRunner::new(cases(300)).run(&words, |words| {
            let bytes: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
            let mut walk = Walk::new(&bytes);
            same(&walk.config());
            let mut checker = Checker::new(walk.config(), walk.seed(), walk.start(), Rules::only(1));
            while let Some((now, input)) = walk.step(checker.machine()) {
                if now >= Timestamp::MAX {
                    break; // deadlines after the end of time are cut to it
                }
                same(&input);
                for output in checker.step(now, input) {
                    same(&output);
                }
                let snapshot: Snapshot = checker.machine().snapshot();
                same(&snapshot);
                same(&snapshot.state);
                same(&snapshot.memory(now));
            }
            Ok(())
        });
        if let Err(error) = run {
            panic!("{error}");
        }
    }

    #[test]
    fn inputs_of_version_0_1_0_are_read() {
        let epoch = mcp_reconnect_core::Epoch::FIRST;
        let read = |text: &str| serde_json::from_str::<Input>(text).map_err(|error| error.to_string());
        assert_eq!(read(r#""resumed""#), Ok(Input::Resumed { by_call: false }));
        assert_eq!(read(r#"{"resumed":{"by_call":true}}"#), Ok(Input::Resumed { by_call: true }));
        assert_eq!(read(r#""tick""#), Ok(Input::Tick));
        let old = r#"{"traffic":{"epoch":1,"inbound":7,"answered":true,"oldest":null}}"#;
        let inbound = Timestamp::from_nanos(7);
        let traffic = Input::Traffic { epoch, inbound, answered: true, served: false, answered_to: None, oldest: None };
        assert_eq!(read(old), Ok(traffic));
        assert_eq!(serde_json::from_str::<PingSupport>(r#""mute""#).ok(), Some(PingSupport::Silent));
        for wrong in [r#""resume""#, r#"{"resumed":{}}"#, r#"{"ping":{"epoch":1}}"#, "7", "[]"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_memory_of_version_0_1_0_is_read() {
        let text = r#"{"status":{"parked":"permanent"},"next_dial_in":null,"start_timeout":{"secs":30,"nanos":0},
            "pings":"unknown","probe_doublings":1}"#;
        let memory: Memory = serde_json::from_str(text).expect("a memory");
        assert_eq!((memory.failure, memory.hint_in, memory.last_dial_ago), (None, None, None));
    }

    #[test]
    fn knobs_left_out_have_their_defaults_and_bad_ones_are_refused_by_name() {
        let read = |text: &str| serde_json::from_str::<Config>(text).map_err(|error| error.to_string());
        // What version 0.1.0 did not have is off where data of that version leaves it out.
        let old = knobs(|knobs| knobs.demand_backoff(secs(0)).refused_interval(secs(0)));
        assert_eq!(read("{}"), Ok(old));
        assert_eq!(read(r#"{"keepalive":1000000000}"#).map(|config| config.keepalive()), Ok(secs(1)));
        for (text, knob) in [
            (r#"{"backoff":0}"#, "`backoff` is zero"),
            (r#"{"ping_misses":0}"#, "`ping_misses` is zero"),
            (r#"{"park_after":9999999999999999999}"#, "`park_after` is"),
            (r#"{"backoff_max":1}"#, "`backoff_max` is"),
            (r#"{"bakcoff":1}"#, "bakcoff"),
        ] {
            let error = read(text).expect_err("a bad value");
            assert!(error.contains(knob), "{error}");
        }
    }
}
