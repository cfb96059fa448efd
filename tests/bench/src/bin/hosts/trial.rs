//! One host before one server: 200 calls, and what is done to the server meanwhile.

use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::future::join_all;
use rustix::process::Signal;
use tokio::time::{Instant, sleep};

use crate::between::{Between, Middle};
use crate::upstream::{Served, Upstream};
use mcp_reconnect_bench::programs::{Answer, Host, Kind};
use mcp_reconnect_bench::tally::{Call, LAST, Outcome, Row};

/// A stop from which the server recovers before it counts as hung (the front: `--hung-after`).
const SHORT_FREEZE: Duration = Duration::from_millis(1500);
/// How long a server that hangs for good does so, until its operator restarts it. Over stdio the front does so before.
const LONG_FREEZE: Duration = Duration::from_secs(8);
const DOWNTIME: Duration = Duration::from_secs(10);
/// Within what a host must hear that the tools have changed.
const CHANGE: Duration = Duration::from_secs(20);

/// A tool of the server.
#[derive(Clone, Copy)]
struct Tool {
    name: &'static str,
    annotated: bool,
}

const ECHO: Tool = Tool { name: "echo", annotated: true };
const PUT: Tool = Tool { name: "put", annotated: true };
const SEARCH: Tool = Tool { name: "search", annotated: true };
const SLOW_READ: Tool = Tool { name: "slow_read", annotated: true };
const WRITE: Tool = Tool { name: "write", annotated: false };
const SLOW_WRITE: Tool = Tool { name: "slow_write", annotated: false };
const LATE_WRITE: Tool = Tool { name: "late_write", annotated: false };

/// In flight when the server is killed: those that have run, and one kind that has not.
const IN_FLIGHT: [Tool; 10] =
    [SLOW_READ, SLOW_WRITE, SLOW_READ, SLOW_WRITE, SLOW_READ, SLOW_WRITE, SLOW_READ, LATE_WRITE, SLOW_READ, LATE_WRITE];

/// So many calls, two tools in turn.
fn both(first: Tool, second: Tool, count: usize) -> Vec<Tool> {
    (0..count).map(|number| if number % 2 == 0 { first } else { second }).collect()
}

struct Trial {
    host: Host,
    upstream: Upstream,
    middle: Middle,
    calls: Vec<Call>,
    /// The number in the last call's text.
    last: usize,
    /// From a kill between calls to the first answer.
    recovered: Vec<Duration>,
    heard: bool,
    new_tools: Result<Vec<String>, String>,
}

/// Plays all of it.
pub(crate) async fn run(
    kind: Kind,
    between: Between,
    served: Served,
    installed: &Path,
    scratch: PathBuf,
) -> Result<Row, String> {
    let started = Instant::now();
    std::fs::create_dir_all(&scratch).map_err(|error| error.to_string())?;
    let upstream = Upstream::start(served).await?;
    let middle = Middle::new(between, installed, &upstream, &scratch).await?;
    let host = Host::start(kind, installed, middle.server.clone(), &scratch).await?;
    let version = host.version();
    let (recovered, new_tools) = (Vec::new(), Err("not listed".to_owned()));
    let mut trial = Trial { host, upstream, middle, calls: Vec::new(), last: 0, recovered, heard: false, new_tools };
    trial.play().await?;

    let Trial { host, upstream, mut middle, calls, recovered, heard, new_tools, .. } = trial;
    let closed = host.closed() || !middle.runs();
    let (changes, tail) = (host.list_changed(), host.tail());
    let ended = host.end().await;
    let left = !middle.ended().await;
    let ledger = upstream.ledger()?;
    drop(middle); // before its server
    let row = Row {
        version,
        calls,
        recovered,
        heard,
        changes,
        new_tools,
        closed,
        ended,
        left,
        tail,
        took: started.elapsed(),
    };
    Ok(row.with_runs(&ledger))
}

impl Trial {
    async fn play(&mut self) -> Result<(), String> {
        // As every host does. One that has not seen the tools need not hear that they have changed.
        self.host.tools().await.map_err(|why| format!("the tools cannot be listed: {why}"))?;
        self.one_by_one("healthy", &both(PUT, WRITE, 20)).await;
        for _ in 0..2 {
            self.killed_between_calls().await?;
        }
        for _ in 0..2 {
            self.killed_during_calls().await?;
        }
        self.other_tools().await?;
        self.frozen_for_a_while().await?;
        self.frozen_for_good().await?;
        self.down().await?;
        self.together(LAST, &both(WRITE, ECHO, 20)).await;
        Ok(())
    }

    async fn killed_between_calls(&mut self) -> Result<(), String> {
        const PHASE: &str = "killed between calls";
        let killed = Instant::now();
        self.upstream.restart().await?;
        self.one_by_one(PHASE, &[ECHO]).await;
        if self.calls.last().is_some_and(|call| matches!(call.outcome, Outcome::Answered)) {
            self.recovered.push(killed.elapsed());
        }
        self.together(PHASE, &both(WRITE, PUT, 9)).await;
        Ok(())
    }

