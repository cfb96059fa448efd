use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use super::{MILLI, Storm};

/// What a storm came to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Figures {
    /// The most dials within any 100 ms, over all processes.
    pub peak_dials: u32,
    /// The same without the first dial of each connection: what the waits after failures make of a crowd.
    pub peak_retries: u32,
    /// Dials of each connection since the loss.
    pub dials: Vec<u32>,
    /// From the server's return to a session, of the connections that got one, sorted.
    pub recoveries: Vec<Duration>,
    /// The most slots in use at a time in any process; `None` where there is no gate to count for.
    pub slots: Option<u32>,
    /// Connections that were parked at some time.
    pub parked: Option<u32>,
}

/// What is asked of a storm.
#[derive(Clone, Copy, Debug)]
pub struct Bar {
    /// The 99th percentile of recovery is at most this.
    pub p99: Duration,
    /// At most so many slots are in use.
    pub slots: u32,
    /// No connection dials more often.
    pub dials: u32,
}

impl Figures {
    /// The recovery that so many percent of all connections do not exceed; `None`: it was not seen before the end.
    pub fn percentile(&self, percent: usize) -> Option<Duration> {
        let rank = (self.dials.len() * percent).div_ceil(100);
        self.recoveries.get(rank.checked_sub(1)?).copied()
    }

    /// Dials of the connection that dialled most.
    pub fn most_dials(&self) -> u32 {
        self.dials.iter().copied().max().unwrap_or(0)
    }

    /// Dials of all connections.
    pub fn all_dials(&self) -> u64 {
        self.dials.iter().map(|dials| u64::from(*dials)).sum()
    }

    /// # Errors
    ///
    /// Each figure that misses the bar, in a sentence.
    pub fn meet(&self, bar: &Bar) -> Result<(), String> {
        let p99 = self.percentile(99);
        let slots = self.slots.unwrap_or(u32::MAX);
        let misses = [
            p99.is_none_or(|p99| p99 > bar.p99).then(|| format!("p99 {p99:?}, not {:?}", bar.p99)),
            (slots > bar.slots).then(|| format!("{slots} slots in use, not {}", bar.slots)),
            (self.most_dials() > bar.dials).then(|| format!("{} dials, not {}", self.most_dials(), bar.dials)),
        ];
        let misses: Vec<String> = misses.into_iter().flatten().collect();
        if misses.is_empty() { Ok(()) } else { Err(misses.join("; ")) }
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = |figure: Option<Duration>| figure.map_or_else(|| "never".to_owned(), tenths);
        let count = |figure: Option<u32>| figure.map_or_else(|| "-".to_owned(), |count| count.to_string());
        let connections = self.dials.len() as u64;
        let hundredths = self.all_dials() * 100 / connections.max(1);
        write!(
            f,
            "{:>11} {:>7} {:>7} {:>7} {:>7} {:>7} {:>4}.{:02} {:>5} {:>7} {:>7}",
            self.peak_dials,
            self.peak_retries,
            seconds(self.percentile(50)),
            seconds(self.percentile(99)),
            seconds(self.percentile(100)),
            connections - self.recoveries.len() as u64,
            hundredths / 100,
            hundredths % 100,
            self.most_dials(),
            count(self.slots),
            count(self.parked),
        )
    }
}

fn tenths(duration: Duration) -> String {
    let tenths = duration.as_millis().div_ceil(100);
    format!("{}.{}", tenths / 10, tenths % 10)
}

/// The most within any 100 ms.
#[derive(Default)]
struct Peak {
    recent: VecDeque<u64>,
    most: u32,
}

impl Peak {
    fn add(&mut self, now: u64) {
        while self.recent.front().is_some_and(|at| at + 100 * MILLI <= now) {
            self.recent.pop_front();
        }
        self.recent.push_back(now);
        self.most = self.most.max(u32::try_from(self.recent.len()).unwrap_or(u32::MAX));
    }
}

/// Counts while a storm runs.
pub(super) struct Tally {
    back: u64,
    dialling: Peak,
    retrying: Peak,
    dials: Vec<u32>,
    recoveries: Vec<Duration>,
}

impl Tally {
    pub(super) fn of(storm: &Storm) -> Self {
        Self {
            back: storm.back(),
            dialling: Peak::default(),
            retrying: Peak::default(),
            dials: vec![0; storm.connections as usize],
            recoveries: Vec::new(),
        }
    }

    pub(super) fn dialled(&mut self, who: u32, now: u64) {
        let dials = &mut self.dials[who as usize];
        *dials += 1;
        self.dialling.add(now);
        if *dials > 1 {
            self.retrying.add(now);
        }
    }

    pub(super) fn recovered(&mut self, at: u64) {
        self.recoveries.push(Duration::from_nanos(at.saturating_sub(self.back)));
    }

    pub(super) fn is_over(&self) -> bool {
        self.recoveries.len() == self.dials.len()
    }

    pub(super) fn figures(mut self, slots: Option<u32>, parked: Option<u32>) -> Figures {
        self.recoveries.sort_unstable();
        Figures {
            peak_dials: self.dialling.most,
            peak_retries: self.retrying.most,
            dials: self.dials,
            recoveries: self.recoveries,
            slots,
            parked,
        }
    }
}
