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
        sim.run_for(secs(73)); // asked after 60 to 72 s, and given up 60 s later: two pings and a listing
        assert_eq!(sim.pings, 1);
        let State::Ready { liveness: Liveness::Asked { since, .. }, .. } = sim.snapshot().state else {
            panic!("not asked: {:?}", sim.snapshot());
        };
        sim.call = since.as_nanos().checked_add_signed(-age).map(Timestamp::from_nanos);
        sim.run_for(secs(60));
        assert_eq!(sim.dials.len(), dials, "{age} ns older than the ping: {:?}", sim.status());
    }
}

#[test]
fn k12_a_server_without_pings_is_pinged_once_and_then_asked_to_list() {
    let mut sim = Sim::new(Config::default(), 1, |_, _| Server::Up(secs(0), Life::NoPings));
    sim.connect(secs(10));
    sim.run_for(HOUR);
    assert_eq!((sim.dials.len(), sim.pings), (1, 1));
    assert_eq!(sim.asks, 11, "each five minutes, from the ping on");
    assert_eq!(sim.snapshot().pings, PingSupport::Refuses);
    // The knowledge of the server outlives the session.
    sim.give(Input::Gone { epoch: sim.live(), failure: FailureClass::Transport.into() });
    sim.run_for(HOUR);
    assert_eq!((sim.dials.len(), sim.pings), (2, 1));
    // Frozen, it is found out: a listing is asked, and its silence is the verdict.
    sim.set_life(Life::Deaf);
    let frozen = sim.now;
    sim.run_for(secs(320));
    assert_eq!((sim.dials.len(), sim.pings), (3, 1), "{frozen:?}");
}

/// A server that answers everything but pings: two are missed, a listing is answered, and from then on it is asked to
/// list. It is never given up, whatever it says in between.
#[test]
fn k12_a_server_that_never_answers_a_ping_is_never_restarted() {
    for noise in [false, true] {
        let mut sim = Sim::new(Config::default(), 1, |_, _| Server::Up(secs(0), Life::NoPongs(secs(1))));
        sim.connect(secs(10));
        sim.run_for(secs(73));
        if noise {
            sim.sample(false); // a notification after the ping is life, and no pong
            let (epoch, inbound) = (sim.live(), sim.now);
            let traffic =
                Input::Traffic { epoch, inbound, answered: false, served: false, answered_to: None, oldest: None };
            sim.give(traffic);
            assert_eq!(sim.snapshot().pings, PingSupport::Unknown);
        }
        sim.run_for(12 * HOUR);
        assert_eq!((sim.dials.len(), sim.snapshot().pings), (1, PingSupport::Silent));
        assert_eq!(sim.pings, if noise { 3 } else { 2 });
        assert!((140..=144).contains(&sim.asks), "one each five minutes: {}", sim.asks);
        // After a suspend it is asked to list, at once.
        let (pings, asks) = (sim.pings, sim.asks);
        sim.sleep(HOUR);
        assert_eq!((sim.pings, sim.asks), (pings, asks + 1));
        sim.run_for(secs(30));
        // A call without a reply pings all the same, and a pong makes it one that answers pings again.
        sim.set_life(Life::Healthy);
        sim.no_reply(sim.now);
        sim.run_for(secs(1));
        assert_eq!((sim.pings, sim.snapshot().pings), (pings + 1, PingSupport::Answers));
        sim.run_for(secs(60));
        assert_eq!(sim.pings, pings + 2, "by the keepalive, at once");
    }
}

