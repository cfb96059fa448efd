//! Many servers as one: registered by a configuration as often as the host likes, dialled at a common pace, their tools
//! in one list.
//!
//! ```no_run
//! use mcp_reconnect::config::{FleetConfig, ServerConfig};
//! use mcp_reconnect::fleet::{Fleet, Select};
//!
//! # async fn host() -> Result<(), Box<dyn std::error::Error>> {
//! let fleet = Fleet::builder().build()?;
//! let config = FleetConfig::default()
//!     .with("time", ServerConfig::stdio("mcp-server-time", ["--local-timezone=UTC"]))
//!     .with("files", ServerConfig::http("http://localhost:8000/mcp"));
//! println!("{}", fleet.apply(config.clone()));
//! println!("{}", fleet.apply(config)); // again, at any time: repairs what is stale, leaves alone what is healthy
//! fleet.ready(&Select::All, std::time::Duration::from_secs(5)).await;
//! for tool in fleet.tools() {
//!     println!("{}: {:?}", tool.name, tool.tool().description);
//! }
//! fleet.call_tool("time__get_current_time", None).await?;
//! fleet.shutdown().await;
//! # Ok(()) }
//! ```

mod apply;
mod approval;
mod call;
mod event;
mod names;
mod ready;
mod report;
pub mod state;
mod tenant;
mod tools;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use mcp_reconnect_core::{DialGate, Epoch, WakeCause};
use rmcp::{RoleClient, Service};
use tokio::sync::{Semaphore, broadcast};
use tokio_util::task::TaskTracker;

use crate::connection::gate::DialQueue;
use crate::connection::{Connection, ServerState, ServerStatus};
use crate::error::BuildError;
use crate::session::view::Handler;

pub use approval::{Aspect, Fingerprint};
pub use call::FleetCallError;
pub use event::{FleetEvent, FleetEvents};
pub use names::{NamingError, ToolNaming};
pub use ready::{Readiness, Select};
pub use report::{ApplyReport, Outcome};
pub use tools::{FleetTool, LookupError, Notice, ToolsDiff, Withheld};

use approval::Approvals;
use event::FLEET_EVENT_CAPACITY;
use state::{SavedState, Saver, StateFile};
use tenant::Server;
use tools::FleetTools;

/// Many named connections. A cheap handle: clones share the fleet, which ends with the last of them.
#[derive(Clone)]
pub struct Fleet(Arc<Inner>);

type Handlers = dyn Fn(&str, Epoch) -> Handler + Send + Sync;

pub(crate) struct Inner {
    handlers: Arc<Handlers>,
    /// The seed of every server's jitter, together with its name.
    seed: u64,
    queue: Arc<DialQueue>,
    runtime: tokio::runtime::Handle,
    servers: Mutex<Servers>,
    events: broadcast::Sender<FleetEvent>,
    /// Connections that are being shut down, and the saver.
    tasks: TaskTracker,
    saver: Option<Saver>,
    /// The state to keep of a fleet that ended without a shutdown.
    last: Arc<Mutex<SavedState>>,
}

struct Servers {
    by_name: BTreeMap<Arc<str>, Server>,
    tools: FleetTools,
    /// The right to be the connection of a name, while anything holds it.
    tenancies: BTreeMap<Arc<str>, Weak<Semaphore>>,
    /// The number of the next connection.
    next: u64,
    /// The state of an earlier process, until the server is known.
    kept: SavedState,
    closed: bool,
}

/// Sets up a [`Fleet`].
#[must_use]
pub struct FleetBuilder {
    handlers: Arc<Handlers>,
    naming: ToolNaming,
    seed: Option<u64>,
    state: Option<StateFile>,
}

impl FleetBuilder {
    /// Makes the client handler of each server and epoch: what servers may ask of us, and tell us. Default: rmcp's `()`.
    pub fn handler<H: Service<RoleClient>>(
        mut self,
        handler: impl Fn(&str, Epoch) -> H + Send + Sync + 'static,
    ) -> Self {
        self.handlers = Arc::new(move |server, epoch| Handler::new(handler(server, epoch)));
        self
    }

