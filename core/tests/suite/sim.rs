//! A simulated driver and server around a checked machine: a clock that jumps from one thing to the next.

use std::collections::BTreeMap;
use std::time::Duration;

use mcp_reconnect_checker::{Checker, Rules};
use mcp_reconnect_core::{
    Admission, Config, Epoch, Event, Failure, FailureClass, Input, Output, ReadyFlags, Snapshot, State, Status,
    Timestamp,
};

pub(crate) fn at(seconds: f64) -> Timestamp {
    Timestamp::from_origin(Duration::from_secs_f64(seconds))
}

pub(crate) const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

pub(crate) const HOUR: Duration = secs(3_600);

/// How the server meets one dial.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Server {
    /// The attempt fails after this long, and nothing is left of it.
    Refuses(Duration, Failure),
    /// The attempt starts and nothing follows.
    Silent,
    /// Ready after this long; afterwards `Life`.
    Up(Duration, Life),
}

/// The behaviour of a session.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Life {
    /// It answers pings and listings, for ever.
    Healthy,
    /// It answers nothing.
    Deaf,
    /// It says that it knows no pings, and answers listings.
    NoPings,
    /// It answers listings after this long, and no ping.
    NoPongs(Duration),
    /// It ends by itself after this long: `Gone`.
    Ends(Duration, FailureClass),
    /// A caller finds it broken after this long: `Lost`.
    Breaks(Duration, FailureClass),
}

pub(crate) const REFUSES: Server = Server::Refuses(Duration::from_millis(10), Failure::new(FailureClass::Transport));
pub(crate) const HEALTHY: Server = Server::Up(Duration::from_millis(200), Life::Healthy);

/// Chooses the server's behaviour for the dial with this number (from 1) at this time.
pub(crate) type Script = Box<dyn FnMut(u64, Timestamp) -> Server>;

pub(crate) struct Sim {
    checker: Checker,
    pub(crate) now: Timestamp,
    script: Script,
    life: Life,
    /// How long a close takes.
    pub(crate) close_takes: Duration,
    queue: BTreeMap<(Timestamp, u64), Input>,
    queued: u64,
    inbound: Timestamp,
    /// When the last ping was sent that was answered since the last sample.
    answered_to: Option<Timestamp>,
    /// When the last listing is answered.
    listed: Option<Timestamp>,
    /// Sent time of the oldest open call; while one is open the server is too busy for pings.
    pub(crate) call: Option<Timestamp>,
    /// Every input that was not a tick or a sample, and every output, each on a line.
    pub(crate) trace: Option<Vec<String>>,
    pub(crate) dials: Vec<Timestamp>,
    pub(crate) pings: u64,
    pub(crate) asks: u64,
    pub(crate) statuses: Vec<(Timestamp, Status)>,
    pub(crate) published: Vec<Epoch>,
    pub(crate) withdrawn: u64,
}

impl Sim {
    pub(crate) fn new(config: Config, seed: u64, script: impl FnMut(u64, Timestamp) -> Server + 'static) -> Self {
        Self {
            checker: Checker::new(config, seed, Timestamp::ZERO, Rules::ALL),
            now: Timestamp::ZERO,
            script: Box::new(script),
            life: Life::Healthy,
            close_takes: Duration::from_millis(50),
            queue: BTreeMap::new(),
            queued: 0,
            inbound: Timestamp::ZERO,
            answered_to: None,
            listed: None,
            call: None,
            trace: None,
            dials: Vec::new(),
            pings: 0,
            asks: 0,
            statuses: Vec::new(),
            published: Vec::new(),
            withdrawn: 0,
        }
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        self.checker.machine().snapshot()
    }

    pub(crate) fn status(&self) -> Status {
        self.snapshot().status
    }

    pub(crate) fn live(&self) -> Epoch {
        self.snapshot().state.live_epoch().unwrap_or(Epoch::FIRST)
    }

    /// The server behaves like this from the next dial on.
    pub(crate) fn set_script(&mut self, script: impl FnMut(u64, Timestamp) -> Server + 'static) {
        self.script = Box::new(script);
    }

    /// The live session behaves like this from now on.
    pub(crate) fn set_life(&mut self, life: Life) {
        self.life = life;
    }

    fn later(&mut self, after: Duration, input: Input) {
        self.queued += 1;
        self.queue.insert((self.now + after, self.queued), input);
    }

