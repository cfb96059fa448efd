//! The course of the demo: its waits, its faults, and its notes meanwhile.

use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use mcp_reconnect::core::{Epoch, Status};
use mcp_reconnect::{CallOptions, Connection, Event, Events, Session};
use rustix::process::Pid;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use super::faults::Fault;
use super::report::{Entry, Rebuild, Report, Summary, millis};
use super::stage::Stage;
use super::subject::Subject;
use super::tally::{Tally, Wrong, runs};
use super::target::{LOST, Outcome, Record, Target, call_steadily};

/// Time for anything that is waited for.
const PATIENCE: Duration = Duration::from_secs(60);
/// Number of failures that the first start may have.
const FIRST_STARTS: u64 = 3;
/// Number of characters of a session id that are shown.
const SESSION_SHOWN: usize = 8;

/// Why the demo ends early.
#[derive(Debug)]
pub(super) enum Stop {
    /// It did not go as it should.
    Failed(String),
    /// Nobody can be told any more.
    Output(io::Error),
    /// A signal; the exit status for it.
    Signal(u8),
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

/// The demo under way.
pub(super) struct Play<W> {
    connection: Connection,
    events: Events,
    report: Report<W>,
    subject: Subject,
    options: CallOptions,
    stable_after: Duration,
    callers: Vec<Caller>,
    running: JoinSet<()>,
    stop: CancellationToken,
    record: mpsc::UnboundedSender<Record>,
    records: mpsc::UnboundedReceiver<Record>,
    rebuilds: Vec<Rebuild>,
    /// The status last told.
    status: Status,
}

/// One caller, as the demo sees it.
struct Caller {
    tally: Tally,
    /// The outcome of its last call.
    last: Option<&'static str>,
    /// The newest epoch that answered it, and when that answered first.
    answered: Option<(Epoch, Instant)>,
}

impl<W: Write> Play<W> {
    /// Must be made before the connection has told anything that matters.
    pub(super) fn new(
        connection: Connection,
        report: Report<W>,
        subject: Subject,
        options: CallOptions,
        stable_after: Duration,
    ) -> Self {
        let events = connection.events();
        let status = connection.snapshot().status;
        let (record, records) = mpsc::unbounded_channel();
        let (callers, running, stop) = (Vec::new(), JoinSet::new(), CancellationToken::new());
        let rebuilds = Vec::new();
        Self {
            connection,
            events,
            report,
            subject,
            options,
            stable_after,
            callers,
            running,
            stop,
            record,
            records,
            rebuilds,
            status,
        }
    }

    /// Loses the server by each of the faults, so many times over.
    pub(super) async fn run(&mut self, faults: &[Fault], rounds: u32, tool: Option<&str>) -> Result<(), Stop> {
        self.call_all(tool).await?;
        for round in 1..=rounds {
            for &fault in faults {
                self.suffer(round, fault).await?;
            }
        }
        self.proven().await?;
        self.call_no_more().await
    }

    /// Calls the server for so long, whatever others do to it meanwhile.
    pub(super) async fn watch(&mut self, long: Duration, tool: Option<&str>) -> Result<(), Stop> {
        let mut epoch = self.call_all(tool).await?;
        let mut lost = None;
        let over = sleep(long);
        tokio::pin!(over);
        loop {
            tokio::select! {
                () = &mut over => break,
                noted = self.note() => noted?,
            }
            if lost.is_none() && self.status != Status::Ready(epoch) {
                lost = Some(Instant::now());
            }
            if let (Some(at), Some((next, answered))) = (lost, self.answered_after(epoch)) {
                self.rebuilt(None, None, next, answered.saturating_duration_since(at))?;
                (epoch, lost) = (next, None);
            }
        }
        self.call_no_more().await?;
        if lost.is_some() {
            return Err(self.failed("there was no new session yet when the time was over"));
        }
        Ok(())
    }

    /// Ends the connection and the server. Only then is the ledger complete.
    pub(super) async fn close(&mut self) -> io::Result<()> {
        self.connection.shutdown().await;
        match &mut self.subject {
            Subject::Hosted(host) => host.stop().await,
            Subject::Command | Subject::Embedded(_) | Subject::Remote => Ok(()),
        }
    }

    /// Starts to call, once there is a session.
    async fn call_all(&mut self, tool: Option<&str>) -> Result<Epoch, Stop> {
        let session = self.session(Instant::now() + PATIENCE).await?;
        let targets = match self.subject.stage() {
            Some(_) => Target::embedded(),
            None => vec![Target::of(&session, tool).map_err(Stop::Failed)?],
        };
        for target in targets {
            self.call(target)?;
        }
        Ok(session.epoch())
    }

