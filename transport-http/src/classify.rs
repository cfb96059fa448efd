//! The meaning of an HTTP answer for its request: rules over status, headers, body and what was asked.
//!
//! An answer that may mean two things is a [`Reach::Doubt`]: the caller finds out by asking the session something else. Words of known servers are a shortcut to that, no verdict of their own.

use std::borrow::Cow;
use std::time::{Duration, SystemTime};

use http::header::{RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderMap, StatusCode};
use mcp_reconnect_core::replay::Sent;
use mcp_reconnect_core::{Failure, FailureClass};

use crate::message::{Message, RpcError, messages, trimmed};
use crate::retry_after::retry_after;

/// How far the meaning of a failed exchange reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Nothing: it is settled, and concerns this exchange alone.
    Exchange,
    /// The session, or the way to it, may be broken: it must be asked.
    Doubt,
    /// No later exchange of this session will fare better.
    Session,
}

/// The meaning of an answer other than 2xx for its request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Classification {
    /// The body holds the answer, under the request's own id.
    Answer,
    /// The credentials were refused, with this challenge, which is empty where there is none.
    Unauthorized(String),
    /// There is no answer.
    Refused(Refusal),
}

/// A request that got no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The class, as the machine will see it, with the server's hint.
    pub failure: Failure,
    /// Whether other exchanges are concerned.
    pub reach: Reach,
    /// How far the request got. With [`Reach::Doubt`]: as long as nothing else was refused in the same way.
    pub sent: Sent,
    /// Whether it counts as [`Sent::Refused`] once something else was refused with the same status, code and message.
    pub gate: bool,
    /// Code and message of the JSON-RPC error that came instead of an answer.
    pub rpc: Option<(i64, Box<str>)>,
}

/// Statuses that are given before a handler is reached, if everything is refused with them.
const GATE_STATUSES: [u16; 7] = [400, 401, 402, 403, 404, 410, 501];
/// Statuses that are given before a handler is reached: about the request's form, its way, or its sender.
const NEVER_RUN: [u16; 15] = [405, 406, 407, 411, 413, 414, 415, 417, 421, 425, 426, 428, 429, 431, 511];

/// The headers of a request do not say what its body holds.
const HEADER_MISMATCH: i64 = -32020;
/// The client lacks a capability that the tool wants: the tool's own answer.
const MISSING_CAPABILITY: i64 = -32021;
/// The server does not speak this protocol version.
const UNSUPPORTED_VERSION: i64 = -32022;

/// The words of session gates, in lower case, without the prefixes of [`GATE_PREFIXES`].
///
/// Whole sentences, as the SDKs write them: a tool's own error may well speak of a session of its own.
pub const GATE_SENTENCES: &[&str] = &[
    "invalid or expired session",
    "invalid session id",
    "no valid session id",
    "no valid session id provided",
    "server not initialized",
    "session expired",
    "session has been terminated",
    "session not found",
    "session terminated",
    "unknown session",
];

/// Prefixes of a gate's sentence.
pub const GATE_PREFIXES: &[&str] = &["bad request: ", "unauthorized: ", "not found: "];

/// The codes that gates use: TypeScript -32000 and -32001, Python -32600, and 32600 for its local error for a 404.
pub const GATE_CODES: &[i64] = &[-32000, -32001, -32600, 32600];

/// An error that a server gives before it looks for a handler.
#[derive(Clone, Copy, Debug)]
pub struct Gate {
    /// Its code.
    pub code: i64,
    /// Its message, in lower case; `*` stands for any text.
    pub says: &'static str,
    /// The server that was tried.
    pub server: &'static str,
}

/// Errors that are known to come before every handler, beside those of [`is_gate_error`]. They are no verdict on a
/// session: a request that is malformed may get the same.
pub const GATES: &[Gate] = &[
    Gate { code: -32602, says: "invalid request parameters", server: "Python mcp 1.30, before `initialize`" },
    Gate {
        code: -32005,
        says: "session '*' not found or expired. please re-initialize the connection",
        server: "tower-mcp 0.24, after its session time-to-live",
    },
];

/// Whether these are the words of a session gate.
pub fn is_gate_sentence(text: &str) -> bool {
    let text = normal(text);
    let bare = GATE_PREFIXES.iter().find_map(|prefix| text.strip_prefix(prefix)).unwrap_or(&text);
    GATE_SENTENCES.contains(&bare)
}

/// Whether a JSON-RPC error that names no request is the session gate speaking.
pub fn is_gate_error(code: i64, message: &str) -> bool {
    GATE_CODES.contains(&code) && is_gate_sentence(message)
}

/// Whether a JSON-RPC error, if everything is refused with it, says that no handler ran: by [`is_gate_error`], or by
/// [`GATES`].
pub fn comes_before_handlers(code: i64, message: &str) -> bool {
    let text = normal(message);
    let says = |pattern: &str| match pattern.split_once('*') {
        Some((begin, end)) => text.strip_prefix(begin).is_some_and(|rest| rest.ends_with(end)),
        None => text == pattern,
    };
    is_gate_error(code, message) || GATES.iter().any(|gate| gate.code == code && says(gate.says))
}

