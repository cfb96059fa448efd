//! Which machines are looked at: small knobs, and the inputs that concern what these knobs are about.
//!
//! One machine with every knob and every input has some billions of states; what the rules say falls into parts that do not
//! meet (how life is watched, and what a failure leads to, say). Each slice is one part, whole.

use std::time::Duration;

use mcp_reconnect_checker::{Checker, Frame};
use mcp_reconnect_core::{
    Config, ConfigBuilder, Failure, FailureClass, ReadyFlag, ReadyFlags, Restart, Timestamp, WakeCause,
};

use super::action::What::{
    Answer, Connect, Gone, Listed, Lost, NoReply, Park, PingUnsupported, Pong, Reached, Renew, Rest, Resumed, Retune,
    ServerChanged, Shutdown, Silence, Tick, Traffic, Wake,
};
use super::action::Whose::{self, Never, Newest, Older};
use super::action::{UNIT, What};
use super::space::RULES;

/// Knobs, and the inputs that may come.
#[derive(Clone, Debug)]
pub struct Slice {
    /// Its name.
    pub name: &'static str,
    /// The knobs to begin with, and those that a retune may bring.
    pub configs: Vec<Config>,
    /// The inputs that may come at any time.
    pub alphabet: Vec<What>,
    /// Whether the life of its sessions is watched: else the server knows no pings, and is asked to list in a month.
    pub pings: bool,
    /// How old a message or a call that is reported may be.
    pub reach: u64,
}

impl Slice {
    /// The machine to begin with, under the rules.
    pub fn start(&self) -> Checker {
        let config = self.configs.first().copied().unwrap_or_default();
        let checker = Checker::new(config, 0, Timestamp::ZERO + UNIT * 100, RULES);
        if self.pings { checker } else { checker.without_pings() }
    }

    /// Servers that lose one session, for callers to wait for the next.
    pub(super) fn callers() -> Self {
        let config = unwatched(|knobs| knobs.connect_timeout_max(units(2)));
        Self { name: "callers", configs: vec![config], alphabet: Vec::new(), pings: false, reach: 0 }
    }

    /// The machines of any knobs, with every input: to walk in, for there are too many of them to look at.
    pub fn random(seed: u64) -> Self {
        let mut random = super::twin::Random(seed);
        let mut upto = |most: usize| units(1 + u64::try_from(random.below(most)).unwrap_or(0));
        let restart = [None, Some(Restart::Never), Some(Restart::Always)][usize::try_from(seed % 3).unwrap_or(0)];
        let mut config = |retuned: bool| {
            knobs(|knobs| {
                let (start, pace, backoff, probe) = (upto(5), upto(3), upto(6), upto(6));
                let knobs = knobs.connect_timeout(start).connect_timeout_max(start + upto(9));
                let knobs = knobs.min_dial_interval(pace).demand_interval(pace + upto(9)).backoff(pace * 2 + backoff);
                let knobs = knobs.backoff_max(pace * 2 + backoff * 4).park_probe(probe).park_probe_max(probe * 5);
                let knobs = knobs.stable_after(upto(9)).keepalive(upto(9)).ping_timeout(upto(4)).park_after(upto(20));
                let knobs = knobs.breaker_open(upto(9)).close_timeout(upto(5)).retry_after_max(upto(9));
                let knobs = knobs.demand_backoff(upto(4)).refused_interval(upto(2)).restart(restart);
                let knobs = knobs.redial_spread(upto(3)).idle_timeout(retuned.then(|| upto(9)));
                knobs.max_lifetime((!retuned).then(|| upto(20)))
            })
        };
        let configs = vec![config(false), config(true)];
        let mut alphabet: Vec<What> = slices().into_iter().flat_map(|slice| slice.alphabet).collect();
        alphabet.retain(|what| !matches!(what, Retune(_) | Park | Shutdown));
        alphabet.extend(configs.iter().map(|config| Retune(*config)));
        alphabet.extend([Park, Rest, Rest, Rest, Rest, traffic(Newest, 6, false, Some(9)), NoReply(Newest, 9)]);
        Self { name: "random", configs, alphabet, pings: true, reach: 9 }
    }

