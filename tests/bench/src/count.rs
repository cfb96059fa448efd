//! Work whose instructions (callgrind) and allocations (DHAT) are counted: figures that neither the machine nor its load changes,
//! so that they can be held to limits.
//!
//! The binary `count` does the work; [`instructions`] and [`allocations`] run it under valgrind, once with few rounds and
//! once with more. The difference is what the rounds between cost: neither the start nor the end of the process.

mod calls;
mod machine;

use std::path::{Path, PathBuf};
use std::process::Command;

pub use calls::Caller;
pub use machine::CYCLE;

/// Something that is done again and again, on one thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Work {
    /// A tick of a Ready machine at which nothing is due.
    MachineTick,
    /// A sample of the traffic of a Ready machine.
    MachineTraffic,
    /// From the loss of a proven session to the next one: [`CYCLE`] steps.
    MachineCycle,
    /// Whether a caller may go, asked of a snapshot that is taken for it.
    Admission,
    /// Calls, one after the other.
    Calls(Caller),
    /// Calls of 64 callers at once, each one after the other.
    Calls64(Caller),
}

impl Work {
    /// All of it.
    pub const ALL: [Self; 13] = [
        Self::MachineTick,
        Self::MachineTraffic,
        Self::MachineCycle,
        Self::Admission,
        Self::Calls(Caller::Server),
        Self::Calls(Caller::Rmcp),
        Self::Calls(Caller::Service),
        Self::Calls(Caller::CallTool),
        Self::Calls(Caller::Request),
        Self::Calls(Caller::Raw),
        Self::Calls64(Caller::Rmcp),
        Self::Calls64(Caller::Service),
        Self::Calls64(Caller::CallTool),
    ];

    /// Its name on a command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::MachineTick => "machine-tick",
            Self::MachineTraffic => "machine-traffic",
            Self::MachineCycle => "machine-cycle",
            Self::Admission => "admission",
            Self::Calls(caller) => caller.name(),
            Self::Calls64(Caller::Server) => "server-64",
            Self::Calls64(Caller::Rmcp) => "rmcp-64",
            Self::Calls64(Caller::Service) => "service-64",
            Self::Calls64(Caller::CallTool) => "call-tool-64",
            Self::Calls64(Caller::Request) => "request-64",
            Self::Calls64(Caller::Raw) => "raw-64",
        }
    }

    /// The work of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|work| work.name() == name)
    }

    /// Does it so many times.
    ///
    /// # Panics
    ///
    /// When something goes wrong: what failed is not to be measured.
    pub fn run(self, rounds: u64) {
        match self {
            Self::MachineTick => machine::tick(rounds),
            Self::MachineTraffic => machine::traffic(rounds),
            Self::MachineCycle => machine::cycle(rounds),
            Self::Admission => machine::admission(rounds),
            Self::Calls(caller) => drop(calls::run(caller, 1, rounds)),
            Self::Calls64(caller) => drop(calls::run(caller, 64, rounds)),
        }
    }

    /// Few rounds, by which everything has its size, and enough more to be compared with them: what hash tables do is
    /// drawn anew in each process, a few instructions for each call.
    const fn rounds(self) -> (u64, u64) {
        match self {
            Self::MachineTick | Self::MachineTraffic | Self::MachineCycle | Self::Admission => (1_000, 21_000),
            Self::Calls(_) | Self::Calls64(_) => (128, 640),
        }
    }
}

/// Instructions of each round. The program `count` of the same profile must be beside this one.
///
/// # Errors
///
/// Valgrind or the program is missing, or fails.
pub fn instructions(work: Work) -> Result<f64, String> {
    per_round(work, CALLGRIND, collected)
}

/// Blocks that each round allocates; see [`instructions`].
///
/// # Errors
///
/// Valgrind or the program is missing, or fails.
pub fn allocations(work: Work) -> Result<f64, String> {
    // "==1== Total:     5,555 bytes in 44 blocks"
    per_round(work, &["--tool=dhat", "--dhat-out-file=/dev/null"], |said| {
        let blocks = said.split_once("Total:")?.1.split_once(" bytes in ")?.1.split_whitespace().next()?;
        blocks.replace(',', "").parse().ok()
    })
}

/// Whether there is a valgrind.
///
/// # Errors
///
/// Why not.
pub fn valgrind() -> Result<String, String> {
    let said = Command::new("valgrind").arg("--version").output().map_err(|error| format!("valgrind: {error}"))?;
    Ok(String::from_utf8_lossy(&said.stdout).trim().to_owned())
}

/// Instructions of each round of another program, whose last argument is how many.
///
/// # Errors
///
/// Valgrind or the program is missing, or fails.
pub fn instructions_of(program: &Path, arguments: &[&str], (few, more): (u64, u64)) -> Result<f64, String> {
    between(program, arguments, (few, more), CALLGRIND, collected)
}

const CALLGRIND: &[&str] = &["--tool=callgrind", "--callgrind-out-file=/dev/null"];

/// "==1== Collected : 4711"
fn collected(said: &str) -> Option<u64> {
    said.split_once("Collected :")?.1.split_whitespace().next()?.parse().ok()
}

fn per_round(work: Work, tool: &[&str], read: impl Fn(&str) -> Option<u64>) -> Result<f64, String> {
    between(&program()?, &[work.name()], work.rounds(), tool, read)
}

fn between(
    program: &Path,
    arguments: &[&str],
    (few, more): (u64, u64),
    tool: &[&str],
    read: impl Fn(&str) -> Option<u64>,
) -> Result<f64, String> {
    let run = |rounds: u64| {
        let command = Command::new("valgrind")
            .args(tool)
            .arg(program)
            .args(arguments)
            .arg(rounds.to_string())
            .output()
            .map_err(|error| format!("valgrind: {error}"))?;
        let said = String::from_utf8_lossy(&command.stderr);
        match read(&said) {
            Some(counted) if command.status.success() => Ok(counted),
            _ => Err(format!("{} {arguments:?}: {}: {said}", program.display(), command.status)),
        }
    };
    let counted = run(more)?.saturating_sub(run(few)?);
    #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
    Ok(counted as f64 / (more - few) as f64)
}

fn program() -> Result<PathBuf, String> {
    let beside = std::env::current_exe().map_err(|error| error.to_string())?.with_file_name("count");
    if beside.is_file() { Ok(beside) } else { Err(format!("{} is missing: build it first", beside.display())) }
}
