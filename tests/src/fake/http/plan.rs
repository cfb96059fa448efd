//! What a script says about HTTP.

use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use crate::fake::lex::{ScriptError, Token, Tokens};
use crate::fake::script::Action;

/// The lines about requests of HTTP as such.
pub(crate) const GATES: [&str; 10] = [
    "post",
    "get",
    "delete",
    "resume",
    "stale",
    "stale-initialize",
    "stale-get",
    "stale-delete",
    "missing",
    "unauthorized",
];

/// How a server speaks HTTP.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct HttpPlan {
    pub(crate) sessions: bool,
    /// Whether a request is answered by a stream of events, not by one JSON document.
    pub(crate) sse: bool,
    /// Instead of the right one.
    pub(crate) content_type: Option<HeaderValue>,
    pub(crate) required: Vec<Required>,
    pub(crate) tokens: Vec<Credential>,
    pub(crate) respawn: Option<Duration>,
}

impl Default for HttpPlan {
    fn default() -> Self {
        Self { sessions: true, sse: true, content_type: None, required: Vec::new(), tokens: Vec::new(), respawn: None }
    }
}

impl HttpPlan {
    pub(crate) fn apply(&mut self, setting: HttpSetting) {
        match setting {
            HttpSetting::Sessions(sessions) => self.sessions = sessions,
            HttpSetting::Sse(sse) => self.sse = sse,
            HttpSetting::ContentType(value) => self.content_type = Some(value),
            HttpSetting::Require(required) => self.required.push(required),
            HttpSetting::Tokens(tokens) => self.tokens = tokens,
            HttpSetting::Respawn(delay) => self.respawn = Some(delay),
        }
    }
}

/// A setting of HTTP.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum HttpSetting {
    Sessions(bool),
    Sse(bool),
    ContentType(HeaderValue),
    Require(Required),
    Tokens(Vec<Credential>),
    Respawn(Duration),
}

/// A header that each request must have, but the one that begins.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Required {
    pub(crate) name: String,
    /// `None`: any.
    pub(crate) value: Option<String>,
    pub(crate) status: u16,
}

/// A bearer token, and for how long after the start it is good.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Credential {
    pub(crate) token: String,
    pub(crate) until: Option<Duration>,
}

/// What a header says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum HeaderValue {
    Text(String),
    /// The header is left out.
    None,
    /// The date this far in the future.
    DateIn(Duration),
}

impl HeaderValue {
    #[expect(clippy::disallowed_methods, reason = "the header is a date of the wall clock")]
    pub(crate) fn render(&self) -> Option<String> {
        match self {
            Self::Text(text) => Some(text.clone()),
            Self::None => None,
            Self::DateIn(delay) => Some(httpdate::fmt_http_date(SystemTime::now() + *delay)),
        }
    }
}

/// An action of HTTP; the grammar's table explains them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum HttpAction {
    /// What `ok` is where a message has no say yet: go on.
    Pass,
    Status {
        status: u16,
        body: Body,
        headers: Vec<(String, HeaderValue)>,
    },
    WithStatus(u16),
    Header(String, HeaderValue),
    Headers,
    HeadersOnly,
    End,
    Cut,
    CutAfter(usize),
    Reset,
    BlackHole,
    EventId(String),
    Retry(Duration),
    Forget,
    SetToken(String),
    Disconnect,
}

/// The body that goes with a status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Body {
    Text(Vec<u8>),
    Json(Value),
}

impl HttpAction {
    pub(crate) fn settles(&self) -> bool {
        matches!(
            self,
            Self::Pass
                | Self::Status { .. }
                | Self::HeadersOnly
                | Self::End
                | Self::Cut
                | Self::Reset
                | Self::BlackHole
        )
    }

    pub(crate) fn needs_request(&self) -> bool {
        !matches!(self, Self::Forget | Self::SetToken(_) | Self::Disconnect)
    }
}

/// What a well-behaved server does about requests that its gates do not let through.
pub(crate) fn refusal(status: u16, code: i64, message: &str, headers: Vec<(String, HeaderValue)>) -> Vec<Action> {
    let error = json!({"jsonrpc": "2.0", "id": null, "error": {"code": code, "message": message}});
    vec![Action::Http(HttpAction::Status { status, body: Body::Json(error), headers })]
}