    /// How tools are named in the list of all. Default: `server__tool`, at most 64 characters.
    pub fn naming(mut self, naming: ToolNaming) -> Self {
        self.naming = naming;
        self
    }

    /// The seed of the jitter: with the same one every server waits the same. Default: random.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Keeps what is learnt of the servers in this file, and begins with what is in it. A file that cannot be used is a
    /// warning in the log.
    pub fn state_file(mut self, file: StateFile) -> Self {
        self.state = Some(file);
        self
    }

    /// A fleet without servers.
    ///
    /// # Errors
    ///
    /// No tokio runtime.
    pub fn build(self) -> Result<Fleet, BuildError> {
        let runtime = tokio::runtime::Handle::try_current().map_err(|_| BuildError::NoRuntime)?;
        let (mut kept, mut approvals) = (SavedState::default(), Approvals::default());
        if let Some(file) = &self.state {
            let (state, warnings) = file.load();
            for warning in warnings {
                tracing::warn!("state file: {warning}");
            }
            approvals = state.approvals();
            kept = state;
        }
        let tasks = TaskTracker::new();
        let last = Arc::new(Mutex::new(kept.clone()));
        let inner = Arc::new_cyclic(|weak: &Weak<Inner>| {
            let saver = self.state.map(|file| {
                let (weak, last) = (weak.clone(), last.clone());
                let collect = move || weak.upgrade().map_or_else(|| lock(&last).clone(), |inner| inner.state());
                let (saver, run) = Saver::new(file, collect, |warning| tracing::warn!("state file: {warning}"));
                tasks.spawn_on(run, &runtime);
                saver
            });
            Inner {
                handlers: self.handlers,
                seed: self.seed.unwrap_or_else(crate::options::random_seed),
                queue: Arc::new(DialQueue::new(DialGate::default())),
                runtime,
                servers: Mutex::new(Servers {
                    by_name: BTreeMap::new(),
                    tools: FleetTools::new(self.naming, approvals),
                    tenancies: BTreeMap::new(),
                    next: 0,
                    kept,
                    closed: false,
                }),
                events: broadcast::Sender::new(FLEET_EVENT_CAPACITY),
                tasks,
                saver,
                last,
            }
        });
        Ok(Fleet(inner))
    }
}

impl fmt::Debug for FleetBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FleetBuilder").field("naming", &self.naming).field("state", &self.state).finish_non_exhaustive()
    }
}

impl Fleet {
    /// Sets up a fleet.
    pub fn builder() -> FleetBuilder {
        FleetBuilder {
            handlers: Arc::new(|_, _| Handler::new(())),
            naming: ToolNaming::default(),
            seed: None,
            state: None,
        }
    }

    /// The names of all servers, disabled ones too, in ascending order.
    pub fn names(&self) -> Vec<Arc<str>> {
        self.0.lock().by_name.keys().cloned().collect()
    }

    /// The connection to this server; `None` where there is no such server, or it is disabled. After the server was
    /// replaced, it is another one.
    pub fn connection(&self, server: &str) -> Option<Connection> {
        self.0.lock().by_name.get(server)?.connection().cloned()
    }

    /// Tries now to reach a server that has no session; a session that is there is left alone. `false` where there is no
    /// such server, or it is disabled.
    pub fn wake(&self, server: &str, cause: WakeCause) -> bool {
        self.connection(server).map(|connection| connection.wake(cause)).is_some()
    }

    /// Closes a server's session and rests until it is woken. `false` where there is no such server, or it is disabled.
    pub fn park(&self, server: &str) -> bool {
        self.connection(server).map(|connection| connection.park()).is_some()
    }

    /// Tells all connections that the host slept or its network changed; see [`Connection::resumed`].
    pub fn resumed(&self) {
        for server in self.0.lock().by_name.values() {
            if let Some(connection) = server.connection() {
                connection.resumed();
            }
        }
    }

