//! Errors, by what the caller can do about them.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use mcp_reconnect_core::replay::Sent;
use mcp_reconnect_core::{Epoch, FailureClass, Refusal};
use rmcp::model::ErrorData;
use tokio::time::Instant;

/// Why a call brought no result, by what the caller can do about it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum CallError {
    /// The server answered with an error: the connection is fine.
    Server {
        /// Which session answered.
        epoch: Epoch,
        /// The error as the server wrote it.
        error: ErrorData,
        /// The error as it came, JSON text.
        json: Arc<str>,
    },
    /// No session in time; nothing was sent.
    Refused {
        /// Why.
        why: Refusal,
        /// When it makes sense to ask again, where that is known.
        retry_at: Option<Instant>,
        /// The last failure of the connection in words: exit status and the last lines of stderr, HTTP status, ….
        cause: Option<Arc<str>>,
    },
    /// The server's limit of calls in flight left no room before the deadline; nothing was sent.
    Busy,
    /// The server of this epoch does not offer the tool; nothing was sent.
    NotOffered {
        /// Whose catalogue it is.
        epoch: Epoch,
        /// The tool.
        tool: Arc<str>,
    },
    /// The session failed before the call reached the server, and sending it again was not possible in time.
    NotSent {
        /// The session that failed.
        epoch: Epoch,
        /// How it failed.
        class: FailureClass,
        /// The failure in words.
        cause: Arc<str>,
    },
    /// The session failed after the call may have reached the server: it may have run.
    OutcomeUnknown {
        /// The session that failed.
        epoch: Epoch,
        /// How it failed.
        class: FailureClass,
        /// The failure in words.
        cause: Arc<str>,
    },
    /// The server wants fewer requests: this one did not run. The session is fine.
    RateLimited {
        /// Which session was asked.
        epoch: Epoch,
        /// How long the server asks to be left alone, if it says so.
        retry_after: Option<Duration>,
        /// The failure in words.
        cause: Arc<str>,
    },
    /// The deadline passed without an answer. The server was told to cancel where it may have seen the call.
    DeadlineExceeded {
        /// The session that was asked.
        epoch: Epoch,
        /// How far the call got.
        sent: Sent,
    },
    /// The server asked for input and the host's own handler refused to give it. The request ran in part.
    InputRefused {
        /// Which session asked.
        epoch: Epoch,
        /// The handler's error.
        error: ErrorData,
    },
    /// The server answered in a shape that cannot be read as the result of this request.
    UnexpectedAnswer {
        /// Which session answered.
        epoch: Epoch,
        /// The part that cannot be read.
        cause: Arc<str>,
    },
    /// The parameters cannot be written as JSON; nothing was sent.
    InvalidParams(Arc<str>),
    /// The connection was shut down.
    Closed,
}

impl CallError {
    pub(crate) fn invalid_params(error: serde_json::Error) -> Self {
        Self::InvalidParams(error.to_string().into())
    }

    /// Whether the request certainly did not run.
    pub const fn not_run(&self) -> bool {
        match self {
            Self::Refused { .. }
            | Self::Busy
            | Self::NotOffered { .. }
            | Self::NotSent { .. }
            | Self::RateLimited { .. }
            | Self::InvalidParams(_)
            | Self::Closed
            | Self::DeadlineExceeded { sent: Sent::No | Sent::Refused, .. } => true,
            Self::Server { .. }
            | Self::OutcomeUnknown { .. }
            | Self::InputRefused { .. }
            | Self::UnexpectedAnswer { .. }
            | Self::DeadlineExceeded { sent: Sent::Maybe, .. } => false,
        }
    }
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Server { error, .. } => {
                write!(f, "the server answered with error {}: {}", error.code.0, error.message)
            }
            Self::Refused { why, retry_at, cause } => {
                match why {
                    Refusal::Parked(reason) => write!(f, "no session: the server is parked ({reason})")?,
                    Refusal::BreakerOpen => f.write_str("the circuit breaker is open: calls got no reply")?,
                    Refusal::NotInTime => f.write_str("no session in time: the connection is being rebuilt")?,
                    Refusal::Shutdown => f.write_str("the connection was shut down")?,
                }
                if let Some(at) = retry_at {
                    write!(f, "; next try in {:.1?}", at.saturating_duration_since(Instant::now()))?;
                }
                cause.as_ref().map_or(Ok(()), |cause| write!(f, "; last failure: {cause}"))
            }
            Self::Busy => f.write_str("the server's limit of calls in flight left no room before the deadline"),
            Self::NotOffered { epoch, tool } => write!(f, "the server of session {epoch} offers no tool `{tool}`"),
            Self::NotSent { cause, .. } => write!(f, "the call did not reach the server: {cause}"),
            Self::OutcomeUnknown { cause, .. } => write!(f, "the call may have run, its outcome is unknown: {cause}"),
            Self::RateLimited { retry_after: Some(delay), cause, .. } => {
                write!(f, "the server wants fewer requests, and none for {delay:?}: {cause}")
            }
            Self::RateLimited { cause, .. } => write!(f, "the server wants fewer requests: {cause}"),
            Self::DeadlineExceeded { sent: Sent::Maybe, .. } => {
                f.write_str("no answer by the deadline: the call may have run")
            }
            Self::DeadlineExceeded { .. } => {
                f.write_str("no answer by the deadline: the call did not reach the server")
            }
            Self::InputRefused { error, .. } => {
                write!(f, "the input that the server asked for was refused: {}", error.message)
            }
            Self::UnexpectedAnswer { cause, .. } => write!(f, "the server's answer cannot be read: {cause}"),
            Self::InvalidParams(cause) => write!(f, "the parameters cannot be written as JSON: {cause}"),
            Self::Closed => f.write_str("the connection was shut down"),
        }
    }
}

impl Error for CallError {}

/// Why a connection could not be set up.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum BuildError {
    /// `close_timeout` would end a close before the transport's own ladder is through.
    CloseTimeout {
        /// The knob's value.
        close_timeout: Duration,
        /// How long the transport's ladder may take.
        ladder: Duration,
    },
    /// There is no tokio runtime here.
    NoRuntime,
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CloseTimeout { close_timeout, ladder } => {
                write!(
                    f,
                    "`close_timeout` is {close_timeout:?}, not above the close ladder of the transport ({ladder:?})"
                )
            }
            Self::NoRuntime => f.write_str("a connection must be built inside a tokio runtime"),
        }
    }
}

impl std::error::Error for BuildError {}