    /// Gives an input now and carries out the orders. The answer, if it was a `Connect`.
    pub(crate) fn give(&mut self, input: Input) -> Option<Admission> {
        let noted = !matches!(input, Input::Tick | Input::Traffic { .. } | Input::Pong { .. });
        if let Some(trace) = self.trace.as_mut().filter(|_| noted) {
            trace.push(format!("{:?} < {}", self.now, short(&input)));
        }
        let mut answer = None;
        for output in self.checker.step(self.now, input) {
            if let Some(trace) = &mut self.trace {
                trace.push(format!("{:?} {}", self.now, told(&output)));
            }
            match output {
                Output::Dial { epoch, .. } => self.dial(epoch),
                Output::Close { epoch, .. } => {
                    self.later(self.close_takes, Input::Gone { epoch, failure: FailureClass::Transport.into() });
                }
                Output::Ping { epoch } => self.ping(epoch),
                Output::Ask { epoch } => self.ask(epoch),
                Output::Publish { epoch } => self.published.push(epoch),
                Output::Withdraw => self.withdrawn += 1,
                Output::Admit(admission) => answer = Some(admission),
                Output::Event(Event::StatusChanged { status, .. }) => self.statuses.push((self.now, status)),
                Output::Event(_) => {}
            }
        }
        answer
    }

    fn dial(&mut self, epoch: Epoch) {
        self.dials.push(self.now);
        let started = ReadyFlags::ALL[0];
        self.later(Duration::ZERO, Input::Reached { epoch, flag: started });
        match (self.script)(epoch.get(), self.now) {
            Server::Refuses(after, failure) => self.later(after, Input::Gone { epoch, failure }),
            Server::Silent => {}
            Server::Up(after, life) => {
                self.life = life;
                for flag in ReadyFlags::ALL.into_iter().skip(1) {
                    self.later(after, Input::Reached { epoch, flag });
                }
                match life {
                    Life::Ends(up, class) => self.later(after + up, Input::Gone { epoch, failure: class.into() }),
                    Life::Breaks(up, class) => self.later(after + up, Input::Lost { epoch, failure: class.into() }),
                    Life::Healthy | Life::Deaf | Life::NoPings | Life::NoPongs(_) => {}
                }
            }
        }
    }

    fn ping(&mut self, epoch: Epoch) {
        self.pings += 1;
        match self.life {
            Life::NoPings => {
                self.inbound = self.now;
                self.later(Duration::from_millis(20), Input::PingUnsupported { epoch });
            }
            Life::Healthy if self.call.is_none() => {
                self.inbound = self.now;
                self.answered_to = Some(self.now);
                self.later(Duration::ZERO, Input::Pong { epoch });
            }
            Life::Healthy | Life::Deaf | Life::NoPongs(_) | Life::Ends(..) | Life::Breaks(..) => {}
        }
    }

    fn ask(&mut self, epoch: Epoch) {
        self.asks += 1;
        let took = match self.life {
            Life::Healthy | Life::NoPings if self.call.is_none() => Duration::ZERO,
            Life::NoPongs(took) => took,
            Life::Healthy | Life::NoPings | Life::Deaf | Life::Ends(..) | Life::Breaks(..) => return,
        };
        // Told before it is due: a sample takes what has come in by then.
        self.answered_to = Some(self.now);
        self.listed = Some(self.now + took);
        self.later(took, Input::Listed { epoch, took });
    }

    /// Reports what came in on the session, as a driver does before a due tick.
    pub(crate) fn sample(&mut self, answered: bool) {
        if let State::Ready { epoch, since, .. } = self.snapshot().state {
            self.inbound = if answered { self.now } else { self.inbound.max(since) };
            if let Some(listed) = self.listed.take_if(|listed| *listed <= self.now) {
                self.inbound = self.inbound.max(listed);
            }
            let answered_to = self.answered_to.take();
            let served = answered;
            self.give(Input::Traffic {
                epoch,
                inbound: self.inbound,
                answered,
                served,
                answered_to,
                oldest: self.call,
            });
        }
    }

    /// A call that was sent at `sent` ends unanswered.
    pub(crate) fn no_reply(&mut self, sent: Timestamp) {
        self.sample(false);
        self.give(Input::NoReply { epoch: self.live(), sent });
    }

