use std::time::Duration;

use mcp_reconnect_checker::{Checker, Rules};
use mcp_reconnect_core::{Config, ConfigBuilder, Epoch, State, Status};

use super::super::dice::Dice;
use super::super::entrance::Pass;
use super::super::{SECOND, at};
use super::faults::Mood;

/// One connection and its server.
pub(super) struct Tenant {
    pub(super) checker: Checker,
    /// The look at the machine that counts: the earliest on the agenda.
    pub(super) looks_at: Option<u64>,
    pub(super) pass: Option<Pass>,
    pub(super) mood: Mood,
    /// The live session hears nothing any more.
    pub(super) deaf: bool,
    pub(super) knows_pings: bool,
    /// If not, whether it answers them by saying so.
    pub(super) says_so: bool,
    pub(super) calls_every: u64,
    /// Of the live session: the last message, the open call, whether one was answered since the last sample.
    pub(super) inbound: u64,
    pub(super) call: Option<u64>,
    pub(super) answered: bool,
    /// When the last thing was sent that was answered since the last sample.
    pub(super) answered_to: Option<u64>,
}

impl Tenant {
    pub(super) fn new(dice: &mut Dice) -> Self {
        Self {
            checker: Checker::new(knobs(dice), dice.roll(), at(0), Rules::ALL),
            looks_at: None,
            pass: None,
            mood: Mood::Well,
            deaf: false,
            knows_pings: !dice.once_in(8),
            says_so: dice.once_in(2),
            calls_every: dice.one([2, 5, 20, 120]) * SECOND,
            inbound: 0,
            call: None,
            answered: false,
            answered_to: None,
        }
    }

    pub(super) fn status(&self) -> Status {
        self.checker.machine().snapshot().status
    }

    pub(super) fn is_dialling(&self, epoch: Epoch) -> bool {
        matches!(self.checker.machine().snapshot().state, State::Connecting { epoch: live, .. } if live == epoch)
    }

    /// The live session.
    pub(super) fn session(&self) -> Option<Epoch> {
        match self.checker.machine().snapshot().state {
            State::Ready { epoch, .. } => Some(epoch),
            State::Idle
            | State::Connecting { .. }
            | State::Closing { .. }
            | State::TransientFailure { .. }
            | State::Parked { .. }
            | State::Shutdown => None,
        }
    }

    /// A session has begun.
    pub(super) fn began(&mut self, now: u64) {
        self.deaf = matches!(self.mood, Mood::Deaf | Mood::Silent);
        self.inbound = now;
        self.call = None;
        self.answered = false;
        self.answered_to = None;
    }
}

/// The knobs of a server: as they come, as for HTTP, or others.
pub(super) fn knobs(dice: &mut Dice) -> Config {
    let secs = Duration::from_secs;
    let millis = Duration::from_millis;
    let http = Config::builder().redial_spread(millis(250));
    let builder: ConfigBuilder = match dice.up_to(7) {
        0 | 1 => Config::builder(),
        2 | 3 => http,
        4 => http.keepalive(secs(15)).ping_timeout(secs(5)).ping_misses(3),
        5 => http.idle_timeout(Some(secs(90))).max_lifetime(Some(secs(3_600))),
        6 => Config::builder().max_lifetime(Some(secs(600))).breaker_strikes(2).stable_after(secs(1)),
        _ => {
            let fast = Config::builder().backoff(millis(200)).min_dial_interval(millis(100)).demand_interval(secs(1));
            fast.park_after(secs(20)).park_probe(secs(10)).connect_timeout(secs(5)).connect_timeout_max(secs(60))
        }
    };
    builder.build().unwrap_or_default()
}
