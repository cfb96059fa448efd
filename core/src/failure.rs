use core::fmt;
use core::time::Duration;

/// Why a dial or a session ended, classified once, where it was seen.
///
/// Policy reads the class, never a text; the text stays with the runtime, filed by epoch.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Failure {
    /// What kind of failure it was.
    pub class: FailureClass,
    /// How long the server asked to be left alone (`Retry-After`), if it did.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Option::is_none"))]
    pub retry_after: Option<Duration>,
}

impl Failure {
    /// A failure of this class, without a hint.
    pub const fn new(class: FailureClass) -> Self {
        Self { class, retry_after: None }
    }
}

impl From<FailureClass> for Failure {
    fn from(class: FailureClass) -> Self {
        Self::new(class)
    }
}

/// The kinds of failure that policy tells apart.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum FailureClass {
    /// Reset, end of stream, exit, name resolution, HTTP 5xx, HTTP 404 without a session id: transient.
    Transport,
    /// The live server disowned the session; a new one is expected to work.
    SessionGone,
    /// HTTP 429: the server is fine and wants fewer requests. No outage.
    RateLimited,
    /// The credentials are refused and the credentials hook says that a user is needed.
    NeedsAuth,
    /// Trying again is not expected to help: bad command, rejected certificate, no common protocol version, 403 to a
    /// request without a session.
    Permanent,
    /// The machine's verdict: the start deadline passed.
    StartTimeout,
    /// Pings stayed unanswered: the machine's verdict. Or they failed, at a server that serves everything else: the
    /// verdict of a link that can tell.
    Unresponsive,
    /// Nobody listens: every address refused the connection, before a byte left. Never of a child, a proxy, TLS, name
    /// resolution or a time-out. As [`Transport`](Self::Transport) but for the pace: such a dial has cost no server
    /// anything.
    Refused,
    /// A 401 that nobody can renew: no credentials hook, or static headers. As [`Transport`](Self::Transport), but the
    /// park that it leads to is [`Permanent`](crate::ParkReason::Permanent).
    Unauthorized,
    /// A child ended by itself, with status 0. Where [`Config::restart`](crate::Config::restart) does not let it rest, as
    /// [`Transport`](Self::Transport).
    Finished,
}

impl FailureClass {
    /// Whether many clients of one server see it at the same time, so that their redials are spread.
    pub(crate) const fn spreads(self) -> bool {
        matches!(self, Self::Transport | Self::Refused | Self::Unauthorized | Self::Finished)
    }

    /// The name used in events, metrics and traces.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Transport => "transport",
            Self::SessionGone => "session_gone",
            Self::RateLimited => "rate_limited",
            Self::NeedsAuth => "needs_auth",
            Self::Permanent => "permanent",
            Self::StartTimeout => "start_timeout",
            Self::Unresponsive => "unresponsive",
            Self::Refused => "refused",
            Self::Unauthorized => "unauthorized",
            Self::Finished => "finished",
        }
    }
}

impl fmt::Display for FailureClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
