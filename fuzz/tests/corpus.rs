//! Every committed input of every target, on whatever toolchain.

use std::collections::BTreeSet;
use std::panic::catch_unwind;
use std::path::Path;
use std::process::ExitCode;
use std::{fs, io};

use mcp_reconnect_fuzz::TARGETS;

fn main() -> ExitCode {
    let (mut total, mut failed) = (0, 0);
    for (name, target) in TARGETS {
        let inputs = inputs(name).unwrap_or_else(|error| panic!("the corpus of {name}: {error}"));
        let wrong = inputs.iter().filter(|(file, input)| {
            let fails = catch_unwind(|| target(input)).is_err();
            if fails {
                println!("{name}: {file} fails");
            }
            fails
        });
        let wrong = wrong.count();
        println!("{name}: {} inputs, {wrong} failed", inputs.len());
        total += inputs.len();
        failed += wrong + usize::from(inputs.is_empty());
    }
    println!("{total} inputs of {} targets, {failed} failed", TARGETS.len());
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The corpus of this target, by name.
fn inputs(target: &str) -> io::Result<BTreeSet<(String, Vec<u8>)>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    fs::read_dir(folder)?
        .map(|entry| {
            let entry = entry?;
            Ok((entry.file_name().to_string_lossy().into_owned(), fs::read(entry.path())?))
        })
        .collect()
}
