//! Writing what changed: seldom, in one place, and without making anybody wait.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::warning::{StateProblem, StateWarning};
use super::{SavedState, StateFile};

/// How long after a change the file is written, with all that changes meanwhile: at most one write in this time.
pub(crate) const SAVE_INTERVAL: Duration = Duration::from_secs(1);

/// How long [`Saver::finish`] waits at most for the last write.
pub(crate) const FINISH_TIMEOUT: Duration = Duration::from_secs(5);

/// Keeps a [`StateFile`] up to date: told that something changed, it collects the state and writes it.
///
/// A cheap handle: clones share the one writer, which ends when the last of them is dropped; what had changed by then
/// is written first.
#[derive(Clone, Debug)]
pub(crate) struct Saver {
    orders: Arc<watch::Sender<Order>>,
    outcome: watch::Receiver<Outcome>,
    file: Arc<StateFile>,
}

/// An order of the handles: a change marks the channel, this says whether it was the last one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Order {
    #[default]
    Save,
    Finish,
}

/// How the last write ended; `finished` when no other one comes.
#[derive(Clone, Debug, Default)]
struct Outcome {
    warning: Option<StateWarning>,
    finished: bool,
}

impl Saver {
    /// A saver, and the future that does its work, to be spawned on the runtime; nothing is written before the first
    /// [`changed`](Self::changed).
    ///
    /// `collect` is called for each write and must not block; a handle of this saver must not live in it, or it never
    /// ends. The write itself runs among the blocking tasks. The first of a row of writes that fail is told to `warn`;
    /// each later change is another try, as is the end.
    pub(crate) fn new(
        file: StateFile,
        collect: impl Fn() -> SavedState + Send + 'static,
        warn: impl Fn(&StateWarning) + Send + 'static,
    ) -> (Self, impl Future<Output = ()> + Send + 'static) {
        let (orders, receiver) = watch::channel(Order::default());
        let (sender, outcome) = watch::channel(Outcome::default());
        let file = Arc::new(file);
        let saver = Self { orders: Arc::new(orders), outcome, file: file.clone() };
        let writer = Writer { file, collect, warn, orders: receiver, outcome: sender };
        (saver, writer.run())
    }

    /// Says that something changed. Returns at once, from wherever it is called.
    pub(crate) fn changed(&self) {
        self.orders.send_modify(|_| ());
    }

    /// Writes the state of now, whatever was said to have changed, and ends the saver; waits for that at most
    /// [`FINISH_TIMEOUT`]. To be called before the connections are shut down: nothing is left to be kept after that.
    ///
    /// # Errors
    ///
    /// Why the last state is not in the file.
    pub(crate) async fn finish(&self) -> Result<(), StateWarning> {
        self.orders.send_replace(Order::Finish);
        let mut outcome = self.outcome.clone();
        match timeout(FINISH_TIMEOUT, outcome.wait_for(|outcome| outcome.finished)).await {
            Ok(Ok(outcome)) => outcome.warning.clone().map_or(Ok(()), Err),
            // The writer hangs in the file system, or its runtime or its spawner has dropped it.
            Ok(Err(_)) | Err(_) => Err(StateProblem::Unfinished.at(self.file.path())),
        }
    }
}

struct Writer<C, W> {
    file: Arc<StateFile>,
    collect: C,
    warn: W,
    orders: watch::Receiver<Order>,
    outcome: watch::Sender<Outcome>,
}

impl<C: Fn() -> SavedState + Send, W: Fn(&StateWarning) + Send> Writer<C, W> {
    async fn run(mut self) {
        loop {
            let last = match next(&mut self.orders).await {
                Some(Order::Save) => self.gather().await,
                Some(Order::Finish) => true,
                // The last state is in the file, unless it could not be written.
                None if self.outcome.borrow().warning.is_none() => break,
                None => true,
            };
            self.write().await;
            if last {
                break;
            }
        }
        self.outcome.send_modify(|outcome| outcome.finished = true);
    }

    /// Lets changes gather. True when no more will come.
    async fn gather(&mut self) -> bool {
        let finished = async {
            loop {
                if matches!(next(&mut self.orders).await, Some(Order::Finish) | None) {
                    return;
                }
            }
        };
        timeout(SAVE_INTERVAL, finished).await.is_ok()
    }

    async fn write(&mut self) {
        let state = (self.collect)();
        let file = self.file.clone();
        let written = spawn_blocking(move || file.save(&state)).await;
        // The runtime goes down.
        let written = written.unwrap_or_else(|_| Err(StateProblem::Unfinished.at(self.file.path())));
        let failed_before = self.outcome.borrow().warning.is_some();
        let warning = written.err();
        if let Some(warning) = warning.as_ref().filter(|_| !failed_before) {
            (self.warn)(warning);
        }
        self.outcome.send_modify(|outcome| outcome.warning = warning);
    }
}

/// The next order; `None` when every handle is gone.
async fn next(orders: &mut watch::Receiver<Order>) -> Option<Order> {
    orders.changed().await.ok()?;
    Some(*orders.borrow_and_update())
}
