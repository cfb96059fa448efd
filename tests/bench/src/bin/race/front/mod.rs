//! Cost of a proxy: the latency and the rate of calls through ours, through others, and without one.

mod between;
mod host;

use std::time::Duration;

use mcp_reconnect_bench::programs::beside;
use mcp_reconnect_tests::fake::FakeProcess;

use self::between::{Between, Candidate, Upstream};
use self::host::{Calls, Load};
use crate::Race;
use crate::report::{Cell, Section, Table, median, percentile, time};

const BLOCKS: usize = 10;
/// Of one candidate in a block; or as many as [`BOUND`] has time for.
const CALLS: usize = 200;
const BOUND: Duration = Duration::from_millis(400);
/// Before the first block, with a time limit of its own.
const WARM_UP: (usize, Duration) = (200, Duration::from_secs(2));

const SMALL: usize = 20;
const LARGE: usize = 10 * 1024;
const AT_ONCE: usize = 16;
/// In the order of a table's columns.
const LOADS: [Load; 3] =
    [Load { size: SMALL, at_once: 1 }, Load { size: LARGE, at_once: 1 }, Load { size: SMALL, at_once: AT_ONCE }];

/// At most this much of the latency of no proxy.
const AIM: f64 = 1.3;

/// One table: a server, and how the host reaches it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Setup {
    Stdio,
    Python,
    Http,
    Served,
}

impl Setup {
    const ALL: [Self; 4] = [Self::Stdio, Self::Python, Self::Http, Self::Served];

    const fn title(self) -> &'static str {
        match self {
            Self::Stdio => "A host over stdio, the scripted server over stdio",
            Self::Python => "A host over stdio, a server on the Python SDK (mcp 2.3.0) over stdio",
            Self::Http => "A host over stdio, the scripted server over HTTP (no proxy: the host over HTTP)",
            Self::Served => "A host over HTTP, the scripted server over stdio (no proxy: the host over stdio)",
        }
    }

    const fn between(self) -> &'static [Between] {
        use Between::{Cat, Fastmcp, FastmcpOneSession, Front, McpProxy, McpRemote, Nothing};
        match self {
            Self::Stdio | Self::Python => &[Nothing, Cat, Front, FastmcpOneSession, Fastmcp],
            Self::Http => &[Nothing, Front, McpProxy, McpRemote, FastmcpOneSession, Fastmcp],
            Self::Served => &[Nothing, Front, McpProxy],
        }
    }
}

/// The section, on a thread of its own: what waits for the machine's other work is not measured.
pub(crate) async fn run(race: &Race) -> Result<Section, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    let sections = tokio::task::block_in_place(|| runtime.block_on(measure(race)));
    // The rest of its processes is waited for by the other one.
    runtime.shutdown_background();
    sections
}

async fn measure(race: &Race) -> Result<Section, String> {
    let mut section = Section::new(
        "front",
        "The front: calls through a proxy",
        format!(
            "One JSON-RPC host, the same for all, in a session of 2025-11-25, calls `echo` with {SMALL} bytes and with \
             {LARGE}, one call after another, and with {SMALL} bytes {AT_ONCE} at a time. {BLOCKS} blocks, in each of them \
             all in turn: {CALLS} calls each, or as many as {} ms have time for, after a warm-up. Ratios are to no proxy: \
             the median over the blocks of what the medians of one block are to each other. A call whose answer is not \
             its text has failed, and is in no other figure. The scripted server is native; it writes every request to \
             a file. All are as they come; fastmcp's proxy begins a session for each request unless it is made of a \
             connected client (\"one session\"). `cat` on both ways shows what one process between takes; it is no proxy, \
             and in no goal.",
            BOUND.as_millis(),
        ),
    );
    for setup in Setup::ALL {
        let measured = run_setup(race, setup, &mut section).await?;
        section.tables.push(table(setup, &measured));
        goals(setup, &measured, &mut section);
    }
    Ok(section)
}

/// Results of one candidate: for each load its blocks.
struct Measured {
    between: Between,
    blocks: [Vec<Calls>; LOADS.len()],
}

async fn run_setup(race: &Race, setup: Setup, section: &mut Section) -> Result<Vec<Measured>, String> {
    let fake = FakeProcess::new(beside("fake-server")?, "tools echo(readOnly)\n").map_err(|error| error.to_string())?;
    let upstream = match setup {
        Setup::Stdio | Setup::Served => Upstream::fake(&fake),
        Setup::Python => Upstream::python(&race.installed),
        Setup::Http => Upstream::fake_http(&fake).await?,
    };
    let mut candidates = Vec::new();
    for &between in setup.between() {
        let candidate = match setup {
            Setup::Served => Candidate::serving(between, &upstream, race).await,
            Setup::Stdio | Setup::Python | Setup::Http => Candidate::start(between, &upstream, race).await,
        };
        match warmed_up(candidate).await {
            Ok(candidate) => {
                candidates.push((candidate, Measured { between, blocks: Default::default() }));
            }
            Err(why) => section.not_run(format!("{}: {}", setup.title(), between.name()), why),
        }
    }
    for block in 0..BLOCKS {
        for (load, calls) in LOADS.into_iter().enumerate() {
            // Nobody comes always first.
            let first = block % candidates.len().max(1);
            candidates.rotate_left(first);
            let mut stopped = Vec::new();
            for (place, (candidate, measured)) in candidates.iter_mut().enumerate() {
                match candidate.host.call(calls, CALLS, BOUND).await {
                    Ok(calls) => measured.blocks[load].push(calls),
                    Err(why) => stopped.push((place, why)),
                }
            }
            for (place, why) in stopped.into_iter().rev() {
                let (candidate, _) = candidates.remove(place);
                let who = format!("{}: {}, from block {} on", setup.title(), candidate.between.name(), block + 1);
                section.not_run(who, why);
                candidate.end().await;
            }
        }
    }
    let mut all = Vec::new();
    for (candidate, measured) in candidates {
        candidate.end().await;
        all.push(measured);
    }
    all.sort_by_key(|measured| setup.between().iter().position(|&between| between == measured.between));
    Ok(all)
}

