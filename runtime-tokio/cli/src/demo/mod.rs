//! `mcp-reconnect demo`: loses a server on purpose, again and again, and shows what becomes of the calls.

mod args;
mod faults;
mod play;
mod report;
mod server;
mod stage;
mod subject;
mod tally;
mod target;

use std::io;
use std::process::ExitCode;
use std::time::Duration;

use mcp_reconnect::core::Config;
use mcp_reconnect::http::HttpConnector;
use mcp_reconnect::stdio::StdioConnector;
use mcp_reconnect::{Builder, CallOptions, CloseGraces, Connection, HttpServer, ServerCommand};
use tokio::signal::unix::{SignalKind, signal};

use crate::replay::recorder;
pub(crate) use args::DemoArgs;
use play::{Play, Stop};
use report::{Entry, Knobs, Report, millis};
pub(crate) use server::{ServerArgs, serve};
use stage::Stage;
use subject::{Host, Subject};

/// Time for the embedded server to let go of a session.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(500);

/// Runs the demo. When it returns the server is gone, and so is what it kept on disk.
pub(crate) async fn run(args: &DemoArgs) -> ExitCode {
    match try_run(args).await {
        Ok(code) => code,
        // A reader that has closed the pipe is not told so.
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
    let dir = tempfile::Builder::new().prefix("mcp-reconnect-demo-").tempdir()?;
    let stage = Stage::new(dir.path());
    if let Some(misdeed) = args.misdeed {
        stage.order(misdeed)?;
    }
    // First: a file that cannot be written leaves nothing behind.
    let recorder = args.record.as_deref().map(recorder).transpose()?;
    let (subject, server, mut builder) = cast(args, stage).await?;
    if let Some(recorder) = recorder {
        builder = builder.record(recorder);
    }
    let config = config()?;
    // No more than the timeout, however much progress a tool reports.
    let timeout = args.call_timeout();
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
    let watch = args.watch();
    report.tell(&Entry::Start {
        server: &server,
        rounds: watch.is_none().then_some(args.rounds),
        faults: args.faults(),
        seconds: watch.map(|long| long.as_secs()),
        knobs,
    })?;

    let connection = builder.name("demo").config(config).build().map_err(io::Error::other)?;
    let mut play = Play::new(connection, report, subject, options, config.stable_after());
    let tool = args.tool.as_deref();
    let played = tokio::select! {
        biased;
        _ = interrupt.recv() => Err(Stop::Signal(130)),
        _ = terminate.recv() => Err(Stop::Signal(143)),
        played = async {
            match watch {
                Some(long) => play.watch(long, tool).await,
                None => play.run(args.faults(), args.rounds, tool).await,
            }
        } => played,
    };
    play.close().await?;
    let error = match played {
        Ok(()) => None,
        Err(Stop::Failed(error)) => Some(error),
        Err(Stop::Output(error)) => return Err(error),
        Err(Stop::Signal(status)) => return Ok(ExitCode::from(status)),
    };
    Ok(if play.finish(error)? { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The subject of the demo, its name, and a connector to it.
async fn cast(args: &DemoArgs, stage: Stage) -> io::Result<(Subject, String, Builder)> {
    if let Some(server) = args.server() {
        let name = args::shown(server.url());
        return Ok((Subject::Remote, name, Connection::builder(HttpConnector::new(server))));
    }
    if args.http {
        let host = Host::start(stage).await?;
        let name = format!("the embedded server at {}", host.url());
        let server = HttpServer::new(&host.url()).map_err(io::Error::other)?.close_timeout(CLOSE_TIMEOUT);
        return Ok((Subject::Hosted(Box::new(host)), name, Connection::builder(HttpConnector::new(server))));
    }
    let (subject, name, mut command) = match &args.command[..] {
        [] => {
            let mut command = ServerCommand::new(std::env::current_exe()?);
            command.args = vec!["demo-server".into(), "--dir".into(), stage.dir().into()];
            (Subject::Embedded(stage), "the embedded server".to_owned(), command)
        }
        [program, rest @ ..] => {
            let mut command = ServerCommand::new(program);
            command.args = rest.to_vec();
            let words: Vec<_> = args.command.iter().map(|word| word.to_string_lossy()).collect();
            (Subject::Command, words.join(" "), command)
        }
    };
    command.graces =
        CloseGraces { eof: Duration::from_millis(500), term: Duration::from_millis(250), ..Default::default() };
    Ok((subject, name, Connection::builder(StdioConnector::new(command))))
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
