//! A driver without an executor, for a loop that you have anyway: call it when something happened and when it is due.
//!
//! It has no clock: the loop says what time it is. That is where virtual time enters.

use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::{Duration, Instant};

use mcp_reconnect_core::{Input, Output, State, Timestamp, Want};
use mcp_reconnect_tests::drivers::{Agenda, Caller, Host, Machine, Message, Plan, Scripted, Transport, Waiting, story};

pub(crate) struct Driver {
    pub(crate) machine: Machine,
    pub(crate) transport: Box<dyn Transport>,
    pub(crate) host: Arc<dyn Host>,
    pub(crate) waiting: Waiting,
}

impl Driver {
    /// This happened; `None`: time has passed.
    pub(crate) fn poll(&mut self, now: Timestamp, message: Option<Message>) {
        match message {
            None => self.turn(now, Input::Tick, None),
            Some(Message::Tell(input)) => self.turn(now, input, None),
            Some(Message::Ask(want, patience, reply)) => {
                let until = now + patience;
                self.turn(now, Input::Connect { until }, Some(Caller { want, until, reply }));
            }
        }
    }

    /// When to call [`poll`](Self::poll) if nothing happens before.
    pub(crate) fn due(&self) -> Option<Timestamp> {
        self.machine.next_timeout().into_iter().chain(self.waiting.until()).min()
    }

    /// Whether it was shut down and nothing is left.
    pub(crate) fn is_over(&self) -> bool {
        self.machine.snapshot().state == State::Shutdown
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

/// A caller in such a loop is a callback. This one asks for the session after the one it was given, and then stops.
fn caller(loops: Sender<Message>, want: Want, sessions: u8) -> Message {
    let reply = move |answer| {
        println!("a caller is told: {answer:?}");
        let next = match answer {
            Ok(epoch) if sessions > 1 => caller(loops.clone(), Want::SessionAfter(epoch), sessions - 1),
            Ok(_) | Err(_) => Message::Tell(Input::Shutdown),
        };
        _ = loops.send(next);
    };
    Message::Ask(want, Duration::from_secs(10), Box::new(reply))
}

fn main() {
    let origin = Instant::now();
    let clock = move || Timestamp::from_origin(origin.elapsed());
    let (machine, host) = story(clock);
    let (plan, plans) = mpsc::channel();
    let transport = Box::new(Scripted::new(host.clone(), move |it: Plan| _ = plan.send(it)));
    let mut driver = Driver { machine, transport, host: host.clone(), waiting: Waiting::default() };
    let (ask, asked) = mpsc::channel();
    driver.poll(clock(), Some(caller(ask, Want::Session, 3)));
    let mut server = Agenda::<Plan>::default();
    while !driver.is_over() {
        // A loop of your own asks its sockets here; the scripted server is an agenda of what it will do.
        for plan in plans.try_iter() {
            add(&mut server, clock(), plan);
        }
        let message = asked.try_recv().ok().or_else(|| {
            let mut plan = server.take(clock())?;
            let report = plan.pop_front().and_then(|step| host.happens(&step));
            add(&mut server, clock(), plan);
            report.map(Message::Tell)
        });
        let now = clock();
        let is_due = driver.due().is_some_and(|at| at <= now);
        match driver.due().into_iter().chain(server.next()).min() {
            _ if message.is_some() || is_due => driver.poll(now, message),
            Some(at) => thread::park_timeout(at.since(now)),
            None => break, // nothing will ever happen
        }
    }
}

fn add(server: &mut Agenda<Plan>, now: Timestamp, plan: Plan) {
    if let Some(step) = plan.front() {
        server.add(now + step.after, plan);
    }
}
