use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use mcp_reconnect_core::{CloseCause, Config, Epoch, Event, Failure, FailureClass, Input, ReadyFlags, Timestamp, Want};

use super::{Act, Deed, Host, Trace, Transport};

/// How the server meets one dial.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Dialled {
    /// After 10 ms nothing is left of the attempt.
    Refuses(Failure),
    /// The attempt starts, and nothing follows.
    Silent,
    /// Ready after 200 ms; afterwards this.
    Up(Life),
}

/// What a session does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Life {
    /// It answers pings after 5 ms, unless it is busy with a call.
    Healthy,
    /// It answers no ping.
    Deaf,
    /// It says that it knows no pings.
    NoPings,
    /// It ends by itself after this long.
    Ends(Duration),
}

const REFUSED_AFTER: Duration = Duration::from_millis(10);
const READY_AFTER: Duration = Duration::from_millis(200);
const PONG_AFTER: Duration = Duration::from_millis(5);
const CLOSED_AFTER: Duration = Duration::from_millis(50);

/// What follows an order, one [`Step`] after the other.
pub type Plan = VecDeque<Step>;

/// One thing that the server will do.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// How long after the step before it, or after the order.
    pub after: Duration,
    epoch: Epoch,
    /// What the transport reports.
    report: Input,
}

/// A scripted server, and the host of the driver that dials it. It waits for nothing itself: what it will do is a
/// [`Plan`], which the transport of each driver plays in its own time.
pub struct Server {
    now: Box<dyn Fn() -> Timestamp + Send + Sync>,
    trace: Trace,
    state: Mutex<State>,
}

struct State {
    dials: VecDeque<Dialled>,
    life: Life,
    /// The last epoch that was dialled, and whether something of it is up.
    epoch: Epoch,
    up: bool,
    inbound: Timestamp,
    answered: bool,
    /// When it was asked last, and when what was asked last that it has answered since the last sample.
    asked: Timestamp,
    answered_to: Option<Timestamp>,
    call: Option<Timestamp>,
    slept: bool,
}

impl Server {
    /// One that meets its dials like this, every later one like the last.
    pub fn new(dials: &[Dialled], trace: Trace, now: impl Fn() -> Timestamp + Send + Sync + 'static) -> Arc<Self> {
        let state = State {
            dials: dials.iter().copied().collect(),
            life: Life::Healthy,
            epoch: Epoch::FIRST,
            up: false,
            inbound: Timestamp::ZERO,
            answered: false,
            asked: Timestamp::ZERO,
            answered_to: None,
            call: None,
            slept: false,
        };
        Arc::new(Self { now: Box::new(now), trace, state: Mutex::new(state) })
    }

    /// A dial was ordered.
    fn dial(&self, epoch: Epoch, timeout: Duration, interactive: bool) -> Plan {
        self.trace.line(format_args!("    dial {epoch:?} within {timeout:?}, interactive: {interactive}"));
        let mut state = self.state();
        let next = state.dials.pop_front().unwrap_or(Dialled::Silent);
        if state.dials.is_empty() {
            state.dials.push_back(next);
        }
        (state.epoch, state.up, state.answered, state.call) = (epoch, true, false, None);
        state.answered_to = None;
        let step = |after, report| Step { after, epoch, report };
        let gone = |after, failure| step(after, Input::Gone { epoch, failure });
        let [started, flags @ ..] = ReadyFlags::ALL;
        let mut plan = Plan::from([step(Duration::ZERO, Input::Reached { epoch, flag: started })]);
        match next {
            Dialled::Refuses(failure) => plan.push_back(gone(REFUSED_AFTER, failure)),
            Dialled::Silent => {}
            Dialled::Up(life) => {
                state.life = life;
                let waits = [READY_AFTER, Duration::ZERO, Duration::ZERO];
                plan.extend(
                    waits.into_iter().zip(flags).map(|(after, flag)| step(after, Input::Reached { epoch, flag })),
                );
                if let Life::Ends(after) = life {
                    plan.push_back(gone(after, FailureClass::Transport.into()));
                }
            }
        }
        plan
    }

    /// A close was ordered.
    fn close(&self, epoch: Epoch, cause: CloseCause) -> Plan {
        self.trace.line(format_args!("    close {epoch:?}, {cause:?}"));
        let mut state = self.state();
        state.up &= state.epoch != epoch;
        let failure = FailureClass::Transport.into();
        [Step { after: CLOSED_AFTER, epoch, report: Input::Gone { epoch, failure } }].into()
    }

    /// A ping was ordered.
    fn ping(&self, epoch: Epoch) -> Plan {
        self.trace.line(format_args!("    ping {epoch:?}"));
        let report = match self.state().life {
            Life::NoPings => Input::PingUnsupported { epoch },
            Life::Healthy | Life::Deaf | Life::Ends(_) => Input::Pong { epoch },
        };
        self.answer(epoch, report)
    }

    /// A listing was ordered.
    fn ask(&self, epoch: Epoch) -> Plan {
        self.trace.line(format_args!("    ask {epoch:?}"));
        self.answer(epoch, Input::Listed { epoch, took: PONG_AFTER })
    }

