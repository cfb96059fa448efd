//! Liveness, rest and the breaker: R18 to R21, R24.

use core::time::Duration;

use mcp_reconnect_core::{CloseCause, Config, FailureClass, PingSupport, Timestamp};

use super::{Asked, Expected, Life, Model, Pace, Phase, Plan, Step, Sure, Window};

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

    /// R19: how long a session may be silent before it is asked.
    pub(super) fn interval(&self) -> Duration {
        match self.pings {
            PingSupport::Unknown | PingSupport::Answers => self.config.keepalive(),
            PingSupport::Silent | PingSupport::Refuses => self.config.keepalive() * 5,
        }
    }

    /// R19: how long a listing may stay unanswered.
    fn patience(&self) -> Duration {
        self.config.ping_timeout().max(self.listing * 2)
    }

    /// What a pong, or another server, says about pings.
    pub(super) fn known(&mut self, pings: PingSupport) {
        if !matches!(self.phase, Phase::Dialling { .. } | Phase::Up { .. }) {
            return;
        }
        self.pings = pings;
        let soon = self.now + self.interval();
        if let Some(Life { next: Some((from, to)), resumed: None, .. }) = &mut self.life {
            *from = soon.min(*from);
            *to = soon.min(*to);
        }
    }

    pub(super) fn traffic(&mut self, inbound: Timestamp, oldest: Option<Timestamp>) {
        let Some(life) = &mut self.life else { return };
        life.heard = life.heard.max(inbound.min(self.now));
        life.open = oldest;
        let heard = life.heard;
        let question = life.asked.map(|asked| asked.since).or(life.resumed);
        if question.is_some_and(|since| heard < since) {
            return;
        }
        let misses = life.asked.is_some_and(|asked| asked.to_list);
        if misses && matches!(self.pings, PingSupport::Unknown | PingSupport::Answers) {
            self.pings = PingSupport::Silent;
        }
        let next = heard + self.interval();
        let Some(life) = &mut self.life else { return };
        match (question, life.next) {
            (None, Some((from, to))) => life.next = Some((from.max(next), to.max(next))),
            _ => life.alive(next),
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
        if life.heard <= sent && life.asked.is_none() {
            want.ping = Some(Sure::Must);
            let deadline = self.now + self.config.ping_timeout();
            life.asked = Some(Asked { since: self.now, deadline, pings: 1, to_list: false });
            life.next = None;
            life.resumed = None;
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
        let (interval, patience) = (self.interval(), self.patience());
        let pinged = matches!(self.pings, PingSupport::Unknown | PingSupport::Answers);
        let Some(life) = &mut self.life else { return };
        let now = self.now;
        if let Some(asked) = &mut life.asked {
            if asked.deadline <= now {
                let busy = life.open.is_some_and(|sent| sent < asked.since);
                asked.deadline = now + if asked.to_list { patience } else { self.config.ping_timeout() };
                if busy {
                } else if asked.to_list {
                    self.failed(FailureClass::Unresponsive.into(), step, want);
                    return self.close(CloseCause::Failed(FailureClass::Unresponsive), want);
                } else if asked.pings < self.config.ping_misses() {
                    want.ping = Some(Sure::Must);
                    asked.pings += 1;
                } else {
                    want.ask = Some(Sure::Must);
                    asked.to_list = true;
                    asked.deadline = now + patience;
                }
            }
        } else if let Some((from, to)) = life.next
            && from <= now
        {
            if life.open.is_some() && life.resumed.is_none() {
                life.next = Some((now + interval, now + interval));
            } else {
                let sure = if to <= now { Sure::Must } else { Sure::May };
                (want.ping, want.ask) = if pinged { (Some(sure), None) } else { (None, Some(sure)) };
                if step.ping() || step.ask() {
                    let deadline = now + if pinged { self.config.ping_timeout() } else { patience };
                    let pings = u8::from(pinged);
                    life.asked = Some(Asked { since: now, deadline, pings, to_list: !pinged });
                    life.next = None;
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

    pub(super) fn retune(&mut self, config: Config) {
        self.config = config;
        self.start_timeout = self.start_timeout.max(config.connect_timeout()).min(config.connect_timeout_max());
        let soonest = self.paced();
        let interval = self.interval();
        if let Some(next) = &mut self.next {
            next.from = next.from.max(soonest);
            next.to = next.to.max(soonest);
        }
        if let (Some(life), Phase::Up { since, .. }) = (&mut self.life, self.phase) {
            life.rest_at = config.idle_timeout().map(|idle| self.now + idle);
            life.renew_at = config.max_lifetime().map(|age| since + age);
            if let (Some(next), None) = (&mut life.next, life.resumed) {
                *next = (life.heard + interval, life.heard + interval);
            }
        }
    }
}
