//! Liveness, rest and the breaker: R18 to R21, R24.

use crate::config::Config;
use crate::failure::FailureClass;
use crate::output::CloseCause;
use crate::time::Timestamp;

use super::{Asked, Expected, Model, Pace, Phase, Plan, Step, Sure, Window};

impl Model {
    pub(super) fn used(&mut self, when: Timestamp) {
        if let (Some(life), Some(idle)) = (&mut self.life, self.config.idle_timeout()) {
            life.rest_at = life.rest_at.max(Some(when + idle));
        }
    }

    pub(super) fn answer(&mut self, want: &mut Expected) {
        self.strikes = 0;
        self.struck = None;
        if self.open_until.take().is_some() {
            want.breaker = Some(None);
        }
    }

    pub(super) fn traffic(&mut self, inbound: Timestamp, oldest: Option<Timestamp>) {
        let Some(life) = &mut self.life else { return };
        life.heard = life.heard.max(inbound.min(self.now));
        life.open = oldest;
        let next = life.heard + self.config.keepalive();
        if let Some(asked) = life.asked {
            if life.heard >= asked.since {
                self.pings.answered |= self.pings.periodic();
                life.asked = None;
                life.ask = self.pings.periodic().then_some((next, next));
            }
        } else if let Some(resumed) = life.resumed {
            if life.heard >= resumed {
                life.resumed = None;
                life.ask = self.pings.periodic().then_some((next, next));
            }
        } else if let Some((from, to)) = life.ask {
            life.ask = Some((from.max(next), to.max(next)));
        }
    }

    pub(super) fn answers(&mut self, answered: bool, served: bool, to: Option<Timestamp>, want: &mut Expected) {
        let Some(life) = &mut self.life else { return };
        life.served |= served;
        let to = to.map(|to| to.min(self.now));
        life.answered_to = life.answered_to.max(to);
        let heard = life.heard;
        if answered {
            self.used(heard);
        }
        if answered || (self.struck.is_some() && to > self.struck) {
            self.answer(want);
        }
    }

    /// R20.
    pub(super) fn silent(&mut self, sent: Timestamp, want: &mut Expected) {
        let Some(life) = &mut self.life else { return };
        if life.heard <= sent {
            match &mut life.asked {
                Some(asked) => asked.prompted = true,
                None => {
                    want.ping = Some(Sure::Must);
                    life.asked = Some(Asked {
                        since: self.now,
                        deadline: self.now + self.config.ping_timeout(),
                        pings: 1,
                        prompted: true,
                    });
                    life.ask = None;
                    life.resumed = None;
                }
            }
        }
    }

    /// R21.
    pub(super) fn strike(&mut self, sent: Timestamp, want: &mut Expected) {
        let Some(life) = self.life else { return };
        if life.answered_to.is_some_and(|to| to > sent) {
            return;
        }
        self.struck = self.struck.max(Some(sent.min(self.now)));
        if self.open_until.is_none() {
            self.strikes += 1;
            if self.strikes >= self.config.breaker_strikes() {
                self.strikes = 0;
                self.open_until = Some(self.now + self.config.breaker_open());
                want.breaker = Some(self.open_until);
            }
        }
    }

    pub(super) fn session_due(&mut self, step: &Step, want: &mut Expected) {
        let Some(life) = &mut self.life else { return };
        let now = self.now;
        if let Some(asked) = &mut life.asked {
            if asked.deadline <= now {
                if life.open.is_some_and(|sent| sent < asked.since) {
                    asked.deadline = now + self.config.ping_timeout();
                } else if asked.pings < self.config.ping_misses() {
                    want.ping = Some(Sure::Must);
                    asked.pings += 1;
                    asked.deadline = now + self.config.ping_timeout();
                } else {
                    let prompted = asked.prompted;
                    self.verdict(prompted);
                    self.failed(FailureClass::Unresponsive.into(), step, want);
                    return self.close(CloseCause::Failed(FailureClass::Unresponsive), want);
                }
            }
        } else if let Some((from, to)) = life.ask
            && from <= now
        {
            if life.open.is_some() && life.resumed.is_none() {
                life.ask = Some((now + self.config.keepalive(), now + self.config.keepalive()));
            } else {
                want.ping = Some(if to <= now { Sure::Must } else { Sure::May });
                if step.ping() {
                    let deadline = now + self.config.ping_timeout();
                    life.asked = Some(Asked { since: now, deadline, pings: 1, prompted: false });
                    life.ask = None;
                    life.resumed = None;
                }
            }
        }
        let later = now + self.config.keepalive();
        let due = |at: Option<Timestamp>| at.is_some_and(|at| at <= now);
        match (due(life.rest_at), due(life.renew_at)) {
            (false, false) => {}
            (rest, renew) if life.open.is_some() => {
                life.rest_at = if rest { Some(later) } else { life.rest_at };
                life.renew_at = if renew { Some(later) } else { life.renew_at };
            }
            (true, _) => {
                self.leave_up(None);
                self.plan = Plan::Rest;
                self.next = None;
                self.close(CloseCause::Idle, want);
            }
            (false, true) => {
                self.leave_up(None);
                self.plan = Plan::Dial;
                self.set_next(Window::at(self.soonest(), Pace::AtOnce), want);
                self.close(CloseCause::Lifetime, want);
            }
        }
    }

    /// A link's own verdict.
    pub(super) fn verdict_of(&mut self, class: FailureClass) {
        if let (FailureClass::Unresponsive, Some(life)) = (class, self.life) {
            self.verdict(life.asked.is_some_and(|asked| asked.prompted));
        }
    }

    pub(super) fn retune(&mut self, config: Config) {
        self.config = config;
        self.start_timeout = self.start_timeout.max(config.connect_timeout()).min(config.connect_timeout_max());
        let soonest = self.paced();
        if let Some(next) = &mut self.next {
            next.from = next.from.max(soonest);
            next.to = next.to.max(soonest);
        }
        if let (Some(life), Phase::Up { since, .. }) = (&mut self.life, self.phase) {
            life.rest_at = config.idle_timeout().map(|idle| self.now + idle);
            life.renew_at = config.max_lifetime().map(|age| since + age);
            if let (Some(ask), None) = (&mut life.ask, life.resumed) {
                *ask = (life.heard + config.keepalive(), life.heard + config.keepalive());
            }
        }
    }

    pub(super) fn verdict(&mut self, prompted: bool) {
        let pings = &mut self.pings;
        if pings.answered || !pings.periodic() {
            return;
        }
        pings.verdicts = if prompted { 0 } else { pings.verdicts + 1 };
        pings.mute = pings.verdicts == 2;
    }
}
