//! The state that a host keeps about its servers from one start to the next, in one file.
//!
//! A host that is started again goes on where it stopped: a server that was parked a minute ago keeps its wait
//! ([`Builder::restore`]), a server's protocol era is not probed again ([`Builder::era_facts`]), and what a server listed
//! last can be offered, marked as stale, before its first session ([`Builder::known_catalogue`]). The file is a cache:
//! without it, everything is found out again.
//!
//! ```no_run
//! # use mcp_reconnect::{Connection, fleet::state::{SavedServer, SavedState, StateFile}, link::Connector};
//! # async fn host(connector: impl Connector) -> Result<(), Box<dyn std::error::Error>> {
//! let file = StateFile::new("/var/lib/my-host/mcp-state.json");
//! let (kept, warnings) = file.load();
//! for warning in &warnings {
//!     eprintln!("{warning}");
//! }
//! let mut builder = Connection::builder(connector).name("files");
//! if let Some(server) = kept.server("files", "digest of its configuration") {
//!     builder = server.restore(builder);
//! }
//! let connection = builder.build()?;
//! // Later, and before the connection is shut down:
//! let server = SavedServer::of(&connection, "digest of its configuration");
//! file.save(&SavedState::from_iter([("files".to_owned(), server)]))?;
//! # Ok(()) }
//! ```
//!
//! # The file
//!
//! ```json
//! {"format":"mcp-reconnect-state","version":2,"servers":{"files":{"digest":"5f…","saved_at":1780000000000,
//!   "era":{"era":"legacy","version":null,"server":["files","1.2"]},"memory":{"status":"idle", …},
//!   "last_dial_at":1779999990000,"cause":"…","tools":[{"name":"read", …}]}}}
//! ```
//!
//! `saved_at` and `last_dial_at` are in milliseconds since 1970; the times in `memory` count from `saved_at`. `cause` is
//! the last failure in words, which may hold the last lines of the server's stderr; it is left out where there is none.
//! `tools` are as the server wrote them, left out where they were never listed; `approvals` is whatever the host keeps
//! there, left out where it is null. No credentials, no session ids, no environment, no command lines.
//!
//! Version 1 is read too: it had neither `last_dial_at` nor `cause`, and less in `memory`. Members that this version does
//! not know are left where they are when the file is written again: those of the file, and those of each server that is
//! saved under the same digest.
//!
//! # What becomes of a file that is not ours
//!
//! Nothing: it is neither read nor changed. Saving fails with a warning for as long as it is there: a file of another
//! program, of another version of this format, what cannot be read, and what is no regular file. A file of ours that is
//! damaged counts as empty; [`load`](StateFile::load) keeps it as `NAME.bak`, unless there is such a file.
//!
//! [`Builder::restore`]: crate::Builder::restore
//! [`Builder::era_facts`]: crate::Builder::era_facts
//! [`Builder::known_catalogue`]: crate::Builder::known_catalogue

mod file;
mod saver;
mod warning;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use mcp_reconnect_core::Memory;
use rmcp::model::Tool;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::approval::Approvals;
use crate::clock::unix_millis;
use crate::connection::{Builder, Connection};
use crate::protocol::EraFacts;
use crate::session::catalogue::{Catalogue, Item, Part};

pub use file::StateFile;
pub(super) use saver::Saver;
pub use warning::{StateProblem, StateWarning};

type Tools = Option<Arc<[Item<Tool>]>>;

/// The state of all servers, by name.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(transparent)]
pub struct SavedState {
    servers: BTreeMap<String, SavedServer>,
}

/// The state of one server.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SavedServer {
    digest: String,
    /// When `memory` was taken: milliseconds since 1970.
    saved_at: u64,
    era: EraFacts,
    /// Without the last dial.
    memory: Memory,
    /// When it was last dialled: milliseconds since 1970. By the wall clock, for that goes on between two processes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    last_dial_at: Option<u64>,
    /// The last failure, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cause: Option<Box<str>>,
    #[serde(default, skip_serializing_if = "Option::is_none", with = "tools")]
    tools: Tools,
    /// Anything that the host keeps beside it; null for nothing.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub approvals: Value,
}

impl SavedState {
    /// The state of this server, with the time that has passed since it was saved taken off its wait; `None` where
    /// there is none, or where its configuration had another digest.
    ///
    /// The wall clock says how much time has passed. One that was set back takes off nothing; a dial that was later than
    /// now by that clock counts as made now.
    pub fn server(&self, name: &str, digest: &str) -> Option<SavedServer> {
        self.server_at(name, digest, unix_millis())
    }

