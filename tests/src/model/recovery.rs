//! Liveness: from any state, a server that has become healthy is Ready again.

use mcp_reconnect_core::{ConnectionMachine, Input, ParkReason, State, Status, Then, Timestamp, WakeCause};

use super::action::missing;

/// More steps than any machine needs: the end of an attempt, its close, a wait, a start with its four flags.
const STEPS: usize = 16;

/// Goes on from here with a server whose every dial succeeds, while time passes and nobody does anything, but for one
/// wake where R5 promises nothing without; the states that were come through.
///
/// # Errors
///
/// The same, where Ready was not reached.
pub(super) fn run(machine: &ConnectionMachine, now: Timestamp) -> Result<Vec<State>, Vec<State>> {
    let mut machine = machine.clone();
    let mut now = now;
    let mut states = Vec::new();
    let mut wakes = u8::from(may_need_a_wake(&machine));
    for _ in 0..STEPS {
        let state = machine.snapshot().state;
        states.push(state);
        let input = match state {
            State::Ready { .. } | State::Shutdown | State::Closing { then: Then::Shutdown, .. } => return Ok(states),
            State::Connecting { .. } => missing(&machine).unwrap_or(Input::Tick),
            State::Closing { .. } | State::TransientFailure { .. } | State::Parked { probe_at: Some(_) } => {
                match machine.next_timeout() {
                    Some(at) => now = at,
                    None => return Err(states),
                }
                Input::Tick
            }
            State::Idle | State::Parked { probe_at: None } => {
                if wakes == 0 {
                    return Err(states);
                }
                wakes -= 1;
                Input::Wake(WakeCause::Operator)
            }
        };
        let _carried_out = machine.handle(now, input);
    }
    Err(states)
}

/// Idle, and parks that only a wake ends, or closing towards one of these.
fn may_need_a_wake(machine: &ConnectionMachine) -> bool {
    let snapshot = machine.snapshot();
    let unprobed = matches!(snapshot.status, Status::Parked(ParkReason::NeedsAuth | ParkReason::Requested));
    match snapshot.state {
        State::Idle | State::Closing { then: Then::Rest, .. } => true,
        State::Parked { .. } | State::Closing { then: Then::Park, .. } => unprobed,
        State::Connecting { .. }
        | State::Ready { .. }
        | State::Closing { .. }
        | State::TransientFailure { .. }
        | State::Shutdown => false,
    }
}
