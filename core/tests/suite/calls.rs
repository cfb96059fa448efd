//! Answers to callers while a session is rebuilt, and the strikes of the breaker.

use core::time::Duration;

use mcp_reconnect_core::{Admission, Breaker, Config, FailureClass, Input, Refusal, Status, Want};

use crate::sim::{HEALTHY, Life, REFUSES, Server, Sim, at, secs};

fn ready(script: impl FnMut(u64, mcp_reconnect_core::Timestamp) -> Server + 'static) -> Sim {
    let mut sim = Sim::new(Config::default(), 1, script);
    sim.connect(secs(10));
    sim.run_until(at(60.0));
    assert!(matches!(sim.status(), Status::Ready(_)));
    sim
}

fn lose(sim: &mut Sim) {
    sim.give(Input::Lost { epoch: sim.live(), failure: FailureClass::Transport.into() });
}

#[test]
fn k20_callers_in_a_rebuild_wait_and_are_no_strikes() {
    let mut sim =
        ready(|dial, _| if dial == 1 { HEALTHY } else { Server::Up(Duration::from_millis(500), Life::Healthy) });
    lose(&mut sim);
    for _ in 0..20 {
        assert!(matches!(sim.connect(secs(10)), Admission::Wait { .. }));
        sim.run_for(Duration::from_millis(20));
    }
    sim.run_for(secs(1));
    assert!(matches!(sim.connect(secs(10)), Admission::Go(_)));
    assert_eq!(sim.snapshot().breaker, Breaker::Closed { strikes: 0 });
    assert_eq!(sim.dials.len(), 2);
}

/// An error is an answer, and the end of a session is no strike: callers are refused by state, the breaker stays closed.
#[test]
fn k20_answers_of_any_kind_and_lost_sessions_are_no_strikes() {
    let mut sim = ready(|dial, _| if dial == 1 { HEALTHY } else { REFUSES });
    for _ in 0..20 {
        sim.sample(true);
        sim.run_for(secs(1));
    }
    lose(&mut sim);
    sim.run_for(secs(180));
    assert_eq!(sim.snapshot().breaker, Breaker::Closed { strikes: 0 });
    assert!(matches!(
        sim.connect(secs(0)),
        Admission::Refuse { why: Refusal::Parked(_), retry_at: Some(_) } | Admission::Wait { next: None }
    ));
}

/// Calls without a reply are counted, and so is each time that the breaker opens.
#[test]
fn k20_calls_without_a_reply_are_counted() {
    let mut sim = ready(|_, _| HEALTHY);
    let opened = [0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 2];
    for (lost, opened) in (1..).zip(opened) {
        if lost == 8 {
            sim.sample(true);
        }
        sim.no_reply(sim.now);
        let stats = sim.snapshot().stats;
        assert_eq!((stats.no_replies, stats.breaker_opened), (lost, opened));
    }
}

/// A caller joins the rebuild, or is told at once that it takes longer than the caller has.
#[test]
fn k25_a_caller_joins_a_rebuild_or_is_told_when() {
    let mut sim = ready(|dial, _| if dial == 1 { HEALTHY } else { REFUSES });
    lose(&mut sim);
    sim.run_for(secs(12));
    let due = sim.snapshot().state.next_dial().expect("between two dials of an outage");
    sim.run_until(due + secs(1)); // refused just now
    let until = sim.now;
    let short = sim.give(Input::Connect { until });
    assert!(matches!(short, Some(Admission::Refuse { why: Refusal::NotInTime, retry_at: Some(_) })), "{short:?}");
    sim.set_script(|_, _| HEALTHY);
    assert!(matches!(sim.connect(secs(10)), Admission::Wait { next: Some(_) }));
    sim.run_for(secs(6));
    assert!(matches!(sim.connect(secs(10)), Admission::Go(_)));
}

#[test]
fn k25_a_hundred_callers_of_a_lost_epoch_cause_one_reconnect() {
    let mut sim = ready(|_, _| HEALTHY);
    let epoch = sim.live();
    for caller in 0..100 {
        let class = if caller % 2 == 0 { FailureClass::Transport } else { FailureClass::SessionGone };
        sim.give(Input::Lost { epoch, failure: class.into() });
        sim.run_for(Duration::from_millis(20));
    }
    sim.run_for(secs(10));
    assert_eq!((sim.dials.len(), sim.snapshot().stats.failures), (2, 1));
}

