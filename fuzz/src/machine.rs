//! The machine under inputs that are drawn from bytes.

use mcp_reconnect_checker::{Checker, Rules, Walk};
use mcp_reconnect_core::{ConnectionMachine, Input, Outputs, Timestamp, WakeCause};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// A configuration and a walk under it: every rule holds at every step.
///
/// The first 24 bytes are the configuration, the seed and the mode; each eight more are a step.
pub fn machine(data: &[u8]) {
    let mut walk = Walk::new(data);
    let mut checker = Checker::new(walk.config(), walk.seed(), walk.start(), Rules::ALL);
    while let Some((now, input)) = walk.step(checker.machine()) {
        let _checked = checker.step(now, input);
    }
}

/// Two machines on one walk stay equal, though all that the second is given went through JSON; and so do two that go on
/// from what either remembers.
///
/// The bytes are those of [`machine`].
pub fn machines(data: &[u8]) {
    let mut walk = Walk::new(data);
    let (config, seed) = (walk.config(), walk.seed());
    let mut now = walk.start();
    let mut one = ConnectionMachine::new(config, seed, now);
    let mut two = ConnectionMachine::new(again(&config), again(&seed), again(&now));
    while let Some((at, input)) = walk.step(&one) {
        now = now.max(at.min(Timestamp::MAX));
        same_step(&mut one, &mut two, at, now, input);
    }

    let memory = one.snapshot().memory(now);
    let mut one = ConnectionMachine::restore(config, seed, now, memory);
    let mut two = ConnectionMachine::restore(config, seed, now, again(&memory));
    assert_eq!(one, two, "restored from {memory:?}");
    for input in [Input::Connect { until: now }, Input::Wake(WakeCause::Operator), Input::Tick] {
        same_step(&mut one, &mut two, now, now, input);
        now = one.next_timeout().unwrap_or(now).min(Timestamp::MAX);
    }
    assert!(one.snapshot().state.live_epoch().is_some() || now >= Timestamp::MAX, "{memory:?} is stuck: {one:?}");
}

fn same_step(one: &mut ConnectionMachine, two: &mut ConnectionMachine, at: Timestamp, now: Timestamp, input: Input) {
    let (first, second) = (one.handle(at, input), two.handle(again(&at), again(&input)));
    assert_eq!(first, second, "{input:?} at {at:?}");
    assert_eq!(one, two, "after {input:?} at {at:?}");
    well_formed(&first, now);
    let (snapshot, same) = (one.snapshot(), again(&two.snapshot()));
    assert_eq!(snapshot, same, "a snapshot is what it was");
    assert_eq!(snapshot.memory(now), same.memory(now), "and remembers the same");
}

fn well_formed(outputs: &Outputs, now: Timestamp) {
    assert!(outputs.wake_at().is_none_or(|at| at > now), "{:?} is not after {now:?}", outputs.wake_at());
    for output in outputs.iter() {
        assert_eq!(output, again(&output), "an output is what it was");
    }
}

/// What comes back from JSON.
fn again<T: Serialize + DeserializeOwned>(value: &T) -> T {
    let text = serde_json::to_string(value).expect("data");
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}
