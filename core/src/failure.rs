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
    /// Refused, reset, end of stream, exit, name resolution, HTTP 5xx, HTTP 404 without a session id: transient.
    Transport,
    /// The live server disowned the session; a new one is expected to work.
    SessionGone,
    /// HTTP 429: the server is fine and wants fewer requests. No outage.
    RateLimited,
    /// The credentials are refused and could not be refreshed: a user is needed.
    NeedsAuth,
    /// Trying again cannot help: bad command, rejected certificate, no common protocol version.
    Permanent,
    /// The machine's verdict: the start deadline passed.
    StartTimeout,
    /// Pings stayed unanswered: the machine's verdict. Or they failed, at a server that serves everything else: the
    /// verdict of a link that can tell.
    Unresponsive,
    /// Nobody listens: the connection was refused at every address before a byte left. As
    /// [`Transport`](Self::Transport), but for the pace.
    Refused,
    /// A 401 that nobody can renew: no hook, or fixed headers. As [`Transport`](Self::Transport), but the park that it
    /// leads to is a permanent one, which probes.
    Unauthorized,
    /// A child ended by itself with status 0.
    Finished,
}

impl FailureClass {
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
