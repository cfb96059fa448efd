//! Machines up to what no later step can tell apart, so that the states of a model check are finitely many.
//!
//! Times are counted from now, and where only an age's reaching some knob matters, it stops there; of several old times
//! whose order matters the order is kept. The newest epoch always has the same number. Counters stop where the step that
//! they stand for is the longest. Failures that no rule tells apart once they are noted are one: whether nobody listened is
//! kept where the knobs pace that differently. A question that is more than a second away comes no nearer: such a session is
//! one whose life is not watched. A session that has said something when it was `stable_after` old is as good as one that
//! served. What is only told (stats, since when) is dropped.

use core::hash::{Hash, Hasher};
use core::time::Duration;

use crate::backoff::Backoff;
use crate::config::{Config, ConfigBuilder};
use crate::failure::FailureClass;
use crate::id::Epoch;
use crate::output::{Admission, Event, Output};
use crate::rng::Rng;
use crate::state::{Liveness, PingSupport, State, Status, Then};
use crate::time::{Timestamp, nanos};

use super::checker::Checker;
use super::model::{Model, Pace, Phase};

/// The number of the newest epoch, and the time that is now.
const NEWEST: u64 = 3;
const NOW: Timestamp = Timestamp::from_nanos(1 << 62);
/// What is farther away than this comes no nearer.
const FAR: Duration = Duration::from_secs(1);
const NEVER: Duration = Duration::from_secs(365 * 86_400);

