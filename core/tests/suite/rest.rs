//! Sessions that end, and whether another follows though nobody asks.

use core::time::Duration;

use mcp_reconnect_core::{
    Admission, ConfigBuilder, Failure, FailureClass, Input, ParkReason, Refusal, Restart, State, Status,
};

use crate::sim::{HEALTHY, HOUR, Sim, knobs, secs};

type Knobs = fn(ConfigBuilder) -> ConfigBuilder;

const ALWAYS: Knobs = |knobs| knobs.restart(Some(Restart::Always)).idle_timeout(Some(HOUR));
const ON_DEMAND: Knobs = |knobs| knobs.idle_timeout(Some(HOUR));
const ON_FAILURE: Knobs = |knobs| knobs.restart(Some(Restart::OnFailure));
const NEVER: Knobs = |knobs| knobs.restart(Some(Restart::Never));
const DEFAULT: Knobs = |knobs| knobs;

/// A session that was up for so many seconds, with a call open or not, and ended like this.
fn ended(of: Knobs, up: u64, open: bool, failure: impl Into<Failure>) -> Sim {
    let mut sim = Sim::new(knobs(of), 1, |_, _| HEALTHY);
    sim.connect(secs(0));
    sim.run_for(Duration::from_millis(200) + secs(up));
    sim.call = open.then_some(sim.now);
    sim.sample(false);
    sim.give(Input::Gone { epoch: sim.live(), failure: failure.into() });
    sim.call = None;
    sim
}

#[test]
fn k01_an_on_demand_child_that_ends_well_rests_until_somebody_asks() {
    use FailureClass::{Finished, SessionGone, Transport};
    let cases = [
        (ON_DEMAND, 10, false, Finished, true),
        (ON_FAILURE, 10, false, Finished, true),
        (ON_DEMAND, 9, false, Finished, false),
        (ON_DEMAND, 10, true, Finished, false),
        (ON_DEMAND, 10, false, Transport, false),
        (ALWAYS, 10, false, Finished, false),
        (DEFAULT, 10, false, Finished, false),
        (NEVER, 10, false, Finished, true),
        (NEVER, 10, true, Transport, true),
        (NEVER, 9, false, Transport, false),
        (NEVER, 10, false, SessionGone, false),
    ];
    for (number, (of, up, open, class, rests)) in cases.into_iter().enumerate() {
        let mut sim = ended(of, up, open, class);
        if rests {
            sim.run_for(HOUR / 2);
            assert_eq!((sim.status(), sim.dials.len(), sim.withdrawn), (Status::Idle, 1, 0), "case {number}");
            assert_eq!((sim.snapshot().failure, sim.snapshot().stats.failures), (Some(class), 0), "case {number}");
            sim.connect(secs(10));
        }
        sim.run_for(secs(2));
        assert_eq!((sim.times(|status| *status == Status::Idle), sim.dials.len()), (rests.into(), 2), "case {number}");
        assert!(matches!(sim.status(), Status::Ready(_)), "case {number}: {:?}", sim.status());
    }
}

/// What is left of it is closed first, and a caller who comes then begins the next one.
#[test]
fn k01_a_child_that_ended_and_left_something_behind_is_closed_and_rests() {
    let mut sim = Sim::new(knobs(ON_DEMAND), 1, |_, _| HEALTHY);
    sim.connect(secs(0));
    sim.run_for(secs(20));
    sim.close_takes = secs(1);
    sim.give(Input::Lost { epoch: sim.live(), failure: FailureClass::Finished.into() });
    assert_eq!(sim.status(), Status::Idle);
    assert!(matches!(sim.connect(secs(10)), Admission::Wait { .. }));
    sim.run_for(secs(2));
    assert!(matches!(sim.status(), Status::Ready(_)));
    assert_eq!(sim.dials.len(), 2);
}

/// A login and a permanent failure park all the same, and a hint is heeded by the caller who comes next.
#[test]
fn k01_never_to_be_restarted_is_parked_where_it_must_be_and_heeds_hints() {
    let parked = ended(NEVER, 20, false, FailureClass::NeedsAuth);
    assert_eq!(parked.status(), Status::Parked(ParkReason::NeedsAuth));
    let hint = Some(secs(100));
    let mut sim = ended(NEVER, 20, false, Failure { class: FailureClass::RateLimited, retry_after: hint });
    assert_eq!(sim.status(), Status::Idle);
    let early = sim.connect(secs(10));
    assert!(matches!(early, Admission::Refuse { why: Refusal::NotInTime, retry_at: Some(_) }), "{early:?}");
    sim.run_for(secs(99));
    assert_eq!(sim.dials.len(), 1);
    sim.run_for(secs(2));
    assert!(matches!(sim.snapshot().state, State::Ready { .. }), "{:?}", sim.snapshot().state);
}

#[test]
fn the_default_follows_from_the_idle_timeout() {
    let of = |of: Knobs| knobs(of).restart();
    assert_eq!(of(DEFAULT), Restart::Always);
    assert_eq!(of(ON_DEMAND), Restart::OnFailure);
    assert_eq!((of(ALWAYS), of(ON_FAILURE), of(NEVER)), (Restart::Always, Restart::OnFailure, Restart::Never));
}
