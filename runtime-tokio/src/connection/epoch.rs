//! The task of one epoch, in the order of its steps: dial, handshake, catalogue, service, close.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use mcp_reconnect_core::{CloseCause, Epoch, Failure, FailureClass, ReadyFlag};
use rmcp::Service as _;
use rmcp::model::ServerPeerInfo;
use serde_json::value::RawValue;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::Instrument as _;

use crate::connection::Event;
use crate::connection::gate::Entrance;
use crate::connection::inbox::Notes;
use crate::connection::lists::{EMPTY, Lists, REST};
use crate::connection::messages::{Note, What};
use crate::link::{Attempt, Ended};
use crate::options::Require;
use crate::protocol::Client;
use crate::protocol::greeting::DiscoverReply;
use crate::session::catalogue::{Catalogue, ListError, Part, list};
use crate::session::established::Established;
use crate::session::handshake::{Handshake, HandshakeError, handshake};
use crate::session::setup::{self, Listen, SetUp, SetupFailure};
use crate::session::spec::{Spec, Wanted, is_same_server};
use crate::session::{Session, ToolList, disowns_session, view};
use crate::watched::Watched;
use crate::wire::Wire;

/// Starts epochs.
pub(crate) struct Dialler {
    pub(crate) spec: Arc<Spec>,
    pub(crate) notes: Notes,
    /// Everything that the connection runs.
    pub(crate) tasks: TaskTracker,
    pub(crate) entrance: Arc<Entrance>,
}

impl Dialler {
    /// Starts an epoch. One that was not gone in time is ended by force first, and waited for.
    pub(crate) fn dial(
        &self,
        epoch: Epoch,
        start_timeout: Duration,
        interactive: bool,
        previous: Option<LiveEpoch>,
    ) -> LiveEpoch {
        let controls = Arc::new(Controls {
            start_timeout,
            order: Watched::default(),
            link: Mutex::default(),
            stage: Mutex::new(Stage::Waits("it never began to dial")),
        });
        let epoch_task = EpochTask {
            epoch,
            interactive,
            spec: self.spec.clone(),
            notes: self.notes.clone(),
            tasks: TaskTracker::new(),
            connection: self.tasks.clone(),
            entrance: self.entrance.clone(),
            controls: controls.clone(),
        };
        let previous = previous.map(|previous| Box::pin(previous.kill()));
        let span = tracing::info_span!("epoch", server = %self.spec.name, %epoch);
        let run = async move {
            if let Some(previous) = previous {
                previous.await;
            }
            epoch_task.run().await;
        };
        let task = self.tasks.spawn(run.instrument(span));
        LiveEpoch { epoch, session: None, controls, task }
    }

    /// Asks the server of a session for a sign of life within this time; a note says what came of it.
    pub(crate) fn ping(&self, session: Arc<Session>, patience: Duration) {
        let ping = ping(session, patience, self.spec.clone(), self.notes.clone());
        self.tasks.spawn(ping.in_current_span());
    }

    /// Asks the server of a session to list what it has listed before, once; a note says that it has answered. It has as
    /// long as the machine waits.
    pub(crate) fn list(&self, session: Arc<Session>, patience: Duration) {
        let Some(method) = session.listed() else { return self.ping(session, patience) };
        let notes = self.notes.clone();
        let list = async move {
            let mut list = session.established().ask(session.wire(), method);
            let answered = tokio::select! {
                answer = list.answer() => answer.is_ok() || session.wire().control().survives(),
                _ = session.wire().ended() => false,
            };
            if answered {
                notes.send(Note { epoch: session.epoch(), what: What::Alive });
            }
        };
        self.tasks.spawn(list.in_current_span());
    }

    /// Resolves when nothing of the connection runs any more.
    pub(crate) async fn finished(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }
}

