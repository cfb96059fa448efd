//! The machine. It is told the time: once with a time at hand, as in a turn that has read the clock, once reading it.

use std::hint::black_box;
use std::time::{Duration, Instant};

use mcp_reconnect_core::{
    Admission, Config, ConnectionMachine, Epoch, Input, ReadyFlags, Snapshot, State, Timestamp, Want,
};

use crate::{Breaker, CLOSED, FAILED, GOOD, OPEN, REFUSED, STRIKES};

const GIVEN: &str = "mcp-reconnect";
const READ: &str = "mcp-reconnect, reading the clock";

pub(crate) fn all() -> Vec<Breaker> {
    each(GIVEN, given).into_iter().chain(each(READ, read)).collect()
}

fn each<N: FnMut() -> Timestamp + 'static>(who: &'static str, clock: impl Fn() -> N) -> [Breaker; 4] {
    [closed(who, clock()), refused(who, clock()), good(who, clock()), failed(who, clock())]
}

/// Time that goes on by itself.
fn given() -> impl FnMut() -> Timestamp {
    let mut now = Timestamp::ZERO;
    move || {
        now = now + Duration::from_nanos(100);
        now
    }
}

fn read() -> impl FnMut() -> Timestamp {
    let origin = Instant::now();
    move || Timestamp::from_origin(origin.elapsed())
}

fn closed(who: &'static str, mut now: impl FnMut() -> Timestamp + 'static) -> Breaker {
    let snapshot = black_box(ready(STRIKES).machine.snapshot());
    Breaker::new(who, CLOSED, move || {
        assert!(matches!(admission(&snapshot, now()), Admission::Go(_)));
    })
}

fn refused(who: &'static str, mut now: impl FnMut() -> Timestamp + 'static) -> Breaker {
    let mut ready = ready(STRIKES);
    for _ in 0..STRIKES {
        let _orders = ready.machine.handle(Timestamp::ZERO, ready.no_reply(Timestamp::ZERO));
    }
    let snapshot = black_box(ready.machine.snapshot());
    Breaker::new(who, REFUSED, move || {
        assert!(matches!(admission(&snapshot, now()), Admission::Refuse { .. }));
    })
}

fn good(who: &'static str, mut now: impl FnMut() -> Timestamp + 'static) -> Breaker {
    let mut ready = ready(STRIKES);
    Breaker::new(who, GOOD, move || {
        let now = now();
        assert!(matches!(admission(&ready.machine.snapshot(), now), Admission::Go(_)));
        let answer = ready.answer(now);
        let _orders = black_box(ready.machine.handle(now, black_box(answer)));
    })
}

fn failed(who: &'static str, mut now: impl FnMut() -> Timestamp + 'static) -> Breaker {
    let mut ready = ready(u8::MAX);
    let mut strikes = 0_u8;
    Breaker::new(who, FAILED, move || {
        let now = now();
        assert!(matches!(admission(&ready.machine.snapshot(), now), Admission::Go(_)));
        let no_reply = ready.no_reply(now);
        let _orders = black_box(ready.machine.handle(now, black_box(no_reply)));
        strikes += 1;
        if strikes == 200 {
            // An answer now and then, or 255 would open it.
            let _orders = ready.machine.handle(now, ready.answer(now));
            strikes = 0;
        }
    })
}

fn admission(snapshot: &Snapshot, now: Timestamp) -> Admission {
    black_box(black_box(snapshot).admission(Want::Session, black_box(now)))
}

/// A machine with a session.
struct Ready {
    machine: ConnectionMachine,
    epoch: Epoch,
}

impl Ready {
    fn answer(&self, now: Timestamp) -> Input {
        let (epoch, answered_to) = (self.epoch, Some(now));
        Input::Traffic { epoch, inbound: now, answered: true, served: true, answered_to, oldest: None }
    }

    fn no_reply(&self, now: Timestamp) -> Input {
        Input::NoReply { epoch: self.epoch, sent: now }
    }
}

fn ready(strikes: u8) -> Ready {
    let now = Timestamp::ZERO;
    let config = Config::builder().breaker_strikes(strikes).breaker_open(OPEN).build().expect("the knobs are valid");
    let mut machine = ConnectionMachine::new(config, 7, now);
    let _orders = machine.handle(now, Input::Connect { until: now });
    let State::Connecting { epoch, .. } = machine.snapshot().state else { panic!("{:?}", machine.snapshot()) };
    for flag in ReadyFlags::ALL {
        let _orders = machine.handle(now, Input::Reached { epoch, flag });
    }
    Ready { machine, epoch }
}