    async fn call_no_more(&mut self) -> Result<(), Stop> {
        self.stop.cancel();
        // Each ends with its call, which has a deadline.
        while let Some(ended) = self.running.join_next().await {
            ended.map_err(|error| Stop::Failed(format!("a caller failed: {error}")))?;
        }
        while let Ok(record) = self.records.try_recv() {
            self.on_record(&record)?;
        }
        Ok(())
    }

    /// Compares outcomes with runs, and reports the result; whether it is good.
    pub(super) fn finish(mut self, error: Option<String>) -> io::Result<bool> {
        let epochs = self.connection.snapshot().stats.sessions;
        let ledger = self.subject.stage().map(Stage::ledger).transpose()?;
        let ledger = ledger.as_deref();
        let mut tools: Vec<_> = self.callers.into_iter().map(|caller| caller.tally).collect();
        if let Some(ledger) = ledger {
            let runs = runs(ledger);
            for tally in &mut tools {
                for Wrong { call, why } in tally.audit(&runs) {
                    let outcome = LOST;
                    self.report.tell(&Entry::Call {
                        tool: &tally.tool,
                        call: &call,
                        outcome,
                        epoch: None,
                        cause: Some(why),
                    })?;
                }
            }
        }
        let lost = tools.iter().map(|tally| tally.lost).sum();
        let doubled = ledger.and_then(|_| tools.iter().map(Tally::doubled).sum());
        let ok = error.is_none() && lost == 0 && doubled.unwrap_or(0) == 0;
        let summary = Summary { ok, error, lost, doubled, epochs, rebuilds: self.rebuilds, tools };
        self.report.tell(&Entry::Summary(&summary))?;
        Ok(ok)
    }

    /// Starts a caller.
    fn call(&mut self, target: Target) -> Result<(), Stop> {
        let Target { name, annotated, .. } = &target;
        self.report.tell(&Entry::Calling { tool: name, annotated: *annotated, heading: target.describe() })?;
        let place = self.callers.len();
        self.callers.push(Caller { tally: Tally::new(&target), last: None, answered: None });
        let (connection, record, stop) = (self.connection.clone(), self.record.clone(), self.stop.clone());
        self.running.spawn(call_steadily(connection, place, target, self.options, record, stop));
        Ok(())
    }

    /// Waits until the session is proven, loses the server, and waits until everybody is answered again.
    async fn suffer(&mut self, round: u32, fault: Fault) -> Result<(), Stop> {
        let session = self.proven().await?;
        let epoch = session.epoch();
        let pid = self.pid(&session).unwrap_or_default();
        let at = Instant::now();
        let group = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let injected = group.map(|group| fault.inject(group, self.subject.stage()));
        if !matches!(injected, Some(Ok(()))) {
            return Err(Stop::Failed(format!("cannot lose process group {pid}: {injected:?}")));
        }
        self.report.tell(&Entry::Fault { round, fault, epoch: epoch.get(), pid })?;
        let until = at + PATIENCE;
        self.relieve(round, fault, epoch, until).await?;
        let (epoch, answered) = loop {
            if let Some(first) = self.answered_after(epoch) {
                break first;
            }
            self.turn(until, &format!("not every caller was answered on a new session after the {}", fault.as_str()))
                .await?;
        };
        self.rebuilt(Some(round), Some(fault), epoch, answered.saturating_duration_since(at))
    }

    /// Ends a fault that does not end by itself, when our side has noticed it: a server behind HTTP is brought back by
    /// nobody but the demo.
    async fn relieve(&mut self, round: u32, fault: Fault, epoch: Epoch, until: Instant) -> Result<(), Stop> {
        if let Some(goes_on) = fault.goes_on() {
            while self.status == Status::Ready(epoch) {
                self.turn(until, &format!("the {} was not noticed", fault.as_str())).await?;
            }
            let over = sleep(goes_on);
            tokio::pin!(over);
            loop {
                tokio::select! {
                    () = &mut over => break,
                    noted = self.note() => noted?,
                }
            }
        }
        let Subject::Hosted(host) = &mut self.subject else { return Ok(()) };
        if let Err(error) = host.relieve(fault).await {
            return Err(Stop::Failed(format!("the server does not come back after the {}: {error}", fault.as_str())));
        }
        Ok(self.report.tell(&Entry::Relief { round, fault, pid: self.subject.pid() })?)
    }

    /// The first answer after this epoch, once every caller has one.
    fn answered_after(&self, epoch: Epoch) -> Option<(Epoch, Instant)> {
        let answers = self.callers.iter().map(|caller| caller.answered.filter(|&(answering, _)| answering > epoch));
        answers.collect::<Option<Vec<_>>>()?.into_iter().min_by_key(|&(_, at)| at)
    }

    fn rebuilt(&mut self, round: Option<u32>, fault: Option<Fault>, epoch: Epoch, took: Duration) -> Result<(), Stop> {
        let rebuild = Rebuild { round, fault, epoch: epoch.get(), rebuild_ms: millis(took) };
        self.rebuilds.push(rebuild);
        Ok(self.report.tell(&Entry::Rebuilt(rebuild))?)
    }

