//! `mcp-reconnect watch`: keeps the servers of a config connected, and shows how they stand.

mod file;
mod json;
mod keys;
mod line;
mod screen;
mod table;

use std::io::{self, IsTerminal as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use mcp_reconnect::fleet::Fleet;

use self::file::ConfigFile;
use super::log::Target;
use super::signals::Signals;
use super::source::{self, ConfigArgs, WRONG, tell_errors, tell_warnings};

const HELP: &str = "\
On a terminal, a table:
  up, down  select a server (also k, j)
  w         wake it: try now to reach it
  p         park it: close its session, and rest until it is woken
  r         read the config again, and apply it: servers without a session are tried sooner
  q         quit (also Ctrl-C)

JSON lines (--json, or where stdout is no terminal): one object per line, each with `time` (RFC 3339, UTC) and `event`,
those about one server with `server`, and by event:
  config           file, warnings, errors (then nothing was changed)
  applied          outcome (started, replaced, retuned, woken, disabled, removed, failed), error
  status           state (idle, connecting, ready, transient_failure, parked, shutdown), epoch, park_reason, failure
                   (its class), cause (in words)
  breaker          open_for (seconds; null: it closed)
  catalogue        tools, prompts, resources, templates: each with added, removed, changed
  withdrawn        what the server offered may not be offered now
  tools            added, removed, changed (public names), notices: what may be called of all servers
  setup_failed     what, cause
  server_changed   version
  snapshot         servers (--status-every): all that is known of each; durations in seconds
  missed           count: so many events were left out, since they were not read in time
Fields that do not apply are null or missing; others may be added.

The config is read again when its file changes, and applied when it is right: new servers are started, changed ones
replaced, and all others left alone. While it is wrong, nothing changes.

Exit status:
  0    asked to end, by a key or a signal
  1    the terminal or stdout failed
  2    bad arguments, or a config that is wrong at the start";

/// Keep the servers of a config connected, and show how they stand
#[derive(clap::Args)]
#[command(after_long_help = HELP)]
pub(crate) struct WatchArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Print JSON lines instead of a table
    #[arg(long)]
    json: bool,
    /// With JSON lines, tell how all servers stand as often as this
    #[arg(long, value_name = "DURATION", value_parser = source::duration)]
    status_every: Option<Duration>,
    /// Append the log to this file; without it there is none while there is a table
    #[arg(long, value_name = "FILE")]
    log_file: Option<PathBuf>,
}

impl WatchArgs {
    /// The place of the log.
    pub(crate) fn log(&self) -> Target<'_> {
        match &self.log_file {
            Some(path) => Target::File(path),
            None if self.has_table() => Target::Nowhere,
            None => Target::Stderr,
        }
    }

    fn has_table(&self) -> bool {
        !self.json && io::stdout().is_terminal()
    }
}

/// Runs until it is asked to end. When it returns every server is gone.
pub(crate) async fn run(args: &WatchArgs) -> ExitCode {
    match try_run(args).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(status) => ExitCode::from(status),
    }
}

async fn try_run(args: &WatchArgs) -> Result<(), u8> {
    let failed = |error: &dyn std::fmt::Display| {
        anstream::eprintln!("error: {error}");
        1
    };
    // From the first server on nothing else may end this process.
    let mut signals = Signals::new().map_err(|error| failed(&error))?;
    let mut file = ConfigFile::new(args.config.path()?);
    let parsed = match file.next().await {
        Ok(parsed) => parsed,
        Err(errors) => {
            tell_errors(&errors);
            return Err(WRONG);
        }
    };
    tell_warnings(&parsed.warnings);
    if let Some(unseen) = &file.unseen {
        anstream::eprintln!("warning: {unseen}");
    }
    let fleet = Fleet::builder().build().map_err(|error| failed(&error))?;
    let shown = if args.has_table() {
        screen::run(&fleet, parsed, &mut file, &mut signals).await
    } else {
        json::run(&fleet, parsed, &mut file, &mut signals, args.status_every).await
    };
    if args.has_table() {
        anstream::eprintln!("closing…");
    }
    fleet.shutdown().await;
    match shown {
        Ok(()) => Ok(()),
        // A reader that has closed the pipe is not told so.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(1),
        Err(error) => Err(failed(&error)),
    }
}
