//! `soak TIME [--seed N] [--servers N] [--callers N]`: real servers under random faults, for so long.
//!
//! `TIME` is `60s` or `20m`. N servers over stdio and N over HTTP (default 6), with N callers each (default 3). The seed
//! is printed; without one it is drawn. [`Soak`](mcp_reconnect_tests::soak) says what must hold.
//!
//! Exit code 1: something did not, as listed; 2: an argument that it cannot use, or a system that refuses what the run
//! needs, named on stderr. Linux only.

use std::process::ExitCode;

#[cfg(target_os = "linux")]
fn main() -> ExitCode {
    linux::main()
}

#[cfg(not(target_os = "linux"))]
fn main() -> ExitCode {
    eprintln!("soak: it needs Linux: it counts descriptors and children by /proc");
    ExitCode::from(2)
}

#[cfg(target_os = "linux")]
mod linux {
    use std::hash::{BuildHasher as _, RandomState};
    use std::process::ExitCode;
    use std::time::Duration;

    use mcp_reconnect_tests::soak::Soak;

    const USAGE: &str = "usage: soak TIME [--seed N] [--servers N] [--callers N], with a TIME as 60s or 20m";

    pub(super) fn main() -> ExitCode {
        match run() {
            Ok(held) => ExitCode::from(u8::from(!held)),
            Err(error) => {
                eprintln!("soak: {error}");
                ExitCode::from(2)
            }
        }
    }

    fn run() -> Result<bool, String> {
        let soak = options(std::env::args().skip(1))?;
        println!("seed {}", soak.seed);
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build();
        let runtime = runtime.map_err(|error| error.to_string())?;
        let report = runtime.block_on(soak.run());
        // Not to be held up by a thread that waits for a process which never ends: that is in the report.
        runtime.shutdown_background();
        let report = report.map_err(|error| error.to_string())?;
        println!("{report}");
        Ok(report.violations.is_empty())
    }

    fn options(mut args: impl Iterator<Item = String>) -> Result<Soak, String> {
        let time = args.next().ok_or(USAGE)?;
        let program = std::env::current_exe().map_err(|error| error.to_string())?.with_file_name("fake-server");
        let seed = RandomState::new().hash_one(0_u8) % 1_000_000;
        let mut soak = Soak { lasts: duration(&time)?, seed, servers: 6, callers: 3, program };
        while let Some(name) = args.next() {
            let value = args.next().ok_or_else(|| format!("{name} needs a value; {USAGE}"))?;
            let number: u64 = value.parse().map_err(|_| format!("{name} {value}: not a number; {USAGE}"))?;
            let count = usize::try_from(number).ok().filter(|count| (1..=100).contains(count));
            let count = count.ok_or_else(|| format!("{name} {value}: from 1 to 100"));
            match &*name {
                "--seed" => soak.seed = number,
                "--servers" => soak.servers = count?,
                "--callers" => soak.callers = count?,
                _ => return Err(format!("unknown option {name}; {USAGE}")),
            }
        }
        Ok(soak)
    }

    fn duration(text: &str) -> Result<Duration, String> {
        let (digits, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
        let seconds = match unit {
            "s" => 1,
            "m" => 60,
            "h" => 3_600,
            _ => return Err(format!("{text} is no time; {USAGE}")),
        };
        let number: u64 = digits.parse().map_err(|_| format!("{text} is no time; {USAGE}"))?;
        number.checked_mul(seconds).filter(|seconds| *seconds > 0).map(Duration::from_secs).ok_or_else(|| USAGE.into())
    }
}
