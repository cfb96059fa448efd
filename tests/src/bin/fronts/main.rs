//! Real fronts before a server, and real faults of the network: `fronts [NAME…]` runs the checks (those whose name
//! contains a NAME) with nginx and `ss`, prints what each showed, and fails if a call was lost or run twice.
//!
//! nginx runs unprivileged, with its own prefix, on a port of its own. `ss -K` needs root and a kernel with
//! `CONFIG_INET_DIAG_DESTROY`; where it does not work its check is not run, and says so.

mod front;
mod nginx;
#[path = "../real-servers/process.rs"]
#[expect(dead_code, reason = "the other binary needs more of it")]
mod process;
mod proxied;
mod sockets;

use std::process::ExitCode;

use futures::future::{BoxFuture, FutureExt, join_all};
use tokio::signal::unix::{SignalKind, signal};

/// What a check showed.
pub(crate) enum Shown {
    Held(String),
    /// It cannot be run here.
    NotRun(String),
}

type Check = fn() -> BoxFuture<'static, Result<Shown, String>>;

const CHECKS: &[(&str, Check)] = &[
    ("nginx cuts the idle stream", || proxied::idle_stream_is_cut().boxed()),
    ("nginx loses patience with a call", || proxied::slow_calls().boxed()),
    ("nginx before a dead server", || proxied::dead_server().boxed()),
    ("nginx before a frozen server", || proxied::frozen_server().boxed()),
    ("nginx before a server that restarts", || proxied::restarts().boxed()),
    ("nginx is restarted itself", || proxied::front_restarts().boxed()),
    ("ss kills idle connections", || sockets::idle_connections_are_killed().boxed()),
];

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
