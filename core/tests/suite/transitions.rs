//! Every sample state × every input, as a table and a diagram in `docs/transitions.md`.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use mcp_reconnect_core::{
    Admission, Config, ConnectionMachine, Epoch, Event, FailureClass, Input, Liveness, Output, Outputs, ReadyFlag,
    ReadyFlags, Refusal, State, Status, Then, Timestamp, WakeCause,
};

use crate::golden;

/// A machine in some state, and the time that it is there.
struct Sample {
    name: &'static str,
    machine: ConnectionMachine,
    now: Timestamp,
}

impl Sample {
    fn new(name: &'static str) -> Self {
        let idle = Some(Duration::from_secs(300));
        let config = Config::builder().idle_timeout(idle).build().expect("the defaults and 300 s are valid");
        Self { name, machine: ConnectionMachine::new(config, 1, Timestamp::ZERO), now: Timestamp::ZERO }
    }

    fn named(mut self, name: &'static str) -> Self {
        self.name = name;
        self
    }

    fn give(mut self, input: Input) -> Self {
        let _orders = self.machine.handle(self.now, input);
        self
    }

    fn after(mut self, seconds: u64) -> Self {
        self.now = self.now + Duration::from_secs(seconds);
        self
    }

    fn due(mut self) -> Self {
        self.now = self.machine.next_timeout().expect("the sample has a deadline");
        self.give(Input::Tick)
    }

    fn live(&self) -> Epoch {
        self.machine.snapshot().state.live_epoch().unwrap_or(Epoch::FIRST)
    }

    fn connecting(name: &'static str) -> Self {
        let now = Timestamp::ZERO;
        Self::new(name).give(Input::Connect { until: now })
    }

    fn reach(self, flags: usize) -> Self {
        let epoch = self.live();
        ReadyFlags::ALL.into_iter().take(flags).fold(self, |sample, flag| sample.give(Input::Reached { epoch, flag }))
    }

    fn ready(name: &'static str) -> Self {
        Self::connecting(name).after(1).reach(4)
    }

    fn lost(self, class: FailureClass) -> Self {
        let epoch = self.live();
        self.give(Input::Lost { epoch, failure: class.into() })
    }

    fn gone(self, class: FailureClass) -> Self {
        let epoch = self.live();
        self.give(Input::Gone { epoch, failure: class.into() })
    }
}

fn samples() -> Vec<Sample> {
    let mut exhausted = Sample::connecting("Parked(Exhausted)");
    for _ in 0..20 {
        if let State::Parked { .. } = exhausted.machine.snapshot().state {
            break;
        }
        exhausted = exhausted.after(6).gone(FailureClass::Transport);
        if let State::TransientFailure { .. } = exhausted.machine.snapshot().state {
            exhausted = exhausted.due();
        }
    }
    let strikes = |sample: Sample| {
        (0..5).fold(sample, |sample, _| {
            let (epoch, sent) = (sample.live(), sample.now);
            sample.give(Input::NoReply { epoch, sent })
        })
    };
    let unsupported = Sample::ready("Ready, without pings");
    let epoch = unsupported.live();
    vec![
        Sample::new("Idle"),
        Sample::connecting("Connecting, queued"),
        Sample::connecting("Connecting, started, one flag missing").reach(3).after(2),
        Sample::ready("Ready, unproven").after(1),
        Sample::ready("Ready, proven").after(21),
        Sample::ready("Ready, ping outstanding").due(),
        Sample::ready("Ready, asked to list").due().due().due(),
        unsupported.give(Input::PingUnsupported { epoch }),
        strikes(Sample::ready("Ready, breaker open")),
        Sample::ready("Closing then Retry").after(21).lost(FailureClass::Transport),
        Sample::ready("Closing then Park(Requested)").give(Input::Park),
        Sample::connecting("Closing then Park(NeedsAuth)").lost(FailureClass::NeedsAuth),
        {
            let mut idle = Sample::ready("Closing then Rest (idle_timeout)");
            for _ in 0..20 {
                if let State::Closing { .. } = idle.machine.snapshot().state {
                    break;
                }
                idle.now = idle.machine.next_timeout().expect("a session is watched");
                let traffic = traffic(idle.live(), idle.now, false, None);
                idle = idle.give(traffic).give(Input::Tick);
            }
            idle
        },
        Sample::ready("Closing then Shutdown").give(Input::Shutdown),
        Sample::connecting("TransientFailure").after(2).gone(FailureClass::Transport),
        exhausted,
        Sample::connecting("Parked(Permanent)").after(2).gone(FailureClass::Permanent),
        Sample::connecting("Parked(NeedsAuth)").after(2).gone(FailureClass::NeedsAuth),
        Sample::new("").give(Input::Park).named("Parked(Requested)"),
        Sample::new("Shutdown").give(Input::Shutdown),
    ]
}

