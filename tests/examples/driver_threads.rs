//! A driver on threads and the channels of std: one thread owns the machine, and everybody else sends it messages.
//!
//! The driver waits in one place only, which is the `Clock`'s: that is where virtual time enters.

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use mcp_reconnect_core::{Input, Output, State, Timestamp, Want};
use mcp_reconnect_tests::drivers::{
    Answer, Caller, Host, Machine, Message, Plan, Refused, Scripted, Server, Transport, Waiting, story,
};

pub(crate) trait Clock: Send {
    fn now(&self) -> Timestamp;

    /// The next message, or `None` when it is `until`.
    fn wait(&self, messages: &Receiver<Message>, until: Option<Timestamp>) -> Option<Message>;
}

/// The real clock: the origin.
impl Clock for Instant {
    fn now(&self) -> Timestamp {
        Timestamp::from_origin(self.elapsed())
    }

    fn wait(&self, messages: &Receiver<Message>, until: Option<Timestamp>) -> Option<Message> {
        match until {
            Some(at) => messages.recv_timeout(at.since(self.now())).ok(),
            None => messages.recv().ok(),
        }
    }
}

#[derive(Clone)]
pub(crate) struct Handle(pub(crate) Sender<Message>);

impl Handle {
    pub(crate) fn tell(&self, input: Input) {
        _ = self.0.send(Message::Tell(input)); // after the end nobody listens
    }

    /// Where the answer will be: [`Receiver::recv`] blocks until then.
    pub(crate) fn ask(&self, want: Want, patience: Duration) -> Receiver<Answer> {
        let (reply, answer) = mpsc::channel();
        let reply = Box::new(move |answer| _ = reply.send(answer)); // the caller may have stopped waiting
        _ = self.0.send(Message::Ask(want, patience, reply));
        answer
    }
}

pub(crate) struct Driver<C> {
    pub(crate) machine: Machine,
    pub(crate) transport: Box<dyn Transport>,
    pub(crate) host: Arc<dyn Host>,
    pub(crate) clock: C,
    pub(crate) messages: Receiver<Message>,
    pub(crate) waiting: Waiting,
}

impl<C: Clock> Driver<C> {
    pub(crate) fn run(mut self) {
        while self.machine.snapshot().state != State::Shutdown {
            let due = self.machine.next_timeout().into_iter().chain(self.waiting.until()).min();
            let message = self.clock.wait(&self.messages, due);
            let now = self.clock.now();
            match message {
                None => self.turn(now, Input::Tick, None),
                Some(Message::Tell(input)) => self.turn(now, input, None),
                Some(Message::Ask(want, patience, reply)) => {
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

/// A thread for each plan of the scripted server. A transport of your own has such threads: for a dial, for a close.
fn player(server: Arc<Server>, inbox: Sender<Message>) -> impl Fn(Plan) + Send {
    move |plan| {
        let (server, inbox) = (server.clone(), inbox.clone());
        thread::spawn(move || {
            let (_never, silence) = mpsc::channel::<()>();
            for step in plan {
                _ = silence.recv_timeout(step.after);
                server.happens(&step).into_iter().for_each(|input| _ = inbox.send(Message::Tell(input)));
            }
        });
    }
}

fn main() {
    let clock = Instant::now();
    let (machine, host) = story(move || clock.now());
    let (inbox, messages) = mpsc::channel();
    let transport = Box::new(Scripted::new(host.clone(), player(host.clone(), inbox.clone())));
    let driver = Driver { machine, transport, host, clock, messages, waiting: Waiting::default() };
    let (handle, driving) = (Handle(inbox), thread::spawn(|| driver.run()));
    let mut want = Want::Session;
    for _ in 0..3 {
        let answer = handle.ask(want, Duration::from_secs(10)).recv().unwrap_or(Err(Refused::SHUTDOWN));
        println!("a caller is told: {answer:?}");
        want = answer.map_or(want, Want::SessionAfter);
    }
    handle.tell(Input::Shutdown);
    _ = driving.join();
}
