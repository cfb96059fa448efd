use std::fmt;
use std::time::Duration;

use mcp_reconnect_core::{Admission, Epoch, Input, Refusal, Snapshot, Timestamp, Want};

/// What a caller who asked for a session is told: the epoch to call on, or why there is none in time.
pub type Answer = Result<Epoch, Refused>;

/// How a caller is told: by whatever wakes it under the executor at hand.
pub type Reply = Box<dyn FnOnce(Answer) + Send>;

/// Why there is no session in time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refused {
    /// What stands against it.
    pub why: Refusal,
    /// When it makes sense to ask again, where that is known.
    pub retry_at: Option<Timestamp>,
}

impl Refused {
    /// There is no driver any more.
    pub const SHUTDOWN: Self = Self { why: Refusal::Shutdown, retry_at: None };
}

/// What a driver is sent.
pub enum Message {
    /// Something for the machine: what a transport reports, or a host or a caller wants.
    Tell(Input),
    /// Somebody asks for a session, and waits this long from the moment in which the driver hears of it.
    Ask(Want, Duration, Reply),
}

/// Somebody who waits for a session, until then.
pub struct Caller {
    /// For which.
    pub want: Want,
    /// Until when.
    pub until: Timestamp,
    /// How it is told.
    pub reply: Reply,
}

/// Those who wait for a session. Nobody looks again and again: they are told in the turn in which it is decided.
#[derive(Debug, Default)]
pub struct Waiting(Vec<Caller>);

impl Waiting {
    /// The machine answered this caller: it is told, or waits.
    pub fn admit(&mut self, caller: Caller, admission: Admission) {
        let answer = match (admission, caller.want) {
            (Admission::Go(epoch), Want::SessionAfter(old)) if epoch <= old => return self.0.push(caller),
            (Admission::Go(epoch), _) => Ok(epoch),
            (Admission::Refuse { why, retry_at }, _) => Err(Refused { why, retry_at }),
            (Admission::Wait { .. }, _) => return self.0.push(caller),
        };
        (caller.reply)(answer);
    }

    /// At the end of a turn: who has a session is told, and so is who need not wait any longer.
    pub fn settle(&mut self, snapshot: &Snapshot, now: Timestamp) {
        for caller in std::mem::take(&mut self.0) {
            let admission = match snapshot.admission(caller.want, caller.until) {
                Admission::Wait { next } if caller.until <= now => {
                    Admission::Refuse { why: Refusal::NotInTime, retry_at: next }
                }
                admission => admission,
            };
            self.admit(caller, admission);
        }
    }

    /// When the first gives up: a driver's timer is due then too.
    pub fn until(&self) -> Option<Timestamp> {
        self.0.iter().map(|caller| caller.until).min()
    }
}

impl fmt::Debug for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Caller").field("want", &self.want).field("until", &self.until).finish_non_exhaustive()
    }
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tell(input) => f.debug_tuple("Tell").field(input).finish(),
            Self::Ask(want, patience, _) => f.debug_tuple("Ask").field(want).field(patience).finish_non_exhaustive(),
        }
    }
}
