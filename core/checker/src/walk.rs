use core::time::Duration;

use mcp_reconnect_core::{
    Config, ConnectionMachine, Epoch, Failure, FailureClass, Input, ReadyFlag, ReadyFlags, Restart, State, Timestamp,
    WakeCause,
};

const SECOND: u64 = 1_000_000_000;

/// A configuration, a seed and a sequence of timed inputs, all drawn from bytes: the same bytes, the same walk.
///
/// Inputs are drawn when they are due, from the state of the machine: so epochs are live or stale by choice, and times
/// aim at deadlines (at one, a nanosecond before or after, far beyond, standing still, going back). Eight bytes make
/// one step; a shorter rest ends the walk.
///
/// Half of the walks are *honest*: what a correct driver reports, in time. The others are adversarial: anything that
/// the types allow.
#[derive(Clone, Debug)]
pub struct Walk<'a> {
    words: &'a [u8],
    config: Config,
    seed: u64,
    now: Timestamp,
    honest: bool,
    /// How many flags are still to be reached at once.
    rush: u8,
    /// Honest: the tick that a sample goes before, the last inbound message, the oldest open call.
    tick_at: Option<Timestamp>,
    inbound: Timestamp,
    oldest: Option<Timestamp>,
    no_reply: Option<Timestamp>,
}

/// Small numbers taken out of a word, one after the other.
struct Bits(u64);

impl Bits {
    const fn pick(&mut self, choices: u64) -> u64 {
        let picked = self.0 % choices;
        self.0 /= choices;
        picked
    }

    fn one<T: Copy, const N: usize>(&mut self, of: [T; N]) -> T {
        of[usize::try_from(self.pick(N as u64)).unwrap_or(0)]
    }

    /// A time from zero to `most`, both included.
    const fn up_to(&mut self, most: u64) -> u64 {
        let part = self.pick(1 << 12);
        (((most as u128) * (part as u128)) / ((1 << 12) - 1)) as u64
    }

    fn failure(&mut self, verdicts_too: bool) -> Failure {
        use FailureClass::{NeedsAuth, Permanent, RateLimited, SessionGone, StartTimeout, Transport, Unresponsive};
        let class = self.one([
            Transport,
            Transport,
            Transport,
            Transport,
            Transport,
            SessionGone,
            SessionGone,
            RateLimited,
            RateLimited,
            NeedsAuth,
            Permanent,
            if verdicts_too { StartTimeout } else { Transport },
            if verdicts_too { Unresponsive } else { Transport },
        ]);
        let hint = self.one([0, 0, 0, 0, 0, 0, 1, 5, 60, 99_999]);
        let none = hint == 0 && self.pick(8) != 0;
        Failure { class, retry_after: (!none).then(|| Duration::from_secs(hint)) }
    }

    /// Other knobs, drawn from what is left.
    fn retune(&mut self) -> Input {
        Input::Retune(config(Self(self.0), Self(self.0.rotate_left(32))))
    }

    fn wake(&mut self) -> Input {
        Input::Wake(self.one([WakeCause::Operator, WakeCause::Config, WakeCause::Credentials]))
    }
}