/// The owner's end of the live epoch.
pub(crate) struct LiveEpoch {
    pub(crate) epoch: Epoch,
    /// Its session, once it is set up.
    pub(crate) session: Option<Arc<Session>>,
    controls: Arc<Controls>,
    task: JoinHandle<()>,
}

/// How the owner steers an epoch: its order to close, and the link to end.
struct Controls {
    start_timeout: Duration,
    order: Watched<Option<Order>>,
    link: Mutex<CurrentLink>,
    stage: Mutex<Stage>,
}

/// How far a start has got.
enum Stage {
    /// It waits for something: in words.
    Waits(&'static str),
    /// It waits for answers to these.
    SetUp(Arc<SetUp>),
}

#[derive(Default)]
struct CurrentLink {
    /// Ends what belongs to it; there from the dial on.
    token: Option<CancellationToken>,
    wire: Option<Wire>,
}

impl CurrentLink {
    fn cancel(&self) {
        if let Some(token) = &self.token {
            token.cancel();
        }
    }
}

#[derive(Clone, Debug)]
struct Order {
    cause: CloseCause,
    /// The failure behind it, in words.
    why: Option<Arc<str>>,
    /// How long calls that slipped in may go on when a session is closed without need.
    drain: Duration,
}

impl LiveEpoch {
    /// Orders the close; the epoch reports when nothing of it is left.
    pub(crate) fn close(&self, cause: CloseCause, why: Option<Arc<str>>, drain: Duration) {
        self.controls.order.update(|order| *order = Some(Order { cause, why, drain }));
    }

    /// Words for a start that took too long: where it stopped, and the child's last words.
    pub(crate) fn start_timed_out(&self) -> Arc<str> {
        let stopped = match &*lock(&self.controls.stage) {
            Stage::Waits(words) => (*words).to_owned(),
            Stage::SetUp(set_up) => {
                let methods: BTreeSet<_> = set_up.open().into_iter().collect();
                format!("no answer to {}", methods.into_iter().collect::<Vec<_>>().join(", "))
            }
        };
        let facts = lock(&self.controls.link).wire.as_ref().map(|wire| wire.control().facts()).unwrap_or_default();
        let mut words = format!("not ready within {:?}: {stopped}", self.controls.start_timeout);
        if let Some(address) = facts.address {
            words.push_str(&format!("; {address}"));
        }
        if !facts.stderr_tail.is_empty() {
            words.push_str(&format!("; stderr: {}", facts.stderr_tail.join("\n")));
        }
        words.into()
    }

    /// Ends it by force, without waiting.
    pub(crate) fn abort(&self) {
        let link = lock(&self.controls.link);
        if let Some(wire) = &link.wire {
            wire.control().kill();
        }
        link.cancel();
        drop(link);
        self.close(CloseCause::Shutdown, None, Duration::ZERO);
    }

    /// Ends it by force, and waits until nothing of it is left.
    pub(crate) async fn kill(self) {
        self.abort();
        drop(self.task.await); // an error says that it panicked: it is gone as well
    }
}

struct EpochTask {
    epoch: Epoch,
    interactive: bool,
    spec: Arc<Spec>,
    notes: Notes,
    /// The link's tasks: over before the epoch is gone.
    tasks: TaskTracker,
    /// The connection's tasks: handlers may outlive their epoch for a moment.
    connection: TaskTracker,
    entrance: Arc<Entrance>,
    controls: Arc<Controls>,
}

impl EpochTask {
    /// Steps that happen once are boxed, so that a session that is there does not hold the room for them.
    async fn run(&self) {
        let ended = tokio::select! {
            biased;
            order = self.controls.order.when(Clone::clone) => Box::pin(self.on_order(order)).await,
            ended = self.live() => {
                if self.current_link().is_some() {
                    self.note(What::Lost(ended.failure, ended.cause.clone()));
                }
                ended
            }
        };
        let ended = Box::pin(self.close(ended)).await;
        self.note(What::Gone(ended.failure, ended.cause));
    }

