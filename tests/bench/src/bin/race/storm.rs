//! Ten thousand connections that lose their server at once, in simulated time.

use std::time::Duration;

use mcp_reconnect_tests::storm::{Callers, Dead, Figures, Gating, Rule, Storm};

use crate::report::{Cell, Section, Table};

const PERCENTILE: usize = 99;

pub(crate) fn run() -> Result<Section, String> {
    let mut section = Section::new(
        "storm",
        "A storm: 10,000 connections of one process lose their server",
        "The server is dead for 30 s and then admits 500 connects per second. Simulated: the real machines behind the \
         real dial gate, beside the delay rules of others under the same server, from one seed. Recovery counts from the \
         server's return; the run ends 300 s after it. A client is named for its delay rule alone, not for what else it \
         does; a rule without jitter keeps all in step here, where nothing else tells them apart.",
    );
    for dead in [Dead::Refuses, Dead::Silent] {
        let storm = Storm::one_process(dead);
        let title =
            format!("A server that {} while it is dead (ideal: {:.1} s)", dead.as_str(), storm.ideal().as_secs_f64());
        let columns =
            ["rule", "dials in the worst 100 ms", "recovery p50", "p99", "last", "not back", "dials each", "at most"];
        let mut table = Table::new(title, &columns);
        let ours = storm.run(Gating::Gate, Callers::None);
        row(&mut table, "mcp-reconnect", &ours);
        row(&mut table, "mcp-reconnect, a caller waits for each", &storm.run(Gating::Gate, Callers::Waiting));
        for rule in Rule::ALL {
            row(&mut table, rule.title(), &storm.run_by(rule));
        }
        section.tables.push(table);
        if dead == Dead::Refuses {
            let (p99, aim) = (ours.percentile(PERCENTILE), storm.ideal() + Duration::from_secs(5));
            section.goal(
                "p99 of recovery",
                format!("≤ {:.1} s", aim.as_secs_f64()),
                p99.map_or_else(|| "never".to_owned(), |p99| format!("{:.1} s", p99.as_secs_f64())),
                p99.is_some_and(|p99| p99 <= aim),
            );
        }
    }
    Ok(section)
}

fn row(table: &mut Table, name: &str, figures: &Figures) {
    let connections = figures.dials.len() as u64;
    table.row(
        name,
        [
            u64::from(figures.peak_dials).into(),
            figures.percentile(50).into(),
            figures.percentile(PERCENTILE).into(),
            figures.percentile(100).into(),
            (connections - figures.recoveries.len() as u64).into(),
            Cell::Figure(figures.all_dials() as f64 / connections as f64),
            u64::from(figures.most_dials()).into(),
        ],
    );
}
