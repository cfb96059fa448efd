//! A server's words about itself when a session begins, read leniently.

use rmcp::model::{Implementation, MetaObject, ProtocolVersion, ServerCapabilities, ServerPeerInfo};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::protocol::frame::Object;

/// The result of `initialize`.
pub(crate) struct InitializeReply {
    /// The version that the server chose.
    pub(crate) version: String,
    pub(crate) greeting: Greeting,
}

/// The result of `server/discover`.
pub(crate) struct DiscoverReply {
    /// The versions that the server speaks.
    pub(crate) versions: Vec<String>,
    pub(crate) greeting: Greeting,
}

/// The parts that both results have.
pub(crate) struct Greeting {
    /// The result as it came.
    pub(crate) raw: Box<RawValue>,
    server: Option<Implementation>,
    capabilities: ServerCapabilities,
    instructions: Option<String>,
    meta: Option<MetaObject>,
}

const SERVER_INFO: &str = "io.modelcontextprotocol/serverInfo";

impl InitializeReply {
    pub(crate) fn read(raw: Box<RawValue>) -> Result<Self, String> {
        let mut members = members(&raw)?;
        let Some(Value::String(version)) = members.remove("protocolVersion") else {
            return Err(format!(
                "initialize was answered without a protocol version: {}",
                crate::protocol::frame::excerpt(raw.get())
            ));
        };
        Ok(Self { version, greeting: Greeting::read(raw, members) })
    }
}

impl DiscoverReply {
    pub(crate) fn read(raw: Box<RawValue>) -> Result<Self, String> {
        let mut members = members(&raw)?;
        let Some(versions) = members.remove("supportedVersions").and_then(read) else {
            return Err(format!(
                "server/discover was answered without versions: {}",
                crate::protocol::frame::excerpt(raw.get())
            ));
        };
        Ok(Self { versions, greeting: Greeting::read(raw, members) })
    }
}

fn members(raw: &RawValue) -> Result<Map<String, Value>, String> {
    let Object(members) = serde_json::from_str(raw.get())
        .map_err(|error| format!("unreadable answer ({error}): {}", crate::protocol::frame::excerpt(raw.get())))?;
    // A member that cannot be read (a number that no type holds) is as one that is not known.
    let readable = members
        .into_iter()
        .filter_map(|(name, value)| Some((name.into_owned(), serde_json::from_str(value.get()).ok()?)));
    Ok(readable.collect())
}

fn read<T: for<'de> Deserialize<'de>>(value: Value) -> Option<T> {
    serde_json::from_value(value).ok()
}

impl Greeting {
    fn read(raw: Box<RawValue>, mut members: Map<String, Value>) -> Self {
        let meta: Option<MetaObject> = members.remove("_meta").and_then(read);
        let in_meta = meta.as_ref().and_then(|meta| meta.get(SERVER_INFO)).cloned();
        Self {
            raw,
            server: members.remove("serverInfo").or(in_meta).and_then(implementation),
            capabilities: members.remove("capabilities").map(capabilities).unwrap_or_default(),
            instructions: members.remove("instructions").and_then(read),
            meta,
        }
    }

    /// rmcp's form of it.
    pub(crate) fn peer(&self, version: ProtocolVersion) -> ServerPeerInfo {
        let mut peer = ServerPeerInfo::new(version, self.capabilities.clone());
        peer.server_info = self.server.clone();
        peer.instructions = self.instructions.clone();
        peer.meta = self.meta.clone();
        peer
    }
}

fn implementation(value: Value) -> Option<Implementation> {
    let text = |name| value.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
    let minimal = Implementation::new(text("name"), text("version"));
    let known = !minimal.name.is_empty();
    read(value).or(known.then_some(minimal))
}

/// A capability that is declared in a shape of its own counts as declared.
fn capabilities(value: Value) -> ServerCapabilities {
    if let Ok(capabilities) = ServerCapabilities::deserialize(&value) {
        return capabilities;
    }
    let Value::Object(members) = value else { return ServerCapabilities::default() };
    let readable = members.into_iter().filter(|(_, value)| !matches!(value, Value::Null | Value::Bool(false)));
    let readable = readable.map(|(name, value)| {
        let alone = Value::Object(Map::from_iter([(name.clone(), value.clone())]));
        let value = if ServerCapabilities::deserialize(&alone).is_ok() { value } else { Value::Object(Map::new()) };
        (name, value)
    });
    read(Value::Object(readable.collect())).unwrap_or_default()
}
