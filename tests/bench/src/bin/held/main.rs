//! Connections in memory and nothing else in the process, to be measured from within; one line of JSON says how it was.
//!
//! - `held size supervised|rmcp COUNT`: what they take, by the allocator and by the system.
//! - `held idle supervised|rmcp|timers COUNT`: a minute of them.
//! - `held wait multi|current session|poll-MILLIS|bare WAITERS ROUNDS`: from the moment of publication to each caller.
//!
//! Exit code 2: an argument that it cannot use.

mod idle;
mod size;
mod wait;

use std::process::ExitCode;

use mcp_reconnect_tests::held::Kind;
use tokio::runtime::{Builder, Runtime};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match run(&arguments) {
        Some(said) => {
            println!("{said}");
            ExitCode::SUCCESS
        }
        None => {
            eprintln!("usage: held size KIND COUNT | idle KIND COUNT | wait RUNTIME HOW WAITERS ROUNDS");
            ExitCode::from(2)
        }
    }
}

fn run(arguments: &[&str]) -> Option<serde_json::Value> {
    match *arguments {
        ["size", kind, count] => Some(size::run(Kind::named(kind)?, count.parse().ok()?)),
        ["idle", kind, count] => Some(idle::run(Kind::named(kind)?, count.parse().ok()?)),
        ["wait", runtime, how, waiters, rounds] => wait::run(runtime, how, waiters.parse().ok()?, rounds.parse().ok()?),
        _ => None,
    }
}

/// A runtime of this thread alone, in real time.
fn runtime() -> Runtime {
    Builder::new_current_thread().enable_time().build().expect("a runtime")
}