fn config(mut bits: Bits, mut more: Bits) -> Config {
    let millis = Duration::from_millis;
    let mut builder = Config::builder()
        .ping_misses(bits.one([2, 1, 3]))
        .breaker_strikes(bits.one([5, 1, 2, 3]))
        .redial_spread(millis(bits.one([0, 250, 2_000])))
        .idle_timeout(bits.one([None, None, Some(1_000), Some(300_000)]).map(millis))
        .max_lifetime(bits.one([None, None, Some(2_000), Some(3_600_000)]).map(millis));
    if bits.pick(4) != 0 {
        let first = |start: u64, factor: u64| (millis(start), millis(start * factor));
        let start = first(bits.one([1_000, 3_000, 30_000]), bits.one([1, 3, 10]));
        let backoff = first(bits.one([1_000, 20, 400]), bits.one([1, 5, 60]));
        let probe = first(bits.one([1_000, 500, 60_000]), bits.one([1, 4, 15]));
        let min_dial = (backoff.0 / u32::try_from(bits.one([2, 4, 10])).unwrap_or(2)).max(millis(1));
        builder = builder
            .connect_timeout(start.0)
            .connect_timeout_max(start.1)
            .backoff(backoff.0)
            .backoff_max(backoff.1)
            .park_probe(probe.0)
            .park_probe_max(probe.1)
            .min_dial_interval(min_dial)
            .demand_interval(min_dial * bits.one([1, 3, 10]))
            .stable_after(millis(more.one([100, 1_000, 10_000])))
            .keepalive(millis(more.one([1_000, 5_000, 60_000])))
            .ping_timeout(millis(more.one([300, 2_000, 20_000])))
            .breaker_open(millis(more.one([1_000, 30_000])))
            .close_timeout(millis(more.one([100, 2_000, 10_000])))
            .park_after(millis(more.one([1_000, 5_000, 60_000])))
            .retry_after_max(millis(more.one([2_000, 60_000, 900_000])));
    }
    // Knobs that came later, in the order in which they came: what an input draws before them stays as it was.
    builder = builder
        .demand_backoff(millis(more.one([200, 0, 50, 10])))
        .refused_interval(millis(more.one([25, 0, 5, 500])))
        .restart(more.one([None, None, Some(Restart::Always), Some(Restart::OnFailure), Some(Restart::Never)]));
    builder.build().unwrap_or_default()
}

impl<'a> Walk<'a> {
    /// The walk that these bytes make: the first 24 are the configuration, the seed and the mode. Empty if there are
    /// fewer than 32.
    pub fn new(bytes: &'a [u8]) -> Self {
        let (head, words) = bytes.split_at_checked(24).unwrap_or((&[0; 24], &[]));
        let word = |index: usize| head[8 * index..].first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
        let mut bits = Bits(word(2));
        let now = Timestamp::from_nanos(bits.one([0, 1, SECOND, 86_400 * SECOND]));
        let config = config(Bits(word(0)), Bits(word(1)));
        Self {
            words,
            config,
            honest: bits.pick(2) == 1,
            seed: bits.0,
            now,
            rush: 0,
            tick_at: None,
            inbound: now,
            oldest: None,
            no_reply: None,
        }
    }

    /// The walk with a mode of its own, whatever the bytes say.
    #[must_use]
    pub const fn honest(mut self, honest: bool) -> Self {
        self.honest = honest;
        self
    }

    /// Whether it is what a correct driver reports.
    pub const fn is_honest(&self) -> bool {
        self.honest
    }

    /// The knobs to run it with.
    pub const fn config(&self) -> Config {
        self.config
    }

    /// The seed to run it with.
    pub const fn seed(&self) -> u64 {
        self.seed
    }

    /// When it begins.
    pub const fn start(&self) -> Timestamp {
        self.now
    }

    /// The next input and its time; `None` when the bytes are used up.
    pub fn step(&mut self, machine: &ConnectionMachine) -> Option<(Timestamp, Input)> {
        let (word, rest) = self.words.split_first_chunk()?;
        self.words = rest;
        let bits = Bits(u64::from_le_bytes(*word));
        Some(if self.honest {
            let mut last = Bits(bits.0.rotate_left(20));
            let (at, input) = self.correct(bits, machine);
            (at, self.newer(&mut last, input, machine.snapshot().state))
        } else {
            self.anything(bits, machine)
        })
    }

    fn anything(&mut self, mut bits: Bits, machine: &ConnectionMachine) -> (Timestamp, Input) {
        let state = machine.snapshot().state;
        if let State::Connecting { epoch, ready, .. } = state
            && self.rush > 0
        {
            self.rush -= 1;
            return (self.now, Input::Reached { epoch, flag: missing(ready) });
        }
        let input = self.any_input(&mut bits, state);
        let at = self.any_time(&mut bits, machine.next_timeout());
        self.now = self.now.max(at);
        (at, self.newer(&mut bits, input, state))
    }

