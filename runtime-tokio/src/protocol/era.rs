//! Knowledge about a server's protocol era, over epochs; and versions, compared.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rmcp::model::ProtocolVersion;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::protocol::frame::RpcError;

/// How a server's sessions begin: the two families of protocol revisions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Era {
    /// Up to 2025-11-25: `initialize`, `ping`.
    Legacy,
    /// From 2026-07-28: `server/discover`, no handshake, the client's context in every request.
    Modern,
}

impl fmt::Display for Era {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Legacy => "legacy",
            Self::Modern => "modern",
        })
    }
}

/// Which era a connection speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EraPolicy {
    /// The server's own: found out once, then remembered.
    #[default]
    Auto,
    /// Always `initialize`.
    Legacy,
    /// Always `server/discover`.
    Modern,
}

/// Knowledge about a server's era that outlives the process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EraFacts {
    /// The era; `None` while it is unknown.
    pub era: Option<Era>,
    /// The version to begin with, where it is not the newest of the era.
    pub version: Option<String>,
    /// The server's name and version when this was learnt.
    pub server: Option<(String, String)>,
}

/// Knowledge about a server's era, shared by the epochs of a connection.
#[derive(Debug, Default)]
pub(crate) struct EraMemory {
    facts: Mutex<EraFacts>,
    /// The era that a server of unknown era is asked in first; `None`: the modern one.
    home: Option<Era>,
}

impl EraMemory {
    /// A memory that starts with what was learnt before.
    #[cfg(test)]
    pub(crate) fn new(facts: EraFacts) -> Arc<Self> {
        Self::at_home(facts, None)
    }

    /// A memory that starts with what was learnt before. A server that speaks both eras is spoken to in the client's
    /// own,
    /// `home`.
    pub(crate) fn at_home(facts: EraFacts, home: Option<Era>) -> Arc<Self> {
        Arc::new(Self { facts: Mutex::new(facts), home })
    }

    /// Whether a handshake begins with `initialize`.
    pub(crate) fn begins_legacy(&self) -> bool {
        self.lock().era.or(self.home) == Some(Era::Legacy)
    }

    /// The facts as of now.
    pub(crate) fn facts(&self) -> EraFacts {
        self.lock().clone()
    }

    /// The era is this one, whatever was believed before.
    pub(crate) fn learn(&self, era: Era) {
        let mut facts = self.lock();
        if facts.era != Some(era) {
            facts.era = Some(era);
            facts.version = None;
        }
    }

    /// A server that ended on the probe has not shown that it is of the legacy era: it may just be down. A client of
    /// the modern era asks it again; any other one begins with `initialize`, which costs such a server one spawn less.
    pub(crate) fn doubt(&self) {
        if self.home == Some(Era::Modern) {
            self.forget();
        }
    }

    /// The next handshake begins with this version.
    pub(crate) fn learn_version(&self, version: Option<&ProtocolVersion>) {
        self.lock().version = version.map(ToString::to_string);
    }

    /// The era is unknown again.
    pub(crate) fn forget(&self) {
        let mut facts = self.lock();
        facts.era = None;
        facts.version = None;
    }

    /// Notes which server answered. Another one than before is probed afresh at its next epoch.
    pub(crate) fn met(&self, server: Option<(String, String)>) {
        let mut facts = self.lock();
        if facts.server.is_some() && facts.server != server {
            facts.era = None;
            facts.version = None;
        }
        facts.server = server;
    }

    fn lock(&self) -> MutexGuard<'_, EraFacts> {
        self.facts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The version with this text.
pub(crate) fn version(text: &str) -> ProtocolVersion {
    let text: serde::de::value::StrDeserializer<'_, serde::de::value::Error> =
        serde::de::IntoDeserializer::into_deserializer(text);
    ProtocolVersion::deserialize(text).unwrap_or_default()
}

/// The newest version of this era that is among `offered`.
pub(crate) fn best_common(era: Era, offered: &[String]) -> Option<ProtocolVersion> {
    ours(era).find(|version| offered.iter().any(|offer| offer == version.as_str()))
}

/// The versions of this era that we speak, newest first.
pub(crate) fn ours(era: Era) -> impl Iterator<Item = ProtocolVersion> {
    let legacy = era == Era::Legacy;
    ProtocolVersion::KNOWN_VERSIONS.iter().rev().filter(move |version| version.has_initialize() == legacy).cloned()
}

/// The versions that a refusal of `requested` offers instead; `None` when it is no such refusal.
pub(crate) fn offered(error: &RpcError, requested: &ProtocolVersion) -> Option<Vec<String>> {
    let listed = error.data.as_ref().and_then(|data| match data {
        Value::Object(members) => {
            members.iter().find(|(name, _)| name.to_ascii_lowercase().starts_with("supported")).map(|(_, list)| list)
        }
        Value::Array(_) => Some(data),
        _ => None,
    });
    if let Some(Value::Array(list)) = listed {
        return Some(list.iter().filter_map(Value::as_str).map(str::to_owned).collect());
    }
    offered_in_text(&error.message, requested)
}

/// Finds the versions in a refusal in words, such as the body of an HTTP 400: `unsupported version (supported:
/// 2025-06-18)`.
pub(crate) fn offered_in_text(text: &str, requested: &ProtocolVersion) -> Option<Vec<String>> {
    if !text.to_ascii_lowercase().contains("version") {
        return None;
    }
    let words = text.split(|c: char| !(c.is_ascii_digit() || c == '-'));
    let dates: Vec<_> = words.filter(|word| is_date(word) && *word != requested.as_str()).map(str::to_owned).collect();
    (!dates.is_empty()).then_some(dates)
}

fn is_date(word: &str) -> bool {
    word.len() == 10
        && word
            .bytes()
            .enumerate()
            .all(|(at, byte)| if matches!(at, 4 | 7) { byte == b'-' } else { byte.is_ascii_digit() })
}
