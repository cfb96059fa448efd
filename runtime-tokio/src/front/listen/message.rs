//! A message that was posted.

use std::time::Duration;

use axum::body::Body;
use axum::http::header::CONTENT_LENGTH;
use axum::http::{HeaderMap, StatusCode};
use serde_json::value::RawValue;
use tokio::time::timeout;

use super::answer::{Accepts, PARSE_ERROR, Refusal, invalid, is_json};
use super::edit::one_line;
use crate::protocol::frame::Frame;

/// How large the body of a request may be.
pub(super) const BODY_LIMIT: usize = 64 << 20;
/// How long the body of a request may take.
const BODY_PATIENCE: Duration = Duration::from_secs(60);

/// A message that was posted.
pub(super) struct Message {
    pub(super) text: Box<str>,
    pub(super) kind: Kind,
    pub(super) accepts: Accepts,
}

/// What a message is.
pub(super) enum Kind {
    /// With its id, as it is written.
    Request {
        id: Box<str>,
        method: Box<str>,
    },
    Notification {
        method: Box<str>,
    },
    Response,
}

impl Message {
    /// Reads the body of a request.
    ///
    /// # Errors
    ///
    /// Why it is none.
    pub(super) async fn read(headers: &HeaderMap, accepts: Accepts, body: Body) -> Result<Self, Refusal> {
        if !is_json(headers) {
            return Err(invalid(StatusCode::UNSUPPORTED_MEDIA_TYPE, "the body must be application/json"));
        }
        let text = read(headers, body).await?;
        let kind = tell_apart(&text)?;
        Ok(Self { text, kind, accepts })
    }
}

/// The body's text, as one line.
async fn read(headers: &HeaderMap, body: Body) -> Result<Box<str>, Refusal> {
    let too_large = || invalid(StatusCode::PAYLOAD_TOO_LARGE, "a message may have 64 MiB");
    let length = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    if length.is_some_and(|length| length > BODY_LIMIT as u64) {
        return Err(too_large());
    }
    // The limit is not told apart from a client that went away, which sees no answer.
    let bytes = timeout(BODY_PATIENCE, axum::body::to_bytes(body, BODY_LIMIT)).await;
    let bytes = bytes.map_err(|_| invalid(StatusCode::REQUEST_TIMEOUT, "the body took too long"))?;
    let bytes = bytes.map_err(|_| too_large())?;
    let text = String::from_utf8(bytes.into());
    Ok(one_line(text.map_err(|_| Refusal::new(StatusCode::BAD_REQUEST, PARSE_ERROR, "the body is no UTF-8"))?))
}

fn tell_apart(text: &str) -> Result<Kind, Refusal> {
    match Frame::parse(text) {
        Frame::Request { id, method, .. } => Ok(Kind::Request { id: id.get().into(), method: method.into() }),
        Frame::Notification { method, .. } => Ok(Kind::Notification { method: method.into() }),
        Frame::Response { .. } => Ok(Kind::Response),
        Frame::Unreadable(_) => Err(match serde_json::from_str::<&RawValue>(text) {
            Err(error) => Refusal::new(StatusCode::BAD_REQUEST, PARSE_ERROR, format!("no JSON: {error}")),
            Ok(value) if value.get().starts_with('[') => invalid(StatusCode::BAD_REQUEST, "batches are not supported"),
            Ok(_) => invalid(StatusCode::BAD_REQUEST, "no JSON-RPC message"),
        }),
    }
}