/// Only the silence of a listing is the verdict: it has as long as twice the longest of this epoch took.
#[test]
fn k12_a_slow_listing_has_twice_as_long_as_the_longest_before_it() {
    for (took, waits) in [(5, 20), (10, 20), (15, 30), (100, 200)] {
        let mut sim = Sim::new(Config::default(), 1, |_, _| Server::Up(secs(0), Life::Deaf));
        sim.connect(secs(10));
        sim.run_for(secs(1));
        for took in [took, 3, took - 1] {
            sim.give(Input::Listed { epoch: sim.live(), took: secs(took) });
        }
        while sim.asks == 0 {
            sim.run_until(sim.snapshot().state.next_timeout().expect("a session is watched"));
        }
        assert_eq!((sim.pings, sim.asks), (2, 1));
        let asked = sim.now;
        sim.run_until(asked + (secs(waits) - Duration::from_nanos(1)));
        assert_eq!(sim.dials.len(), 1, "{took} s");
        sim.run_until(asked + secs(waits));
        assert!(!matches!(sim.status(), Status::Ready(_)), "{took} s");
    }
    // It is of this epoch: an earlier one's listing does not count.
    let mut sim = Sim::new(Config::default(), 1, |_, _| Server::Up(secs(0), Life::Deaf));
    sim.connect(secs(10));
    sim.run_for(secs(20));
    sim.give(Input::Listed { epoch: sim.live(), took: secs(100) });
    sim.give(Input::Gone { epoch: sim.live(), failure: FailureClass::Transport.into() });
    sim.run_for(secs(73 + 60));
    assert_eq!(sim.dials.len(), 3);
}

/// What is known of one server's pings is not known of another, met at the same place.
#[test]
fn k12_another_server_is_pinged_anew() {
    let mut sim = Sim::new(Config::default(), 1, |_, _| Server::Up(secs(0), Life::NoPings));
    sim.connect(secs(10));
    sim.run_for(secs(80));
    assert_eq!(sim.snapshot().pings, PingSupport::Refuses);
    sim.set_script(|_, _| Server::Up(secs(1), Life::Healthy));
    sim.give(Input::Gone { epoch: sim.live(), failure: FailureClass::Transport.into() });
    sim.run_for(Duration::from_millis(10));
    sim.give(Input::ServerChanged { epoch: sim.live() });
    assert_eq!(sim.snapshot().pings, PingSupport::Unknown);
    sim.run_for(secs(80));
    assert_eq!(sim.snapshot().pings, PingSupport::Answers);
}

/// A pong of a server that was asked to list is not one that pings were missed by.
#[test]
fn k12_a_late_pong_is_a_pong() {
    let mut sim = Sim::new(Config::default(), 1, |_, _| Server::Up(secs(0), Life::NoPongs(secs(0))));
    sim.connect(secs(10));
    sim.run_for(secs(73 + 61));
    assert_eq!(sim.snapshot().pings, PingSupport::Silent);
    sim.give(Input::Pong { epoch: sim.live() });
    assert_eq!(sim.snapshot().pings, PingSupport::Answers);
    let pings = sim.pings;
    sim.run_for(secs(61));
    assert_eq!(sim.pings, pings + 1);
}

/// After a suspend many sessions are asked within `redial_spread`; one that a call waits for is asked at once.
#[test]
fn k13_a_call_that_notices_a_suspend_asks_at_once() {
    let config = knobs(|knobs| knobs.redial_spread(secs(2)));
    let asked = |by_call| {
        (0..50).filter(move |seed| {
            let mut sim = Sim::new(config, *seed, |_, _| HEALTHY);
            sim.connect(secs(10));
            sim.run_for(secs(10));
            sim.give(Input::Resumed { by_call });
            sim.pings == 1
        })
    };
    assert_eq!(asked(true).count(), 50);
    assert_eq!(asked(false).count(), 0);
}

/// Another server where the session began: it is renewed when no call is open, as for its age.
#[test]
fn r24_a_renewal_waits_for_open_calls_and_is_no_failure() {
    let mut sim = Sim::new(Config::default(), 1, |_, _| HEALTHY);
    sim.connect(secs(10));
    sim.run_for(secs(30));
    sim.call = Some(sim.now);
    sim.sample(false);
    sim.give(Input::Renew { epoch: sim.live() });
    sim.run_for(secs(59));
    assert_eq!(sim.dials.len(), 1);
    sim.call = None;
    sim.sample(true);
    sim.run_for(secs(2));
    assert_eq!(sim.dials.len(), 2, "at the next look");
    sim.give(Input::Renew { epoch: sim.live() });
    sim.run_for(secs(1));
    assert_eq!((sim.dials.len(), sim.snapshot().stats.failures), (3, 0), "at once");
    assert_eq!(sim.withdrawn, 0);
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
    sim.run_for(secs(61));
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
