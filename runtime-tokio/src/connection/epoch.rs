//! The task of one epoch, in the order of its steps: dial, handshake, catalogue, service, close.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use mcp_reconnect_core::{CloseCause, Epoch, Failure, FailureClass, ReadyFlag};
use rmcp::Service as _;
use rmcp::model::ServerPeerInfo;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::Instrument as _;

use crate::connection::Event;
use crate::connection::gate::Entrance;
use crate::connection::inbox::Notes;
use crate::connection::messages::{Note, What};
use crate::link::{Attempt, Ended};
use crate::options::Require;
use crate::protocol::Client;
use crate::session::catalogue::{Entry, ListError, Part, list};
use crate::session::doubt::{Doubt, METHOD_NOT_FOUND};
use crate::session::established::Established;
use crate::session::handshake::{Handshake, HandshakeError, handshake};
use crate::session::setup::{self, SetupFailure};
use crate::session::spec::{Spec, Wanted};
use crate::session::{Session, view};
use crate::watched::Watched;
use crate::wire::{Call, CallFailure, ListChanges, Wire};

/// How long after a first announcement of a change the lists are asked for: what is announced in a burst is listed once.
const LIST_SETTLE: Duration = Duration::from_millis(250);

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
        let controls = Arc::new(Controls { start_timeout, order: Watched::default(), link: Mutex::default() });
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
        LiveEpoch { epoch, session: None, reached: None, controls, task }
    }

    /// Asks the server of a session for a sign of life within this time; a note says what came of it.
    pub(crate) fn ping(&self, session: Arc<Session>, patience: Duration) {
        let mut asked = session.established().ping(session.wire());
        // Before the call that found that the host had slept.
        asked.begin();
        self.tasks.spawn(ping(session, asked, patience, self.notes.clone()).in_current_span());
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
    /// How far it got.
    pub(crate) reached: Option<ReadyFlag>,
    controls: Arc<Controls>,
    task: JoinHandle<()>,
}

/// How the owner steers an epoch: its order to close, and the link to end.
struct Controls {
    start_timeout: Duration,
    order: Watched<Option<Order>>,
    link: Mutex<CurrentLink>,
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
        let stopped = match self.reached {
            None => "it never began to dial",
            Some(ReadyFlag::Started) => "the channel did not open",
            Some(ReadyFlag::Transport) => "no answer to the handshake",
            Some(ReadyFlag::Initialized | ReadyFlag::Catalogue) => "no answer to tools/list",
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
            let wedged = matches!(ended.failure.class, FailureClass::Unresponsive | FailureClass::StartTimeout);
            let control = wire.control();
            let close = if wedged { control.close_wedged() } else { control.close() };
            close.await;
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
        self.note(What::Reached(ReadyFlag::Started));
        let session = match Box::pin(self.establish()).await {
            Ok(established) => established,
            Err(ended) => {
                if ended.failure.class == FailureClass::NeedsAuth {
                    // A hook may have renewed them meanwhile, and those were refused as well.
                    let credentials = self.spec.connector.credentials().await;
                    lock(&self.spec.credentials).dialled(credentials);
                }
                return ended;
            }
        };
        self.note(What::Established(session.clone()));
        entered.ready();
        let mut listed = None;
        loop {
            // Lists that Ready did not need come first, then those that the server says have changed: one list at a
            // time, one more for all that was announced meanwhile.
            let changes = match Box::pin(self.list_again(&session, listed)).await {
                Ok(changes) => changes,
                Err(ended) => return ended,
            };
            listed = Some(changes);
            if let Err(ended) = session.wire().list_changes_since(changes).await {
                return ended;
            }
        }
    }

    async fn establish(&self) -> Result<Arc<Session>, Ended> {
        let handler = (self.spec.handler)(self.epoch).counted_in(self.connection.clone());
        let client = self.spec.client.as_deref().cloned().unwrap_or_else(|| Client::of(&handler.get_info()));
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
        self.note(What::Reached(ReadyFlag::Initialized));
        let no_view = || Ended { failure: FailureClass::Transport.into(), cause: "the link has a view already".into() };
        let service = view::serve(&wire, handler, &established).ok_or_else(no_view)?;
        if let Some(peer) = service.peer().peer_info() {
            // One copy is enough.
            established.peer = peer;
        }
        self.meet(&established);
        if !established.version.has_initialize() {
            self.tasks.spawn(self.listen(&wire, &established).in_current_span());
        }
        let mut wanted = self.wanted();
        self.set_up(&wire, &established, &wanted).await;
        // A list that is not there yet is taken to be as it was, so that nobody is told that it is gone.
        let mut catalogue = lock(&self.spec.known).carried_over();
        if self.spec.require == Require::Tools {
            let listing = list(&wire, &established).await.map_err(|error| failed_list(&error))?;
            catalogue.tools = Part::Listed(listing.items);
        }
        // Settings that were made meanwhile; the start deadline bounds how often.
        while let later = self.wanted()
            && later != wanted
        {
            self.set_up(&wire, &established, &later).await;
            wanted = later;
        }
        Ok(Arc::new(Session::new(wire, established, service, catalogue, self.spec.doubts.clone())))
    }

