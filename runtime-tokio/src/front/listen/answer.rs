//! The answers of the listener itself, and what a client takes.

use axum::body::Body;
use axum::http::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::Response;
use serde_json::json;

pub(super) const JSON: HeaderValue = HeaderValue::from_static("application/json");
const EVENTS: HeaderValue = HeaderValue::from_static("text/event-stream");

/// JSON-RPC's own codes.
pub(super) const PARSE_ERROR: i64 = -32700;
const INVALID_REQUEST: i64 = -32600;
pub(super) const METHOD_NOT_FOUND: i64 = -32601;
pub(super) const INVALID_PARAMS: i64 = -32602;
/// A request that was not passed on.
pub(super) const NOT_SENT: i64 = -32000;
/// A session that is not there; a request whose outcome nobody knows.
pub(super) const LOST: i64 = -32001;
/// A request that was cancelled; a code of the Language Server Protocol's.
const CANCELLED: i64 = -32800;
/// Headers and message disagree.
pub(super) const HEADER_MISMATCH: i64 = -32020;

/// A refusal: the status, and why in JSON-RPC's terms.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) status: StatusCode,
    pub(super) code: i64,
    pub(super) message: String,
    /// The id of the request that it is about, as it is written.
    pub(super) id: Option<Box<str>>,
}

impl Refusal {
    pub(super) fn new(status: StatusCode, code: i64, message: impl Into<String>) -> Self {
        Self { status, code, message: message.into(), id: None }
    }

    pub(super) fn of(mut self, id: Option<&str>) -> Self {
        self.id = id.map(Into::into);
        self
    }

    pub(super) fn into_response(self) -> Response {
        let error = json!({ "code": self.code, "message": self.message });
        let id = self.id.as_deref().unwrap_or("null");
        let mut response = json_response(self.status, format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{error}}}"#));
        if self.status == StatusCode::SERVICE_UNAVAILABLE {
            response.headers_mut().insert("retry-after", HeaderValue::from_static("5"));
        }
        response
    }
}

/// A request that is not as it must be.
pub(super) fn invalid(status: StatusCode, message: &str) -> Refusal {
    Refusal::new(status, INVALID_REQUEST, message)
}

/// The error of a request that its front left without an answer.
pub(super) fn lost(id: &str) -> Box<str> {
    let error = json!({
        "code": LOST,
        "message": "the session ended before the answer came: the request may have been carried out",
        "data": { "class": "transport", "outcome": "unknown", "reason": "the session ended", "retryAfterMs": null },
    });
    format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{error}}}"#).into()
}

/// The end of a request that its host has cancelled.
pub(super) fn given_up(id: &str) -> Box<str> {
    let error = json!({ "code": CANCELLED, "message": "the request was cancelled by its host" });
    format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{error}}}"#).into()
}

pub(super) fn json_response(status: StatusCode, body: impl Into<Body>) -> Response {
    let mut response = status_only(status, body);
    response.headers_mut().insert(CONTENT_TYPE, JSON);
    response
}

pub(super) fn event_stream(body: Body) -> Response {
    let mut response = Response::new(body);
    response.headers_mut().insert(CONTENT_TYPE, EVENTS);
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Some proxies gather a stream otherwise.
    response.headers_mut().insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

pub(super) fn status_only(status: StatusCode, body: impl Into<Body>) -> Response {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    response
}

/// What a client takes for an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Accepts {
    pub(super) json: bool,
    pub(super) events: bool,
}

impl Accepts {
    /// Reads the `Accept` headers; without one everything is taken.
    pub(super) fn of(headers: &HeaderMap) -> Self {
        let mut taken = Self { json: false, events: false };
        let mut any = false;
        for value in headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok()) {
            any = true;
            for range in value.split(',') {
                let mut parts = range.split(';').map(str::trim);
                let kind = parts.next().unwrap_or_default().to_ascii_lowercase();
                if parts.any(|part| part.strip_prefix("q=").and_then(|q| q.parse::<f32>().ok()) == Some(0.0)) {
                    continue;
                }
                taken.json |= matches!(&*kind, "application/json" | "application/*" | "*/*");
                taken.events |= matches!(&*kind, "text/event-stream" | "text/*" | "*/*");
            }
        }
        if any { taken } else { Self { json: true, events: true } }
    }
}

/// Whether the body is said to be JSON.
pub(super) fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    kind.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case("application/json")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_client_takes() {
        let of = |accept: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for value in accept {
                headers.append(ACCEPT, HeaderValue::from_static(value));
            }
            let Accepts { json, events } = Accepts::of(&headers);
            (json, events)
        };
        assert_eq!(of(&[]), (true, true));
        assert_eq!(of(&["application/json, text/event-stream"]), (true, true));
        assert_eq!(of(&["application/json", "text/event-stream"]), (true, true));
        assert_eq!(of(&["Application/JSON;charset=utf-8"]), (true, false));
        assert_eq!(of(&["text/event-stream, application/json;q=0"]), (false, true));
        assert_eq!(of(&["*/*"]), (true, true));
        assert_eq!(of(&["text/html"]), (false, false));
    }
}
