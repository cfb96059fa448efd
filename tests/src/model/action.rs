//! What the environment may do in one step.

use std::fmt;
use std::time::Duration;

use mcp_reconnect_checker::{Checker, Draw};
use mcp_reconnect_core::{
    Config, ConnectionMachine, Epoch, Failure, Input, ReadyFlag, ReadyFlags, State, Timestamp, WakeCause,
};

/// One unit of time.
pub(super) const UNIT: Duration = Duration::from_nanos(1);

/// Longer than everything that a machine of a [`Slice`](super::Slice) waits for or remembers.
const FAR: u64 = 1_000;

/// One step: an input, after so many units, with this luck.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Action {
    /// Units since the last step.
    pub after: u64,
    /// The input.
    pub what: What,
    /// What the jitter draws.
    pub draw: Draw,
}

/// Which epoch a report names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Whose {
    /// The live one, or where there is none the last.
    Newest,
    /// The one before.
    Older,
    /// One that was never dialled.
    Never,
}

/// An [`Input`] without its absolute times and epochs: times are units before or after now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum What {
    /// [`Input::Tick`].
    Tick,
    /// [`Input::Connect`] of a caller who waits so long.
    Connect(u64),
    /// [`Input::Wake`].
    Wake(WakeCause),
    /// [`Input::Park`].
    Park,
    /// [`Input::Shutdown`].
    Shutdown,
    /// [`Input::Resumed`], noticed by a call or not.
    Resumed(bool),
    /// [`Input::Retune`].
    Retune(Config),
    /// [`Input::Reached`].
    Reached(Whose, ReadyFlag),
    /// [`Input::Reached`] for every flag that is missing, one after the other.
    Rest,
    /// [`Input::Lost`].
    Lost(Whose, Failure),
    /// [`Input::Gone`].
    Gone(Whose, Failure),
    /// [`Input::Traffic`].
    Traffic {
        /// Whose.
        whose: Whose,
        /// How old the last message is.
        heard: u64,
        /// Whether a call was answered.
        answered: bool,
        /// How old the oldest open call is.
        open: Option<u64>,
    },
    /// [`Input::Traffic`] with an answer to what was sent that long ago; it came now.
    Answer(Whose, u64),
    /// [`Input::NoReply`] to a call of this age.
    NoReply(Whose, u64),
    /// [`Input::PingUnsupported`].
    PingUnsupported(Whose),
    /// [`Input::Pong`].
    Pong(Whose),
    /// [`Input::Listed`] after that long.
    Listed(Whose, u64),
    /// [`Input::Renew`].
    Renew(Whose),
    /// [`Input::ServerChanged`].
    ServerChanged(Whose),
    /// [`Input::Silence`] of a call of this age.
    Silence(Whose, u64),
}

impl Action {
    /// Takes the step with `checker`; `told` is given each input with its time before it goes in.
    ///
    /// # Panics
    ///
    /// Where a rule does not hold, as [`Checker::step`].
    pub fn take(&self, checker: &mut Checker, mut told: impl FnMut(&Checker, Timestamp, Input)) -> Vec<Outcome> {
        let now = checker.now() + UNIT * u32::try_from(self.after).unwrap_or(u32::MAX);
        let mut outcomes = Vec::new();
        loop {
            let Some(input) = self.what.input(checker, now) else { return outcomes };
            checker.draw(self.draw);
            told(checker, now, input);
            outcomes.push(Outcome { now, outputs: checker.step(now, input) });
            if self.what != What::Rest {
                return outcomes;
            }
        }
    }
}

/// What one input led to.
pub struct Outcome {
    /// When.
    pub now: Timestamp,
    /// What it ordered.
    pub outputs: mcp_reconnect_core::Outputs,
}

