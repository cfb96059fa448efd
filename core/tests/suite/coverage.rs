//! Coverage of the walks: a property is worth no more than the states that its walks come through.

use std::collections::BTreeMap;

use mcp_reconnect_checker::{Checker, Rules, Walk};
use mcp_reconnect_core::{Breaker, Event, Input, Liveness, Output, State, Status, Then};

const WALKS: u64 = 4_000;
const STEPS: usize = 80;

/// SplitMix64: the same walks every time.
struct Words(u64);

impl Words {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

const fn state(state: &State) -> &'static str {
    match state {
        State::Idle => "Idle",
        State::Connecting { ready, .. } if ready.is_empty() => "Connecting, queued",
        State::Connecting { .. } => "Connecting, started",
        State::Ready { liveness: Liveness::Quiet { .. }, .. } => "Ready, quiet",
        State::Ready { liveness: Liveness::Verify { .. }, .. } => "Ready, after a suspend",
        State::Ready { liveness: Liveness::Asked { .. }, .. } => "Ready, asked",
        State::Ready { liveness: Liveness::Listing { .. }, .. } => "Ready, asked to list",
        State::Closing { then: Then::Retry { .. }, .. } => "Closing, then Retry",
        State::Closing { then: Then::Park, .. } => "Closing, then Park",
        State::Closing { then: Then::Rest, .. } => "Closing, then Rest",
        State::Closing { then: Then::Shutdown, .. } => "Closing, then Shutdown",
        State::TransientFailure { .. } => "TransientFailure",
        State::Parked { probe_at: Some(_) } => "Parked, probed",
        State::Parked { probe_at: None } => "Parked, not probed",
        State::Shutdown => "Shutdown",
    }
}

const fn input(input: &Input) -> &'static str {
    match input {
        Input::Tick => "Tick",
        Input::Connect { .. } => "Connect",
        Input::Wake(_) => "Wake",
        Input::Park => "Park",
        Input::Shutdown => "Shutdown",
        Input::Retune(_) => "Retune",
        Input::Resumed { .. } => "Resumed",
        Input::Reached { .. } => "Reached",
        Input::Lost { .. } => "Lost",
        Input::Gone { .. } => "Gone",
        Input::Traffic { .. } => "Traffic",
        Input::NoReply { .. } => "NoReply",
        Input::Silence { .. } => "Silence",
        Input::Pong { .. } => "Pong",
        Input::Listed { .. } => "Listed",
        Input::Renew { .. } => "Renew",
        Input::ServerChanged { .. } => "ServerChanged",
        Input::PingUnsupported { .. } => "PingUnsupported",
    }
}

fn status_name(status: &Status) -> String {
    match status {
        Status::Ready(_) => status.as_str().into(),
        Status::Idle | Status::Connecting | Status::TransientFailure | Status::Parked(_) | Status::Shutdown => {
            status.to_string()
        }
    }
}

/// Counts of what honest or adversarial walks come through.
fn reached(honest: bool) -> BTreeMap<String, u32> {
    let mut words = Words(7);
    let mut counts = BTreeMap::new();
    for _ in 0..WALKS {
        let bytes: Vec<u8> = (0..3 + STEPS).flat_map(|_| words.next().to_le_bytes()).collect();
        let mut walk = Walk::new(&bytes).honest(honest);
        let mut checker = Checker::new(walk.config(), walk.seed(), walk.start(), Rules::ALL);
        while let Some((now, next)) = walk.step(checker.machine()) {
            let before = checker.machine().snapshot();
            *counts.entry(format!("state: {}", state(&before.state))).or_default() += 1;
            *counts.entry(format!("input: {}", input(&next))).or_default() += 1;
            *counts.entry(format!("pair: {} in {}", input(&next), state(&before.state))).or_default() += 1;
            if let Breaker::Open { .. } = before.breaker {
                *counts.entry("breaker open".into()).or_default() += 1;
            }
            for output in checker.step(now, next) {
                let name = match output {
                    Output::Dial { .. } => "Dial".into(),
                    Output::Close { cause, .. } => format!("Close {cause:?}"),
                    Output::Ping { .. } => "Ping".into(),
                    Output::Ask { .. } => "Ask".into(),
                    Output::Publish { .. } => "Publish".into(),
                    Output::Withdraw => "Withdraw".into(),
                    Output::Admit(admission) => format!("{admission:?}").split([' ', '(']).take(1).collect(),
                    Output::Event(Event::StatusChanged { status, .. }) => {
                        format!("status {}", status_name(&status))
                    }
                    Output::Event(Event::BreakerChanged { open_until: None }) => "breaker closes".into(),
                    Output::Event(_) => "breaker opens".into(),
                };
                *counts.entry(format!("output: {name}")).or_default() += 1;
            }
        }
    }
    counts
}

fn at_least(counts: &BTreeMap<String, u32>, least: u32, names: &[&str]) {
    for name in names {
        let count = counts.get(*name).copied().unwrap_or(0);
        assert!(count >= least, "`{name}` was reached {count} times, fewer than {least}");
    }
}

/// The numbers are printed: `cargo test -p mcp-reconnect-core --test suite coverage -- --nocapture`.
#[test]
fn walks_reach_every_state_and_input() {
    for honest in [true, false] {
        let counts = reached(honest);
        println!("honest: {honest}");
        for (name, count) in counts.iter().filter(|(name, _)| !name.starts_with("pair")) {
            println!("{count:>8}  {name}");
        }
        let states = [
            "state: Idle",
            "state: Connecting, queued",
            "state: Connecting, started",
            "state: Ready, quiet",
            "state: Ready, after a suspend",
            "state: Ready, asked",
            "state: Ready, asked to list",
            "state: Closing, then Retry",
            "state: Closing, then Park",
            "state: Closing, then Rest",
            "state: TransientFailure",
            "state: Parked, probed",
            "state: Parked, not probed",
            "breaker open",
        ];
        at_least(&counts, 400, &states);
        at_least(&counts, 100, &["state: Closing, then Shutdown", "state: Shutdown"]);
        let inputs = [
            "input: Tick",
            "input: Connect",
            "input: Wake",
            "input: Park",
            "input: Resumed",
            "input: Reached",
            "input: Lost",
            "input: Gone",
            "input: Traffic",
            "input: NoReply",
            "input: Silence",
            "input: Pong",
            "input: Listed",
            "input: Renew",
            "input: ServerChanged",
            "input: PingUnsupported",
            "input: Retune",
        ];
        at_least(&counts, 500, &inputs);
        at_least(&counts, 50, &["input: Shutdown"]);
        let outputs = [
            "output: Dial",
            "output: Publish",
            "output: Withdraw",
            "output: Ping",
            "output: Ask",
            "output: Close Idle",
            "output: Close Lifetime",
            "output: Close Parked",
            "output: Close Failed(Unresponsive)",
            "output: Close Failed(StartTimeout)",
            "output: breaker opens",
            "output: breaker closes",
            "output: Go",
            "output: Wait",
            "output: Refuse",
            "output: status PARKED(exhausted)",
            "output: status PARKED(flapping)",
            "output: status PARKED(permanent)",
            "output: status PARKED(needs_auth)",
            "output: status PARKED(requested)",
        ];
        at_least(&counts, 100, &outputs);
        if !honest {
            let pairs = counts.keys().filter(|name| name.starts_with("pair")).count();
            assert!(pairs >= 250, "only {pairs} of 270 pairs of an input and a state were reached");
        }
    }
}
