//! A fake server whose spawns are tasks of this process.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::engine::{Inbound, serve};
use super::host::{Exit, Grandchild, Host, Output, Route};
use super::ledger::{Event, Ledger, LedgerWatch, LedgerWriter};
use super::lex::ScriptError;
use super::script::{Script, Signal};

/// How many lines each direction of a link holds.
const CAPACITY: usize = 64;

/// A server that plays a script in memory, on tokio's clock.
#[derive(Debug)]
pub struct FakeServer {
    script: Mutex<Script>,
    ledger: watch::Sender<Ledger>,
    made: Instant,
    spawned: Mutex<Spawned>,
}

#[derive(Debug, Default)]
struct Spawned {
    count: u32,
    first: Option<Instant>,
}

impl FakeServer {
    /// A server without a spawn so far.
    ///
    /// # Errors
    ///
    /// The script does not follow the grammar.
    pub fn new(script: &str) -> Result<Self, ScriptError> {
        Ok(Self {
            script: Mutex::new(Script::parse(script)?),
            ledger: watch::Sender::new(Ledger::default()),
            made: Instant::now(),
            spawned: Mutex::default(),
        })
    }

    /// Replaces the script for the spawns to come.
    ///
    /// # Errors
    ///
    /// The script does not follow the grammar; the old one stays.
    pub fn set_script(&self, script: &str) -> Result<(), ScriptError> {
        *lock(&self.script) = Script::parse(script)?;
        Ok(())
    }

    /// What its spawns saw and did.
    pub fn ledger(&self) -> Ledger {
        self.ledger.borrow().clone()
    }

    /// The same, to wait for.
    pub fn watch(&self) -> LedgerWatch {
        LedgerWatch::new(self.ledger.subscribe())
    }

    /// Starts the next spawn, within a tokio runtime.
    pub fn spawn(&self) -> FakeLink {
        let (number, since_first) = {
            let mut spawned = lock(&self.spawned);
            spawned.count += 1;
            let first = *spawned.first.get_or_insert_with(Instant::now);
            (spawned.count, first.elapsed())
        };
        let plan = lock(&self.script).plan(number, since_first);
        let writer = LedgerWriter::memory(self.ledger.clone(), self.made, number);
        let (to_server, frames) = mpsc::channel(CAPACITY);
        let (output, from_server) = mpsc::channel(CAPACITY);
        let (signal, signals) = mpsc::unbounded_channel();
        let host = Arc::new(MemoryHost { output: Mutex::new(Some(output)), stderr: Mutex::default() });
        let (kill, mut killed) = mpsc::channel::<()>(1);
        let (ended, end) = watch::channel(None);
        drop(writer.record(Event::Spawned { pid: None })); // memory cannot refuse
        let handle = FakeHandle { signal, kill, end, host: Arc::clone(&host), number };
        tokio::spawn(async move {
            let serving = serve(plan, writer.clone(), Inbound { frames, signals }, Arc::clone(&host));
            let exit = tokio::select! {
                biased;
                Some(()) = killed.recv() => Exit::Killed,
                exit = serving => exit,
            };
            host.close_stdout();
            drop(writer.record(Event::Ended)); // memory cannot refuse
            ended.send_replace(Some(exit));
        });
        FakeLink { to_server, from_server, handle }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One spawn, as its client sees it.
#[derive(Debug)]
pub struct FakeLink {
    /// Lines to the server; dropping it is the end of the server's input.
    pub to_server: mpsc::Sender<Box<str>>,
    /// Lines from the server; closed when it closed its output or ended.
    pub from_server: mpsc::Receiver<Box<str>>,
    /// The way around the lines.
    pub handle: FakeHandle,
}

/// What one can do to a spawn from outside. Cheap to clone; dropping it does nothing, as with a process.
#[derive(Clone, Debug)]
pub struct FakeHandle {
    signal: mpsc::UnboundedSender<Signal>,
    kill: mpsc::Sender<()>,
    end: watch::Receiver<Option<Exit>>,
    host: Arc<MemoryHost>,
    number: u32,
}

impl FakeHandle {
    /// The number of the spawn, counted from 1.
    pub fn spawn(&self) -> u32 {
        self.number
    }

    /// Ends it at once, whatever it does. Idempotent.
    pub fn kill(&self) {
        // Full: it was killed before; closed: it has ended.
        self.kill.try_send(()).ok();
    }

    /// Sends it a signal; one that has ended does not hear it.
    pub fn signal(&self, signal: Signal) {
        self.signal.send(signal).ok();
    }

    /// How it ended, if it has.
    pub fn exit(&self) -> Option<Exit> {
        *self.end.borrow()
    }

    /// Waits for its end.
    pub async fn ended(&self) -> Exit {
        match self.end.clone().wait_for(Option::is_some).await {
            Ok(exit) => exit.unwrap_or(Exit::Killed),
            // Its runtime was shut down, which is like a kill.
            Err(_) => Exit::Killed,
        }
    }

    /// What it wrote to its error output so far.
    pub fn stderr(&self) -> Vec<u8> {
        lock(&self.host.stderr).clone()
    }
}

#[derive(Debug)]
struct MemoryHost {
    output: Mutex<Option<mpsc::Sender<Box<str>>>>,
    stderr: Mutex<Vec<u8>>,
}

impl Host for MemoryHost {
    /// Raw bytes arrive as the lines in them; what is not UTF-8 is replaced.
    async fn write(&self, _: &Route, output: Output) {
        let sender = lock(&self.output).clone();
        let Some(sender) = sender else { return };
        let raw;
        let lines: Vec<&str> = match &output {
            Output::Frame(frame) | Output::Answer(frame) => vec![frame],
            Output::Raw(bytes) => {
                raw = String::from_utf8_lossy(bytes);
                raw.split_terminator('\n').collect()
            }
            Output::Http(_) => return,
        };
        for line in lines {
            // Nobody reads: a process would get SIGPIPE or an error, and go on.
            drop(sender.send(line.into()).await);
        }
    }

    async fn stderr(&self, bytes: Vec<u8>) {
        lock(&self.stderr).extend(bytes);
    }

    fn close_stdout(&self) {
        lock(&self.output).take();
    }

    fn grandchild(&self, _: Grandchild) -> io::Result<Option<u32>> {
        Ok(None)
    }

    fn bind(&self, _: u16) -> io::Result<()> {
        Ok(())
    }

    fn deaf(&self) {}

    fn unattended(&self) {}
}