    /// The tools that may be called, by server in ascending order, then as the server lists them. Tools of a server
    /// whose session is being rebuilt, was put to rest, or was never there in this process are marked as stale.
    pub fn tools(&self) -> Vec<FleetTool> {
        let servers = self.0.lock();
        let mut tools: Vec<_> = servers.tools.iter().cloned().collect();
        for tool in &mut tools {
            tool.stale |= !servers.by_name.get(&tool.server).is_some_and(Server::is_ready);
        }
        tools
    }

    /// The tools that are listed and not offered, since they are not as they were approved
    /// ([`CataloguePolicy::Refuse`](crate::config::CataloguePolicy::Refuse)).
    pub fn withheld(&self) -> Vec<Withheld> {
        self.0.lock().tools.withheld().cloned().collect()
    }

    /// Approves a tool that is withheld, by its server's name of it: as it is listed now, or only if it still is the
    /// version that was `seen`. `false` where there is nothing of this kind to approve.
    pub fn approve(&self, server: &str, tool: &str, seen: Option<&Fingerprint>) -> bool {
        let mut servers = self.0.lock();
        let diff = servers.tools.approve(&server.into(), tool, seen);
        self.0.tell_tools(diff)
    }

    /// How every server stands, disabled ones too, by name in ascending order.
    pub fn status(&self) -> Vec<ServerStatus> {
        let servers = self.0.lock();
        let of = |(name, server): (&Arc<str>, &Server)| match server.connection() {
            Some(connection) => connection.status(),
            None if server.config.enabled => ServerStatus::without_connection(name.clone(), ServerState::Shutdown),
            None => ServerStatus::without_connection(name.clone(), ServerState::Disabled),
        };
        servers.by_name.iter().map(of).collect()
    }

    /// Subscribes to the events from now on, in order.
    pub fn events(&self) -> FleetEvents {
        FleetEvents(self.0.events.subscribe())
    }

    /// Shuts all connections down, side by side, and waits until nothing of them is left: as long as the slowest close
    /// ladder takes. What is applied afterwards starts nothing.
    pub async fn shutdown(&self) {
        // While there is something to be kept.
        if let Some(saver) = &self.0.saver
            && let Err(warning) = saver.finish().await
        {
            tracing::warn!("state file: {warning}");
        }
        self.0.close();
        self.0.tasks.close();
        self.0.tasks.wait().await;
    }
}

impl fmt::Debug for Fleet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fleet").field("servers", &self.names()).finish_non_exhaustive()
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, Servers> {
        lock(&self.servers)
    }

    fn tell(&self, event: FleetEvent) {
        // An error says that nobody listens.
        drop(self.events.send(event));
    }

    /// Tells what changed in the list of all tools, under the lock, so that diffs come in the order of the changes.
    /// Whether there was anything to tell.
    fn tell_tools(&self, diff: ToolsDiff) -> bool {
        for notice in &diff.notices {
            tracing::warn!("{notice}");
        }
        let told = !diff.is_empty() || !diff.notices.is_empty() || diff.approvals_changed;
        if told {
            self.tell(FleetEvent::Tools(Arc::new(diff)));
            self.changed();
        }
        told
    }

    /// Something is worth keeping.
    fn changed(&self) {
        if let Some(saver) = &self.saver {
            saver.changed();
        }
    }

    fn state(&self) -> SavedState {
        let servers = self.lock();
        let known = servers
            .by_name
            .iter()
            .filter_map(|(name, server)| Some((name.to_string(), server.state(name, servers.tools.approvals())?)));
        let mut state = servers.kept.clone();
        known.for_each(|(name, server)| state.insert(name, server));
        state
    }
}

impl Drop for Inner {
    /// The saver, which is asked to end by this, can no longer ask.
    fn drop(&mut self) {
        if self.saver.is_some() {
            *lock(&self.last) = self.state();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
