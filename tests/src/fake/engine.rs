//! Reads messages, and decides which part of the plan each one starts.

use std::collections::HashMap;
use std::future::pending;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};
use tokio::task::{AbortHandle, JoinError, JoinSet};

use super::answer::Request;
use super::host::{Exit, Frame, FrameKind, Host, Output, Route};
use super::ledger::{Event as Entry, LedgerWriter};
use super::play::{Baton, Caller, play};
use super::script::{Action, Event, Item, Plan, SharedPlan, Signal};

/// The exit code of a spawn that cannot write its ledger.
const LEDGER_FAILED: i32 = 97;

/// What comes to a spawn.
#[derive(Debug)]
pub struct Inbound<F> {
    /// Lines from the client; closed = end of input. Dropped when the script closes its input.
    pub frames: mpsc::Receiver<F>,
    /// Signals.
    pub signals: mpsc::UnboundedReceiver<Signal>,
}

/// Plays `plan` until the script, a signal or the end of the input ends it.
///
/// Every action runs on tokio's clock. The returned [`Exit`] is the host's to carry out.
pub async fn serve<H: Host, F: Into<Frame>>(
    plan: impl Into<SharedPlan>,
    ledger: LedgerWriter,
    inbound: Inbound<F>,
    host: Arc<H>,
) -> Exit {
    let (control, mut orders) = mpsc::unbounded_channel();
    let server = Arc::new(Server { plan: plan.into(), ledger, host, state: Mutex::default(), control });
    let Inbound { frames, mut signals } = inbound;
    let mut frames = Some(frames);
    let mut attentive = true;
    let mut calls = JoinSet::new();
    let mut events = JoinSet::new();

    server.start(Event::Start, Route::default(), &mut events);
    for (delay, actions) in server.plan().timed() {
        let actions = std::iter::once(Action::Delay(delay)).chain(actions.iter().cloned()).collect();
        events.spawn(play(Arc::clone(&server), Caller::Event(Route::default()), actions));
    }
    loop {
        let busy = server.plan().serial && !calls.is_empty();
        let frame = async {
            match &mut frames {
                Some(frames) if attentive && !busy => frames.recv().await,
                _ => pending().await,
            }
        };
        tokio::select! {
            biased;
            Some(order) = orders.recv() => match order {
                Order::Exit(exit) => return exit,
                Order::Deaf => {
                    attentive = false;
                    server.host.unattended();
                }
                Order::CloseStdin => {
                    frames = None;
                    server.host.unattended();
                }
            },
            Some(signal) = signals.recv() => {
                let ignored = signal == Signal::Term && server.plan().ignore_term;
                if !server.start(Event::Signal(signal), Route::default(), &mut events) && !ignored {
                    server.record(Entry::Exit { reason: format!("{signal:?}").to_uppercase() });
                    return Exit::Terminated(signal);
                }
            }
            Some(played) = calls.join_next(), if !calls.is_empty() => check(played),
            Some(played) = events.join_next(), if !events.is_empty() => check(played),
            frame = frame => match frame {
                Some(frame) => {
                    if let ControlFlow::Break(exit) = server.on_frame(frame.into(), &mut calls, &mut events) {
                        return exit;
                    }
                }
                None => {
                    server.record(Entry::Eof);
                    frames = None;
                    let handled = server.start(Event::Eof, Route::default(), &mut events);
                    if !handled && !server.plan().ignore_eof {
                        server.record(Entry::Exit { reason: "eof".into() });
                        return Exit::Code(0);
                    }
                    server.host.unattended();
                }
            },
        }
    }
}

/// A turn that panicked must not look like one that never answers.
fn check(played: Result<(), JoinError>) {
    if let Some(panic) = played.err().and_then(|error| error.try_into_panic().ok()) {
        std::panic::resume_unwind(panic);
    }
}

/// What an action asks of the loop.
#[derive(Debug)]
pub(crate) enum Order {
    Exit(Exit),
    Deaf,
    CloseStdin,
}

