use std::time::Duration;

use mcp_reconnect_core::{CloseCause, Epoch, Failure, FailureClass, Input, ReadyFlags, WakeCause};

use super::super::dice::Dice;
use super::super::{SECOND, at};
use super::tenant::knobs;
use super::{HOUR, MINUTE, Run, What};

/// What a server is like just now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Mood {
    Well,
    Refuses,
    Silent,
    HangsUp,
    /// It makes sessions and then hears nothing.
    Deaf,
    RateLimits,
    /// It wants a login.
    Denies,
    /// It cannot work.
    Broken,
}

/// How a dial ends.
#[derive(Clone, Copy, Debug)]
pub(super) enum Answer {
    Ready { hangs_up: bool },
    Fails(Failure),
}

impl Mood {
    pub(super) fn answers(self, dice: &mut Dice) -> Option<Answer> {
        let class = match self {
            Self::Silent => return None,
            Self::Well | Self::Deaf => return Some(Answer::Ready { hangs_up: false }),
            Self::HangsUp => return Some(Answer::Ready { hangs_up: true }),
            Self::Refuses => dice.one([FailureClass::Transport, FailureClass::Refused]),
            Self::RateLimits => FailureClass::RateLimited,
            Self::Denies => FailureClass::NeedsAuth,
            Self::Broken => FailureClass::Permanent,
        };
        let hint = match self {
            Self::RateLimits => dice.one([None, Some(7), Some(60), Some(99_999)]),
            _ if dice.once_in(20) => Some(5),
            _ => None,
        };
        Some(Answer::Fails(Failure { class, retry_after: hint.map(Duration::from_secs) }))
    }
}

impl Run {
    pub(super) fn closes(&mut self, cause: CloseCause) {
        match cause {
            CloseCause::Failed(FailureClass::StartTimeout) => self.seen.start_timeouts += 1,
            CloseCause::Failed(FailureClass::Unresponsive) => self.seen.unresponsive += 1,
            CloseCause::Failed(_)
            | CloseCause::Parked
            | CloseCause::Idle
            | CloseCause::Lifetime
            | CloseCause::Shutdown => {}
        }
    }

    /// A server falls ill, or gets well.
    pub(super) fn turn(&mut self, who: u32) {
        let was = self.tenants[who as usize].mood;
        let mood = if was == Mood::Well {
            let common = [Mood::Refuses, Mood::Silent, Mood::HangsUp, Mood::Deaf, Mood::Well];
            let rare = [Mood::RateLimits, Mood::Denies, Mood::Broken];
            if self.dice.once_in(5) { self.dice.one(rare) } else { self.dice.one(common) }
        } else {
            Mood::Well
        };
        self.tenants[who as usize].mood = mood;
        let lasts = if mood == Mood::Well { 40 * MINUTE } else { self.dice.one([2, 2, 40, 40, 600, 7_200]) * SECOND };
        self.soon(lasts, What::Turn(who));
        if was == Mood::Denies {
            self.give(who, Input::Wake(WakeCause::Credentials));
        }
        self.hurt(who);
    }

    /// What a fault does to a live session.
    fn hurt(&mut self, who: u32) {
        let Some(epoch) = self.tenants[who as usize].session() else { return };
        let gone = |class: FailureClass| Input::Gone { epoch, failure: class.into() };
        let lost = |class: FailureClass| Input::Lost { epoch, failure: class.into() };
        let input = match self.dice.up_to(7) {
            0..=2 => gone(FailureClass::Transport),
            3 => lost(FailureClass::Transport),
            4 => lost(FailureClass::SessionGone),
            5 => lost(FailureClass::NeedsAuth),
            _ => {
                self.tenants[who as usize].deaf = true;
                return;
            }
        };
        if input == lost(FailureClass::NeedsAuth) && self.tenants[who as usize].mood != Mood::Denies {
            return;
        }
        // Each of many callers may have seen it.
        for _ in 0..self.dice.one([1, 1, 1, 20]) {
            self.give(who, input);
        }
    }

    /// Somebody does something to a connection, or a report comes late.
    pub(super) fn somebody(&mut self, who: u32) {
        self.soon(20 * MINUTE, What::Somebody(who));
        let old = Epoch::new(self.dice.up_to(20)).unwrap_or(Epoch::FIRST);
        let failure = FailureClass::Transport.into();
        let live = self.tenants[who as usize].checker.machine().snapshot().state.live_epoch();
        let input = match self.dice.up_to(9) {
            0 => Input::Wake(WakeCause::Operator),
            1 => Input::Wake(WakeCause::Config),
            2 => Input::Retune(knobs(&mut self.dice)),
            3 => {
                self.soon(30 * MINUTE, What::Woken(who));
                Input::Park
            }
            4 if live != Some(old) => Input::Lost { epoch: old, failure },
            5 if live != Some(old) => Input::Gone { epoch: old, failure },
            6 if live != Some(old) => Input::Reached { epoch: old, flag: ReadyFlags::ALL[3] },
            7 if live != Some(old) => Input::NoReply { epoch: old, sent: at(self.now) },
            _ => {
                for _ in 0..20 {
                    self.give(who, Input::Connect { until: at(self.now + 15 * SECOND) });
                }
                return;
            }
        };
        self.give(who, input);
    }

    /// The host sleeps; its timers are late, and what it was connected to may be gone.
    pub(super) fn sleep(&mut self) {
        self.seen.sleeps += 1;
        self.soon(48 * HOUR, What::Sleep);
        self.now += self.dice.one([10 * SECOND, HOUR, 8 * HOUR]);
        for who in 0..self.tenants.len() as u32 {
            if self.dice.once_in(2) {
                self.tenants[who as usize].deaf = true;
            }
            self.give(who, Input::Resumed { by_call: false });
        }
    }

    /// Every server is gone at once, for a while.
    pub(super) fn blackout(&mut self) {
        self.seen.blackouts += 1;
        self.soon(6 * HOUR, What::Blackout);
        let mood = self.dice.one([Mood::Refuses, Mood::Silent, Mood::HangsUp]);
        let lasts = self.dice.one([5, 40, 600]) * SECOND;
        self.soon(lasts, What::LightsOn);
        for who in 0..self.tenants.len() as u32 {
            self.tenants[who as usize].mood = mood;
            self.hurt(who);
        }
    }
}
