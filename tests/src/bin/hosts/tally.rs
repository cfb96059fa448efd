//! What became of the calls of a trial: the host's side held against the server's ledger.

use std::collections::HashMap;
use std::time::Duration;

use mcp_reconnect_tests::fake::{Event, Ledger};

use crate::trial::CALLS;

/// What a host was told, with the words.
#[derive(Debug)]
pub(crate) enum Outcome {
    Answered,
    /// That it may have run.
    Unknown(String),
    /// That it has not run.
    NotSent(String),
    /// Something else, or nothing in time.
    Failed(String),
}

impl Outcome {
    pub(crate) fn words(&self) -> &str {
        match self {
            Self::Answered => "answered",
            Self::Unknown(words) | Self::NotSent(words) | Self::Failed(words) => words,
        }
    }
}

/// One call.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) tool: &'static str,
    pub(crate) annotated: bool,
    pub(crate) text: String,
    pub(crate) phase: &'static str,
    pub(crate) outcome: Outcome,
    pub(crate) took: Duration,
    /// How often it ran, by the ledger.
    pub(crate) runs: usize,
}

/// A trial that was played to its end.
pub(crate) struct Row {
    /// The protocol version of the host's session.
    pub(crate) version: String,
    pub(crate) calls: Vec<Call>,
    /// From a kill between calls to the first answer, where there was one.
    pub(crate) recovered: Vec<Duration>,
    /// Whether it heard of the other tools.
    pub(crate) heard: bool,
    /// How often it heard of changed tools in all.
    pub(crate) changes: usize,
    /// What it listed then.
    pub(crate) new_tools: Result<Vec<String>, String>,
    /// Whether its session was over before it ended it.
    pub(crate) closed: bool,
    /// Whether it ended in time.
    pub(crate) ended: bool,
    /// Whether what it started outlived it.
    pub(crate) left: bool,
    /// The last lines of its error output.
    pub(crate) tail: Vec<String>,
    pub(crate) took: Duration,
}

/// The figures of some trials.
#[derive(Default)]
pub(crate) struct Figures {
    pub(crate) annotated: usize,
    pub(crate) annotated_failed: usize,
    /// Annotated calls that ran more than once, as they may.
    pub(crate) repeated: usize,
    pub(crate) unannotated: usize,
    pub(crate) unannotated_answered: usize,
    pub(crate) unknown: usize,
    pub(crate) not_sent: usize,
    /// Calls to unannotated tools that failed without a word on whether they ran.
    pub(crate) unreported: usize,
    pub(crate) doubled: usize,
    /// Calls whose outcome was told wrongly: answered and not run, or "not sent" and run.
    pub(crate) wrong: usize,
}

impl Row {
    /// Notes how often each call ran.
    pub(crate) fn with_runs(mut self, ledger: &Ledger) -> Self {
        let (mut open, mut runs) = (HashMap::new(), HashMap::<String, usize>::new());
        for entry in ledger.entries() {
            match &entry.event {
                Event::Request { tool: Some(_), id, params, .. } => {
                    let text = params["arguments"]["text"].as_str().unwrap_or_default().to_owned();
                    open.insert((entry.spawn, id.to_string()), text);
                }
                Event::Executed { id, .. } => {
                    if let Some(text) = open.get(&(entry.spawn, id.to_string())) {
                        *runs.entry(text.clone()).or_default() += 1;
                    }
                }
                _ => {}
            }
        }
        for call in &mut self.calls {
            call.runs = runs.get(&call.text).copied().unwrap_or_default();
        }
        self
    }

    pub(crate) fn figures(&self) -> Figures {
        let mut figures = Figures::default();
        for call in &self.calls {
            figures.wrong += usize::from(match call.outcome {
                Outcome::Answered => call.runs == 0,
                Outcome::NotSent(_) => call.runs > 0,
                Outcome::Unknown(_) | Outcome::Failed(_) => false,
            });
            let again = usize::from(call.runs > 1);
            if call.annotated {
                figures.annotated += 1;
                figures.annotated_failed += usize::from(!matches!(call.outcome, Outcome::Answered));
                figures.repeated += again;
                continue;
            }
            figures.unannotated += 1;
            figures.doubled += again;
            match call.outcome {
                Outcome::Answered => figures.unannotated_answered += 1,
                Outcome::Unknown(_) => figures.unknown += 1,
                Outcome::NotSent(_) => figures.not_sent += 1,
                Outcome::Failed(_) => figures.unreported += 1,
            }
        }
        figures
    }

    /// Whether the other tools were listed.
    pub(crate) fn lists_new_tools(&self) -> bool {
        let listed = |name: &str| self.new_tools.as_ref().is_ok_and(|tools| tools.iter().any(|tool| tool == name));
        listed("search") && !listed("put")
    }

    /// What is wrong with it, for one that promises that nothing is.
    pub(crate) fn faults(&self) -> Vec<String> {
        let figures = self.figures();
        let mut faults = Vec::new();
        let mut goal = |holds: bool, what: String| {
            if !holds {
                faults.push(what);
            }
        };
        goal(self.calls.len() == CALLS, format!("{} calls were made, not {CALLS}", self.calls.len()));
        goal(figures.annotated == figures.unannotated, format!("{} of them to annotated tools", figures.annotated));
        goal(figures.annotated_failed == 0, format!("{} annotated calls failed", figures.annotated_failed));
        goal(figures.doubled == 0, format!("{} unannotated calls ran twice", figures.doubled));
        goal(figures.unreported == 0, format!("{} unannotated calls failed without their outcome", figures.unreported));
        goal(figures.wrong == 0, format!("{} calls with a wrong outcome", figures.wrong));
        // Four have run in flight, in two kills; nobody can know their outcome, so this is what the trial is about.
        goal(figures.unknown > 0, "no unannotated call was told to be of unknown outcome".to_owned());
        goal(self.heard, "it did not hear of the other tools".to_owned());
        goal(self.lists_new_tools(), format!("after that it listed {:?}", self.new_tools));
        goal(!self.closed, "its session was closed".to_owned());
        goal(self.ended, "it did not end".to_owned());
        goal(!self.left, "what it started outlived it".to_owned());
        faults
    }

    /// The calls that are behind the faults, and the last words.
    pub(crate) fn explain(&self) {
        let bad = self.calls.iter().filter(|call| {
            let wrong = matches!((&call.outcome, call.runs), (Outcome::Answered, 0) | (Outcome::NotSent(_), 1..));
            let failed = match &call.outcome {
                Outcome::Answered => false,
                Outcome::Failed(_) => true,
                Outcome::Unknown(_) | Outcome::NotSent(_) => call.annotated,
            };
            wrong || failed || !call.annotated && call.runs > 1
        });
        for call in bad.take(12) {
            let Call { tool, text, phase, outcome, took, runs, .. } = call;
            let (took, outcome) = (took.as_secs_f32(), outcome.words());
            println!("    {phase}: {tool} {text}: {outcome} after {took:.1} s, ran {runs} times");
        }
        for line in &self.tail {
            println!("    | {line}");
        }
    }
}

impl std::ops::Add for Figures {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            annotated: self.annotated + other.annotated,
            annotated_failed: self.annotated_failed + other.annotated_failed,
            repeated: self.repeated + other.repeated,
            unannotated: self.unannotated + other.unannotated,
            unannotated_answered: self.unannotated_answered + other.unannotated_answered,
            unknown: self.unknown + other.unknown,
            not_sent: self.not_sent + other.not_sent,
            unreported: self.unreported + other.unreported,
            doubled: self.doubled + other.doubled,
            wrong: self.wrong + other.wrong,
        }
    }
}
