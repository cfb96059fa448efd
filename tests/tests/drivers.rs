//! The example drivers play the same scripts, and their traces are the same, byte for byte: the files beside this one.
//!
//! No driver sleeps here. Under tokio the clock is paused; smol's driver has a virtual clock, moved when no task can
//! run; the driver on a thread is given a clock that hands over to the test whenever it waits; the poll loop is told.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::Duration;

use mcp_reconnect_core::{Config, Timestamp};
use mcp_reconnect_tests::drivers::{
    Answer, Deed, Happening, Machine, Message, SCENARIOS, Scenario, Scripted, Server, Trace, VirtualClock, Waiting,
    World,
};

#[expect(dead_code, reason = "main is the example's")]
#[path = "../examples/driver_poll.rs"]
mod driver_poll;
#[expect(dead_code, reason = "main and the real clock are the example's")]
#[path = "../examples/driver_smol.rs"]
mod driver_smol;
#[expect(dead_code, reason = "main and the real clock are the example's")]
#[path = "../examples/driver_threads.rs"]
mod driver_threads;
#[expect(dead_code, reason = "main is the example's")]
#[path = "../examples/driver_tokio.rs"]
mod driver_tokio;

/// A driver plays every script; compares its traces with the files. When the environment says `UPDATE=1`, the poll loop
/// writes them, and nothing is compared.
fn play(driver: &str, run: fn(&Scenario) -> String) {
    let mut wrong = Vec::new();
    for scenario in SCENARIOS {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/drivers/{}.txt", scenario.name));
        let is = run(scenario);
        if std::env::var_os("UPDATE").is_some_and(|set| set == "1") {
            if driver == "poll" {
                std::fs::write(&path, &is).expect("the folder of the traces is there");
            }
            continue;
        }
        let was = std::fs::read_to_string(&path).unwrap_or_default();
        if was != is {
            let same = was.lines().zip(is.lines()).take_while(|(was, is)| was == is).count();
            let line = |text: &str| text.lines().nth(same).unwrap_or("(ends)").to_owned();
            wrong.push(format!("{}:{}\n  file: {}\n  {driver}: {}", scenario.name, same + 1, line(&was), line(&is)));
        }
    }
    assert!(wrong.is_empty(), "{driver} goes another way in {}:\n{}", wrong.len(), wrong.join("\n"));
}

fn machine(scenario: &Scenario, trace: &Trace) -> Machine {
    let config = (scenario.knobs)(Config::builder()).build().expect("valid knobs");
    Machine::new(config, scenario.seed, Timestamp::ZERO, trace.clone())
}

#[test]
fn the_driver_on_tokio_gives_the_traces() {
    play("tokio", on_tokio);
}

fn on_tokio(scenario: &Scenario) -> String {
    use tokio::time::{Instant, sleep_until, timeout};

    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_time().start_paused(true).build().expect("a runtime");
    runtime.block_on(async {
        let (origin, trace) = (Instant::now(), Trace::default());
        let host = Server::new(scenario.dials, trace.clone(), move || Timestamp::from_origin(origin.elapsed()));
        let (inbox, messages) = tokio::sync::mpsc::unbounded_channel();
        let play = driver_tokio::player(host.clone(), inbox.clone());
        let driver = driver_tokio::Driver {
            machine: machine(scenario, &trace),
            transport: Box::new(Scripted::new(host.clone(), play)),
            host: host.clone(),
            origin,
            messages,
            waiting: Waiting::default(),
        };
        let (handle, driving) = (driver_tokio::Handle(inbox), tokio::spawn(driver.run()));
        let mut callers = tokio::task::JoinSet::new();
        for (millis, act) in scenario.acts {
            sleep_until(origin + Duration::from_millis(*millis)).await;
            match host.act(*act) {
                Some(Deed::Tell(input)) => handle.tell(input),
                Some(Deed::Ask(want, patience)) => {
                    let (number, handle, trace) = (callers.len() + 1, handle.clone(), trace.clone());
                    callers.spawn(async move {
                        let answer = handle.session(want, patience).await;
                        trace.answered(Timestamp::from_origin(origin.elapsed()), number, answer);
                    });
                }
                None => {}
            }
        }
        timeout(Duration::from_secs(60), driving).await.expect("it ends").expect("it does not panic");
        callers.join_all().await;
        trace.text()
    })
}

