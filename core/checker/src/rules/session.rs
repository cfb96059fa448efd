//! A session's life, calls, and the end: R18 to R24.

use mcp_reconnect_core::{
    Admission, Breaker, CloseCause, Event, FailureClass, Input, Liveness, Output, Outputs, Refusal, State, Status, Want,
};

use super::{dials, paced, parks};
use crate::checker::Look;
use crate::model::{Pace, Phase, Plan, Sure};

/// `Resumed`: Ready sessions are asked, waits are taken as a caller's, and the outage clock starts again.
pub(super) fn r18(look: &Look<'_>) {
    if look.want.failure.is_some() {
        parks(look, "R18");
    }
    let Input::Resumed { by_call } = look.step.input else { return };
    match (look.before.phase, look.after.life) {
        (Phase::Up { .. }, Some(life)) => {
            let by = look.step.now + look.after.config.redial_spread();
            let now = look.step.now;
            let asked = match look.step.after.state {
                State::Ready { liveness: Liveness::Verify { ask_at, .. }, .. } => ask_at <= by && !by_call,
                State::Ready { liveness: Liveness::Asked { since, missed, .. }, .. } => {
                    missed == 0 && since == now && look.step.ping()
                }
                State::Ready { liveness: Liveness::Listing { since, .. }, .. } => since == now && look.step.ask(),
                _ => false,
            };
            assert!(asked, "R18: not asked by {by:?} after a suspend: {:?}, {life:?}", look.step);
        }
        (Phase::Up { .. } | Phase::Dialling { .. } | Phase::Closing { .. }, _) => {
            let mut machine = look.machine.clone();
            let tick = machine.handle(look.given, Input::Tick);
            let due = look.machine.next_timeout().is_some_and(|at| at <= look.step.now);
            assert!(
                due || tick == look.step.out,
                "R18: Resumed did something: {:?} in {:?}",
                look.step.out,
                look.before
            );
        }
        (Phase::Nothing, _) => {
            paced(look, "R18", |_| true);
            dials(look, "R18", |_| true);
            if look.want.window.is_none() {
                let mut machine = look.machine.clone();
                let tick = machine.handle(look.given, Input::Tick);
                assert!(tick == look.step.out, "R18: Resumed did something: {:?} in {:?}", look.step.out, look.before);
            }
        }
    }
}

/// Periodic pings, and the verdict.
pub(super) fn r19(look: &Look<'_>) {
    let step = look.step;
    let no_reply = matches!(step.input, Input::NoReply { .. } | Input::Silence { .. });
    let wanted = |asked: bool, want: Option<Sure>| match want {
        None => !asked,
        Some(Sure::Must) => asked,
        Some(Sure::May) => true,
    };
    let (pinged, asked) = (step.ping(), step.ask());
    let well = no_reply || wanted(pinged, look.want.ping);
    assert!(well, "R19: pinged {pinged}, not {:?}: {:?}", look.want.ping, look.before.life);
    assert!(wanted(asked, look.want.ask), "R19: asked {asked}, not {:?}: {:?}", look.want.ask, look.before.life);
    let known = step.after.pings;
    assert!(known == look.after.pings, "R19: pings are known as {known:?}, not {:?}", look.after.pings);
    if let Phase::Up { .. } = look.before.phase {
        let verdict = CloseCause::Failed(FailureClass::Unresponsive);
        let given = step.close().is_some_and(|(_, cause)| cause == verdict);
        let lost = matches!(step.input, Input::Lost { .. });
        let due = look.want.close == Some(verdict);
        assert!(lost || given == due, "R19: verdict {given}, not {due}: {:?}", look.before.life);
        let listed = look.machine.snapshot().state;
        let listed = matches!(listed, State::Ready { liveness: Liveness::Listing { .. }, .. });
        assert!(lost || !given || listed, "R19: a verdict, and no listing was asked: {:?}", look.before.life);
    }
    if let (Some(life), State::Ready { liveness, .. }) = (look.after.life, step.after.state) {
        match (liveness, life.asked, life.next) {
            (Liveness::Asked { deadline, .. }, Some(asked), _) if !asked.to_list => {
                assert!(deadline == asked.deadline, "R19: a ping is missed at {deadline:?}, not {asked:?}");
            }
            (Liveness::Listing { deadline, .. }, Some(asked), _) if asked.to_list => {
                assert!(deadline == asked.deadline, "R19: a listing is missed at {deadline:?}, not {asked:?}");
            }
            (Liveness::Quiet { ask_at } | Liveness::Verify { ask_at, .. }, None, Some((from, to))) => {
                assert!((from..=to).contains(&ask_at), "R19: asked at {ask_at:?}, not between {from:?} and {to:?}");
            }
            _ => panic!("R19: watched by {liveness:?}, not {life:?}"),
        }
    }
}

/// A call without a reply, and nothing heard later than it was sent: ping now.
pub(super) fn r20(look: &Look<'_>) {
    let strikes = look.step.after.stats.no_replies - look.machine.snapshot().stats.no_replies;
    let counts = u64::from(matches!(look.step.input, Input::NoReply { .. }));
    assert!(strikes <= counts, "R20: {:?} counts as a call without a reply", look.step.input);
    if let (Input::NoReply { epoch, .. } | Input::Silence { epoch, .. }, Some(live)) =
        (look.step.input, look.before.phase.epoch())
        && epoch == live
    {
        // A ping of another kind may be due in the same step; r19 says when.
        let pinged = look.step.ping();
        let wanted = look.want.ping == Some(Sure::Must);
        assert!(
            pinged == wanted || look.want.ping == Some(Sure::May),
            "R20: pinged {pinged}, not {wanted}: {:?} in {:?}",
            look.step.input,
            look.before.life
        );
    }
}

