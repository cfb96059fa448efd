//! The log's place, and the lines that go there.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use clap::ArgAction;
use tracing::Level;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// The variable with the filter of log lines, as `target=level,…`.
const ENV: &str = "MCP_RECONNECT_LOG";

pub(super) const HELP: &str = "Environment:
  MCP_RECONNECT_LOG  as --log, which counts more";

/// Libraries that log their messages, headers included: silent unless they are named.
const TALKATIVE: [&str; 5] = ["h2", "hyper", "reqwest", "rmcp", "rustls"];

/// Number of lines that may wait for a stderr that is not read.
const BACKLOG: usize = 1_024;
/// Time for the last lines to be read at the end.
const LAST_LINES: Duration = Duration::from_secs(1);

/// The place of a command's log.
pub(super) enum Target<'a> {
    Stderr,
    /// A stderr that may never be read: lines that find no room are left out, and nothing waits.
    UnreadStderr,
    /// Appended to this file.
    File(&'a Path),
    Nowhere,
}

#[derive(clap::Args)]
pub(super) struct LogArgs {
    /// Log to stderr; twice for more, three times for everything
    #[arg(short, long, action = ArgAction::Count, global = true)]
    verbose: u8,
    /// Which log lines are written: `debug`, `mcp_reconnect=trace,…`; more than any -v says
    #[arg(long, value_name = "FILTER", global = true)]
    log: Option<String>,
}

impl LogArgs {
    /// Begins to log, until the returned value is dropped. `level` counts without any `-v`: 0 nothing, 1 changes of state,
    /// more for more.
    ///
    /// # Errors
    ///
    /// A filter that cannot be read, by where it comes from, and a file that cannot be written.
    pub(super) fn init(&self, target: &Target<'_>, level: u8) -> Result<Log, String> {
        let wanted = self.wanted(level)?;
        let lines = tracing_subscriber::fmt::layer();
        let registry = tracing_subscriber::registry();
        let mut log = Log(None);
        match target {
            Target::UnreadStderr => {
                let (backlog, written) = Backlog::start();
                log = Log(Some((backlog.clone(), written)));
                let lines = lines.with_writer(backlog).with_ansi(colour_on_stderr());
                registry.with(lines).with(wanted).init();
            }
            Target::Stderr => {
                let lines = lines.with_writer(io::stderr).with_ansi(colour_on_stderr());
                registry.with(lines).with(wanted).init();
            }
            Target::File(path) => {
                let file = File::options().create(true).append(true).open(path);
                let file =
                    file.map_err(|error| format!("invalid value '{}' for '--log-file': {error}", path.display()))?;
                registry.with(lines.with_writer(Arc::new(file)).with_ansi(false)).with(wanted).init();
            }
            Target::Nowhere => {}
        }
        Ok(log)
    }

    fn wanted(&self, level: u8) -> Result<Targets, String> {
        if let Some(filter) = &self.log {
            return parse(filter, "--log <FILTER>");
        }
        match std::env::var(ENV) {
            Ok(filter) => parse(&filter, ENV),
            Err(std::env::VarError::NotUnicode(value)) => Err(format!("invalid value {value:?} for '{ENV}'")),
            Err(std::env::VarError::NotPresent) => Ok(match self.verbose.saturating_add(level) {
                0 => Targets::new(),
                1 => Targets::new().with_target("mcp_reconnect", Level::INFO),
                2 => Targets::new().with_target("mcp_reconnect", Level::DEBUG),
                _ => hush(Targets::new().with_default(Level::TRACE)),
            }),
        }
    }
}

/// A log that is written. Dropping it gives the last lines their time.
pub(super) struct Log(Option<(Backlog, mpsc::Receiver<()>)>);

impl Drop for Log {
    fn drop(&mut self) {
        if let Some((backlog, written)) = self.0.take()
            && backlog.0.try_send(None).is_ok()
        {
            _ = written.recv_timeout(LAST_LINES); // ends with the thread; late or not, it is time to go
        }
    }
}

/// Lines that wait for a thread of their own to write them; `None` is the end.
#[derive(Clone)]
pub(super) struct Backlog(mpsc::SyncSender<Option<Vec<u8>>>);

impl Backlog {
    fn start() -> (Self, mpsc::Receiver<()>) {
        let (lines, waiting) = mpsc::sync_channel::<Option<Vec<u8>>>(BACKLOG);
        let (running, written) = mpsc::channel();
        thread::spawn(move || {
            let _running = running;
            while let Ok(Some(line)) = waiting.recv() {
                if io::stderr().write_all(&line).is_err() {
                    return;
                }
            }
        });
        (Self(lines), written)
    }
}

impl io::Write for Backlog {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        _ = self.0.try_send(Some(line.to_vec())); // a line that finds no room is left out
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Backlog {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

fn parse(filter: &str, from: &str) -> Result<Targets, String> {
    let targets = filter.parse().map_err(|error| format!("invalid value '{filter}' for '{from}': {error}"))?;
    Ok(hush(targets))
}

fn hush(targets: Targets) -> Targets {
    let named: Vec<_> = targets.iter().map(|(target, _)| target.to_owned()).collect();
    let silent = TALKATIVE.into_iter().filter(|library| !named.iter().any(|target| target.starts_with(library)));
    silent.fold(targets, |targets, library| targets.with_target(library, LevelFilter::OFF))
}

fn colour_on_stderr() -> bool {
    anstream::AutoStream::choice(&io::stderr()) != anstream::ColorChoice::Never
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_that_log_secrets_are_silent_unless_they_are_named() {
        let all = parse("trace", "--log").unwrap();
        assert!(all.would_enable("mcp_reconnect::owner", &Level::TRACE));
        for library in ["rmcp::service", "hyper_util::client", "h2::codec", "reqwest", "rustls"] {
            assert!(!all.would_enable(library, &Level::ERROR), "{library}");
        }
        let named = parse("info,rmcp=debug", "--log").unwrap();
        assert!(named.would_enable("rmcp::service", &Level::DEBUG));
        assert!(!named.would_enable("hyper::proto", &Level::ERROR));
    }

    #[test]
    fn a_filter_that_cannot_be_read_is_named_with_its_place() {
        let error = parse("mcp_reconnect=loud", "--log <FILTER>").unwrap_err();
        assert!(error.starts_with("invalid value 'mcp_reconnect=loud' for '--log <FILTER>': "), "{error}");
    }
}
