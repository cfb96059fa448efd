//! The one task that owns a connection's machine: feeds it, carries out its orders, publishes its state.

use std::sync::Arc;
use std::time::Duration;

use futures::future::OptionFuture;
use mcp_reconnect_core::{
    Admission, CloseCause, ConnectionMachine, Epoch, Event as MachineEvent, FailureClass, Input, Liveness, Output,
    ParkReason, PingSupport, ReadyFlag, State, Status, Timestamp,
};
use tokio::sync::{oneshot, watch};
use tokio::time::sleep_until;

use crate::clock::{Clock, SuspendDetector};
use crate::connection::Event;
use crate::connection::epoch::{Dialler, LiveEpoch};
use crate::connection::event::Telling;
use crate::connection::inbox::{Inbox, Message};
use crate::connection::messages::{Command, Note, What};
use crate::connection::metrics::Meters;
use crate::connection::published::{Observer, Outlook, Published};
use crate::session::Session;
use crate::session::catalogue::{Catalogue, CatalogueDiff};
use crate::trace::Recording;

pub(crate) struct Owner {
    pub(crate) machine: ConnectionMachine,
    pub(crate) clock: Clock,
    pub(crate) suspend: SuspendDetector,
    pub(crate) dialler: Dialler,
    pub(crate) inbox: Inbox,
    pub(crate) published: watch::Sender<Published>,
    pub(crate) events: Arc<Telling>,
    pub(crate) observer: Option<Box<dyn Observer>>,
    pub(crate) meters: Arc<Meters>,
    pub(crate) live: Option<LiveEpoch>,
    pub(crate) cause: Option<Arc<str>>,
    /// Whether a warning has told that it flaps, since the last session that proved itself.
    pub(crate) flapped_before: bool,
    pub(crate) recording: Option<Box<Recording>>,
}

impl Owner {
    /// Runs until the machine was shut down (on order, or because every handle is gone) and nothing is left. To be dropped
    /// then. By reference: a future has room for what it is given, and again for what it moves that to.
    pub(crate) async fn run(&mut self) {
        loop {
            if matches!(self.machine.snapshot().state, State::Shutdown) {
                break;
            }
            let wake_at = self.machine.next_timeout().map(|at| self.clock.instant(at));
            let wake_up = OptionFuture::from(wake_at.map(sleep_until));
            tokio::select! {
                biased;
                message = self.inbox.next() => match message {
                    Message::Note(note) => self.on_note(note),
                    Message::Command(command) => self.on_command(command),
                    Message::NoHandles => self.step(Input::Shutdown, None),
                },
                Some(()) = wake_up => self.step(Input::Tick, None),
            }
        }
        // Waiters are told by the published Shutdown; now nothing may be left when the owner is.
        if let Some(live) = self.live.take() {
            Box::pin(live.kill()).await;
        }
        self.dialler.finished().await;
        if let Some(recording) = self.recording.take() {
            recording.finish().await;
        }
    }

    fn on_note(&mut self, Note { epoch, what }: Note) {
        match what {
            What::Reached(flag) => {
                self.step(Input::Reached { epoch, flag }, None);
            }
            What::Established(session) => {
                if let Some(live) = self.live.as_mut().filter(|live| live.epoch == epoch) {
                    live.session = Some(session);
                    self.step(Input::Reached { epoch, flag: ReadyFlag::Catalogue }, None);
                }
            }
            What::Lost(failure, cause) => self.fail(Input::Lost { epoch, failure }, epoch, cause),
            What::Gone(failure, cause) => {
                self.fail(Input::Gone { epoch, failure }, epoch, cause);
                self.live.take_if(|live| live.epoch == epoch);
            }
            What::Pong => {
                // Any later one is no news.
                if self.machine.snapshot().pings != PingSupport::Answers {
                    self.step(Input::Pong { epoch }, None);
                }
                self.on_life(epoch);
            }
            What::Alive => self.on_life(epoch),
            What::PingUnsupported => self.step(Input::PingUnsupported { epoch }, None),
            What::Relisted(catalogue) => {
                if self.published.borrow().session.as_ref().is_some_and(|session| session.epoch() == epoch) {
                    self.offer(catalogue);
                }
            }
            What::Listed(took) => self.step(Input::Listed { epoch, took }, None),
            What::OtherServer => self.step(Input::ServerChanged { epoch }, None),
            What::Renew => self.step(Input::Renew { epoch }, None),
            What::Tell(event) => self.tell(event),
        }
    }