async fn warmed_up(candidate: Result<Candidate, String>) -> Result<Candidate, String> {
    let mut candidate = candidate?;
    for load in LOADS {
        if let Err(why) = candidate.host.call(load, WARM_UP.0, WARM_UP.1).await {
            candidate.end().await;
            return Err(why);
        }
    }
    Ok(candidate)
}

impl Measured {
    fn percentile(&self, load: usize, share: f64) -> Option<f64> {
        let times: Vec<_> = self.blocks[load].iter().flat_map(|calls| calls.times.iter().copied()).collect();
        percentile(&times, share)
    }

    /// Calls per second.
    fn rate(&self, load: usize) -> Option<f64> {
        median(&self.blocks[load].iter().filter_map(rate).collect::<Vec<_>>())
    }

    /// Of these figures of each block, to those of the other one.
    fn ratio(&self, load: usize, to: &Self, figure: impl Fn(&Calls) -> Option<f64>) -> Option<f64> {
        let pairs = self.blocks[load].iter().zip(&to.blocks[load]);
        median(&pairs.filter_map(|(own, other)| Some(figure(own)? / figure(other)?)).collect::<Vec<_>>())
    }

    fn failed(&self) -> u64 {
        self.blocks.iter().flatten().map(|calls| calls.failed).sum()
    }
}

fn latency(calls: &Calls) -> Option<f64> {
    median(&calls.times)
}

fn rate(calls: &Calls) -> Option<f64> {
    let took = calls.took.as_secs_f64();
    (took > 0.0 && !calls.times.is_empty()).then(|| calls.times.len() as f64 / took)
}

const COLUMNS: [&str; 11] = [
    "",
    "20 B p50",
    "p99",
    "to no proxy",
    "10 KiB p50",
    "p99",
    "to no proxy",
    "calls/s, 16 at once",
    "to no proxy",
    "calls",
    "failed",
];

fn table(setup: Setup, measured: &[Measured]) -> Table {
    let mut table = Table::new(setup.title(), &COLUMNS);
    let base = measured.iter().find(|measured| measured.between == Between::Nothing);
    for one in measured {
        let seconds = |load, share| one.percentile(load, share).map_or(Cell::NOTHING, |seconds| Cell::Time { seconds });
        let ratio = |load, figure: fn(&Calls) -> Option<f64>| {
            base.and_then(|base| one.ratio(load, base, figure)).map_or(Cell::NOTHING, Cell::ratio)
        };
        let calls: usize = one.blocks.iter().flatten().map(|calls| calls.times.len()).sum();
        table.row(
            one.between.name(),
            [
                seconds(0, 0.5),
                seconds(0, 0.99),
                ratio(0, latency),
                seconds(1, 0.5),
                seconds(1, 0.99),
                ratio(1, latency),
                one.rate(2).into(),
                ratio(2, rate),
                calls.into(),
                one.failed().into(),
            ],
        );
    }
    table
}

fn goals(setup: Setup, measured: &[Measured], section: &mut Section) {
    let (mut base, mut ours, mut others) = (None, None, Vec::new());
    for one in measured {
        match one.between {
            Between::Nothing => base = Some(one),
            Between::Cat => {}
            Between::Front => ours = Some(one),
            _ => others.push(one),
        }
    }
    let Some(ours) = ours else { return };
    let best = |figures: Vec<f64>, better: fn(f64, f64) -> f64| figures.into_iter().reduce(better);
    for (load, what) in [(0, "20 B, p50"), (1, "10 KiB, p50")] {
        let other = best(others.iter().filter_map(|other| other.percentile(load, 0.5)).collect(), f64::min);
        if let (Some(own), Some(other)) = (ours.percentile(load, 0.5), other) {
            let measured = format!("{} against {}", time(own), time(other));
            section.goal(format!("{}: {what}", setup.title()), "ahead of all others", measured, own < other);
        }
    }
    let other = best(others.iter().filter_map(|other| other.rate(2)).collect(), f64::max);
    if let (Some(own), Some(other)) = (ours.rate(2), other) {
        let measured = format!("{own:.0} against {other:.0}");
        section.goal(format!("{}: calls/s", setup.title()), "ahead of all others", measured, own > other);
    }
    if let (Setup::Stdio | Setup::Python, Some(base)) = (setup, base)
        && let Some(ratio) = ours.ratio(0, base, latency)
    {
        let what = format!("{}: latency to no proxy, 20 B", setup.title());
        section.goal(what, format!("≤ {AIM} ×"), format!("{ratio:.2} ×"), ratio <= AIM);
    }
}
