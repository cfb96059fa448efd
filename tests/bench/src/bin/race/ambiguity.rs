//! A server that dies after it has run a call and before it answers: what is the caller told, and how often did it run?

use std::fmt::Write as _;
use std::time::Duration;

use futures::future::join_all;
use mcp_reconnect_bench::programs::{Host, Kind, beside};
use mcp_reconnect_tests::fake::{FakeProcess, Ledger};
use tokio::time::{Instant, sleep};

use crate::Race;
use crate::contenders::{self, Contender, PEERS, Told, call};
use crate::ran::{Counts, runs};
use crate::report::{Cell, Section, Table};

const CALLS: usize = 1_000;
/// Of a client that has to be started anew after each death, which takes its time.
const CALLS_RESTARTED: usize = 200;
const SEED: u64 = 17;
/// One call in so many ends its server.
const ONE_IN: u64 = 20;
/// How long a call may take, a rebuild of the session included.
const CALL: Duration = Duration::from_secs(30);
/// Within what a client must answer again after a death, or it is started anew.
const BACK: Duration = Duration::from_secs(5);

/// The sessions of ours count as proven at once: here a server dies within milliseconds of its start.
const OURS: Contender =
    Contender { kind: Kind { options: &["--stable-after", "1"], ..contenders::OURS.kind }, ..contenders::OURS };
/// Between a probe that failed and the next.
const PAUSE: Duration = Duration::from_millis(10);
/// Not annotated, and annotated as read-only.
const TOOLS: [&str; 2] = ["write", "echo"];

/// Results of one client with one tool.
struct Run {
    counts: Counts,
    deaths: usize,
    restarts: u64,
}

pub(crate) async fn run(race: &Race) -> Result<Section, String> {
    let mut section = Section::new(
        "ambiguity",
        "Ambiguity: the server dies after it has run a call and before it answers",
        format!(
            "Over stdio, one call after another, each made once; each spawn of the server exits at a call drawn from \
             seed {SEED}, one in {ONE_IN}, the same for all. After a call that is not answered the client has {} s to \
             answer another tool; one that does not is started anew by the race (\"restarted\"), makes \
             {CALLS_RESTARTED} calls in the place of {CALLS}, and is restarted at once from then on. \"Falsely failed\": \
             it ran, and the error does not say that it may have. Ran how often is the server's own ledger's word. \
             mcp-reconnect with `stable_after` 1 ms, the others as they come.",
            BACK.as_secs()
        ),
    );
    for tool in TOOLS {
        let annotated = tool == "echo";
        let title = if annotated { "A tool annotated as read-only" } else { "A tool without annotation" };
        let repeated = if annotated { "ran again (may)" } else { "doubled" };
        let columns = [
            "client",
            "calls",
            "deaths",
            "answered",
            "failed",
            "falsely failed",
            "reported unknown",
            repeated,
            "restarted",
        ];
        let mut table = Table::new(title, &columns);
        let clients: Vec<_> = std::iter::once(OURS).chain(PEERS).map(|contender| contender.kind).collect();
        let ran = join_all(clients.iter().map(|kind| client(race, *kind, tool))).await;
        for (kind, ran) in clients.into_iter().zip(ran) {
            let Run { counts, deaths, restarts } = match ran {
                Ok(run) => run,
                Err(why) => {
                    section.not_run(format!("{}, {tool}", kind.name), why);
                    continue;
                }
            };
            let figures = [
                counts.calls,
                deaths as u64,
                counts.answered,
                counts.failed,
                counts.falsely_failed,
                counts.unknown,
                counts.repeated,
                restarts,
            ];
            table.row(kind.name, figures.map(Cell::from));
            if kind.name == OURS.kind.name {
                goals(&mut section, annotated, &counts);
            }
        }
        section.tables.push(table);
    }
    Ok(section)
}

fn goals(section: &mut Section, annotated: bool, counts: &Counts) {
    if annotated {
        section.goal(
            "annotated: failed calls",
            "0",
            (counts.failed + counts.unknown).to_string(),
            counts.answered == counts.calls,
        );
        return;
    }
    section.goal("not annotated: doubled", "0", counts.repeated.to_string(), counts.repeated == 0);
    let measured = format!("{} reported unknown, {} falsely failed", counts.unknown, counts.falsely_failed);
    // A run without a death would show nothing.
    section.goal(
        "not annotated: every ambiguous call reported as unknown",
        "all",
        measured,
        counts.falsely_failed == 0 && counts.unknown > 0,
    );
}

async fn client(race: &Race, kind: Kind, tool: &str) -> Result<Run, String> {
    let fake = FakeProcess::new(beside("fake-server")?, &script(tool)).map_err(|error| error.to_string())?;
    let scratch = tempfile::tempdir_in(race.scratch.path()).map_err(|error| error.to_string())?;
    let start = || {
        let command = std::iter::once(fake.program().into()).chain(fake.args()).collect();
        Host::start(kind, &race.installed, command, scratch.path())
    };
    let mut host = start().await?;
    let (mut calls, mut restarts) = (Vec::new(), 0);
    while calls.len() < if restarts > 0 { CALLS_RESTARTED } else { CALLS } {
        let text = format!("{tool} {}", calls.len());
        let told = call(&host, CALL, tool, &text).await;
        calls.push((text, told));
        if told == Told::Answered || restarts == 0 && is_back(&host).await {
            continue;
        }
        restarts += 1;
        host = start().await?;
    }
    host.end().await;
    let ledger = fake.ledger().map_err(|error| error.to_string())?;
    Ok(Run { counts: Counts::of(&calls, &runs(&ledger)), deaths: deaths(&ledger), restarts })
}

async fn is_back(host: &Host) -> bool {
    let by = Instant::now() + BACK;
    while Instant::now() < by {
        if call(host, BACK, "probe", "probe").await == Told::Answered {
            return true;
        }
        sleep(PAUSE).await; // the pace of a caller that tries again
    }
    false
}

fn deaths(ledger: &Ledger) -> usize {
    ledger.exits().iter().filter(|(_, reason)| *reason == "exit 1").count()
}

/// Each spawn exits at another call of this tool, drawn as one in so many would fall.
fn script(tool: &str) -> String {
    let mut script = "era legacy\ntools echo(readOnly), write, probe(readOnly)\n".to_owned();
    let mut dice = SEED;
    for spawn in 1..=CALLS {
        let mut call = 1;
        while !roll(&mut dice).is_multiple_of(ONE_IN) {
            call += 1;
        }
        _ = writeln!(script, "spawn {spawn}:\ncall {tool}#{call} commit, exit 1"); // a string takes everything
    }
    script
}

/// SplitMix64.
fn roll(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}
