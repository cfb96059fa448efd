//! One function per rule: each panics with the rule's number and a sentence.

use crate::input::Input;
use crate::output::{Admission, CloseCause, Event, Output, Outputs, Refusal};
use crate::snapshot::Want;
use crate::state::{Liveness, ParkReason, State, Status};
use crate::time::Timestamp;

use super::checker::Look;
use super::model::{Pace, Phase, Plan, Sure, Why};

pub(super) const ALL: [fn(&Look<'_>); 24] = [
    r01, r02, r03, r04, r05, r06, r07, r08, r09, r10, r11, r12, r13, r14, r15, r16, r17, r18, r19, r20, r21, r22, r23,
    r24,
];

const fn epoch_of(input: Input) -> Option<crate::id::Epoch> {
    match input {
        Input::Reached { epoch, .. }
        | Input::Lost { epoch, .. }
        | Input::Gone { epoch, .. }
        | Input::Traffic { epoch, .. }
        | Input::NoReply { epoch, .. }
        | Input::PingUnsupported { epoch } => Some(epoch),
        Input::Tick | Input::Connect { .. } | Input::Wake(_) | Input::Park | Input::Shutdown | Input::Resumed => None,
    }
}

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
    if epoch_of(look.step.input).is_some_and(|epoch| look.before.phase.epoch() != Some(epoch)) {
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
    let at_most_once: [(&str, fn(Output) -> bool); 7] = [
        ("Dial", |output| matches!(output, Output::Dial { .. })),
        ("Close", |output| matches!(output, Output::Close { .. })),
        ("Ping", |output| matches!(output, Output::Ping { .. })),
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

/// The same inputs give the same outputs: compared by the checker, which keeps a second machine.
fn r04(_: &Look<'_>) {}

/// Nothing is stuck: a deadline in every state that waits, left when it passes; `Connect` and `Wake` dial.
fn r05(look: &Look<'_>) {
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
fn r06(look: &Look<'_>) {
    let Some((epoch, ..)) = look.step.dial() else { return };
    assert!(look.want.dial.is_some(), "R6: dialled {epoch:?} in {:?} by {:?}", look.before, look.step.input);
    assert!(
        look.before.last.is_none_or(|(last, _)| epoch > last),
        "R6: epoch {epoch:?} after {:?}",
        look.before.last
    );
    assert!(look.step.close().is_none(), "R6: dialled in the step that orders a close: {:?}", look.step.out);
}

/// A dial ends in its `Gone` or in the deadline of its one `Close`; the start deadline.
fn r07(look: &Look<'_>) {
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
fn r08(look: &Look<'_>) {
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
        if let Output::Admit(Admission::Go(epoch)) | Output::Publish { epoch } | Output::Ping { epoch } = output {
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
fn r09(look: &Look<'_>) {
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
fn r10(look: &Look<'_>) {
    let snapshot = look.step.after;
    let up = match look.after.phase {
        Phase::Up { epoch, .. } => Some(epoch),
        _ => None,
    };
    let newest = look.after.last.map_or(crate::id::Epoch::FIRST, |(epoch, _)| epoch);
    let older = crate::id::Epoch::new(newest.get() - 1).unwrap_or(newest);
    for than in [older, newest, newest.next()] {
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
fn r11(look: &Look<'_>) {
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
fn r12(look: &Look<'_>) {
    paced(look, "R12", |pace| pace == Pace::Ladder);
    if let (Some(dial), Some(_)) = (look.want.dial, look.step.dial())
        && !matches!(dial.why, Why::Wake { .. })
    {
        let until = look.after.hint_until;
        assert!(until.is_none_or(|until| until <= look.step.now), "R12: dialled before the hint is over, {until:?}");
    }
    if look.after.class == Some(crate::FailureClass::RateLimited)
        && let (Some(before), Some(after)) = (look.machine.snapshot().state.next_dial(), look.step.after.state.next_dial())
        && matches!(look.step.input, Input::Connect { .. } | Input::Resumed)
    {
        assert!(before == after, "R12: demand moved the dial of a rate-limited server from {before:?} to {after:?}");
    }
    if look.want.failure == Some(crate::FailureClass::RateLimited) && look.before.parked.is_none() {
        parks(look, "R12");
    }
}

/// A proven session refunds, nothing else does; the loss of a Ready session that begins an outage is redialled at once.
fn r13(look: &Look<'_>) {
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

/// No two dials closer than `min_dial_interval`; what callers may bring forward.
fn r14(look: &Look<'_>) {
    let config = &look.after.config;
    if let (Some(_), Some((_, last))) = (look.step.dial(), look.before.last) {
        let gap = look.step.now.since(last);
        assert!(gap >= config.min_dial_interval(), "R14: two dials {gap:?} apart");
    }
    paced(look, "R14", |pace| matches!(pace, Pace::Caller | Pace::Ladder));
    dials(look, "R14", |pace| pace == Pace::Caller);
    if let (Input::Connect { .. }, false, None) = (look.step.input, look.before.heeds_callers(), look.step.dial())
        && let (Some(before), Some(after)) = (look.machine.snapshot().state.next_dial(), look.step.after.state.next_dial())
        && matches!(look.before.phase, Phase::Nothing)
    {
        assert!(before == after, "R14: a caller moved the dial of {:?}: {before:?}, {after:?}", look.before.parked);
    }
}

/// A start that times out doubles the next start deadline; what worked is kept.
fn r15(look: &Look<'_>) {
    let timeout = look.step.after.start_timeout;
    let kept = look.after.start_timeout;
    assert!(timeout == kept, "R15: the start deadline is {timeout:?}, not {kept:?}");
    if let Some((_, timeout, _)) = look.step.dial() {
        assert!(timeout == kept, "R15: dialled with {timeout:?}, not {kept:?}");
    }
}

/// When the machine parks; `Withdraw` once, with the decision; `Publish` before its event.
fn r16(look: &Look<'_>) {
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
fn r17(look: &Look<'_>) {
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

/// `Resumed`: Ready sessions are asked, waits are taken as a caller's, and the outage clock starts again.
fn r18(look: &Look<'_>) {
    if look.want.failure.is_some() {
        parks(look, "R18");
    }
    if !matches!(look.step.input, Input::Resumed) {
        return;
    }
    match (look.before.phase, look.after.life) {
        (Phase::Up { .. }, Some(life)) if !look.before.pings.mute => {
            let by = look.step.now + look.after.config.redial_spread();
            let asked = match look.step.after.state {
                State::Ready { liveness: Liveness::Verify { ask_at, .. }, .. } => ask_at <= by,
                State::Ready { liveness: Liveness::Asked { since, missed, .. }, .. } => {
                    missed == 0 && since == look.step.now && look.step.ping()
                }
                _ => false,
            };
            assert!(asked, "R18: not asked by {by:?} after a suspend: {:?}, {life:?}", look.step);
        }
        (Phase::Up { .. } | Phase::Dialling { .. } | Phase::Closing { .. }, _) => {
            let mut machine = look.machine.clone();
            let tick = machine.handle(look.given, Input::Tick);
            let due = look.machine.next_timeout().is_some_and(|at| at <= look.step.now);
            assert!(due || tick == look.step.out, "R18: Resumed did something: {:?} in {:?}", look.step.out, look.before);
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
fn r19(look: &Look<'_>) {
    let step = look.step;
    let no_reply = matches!(step.input, Input::NoReply { .. });
    if !no_reply {
        let pinged = step.ping();
        let wanted = match look.want.ping {
            None => !pinged,
            Some(Sure::Must) => pinged,
            Some(Sure::May) => true,
        };
        assert!(wanted, "R19: pinged {pinged}, not {:?}: {:?}", look.want.ping, look.before.life);
    }
    if let Phase::Up { .. } = look.before.phase {
        let verdict = CloseCause::Failed(crate::FailureClass::Unresponsive);
        let given = step.close().is_some_and(|(_, cause)| cause == verdict);
        let lost = matches!(step.input, Input::Lost { .. });
        let due = look.want.close == Some(verdict);
        assert!(lost || given == due, "R19: verdict {given}, not {due}: {:?}", look.before.life);
    }
    if let (Some(life), State::Ready { liveness, .. }) = (look.after.life, step.after.state) {
        match (liveness, life.asked, life.ask) {
            (Liveness::Asked { deadline, .. }, Some(asked), _) => {
                assert!(deadline == asked.deadline, "R19: a ping is missed at {deadline:?}, not {asked:?}");
            }
            (Liveness::Quiet { ask_at } | Liveness::Verify { ask_at, .. }, None, Some((from, to))) => {
                assert!((from..=to).contains(&ask_at), "R19: asked at {ask_at:?}, not between {from:?} and {to:?}");
            }
            (Liveness::Off, None, None) => {}
            _ => panic!("R19: watched by {liveness:?}, not {life:?}"),
        }
    }
}

/// A call without a reply, and nothing heard since it was sent: ping now.
fn r20(look: &Look<'_>) {
    if let (Input::NoReply { epoch, .. }, Some(live)) = (look.step.input, look.before.phase.epoch())
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
fn r21(look: &Look<'_>) {
    let step = look.step;
    let changed = step.breaker();
    assert!(changed == look.want.breaker, "R21: the breaker changed to {changed:?}, not {:?}", look.want.breaker);
    let open = match step.after.breaker {
        crate::Breaker::Open { until } => Some(until),
        crate::Breaker::Closed { strikes } => {
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
pub(super) fn breaker_leaves_dialling_alone(one: &Outputs, other: &Outputs) {
    let orders = |output: &Output| !matches!(output, Output::Admit(_) | Output::Event(Event::BreakerChanged { .. }));
    let same = one.iter().filter(orders).eq(other.iter().filter(orders)) && one.wake_at() == other.wake_at();
    assert!(same, "R21: the breaker changed what is ordered: {one:?}, {other:?}");
}

/// `Connect` is answered by the state after its step, and the snapshot says the same.
fn r22(look: &Look<'_>) {
    let (step, want) = (look.step, look.want.admission);
    assert!(step.admission() == want, "R22: answered {:?}, not {want:?} in {:?}", step.admission(), step.after.state);
    if let (Input::Connect { until }, Some(got)) = (step.input, step.admission()) {
        let seen = step.after.admission(Want::Session, until);
        let one_let_through = matches!(seen, Admission::Refuse { why: Refusal::BreakerOpen, .. });
        assert!(seen == got || one_let_through, "R22: answered {got:?}, but the snapshot says {seen:?}");
    }
}

/// Shutdown is terminal, at once for the outside, and bounded.
fn r23(look: &Look<'_>) {
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
            Output::Dial { .. } | Output::Ping { .. } | Output::Publish { .. } | Output::Admit(_) | Output::Event(_) => {
                false
            }
        };
        assert!(allowed, "R23: {output:?} after Shutdown");
    }
    let live = matches!(look.before.phase, Phase::Dialling { .. } | Phase::Up { .. });
    assert!(!first || live == step.close().is_some(), "R23: the live epoch is closed, and only it: {step:?}");
}

/// Rest and renewal: put off by open calls and by use, and no failure.
fn r24(look: &Look<'_>) {
    let step = look.step;
    let closed = step.close().map(|(_, cause)| cause);
    let of = |cause: Option<CloseCause>| cause.filter(|cause| matches!(cause, CloseCause::Idle | CloseCause::Lifetime));
    assert!(of(closed) == of(look.want.close), "R24: closed for {closed:?}, not {:?}: {step:?}", look.want.close);
    if let (State::Ready { rest_at, renew_at, .. }, Some(life)) = (step.after.state, look.after.life) {
        assert!(rest_at == life.rest_at, "R24: put to rest at {rest_at:?}, not {:?}", life.rest_at);
        assert!(renew_at == life.renew_at, "R24: renewed at {renew_at:?}, not {:?}", life.renew_at);
    }
    if of(closed).is_some() {
        let failures = step.after.stats.failures - look.machine.snapshot().stats.failures;
        assert!(failures == 0, "R24: {closed:?} counted as a failure");
        assert!(!step.out.iter().any(|output| output == Output::Withdraw), "R24: withdrawn for {closed:?}");
        paced(look, "R24", |pace| pace == Pace::AtOnce);
    }
}