    async fn on_order(&self, Order { cause, why, drain }: Order) -> Ended {
        let (class, text) = match cause {
            CloseCause::Failed(class) => (class, why.unwrap_or_else(|| class.as_str().into())),
            CloseCause::Parked => (FailureClass::Transport, "the server was parked on request".into()),
            CloseCause::Idle => (FailureClass::Transport, "the session was put to rest".into()),
            CloseCause::Lifetime => (FailureClass::Transport, "the session was replaced for its age".into()),
            CloseCause::Shutdown => (FailureClass::Transport, "the connection was shut down".into()),
        };
        if let (CloseCause::Idle | CloseCause::Lifetime, Some(wire)) = (cause, self.current_link()) {
            // Calls that are still open after that are settled by the close.
            drop(timeout(drain, wire.drained()).await);
        }
        Ended { failure: class.into(), cause: text }
    }

    /// Leaves nothing: calls are settled, the link is closed, its tasks have ended.
    async fn close(&self, ended: Ended) -> Ended {
        if let Some(wire) = self.current_link() {
            wire.end(ended.clone());
            wire.control().close().await;
            self.set_link(None);
        }
        lock(&self.controls.link).cancel();
        self.tasks.close();
        self.tasks.wait().await;
        ended
    }

    /// From the dial to the end of the session, whatever ends it.
    async fn live(&self) -> Ended {
        let entered = Box::pin(self.entrance.enter()).await;
        self.reached(ReadyFlag::Started, "the channel did not open");
        let session = match Box::pin(self.establish()).await {
            Ok(established) => established,
            Err(ended) => return ended,
        };
        self.note(What::Established(session.clone()));
        entered.ready();
        let lists = Lists {
            session: &session,
            known: &self.spec.known,
            patience: self.controls.start_timeout,
            note: &|what| self.note(what),
            slowest: Mutex::default(),
        };
        Box::pin(lists.keep()).await
    }

    async fn establish(&self) -> Result<Arc<Session>, Ended> {
        let handler = (self.spec.handler)(self.epoch).counted_in(self.connection.clone());
        let client = self.spec.client.as_deref().cloned().unwrap_or_else(|| Client::of(&handler.get_info()));
        let before = self.spec.memory.facts().server;
        let mut after_probe_killed = false;
        let (wire, mut established) = loop {
            let wire = self.dial().await.inspect_err(|_| self.doubt_if(after_probe_killed))?;
            let options = Handshake {
                memory: &self.spec.memory,
                policy: self.spec.policy,
                client: &client,
                start_timeout: self.controls.start_timeout,
                probe_patience: *lock(&self.spec.probe_patience),
                after_probe_killed,
                tasks: &self.tasks,
            };
            match handshake(&wire, options).await {
                Ok(established) => break (wire, established),
                Err(HandshakeError::ProbeKilled { cause }) => {
                    tracing::debug!(%cause, "the server ended on the probe; asked once more");
                    after_probe_killed = true;
                    wire.end(Ended { failure: FailureClass::Transport.into(), cause });
                    wire.control().close().await;
                    self.set_link(None);
                }
                Err(HandshakeError::Failed { failure, cause }) => {
                    self.doubt_if(after_probe_killed);
                    return Err(Ended { failure, cause });
                }
            }
        };
        self.reached(ReadyFlag::Initialized, "it was not set up");
        let no_view = || Ended { failure: FailureClass::Transport.into(), cause: "the link has a view already".into() };
        let service = view::serve(&wire, handler, &established).ok_or_else(no_view)?;
        if let Some(peer) = service.peer().peer_info() {
            // One copy is enough.
            established.peer = peer;
        }
        self.meet(&established, before);
        let set_up = Arc::<SetUp>::default();
        if !established.version.has_initialize() {
            self.listen(&wire, &established, &set_up);
        }
        let (catalogue, tools) = self.list_tools(&wire, &established).await?;
        set_up.tools_are_listed();
        self.set_up(&wire, &established, set_up).await;
        Ok(Arc::new(Session::new(wire, established, service, catalogue, tools)))
    }