    /// How its machines are normalised.
    pub fn frame(&self) -> Frame {
        Frame::new(&self.configs, UNIT * u32::try_from(self.reach).unwrap_or(u32::MAX))
    }
}

/// Small knobs: a unit is a nanosecond, so that no smaller part of it exists. A change of them is one slice's.
fn knobs(change: impl FnOnce(ConfigBuilder) -> ConfigBuilder) -> Config {
    let small = Config::builder()
        .connect_timeout(units(1))
        .connect_timeout_max(units(1))
        .backoff(units(2))
        .backoff_max(units(2))
        .min_dial_interval(units(1))
        .demand_interval(units(1))
        .stable_after(units(2))
        .keepalive(units(2))
        .ping_timeout(units(2))
        .ping_misses(2)
        .breaker_strikes(2)
        .breaker_open(units(2))
        .close_timeout(units(1))
        .park_after(units(2))
        .park_probe(units(2))
        .park_probe_max(units(2))
        .retry_after_max(units(3));
    change(small).build().unwrap_or_default()
}

/// Small knobs, and a keepalive that never comes.
fn unwatched(change: impl FnOnce(ConfigBuilder) -> ConfigBuilder) -> Config {
    knobs(|knobs| change(knobs.keepalive(Duration::from_secs(86_400))))
}

const fn units(units: u64) -> Duration {
    Duration::from_nanos(units)
}

/// Longer ago than anything: no message has come in that was not known.
const SILENT: u64 = u64::MAX;

const fn failure(class: FailureClass) -> Failure {
    Failure::new(class)
}

const TRANSPORT: Failure = failure(FailureClass::Transport);

fn hint(class: FailureClass, wait: u64) -> Failure {
    Failure { class, retry_after: Some(units(wait)) }
}

/// Reports of epochs that are not the live one, which must do nothing.
fn stale() -> Vec<What> {
    vec![
        Lost(Older, TRANSPORT),
        Gone(Older, TRANSPORT),
        Reached(Older, ReadyFlag::Catalogue),
        traffic(Older, 0, true, None),
        NoReply(Older, 0),
        PingUnsupported(Older),
        Pong(Older),
        Listed(Older, 9),
        Renew(Older),
        ServerChanged(Older),
        Silence(Older, 0),
        Lost(Never, TRANSPORT),
        Gone(Never, TRANSPORT),
    ]
}

const fn traffic(whose: Whose, heard: u64, answered: bool, open: Option<u64>) -> What {
    Traffic { whose, heard, answered, open }
}

/// All of them, from the quickest to the slowest.
pub fn slices() -> Vec<Slice> {
    vec![flags(), breaker(), proof(), outage(), waits(), hints(), life(), rest(), retune()]
}

/// Starts: every order of the flags, the backstop, start timeouts that double the deadline, and the end at every point.
fn flags() -> Slice {
    let config =
        unwatched(|knobs| knobs.connect_timeout(units(1)).connect_timeout_max(units(3)).close_timeout(units(2)));
    let mut alphabet = vec![Tick, Connect(0), Wake(WakeCause::Operator), Park, Shutdown, Resumed(false)];
    alphabet.extend(ReadyFlags::ALL.map(|flag| Reached(Newest, flag)));
    alphabet.extend([Lost(Newest, TRANSPORT), Gone(Newest, TRANSPORT)]);
    alphabet.extend(stale());
    Slice { name: "flags", configs: vec![config], alphabet, pings: false, reach: 0 }
}

