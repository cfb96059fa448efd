//! Reports of the demo, as things happen: a timeline for people, or JSON lines.

use std::fmt::Display;
use std::io::{self, Write};
use std::time::Duration;

use anstyle::{AnsiColor, Style};
use clap::ValueEnum as _;
use serde::Serialize;
use tokio::time::Instant;

use super::faults::Fault;
use super::tally::Tally;
use super::target::LOST;

const GOOD: Style = AnsiColor::Green.on_default();
const BAD: Style = AnsiColor::Red.on_default();
const ODD: Style = AnsiColor::Yellow.on_default();
const FAULT: Style = AnsiColor::Magenta.on_default();
const PLAIN: Style = Style::new();

/// The knobs that the demo sets low.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Knobs {
    pub(super) stable_after_ms: u64,
    pub(super) keepalive_ms: u64,
    pub(super) ping_timeout_ms: u64,
    pub(super) backoff_ms: u64,
    pub(super) demand_interval_ms: u64,
    pub(super) call_timeout_ms: u64,
}

/// One thing to tell. The names of variants and fields are those of the JSON lines: they are documented in `--help`.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(super) enum Entry<'a> {
    Start {
        server: &'a str,
        /// `None` where nothing is done to the server.
        rounds: Option<u32>,
        faults: &'a [Fault],
        /// The time for which it is called, where that is limited by time.
        seconds: Option<u64>,
        knobs: Knobs,
    },
    Calling {
        tool: &'a str,
        annotated: bool,
        #[serde(skip)]
        heading: String,
    },
    Status {
        status: &'static str,
        epoch: Option<u64>,
        pid: Option<u32>,
        session: Option<&'a str>,
        failure: Option<&'static str>,
        cause: Option<&'a str>,
    },
    Fault {
        round: u32,
        fault: Fault,
        epoch: u64,
        pid: u32,
    },
    Relief {
        round: u32,
        fault: Fault,
        pid: Option<u32>,
    },
    Call {
        tool: &'a str,
        call: &'a str,
        outcome: &'static str,
        epoch: Option<u64>,
        cause: Option<&'a str>,
    },
    Rebuilt(Rebuild),
    Summary(&'a Summary),
}

/// A loss that was survived.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub(super) struct Rebuild {
    /// `None`, like the fault, where the demo has not done it.
    pub(super) round: Option<u32>,
    pub(super) fault: Option<Fault>,
    /// The new session.
    pub(super) epoch: u64,
    /// From the fault, or from when the loss was noticed, to the first answer on the new session.
    pub(super) rebuild_ms: u64,
}

/// The result of the demo.
#[derive(Debug, Serialize)]
pub(super) struct Summary {
    pub(super) ok: bool,
    /// Why not, apart from lost and doubled calls.
    pub(super) error: Option<String>,
    pub(super) lost: u64,
    /// `None` where the server keeps no ledger.
    pub(super) doubled: Option<u64>,
    /// Sessions that became ready.
    pub(super) epochs: u64,
    pub(super) rebuilds: Vec<Rebuild>,
    pub(super) tools: Vec<Tally>,
}

#[derive(Serialize)]
struct Line<'a> {
    elapsed_ms: u64,
    #[serde(flatten)]
    entry: &'a Entry<'a>,
}

/// Writes entries.
pub(super) struct Report<W> {
    out: W,
    json: bool,
    start: Instant,
    /// Shown in each line of the timeline.
    answered: u64,
}

impl<W: Write> Report<W> {
    pub(super) fn new(out: W, json: bool) -> Self {
        Self { out, json, start: Instant::now(), answered: 0 }
    }

    /// Another call was answered.
    pub(super) fn count_answer(&mut self) {
        self.answered += 1;
    }

    pub(super) fn tell(&mut self, entry: &Entry<'_>) -> io::Result<()> {
        if self.json {
            let line = Line { elapsed_ms: millis(self.start.elapsed()), entry };
            writeln!(self.out, "{}", serde_json::to_string(&line)?)?;
        } else {
            self.show(entry)?;
        }
        self.out.flush()
    }

    fn show(&mut self, entry: &Entry<'_>) -> io::Result<()> {
        match entry {
            Entry::Start { server, rounds, faults, seconds, knobs } => {
                let faults: Vec<_> = faults.iter().map(|fault| fault.as_str()).collect();
                let faults = rounds.map(|rounds| format!("{rounds} × {}", faults.join(", ")));
                let seconds = seconds.map(|seconds| format!("called for {:?}", Duration::from_secs(seconds)));
                self.head(server, &faults.or(seconds).unwrap_or_default(), knobs)
            }
            Entry::Calling { heading, .. } => self.line(PLAIN, "calling", None, heading),
            Entry::Status { status: "READY", epoch, pid, session, .. } => {
                let pid = pid.map(|pid| format!("pid {pid}"));
                let session = session.map(|session| format!("session {session}…"));
                let facts: Vec<_> = [pid, session].into_iter().flatten().collect();
                self.line(GOOD, "ready", *epoch, facts.join(", "))
            }
            Entry::Status { status: "TRANSIENT_FAILURE", epoch, failure, cause, .. } => {
                self.line(ODD, "down", *epoch, cause.or(*failure).unwrap_or_default())
            }
            Entry::Status { status: "PARKED", epoch, failure, cause, .. } => {
                self.line(BAD, "parked", *epoch, cause.or(*failure).unwrap_or_default())
            }
            // It follows from the others.
            Entry::Status { .. } => Ok(()),
            Entry::Fault { fault, epoch, pid, .. } => {
                let what = if *fault == Fault::Unavailable { "by" } else { "to" };
                self.line(FAULT, fault.as_str(), Some(*epoch), format!("{what} process group {pid}"))
            }
            Entry::Relief { fault, pid, .. } => {
                let pid = pid.unwrap_or_default();
                let detail = match fault {
                    Fault::Freeze => format!("process group {pid} is continued"),
                    Fault::Unavailable => format!("process group {pid} serves again"),
                    _ => format!("process group {pid} listens on the same port"),
                };
                self.line(FAULT, "relief", None, detail)
            }
            Entry::Call { call, outcome, epoch, cause, .. } => {
                let style = if *outcome == LOST { BAD } else { ODD };
                self.line(style, &outcome.replace('_', " "), *epoch, format!("{call}: {}", cause.unwrap_or_default()))
            }
            Entry::Rebuilt(rebuild) => {
                let from = if rebuild.fault.is_some() { "the fault" } else { "the notice of the loss" };
                let detail = format!("in {}, from {from} to the first answer", Millis(rebuild.rebuild_ms));
                self.line(GOOD, "rebuilt", Some(rebuild.epoch), detail)
            }
            Entry::Summary(summary) => self.summary(summary),
        }
    }

