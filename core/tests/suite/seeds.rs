//! Bugs that others had, each as the smallest course of events that shows it.

use mcp_reconnect_core::{
    Admission, Config, FailureClass, Input, Output, ParkReason, Refusal, State, Status, WakeCause,
};

use crate::sim::{HEALTHY, HOUR, Life, REFUSES, Server, Sim, secs};

fn lose(sim: &mut Sim, class: FailureClass) {
    sim.give(Input::Lost { epoch: sim.live(), failure: class.into() });
}

/// A retry after "reconnect" ran on the dead session, because readiness was still set.
#[test]
fn seed_readiness_gone_in_the_step_that_asks_for_the_rebuild() {
    let mut sim = Sim::new(Config::default(), 1, |_, _| HEALTHY);
    sim.connect(secs(10));
    sim.run_for(secs(30));
    let lost = sim.live();
    assert_eq!(sim.status(), Status::Ready(lost));
    lose(&mut sim, FailureClass::SessionGone);
    assert!(!matches!(sim.snapshot().state, State::Ready { .. }));
    assert_eq!(sim.status(), Status::TransientFailure);
    assert!(matches!(sim.connect(secs(10)), Admission::Wait { .. }));
    sim.run_for(secs(2));
    assert!(matches!(sim.connect(secs(10)), Admission::Go(epoch) if epoch > lost));
}

/// Retries that were used up killed the server for ever.
#[test]
fn seed_an_exhausted_budget_parks_and_a_wake_revives() {
    let mut sim = Sim::new(Config::default(), 1, |dial, _| if dial == 1 { HEALTHY } else { REFUSES });
    sim.connect(secs(10));
    sim.run_for(secs(30));
    lose(&mut sim, FailureClass::Transport);
    sim.run_for(3 * HOUR);
    assert_eq!(sim.status(), Status::Parked(ParkReason::Exhausted));
    assert_eq!(sim.withdrawn, 1, "withdrawn once");
    assert_eq!(sim.times(|status| matches!(status, Status::Parked(_))), 1, "one event for the park");
    sim.set_script(|_, _| HEALTHY);
    sim.give(Input::Wake(WakeCause::Operator));
    sim.run_for(secs(1));
    assert!(matches!(sim.status(), Status::Ready(_)));
    assert_eq!(sim.published.len(), 2, "published once for each session");
}

/// An open breaker and a dead owner: half-open probes could never revive the server.
#[test]
fn seed_open_breaker_with_dead_session_dials() {
    let mut sim = Sim::new(Config::default(), 1, |dial, _| match dial {
        1 => HEALTHY,
        2 | 3 => REFUSES,
        _ => HEALTHY,
    });
    sim.connect(secs(10));
    sim.run_for(secs(30));
    for _ in 0..5 {
        sim.no_reply(sim.now);
    }
    assert!(matches!(sim.connect(secs(10)), Admission::Refuse { why: Refusal::BreakerOpen, .. }));
    lose(&mut sim, FailureClass::Transport);
    assert!(matches!(sim.connect(secs(10)), Admission::Wait { .. }), "the breaker speaks about live sessions only");
    sim.run_for(secs(10));
    assert_eq!(sim.dials.len(), 4);
    assert!(matches!(sim.connect(secs(10)), Admission::Go(_)), "a fresh session closes the breaker");
}

/// A budget that was never refunded ran out after weeks.
#[test]
fn seed_drop_once_an_hour_for_a_month_never_parks() {
    let mut sim = Sim::new(Config::default(), 1, |_, _| Server::Up(secs(1), Life::Ends(HOUR, FailureClass::Transport)));
    sim.connect(secs(10));
    sim.run_for(30 * 24 * HOUR);
    assert_eq!(sim.times(|status| matches!(status, Status::Parked(_))), 0);
    assert_eq!(sim.withdrawn, 0);
    assert!(sim.dials.len() >= 719, "{} dials", sim.dials.len());
    let late = sim.gaps().into_iter().fold(0.0, f64::max);
    assert!(late < 3_602.0, "a redial took {late} s, though every session was proven");
}

/// A refresh of all servers restarted the healthy ones.
#[test]
fn seed_wakes_leave_a_healthy_session_alone() {
    let mut sim = Sim::new(Config::default(), 1, |_, _| HEALTHY);
    sim.connect(secs(10));
    sim.run_for(secs(30));
    let events = sim.statuses.len();
    for cause in [WakeCause::Operator, WakeCause::Config, WakeCause::Credentials] {
        for _ in 0..100 {
            sim.give(Input::Wake(cause));
        }
    }
    sim.run_for(HOUR);
    assert_eq!((sim.dials.len(), sim.statuses.len()), (1, events));
}

/// New credentials cleared the breaker of a server that still did not answer.
#[test]
fn seed_credentials_close_the_breaker_only_by_a_reconnect() {
    let mut sim = Sim::new(Config::default(), 1, |_, _| HEALTHY);
    sim.connect(secs(10));
    sim.run_for(secs(30));
    for _ in 0..5 {
        sim.no_reply(sim.now);
    }
    sim.give(Input::Wake(WakeCause::Credentials));
    assert!(matches!(sim.connect(secs(10)), Admission::Refuse { why: Refusal::BreakerOpen, .. }));
    lose(&mut sim, FailureClass::NeedsAuth);
    sim.give(Input::Wake(WakeCause::Credentials));
    sim.run_for(secs(2));
    assert!(matches!(sim.connect(secs(10)), Admission::Go(_)));
}

/// A caller that came in the very step in which its session was put to rest was told to wait, for nothing.
#[test]
fn seed_a_connect_when_rest_is_due_keeps_the_session() {
    let config = crate::sim::knobs(|knobs| knobs.idle_timeout(Some(secs(20))));
    let mut machine = mcp_reconnect_core::ConnectionMachine::new(config, 1, crate::sim::at(0.0));
    let _dial = machine.handle(crate::sim::at(0.0), Input::Connect { until: crate::sim::at(0.0) });
    let epoch = mcp_reconnect_core::Epoch::FIRST;
    for flag in mcp_reconnect_core::ReadyFlags::ALL {
        let _ready = machine.handle(crate::sim::at(1.0), Input::Reached { epoch, flag });
    }
    let late = machine.handle(crate::sim::at(21.0), Input::Connect { until: crate::sim::at(30.0) });
    assert!(late.iter().eq([Output::Admit(Admission::Go(epoch))]), "{late:?}");
}

/// A server can be closed in every state, and stays closed.
#[test]
fn shutdown_in_every_state_is_the_end() {
    let servers: [Server; 5] = [
        HEALTHY,
        Server::Silent,
        REFUSES,
        Server::Refuses(secs(0), FailureClass::NeedsAuth.into()),
        Server::Up(secs(0), Life::Breaks(secs(3), FailureClass::Transport)),
    ];
    for (server, seconds) in servers.into_iter().flat_map(|server| (0..120).map(move |seconds| (server, seconds))) {
        let mut sim = Sim::new(Config::default(), 1, move |_, _| server);
        sim.connect(secs(10));
        sim.run_for(secs(seconds));
        sim.give(Input::Shutdown);
        let dials = sim.dials.len();
        assert_eq!(sim.status(), Status::Shutdown);
        sim.run_for(secs(10));
        assert_eq!(sim.snapshot().state, State::Shutdown, "{server:?} after {seconds} s");
        for input in [Input::Wake(WakeCause::Operator), Input::Park, Input::Resumed { by_call: false }, Input::Tick] {
            sim.give(input);
        }
        sim.run_for(24 * HOUR);
        assert_eq!(sim.dials.len(), dials);
    }
}
