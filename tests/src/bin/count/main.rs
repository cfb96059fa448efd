//! `count WORK ROUNDS`: does a work so many times, to be counted under valgrind. `count hold`: runs each under callgrind
//! and holds it to its limit.
//!
//! Exit code 1: a figure above its limit, or none; 2: an argument that it cannot use, named on stderr.

use std::process::ExitCode;

use mcp_reconnect_tests::count::Work;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        [work, rounds] => match (Work::named(work), rounds.parse()) {
            (Some(work), Ok(rounds)) => work.run(rounds),
            (None, _) => return refuse(&format!("{work}: no such work")),
            (_, Err(error)) => return refuse(&format!("{rounds}: {error}")),
        },
        _ => return refuse("WORK and ROUNDS are missing"),
    }
    ExitCode::SUCCESS
}

fn refuse(why: &str) -> ExitCode {
    let works: Vec<_> = Work::ALL.into_iter().map(Work::name).collect();
    eprintln!("count: {why}\nusage: count hold | {} ROUNDS", works.join("|"));
    ExitCode::from(2)
}
