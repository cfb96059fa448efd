//! Setting up a connection.

use std::fmt;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;

use mcp_reconnect_core::{Config, Epoch, Input, Memory, State, Status};
use rmcp::{RoleClient, Service};
use tokio::sync::watch;
use tokio_util::task::TaskTracker;
use tracing::Instrument as _;

use crate::clock::{Clock, SuspendDetector, unix_millis};
use crate::connection::Connection;
use crate::connection::epoch::Dialler;
use crate::connection::event::Telling;
use crate::connection::gate::Entrance;
use crate::connection::inbox::inbox;
use crate::connection::limit::InFlight;
use crate::connection::messages::Command;
use crate::connection::metrics::Meters;
use crate::connection::owner::Owner;
use crate::connection::published::{Observer, Published};
use crate::connection::wait::Shared;
use crate::error::BuildError;
use crate::link::Connector;
use crate::options::{CallOptions, Connect, PROBE_PATIENCE, Require, Tuning, check_close_timeout, random_seed};
use crate::protocol::era::EraMemory;
use crate::protocol::{Client, Era, EraFacts, EraPolicy};
use crate::session::catalogue::Catalogue;
use crate::session::spec::Spec;
use crate::session::view::Handler;
use crate::trace::{Header, Recorder};
use crate::watched::Watched;
use crate::wire::RequestIds;
use crate::wire::relay::Relay;

/// Sets up a [`Connection`].
#[must_use]
pub struct Builder {
    connector: Box<dyn Connector>,
    name: Arc<str>,
    tuning: Tuning,
    handler: Box<dyn Fn(Epoch) -> Handler + Send + Sync>,
    client: Option<Client>,
    policy: EraPolicy,
    facts: EraFacts,
    home: Option<Era>,
    memory: Option<Memory>,
    known: Catalogue,
    require: Require,
    probe_patience: Duration,
    seed: u64,
    connect: Connect,
    observer: Option<Box<dyn Observer>>,
    entrance: Entrance,
    recorder: Option<Recorder>,
}

impl Connection {
    /// Begins a connection to the server that `connector` reaches.
    pub fn builder(connector: impl Connector) -> Builder {
        Builder::new(Box::new(connector))
    }
}

impl Builder {
    pub(crate) fn new(connector: Box<dyn Connector>) -> Self {
        let tuning = Tuning { config: connector.config(), options: CallOptions::default(), max_in_flight: None };
        Self {
            name: "server".into(),
            tuning,
            connector,
            handler: Box::new(|_| Handler::new(())),
            client: None,
            policy: EraPolicy::Auto,
            facts: EraFacts::default(),
            home: None,
            memory: None,
            known: Catalogue::default(),
            require: Require::default(),
            probe_patience: PROBE_PATIENCE,
            seed: random_seed(),
            connect: Connect::default(),
            observer: None,
            entrance: Entrance::default(),
            recorder: None,
        }
    }

    /// The server's name in logs. Default `server`.
    pub fn name(mut self, name: impl Into<Arc<str>>) -> Self {
        self.name = name.into();
        self
    }

    /// The knobs of the machine. Default: [`Connector::config`].
    pub fn config(mut self, config: Config) -> Self {
        self.tuning.config = config;
        self
    }

    /// The limits of calls that set none of their own.
    pub fn call_options(mut self, options: CallOptions) -> Self {
        self.tuning.options = options;
        self
    }

    /// How many calls the server gets at once. Default: any number; see [`Tuning::max_in_flight`].
    pub fn max_in_flight(mut self, limit: Option<NonZeroU32>) -> Self {
        self.tuning.max_in_flight = limit;
        self
    }

    /// Everything that [`Connection::retune`] can change later.
    pub fn tuning(mut self, tuning: Tuning) -> Self {
        self.tuning = tuning;
        self
    }

    /// When to dial for the first time. Default [`Connect::Eager`].
    pub fn connect(mut self, connect: Connect) -> Self {
        self.connect = connect;
        self
    }

    /// Makes the client handler of each epoch: what the server may ask of us, and tell us. Default: rmcp's `()`.
    pub fn handler<H: Service<RoleClient>>(self, handler: impl Fn(Epoch) -> H + Send + Sync + 'static) -> Self {
        self.boxed_handler(move |epoch| Handler::new(handler(epoch)))
    }

    pub(crate) fn boxed_handler(mut self, handler: impl Fn(Epoch) -> Handler + Send + Sync + 'static) -> Self {
        self.handler = Box::new(handler);
        self
    }

    /// Speaks for this client: what servers ask and tell goes to `relay` as it came, in the place of a handler. A server
    /// that speaks both eras is spoken to in the client's.
    pub fn relay(mut self, client: Client, relay: Arc<dyn Relay>) -> Self {
        self.home = Some(if client.version().has_initialize() { Era::Legacy } else { Era::Modern });
        self.client = Some(client);
        self.boxed_handler(move |_| Handler::relayed(relay.clone()))
    }

    /// Which protocol era to speak. Default [`EraPolicy::Auto`].
    pub fn era(mut self, policy: EraPolicy) -> Self {
        self.policy = policy;
        self
    }

