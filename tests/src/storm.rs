//! Many connections in simulated time: the real machines and the real dial gate, a server that is not there for a
//! while, and a heap of events instead of a clock.
//!
//! - [`Storm`]: all connections lose their server at once; how soon are they back, and what does the server see of it?
//!   Beside them the delay rules of others ([`Rule`]) under the same server.
//! - [`Week`]: random faults over many servers, every step of every machine under the checker of the rules.
//!
//! Everything is drawn from a seed and counted in whole nanoseconds: the same run gives the same figures, everywhere.

mod agenda;
pub(crate) mod dice;
mod entrance;
mod figures;
mod herd;
mod others;
mod server;
mod table;
mod week;

use std::time::Duration;

use mcp_reconnect_core::{Config, Timestamp};

pub use figures::{Bar, Figures};
pub use others::Rule;
pub use server::{Admits, Dead};
pub use table::table;
pub use week::{Seen, Week};

const MILLI: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MILLI;

/// How long a good handshake takes, and a refusal.
const HANDSHAKE: u64 = 50 * MILLI;
const REFUSAL: u64 = 5 * MILLI;
/// How long a caller waits for a session: the runtime's `max_wait`.
const PATIENCE: u64 = 15 * SECOND;
/// When the server is lost. Every session is proven by then.
const LOSS: u64 = 20 * SECOND;

const fn at(nanos: u64) -> Timestamp {
    Timestamp::from_nanos(nanos)
}

/// Connections that lose their one server at the same time.
#[derive(Clone, Copy, Debug)]
pub struct Storm {
    /// How many, over all processes.
    pub connections: u32,
    /// How many processes share them evenly; each has a gate of its own.
    pub processes: u32,
    /// Slots of each gate.
    pub max_dials: u8,
    /// What the server does while it is dead.
    pub dead: Dead,
    /// For how long it is dead.
    pub dead_for: Duration,
    /// How it admits connects afterwards; others are refused.
    pub admits: Admits,
    /// How long after the loss the run ends, whoever is back.
    pub ends_after: Duration,
    /// For all jitter.
    pub seed: u64,
}

/// What stands in front of the dials of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Gating {
    /// The gate, as the runtime uses it.
    Gate,
    /// A gate whose slots are given back by dials that fail, too.
    FreedByFailure,
    /// Nothing.
    None,
}

/// Whether somebody waits for a session of each connection, from the loss on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Callers {
    /// Nobody does.
    None,
    /// Somebody always does, one caller after the other, each for 15 s (the runtime's `max_wait`).
    Waiting,
}

impl Storm {
    /// 10,000 connections of one process, and a server that is dead for 30 s and admits 500 connects per second then.
    pub const fn one_process(dead: Dead) -> Self {
        Self {
            connections: 10_000,
            processes: 1,
            max_dials: 32,
            dead,
            dead_for: Duration::from_secs(30),
            admits: Admits::evenly(500),
            ends_after: Duration::from_secs(330),
            seed: 1,
        }
    }

    /// Those of 100 processes, and a server that admits 50,000 per second.
    pub const fn hundred_processes(dead: Dead) -> Self {
        Self { connections: 1_000_000, processes: 100, admits: Admits::evenly(50_000), ..Self::one_process(dead) }
    }

    /// A server that is dead for more than a day, seen by a hundred connections that know nothing of each other; the run
    /// is a day.
    pub const fn dead_day(dead: Dead) -> Self {
        let day = Duration::from_secs(24 * 3_600);
        Self { connections: 100, processes: 100, dead_for: Duration::MAX, ends_after: day, ..Self::one_process(dead) }
    }

    /// The knobs of a connection to a server that many clients share.
    ///
    /// # Panics
    ///
    /// Never: the knobs are valid.
    pub fn config() -> Config {
        Config::builder().redial_spread(Duration::from_millis(250)).build().expect("the knobs are valid")
    }

    /// Runs real machines through it.
    pub fn run(&self, gating: Gating, callers: Callers) -> Figures {
        herd::run(self, Self::config(), gating, callers)
    }

    /// Runs connections through it that follow another rule, without a gate.
    pub fn run_by(&self, rule: Rule) -> Figures {
        others::run(self, rule)
    }

    /// How long an ideal crowd would take, from the server's return to the last connection.
    pub fn ideal(&self) -> Duration {
        Duration::from_nanos(u64::from(self.connections) * SECOND / u64::from(self.admits.rate()))
    }

    fn back(&self) -> u64 {
        LOSS.saturating_add(nanos(self.dead_for))
    }

    fn end(&self) -> u64 {
        LOSS.saturating_add(nanos(self.ends_after))
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
