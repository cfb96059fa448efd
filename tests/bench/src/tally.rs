//! Outcomes of a host's calls in a trial of the program `hosts`: what the host was told, held against the server's ledger.

use std::collections::HashMap;
use std::time::Duration;

use mcp_reconnect_tests::fake::{Event, Ledger};

/// Number of calls that a trial makes, half of them to annotated tools.
pub const CALLS: usize = 200;
/// Name of the last phase of a trial.
pub const LAST: &str = "healthy again";

/// Outcome of a call as the host was told, with the words.
#[derive(Debug)]
pub enum Outcome {
    /// An answer.
    Answered,
    /// It may have run.
    Unknown(String),
    /// It has not run.
    NotSent(String),
    /// Something else, or nothing in time.
    Failed(String),
}

impl Outcome {
    /// The words that came with it.
    pub fn words(&self) -> &str {
        match self {
            Self::Answered => "answered",
            Self::Unknown(words) | Self::NotSent(words) | Self::Failed(words) => words,
        }
    }
}

/// One call.
#[derive(Debug)]
pub struct Call {
    /// Name of the tool.
    pub tool: &'static str,
    /// Whether the tool is annotated as read-only or idempotent.
    pub annotated: bool,
    /// The argument, by which the ledger knows the call.
    pub text: String,
    /// Name of the phase.
    pub phase: &'static str,
    /// Outcome as the host was told.
    pub outcome: Outcome,
    /// Time until then.
    pub took: Duration,
    /// Number of its runs, by the ledger.
    pub runs: usize,
}

/// A trial that was played to its end.
pub struct Row {
    /// The protocol version of the host's session.
    pub version: String,
    /// All calls, in no particular order.
    pub calls: Vec<Call>,
    /// From a kill between calls to the first answer, where there was one.
    pub recovered: Vec<Duration>,
    /// Whether the host heard of the other tools.
    pub heard: bool,
    /// Number of notifications of changed tools in all.
    pub changes: usize,
    /// Tools that the host listed then.
    pub new_tools: Result<Vec<String>, String>,
    /// Whether the host's session was over before the trial ended it.
    pub closed: bool,
    /// Whether the host ended in time.
    pub ended: bool,
    /// Whether a process that the host started outlived it.
    pub left: bool,
    /// The last lines of the host's error output.
    pub tail: Vec<String>,
    /// Duration of the trial.
    pub took: Duration,
}

/// The figures of some trials.
#[derive(Default)]
pub struct Figures {
    /// Calls to annotated tools.
    pub annotated: usize,
    /// Calls to annotated tools without an answer.
    pub annotated_failed: usize,
    /// Annotated calls that ran more than once, as they may.
    pub repeated: usize,
    /// Calls to other tools.
    pub unannotated: usize,
    /// Calls to other tools with an answer.
    pub unannotated_answered: usize,
    /// Calls to other tools that may have run, as the host was told.
    pub unknown: usize,
    /// Calls to other tools that have not run, as the host was told.
    pub not_sent: usize,
    /// Calls to unannotated tools that failed without a word on whether they ran.
    pub unreported: usize,
    /// Calls to other tools that ran more than once.
    pub doubled: usize,
    /// Calls whose outcome was told wrongly: answered and not run, or "not sent" and run.
    pub wrong: usize,
}

