//! JSON-RPC messages as text: told apart, taken apart and put together without a value tree.

use std::borrow::Cow;
use std::fmt::{self, Write as _};
use std::sync::Arc;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

/// One inbound message, by what it is. Members that JSON-RPC does not name are tolerated.
#[derive(Debug)]
pub(crate) enum Frame<'a> {
    /// The answer to a request.
    Response {
        /// The request's id as the peer wrote it: a number or a string.
        id: &'a RawValue,
        /// The `result`, or the `error`.
        outcome: Result<&'a RawValue, &'a RawValue>,
    },
    /// A request of the peer.
    Request {
        /// Its id as the peer wrote it.
        id: &'a RawValue,
        /// Its method.
        method: Cow<'a, str>,
        /// Its parameters.
        params: Option<&'a RawValue>,
    },
    /// A notification of the peer.
    Notification {
        /// Its method.
        method: Cow<'a, str>,
        /// Its parameters.
        params: Option<&'a RawValue>,
    },
    /// No message that could be told apart, or an error that names no request: it settles nothing.
    Unreadable(String),
}

#[derive(Deserialize)]
struct Members<'a> {
    #[serde(borrow, default, deserialize_with = "present")]
    id: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    method: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    params: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    result: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    error: Option<&'a RawValue>,
}

/// A member that is there, `null` included: `"result":null` is an answer.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<&'de RawValue>, D::Error> {
    Deserialize::deserialize(deserializer).map(Some)
}

impl<'a> Frame<'a> {
    /// Tells what `text` is.
    pub(crate) fn parse(text: &'a str) -> Self {
        let members = match serde_json::from_str::<Members<'a>>(text) {
            Ok(members) => members,
            Err(error) => return Self::Unreadable(format!("no JSON-RPC message ({error}): {}", excerpt(text))),
        };
        let id = members.id.filter(|id| is_id(id));
        let error = members.error.filter(|error| !is_null(error));
        if let Some(method) = members.method.and_then(string) {
            return match (id, members.id) {
                (Some(id), _) => Self::Request { id, method, params: members.params },
                (None, None) => Self::Notification { method, params: members.params },
                (None, Some(_)) => Self::Unreadable(format!("a request whose id cannot be read: {}", excerpt(text))),
            };
        }
        // An old habit writes both members, one of them null.
        let outcome = error.map(Err).or(members.result.map(Ok)).or(members.error.map(Err));
        match (id, outcome) {
            (Some(id), Some(outcome)) => Self::Response { id, outcome },
            (None, Some(Err(error))) => {
                Self::Unreadable(format!("an error that names no request: {}", excerpt(error.get())))
            }
            (_, _) => Self::Unreadable(format!("no JSON-RPC message: {}", excerpt(text))),
        }
    }
}

/// The id as a number, also where the peer turned it into a string or a float on the way.
pub(crate) fn id_number(id: &RawValue) -> Option<u64> {
    let text = id.get();
    let text = text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(text);
    text.parse().ok().or_else(|| {
        let number: f64 = text.parse().ok()?;
        // Exact only below 2^53.
        (number.fract() == 0.0 && (0.0..9_007_199_254_740_992.0).contains(&number)).then_some(number as u64)
    })
}

/// The id of the request that a broken message answers, as far as its own members can be told: it is no JSON, or only the
/// beginning of some.
pub(crate) fn broken_answer(text: &str) -> Option<u64> {
    if !text.starts_with('{') || serde_json::from_str::<IgnoredAny>(text).is_ok() {
        return None;
    }
    let (mut depth, mut quoted, mut escaped) = (0_usize, false, false);
    let (mut string, mut name, mut value) = (0..0, "", 0);
    let (mut id, mut answers) = (None, false);
    // The line that ends a text of several ends its last value, which may be cut off in any other.
    let end = text.contains('\n').then_some((text.len(), b','));
    for (at, byte) in text.bytes().enumerate().chain(end) {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => {
                quoted = !quoted;
                string = if quoted { at..at } else { string.start..at + 1 };
            }
            _ if quoted => {}
            b':' if depth == 1 => {
                (name, value) = (&text[string.clone()], at + 1);
                match name {
                    "\"method\"" => return None,
                    "\"jsonrpc\"" | "\"result\"" | "\"error\"" => answers = true,
                    _ => {}
                }
            }
            b',' | b'}' if depth == 1 && name == "\"id\"" && id.is_none() => id = Some(&text[value..at]),
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    id.filter(|_| answers).and_then(|id| id_number(serde_json::from_str(id).ok()?))
}

/// An id or a token in one spelling: a string without needless escapes, anything else as it came.
pub(crate) fn canonical(value: &RawValue) -> Box<str> {
    let text = value.get();
    if text.contains('\\') {
        serde_json::from_str::<serde_json::Value>(text).map_or_else(|_| text.into(), |value| value.to_string().into())
    } else {
        text.into()
    }
}

fn is_id(id: &RawValue) -> bool {
    id.get().starts_with(|first: char| first == '"' || first == '-' || first.is_ascii_digit())
}

pub(crate) fn is_null(value: &RawValue) -> bool {
    value.get() == "null"
}

/// The text of a JSON string; `None` for anything else.
pub(crate) fn string(value: &RawValue) -> Option<Cow<'_, str>> {
    let text = value.get();
    if !text.starts_with('"') {
        return None;
    }
    if text.contains('\\') {
        return serde_json::from_str::<String>(text).ok().map(Cow::Owned);
    }
    text.get(1..text.len() - 1).map(Cow::Borrowed)
}

