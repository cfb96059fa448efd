//! `mcp-reconnect demo`: loses a server on purpose, again and again, and shows what becomes of the calls.

mod faults;
mod play;
mod report;
mod server;
mod stage;
mod tally;
mod target;

use std::ffi::OsString;
use std::io;
use std::process::ExitCode;
use std::time::Duration;

use mcp_reconnect::core::Config;
use mcp_reconnect::stdio::StdioConnector;
use mcp_reconnect::{CallOptions, CloseGraces, Connection, ServerCommand};
use tokio::signal::unix::{SignalKind, signal};

use faults::Fault;
use play::{Play, Stop};
use report::{Entry, Knobs, Report, millis};
pub(crate) use server::{ServerArgs, serve};
use stage::{Misdeed, Stage};

const HELP: &str = "\
Exit status:
  0    no call was lost, none ran twice that may not, and every rebuild came in time
  1    otherwise
  2    bad arguments
  130  interrupted (143: terminated)

Lost: no outcome by the deadline, or a wrong one, such as another call's answer, or `not sent` for a call that ran.
A call in flight when the session dies may have run: `outcome unknown` says so and is not lost, nor is
`deadline exceeded` on a server that hangs. Only a tool without a read-only or idempotent annotation can be doubled;
the runs are counted by the embedded server itself, in a ledger.

A COMMAND is run as it is. Its tools that need no arguments are looked through for one that is read-only, else
idempotent, else without annotation, never one annotated as destructive; that one is called some 15 times a second.
Where there is none, the server is only pinged.

JSON lines (--json): one object per line, each with `event` and `elapsed_ms`, and by event:
  start    server, rounds, faults, knobs
  calling  tool, annotated
  status   status (IDLE, CONNECTING, READY, TRANSIENT_FAILURE, PARKED, SHUTDOWN), epoch, pid, failure (its class),
           cause (in words)
  fault    round, fault (kill, hang, crash_loop), epoch, pid
  call     tool, call, outcome (server_error, outcome_unknown, deadline_exceeded, not_sent, lost), epoch, cause;
           of equal outcomes in a row server_error and not_sent are told once
  rebuilt  round, fault, epoch, rebuild_ms (from the fault to the first answer)
  summary  ok, error, lost, doubled, epochs (sessions that became ready), rebuilds, tools: each with tool,
           annotated, calls, answered, server_error, outcome_unknown, deadline_exceeded, not_sent, lost, and by the
           ledger runs, repeats, uncertain_ran
Fields that do not apply are null or missing; others may be added.";

/// Kill a server again and again, and show that no call is lost
///
/// Calls a server steadily while it is killed, stopped, and made to crash right after its start. Without a COMMAND the
/// server is an embedded one, with a tool that is annotated as read-only and one that is not.
#[derive(clap::Args)]
#[command(after_long_help = HELP)]
pub(crate) struct DemoArgs {
    /// Print JSON lines instead of a timeline
    #[arg(long)]
    json: bool,
    /// How often each fault is injected
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Which faults, in which order [default: all that the server can be made to suffer]
    #[arg(long, value_name = "FAULT", value_delimiter = ',', value_enum)]
    faults: Vec<Fault>,
    /// How long a call may take
    #[arg(long, value_name = "SECONDS", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=600))]
    call_timeout: u64,
    /// Call this tool of the COMMAND's, without arguments, instead of choosing one
    #[arg(long, value_name = "NAME", requires = "command")]
    tool: Option<String>,
    /// Make the embedded server do something wrong, which the demo must notice
    #[arg(long, hide = true, value_enum, conflicts_with = "command")]
    misdeed: Option<Misdeed>,
    /// A stdio MCP server to do it to, instead of the embedded one
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

impl DemoArgs {
    /// What clap cannot check by itself.
    pub(crate) fn check(&self) -> Result<(), String> {
        if !self.command.is_empty() && self.faults.contains(&Fault::CrashLoop) {
            return Err(
                "the value 'crash-loop' for '--faults <FAULT>' needs the embedded server: leave COMMAND out".into()
            );
        }
        Ok(())
    }

