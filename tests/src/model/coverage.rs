//! What a check comes through: a rule is worth no more than the states it was checked in.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use mcp_reconnect_core::{
    Admission, Breaker, CloseCause, Event, Input, Liveness, Output, Refusal, Snapshot, State, Status, Then, Timestamp,
};

/// The inputs in each state, the timers of each state that fired, and the kinds of outputs that were come through.
#[derive(Clone, Debug)]
pub struct Coverage(Arc<[AtomicBool]>);

/// Every state, as in the core's own coverage of its random walks.
const STATES: [&str; 15] = [
    "Idle",
    "Connecting, queued",
    "Connecting, started",
    "Ready, quiet",
    "Ready, after a suspend",
    "Ready, asked",
    "Ready, asked to list",
    "Closing, then Retry",
    "Closing, then Park",
    "Closing, then Rest",
    "Closing, then Shutdown",
    "TransientFailure",
    "Parked, probed",
    "Parked, not probed",
    "Shutdown",
];

/// Every input.
const INPUTS: [&str; 18] = [
    "Tick",
    "Connect",
    "Wake",
    "Park",
    "Shutdown",
    "Retune",
    "Resumed",
    "Reached",
    "Lost",
    "Gone",
    "Traffic",
    "NoReply",
    "PingUnsupported",
    "Pong",
    "Listed",
    "Renew",
    "ServerChanged",
    "Silence",
];

/// Every order and fact, by kind.
const OUTPUTS: [&str; 28] = [
    "Dial",
    "Dial, interactive",
    "Publish",
    "Withdraw",
    "Ping",
    "Close, failed",
    "Close, parked",
    "Close, idle",
    "Close, lifetime",
    "Close, shutdown",
    "Go",
    "Go, half-open",
    "Wait, dialling",
    "Wait, due",
    "Refuse, parked",
    "Refuse, breaker",
    "Refuse, late",
    "Refuse, shutdown",
    "status IDLE",
    "status CONNECTING",
    "status READY",
    "status TRANSIENT_FAILURE",
    "status PARKED, for another reason",
    "status PARKED",
    "status SHUTDOWN",
    "breaker opens",
    "breaker closes",
    "Ask",
];

/// The timers of a state: its own, and of a Ready session the ends of its rest and its lifetime.
const TIMERS: [&str; 3] = ["its timer", "rest", "renewal"];

const TIMERS_FROM: usize = STATES.len() * INPUTS.len();
const OUTPUTS_FROM: usize = TIMERS_FROM + STATES.len() * TIMERS.len();
const ALL: usize = OUTPUTS_FROM + OUTPUTS.len();

impl Default for Coverage {
    fn default() -> Self {
        Self((0..ALL).map(|_| AtomicBool::new(false)).collect())
    }
}

impl Coverage {
    pub(super) fn step(&self, before: &Snapshot, now: Timestamp, input: &Input, outputs: impl Iterator<Item = Output>) {
        let see = |index: usize| self.0[index].store(true, Ordering::Relaxed);
        let state = state(&before.state);
        see(state * INPUTS.len() + self::input(input));
        for (timer, at) in timers(&before.state).into_iter().enumerate() {
            if at.is_some_and(|at| at <= now) {
                see(TIMERS_FROM + state * TIMERS.len() + timer);
            }
        }
        for output in outputs {
            see(OUTPUTS_FROM + self::output(&output, before));
        }
    }

