//! The model: it knows the rules, the inputs and the outputs, and says what must happen. Jitter is an interval here.

mod life;
mod policy;

use core::time::Duration;

use mcp_reconnect_core::{
    Admission, CloseCause, Config, Epoch, Event, FailureClass, Input, Liveness, Output, Outputs, ParkReason,
    PingSupport, ReadyFlag, Snapshot, State, Status, Timestamp,
};

/// One call of the machine, as seen from outside.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    /// The time, never before the last.
    pub(super) now: Timestamp,
    pub(super) input: Input,
    pub(super) out: Outputs,
    pub(super) after: Snapshot,
}

impl Step {
    pub(super) fn find<T>(&self, what: impl FnMut(Output) -> Option<T>) -> Option<T> {
        self.out.iter().find_map(what)
    }

    pub(super) fn count(&self, what: impl Fn(Output) -> bool) -> usize {
        self.out.iter().filter(|output| what(*output)).count()
    }

    pub(super) fn dial(&self) -> Option<(Epoch, Duration, bool)> {
        self.find(|output| match output {
            Output::Dial { epoch, timeout, interactive } => Some((epoch, timeout, interactive)),
            _ => None,
        })
    }

    pub(super) fn close(&self) -> Option<(Epoch, CloseCause)> {
        self.find(|output| match output {
            Output::Close { epoch, cause } => Some((epoch, cause)),
            _ => None,
        })
    }

    pub(super) fn ping(&self) -> bool {
        self.out.iter().any(|output| matches!(output, Output::Ping { .. }))
    }

    pub(super) fn ask(&self) -> bool {
        self.out.iter().any(|output| matches!(output, Output::Ask { .. }))
    }

    pub(super) fn admission(&self) -> Option<Admission> {
        self.find(|output| match output {
            Output::Admit(admission) => Some(admission),
            _ => None,
        })
    }

    pub(super) fn status(&self) -> Option<(Status, Option<FailureClass>)> {
        self.find(|output| match output {
            Output::Event(Event::StatusChanged { status, failure }) => Some((status, failure)),
            _ => None,
        })
    }

    pub(super) fn breaker(&self) -> Option<Option<Timestamp>> {
        self.find(|output| match output {
            Output::Event(Event::BreakerChanged { open_until }) => Some(open_until),
            _ => None,
        })
    }
}

/// The part of an epoch that is alive.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Phase {
    Nothing,
    Dialling { epoch: Epoch, deadline: Timestamp, flags: u8 },
    Up { epoch: Epoch, since: Timestamp },
    Closing { epoch: Epoch, deadline: Timestamp },
}

impl Phase {
    pub(super) const fn epoch(self) -> Option<Epoch> {
        match self {
            Self::Nothing => None,
            Self::Dialling { epoch, .. } | Self::Up { epoch, .. } | Self::Closing { epoch, .. } => Some(epoch),
        }
    }
}

/// The plan for the time when nothing is alive.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Plan {
    Rest,
    Dial,
    Park,
    Shutdown,
}

/// Which rule sets the time of the next dial.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Pace {
    /// The ladder's step (R12), cut where a caller waits (R14).
    Ladder,
    /// At once, spread: the loss of a session that begins an outage (R13).
    First,
    /// A parked server's own probe (R17).
    Probe,
    /// A caller, or the end of a suspend (R14, R18).
    Caller,
    /// A wake (R5, R11).
    Wake,
    /// Idle, or a session that was replaced for its age (R5, R24).
    AtOnce,
}

/// The time of the next dial, or where in between it lies.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Window {
    pub(super) from: Timestamp,
    pub(super) to: Timestamp,
    pub(super) pace: Pace,
}

impl Window {
    const fn at(at: Timestamp, pace: Pace) -> Self {
        Self { from: at, to: at, pace }
    }
}

/// The reason for the next dial.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Why {
    Schedule,
    Caller,
    Wake { operator: bool },
}

/// An unanswered question.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Asked {
    pub(super) since: Timestamp,
    pub(super) deadline: Timestamp,
    /// Pings; when it was asked to list, it is too late for more.
    pub(super) pings: u8,
    pub(super) to_list: bool,
}

/// The state of a Ready session, as far as rules depend on it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Life {
    pub(super) heard: Timestamp,
    pub(super) open: Option<Timestamp>,
    pub(super) asked: Option<Asked>,
    /// When it is asked next, if nothing comes in.
    pub(super) next: Option<(Timestamp, Timestamp)>,
    /// Whether a call got a result.
    pub(super) served: bool,
    /// The latest time at which something was sent that was answered.
    pub(super) answered_to: Option<Timestamp>,
    /// The end of a suspend since which nothing has come in.
    pub(super) resumed: Option<Timestamp>,
    pub(super) rest_at: Option<Timestamp>,
    pub(super) renew_at: Option<Timestamp>,
}

