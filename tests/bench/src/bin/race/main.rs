//! Measured side by side with what a user would pick instead: `race DIR [SECTION…] [--to FILE]`.
//!
//! DIR is what `.ci/race install` made; a peer that is not there is reported as not run. Without a SECTION all are run.
//! Prints Markdown; with `--to FILE` it is also written to `FILE.md`, and as JSON to `FILE.json`. The exit code tells
//! whether every section ran, not which side won.

mod ambiguity;
mod call;
mod child;
mod contenders;
mod front;
mod idle;
mod machine;
mod ran;
mod recovery;
mod report;
mod size;
mod storm;
mod waiting;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::report::Report;

/// Folders that every section uses.
struct Race {
    /// Where the peers are.
    installed: PathBuf,
    /// For files of this run; gone after it.
    scratch: tempfile::TempDir,
}

const SECTIONS: [&str; 10] =
    ["stdio", "http", "ambiguity", "call", "machine", "size", "idle", "waiting", "front", "storm"];

#[tokio::main]
async fn main() -> ExitCode {
    match arguments(std::env::args().skip(1)) {
        Ok((installed, wanted, to)) => match run(installed, &wanted, to.as_deref()).await {
            Ok(()) => ExitCode::SUCCESS,
            Err(why) => {
                eprintln!("race: {why}");
                ExitCode::FAILURE
            }
        },
        Err(why) => {
            eprintln!("race: {why}\nusage: race DIR [{}]… [--to FILE]", SECTIONS.join(" | "));
            ExitCode::from(2)
        }
    }
}

type Arguments = (PathBuf, Vec<String>, Option<PathBuf>);

fn arguments(mut arguments: impl Iterator<Item = String>) -> Result<Arguments, String> {
    let installed = arguments.next().ok_or("DIR is missing")?;
    let installed = std::fs::canonicalize(&installed).map_err(|error| format!("DIR {installed}: {error}"))?;
    let (mut wanted, mut to) = (Vec::new(), None);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--to" => to = Some(PathBuf::from(arguments.next().ok_or("--to needs a FILE")?)),
            section if SECTIONS.contains(&section) => wanted.push(argument),
            _ => return Err(format!("{argument}: no such section")),
        }
    }
    Ok((installed, wanted, to))
}

async fn run(installed: PathBuf, wanted: &[String], to: Option<&Path>) -> Result<(), String> {
    let scratch = tempfile::tempdir().map_err(|error| error.to_string())?;
    let race = Race { installed, scratch };
    let mut report = Report::begin();
    println!("{}", report.head());
    let mut failed = Vec::new();
    for name in SECTIONS.into_iter().filter(|name| wanted.is_empty() || wanted.iter().any(|wanted| wanted == name)) {
        eprintln!("{name}: …");
        let section = match name {
            "stdio" => recovery::stdio(&race).await,
            "http" => recovery::http(&race).await,
            "ambiguity" => ambiguity::run(&race).await,
            "call" => call::run(&race).await,
            "machine" => machine::run(&race).await,
            "size" => size::run().await,
            "idle" => idle::run().await,
            "waiting" => waiting::run().await,
            "front" => front::run(&race).await,
            _ => storm::run(),
        };
        match section {
            Ok(section) => {
                println!("{section}");
                report.sections.push(section);
                if let Some(to) = to {
                    report.write(to)?; // what was measured is kept, whatever comes after
                }
            }
            Err(why) => failed.push(format!("{name}: {why}")),
        }
    }
    if failed.is_empty() { Ok(()) } else { Err(failed.join("; ")) }
}
