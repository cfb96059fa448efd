//! What a run was, in figures.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use super::book::{Tool, Violation};
use super::callers::{Heartbeat, Outcomes};
use super::growth::Held;
use super::spawn::Tally;
use super::{MEMORY_SLACK, Server, Soak, behind_proxy};

/// How many violations are printed.
const SHOWN: usize = 50;

/// A time without faults and calls.
#[derive(Clone, Copy, Debug)]
pub struct Rest {
    /// When its figures were complete, since the start.
    pub at: Duration,
    /// How long it took until every server answered.
    pub healed: Duration,
    /// With every session Ready.
    pub ready: Held,
    /// With every connection parked.
    pub parked: Held,
}

/// What happened in a run. Printed, it is the whole account.
#[derive(Clone, Debug)]
pub struct Report {
    soak: Soak,
    faults: Tally,
    outcomes: Outcomes,
    /// By tool: runs, and repeats among them.
    runs: BTreeMap<&'static str, (u64, u64)>,
    calls: usize,
    dials: u64,
    sessions: u64,
    pings: u64,
    breaker_opened: u64,
    spawns: usize,
    heartbeat: Duration,
    lasted: Duration,
    /// The rests, in order.
    pub rests: Vec<Rest>,
    /// What was held before the first server and after the last.
    pub before_and_after: Option<(Held, Held)>,
    /// Everything that must not be and was.
    pub violations: Vec<Violation>,
}

impl Report {
    pub(super) fn new(soak: &Soak) -> Self {
        Self {
            soak: soak.clone(),
            faults: Tally::new(),
            outcomes: Outcomes::default(),
            runs: BTreeMap::new(),
            calls: 0,
            dials: 0,
            sessions: 0,
            pings: 0,
            breaker_opened: 0,
            spawns: 0,
            heartbeat: Duration::ZERO,
            lasted: Duration::ZERO,
            rests: Vec::new(),
            before_and_after: None,
            violations: Vec::new(),
        }
    }

    /// The figures of all servers, before they are shut down.
    pub(super) fn take(&mut self, servers: &[Arc<Server>], heartbeat: &Heartbeat) {
        for server in servers {
            for (fault, count) in server.stage.faults() {
                *self.faults.entry(fault).or_default() += count;
            }
            let outcomes = server.outcomes.lock().unwrap_or_else(PoisonError::into_inner);
            for (outcome, count) in &outcomes.counts {
                *self.outcomes.counts.entry(*outcome).or_default() += count;
            }
            self.outcomes.latest = self.outcomes.latest.max(outcomes.latest);
            let book = server.book();
            self.calls += book.len();
            for tool in Tool::ALL {
                let (runs, repeats) = book.runs(tool);
                let sum = self.runs.entry(tool.name()).or_default();
                *sum = (sum.0 + runs, sum.1 + repeats);
            }
            let stats = server.connection.snapshot().stats;
            self.dials += stats.dials;
            self.sessions += stats.sessions;
            self.pings += stats.pings;
            self.breaker_opened += stats.breaker_opened;
            self.spawns += server.stage.spawns();
        }
        self.heartbeat = heartbeat.worst();
        self.lasted = self.rests.last().map_or(Duration::ZERO, |rest| rest.at);
    }

    /// How many faults there were.
    pub fn faults(&self) -> u64 {
        self.faults.values().sum()
    }

    /// How many calls were made.
    pub fn calls(&self) -> usize {
        self.calls
    }

    /// What grew from rest to rest.
    pub(super) fn growth(&self) -> impl Iterator<Item = String> {
        let (first, last) = (self.rests.first(), self.rests.last());
        let held = self.rests.iter().skip(1).enumerate().filter_map(move |(rest, Rest { parked, .. })| {
            let first = first?.parked;
            parked.outgrows(&first).then(|| format!("at rest {}, parked: {parked}, at first {first}", rest + 1))
        });
        let memory = self.rests.get(1).zip(last).and_then(|(first, last)| {
            let (first, last) = (first.parked.memory, last.parked.memory);
            let most = first + first / 4 + MEMORY_SLACK;
            (last > most).then(|| format!("{last} KiB of memory at the last rest, {first} KiB after the first faults"))
        });
        held.chain(memory).collect::<Vec<_>>().into_iter()
    }
}

impl Report {
    /// A row for each outcome, a column for each tool.
    fn write_outcomes(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut row = |name: &str, of: &dyn Fn(&'static str) -> u64| {
            write!(f, "{name:<25}")?;
            Tool::ALL.iter().try_for_each(|tool| write!(f, "{:>10}", of(tool.name())))?;
            writeln!(f)
        };
        let counts = &self.outcomes.counts;
        row("calls of echo, put, write", &|of| {
            counts.iter().filter(|((tool, _), _)| *tool == of).map(|(_, count)| count).sum()
        })?;
        let outcomes: BTreeSet<_> = counts.keys().map(|(_, outcome)| *outcome).collect();
        for outcome in outcomes {
            row(outcome, &|tool| counts.get(&(tool, outcome)).copied().unwrap_or(0))?;
        }
        let runs = |tool| self.runs.get(tool).copied().unwrap_or_default();
        row("runs by the ledgers", &|tool| runs(tool).0)?;
        row("repeats among them", &|tool| runs(tool).1)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Soak { lasts, seed, servers, callers, .. } = &self.soak;
        let seconds = self.lasted.as_secs_f64();
        writeln!(
            f,
            "soak of {lasts:?}, seed {seed}: {servers} servers over stdio, {servers} over HTTP ({} of them behind a proxy), \
             {callers} callers each",
            (*servers..servers * 2).filter(|number| behind_proxy(*number)).count(),
        )?;
        writeln!(
            f,
            "{seconds:.0} s, {} faults ({:.1} per second), {} calls",
            self.faults(),
            self.faults() as f64 / seconds,
            self.calls
        )?;
        let mut faults: Vec<_> = self.faults.iter().collect();
        faults.sort_by_key(|(name, count)| (std::cmp::Reverse(**count), **name));
        for row in faults.chunks(4) {
            let row: Vec<String> = row.iter().map(|(name, count)| format!("{count:>6} {name:<24}")).collect();
            writeln!(f, "{}", row.concat().trim_end())?;
        }
        self.write_outcomes(f)?;
        writeln!(
            f,
            "told {:.0?} after the deadline at most; a timer was {:.0?} late at most",
            self.outcomes.latest, self.heartbeat
        )?;
        writeln!(
            f,
            "{} dials, {} sessions, {} server processes, {} pings, the breaker opened {} times",
            self.dials, self.sessions, self.spawns, self.pings, self.breaker_opened
        )?;
        for Rest { at, healed, ready, parked } in &self.rests {
            let (at, healed) = (at.as_secs_f64(), healed.as_secs_f64());
            writeln!(f, "rest at {at:>6.1} s, healed in {healed:>4.1} s; ready: {ready}; parked: {parked}")?;
        }
        if let Some((before, after)) = &self.before_and_after {
            writeln!(f, "before: {before}; after: {after}")?;
        }
        for violation in self.violations.iter().take(SHOWN) {
            writeln!(f, "VIOLATION (seed {seed}) {violation}")?;
        }
        match self.violations.len() {
            0 => write!(f, "no call lost, none run twice without permission, one tree per server, no growth"),
            count => write!(f, "{count} violations"),
        }
    }
}
