//! Normal forms for the model check: machines up to what no later step can tell apart, so that their states are finitely
//! many. Also its choice of the jitter. The rules themselves are checked by the package `mcp-reconnect-checker`.
//!
//! Times are counted from now, and where only an age's reaching some knob matters, it stops there; of several old times
//! whose order matters the order is kept. The newest epoch always has the same number. Counters stop where the step that
//! they stand for is the longest. Failures that no rule tells apart once they are noted are one: whether nobody listened is
//! kept where the knobs pace that differently. A question that is more than a second away comes no nearer: such a session is
//! one whose life is not watched. A session that has said something when it was `stable_after` old is as good as one that
//! served. What is only told (stats, since when) is dropped.

use core::time::Duration;

use crate::backoff::Backoff;
use crate::config::Config;
use crate::failure::FailureClass;
use crate::id::Epoch;
use crate::output::{Admission, Event, Output};
use crate::rng::Rng;
use crate::state::{Liveness, State, Status, Then};
use crate::time::{Timestamp, nanos};

/// A time that is farther away than this comes no nearer.
const FAR: Duration = Duration::from_secs(1);
const NEVER: Duration = Duration::from_secs(365 * 86_400);

/// How far back times matter, and where counters cease to.
#[derive(Clone, Copy, Debug)]
pub struct Frame {
    /// The age from which a session is proven.
    pub stable: Duration,
    /// The age from which a dial holds no other back.
    pub pace: Duration,
    /// The age from which an outage parks.
    pub outage: Duration,
    pub(crate) reach: Duration,
    /// The failures from which the ladder has its longest step.
    pub ladder: u32,
    /// The probes from which the interval between them is the longest.
    pub probes: u8,
    /// The dials for callers of a park from which the interval between them is the longest.
    pub asks: u8,
    /// Listings that took no longer are all one.
    pub listing: Duration,
    /// Whether a dial that nobody listened to is paced in its own way.
    pub quick: bool,
}

impl Frame {
    /// For machines that have these knobs, and are told of no message and no call that is older than `reach`. Several
    /// knobs: any may come, with a [`Retune`](crate::Input::Retune).
    pub fn new(configs: &[Config], reach: Duration) -> Self {
        let longest = |knob: fn(&Config) -> Duration| configs.iter().map(knob).max().unwrap_or_default();
        let steps = |knobs: fn(&Config) -> (Duration, Duration)| {
            let longest = |(first, max)| {
                let ladder = Backoff { first: nanos(first), max: nanos(max) };
                (0..64).find(|failures| ladder.step(*failures) == ladder.max).unwrap_or(64)
            };
            configs.iter().map(|config| longest(knobs(config))).max().unwrap_or(0)
        };
        let lifetime = longest(|config| config.max_lifetime().unwrap_or_default());
        let stable = longest(Config::stable_after);
        let demand = longest(Config::demand_interval);
        let pace = longest(Config::min_dial_interval).max(demand).max(longest(Config::park_probe_max));
        let interval = longest(Config::keepalive);
        let interval = if interval > FAR { Duration::ZERO } else { interval * 5 };
        let between = |least: Duration, most: Duration| !least.is_zero() && least < most;
        Self {
            // A retune counts the age of a session from its beginning.
            stable: stable.max(if configs.len() > 1 { lifetime } else { Duration::ZERO }),
            pace,
            // A quick step is the age that the outage had at the last dial.
            outage: (longest(Config::park_after) + Duration::from_nanos(1)).max(pace + demand),
            reach: interval.max(reach).max(stable),
            ladder: steps(|config| (config.backoff(), config.backoff_max())),
            probes: u8::try_from(steps(|config| (config.park_probe(), config.park_probe_max()))).unwrap_or(u8::MAX),
            asks: u8::try_from(steps(|config| (config.demand_interval(), config.park_probe_max()))).unwrap_or(u8::MAX),
            listing: configs.iter().map(Config::ping_timeout).min().unwrap_or_default() / 2,
            quick: configs.iter().any(|config| {
                between(config.demand_backoff(), config.demand_interval())
                    || between(config.refused_interval(), config.min_dial_interval())
            }),
        }
    }
}

/// Names times and epochs as a normalised machine does.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    frame: &'a Frame,
    now: Timestamp,
    newest: Option<Epoch>,
}

