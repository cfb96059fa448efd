//! The model check of the core as a program: the figures of every slice, or the shortest way to a broken rule.
//!
//! `model-check [SLICE]...`

use std::process::ExitCode;

use mcp_reconnect_tests::model::callers::Callers;
use mcp_reconnect_tests::model::{Coverage, Space, no_such_timer, slices};

fn main() -> ExitCode {
    std::panic::set_hook(Box::new(|_| {})); // a broken rule panics, and is told once
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    match check(|name| wanted.is_empty() || wanted.iter().any(|wanted| wanted == name)) {
        Ok(coverage) => {
            for name in coverage.missing().iter().filter(|name| wanted.is_empty() && !no_such_timer(name)) {
                println!("not come through: {name}");
            }
            ExitCode::SUCCESS
        }
        Err(counterexample) => {
            println!("{counterexample}");
            ExitCode::FAILURE
        }
    }
}

fn check(wanted: impl Fn(&str) -> bool) -> Result<Coverage, String> {
    let coverage = Coverage::default();
    for slice in slices().into_iter().filter(|slice| wanted(slice.name)) {
        let report = Space::new(slice).check()?;
        println!("{report}");
        coverage.join(&report.coverage);
    }
    for (servers, callers) in [(1, 5), (2, 2)] {
        if wanted("callers") {
            let states = Callers::new(servers, callers).check()?;
            println!("{servers} servers with {callers} callers each: {states} states");
        }
    }
    Ok(coverage)
}