impl Life {
    /// It has said something; it is asked next then.
    pub(super) const fn alive(&mut self, next: Timestamp) {
        self.asked = None;
        self.resumed = None;
        self.next = Some((next, next));
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Model {
    pub(super) config: Config,
    pub(super) now: Timestamp,
    pub(super) phase: Phase,
    pub(super) plan: Plan,
    pub(super) next: Option<Window>,
    pub(super) why: Why,
    pub(super) last: Option<(Epoch, Timestamp)>,
    /// Nobody listened at the last dial.
    pub(super) refused: bool,
    pub(super) ladder: u32,
    pub(super) outage: Option<Timestamp>,
    pub(super) hint: Duration,
    pub(super) hint_until: Option<Timestamp>,
    pub(super) class: Option<FailureClass>,
    pub(super) demand: Option<Timestamp>,
    pub(super) start_timeout: Duration,
    pub(super) parked: Option<ParkReason>,
    pub(super) probes: u32,
    /// Callers' dials of a park for a permanent failure.
    pub(super) asks: u32,
    pub(super) published: bool,
    pub(super) strikes: u8,
    /// The latest time at which one of these was sent.
    pub(super) struck: Option<Timestamp>,
    pub(super) open_until: Option<Timestamp>,
    pub(super) pings: PingSupport,
    /// How long the longest listing of this epoch took.
    pub(super) listing: Duration,
    pub(super) life: Option<Life>,
    pub(super) status: Status,
    /// The newest epoch that was lost, closed or gone.
    pub(super) dead: Option<Epoch>,
}

/// The orders and answers that the rules expect of one step.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Expected {
    pub(super) dial: Option<Dial>,
    pub(super) close: Option<CloseCause>,
    pub(super) ping: Option<Sure>,
    pub(super) ask: Option<Sure>,
    pub(super) publish: Option<Epoch>,
    pub(super) withdraw: bool,
    pub(super) breaker: Option<Option<Timestamp>>,
    pub(super) admission: Option<Admission>,
    pub(super) failure: Option<FailureClass>,
    /// A session ended, and that is no reason to begin another.
    pub(super) rest: bool,
    /// Where the next dial must lie, decided in this step.
    pub(super) window: Option<Window>,
}

/// Whether something is due, where its time is drawn at random.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Sure {
    Must,
    May,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Dial {
    pub(super) sure: Sure,
    pub(super) window: Window,
    pub(super) why: Why,
}

impl Model {
    pub(super) fn new(config: Config, now: Timestamp) -> Self {
        Self {
            config,
            now,
            phase: Phase::Nothing,
            plan: Plan::Rest,
            next: None,
            why: Why::Schedule,
            last: None,
            refused: false,
            ladder: 0,
            outage: None,
            hint: Duration::ZERO,
            hint_until: None,
            class: None,
            demand: None,
            start_timeout: config.connect_timeout(),
            parked: None,
            probes: 0,
            asks: 0,
            published: false,
            strikes: 0,
            struck: None,
            open_until: None,
            pings: PingSupport::Unknown,
            listing: Duration::ZERO,
            life: None,
            status: Status::Idle,
            dead: None,
        }
    }

    /// Takes the step and says what the rules wanted of it.
    pub(super) fn apply(&mut self, step: &Step) -> Expected {
        self.now = step.now;
        let mut want = Expected::default();
        self.on_input(step, &mut want);
        self.on_due(step, &mut want);
        if let Input::Connect { until } = step.input {
            want.admission = Some(self.admit(until, step));
        }
        self.status = self.visible();
        want
    }