impl<'a> View<'a> {
    /// The time that is now.
    pub const NOW: Timestamp = Timestamp::from_nanos(1 << 62);
    /// The number of the newest epoch.
    pub const NEWEST: u64 = 3;

    /// Names that hold at this time, while `newest` is the epoch of the last dial.
    pub const fn new(frame: &'a Frame, now: Timestamp, newest: Option<Epoch>) -> Self {
        Self { frame, now, newest }
    }

    /// The output with its times counted from now, those that are over being now.
    pub fn output(&self, output: Output) -> Output {
        match output {
            Output::Dial { epoch, timeout, interactive } => {
                Output::Dial { epoch: self.epoch(epoch), timeout, interactive }
            }
            Output::Close { epoch, cause } => Output::Close { epoch: self.epoch(epoch), cause },
            Output::Ping { epoch } => Output::Ping { epoch: self.epoch(epoch) },
            Output::Ask { epoch } => Output::Ask { epoch: self.epoch(epoch) },
            Output::Publish { epoch } => Output::Publish { epoch: self.epoch(epoch) },
            Output::Withdraw => Output::Withdraw,
            Output::Admit(Admission::Go(epoch)) => Output::Admit(Admission::Go(self.epoch(epoch))),
            Output::Admit(Admission::Wait { next }) => {
                Output::Admit(Admission::Wait { next: next.map(|at| self.due(at)) })
            }
            Output::Admit(Admission::Refuse { why, retry_at }) => {
                Output::Admit(Admission::Refuse { why, retry_at: retry_at.map(|at| self.due(at)) })
            }
            Output::Event(Event::StatusChanged { status, failure }) => Output::Event(Event::StatusChanged {
                status: self.status(status),
                failure: failure.map(|class| self.class(class)),
            }),
            Output::Event(Event::BreakerChanged { open_until }) => {
                Output::Event(Event::BreakerChanged { open_until: open_until.map(|at| self.due(at)) })
            }
        }
    }

    /// A time that is over, as far back as `matters`.
    pub fn past(&self, at: Timestamp, matters: Duration) -> Timestamp {
        ago(self.now.since(at).min(matters))
    }

    /// The latest of some times at which something was sent, which is compared with what is reported only.
    pub fn sent(&self, at: Timestamp) -> Timestamp {
        self.past(at, self.frame.reach + Duration::from_nanos(1))
    }

    /// A time that comes, or has come.
    pub fn due(&self, at: Timestamp) -> Timestamp {
        Self::NOW + at.since(self.now)
    }

    /// A time that comes; `None` where it has come.
    pub fn future(&self, at: Option<Timestamp>) -> Option<Timestamp> {
        at.filter(|at| *at > self.now).map(|at| self.due(at))
    }

    /// The epoch's number, counted back from the newest.
    pub fn epoch(&self, epoch: Epoch) -> Epoch {
        let older = self.newest.map_or(0, |newest| newest.get().saturating_sub(epoch.get()));
        Epoch::new(Self::NEWEST.saturating_sub(older)).unwrap_or(Epoch::FIRST)
    }

    /// The status with its epoch's number.
    pub fn status(&self, status: Status) -> Status {
        match status {
            Status::Ready(epoch) => Status::Ready(self.epoch(epoch)),
            Status::Idle | Status::Connecting | Status::TransientFailure | Status::Parked(_) | Status::Shutdown => {
                status
            }
        }
    }

    /// A question's time.
    pub fn question(&self, at: Timestamp) -> Timestamp {
        if at.since(self.now) > FAR { Self::NOW + NEVER } else { self.due(at) }
    }

    /// The longest listing so far.
    pub fn listing(&self, took: Duration) -> Duration {
        if took <= self.frame.listing { Duration::ZERO } else { took }
    }

    /// The beginning of a session; it is kept how much later than that the last message came in, up to the time after
    /// which a session that is disowned is proven.
    pub fn begun(&self, since: Timestamp, heard: Timestamp, to: Timestamp, served: bool) -> Timestamp {
        let begun = self.past(since, self.frame.stable);
        if served { begun } else { begun.min(ago(Self::NOW.since(to) + heard.since(since).min(self.frame.stable))) }
    }