    /// The facts that an earlier process learnt about the server's era.
    pub fn era_facts(mut self, facts: EraFacts) -> Self {
        self.facts = facts;
        self
    }

    /// Goes on where an earlier process stopped ([`Connection::memory`]): a server that was parked, or waited for its
    /// next dial, is dialled when the rest of that wait is over, unless a caller or a wake brings it forward. Any other
    /// one is dialled at once.
    pub fn restore(mut self, memory: Memory) -> Self {
        self.memory = Some(memory);
        self
    }

    /// The catalogue that an earlier process knew ([`Connection::known_catalogue`]). It is offered as
    /// [`Part::Stale`](crate::Part::Stale) until the first session has listed, or the server is parked. The first
    /// [`Event::Catalogue`](crate::Event::Catalogue) tells the difference. Not offered where [`restore`](Self::restore)
    /// says that the server is parked.
    pub fn known_catalogue(mut self, known: Catalogue) -> Self {
        self.known = known;
        self
    }

    /// The point at which a session is Ready. Default [`Require::Tools`].
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

    /// Records all that the machine is told, for a [replay](crate::trace): a file, say, or a [`Recorder`] of one. It is
    /// not buffered more than needed, never waited for, and flushed at the end of the connection.
    pub fn record(mut self, recorder: impl Into<Recorder>) -> Self {
        self.recorder = Some(recorder.into());
        self
    }

    /// The observer of all events, called in the turn in which they happen.
    pub(crate) fn observer(mut self, observer: impl Observer + 'static) -> Self {
        self.observer = Some(Box::new(observer));
        self
    }

    /// The entrance that every dial goes through.
    pub(crate) fn entrance(mut self, entrance: Entrance) -> Self {
        self.entrance = entrance;
        self
    }

    /// Starts the connection: the first dial begins at once, unless it is to come [on demand](Self::connect) or one was
    /// [restored](Self::restore) to wait. Nobody waits for it.
    ///
    /// # Errors
    ///
    /// A `close_timeout` that is not above the transport's close ladder; no tokio runtime.
    pub fn build(self) -> Result<Connection, BuildError> {
        check_close_timeout(&self.tuning.config, self.connector.close_bound())?;
        let runtime = tokio::runtime::Handle::try_current().map_err(|_| BuildError::NoRuntime)?;
        let spec = Arc::new(Spec {
            name: self.name,
            connector: self.connector,
            handler: self.handler,
            client: self.client.map(Box::new),
            memory: EraMemory::at_home(self.facts, self.home),
            policy: self.policy,
            require: self.require,
            probe_patience: Mutex::new(self.probe_patience),
            wanted: Watched::default(),
            ids: RequestIds::default(),
            met: Mutex::new(None),
            greetings: Mutex::default(),
            known: Mutex::new(Arc::new(self.known.clone())),
        });
        let clock = Clock::start();
        let header = Header {
            name: spec.name.to_string(),
            origin: Some(unix_millis()),
            seed: self.seed,
            start: clock.now(),
            config: self.tuning.config,
            memory: self.memory,
        };
        let machine = header.machine();
        let restored = machine.snapshot();
        let may_offer = !matches!(restored.status, Status::Parked(_));
        let known = self.known.carried_over();
        let catalogue = (may_offer && !known.is_unlisted()).then(|| Arc::new(known));
        let meters = Arc::new(Meters::new(&spec.name));
        meters.published(&restored);
        let (inbox, commands, notes) = inbox();
        let events = Arc::<Telling>::default();
        let initial = Published { snapshot: restored, session: None, catalogue, cause: None };
        let (publisher, published) = watch::channel(initial);
        let shared = Shared {
            commands,
            published,
            events: Arc::downgrade(&events),
            spec: spec.clone(),
            clock,
            tuning: RwLock::new(self.tuning),
            in_flight: InFlight::new(self.tuning.max_in_flight, meters.clone()),
            meters: meters.clone(),
        };
        let span = tracing::info_span!("connection", server = %spec.name);
        let recording = self.recorder.and_then(|recorder| match recorder.start(header, span.clone()) {
            Ok(recording) => Some(Box::new(recording)),
            Err(error) => {
                span.in_scope(|| tracing::warn!(%error, "no trace is recorded: there is no thread for it"));
                None
            }
        });
        let mut owner = Owner {
            machine,
            clock,
            suspend: SuspendDetector::start(),
            dialler: Dialler { spec, notes, tasks: TaskTracker::new(), entrance: Arc::new(self.entrance) },
            inbox,
            published: publisher,
            events,
            observer: self.observer,
            meters,
            live: None,
            cause: None,
            flapped_before: false,
            recording,
        };
        // A connection that waits already would be dialled at once by this, whatever its wait.
        if self.connect == Connect::Eager && matches!(restored.state, State::Idle) {
            shared.command(Command::Input(Input::Connect { until: clock.now() }));
        }
        runtime.spawn(async move { owner.run().await }.instrument(span));
        Ok(Connection(Arc::new(shared)))
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder").field("name", &self.name).field("tuning", &self.tuning).finish_non_exhaustive()
    }
}
