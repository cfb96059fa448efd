//! One property per rule: random walks, each step checked by the rule's function in `mcp_reconnect_checker`.

use mcp_reconnect_checker::{Checker, Rules, Walk};
use mcp_reconnect_core::{Input, ParkReason, ReadyFlags, State, Status, Timestamp, WakeCause};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use crate::cases;

/// Runs `check` on the bytes of 10,000 random walks; words, so that shrinking takes away whole steps.
fn walks(check: impl Fn(&[u8])) {
    let words = (any::<[u64; 3]>(), prop::collection::vec(any::<u64>(), 0..80));
    let run = TestRunner::new(cases(10_000)).run(&words, |(head, steps)| {
        let bytes: Vec<u8> = head.into_iter().chain(steps).flat_map(u64::to_le_bytes).collect();
        check(&bytes);
        Ok(())
    });
    if let Err(error) = run {
        panic!("{error}");
    }
}

/// Walks to the end with these rules checked; the machine as it is then.
fn walk(bytes: &[u8], rules: Rules) -> Checker {
    let mut walk = Walk::new(bytes);
    let mut checker = Checker::new(walk.config(), walk.seed(), walk.start(), rules);
    while let Some((now, input)) = walk.step(checker.machine()) {
        let _checked = checker.step(now, input);
    }
    checker
}

fn rule(number: u8) {
    walks(|bytes| {
        walk(bytes, Rules::only(number));
    });
}

#[test]
fn r01_total_and_a_stale_report_equals_a_tick() {
    rule(1);
}

#[test]
fn r02_wake_at_is_later_than_now_and_early_ticks_change_nothing() {
    rule(2);
}

#[test]
fn r03_an_earlier_now_is_the_last_now_and_each_timer_fires_once() {
    rule(3);
}

#[test]
fn r04_same_seed_and_inputs_give_the_same_outputs() {
    rule(4);
}

#[test]
fn r05_nothing_is_ever_stuck() {
    walks(|bytes| {
        let mut checker = walk(bytes, Rules::only(5));
        let mut state = checker.machine().snapshot().state;
        if state == State::Shutdown || checker.machine().snapshot().status == Status::Shutdown {
            return;
        }
        // Of its own accord, with a healthy server, where a deadline is held; else after a wake.
        let mut now = checker.machine().next_timeout().unwrap_or_default();
        if checker.machine().next_timeout().is_none() && !matches!(state, State::Ready { .. }) {
            let _checked = checker.step(now, Input::Wake(WakeCause::Operator));
        }
        for _ in 0..20 {
            if now >= Timestamp::MAX {
                return; // the end of time
            }
            state = checker.machine().snapshot().state;
            let status = checker.machine().snapshot().status;
            let input = match state {
                State::Ready { .. } | State::Shutdown => return,
                State::Connecting { epoch, ready, .. } => {
                    let missing = ReadyFlags::ALL.into_iter().find(|flag| !ready.contains(*flag));
                    Input::Reached { epoch, flag: missing.expect("an attempt that is complete is Ready") }
                }
                State::Idle => Input::Connect { until: now },
                State::Parked { probe_at: None } => {
                    assert!(
                        matches!(status, Status::Parked(ParkReason::Requested | ParkReason::NeedsAuth)),
                        "R5: {status:?} is not probed"
                    );
                    Input::Wake(WakeCause::Config)
                }
                State::Closing { .. } | State::TransientFailure { .. } | State::Parked { .. } => {
                    now = checker.machine().next_timeout().expect("R5: a deadline in every state that waits");
                    Input::Tick
                }
            };
            let _checked = checker.step(now, input);
        }
        panic!("R5: stuck in {state:?}");
    });
}

#[test]
fn r06_one_live_epoch_at_most_and_epochs_only_grow() {
    rule(6);
}

#[test]
fn r07_every_dial_ends_once() {
    rule(7);
}

#[test]
fn r08_the_first_report_of_an_epoch_starts_one_rebuild() {
    rule(8);
}

#[test]
fn r09_ready_needs_every_flag_and_ends_with_the_loss() {
    rule(9);
}

#[test]
fn r10_session_after_is_satisfied_by_a_greater_epoch_only() {
    rule(10);
}

#[test]
fn r11_connect_and_wake_leave_what_is_live_alone() {
    rule(11);
}

#[test]
fn r12_the_ladder_and_the_hint() {
    rule(12);
}

#[test]
fn r13_only_a_proven_session_refunds() {
    rule(13);
}

#[test]
fn r14_dials_keep_their_distance_whatever_callers_do() {
    rule(14);
}

#[test]
fn r15_a_start_timeout_doubles_the_next_start_deadline() {
    rule(15);
}

#[test]
fn r16_when_it_parks_and_what_is_withdrawn() {
    rule(16);
}

#[test]
fn r17_probes_and_the_one_event_of_a_park_episode() {
    rule(17);
}

#[test]
fn r18_a_suspended_session_is_asked_and_not_blamed() {
    rule(18);
}

#[test]
fn r19_pings_and_the_verdict() {
    rule(19);
}

#[test]
fn r20_a_call_without_a_reply_makes_it_ping() {
    rule(20);
}

#[test]
fn r21_the_breaker_counts_strikes_and_leaves_dialling_alone() {
    rule(21);
}

#[test]
fn r22_connect_is_answered_by_the_state_after_its_step() {
    rule(22);
}

#[test]
fn r23_shutdown_is_terminal_and_bounded() {
    rule(23);
}

#[test]
fn r24_rest_and_lifetime_wait_for_open_calls() {
    rule(24);
}

#[test]
fn every_rule_at_once() {
    walks(|bytes| {
        walk(bytes, Rules::ALL);
    });
}
