//! What the host is told when its session begins: the server's own words, those of an earlier run, or a guess.

use rmcp::model::ProtocolVersion;
use serde_json::value::RawValue;
use tokio::time::timeout;

use super::answer::{error_of, is_outage};
use super::asks::Answer;
use super::dispatch::{Session, Upstream};
use crate::connection::RawRequest;
use crate::options::CallOptions;
use crate::protocol::Era;
use crate::protocol::era::ours;
use crate::protocol::frame::{Object, member, set_member, string};

/// What a server that is not known may be able to do.
pub(super) const EVERYTHING: &str = r#"{"tools":{"listChanged":true},"prompts":{"listChanged":true},"resources":{"listChanged":true,"subscribe":true},"completions":{},"logging":{}}"#;
const SERVER_INFO: &str = "io.modelcontextprotocol/serverInfo";

/// What a server said of itself, the result of `initialize` or `server/discover`.
pub(super) struct Greeting {
    pub(super) era: Era,
    pub(super) raw: Box<RawValue>,
}

impl Greeting {
    fn member(&self, name: &str) -> Option<Box<RawValue>> {
        let Object(members) = serde_json::from_str(self.raw.get()).ok()?;
        member(&members, name).map(ToOwned::to_owned)
    }

    fn server_info(&self) -> Option<Box<RawValue>> {
        self.member("serverInfo").or_else(|| {
            let meta = self.member("_meta")?;
            let Object(members) = serde_json::from_str(meta.get()).ok()?;
            member(&members, SERVER_INFO).map(ToOwned::to_owned)
        })
    }

    /// The same as the result of `initialize`, for a host that asked for this version.
    pub(super) fn initialized(&self, requested: &str) -> Box<RawValue> {
        let spoken = known(Era::Legacy, requested).unwrap_or(ProtocolVersion::LATEST_WITH_INITIALIZE);
        if self.era == Era::Legacy {
            // Words of an earlier session may be of a version that this host does not speak.
            let said = self.member("protocolVersion").and_then(|said| string(&said).map(|said| said.into_owned()));
            let newer = said.is_some_and(|said| said.as_str() > spoken.as_str());
            let older = newer.then(|| set_member(&self.raw, "protocolVersion", &quoted(spoken.as_str()))).flatten();
            return older.unwrap_or_else(|| self.raw.clone());
        }
        self.said(&[("protocolVersion", quoted(spoken.as_str()))])
    }

    /// The same as the result of `server/discover`, for a host that speaks this version.
    pub(super) fn discovered(&self, requested: &str) -> Box<RawValue> {
        if self.era == Era::Modern {
            return self.raw.clone();
        }
        let spoken = known(Era::Modern, requested).unwrap_or(ProtocolVersion::NO_INITIALIZE);
        let info = self.server_info().map(|info| format!(r#"{{"{SERVER_INFO}":{}}}"#, info.get()));
        let info = info.map(|info| ("_meta", info));
        let said = [
            ("resultType", quoted("complete")),
            ("supportedVersions", format!("[{}]", quoted(spoken.as_str()))),
            ("ttlMs", "0".to_owned()),
            ("cacheScope", quoted("private")),
        ];
        self.said(&said.into_iter().chain(info).collect::<Vec<_>>())
    }

    fn said(&self, first: &[(&str, String)]) -> Box<RawValue> {
        let copied = ["capabilities", "instructions"].map(|name| (name, self.member(name)));
        let copied = copied.into_iter().chain([("serverInfo", self.server_info())]);
        let copied = copied.filter_map(|(name, value)| Some((name, value?.get().to_owned())));
        let members = first.iter().cloned().chain(copied).map(|(name, value)| format!("{}:{value}", quoted(name)));
        let text = format!("{{{}}}", members.collect::<Vec<_>>().join(","));
        RawValue::from_string(text).unwrap_or_else(|_| RawValue::NULL.to_owned())
    }
}

pub(super) fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// The version of this name, if it is one of the era that we know.
fn known(era: Era, name: &str) -> Option<ProtocolVersion> {
    ours(era).find(|version| version.as_str() == name)
}

impl Session {
    /// The answer to `initialize`.
    pub(super) async fn initialize(&self, upstream: &Upstream) -> Box<RawValue> {
        let (greeting, guessed) = self.greeting(upstream).await;
        self.changes.greet(guessed);
        greeting.initialized(upstream.version())
    }

    /// The answer to `server/discover`: the server's, where it knows that request.
    pub(super) async fn discover(&self, upstream: &Upstream, params: Option<&RawValue>) -> Answer {
        let (greeting, guessed) = self.greeting(upstream).await;
        self.changes.greet(guessed);
        if guessed || greeting.era == Era::Legacy {
            return Ok(greeting.discovered(upstream.version()));
        }
        // A host may take it for a sign of life, and waits no longer than at the start.
        let wait = self.options.start_wait;
        let options =
            CallOptions { timeout: wait, max_wait: wait.min(self.options.calls.max_wait), ..self.options.calls };
        let request = RawRequest { method: "server/discover", params, era: Era::Modern };
        match upstream.connection.request_raw(request, &options).await {
            Ok((_, result)) => Ok(result),
            Err(error) if is_outage(&error) => Ok(greeting.discovered(upstream.version())),
            Err(error) => Err(error_of(&upstream.connection, &error)),
        }
    }

    /// What is known of the server once it is there, or the wait is over; and whether it is a guess.
    async fn greeting(&self, upstream: &Upstream) -> (Greeting, bool) {
        // An error says that the wait is over.
        drop(timeout(self.options.start_wait, upstream.connection.settled()).await);
        if let Some(session) = &upstream.connection.0.published.borrow().session {
            let era = if session.server().protocol_version.has_initialize() { Era::Legacy } else { Era::Modern };
            return (Greeting { era, raw: session.server_raw().to_owned() }, false);
        }
        let words = upstream.connection.last_failure().unwrap_or_else(|| "it has not answered yet".into());
        if let Some(Greeting { era, raw }) = self.cached() {
            tracing::info!(cause = %words, "the server is not there: the host is told what it said before");
            return (Greeting { era: *era, raw: raw.clone() }, true);
        }
        tracing::info!(cause = %words, "the server is not there: the host is promised everything");
        let name = quoted(&self.options.name);
        let guess = format!(
            r#"{{"protocolVersion":"{}","capabilities":{EVERYTHING},"serverInfo":{{"name":{name},"version":"0"}}}}"#,
            ProtocolVersion::LATEST_WITH_INITIALIZE.as_str()
        );
        let raw = RawValue::from_string(guess).unwrap_or_else(|_| RawValue::NULL.to_owned());
        (Greeting { era: Era::Legacy, raw }, true)
    }
}
