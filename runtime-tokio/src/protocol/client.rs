//! The client that a connection speaks for.

use std::fmt;
use std::sync::Arc;

use rmcp::model::{ClientConfig, ProtocolVersion};
use serde_json::value::{RawValue, to_raw_value};

use crate::protocol::era::version;
use crate::protocol::frame::{Meta, Object, excerpt, member, set_member, string};

pub(crate) const PROTOCOL_VERSION: &str = "io.modelcontextprotocol/protocolVersion";
pub(crate) const CLIENT_INFO: &str = "io.modelcontextprotocol/clientInfo";
pub(crate) const LOG_LEVEL: &str = "io.modelcontextprotocol/logLevel";
pub(crate) const CLIENT_CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";

/// A client in its own words: what it says of itself in `initialize`, or in the `_meta` of a modern request.
///
/// Members that no type here knows go to the server as they came.
#[derive(Clone)]
pub struct Client {
    version: ProtocolVersion,
    /// The parameters of `initialize`.
    initialize: Box<RawValue>,
    info: Option<Box<RawValue>>,
    capabilities: Box<RawValue>,
}

/// A client's words that do not say its version, or are no object.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NoClient(Box<str>);

impl fmt::Display for NoClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NoClient {}

impl Client {
    /// From the parameters of its `initialize` request.
    ///
    /// # Errors
    ///
    /// Parameters that are no object, or hold no `protocolVersion`.
    pub fn from_initialize(params: &RawValue) -> Result<Self, NoClient> {
        let Object(members) = object("params of initialize", params)?;
        let named = member(&members, "protocolVersion").and_then(string);
        let named = named.ok_or_else(|| NoClient("initialize: `protocolVersion` is missing or no string".into()))?;
        Ok(Self {
            version: version(&named),
            initialize: params.to_owned(),
            info: member(&members, "clientInfo").map(ToOwned::to_owned),
            capabilities: member(&members, "capabilities").map_or_else(empty, ToOwned::to_owned),
        })
    }

    /// From the `_meta` of a request of the modern era. Without the name that `initialize` wants it says `client`.
    ///
    /// # Errors
    ///
    /// A `_meta` that is no object, or says no protocol version.
    pub fn from_meta(meta: &RawValue) -> Result<Self, NoClient> {
        let Object(members) = object("_meta", meta)?;
        let named = member(&members, PROTOCOL_VERSION).and_then(string);
        let named =
            named.ok_or_else(|| NoClient(format!("`{PROTOCOL_VERSION}` is missing in _meta or no string").into()))?;
        let info = member(&members, CLIENT_INFO).map(ToOwned::to_owned);
        let capabilities = member(&members, CLIENT_CAPABILITIES).map_or_else(empty, ToOwned::to_owned);
        let unnamed = raw(r#"{"name":"client","version":"0"}"#.to_owned());
        let initialize = format!(
            r#"{{"protocolVersion":"{}","capabilities":{},"clientInfo":{}}}"#,
            ProtocolVersion::LATEST_WITH_INITIALIZE.as_str(),
            without_requests(&capabilities),
            info.as_deref().unwrap_or(&unnamed).get(),
        );
        Ok(Self { version: version(&named), initialize: raw(initialize), info, capabilities })
    }

    /// The words of rmcp's handler about itself.
    pub(crate) fn of(config: &ClientConfig) -> Self {
        let initialize = to_raw_value(config).unwrap_or_else(|_| empty());
        Self {
            version: config.protocol_version.clone(),
            initialize,
            info: to_raw_value(&config.client_info).ok(),
            capabilities: to_raw_value(&config.capabilities).unwrap_or_else(|_| empty()),
        }
    }

    /// The version that it wants to speak.
    pub(crate) const fn version(&self) -> &ProtocolVersion {
        &self.version
    }

    /// The parameters of `initialize` for this version: as they came, where it is their own.
    pub(crate) fn initialize(&self, version: &ProtocolVersion) -> Box<RawValue> {
        if self.version == *version {
            return self.initialize.clone();
        }
        let named = serde_json::Value::from(version.as_str()).to_string();
        set_member(&self.initialize, "protocolVersion", &named).unwrap_or_else(|| self.initialize.clone())
    }

    /// The `_meta` members that the modern era wants in every request.
    pub(crate) fn meta(&self, version: &ProtocolVersion) -> Arc<Meta> {
        let named = raw(serde_json::Value::from(version.as_str()).to_string());
        let info = self.info.clone().map(|info| (CLIENT_INFO.into(), info));
        let capabilities = (CLIENT_CAPABILITIES.into(), self.capabilities.clone());
        [(PROTOCOL_VERSION.into(), named)].into_iter().chain(info).chain([capabilities]).collect()
    }
}

/// Capabilities without what a modern client is never asked by request: in its era a server asks in its results.
fn without_requests(capabilities: &RawValue) -> String {
    let Ok(Object(members)) = serde_json::from_str::<Object<'_>>(capabilities.get()) else { return "{}".into() };
    let kept = members.iter().filter(|(name, _)| !["roots", "sampling", "elicitation"].contains(&&**name));
    let kept = kept.map(|(name, value)| format!("{}:{}", serde_json::Value::from(&**name), value.get()));
    format!("{{{}}}", kept.collect::<Vec<_>>().join(","))
}

fn object<'a>(what: &str, text: &'a RawValue) -> Result<Object<'a>, NoClient> {
    serde_json::from_str(text.get())
        .map_err(|error| NoClient(format!("{what}: no object ({error}): {}", excerpt(text.get())).into()))
}

