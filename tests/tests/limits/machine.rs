//! The core allocates nothing: it cannot, and is seen not to.

use std::hint::black_box;
use std::time::Duration;

use allocation_counter::measure;
use mcp_reconnect::core::{Config, ConnectionMachine, FailureClass, Input, ReadyFlags, State, Status, Timestamp, Want};

use crate::{each, hold, table};

#[test]
fn a_step_and_an_admission_allocate_nothing() {
    let mut machine = ConnectionMachine::new(Config::default(), 7, Timestamp::ZERO);
    let (mut steps, mut sessions) = (0_u32, 0_u32);
    let counted = measure(|| {
        let mut now = Timestamp::ZERO;
        let mut step = |machine: &mut ConnectionMachine, now, input| {
            steps += 1;
            let _orders = black_box(machine.handle(now, input));
            black_box(machine.snapshot().admission(Want::Session, now + Duration::from_secs(10)));
        };
        for round in 0..1_000_u32 {
            step(&mut machine, now, Input::Connect { until: now + Duration::from_secs(10) });
            match machine.snapshot().state {
                State::Connecting { epoch, .. } => {
                    for flag in ReadyFlags::ALL {
                        step(&mut machine, now, Input::Reached { epoch, flag });
                    }
                }
                _ => {
                    now = machine.next_timeout().unwrap_or(now).max(now);
                    step(&mut machine, now, Input::Tick);
                }
            }
            if let Status::Ready(epoch) = machine.snapshot().status {
                sessions += 1;
                now = now + Duration::from_secs(u64::from(round % 100));
                let (answered, served, answered_to) = (true, true, Some(now));
                let traffic = Input::Traffic { epoch, inbound: now, answered, served, answered_to, oldest: None };
                step(&mut machine, now, traffic);
                step(&mut machine, now, Input::NoReply { epoch, sent: now });
                let failure = FailureClass::Transport.into();
                step(&mut machine, now, Input::Lost { epoch, failure });
                step(&mut machine, now, Input::Gone { epoch, failure });
            }
        }
    });
    assert!(sessions > 100, "{sessions} sessions");
    table("machine");
    hold(&format!("allocations of {steps} steps, an admission after each"), each(counted.count_total, 1), 0, "0");
}