    fn pid(&self, session: &Session) -> Option<u32> {
        session.facts().pid.or_else(|| self.subject.pid())
    }

    /// A session that has been ready for `stable_after`.
    async fn proven(&mut self) -> Result<Arc<Session>, Stop> {
        let until = Instant::now() + PATIENCE;
        loop {
            let session = self.session(until).await?;
            let stable = sleep(self.stable_after);
            tokio::pin!(stable);
            loop {
                tokio::select! {
                    () = &mut stable => return Ok(session),
                    turn = self.turn(until, "no session lasted") => turn?,
                }
                if self.status != Status::Ready(session.epoch()) {
                    break;
                }
            }
        }
    }

    async fn session(&mut self, until: Instant) -> Result<Arc<Session>, Stop> {
        loop {
            if let Some(session) = self.session_now() {
                return Ok(session);
            }
            self.turn(until, "the server was not ready").await?;
        }
    }

    /// The session of the epoch that was last told to be ready, while it is.
    fn session_now(&self) -> Option<Arc<Session>> {
        let Status::Ready(epoch) = self.status else { return None };
        let session = self.connection.session().now_or_never()?.ok()?;
        (session.epoch() == epoch).then_some(session)
    }

    /// Takes note of one thing that happens by then. Cancel safe.
    async fn turn(&mut self, until: Instant, or_else: &str) -> Result<(), Stop> {
        tokio::select! {
            biased;
            noted = self.note() => noted,
            () = sleep_until(until) => Err(self.failed(&format!("{or_else} within {PATIENCE:?}"))),
        }
    }

    /// Takes note of one thing that happens. Cancel safe.
    async fn note(&mut self) -> Result<(), Stop> {
        tokio::select! {
            biased;
            Some(event) = self.events.next() => self.on_event(event),
            Some(record) = self.records.recv() => Ok(self.on_record(&record)?),
        }
    }

    fn failed(&self, what: &str) -> Stop {
        let last = self.connection.last_failure();
        let last = last.map_or_else(String::new, |cause| format!("; last failure: {cause}"));
        Stop::Failed(format!("{what}{last}"))
    }

    fn on_event(&mut self, event: Event) -> Result<(), Stop> {
        let Event::Status { status, failure, cause } = event else { return Ok(()) };
        let before = std::mem::replace(&mut self.status, status);
        let epoch = match (status, before) {
            (Status::Ready(epoch), _) | (_, Status::Ready(epoch)) => Some(epoch.get()),
            _ => None,
        };
        let session = self.session_now();
        let pid = session.as_ref().and_then(|session| self.pid(session));
        // No more of it: its holder may use the session.
        let session = session.and_then(|session| session.facts().session_id);
        let session = session.map(|id| id.chars().take(SESSION_SHOWN).collect::<String>());
        let session = session.as_deref();
        let failure = failure.map(|class| class.as_str());
        let cause = cause.as_deref();
        self.report.tell(&Entry::Status { status: status.as_str(), epoch, pid, session, failure, cause })?;
        let cause = cause.or(failure).unwrap_or_default();
        let stats = self.connection.snapshot().stats;
        match status {
            Status::Parked(reason) => Err(Stop::Failed(format!("the server is parked ({reason}): {cause}"))),
            Status::TransientFailure if stats.sessions == 0 && stats.failures >= FIRST_STARTS => {
                let what = if matches!(self.subject, Subject::Remote) { "cannot be reached" } else { "does not start" };
                Err(Stop::Failed(format!("the server {what}: {cause}")))
            }
            _ => Ok(()),
        }
    }

    fn on_record(&mut self, record: &Record) -> io::Result<()> {
        let Some(caller) = self.callers.get_mut(record.target) else { return Ok(()) };
        caller.tally.add(record);
        let outcome = record.outcome.name();
        if record.outcome.is_answer() {
            self.report.count_answer();
            if let Some(epoch) = record.epoch
                && caller.answered.is_none_or(|(before, _)| before < epoch)
            {
                caller.answered = Some((epoch, record.at));
            }
        }
        let repeated = caller.last.replace(outcome) == Some(outcome);
        let told = match record.outcome {
            Outcome::Answered => false,
            // These may come many times a second.
            Outcome::ServerError(_) | Outcome::NotSent(_) => !repeated,
            Outcome::Unknown(_) | Outcome::DeadlineExceeded { .. } | Outcome::Lost(_) => true,
        };
        if !told {
            return Ok(());
        }
        let Record { label, epoch, .. } = record;
        let epoch = epoch.map(Epoch::get);
        let tool = &caller.tally.tool;
        self.report.tell(&Entry::Call { tool, call: label, outcome, epoch, cause: record.outcome.cause() })
    }
}
