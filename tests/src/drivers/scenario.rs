use std::time::Duration;

use mcp_reconnect_core::{ConfigBuilder, Failure, FailureClass, Input, WakeCause, Want};

use super::{Dialled, Life};

/// What is done to a driver and its server at some time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Act {
    /// Somebody asks for a session and waits this long.
    Ask(Duration),
    /// Somebody whose session failed asks for a newer one.
    AskNewer(Duration),
    /// The driver is told this.
    Tell(Input),
    /// The knobs are the defaults from now on, and `keepalive` is this.
    Retune(Duration),
    /// A caller finds the session broken.
    Lost(FailureClass),
    /// A caller finds the very first session broken.
    LostFirst(FailureClass),
    /// The server dies.
    Crash,
    /// A call that was just sent is given up.
    NoReply,
    /// A call that was just sent is dropped by its caller.
    Dropped,
    /// The session is to be renewed.
    Renew,
    /// The handshake meets another server than before.
    OtherServer,
    /// A call is answered.
    Answered,
    /// So is one while there are strikes, which the driver hears of at once.
    AnsweredAfterStrikes,
    /// A call is sent and stays open.
    Call,
    /// From now on the server answers no ping.
    Deaf,
    /// The host has slept.
    Slept,
}

/// What an [`Act`] leaves to do for the handle of a driver.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Deed {
    /// Tell the driver.
    Tell(Input),
    /// Ask for a session.
    Ask(Want, Duration),
}

/// A script that every driver plays.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// Names its file.
    pub name: &'static str,
    /// Draws the jitter.
    pub seed: u64,
    /// Sets what is not left at its default.
    pub knobs: fn(ConfigBuilder) -> ConfigBuilder,
    /// How the server meets its dials, and all after them as the last.
    pub dials: &'static [Dialled],
    /// What is done when, in milliseconds from the origin; the last is a shutdown.
    pub acts: &'static [(u64, Act)],
}

const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

const fn up(millis: u64) -> Dialled {
    Dialled::Up(Life::Ends(Duration::from_millis(millis)))
}

const HEALTHY: Dialled = Dialled::Up(Life::Healthy);
const REFUSES: Dialled = Dialled::Refuses(Failure::new(FailureClass::Transport));
const LIMITS: Dialled = Dialled::Refuses(Failure { class: FailureClass::RateLimited, retry_after: Some(secs(60)) });
const FLAPS: Dialled = up(100);
const OPERATOR: Act = Act::Tell(Input::Wake(WakeCause::Operator));
const SHUTDOWN: Act = Act::Tell(Input::Shutdown);