    fn on_command(&mut self, command: Command) {
        match command {
            Command::Connect { until, reply } => {
                self.notice_suspend();
                let until = self.clock.timestamp(until);
                self.step(Input::Connect { until }, Some(reply));
            }
            // First of all: what became due in the gap is not held against the session.
            Command::Input(input @ Input::Resumed { .. }) => self.handle(self.clock.now(), input, None),
            Command::Input(input) => self.step(input, None),
            Command::NoReply { epoch, sent, noted } => {
                let sent = self.clock.timestamp(sent);
                self.sample();
                self.step(Input::NoReply { epoch, sent }, None);
                _ = noted.send(()); // the caller may be gone
            }
            Command::Answered => self.sample(),
            Command::Silent => self.notice_suspend(),
            Command::Turn(done) => _ = done.send(()), // the caller may be gone
            Command::Lost { epoch, failure, cause } => self.fail(Input::Lost { epoch, failure }, epoch, cause),
        }
    }

    /// The server has answered a ping or an ask. The machine hears of it at once where it waits for it, so that the
    /// deadline wakes nobody. What has been seen as traffic already, at that deadline or since a later ping, is no news.
    fn on_life(&mut self, epoch: Epoch) {
        self.notice_suspend();
        if let State::Ready { epoch: ready, liveness: Liveness::Asked { .. } | Liveness::Listing { .. }, .. } =
            self.machine.snapshot().state
            && ready == epoch
        {
            self.sample();
        }
    }

    /// A failure of the live epoch; its cause is what callers and subscribers are told from now on.
    fn fail(&mut self, input: Input, epoch: Epoch, cause: Arc<str>) {
        if self.machine.snapshot().state.live_epoch() == Some(epoch)
            && !matches!(self.machine.snapshot().state, State::Closing { .. })
        {
            self.cause = Some(cause);
        }
        self.step(input, None);
    }

    /// One turn: the machine is told, its orders are carried out, its state is published.
    fn step(&mut self, input: Input, reply: Option<oneshot::Sender<Admission>>) {
        let now = self.clock.now();
        if self.machine.next_timeout().is_some_and(|at| at <= now) {
            self.notice_suspend();
            self.sample();
        }
        self.handle(now, input, reply);
    }

    fn notice_suspend(&mut self) {
        if self.suspend.resumed() {
            tracing::info!("the host was suspended");
            self.handle(self.clock.now(), Input::Resumed { by_call: false }, None);
        }
    }

    /// Tells the machine what the calls know: when something last came in, whether a call was answered, how old the
    /// oldest open one is.
    fn sample(&mut self) {
        let State::Ready { epoch, .. } = self.machine.snapshot().state else { return };
        let Some(session) = self.live.as_ref().and_then(|live| live.session.as_ref()) else { return };
        let wire = session.wire();
        let answered = wire.take_answered();
        let input = Input::Traffic {
            epoch,
            inbound: self.clock.timestamp(wire.last_inbound()),
            answered,
            served: answered,
            answered_to: None,
            oldest: wire.oldest_open().map(|at| self.clock.timestamp(at)),
        };
        self.handle(self.clock.now(), input, None);
    }

    fn handle(&mut self, now: Timestamp, input: Input, mut reply: Option<oneshot::Sender<Admission>>) {
        let outputs = self.machine.handle(now, input);
        self.recording.take_if(|recording| !recording.step(now, input, &outputs));
        for output in outputs {
            match output {
                Output::Dial { epoch, timeout, interactive } => self.dial(epoch, timeout, interactive),
                Output::Close { epoch, cause } => self.close(epoch, cause),
                Output::Ping { epoch } => self.ask(epoch, Dialler::ping),
                Output::Ask { epoch } => self.ask(epoch, Dialler::list),
                Output::Publish { epoch } => self.publish_catalogue(epoch),
                Output::Withdraw => self.withdraw(),
                Output::Admit(admission) => {
                    if let Some(reply) = reply.take() {
                        // Published first: a caller that is told to go finds the session.
                        self.publish();
                        _ = reply.send(admission); // the caller may have stopped waiting
                    }
                }
                Output::Event(event) => self.on_event(event),
            }
        }
        self.publish();
    }

    fn on_event(&mut self, event: MachineEvent) {
        match event {
            MachineEvent::StatusChanged { status, failure } => {
                if matches!(status, Status::Parked(_) | Status::Shutdown) {
                    // The machine knows nothing of a catalogue that is offered from before the first session.
                    self.withdraw();
                }
                if failure.is_none() {
                    self.cause = None;
                }
                let cause = self.cause.clone();
                self.log(status, cause.as_deref());
                self.publish();
                self.tell(Event::Status { status, failure, cause });
            }
            MachineEvent::BreakerChanged { open_until } => {
                let open_until = open_until.map(|at| self.clock.instant(at));
                tracing::warn!(open = open_until.is_some(), "circuit breaker");
                self.tell(Event::Breaker { open_until });
            }
            // An event of a later core that this runtime does not know.
            _ => {}
        }
    }