/// The beginning of a message, for a log line or a cause.
pub(crate) fn excerpt(text: &str) -> &str {
    const EXCERPT: usize = 200;
    match text.char_indices().nth(EXCERPT) {
        Some((end, _)) => &text[..end],
        None => text,
    }
}

/// A JSON-RPC error in the peer's words; what is missing or of another type is made up for.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RpcError {
    /// The error's code; 0 where there is none.
    pub(crate) code: i64,
    /// The message.
    pub(crate) message: String,
    /// Its `data` member.
    pub(crate) data: Option<serde_json::Value>,
    /// The error as it came.
    pub(crate) json: Arc<str>,
}

impl RpcError {
    /// Reads an `error` member.
    pub(crate) fn parse(error: &RawValue) -> Self {
        #[derive(Default, Deserialize)]
        struct Parts<'a> {
            #[serde(borrow, default, deserialize_with = "present")]
            code: Option<&'a RawValue>,
            #[serde(borrow, default, deserialize_with = "present")]
            message: Option<&'a RawValue>,
            #[serde(borrow, default, deserialize_with = "present")]
            data: Option<&'a RawValue>,
        }
        let parts = serde_json::from_str::<Parts<'_>>(error.get()).unwrap_or_default();
        Self {
            code: parts.code.and_then(|code| code.get().trim_matches('"').parse().ok()).unwrap_or(0),
            message: match parts.message.and_then(string) {
                Some(message) => message.into_owned(),
                None => string(error).unwrap_or(Cow::Borrowed(excerpt(error.get()))).into_owned(),
            },
            data: parts.data.filter(|data| !is_null(data)).and_then(|data| serde_json::from_str(data.get()).ok()),
            json: error.get().into(),
        }
    }
}

impl fmt::Display for RpcError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (code {})", self.message, self.code)
    }
}

/// A request. `params` is its parameters' JSON text.
pub(crate) fn request(id: u64, method: &str, params: Option<&str>) -> Box<str> {
    build(Some(&id), Some(method), params.map(|params| ("params", params)))
}

/// A notification.
pub(crate) fn notification(method: &str, params: Option<&str>) -> Box<str> {
    build(None, Some(method), params.map(|params| ("params", params)))
}

/// The answer to the peer's request with this id.
pub(crate) fn result(id: &RawValue, result: &str) -> Box<str> {
    build(Some(&id.get()), None, Some(("result", result)))
}

/// The refusal of the peer's request with this id.
pub(crate) fn error(id: &RawValue, code: i32, message: &str) -> Box<str> {
    error_raw(id, error_body(code, message, None).get())
}

