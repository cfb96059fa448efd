//! The course of the demo: what it waits for, what it does then, and what it notes meanwhile.

use std::io::{self, Write};
use std::time::Duration;

use futures::FutureExt as _;
use mcp_reconnect::core::{Epoch, Status};
use mcp_reconnect::{CallOptions, Connection, Event, Events, Session};
use rustix::process::Pid;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;

use super::faults::Fault;
use super::report::{Entry, Rebuild, Report, Summary, millis};
use super::stage::Stage;
use super::tally::{Tally, runs};
use super::target::{Outcome, Record, Target, call_steadily};

/// How long anything that is waited for may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often the first start may fail.
const FIRST_STARTS: u64 = 3;

/// Why the demo ends early.
#[derive(Debug)]
pub(super) enum Stop {
    /// It did not go as it should.
    Failed(String),
    /// Nobody can be told any more.
    Output(io::Error),
    /// A signal; the exit status for it.
    Signal(u8),
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

/// The demo under way.
pub(super) struct Play<W> {
    connection: Connection,
    events: Events,
    report: Report<W>,
    stage: Option<Stage>,
    options: CallOptions,
    stable_after: Duration,
    callers: JoinSet<()>,
    calls: CancellationToken,
    records: mpsc::UnboundedReceiver<Record>,
    record: mpsc::UnboundedSender<Record>,
    targets: Vec<Caller>,
    rebuilds: Vec<Rebuild>,
    /// The status last told.
    status: Status,
    /// The last epoch that was Ready.
    epoch: Option<Epoch>,
}

/// One caller, as the demo sees it.
struct Caller {
    target: Target,
    tally: Tally,
    /// The last outcome that was no answer, until the next answer.
    trouble: Option<&'static str>,
    /// Its last answer: on which epoch, and since when that epoch answers.
    answered: Option<(u64, Instant)>,
}
