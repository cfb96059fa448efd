//! As much of a JSON-RPC message as HTTP has to know.

use std::borrow::Cow;

use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

/// The members of a frame that tell what it is.
#[derive(Deserialize)]
pub(crate) struct Message<'a> {
    #[serde(borrow, default)]
    pub(crate) id: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub(crate) method: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    pub(crate) params: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    pub(crate) result: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub(crate) error: Option<&'a RawValue>,
}

/// A member that is there, `null` included: `"result":null` is an answer.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<&'de RawValue>, D::Error> {
    Deserialize::deserialize(deserializer).map(Some)
}

impl<'a> Message<'a> {
    /// Reads a message; `None` for what is none.
    pub(crate) fn read(text: &'a str) -> Option<Self> {
        object(text)
    }

    /// Whether it answers the request with this id.
    pub(crate) fn answers(&self, id: &str) -> bool {
        let outcome = self.result.is_some() || self.error.is_some();
        self.method.is_none() && outcome && self.id.is_some_and(|own| bare(own.get()) == bare(id))
    }

    /// Whether it names no request: without an id, or with the one that the Python SDK makes up.
    pub(crate) fn is_unaddressed(&self) -> bool {
        self.id.is_none_or(|id| matches!(id.get(), "null" | "\"server-error\"" | "\"\""))
    }

    /// Code and message of its error, where it is one.
    pub(crate) fn rpc_error(&self) -> Option<RpcError<'a>> {
        let error = self.error.filter(|_| self.method.is_none())?;
        Some(object(error.get()).unwrap_or_default())
    }
}

/// Reads an object; an array would do as well for serde, member by member.
fn object<'a, T: Deserialize<'a>>(text: &'a str) -> Option<T> {
    if text.trim_ascii_start().starts_with('{') { serde_json::from_str(text).ok() } else { None }
}

/// Some servers turn a numeric id into a string.
fn bare(id: &str) -> &str {
    id.strip_prefix('"').and_then(|id| id.strip_suffix('"')).unwrap_or(id)
}

/// The parts of a JSON-RPC error that are told apart.
#[derive(Default, Deserialize)]
pub(crate) struct RpcError<'a> {
    #[serde(default)]
    pub(crate) code: i64,
    #[serde(borrow, default)]
    pub(crate) message: Cow<'a, str>,
}

/// The messages of a body or of an event: one, or the batch that some servers of 2025-03-26 answer with. A byte order
/// mark is none of it.
pub(crate) fn messages(body: &str) -> Vec<&str> {
    let body = trimmed(body);
    if body.starts_with('[')
        && let Ok(batch) = serde_json::from_str::<Vec<&RawValue>>(body)
    {
        return batch.into_iter().map(RawValue::get).collect();
    }
    vec![body]
}

/// A body without a byte order mark, and without white space around it.
pub(crate) fn trimmed(body: &str) -> &str {
    body.trim_start_matches('\u{feff}').trim()
}

#[cfg(test)]
mod tests {
    use super::{Message, messages};

    fn read(text: &str) -> Message<'_> {
        Message::read(text).unwrap()
    }

    #[test]
    fn an_answer_is_known_by_its_id_and_outcome() {
        assert!(read(r#"{"jsonrpc":"2.0","id":7,"result":null}"#).answers("7"));
        assert!(read(r#"{"id":"7","error":{"code":1}}"#).answers("7"));
        assert!(!read(r#"{"id":8,"result":{}}"#).answers("7"));
        // The server's own request may have the same id.
        assert!(!read(r#"{"id":7,"method":"ping"}"#).answers("7"));
        assert!(!read(r#"{"id":7}"#).answers("7"));
    }

    #[test]
    fn an_error_may_name_no_request() {
        for text in [
            r#"{"error":{"code":-32000,"message":"x"}}"#,
            r#"{"id":null,"error":{"code":-32000,"message":"x"}}"#,
            r#"{"id":"server-error","error":{"code":-32600,"message":"x"}}"#,
        ] {
            assert!(read(text).is_unaddressed() && read(text).rpc_error().is_some(), "{text}");
        }
        assert!(!read(r#"{"id":1,"error":{"code":-32000,"message":"x"}}"#).is_unaddressed());
        assert!(read(r#"{"result":{}}"#).rpc_error().is_none());
        assert!(read(r#"{"method":"x","error":{"code":-32000,"message":"x"}}"#).rpc_error().is_none());
    }

    #[test]
    fn an_array_is_no_message_and_no_error() {
        assert!(Message::read(r#"[7,null,null,{},null]"#).is_none());
        let error = read(r#"{"id":7,"error":[-32001,"Session not found"]}"#).rpc_error().unwrap();
        assert_eq!((error.code, &*error.message), (0, ""));
        assert!(Message::read(" {\"id\":7}").is_some());
    }

    #[test]
    fn a_batch_is_taken_apart() {
        assert_eq!(messages(r#" [{"id":1}, {"id":2}] "#), [r#"{"id":1}"#, r#"{"id":2}"#]);
        assert_eq!(messages(" {\"id\":1}\n"), [r#"{"id":1}"#]);
        assert_eq!(messages("\u{feff}[{\"id\":1}]"), [r#"{"id":1}"#]);
        assert_eq!(messages("[broken"), ["[broken"]);
    }
}
