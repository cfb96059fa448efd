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
use crate::session::ask::AskMemory;
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
    /// The last list, of any session.
    pub(crate) known: Mutex<Arc<Catalogue>>,
    /// The credentials of the last dial.
    pub(crate) credentials: Mutex<DialledWith>,
    /// What is remembered of doubts over the sessions.
    pub(crate) doubts: Arc<AskMemory>,
}

impl Spec {
    /// The last list, of any session.
    pub(crate) fn known(&self) -> Arc<Catalogue> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The credentials that a dial went out with, compared with those at hand where it was refused for them.
#[derive(Debug, Default)]
pub(crate) struct DialledWith {
    digest: Option<u64>,
    /// When they were compared last.
    looked: Option<Instant>,
}

impl DialledWith {
    /// Another dial begins with these.
    pub(crate) fn dialled(&mut self, digest: Option<u64>) {
        self.digest = digest;
    }

    /// Whether they may be compared now: not sooner than this after the last time.
    pub(crate) fn look(&mut self, apart: Duration) -> bool {
        let now = Instant::now();
        let due = self.digest.is_some() && self.looked.is_none_or(|looked| now - looked >= apart);
        if due {
            self.looked = Some(now);
        }
        due
    }

    /// Whether these are other ones.
    pub(crate) fn differs(&self, digest: Option<u64>) -> bool {
        digest.is_some() && self.digest.is_some() && digest != self.digest
    }
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
