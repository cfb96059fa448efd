//! The watch without a terminal: JSON lines on stdout.

use std::io::{self, Write as _};
use std::time::Duration;

use mcp_reconnect::config::Parsed;
use mcp_reconnect::fleet::Fleet;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::super::signals::Signals;
use super::file::ConfigFile;
use super::line::{Entry, entry};

/// Number of lines that may wait for a slow reader; then events wait, and at last are told as missed.
const BACKLOG: usize = 64;
/// Time for the last lines to be read at the end.
const LAST_LINES: Duration = Duration::from_secs(1);

/// Applies the config, and its versions to come, until a signal comes or nobody reads any more.
pub(super) async fn run(
    fleet: &Fleet,
    parsed: Parsed,
    file: &mut ConfigFile,
    signals: &mut Signals,
    status_every: Option<Duration>,
) -> io::Result<()> {
    let mut events = fleet.events();
    let mut snapshots = status_every.map(|every| {
        let mut ticks = interval(every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ticks.reset(); // none yet: it says nothing
        ticks
    });
    let out = Out::start();
    let mut version = Some(Ok(parsed));
    let ended = loop {
        let (server, entry) = if let Some(version) = version.take() {
            let entry = Entry::of_config(file.path(), &version);
            if let Ok(parsed) = version {
                fleet.apply(parsed.config);
            }
            (None, entry)
        } else {
            tokio::select! {
                biased;
                _ = signals.next() => break Ok(()),
                () = out.closed() => break Err(io::ErrorKind::BrokenPipe.into()),
                Some(event) = events.next() => match entry(event) {
                    Some(told) => told,
                    None => continue,
                },
                read = file.next() => {
                    version = Some(read);
                    continue;
                }
                () = tick(&mut snapshots) => (None, Entry::Snapshot { servers: fleet.status() }),
            }
        };
        let line = entry.line(server.as_deref())?;
        tokio::select! {
            biased;
            _ = signals.next() => break Ok(()),
            told = out.tell(line) => if told.is_err() {
                break Err(io::ErrorKind::BrokenPipe.into());
            },
        }
    };
    out.end().await;
    ended
}

async fn tick(ticks: &mut Option<tokio::time::Interval>) {
    match ticks {
        Some(ticks) => _ = ticks.tick().await,
        None => std::future::pending().await,
    }
}

/// Stdout, written by a thread of its own: a reader that stops reading must not stop the connections.
struct Out {
    lines: mpsc::Sender<String>,
    /// Ends with the thread.
    ended: oneshot::Receiver<()>,
}

impl Out {
    fn start() -> Self {
        let (lines, mut waiting) = mpsc::channel::<String>(BACKLOG);
        let (running, ended) = oneshot::channel::<()>();
        std::thread::spawn(move || {
            let _running = running;
            let mut stdout = io::stdout().lock();
            while let Some(line) = waiting.blocking_recv() {
                if writeln!(stdout, "{line}").and_then(|()| stdout.flush()).is_err() {
                    return;
                }
            }
        });
        Self { lines, ended }
    }

    async fn tell(&self, line: String) -> Result<(), mpsc::error::SendError<String>> {
        self.lines.send(line).await
    }

    async fn closed(&self) {
        self.lines.closed().await;
    }

    /// Lets the lines that wait be read.
    async fn end(self) {
        drop(self.lines);
        drop(timeout(LAST_LINES, self.ended).await); // a reader that has not read by then does not read
    }
}