    /// Once it is noted, a failure counts as a rate limit, as refused (where that is paced in its own way), or as any
    /// other.
    pub const fn class(&self, class: FailureClass) -> FailureClass {
        match class {
            FailureClass::RateLimited => class,
            FailureClass::Refused if self.frame.quick => class,
            FailureClass::Refused
            | FailureClass::Transport
            | FailureClass::SessionGone
            | FailureClass::NeedsAuth
            | FailureClass::Permanent
            | FailureClass::StartTimeout
            | FailureClass::Unresponsive
            | FailureClass::Unauthorized
            | FailureClass::Finished => FailureClass::Transport,
        }
    }

    /// The state with its times counted from now, and its epoch's number.
    pub fn state(&self, state: State, served: bool) -> State {
        match state {
            State::Idle | State::Shutdown => state,
            State::Connecting { epoch, deadline, ready } => {
                State::Connecting { epoch: self.epoch(epoch), deadline: self.due(deadline), ready }
            }
            State::Closing { epoch, deadline, then } => {
                let then = match then {
                    Then::Retry { at } => Then::Retry { at: self.due(at) },
                    Then::Park | Then::Rest | Then::Shutdown => then,
                };
                State::Closing { epoch: self.epoch(epoch), deadline: self.due(deadline), then }
            }
            State::TransientFailure { retry_at } => State::TransientFailure { retry_at: self.due(retry_at) },
            State::Parked { probe_at } => State::Parked { probe_at: probe_at.map(|at| self.due(at)) },
            State::Ready { epoch, since, inbound, oldest, liveness, rest_at, renew_at } => {
                let question = match liveness {
                    Liveness::Quiet { .. } => None,
                    Liveness::Verify { resumed, .. } => Some(resumed),
                    Liveness::Asked { since, .. } | Liveness::Listing { since, .. } => Some(since),
                };
                let heard = inbound;
                let [inbound, oldest, question] = self.ranked([Some(inbound), oldest, question]);
                let asked = question.unwrap_or(Self::NOW);
                State::Ready {
                    epoch: self.epoch(epoch),
                    since: self.begun(since, heard, inbound.unwrap_or(Self::NOW), served),
                    inbound: inbound.unwrap_or(Self::NOW),
                    oldest,
                    liveness: match liveness {
                        Liveness::Quiet { ask_at } => Liveness::Quiet { ask_at: self.question(ask_at) },
                        Liveness::Verify { ask_at, .. } => {
                            Liveness::Verify { ask_at: self.due(ask_at), resumed: asked }
                        }
                        Liveness::Asked { deadline, missed, .. } => {
                            Liveness::Asked { since: asked, deadline: self.due(deadline), missed }
                        }
                        Liveness::Listing { deadline, .. } => {
                            Liveness::Listing { since: asked, deadline: self.due(deadline) }
                        }
                    },
                    rest_at: rest_at.map(|at| self.due(at)),
                    renew_at: renew_at.map(|at| self.due(at)),
                }
            }
        }
    }

    /// Times whose order among themselves matters even where all are older than anything that is reported.
    pub fn ranked<const N: usize>(&self, times: [Option<Timestamp>; N]) -> [Option<Timestamp>; N] {
        let age = |at: Timestamp| self.now.since(at);
        let reach = self.frame.reach;
        times.map(|at| {
            let at = at?;
            if at > self.now {
                return Some(self.due(at));
            }
            if age(at) <= reach {
                return Some(ago(age(at)));
            }
            let older_than = |other: &Timestamp| age(*other) > reach && age(*other) < age(at);
            let newer = (0..N).filter(|index| {
                let other = times[*index].filter(older_than);
                other.is_some() && !times[..*index].contains(&other)
            });
            let rank = u32::try_from(newer.count()).unwrap_or(u32::MAX).saturating_add(1);
            Some(ago(reach + Duration::from_nanos(1) * rank))
        })
    }
}

fn ago(age: Duration) -> Timestamp {
    Timestamp::from_nanos(View::NOW.as_nanos() - nanos(age))
}

/// What the jitter draws in the next step: the range is cut in three.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Draw {
    /// Least, and all there is where nothing is left to chance.
    Least,
    /// The middle.
    Middle,
    /// Most.
    Most,
}

impl Draw {
    pub(crate) const fn rng(self) -> Rng {
        let third = match self {
            Self::Least => 0,
            Self::Middle => 1,
            Self::Most => 2,
        };
        let mut seed = 0;
        while Rng::new(seed).up_to(2) != third {
            seed += 1;
        }
        Rng::new(seed)
    }
}
