//! Real fronts before a server, and real faults of the network: `fronts [NAME…]` runs the checks (those whose name
//! contains a NAME) with nginx and `ss`, prints what each showed, and fails if a call was lost or run twice.
//!
//! nginx runs unprivileged, with its own prefix, on a port of its own. `ss -K` needs root and a kernel with
//! `CONFIG_INET_DIAG_DESTROY`; where it does not work its check is not run, and says so.

mod front;
mod nginx;
mod proxied;
mod sockets;

use std::process::ExitCode;

use futures::future::{BoxFuture, FutureExt, join_all};
use tokio::signal::unix::{SignalKind, signal};

use crate::nginx::Setup::{Buffered, Keepalive, Unbuffered};
use crate::proxied::{dead_server, front_restarts, fronted, frozen_server, idle_stream_is_cut, restarts, slow_calls};

/// Result of a check.
pub(crate) enum Shown {
    Held(String),
    /// It cannot be run here.
    NotRun(String),
}

type Check = fn() -> BoxFuture<'static, Result<Shown, String>>;

const CHECKS: &[(&str, Check)] = &[
    ("nginx cuts the idle stream", || fronted(Unbuffered, "", |front| idle_stream_is_cut(front).boxed()).boxed()),
    ("nginx buffers the stream", || fronted(Buffered, "", |front| idle_stream_is_cut(front).boxed()).boxed()),
    ("nginx loses patience with a call", || fronted(Unbuffered, SLOW, |front| slow_calls(front).boxed()).boxed()),
    ("nginx before a dead server", || fronted(Unbuffered, IN_FLIGHT, |front| dead_server(front).boxed()).boxed()),
    ("nginx before a frozen server", || fronted(Unbuffered, "", |front| frozen_server(front).boxed()).boxed()),
    ("nginx before a server that restarts", || fronted(Unbuffered, "", |front| restarts(front).boxed()).boxed()),
    ("nginx with dead connections", || fronted(Keepalive, "", |front| restarts(front).boxed()).boxed()),
    ("nginx is restarted itself", || fronted(Unbuffered, "", |front| front_restarts(front).boxed()).boxed()),
    ("ss kills idle connections", || sockets::idle_connections_are_killed().boxed()),
];

/// Calls that take longer than nginx waits; one of them has something to say meanwhile.
const SLOW: &str = "call write#1 commit, delay 6s, ok
call echo#1 commit, delay 6s, ok
call write#2 progress 6 every 1s, ok";

/// Calls that are in flight when the first process is killed.
const IN_FLIGHT: &str = "spawn 1:
call write#1 commit, never
call echo#1 commit, never";

#[tokio::main]
async fn main() -> ExitCode {
    let names: Vec<String> = std::env::args().skip(1).collect();
    let stop = async {
        // Without it an interrupted run would leave its servers behind: they are in groups of their own.
        match (signal(SignalKind::interrupt()), signal(SignalKind::terminate())) {
            (Ok(mut interrupt), Ok(mut terminate)) => {
                tokio::select! { _ = interrupt.recv() => {}, _ = terminate.recv() => {} }
            }
            _ => std::future::pending().await,
        }
    };
    tokio::select! {
        code = run(&names) => code,
        () = stop => ExitCode::from(130),
    }
}

async fn run(names: &[String]) -> ExitCode {
    let wanted = |name: &str| names.is_empty() || names.iter().any(|part| name.contains(part.as_str()));
    let checks = CHECKS.iter().filter(|(name, _)| wanted(name)).map(|(name, check)| async move {
        let shown = check().await;
        match &shown {
            Ok(Shown::Held(what)) => println!("{name}: {what}"),
            Ok(Shown::NotRun(why)) => println!("{name}: not run: {why}"),
            Err(why) => println!("{name}: FAILED: {why}"),
        }
        shown
    });
    // Mostly they wait.
    let shown = join_all(checks).await;
    let count = |what: fn(&Result<Shown, String>) -> bool| shown.iter().filter(|shown| what(shown)).count();
    let passed = count(|shown| matches!(shown, Ok(Shown::Held(_))));
    let failed = count(Result::is_err);
    let not_run = shown.len() - passed - failed;
    println!("{passed} passed, {failed} failed, {not_run} not run");
    if failed == 0 && passed > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
