//! The outcomes of all calls of one target, compared with the server's ledger.

use std::collections::HashMap;

use serde::Serialize;

use super::target::{Outcome, Record, Target};

/// The counts of one target. Every call is in exactly one of the outcomes.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub(super) struct Tally {
    /// The tool, or the method of a ping.
    pub(super) tool: String,
    /// Whether it is annotated as read-only or idempotent, so that it may be sent again.
    pub(super) annotated: bool,
    /// All calls.
    pub(super) calls: u64,
    pub(super) answered: u64,
    pub(super) server_error: u64,
    pub(super) outcome_unknown: u64,
    pub(super) deadline_exceeded: u64,
    pub(super) not_sent: u64,
    pub(super) lost: u64,
    /// By the ledger, where there is one.
    #[serde(flatten)]
    pub(super) ran: Option<Ran>,
    #[serde(skip)]
    claims: Vec<(String, Claim)>,
    #[serde(skip)]
    heading: String,
}

/// Runs by the ledger.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub(super) struct Ran {
    /// Runs of calls.
    pub(super) runs: u64,
    /// Runs of a call that had run already; of the tool without annotation these are doubled.
    pub(super) repeats: u64,
    /// Of the calls with an unknown outcome, those that ran.
    pub(super) uncertain_ran: u64,
}

/// A call with an outcome that is not so.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Wrong {
    pub(super) call: String,
    pub(super) why: &'static str,
}

/// A caller's knowledge of the run of its call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Claim {
    Ran,
    MayHaveRun,
    NotRun,
    /// Lost already.
    Nothing,
}

impl Tally {
    pub(super) fn new(target: &Target) -> Self {
        Self {
            tool: target.name.to_string(),
            annotated: target.annotated,
            heading: target.describe(),
            ..Self::default()
        }
    }

    /// Its name in the summary.
    pub(super) fn heading(&self) -> &str {
        &self.heading
    }

    pub(super) fn add(&mut self, record: &Record) {
        self.calls += 1;
        let (count, claim) = match &record.outcome {
            Outcome::Answered => (&mut self.answered, Claim::Ran),
            Outcome::ServerError(_) => (&mut self.server_error, Claim::MayHaveRun),
            Outcome::Unknown(_) => (&mut self.outcome_unknown, Claim::MayHaveRun),
            Outcome::DeadlineExceeded { not_run: false } => (&mut self.deadline_exceeded, Claim::MayHaveRun),
            Outcome::DeadlineExceeded { not_run: true } => (&mut self.deadline_exceeded, Claim::NotRun),
            Outcome::NotSent(_) => (&mut self.not_sent, Claim::NotRun),
            Outcome::Lost(_) => (&mut self.lost, Claim::Nothing),
        };
        *count += 1;
        self.claims.push((record.label.clone(), claim));
    }

    /// Compares the outcomes with the runs. Calls with a wrong outcome are lost.
    pub(super) fn audit(&mut self, ledger: &HashMap<&str, u64>) -> Vec<Wrong> {
        let mut ran = Ran::default();
        let mut wrong = Vec::new();
        for (call, claim) in &self.claims {
            let runs = ledger.get(&**call).copied().unwrap_or(0);
            ran.runs += runs;
            ran.repeats += runs.saturating_sub(1);
            match claim {
                Claim::Ran if runs == 0 => wrong.push(Wrong { call: call.clone(), why: "answered, yet it never ran" }),
                Claim::NotRun if runs > 0 => {
                    wrong.push(Wrong { call: call.clone(), why: "said not to have run, yet it ran" });
                }
                Claim::MayHaveRun if runs > 0 => ran.uncertain_ran += 1,
                Claim::Ran | Claim::NotRun | Claim::MayHaveRun | Claim::Nothing => {}
            }
        }
        self.lost += wrong.len() as u64;
        self.ran = Some(ran);
        wrong
    }

    /// Calls that ran twice although nothing allows that; `None` where the server keeps no ledger.
    pub(super) fn doubled(&self) -> Option<u64> {
        self.ran.map(|ran| if self.annotated { 0 } else { ran.repeats })
    }
}

/// The number of runs of each call.
pub(super) fn runs(ledger: &[String]) -> HashMap<&str, u64> {
    let mut runs = HashMap::new();
    for call in ledger {
        *runs.entry(&**call).or_default() += 1;
    }
    runs
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    fn tally(annotated: bool, outcomes: &[Outcome]) -> Tally {
        let mut tally = Tally { annotated, ..Tally::default() };
        for (number, outcome) in outcomes.iter().enumerate() {
            let label = format!("call-{number}");
            tally.add(&Record { target: 0, label, outcome: outcome.clone(), epoch: None, at: Instant::now() });
        }
        tally
    }

    fn ledger(calls: &[&str]) -> Vec<String> {
        calls.iter().map(|&call| call.to_owned()).collect()
    }

    #[test]
    fn every_call_is_counted_once() {
        let outcomes = [
            Outcome::Answered,
            Outcome::ServerError("no".into()),
            Outcome::Unknown("killed".into()),
            Outcome::DeadlineExceeded { not_run: true },
            Outcome::DeadlineExceeded { not_run: false },
            Outcome::NotSent("parked".into()),
            Outcome::Lost("wrong answer".into()),
        ];
        let tally = tally(false, &outcomes);
        let Tally { calls, answered, server_error, outcome_unknown, deadline_exceeded, not_sent, lost, .. } = tally;
        assert_eq!((calls, answered, server_error, outcome_unknown), (7, 1, 1, 1));
        assert_eq!((deadline_exceeded, not_sent, lost), (2, 1, 1));
        assert_eq!(tally.doubled(), None, "nothing is known without a ledger");
    }

    #[test]
    fn an_unknown_outcome_is_neither_lost_nor_doubled() {
        let mut tally = tally(false, &[Outcome::Unknown(String::new()), Outcome::DeadlineExceeded { not_run: false }]);
        assert!(tally.audit(&runs(&ledger(&["call-0"]))).is_empty());
        assert_eq!((tally.lost, tally.doubled()), (0, Some(0)));
        assert_eq!(tally.ran, Some(Ran { runs: 1, repeats: 0, uncertain_ran: 1 }));
    }

    #[test]
    fn what_was_said_not_to_have_run_must_not_have_run() {
        for outcome in [Outcome::NotSent(String::new()), Outcome::DeadlineExceeded { not_run: true }] {
            let mut tally = tally(false, &[outcome]);
            assert_eq!(tally.audit(&runs(&ledger(&["call-0"]))).len(), 1);
            assert_eq!(tally.lost, 1);
        }
    }

    #[test]
    fn what_was_answered_must_have_run() {
        let mut tally = tally(true, &[Outcome::Answered, Outcome::Answered]);
        assert_eq!(
            tally.audit(&runs(&ledger(&["call-1"]))),
            [Wrong { call: "call-0".into(), why: "answered, yet it never ran" }]
        );
        assert_eq!(tally.lost, 1);
    }

    #[test]
    fn only_the_tool_without_annotation_is_doubled() {
        let ledger = ledger(&["call-0", "call-0", "call-0", "call-1"]);
        for (annotated, doubled) in [(false, 2), (true, 0)] {
            let mut tally = tally(annotated, &[Outcome::Answered, Outcome::Answered]);
            assert!(tally.audit(&runs(&ledger)).is_empty());
            assert_eq!(tally.doubled(), Some(doubled));
            assert_eq!(tally.ran, Some(Ran { runs: 4, repeats: 2, uncertain_ran: 0 }));
        }
    }
}
