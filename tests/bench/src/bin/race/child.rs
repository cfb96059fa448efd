//! Programs that measure in a process of their own, and print what they found as lines of JSON.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde::de::DeserializeOwned;
use tokio::process::Command;

/// A program of ours, built with this one.
pub(crate) fn beside(name: &str) -> Result<PathBuf, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?.with_file_name(name);
    if program.is_file() { Ok(program) } else { Err(format!("{} is missing: build it first", program.display())) }
}

/// Runs the program to its end and reads the lines it printed.
pub(crate) async fn lines<L: DeserializeOwned>(program: &Path, arguments: &[&str]) -> Result<Vec<L>, String> {
    let what = || format!("{} {}", program.display(), arguments.join(" "));
    let command = Command::new(program).args(arguments).stderr(Stdio::inherit()).kill_on_drop(true).output();
    let output = command.await.map_err(|error| format!("{}: {error}", what()))?;
    if !output.status.success() {
        return Err(format!("{}: {}", what(), output.status));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().map(|line| serde_json::from_str(line).map_err(|error| format!("{}: {error}", what()))).collect()
}

/// Runs the program to its end and reads its one line.
pub(crate) async fn line<L: DeserializeOwned>(program: &Path, arguments: &[&str]) -> Result<L, String> {
    let lines = lines(program, arguments).await?;
    lines.into_iter().next().ok_or_else(|| format!("{} {}: said nothing", program.display(), arguments.join(" ")))
}