#[test]
fn the_driver_on_smol_gives_the_traces() {
    play("smol", on_smol);
}

impl driver_smol::Clock for VirtualClock {
    fn now(&self) -> Timestamp {
        self.now()
    }

    fn sleep_until(&self, at: Timestamp) -> impl Future<Output = ()> + Send {
        self.sleep_until(at)
    }
}

fn on_smol(scenario: &Scenario) -> String {
    let (clock, trace, executor) = (VirtualClock::default(), Trace::default(), Arc::new(smol::Executor::new()));
    let now = clock.clone();
    let host = Server::new(scenario.dials, trace.clone(), move || now.now());
    let (inbox, messages) = smol::channel::unbounded();
    let play = driver_smol::player(host.clone(), inbox.clone(), executor.clone(), clock.clone());
    let driver = driver_smol::Driver {
        machine: machine(scenario, &trace),
        transport: Box::new(Scripted::new(host.clone(), play)),
        host: host.clone(),
        clock: clock.clone(),
        messages,
        waiting: Waiting::default(),
    };
    let (handle, driving) = (driver_smol::Handle(inbox), executor.spawn(driver.run()));
    let (acts, spawner, time, told) = (scenario.acts, executor.clone(), clock.clone(), trace.clone());
    let script = executor.spawn(async move {
        let mut callers = Vec::new();
        for (millis, act) in acts {
            time.sleep_until(Timestamp::from_origin(Duration::from_millis(*millis))).await;
            match host.act(*act) {
                Some(Deed::Tell(input)) => handle.tell(input),
                Some(Deed::Ask(want, patience)) => {
                    let (number, handle, told, time) = (callers.len() + 1, handle.clone(), told.clone(), time.clone());
                    callers.push(spawner.spawn(async move {
                        let answer = handle.session(want, patience).await;
                        told.answered(time.now(), number, answer);
                    }));
                }
                None => {}
            }
        }
        driving.await;
        for caller in callers {
            caller.await;
        }
    });
    loop {
        // Whatever can run does, and only then does time move.
        while executor.try_tick() {}
        if script.is_finished() {
            return trace.text();
        }
        assert!(clock.advance(), "{}: nothing will ever happen", scenario.name);
    }
}

#[test]
fn the_driver_on_a_thread_gives_the_traces() {
    play("threads", on_a_thread);
}

/// Hands over to the test when the driver waits, and goes on when the test says how.
struct HandOver {
    clock: VirtualClock,
    waits: Sender<Option<Timestamp>>,
    /// Whether there is a message; if not, the time has come.
    goes_on: Receiver<bool>,
}

impl driver_threads::Clock for HandOver {
    fn now(&self) -> Timestamp {
        self.clock.now()
    }

    fn wait(&self, messages: &Receiver<Message>, until: Option<Timestamp>) -> Option<Message> {
        self.waits.send(until).expect("the test is there");
        self.goes_on.recv().expect("the test is there").then(|| messages.recv().expect("there is a message"))
    }
}