fn normal(text: &str) -> String {
    text.trim().trim_end_matches('.').to_ascii_lowercase()
}

/// The request that was answered.
#[derive(Clone, Copy, Debug, Default)]
pub struct Asked<'a> {
    /// The request's id as it was written, where it was a request.
    pub id: Option<&'a str>,
    /// Whether it carried a session id.
    pub session: bool,
    /// Whether the handshake is over.
    pub established: bool,
    /// Whether the words of known session gates are a shortcut.
    pub words: bool,
}

/// Classifies an answer other than 2xx. `now` is what a date in `Retry-After` is compared with.
pub fn classify(
    asked: Asked<'_>,
    status: StatusCode,
    headers: &HeaderMap,
    body: &str,
    now: SystemTime,
) -> Classification {
    let challenge = headers.get(WWW_AUTHENTICATE).map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
    let hint = headers.get(RETRY_AFTER).and_then(|value| retry_after(value.to_str().ok()?, now));
    let found: Vec<_> = messages(body).into_iter().filter_map(Message::read).collect();
    let error = found.iter().find_map(Message::rpc_error);
    match (status.as_u16(), challenge) {
        (401 | 403, Some(challenge)) => Classification::Unauthorized(challenge),
        // Its words are a shortcut to what the credentials would be asked for in vain.
        (401, None) => match refusal(Asked { words: true, ..asked }, status, error, body, hint) {
            lost if lost.reach == Reach::Session => Classification::Refused(lost),
            _ => Classification::Unauthorized(String::new()),
        },
        (number, _) if number != 429 && asked.id.is_some_and(|id| found.iter().any(|message| message.answers(id))) => {
            Classification::Answer
        }
        _ => Classification::Refused(refusal(asked, status, error, body, hint)),
    }
}

/// Classifies a 2xx answer that holds no answer to the request, but perhaps an error that names no request.
#[cfg(any(feature = "client", test))]
pub(crate) fn nothing(asked: Asked<'_>, status: StatusCode, error: Option<RpcError<'_>>) -> Refusal {
    refusal(asked, status, error, "", None)
}

fn refusal(
    asked: Asked<'_>,
    status: StatusCode,
    error: Option<RpcError<'_>>,
    body: &str,
    hint: Option<Duration>,
) -> Refusal {
    let number = status.as_u16();
    let code = error.as_ref().map(|error| error.code);
    let request = asked.id.is_some();
    let gate_speaks = error.as_ref().is_some_and(|error| is_gate_error(error.code, &error.message))
        || matches!(number, 400 | 401) && is_gate_sentence(&words(body));
    // A rate limit says nothing of the session, whatever its words.
    let by_words = asked.words && gate_speaks && number != 429;
    let lost = request && asked.session && (matches!(number, 404 | 410) || by_words);
    let (class, reach) = match (number, code) {
        _ if lost => (FailureClass::SessionGone, Reach::Session),
        (429, _) => (FailureClass::RateLimited, Reach::Exchange),
        (_, Some(HEADER_MISMATCH | MISSING_CAPABILITY)) => (FailureClass::Transport, Reach::Exchange),
        (407, _) => (FailureClass::Permanent, Reach::Doubt),
        (403, _) if !asked.session && !asked.established => (FailureClass::Permanent, Reach::Doubt),
        _ => (FailureClass::Transport, Reach::Doubt),
    };
    let gate = GATE_STATUSES.contains(&number)
        || NEVER_RUN.contains(&number)
        || code == Some(UNSUPPORTED_VERSION)
        || error.as_ref().is_some_and(|error| comes_before_handlers(error.code, &error.message));
    let refused = match code {
        _ if lost || NEVER_RUN.contains(&number) => true,
        Some(HEADER_MISMATCH | UNSUPPORTED_VERSION) => true,
        Some(MISSING_CAPABILITY) => false,
        // Nothing has a handler before the handshake is over.
        _ => !asked.established && gate,
    };
    Refusal {
        failure: Failure { class, retry_after: hint.filter(|_| !lost) },
        // A notification or a response gets no answer either way.
        reach: if request { reach } else { Reach::Exchange },
        sent: if refused { Sent::Refused } else { Sent::Maybe },
        gate,
        rpc: error.map(|error| (error.code, error.message.into())),
    }
}

/// The words of a body: the message of a JSON-RPC error, the `error` or `message` of other JSON, or its text.
pub(crate) fn words(body: &str) -> Cow<'_, str> {
    let body = trimmed(body);
    match Message::read(body) {
        Some(message) => match message.error.map(|error| serde_json::from_str::<Cow<'_, str>>(error.get())) {
            Some(Ok(text)) => Cow::Owned(text.into_owned()),
            Some(Err(_)) => {
                message.rpc_error().map_or(Cow::Borrowed(body), |error| Cow::Owned(error.message.into_owned()))
            }
            None => Cow::Borrowed(body),
        },
        None => Cow::Borrowed(body),
    }
}

#[cfg(test)]
mod tests;
