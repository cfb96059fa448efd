use std::fmt::Display;
use std::sync::{Arc, Mutex, PoisonError};

use mcp_reconnect_checker::{Checker, Rules};
use mcp_reconnect_core::{Config, Input, Outputs, Snapshot, Timestamp};

use super::Answer;

/// What happened in one run, as text: inputs with their times (`<`), what the machine orders (`>`), what the transport
/// and the host saw of it (indented), and at the end what callers were told.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    lines: Arc<Mutex<Lines>>,
    echo: bool,
}

#[derive(Debug, Default)]
struct Lines {
    turns: String,
    /// Apart from the turns, by time and caller: who wakes first is the executor's affair.
    answers: Vec<(Timestamp, usize, Answer)>,
}

impl Trace {
    /// One that prints each line as well.
    pub fn echoing() -> Self {
        Self { echo: true, ..Self::default() }
    }

    /// Adds a line.
    pub fn line(&self, line: impl Display) {
        if self.echo {
            println!("{line}");
        }
        self.with(|lines| lines.turns.push_str(&format!("{line}\n")));
    }

    /// A caller, counted from 1 in the order in which they asked, was told this.
    pub fn answered(&self, now: Timestamp, caller: usize, answer: Answer) {
        self.with(|lines| lines.answers.push((now, caller, answer)));
    }

    /// The whole.
    pub fn text(&self) -> String {
        self.with(|lines| {
            lines.answers.sort_unstable_by_key(|(now, caller, _)| (*now, *caller));
            let mut text = lines.turns.clone();
            for (now, caller, answer) in &lines.answers {
                let answer = match answer {
                    Ok(epoch) => format!("session {epoch:?}"),
                    Err(refused) => format!("none: {:?}, retry at {:?}", refused.why, refused.retry_at),
                };
                text.push_str(&format!("{now:?} caller {caller}: {answer}\n"));
            }
            text
        })
    }

    fn with<T>(&self, look: impl FnOnce(&mut Lines) -> T) -> T {
        look(&mut self.lines.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A [`ConnectionMachine`](mcp_reconnect_core::ConnectionMachine) that writes down its steps and checks each against
/// the core's rules. Your driver has the machine itself: its methods are the same.
#[derive(Debug)]
pub struct Machine {
    checker: Checker,
    trace: Trace,
}

impl Machine {
    /// An idle machine.
    pub fn new(config: Config, seed: u64, now: Timestamp, trace: Trace) -> Self {
        Self { checker: Checker::new(config, seed, now, Rules::ALL), trace }
    }

    /// One step.
    pub fn handle(&mut self, now: Timestamp, input: Input) -> Outputs {
        match input {
            Input::Retune(_) => self.trace.line(format_args!("{now:?} < Retune")), // every knob is too much to read
            input => self.trace.line(format_args!("{now:?} < {input:?}")),
        }
        let outputs = self.checker.step(now, input);
        for output in outputs {
            self.trace.line(format_args!("{now:?} > {output:?}"));
        }
        outputs
    }

    /// A copy of everything that may be looked at.
    pub fn snapshot(&self) -> Snapshot {
        self.checker.machine().snapshot()
    }

    /// When it wants to be called again.
    pub fn next_timeout(&self) -> Option<Timestamp> {
        self.checker.machine().next_timeout()
    }
}