/// An `error` member; `data` is JSON text.
pub(crate) fn error_body(code: i32, message: &str, data: Option<&str>) -> Box<RawValue> {
    let mut body = format!(r#"{{"code":{code},"message":"#);
    push_string(&mut body, message);
    if let Some(data) = data {
        write!(body, r#","data":{data}"#).unwrap_or_default();
    }
    body.push('}');
    RawValue::from_string(body).unwrap_or_else(|_| RawValue::NULL.to_owned())
}

/// The refusal of the peer's request with this id, with an `error` member as it is.
pub(crate) fn error_raw(id: &RawValue, error: &str) -> Box<str> {
    build(Some(&id.get()), None, Some(("error", error)))
}

fn build(id: Option<&dyn fmt::Display>, method: Option<&str>, body: Option<(&str, &str)>) -> Box<str> {
    let mut text = String::with_capacity(64 + method.map_or(0, str::len) + body.map_or(0, |(_, body)| body.len()));
    text.push_str(r#"{"jsonrpc":"2.0""#);
    if let Some(id) = id {
        write!(text, r#","id":{id}"#).unwrap_or_default();
    }
    if let Some(method) = method {
        text.push_str(r#","method":"#);
        push_string(&mut text, method);
    }
    if let Some((name, body)) = body {
        write!(text, r#","{name}":{body}"#).unwrap_or_default();
    }
    text.push('}');
    text.into_boxed_str()
}

fn push_string(text: &mut String, value: &str) {
    // Without an early end this is done for many bytes at once.
    let escaped = |any, byte| any | (byte < 0x20) | (byte == b'"') | (byte == b'\\');
    if value.bytes().fold(false, escaped) {
        text.push_str(&serde_json::Value::from(value).to_string());
    } else {
        text.push('"');
        text.push_str(value);
        text.push('"');
    }
}

/// The `_meta` members that every request of an epoch carries, ready to be written.
pub(crate) type Meta = [(Box<str>, Box<RawValue>)];

/// `params` with `_meta` extended: by `meta` where it does not speak for itself, and by the progress token.
pub(crate) fn with_meta(params: Option<&str>, meta: &Meta, progress: Option<u64>) -> Result<String, serde_json::Error> {
    let mut members = params.map(serde_json::from_str::<Object<'_>>).transpose()?.unwrap_or_default().0;
    let own = members.iter().position(|(name, _)| name == "_meta").map(|at| members.remove(at).1);
    let own = match own {
        Some(own) if !is_null(own) => serde_json::from_str::<Object<'_>>(own.get())?.0,
        _ => Vec::new(),
    };
    let mut text = String::with_capacity(
        params.map_or(0, str::len) + 64 + meta.iter().map(|(n, v)| n.len() + v.get().len() + 4).sum::<usize>(),
    );
    text.push_str(r#"{"_meta":{"#);
    let mut first = true;
    let kept = own.iter().filter(|(name, _)| progress.is_none() || name != "progressToken");
    for (name, value) in kept {
        push_member(&mut text, &mut first, name, value.get());
    }
    for (name, value) in meta.iter().filter(|(name, _)| own.iter().all(|(known, _)| known != &**name)) {
        push_member(&mut text, &mut first, name, value.get());
    }
    if let Some(progress) = progress {
        push_member(&mut text, &mut first, "progressToken", &progress.to_string());
    }
    text.push('}');
    first = false;
    for (name, value) in &members {
        push_member(&mut text, &mut first, name, value.get());
    }
    text.push('}');
    Ok(text)
}

fn push_member(text: &mut String, first: &mut bool, name: &str, value: &str) {
    if !std::mem::replace(first, false) {
        text.push(',');
    }
    push_string(text, name);
    text.push(':');
    text.push_str(value);
}

/// The value of the first member of this name.
pub(crate) fn member<'a>(members: &[(Cow<'_, str>, &'a RawValue)], name: &str) -> Option<&'a RawValue> {
    members.iter().find(|(known, _)| known == name).map(|(_, value)| *value)
}

/// The value of the first member of this name, if this is an object.
#[cfg(feature = "front")]
pub(crate) fn member_of<'a>(object: &'a RawValue, name: &str) -> Option<&'a RawValue> {
    let Object(members) = serde_json::from_str(object.get()).ok()?;
    member(&members, name)
}

/// The text of the first member of this name, if it is a string.
#[cfg(feature = "front")]
pub(crate) fn text_of(object: &RawValue, name: &str) -> Option<String> {
    member_of(object, name).and_then(string).map(Cow::into_owned)
}

/// An object with this member's value replaced and every other byte as it was; `None` where it has no such member.
pub(crate) fn set_member(object: &RawValue, name: &str, value: &str) -> Option<Box<RawValue>> {
    let Object(members) = serde_json::from_str(object.get()).ok()?;
    let old = member(&members, name)?.get();
    let text = object.get();
    // The value was borrowed from the text.
    let at = old.as_ptr() as usize - text.as_ptr() as usize;
    RawValue::from_string(format!("{}{value}{}", &text[..at], &text[at + old.len()..])).ok()
}

/// An object with one more member in front.
pub(crate) fn with_first(object: &str, name: &str, value: &str) -> String {
    let rest = object.trim_start().strip_prefix('{').unwrap_or("}").trim_start();
    let comma = if rest.starts_with('}') { "" } else { "," };
    format!(r#"{{"{name}":{value}{comma}{rest}"#)
}

/// A result that says nothing.
pub(crate) fn empty_result() -> Box<RawValue> {
    RawValue::from_string("{}".to_owned()).unwrap_or_else(|_| RawValue::NULL.to_owned())
}

/// The members of a JSON object in their order, values unread.
#[derive(Default, Debug)]
pub(crate) struct Object<'a>(pub(crate) Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for Object<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Members;
        impl<'de> Visitor<'de> for Members {
            type Value = Object<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some((Name(name), value)) = map.next_entry()? {
                    members.push((name, value));
                }
                Ok(Object(members))
            }
        }
        deserializer.deserialize_map(Members)
    }
}

#[derive(Deserialize)]
#[serde(transparent)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);
