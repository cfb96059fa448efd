//! `count WORK ROUNDS`: does a work so many times, to be counted under valgrind. `count hold`: runs each under callgrind
//! and holds it to its limit.
//!
//! For times: `count serve stdio|http` is the least server, `count time service|call-tool stdio PROGRAM … | http URL` calls it.
//!
//! Exit code 1: a figure above its limit, or none; 2: an argument that it cannot use, named on stderr.

mod hold;
mod serve;
mod time;

use std::fmt::Display;
use std::process::ExitCode;

use mcp_reconnect_bench::count::Work;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["hold"] => match hold::hold() {
            Ok(true) => {}
            Ok(false) => return ExitCode::FAILURE,
            Err(why) => return failed(&why),
        },
        ["serve", "stdio"] => return ended(serve::stdio()),
        ["serve", "http"] => return on_runtime(serve::http()),
        ["time", caller @ ("service" | "call-tool"), ref server @ ..] => return on_runtime(time::time(caller, server)),
        [work, rounds] => match (Work::named(work), rounds.parse()) {
            (Some(work), Ok(rounds)) => work.run(rounds),
            (None, _) => return refuse(&format!("{work}: no such work")),
            (_, Err(error)) => return refuse(&format!("{rounds}: {error}")),
        },
        _ => return refuse("WORK and ROUNDS are missing"),
    }
    ExitCode::SUCCESS
}

fn on_runtime<E: Display>(main: impl Future<Output = Result<(), E>>) -> ExitCode {
    match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => ended(runtime.block_on(main)),
        Err(error) => failed(&error),
    }
}

fn ended<E: Display>(end: Result<(), E>) -> ExitCode {
    end.map_or_else(|error| failed(&error), |()| ExitCode::SUCCESS)
}

fn failed(why: &impl Display) -> ExitCode {
    eprintln!("count: {why}");
    ExitCode::FAILURE
}

fn refuse(why: &str) -> ExitCode {
    let works: Vec<_> = Work::ALL.into_iter().map(Work::name).collect();
    eprintln!("count: {why}\nusage: count hold | serve … | time … | {} ROUNDS", works.join("|"));
    ExitCode::from(2)
}
