//! Tables of the results.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use crate::between::Between;
use crate::upstream::{Served, Transport};
use mcp_reconnect_bench::tally::{Figures, Outcome, Row};

/// A trial, or why there was none.
pub(crate) struct Played {
    pub(crate) host: &'static str,
    pub(crate) between: Between,
    pub(crate) served: Served,
    pub(crate) row: Result<Row, String>,
}

/// Output of the Inspector, or its failure.
pub(crate) struct Inspected {
    pub(crate) between: Between,
    pub(crate) served: Served,
    pub(crate) said: Result<String, String>,
}

/// Prints all of it; a failure if the front broke a promise. Of the others nothing is asked.
pub(crate) fn print(played: &[Played], inspected: &[Inspected], compare: bool) -> ExitCode {
    each(played);
    if compare {
        println!();
        difference(played);
        println!();
        told(played);
    }
    println!();
    for Inspected { between, served, said } in inspected {
        let said = said.as_ref().map_or_else(|why| format!("no answer: {why}"), Clone::clone);
        println!("Inspector 2.12.0 – {} – {}: {said}", between.name(), served.name());
    }
    let (mut passed, mut failed) = (0, 0);
    for Played { host, between, served, row } in played.iter().filter(|played| played.between == Between::Front) {
        let faults = row.as_ref().map_or_else(|why| vec![why.clone()], Row::faults);
        if faults.is_empty() {
            passed += 1;
            continue;
        }
        failed += 1;
        println!("{host} – {} – {}: FAILED: {}", between.name(), served.name(), faults.join("; "));
        if let Ok(row) = row {
            row.explain();
        }
    }
    for Inspected { said, .. } in inspected.iter().filter(|inspected| inspected.between == Between::Front) {
        if said.is_ok() { passed += 1 } else { failed += 1 }
    }
    println!("{passed} passed, {failed} failed");
    if failed == 0 && passed > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// A row for each trial.
fn each(played: &[Played]) {
    println!(
        "| host (its version) | between | upstream | annotated: failed, repeated | others: answered, unknown reported, \
         not sent, failed unreported, doubled | new tools heard of, listed | session closed | back after a kill | took |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    for Played { host, between, served, row } in played {
        let (between, served) = (between.name(), served.name());
        let row = match row {
            Ok(row) => row,
            Err(why) => {
                let why: String = why.chars().take(160).collect();
                println!("| {host} | {between} | {served} | **not played**: {} |", why.replace(['|', '\n'], "/"));
                continue;
            }
        };
        let Figures { annotated, annotated_failed, repeated, .. } = row.figures();
        let Figures { unannotated, unannotated_answered, unknown, not_sent, unreported, doubled, .. } = row.figures();
        println!(
            "| {host} ({}) | {between} | {served} | {annotated_failed} of {annotated}, {repeated} | {unannotated_answered} of \
             {unannotated}, {unknown}, {not_sent}, {unreported}, {doubled} | {} (heard {} times), {} | {} | {} | {:.0} s |",
            row.version,
            yes(row.heard),
            row.changes,
            yes(row.lists_new_tools()),
            yes(row.closed),
            back(&row.recovered),
            row.took.as_secs_f32(),
        );
    }
}

/// A row for what is between, over all hosts.
fn difference(played: &[Played]) {
    println!(
        "| between | upstream | annotated calls failed | other calls failed, outcome unreported | outcome unknown, reported \
         | run twice | hosts without a session in the end | heard of new tools | back after a kill |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    for between in Between::ALL {
        for transport in Transport::ALL {
            let rows = of_both(played, between, transport);
            if rows.is_empty() {
                continue;
            }
            let figures = rows.iter().map(|row| row.figures()).fold(Figures::default(), std::ops::Add::add);
            let count = |what: fn(&Row) -> bool| rows.iter().filter(|row| what(row)).count();
            let recovered: Vec<_> = rows.iter().flat_map(|row| row.recovered.iter().copied()).collect();
            println!(
                "| {} | {} | {} of {} | {} of {} | {} | {} | {} of {} | {} of {} | {} |",
                between.name(),
                transport.name(),
                figures.annotated_failed,
                figures.annotated,
                figures.unreported + figures.not_sent,
                figures.unannotated,
                figures.unknown,
                figures.doubled,
                count(Row::lost),
                rows.len(),
                count(|row| row.heard),
                rows.len(),
                back(&recovered),
            );
        }
    }
}

/// In what words calls failed, most first, over all hosts.
fn told(played: &[Played]) {
    const LENGTH: usize = 120;
    for between in Between::ALL {
        for transport in Transport::ALL {
            let mut counts = BTreeMap::<String, usize>::new();
            for row in of_both(played, between, transport) {
                for call in row.calls.iter().filter(|call| !matches!(call.outcome, Outcome::Answered)) {
                    *counts.entry(call.outcome.words().chars().take(LENGTH).collect()).or_default() += 1;
                }
            }
            let mut counts: Vec<_> = counts.into_iter().collect();
            counts.sort_by_key(|(_, count)| Reverse(*count));
            for (words, count) in counts.into_iter().take(5) {
                println!("{} – {}: {count} × {words}", between.name(), transport.name());
            }
        }
    }
}

fn of_both(played: &[Played], between: Between, transport: Transport) -> Vec<&Row> {
    let of_both = |played: &&Played| played.between == between && played.served.transport == transport;
    played.iter().filter(of_both).filter_map(|played| played.row.as_ref().ok()).collect()
}

const fn yes(holds: bool) -> &'static str {
    if holds { "yes" } else { "no" }
}

/// The median.
fn back(recovered: &[Duration]) -> String {
    let mut sorted = recovered.to_vec();
    sorted.sort();
    sorted.get(sorted.len() / 2).map_or_else(|| "never".to_owned(), |median| format!("{:.2} s", median.as_secs_f32()))
}
