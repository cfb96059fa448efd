//! One live epoch, and when it is dialled: R5 to R17.

use mcp_reconnect_core::{Admission, Epoch, FailureClass, Input, Output, ParkReason, State, Status, Want};

use super::{dials, like_a_tick, paced, parks};
use crate::checker::Look;
use crate::model::{Model, Pace, Phase, Plan, Why};

/// Nothing is stuck: a deadline in every state that waits, left when it passes; `Connect` and `Wake` dial.
pub(super) fn r05(look: &Look<'_>) {
    let step = look.step;
    let waits = match (look.after.phase, look.after.plan) {
        (Phase::Dialling { .. } | Phase::Closing { .. }, _) | (Phase::Nothing, Plan::Dial) => true,
        (Phase::Nothing, Plan::Park) => look.after.parked.is_some_and(ParkReason::probes),
        (Phase::Up { .. }, _) | (Phase::Nothing, Plan::Rest | Plan::Shutdown) => false,
    };
    assert!(!waits || step.out.wake_at().is_some(), "R5: no deadline in {:?}", step.after.state);
    if let Some(due) = look.machine.next_timeout()
        && due <= step.now
        && matches!(step.input, Input::Tick)
    {
        let state = look.machine.snapshot().state;
        assert!(state != step.after.state, "R5: {state:?} was not left when its deadline passed");
    }
    paced(look, "R5", |pace| matches!(pace, Pace::Wake | Pace::AtOnce));
    dials(look, "R5", |_| true);
}

/// One live epoch at most; dials only when there is none; epochs only grow.
pub(super) fn r06(look: &Look<'_>) {
    let Some((epoch, ..)) = look.step.dial() else { return };
    assert!(look.want.dial.is_some(), "R6: dialled {epoch:?} in {:?} by {:?}", look.before, look.step.input);
    assert!(look.before.last.is_none_or(|(last, _)| epoch > last), "R6: epoch {epoch:?} after {:?}", look.before.last);
    assert!(look.step.close().is_none(), "R6: dialled in the step that orders a close: {:?}", look.step.out);
}

/// A dial ends in its `Gone` or in the deadline of its one `Close`; the start deadline.
pub(super) fn r07(look: &Look<'_>) {
    let step = look.step;
    let live = step.after.state.live_epoch();
    assert!(live == look.after.phase.epoch(), "R7: {live:?} is live, not {:?}", look.after.phase);
    if let Some((epoch, _)) = step.close() {
        assert!(Some(epoch) == look.before.phase.epoch(), "R7: {epoch:?} was closed, not the live epoch");
        let closing = matches!(look.before.phase, Phase::Closing { .. });
        assert!(!closing, "R7: {epoch:?} was closed twice");
    }
    if let Phase::Dialling { .. } = look.before.phase {
        let closed = step.close().map(|(_, cause)| cause);
        assert!(closed == look.want.close, "R7: closed for {closed:?}, not for {:?}", look.want.close);
    }
    if let Phase::Dialling { deadline, .. } | Phase::Closing { deadline, .. } = look.after.phase {
        let at = step.out.wake_at();
        assert!(at == Some(deadline), "R7: the deadline of {:?} is {at:?}", look.after.phase);
    }
}

/// The first `Lost` or `Gone` of the live epoch starts one rebuild; a lost epoch is never handed out again.
pub(super) fn r08(look: &Look<'_>) {
    let step = look.step;
    let failures = step.after.stats.failures - look.machine.snapshot().stats.failures;
    let expected = u64::from(look.want.failure.is_some());
    assert!(failures == expected, "R8: {failures} failures, not {expected}, by {:?}", step.input);
    if let (Phase::Closing { epoch: live, .. }, Input::Lost { epoch, .. }) = (look.before.phase, step.input)
        && live == epoch
    {
        like_a_tick(look, "R8");
    }
    for output in step.out {
        if let Output::Admit(Admission::Go(epoch))
        | Output::Publish { epoch }
        | Output::Ping { epoch }
        | Output::Ask { epoch } = output
        {
            let dead = look.before.dead;
            assert!(dead.is_none_or(|dead| epoch > dead), "R8: {epoch:?} is used again: {output:?}");
        }
    }
    if let (Input::Lost { epoch, .. }, Phase::Dialling { epoch: live, .. } | Phase::Up { epoch: live, .. }) =
        (step.input, look.before.phase)
        && epoch == live
    {
        let closed = step.close();
        assert!(closed.is_some_and(|(closed, _)| closed == epoch), "R8: {epoch:?} was lost and not closed");
    }
}

