//! Real servers, killed and restarted under a running connection: `real-servers DIR [NAME…]` runs the servers that are
//! installed in DIR (those whose name contains a NAME), prints a table, and fails if a call was lost or run twice.
//!
//! Knobs are the defaults, but `stable_after` is low: a trial kills its server more often than a healthy one dies.

mod bare;
mod servers;
mod trial;

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use futures::StreamExt as _;
use tokio::signal::unix::{SignalKind, signal};

use crate::servers::{SERVERS, Server};
use crate::trial::{Shown, Trial};

/// How many servers are tried at the same time: mostly they wait.
const AT_ONCE: usize = 4;

const RUNS: [&str; 4] = ["call in flight", "idle restart", "10 s away, 50 callers", "other tools"];

/// One row of the table.
struct Row {
    name: String,
    runs: Vec<Shown>,
    bare: Option<Shown>,
}

#[tokio::main]
async fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let Some(installed) = arguments.next().and_then(|path| std::fs::canonicalize(path).ok()) else {
        eprintln!("usage: real-servers DIR [NAME…], where DIR is what `.ci/real-servers install` made");
        return ExitCode::from(2);
    };
    let names: Vec<String> = arguments.collect();
    let stop = async {
        // Without it an interrupted suite would leave its servers behind: they are in groups of their own.
        match (signal(SignalKind::interrupt()), signal(SignalKind::terminate())) {
            (Ok(mut interrupt), Ok(mut terminate)) => {
                tokio::select! { _ = interrupt.recv() => {}, _ = terminate.recv() => {} }
            }
            _ => std::future::pending().await,
        }
    };
    tokio::select! {
        code = run(&installed, &names) => code,
        () = stop => ExitCode::from(130),
    }
}

async fn run(installed: &Path, names: &[String]) -> ExitCode {
    let scratch = Scratch(installed.join(format!("run-{}", std::process::id())));
    if let Err(error) = std::fs::create_dir_all(&scratch.0) {
        eprintln!("{}: {error}", scratch.0.display());
        return ExitCode::FAILURE;
    }
    let wanted = |server: &Server| names.is_empty() || names.iter().any(|name| server.name.contains(name.as_str()));
    let mut ports = (20_000..32_000).skip(std::process::id() as usize % 600 * 16); // suites that run at once keep apart
    let trials: Vec<_> = SERVERS
        .iter()
        .filter(|server| wanted(server))
        .enumerate()
        .map(|(place, &server)| {
            let port = free_port(&mut ports).unwrap_or_default(); // none is left: the server will say so
            row(server, installed, scratch.0.join(format!("ledger-{place}")), port)
        })
        .collect();
    let rows: Vec<_> = futures::stream::iter(trials).buffered(AT_ONCE).collect().await;
    print(&rows)
}

/// The next port nobody listens on. Below the range from which the system picks ports for clients, so that none takes
/// it while its server is away.
fn free_port(ports: &mut impl Iterator<Item = u16>) -> Option<u16> {
    ports.find(|&port| TcpListener::bind(("127.0.0.1", port)).is_ok())
}

async fn row(server: Server, installed: &Path, ledger: PathBuf, port: u16) -> Row {
    let mut row = Row { name: server.name.to_owned(), runs: Vec::new(), bare: None };
    match Trial::begin(server, installed, ledger.clone(), port).await {
        Ok(mut trial) => {
            match trial.speaks().await {
                Ok((era, version)) => row.name = format!("{} ({era}, {version})", server.name),
                Err(why) => row.runs.push(Err(why)),
            }
            row.runs.push(trial.call_in_flight().await);
            row.runs.push(trial.idle_restart().await);
            row.runs.push(trial.downtime().await);
            row.runs.push(trial.other_tools().await);
            if let Err(why) = trial.end().await {
                row.runs.push(Err(why));
            }
        }
        Err(why) => row.runs.push(Err(why)),
    }
    if server.bare {
        row.bare = Some(bare::restart(server, installed, &ledger, port).await);
    }
    eprintln!("{}: done", row.name);
    row
}

fn print(rows: &[Row]) -> ExitCode {
    println!("| server | {} | bare rmcp at a restart |", RUNS.join(" | "));
    println!("|---|{}---|", "---|".repeat(RUNS.len()));
    let (mut passed, mut failed) = (0, 0);
    for row in rows {
        let cell = |shown: &Shown| match shown {
            Ok(what) => what.replace('|', "/"),
            Err(_) => "**failed**".to_owned(),
        };
        let mut cells: Vec<_> = row.runs.iter().map(cell).collect();
        cells.resize(RUNS.len().max(cells.len()), "**not run**".to_owned());
        cells.push(row.bare.as_ref().map_or_else(|| "as above".to_owned(), cell));
        println!("| {} | {} |", row.name, cells.join(" | "));
        for run in row.runs.iter().chain(&row.bare) {
            if run.is_ok() { passed += 1 } else { failed += 1 }
        }
    }
    for row in rows {
        for why in row.runs.iter().chain(&row.bare).filter_map(|run| run.as_ref().err()) {
            println!("{}: {why}", row.name);
        }
    }
    println!("{passed} passed, {failed} failed");
    if failed == 0 && passed > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// A folder that is removed in the end.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            eprintln!("{}: {error}", self.0.display());
        }
    }
}