/// An epoch that a caller reported is never handed out again, even if nothing else speaks against it.
#[test]
fn k25_a_reported_epoch_is_never_handed_out_again() {
    let mut sim = ready(|_, _| HEALTHY);
    let bad = sim.live();
    sim.close_takes = secs(3); // the owner is slow to let go
    lose(&mut sim);
    for _ in 0..40 {
        let any = sim.snapshot().admission(Want::Session, sim.now + secs(10));
        let fresh = sim.snapshot().admission(Want::SessionAfter(bad), sim.now + secs(10));
        for admission in [any, fresh, sim.connect(secs(10))] {
            assert!(!matches!(admission, Admission::Go(epoch) if epoch <= bad), "{admission:?}");
        }
        sim.run_for(Duration::from_millis(100));
    }
    let fresh = sim.snapshot().admission(Want::SessionAfter(bad), sim.now);
    assert!(matches!(fresh, Admission::Go(epoch) if epoch > bad), "{fresh:?}");
    assert_eq!(sim.dials.len(), 2);
}

/// The answer of a snapshot changes nothing: looking is not asking.
#[test]
fn looking_at_a_parked_server_does_not_dial_it() {
    let mut sim = Sim::new(Config::default(), 1, |_, _| REFUSES);
    sim.connect(secs(1));
    sim.run_for(secs(120));
    let due = sim.snapshot().state.next_dial();
    for _ in 0..100 {
        let _seen = sim.snapshot().admission(Want::Session, sim.now + secs(1_000));
    }
    assert_eq!(sim.snapshot().state.next_dial(), due);
}

/// A session whose next sample says so.
fn answers(sim: &mut Sim, answered_to: f64) {
    let (epoch, inbound) = (sim.live(), sim.now);
    let answered_to = Some(at(answered_to));
    sim.give(Input::Traffic { epoch, inbound, answered: false, served: false, answered_to, oldest: None });
}

/// One slow tool, called five times at once: its calls end at their deadlines, and the pong to the question that the first
/// of them asks clears all strikes.
#[test]
fn k20_an_answer_to_anything_sent_later_clears_the_strikes() {
    let mut sim = ready(|_, _| HEALTHY);
    sim.set_life(Life::Deaf);
    for sent in [61.0, 61.2, 61.4, 61.6, 61.8] {
        sim.run_until(at(sent + 30.0));
        sim.give(Input::NoReply { epoch: sim.live(), sent: at(sent) });
    }
    assert!(matches!(sim.snapshot().breaker, Breaker::Open { .. }));
    answers(&mut sim, 61.8);
    assert!(matches!(sim.snapshot().breaker, Breaker::Open { .. }), "no later than the newest of them");
    answers(&mut sim, 61.9);
    assert_eq!(sim.snapshot().breaker, Breaker::Closed { strikes: 0 });
    // What was sent before that answer's question is none any more; what was sent after it is.
    for sent in [61.85, 61.0, 61.89] {
        sim.give(Input::NoReply { epoch: sim.live(), sent: at(sent) });
        assert_eq!(sim.snapshot().breaker, Breaker::Closed { strikes: 0 }, "{sent}");
    }
    sim.give(Input::NoReply { epoch: sim.live(), sent: at(90.0) });
    sim.give(Input::NoReply { epoch: sim.live(), sent: at(80.0) });
    assert_eq!(sim.snapshot().breaker, Breaker::Closed { strikes: 2 });
    answers(&mut sim, 85.0);
    assert_eq!(sim.snapshot().breaker, Breaker::Closed { strikes: 2 }, "the newest is the one that was sent last");
    answers(&mut sim, 91.0);
    assert_eq!(sim.snapshot().breaker, Breaker::Closed { strikes: 0 });
    assert_eq!(sim.snapshot().stats.no_replies, 10);
}

/// What an earlier session answered says nothing of this one.
#[test]
fn k20_answers_of_an_earlier_session_do_not_count() {
    let mut sim = ready(|_, _| HEALTHY);
    sim.run_until(at(100.0));
    answers(&mut sim, 100.0);
    lose(&mut sim);
    sim.run_until(at(110.0));
    sim.give(Input::NoReply { epoch: sim.live(), sent: at(99.0) });
    assert_eq!(sim.snapshot().breaker, Breaker::Closed { strikes: 1 });
}

/// A user stops an agent whose calls had run for a while: the server is asked, and nothing is held against it.
#[test]
fn k20_calls_that_their_callers_drop_are_no_strikes() {
    let mut sim = ready(|_, _| HEALTHY);
    sim.set_life(Life::Deaf);
    let (sent, pings) = (sim.now, sim.pings);
    sim.run_for(secs(6));
    for _ in 0..10 {
        sim.give(Input::Silence { epoch: sim.live(), sent });
    }
    let stats = sim.snapshot().stats;
    assert_eq!((sim.pings, stats.no_replies, stats.breaker_opened), (pings + 1, 0, 0));
    assert_eq!(sim.snapshot().breaker, Breaker::Closed { strikes: 0 });
    sim.run_for(secs(90));
    assert!(sim.dials.len() > 1, "what stays silent is given up");
}
