//! The machine's steps.

use std::hint::black_box;
use std::time::Duration;

use mcp_reconnect::core::{
    Config, ConnectionMachine, Epoch, FailureClass, Input, ReadyFlags, State, Status, Timestamp, Want,
};

/// How many steps one round of [`Work::MachineCycle`](super::Work::MachineCycle) takes.
pub const CYCLE: u64 = 6;

const MOMENT: Duration = Duration::from_nanos(100);

/// A machine that is Ready, when, and its epoch.
fn ready() -> (ConnectionMachine, Timestamp, Epoch) {
    let now = Timestamp::ZERO;
    let mut machine = ConnectionMachine::new(Config::default(), 7, now);
    let _orders = machine.handle(now, Input::Connect { until: now });
    let epoch = reach(&mut machine, now);
    (machine, now, epoch)
}

/// Lets a dial succeed.
fn reach(machine: &mut ConnectionMachine, now: Timestamp) -> Epoch {
    let State::Connecting { epoch, .. } = machine.snapshot().state else { panic!("{:?}", machine.snapshot()) };
    for flag in ReadyFlags::ALL {
        let _orders = black_box(machine.handle(now, black_box(Input::Reached { epoch, flag })));
    }
    epoch
}

#[track_caller]
fn is_ready(machine: &ConnectionMachine) {
    assert!(matches!(machine.snapshot().status, Status::Ready(_)), "{:?}", machine.snapshot());
}

pub(super) fn tick(rounds: u64) {
    let (mut machine, mut now, _) = ready();
    for _ in 0..rounds {
        now = now + MOMENT;
        let _orders = black_box(machine.handle(now, black_box(Input::Tick)));
    }
    is_ready(&machine);
}

pub(super) fn traffic(rounds: u64) {
    let (mut machine, mut now, epoch) = ready();
    for _ in 0..rounds {
        now = now + MOMENT;
        let traffic = Input::Traffic {
            epoch,
            inbound: now,
            answered: true,
            served: true,
            answered_to: Some(now),
            oldest: Some(now),
        };
        let _orders = black_box(machine.handle(now, black_box(traffic)));
    }
    is_ready(&machine);
}

pub(super) fn cycle(rounds: u64) {
    let (mut machine, mut now, mut epoch) = ready();
    let failure = FailureClass::Transport.into(); // a proven session: redialled at once, and not spread by default
    for _ in 0..rounds {
        now = now + Duration::from_secs(20);
        let _orders = black_box(machine.handle(now, black_box(Input::Lost { epoch, failure })));
        let _orders = black_box(machine.handle(now, black_box(Input::Gone { epoch, failure })));
        epoch = reach(&mut machine, now);
    }
    is_ready(&machine);
}

pub(super) fn admission(rounds: u64) {
    let (machine, now, _) = ready();
    let machine = black_box(machine);
    for _ in 0..rounds {
        black_box(black_box(&machine).snapshot().admission(Want::Session, black_box(now)));
    }
}
