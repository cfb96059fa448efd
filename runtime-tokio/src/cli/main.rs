//! The command `mcp-reconnect`: parses its arguments and hands over.

mod demo;

use std::io;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{ArgAction, CommandFactory as _, Parser, Subcommand};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// Which log lines are written, as `target=level,…`; more than any `-v` says.
const LOG_ENV: &str = "MCP_RECONNECT_LOG";

/// Connections to MCP servers that never die for good and never lie about their state.
#[derive(Parser)]
#[command(name = "mcp-reconnect", version, max_term_width = 100)]
#[command(
    after_help = "Environment:\n  MCP_RECONNECT_LOG  which log lines go to stderr: `debug`, `mcp_reconnect=trace,info`, …"
)]
struct Cli {
    /// Log to stderr; twice for more, three times for everything
    #[arg(short, long, action = ArgAction::Count, global = true)]
    verbose: u8,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Demo(Box<demo::DemoArgs>),
    #[command(hide = true)]
    DemoServer(demo::ServerArgs),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    if let Err(error) = log(cli.verbose) {
        return usage(ErrorKind::InvalidValue, &error);
    }
    match cli.command {
        Command::Demo(args) => match args.check() {
            Ok(()) => block_on(demo::run(&args)),
            Err(error) => usage(ErrorKind::ArgumentConflict, &error),
        },
        Command::DemoServer(args) => demo::serve(&args),
    }
}

/// One thread is enough: what takes time happens in other processes.
fn block_on(command: impl Future<Output = ExitCode>) -> ExitCode {
    match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime.block_on(command),
        Err(error) => {
            anstream::eprintln!("error: no runtime: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Tells what is wrong with the arguments, as clap does.
fn usage(kind: ErrorKind, error: &str) -> ExitCode {
    Cli::command().error(kind, error).exit()
}

fn log(verbose: u8) -> Result<(), String> {
    let wanted = match std::env::var(LOG_ENV) {
        Ok(filter) => filter.parse().map_err(|error| format!("invalid value '{filter}' for '{LOG_ENV}': {error}"))?,
        Err(std::env::VarError::NotUnicode(value)) => return Err(format!("invalid value {value:?} for '{LOG_ENV}'")),
        Err(std::env::VarError::NotPresent) => match verbose {
            0 => return Ok(()),
            1 => Targets::new().with_target("mcp_reconnect", tracing::Level::INFO),
            2 => Targets::new().with_target("mcp_reconnect", tracing::Level::DEBUG),
            _ => Targets::new().with_default(tracing::Level::TRACE),
        },
    };
    let lines = tracing_subscriber::fmt::layer().with_writer(io::stderr).with_ansi(colour_on_stderr());
    tracing_subscriber::registry().with(lines).with(wanted).init();
    Ok(())
}

fn colour_on_stderr() -> bool {
    anstream::AutoStream::choice(&io::stderr()) != anstream::ColorChoice::Never
}
