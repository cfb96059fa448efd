//! The text scenarios: `tests/scenarios/*.txt`.
//!
//! A line is a comment (`# …`), a knob (`knob park_after 5s`), the server's behaviour from the next dial on
//! (`server refuses`), or an input and its time (`t=30s lost transport`, `t=1h` to let time pass). The lines after it
//! that begin with `|` are what happened up to and including it; `UPDATE=1` writes them.

use std::time::Duration;

use mcp_reconnect_core::{Config, ConfigBuilder, Failure, FailureClass, Input, Timestamp, WakeCause};

use crate::golden;
use crate::sim::{HEALTHY, Life, REFUSES, Server, Sim};

fn duration(text: &str) -> Duration {
    let end = text.find(|digit: char| !digit.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let number: u64 = number.parse().unwrap_or_else(|_| panic!("not a time: {text}"));
    match unit {
        "ms" => Duration::from_millis(number),
        "s" => Duration::from_secs(number),
        "m" => Duration::from_secs(60 * number),
        "h" => Duration::from_secs(3_600 * number),
        _ => panic!("not a time: {text}"),
    }
}

fn class(text: &str) -> FailureClass {
    match text {
        "transport" => FailureClass::Transport,
        "session-gone" => FailureClass::SessionGone,
        "rate-limited" => FailureClass::RateLimited,
        "needs-auth" => FailureClass::NeedsAuth,
        "permanent" => FailureClass::Permanent,
        _ => panic!("no class of failure: {text}"),
    }
}

fn failure(words: &[&str]) -> Failure {
    Failure { class: class(words[0]), retry_after: words.get(1).map(|hint| duration(hint)) }
}

fn server(words: &[&str]) -> Server {
    let soon = Duration::from_millis(10);
    match words {
        ["healthy"] => HEALTHY,
        ["deaf"] => Server::Up(soon, Life::Deaf),
        ["no-pings"] => Server::Up(soon, Life::NoPings),
        ["no-pongs"] => Server::Up(soon, Life::NoPongs(soon)),
        ["silent"] => Server::Silent,
        ["refuses"] => REFUSES,
        ["refuses", failed @ ..] => Server::Refuses(soon, failure(failed)),
        ["accepts-then-closes", up] => Server::Up(soon, Life::Ends(duration(up), FailureClass::Transport)),
        _ => panic!("no such server: {words:?}"),
    }
}

fn knob(builder: ConfigBuilder, name: &str, value: &str) -> ConfigBuilder {
    let value = duration(value);
    match name {
        "redial_spread" => builder.redial_spread(value),
        "idle_timeout" => builder.idle_timeout(Some(value)),
        "max_lifetime" => builder.max_lifetime(Some(value)),
        "connect_timeout" => builder.connect_timeout(value),
        "park_after" => builder.park_after(value),
        _ => panic!("no such knob here: {name}"),
    }
}

/// Gives the input that the words after the time name; `epoch=n` names another than the live epoch.
fn give(sim: &mut Sim, words: &[&str]) {
    let named = words.iter().find_map(|word| word.strip_prefix("epoch="));
    let epoch = named.map_or(sim.live(), |number| {
        number.parse().ok().and_then(mcp_reconnect_core::Epoch::new).expect("an epoch is a number from 1")
    });
    let words: Vec<&str> = words.iter().copied().filter(|word| !word.starts_with("epoch=")).collect();
    match *words.as_slice() {
        [] => {}
        ["connect", until] => {
            let until = duration(until.strip_prefix("until=").expect("connect until=…"));
            sim.give(Input::Connect { until: Timestamp::from_origin(until) });
        }
        ["wake", cause] => {
            let cause = match cause {
                "operator" => WakeCause::Operator,
                "config" => WakeCause::Config,
                "credentials" => WakeCause::Credentials,
                _ => panic!("no cause of a wake: {cause}"),
            };
            sim.give(Input::Wake(cause));
        }
        ["park"] => drop(sim.give(Input::Park)),
        ["shutdown"] => drop(sim.give(Input::Shutdown)),
        ["resumed"] => drop(sim.give(Input::Resumed { by_call: false })),
        ["lost", ref failed @ ..] => drop(sim.give(Input::Lost { epoch, failure: failure(failed) })),
        ["gone", ref failed @ ..] => drop(sim.give(Input::Gone { epoch, failure: failure(failed) })),
        ["no-reply"] => sim.no_reply(sim.now),
        ["answered"] => sim.sample(true),
        ["call"] => sim.call = Some(sim.now),
        ["deaf"] => sim.set_life(Life::Deaf),
        _ => panic!("nothing to do for {words:?}"),
    }
}

fn play(text: &str) -> String {
    let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('|')).collect();
    let mut builder = Config::builder();
    let mut seed = 1;
    for line in &lines {
        match line.split_whitespace().collect::<Vec<_>>().as_slice() {
            ["knob", name, value] => builder = knob(builder, name, value),
            ["seed", number] => seed = number.parse().expect("a seed is a number"),
            _ => {}
        }
    }
    let mut sim = Sim::new(builder.build().expect("valid knobs"), seed, |_, _| HEALTHY);
    sim.trace = Some(Vec::new());
    let mut told = String::new();
    for line in lines {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["server", behaviour @ ..] => {
                let behaviour = server(behaviour);
                sim.set_script(move |_, _| behaviour);
            }
            [time, input @ ..] if time.starts_with("t=") => {
                let at = Timestamp::from_origin(duration(&time[2..]));
                if input == ["resumed"] {
                    sim.now = sim.now.max(at); // the host slept until then
                } else {
                    sim.run_until(at);
                }
                give(&mut sim, input);
            }
            ["totals"] => {
                let stats = sim.snapshot().stats;
                let listings = if stats.asks > 0 { format!(", {} listings", stats.asks) } else { String::new() };
                let line = format!(
                    "{} dials ({} probes), {} sessions, {} failures, {} pings{listings}, {} status events",
                    stats.dials,
                    stats.probes,
                    stats.sessions,
                    stats.failures,
                    stats.pings,
                    sim.statuses.len()
                );
                sim.trace.get_or_insert_default().push(line);
            }
            ["quiet"] => sim.trace = None,
            ["loud"] => sim.trace = Some(Vec::new()),
            _ => {}
        }
        told.push_str(line);
        told.push('\n');
        for happened in sim.trace.iter_mut().flat_map(std::mem::take) {
            told.push_str(&format!("| {happened}\n"));
        }
    }
    told
}

#[test]
fn scenarios_go_as_written() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/scenarios");
    let mut names: Vec<String> = std::fs::read_dir(folder)
        .expect("the scenarios are beside this test")
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| name.ends_with(".txt"))
        .collect();
    names.sort_unstable();
    assert!(names.len() >= 10, "scenarios are missing: {names:?}");
    for name in names {
        let path = format!("tests/scenarios/{name}");
        let text = std::fs::read_to_string(format!("{folder}/{name}")).expect("a scenario is a text file");
        assert!(text.starts_with('#'), "{name} does not say what it shows");
        golden::compare(&path, &play(&text));
    }
}