    fn any_time(&self, bits: &mut Bits, due: Option<Timestamp>) -> Timestamp {
        let now = self.now;
        let later = |nanos: u64| now + Duration::from_nanos(nanos);
        let due = due.unwrap_or_else(|| later(SECOND));
        match bits.pick(20) {
            0..=5 => now,
            6..=10 => due,
            11 => Timestamp::from_nanos(due.as_nanos().saturating_sub(1)),
            12 => due + Duration::from_nanos(1 + bits.up_to(SECOND)),
            13 => later(bits.up_to(2 * SECOND)),
            14..=16 => later(bits.up_to(nanos(due.since(now)))),
            17 => later(bits.one([60, 3_600, 86_400, 40 * 86_400]) * SECOND),
            18 => Timestamp::from_nanos(now.as_nanos().saturating_sub(bits.up_to(10 * SECOND))),
            _ if bits.pick(64) == 0 => Timestamp::MAX,
            _ => later(bits.up_to(100_000_000)),
        }
    }

    fn any_input(&mut self, bits: &mut Bits, state: State) -> Input {
        let epoch = state.live_epoch().unwrap_or(Epoch::FIRST);
        let live = bits.pick(12) != 0;
        let epoch = if live { epoch } else { Epoch::new(bits.pick(64)).unwrap_or(epoch) };
        match (state, bits.pick(64)) {
            (_, 0) => self.rare(bits),
            (_, 1 | 2) => Input::Park,
            (_, 3..=5) => Input::Resumed { by_call: false },
            (_, 6 | 7) => bits.wake(),
            (_, 8..=11) => Input::Connect { until: self.patience(bits) },
            (State::Connecting { ready, .. }, 18..=39) => {
                self.rush = bits.one([0, 0, 3]);
                Input::Reached { epoch, flag: missing(ready) }
            }
            (_, 12) => Input::Reached { epoch, flag: bits.one(ReadyFlags::ALL) },
            (State::Ready { .. }, 13..=28) => self.any_traffic(bits, epoch),
            (State::Ready { .. }, 29..=37) => Input::NoReply { epoch, sent: self.near(bits) },
            (State::Ready { .. }, 38) => Input::PingUnsupported { epoch },
            (State::Connecting { .. } | State::Ready { .. }, 40..=44) | (_, 13) => {
                Input::Lost { epoch, failure: bits.failure(true) }
            }
            (State::Connecting { .. } | State::Ready { .. }, 45..=49) | (State::Closing { .. }, 18..=40) | (_, 14) => {
                Input::Gone { epoch, failure: bits.failure(true) }
            }
            (_, 15) => self.any_traffic(bits, epoch),
            (_, 16) => Input::NoReply { epoch, sent: self.near(bits) },
            (_, 17) => Input::PingUnsupported { epoch },
            (State::Closing { .. } | State::TransientFailure { .. } | State::Parked { .. }, 41..=44) => bits.wake(),
            (State::Idle | State::TransientFailure { .. } | State::Parked { .. }, 45..=49) => {
                Input::Connect { until: self.patience(bits) }
            }
            (State::Parked { probe_at: None }, 50..=55) => bits.wake(),
            (State::Idle, _) => Input::Connect { until: self.patience(bits) },
            (
                State::Connecting { .. }
                | State::Ready { .. }
                | State::Closing { .. }
                | State::TransientFailure { .. }
                | State::Parked { .. }
                | State::Shutdown,
                _,
            ) => Input::Tick,
        }
    }

    fn rare(&self, bits: &mut Bits) -> Input {
        match bits.pick(8) {
            0 => Input::Shutdown,
            1..=4 => bits.retune(),
            _ => Input::Connect { until: self.patience(bits) },
        }
    }

    fn any_traffic(&self, bits: &mut Bits, epoch: Epoch) -> Input {
        let oldest = (bits.pick(3) == 0).then(|| self.near(bits));
        let answered = bits.pick(4) == 0;
        let inbound = self.near(bits);
        Input::Traffic { epoch, inbound, answered, served: false, answered_to: None, oldest }
    }