/// The breaker of a session whose life is not watched, through losses and parks.
fn breaker() -> Slice {
    let config = unwatched(|knobs| knobs.breaker_open(units(3)).stable_after(units(1)));
    let mut alphabet = vec![
        Tick,
        Connect(0),
        Connect(2),
        Wake(WakeCause::Config),
        Park,
        Shutdown,
        Resumed(false),
        Rest,
        Lost(Newest, TRANSPORT),
        Gone(Newest, TRANSPORT),
        traffic(Newest, 0, false, None),
        traffic(Newest, 0, true, None),
        traffic(Newest, 1, true, Some(1)),
        NoReply(Newest, 0),
        NoReply(Newest, 1),
        Answer(Newest, 0),
        Answer(Newest, 1),
        Silence(Newest, 0),
        PingUnsupported(Newest),
    ];
    alphabet.extend(stale());
    Slice { name: "breaker", configs: vec![config], alphabet, pings: false, reach: 1 }
}

/// What a session has proven when the server disowns it.
fn proof() -> Slice {
    let config = unwatched(|knobs| knobs.park_after(units(6)).backoff_max(units(4)));
    let disowned = failure(FailureClass::SessionGone);
    let alphabet = vec![
        Tick,
        Connect(0),
        Rest,
        traffic(Newest, 0, false, None),
        traffic(Newest, 1, false, None),
        traffic(Newest, 0, true, None),
        Lost(Newest, disowned),
        Gone(Newest, disowned),
        Gone(Newest, TRANSPORT),
        Park,
    ];
    Slice { name: "proof", configs: vec![config], alphabet, pings: false, reach: 1 }
}

/// What failures of every class lead to: the ladder, the outage clock, parks, probes and wakes.
fn outage() -> Slice {
    let config = unwatched(|knobs| {
        let knobs = knobs.backoff_max(units(4)).park_after(units(4)).park_probe(units(3)).park_probe_max(units(4));
        knobs.demand_interval(units(2))
    });
    let mut alphabet = vec![
        Tick,
        Connect(0),
        Wake(WakeCause::Operator),
        Wake(WakeCause::Config),
        Wake(WakeCause::Credentials),
        Park,
        Shutdown,
        Resumed(false),
        Reached(Newest, ReadyFlag::Started),
        Rest,
    ];
    for class in [
        FailureClass::Transport,
        FailureClass::SessionGone,
        FailureClass::RateLimited,
        FailureClass::NeedsAuth,
        FailureClass::Permanent,
        FailureClass::StartTimeout,
        FailureClass::Unresponsive,
        FailureClass::Refused,
        FailureClass::Unauthorized,
        FailureClass::Finished,
    ] {
        alphabet.extend([Lost(Newest, failure(class)), Gone(Newest, failure(class))]);
    }
    Slice { name: "outage", configs: vec![config], alphabet, pings: false, reach: 0 }
}

/// Callers who wait: demand cuts the ladder, and brings dials forward.
fn waits() -> Slice {
    let config = unwatched(|knobs| {
        let knobs = knobs.backoff(units(4)).backoff_max(units(4)).park_after(units(6)).park_probe(units(4));
        let knobs = knobs.demand_backoff(units(1)).refused_interval(units(1));
        knobs.park_probe_max(units(4)).demand_interval(units(2)).min_dial_interval(units(2)).redial_spread(units(1))
    });
    let alphabet = vec![
        Tick,
        Connect(0),
        Connect(2),
        Connect(5),
        Wake(WakeCause::Config),
        Park,
        Resumed(false),
        Rest,
        Lost(Newest, TRANSPORT),
        Gone(Newest, TRANSPORT),
        Gone(Newest, failure(FailureClass::Refused)),
        Gone(Newest, failure(FailureClass::SessionGone)),
        Gone(Newest, failure(FailureClass::RateLimited)),
        Gone(Newest, failure(FailureClass::Permanent)),
    ];
    Slice { name: "waits", configs: vec![config], alphabet, pings: false, reach: 0 }
}

