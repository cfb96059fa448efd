//! A front: one host's session with a server that may come and go behind it.
//!
//! The host speaks MCP to the front, whole JSON-RPC messages as text, and its session lasts until the host ends it. Behind
//! it is a [`Connection`](crate::Connection), dialled in the era of the host's first message where the server speaks it,
//! with the host's own words. Frames are forwarded, not types: `params`, `result` and `error` go through as they came, both
//! ways. What is written anew is
//!
//! - the id of a request, each way: what a server asks has an id of the front's own for the host, and an answer for a
//!   session that has ended is dropped; what the host asks has an id that no other session has used, so that no late answer
//!   settles it. Each side sees its own ids come back, byte for byte.
//! - `_meta`, where host and server are of different eras, and the `subscriptionId` in it.
//!
//! What the front answers by itself: `ping`; `initialize` and `server/discover` with the server's own words (those of an
//! earlier run, or a guess that promises everything, where the server is not there in time); lists while there is no
//! session, from what is known; a modern host's `subscriptions/listen`, which outlives sessions.

mod all;
mod answer;
mod asks;
mod cache;
mod changes;
mod control;
mod dispatch;
mod greet;

pub mod listen;
mod offer;
mod open;
mod outbox;
mod request;
mod status;
mod streams;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use mcp_reconnect_core::replay::ReplayPolicy;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::config::ToolFilter;
use crate::connection::Builder;
use crate::options::CallOptions;
pub use all::{FrontAll, FrontAllOptions};
use dispatch::Session;
use status::Seat;
pub use status::{FrontSnapshot, FrontStatus, HostStatus};

/// How many messages of a host wait before it has to.
const HOST_CAPACITY: usize = 64;

/// How a front behaves.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct FrontOptions {
    /// What the front calls itself where the server has not said who it is. Default `mcp-reconnect`.
    pub name: Arc<str>,
    /// How long `initialize`, `server/discover` and lists wait for a server that is not there. Default 5 s.
    pub start_wait: Duration,
    /// What calls may take. A host has its own patience and cancels, so that the default `timeout` is a day; a call waits
    /// 30 s for a session; one that may be sent again gives a silent server up after what its connector says
    /// ([`Connector::hung_after`](crate::link::Connector::hung_after)) where `hung_after` is `None`.
    pub calls: CallOptions,
    /// Where to keep what the server says of itself, for the next start. Default: nowhere.
    pub cache: Option<PathBuf>,
    /// Which of the server's tools the host gets to see, and may call. Default: all.
    pub tools: ToolFilter,
    /// Whether there are two tools more, by which a model sees how the connection stands (`connection_status`) and tries
    /// to have it back (`reconnect`). Default `false`.
    pub control_tools: bool,
}

impl Default for FrontOptions {
    fn default() -> Self {
        Self {
            name: "mcp-reconnect".into(),
            start_wait: Duration::from_secs(5),
            calls: CallOptions {
                timeout: Duration::from_secs(86_400),
                max_timeout: None,
                max_wait: Duration::from_secs(30),
                replay: ReplayPolicy::Annotated,
                hung_after: None,
            },
            cache: None,
            tools: ToolFilter::default(),
            control_tools: false,
        }
    }
}

/// A host's end of a front: whole JSON-RPC messages as text.
#[derive(Debug)]
pub struct HostEnd {
    /// What the host says. Dropping it is the end of the session.
    pub to_front: mpsc::Sender<Box<str>>,
    /// What the host is told; closed when nothing of the server is left.
    pub from_front: mpsc::Receiver<Box<str>>,
}

/// A host's session, before its first message.
#[derive(Debug)]
pub struct Front {
    upstream: Builder,
    options: FrontOptions,
    seat: Seat,
}

impl Front {
    /// A front for the server of this connection, which is begun with the host's first message. Its handler and its era
    /// are the front's to set.
    pub fn new(upstream: Builder, mut options: FrontOptions) -> Self {
        options.calls.hung_after.get_or_insert(upstream.connector().hung_after());
        Self { upstream, options, seat: Seat::default() }
    }

    /// What it calls itself where the server has not said who it is.
    pub fn name(&self) -> &Arc<str> {
        &self.options.name
    }

    /// Tells at any time how it stands.
    pub fn status(&self) -> FrontStatus {
        FrontStatus::of(vec![self.seat.clone()])
    }

    /// The host's end, and the session, which runs as long as it is polled.
    ///
    /// It ends when the host's end is dropped or `stop` is cancelled, within the close ladder of the server's transport and
    /// a second for a host that does not read. Dropping it ends the session without waiting for that.
    pub fn open(self, stop: CancellationToken) -> (HostEnd, impl Future<Output = ()> + Send + 'static) {
        let (to_front, said) = mpsc::channel(HOST_CAPACITY);
        // What waits for the host is counted in bytes, elsewhere.
        let (told, from_front) = mpsc::channel(1);
        let session = Session::run(self, said, told, stop);
        (HostEnd { to_front, from_front }, session)
    }
}