    /// What a session begins with: its tools, where they are needed for Ready. What is not listed yet is taken to be as it
    /// was, so that nobody is told that it is gone.
    async fn list_tools(&self, wire: &Wire, established: &Established) -> Result<(Catalogue, ToolList), Ended> {
        let known = lock(&self.spec.known).carried_over();
        let mut catalogue = known.without_undeclared(&established.peer.capabilities);
        if self.spec.require != Require::Tools {
            return Ok((catalogue, ToolList::UNLISTED));
        }
        *lock(&self.controls.stage) = Stage::Waits("no answer to tools/list");
        let covered = wire.list_changes().tools;
        let listing = list(wire, established).await.map_err(|error| failed_list(&error))?;
        if listing.slowest > Duration::ZERO {
            self.note(What::Listed(listing.slowest));
        }
        // A server that has just come up may not have all of it yet.
        let is_own = !listing.items.is_empty() || catalogue.tools.items().is_empty();
        catalogue.tools = if is_own { Part::Listed(listing.items) } else { catalogue.tools.stale(EMPTY) };
        Ok((catalogue, ToolList { covered, listed: Some(Instant::now()), rest: REST, is_own }))
    }

    fn wanted(&self) -> Wanted {
        self.spec.wanted.get()
    }

    /// Sets up what is wanted, all side by side, and waits for that as long as the budget lasts. What is not done by then
    /// is told, and goes on.
    async fn set_up(&self, wire: &Wire, established: &Established, set_up: Arc<SetUp>) {
        *lock(&self.controls.stage) = Stage::SetUp(set_up.clone());
        let until = Instant::now() + setup::BUDGET;
        let mut done = false;
        let mut wanted = Wanted::default();
        // What is wanted meanwhile, too.
        while let now = self.wanted()
            && (!done || now != wanted)
        {
            let settings = setup::settings(&set_up, established, &now);
            if !settings.is_empty() {
                let (wire, established, tell) = (wire.clone(), established.clone(), self.teller());
                let patience = self.controls.start_timeout;
                let setting = setup::set_up(wire, established, settings, patience, tell);
                self.tasks.spawn(setting.in_current_span());
            }
            wanted = now;
            done = timeout_at(until, set_up.done()).await.is_ok();
            if !done {
                for what in set_up.open() {
                    let cause = format!("no answer within {:?}", setup::BUDGET);
                    self.note(What::Tell(SetupFailure { what, cause }.into()));
                }
                return;
            }
        }
    }

    /// Tells subscribers what could not be set up.
    fn teller(&self) -> impl Fn(SetupFailure) + Send + Sync + 'static {
        let (notes, epoch) = (self.notes.clone(), self.epoch);
        move |failure| notes.send(Note { epoch, what: What::Tell(failure.into()) })
    }

    fn doubt_if(&self, probe_killed: bool) {
        if probe_killed {
            self.spec.memory.doubt();
        }
    }

    async fn dial(&self) -> Result<Wire, Ended> {
        let token = CancellationToken::new();
        lock(&self.controls.link).token = Some(token.clone());
        let attempt = Attempt {
            epoch: self.epoch,
            interactive: self.interactive,
            cancel: token.clone(),
            tasks: self.tasks.clone(),
        };
        let link = self.spec.connector.connect(attempt).await;
        let link = link.map_err(|error| Ended { failure: error.failure, cause: error.cause })?;
        let wire = Wire::new(self.epoch, link, token, &self.tasks, self.spec.ids.clone());
        self.set_link(Some(wire.clone()));
        self.reached(ReadyFlag::Transport, "no answer to the handshake");
        Ok(wire)
    }