    fn head(&mut self, server: &str, what: &str, knobs: &Knobs) -> io::Result<()> {
        writeln!(self.out, "{server}; {what}")?;
        writeln!(
            self.out,
            "knobs set low to keep this short: stable_after {}, keepalive {}, ping_timeout {}, backoff {}, \
             demand_interval {}; calls may take {}",
            Millis(knobs.stable_after_ms),
            Millis(knobs.keepalive_ms),
            Millis(knobs.ping_timeout_ms),
            Millis(knobs.backoff_ms),
            Millis(knobs.demand_interval_ms),
            Millis(knobs.call_timeout_ms),
        )?;
        writeln!(self.out)?;
        writeln!(self.out, "{:>8}  {:<17}  {:>5}  {:>8}", "elapsed", "event", "epoch", "answered")
    }

    fn line(&mut self, style: Style, event: &str, epoch: Option<u64>, detail: impl Display) -> io::Result<()> {
        let elapsed = self.start.elapsed().as_secs_f64();
        let epoch = epoch.map_or_else(String::new, |epoch| epoch.to_string());
        let answered = self.answered;
        writeln!(self.out, "{elapsed:>6.2} s  {style}{event:<17}{style:#}  {epoch:>5}  {answered:>8}  {detail}")
    }

    fn summary(&mut self, summary: &Summary) -> io::Result<()> {
        writeln!(self.out)?;
        for fault in Fault::value_variants().iter().copied().map(Some).chain([None]) {
            let times = summary.rebuilds.iter().filter(|rebuild| rebuild.fault == fault);
            let times: Vec<_> = times.map(|rebuild| Millis(rebuild.rebuild_ms).to_string()).collect();
            let what = fault.map_or("a loss", Fault::as_str);
            if !times.is_empty() {
                writeln!(self.out, "rebuilt after {:<11} {}", format!("{what}:"), times.join(", "))?;
            }
        }
        for tally in &summary.tools {
            writeln!(self.out, "{}", tally.heading())?;
            self.counts(tally)?;
        }
        let (style, verdict) = match (summary.ok, &summary.error) {
            (true, _) => (GOOD, "no call was lost, and none ran twice that may not".to_owned()),
            (false, None) => (BAD, format!("{} lost, {} doubled", summary.lost, summary.doubled.unwrap_or_default())),
            (false, Some(error)) => (BAD, error.clone()),
        };
        let verdict = if summary.doubled.is_none() && summary.ok { "no call was lost".to_owned() } else { verdict };
        writeln!(self.out, "{style}{verdict}{style:#}")
    }

    fn counts(&mut self, tally: &Tally) -> io::Result<()> {
        let mut row = |style: Style, what: &str, count: u64, note: &str| {
            writeln!(self.out, "  {what:<17} {style}{count:>6}{style:#}{note}")
        };
        let bad = |count| if count > 0 { BAD } else { GOOD };
        row(PLAIN, "calls", tally.calls, "")?;
        row(PLAIN, "answered", tally.answered, "")?;
        if tally.server_error > 0 {
            row(ODD, "server error", tally.server_error, "  answered so by the server")?;
        }
        row(PLAIN, "outcome unknown", tally.outcome_unknown, "  in flight when the session died")?;
        row(PLAIN, "deadline exceeded", tally.deadline_exceeded, "  no answer in time; may have run")?;
        row(PLAIN, "not sent", tally.not_sent, "  no session in time")?;
        row(bad(tally.lost), "lost", tally.lost, "")?;
        let Some(ran) = tally.ran else { return Ok(()) };
        let uncertain = tally.outcome_unknown + tally.deadline_exceeded;
        let note = format!("  by the server's ledger; of the {uncertain} uncertain calls {} ran", ran.uncertain_ran);
        row(PLAIN, "runs", ran.runs, &note)?;
        if tally.annotated {
            row(PLAIN, "repeated", ran.repeats, "  sent again after a death, as its annotation allows")
        } else {
            row(bad(ran.repeats), "doubled", ran.repeats, "")
        }
    }
}

/// Milliseconds as people read them.
struct Millis(u64);

impl Display for Millis {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", Duration::from_millis(self.0))
    }
}

/// A duration as JSON lines have it.
pub(super) fn millis(duration: Duration) -> u64 {
    duration.as_millis().try_into().unwrap_or(u64::MAX)
}
