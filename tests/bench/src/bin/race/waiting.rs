//! From the moment a fresh session is published to its callers.

use std::time::Duration;

use serde::Deserialize;

use crate::child;
use crate::report::{Cell, Section, Table, percentile, time};

const GOAL: Duration = Duration::from_micros(100);

/// Output of `held wait`.
#[derive(Deserialize)]
struct Waited {
    nanos: Vec<u64>,
}

/// Ways to wait, each with its rounds of one and of a thousand callers.
const WAYS: [(&str, &str, [u32; 2]); 4] = [
    ("mcp-reconnect, `session()`", "session", [400, 100]),
    ("as many tasks on tokio's bare `watch`", "bare", [400, 100]),
    ("a look each 50 ms", "poll-50", [60, 12]),
    ("a look each 250 ms", "poll-250", [24, 6]),
];
const WAITERS: [u32; 2] = [1, 1_000];

pub(crate) async fn run() -> Result<Section, String> {
    let mut section = Section::new(
        "waiting",
        "Waiting: from a fresh session to its callers",
        "Callers, each a task, wait while the handshake is held up in the server; it ends at some point of their pauses, \
         and each notes when it runs. Time counts from the owner's own word that the status is Ready, given in the turn \
         in which it publishes the session, right before. In memory, in a process of its own, in real time. Beside it \
         the same callers in a loop that looks at the state and sleeps: what clients without a notification do, at the \
         pauses found in them; no part of any of them.",
    );
    let held = child::beside("held")?;
    for (runtime, title) in [("multi", "A runtime with a worker for each core"), ("current", "A runtime of one thread")]
    {
        let mut table = Table::new(title, &["", "callers", "rounds", "p50", "p99", "longest"]);
        for (who, how, rounds) in WAYS {
            for (waiters, rounds) in WAITERS.into_iter().zip(rounds) {
                let arguments = ["wait", runtime, how, &waiters.to_string(), &rounds.to_string()];
                let Waited { nanos } = child::line(&held, &arguments).await?;
                let at = |share| percentile(&nanos, share).map(Duration::from_nanos);
                let cells: [Cell; 3] = [at(0.5).into(), at(0.99).into(), at(1.0).into()];
                table.row(who, [u64::from(waiters).into(), u64::from(rounds).into()].into_iter().chain(cells));
                if how == "session" {
                    let p99 = at(0.99).ok_or("nobody waited")?;
                    let what = format!("p99 of {waiters}, {}", title.to_lowercase());
                    section.goal(what, "≤ 100 µs", time(p99.as_secs_f64()), p99 <= GOAL);
                }
            }
        }
        section.tables.push(table);
    }
    Ok(section)
}
