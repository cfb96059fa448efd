//! Cost of connections that nobody uses.

use std::time::Duration;

use futures::future::join_all;
use mcp_reconnect_tests::held::Kind;
use serde::Deserialize;

use crate::child;
use crate::report::{Section, Table, time};

const COUNTS: [u32; 2] = [1_000, 10_000];
const MINUTE: Duration = Duration::from_secs(60);
/// Of a core.
const SHARE: f64 = 0.01;

/// Output of `held idle`.
#[derive(Deserialize)]
struct Idle {
    ready: u32,
    nanos: u64,
    wakes: u64,
    switches: u64,
    pings: u64,
}

impl Idle {
    fn share(&self) -> f64 {
        Duration::from_nanos(self.nanos).as_secs_f64() / MINUTE.as_secs_f64()
    }
}

pub(crate) async fn run() -> Result<Section, String> {
    let mut section = Section::new(
        "idle",
        "Idle cost: a minute of Ready connections",
        "In memory, default knobs (`keepalive` 60 s), the starts spread over a minute, measured from 33 s after the last \
         one: by then every connection has been pinged once, and each is again in the minute that is measured. A process \
         of its own for each row, with a runtime of one thread; all run at once, and what is measured is their own: \
         processor time, the server's part of each ping included; how often the runtime had nothing left to run and \
         slept; how often the system saw the thread sleep. Beside them as many bare timers of 60 s (tokio's wheel wakes \
         up to sort them, too, more than once for each where they are few), and rmcp's services on the same links, which \
         ask nothing and so notice nothing.",
    );
    let held = child::beside("held")?;
    let rows: Vec<_> = COUNTS.into_iter().flat_map(|count| Kind::ALL.map(|kind| (count, kind))).collect();
    let measured = rows
        .iter()
        .map(async |(count, kind)| child::line::<Idle>(&held, &["idle", kind.name(), &count.to_string()]).await);
    let measured: Vec<Idle> = join_all(measured).await.into_iter().collect::<Result<_, _>>()?;
    let columns = ["", "pings", "wake-ups", "wake-ups per ping", "context switches", "processor time", "of a core"];
    for count in COUNTS {
        let of = |wanted: Kind| {
            let mut all = rows.iter().zip(&measured);
            all.find(|((of, kind), _)| *of == count && *kind == wanted).map(|(_, idle)| idle).ok_or("not measured")
        };
        let mut table = Table::new(format!("{count} connections"), &columns);
        for kind in Kind::ALL {
            let idle = of(kind)?;
            if kind != Kind::Timers && idle.ready != count {
                return Err(format!("{}: {} of {count} are ready", kind.name(), idle.ready));
            }
            let who = match kind {
                Kind::Supervised => "mcp-reconnect",
                Kind::Rmcp => "rmcp's service, bare",
                Kind::Timers => "timers of 60 s",
            };
            let per_ping = (idle.pings > 0).then(|| idle.wakes as f64 / idle.pings as f64);
            let cpu = Duration::from_nanos(idle.nanos);
            let share = format!("{:.2} %", idle.share() * 100.0);
            let cells = [idle.pings.into(), idle.wakes.into(), per_ping.into(), idle.switches.into(), cpu.into()];
            table.row(who, cells.into_iter().chain([share.into()]));
        }
        section.tables.push(table);
        let (ours, timers) = (of(Kind::Supervised)?, of(Kind::Timers)?);
        let over = ours.wakes as f64 / timers.wakes as f64;
        section.goal(
            format!("wake-ups of {count}, against those of a timer for each keepalive"),
            "≤ 1 ×, within 2 %",
            format!("{over:.2} ×"),
            over <= 1.02,
        );
    }
    let (ours, _) = measured.iter().zip(&rows).rfind(|(_, (_, kind))| *kind == Kind::Supervised).ok_or("none")?;
    let cpu = Duration::from_nanos(ours.nanos).as_secs_f64();
    section.goal(
        "processor time of the most of them",
        format!("≤ {} % of a core", SHARE * 100.0),
        format!("{:.2} %, {}", ours.share() * 100.0, time(cpu)),
        ours.share() <= SHARE,
    );
    Ok(section)
}