/// One spawn, shared by everything that plays in it.
#[derive(Debug)]
pub(crate) struct Server<H> {
    plan: SharedPlan,
    pub(crate) ledger: LedgerWriter,
    pub(crate) host: Arc<H>,
    pub(crate) control: mpsc::UnboundedSender<Order>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    /// What `set-tools` said.
    pub(crate) tools: Option<Vec<Item>>,
    pub(crate) muted: bool,
    /// Own requests that are open: method, and who waits for the answer.
    pub(crate) asked: HashMap<u64, (String, oneshot::Sender<()>)>,
    pub(crate) next_id: u64,
    pub(crate) held: Vec<oneshot::Sender<Baton>>,
    /// The open `subscriptions/listen` requests.
    pub(crate) listening: Vec<(Route, Value)>,
    requests: u32,
    methods: HashMap<String, u32>,
    tools_called: HashMap<String, u32>,
    /// By session and request id, as JSON.
    running: HashMap<(Option<Arc<str>>, String), AbortHandle>,
}

impl<H: Host> Server<H> {
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A ledger that cannot be written must not look like a server that did nothing: it ends the spawn.
    pub(crate) fn record(&self, event: Entry) {
        if self.ledger.record(event).is_err() {
            drop(self.control.send(Order::Exit(Exit::Code(LEDGER_FAILED))));
        }
    }

    pub(crate) fn plan(&self) -> Arc<Plan> {
        self.plan.get()
    }

    pub(crate) async fn send(&self, to: &Route, message: Value) {
        self.write(to, Output::Frame(message.to_string())).await;
    }

    pub(crate) async fn write(&self, to: &Route, output: Output) {
        if !self.state().muted {
            self.host.write(to, output).await;
        }
    }

    /// Starts what the plan says about this event; `false`: nothing.
    fn start(self: &Arc<Self>, event: Event, route: Route, events: &mut JoinSet<()>) -> bool {
        let actions = self.plan().on(&event).map(<[Action]>::to_vec);
        actions.is_some_and(|actions| {
            events.spawn(play(Arc::clone(self), Caller::Event(route), actions));
            true
        })
    }

    fn on_frame(
        self: &Arc<Self>,
        frame: Frame,
        calls: &mut JoinSet<()>,
        events: &mut JoinSet<()>,
    ) -> ControlFlow<Exit> {
        let Frame { kind, route } = frame;
        match kind {
            FrameKind::Message(line) => return self.on_message(&line, route, calls, events),
            FrameKind::Gate { subjects, default, id } => self.on_gate(subjects, default, id, route, calls),
            FrameKind::Gone => self.state().listening.retain(|(listening, _)| *listening != route),
        }
        ControlFlow::Continue(())
    }

    /// Asks the first of `subjects` that has a line for this request.
    fn on_gate(
        self: &Arc<Self>,
        subjects: &[&str],
        default: Vec<Action>,
        id: Value,
        route: Route,
        calls: &mut JoinSet<()>,
    ) {
        let plan = self.plan();
        let mut actions = None;
        for subject in subjects {
            let nth = count(&mut self.state().methods, subject);
            actions = actions.or_else(|| plan.actions(subject, None, nth, 0).map(<[Action]>::to_vec));
        }
        let mut actions = actions.unwrap_or(default);
        if !actions.iter().any(Action::settles) {
            actions.push(Action::Ok);
        }
        let method = subjects.first().copied().unwrap_or_default().to_owned();
        let request = Request { method, id, params: Value::Null, route, gate: true };
        calls.spawn(play(Arc::clone(self), Caller::Request(request), actions));
    }