/// Ready with every flag of this epoch, and left in the step that asks for the rebuild.
pub(super) fn r09(look: &Look<'_>) {
    let step = look.step;
    let published = step.find(|output| match output {
        Output::Publish { epoch } => Some(epoch),
        _ => None,
    });
    assert!(published == look.want.publish, "R9: published {published:?}, not {:?}", look.want.publish);
    let ready = match step.after.state {
        State::Ready { epoch, .. } => Some(epoch),
        _ => None,
    };
    let up = match look.after.phase {
        Phase::Up { epoch, .. } => Some(epoch),
        _ => None,
    };
    assert!(ready == up, "R9: {ready:?} is Ready, not {up:?}");
    let gone = step.close().is_some() || step.dial().is_some();
    assert!(
        !(gone && matches!(step.after.status, Status::Ready(_))),
        "R9: still Ready in the step that ends it: {step:?}"
    );
}

/// `SessionAfter` is satisfied by a greater epoch that is Ready, and by nothing else.
pub(super) fn r10(look: &Look<'_>) {
    let snapshot = look.step.after;
    let up = match look.after.phase {
        Phase::Up { epoch, .. } => Some(epoch),
        _ => None,
    };
    let newest = look.after.last.map_or(Epoch::FIRST, |(epoch, _)| epoch);
    let near = |number| Epoch::new(number).unwrap_or(newest);
    for than in [near(newest.get() - 1), newest, near(newest.get() + 1)] {
        let got = snapshot.admission(Want::SessionAfter(than), look.step.now);
        let go = up.filter(|epoch| *epoch > than && look.after.open_until.is_none());
        match (got, go) {
            (Admission::Go(epoch), go) => assert!(go == Some(epoch), "R10: after {than:?} got {epoch:?}, not {go:?}"),
            (_, None) => {}
            (_, Some(epoch)) => panic!("R10: after {than:?} got {got:?}, though {epoch:?} is Ready"),
        }
    }
}

/// `Connect` and `Wake` leave a live session or attempt alone; what cannot be done now is remembered.
pub(super) fn r11(look: &Look<'_>) {
    let step = look.step;
    let due = look.machine.next_timeout().is_some_and(|at| at <= step.now);
    let live = matches!(look.before.phase, Phase::Dialling { .. } | Phase::Up { .. });
    match step.input {
        Input::Connect { .. } | Input::Wake(_) if live && !due => {
            let orders = step.count(|output| !matches!(output, Output::Admit(_)));
            assert!(orders == 0, "R11: {:?} touched {:?}: {:?}", step.input, look.before.phase, step.out);
            let epoch = step.after.state.live_epoch();
            assert!(
                epoch == look.before.phase.epoch() && step.after.status == look.before.status,
                "R11: {:?} led from {:?} to {:?}",
                step.input,
                look.before.phase,
                step.after.state
            );
        }
        _ => {}
    }
    if let (Input::Wake(_), Phase::Up { .. }) = (step.input, look.before.phase) {
        like_a_tick(look, "R11");
    }
    paced(look, "R11", |pace| matches!(pace, Pace::Wake | Pace::AtOnce));
    if let Phase::Closing { .. } = look.after.phase {
        let dial = step.after.state.next_dial().is_some();
        assert!(
            dial == (look.after.plan == Plan::Dial),
            "R11: {:?} follows the close, not {:?}",
            step.after.state,
            look.after.plan
        );
    }
}

/// The ladder, and the server's hint.
pub(super) fn r12(look: &Look<'_>) {
    paced(look, "R12", |pace| pace == Pace::Ladder);
    if let (Some(dial), Some(_)) = (look.want.dial, look.step.dial())
        && !matches!(dial.why, Why::Wake { .. })
    {
        let until = look.after.hint_until;
        assert!(until.is_none_or(|until| until <= look.step.now), "R12: dialled before the hint is over, {until:?}");
    }
    if look.after.class == Some(FailureClass::RateLimited)
        && let (Some(before), Some(after)) =
            (look.machine.snapshot().state.next_dial(), look.step.after.state.next_dial())
        && matches!(look.step.input, Input::Connect { .. } | Input::Resumed { .. })
    {
        assert!(before == after, "R12: demand moved the dial of a rate-limited server from {before:?} to {after:?}");
    }
    if look.want.failure == Some(FailureClass::RateLimited) && look.before.parked.is_none() {
        parks(look, "R12");
    }
}