    /// What both have come through.
    pub fn join(&self, other: &Self) {
        for (all, more) in self.0.iter().zip(other.0.iter()) {
            all.fetch_or(more.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    /// Inputs in a state, timers and outputs that were not come through.
    pub fn missing(&self) -> Vec<String> {
        let inputs = STATES.iter().flat_map(|state| INPUTS.map(|input| format!("{input} in {state}")));
        let timers = STATES.iter().flat_map(|state| TIMERS.map(|timer| format!("{timer} fires in {state}")));
        let names = inputs.chain(timers).chain(OUTPUTS.map(String::from));
        names.zip(self.0.iter()).filter(|(_, seen)| !seen.load(Ordering::Relaxed)).map(|(name, _)| name).collect()
    }
}

/// What the states have no timers for.
pub fn no_such_timer(name: &str) -> bool {
    let Some((timer, state)) = name.split_once(" fires in ") else { return false };
    match timer {
        "its timer" => ["Idle", "Shutdown", "Parked, not probed"].contains(&state),
        _ => !state.starts_with("Ready"),
    }
}

fn timers(state: &State) -> [Option<Timestamp>; 3] {
    match *state {
        State::Idle | State::Shutdown => [None; 3],
        State::Ready { liveness, rest_at, renew_at, .. } => {
            let watch = match liveness {
                Liveness::Quiet { ask_at: at }
                | Liveness::Verify { ask_at: at, .. }
                | Liveness::Asked { deadline: at, .. }
                | Liveness::Listing { deadline: at, .. } => at,
            };
            [Some(watch), rest_at, renew_at]
        }
        State::Connecting { .. } | State::Closing { .. } | State::TransientFailure { .. } | State::Parked { .. } => {
            [state.next_timeout(), None, None]
        }
    }
}

const fn state(state: &State) -> usize {
    match state {
        State::Idle => 0,
        State::Connecting { ready, .. } if ready.is_empty() => 1,
        State::Connecting { .. } => 2,
        State::Ready { liveness: Liveness::Quiet { .. }, .. } => 3,
        State::Ready { liveness: Liveness::Verify { .. }, .. } => 4,
        State::Ready { liveness: Liveness::Asked { .. }, .. } => 5,
        State::Ready { liveness: Liveness::Listing { .. }, .. } => 6,
        State::Closing { then: Then::Retry { .. }, .. } => 7,
        State::Closing { then: Then::Park, .. } => 8,
        State::Closing { then: Then::Rest, .. } => 9,
        State::Closing { then: Then::Shutdown, .. } => 10,
        State::TransientFailure { .. } => 11,
        State::Parked { probe_at: Some(_) } => 12,
        State::Parked { probe_at: None } => 13,
        State::Shutdown => 14,
    }
}

const fn input(input: &Input) -> usize {
    match input {
        Input::Tick => 0,
        Input::Connect { .. } => 1,
        Input::Wake(_) => 2,
        Input::Park => 3,
        Input::Shutdown => 4,
        Input::Retune(_) => 5,
        Input::Resumed { .. } => 6,
        Input::Reached { .. } => 7,
        Input::Lost { .. } => 8,
        Input::Gone { .. } => 9,
        Input::Traffic { .. } => 10,
        Input::NoReply { .. } => 11,
        Input::PingUnsupported { .. } => 12,
        Input::Pong { .. } => 13,
        Input::Listed { .. } => 14,
        Input::Renew { .. } => 15,
        Input::ServerChanged { .. } => 16,
        Input::Silence { .. } => 17,
    }
}

const fn output(output: &Output, before: &Snapshot) -> usize {
    match output {
        Output::Dial { interactive: false, .. } => 0,
        Output::Dial { interactive: true, .. } => 1,
        Output::Publish { .. } => 2,
        Output::Withdraw => 3,
        Output::Ping { .. } => 4,
        Output::Ask { .. } => 27,
        Output::Close { cause: CloseCause::Failed(_), .. } => 5,
        Output::Close { cause: CloseCause::Parked, .. } => 6,
        Output::Close { cause: CloseCause::Idle, .. } => 7,
        Output::Close { cause: CloseCause::Lifetime, .. } => 8,
        Output::Close { cause: CloseCause::Shutdown, .. } => 9,
        Output::Admit(Admission::Go(_)) => match before.breaker {
            Breaker::Closed { .. } => 10,
            Breaker::Open { .. } => 11,
        },
        Output::Admit(Admission::Wait { next: None }) => 12,
        Output::Admit(Admission::Wait { next: Some(_) }) => 13,
        Output::Admit(Admission::Refuse { why, .. }) => match why {
            Refusal::Parked(_) => 14,
            Refusal::BreakerOpen => 15,
            Refusal::NotInTime => 16,
            Refusal::Shutdown => 17,
        },
        Output::Event(Event::StatusChanged { status, .. }) => match (status, before.status) {
            (Status::Idle, _) => 18,
            (Status::Connecting, _) => 19,
            (Status::Ready(_), _) => 20,
            (Status::TransientFailure, _) => 21,
            (Status::Parked(_), Status::Parked(_)) => 22,
            (Status::Parked(_), _) => 23,
            (Status::Shutdown, _) => 24,
        },
        Output::Event(Event::BreakerChanged { open_until: Some(_) }) => 25,
        Output::Event(_) => 26,
    }
}
