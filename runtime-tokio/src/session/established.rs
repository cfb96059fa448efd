//! A session as the handshake left it.

use std::sync::Arc;

use rmcp::model::{ProtocolVersion, ServerPeerInfo};
use serde_json::value::RawValue;

use crate::protocol::Era;
use crate::protocol::frame::Meta;
use crate::wire::{Call, RequestOptions, Wire};

/// A session that the server has agreed to.
#[derive(Clone, Debug)]
pub(crate) struct Established {
    /// How the session began.
    pub(crate) era: Era,
    /// The agreed protocol version.
    pub(crate) version: ProtocolVersion,
    /// The result of `initialize` or `server/discover`, as it came.
    pub(crate) raw: Arc<RawValue>,
    /// rmcp's form of it; also name, version, capabilities and instructions of the server.
    pub(crate) peer: Arc<ServerPeerInfo>,
    /// The members that `_meta` of every request must hold; empty in the legacy era.
    pub(crate) meta: Arc<Meta>,
}

impl Established {
    /// Asks the server for a sign of life; any answer is one, an error too.
    pub(crate) fn ping(&self, wire: &Wire) -> Call {
        self.ask(wire, if self.version.has_initialize() { "ping" } else { "server/discover" })
    }

    /// Asks a question without parameters that is no call.
    pub(crate) fn ask(&self, wire: &Wire, method: &str) -> Call {
        wire.request(
            method,
            None,
            RequestOptions { meta: &self.meta, uncancelled: true, uncounted: true, ..Default::default() },
        )
    }
}
