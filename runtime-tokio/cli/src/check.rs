//! `mcp-reconnect check`: whether a config is right, and its servers can be reached.

use std::io;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anstyle::{AnsiColor, Style};

use super::attempt::{Attempt, Failed, Tried, end, try_each};
use super::source::{self, ConfigArgs};
use super::text::{named, printable, spoken};

const HELP: &str = "\
Exit status:
  0    every server that is not disabled has a session
  1    some server has none: its line says its state, the class of the failure, and the cause
  2    bad arguments, or a config that is wrong
  130  interrupted (143: terminated)";

/// Check a config: read it, and connect to each of its servers once
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub(crate) struct CheckArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// How long a server may take, its start included
    #[arg(long, value_name = "DURATION", default_value = "20s", value_parser = source::duration)]
    wait: Duration,
}

pub(crate) async fn run(args: &CheckArgs) -> ExitCode {
    let source = match args.config.load() {
        Ok(source) => source,
        Err(status) => return ExitCode::from(status),
    };
    let Tried { fleet, attempts } = match try_each(source.parsed.config, args.wait).await {
        Ok(tried) => tried,
        Err(status) => return ExitCode::from(status),
    };
    let width = attempts.keys().map(|server| printable(server).chars().count()).max().unwrap_or_default();
    let mut out = anstream::stdout();
    let told: io::Result<()> = attempts.iter().try_for_each(|(server, attempt)| line(&mut out, width, server, attempt));
    let has_failed = |attempt: &Attempt| attempt.result.as_ref().is_err_and(|why| !matches!(why, Failed::Disabled));
    let failed = told.is_err() || attempts.values().any(has_failed);
    end(&fleet, u8::from(failed)).await
}

fn line(out: &mut impl io::Write, width: usize, server: &Arc<str>, attempt: &Attempt) -> io::Result<()> {
    let good = AnsiColor::Green.on_default();
    let bad = AnsiColor::Red.on_default();
    let (style, verdict, words) = match &attempt.result {
        Ok(status) => {
            let session = status.session.as_ref();
            let facts = [session.and_then(named), session.map(spoken), Some(format!("{} tools", status.tools))];
            (good, "ok", facts.into_iter().flatten().collect::<Vec<_>>().join(", "))
        }
        Err(Failed::Disabled) => (Style::new(), "off", Failed::Disabled.words()),
        Err(failed) => (bad, "fail", failed.words()),
    };
    let (server, took) = (printable(server), attempt.took.as_secs_f64());
    writeln!(out, "{style}{verdict:<4}{style:#}  {server:<width$}  {took:>5.2} s  {words}")
}