impl What {
    /// The input that this is for such a machine; none where nothing is left to report.
    fn input(self, checker: &Checker, now: Timestamp) -> Option<Input> {
        let epoch = |whose| epoch(checker, whose);
        let ago = |age| Timestamp::from_nanos(now.as_nanos().saturating_sub(age));
        Some(match self {
            Self::Tick => Input::Tick,
            Self::Connect(patience) => {
                Input::Connect { until: now + UNIT * u32::try_from(patience).unwrap_or(u32::MAX) }
            }
            Self::Wake(cause) => Input::Wake(cause),
            Self::Park => Input::Park,
            Self::Shutdown => Input::Shutdown,
            Self::Resumed(by_call) => Input::Resumed { by_call },
            Self::Retune(config) => Input::Retune(config),
            Self::Reached(whose, flag) => Input::Reached { epoch: epoch(whose), flag },
            Self::Rest => return missing(checker.machine()),
            Self::Lost(whose, failure) => Input::Lost { epoch: epoch(whose), failure },
            Self::Gone(whose, failure) => Input::Gone { epoch: epoch(whose), failure },
            Self::Traffic { whose, heard, answered, open } => Input::Traffic {
                epoch: epoch(whose),
                inbound: ago(heard),
                answered,
                served: answered,
                answered_to: None,
                oldest: open.map(ago),
            },
            Self::Answer(whose, sent) => Input::Traffic {
                epoch: epoch(whose),
                inbound: now,
                answered: false,
                served: false,
                answered_to: Some(ago(sent)),
                oldest: None,
            },
            Self::NoReply(whose, age) => Input::NoReply { epoch: epoch(whose), sent: ago(age) },
            Self::PingUnsupported(whose) => Input::PingUnsupported { epoch: epoch(whose) },
            Self::Pong(whose) => Input::Pong { epoch: epoch(whose) },
            Self::Listed(whose, took) => Input::Listed { epoch: epoch(whose), took: Duration::from_nanos(took) },
            Self::Renew(whose) => Input::Renew { epoch: epoch(whose) },
            Self::ServerChanged(whose) => Input::ServerChanged { epoch: epoch(whose) },
            Self::Silence(whose, age) => Input::Silence { epoch: epoch(whose), sent: ago(age) },
        })
    }

    /// Whether the jitter may be asked: the end of an attempt or a session draws a wait, and a suspend or the beginning of
    /// a session a question's time.
    const fn draws(self, state: &State, due: bool) -> bool {
        match state {
            State::Ready { .. } => {
                due || matches!(self, Self::Lost(Whose::Newest, _) | Self::Gone(Whose::Newest, _) | Self::Resumed(_))
            }
            State::Connecting { .. } => {
                due || matches!(self, Self::Lost(Whose::Newest, _) | Self::Gone(Whose::Newest, _) | Self::Rest)
            }
            _ => false,
        }
    }
}

fn epoch(checker: &Checker, whose: Whose) -> Epoch {
    let newest = checker.newest().map_or(0, Epoch::get);
    let number = match whose {
        Whose::Newest => newest,
        Whose::Older => newest.saturating_sub(1),
        Whose::Never => newest + 7,
    };
    Epoch::new(number).or(Epoch::new(newest + 7)).unwrap_or(Epoch::FIRST)
}

/// The report of the next flag that is missing.
pub(super) fn missing(machine: &ConnectionMachine) -> Option<Input> {
    let State::Connecting { epoch, ready, .. } = machine.snapshot().state else { return None };
    let flag = ReadyFlags::ALL.into_iter().find(|flag| !ready.contains(*flag))?;
    Some(Input::Reached { epoch, flag })
}

/// Every step that `alphabet` allows a machine in this state.
///
/// Every input now. A tick before the deadline changes nothing but the time (R2, checked in every state), so inputs later
/// than now and before the deadline are those of a later state, and those at the deadline and past it are taken where it
/// is one unit away.
pub(super) fn actions(machine: &ConnectionMachine, now: Timestamp, alphabet: &[What], all: &mut Vec<Action>) {
    let state = machine.snapshot().state;
    let mut push = |after, what: What| {
        all.push(Action { after, what, draw: Draw::Least });
        if what.draws(&state, after > 0) {
            all.extend([Draw::Middle, Draw::Most].map(|draw| Action { after, what, draw }));
        }
    };
    for what in alphabet {
        push(0, *what);
    }
    match machine.next_timeout().map(|at| at.since(now)) {
        Some(wait) if wait <= UNIT => {
            for what in alphabet {
                push(1, *what);
                push(2, *what);
            }
            for what in [What::Tick, What::Resumed(false), What::Connect(0)] {
                push(FAR, what);
            }
        }
        Some(_) | None => push(1, What::Tick),
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "+{} {:?}", self.after, self.what)
    }
}
