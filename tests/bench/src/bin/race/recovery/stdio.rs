//! A child is killed; when is the next call answered?

use std::ffi::OsString;
use std::process::Stdio;
use std::time::{Duration, Instant};

use futures::future::join_all;
use mcp_reconnect_bench::programs::{Host, beside};
use mcp_reconnect_tests::fake::{Event, FakeProcess};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::Command;
use tokio::time::{sleep, sleep_until, timeout};

use crate::Race;
use crate::contenders::{Contender, OURS, PEERS, Told, call};
use crate::ran::runs;
use crate::report::{Cell, Section, Table, percentile, time};

/// How often each client's child is killed.
const KILLS: u32 = 100;
/// How often it is tried whether a client comes back at all, and for how long.
const TRIES: u32 = 3;
const NEVER: Duration = Duration::from_secs(10);
/// How long a call may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// Between calls that fail.
const PAUSE: Duration = Duration::from_millis(10);
/// From an answer to the next kill: ours calls a session proven after 500 ms.
const PROVEN: Duration = Duration::from_millis(700);

const BARE: &str = "bare: spawn, handshake, tools/list";
const BARE_CALL: &str = "the same and the call";

/// Kind of child.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Child {
    Python,
    Native,
}

impl Child {
    fn title(self) -> &'static str {
        match self {
            Self::Python => "A server of 60 lines of Python, without an SDK",
            Self::Native => "A native server, which starts faster than any that people run",
        }
    }
}

/// The server of one client, its processes and its ledger.
struct Server {
    fake: FakeProcess,
    child: Child,
    python: OsString,
}

/// The interpreter behind `python3`, which may be a script that starts another program.
async fn python() -> Result<OsString, String> {
    let said = Command::new("python3").args(["-c", "import sys; print(sys.executable)"]).output().await;
    let said = said.map_err(|error| format!("python3: {error}"))?;
    Ok(String::from_utf8_lossy(&said.stdout).trim().into())
}

impl Server {
    fn new(child: Child, python: &OsString) -> Result<Self, String> {
        let fake = FakeProcess::new(beside("fake-server")?, "tools echo(readOnly), write");
        Ok(Self { fake: fake.map_err(|error| error.to_string())?, child, python: python.clone() })
    }

    fn command(&self) -> Vec<OsString> {
        let mut command: Vec<OsString> = match self.child {
            Child::Python => vec![self.python.clone(), concat!(env!("CARGO_MANIFEST_DIR"), "/servers/least.py").into()],
            Child::Native => vec![self.fake.program().into()],
        };
        command.extend(self.fake.args());
        command
    }

    /// SIGKILL to the last that was started.
    fn kill(&self) -> Result<(), String> {
        let ledger = self.fake.ledger().map_err(|error| error.to_string())?;
        let pid = ledger.entries().iter().rev().find_map(|entry| match entry.event {
            Event::Spawned { pid } => pid,
            _ => None,
        });
        let pid = pid.and_then(|pid| Pid::from_raw(pid.cast_signed())).ok_or("nothing was started")?;
        _ = kill_process(pid, Signal::KILL); // its client may have ended it already
        Ok(())
    }

    /// How many texts of this tool were run more than once.
    fn doubled(&self, tool: &str) -> Result<usize, String> {
        let ledger = self.fake.ledger().map_err(|error| error.to_string())?;
        let runs = runs(&ledger);
        Ok(runs.iter().filter(|(text, runs)| text.starts_with(tool) && **runs > 1).count())
    }
}

/// A client in the race, and what became of its calls.
struct Runner {
    contender: Contender,
    server: Server,
    host: Host,
    calls: usize,
    recoveries: Vec<f64>,
    /// Of the annotated tool, and of the other.
    failed: [usize; 2],
    unknown: usize,
    never: u32,
    /// When the last call was answered.
    answered: tokio::time::Instant,
}

const TOOLS: [&str; 2] = ["echo", "write"];

impl Runner {
    async fn start(
        race: &Race,
        section: &mut Section,
        contender: Contender,
        child: Child,
        python: &OsString,
    ) -> Result<Option<Self>, String> {
        let server = Server::new(child, python)?;
        let Some(host) = contender.start(race, section, server.command()).await else { return Ok(None) };
        let answered = tokio::time::Instant::now();
        let (failed, unknown, never, calls) = ([0; 2], 0, 0, 0);
        let mut runner =
            Self { contender, server, host, calls, recoveries: Vec::new(), failed, unknown, never, answered };
        for _ in 0..20 {
            runner.call(0).await; // warm
        }
        Ok(Some(runner))
    }

