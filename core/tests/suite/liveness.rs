//! Servers that are busy, silent, or know no pings.

use core::time::Duration;

use mcp_reconnect_core::{Config, FailureClass, Input, Liveness, PingSupport, State, Status, Timestamp};

use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use crate::cases;
use crate::sim::{HEALTHY, HOUR, Life, Server, Sim, knobs, secs};

#[test]
fn k12_a_busy_server_is_not_given_up_while_a_call_is_open() {
    let config = knobs(|knobs| knobs.keepalive(secs(180)).ping_timeout(secs(30)));
    let mut sim = Sim::new(config, 1, |_, _| HEALTHY);
    sim.connect(secs(10));
    sim.run_for(secs(100));
    sim.call = Some(sim.now); // single-threaded: no pong before the call is over
    sim.run_for(secs(240));
    sim.call = None;
    sim.sample(true);
    sim.run_for(HOUR);
    assert_eq!(sim.dials.len(), 1);
    assert!(matches!(sim.status(), Status::Ready(_)));
}

/// The ping was under way when the call began: the call is not older than the ping, and the server was deaf before it.
#[test]
fn k12_a_call_that_is_no_older_than_the_ping_puts_nothing_off() {
    for (age, dials) in [(-1_000_000_000, 2), (0, 2), (1, 1)] {
        let mut sim = Sim::new(Config::default(), 1, |_, _| Server::Up(secs(0), Life::Deaf));
        sim.connect(secs(10));
        sim.run_for(secs(73)); // asked after 60 to 72 s, and given up 40 s later
        assert_eq!(sim.pings, 1);
        let State::Ready { liveness: Liveness::Asked { since, .. }, .. } = sim.snapshot().state else {
            panic!("not asked: {:?}", sim.snapshot());
        };
        sim.call = since.as_nanos().checked_add_signed(-age).map(Timestamp::from_nanos);
        sim.run_for(secs(40));
        assert_eq!(sim.dials.len(), dials, "{age} ns older than the ping: {:?}", sim.status());
    }
}

#[test]
fn k12_a_server_without_pings_is_asked_once_and_never_restarted() {
    let mut sim = Sim::new(Config::default(), 1, |_, _| Server::Up(secs(0), Life::NoPings));
    sim.connect(secs(10));
    sim.run_for(HOUR);
    assert_eq!((sim.dials.len(), sim.pings), (1, 1));
    assert_eq!(sim.snapshot().pings, PingSupport::Refuses);
    // The knowledge of the server outlives the session.
    sim.give(Input::Gone { epoch: sim.live(), failure: FailureClass::Transport.into() });
    sim.run_for(HOUR);
    assert_eq!((sim.dials.len(), sim.pings), (2, 1));
}

/// A link that sees the pings fail, at a server that serves everything else, says so: it counts as silence does.
#[test]
fn k12_failing_pings_are_given_up_after_two_verdicts() {
    let mut sim = Sim::new(Config::default(), 1, |_, _| Server::Up(secs(0), Life::Deaf));
    sim.connect(secs(10));
    for expected in [PingSupport::Silent, PingSupport::Mute] {
        sim.run_for(secs(75)); // asked after 60 to 72 s
        sim.give(Input::Lost { epoch: sim.live(), failure: FailureClass::Unresponsive.into() });
        assert_eq!(sim.snapshot().pings, expected);
        sim.run_for(secs(5));
    }
    sim.run_for(12 * HOUR);
    assert_eq!((sim.dials.len(), sim.pings), (3, 2));
    assert!(matches!(sim.status(), Status::Ready(_)));
}

/// New knobs are for what comes: a session lives on with them, and an attempt that waits is no sooner than they allow.
#[test]
fn new_knobs_do_not_touch_what_runs() {
    let mut sim = Sim::new(Config::default(), 1, |_, _| HEALTHY);
    sim.connect(secs(10));
    sim.run_for(secs(30));
    let events = sim.statuses.len();
    sim.give(Input::Retune(knobs(|knobs| knobs.keepalive(secs(600)).idle_timeout(Some(secs(90))))));
    assert_eq!((sim.dials.len(), sim.statuses.len()), (1, events));
    sim.run_for(secs(89));
    assert!(matches!(sim.status(), Status::Ready(_)), "the idle time begins with the knob");
    assert_eq!(sim.pings, 0, "the next question is by the new keepalive");
    sim.run_for(secs(2));
    assert_eq!(sim.status(), Status::Idle);
    sim.connect(secs(10));
    sim.run_for(secs(1));
    sim.give(Input::Retune(knobs(|knobs| knobs.max_lifetime(Some(secs(5))))));
    sim.run_for(secs(5));
    assert_eq!(sim.dials.len(), 3, "a session that is too old by the new knobs is replaced");
}

#[test]
fn a_dial_that_waits_is_no_sooner_than_the_new_knobs_allow() {
    let mut sim = Sim::new(Config::default(), 1, |_, _| Server::Refuses(secs(0), FailureClass::Transport.into()));
    sim.connect(secs(10));
    sim.run_for(secs(0));
    let slow = knobs(|knobs| knobs.min_dial_interval(secs(20)).demand_interval(secs(20)).backoff(secs(40)));
    sim.give(Input::Retune(slow));
    sim.run_for(HOUR);
    assert!(sim.dials.len() > 2);
    assert!(sim.gaps().into_iter().all(|gap| gap >= 20.0), "{:?}", sim.gaps());
}