fn on_a_thread(scenario: &Scenario) -> String {
    let (clock, trace) = (VirtualClock::default(), Trace::default());
    let now = clock.clone();
    let host = Server::new(scenario.dials, trace.clone(), move || now.now());
    let (plan, plans) = mpsc::channel();
    let (waits, waiting) = mpsc::channel();
    let (go_on, goes_on) = mpsc::channel();
    let (inbox, messages) = mpsc::channel();
    let handle = driver_threads::Handle(inbox);
    let driver = driver_threads::Driver {
        machine: machine(scenario, &trace),
        transport: Box::new(Scripted::new(host.clone(), move |it| plan.send(it).expect("the test is there"))),
        host: host.clone(),
        clock: HandOver { clock: clock.clone(), waits, goes_on },
        messages,
        waiting: Waiting::default(),
    };
    let driving = thread::spawn(|| driver.run());
    let mut world = World::new(clock.clone(), host, scenario.acts);
    let mut callers: Vec<Receiver<Answer>> = Vec::new();
    let told = |callers: &[Receiver<Answer>]| {
        for (caller, number) in callers.iter().zip(1..) {
            caller.try_iter().for_each(|answer| trace.answered(clock.now(), number, answer));
        }
    };
    // What the driver did in a turn it did before it waits again.
    while let Ok(timer) = waiting.recv() {
        told(&callers);
        plans.try_iter().for_each(|plan| world.plan(plan));
        let is_message = loop {
            match world.next(timer).expect("something will happen") {
                Happening::Report(input) | Happening::Deed(Deed::Tell(input)) => handle.tell(input),
                Happening::Deed(Deed::Ask(want, patience)) => callers.push(handle.ask(want, patience)),
                Happening::Due => break false,
                Happening::Unseen => continue,
            }
            break true;
        };
        go_on.send(is_message).expect("the driver waits");
    }
    driving.join().expect("the driver does not panic");
    told(&callers);
    trace.text()
}

#[test]
fn the_driver_without_an_executor_gives_the_traces() {
    play("poll", in_a_loop);
}

fn in_a_loop(scenario: &Scenario) -> String {
    let (clock, trace) = (VirtualClock::default(), Trace::default());
    let now = clock.clone();
    let host = Server::new(scenario.dials, trace.clone(), move || now.now());
    let (plan, plans) = mpsc::channel();
    let mut driver = driver_poll::Driver {
        machine: machine(scenario, &trace),
        transport: Box::new(Scripted::new(host.clone(), move |it| plan.send(it).expect("the test is there"))),
        host: host.clone(),
        waiting: Waiting::default(),
    };
    let mut world = World::new(clock.clone(), host, scenario.acts);
    let mut callers = 0;
    while !driver.is_over() {
        plans.try_iter().for_each(|plan| world.plan(plan));
        let message = match world.next(driver.due()).expect("something will happen") {
            Happening::Report(input) | Happening::Deed(Deed::Tell(input)) => Some(Message::Tell(input)),
            Happening::Deed(Deed::Ask(want, patience)) => {
                callers += 1;
                let (number, trace, clock) = (callers, trace.clone(), clock.clone());
                let reply = move |answer| trace.answered(clock.now(), number, answer);
                Some(Message::Ask(want, patience, Box::new(reply)))
            }
            Happening::Due => None,
            Happening::Unseen => continue,
        };
        driver.poll(clock.now(), message);
    }
    trace.text()
}

#[test]
fn the_scripts_give_every_input_and_every_order() {
    let all: String = SCENARIOS.iter().map(in_a_loop).collect();
    let inputs = ["Tick", "Connect", "Wake", "Park", "Shutdown", "Resumed", "Reached", "Lost", "Gone", "Traffic"];
    let newer = ["NoReply", "PingUnsupported", "Retune", "Pong", "Listed", "Renew", "ServerChanged", "Silence"];
    let inputs = inputs.into_iter().chain(newer).map(|input| format!("< {input}"));
    let orders = ["Dial", "Close", "Ping", "Publish", "Withdraw", "Admit(Go", "Admit(Wait", "Admit(Refuse"];
    let orders = orders.into_iter().chain(["Ask", "Event(StatusChanged", "Event(BreakerChanged"]);
    let missing: Vec<_> =
        inputs.chain(orders.map(|order| format!("> {order}"))).filter(|what| !all.contains(what)).collect();
    assert!(missing.is_empty(), "no script gives {missing:?}");
}
