//! Costs of a connection, held to committed limits: sizes, allocations, wake-ups. Never time.
//!
//! Every figure is of one thread: a runtime of its own, and an allocator that counts by thread.

mod calls;
mod idle;
mod machine;
mod size;
mod waiting;

use mcp_reconnect::link::Connector;
use mcp_reconnect::{Connection, EraPolicy};
use tokio::runtime::{Builder, Runtime};

/// A runtime of this thread alone, whose time is virtual.
fn runtime() -> Runtime {
    Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime")
}

/// The head of a table.
fn table(of: &str) {
    println!("\n| {of} | measured | limit | goal |\n|---|---|---|---|");
}

/// A line that is there to compare with.
fn show(what: &str, measured: f64) {
    println!("| {what} | {measured} | | |");
}

/// A line with a figure that must not be above its limit, beside the goal that was set.
#[track_caller]
fn hold(what: &str, measured: f64, limit: i32, goal: &str) {
    println!("| {what} | {measured} | {limit} | {goal} |");
    assert!(measured <= f64::from(limit), "{what}: {measured}, above the limit of {limit}");
}

/// A connection without anything random about it.
fn supervise(connector: impl Connector) -> Connection {
    Connection::builder(connector).name("limits").seed(7).era(EraPolicy::Legacy).build().expect("inside a runtime")
}

/// How many for each of so many, to two digits.
fn each(count: u64, of: u32) -> f64 {
    let hundredths = u32::try_from(count * 100 / u64::from(of)).expect("a small figure");
    f64::from(hundredths) / 100.0
}