    /// A time at, before or after now.
    fn near(&self, bits: &mut Bits) -> Timestamp {
        let now = self.now.as_nanos();
        match bits.pick(8) {
            0..=3 => self.now,
            4 => self.now + Duration::from_nanos(bits.up_to(10 * SECOND)),
            5 => Timestamp::ZERO,
            _ => Timestamp::from_nanos(now.saturating_sub(bits.up_to(100 * SECOND))),
        }
    }

    fn patience(&self, bits: &mut Bits) -> Timestamp {
        self.now + Duration::from_secs(bits.one([0, 0, 1, 10, 100, 1_000_000]))
    }

    /// The next report of a correct driver, at a server that may do anything. It comes by the deadline (later only after
    /// a suspend, which is reported first), with a sample of traffic before a due tick and before a `NoReply`.
    fn correct(&mut self, mut bits: Bits, machine: &ConnectionMachine) -> (Timestamp, Input) {
        let state = machine.snapshot().state;
        if let Some(at) = self.tick_at.take() {
            return (at, Input::Tick);
        }
        if let (State::Ready { epoch, .. }, Some(sent)) = (state, self.no_reply.take()) {
            return (self.now, Input::NoReply { epoch, sent });
        }
        if bits.pick(40) == 0 {
            self.now = self.now + Duration::from_secs(bits.one([10, 3_600, 30_000]));
            return (self.now, Input::Resumed { by_call: false });
        }
        let far = self.now + Duration::from_secs(1_000);
        let due = machine.next_timeout().unwrap_or(far).max(self.now);
        let wait = Duration::from_nanos(bits.up_to(nanos(due.since(self.now).min(far.since(self.now)))));
        let soon = self.now + wait / bits.one([1, 2, 50]);
        let choice = bits.pick(64);
        if choice < 5 {
            self.now = soon;
            return (soon, self.request(&mut bits));
        }
        let input = match state {
            State::Connecting { epoch, ready, .. } => match choice {
                0..=45 => Input::Reached { epoch, flag: missing(ready) },
                46..=50 => Input::Lost { epoch, failure: bits.failure(false) },
                51..=58 => Input::Gone { epoch, failure: bits.failure(false) },
                _ => return self.due(due, Input::Tick),
            },
            State::Ready { epoch, since, .. } => {
                self.inbound = self.inbound.max(since);
                self.oldest = self.oldest.filter(|sent| *sent >= since);
                return self.session(&mut bits, epoch, soon, due);
            }
            State::Closing { epoch, .. } if choice < 50 => Input::Gone { epoch, failure: bits.failure(false) },
            State::Parked { probe_at: None } if choice < 50 => bits.wake(),
            State::Idle if choice < 50 => Input::Connect { until: self.patience(&mut bits) },
            State::Closing { .. }
            | State::Idle
            | State::TransientFailure { .. }
            | State::Parked { .. }
            | State::Shutdown => return self.due(due, Input::Tick),
        };
        self.now = soon;
        (soon, input)
    }

    fn due(&mut self, due: Timestamp, input: Input) -> (Timestamp, Input) {
        self.now = due;
        (due, input)
    }

    fn request(&self, bits: &mut Bits) -> Input {
        match bits.pick(16) {
            0 => Input::Park,
            1..=3 => bits.wake(),
            4 if bits.pick(4) == 0 => Input::Shutdown,
            5 => bits.retune(),
            _ => Input::Connect { until: self.patience(bits) },
        }
    }