    fn on_message(
        self: &Arc<Self>,
        line: &str,
        route: Route,
        calls: &mut JoinSet<()>,
        events: &mut JoinSet<()>,
    ) -> ControlFlow<Exit> {
        let message: Value = serde_json::from_str(line).unwrap_or_default();
        let method = message["method"].as_str().map(str::to_owned);
        let (id, params) = (message["id"].clone(), message["params"].clone());
        let from = route.clone();
        match (method, id) {
            (Some(method), Value::Null) => self.on_notification(method, params, route, events),
            (Some(method), id) => return self.on_request(Request { method, id, params, route, gate: false }, calls),
            (None, Value::Null) => self.record(Entry::Garbage { line: line.to_owned() }),
            (None, id) => {
                let asked = id.as_u64().and_then(|id| self.state().asked.remove(&id));
                let (method, waiting) = asked.unzip();
                self.record(Entry::Answer { method: method.unwrap_or_default(), message });
                if let Some(waiting) = waiting {
                    // Nobody waits where the action did not say so.
                    waiting.send(()).ok();
                }
            }
        }
        if !self.state().muted {
            self.host.accepted(&from);
        }
        ControlFlow::Continue(())
    }

    fn on_request(self: &Arc<Self>, request: Request, calls: &mut JoinSet<()>) -> ControlFlow<Exit> {
        let tool = request.tool().map(str::to_owned);
        self.record(Entry::Request {
            method: request.method.clone(),
            id: request.id.clone(),
            tool: tool.clone(),
            version: request.meta_version().map(str::to_owned),
            params: request.params.clone(),
        });
        let plan = self.plan();
        let mut state = self.state();
        state.requests += 1;
        if state.requests == 1 && plan.exit_unless_initialize && request.method != "initialize" {
            drop(state);
            self.record(Entry::Exit { reason: "exit 1".into() });
            return ControlFlow::Break(Exit::Code(1));
        }
        let nth = count(&mut state.methods, &request.method);
        let nth_of_tool = tool.as_deref().map_or(0, |tool| count(&mut state.tools_called, tool));
        let actions = plan.actions(&request.method, tool.as_deref(), nth, nth_of_tool);
        let mut actions = actions.map_or_else(Vec::new, <[Action]>::to_vec);
        if !actions.iter().any(Action::settles) {
            actions.push(Action::Ok);
        }
        let key = (request.route.session.clone(), request.id.to_string());
        let task = calls.spawn(play(Arc::clone(self), Caller::Request(request), actions));
        state.running.retain(|_, task| !task.is_finished());
        state.running.insert(key, task);
        ControlFlow::Continue(())
    }

    fn on_notification(self: &Arc<Self>, method: String, params: Value, route: Route, events: &mut JoinSet<()>) {
        let cancelled = (method == "notifications/cancelled").then(|| params["requestId"].clone());
        self.record(Entry::Notification { method: method.clone(), params });
        let event = Event::Notification(method);
        let session = route.session;
        if let Some(id) = cancelled {
            self.state().listening.retain(|(from, listening)| from.session != session || *listening != id);
            let stops = self.plan().on(&event).is_some_and(|actions| actions.contains(&Action::Stop));
            let key = (session.clone(), id.to_string());
            let running = if stops { self.state().running.remove(&key) } else { None };
            if let Some(task) = running {
                task.abort();
            }
        }
        self.start(event, Route { exchange: None, session }, events);
    }

    /// A notification, to whoever hears it in this era.
    pub(crate) async fn notify(&self, to: &Route, method: &str, params: Value) {
        let listening = self.state().listening.clone();
        if listening.is_empty() {
            self.send(to, json!({"jsonrpc": "2.0", "method": method, "params": params})).await;
        }
        for (route, id) in listening {
            let mut params = params.clone();
            params["_meta"][super::answer::SUBSCRIPTION_KEY] = id;
            self.send(&route, json!({"jsonrpc": "2.0", "method": method, "params": params})).await;
        }
    }
}

fn count(counts: &mut HashMap<String, u32>, name: &str) -> u32 {
    let count = counts.entry(name.to_owned()).or_default();
    *count += 1;
    *count
}
