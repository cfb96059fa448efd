//! The terms of every session of a connection, and the settings that are wanted in each.

#![expect(deprecated, reason = "rmcp deprecates logging levels, which are how legacy servers are told")]

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use mcp_reconnect_core::Epoch;
use rmcp::model::{LoggingLevel, ServerPeerInfo};
use serde_json::value::RawValue;
use tokio::time::Instant;

use crate::link::Connector;
use crate::options::Require;
use crate::protocol::era::EraMemory;
use crate::protocol::{Client, EraPolicy};
use crate::session::catalogue::Catalogue;
use crate::session::view::Handler;
use crate::watched::Watched;
use crate::wire::RequestIds;

/// The terms of every epoch of a connection.
pub(crate) struct Spec {
    pub(crate) name: Arc<str>,
    pub(crate) connector: Box<dyn Connector>,
    pub(crate) handler: Box<dyn Fn(Epoch) -> Handler + Send + Sync>,
    /// The client that the connection speaks for, where that is not the handler's word.
    pub(crate) client: Option<Box<Client>>,
    pub(crate) memory: Arc<EraMemory>,
    pub(crate) policy: EraPolicy,
    pub(crate) require: Require,
    pub(crate) probe_patience: Mutex<Duration>,
    pub(crate) wanted: Watched<Wanted>,
    pub(crate) ids: RequestIds,
    /// The last session's server.
    pub(crate) met: Mutex<Option<Arc<ServerPeerInfo>>>,
    pub(crate) greetings: Mutex<Greetings>,
    /// The last list, of any session.
    pub(crate) known: Mutex<Arc<Catalogue>>,
}

impl Spec {
    /// The last list, of any session.
    pub(crate) fn known(&self) -> Arc<Catalogue> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// How long a greeting is no news once it was met: while a new version is rolled out, servers of both answer in turn.
const GREETING_KEPT: Duration = Duration::from_secs(3_600);
/// How many greetings are kept.
const GREETINGS: usize = 16;

/// The greetings that were met lately, each with the last time.
#[derive(Debug, Default)]
pub(crate) struct Greetings(Vec<(Arc<ServerPeerInfo>, Instant)>);

impl Greetings {
    /// Meets a server. Whether it was met lately.
    pub(crate) fn meet(&mut self, server: &Arc<ServerPeerInfo>, now: Instant) -> bool {
        let before = self.0.len();
        let mut lately = false;
        self.0.retain(|(known, at)| {
            let is_it = is_same_server(known, server);
            let recent = now.saturating_duration_since(*at) < GREETING_KEPT;
            lately |= is_it && recent;
            recent && !is_it
        });
        if self.0.len() == before && before >= GREETINGS {
            self.0.remove(0);
        }
        self.0.push((server.clone(), now));
        lately
    }
}

/// Whether two greetings are of one server: by name, version and capabilities.
pub(crate) fn is_same_server(one: &ServerPeerInfo, two: &ServerPeerInfo) -> bool {
    let name =
        |server: &ServerPeerInfo| server.server_info.as_ref().map(|info| (info.name.clone(), info.version.clone()));
    name(one) == name(two) && one.capabilities == two.capabilities
}

/// The settings that the host has asked for, for as long as the connection lives.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Wanted {
    pub(crate) log_level: Option<LoggingLevel>,
    pub(crate) subscriptions: BTreeSet<String>,
}

impl Wanted {
    /// Notes what a request of a client sets up, once it was answered.
    pub(crate) fn keep(&mut self, method: &str, params: &RawValue) {
        match Setting::read(method, params) {
            Some(Setting::Level(level)) => self.log_level = Some(level),
            Some(Setting::Subscribe(uri)) => _ = self.subscriptions.insert(uri),
            Some(Setting::Unsubscribe(uri)) => _ = self.subscriptions.remove(&uri),
            None => {}
        }
    }
}

/// A request that sets something up in a session.
pub(crate) enum Setting {
    Level(LoggingLevel),
    Subscribe(String),
    Unsubscribe(String),
}

impl Setting {
    /// Reads the setting that a request makes; `None` if it is another request, or its parameters cannot be read.
    pub(crate) fn read(method: &str, params: &RawValue) -> Option<Self> {
        #[derive(serde::Deserialize)]
        struct Parts {
            level: Option<LoggingLevel>,
            uri: Option<String>,
        }
        if !["logging/setLevel", "resources/subscribe", "resources/unsubscribe"].contains(&method) {
            return None;
        }
        let Parts { level, uri } = serde_json::from_str(params.get()).ok()?;
        match method {
            "logging/setLevel" => level.map(Self::Level),
            "resources/subscribe" => uri.map(Self::Subscribe),
            _ => uri.map(Self::Unsubscribe),
        }
    }
}

#[cfg(test)]
mod tests {
    use rmcp::model::{Implementation, ProtocolVersion, ServerCapabilities, ToolsCapability};

    use super::*;

    fn server(name: &str, version: &str) -> Arc<ServerPeerInfo> {
        let mut server = ServerPeerInfo::new(ProtocolVersion::LATEST, ServerCapabilities::default());
        server.server_info = Some(Implementation::new(name, version));
        Arc::new(server)
    }

    #[test]
    fn a_greeting_is_news_once_an_hour() {
        let (mut greetings, begin) = (Greetings::default(), Instant::now());
        let mut meet = |server: &Arc<ServerPeerInfo>, minutes: u64| {
            greetings.meet(server, begin + Duration::from_secs(60 * minutes))
        };
        let (old, new) = (server("s", "1"), server("s", "2"));
        assert!(!meet(&old, 0));
        assert!(meet(&old, 50));
        assert!(!meet(&new, 51));
        assert!(meet(&old, 52) && meet(&new, 53));
        assert!(!meet(&old, 52 + 60));
        assert!(!meet(&server("t", "2"), 113));
    }

    #[test]
    fn other_capabilities_are_another_server() {
        let mut other = (*server("s", "1")).clone();
        assert!(is_same_server(&server("s", "1"), &other));
        other.capabilities.tools = Some(ToolsCapability::default());
        assert!(!is_same_server(&server("s", "1"), &other));
    }

    #[test]
    fn greetings_do_not_grow_without_bound() {
        let (mut greetings, now) = (Greetings::default(), Instant::now());
        for number in 0..100 {
            greetings.meet(&server("s", &number.to_string()), now);
        }
        assert_eq!(greetings.0.len(), GREETINGS);
        assert!(greetings.meet(&server("s", "99"), now) && !greetings.meet(&server("s", "1"), now));
    }
}
