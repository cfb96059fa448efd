//! Steps and admissions. Time, and so not for CI; instructions and allocations are held to limits elsewhere.

use core::hint::black_box;
use core::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use mcp_reconnect_core::{Config, ConnectionMachine, Epoch, FailureClass, Input, ReadyFlags, State, Timestamp, Want};

fn reach(machine: &mut ConnectionMachine, now: Timestamp) -> Epoch {
    let State::Connecting { epoch, .. } = machine.snapshot().state else { panic!("{:?}", machine.snapshot()) };
    for flag in ReadyFlags::ALL {
        let _orders = black_box(machine.handle(now, black_box(Input::Reached { epoch, flag })));
    }
    epoch
}

fn ready() -> (ConnectionMachine, Epoch) {
    let now = Timestamp::ZERO;
    let mut machine = ConnectionMachine::new(Config::default(), 7, now);
    let _orders = machine.handle(now, Input::Connect { until: now });
    let epoch = reach(&mut machine, now);
    (machine, epoch)
}

fn machine(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("machine");
    let (mut machine, _) = ready();
    let mut now = Timestamp::ZERO;
    group.bench_function("tick", |bencher| {
        bencher.iter(|| {
            now = now + Duration::from_nanos(1);
            machine.handle(now, black_box(Input::Tick))
        });
    });
    let (mut machine, epoch) = ready();
    let mut now = Timestamp::ZERO;
    group.bench_function("traffic", |bencher| {
        bencher.iter(|| {
            now = now + Duration::from_nanos(1);
            let (answered, served, answered_to) = (true, true, Some(now));
            let traffic = Input::Traffic { epoch, inbound: now, answered, served, answered_to, oldest: None };
            machine.handle(now, black_box(traffic))
        });
    });
    let (mut machine, mut epoch) = ready();
    let mut now = Timestamp::ZERO;
    let failure = FailureClass::Transport.into(); // a proven session: redialled at once, and not spread by default
    group.bench_function("from a loss to the next session, 6 steps", |bencher| {
        bencher.iter(|| {
            now = now + Config::default().stable_after();
            let _orders = black_box(machine.handle(now, black_box(Input::Lost { epoch, failure })));
            let _orders = black_box(machine.handle(now, black_box(Input::Gone { epoch, failure })));
            epoch = reach(&mut machine, now);
        });
    });
    let snapshot = ready().0.snapshot();
    group.bench_function("admission", |bencher| {
        bencher.iter(|| black_box(&snapshot).admission(Want::Session, black_box(now)));
    });
    group.finish();
}

criterion_group!(benches, machine);
criterion_main!(benches);
