//! The port is refused for ten seconds while many call; when is each client back?

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::join_all;
use mcp_reconnect_bench::programs::Host;
use tokio::sync::watch;
use tokio::time::sleep;

use super::client::{Client, Front, Outcome, Who, program_call};
use super::server::{Server, doubled};
use crate::Race;
use crate::contenders::{OURS, PEERS};
use crate::report::{Cell, Section, Table, percentile, time};

const CALLERS: usize = 50;
/// Between the answer to a call and its caller's next.
const PAUSE: Duration = Duration::from_millis(100);
const STEADY: Duration = Duration::from_millis(1500);
pub(super) const DOWN: Duration = Duration::from_secs(10);
/// How long a call may take.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);
/// How long after the port answers again nobody is waited for any more.
const NEVER: Duration = Duration::from_secs(20);
/// A caller waits: `demand_interval`, for the ladder goes no further then.
const STEP: Duration = Duration::from_secs(5);
/// A call runs, and takes a while to answer: some are in flight when the server dies.
const SCRIPT: &str = "tools echo(readOnly), write\ncall * commit, delay 20ms";
const TOOLS: [&str; 2] = ["echo", "write"];
/// All other knobs have their defaults.
const KNOBS: &[&str] = &["--stable-after", "500", "--redial-spread", "250"];
const REDIAL_SPREAD: Duration = Duration::from_millis(250);

/// Results of one client's callers.
struct Ran {
    name: &'static str,
    /// Of the annotated tool, and of the other.
    failed: [usize; 2],
    hung: usize,
    unknown: usize,
    doubled: usize,
    /// Of each caller that came back.
    back: Vec<f64>,
    began: usize,
}

pub(super) async fn run(race: &Race, section: &mut Section) -> Result<(), String> {
    let mut ours = OURS;
    ours.kind.options = KNOBS;
    let peer =
        |name: &'static str| PEERS.into_iter().filter(move |peer| peer.kind.name.starts_with(name)).map(Who::Program);
    // What needs little goes together; Python does not.
    let little = [Who::Program(ours), Who::Front(Front::Ours), Who::Front(Front::McpRemote)];
    let groups: [Vec<Who>; 3] = [
        little.into_iter().chain(peer("rmcp")).collect(),
        peer("hermes").chain(peer("fastmcp 4.2.3, left open")).collect(),
        peer("fastmcp 4.2.3, entered").collect(),
    ];
    let columns = [
        "client",
        "callers back",
        "p50",
        "p99",
        "last",
        "calls",
        "failed, annotated",
        "others failed",
        "hung",
        "unknown, reported",
        "run twice",
    ];
    let mut table = Table::new(format!("{CALLERS} callers, {} s of downtime", DOWN.as_secs()), &columns);
    for group in groups {
        for (who, ran) in join_all(group.into_iter().map(async |who| (who, one(race, who).await))).await {
            match ran {
                Ok(ran) => {
                    if who.is_ours() {
                        goals(section, &ran);
                    }
                    table.row(ran.name, cells(&ran));
                }
                Err(why) => section.not_run(who.name(), why),
            }
        }
    }
    section.tables.push(table);
    Ok(())
}

fn cells(ran: &Ran) -> Vec<Cell> {
    let seconds = |share| percentile(&ran.back, share).map(|seconds| Cell::Time { seconds });
    let mut cells = vec![format!("{} of {CALLERS}", ran.back.len()).into()];
    cells.extend([0.5, 0.99, 1.0].map(|share| Cell::from(seconds(share))));
    cells.extend([ran.began, ran.failed[0], ran.failed[1], ran.hung, ran.unknown, ran.doubled].map(Cell::from));
    cells
}

fn goals(section: &mut Section, ran: &Ran) {
    let name = ran.name;
    let last = percentile(&ran.back, 1.0).filter(|_| ran.back.len() == CALLERS);
    section.goal(
        format!("{name}: the last caller is back after the port answers"),
        format!("≤ one backoff step, {} s", STEP.as_secs()),
        last.map_or("never".to_owned(), time),
        last.is_some_and(|last| last <= STEP.as_secs_f64()),
    );
    section.goal(
        format!("{name}: annotated calls failed, others failed without saying that they may have run, run twice"),
        "0, 0, 0",
        format!("{}, {}, {}", ran.failed[0], ran.failed[1] + ran.hung, ran.doubled),
        ran.failed == [0, 0] && ran.hung == 0 && ran.doubled == 0,
    );
}

async fn one(race: &Race, who: Who) -> Result<Ran, String> {
    let mut server = Server::start(SCRIPT).await?;
    let Client::Program(host) = who.start(race, &server, REDIAL_SPREAD).await? else {
        return Err("it is no program".into());
    };
    let host = Arc::new(host);
    let (again, back) = watch::channel(None);
    let callers: Vec<_> =
        (0..CALLERS).map(|number| tokio::spawn(caller(Arc::clone(&host), number, back.clone()))).collect();
    sleep(STEADY).await;
    server.kill().await?;
    sleep(DOWN).await;
    server.listen().await?;
    again.send_replace(Some(Instant::now()));
    let mut ran = Ran { name: who.name(), failed: [0; 2], hung: 0, unknown: 0, doubled: 0, back: Vec::new(), began: 0 };
    for told in join_all(callers).await {
        let told = told.map_err(|error| error.to_string())?;
        ran.failed[told.tool] += told.failed;
        ran.hung += told.hung;
        ran.unknown += told.unknown;
        ran.began += told.began;
        ran.back.extend(told.back.map(|back| back.as_secs_f64()));
    }
    ran.doubled = doubled(&server.ledger()?, TOOLS[1]);
    if let Some(host) = Arc::into_inner(host) {
        host.end().await;
    }
    Ok(ran)
}

/// Results of one caller.
#[derive(Default)]
struct Caller {
    tool: usize,
    began: usize,
    failed: usize,
    hung: usize,
    unknown: usize,
    back: Option<Duration>,
}

/// Calls until it is answered by the server that came back, or that is long ago.
async fn caller(host: Arc<Host>, number: usize, again: watch::Receiver<Option<Instant>>) -> Caller {
    let mut caller = Caller { tool: number % 2, ..Caller::default() };
    sleep(PAUSE * u32::try_from(number).unwrap_or_default() / u32::try_from(CALLERS).unwrap_or(1)).await;
    loop {
        let text = format!("{number}: {}", caller.began);
        caller.began += 1;
        let outcome = program_call(&host, PATIENCE, TOOLS[caller.tool], &text).await;
        let back = *again.borrow();
        let since = back.map(|back| back.elapsed());
        match outcome {
            Outcome::Answered => {
                if since.is_some() {
                    caller.back = since;
                    return caller;
                }
            }
            Outcome::Unknown => caller.unknown += 1,
            Outcome::Failed => caller.failed += 1,
            Outcome::Hung => caller.hung += 1,
        }
        if since.is_some_and(|since| since >= NEVER) {
            return caller;
        }
        sleep(PAUSE).await;
    }
}