    async fn call(&mut self, tool: usize) -> Told {
        self.calls += 1;
        let text = format!("{} {}", TOOLS[tool], self.calls);
        let told = call(&self.host, PATIENCE, TOOLS[tool], &text).await;
        match told {
            Told::Answered => self.answered = tokio::time::Instant::now(),
            Told::Unknown => self.unknown += 1,
            Told::Failed => self.failed[tool] += 1,
        }
        told
    }

    /// Kills the child and calls until there is an answer; whether there was one within `bound`.
    async fn kill(&mut self, tool: usize, bound: Duration) -> Result<bool, String> {
        sleep_until(self.answered + PROVEN).await;
        self.server.kill()?;
        let killed = Instant::now();
        while killed.elapsed() < bound {
            if self.call(tool).await == Told::Answered {
                self.recoveries.push(killed.elapsed().as_secs_f64());
                return Ok(true);
            }
            sleep(PAUSE).await;
        }
        self.never += 1;
        Ok(false)
    }

    /// Whether it comes back at all: nobody waits a hundred times for one that does not.
    async fn tries(&mut self) -> Result<(), String> {
        for attempt in 0..TRIES {
            if !self.kill(attempt as usize % 2, NEVER).await? {
                break; // what it is like after that is told by the first
            }
        }
        Ok(())
    }
}

pub(crate) async fn run(race: &Race) -> Result<Section, String> {
    let mut section = Section::new(
        "stdio",
        "Recovery over stdio",
        format!(
            "The client's server gets SIGKILL while nothing is in flight, and the client is asked at once, again after {} \
             ms when it fails, until a new process has answered. {KILLS} kills of each, clients in turn; every second one \
             with a tool that is annotated as read-only, the others with one that is not. Every client is a program that \
             is told by a line to call; times are from the kill to the line with the answer, and hold the death of a \
             process, which `bare` does not. Who was not back {} s after a kill is not waited for again. Ours with \
             `stable_after` 500 ms, and nobody is killed within {} ms of an answer; all others as they come, fastmcp also \
             as it advises (entered for each call).",
            PAUSE.as_millis(),
            NEVER.as_secs(),
            PROVEN.as_millis(),
        ),
    );
    for child in [Child::Python, Child::Native] {
        series(race, &mut section, child).await?;
    }
    section.not_run.dedup_by(|a, b| a.who == b.who);
    Ok(section)
}

async fn series(race: &Race, section: &mut Section, child: Child) -> Result<(), String> {
    let python = python().await?;
    let mut runners = Vec::new();
    for contender in std::iter::once(OURS).chain(PEERS) {
        runners.extend(Runner::start(race, section, contender, child, &python).await?);
    }
    // Who says that it comes back is tried alone; the others wait for nothing together.
    for runner in runners.iter_mut().filter(|runner| runner.contender.supervises) {
        runner.tries().await?;
    }
    let others = runners.iter_mut().filter(|runner| !runner.contender.supervises);
    for tried in join_all(others.map(Runner::tries)).await {
        tried?;
    }
    for runner in &mut runners {
        // These were for finding out.
        runner.recoveries.clear();
    }
    let bare = Server::new(child, &python)?;
    let (mut floor, mut with_call) = (Vec::new(), Vec::new());
    for round in 0..KILLS {
        let (listed, called) = spawned(&bare.command()).await?;
        floor.push(listed.as_secs_f64());
        with_call.push(called.as_secs_f64());
        for runner in runners.iter_mut().filter(|runner| runner.never == 0) {
            runner.kill(round as usize % 2, NEVER).await?;
        }
    }
    let columns = [
        "client",
        "says it supervises",
        "kills",
        "p50",
        "p99",
        "p50, against bare",
        "p99, against bare",
        "calls failed, annotated",
        "others failed",
        "unknown, reported",
        "run twice",
    ];
    let mut table = Table::new(child.title(), &columns);
    let middle = percentile(&floor, 0.5).unwrap_or(f64::NAN);
    let tail = percentile(&floor, 0.99).unwrap_or(f64::NAN);
    for (name, times) in [(BARE, &floor), (BARE_CALL, &with_call)] {
        let mut cells = vec![Cell::NOTHING, times.len().into()];
        cells.extend(times_of(times, middle, tail));
        cells.resize(columns.len() - 1, Cell::NOTHING);
        table.row(name, cells);
    }
    for runner in &runners {
        let never = runner.never > 0;
        let mut cells = vec![if runner.contender.supervises { "yes" } else { "no" }.into()];
        cells.push(if never { 1_usize } else { runner.recoveries.len() }.into());
        cells.extend(if never {
            ["never", "never", "–", "–"].map(Cell::from)
        } else {
            times_of(&runner.recoveries, middle, tail)
        });
        cells.extend(runner.failed.map(Cell::from));
        cells.extend([runner.unknown.into(), runner.server.doubled("write")?.into()]);
        table.row(runner.contender.kind.name, cells);
    }
    if let Some(ours) = runners.iter().find(|runner| runner.contender.kind.name == OURS.kind.name) {
        goals(section, child, ours, middle, tail)?;
    }
    section.tables.push(table);
    for runner in runners {
        runner.host.end().await;
    }
    Ok(())
}

