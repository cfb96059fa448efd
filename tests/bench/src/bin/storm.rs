//! `storm 10k | 1m | day | week [STEPS]`: the long runs of the simulation, in simulated time.
//!
//! - `10k`: 10,000 connections of one process lose their server, as tables: a server that refuses while it is dead, one
//!   that is silent, and one that refuses and then counts connects by the second of the clock.
//! - `1m`: a million connections of 100 processes.
//! - `day`: what a dead server costs a day.
//! - `week`: weeks of random faults over 1,000 servers, two at a time, until that many steps were checked (default
//!   100,000,000).
//!
//! Exit code 1: a figure misses its bar; 2: an argument that it cannot use, named on stderr.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use mcp_reconnect_tests::storm::{Admits, Bar, Callers, Dead, Gating, Storm, Week, table};

const USAGE: &str = "usage: storm 10k | 1m | day | week [STEPS]";
const DAY: Duration = Duration::from_secs(24 * 3_600);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let held = match arguments[..] {
        ["10k"] => storms(&[
            Storm::one_process(Dead::Refuses),
            Storm::one_process(Dead::Silent),
            Storm { admits: Admits::by_the_second(500), ..Storm::one_process(Dead::Refuses) },
        ]),
        ["1m"] => storms(&[Storm::hundred_processes(Dead::Refuses), Storm::hundred_processes(Dead::Silent)]),
        ["day"] => day(),
        ["week"] => week(100_000_000),
        ["week", steps] => match steps.parse() {
            Ok(steps) => week(steps),
            Err(error) => return refuse(&format!("{steps}: {error}")),
        },
        _ => return refuse(USAGE),
    };
    if held { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn refuse(why: &str) -> ExitCode {
    eprintln!("storm: {why}");
    ExitCode::from(2)
}

/// The bar is for the first storm, and its ideal.
fn storms(storms: &[Storm]) -> bool {
    let mut held = true;
    for (index, storm) in storms.iter().enumerate() {
        let began = Instant::now();
        let (text, ours) = table(storm);
        println!("{text}({:.0} s)\n", began.elapsed().as_secs_f64());
        if index == 0 {
            let bar = Bar { p99: storm.ideal() + Duration::from_secs(5), slots: u32::from(storm.max_dials), dials: 3 };
            for figures in ours {
                if let Err(missed) = figures.meet(&bar) {
                    println!("missed: {missed}");
                    held = false;
                }
            }
        }
    }
    held
}

fn day() -> bool {
    println!("dials a day, nobody asks: at most {} by the knobs", Storm::config().max_dials_unasked(DAY));
    [Dead::Refuses, Dead::Silent, Dead::HangsUp].into_iter().fold(true, |held, dead| {
        let figures = Storm::dead_day(dead).run(Gating::Gate, Callers::None);
        let (least, most) = (figures.dials.iter().min().copied().unwrap_or(0), figures.most_dials());
        println!("a server that {}: {least} to {most}", dead.as_str());
        held && most <= 106
    })
}

/// A broken rule, or a server that does not come back, panics.
fn week(steps: u64) -> bool {
    let began = Instant::now();
    let mut done = 0;
    for seed in (1..).step_by(2) {
        let run = |seed| Week { servers: 1_000, lasts: 7 * DAY, seed }.run();
        let (first, second) = std::thread::scope(|scope| {
            let second = scope.spawn(|| run(seed + 1));
            (run(seed), second.join())
        });
        let Ok(second) = second else { return false };
        for (seed, seen) in [(seed, first), (seed + 1, second)] {
            println!("week {seed}: {seen:?}");
            done += seen.steps;
        }
        if done >= steps {
            break;
        }
    }
    let elapsed = began.elapsed().as_secs_f64();
    println!("{done} steps checked in {elapsed:.0} s: {:.0} per second", done as f64 / elapsed);
    true
}
