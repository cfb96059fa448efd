//! Recording: the owner of a machine hands over what it was told, a thread of its own writes it.

use std::fmt;
use std::io::{self, Write};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, TrySendError, channel, sync_channel};
use std::thread;
use std::time::Duration;

use mcp_reconnect_core::{Input, Outputs, Timestamp};
use tracing::Span;

use super::format::{Answer, Header, dropped_line, header_line, step_lines};

/// How many inputs may wait to be written; what is beyond is dropped, and counted.
const WAITING: usize = 4096;
/// How many bytes are gathered for one write, while more is waiting.
const BATCH: usize = 64 * 1024;
/// How long the end of a connection waits for the last write.
const PATIENCE: Duration = Duration::from_secs(2);

/// Where a connection's trace goes; see [`Builder::record`](crate::Builder::record).
///
/// A thread of its own writes it, so a slow writer holds up nobody: where it falls behind by more than 4,096 inputs,
/// the trace says how many are missing. It is written out and flushed whenever nothing more is waiting. The end of the
/// connection waits up to two seconds for the last of it. When a write fails, one warning is logged, and nothing more
/// is recorded.
pub struct Recorder {
    writer: Box<dyn Write + Send>,
    outputs: bool,
}

impl Recorder {
    /// Records inputs only: they are enough to run it again.
    pub fn new(writer: impl Write + Send + 'static) -> Self {
        Self { writer: Box::new(writer), outputs: false }
    }

    /// Whether to record what the machine answered as well, so that a replay can tell whether another version would
    /// answer otherwise. Twice to three times as large. Default: no.
    #[must_use]
    pub fn outputs(mut self, outputs: bool) -> Self {
        self.outputs = outputs;
        self
    }

    /// Begins with the header.
    ///
    /// # Errors
    ///
    /// The system gives no thread.
    pub(crate) fn start(self, header: Header, span: Span) -> io::Result<Recording> {
        let (queue, entries) = sync_channel(WAITING);
        let (done, end) = channel();
        let missed = Arc::new(AtomicU64::new(0));
        let log = Log { dispatch: tracing::dispatcher::get_default(Clone::clone), span };
        let task = Task { writer: self.writer, entries, missed: missed.clone() };
        thread::Builder::new().name("mcp-trace".into()).spawn(move || run(task, &header, &log, done))?;
        Ok(Recording { queue, outputs: self.outputs, missed, end })
    }
}

impl<W: Write + Send + 'static> From<W> for Recorder {
    fn from(writer: W) -> Self {
        Self::new(writer)
    }
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder").field("outputs", &self.outputs).finish_non_exhaustive()
    }
}

/// The end that is filled. When it is dropped, the rest is written.
pub(crate) struct Recording {
    queue: SyncSender<Box<Told>>,
    outputs: bool,
    /// How many inputs were dropped since the last that was not.
    missed: Arc<AtomicU64>,
    /// Closed when everything is written.
    end: Receiver<()>,
}

/// One input on its way; boxed, so that the queue is small while it is empty.
struct Told {
    /// How many before it were dropped.
    missed: u64,
    at: Timestamp,
    input: Input,
    outputs: Option<Outputs>,
}

impl Recording {
    /// Takes one step over; never waits. `false`: nothing can be written any more.
    pub(crate) fn step(&self, at: Timestamp, input: Input, outputs: &Outputs) -> bool {
        let missed = self.missed.swap(0, Ordering::Relaxed);
        let told = Told { missed, at, input, outputs: self.outputs.then_some(*outputs) };
        match self.queue.try_send(Box::new(told)) {
            Ok(()) => true,
            Err(TrySendError::Full(_)) => {
                self.missed.store(missed.saturating_add(1), Ordering::Relaxed);
                true
            }
            Err(TrySendError::Disconnected(_)) => false,
        }
    }

    /// Waits until all of it is written, for a while: by the real clock, for it waits for a real writer.
    pub(crate) async fn finish(self) {
        let Self { queue, end, .. } = self;
        drop(queue);
        let written = tokio::task::spawn_blocking(move || end.recv_timeout(PATIENCE)).await;
        if matches!(written, Ok(Err(RecvTimeoutError::Timeout))) {
            tracing::warn!("the trace is still being written: it may be cut");
        }
    }
}

struct Task {
    writer: Box<dyn Write + Send>,
    entries: Receiver<Box<Told>>,
    missed: Arc<AtomicU64>,
}

/// Where the connection logs.
struct Log {
    dispatch: tracing::Dispatch,
    span: Span,
}

/// Writes until the queue ends. Once the queue is closed a warning has been logged; `done` is dropped last, after the
/// writer.
fn run(mut task: Task, header: &Header, log: &Log, done: Sender<()>) {
    if let Err(error) = task.write(header) {
        let warn = || log.span.in_scope(|| tracing::warn!(%error, "the trace cannot be written: it ends here"));
        tracing::dispatcher::with_default(&log.dispatch, warn);
    }
    drop(task);
    drop(done);
}

impl Task {
    fn write(&mut self, header: &Header) -> io::Result<()> {
        let Self { writer, entries, missed } = self;
        let mut lines = Vec::new();
        header_line(&mut lines, header)?;
        loop {
            writer.write_all(&lines)?;
            writer.flush()?;
            lines.clear();
            let Ok(told) = entries.recv() else { break };
            told.encode(&mut lines)?;
            while lines.len() < BATCH {
                let Ok(told) = entries.try_recv() else { break };
                told.encode(&mut lines)?;
            }
        }
        if let Some(count) = NonZeroU64::new(missed.load(Ordering::Relaxed)) {
            dropped_line(&mut lines, count)?;
            writer.write_all(&lines)?;
            writer.flush()?;
        }
        Ok(())
    }
}

impl Told {
    fn encode(&self, lines: &mut Vec<u8>) -> io::Result<()> {
        if let Some(count) = NonZeroU64::new(self.missed) {
            dropped_line(lines, count)?;
        }
        step_lines(lines, self.at, &self.input, self.outputs.as_ref().map(Answer::of).as_ref())
    }
}