/// A proven session refunds, nothing else does; the loss of a Ready session that begins an outage is redialled at once.
pub(super) fn r13(look: &Look<'_>) {
    if look.want.failure.is_some() {
        paced(look, "R13", |_| true);
        parks(look, "R13");
    }
    let doublings = u32::from(look.step.after.probe_doublings);
    assert!(doublings == look.after.probes.min(255), "R13: {doublings} doublings, not {}", look.after.probes);
    if look.after.ladder == 0 && look.want.failure.is_none() && matches!(look.before.phase, Phase::Up { .. }) {
        let in_a_row = look.step.after.stats.failures_in_a_row;
        let kept = look.machine.snapshot().stats.failures_in_a_row;
        assert!(in_a_row == 0 || in_a_row == kept, "R13: {in_a_row} failures in a row after a proven session");
    }
}

/// No two dials closer than `min_dial_interval`, or `refused_interval` after one that nobody listened to; what callers
/// may bring forward.
pub(super) fn r14(look: &Look<'_>) {
    if let (Some(_), Some((_, last))) = (look.step.dial(), look.before.last) {
        let gap = look.step.now.since(last);
        let pace = Model { config: look.after.config, ..*look.before }.pace();
        assert!(gap >= pace, "R14: two dials {gap:?} apart, and not {pace:?}");
    }
    paced(look, "R14", |pace| matches!(pace, Pace::Caller | Pace::Ladder));
    dials(look, "R14", |pace| pace == Pace::Caller);
    if let (Input::Connect { .. }, false, None) = (look.step.input, look.before.heeds_callers(), look.step.dial())
        && let (Some(before), Some(after)) =
            (look.machine.snapshot().state.next_dial(), look.step.after.state.next_dial())
        && matches!(look.before.phase, Phase::Nothing)
    {
        assert!(before == after, "R14: a caller moved the dial of {:?}: {before:?}, {after:?}", look.before.parked);
    }
}

/// A start that times out doubles the next start deadline; what worked is kept.
pub(super) fn r15(look: &Look<'_>) {
    let timeout = look.step.after.start_timeout;
    let kept = look.after.start_timeout;
    assert!(timeout == kept, "R15: the start deadline is {timeout:?}, not {kept:?}");
    if let Some((_, timeout, _)) = look.step.dial() {
        assert!(timeout == kept, "R15: dialled with {timeout:?}, not {kept:?}");
    }
}

/// When the machine parks; `Withdraw` once, with the decision; `Publish` before its event.
pub(super) fn r16(look: &Look<'_>) {
    parks(look, "R16");
    let step = look.step;
    let withdrawn = step.out.iter().any(|output| output == Output::Withdraw);
    assert!(withdrawn == look.want.withdraw, "R16: withdrawn {withdrawn}, not {} in {step:?}", look.want.withdraw);
    let published = step.after.published;
    assert!(published == look.after.published, "R16: published {published}, not {}", look.after.published);
    if let (Phase::Nothing, Plan::Park, None) = (look.after.phase, look.after.plan, look.after.next) {
        let probe = step.after.state.next_dial();
        assert!(probe.is_none(), "R16: {:?} is probed at {probe:?}", look.after.parked);
    }
}

/// Probes; the status of a park episode; events when the status changes and only then.
pub(super) fn r17(look: &Look<'_>) {
    let step = look.step;
    paced(look, "R17", |pace| pace == Pace::Probe);
    dials(look, "R17", |pace| pace == Pace::Probe);
    if let (Some((.., interactive)), Some(dial)) = (step.dial(), look.want.dial) {
        let asked = dial.why == Why::Wake { operator: true };
        assert!(interactive == asked, "R17: a dial for {:?} is interactive: {interactive}", dial.why);
    }
    let (was, is) = (look.before.status, look.after.status);
    let expected = (was != is).then_some((is, look.after.class));
    assert!(step.status() == expected, "R17: the event is {:?}, not {expected:?}", step.status());
    assert!(step.after.status == is, "R17: the snapshot says {:?}, the last event {is:?}", step.after.status);
    let doublings = u32::from(step.after.probe_doublings);
    assert!(doublings == look.after.probes.min(255), "R17: {doublings} doublings, not {}", look.after.probes);
    parks(look, "R17");
}
