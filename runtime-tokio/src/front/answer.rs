//! What the host is told of a call that brought no result.

use std::time::Duration;

use mcp_reconnect_core::{FailureClass, Refusal};
use serde_json::json;
use serde_json::value::RawValue;
use tokio::time::Instant;

use super::dispatch::INVALID_PARAMS;
use crate::connection::Connection;
use crate::error::CallError;
use crate::protocol::frame;

/// The code of a call that did not run.
pub(super) const NOT_SENT: i32 = -32_010;
/// The code of a call that may have run.
pub(super) const UNKNOWN: i32 = -32_011;

/// The `error` member for a call: the server's own words, or ours for a model to act on. Its `data` says `class`,
/// `outcome` (`not_sent` or `unknown`), `reason`, and `retryAfterMs` where that is known.
pub(super) fn error_of(connection: &Connection, error: &CallError) -> Box<RawValue> {
    if let CallError::Server { json, .. } = error
        && let Ok(error) = RawValue::from_string(json.to_string())
    {
        return error;
    }
    if let CallError::InvalidParams(cause) = error {
        return frame::error_body(INVALID_PARAMS, cause, None);
    }
    let class = class(error).or_else(|| connection.snapshot().failure).map(FailureClass::as_str);
    let retry_after = retry_after(connection, error);
    let (code, outcome) = if error.not_run() { (NOT_SENT, "not_sent") } else { (UNKNOWN, "unknown") };
    let name = connection.name();
    let message = match (error.not_run(), retry_after) {
        (true, Some(after)) => {
            format!("{error}. Server `{name}` did not run it: it is safe to try again in {after:.0?}.")
        }
        (true, None) => format!("{error}. Server `{name}` did not run it: it is safe to try again."),
        (false, _) => format!("{error}. Check what has become of it on server `{name}` before you repeat it."),
    };
    let data = json!({
        "class": class,
        "outcome": outcome,
        "reason": error.to_string(),
        "retryAfterMs": retry_after.map(|after| u64::try_from(after.as_millis()).unwrap_or(u64::MAX)),
        "server": name,
    });
    frame::error_body(code, &message, Some(&data.to_string()))
}

fn class(error: &CallError) -> Option<FailureClass> {
    match error {
        CallError::NotSent { class, .. } | CallError::OutcomeUnknown { class, .. } => Some(*class),
        CallError::RateLimited { .. } => Some(FailureClass::RateLimited),
        CallError::DeadlineExceeded { .. } => Some(FailureClass::Unresponsive),
        _ => None,
    }
}

fn retry_after(connection: &Connection, error: &CallError) -> Option<Duration> {
    match error {
        // It is being tried, as often as for any caller.
        CallError::Refused { why: Refusal::NotInTime, retry_at: None, .. } => {
            Some(connection.tuning().config.demand_interval())
        }
        CallError::Refused { retry_at, .. } => {
            retry_at.map(|at| at.saturating_duration_since(Instant::now()).max(Duration::from_secs(1)))
        }
        CallError::RateLimited { retry_after, .. } => *retry_after,
        _ => error.not_run().then_some(Duration::from_secs(1)).filter(|_| !matches!(error, CallError::Closed)),
    }
}

/// Whether nothing was said by a server: there is no session.
pub(super) fn is_outage(error: &CallError) -> bool {
    matches!(
        error,
        CallError::Refused { .. }
            | CallError::NotSent { .. }
            | CallError::OutcomeUnknown { .. }
            | CallError::DeadlineExceeded { .. }
            | CallError::RateLimited { .. }
            | CallError::Busy
            | CallError::Closed
    )
}
