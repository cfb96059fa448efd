use core::fmt;
use core::time::Duration;

use crate::time::nanos;

/// No knob may be longer: with time capped at half its range, no deadline can then saturate.
pub(crate) const LONGEST: Duration = Duration::from_secs(30 * 24 * 3600); // R2

const MILLISECOND: u64 = 1_000_000;

macro_rules! knobs {
    ($($(#[$doc:meta])* $name:ident = $default:expr;)*) => {
        /// The knobs of a [`ConnectionMachine`](crate::ConnectionMachine); read-only once built.
        ///
        /// With the feature `serde` durations are whole nanoseconds, and bad values are refused as by
        /// [`ConfigBuilder::build`]. Knobs left out have their defaults, but for those that version 0.1.0 did not have:
        /// these are off, as they were when such data was written.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
        #[cfg_attr(feature = "serde", serde(into = "ConfigBuilder", try_from = "ConfigBuilder"))]
        pub struct Config(ConfigBuilder);

        /// Sets knobs; [`build`](Self::build) checks them.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
        #[cfg_attr(feature = "serde", serde(default = "ConfigBuilder::as_of_0_1", deny_unknown_fields))]
        #[must_use]
        pub struct ConfigBuilder {
            $($name: u64,)*
            idle_timeout: Option<u64>,
            max_lifetime: Option<u64>,
            ping_misses: u8,
            breaker_strikes: u8,
            restart: Option<Restart>,
        }

        impl ConfigBuilder {
            const DEFAULT: Self = Self {
                $($name: $default,)*
                idle_timeout: None,
                max_lifetime: None,
                ping_misses: 2,
                breaker_strikes: 5,
                restart: None,
            };

            $($(#[$doc])* pub fn $name(mut self, $name: Duration) -> Self {
                self.$name = nanos($name);
                self
            })*

            const fn durations(&self) -> [(&'static str, u64); [$(stringify!($name)),*].len()] {
                [$((stringify!($name), self.$name)),*]
            }
        }

        impl Config {
            $($(#[$doc])* pub const fn $name(&self) -> Duration {
                Duration::from_nanos(self.0.$name)
            })*
        }
    };
}

knobs! {
    /// How long a start may take at first, from the moment the dial leaves the driver's gate to Ready. Default 30 s.
    connect_timeout = 30_000 * MILLISECOND;
    /// The longest that a start deadline grows to by doubling after start timeouts. Default 300 s.
    connect_timeout_max = 300_000 * MILLISECOND;
    /// The first step of the ladder (gRPC connection backoff: 1 s). Default 1 s.
    backoff = 1_000 * MILLISECOND;
    /// The longest step of the ladder. Default 60 s.
    backoff_max = 60_000 * MILLISECOND;
    /// How long a session must have been Ready to be proven. Default 10 s.
    stable_after = 10_000 * MILLISECOND;
    /// How long nothing may come in on an idle session before it is asked. Default 60 s.
    keepalive = 60_000 * MILLISECOND;
    /// How long a ping may stay unanswered before it counts as missed. Default 20 s.
    ping_timeout = 20_000 * MILLISECOND;
    /// Over how long the first redials after a lost session, and the questions after a suspend, are spread. Callers do
    /// not shorten it: a dial that is due within this time stays where it is. Zero is allowed. Default 0; 250 ms suits
    /// servers that many clients share.
    redial_spread = 0;
    /// How long an open breaker refuses calls (resilience4j: wait duration in open state). Default 30 s.
    breaker_open = 30_000 * MILLISECOND;
    /// How long closing may take before the epoch counts as gone. Default 10 s.
    close_timeout = 10_000 * MILLISECOND;
    /// How long an outage may last before the server is parked. Default 60 s.
    park_after = 60_000 * MILLISECOND;
    /// The first wait of a parked server for its next probe. Default 60 s.
    park_probe = 60_000 * MILLISECOND;
    /// The longest wait between two probes. Default 15 min.
    park_probe_max = 900_000 * MILLISECOND;
    /// The longest ladder step while a caller waits, and how soon after the last dial a caller's dial comes. Default 5 s.
    demand_interval = 5_000 * MILLISECOND;
    /// No two dials are closer than this, whatever happens, but for what `refused_interval` says. Default 500 ms.
    min_dial_interval = 500 * MILLISECOND;
    /// The longest that a server's `Retry-After` is obeyed. Default 15 min.
    retry_after_max = 900_000 * MILLISECOND;
    /// The first ladder step after [`Refused`](crate::FailureClass::Refused) while a caller waits. The steps after it are
    /// as long as the outage is old, up to 3 s. Zero: off, these steps are as any others. Default 200 ms; 50 ms suits
    /// servers on the same host.
    demand_backoff = 200 * MILLISECOND;
    /// How soon the ladder or a caller may dial after a dial that was [`Refused`](crate::FailureClass::Refused), in place
    /// of `min_dial_interval` where that is longer. Zero: off, `min_dial_interval` holds. Default 25 ms.
    refused_interval = 25 * MILLISECOND;
}

/// When a proven session that has ended is followed by another though nobody asks for one. Where it is not, the connection
/// is idle, its tools stay offered, and the next caller dials.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum Restart {
    /// Whatever ended it.
    Always,
    /// Not where a child ended by itself, with status 0 and no call open ([`Finished`](crate::FailureClass::Finished)).
    OnFailure,
    /// Not by itself.
    Never,
}

impl Config {
    /// A builder with every knob at its default.
    pub const fn builder() -> ConfigBuilder {
        ConfigBuilder::DEFAULT
    }

    /// How long a session may go without a call before it is put to rest; `None`: for ever. Default `None`.
    pub fn idle_timeout(&self) -> Option<Duration> {
        self.0.idle_timeout.map(Duration::from_nanos)
    }

    /// How old a session may grow before it is replaced; `None`: for ever. Default `None`.
    pub fn max_lifetime(&self) -> Option<Duration> {
        self.0.max_lifetime.map(Duration::from_nanos)
    }

    /// How many pings in a row must stay unanswered before the session is asked to list something, whose silence is the
    /// verdict "unresponsive". Default 2.
    pub const fn ping_misses(&self) -> u8 {
        self.0.ping_misses
    }

    /// How many calls without a reply, with no answer between them, open the breaker. Default 5.
    pub const fn breaker_strikes(&self) -> u8 {
        self.0.breaker_strikes
    }

    /// When a session that has ended is followed by another though nobody asks. Default: [`Restart::OnFailure`] with an
    /// `idle_timeout`, else [`Restart::Always`].
    pub fn restart(&self) -> Restart {
        self.0.restart.unwrap_or(if self.0.idle_timeout.is_some() { Restart::OnFailure } else { Restart::Always })
    }

    /// The most dials that a machine with these knobs makes within `window` while no session becomes ready, nobody
    /// asks for one and nobody wakes it: what one dead server costs. A server that answers with rate limits is no dead
    /// one: it is not parked, and dialled once per longest step.
    pub fn max_dials_unasked(&self, window: Duration) -> u64 {
        let window = nanos(window);
        let mut dials = 1;
        let mut at = 0_u64;
        let ladder = crate::backoff::Backoff { first: self.0.backoff, max: self.0.backoff_max };
        let mut failures = 0;
        loop {
            let step = ladder.step(failures);
            let wait = (step - step / 2).max(self.0.min_dial_interval);
            if at + wait > self.0.park_after {
                break;
            }
            if at + wait > window {
                return dials;
            }
            at += wait;
            dials += 1;
            failures += 1;
        }
        let probe = crate::backoff::Backoff { first: self.0.park_probe, max: self.0.park_probe_max };
        let mut probes = 0;
        while probe.step(probes) < self.0.park_probe_max {
            at += probe.step(probes).max(self.0.min_dial_interval);
            if at > window {
                return dials;
            }
            dials += 1;
            probes += 1;
        }
        dials + window.saturating_sub(at) / self.0.park_probe_max.max(self.0.min_dial_interval)
    }
}

impl Default for Config {
    fn default() -> Self {
        Self(ConfigBuilder::DEFAULT)
    }
}

impl Default for ConfigBuilder {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// The knobs that may be zero.
const MAY_BE_ZERO: [&str; 3] = ["redial_spread", "demand_backoff", "refused_interval"];

impl ConfigBuilder {
    /// What data of version 0.1.0 leaves out: the knobs that it did not have are off.
    #[cfg(feature = "serde")]
    const fn as_of_0_1() -> Self {
        Self { demand_backoff: 0, refused_interval: 0, ..Self::DEFAULT }
    }

    /// See [`Config::idle_timeout`].
    pub fn idle_timeout(mut self, idle_timeout: Option<Duration>) -> Self {
        self.idle_timeout = idle_timeout.map(nanos);
        self
    }

    /// See [`Config::max_lifetime`].
    pub fn max_lifetime(mut self, max_lifetime: Option<Duration>) -> Self {
        self.max_lifetime = max_lifetime.map(nanos);
        self
    }

    /// See [`Config::ping_misses`].
    pub const fn ping_misses(mut self, ping_misses: u8) -> Self {
        self.ping_misses = ping_misses;
        self
    }

    /// See [`Config::breaker_strikes`].
    pub const fn breaker_strikes(mut self, breaker_strikes: u8) -> Self {
        self.breaker_strikes = breaker_strikes;
        self
    }

    /// See [`Config::restart`]; `None` is the default.
    pub const fn restart(mut self, restart: Option<Restart>) -> Self {
        self.restart = restart;
        self
    }

    /// Checks every knob.
    ///
    /// # Errors
    ///
    /// The first knob that is zero (`redial_spread`, `demand_backoff` and `refused_interval` may be), longer than 30
    /// days, or out of order with another: a
    /// `_max` below its start, `min_dial_interval` above half of `backoff`, `demand_interval` below
    /// `min_dial_interval`.
    pub fn build(self) -> Result<Config, ConfigError> {
        let optional = [("idle_timeout", self.idle_timeout), ("max_lifetime", self.max_lifetime)];
        let set = optional.into_iter().filter_map(|(knob, value)| Some((knob, value?)));
        for (knob, value) in self.durations().into_iter().chain(set) {
            let value = Duration::from_nanos(value);
            if value.is_zero() && !MAY_BE_ZERO.contains(&knob) {
                return Err(ConfigError::Zero { knob });
            }
            if value > LONGEST {
                return Err(ConfigError::TooLong { knob, value });
            }
        }
        for (knob, value) in [("ping_misses", self.ping_misses), ("breaker_strikes", self.breaker_strikes)] {
            if value == 0 {
                return Err(ConfigError::Zero { knob });
            }
        }
        let config = Config(self);
        let ordered = [
            ("connect_timeout_max", config.connect_timeout_max(), "connect_timeout", config.connect_timeout()),
            ("backoff_max", config.backoff_max(), "backoff", config.backoff()),
            ("park_probe_max", config.park_probe_max(), "park_probe", config.park_probe()),
            ("demand_interval", config.demand_interval(), "min_dial_interval", config.min_dial_interval()),
            ("backoff / 2", config.backoff() / 2, "min_dial_interval", config.min_dial_interval()),
        ];
        for (knob, value, least_knob, least) in ordered {
            if value < least {
                return Err(ConfigError::Below { knob, value, least_knob, least });
            }
        }
        Ok(config)
    }
}

impl From<Config> for ConfigBuilder {
    fn from(config: Config) -> Self {
        config.0
    }
}

impl TryFrom<ConfigBuilder> for Config {
    type Error = ConfigError;

    fn try_from(builder: ConfigBuilder) -> Result<Self, ConfigError> {
        builder.build()
    }
}

/// A knob with a value that it cannot have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ConfigError {
    /// The knob is zero.
    Zero {
        /// Its name.
        knob: &'static str,
    },
    /// The knob is longer than 30 days.
    TooLong {
        /// Its name.
        knob: &'static str,
        /// Its value.
        value: Duration,
    },
    /// The knob is below another that it must not be below.
    Below {
        /// Its name.
        knob: &'static str,
        /// Its value.
        value: Duration,
        /// The other's name.
        least_knob: &'static str,
        /// The other's value.
        least: Duration,
    },
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Zero { knob } => write!(f, "`{knob}` is zero"),
            Self::TooLong { knob, value } => write!(f, "`{knob}` is {value:?}, longer than {LONGEST:?}"),
            Self::Below { knob, value, least_knob, least } => {
                write!(f, "`{knob}` is {value:?}, below `{least_knob}` ({least:?})")
            }
        }
    }
}

impl core::error::Error for ConfigError {}