    /// Lets time pass, everything in its turn.
    pub(crate) fn run_until(&mut self, until: Timestamp) {
        for _ in 0..10_000_000 {
            let due = self.checker.machine().next_timeout();
            let queued = self.queue.first_key_value().map(|((at, _), _)| *at);
            let Some(next) = [due, queued].into_iter().flatten().min().filter(|next| *next <= until) else {
                self.now = self.now.max(until);
                return;
            };
            self.now = self.now.max(next);
            if queued == Some(next) {
                let (_, input) = self.queue.pop_first().expect("it was just looked at");
                self.give(input);
            } else {
                self.sample(false);
                self.give(Input::Tick);
            }
        }
        panic!("time does not get to {until:?}");
    }

    pub(crate) fn run_for(&mut self, time: Duration) {
        self.run_until(self.now + time);
    }

    /// The host sleeps: nothing happens, and what was under way is what it was.
    pub(crate) fn sleep(&mut self, time: Duration) {
        self.now = self.now + time;
        self.give(Input::Resumed { by_call: false });
    }

    pub(crate) fn connect(&mut self, patience: Duration) -> Admission {
        self.give(Input::Connect { until: self.now + patience }).expect("a Connect is answered in its own step")
    }

    /// The gaps between dials, in seconds.
    pub(crate) fn gaps(&self) -> Vec<f64> {
        self.dials.windows(2).map(|pair| pair[1].since(pair[0]).as_secs_f64()).collect()
    }

    pub(crate) fn times(&self, what: impl Fn(&Status) -> bool) -> usize {
        self.statuses.iter().filter(|(_, status)| what(status)).count()
    }
}

/// A config that a test spells out.
pub(crate) fn knobs(of: impl FnOnce(mcp_reconnect_core::ConfigBuilder) -> mcp_reconnect_core::ConfigBuilder) -> Config {
    of(Config::builder()).build().expect("the test's knobs are valid")
}

fn short(input: &Input) -> String {
    match input {
        Input::Reached { epoch, flag } => format!("reached {epoch:?} {flag:?}"),
        Input::Lost { epoch, failure } => format!("lost {epoch:?} {}{}", failure.class, hint(failure)),
        Input::Gone { epoch, failure } => format!("gone {epoch:?} {}{}", failure.class, hint(failure)),
        Input::Connect { until } => format!("connect until {until:?}"),
        Input::NoReply { epoch, sent } => format!("no reply {epoch:?} sent {sent:?}"),
        Input::Silence { epoch, sent } => format!("silence {epoch:?} sent {sent:?}"),
        Input::PingUnsupported { epoch } => format!("ping unsupported {epoch:?}"),
        Input::Wake(cause) => format!("wake {cause:?}"),
        Input::Retune(_) => "retune".into(),
        Input::Resumed { by_call } => if *by_call { "resumed by a call" } else { "resumed" }.into(),
        Input::Listed { epoch, took } => format!("listed {epoch:?} in {took:?}"),
        Input::Renew { epoch } => format!("renew {epoch:?}"),
        Input::ServerChanged { epoch } => format!("server changed {epoch:?}"),
        Input::Tick | Input::Park | Input::Shutdown | Input::Pong { .. } | Input::Traffic { .. } => {
            format!("{input:?}").to_lowercase()
        }
    }
}

fn hint(failure: &Failure) -> String {
    failure.retry_after.map_or_else(String::new, |hint| format!(" retry after {hint:?}"))
}

fn told(output: &Output) -> String {
    match output {
        Output::Dial { epoch, timeout, interactive } => {
            format!("Dial {epoch:?} timeout {timeout:?}{}", if *interactive { " interactive" } else { "" })
        }
        Output::Close { epoch, cause } => format!("Close {epoch:?} {cause:?}"),
        Output::Ping { epoch } => format!("Ping {epoch:?}"),
        Output::Ask { epoch } => format!("Ask {epoch:?}"),
        Output::Publish { epoch } => format!("Publish {epoch:?}"),
        Output::Withdraw => "Withdraw".into(),
        Output::Admit(admission) => format!("{admission:?}"),
        Output::Event(Event::StatusChanged { status, failure: Some(failure) }) => format!("= {status} ({failure})"),
        Output::Event(Event::StatusChanged { status, .. }) => format!("= {status}"),
        Output::Event(event) => format!("{event:?}"),
    }
}