/// The breaker: strikes, refusals, one caller per open time, answers and fresh sessions.
pub(super) fn r21(look: &Look<'_>) {
    let step = look.step;
    let changed = step.breaker();
    assert!(changed == look.want.breaker, "R21: the breaker changed to {changed:?}, not {:?}", look.want.breaker);
    let open = match step.after.breaker {
        Breaker::Open { until } => Some(until),
        Breaker::Closed { strikes } => {
            let expected = look.after.strikes;
            assert!(strikes == expected, "R21: {strikes} strikes, not {expected}");
            None
        }
    };
    assert!(open == look.after.open_until, "R21: open until {open:?}, not {:?}", look.after.open_until);
    if let (Some(got), Phase::Up { .. }) = (step.admission(), look.after.phase) {
        assert!(look.want.admission == Some(got), "R21: answered {got:?}, not {:?}", look.want.admission);
    }
}

/// The second half of R21: but for answers and its own events, a machine with another breaker does the same.
pub(crate) fn breaker_leaves_dialling_alone(one: &Outputs, other: &Outputs) {
    let orders = |output: &Output| !matches!(output, Output::Admit(_) | Output::Event(Event::BreakerChanged { .. }));
    let same = one.iter().filter(orders).eq(other.iter().filter(orders)) && one.wake_at() == other.wake_at();
    assert!(same, "R21: the breaker changed what is ordered: {one:?}, {other:?}");
}

/// `Connect` is answered by the state after its step, and the snapshot says the same.
pub(super) fn r22(look: &Look<'_>) {
    let (step, want) = (look.step, look.want.admission);
    assert!(step.admission() == want, "R22: answered {:?}, not {want:?} in {:?}", step.admission(), step.after.state);
    if let (Input::Connect { until }, Some(got)) = (step.input, step.admission()) {
        let seen = step.after.admission(Want::Session, until);
        let one_let_through = matches!(seen, Admission::Refuse { why: Refusal::BreakerOpen, .. });
        assert!(seen == got || one_let_through, "R22: answered {got:?}, but the snapshot says {seen:?}");
    }
}

/// Shutdown is terminal, at once for the outside, and bounded.
pub(super) fn r23(look: &Look<'_>) {
    let step = look.step;
    if look.after.plan != Plan::Shutdown {
        let said = step.after.status == Status::Shutdown;
        assert!(!said, "R23: Shutdown without being asked");
        return;
    }
    assert!(step.after.status == Status::Shutdown, "R23: the status is {:?}", step.after.status);
    let expected = match look.after.phase {
        Phase::Closing { deadline, .. } => Some(deadline),
        _ => None,
    };
    let at = step.out.wake_at();
    assert!(at == expected, "R23: comes back at {at:?}, not {expected:?}");
    let first = look.before.plan != Plan::Shutdown;
    for output in step.out {
        let allowed = match output {
            Output::Admit(Admission::Refuse { why: Refusal::Shutdown, retry_at: None }) => true,
            Output::Close { cause, .. } => first && cause == CloseCause::Shutdown,
            Output::Withdraw => first && look.before.published,
            Output::Event(Event::StatusChanged { status, .. }) => first && status == Status::Shutdown,
            Output::Dial { .. }
            | Output::Ping { .. }
            | Output::Ask { .. }
            | Output::Publish { .. }
            | Output::Admit(_)
            | Output::Event(_) => false,
        };
        assert!(allowed, "R23: {output:?} after Shutdown");
    }
    let withdrawn = step.out.iter().any(|output| output == Output::Withdraw);
    assert!(!first || withdrawn == look.before.published, "R23: withdrawn {withdrawn} by Shutdown: {step:?}");
    let live = matches!(look.before.phase, Phase::Dialling { .. } | Phase::Up { .. });
    assert!(!first || live == step.close().is_some(), "R23: the live epoch is closed, and only it: {step:?}");
}

/// Rest and renewal: put off by open calls and by use, and no failure.
pub(super) fn r24(look: &Look<'_>) {
    let step = look.step;
    let closed = step.close().map(|(_, cause)| cause);
    let of = |cause: Option<CloseCause>| cause.filter(|cause| matches!(cause, CloseCause::Idle | CloseCause::Lifetime));
    assert!(of(closed) == of(look.want.close), "R24: closed for {closed:?}, not {:?}: {step:?}", look.want.close);
    if let (State::Ready { rest_at, renew_at, .. }, Some(life)) = (step.after.state, look.after.life) {
        assert!(rest_at == life.rest_at, "R24: put to rest at {rest_at:?}, not {:?}", life.rest_at);
        assert!(renew_at == life.renew_at, "R24: renewed at {renew_at:?}, not {:?}", life.renew_at);
    }
    if look.want.rest {
        let failures = step.after.stats.failures - look.machine.snapshot().stats.failures;
        let kept = step.after.published && step.after.status == Status::Idle;
        assert!(failures == 0 && kept, "R24: {:?} left nothing to rest: {:?}", step.input, step.after);
    }
    if of(closed).is_some() {
        let failures = step.after.stats.failures - look.machine.snapshot().stats.failures;
        assert!(failures == 0, "R24: {closed:?} counted as a failure");
        assert!(!step.out.iter().any(|output| output == Output::Withdraw), "R24: withdrawn for {closed:?}");
        paced(look, "R24", |pace| pace == Pace::AtOnce);
    }
}
