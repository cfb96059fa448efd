//! Setting up a connection.

use std::fmt;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mcp_reconnect_core::{Config, ConnectionMachine, Epoch, Input};
use rmcp::{RoleClient, Service};
use tokio::sync::{broadcast, mpsc, watch};
use tokio_util::task::TaskTracker;
use tracing::Instrument as _;

use crate::call::CallOptions;
use crate::catalogue::Catalogue;
use crate::clock::{Clock, SuspendDetector};
use crate::connection::Connection;
use crate::epoch::{Dialler, Require, Spec};
use crate::era::{EraFacts, EraMemory, EraPolicy};
use crate::event::EVENT_CAPACITY;
use crate::link::Connector;
use crate::owner::{Command, Owner, Published};
use crate::setup::Wanted;
use crate::shared::Shared;
use crate::view::Handler;
use crate::wire::RequestIds;

/// Sets up a [`Connection`].
#[must_use]
pub struct Builder {
    connector: Box<dyn Connector>,
    name: Arc<str>,
    config: Config,
    options: CallOptions,
    handler: Box<dyn Fn(Epoch) -> Handler + Send + Sync>,
    policy: EraPolicy,
    facts: EraFacts,
    require: Require,
    probe_patience: Duration,
    seed: u64,
}

/// Why a connection could not be set up.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum BuildError {
    /// `close_timeout` would end a close before the transport's own ladder is through.
    CloseTimeout {
        /// The knob's value.
        close_timeout: Duration,
        /// How long the transport's ladder may take.
        ladder: Duration,
    },
    /// There is no tokio runtime here.
    NoRuntime,
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CloseTimeout { close_timeout, ladder } => {
                write!(
                    f,
                    "`close_timeout` is {close_timeout:?}, not above the close ladder of the transport ({ladder:?})"
                )
            }
            Self::NoRuntime => f.write_str("a connection must be built inside a tokio runtime"),
        }
    }
}

impl std::error::Error for BuildError {}

impl Builder {
    pub(crate) fn new(connector: impl Connector) -> Self {
        Self {
            name: "server".into(),
            config: connector.config(),
            connector: Box::new(connector),
            options: CallOptions::default(),
            handler: Box::new(|_| Handler::new(())),
            policy: EraPolicy::Auto,
            facts: EraFacts::default(),
            require: Require::default(),
            probe_patience: Duration::from_secs(2),
            seed: RandomState::new().hash_one(0_u8),
        }
    }

    /// What the server is called in logs. Default `server`.
    pub fn name(mut self, name: impl Into<Arc<str>>) -> Self {
        self.name = name.into();
        self
    }

    /// The knobs of the machine. Default: [`Connector::config`].
    pub fn config(mut self, config: Config) -> Self {
        self.config = config;
        self
    }

    /// What calls may take and do, unless they say otherwise.
    pub fn call_options(mut self, options: CallOptions) -> Self {
        self.options = options;
        self
    }

    /// Makes the client handler of each epoch: what the server may ask of us, and tell us. Default: rmcp's `()`.
    pub fn handler<H: Service<RoleClient>>(mut self, handler: impl Fn(Epoch) -> H + Send + Sync + 'static) -> Self {
        self.handler = Box::new(move |epoch| Handler::new(handler(epoch)));
        self
    }

    /// Which protocol era to speak. Default [`EraPolicy::Auto`].
    pub fn era(mut self, policy: EraPolicy) -> Self {
        self.policy = policy;
        self
    }

    /// What an earlier process learnt about the server's era.
    pub fn era_facts(mut self, facts: EraFacts) -> Self {
        self.facts = facts;
        self
    }

    /// What a session must have reached to be Ready. Default [`Require::Tools`].
    pub fn require(mut self, require: Require) -> Self {
        self.require = require;
        self
    }

    /// How long a server of unknown era may leave the probe of the modern era unanswered, from its first byte on,
    /// before it is asked to initialize as well. Default 2 s.
    pub fn probe_patience(mut self, patience: Duration) -> Self {
        self.probe_patience = patience;
        self
    }

    /// The seed of the jitter: the same seed waits the same. Default: random.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Starts the connection: the first dial begins at once, and nobody waits for it.
    ///
    /// # Errors
    ///
    /// A `close_timeout` that is not above the transport's close ladder; no tokio runtime.
    pub fn build(self) -> Result<Connection, BuildError> {
        let ladder = self.connector.close_bound();
        let close_timeout = self.config.close_timeout();
        if close_timeout <= ladder {
            return Err(BuildError::CloseTimeout { close_timeout, ladder });
        }
        let runtime = tokio::runtime::Handle::try_current().map_err(|_| BuildError::NoRuntime)?;
        let spec = Arc::new(Spec {
            name: self.name,
            connector: self.connector,
            handler: self.handler,
            memory: EraMemory::new(self.facts),
            policy: self.policy,
            require: self.require,
            probe_patience: self.probe_patience,
            drain: close_timeout - ladder,
            wanted: watch::Sender::new(Wanted::default()),
            ids: RequestIds::default(),
            met: Mutex::new(None),
            known: Mutex::new(Catalogue::default()),
        });
        let clock = Clock::start();
        let machine = ConnectionMachine::new(self.config, self.seed, clock.now());
        let (commands, orders) = mpsc::unbounded_channel();
        let (note, notes) = mpsc::unbounded_channel();
        let events = broadcast::Sender::new(EVENT_CAPACITY);
        let initial = Published { snapshot: machine.snapshot(), session: None, catalogue: None, cause: None };
        let (publisher, published) = watch::channel(initial);
        let shared = Shared {
            commands,
            published,
            events: events.downgrade(),
            spec: spec.clone(),
            config: self.config,
            clock,
            options: self.options,
        };
        let span = tracing::info_span!("connection", server = %spec.name);
        let owner = Owner {
            machine,
            clock,
            suspend: SuspendDetector::start(),
            dialler: Dialler { spec, notes: note, tasks: TaskTracker::new() },
            commands: orders,
            notes,
            published: publisher,
            events,
            live: None,
            cause: None,
            flapped_before: false,
        };
        shared.command(Command::Input(Input::Connect { until: clock.now() }));
        runtime.spawn(owner.run().instrument(span));
        Ok(Connection(Arc::new(shared)))
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder").field("name", &self.name).field("config", &self.config).finish_non_exhaustive()
    }
}
