//! What an HTTP answer means: status × headers × body × "did we send a session id", as tables.

use std::borrow::Cow;
use std::time::{Duration, SystemTime};

use http::header::{RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderMap, StatusCode};
use mcp_reconnect_core::replay::Sent;
use mcp_reconnect_core::{Failure, FailureClass};

use crate::message::{Message, messages};
use crate::retry_after::retry_after;

/// The meaning of an answer other than 2xx for the request that got it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Classification {
    /// The body is the answer: a JSON-RPC error with the request's own id.
    Answer,
    /// The server has no such session (any more): its gate refused the request, no handler ran.
    SessionGone,
    /// The credentials were refused. With the challenge, which is empty where there is none.
    Unauthorized(String),
    /// These credentials will never do for this (403 without a challenge).
    Forbidden,
    /// The server wants fewer requests (429).
    RateLimited(Option<Duration>),
    /// Without a session id, 404: a route that is missing, at least for now.
    NotFound,
    /// The request was refused as it is (another 4xx, or a redirect that is not followed).
    Refused,
    /// The server, or what is in front of it, failed (5xx): the request may have run.
    ServerError(Option<Duration>),
}

impl Classification {
    /// The class, as the machine will see it, with the server's hint.
    pub fn failure(&self) -> Failure {
        let (class, retry_after) = match self {
            Self::SessionGone => (FailureClass::SessionGone, None),
            Self::Unauthorized(_) | Self::Forbidden => (FailureClass::NeedsAuth, None),
            Self::RateLimited(hint) => (FailureClass::RateLimited, *hint),
            Self::ServerError(hint) => (FailureClass::Transport, *hint),
            Self::Answer | Self::NotFound | Self::Refused => (FailureClass::Transport, None),
        };
        Failure { class, retry_after }
    }

    /// How far the request got.
    pub const fn sent(&self) -> Sent {
        match self {
            Self::Answer | Self::ServerError(_) => Sent::Maybe,
            Self::SessionGone
            | Self::Unauthorized(_)
            | Self::Forbidden
            | Self::RateLimited(_)
            | Self::NotFound
            | Self::Refused => Sent::Refused,
        }
    }
}

/// One way in which servers say that a session is gone.
#[derive(Clone, Copy, Debug)]
pub struct Loss {
    /// The status.
    pub status: u16,
    /// What the body must say.
    pub says: Says,
    /// Who answers so.
    pub who: &'static str,
}

/// What a body must say to be a session loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Says {
    /// Anything.
    Anything,
    /// One of [`GATE_SENTENCES`], and no login is asked for.
    GateSentence,
}

/// Session loss by status, where the request carried a session id. A JSON-RPC error that is the gate's
/// ([`is_gate_error`]) is one with any status, 200 included. What is not here falls to the general rules.
pub const SESSION_LOSS: &[Loss] = &[
    Loss { status: 404, says: Says::Anything, who: "the specification; TypeScript with a session store, Python, rmcp" },
    Loss { status: 400, says: Says::GateSentence, who: "server-everything; TypeScript with one transport per process" },
    Loss { status: 401, says: Says::GateSentence, who: "gateways that check the session where they check the login" },
    Loss { status: 410, says: Says::Anything, who: "servers that keep a list of what they have ended" },
];

/// What session gates say, in lower case, without the prefixes of [`GATE_PREFIXES`].
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

/// What may come before a gate's sentence.
pub const GATE_PREFIXES: &[&str] = &["bad request: ", "unauthorized: ", "not found: "];

/// The codes that gates use: TypeScript -32000 and -32001, Python -32600, and 32600 for its local error for a 404.
pub const GATE_CODES: &[i64] = &[-32000, -32001, -32600, 32600];

/// Whether these are the words of a session gate.
pub fn is_gate_sentence(text: &str) -> bool {
    let text = text.trim().trim_end_matches('.').to_ascii_lowercase();
    let bare = GATE_PREFIXES.iter().find_map(|prefix| text.strip_prefix(prefix)).unwrap_or(&text);
    GATE_SENTENCES.contains(&bare)
}

/// Whether a JSON-RPC error, whatever the status it came with, is the session gate speaking: no handler ran, and no
/// later request will fare better on this session.
pub fn is_gate_error(code: i64, message: &str) -> bool {
    GATE_CODES.contains(&code) && is_gate_sentence(message)
}

/// What was asked.
#[derive(Clone, Copy, Debug, Default)]
pub struct Asked<'a> {
    /// The request's id as it was written, where it was a request.
    pub id: Option<&'a str>,
    /// Whether it carried a session id.
    pub session: bool,
}

/// What an answer other than 2xx means. `now` is what a date in `Retry-After` is compared with.
pub fn classify(
    asked: Asked<'_>,
    status: StatusCode,
    headers: &HeaderMap,
    body: &str,
    now: SystemTime,
) -> Classification {
    let challenge = headers.get(WWW_AUTHENTICATE).map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
    let answer = asked.id.and_then(|id| messages(body).into_iter().filter_map(Message::read).find(|m| m.answers(id)));
    let code = answer.as_ref().and_then(Message::rpc_error).map(|error| error.code);
    if asked.session && challenge.is_none() && is_session_loss(status, code, body) {
        return Classification::SessionGone;
    }
    let hint = || {
        let value = headers.get(RETRY_AFTER)?.to_str().ok()?;
        retry_after(value, now)
    };
    match status.as_u16() {
        401 => Classification::Unauthorized(challenge.unwrap_or_default()),
        403 if challenge.is_some() => Classification::Unauthorized(challenge.unwrap_or_default()),
        429 => Classification::RateLimited(hint()),
        _ if answer.is_some() => Classification::Answer,
        403 => Classification::Forbidden,
        404 => Classification::NotFound,
        501 => Classification::Refused,
        500.. => Classification::ServerError(hint()),
        _ => Classification::Refused,
    }
}

fn is_session_loss(status: StatusCode, code: Option<i64>, body: &str) -> bool {
    // From 2026-07-28 on an unknown method is a 404 as well, and names its request.
    const METHOD_NOT_FOUND: i64 = -32601;
    let rpc_errors = messages(body).into_iter().filter_map(|text| {
        let error = Message::read(text)?.rpc_error()?;
        Some(is_gate_error(error.code, &error.message))
    });
    let listed = SESSION_LOSS.iter().filter(|loss| loss.status == status.as_u16()).any(|loss| match loss.says {
        Says::Anything => code != Some(METHOD_NOT_FOUND),
        Says::GateSentence => is_gate_sentence(&words(body)),
    });
    listed || rpc_errors.into_iter().any(|gate| gate)
}

/// What a body says: the message of a JSON-RPC error, the `error` or `message` of other JSON, or its text.
pub(crate) fn words(body: &str) -> Cow<'_, str> {
    let body = body.trim();
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
