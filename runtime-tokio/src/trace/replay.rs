//! Running a trace through a fresh machine.

use std::fmt;
use std::num::NonZeroU64;
use std::slice;

use mcp_reconnect_core::{ConnectionMachine, Snapshot};
use serde::Serialize;

use super::format::{Answer, Entry, Step, Trace};

impl Trace {
    /// Runs it through a fresh machine, one turn at a time.
    pub fn replay(&self) -> TraceReplay<'_> {
        TraceReplay { machine: self.header.machine(), entries: self.entries.iter(), over: None }
    }

    /// Runs all of it, and compares what was recorded.
    ///
    /// # Errors
    ///
    /// The first answer that is not the recorded one.
    pub fn verify(&self) -> Result<Verified, Box<Difference>> {
        let mut replay = self.replay();
        let mut verified = Verified { inputs: 0, compared: 0, gap: None };
        for turn in replay.by_ref() {
            if let Some(difference) = turn.difference() {
                return Err(Box::new(difference));
            }
            verified.inputs += 1;
            verified.compared += usize::from(turn.step.answer.is_some());
        }
        verified.gap = replay.gap();
        Ok(verified)
    }
}

/// A trace on its way through a machine: an iterator over its turns. It ends with the trace, after the first turn that
/// [differs](Turn::difference), or at a [gap](Self::gap): what a machine in another state would answer says nothing.
#[derive(Clone, Debug)]
pub struct TraceReplay<'a> {
    machine: ConnectionMachine,
    entries: slice::Iter<'a, Entry>,
    over: Option<Over>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Over {
    Differed,
    Gap(Gap),
}

/// Where inputs are missing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Gap {
    /// The number of the line that says so.
    pub line: usize,
    /// How many are missing.
    pub count: NonZeroU64,
}

impl fmt::Display for Gap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { line, count } = self;
        write!(f, "line {line}: {count} inputs are missing, so that nothing after it can be replayed")
    }
}

/// A machine's answer to one recorded input.
#[derive(Clone, PartialEq, Debug)]
pub struct Turn<'a> {
    /// The input, and the recorded answer.
    pub step: &'a Step,
    /// This machine's answer.
    pub answer: Answer,
    /// The machine after that.
    pub snapshot: Snapshot,
    differs: bool,
}

impl TraceReplay<'_> {
    /// The gap that it has come to.
    pub const fn gap(&self) -> Option<Gap> {
        match self.over {
            Some(Over::Gap(gap)) => Some(gap),
            Some(Over::Differed) | None => None,
        }
    }
}

impl<'a> Iterator for TraceReplay<'a> {
    type Item = Turn<'a>;

    fn next(&mut self) -> Option<Turn<'a>> {
        if self.over.is_some() {
            return None;
        }
        match self.entries.next()? {
            Entry::Step(step) => {
                let answer = Answer::of(&self.machine.handle(step.at, step.input));
                let differs = step.answer.as_ref().is_some_and(|recorded| !same(recorded, &answer));
                self.over = differs.then_some(Over::Differed);
                Some(Turn { step, answer, snapshot: self.machine.snapshot(), differs })
            }
            &Entry::Dropped { line, count } => {
                self.over = Some(Over::Gap(Gap { line, count }));
                None
            }
        }
    }
}

/// Written times are cut, so that is no difference.
fn same(recorded: &Answer, replayed: &Answer) -> bool {
    recorded == replayed || Some(recorded) == replayed.as_read().as_ref()
}

impl Turn<'_> {
    /// The two answers, where this machine's is not the recorded one.
    pub fn difference(&self) -> Option<Difference> {
        let recorded = self.step.answer.clone().filter(|_| self.differs)?;
        Some(Difference { line: self.step.line, recorded, replayed: self.answer.clone() })
    }
}

/// How a whole trace went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Verified {
    /// How many inputs were replayed.
    pub inputs: usize,
    /// To how many of them the answer was recorded: each was the same.
    pub compared: usize,
    /// Where it had to stop.
    pub gap: Option<Gap>,
}

/// The first answer that is not the recorded one.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Difference {
    /// The line of the input.
    pub line: usize,
    /// The recorded answer.
    pub recorded: Answer,
    /// The machine's answer now.
    pub replayed: Answer,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (recorded, replayed) = (&self.recorded, &self.replayed);
        let longest = recorded.outputs.len().max(replayed.outputs.len());
        let differs = |at: &usize| recorded.outputs.get(*at) != replayed.outputs.get(*at);
        let (place, was, is) = match (0..longest).find(differs) {
            Some(at) => (format!("output {}", at + 1), json(recorded.outputs.get(at)), json(replayed.outputs.get(at))),
            None => ("wake_at".into(), json(recorded.wake_at.as_ref()), json(replayed.wake_at.as_ref())),
        };
        write!(f, "line {}: {place}: recorded was {was}, the machine says {is}", self.line)
    }
}

impl std::error::Error for Difference {}

fn json(value: Option<&impl Serialize>) -> String {
    value.and_then(|value| serde_json::to_string(value).ok()).unwrap_or_else(|| "nothing".into())
}