    async fn killed_during_calls(&mut self) -> Result<(), String> {
        const PHASE: &str = "killed during calls";
        let flight = self.planned(&IN_FLIGHT);
        let texts: Vec<_> = flight.iter().map(|(_, text)| text.clone()).collect();
        let mut after = self.planned(&both(ECHO, WRITE, 9));
        after.extend(self.planned(&[WRITE]));
        let Self { host, upstream, .. } = self;
        let kill_and_go_on = async {
            upstream.until_asked(&texts).await;
            upstream.restart().await?;
            Ok::<_, String>(all(host, PHASE, after).await)
        };
        let (during, after) = tokio::join!(all(host, PHASE, flight), kill_and_go_on);
        self.calls.extend(during);
        self.calls.extend(after?);
        Ok(())
    }

    async fn other_tools(&mut self) -> Result<(), String> {
        const PHASE: &str = "restarted with other tools";
        let before = self.host.list_changed();
        self.upstream.restart_with_other_tools().await?;
        self.together(PHASE, &both(ECHO, WRITE, 20)).await;
        self.heard = self.host.hears_of_change(before, CHANGE).await;
        self.new_tools = self.host.tools().await;
        self.together(PHASE, &both(SEARCH, WRITE, 10)).await;
        Ok(())
    }

    async fn frozen_for_a_while(&mut self) -> Result<(), String> {
        let calls = self.planned(&both(ECHO, WRITE, 20));
        let Self { host, upstream, .. } = self;
        upstream.signal(Signal::STOP)?;
        let thaw = async {
            sleep(SHORT_FREEZE).await;
            upstream.signal(Signal::CONT)
        };
        let (calls, thawed) = tokio::join!(all(host, "frozen for 1.5 s", calls), thaw);
        self.calls.extend(calls);
        thawed
    }

    async fn frozen_for_good(&mut self) -> Result<(), String> {
        const PHASE: &str = "frozen for good";
        let flight = self.planned(&both(SLOW_READ, SLOW_WRITE, 4));
        let texts: Vec<_> = flight.iter().map(|(_, text)| text.clone()).collect();
        let during = self.planned(&both(ECHO, WRITE, 16));
        let stuck = self.upstream.ledger()?.live_pids();
        let Self { host, upstream, .. } = self;
        let freeze = async {
            upstream.until_asked(&texts).await;
            upstream.signal(Signal::STOP)?;
            let restart = async {
                sleep(LONG_FREEZE).await;
                // Over stdio it may have been replaced.
                let still = upstream.ledger()?.live_pids().iter().any(|pid| stuck.contains(pid));
                if still { upstream.restart().await } else { Ok(()) }
            };
            let (during, restarted) = tokio::join!(all(host, PHASE, during), restart);
            restarted.map(|()| during)
        };
        let (flight, during) = tokio::join!(all(host, PHASE, flight), freeze);
        self.calls.extend(flight);
        self.calls.extend(during?);
        Ok(())
    }

    async fn down(&mut self) -> Result<(), String> {
        const PHASE: &str = "down for 10 s";
        let (first, second) = (self.planned(&both(ECHO, WRITE, 10)), self.planned(&both(ECHO, WRITE, 10)));
        let Self { host, upstream, .. } = self;
        upstream.go_down().await?;
        let come_back = async {
            sleep(DOWNTIME).await;
            upstream.come_back().await
        };
        let later = async {
            sleep(DOWNTIME / 2).await;
            all(host, PHASE, second).await
        };
        let (first, second, back) = tokio::join!(all(host, PHASE, first), later, come_back);
        self.calls.extend(first);
        self.calls.extend(second);
        back?;
        self.together(PHASE, &both(ECHO, WRITE, 10)).await;
        Ok(())
    }

    /// Each with a text of its own, by which the ledger knows it.
    fn planned(&mut self, tools: &[Tool]) -> Vec<(Tool, String)> {
        tools.iter().map(|&tool| (tool, self.text())).collect()
    }

    fn text(&mut self) -> String {
        self.last += 1;
        format!("call-{}", self.last)
    }

    async fn together(&mut self, phase: &'static str, tools: &[Tool]) {
        let calls = self.planned(tools);
        let calls = all(&self.host, phase, calls).await;
        self.calls.extend(calls);
    }

    async fn one_by_one(&mut self, phase: &'static str, tools: &[Tool]) {
        for planned in self.planned(tools) {
            let call = all(&self.host, phase, vec![planned]).await;
            self.calls.extend(call);
        }
    }
}

async fn all(host: &Host, phase: &'static str, calls: Vec<(Tool, String)>) -> Vec<Call> {
    let calls = calls.into_iter().map(|(tool, text)| async move {
        let started = Instant::now();
        let outcome = outcome(host.call(tool.name, &text).await, &text);
        Call { tool: tool.name, annotated: tool.annotated, text, phase, outcome, took: started.elapsed(), runs: 0 }
    });
    join_all(calls).await
}

fn outcome(answer: Answer, text: &str) -> Outcome {
    match answer {
        Answer::Text { text: said, is_error: false } if said == text => Outcome::Answered,
        Answer::Text { text, is_error } => {
            Outcome::Failed(format!("a wrong answer{}: {text}", if is_error { ", isError" } else { "" }))
        }
        Answer::Error(error) => match error["data"]["outcome"].as_str() {
            Some("unknown") => Outcome::Unknown(error.to_string()),
            Some("not_sent") => Outcome::NotSent(error.to_string()),
            _ => Outcome::Failed(error.to_string()),
        },
    }
}
