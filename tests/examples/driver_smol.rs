//! A driver on smol: one task owns the machine, and everybody else sends it messages.
//!
//! smol's timers know no other time than the real one: virtual time enters by the driver's `Clock`.

use std::future::pending;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mcp_reconnect_core::{Input, Output, State, Timestamp, Want};
use mcp_reconnect_tests::drivers::{
    Answer, Caller, Host, Machine, Message, Plan, Refused, Scripted, Server, Transport, Waiting, story,
};
use smol::{Executor, Timer, channel, future};

pub(crate) type Inbox = channel::Sender<Message>;

pub(crate) trait Clock: Clone + Send + Sync + 'static {
    fn now(&self) -> Timestamp;
    fn sleep_until(&self, at: Timestamp) -> impl Future<Output = ()> + Send;
}

/// The real clock: the origin.
impl Clock for Instant {
    fn now(&self) -> Timestamp {
        Timestamp::from_origin(self.elapsed())
    }

    async fn sleep_until(&self, at: Timestamp) {
        Timer::at(*self + at.since(Timestamp::ZERO)).await;
    }
}

#[derive(Clone)]
pub(crate) struct Handle(pub(crate) Inbox);

impl Handle {
    pub(crate) fn tell(&self, input: Input) {
        _ = self.0.try_send(Message::Tell(input)); // unbounded; after the end nobody listens
    }

    pub(crate) async fn session(&self, want: Want, patience: Duration) -> Answer {
        let (reply, answer) = channel::bounded(1);
        let reply = Box::new(move |answer| _ = reply.try_send(answer)); // the caller may have stopped waiting
        _ = self.0.try_send(Message::Ask(want, patience, reply));
        answer.recv().await.unwrap_or(Err(Refused::SHUTDOWN))
    }
}

pub(crate) struct Driver<C> {
    pub(crate) machine: Machine,
    pub(crate) transport: Box<dyn Transport>,
    pub(crate) host: Arc<dyn Host>,
    pub(crate) clock: C,
    pub(crate) messages: channel::Receiver<Message>,
    pub(crate) waiting: Waiting,
}

impl<C: Clock> Driver<C> {
    pub(crate) async fn run(mut self) {
        while self.machine.snapshot().state != State::Shutdown {
            let due = self.machine.next_timeout().into_iter().chain(self.waiting.until()).min();
            let due = async {
                match due {
                    Some(at) => self.clock.sleep_until(at).await,
                    None => pending().await,
                }
                Message::Tell(Input::Tick)
            };
            let message = async { self.messages.recv().await.unwrap_or(Message::Tell(Input::Shutdown)) };
            let message = future::or(message, due).await; // what has happened comes before what is due
            let now = self.clock.now();
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
pub(crate) fn player<C: Clock>(
    server: Arc<Server>,
    inbox: Inbox,
    executor: Arc<Executor<'static>>,
    clock: C,
) -> impl Fn(Plan) + Send {
    move |plan| {
        let (server, inbox, clock) = (server.clone(), inbox.clone(), clock.clone());
        let task = async move {
            for step in plan {
                clock.sleep_until(clock.now() + step.after).await;
                server.happens(&step).into_iter().for_each(|input| _ = inbox.try_send(Message::Tell(input)));
            }
        };
        executor.spawn(task).detach();
    }
}

fn main() {
    let (clock, executor) = (Instant::now(), Arc::new(Executor::new()));
    let (machine, host) = story(move || clock.now());
    let (inbox, messages) = channel::unbounded();
    let play = player(host.clone(), inbox.clone(), executor.clone(), clock);
    let transport = Box::new(Scripted::new(host.clone(), play));
    let driver = Driver { machine, transport, host, clock, messages, waiting: Waiting::default() };
    let (handle, driving) = (Handle(inbox), executor.spawn(driver.run()));
    smol::block_on(executor.run(async {
        let mut want = Want::Session;
        for _ in 0..3 {
            let answer = handle.session(want, Duration::from_secs(10)).await;
            println!("a caller is told: {answer:?}");
            want = answer.map_or(want, Want::SessionAfter);
        }
        handle.tell(Input::Shutdown);
        driving.await;
    }));
}
