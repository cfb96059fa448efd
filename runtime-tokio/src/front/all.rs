//! Every server of a config behind one front.
//!
//! The host has one session, and each server a [`Front`] of its own behind it: outages, eras, caches and changes are that
//! front's work, and what one server does is nothing to the others. What the host is told is put together:
//!
//! - greetings: the union of the capabilities (tasks left out), the instructions under the servers' names;
//! - lists: one page of all, in the order of the servers' names. A server whose list does not come in time stands with what
//!   is known of it. Tools have the names of a [`ToolNaming`]; every other byte of an entry stays. Of two prompts, resources
//!   or templates of one name the first counts, and the log says so;
//! - requests: to the server that has what they name. A resource that none has listed is asked for by the templates, then
//!   of one server after another;
//! - what servers ask: under ids that no other server has used; and what they tell.
//!
//! Methods that the protocol does not name are refused: nobody knows for which server they are.

mod greet;
mod hear;
mod hub;
mod lists;
mod member;
mod route;
mod template;

use std::sync::Arc;
use std::time::Duration;

use mcp_reconnect_core::DialGate;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{Front, FrontOptions, FrontStatus, HOST_CAPACITY, HostEnd};
use crate::config::{FleetConfig, ServerConfig, ToolFilter};
use crate::connection::gate::{DialQueue, Entrance, tenancy};
use crate::fleet::ToolNaming;
use crate::options::Connect;
use hub::Hub;

/// How a front of many servers behaves.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct FrontAllOptions {
    /// What it calls itself. Default `mcp-reconnect`.
    pub name: Arc<str>,
    /// What tools are called. Default `server__tool`.
    pub naming: ToolNaming,
    /// How long a list waits for one server; then it stands with what is known of it. Default 5 s.
    pub start_wait: Duration,
    /// Whether there are two tools more, by which a model sees how each connection stands (`connection_status`) and tries
    /// to have one back (`reconnect`). Default `false`.
    pub control_tools: bool,
}

impl Default for FrontAllOptions {
    fn default() -> Self {
        Self {
            name: "mcp-reconnect".into(),
            naming: ToolNaming::default(),
            start_wait: Duration::from_secs(5),
            control_tools: false,
        }
    }
}

/// A host's session with every server of a config, before its first message.
#[derive(Debug)]
pub struct FrontAll {
    options: FrontAllOptions,
    servers: Vec<Server>,
    /// The names of those that are not wanted.
    disabled: Vec<Arc<str>>,
}

#[derive(Debug)]
struct Server {
    name: Arc<str>,
    tools: ToolFilter,
    front: Front,
}

impl FrontAll {
    /// A front for the enabled servers of this config. `each` says how the front of one of them behaves; which of its tools
    /// are offered is the config's. They are dialled with the host's first message, as many at once as the config says.
    pub fn new(
        config: FleetConfig,
        options: FrontAllOptions,
        mut each: impl FnMut(&str, &ServerConfig) -> FrontOptions,
    ) -> Self {
        let gate = DialGate::new(config.max_dials).unwrap_or_else(|error| {
            tracing::warn!("{error}");
            DialGate::default()
        });
        let queue = Arc::new(DialQueue::new(gate));
        let (mut servers, mut disabled) = (Vec::new(), Vec::new());
        for (name, server) in config.servers {
            if !server.enabled {
                disabled.push(name.into());
                continue;
            }
            let options = FrontOptions { tools: server.tools.clone(), control_tools: false, ..each(&name, &server) };
            // A host lists what there is as its first step: that is a demand.
            let builder = server.builder(&name).connect(Connect::Eager);
            let front = Front::new(builder.entrance(Entrance::new(tenancy(), queue.clone())), options);
            servers.push(Server { name: name.into(), tools: server.tools, front });
        }
        Self { options, servers, disabled }
    }

    /// What it calls itself.
    pub fn name(&self) -> &Arc<str> {
        &self.options.name
    }

    /// Tells at any time how it stands.
    pub fn status(&self) -> FrontStatus {
        FrontStatus::of(self.servers.iter().map(|server| server.front.seat.clone()).collect())
    }

    /// The host's end, and the session, which runs as long as it is polled; as [`Front::open`].
    pub fn open(self, stop: CancellationToken) -> (HostEnd, impl Future<Output = ()> + Send + 'static) {
        let (to_front, said) = mpsc::channel(HOST_CAPACITY);
        let (told, from_front) = mpsc::channel(HOST_CAPACITY);
        (HostEnd { to_front, from_front }, Hub::run(self, said, told, stop))
    }
}