fn empty() -> Box<RawValue> {
    raw("{}".to_owned())
}

/// Text that is known to be JSON.
fn raw(text: String) -> Box<RawValue> {
    RawValue::from_string(text).unwrap_or_else(|_| RawValue::NULL.to_owned())
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("version", &self.version).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn params(text: &str) -> Box<RawValue> {
        RawValue::from_string(text.to_owned()).unwrap()
    }

    #[test]
    fn its_own_version_keeps_every_byte() {
        let text = r#"{ "protocolVersion":"2025-06-18", "capabilities": {"x-new":{"a":1.0}} , "clientInfo":{"name":"h","extra":[ 1 ]},"more":null }"#;
        let client = Client::from_initialize(&params(text)).unwrap();
        assert_eq!(client.initialize(&version("2025-06-18")).get(), text);
        let other = client.initialize(&version("2025-03-26"));
        assert_eq!(other.get(), text.replace("2025-06-18", "2025-03-26"));
        let meta = client.meta(&ProtocolVersion::V_2026_07_28);
        let said: Vec<_> = meta.iter().map(|(name, value)| (&**name, value.get())).collect();
        assert_eq!(
            said,
            [
                (PROTOCOL_VERSION, r#""2026-07-28""#),
                (CLIENT_INFO, r#"{"name":"h","extra":[ 1 ]}"#),
                (CLIENT_CAPABILITIES, r#"{"x-new":{"a":1.0}}"#)
            ]
        );
    }

    #[test]
    fn a_modern_client_greets_a_legacy_server_without_requests() {
        let meta = format!(
            r#"{{"{PROTOCOL_VERSION}":"2026-07-28","{CLIENT_INFO}":{{"name":"m","version":"2"}},"{CLIENT_CAPABILITIES}":{{"sampling":{{}},"extensions":{{"a":{{}}}}}}}}"#
        );
        let client = Client::from_meta(&params(&meta)).unwrap();
        let said = client.initialize(&ProtocolVersion::LATEST_WITH_INITIALIZE);
        let said: serde_json::Value = serde_json::from_str(said.get()).unwrap();
        assert_eq!(
            said,
            serde_json::json!({ "protocolVersion": "2025-11-25", "capabilities": { "extensions": { "a": {} } },
                "clientInfo": { "name": "m", "version": "2" } })
        );
    }

    #[test]
    fn what_is_missing_is_named() {
        for (text, named) in
            [("[]", "no object"), ("{}", "protocolVersion"), (r#"{"protocolVersion":7}"#, "protocolVersion")]
        {
            assert!(Client::from_initialize(&params(text)).unwrap_err().to_string().contains(named), "{text}");
            assert!(Client::from_meta(&params(text)).unwrap_err().to_string().contains(named), "{text}");
        }
    }
}