    fn wanted(&self) -> Wanted {
        self.spec.wanted.get()
    }

    async fn set_up(&self, wire: &Wire, established: &Established, wanted: &Wanted) {
        for failure in setup::set_up(wire, established, wanted).await {
            self.note(What::Tell(failure.into()));
        }
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
        let credentials = self.spec.connector.credentials().await;
        lock(&self.spec.credentials).dialled(credentials);
        let link = self.spec.connector.connect(attempt).await;
        let link = link.map_err(|error| Ended { failure: error.failure, cause: error.cause })?;
        let wire = Wire::new(self.epoch, link, token, &self.tasks, self.spec.ids.clone());
        self.set_link(Some(wire.clone()));
        self.note(What::Reached(ReadyFlag::Transport));
        Ok(wire)
    }

    fn listen(&self, wire: &Wire, established: &Established) -> impl Future<Output = ()> + Send + 'static {
        let listen = setup::listen(wire.clone(), established.clone(), self.spec.clone());
        let (notes, epoch, wire) = (self.notes.clone(), self.epoch, wire.clone());
        async move {
            let failure = tokio::select! {
                failure = listen => failure,
                _ = wire.ended() => None,
            };
            if let Some(failure) = failure {
                notes.send(Note { epoch, what: What::Tell(failure.into()) });
            }
        }
    }

    /// Tells when the server can do something else than its last session's could.
    fn meet(&self, established: &Established) {
        let now = &established.peer;
        let other = |before: Arc<ServerPeerInfo>| {
            before.protocol_version != now.protocol_version || before.capabilities != now.capabilities
        };
        if lock(&self.spec.met).replace(now.clone()).is_some_and(other) {
            self.note(What::Tell(Event::ServerChanged { version: now.protocol_version.as_str().into() }));
        }
    }

    /// Lists what has changed since, and everything the first time. Up to which changes that was; an error is the end of
    /// the link, which ends it.
    async fn list_again(&self, session: &Session, since: Option<ListChanges>) -> Result<ListChanges, Ended> {
        tokio::select! {
            ended = session.wire().ended() => Err(ended),
            changes = self.list_changed(session, since) => Ok(changes),
        }
    }

    async fn list_changed(&self, session: &Session, since: Option<ListChanges>) -> ListChanges {
        let first = since.is_none();
        if !first {
            sleep(LIST_SETTLE).await;
        }
        let (listed, seen) = (since.unwrap_or_default(), session.wire().list_changes());
        let mut catalogue = (*session.catalogue()).clone();
        if seen.tools != listed.tools || (first && self.spec.require != Require::Tools) {
            relist(session, &mut catalogue.tools).await;
        }
        if seen.prompts != listed.prompts || first {
            relist(session, &mut catalogue.prompts).await;
        }
        if seen.resources != listed.resources || first {
            relist(session, &mut catalogue.resources).await;
            relist(session, &mut catalogue.templates).await;
        }
        let catalogue = Arc::new(catalogue);
        *lock(&self.spec.known) = catalogue.clone();
        session.set_catalogue(catalogue.clone());
        self.note(What::Relisted(catalogue));
        seen
    }

    fn current_link(&self) -> Option<Wire> {
        lock(&self.controls.link).wire.clone()
    }

    fn set_link(&self, wire: Option<Wire>) {
        lock(&self.controls.link).wire = wire;
    }

    fn note(&self, what: What) {
        self.notes.send(Note { epoch: self.epoch, what });
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn ping(session: Arc<Session>, mut ping: Call, patience: Duration, notes: Notes) {
    // The end of the link is told by itself, and silence is seen at the ping's deadline.
    let Ok(answer) = timeout(patience, ping.answer()).await else { return };
    let limited = |failure: &CallFailure| failure.failure.class == FailureClass::RateLimited;
    session.asker().limited(answer.as_ref().is_err_and(limited));
    let what = match answer {
        Ok(Ok(_)) => What::Pong,
        Ok(Err(error)) if error.code == METHOD_NOT_FOUND => What::PingUnsupported,
        Ok(Err(error)) => match session.asker().settle_ping(&Doubt::error("ping", &error)).await {
            true => What::PingUnsupported,
            false => return,
        },
        Err(CallFailure { doubt: Some(refusal), .. }) => {
            let answered = session.asker().settle_ping(&Doubt::of("ping", &refusal)).await;
            // An exchange that broke, and a server that is out of order, say nothing of pings.
            if !answered || !refusal.status.is_some_and(|status| (400..500).contains(&status)) {
                return;
            }
            What::PingUnsupported
        }
        Err(_) => {
            if session.wire().control().survives() {
                // Refused, by a server that is there (HTTP 429).
                session.wire().touch();
            }
            return;
        }
    };
    if matches!(what, What::PingUnsupported) {
        tracing::debug!(epoch = %session.epoch(), "the server answers no pings, and other requests");
    }
    notes.send(Note { epoch: session.epoch(), what });
}

async fn relist<T: Entry>(session: &Session, part: &mut Part<T>) {
    match list(session.wire(), session.established()).await {
        Ok(listing) => *part = Part::Listed(listing.items),
        Err(error) => *part = part.stale(error.to_string()),
    }
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