    fn listen(&self, wire: &Wire, established: &Established, set_up: &Arc<SetUp>) {
        let listen = Listen {
            wire: wire.clone(),
            session: established.clone(),
            spec: self.spec.clone(),
            set_up: set_up.clone(),
            tell: self.teller(),
        };
        let wire = wire.clone();
        let listen = async move {
            tokio::select! {
                () = listen.run() => {}
                _ = wire.ended() => {}
            }
        };
        self.tasks.spawn(listen.in_current_span());
    }

    /// Tells when the server is another one than that of the last session, or can do something else. `before`: how that
    /// one called itself.
    fn meet(&self, established: &Established, before: Option<(String, String)>) {
        let now = &established.peer;
        lock(&self.spec.greetings).meet(now, Instant::now());
        let other = |before: Arc<ServerPeerInfo>| {
            before.protocol_version != now.protocol_version || before.capabilities != now.capabilities
        };
        let can_other = lock(&self.spec.met).replace(now.clone()).is_some_and(other);
        if can_other {
            self.note(What::Tell(Event::ServerChanged { version: now.protocol_version.as_str().into() }));
        }
        if can_other || before.is_some() && before != self.spec.memory.facts().server {
            self.note(What::OtherServer);
        }
    }

    fn current_link(&self) -> Option<Wire> {
        lock(&self.controls.link).wire.clone()
    }

    fn set_link(&self, wire: Option<Wire>) {
        lock(&self.controls.link).wire = wire;
    }

    /// Tells how far it has got; in words what is missing next.
    fn reached(&self, flag: ReadyFlag, missing: &'static str) {
        *lock(&self.controls.stage) = Stage::Waits(missing);
        self.note(What::Reached(flag));
    }

    fn note(&self, what: What) {
        self.notes.send(Note { epoch: self.epoch, what });
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn ping(session: Arc<Session>, patience: Duration, spec: Arc<Spec>, notes: Notes) {
    let mut ping = session.established().ping(session.wire());
    let what = match timeout(patience, ping.answer()).await {
        Ok(Ok(Ok(result))) => {
            if is_another_server(&session, &spec, result) {
                session.wire().server_changed();
                notes.send(Note { epoch: session.epoch(), what: What::Renew });
            }
            What::Pong
        }
        Ok(Ok(Err(error))) if disowns_session(&error) => {
            let cause = format!("the server has lost the session: {error}");
            What::Lost(FailureClass::SessionGone.into(), cause.into())
        }
        Ok(Ok(Err(error))) => {
            tracing::debug!(%error, "the server knows no pings");
            What::PingUnsupported
        }
        // Refused, by a server that is there (HTTP 429).
        Ok(Err(_)) if session.wire().control().survives() => {
            session.wire().touch();
            What::Alive
        }
        // The end of the link is told by itself, and silence is seen at the ping's deadline.
        Ok(Err(_)) | Err(_) => return,
    };
    notes.send(Note { epoch: session.epoch(), what });
}

/// Whether a pong of the modern era, which is a greeting, is of a server that is news.
fn is_another_server(session: &Session, spec: &Spec, pong: Box<RawValue>) -> bool {
    let established = session.established();
    if established.version.has_initialize() {
        return false;
    }
    let Ok(reply) = DiscoverReply::read(pong) else { return false };
    let peer = Arc::new(reply.greeting.peer(established.version.clone()));
    let met_lately = lock(&spec.greetings).meet(&peer, Instant::now());
    !met_lately && !is_same_server(&peer, &established.peer)
}

fn failed_list(error: &ListError) -> Ended {
    let failure = match error {
        ListError::Server(_) => Failure::new(FailureClass::Transport),
        ListError::Failed(failure) => failure.failure,
    };
    Ended { failure, cause: format!("tools/list failed: {error}").into() }
}

impl From<SetupFailure> for Event {
    fn from(SetupFailure { what, cause }: SetupFailure) -> Self {
        Self::SetupFailed { what: what.into(), cause: cause.into() }
    }
}