/// What the server asks for with `Retry-After`.
fn hints() -> Slice {
    let config = unwatched(|knobs| knobs.park_after(units(3)));
    let alphabet = vec![
        Tick,
        Connect(0),
        Connect(2),
        Wake(WakeCause::Operator),
        Park,
        Resumed(false),
        Rest,
        Lost(Newest, hint(FailureClass::Transport, 2)),
        Gone(Newest, TRANSPORT),
        Gone(Newest, hint(FailureClass::Transport, 9)),
        Gone(Newest, failure(FailureClass::RateLimited)),
        Gone(Newest, hint(FailureClass::RateLimited, 2)),
        Gone(Newest, hint(FailureClass::Permanent, 2)),
        Gone(Newest, hint(FailureClass::NeedsAuth, 2)),
    ];
    Slice { name: "hints", configs: vec![config], alphabet, pings: false, reach: 0 }
}

/// How the life of a session is watched: questions, verdicts, open calls, suspends, and what is learnt about pings.
fn life() -> Slice {
    let config = knobs(|knobs| knobs.keepalive(units(1)).redial_spread(units(1)));
    let mut alphabet = vec![
        Tick,
        Connect(0),
        Shutdown,
        Resumed(false),
        Resumed(true),
        Reached(Newest, ReadyFlag::Started),
        Rest,
        Gone(Newest, TRANSPORT),
        Lost(Newest, failure(FailureClass::Unresponsive)),
        traffic(Newest, 0, false, None),
        traffic(Newest, 1, false, None),
        traffic(Newest, SILENT, false, Some(0)),
        traffic(Newest, SILENT, false, Some(1)),
        traffic(Newest, SILENT, false, Some(3)),
        traffic(Newest, 0, true, Some(3)),
        PingUnsupported(Newest),
        Pong(Newest),
        ServerChanged(Newest),
        Silence(Newest, 0),
        Silence(Newest, 1),
        Silence(Newest, 3),
    ];
    alphabet.extend([traffic(Older, 0, true, None), NoReply(Older, 0), PingUnsupported(Never)]);
    Slice { name: "life", configs: vec![config], alphabet, pings: true, reach: 3 }
}

/// Rest and renewal, and what puts them off.
fn rest() -> Slice {
    let config = knobs(|knobs| {
        knobs
            .keepalive(units(1))
            .idle_timeout(Some(units(2)))
            .max_lifetime(Some(units(3)))
            .ping_misses(1)
            .redial_spread(units(1))
    });
    let alphabet = vec![
        Tick,
        Connect(0),
        Wake(WakeCause::Config),
        Park,
        Shutdown,
        Resumed(false),
        Reached(Newest, ReadyFlag::Started),
        Rest,
        Lost(Newest, TRANSPORT),
        Gone(Newest, failure(FailureClass::Finished)),
        Renew(Newest),
        Gone(Older, TRANSPORT),
        traffic(Newest, 0, true, None),
        traffic(Newest, SILENT, false, Some(1)),
        NoReply(Older, 1),
        Silence(Older, 0),
        Pong(Older),
        ServerChanged(Older),
        PingUnsupported(Newest),
    ];
    Slice { name: "rest", configs: vec![config], alphabet, pings: true, reach: 1 }
}

/// Other knobs on the fly, and a listing that takes long.
fn retune() -> Slice {
    let config =
        knobs(|knobs| knobs.idle_timeout(Some(units(2))).keepalive(units(1)).ping_timeout(units(1)).ping_misses(1));
    let other = knobs(|knobs| {
        let knobs = knobs.max_lifetime(Some(units(2))).min_dial_interval(units(2)).ping_timeout(units(1));
        let knobs = knobs.redial_spread(units(1));
        knobs.backoff(units(4)).backoff_max(units(4)).demand_interval(units(2)).connect_timeout_max(units(2))
    });
    let alphabet = vec![
        Tick,
        Connect(0),
        Park,
        Shutdown,
        Resumed(false),
        Retune(config),
        Retune(other),
        Reached(Newest, ReadyFlag::Started),
        Rest,
        Gone(Newest, TRANSPORT),
        traffic(Newest, 0, false, None),
        Listed(Newest, 1),
    ];
    Slice { name: "retune", configs: vec![config, other], alphabet, pings: true, reach: 0 }
}
