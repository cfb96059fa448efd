//! `mcp-reconnect proxy`: in a host's config, in the place of a server that comes and goes.

mod args;
mod pipes;

use std::process::ExitCode;

use mcp_reconnect::front::Front;
use tokio_util::sync::CancellationToken;

use super::log;
use super::signals::Signals;
pub(crate) use args::ProxyArgs;

impl ProxyArgs {
    /// Where its log goes: stdout is the host's.
    pub(crate) fn log(&self) -> log::Target<'_> {
        self.log_file.as_deref().map_or(log::Target::Stderr, log::Target::File)
    }
}

pub(crate) async fn run(args: &ProxyArgs) -> ExitCode {
    let (upstream, options) = match args.front() {
        Ok(front) => front,
        Err(status) => return ExitCode::from(status),
    };
    let mut signals = match Signals::new() {
        Ok(signals) => signals,
        Err(error) => {
            anstream::eprintln!("error: {error}");
            return ExitCode::FAILURE;
        }
    };
    let stop = CancellationToken::new();
    let (host, session) = Front::new(upstream, options).open(stop.clone());
    let written = pipes::connect(host);
    tokio::pin!(session);
    let status = tokio::select! {
        biased;
        status = signals.next() => {
            stop.cancel();
            session.await;
            status
        }
        () = &mut session => 0,
    };
    // A host that does not read holds nothing up.
    written.await;
    ExitCode::from(status)
}