    /// Life on a session: calls begin, are answered, or are not; or nothing happens until the deadline.
    fn session(&mut self, bits: &mut Bits, epoch: Epoch, soon: Timestamp, due: Timestamp) -> (Timestamp, Input) {
        let choice = bits.pick(32);
        let at = if choice < 20 { due } else { soon };
        self.now = at;
        let mut answered = false;
        match choice {
            0..=7 => self.inbound = at, // a pong, or a notification
            8..=11 => self.oldest = self.oldest.or(Some(soon)),
            20..=23 => {
                answered = true;
                self.oldest = None;
                self.inbound = at;
            }
            24..=27 => {
                self.no_reply = Some(self.oldest.take().unwrap_or(self.inbound + Duration::from_nanos(1)).min(at));
            }
            28 => return (at, Input::Lost { epoch, failure: bits.failure(false) }),
            29 => return (at, Input::Gone { epoch, failure: bits.failure(false) }),
            30 => return (at, Input::PingUnsupported { epoch }),
            _ => {}
        }
        if at == due {
            self.tick_at = Some(at);
        }
        let traffic = Input::Traffic {
            epoch,
            inbound: self.inbound,
            answered,
            served: false,
            answered_to: None,
            oldest: self.oldest,
        };
        (at, traffic)
    }

    /// What came into inputs later: drawn last, so that what an input draws before it stays as it was.
    fn newer(&self, bits: &mut Bits, input: Input, state: State) -> Input {
        match input {
            Input::Lost { epoch, failure } => Input::Lost { epoch, failure: newer_class(bits, failure) },
            Input::Gone { epoch, failure } => Input::Gone { epoch, failure: newer_class(bits, failure) },
            Input::Traffic { epoch, inbound, answered, oldest, .. } => {
                let served = bits.pick(4) == 0 && (answered || !self.honest);
                let answered_to = bits.one([false, true]).then(|| self.near(bits));
                let answered_to = answered_to.map(|to| if self.honest { to.min(inbound) } else { to });
                Input::Traffic { epoch, inbound, answered, served, answered_to, oldest }
            }
            Input::NoReply { epoch, sent } if bits.pick(4) == 0 => Input::Silence { epoch, sent },
            Input::Resumed { .. } => Input::Resumed { by_call: bits.pick(4) == 0 },
            Input::Tick if bits.pick(3) == 0 => self.newer_report(bits, state).unwrap_or(input),
            Input::Tick
            | Input::Connect { .. }
            | Input::Wake(_)
            | Input::Park
            | Input::Shutdown
            | Input::Retune(_)
            | Input::Reached { .. }
            | Input::NoReply { .. }
            | Input::Silence { .. }
            | Input::PingUnsupported { .. }
            | Input::Pong { .. }
            | Input::Listed { .. }
            | Input::Renew { .. }
            | Input::ServerChanged { .. } => input,
        }
    }

    /// Reports that came later, in place of a tick.
    fn newer_report(&self, bits: &mut Bits, state: State) -> Option<Input> {
        let stale = !self.honest && bits.pick(8) == 0;
        let live = state.live_epoch().or_else(|| (!self.honest).then_some(Epoch::FIRST))?;
        let epoch = if stale { Epoch::new(bits.pick(64))? } else { live };
        let took = Duration::from_millis(bits.one([1, 400, 15_000, 400_000]));
        Some(match (state, bits.pick(8)) {
            (State::Connecting { .. }, 0..=2) => Input::ServerChanged { epoch },
            (State::Connecting { .. } | State::Ready { .. }, 3 | 4) => Input::Listed { epoch, took },
            (State::Ready { .. }, 5) => Input::Renew { epoch },
            (State::Ready { .. }, _) => Input::Pong { epoch },
            (State::Connecting { .. } | State::Closing { .. }, _) if self.honest => return None,
            (_, 0..=3) => Input::Pong { epoch },
            (_, 4) => Input::Renew { epoch },
            (_, 5) => Input::ServerChanged { epoch },
            _ => Input::Listed { epoch, took },
        })
    }
}

fn newer_class(bits: &mut Bits, failure: Failure) -> Failure {
    use FailureClass::{Finished, Refused, Transport, Unauthorized};
    let class = match failure.class {
        Transport => bits.one([Transport, Refused, Finished, Unauthorized]),
        class => class,
    };
    Failure { class, ..failure }
}

fn missing(ready: ReadyFlags) -> ReadyFlag {
    ReadyFlags::ALL.into_iter().find(|flag| !ready.contains(*flag)).unwrap_or(ReadyFlag::Started)
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