    fn on_input(&mut self, step: &Step, want: &mut Expected) {
        let live = |epoch: Epoch| self.phase.epoch() == Some(epoch);
        match step.input {
            Input::Tick => {}
            Input::Connect { .. } => match (self.phase, self.plan) {
                (Phase::Up { .. }, _) => self.used(self.now),
                (Phase::Nothing | Phase::Closing { .. }, Plan::Rest) => {
                    self.plan = Plan::Dial;
                    self.set_next(Window::at(self.no_earlier(self.now), Pace::AtOnce), want);
                }
                _ => self.caller(want),
            },
            Input::Wake(cause) => self.wake(cause, want),
            Input::Park => self.park(want),
            Input::Shutdown => self.shutdown(want),
            Input::Retune(config) => self.retune(config),
            Input::Resumed { by_call } => self.resumed(by_call, want),
            Input::Reached { epoch, flag } if live(epoch) => self.reached(flag, want),
            Input::Lost { epoch, failure } if live(epoch) => {
                if let Phase::Dialling { .. } | Phase::Up { .. } = self.phase {
                    self.failed(failure, step, want);
                    self.close(CloseCause::Failed(failure.class), want);
                }
            }
            Input::Gone { epoch, failure } if live(epoch) => {
                if let Phase::Dialling { .. } | Phase::Up { .. } = self.phase {
                    self.failed(failure, step, want);
                }
                self.ended(want);
            }
            Input::Traffic { epoch, inbound, answered, served, answered_to, oldest } if live(epoch) => {
                self.traffic(inbound, oldest);
                self.answers(answered, served, answered_to, want);
            }
            Input::NoReply { epoch, sent } if live(epoch) => {
                self.silent(sent, want);
                self.strike(sent, want);
            }
            Input::Silence { epoch, sent } if live(epoch) => self.silent(sent, want),
            Input::PingUnsupported { epoch } if live(epoch) => {
                let next = self.now + self.config.keepalive() * 5;
                if let Some(life) = &mut self.life {
                    self.pings = PingSupport::Refuses;
                    life.alive(next); // it did answer
                }
            }
            Input::Pong { epoch } if live(epoch) => self.known(PingSupport::Answers),
            Input::ServerChanged { epoch } if live(epoch) => self.known(PingSupport::Unknown),
            Input::Listed { epoch, took } if live(epoch) => {
                if let Phase::Dialling { .. } | Phase::Up { .. } = self.phase {
                    self.listing = self.listing.max(took.min(Duration::from_secs(30 * 24 * 3_600)));
                }
            }
            Input::Renew { epoch } if live(epoch) => {
                if let Some(life) = &mut self.life {
                    life.renew_at = Some(self.now);
                }
            }
            Input::Reached { .. }
            | Input::Lost { .. }
            | Input::Gone { .. }
            | Input::Traffic { .. }
            | Input::NoReply { .. }
            | Input::Silence { .. }
            | Input::Pong { .. }
            | Input::ServerChanged { .. }
            | Input::Listed { .. }
            | Input::Renew { .. }
            | Input::PingUnsupported { .. } => {}
        }
    }

    fn on_due(&mut self, step: &Step, want: &mut Expected) {
        match self.phase {
            Phase::Dialling { deadline, flags, .. } if deadline <= self.now => {
                if flags != 0 {
                    self.start_timeout = (self.start_timeout * 2).min(self.config.connect_timeout_max());
                }
                self.failed(FailureClass::StartTimeout.into(), step, want);
                self.close(CloseCause::Failed(FailureClass::StartTimeout), want);
            }
            Phase::Up { .. } => self.session_due(step, want),
            Phase::Closing { deadline, .. } if deadline <= self.now => self.ended(want),
            Phase::Nothing | Phase::Dialling { .. } | Phase::Closing { .. } => {}
        }
        if let (Phase::Nothing, Some(window)) = (self.phase, self.next)
            && window.from <= self.now
        {
            let sure = if window.to <= self.now { Sure::Must } else { Sure::May };
            want.dial = Some(Dial { sure, window, why: self.why });
            if let Some((epoch, ..)) = step.dial() {
                self.dialled(epoch);
            }
        }
        // From here on the times that were drawn are known.
        if let (Some(next), Some(drawn)) = (&mut self.next, step.after.state.next_dial()) {
            next.from = drawn;
            next.to = drawn;
        }
        if let (Some(Life { next: Some(next), .. }), State::Ready { liveness, .. }) = (&mut self.life, step.after.state)
            && let Liveness::Quiet { ask_at } | Liveness::Verify { ask_at, .. } = liveness
            && (next.0..=next.1).contains(&ask_at)
        {
            *next = (ask_at, ask_at);
        }
    }

    fn dialled(&mut self, epoch: Epoch) {
        if self.parked.is_some() && self.why == Why::Schedule {
            self.probes += 1;
        }
        if self.parked == Some(ParkReason::Permanent) && self.why == Why::Caller {
            self.asks += 1;
        }
        self.phase = Phase::Dialling { epoch, deadline: self.now + self.config.connect_timeout_max(), flags: 0 };
        self.last = Some((epoch, self.now));
        self.refused = false;
        self.listing = Duration::ZERO;
        self.why = Why::Schedule;
        self.next = None;
    }

    fn reached(&mut self, flag: ReadyFlag, want: &mut Expected) {
        let Phase::Dialling { epoch, deadline, flags } = self.phase else { return };
        let deadline = if flags == 0 { self.now + self.start_timeout } else { deadline };
        let flags = flags | 1 << (flag as u8).trailing_zeros();
        if flags.count_ones() < 4 {
            self.phase = Phase::Dialling { epoch, deadline, flags };
            return;
        }
        self.phase = Phase::Up { epoch, since: self.now };
        self.parked = None;
        self.why = Why::Schedule;
        self.no_hint();
        self.asks = 0;
        self.class = None;
        self.published = true;
        want.publish = Some(epoch);
        self.answer(want);
        let interval = self.interval();
        self.life = Some(Life {
            heard: self.now,
            open: None,
            served: false,
            answered_to: None,
            asked: None,
            next: Some((self.now + interval, self.now + interval + interval / 5)),
            resumed: None,
            rest_at: self.config.idle_timeout().map(|idle| self.now + idle),
            renew_at: self.config.max_lifetime().map(|age| self.now + age),
        });
    }
}