const fn traffic(epoch: Epoch, inbound: Timestamp, answered: bool, oldest: Option<Timestamp>) -> Input {
    Input::Traffic { epoch, inbound, answered, served: answered, answered_to: None, oldest }
}

fn inputs(sample: &Sample) -> Vec<(&'static str, Input)> {
    let (now, epoch) = (sample.now, sample.live());
    let slow = Config::builder().min_dial_interval(Duration::from_secs(5)).backoff(Duration::from_secs(10));
    let slow = slow.build().expect("a slower pace is valid");
    let mut inputs = vec![
        ("Connect", Input::Connect { until: now + Duration::from_secs(30) }),
        ("Wake(Operator)", Input::Wake(WakeCause::Operator)),
        ("Wake(Credentials)", Input::Wake(WakeCause::Credentials)),
        ("Park", Input::Park),
        ("Shutdown", Input::Shutdown),
        ("Resumed", Input::Resumed { by_call: false }),
        ("Retune(no idle_timeout, min_dial_interval 5 s)", Input::Retune(slow)),
    ];
    if sample.machine.snapshot().state.live_epoch().is_none() {
        return inputs;
    }
    let lost = |class: FailureClass| Input::Lost { epoch, failure: class.into() };
    let gone = |class: FailureClass| Input::Gone { epoch, failure: class.into() };
    let earlier = Timestamp::from_nanos(now.as_nanos().saturating_sub(1_000_000_000));
    inputs.extend([
        ("Reached(Started)", Input::Reached { epoch, flag: ReadyFlag::Started }),
        ("Reached(Catalogue)", Input::Reached { epoch, flag: ReadyFlag::Catalogue }),
        ("Lost(Transport)", lost(FailureClass::Transport)),
        ("Lost(SessionGone)", lost(FailureClass::SessionGone)),
        ("Lost(RateLimited)", lost(FailureClass::RateLimited)),
        ("Lost(NeedsAuth)", lost(FailureClass::NeedsAuth)),
        ("Lost(Permanent)", lost(FailureClass::Permanent)),
        ("Gone(Transport)", gone(FailureClass::Transport)),
        ("Lost(Refused)", lost(FailureClass::Refused)),
        ("Lost(Unauthorized)", lost(FailureClass::Unauthorized)),
        ("Gone(Refused)", gone(FailureClass::Refused)),
        ("Gone(NeedsAuth)", gone(FailureClass::NeedsAuth)),
        ("Traffic(inbound now)", traffic(epoch, now, false, None)),
        ("Traffic(an older call open)", traffic(epoch, Timestamp::ZERO, false, Some(earlier))),
        ("Traffic(answered)", traffic(epoch, now, true, None)),
        ("NoReply", Input::NoReply { epoch, sent: now }),
        ("Silence", Input::Silence { epoch, sent: now }),
        ("PingUnsupported", Input::PingUnsupported { epoch }),
        ("Pong", Input::Pong { epoch }),
        ("Listed", Input::Listed { epoch, took: Duration::from_secs(1) }),
        ("Renew", Input::Renew { epoch }),
        ("ServerChanged", Input::ServerChanged { epoch }),
    ]);
    inputs
}

fn seconds(now: Timestamp, at: Timestamp) -> String {
    if at <= now { "now".into() } else { format!("+{:.1}", at.since(now).as_secs_f64()) }
}

fn state(machine: &ConnectionMachine, now: Timestamp) -> String {
    let snapshot = machine.snapshot();
    let reason = match snapshot.status {
        Status::Parked(reason) => format!("{reason:?}"),
        _ => "no park".into(),
    };
    match snapshot.state {
        State::Idle => "Idle".into(),
        State::Connecting { deadline, ready, .. } => {
            let queued = if ready.is_empty() { ".queued" } else { "" };
            format!("Connecting{queued}({})", seconds(now, deadline))
        }
        State::Ready { liveness: Liveness::Quiet { ask_at } | Liveness::Verify { ask_at, .. }, .. } => {
            format!("Ready(ask {})", seconds(now, ask_at))
        }
        State::Ready { liveness: Liveness::Asked { deadline, missed, .. }, .. } => {
            format!("Ready(asked, {missed} missed, {})", seconds(now, deadline))
        }
        State::Ready { liveness: Liveness::Listing { deadline, .. }, .. } => {
            format!("Ready(asked to list, {})", seconds(now, deadline))
        }
        State::Closing { deadline, then, .. } => {
            let then = match then {
                Then::Retry { at } => format!("Retry({})", seconds(now, at)),
                Then::Park => format!("Park({reason})"),
                Then::Rest => "Rest".into(),
                Then::Shutdown => "Shutdown".into(),
            };
            format!("Closing({}) then {then}", seconds(now, deadline))
        }
        State::TransientFailure { retry_at } => format!("TransientFailure({})", seconds(now, retry_at)),
        State::Parked { probe_at } => {
            let probe = probe_at.map_or_else(|| "no probe".into(), |at| seconds(now, at));
            format!("Parked({reason}, {probe})")
        }
        State::Shutdown => "Shutdown".into(),
    }
}

