//! Hosts over HTTP, in the place of one on stdin and stdout.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;

use clap::ValueEnum;
use mcp_reconnect::front::listen::{Exposure, ListenOptions, Listener, Opener, Origin};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::ProxyArgs;
use crate::signals::Signals;
use crate::source::WRONG;

#[derive(clap::Args)]
pub(super) struct ListenArgs {
    /// Serve any number of hosts at http://ADDRESS/mcp (streamable HTTP), not one on stdin and stdout; port 0 is a free one
    #[arg(long = "listen", value_name = "ADDRESS")]
    pub(super) address: Option<SocketAddr>,
    /// The machines that may reach that address: there are no credentials
    #[arg(long, value_enum, default_value_t = ExposeArg::Loopback, requires = "address")]
    expose: ExposeArg,
    /// An origin whose web pages may speak to it, besides those of this machine
    #[arg(long = "allow-origin", value_name = "ORIGIN", requires = "address")]
    allowed_origins: Vec<Origin>,
}

#[derive(Clone, Copy, ValueEnum)]
enum ExposeArg {
    /// This machine
    Loopback,
    /// All that can connect to it
    Any,
}

impl ListenArgs {
    fn options(&self) -> ListenOptions {
        let mut options = ListenOptions::default();
        options.exposure = match self.expose {
            ExposeArg::Loopback => Exposure::Loopback,
            ExposeArg::Any => Exposure::Any,
        };
        options.allowed_origins.clone_from(&self.allowed_origins);
        options
    }
}

/// Serves hosts until a signal ends it.
pub(super) async fn run(args: &ProxyArgs, address: SocketAddr, signals: &mut Signals) -> ExitCode {
    let plan = match args.plan() {
        Ok(plan) => plan,
        Err(status) => return ExitCode::from(status),
    };
    let bound = Listener::bind(address, args.listen.options()).await;
    let bound = bound.and_then(|listener| Ok((listener.local_addr()?, listener)));
    let (address, listener) = match bound {
        Ok(bound) => bound,
        Err(error) => {
            anstream::eprintln!("error: invalid value '{address}' for '--listen <ADDRESS>': {error}");
            return ExitCode::from(WRONG);
        }
    };
    // For scripts that wait for it, whatever the log's level.
    anstream::eprintln!("listening on http://{address}/mcp");
    let (stop, sessions) = (CancellationToken::new(), TaskTracker::new());
    let opener: Opener = {
        let sessions = sessions.clone();
        Arc::new(move |_| {
            // A front ends with its host's end.
            let (_, host, session) = plan.open(None, CancellationToken::new());
            sessions.spawn(session);
            host
        })
    };
    let serving = listener.serve(opener, stop.clone());
    tokio::pin!(serving);
    let status = tokio::select! {
        status = signals.next() => status,
        () = &mut serving => 0,
    };
    stop.cancel();
    if status != 0 {
        serving.await;
    }
    sessions.close();
    sessions.wait().await;
    ExitCode::from(status)
}