    fn faults(&self) -> &[Fault] {
        match (&self.faults[..], &self.command[..]) {
            ([], []) => &Fault::ALL,
            ([], _) => &Fault::SIGNALS,
            (chosen, _) => chosen,
        }
    }
}

/// Runs the demo. When it returns the server is gone, and so is what it kept on disk.
pub(crate) async fn run(args: &DemoArgs) -> ExitCode {
    match try_run(args).await {
        Ok(code) => code,
        // Who reads no further is not told so.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::FAILURE,
        Err(error) => {
            anstream::eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn try_run(args: &DemoArgs) -> io::Result<ExitCode> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let (dir, mut command, server) = match &args.command[..] {
        [] => {
            let dir = tempfile::Builder::new().prefix("mcp-reconnect-demo-").tempdir()?;
            let mut command = ServerCommand::new(std::env::current_exe()?);
            command.args = vec!["demo-server".into(), "--dir".into(), dir.path().into()];
            (Some(dir), command, "the embedded server".to_owned())
        }
        [program, rest @ ..] => {
            let mut command = ServerCommand::new(program);
            command.args = rest.to_vec();
            let words: Vec<_> = args.command.iter().map(|word| word.to_string_lossy()).collect();
            (None, command, words.join(" "))
        }
    };
    let stage = dir.as_ref().map(|dir| Stage::new(dir.path()));
    if let (Some(stage), Some(misdeed)) = (&stage, args.misdeed) {
        stage.order(misdeed)?;
    }
    command.graces =
        CloseGraces { eof: Duration::from_millis(500), term: Duration::from_millis(250), ..Default::default() };
    let config = config()?;
    // No more than the timeout, however much progress a tool reports.
    let timeout = Duration::from_secs(args.call_timeout);
    let options = CallOptions { timeout, max_timeout: Some(timeout), ..CallOptions::default() };

    let mut report = Report::new(anstream::stdout(), args.json);
    let knobs = Knobs {
        stable_after_ms: millis(config.stable_after()),
        keepalive_ms: millis(config.keepalive()),
        ping_timeout_ms: millis(config.ping_timeout()),
        backoff_ms: millis(config.backoff()),
        demand_interval_ms: millis(config.demand_interval()),
        call_timeout_ms: millis(timeout),
    };
    report.tell(&Entry::Start { server: &server, rounds: args.rounds, faults: args.faults(), knobs })?;

    let connector = StdioConnector::new(command);
    let connection = Connection::builder(connector).name("demo").config(config).build().map_err(io::Error::other)?;
    let mut play = Play::new(connection.clone(), report, stage.clone(), options, config.stable_after());
    let played = tokio::select! {
        biased;
        _ = interrupt.recv() => Err(Stop::Signal(130)),
        _ = terminate.recv() => Err(Stop::Signal(143)),
        played = play.run(args.faults(), args.rounds, args.tool.as_deref()) => played,
    };
    let epochs = connection.snapshot().stats.sessions;
    // Only now is the ledger complete.
    connection.shutdown().await;
    let error = match played {
        Ok(()) => None,
        Err(Stop::Failed(error)) => Some(error),
        Err(Stop::Output(error)) => return Err(error),
        Err(Stop::Signal(status)) => return Ok(ExitCode::from(status)),
    };
    let ledger = stage.map(|stage| stage.ledger()).transpose()?;
    Ok(if play.finish(error, epochs, ledger.as_deref())? { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Low, so that a server can be lost once every few seconds: a session must be proven before the next fault, or the
/// losses would count as flapping.
fn config() -> io::Result<Config> {
    Config::builder()
        .stable_after(Duration::from_secs(1))
        .keepalive(Duration::from_secs(2))
        .ping_timeout(Duration::from_secs(1))
        .backoff(Duration::from_millis(500))
        .demand_interval(Duration::from_millis(500))
        .min_dial_interval(Duration::from_millis(250))
        .build()
        .map_err(io::Error::other)
}
