use std::fmt::Write as _;

use super::{Callers, Figures, Gating, Rule, Storm};

const OURS: [(&str, Gating, Callers); 5] = [
    ("mcp-reconnect", Gating::Gate, Callers::None),
    ("  a caller waits for each", Gating::Gate, Callers::Waiting),
    ("  failures free their slots", Gating::FreedByFailure, Callers::None),
    ("  without the gate", Gating::None, Callers::None),
    ("  without it, with callers", Gating::None, Callers::Waiting),
];

/// A storm as a table: ours, with and without the gate, beside others. Also gives the figures of the first two rows.
pub fn table(storm: &Storm) -> (String, [Figures; 2]) {
    let Storm { connections, processes, max_dials, dead, admits, dead_for, .. } = storm;
    let dead = dead.as_str();
    let rate = admits.rate();
    let mut text = format!(
        "{connections} connections in {processes} process(es), a gate of {max_dials} each, lose a server that {dead} for \
         {dead_for:?}\nand then admits {rate}/s {}; ideal: {:.1} s.\n",
        admits.manner(),
        storm.ideal().as_secs_f64(),
    );
    let header = ["peak/100 ms", "retries", "p50 s", "p99 s", "last s", "not yet", "dials", "max", "slots", "parked"];
    let [peak, retries, p50, p99, last, missing, mean, most, slots, parked] = header;
    row(
        &mut text,
        "",
        &format!(
            "{peak:>11} {retries:>7} {p50:>7} {p99:>7} {last:>7} {missing:>7} {mean:>7} {most:>5} {slots:>7} {parked:>7}"
        ),
    );
    let ours = OURS.map(|(title, gating, callers)| {
        let figures = storm.run(gating, callers);
        row(&mut text, title, &figures.to_string());
        figures
    });
    for rule in Rule::ALL {
        row(&mut text, rule.title(), &storm.run_by(rule).to_string());
    }
    let [quiet, asked, ..] = ours;
    (text, [quiet, asked])
}

fn row(text: &mut String, title: &str, figures: &str) {
    // Writing to a string does not fail.
    let _written = writeln!(text, "{title:<32}{figures}");
}