/// A setting of HTTP, if the line is one.
pub(crate) fn setting(tokens: &mut Tokens) -> Result<Option<HttpSetting>, ScriptError> {
    let setting = if tokens.eat_word("sessions") {
        HttpSetting::Sessions(tokens.parsed("none or required", |word| match word {
            "none" => Some(false),
            "required" => Some(true),
            _ => None,
        })?)
    } else if tokens.eat_word("answers") {
        HttpSetting::Sse(tokens.parsed("json or sse", |word| match word {
            "json" => Some(false),
            "sse" => Some(true),
            _ => None,
        })?)
    } else if tokens.eat_word("content-type") {
        HttpSetting::ContentType(header_value(tokens)?)
    } else if tokens.eat_word("require-header") {
        let name = header_name(tokens)?;
        let value = Some(text(tokens, "a header's value, or *")?).filter(|value| value != "*");
        tokens.parsed("->", |word| (word == "->").then_some(()))?;
        HttpSetting::Require(Required { name, value, status: status(tokens)? })
    } else if tokens.eat_word("token") {
        let mut credentials = Vec::new();
        loop {
            let token = tokens.word("a token")?;
            let until = if tokens.eat_word("until") { Some(tokens.duration()?) } else { None };
            credentials.push(Credential { token, until });
            if !tokens.eat(&Token::Comma) {
                break;
            }
        }
        HttpSetting::Tokens(credentials)
    } else if tokens.eat_word("respawn") {
        HttpSetting::Respawn(tokens.duration()?)
    } else {
        return Ok(None);
    };
    Ok(Some(setting))
}

/// The action of HTTP with this name, if there is one.
pub(crate) fn action(name: &str, tokens: &mut Tokens) -> Result<Option<HttpAction>, ScriptError> {
    let action = match name {
        "status" => {
            let status = status(tokens)?;
            let body = match (tokens.bytes_if(), tokens.json_if()?) {
                (_, Some(json)) => Body::Json(json),
                (text, None) => Body::Text(text.unwrap_or_default()),
            };
            let mut headers = Vec::new();
            while tokens.eat_word("header") {
                headers.push((header_name(tokens)?, header_value(tokens)?));
            }
            HttpAction::Status { status, body, headers }
        }
        "with-status" => HttpAction::WithStatus(status(tokens)?),
        "header" => HttpAction::Header(header_name(tokens)?, header_value(tokens)?),
        "retry-after" => HttpAction::Header("retry-after".into(), header_value(tokens)?),
        "headers" => HttpAction::Headers,
        "headers-only" => HttpAction::HeadersOnly,
        "end" => HttpAction::End,
        "cut" if tokens.eat_word("after") => HttpAction::CutAfter(tokens.size()?),
        "cut" => HttpAction::Cut,
        "reset" => HttpAction::Reset,
        "black-hole" => HttpAction::BlackHole,
        "event-id" => HttpAction::EventId(text(tokens, "an event id")?),
        "retry" => HttpAction::Retry(tokens.duration()?),
        "forget" => HttpAction::Forget,
        "disconnect" => HttpAction::Disconnect,
        "set-token" => HttpAction::SetToken(tokens.word("a token")?),
        _ => return Ok(None),
    };
    Ok(Some(action))
}

fn status(tokens: &mut Tokens) -> Result<u16, ScriptError> {
    let valid = |status: &u16| (200..600).contains(status);
    tokens.parsed("a status from 200 to 599", |word| word.parse().ok().filter(valid))
}

fn header_name(tokens: &mut Tokens) -> Result<String, ScriptError> {
    tokens.parsed("a header's name in lower case", |word| {
        let fits = word.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
        fits.then(|| word.to_owned())
    })
}

fn header_value(tokens: &mut Tokens) -> Result<HeaderValue, ScriptError> {
    if tokens.eat_word("none") {
        Ok(HeaderValue::None)
    } else if tokens.eat_word("date") {
        tokens.duration().map(HeaderValue::DateIn)
    } else {
        text(tokens, "a header's value, none, or date D").map(HeaderValue::Text)
    }
}

/// One line of text, in double quotes or as a word.
fn text(tokens: &mut Tokens, expected: &str) -> Result<String, ScriptError> {
    match tokens.text_if()? {
        Some(text) if text.contains(['\r', '\n']) => Err(tokens.error_before("a text of one line")),
        Some(text) => Ok(text),
        None => tokens.word(expected),
    }
}
