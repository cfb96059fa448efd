//! `mcp-reconnect proxy`: in a host's config, in the place of a server that comes and goes.

mod args;
mod listen;
mod pipes;
mod ready;
pub(crate) mod socket;

use std::process::ExitCode;

use tokio_util::sync::CancellationToken;

use super::log;
use super::signals::Signals;
pub(crate) use args::ProxyArgs;
use pipes::Pipes;

impl ProxyArgs {
    /// The place of its log: stdout is the host's.
    pub(crate) fn log(&self) -> log::Target<'_> {
        self.log_file.as_deref().map_or(log::Target::UnreadStderr, log::Target::File)
    }
}

pub(crate) async fn run(args: &ProxyArgs) -> ExitCode {
    let mut signals = match Signals::new() {
        Ok(signals) => signals,
        Err(error) => {
            anstream::eprintln!("error: {error}");
            return ExitCode::FAILURE;
        }
    };
    if let Some(address) = args.listen.address {
        return listen::run(args, address, &mut signals).await;
    }
    let stop = CancellationToken::new();
    let (plan, record) = match args.plan().and_then(|plan| Ok((plan, args.recording()?))) {
        Ok(plan) => plan,
        Err(status) => return ExitCode::from(status),
    };
    let (standing, host, session) = plan.open(record, stop.clone());
    // Removed when this function returns.
    let _socket = match args.status_socket(plan.name(), standing) {
        Ok(socket) => socket,
        Err(status) => return ExitCode::from(status),
    };
    // A task: the future that the runtime blocks on is polled last, and after one more look at the system.
    let mut session = tokio::spawn(session);
    let mut pipes = Pipes::connect(host);
    let told_to_end = async {
        let ended = async {
            pipes.end_of_input().await;
            // Messages that the front has taken by then may be answered, if the host reads.
            tokio::time::sleep(pipes::FLUSH_TIMEOUT).await;
        };
        tokio::select! {
            biased;
            status = signals.next() => status,
            () = ended => 0,
        }
    };
    let (status, ended) = tokio::select! {
        biased;
        status = told_to_end => {
            stop.cancel();
            (status, session.await)
        }
        ended = &mut session => (0, ended),
    };
    if let Err(error) = ended
        && let Ok(panic) = error.try_into_panic()
    {
        std::panic::resume_unwind(panic);
    }
    pipes.flushed().await;
    ExitCode::from(status)
}