/// How far back times matter, and where counters cease to.
#[derive(Clone, Copy, Debug)]
pub struct Frame {
    pub(crate) stable: Duration,
    pub(crate) pace: Duration,
    pub(crate) outage: Duration,
    pub(crate) reach: Duration,
    pub(crate) ladder: u32,
    pub(crate) probes: u8,
    pub(crate) asks: u8,
    /// Listings that took no longer are all one.
    pub(crate) listing: Duration,
    /// Whether a dial that nobody listened to is paced in its own way.
    pub(crate) quick: bool,
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
    pub(crate) const fn new(frame: &'a Frame, now: Timestamp, newest: Option<Epoch>) -> Self {
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

    pub(crate) const fn now(&self) -> Timestamp {
        NOW
    }

    /// A time that is over, as far back as `matters`.
    pub(crate) fn past(&self, at: Timestamp, matters: Duration) -> Timestamp {
        ago(self.now.since(at).min(matters))
    }

    /// The latest of some times at which something was sent, which is compared with what is reported only.
    pub(crate) fn sent(&self, at: Timestamp) -> Timestamp {
        self.past(at, self.frame.reach + Duration::from_nanos(1))
    }

    /// A time that comes, or has come.
    pub(crate) fn due(&self, at: Timestamp) -> Timestamp {
        NOW + at.since(self.now)
    }

    /// The same where one that has come is none.
    pub(crate) fn future(&self, at: Option<Timestamp>) -> Option<Timestamp> {
        at.filter(|at| *at > self.now).map(|at| self.due(at))
    }

    pub(crate) fn epoch(&self, epoch: Epoch) -> Epoch {
        let older = self.newest.map_or(0, |newest| newest.get().saturating_sub(epoch.get()));
        Epoch::new(NEWEST.saturating_sub(older)).unwrap_or(Epoch::FIRST)
    }

    pub(crate) fn status(&self, status: Status) -> Status {
        match status {
            Status::Ready(epoch) => Status::Ready(self.epoch(epoch)),
            Status::Idle | Status::Connecting | Status::TransientFailure | Status::Parked(_) | Status::Shutdown => {
                status
            }
        }
    }

    /// A question's time.
    pub(crate) fn question(&self, at: Timestamp) -> Timestamp {
        if at.since(self.now) > FAR { NOW + NEVER } else { self.due(at) }
    }

    /// The longest listing so far.
    pub(crate) fn listing(&self, took: Duration) -> Duration {
        if took <= self.frame.listing { Duration::ZERO } else { took }
    }

    /// The beginning of a session; it is kept how much later than that the last message came in, up to the time after
    /// which a session that is disowned is proven.
    fn begun(&self, since: Timestamp, heard: Timestamp, to: Timestamp, served: bool) -> Timestamp {
        let begun = self.past(since, self.frame.stable);
        if served { begun } else { begun.min(ago(NOW.since(to) + heard.since(since).min(self.frame.stable))) }
    }

    /// Once it is noted, a failure counts as a rate limit, as refused (where that is paced in its own way), or as any
    /// other.
    pub(crate) const fn class(&self, class: FailureClass) -> FailureClass {
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

    pub(crate) fn state(&self, state: State, served: bool) -> State {
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
                let asked = question.unwrap_or(NOW);
                State::Ready {
                    epoch: self.epoch(epoch),
                    since: self.begun(since, heard, inbound.unwrap_or(NOW), served),
                    inbound: inbound.unwrap_or(NOW),
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
    fn ranked<const N: usize>(&self, times: [Option<Timestamp>; N]) -> [Option<Timestamp>; N] {
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
    Timestamp::from_nanos(NOW.as_nanos() - nanos(age))
}

impl Model {
    fn normalise(&mut self, frame: &Frame) {
        let view = View::new(frame, self.now, self.last.map(|(epoch, _)| epoch));
        let mut begun = None;
        if let (Some(life), Phase::Up { since, .. }) = (&mut self.life, self.phase) {
            life.served |= life.heard.since(since) >= frame.stable;
            let question = life.asked.map(|asked| asked.since).or(life.resumed);
            let [heard, ..] = view.ranked([Some(life.heard), life.open, question]);
            begun = Some(view.begun(since, life.heard, heard.unwrap_or(NOW), life.served));
        }
        self.phase = match self.phase {
            Phase::Nothing => Phase::Nothing,
            Phase::Dialling { epoch, deadline, flags } => {
                Phase::Dialling { epoch: view.epoch(epoch), deadline: view.due(deadline), flags }
            }
            Phase::Up { epoch, since } => Phase::Up { epoch: view.epoch(epoch), since: begun.unwrap_or(since) },
            Phase::Closing { epoch, deadline } => {
                Phase::Closing { epoch: view.epoch(epoch), deadline: view.due(deadline) }
            }
        };
        if let Some(next) = &mut self.next {
            next.from = view.due(next.from);
            next.to = view.due(next.to);
            next.pace = Pace::AtOnce; // which rule speaks, not what it says
        }
        self.ladder = self.ladder.min(frame.ladder);
        self.outage = self.outage.map(|at| view.past(at, frame.outage));
        self.hint_until = view.future(self.hint_until);
        self.class = self.class.map(|class| view.class(class));
        self.refused &= frame.quick && self.last.is_some_and(|(_, at)| self.now.since(at) < frame.pace);
        self.demand = view.future(self.demand);
        self.last = self.last.map(|(epoch, at)| (view.epoch(epoch), view.past(at, frame.pace)));
        self.probes = self.probes.min(frame.probes.into());
        self.asks = self.asks.min(frame.asks.into());
        self.listing = view.listing(self.listing);
        self.open_until = self.open_until.map(|at| view.due(at));
        self.struck = self.struck.map(|at| view.sent(at));
        if let Some(life) = &mut self.life {
            let question = life.asked.map(|asked| asked.since).or(life.resumed);
            let [heard, open, question] = view.ranked([Some(life.heard), life.open, question]);
            life.heard = heard.unwrap_or(NOW);
            life.open = open;
            life.answered_to = life.answered_to.map(|at| view.sent(at));
            let question = question.unwrap_or(NOW);
            if let Some(asked) = &mut life.asked {
                asked.since = question;
                asked.deadline = view.due(asked.deadline);
            }
            life.resumed = life.resumed.map(|_| question);
            life.next = life.next.map(|(from, to)| (view.question(from), view.question(to)));
            life.rest_at = life.rest_at.map(|at| view.due(at));
            life.renew_at = life.renew_at.map(|at| view.due(at));
        }
        self.status = view.status(self.status);
        // The newest epoch is dead, or the one before: that there was none before the first changes nothing.
        self.dead = self.last.and(self.dead.map(|epoch| view.epoch(epoch)).or(Epoch::new(NEWEST - 1)));
        self.now = view.now();
    }
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
    const fn rng(self) -> Rng {
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

impl Checker {
    /// Makes this checker, its machine and what its rules know, the one that stands for all that no later step tells
    /// apart from it.
    pub fn normalise(&mut self, frame: &Frame) {
        self.machine.normalise(frame);
        self.model.normalise(frame);
        if let Some(patient) = &mut self.patient {
            let config = self.machine.config();
            let strikes = patient.config().breaker_strikes();
            let other = ConfigBuilder::from(*config).breaker_strikes(strikes).build().unwrap_or(*config);
            *patient = self.machine.with_breaker_of(other);
        }
    }

    /// Times and epochs as this checker's normalised twin names them.
    pub const fn view<'a>(&self, frame: &'a Frame) -> View<'a> {
        View::new(frame, self.now(), self.newest())
    }

    /// The last time that it was told.
    pub const fn now(&self) -> Timestamp {
        self.model.now
    }

    /// The epoch of the last dial.
    pub const fn newest(&self) -> Option<Epoch> {
        self.machine.newest()
    }

    /// Decides the next draw of the jitter, where at most three values are possible.
    pub const fn draw(&mut self, draw: Draw) {
        let rng = draw.rng();
        self.machine.set_rng(rng);
        if let Some(patient) = &mut self.patient {
            patient.set_rng(rng);
        }
    }

    /// The server is known to refuse pings.
    #[must_use]
    pub const fn without_pings(mut self) -> Self {
        self.machine.set_pings(PingSupport::Refuses);
        if let Some(patient) = &mut self.patient {
            patient.set_pings(PingSupport::Refuses);
        }
        self.model.pings = PingSupport::Refuses;
        self
    }

    /// A number for what the machine and its rules know; another one for another state, but for one chance in 2^64.
    pub fn fingerprint(&self) -> u64 {
        let mut words = Words(0);
        self.machine.hash(&mut words);
        self.model.hash(&mut words);
        words.finish()
    }
}

/// The folded products of the words of a state.
struct Words(u64);

impl Words {
    const fn word(&mut self, word: u64) {
        let product = (self.0 ^ word ^ 0x9e37_79b9_7f4a_7c15) as u128 * 0xbf58_476d_1ce4_e5b9;
        self.0 = (product as u64 ^ (product >> 64) as u64).rotate_left(23);
    }
}

impl Hasher for Words {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for part in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..part.len()].copy_from_slice(part);
            self.word(u64::from_le_bytes(word));
        }
    }

    fn write_u64(&mut self, word: u64) {
        self.word(word);
    }
}