impl Row {
    /// Notes the number of runs of each call.
    pub fn with_runs(mut self, ledger: &Ledger) -> Self {
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

    /// Counts the calls by outcome.
    pub fn figures(&self) -> Figures {
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
    pub fn lists_new_tools(&self) -> bool {
        let listed = |name: &str| self.new_tools.as_ref().is_ok_and(|tools| tools.iter().any(|tool| tool == name));
        listed("search") && !listed("put")
    }

    /// Whether no call of the last phase was answered.
    pub fn lost(&self) -> bool {
        let answered = |call: &Call| call.phase == LAST && matches!(call.outcome, Outcome::Answered);
        !self.calls.iter().any(answered)
    }

    /// Promises of the front that the trial saw broken.
    pub fn faults(&self) -> Vec<String> {
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

    /// Prints the calls behind the faults, and the host's last words.
    pub fn explain(&self) {
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn ledger(lines: &[serde_json::Value]) -> Ledger {
        let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
        let path = std::env::temp_dir().join(format!("hosts-tally-{}-{}", std::process::id(), lines.len()));
        std::fs::write(&path, text).unwrap();
        let ledger = Ledger::read(&path);
        std::fs::remove_file(&path).unwrap();
        ledger.unwrap()
    }

    fn asked(spawn: u32, id: u32, text: &str) -> serde_json::Value {
        let params = json!({ "arguments": { "text": text } });
        json!({ "spawn": spawn, "at": 0, "event": "request", "method": "tools/call", "id": id, "tool": "write",
            "version": null, "params": params })
    }

    fn ran(spawn: u32, id: u32) -> serde_json::Value {
        json!({ "spawn": spawn, "at": 0, "event": "executed", "tool": "write", "id": id })
    }

    fn call(number: usize, annotated: bool, outcome: Outcome) -> Call {
        let text = format!("call-{number}");
        Call { tool: "write", annotated, text, phase: LAST, outcome, took: Duration::ZERO, runs: 1 }
    }

    /// A trial in which all went well.
    fn row() -> Row {
        let outcome = |number| if number == 1 { Outcome::Unknown(String::new()) } else { Outcome::Answered };
        Row {
            version: String::new(),
            calls: (0..CALLS).map(|number| call(number, number % 2 == 0, outcome(number))).collect(),
            recovered: Vec::new(),
            heard: true,
            changes: 1,
            new_tools: Ok(vec!["search".to_owned()]),
            closed: false,
            ended: true,
            left: false,
            tail: Vec::new(),
            took: Duration::ZERO,
        }
    }

    #[test]
    fn runs_are_counted_by_the_text_of_the_call_in_whatever_spawn() {
        let ledger = ledger(&[
            asked(1, 7, "call-0"),
            ran(1, 7),
            asked(1, 8, "call-1"),
            asked(2, 7, "call-1"), // the same id, another session
            ran(2, 7),
            asked(2, 9, "call-0"),
            ran(2, 9),
        ]);
        let row = row().with_runs(&ledger);
        assert_eq!(row.calls.iter().take(3).map(|call| call.runs).collect::<Vec<_>>(), [2, 1, 0]);
    }

    #[test]
    fn every_broken_promise_is_a_fault() {
        assert_eq!(row().faults(), Vec::<String>::new());
        type Break = fn(&mut Row);
        let broken: [(&str, Break); 12] = [
            ("199 calls were made", |row| drop(row.calls.pop())),
            ("99 of them", |row| row.calls[0].annotated = false),
            ("1 annotated calls failed", |row| row.calls[0].outcome = Outcome::Unknown(String::new())),
            ("1 unannotated calls ran twice", |row| row.calls[1].runs = 2),
            ("1 unannotated calls failed without", |row| row.calls[3].outcome = Outcome::Failed(String::new())),
            ("1 calls with a wrong outcome", |row| row.calls[3].outcome = Outcome::NotSent(String::new())),
            ("1 calls with a wrong outcome", |row| row.calls[3].runs = 0),
            ("no unannotated call", |row| row.calls[1].outcome = Outcome::Answered),
            ("it did not hear", |row| row.heard = false),
            ("after that it listed", |row| row.new_tools = Ok(vec!["search".to_owned(), "put".to_owned()])),
            ("its session was closed", |row| row.closed = true),
            ("what it started outlived it", |row| row.left = true),
        ];
        for (fault, break_it) in broken {
            let mut row = row();
            break_it(&mut row);
            assert!(row.faults().iter().any(|said| said.contains(fault)), "{fault}: {:?}", row.faults());
        }
    }

    #[test]
    fn what_may_run_twice_and_what_is_honest_is_no_fault() {
        let mut row = row();
        row.calls[0].runs = 2;
        (row.calls[3].outcome, row.calls[3].runs) = (Outcome::NotSent(String::new()), 0);
        assert_eq!(row.faults(), Vec::<String>::new());
        assert_eq!((row.figures().repeated, row.figures().not_sent), (1, 1));
    }
}
