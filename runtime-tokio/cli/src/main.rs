//! The command `mcp-reconnect`: parses its arguments and hands over.

mod attempt;
mod call;
mod check;
mod demo;
mod install;
mod log;
mod proxy;
mod replay;
mod signals;
mod source;
mod status;
mod text;
mod tools;
mod watch;

use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory as _, Parser, Subcommand};

/// Connections to MCP servers that never die for good and never lie about their state.
#[derive(Parser)]
#[command(name = "mcp-reconnect", version, max_term_width = 100)]
#[command(after_help = log::HELP)]
struct Cli {
    #[command(flatten)]
    log: log::LogArgs,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Proxy(Box<proxy::ProxyArgs>),
    Status(status::StatusArgs),
    Watch(watch::WatchArgs),
    Call(call::CallArgs),
    Tools(tools::ToolsArgs),
    Check(check::CheckArgs),
    Install(install::InstallArgs),
    Demo(Box<demo::DemoArgs>),
    Replay(replay::ReplayArgs),
    #[command(hide = true)]
    DemoServer(demo::ServerArgs),
}

impl Command {
    /// The place of its log, and the log's verbosity unless the user wants more.
    fn log(&self) -> (log::Target<'_>, u8) {
        match self {
            Self::Proxy(args) => (args.log(), 1),
            Self::Watch(args) => (args.log(), 1),
            Self::Call(_) | Self::Tools(_) | Self::Check(_) => (log::Target::Stderr, 1),
            Self::Status(_) | Self::Install(_) | Self::Demo(_) | Self::Replay(_) | Self::DemoServer(_) => {
                (log::Target::Stderr, 0)
            }
        }
    }
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let (target, level) = cli.command.log();
    // Until the end.
    let _log = match cli.log.init(&target, level) {
        Ok(log) => log,
        Err(error) => return usage(ErrorKind::InvalidValue, &error),
    };
    match cli.command {
        Command::Proxy(args) => block_on(proxy::run(&args)),
        Command::Status(args) => status::run(&args),
        Command::Watch(args) => block_on(watch::run(&args)),
        Command::Call(args) => block_on(call::run(&args)),
        Command::Tools(args) => block_on(tools::run(&args)),
        Command::Check(args) => block_on(check::run(&args)),
        Command::Install(args) => install::run(&args),
        Command::Demo(args) => match args.check() {
            Ok(()) => block_on(demo::run(&args)),
            Err(error) => usage(ErrorKind::ArgumentConflict, &error),
        },
        Command::Replay(args) => replay::run(&args),
        Command::DemoServer(args) => demo::serve(&args),
    }
}

/// Runs a command on one thread, which is enough: the slow work happens in other processes.
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