    /// A line for each change, until a server was parked for flapping: it will be so again after each probe, until a
    /// session has proven itself.
    fn log(&mut self, status: Status, cause: Option<&str>) {
        if self.machine.snapshot().stats.failures_in_a_row <= 1 {
            self.flapped_before = false;
        }
        if self.flapped_before {
            tracing::debug!(%status, cause, "status");
        } else if let Status::Parked(reason) = status {
            self.flapped_before = reason == ParkReason::Flapping;
            tracing::warn!(%status, cause, "the server is parked");
        } else {
            tracing::info!(%status, cause, "status");
        }
    }

    fn publish(&self) {
        let snapshot = self.machine.snapshot();
        let session = match snapshot.state {
            State::Ready { epoch, .. } => {
                self.live.as_ref().filter(|live| live.epoch == epoch).and_then(|live| live.session.clone())
            }
            State::Idle
            | State::Connecting { .. }
            | State::Closing { .. }
            | State::TransientFailure { .. }
            | State::Parked { .. }
            | State::Shutdown => None,
        };
        self.published.send_if_modified(|published| {
            if published.snapshot != snapshot {
                self.meters.published(&snapshot);
            }
            // A look shows everything; waiters are woken only by a change that may settle them.
            let news = Outlook::of(&published.snapshot) != Outlook::of(&snapshot);
            published.snapshot = snapshot;
            published.session = session;
            published.cause.clone_from(&self.cause);
            news
        });
    }

    fn publish_catalogue(&self, epoch: Epoch) {
        let session = self.live.as_ref().filter(|live| live.epoch == epoch).and_then(|live| live.session.as_ref());
        if let Some(session) = session {
            self.offer(session.catalogue());
        }
    }

    /// Swaps in a whole catalogue, with one event that says what changed.
    fn offer(&self, catalogue: Arc<Catalogue>) {
        let old = self.published.borrow().catalogue.clone();
        let diff = CatalogueDiff::between(old.as_deref().unwrap_or(&Catalogue::default()), &catalogue);
        self.published.send_if_modified(|published| {
            published.catalogue = Some(catalogue.clone());
            // Before its session is published, which then tells of both, nobody waits for it.
            published.session.is_some()
        });
        if let Some(observer) = &self.observer {
            observer.offered(Some(&catalogue));
        }
        if !diff.is_empty() {
            self.tell(Event::Catalogue(Arc::new(diff)));
        }
    }

    fn withdraw(&self) {
        if self.published.send_if_modified(|published| published.catalogue.take().is_some()) {
            if let Some(observer) = &self.observer {
                observer.offered(None);
            }
            self.tell(Event::Withdrawn);
        }
    }

    fn tell(&self, event: Event) {
        if let Some(observer) = &self.observer {
            observer.told(&event);
        }
        self.events.tell(event);
    }

    fn dial(&mut self, epoch: Epoch, timeout: Duration, interactive: bool) {
        // An epoch that outlived its close deadline is ended by force, and waited for, before the next one dials.
        let previous = self.live.take();
        self.live = Some(self.dialler.dial(epoch, timeout, interactive, previous));
    }

    fn close(&mut self, epoch: Epoch, cause: CloseCause) {
        let Some(live) = self.live.as_ref().filter(|live| live.epoch == epoch) else { return };
        // The machine's own verdicts come without words.
        match cause {
            CloseCause::Failed(FailureClass::StartTimeout) => self.cause = Some(live.start_timed_out()),
            CloseCause::Failed(FailureClass::Unresponsive) => {
                let misses = self.machine.config().ping_misses();
                self.cause = Some(format!("no sign of life: {misses} pings in a row went unanswered").into());
            }
            CloseCause::Failed(_)
            | CloseCause::Parked
            | CloseCause::Idle
            | CloseCause::Lifetime
            | CloseCause::Shutdown => {}
        }
        let ladder = self.dialler.spec.connector.close_bound();
        let drain = self.machine.config().close_timeout().saturating_sub(ladder);
        live.close(cause, self.cause.clone(), drain);
    }

    fn ask(&self, epoch: Epoch, ask: fn(&Dialler, Arc<Session>, Duration)) {
        let live = self.live.as_ref().filter(|live| live.epoch == epoch);
        if let Some(session) = live.and_then(|live| live.session.clone()) {
            ask(&self.dialler, session, self.machine.config().ping_timeout());
        }
    }
}

impl Drop for Owner {
    /// Without its runtime nobody closes politely any more: handles that outlive it see the end, and no process does.
    fn drop(&mut self) {
        // The thread that drops this may hold a lock that the observer takes.
        self.observer = None;
        if let Some(live) = self.live.take() {
            live.abort();
        }
        if !matches!(self.machine.snapshot().state, State::Shutdown) {
            self.step(Input::Shutdown, None);
        }
    }
}