/// The scripts.
pub const SCENARIOS: &[Scenario] = &[
    // Refused three times: one caller waits for the session, one has less patience than the ladder has steps.
    Scenario {
        name: "refused",
        seed: 1,
        knobs: |knobs| knobs,
        dials: &[REFUSES, REFUSES, REFUSES, HEALTHY],
        acts: &[(0, Act::Ask(secs(10))), (3_001, Act::Ask(secs(1))), (30_001, Act::Ask(secs(1))), (40_001, SHUTDOWN)],
    },
    // A proven session dies, and a later one is found broken by three callers, one of them late: two rebuilds.
    Scenario {
        name: "crash_after_ready",
        seed: 2,
        knobs: |knobs| knobs.redial_spread(Duration::from_millis(250)),
        dials: &[HEALTHY],
        acts: &[
            (0, Act::Ask(secs(10))),
            (60_003, Act::Crash),
            (90_007, Act::Lost(FailureClass::Transport)),
            (90_008, Act::Lost(FailureClass::SessionGone)),
            (90_009, Act::AskNewer(secs(10))),
            (95_001, Act::LostFirst(FailureClass::Permanent)),
            (96_001, SHUTDOWN),
        ],
    },
    // No answer to the handshake: the start deadline doubles, the outage parks, a caller brings the next dial forward.
    Scenario {
        name: "hang",
        seed: 1,
        knobs: |knobs| knobs,
        dials: &[Dialled::Silent, Dialled::Silent, HEALTHY],
        acts: &[(0, Act::Ask(secs(10))), (100_001, Act::Ask(secs(20))), (110_001, SHUTDOWN)],
    },
    // A session that goes deaf: silence is asked about, a call that is still open puts the verdict off, then it is lost.
    Scenario {
        name: "deaf",
        seed: 3,
        knobs: |knobs| knobs,
        dials: &[HEALTHY],
        acts: &[
            (0, Act::Ask(secs(10))),
            (30_001, Act::Answered),
            (200_001, Act::Call),
            (300_001, Act::Answered),
            (300_002, Act::Deaf),
            (600_001, Act::AskNewer(secs(1))),
            (602_001, SHUTDOWN),
        ],
    },
    // Ready and dead again, until it is parked as flapping and its tools are taken back; a probe finds it healthy.
    Scenario {
        name: "flapping",
        seed: 1,
        knobs: |knobs| knobs,
        dials: &[FLAPS, FLAPS, FLAPS, FLAPS, FLAPS, FLAPS, FLAPS, FLAPS, FLAPS, HEALTHY],
        acts: &[(0, Act::Ask(secs(10))), (300_001, Act::Ask(secs(1))), (301_001, SHUTDOWN)],
    },
    // Wakes while it dials, while it waits and while it is Ready: the first is remembered, the last does nothing.
    Scenario {
        name: "wake_during_dial",
        seed: 4,
        knobs: |knobs| knobs,
        dials: &[REFUSES, REFUSES, HEALTHY],
        acts: &[
            (0, OPERATOR),
            (5, Act::Tell(Input::Wake(WakeCause::Config))),
            (603, Act::Tell(Input::Wake(WakeCause::Config))),
            (1_102, OPERATOR),
            (3_001, OPERATOR),
            (4_001, SHUTDOWN),
        ],
    },
    // Five calls without a reply open the breaker; one caller is let through per open time; an answer closes it. Then the
    // keepalive is set lower.
    Scenario {
        name: "breaker",
        seed: 1,
        knobs: |knobs| knobs,
        dials: &[HEALTHY],
        acts: &[
            (0, Act::Ask(secs(10))),
            (10_001, Act::NoReply),
            (11_001, Act::NoReply),
            (12_001, Act::NoReply),
            (13_001, Act::NoReply),
            (14_001, Act::NoReply),
            (15_001, Act::Ask(secs(5))),
            (44_003, Act::Ask(secs(5))),
            (45_001, Act::Ask(secs(5))),
            (46_001, Act::AnsweredAfterStrikes),
            (47_001, Act::Ask(secs(5))),
            (48_001, Act::Retune(secs(20))),
            (80_001, SHUTDOWN),
        ],
    },
    // Put to rest when nobody used it, dialled again by a call, also by one that comes while it closes; then too old.
    Scenario {
        name: "idle_and_lifetime",
        seed: 1,
        knobs: |knobs| knobs.idle_timeout(Some(secs(300))).max_lifetime(Some(secs(600))),
        dials: &[HEALTHY],
        acts: &[
            (0, Act::Ask(secs(10))),
            (290_001, Act::Answered),
            (700_001, Act::Ask(secs(10))),
            (1_000_226, Act::Ask(secs(10))),
            (1_250_001, Act::Ask(secs(10))),
            (1_500_001, Act::Ask(secs(10))),
            (1_599_001, Act::Call),
            (1_650_001, Act::Answered),
            (1_700_001, SHUTDOWN),
        ],
    },
    // Shut down while it closes: at once for callers, and the close keeps its time.
    Scenario {
        name: "shutdown_while_closing",
        seed: 1,
        knobs: |knobs| knobs,
        dials: &[HEALTHY],
        acts: &[
            (0, Act::Ask(secs(10))),
            (20_001, Act::Lost(FailureClass::Transport)),
            (20_005, Act::AskNewer(secs(10))),
            (20_021, SHUTDOWN),
            (20_031, Act::Ask(secs(10))),
        ],
    },
    // The host sleeps over a live session, and over a server that is down: asked at once, dialled at once.
    Scenario {
        name: "slept",
        seed: 1,
        knobs: |knobs| knobs.redial_spread(Duration::from_millis(250)),
        dials: &[HEALTHY, REFUSES, REFUSES, REFUSES, REFUSES, REFUSES, REFUSES, HEALTHY],
        acts: &[
            (0, Act::Ask(secs(10))),
            (30_001, Act::Slept),
            (30_002, Act::Ask(secs(1))),
            (100_001, Act::Slept),
            (140_001, Act::Crash),
            (155_001, Act::Slept),
            (155_002, Act::Ask(secs(60))),
            (240_001, SHUTDOWN),
        ],
    },
    // A park that was asked for refuses who waits; the operator lifts it. A server without pings is left alone.
    Scenario {
        name: "parked_on_request",
        seed: 1,
        knobs: |knobs| knobs,
        dials: &[Dialled::Silent, Dialled::Up(Life::NoPings)],
        acts: &[
            (0, Act::Ask(secs(10))),
            (1_001, Act::Tell(Input::Park)),
            (2_001, Act::Ask(secs(10))),
            (3_001, Act::Tell(Input::Wake(WakeCause::Credentials))),
            (4_001, OPERATOR),
            (400_001, Act::Tell(Input::Park)),
            (401_001, SHUTDOWN),
        ],
    },
    // Replaced by another version while the session lives on: it is renewed when the call on it is over, and what was known
    // of pings is learnt anew. A call that its caller drops is asked about, and is no strike.
    Scenario {
        name: "renewed",
        seed: 1,
        knobs: |knobs| knobs,
        dials: &[HEALTHY],
        acts: &[
            (0, Act::Ask(secs(10))),
            (70_001, Act::Call),
            (75_001, Act::Renew),
            (90_001, Act::Answered),
            (150_100, Act::OtherServer),
            (171_003, Act::Dropped),
            (180_001, SHUTDOWN),
        ],
    },
    // Told to come back in a minute: nobody's patience shortens that, and it is no outage.
    Scenario {
        name: "rate_limited",
        seed: 1,
        knobs: |knobs| knobs,
        dials: &[LIMITS, LIMITS, HEALTHY],
        acts: &[(0, Act::Ask(secs(600))), (10_001, Act::Ask(secs(10))), (130_001, SHUTDOWN)],
    },
];
