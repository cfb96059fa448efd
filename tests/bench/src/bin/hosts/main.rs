//! Real hosts, and the front between them and a server that is killed, frozen, down, and back with other tools.
//!
//! `hosts run DIR [NAME…]` plays it with the hosts that are installed in DIR (those whose name contains a NAME), prints
//! what each was told of its 200 calls, and fails if a promise of the front was broken. The server speaks both eras, or
//! only the one that the host does not prefer. `hosts compare DIR [NAME…]` puts other proxies in the front's place, or
//! nothing, and prints how they differ.

mod between;
mod inspector;
mod tables;
mod trial;
mod upstream;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use futures::StreamExt as _;
use tokio::signal::unix::{SignalKind, signal};

use crate::between::Between;
use crate::tables::{Inspected, Played};
use crate::upstream::{Served, Transport};
use mcp_reconnect_bench::programs::KINDS;

/// How many trials run at the same time: mostly they wait.
const AT_ONCE: usize = 10;

#[tokio::main]
async fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let mode = arguments.next().unwrap_or_default();
    let installed = arguments.next().and_then(|path| std::fs::canonicalize(path).ok());
    let between = match mode.as_str() {
        "run" => vec![Between::Front],
        "compare" => Between::ALL.to_vec(),
        _ => Vec::new(),
    };
    let (Some(installed), false) = (installed, between.is_empty()) else {
        eprintln!("usage: hosts run|compare DIR [NAME…], where DIR is what `.ci/hosts install` made");
        return ExitCode::from(2);
    };
    let names: Vec<String> = arguments.collect();
    let stop = async {
        // Without it an interrupted suite would leave its processes behind: they are in groups of their own.
        match (signal(SignalKind::interrupt()), signal(SignalKind::terminate())) {
            (Ok(mut interrupt), Ok(mut terminate)) => {
                tokio::select! { _ = interrupt.recv() => {}, _ = terminate.recv() => {} }
            }
            _ => std::future::pending().await,
        }
    };
    tokio::select! {
        code = run(&installed, &between, &names) => code,
        () = stop => ExitCode::from(130),
    }
}

async fn run(installed: &Path, between: &[Between], names: &[String]) -> ExitCode {
    let scratch = Scratch(installed.join(format!("run-{}", std::process::id())));
    // A name may be that of a host, of a transport, or of what is between.
    let wanted = |parts: [&str; 3]| {
        names.is_empty() || names.iter().all(|name| parts.iter().any(|part| part.contains(name.as_str())))
    };
    let compare = between.len() > 1;
    let mut trials = Vec::new();
    let mut inspections = Vec::new();
    for &between in between {
        for transport in Transport::ALL.into_iter().filter(|&transport| between.supports(transport)) {
            let both = Served { transport, era: "both" };
            for &kind in KINDS {
                let crossed = (!compare).then_some(Served { transport, era: kind.other_era });
                for served in [Some(both), crossed].into_iter().flatten() {
                    if !wanted([kind.name, &served.name(), between.name()]) {
                        continue;
                    }
                    let folder = scratch.0.join(format!("trial-{}", trials.len()));
                    trials.push(async move {
                        let row = trial::run(kind, between, served, installed, folder).await;
                        eprintln!("{} – {} – {}: done", kind.name, between.name(), served.name());
                        Played { host: kind.name, between, served, row }
                    });
                }
            }
            if wanted(["Inspector", &both.name(), between.name()]) {
                let folder = scratch.0.join(format!("inspector-{}", inspections.len()));
                inspections.push(async move {
                    let said = inspector::run(between, both, installed, folder).await;
                    Inspected { between, served: both, said }
                });
            }
        }
    }
    let trials = futures::stream::iter(trials).buffer_unordered(AT_ONCE).collect::<Vec<_>>();
    let inspections = futures::stream::iter(inspections).buffered(2).collect::<Vec<_>>();
    let (mut played, inspected) = tokio::join!(trials, inspections);
    let crossed = |served: Served| served.era != "both";
    played.sort_by_key(|Played { host, between, served, .. }| {
        (*between as u8, crossed(*served), served.transport as u8, place(host))
    });
    tables::print(&played, &inspected, compare)
}

fn place(host: &str) -> Option<usize> {
    KINDS.iter().position(|kind| kind.name == host)
}

/// A folder that is removed in the end.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            eprintln!("{}: {error}", self.0.display());
        }
    }
}