    fn server_at(&self, name: &str, digest: &str, now: u64) -> Option<SavedServer> {
        let server = self.servers.get(name).filter(|server| server.digest == digest)?;
        let mut server = server.clone();
        let passed = Duration::from_millis(now.saturating_sub(server.saved_at));
        let memory = &mut server.memory;
        memory.next_dial_in = memory.next_dial_in.map(|left| left.saturating_sub(passed));
        memory.hint_in = memory.hint_in.map(|left| left.saturating_sub(passed)).filter(|left| !left.is_zero());
        server.last_dial_at = server.last_dial_at.map(|at| at.min(now));
        server.saved_at = now;
        Some(server)
    }

    /// Keeps this about a server, in the place of what was kept before.
    pub fn insert(&mut self, name: impl Into<String>, server: SavedServer) {
        self.servers.insert(name.into(), server);
    }

    /// The approvals of all servers.
    pub(super) fn approvals(&self) -> Approvals {
        let of = |(name, server): (&String, &SavedServer)| Some((name.clone(), server.approvals.clone()));
        Approvals::from_parts(self.servers.iter().filter_map(of))
    }

    /// Forgets a server.
    pub fn remove(&mut self, name: &str) {
        self.servers.remove(name);
    }

    /// Everything that is kept, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &SavedServer)> {
        self.servers.iter().map(|(name, server)| (name.as_str(), server))
    }
}

impl FromIterator<(String, SavedServer)> for SavedState {
    fn from_iter<T: IntoIterator<Item = (String, SavedServer)>>(servers: T) -> Self {
        Self { servers: servers.into_iter().collect() }
    }
}

impl SavedServer {
    /// Takes the state of this connection as of now, without approvals. `digest` stands for the server's configuration:
    /// under another one, nothing of this is used again.
    ///
    /// Of a connection that was shut down, neither a park nor a wait is left to be kept.
    pub fn of(connection: &Connection, digest: impl Into<String>) -> Self {
        let tools = match connection.known_catalogue().tools {
            Part::Unlisted => None,
            Part::Listed(items) | Part::Stale { items, .. } => Some(items),
        };
        let (mut memory, saved_at) = (connection.memory(), unix_millis());
        let before = |ago: Duration| saved_at.saturating_sub(u64::try_from(ago.as_millis()).unwrap_or(u64::MAX));
        Self {
            digest: digest.into(),
            saved_at,
            era: connection.era_facts(),
            last_dial_at: memory.last_dial_ago.take().map(before),
            memory,
            cause: connection.last_failure().map(|cause| cut(&cause).into()),
            tools,
            approvals: Value::Null,
        }
    }

    /// The digest of the configuration that it was learnt under.
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// The facts about the server's protocol era.
    pub fn era(&self) -> &EraFacts {
        &self.era
    }

    /// The machine's memory, for the next one to go on with.
    pub fn memory(&self) -> Memory {
        let last_dial_ago = self.last_dial_at.map(|at| Duration::from_millis(self.saved_at.saturating_sub(at)));
        Memory { last_dial_ago, ..self.memory }
    }

    /// The last failure in words, where there was one since the last session.
    pub fn cause(&self) -> Option<&str> {
        self.cause.as_deref()
    }

    /// The server's last list; `None` where it never listed.
    pub fn catalogue(&self) -> Option<Catalogue> {
        let tools = self.tools.clone()?;
        Some(Catalogue { tools: Part::Listed(tools), ..Catalogue::default() })
    }

    /// Gives all of it to a connection that is set up.
    pub fn restore(&self, builder: Builder) -> Builder {
        let mut builder = builder.era_facts(self.era.clone()).restore(self.memory());
        if let Some(cause) = &self.cause {
            builder = builder.last_failure(&**cause);
        }
        match self.catalogue() {
            Some(known) => builder.known_catalogue(known),
            None => builder,
        }
    }
}

/// The first characters of a cause, as many as are kept.
fn cut(cause: &str) -> &str {
    const LONGEST: usize = 4096;
    cause.char_indices().nth(LONGEST).map_or(cause, |(end, _)| &cause[..end])
}

/// Tools as the texts that they were read from. One that cannot be read is left out: the server lists it again.
mod tools {
    use serde::{Deserialize, Deserializer, Serializer};
    use serde_json::value::RawValue;

    use super::Tools;
    use crate::session::catalogue::Item;

    pub(super) fn serialize<S: Serializer>(tools: &Tools, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(tools.iter().flat_map(|tools| tools.iter()).map(Item::json))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Tools, D::Error> {
        let texts = Option::<Vec<Box<RawValue>>>::deserialize(from)?;
        Ok(texts.map(|texts| texts.into_iter().filter_map(|text| Item::from_json(text).ok()).collect()))
    }
}

#[cfg(test)]
mod tests;