    /// Answers a question, unless it is busy or deaf.
    fn answer(&self, epoch: Epoch, report: Input) -> Plan {
        let now = (self.now)();
        let mut state = self.state();
        match state.life {
            Life::Healthy if state.call.is_none() => {}
            Life::NoPings => {}
            Life::Healthy | Life::Deaf | Life::Ends(_) => return Plan::new(),
        }
        state.asked = now;
        [Step { after: PONG_AFTER, epoch, report }].into()
    }

    /// The moment of a step has come: what the transport reports. Nothing where the epoch is over already.
    pub fn happens(&self, step: &Step) -> Option<Input> {
        let mut state = self.state();
        if let Input::Gone { .. } = step.report
            && (state.epoch, state.up) == (step.epoch, false)
        {
            return Some(step.report); // its close is complete
        }
        if (state.epoch, state.up) != (step.epoch, true) {
            return None;
        }
        state.up = !matches!(step.report, Input::Gone { .. });
        state.inbound = (self.now)();
        if let Input::Pong { .. } | Input::PingUnsupported { .. } | Input::Listed { .. } = step.report {
            state.answered_to = Some(state.asked);
        }
        Some(step.report)
    }

    /// A sample of the traffic of this epoch's session.
    fn traffic(&self, epoch: Epoch) -> Input {
        let mut state = self.state();
        let answered = std::mem::take(&mut state.answered);
        Input::Traffic {
            epoch,
            inbound: state.inbound,
            answered,
            served: answered,
            answered_to: state.answered_to.take(),
            oldest: state.call,
        }
    }

    /// Does what the script says is done now; what is left to do for the handle of the driver.
    pub fn act(&self, act: Act) -> Option<Deed> {
        let now = (self.now)();
        let mut state = self.state();
        let epoch = state.epoch;
        Some(match act {
            Act::Ask(patience) => Deed::Ask(Want::Session, patience),
            Act::AskNewer(patience) => Deed::Ask(Want::SessionAfter(epoch), patience),
            Act::Tell(input) => Deed::Tell(input),
            Act::Retune(keepalive) => {
                Deed::Tell(Input::Retune(Config::builder().keepalive(keepalive).build().unwrap_or_default()))
            }
            Act::Lost(class) => Deed::Tell(Input::Lost { epoch, failure: class.into() }),
            Act::LostFirst(class) => Deed::Tell(Input::Lost { epoch: Epoch::FIRST, failure: class.into() }),
            Act::Crash => {
                state.up = false;
                Deed::Tell(Input::Gone { epoch, failure: FailureClass::Transport.into() })
            }
            Act::NoReply => Deed::Tell(Input::NoReply { epoch, sent: now }),
            Act::Dropped => Deed::Tell(Input::Silence { epoch, sent: now }),
            Act::Renew => Deed::Tell(Input::Renew { epoch }),
            Act::OtherServer => Deed::Tell(Input::ServerChanged { epoch }),
            Act::Answered => {
                (state.inbound, state.answered, state.call) = (now, true, None);
                return None;
            }
            Act::AnsweredAfterStrikes => {
                state.inbound = now;
                Deed::Tell(Input::Traffic {
                    epoch,
                    inbound: now,
                    answered: true,
                    served: true,
                    answered_to: Some(now),
                    oldest: None,
                })
            }
            Act::Call => {
                state.call = Some(now);
                return None;
            }
            Act::Deaf => {
                state.life = Life::Deaf;
                return None;
            }
            Act::Slept => {
                state.slept = true;
                return None;
            }
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The way to a [`Server`], for a driver whose executor plays plans like this.
pub struct Scripted<P> {
    server: Arc<Server>,
    play: P,
}

impl<P: Fn(Plan) + Send> Scripted<P> {
    /// The way to `server`; `play` lets its plans happen, each beside the others.
    pub const fn new(server: Arc<Server>, play: P) -> Self {
        Self { server, play }
    }
}

impl<P: Fn(Plan) + Send> Transport for Scripted<P> {
    fn dial(&self, epoch: Epoch, timeout: Duration, interactive: bool) {
        (self.play)(self.server.dial(epoch, timeout, interactive));
    }

    fn close(&self, epoch: Epoch, cause: CloseCause) {
        (self.play)(self.server.close(epoch, cause));
    }

    fn ping(&self, epoch: Epoch) {
        (self.play)(self.server.ping(epoch));
    }

    fn ask(&self, epoch: Epoch) {
        (self.play)(self.server.ask(epoch));
    }

    fn traffic(&self, epoch: Epoch) -> Input {
        self.server.traffic(epoch)
    }
}

impl Host for Server {
    fn offer(&self, epoch: Option<Epoch>) {
        match epoch {
            Some(epoch) => self.trace.line(format_args!("    offer the tools of {epoch:?}")),
            None => self.trace.line("    offer no tools"),
        }
    }

    fn tell(&self, event: Event) {
        match event {
            Event::StatusChanged { status, .. } => self.trace.line(format_args!("    status {status}")),
            other => self.trace.line(format_args!("    {other:?}")),
        }
    }

    fn slept(&self) -> bool {
        std::mem::take(&mut self.state().slept)
    }
}

impl<P> fmt::Debug for Scripted<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scripted").finish_non_exhaustive()
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").finish_non_exhaustive()
    }
}