fn times_of(times: &[f64], middle: f64, tail: f64) -> [Cell; 4] {
    let seconds = |share| percentile(times, share).unwrap_or(f64::NAN);
    let (p50, p99) = (seconds(0.5), seconds(0.99));
    [Cell::Time { seconds: p50 }, Cell::Time { seconds: p99 }, Cell::ratio(p50 / middle), Cell::ratio(p99 / tail)]
}

fn goals(section: &mut Section, child: Child, ours: &Runner, middle: f64, tail: f64) -> Result<(), String> {
    let of = match child {
        Child::Python => "Python child",
        Child::Native => "native child",
    };
    for (name, share, floor, aim) in [("p50", 0.5, middle, 1.10), ("p99", 0.99, tail, 1.5)] {
        let measured = percentile(&ours.recoveries, share).unwrap_or(f64::NAN);
        let ratio = measured / floor;
        let measured = format!("{ratio:.2} × ({})", time(measured));
        section.goal(format!("{of}: {name} of recovery"), format!("≤ {aim:.2} × bare"), measured, ratio <= aim);
    }
    let doubled = ours.server.doubled("write")?;
    let calls = format!("{} failed, {} failed, {doubled} run twice", ours.failed[0], ours.failed[1]);
    section.goal(
        format!("{of}: annotated calls failed, others failed without saying that they may have run, run twice"),
        "0, 0, 0",
        calls,
        ours.failed == [0, 0] && doubled == 0 && ours.never == 0,
    );
    Ok(())
}

/// Starts the server, and speaks to it with nothing between; how long until its tools are listed, and until a call is
/// answered.
async fn spawned(command: &[OsString]) -> Result<(Duration, Duration), String> {
    let [program, arguments @ ..] = command else { return Err("no command".into()) };
    let began = Instant::now();
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.process_group(0).kill_on_drop(true).spawn().map_err(|error| error.to_string())?;
    let (Some(mut stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
        return Err("no pipes".into());
    };
    let mut lines = BufReader::new(stdout).lines();
    let mut ask = async |text: String| {
        stdin.write_all(text.as_bytes()).await.map_err(|error| error.to_string())?;
        let line = timeout(PATIENCE, lines.next_line()).await.map_err(|_| "no answer")?;
        line.map_err(|error| error.to_string())?.ok_or_else(|| "it ended".to_owned())
    };
    let client = json!({ "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": { "name": "bare", "version": "1" } });
    ask(request(1, "initialize", &client)).await?;
    let initialized = "{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"}\n";
    ask(initialized.to_owned() + &request(2, "tools/list", &json!({}))).await?;
    let listed = began.elapsed();
    ask(request(3, "tools/call", &json!({ "name": "echo", "arguments": { "text": "x" } }))).await?;
    let called = began.elapsed();
    child.kill().await.map_err(|error| error.to_string())?;
    Ok((listed, called))
}

fn request(id: u32, method: &str, params: &Value) -> String {
    json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }).to_string() + "\n"
}