fn kind(machine: &ConnectionMachine) -> &'static str {
    match machine.snapshot().state {
        State::Idle => "Idle",
        State::Connecting { .. } => "Connecting",
        State::Ready { .. } => "Ready",
        State::Closing { .. } => "Closing",
        State::TransientFailure { .. } => "TransientFailure",
        State::Parked { .. } => "Parked",
        State::Shutdown => "Shutdown",
    }
}

/// The orders, and the status event.
fn told(out: Outputs) -> (String, String) {
    let (mut orders, mut event) = (Vec::new(), String::new());
    for output in out {
        match output {
            Output::Dial { timeout, interactive, .. } => {
                let interactive = if interactive { ", interactive" } else { "" };
                orders.push(format!("Dial({} s{interactive})", timeout.as_secs()));
            }
            Output::Close { cause, .. } => orders.push(format!("Close({cause:?})")),
            Output::Ping { .. } => orders.push("Ping".into()),
            Output::Ask { .. } => orders.push("Ask".into()),
            Output::Publish { .. } => orders.push("Publish".into()),
            Output::Withdraw => orders.push("Withdraw".into()),
            Output::Admit(Admission::Go(_)) => orders.push("Go".into()),
            Output::Admit(Admission::Wait { .. }) => orders.push("Wait".into()),
            Output::Admit(Admission::Refuse { why: Refusal::Parked(reason), .. }) => {
                orders.push(format!("Refuse(Parked({reason:?}))"));
            }
            Output::Admit(Admission::Refuse { why, .. }) => orders.push(format!("Refuse({why:?})")),
            Output::Event(Event::StatusChanged { status: Status::Ready(_), .. }) => event = "Ready".into(),
            Output::Event(Event::StatusChanged { status, .. }) => event = format!("{status:?}"),
            Output::Event(Event::BreakerChanged { open_until: None }) => orders.push("breaker closes".into()),
            Output::Event(_) => orders.push("breaker opens".into()),
        }
    }
    (orders.join(", "), event)
}

type Edges = BTreeMap<(&'static str, &'static str), BTreeSet<&'static str>>;

fn row(sample: &Sample, name: &'static str, at: Timestamp, input: Input, table: &mut String, edges: &mut Edges) {
    let mut machine = sample.machine.clone();
    let (orders, event) = told(machine.handle(at, input));
    let mut ticked = sample.machine.clone();
    let _nothing = ticked.handle(at, Input::Tick);
    let unchanged = machine.snapshot().state == sample.machine.snapshot().state;
    let next = match (unchanged, input) {
        (true, Input::Wake(_)) if machine != ticked => "= (remembered)".into(),
        (true, _) => "=".into(),
        (false, _) => state(&machine, at),
    };
    let short = name.split('(').next().unwrap_or(name);
    if kind(&sample.machine) != kind(&machine) {
        edges.entry((kind(&sample.machine), kind(&machine))).or_default().insert(short);
    }
    table.push_str(&format!("| {name} | {next} | {orders} | {event} |\n"));
}

#[test]
fn transitions_are_as_documented() {
    let mut table = String::new();
    let mut edges = Edges::new();
    for sample in samples() {
        table.push_str(&format!("\n## {}: {}\n\n", sample.name, state(&sample.machine, sample.now)));
        table.push_str("| input | next state | orders, in order | status event |\n|---|---|---|---|\n");
        row(&sample, "Tick, early", sample.now, Input::Tick, &mut table, &mut edges);
        if let Some(due) = sample.machine.next_timeout() {
            row(&sample, "Tick, timer due", due, Input::Tick, &mut table, &mut edges);
        }
        for (name, input) in inputs(&sample) {
            row(&sample, name, sample.now, input, &mut table, &mut edges);
        }
    }
    let mut text = String::from(
        "# What each input does in each state\n\nGenerated by the test `transitions_are_as_documented`, with default knobs and an `idle_timeout` of 300 s. Times\nare seconds from the input. `=`: no change of state. A report with any other epoch than the live one is a `Tick`.\n\n```mermaid\nstateDiagram-v2\n    [*] --> Idle\n",
    );
    for ((from, to), inputs) in edges {
        let inputs: Vec<_> = inputs.into_iter().map(|input| input.replace("Tick, timer due", "deadline")).collect();
        text.push_str(&format!("    {from} --> {to}: {}\n", inputs.join(", ")));
    }
    text.push_str("```\n");
    text.push_str(&table);
    golden::compare("docs/transitions.md", &text);
}
