//! Requests that are sent as they are, adapted to the era of the session that is asked.

use serde_json::value::RawValue;

use crate::protocol::Era;
use crate::protocol::client::{CLIENT_CAPABILITIES, CLIENT_INFO, LOG_LEVEL, PROTOCOL_VERSION};
use crate::protocol::frame::{Object, member, set_member, with_first};
use crate::session::Session;

/// A request to be sent as it is.
#[derive(Clone, Copy, Debug)]
pub struct RawRequest<'a> {
    /// The method.
    pub method: &'a str,
    /// The parameters.
    pub params: Option<&'a RawValue>,
    /// The era that they are written for. For a session of the other one `_meta` is adapted: the client's context is added,
    /// or taken out. A result of a legacy server gets what a modern client insists on (`resultType`; `ttlMs` and
    /// `cacheScope` where they belong). Nothing else is touched.
    pub era: Era,
}

impl<'a> RawRequest<'a> {
    /// Whether a server of the session's era knows no such request: it is answered with an empty result, and what it
    /// says is [kept](crate::session::spec::Wanted::keep).
    pub(crate) fn needs_no_server(&self, session: &Session) -> bool {
        self.era == Era::Legacy
            && !session.server().protocol_version.has_initialize()
            && ["ping", "logging/setLevel", "resources/subscribe", "resources/unsubscribe"].contains(&self.method)
    }

    /// The parameters as this session knows them, where they are written otherwise.
    pub(crate) fn adapted(&self, session: &Session, params: Option<&RawValue>) -> Option<Box<RawValue>> {
        params.filter(|_| self.is_modern_before_legacy(session)).and_then(without_context)
    }

    /// The result as the client knows it.
    pub(crate) fn result(&self, session: &Session, result: Box<RawValue>) -> Box<RawValue> {
        let completed = if self.is_modern_before_legacy(session) { completed(self.method, &result) } else { None };
        completed.unwrap_or(result)
    }

    fn is_modern_before_legacy(&self, session: &Session) -> bool {
        self.era == Era::Modern && session.server().protocol_version.has_initialize()
    }
}

/// The members that a modern client wants to find in a result: its kind, and how long it may be kept.
const KIND: (&str, &str) = ("resultType", "\"complete\"");
const KEPT: [(&str, &str); 2] = [("ttlMs", "0"), ("cacheScope", "\"private\"")];
/// The requests whose results say how long they may be kept.
const CACHEABLE: [&str; 5] =
    ["tools/list", "prompts/list", "resources/list", "resources/templates/list", "resources/read"];

/// A result with the members that only modern servers write, before its own; `None` where it has them.
fn completed(method: &str, result: &RawValue) -> Option<Box<RawValue>> {
    let Object(members) = serde_json::from_str(result.get()).ok()?;
    let kept = KEPT.into_iter().filter(|_| CACHEABLE.contains(&method));
    let missing: Vec<_> = kept.chain([KIND]).filter(|(name, _)| member(&members, name).is_none()).collect();
    if missing.is_empty() {
        return None;
    }
    let add = |text: String, (name, value): (&str, &str)| with_first(&text, name, value);
    RawValue::from_string(missing.into_iter().fold(result.get().to_owned(), add)).ok()
}

/// Parameters without the context that modern clients put into `_meta`; `None` where there is none of it.
fn without_context(params: &RawValue) -> Option<Box<RawValue>> {
    const CONTEXT: [&str; 4] = [PROTOCOL_VERSION, CLIENT_INFO, CLIENT_CAPABILITIES, LOG_LEVEL];
    let Object(members) = serde_json::from_str(params.get()).ok()?;
    let Object(meta) = serde_json::from_str(member(&members, "_meta")?.get()).ok()?;
    let kept: Vec<_> = meta.iter().filter(|(name, _)| !CONTEXT.contains(&&**name)).collect();
    if kept.len() == meta.len() {
        return None;
    }
    let kept = kept.into_iter().map(|(name, value)| format!("{}:{}", serde_json::Value::from(&**name), value.get()));
    set_member(params, "_meta", &format!("{{{}}}", kept.collect::<Vec<_>>().join(",")))
}