/// A server that answers calls but no ping, ever: two verdicts, then it is left in peace.
#[test]
fn k12_a_server_that_never_answers_pings_is_left_alone() {
    let mut sim = Sim::new(Config::default(), 1, |_, _| Server::Up(secs(0), Life::Deaf));
    sim.connect(secs(10));
    sim.run_for(12 * HOUR);
    assert_eq!(sim.dials.len(), 3, "two verdicts");
    assert_eq!(sim.snapshot().pings, PingSupport::Mute);
    assert!(matches!(sim.status(), Status::Ready(_)));
    let asked = sim.pings;
    sim.sleep(HOUR);
    sim.run_for(HOUR);
    assert_eq!((sim.dials.len(), sim.pings), (3, asked), "nor is it asked after a suspend");
    // A call without a reply asks all the same, and here that is the end of the session.
    sim.no_reply(sim.now);
    sim.run_for(secs(41));
    assert_eq!(sim.dials.len(), 4);
}

/// Two verdicts with a call without a reply between them say nothing about pings: the server was stuck.
#[test]
fn k12_a_verdict_with_a_lost_call_behind_it_breaks_the_row() {
    let mut sim = Sim::new(Config::default(), 1, |_, _| Server::Up(secs(0), Life::Deaf));
    sim.connect(secs(10));
    let verdicts = |sim: &Sim| sim.snapshot().stats.failures;
    let known = |sim: &mut Sim, prompted: bool| {
        let before = verdicts(sim);
        sim.run_for(secs(30)); // proven, and not yet asked
        if prompted {
            sim.no_reply(sim.now);
        }
        for _ in 0..120 {
            if verdicts(sim) > before {
                break;
            }
            sim.run_for(secs(1));
        }
        sim.run_for(secs(1));
        sim.snapshot().pings
    };
    assert_eq!(known(&mut sim, false), PingSupport::Silent);
    assert_eq!(known(&mut sim, true), PingSupport::Unknown);
    assert_eq!(known(&mut sim, false), PingSupport::Silent);
    assert_eq!(known(&mut sim, false), PingSupport::Mute);
}

/// The server said something after that call was sent: it was not stuck then, and its silence later is about pings.
#[test]
fn k12_a_lost_call_older_than_the_last_message_breaks_no_row() {
    let mut sim = Sim::new(Config::default(), 1, |_, _| Server::Up(secs(0), Life::Deaf));
    sim.connect(secs(10));
    sim.run_for(secs(10));
    let sent = sim.now;
    sim.run_for(secs(10));
    sim.sample(true);
    sim.run_for(secs(61)); // asked 60 s after the message
    assert_eq!(sim.pings, 1);
    sim.no_reply(sent);
    sim.run_for(secs(41));
    assert_eq!((sim.dials.len(), sim.snapshot().pings), (2, PingSupport::Silent));
}

/// A stuck server is recycled after one lost call, so that the next call is not held hostage.
#[test]
fn k24_a_stuck_server_is_asked_when_a_call_ends_unanswered() {
    let mut sim = Sim::new(Config::default(), 1, |_, _| HEALTHY);
    sim.connect(secs(10));
    sim.run_for(secs(120));
    let sent = sim.now;
    sim.set_life(Life::Deaf);
    sim.run_for(secs(5));
    let before = sim.pings;
    sim.no_reply(sent);
    assert_eq!(sim.pings, before + 1, "asked in the same step");
    sim.run_for(secs(41));
    assert_eq!(sim.dials.len(), 2);
}

/// A slow tool on a server that answers pings: the call is lost, the session is not.
#[test]
fn k05_a_slow_call_does_not_cost_the_session() {
    let mut sim = Sim::new(Config::default(), 1, |_, _| HEALTHY);
    sim.connect(secs(10));
    sim.run_for(secs(120));
    for _ in 0..4 {
        let sent = sim.now;
        sim.run_for(secs(30));
        sim.no_reply(sent);
    }
    sim.run_for(HOUR);
    assert_eq!(sim.dials.len(), 1);
    assert!(matches!(sim.snapshot().state, State::Ready { .. }));
}

/// Whatever a correct driver does on it, a server that answers pings while it is not busy with a call is kept.
#[test]
fn a_server_that_answers_is_never_given_up() {
    let actions = prop::collection::vec((0_u8..6, 0_u64..200_000), 0..40);
    let run = TestRunner::new(cases(1_000)).run(&(any::<u64>(), actions), |(seed, actions)| {
        let config = knobs(|knobs| knobs.ping_misses(1 + (seed % 3) as u8).redial_spread(secs(seed % 2)));
        let mut sim = Sim::new(config, seed, |_, _| HEALTHY);
        sim.connect(secs(10));
        sim.run_for(secs(1));
        for (action, millis) in actions {
            match action {
                0 => sim.call = sim.call.or(Some(sim.now)),
                1 | 2 if sim.call.take().is_some() => sim.sample(true),
                3 if sim.call.is_none() => sim.no_reply(sim.now),
                4 => sim.sleep(Duration::from_millis(millis)),
                _ => {
                    let _answered = sim.connect(secs(1));
                }
            }
            sim.run_for(Duration::from_millis(millis));
        }
        prop_assert_eq!(sim.dials.len(), 1);
        prop_assert!(matches!(sim.status(), Status::Ready(_)));
        Ok(())
    });
    if let Err(error) = run {
        panic!("{error}");
    }
}
