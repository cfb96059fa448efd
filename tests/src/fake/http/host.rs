//! Where the engine's messages go: to the request of HTTP that they belong to, or to a standing stream.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::Value;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::ledger::HttpEvent;
use super::plan::HttpAction;
use crate::fake::host::{Grandchild, Host, Output, Route};
use crate::fake::ledger::{Event, LedgerWriter};
use crate::fake::script::SharedPlan;

/// How many outputs wait for a client that does not read.
const CAPACITY: usize = 16;

/// One spawn's world, shared by its connections and its engine.
#[derive(Debug)]
pub(crate) struct HttpHost {
    pub(crate) plan: SharedPlan,
    ledger: LedgerWriter,
    started: Instant,
    frozen: watch::Sender<bool>,
    resets: watch::Sender<()>,
    state: Mutex<State>,
    parked: Notify,
}

#[derive(Debug, Default)]
struct State {
    last_number: u64,
    last_session: u64,
    open: BTreeMap<u64, Open>,
    sessions: HashSet<Arc<str>>,
    forgotten: HashSet<Arc<str>>,
    token: Option<String>,
    /// Which request's events an event id belongs to.
    events: HashMap<String, u64>,
    parked: HashMap<u64, Parked>,
}

/// A request that is being answered.
#[derive(Debug)]
struct Open {
    outputs: mpsc::Sender<Item>,
    /// Cancelled when nobody writes its outputs to a connection, for now or for ever.
    left: CancellationToken,
    /// A standing stream, and the session that it is for.
    standing: Option<Option<Arc<str>>>,
}

/// What goes to one request of HTTP; `done` is dropped when it was written.
#[derive(Debug)]
pub(crate) struct Item {
    pub(crate) output: Output,
    pub(crate) done: Option<oneshot::Sender<()>>,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.left.cancel();
    }
}

/// The rest of an answer whose stream ended too early, for the GET that asks for it.
#[derive(Debug)]
pub(crate) struct Parked {
    /// `None`: the answer was complete.
    pub(crate) outputs: Option<mpsc::Receiver<Item>>,
    pub(crate) log: Vec<(Option<String>, Vec<u8>)>,
    pub(crate) standing: bool,
}

