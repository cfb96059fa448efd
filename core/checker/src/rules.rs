//! One function per rule: each panics with the rule's number and a sentence.

mod dialling;
mod session;

use mcp_reconnect_core::{Event, Input, Output, Status, Timestamp};

use super::checker::Look;
use super::model::{Pace, Plan, Sure};

use dialling::{r05, r06, r07, r08, r09, r10, r11, r12, r13, r14, r15, r16, r17};
pub(super) use session::breaker_leaves_dialling_alone;
use session::{r18, r19, r20, r21, r22, r23, r24};

pub(super) const ALL: [fn(&Look<'_>); 24] = [
    r01, r02, r03, r04, r05, r06, r07, r08, r09, r10, r11, r12, r13, r14, r15, r16, r17, r18, r19, r20, r21, r22, r23,
    r24,
];

/// The step did what a tick would have done.
fn like_a_tick(look: &Look<'_>, rule: &str) {
    let mut machine = look.machine.clone();
    let tick = machine.handle(look.given, Input::Tick);
    assert!(
        tick == look.step.out && machine == *look.next,
        "{rule}: {:?} must equal a Tick, which gives {tick:?}, but gives {:?}",
        look.step.input,
        look.step.out
    );
}

/// The time of the next dial that this step set lies where the rules want it.
fn paced(look: &Look<'_>, rule: &str, of: impl Fn(Pace) -> bool) {
    let Some(window) = look.want.window.filter(|window| of(window.pace)) else { return };
    match (look.step.dial(), look.step.after.state.next_dial()) {
        (Some(_), _) => assert!(
            window.from <= look.step.now,
            "{rule}: dialled at {:?}, before {:?} ({:?})",
            look.step.now,
            window.from,
            window.pace
        ),
        (None, Some(at)) => assert!(
            (window.from..=window.to).contains(&at),
            "{rule}: the next dial is due at {at:?}, not between {:?} and {:?} ({:?})",
            window.from,
            window.to,
            window.pace
        ),
        // Decided otherwise later in the step, or behind a park.
        (None, None) => assert!(
            look.after.next.is_none(),
            "{rule}: no dial is due, but one must be between {:?} and {:?} ({:?})",
            window.from,
            window.to,
            window.pace
        ),
    }
}

/// A dial of this kind came exactly when it was due.
fn dials(look: &Look<'_>, rule: &str, of: impl Fn(Pace) -> bool) {
    let dialled = look.step.dial().is_some();
    if let Some(dial) = look.want.dial.filter(|dial| of(dial.window.pace)) {
        assert!(dialled || dial.sure == Sure::May, "{rule}: no dial, though one is due: {:?}", dial.window);
    }
}

fn parks(look: &Look<'_>, rule: &str) {
    let parked = match look.step.after.status {
        Status::Parked(reason) => Some(reason),
        Status::Idle | Status::Connecting | Status::Ready(_) | Status::TransientFailure | Status::Shutdown => None,
    };
    if look.after.plan != Plan::Shutdown {
        assert!(parked == look.after.parked, "{rule}: parked as {parked:?}, not {:?}", look.after.parked);
    }
}

/// Total, and a report of any epoch but the live one equals a tick.
fn r01(look: &Look<'_>) {
    if look.step.input.epoch().is_some_and(|epoch| look.before.phase.epoch() != Some(epoch)) {
        like_a_tick(look, "R1");
    }
}

/// `wake_at` is later than now, and a tick before it changes nothing.
fn r02(look: &Look<'_>) {
    let Some(at) = look.step.out.wake_at() else { return };
    let now = look.step.now;
    assert!(at > now, "R2: `wake_at` {at:?} is not later than now, {now:?}");
    let same = look.next.next_timeout();
    assert!(same == Some(at), "R2: `next_timeout` is {same:?}, not {at:?}");
    let mut once = look.next.clone();
    let mut twice = once.clone();
    for early in [now, now + at.since(now) / 2, Timestamp::from_nanos(at.as_nanos() - 1)] {
        let tick = twice.handle(early, Input::Tick);
        assert!(tick.iter().next().is_none(), "R2: a tick at {early:?}, before {at:?}, ordered {tick:?}");
        assert!(tick.wake_at() == Some(at), "R2: a tick at {early:?} moved {at:?} to {:?}", tick.wake_at());
    }
    assert!(twice.snapshot() == once.snapshot(), "R2: an early tick changed the machine: {twice:?}");
    assert!(
        once.handle(at, Input::Tick) == twice.handle(at, Input::Tick) && once == twice,
        "R2: early ticks changed what the due one does"
    );
}

/// An earlier now is the last now; each timer fires at most once; the order within a step.
fn r03(look: &Look<'_>) {
    if look.given <= look.before.now {
        for earlier in [Timestamp::ZERO, look.before.now] {
            let mut machine = look.machine.clone();
            let out = machine.handle(earlier, look.step.input);
            assert!(
                out == look.step.out && machine == *look.next,
                "R3: at {earlier:?} the outputs are {out:?}, at the last time {:?}",
                look.step.out
            );
        }
    }
    let step = look.step;
    type Kind = (&'static str, fn(Output) -> bool);
    let at_most_once: [Kind; 8] = [
        ("Dial", |output| matches!(output, Output::Dial { .. })),
        ("Close", |output| matches!(output, Output::Close { .. })),
        ("Ping", |output| matches!(output, Output::Ping { .. })),
        ("Ask", |output| matches!(output, Output::Ask { .. })),
        ("Publish", |output| matches!(output, Output::Publish { .. })),
        ("Withdraw", |output| matches!(output, Output::Withdraw)),
        ("Admit", |output| matches!(output, Output::Admit(_))),
        ("StatusChanged", |output| matches!(output, Output::Event(Event::StatusChanged { .. }))),
    ];
    for (name, what) in at_most_once {
        assert!(step.count(what) <= 1, "R3: more than one {name} in {:?}", step.out);
    }
    let rank = |output| match output {
        Output::Admit(_) => 1,
        Output::Event(Event::StatusChanged { .. }) => 2,
        Output::Dial { .. }
        | Output::Close { .. }
        | Output::Ping { .. }
        | Output::Ask { .. }
        | Output::Publish { .. }
        | Output::Withdraw
        | Output::Event(_) => 0,
    };
    assert!(step.out.iter().is_sorted_by_key(rank), "R3: orders, then the answer, then the status: {:?}", step.out);
    assert!(
        step.admission().is_some() == matches!(step.input, Input::Connect { .. }),
        "R3: exactly a Connect is answered: {:?}",
        step.out
    );
}

/// Determinism: the checker itself compares the outputs with those of a second machine.
fn r04(_: &Look<'_>) {}
