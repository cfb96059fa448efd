//! The server is another one, with an empty table of sessions; when is the next call answered?

use std::time::{Duration, Instant};

use futures::future::join_all;
use mcp_reconnect::Require;
use tokio::time::{sleep, sleep_until};

use super::bare::Before;
use super::client::{Client, Front, Outcome, STABLE_AFTER, Who};
use super::server::{Server, asked, doubled};
use crate::Race;
use crate::contenders::{OURS, PEERS};
use crate::report::{Cell, Section, Table, median, percentile, time};

/// From an answer to the next restart: longer than ours takes to call a session proven.
const PROVEN: Duration = STABLE_AFTER.saturating_add(Duration::from_millis(100));
/// How often it is tried whether a client comes back at all, and for how long.
const TRIES: [Duration; 3] = [Duration::from_secs(5), Duration::from_secs(2), Duration::from_secs(2)];
/// Between calls that fail.
const PAUSE: Duration = Duration::from_millis(10);
/// The annotated one, and the other.
const TOOLS: [&str; 2] = ["echo", "write"];

/// A series of restarts, by the server's refusal of the old session id.
pub(super) struct Series {
    /// Of its goals, if it has some.
    goals: Option<&'static str>,
    title: &'static str,
    script: &'static str,
    rounds: usize,
    /// How long after the server listens the client is asked.
    later: Duration,
}

const AT_ONCE: Duration = Duration::ZERO;

pub(super) const SERIES: [Series; 6] = [
    Series {
        goals: Some("404"),
        title: "404, -32001 `Session not found`; a server that answers at once",
        script: "tools echo(readOnly), write\nget status 405",
        rounds: 30,
        later: AT_ONCE,
    },
    Series {
        goals: Some("400, no valid session id"),
        title: "400, -32000 `Bad Request: No valid session ID provided`, without an id; a server that answers at once",
        script: concat!(
            "tools echo(readOnly), write\nget status 405\nstale status 400 ",
            r#"'{"jsonrpc":"2.0","error":{"code":-32000,"message":"Bad Request: No valid session ID provided"}}'"#
        ),
        rounds: 30,
        later: AT_ONCE,
    },
    Series {
        goals: Some("400, not initialized"),
        title: "400, -32000 `Bad Request: Server not initialized`, with the id null; a server that answers at once",
        script: concat!(
            "tools echo(readOnly), write\nget status 405\nstale status 400 ",
            r#"'{"jsonrpc":"2.0","error":{"code":-32000,"message":"Bad Request: Server not initialized"},"id":null}'"#,
        ),
        rounds: 30,
        later: AT_ONCE,
    },
    Series {
        goals: Some("404, 5 ms for a request"),
        title: "404, -32001 `Session not found`; a server that takes 5 ms for each request",
        script: "tools echo(readOnly), write\nget status 405\n\
                 initialize delay 5ms\nlist delay 5ms\ncall * commit, delay 5ms",
        rounds: 30,
        later: AT_ONCE,
    },
    Series {
        goals: None,
        title: "404, and a standing stream has told of the end of the server; asked at once",
        script: "tools echo(readOnly), write",
        rounds: 10,
        later: AT_ONCE,
    },
    Series {
        goals: None,
        title: "404, and a standing stream has told of the end of the server; asked two seconds later",
        script: "tools echo(readOnly), write",
        rounds: 5,
        later: Duration::from_secs(2),
    },
];

/// The bare exchanges, and all clients.
pub(super) fn everybody() -> Vec<Who> {
    let bare = [Before::List, Before::Refusal, Before::Library, Before::Handshake].map(Who::Bare);
    let ours = [Who::Embedded(Require::Tools), Who::Embedded(Require::None), Who::Program(OURS)];
    let fronts = [Front::Ours, Front::McpRemote].map(Who::Front);
    bare.into_iter().chain(ours).chain(fronts).chain(PEERS.map(Who::Program)).collect()
}

struct Runner {
    who: Who,
    server: Server,
    client: Client,
    calls: usize,
    times: Vec<f64>,
    failed: usize,
    hung: usize,
    unknown: usize,
    never: bool,
    /// When the last call was answered.
    answered: tokio::time::Instant,
}

impl Runner {
    async fn start(race: &Race, who: Who, script: &str) -> Result<Self, (Who, String)> {
        let server = Server::start(script).await.map_err(|error| (who, error))?;
        let client = who.start(race, &server, Duration::ZERO).await.map_err(|error| (who, error))?;
        let answered = tokio::time::Instant::now();
        let (calls, times) = (0, Vec::new());
        let mut runner =
            Self { who, server, client, calls, times, failed: 0, hung: 0, unknown: 0, never: false, answered };
        for _ in 0..20 {
            runner.call(TRIES[0]).await; // warm
        }
        Ok(runner)
    }

    async fn call(&mut self, patience: Duration) -> Outcome {
        self.calls += 1;
        let tool = TOOLS[self.times.len() % 2];
        let outcome = self.client.call(patience, tool, &format!("call {}", self.calls)).await;
        match outcome {
            Outcome::Answered => self.answered = tokio::time::Instant::now(),
            Outcome::Unknown => self.unknown += 1,
            Outcome::Failed => self.failed += 1,
            Outcome::Hung => self.hung += 1,
        }
        outcome
    }

    async fn restart(&mut self) -> Result<(), String> {
        if !matches!(self.client, Client::Bare(_)) {
            sleep_until(self.answered + PROVEN).await;
        }
        self.server.kill().await?;
        if let Client::Bare(bare) = &mut self.client {
            bare.lost();
        }
        self.server.listen().await
    }