impl HttpHost {
    pub(crate) fn new(plan: SharedPlan, ledger: LedgerWriter) -> Self {
        Self {
            plan,
            ledger,
            started: Instant::now(),
            frozen: watch::Sender::new(false),
            resets: watch::Sender::new(()),
            state: Mutex::default(),
            parked: Notify::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The engine ends a spawn whose ledger cannot be written: its entries go to the same file.
    pub(crate) fn record(&self, event: HttpEvent) {
        drop(self.ledger.record(Event::Http(event)));
    }

    /// A number that nothing else in this spawn has.
    pub(crate) fn number(&self) -> u64 {
        let mut state = self.state();
        state.last_number += 1;
        state.last_number
    }

    pub(crate) fn freeze(&self, frozen: bool) {
        self.frozen.send_replace(frozen);
    }

    pub(crate) async fn thawed(&self) {
        // It cannot fail: the sender is beside it.
        drop(self.frozen.subscribe().wait_for(|frozen| !frozen).await);
    }

    /// Resets every connection.
    pub(crate) fn disconnect(&self) {
        self.resets.send_replace(());
    }

    /// Changes when the connections of this moment are to be reset.
    pub(crate) fn resets(&self) -> watch::Receiver<()> {
        self.resets.subscribe()
    }

    pub(crate) fn open(&self, exchange: u64) -> mpsc::Receiver<Item> {
        let (outputs, receiver) = mpsc::channel(CAPACITY);
        self.state().open.insert(exchange, Open { outputs, left: CancellationToken::new(), standing: None });
        receiver
    }

    /// From now on the request is a standing stream.
    pub(crate) fn stand(&self, exchange: u64, session: Option<Arc<str>>) {
        if let Some(open) = self.state().open.get_mut(&exchange) {
            open.standing = Some(session);
        }
    }

    pub(crate) fn close(&self, exchange: u64) {
        self.state().open.remove(&exchange);
    }

    /// Keeps what is still to come for the GET that asks for it.
    pub(crate) fn park(&self, exchange: u64, parked: Parked) {
        let mut state = self.state();
        if let Some(open) = state.open.get_mut(&exchange) {
            open.standing = None;
            open.left.cancel();
        }
        state.parked.insert(exchange, parked);
        drop(state);
        self.parked.notify_waiters();
    }

    pub(crate) fn event(&self, id: &str, exchange: u64) {
        self.state().events.insert(id.to_owned(), exchange);
    }

    pub(crate) fn origin(&self, event: &str) -> Option<u64> {
        self.state().events.get(event).copied()
    }

    /// Waits until that stream has ended, and takes the rest of it.
    pub(crate) async fn unpark(&self, exchange: u64) -> Parked {
        loop {
            let parked = self.parked.notified();
            tokio::pin!(parked);
            parked.as_mut().enable();
            if let Some(rest) = self.state().parked.remove(&exchange) {
                return rest;
            }
            parked.await;
        }
    }

    /// An id for a session that does not live yet: `A1`, `A2`, and `B1` in the second spawn.
    pub(crate) fn next_session(&self) -> Arc<str> {
        let mut state = self.state();
        state.last_session += 1;
        let mut letters = String::new();
        let mut spawn = self.ledger.spawn();
        while spawn > 0 {
            let digit = u8::try_from((spawn - 1) % 26).unwrap_or_default();
            letters.insert(0, char::from(b'A' + digit));
            spawn = (spawn - 1) / 26;
        }
        format!("{letters}{}", state.last_session).into()
    }

    /// The client is told of the session now.
    pub(crate) fn create_session(&self, session: &Arc<str>) {
        let mut state = self.state();
        if !state.sessions.insert(Arc::clone(session)) {
            return;
        }
        drop(state);
        self.record(HttpEvent::SessionCreated { session: session.to_string() });
    }

    pub(crate) fn knows(&self, session: &str) -> bool {
        let state = self.state();
        state.sessions.contains(session) && !state.forgotten.contains(session)
    }

    pub(crate) fn end_session(&self, session: &Arc<str>, deleted: bool) {
        self.state().forgotten.insert(Arc::clone(session));
        self.record(HttpEvent::SessionEnded { session: session.to_string(), deleted });
        if deleted {
            let mut state = self.state();
            let standing = |open: &Open| open.standing.as_ref() == Some(&Some(Arc::clone(session)));
            // Without its sender, a stream ends.
            state.open.retain(|_, open| !standing(open));
        }
    }

    pub(crate) fn forget_all(&self) {
        let state = self.state();
        let mut live: Vec<_> = state.sessions.difference(&state.forgotten).cloned().collect();
        drop(state);
        live.sort();
        for session in live {
            self.end_session(&session, false);
        }
    }

    /// Whether what `Authorization` says is good enough.
    pub(crate) fn authorizes(&self, authorization: Option<&str>) -> bool {
        let token = authorization.and_then(|value| value.strip_prefix("Bearer "));
        if let Some(wanted) = &self.state().token {
            return token == Some(wanted);
        }
        let (plan, age) = (self.plan.get(), self.started.elapsed());
        let valid = plan.http.tokens.iter().filter(|credential| credential.until.is_none_or(|until| age < until));
        plan.http.tokens.is_empty() || token.is_some_and(|token| valid.into_iter().any(|valid| valid.token == token))
    }

    /// To the standing streams of the session, or to all of them.
    pub(crate) async fn to_standing(&self, session: Option<&Arc<str>>, output: Output) {
        let fits = |open: &&Open| match (&open.standing, session) {
            (None, _) => false,
            (Some(_), None) => true,
            (Some(of), session) => of.as_ref() == session,
        };
        let streams: Vec<_> = self.state().open.values().filter(fits).map(Way::to).collect();
        let mut delivered = false;
        for stream in streams {
            delivered |= stream.write(output.clone()).await.is_ok();
        }
        if !delivered {
            self.undelivered(output);
        }
    }

    pub(crate) fn undelivered(&self, output: Output) {
        if let Output::Frame(text) | Output::Answer(text) = output {
            let message = serde_json::from_str(&text).unwrap_or(Value::String(text));
            self.record(HttpEvent::Undelivered { message });
        }
    }
}

/// The way to one request of HTTP.
struct Way {
    outputs: mpsc::Sender<Item>,
    left: CancellationToken,
}

impl Way {
    fn to(open: &Open) -> Self {
        Self { outputs: open.outputs.clone(), left: open.left.clone() }
    }

    /// Returns when it was written, or is kept for later; gives back what it came too late for.
    async fn write(self, output: Output) -> Result<(), Output> {
        let (done, written) = oneshot::channel();
        let sent = self.outputs.send(Item { output, done: Some(done) }).await;
        sent.map_err(|refused| refused.0.output)?;
        tokio::select! {
            _ = written => {}
            () = self.left.cancelled() => {}
        }
        Ok(())
    }
}

impl Host for HttpHost {
    async fn write(&self, to: &Route, mut output: Output) {
        match &output {
            Output::Http(HttpOutput(HttpAction::Forget)) => {
                return match &to.session {
                    Some(session) => self.end_session(session, false),
                    None => self.forget_all(),
                };
            }
            Output::Http(HttpOutput(HttpAction::SetToken(token))) => {
                self.state().token = Some(token.clone());
                return;
            }
            Output::Http(HttpOutput(HttpAction::Disconnect)) => return self.disconnect(),
            _ => {}
        }
        let exchange = to.exchange.and_then(|exchange| self.state().open.get(&exchange).map(Way::to));
        if let Some(way) = exchange {
            match way.write(output).await {
                Ok(()) => return,
                Err(back) => output = back,
            }
        }
        match output {
            Output::Frame(_) => self.to_standing(to.session.as_ref(), output).await,
            Output::Raw(_) if to.exchange.is_none() => self.to_standing(to.session.as_ref(), output).await,
            _ => self.undelivered(output),
        }
    }

    fn speaks_http(&self) -> bool {
        true
    }

    fn accepted(&self, to: &Route) {
        let state = self.state();
        let open = to.exchange.and_then(|exchange| state.open.get(&exchange));
        // Nothing else is written to the request of a message without an answer: it cannot be full.
        if let Some(open) = open {
            let output = Output::Http(HttpOutput(HttpAction::Pass));
            drop(open.outputs.try_send(Item { output, done: None }));
        }
    }

    async fn stderr(&self, bytes: Vec<u8>) {
        let mut stderr = tokio::io::stderr();
        if tokio::io::AsyncWriteExt::write_all(&mut stderr, &bytes).await.is_ok() {
            drop(tokio::io::AsyncWriteExt::flush(&mut stderr).await);
        }
    }

    /// Standing streams end.
    fn close_stdout(&self) {
        self.state().open.retain(|_, open| open.standing.is_none());
    }

    fn grandchild(&self, _: Grandchild) -> io::Result<Option<u32>> {
        Ok(None)
    }

    fn bind(&self, _: u16) -> io::Result<()> {
        Ok(())
    }

    fn deaf(&self) {
        self.freeze(true);
    }

    fn unattended(&self) {}
}

/// What only an HTTP server can do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpOutput(pub(crate) HttpAction);
