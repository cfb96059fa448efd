//! Runs of calls by the server's ledger, which knows them by their texts.

use std::collections::{BTreeMap, HashMap};

use mcp_reconnect_tests::fake::{Event, Ledger};

use crate::contenders::Told;

/// How often the tool ran for each call, by its text.
pub(crate) fn runs(ledger: &Ledger) -> BTreeMap<String, u64> {
    let (mut texts, mut runs) = (HashMap::new(), BTreeMap::new());
    for entry in ledger.entries() {
        match &entry.event {
            Event::Request { tool: Some(_), id, params, .. } => {
                let text = params["arguments"]["text"].as_str().unwrap_or_default();
                texts.insert((entry.spawn, id.to_string()), text);
            }
            Event::Executed { id, .. } => {
                if let Some(text) = texts.get(&(entry.spawn, id.to_string())) {
                    *runs.entry((*text).to_owned()).or_default() += 1;
                }
            }
            _ => {}
        }
    }
    runs
}

/// Of calls to one tool, by what the callers were told and what the ledger says.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) calls: u64,
    pub(crate) answered: u64,
    pub(crate) failed: u64,
    /// Of the failed ones: it ran, and the caller is not told that it may have.
    pub(crate) falsely_failed: u64,
    pub(crate) unknown: u64,
    /// Ran more than once.
    pub(crate) repeated: u64,
}

impl Counts {
    pub(crate) fn of(calls: &[(String, Told)], runs: &BTreeMap<String, u64>) -> Self {
        let mut counts = Self { calls: calls.len() as u64, ..Self::default() };
        for (text, outcome) in calls {
            let ran = runs.get(text).copied().unwrap_or_default();
            match outcome {
                Told::Answered => counts.answered += 1,
                Told::Unknown => counts.unknown += 1,
                Told::Failed => {
                    counts.failed += 1;
                    counts.falsely_failed += u64::from(ran > 0);
                }
            }
            counts.repeated += u64::from(ran > 1);
        }
        counts
    }
}
