//! Reads messages, and decides which part of the plan each one starts.

use std::collections::HashMap;
use std::future::pending;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};
use tokio::task::{AbortHandle, JoinError, JoinSet};

use super::answer::Request;
use super::host::{Exit, Host, Output};
use super::ledger::{Event as Entry, LedgerWriter};
use super::play::{Baton, play};
use super::script::{Action, Event, Item, Plan, Signal};

/// The exit code of a spawn that cannot write its ledger.
const LEDGER_FAILED: i32 = 97;

/// What comes to a spawn.
#[derive(Debug)]
pub struct Inbound {
    /// Lines from the client; closed = end of input. Dropped when the script closes its input.
    pub frames: mpsc::Receiver<Box<str>>,
    /// Signals.
    pub signals: mpsc::UnboundedReceiver<Signal>,
}

/// Plays `plan` until the script, a signal or the end of the input ends it.
///
/// Every action runs on tokio's clock. The returned [`Exit`] is the host's to carry out.
pub async fn serve<H: Host>(plan: Plan, ledger: LedgerWriter, inbound: Inbound, host: Arc<H>) -> Exit {
    let (control, mut orders) = mpsc::unbounded_channel();
    let state = Mutex::new(State { tools: plan.tools.clone(), ..State::default() });
    let server = Arc::new(Server { plan, ledger, host, state, control });
    let Inbound { frames, mut signals } = inbound;
    let mut frames = Some(frames);
    let mut attentive = true;
    let mut calls = JoinSet::new();
    let mut events = JoinSet::new();

    server.start(Event::Start, &mut events);
    for (delay, actions) in server.plan.timed() {
        let actions = std::iter::once(Action::Delay(delay)).chain(actions.iter().cloned()).collect();
        events.spawn(play(Arc::clone(&server), None, actions));
    }
    loop {
        let busy = server.plan.serial && !calls.is_empty();
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
                let ignored = signal == Signal::Term && server.plan.ignore_term;
                if !server.start(Event::Signal(signal), &mut events) && !ignored {
                    server.record(Entry::Exit { reason: format!("{signal:?}").to_uppercase() });
                    return Exit::Terminated(signal);
                }
            }
            Some(played) = calls.join_next(), if !calls.is_empty() => check(played),
            Some(played) = events.join_next(), if !events.is_empty() => check(played),
            frame = frame => match frame {
                Some(frame) => {
                    if let ControlFlow::Break(exit) = server.on_frame(&frame, &mut calls, &mut events) {
                        return exit;
                    }
                }
                None => {
                    server.record(Entry::Eof);
                    frames = None;
                    let handled = server.start(Event::Eof, &mut events);
                    if !handled && !server.plan.ignore_eof {
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
    pub(crate) plan: Plan,
    pub(crate) ledger: LedgerWriter,
    pub(crate) host: Arc<H>,
    pub(crate) control: mpsc::UnboundedSender<Order>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) tools: Vec<Item>,
    pub(crate) muted: bool,
    /// Own requests that are open: method, and who waits for the answer.
    pub(crate) asked: HashMap<u64, (String, oneshot::Sender<()>)>,
    pub(crate) next_id: u64,
    pub(crate) held: Vec<oneshot::Sender<Baton>>,
    /// The ids of the open `subscriptions/listen` requests.
    pub(crate) listening: Vec<Value>,
    requests: u32,
    methods: HashMap<String, u32>,
    tools_called: HashMap<String, u32>,
    /// By request id, as JSON.
    running: HashMap<String, AbortHandle>,
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

    pub(crate) async fn send(&self, message: Value) {
        self.write(Output::Frame(message.to_string())).await;
    }

    pub(crate) async fn write(&self, output: Output) {
        if !self.state().muted {
            self.host.write(output).await;
        }
    }

    /// Starts what the plan says about this event; `false`: nothing.
    fn start(self: &Arc<Self>, event: Event, events: &mut JoinSet<()>) -> bool {
        let actions = self.plan.on(&event).map(<[Action]>::to_vec);
        actions.is_some_and(|actions| {
            events.spawn(play(Arc::clone(self), None, actions));
            true
        })
    }

    fn on_frame(self: &Arc<Self>, frame: &str, calls: &mut JoinSet<()>, events: &mut JoinSet<()>) -> ControlFlow<Exit> {
        let message: Value = serde_json::from_str(frame).unwrap_or_default();
        let method = message["method"].as_str().map(str::to_owned);
        let (id, params) = (message["id"].clone(), message["params"].clone());
        match (method, id) {
            (Some(method), Value::Null) => self.on_notification(method, params, events),
            (Some(method), id) => return self.on_request(Request { method, id, params }, calls),
            (None, Value::Null) => self.record(Entry::Garbage { line: frame.to_owned() }),
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
        let mut state = self.state();
        state.requests += 1;
        if state.requests == 1 && self.plan.exit_unless_initialize && request.method != "initialize" {
            drop(state);
            self.record(Entry::Exit { reason: "exit 1".into() });
            return ControlFlow::Break(Exit::Code(1));
        }
        let nth = count(&mut state.methods, &request.method);
        let nth_of_tool = tool.as_deref().map_or(0, |tool| count(&mut state.tools_called, tool));
        let mut actions = self.plan.actions(&request.method, tool.as_deref(), nth, nth_of_tool).to_vec();
        if !actions.iter().any(Action::settles) {
            actions.push(Action::Ok);
        }
        let key = request.id.to_string();
        let task = calls.spawn(play(Arc::clone(self), Some(request), actions));
        state.running.retain(|_, task| !task.is_finished());
        state.running.insert(key, task);
        ControlFlow::Continue(())
    }

    fn on_notification(self: &Arc<Self>, method: String, params: Value, events: &mut JoinSet<()>) {
        let cancelled = (method == "notifications/cancelled").then(|| params["requestId"].clone());
        self.record(Entry::Notification { method: method.clone(), params });
        let event = Event::Notification(method);
        if let Some(id) = cancelled {
            self.state().listening.retain(|listening| *listening != id);
            let stops = self.plan.on(&event).is_some_and(|actions| actions.contains(&Action::Stop));
            let running = if stops { self.state().running.remove(&id.to_string()) } else { None };
            if let Some(task) = running {
                task.abort();
            }
        }
        self.start(event, events);
    }

    /// A notification, to whoever hears it in this era.
    pub(crate) async fn notify(&self, method: &str, params: Value) {
        let listening = self.state().listening.clone();
        if listening.is_empty() {
            self.send(json!({"jsonrpc": "2.0", "method": method, "params": params})).await;
        }
        for id in listening {
            let mut params = params.clone();
            params["_meta"][super::answer::SUBSCRIPTION_KEY] = id;
            self.send(json!({"jsonrpc": "2.0", "method": method, "params": params})).await;
        }
    }
}

fn count(counts: &mut HashMap<String, u32>, name: &str) -> u32 {
    let count = counts.entry(name.to_owned()).or_default();
    *count += 1;
    *count
}