    /// Calls until there is an answer; `never` without one in time.
    async fn ask(&mut self, bound: Duration) {
        let began = Instant::now();
        while let Some(left) = bound.checked_sub(began.elapsed()) {
            if self.call(left).await == Outcome::Answered {
                self.times.push(began.elapsed().as_secs_f64());
                return;
            }
            sleep(PAUSE).await;
        }
        self.never = true;
    }

    /// Whether it comes back at all: nobody waits thirty times for one that does not. What is measured is forgotten, for
    /// all are tried at once.
    async fn tries(&mut self) -> Result<(), String> {
        for bound in TRIES {
            self.restart().await?;
            self.ask(bound).await;
        }
        if !self.never {
            self.times.clear();
            (self.failed, self.hung, self.unknown) = (0, 0, 0);
        }
        Ok(())
    }
}

/// Leaves in `who` those that came back.
pub(super) async fn run(race: &Race, section: &mut Section, series: &Series, who: &mut Vec<Who>) -> Result<(), String> {
    let mut runners = Vec::new();
    for started in join_all(who.drain(..).map(|who| Runner::start(race, who, series.script))).await {
        match started {
            Ok(runner) => runners.push(runner),
            Err((who, why)) => section.not_run(who.name(), why),
        }
    }
    for tried in join_all(runners.iter_mut().map(Runner::tries)).await {
        tried?;
    }
    for _ in 0..series.rounds {
        if series.later.is_zero() {
            for runner in runners.iter_mut().filter(|runner| !runner.never) {
                runner.restart().await?;
                runner.ask(TRIES[0]).await;
            }
        } else {
            for restarted in join_all(runners.iter_mut().filter(|runner| !runner.never).map(Runner::restart)).await {
                restarted?;
            }
            sleep(series.later).await;
            for runner in runners.iter_mut().filter(|runner| !runner.never) {
                runner.ask(TRIES[0]).await;
            }
        }
    }
    section.tables.push(table(series, &runners)?);
    if let Some(name) = series.goals {
        goals(section, name, &runners);
    }
    who.extend(runners.iter().filter(|runner| !runner.never).map(|runner| runner.who));
    for runner in runners {
        runner.client.end().await;
    }
    Ok(())
}

fn table(series: &Series, runners: &[Runner]) -> Result<Table, String> {
    let columns = [
        "client",
        "p50",
        "p99",
        "p50, against bare",
        "POSTs",
        "connections",
        "calls failed",
        "hung",
        "unknown, reported",
        "run twice",
    ];
    let mut table =
        Table::new(format!("A stale session id gets {}; {} restarts", series.title, series.rounds), &columns);
    let floor = p50_of(runners, |who| matches!(who, Who::Bare(Before::List)));
    for runner in runners {
        let ledger = runner.server.ledger()?;
        let mut cells = if runner.never {
            vec!["never".into(), Cell::NOTHING, Cell::NOTHING, Cell::NOTHING, Cell::NOTHING]
        } else {
            // The tries are not among them.
            let asked = asked(&ledger).split_off(TRIES.len());
            let posts: Vec<_> = asked.iter().map(|asked| asked.posts).collect();
            let connections: Vec<_> = asked.iter().map(|asked| asked.connections).collect();
            let seconds = |share| percentile(&runner.times, share).map(|seconds| Cell::Time { seconds });
            let against = percentile(&runner.times, 0.5).map(|p50| Cell::ratio(p50 / floor));
            vec![
                seconds(0.5).into(),
                seconds(0.99).into(),
                against.into(),
                median(&posts).into(),
                median(&connections).into(),
            ]
        };
        cells.extend([runner.failed, runner.hung, runner.unknown, doubled(&ledger, TOOLS[1])].map(Cell::from));
        table.row(runner.who.name(), cells);
    }
    Ok(table)
}

fn goals(section: &mut Section, name: &str, runners: &[Runner]) {
    let pairs =
        [(Require::Tools, Before::List, "`require = tools`"), (Require::None, Before::Handshake, "`require = none`")];
    for (wanted, before, what) in pairs {
        let ours = p50_of(runners, |who| matches!(who, Who::Embedded(require) if require == wanted));
        let bare = p50_of(runners, |who| matches!(who, Who::Bare(what) if what == before));
        let ratio = ours / bare;
        section.goal(
            format!("{name}: recovering call, {what}"),
            "≤ 1.20 × bare",
            format!("{ratio:.2} × ({} against {})", time(ours), time(bare)),
            ratio <= 1.2,
        );
    }
    let ours: Vec<_> = runners.iter().filter(|runner| runner.who.is_ours()).collect();
    let count = |what: fn(&Runner) -> usize| ours.iter().map(|&runner| what(runner)).sum::<usize>();
    let (failed, unknown) = (count(|runner| runner.failed + runner.hung), count(|runner| runner.unknown));
    section.goal(
        format!("{name}: calls of ours that failed"),
        "0",
        format!("{failed}; of the other tool, {unknown} told that they may have run"),
        failed == 0 && !ours.iter().any(|runner| runner.never),
    );
}

fn p50_of(runners: &[Runner], fits: impl Fn(Who) -> bool) -> f64 {
    let runner = runners.iter().find(|runner| fits(runner.who));
    runner.and_then(|runner| percentile(&runner.times, 0.5)).unwrap_or(f64::NAN)
}
