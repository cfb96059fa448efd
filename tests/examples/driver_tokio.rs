//! A driver on tokio: one task owns the machine, and everybody else sends it messages.
//!
//! Time is tokio's own (`Instant`, `sleep_until`). Under a paused clock it is virtual, and nothing here knows.

use std::sync::Arc;
use std::time::Duration;

use mcp_reconnect_core::{Input, Output, State, Timestamp, Want};
use mcp_reconnect_tests::drivers::{
    Answer, Caller, Host, Machine, Message, Plan, Refused, Scripted, Server, Transport, Waiting, story,
};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, sleep_until};

pub(crate) type Inbox = mpsc::UnboundedSender<Message>;

#[derive(Clone)]
pub(crate) struct Handle(pub(crate) Inbox);

impl Handle {
    pub(crate) fn tell(&self, input: Input) {
        _ = self.0.send(Message::Tell(input)); // after the end nobody listens
    }

    pub(crate) async fn session(&self, want: Want, patience: Duration) -> Answer {
        let (reply, answer) = oneshot::channel();
        let reply = Box::new(|answer| _ = reply.send(answer)); // the caller may have stopped waiting
        _ = self.0.send(Message::Ask(want, patience, reply));
        answer.await.unwrap_or(Err(Refused::SHUTDOWN))
    }
}

pub(crate) struct Driver {
    pub(crate) machine: Machine,
    pub(crate) transport: Box<dyn Transport>,
    pub(crate) host: Arc<dyn Host>,
    /// What the machine's times count from.
    pub(crate) origin: Instant,
    pub(crate) messages: mpsc::UnboundedReceiver<Message>,
    pub(crate) waiting: Waiting,
}

impl Driver {
    pub(crate) async fn run(mut self) {
        while self.machine.snapshot().state != State::Shutdown {
            let due = self.machine.next_timeout().into_iter().chain(self.waiting.until()).min();
            let message = tokio::select! {
                biased; // what has happened comes before what is due
                Some(message) = self.messages.recv() => message,
                () = sleep_until(self.origin + due.unwrap_or_default().since(Timestamp::ZERO)), if due.is_some() => {
                    Message::Tell(Input::Tick)
                }
            };
            let now = Timestamp::from_origin(self.origin.elapsed());
            match message {
                Message::Tell(input) => self.turn(now, input, None),
                Message::Ask(want, patience, reply) => {
                    let until = now + patience;
                    self.turn(now, Input::Connect { until }, Some(Caller { want, until, reply }));
                }
            }
        }
    }

    /// A gap, then what the live session's traffic says, then what happened, then whoever need not wait any more.
    fn turn(&mut self, now: Timestamp, input: Input, caller: Option<Caller>) {
        let due = self.machine.next_timeout().is_some_and(|at| at <= now);
        if self.host.slept() {
            self.step(now, Input::Resumed { by_call: false }, None);
        }
        if (due || input.needs_traffic())
            && let State::Ready { epoch, .. } = self.machine.snapshot().state
        {
            self.step(now, self.transport.traffic(epoch), None);
        }
        self.step(now, input, caller);
        self.waiting.settle(&self.machine.snapshot(), now);
    }

    fn step(&mut self, now: Timestamp, input: Input, mut caller: Option<Caller>) {
        for output in self.machine.handle(now, input) {
            match output {
                Output::Dial { epoch, timeout, interactive } => self.transport.dial(epoch, timeout, interactive),
                Output::Close { epoch, cause } => self.transport.close(epoch, cause),
                Output::Ping { epoch } => self.transport.ping(epoch),
                Output::Ask { epoch } => self.transport.ask(epoch),
                Output::Publish { epoch } => self.host.offer(Some(epoch)),
                Output::Withdraw => self.host.offer(None),
                Output::Admit(answer) => caller.take().into_iter().for_each(|it| self.waiting.admit(it, answer)),
                Output::Event(event) => self.host.tell(event),
            }
        }
    }
}

/// A task for each plan of the scripted server. A transport of your own has such tasks: for a dial, for a close.
pub(crate) fn player(server: Arc<Server>, inbox: Inbox) -> impl Fn(Plan) + Send {
    move |plan| {
        let (server, inbox) = (server.clone(), inbox.clone());
        tokio::spawn(async move {
            for step in plan {
                sleep(step.after).await;
                server.happens(&step).into_iter().for_each(|input| _ = inbox.send(Message::Tell(input)));
            }
        });
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let origin = Instant::now();
    let (machine, host) = story(move || Timestamp::from_origin(origin.elapsed()));
    let (inbox, messages) = mpsc::unbounded_channel();
    let transport = Box::new(Scripted::new(host.clone(), player(host.clone(), inbox.clone())));
    let driver = Driver { machine, transport, host, origin, messages, waiting: Waiting::default() };
    let (handle, driving) = (Handle(inbox), tokio::spawn(driver.run()));
    let mut want = Want::Session;
    for _ in 0..3 {
        let answer = handle.session(want, Duration::from_secs(10)).await;
        println!("a caller is told: {answer:?}");
        want = answer.map_or(want, Want::SessionAfter);
    }
    handle.tell(Input::Shutdown);
    _ = driving.await;
}
