//! A fake server's files, and its processes from the outside.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use mcp_reconnect::link::{Attempt, ConnectError, Connector, Link};
use mcp_reconnect::stdio::StdioConnector;
use mcp_reconnect::{CloseGraces, ServerCommand};
use mcp_reconnect_core::FailureClass;
use rustix::fs::FlockOperation;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tokio::process::Command;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::book::{Book, Violation};
use super::plan::Nature;
use super::spawn::{Spawn, Tally};
use crate::fake::{Entry, Event, ReservedPort};
use crate::storm::dice::Dice;

/// After how many spawns an HTTP server may use an old session id again.
const SESSION_NAMES: usize = 400;
/// How long an HTTP server that ended stays away at most, in milliseconds.
const AWAY: u64 = 400;
const GRACES: CloseGraces = CloseGraces {
    eof: Duration::from_millis(100),
    term: Duration::from_millis(100),
    // It ends with the process, so it costs nothing where that is quick.
    kill: Duration::from_secs(5),
};

/// One server: a directory with a script and a ledger for each spawn, and the lock that its process tree holds.
#[derive(Debug)]
pub(super) struct Stage {
    server: usize,
    program: PathBuf,
    directory: PathBuf,
    pub(super) nature: Nature,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    dice: Dice,
    /// Only spawns that do nothing wrong.
    benign: bool,
    spawns: usize,
    /// Those whose ledgers may grow, or were not read yet.
    unread: Vec<Spawn>,
    /// The newest process. Not its pid, which may be given to another.
    process: Option<Arc<OwnedFd>>,
    faults: Tally,
}

impl Stage {
    pub(super) fn new(server: usize, program: &Path, root: &Path, nature: Nature, dice: Dice) -> io::Result<Self> {
        let directory = root.join(server.to_string());
        fs::create_dir(&directory)?;
        let (unread, faults) = (Vec::new(), Tally::new());
        let state = Mutex::new(State { dice, benign: true, spawns: 0, unread, process: None, faults });
        Ok(Self { server, program: program.into(), directory, nature, state })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set_benign(&self, benign: bool) {
        self.state().benign = benign;
    }

    pub(super) fn count(&self, fault: &'static str) {
        *self.state().faults.entry(fault).or_default() += 1;
    }

    pub(super) fn faults(&self) -> Tally {
        self.state().faults.clone()
    }

    pub(super) fn spawns(&self) -> usize {
        self.state().spawns
    }

    /// Draws the next spawn; its arguments. A ledger of its own keeps its start quick however long the run is.
    fn next_spawn(&self) -> io::Result<Vec<OsString>> {
        let mut state = self.state();
        let state = &mut *state;
        let plan = if state.benign { self.nature.benign() } else { self.nature.draw(&mut state.dice) };
        let number = state.spawns;
        state.spawns += 1;
        let script = self.directory.join("script");
        fs::write(&script, &plan.script)?;
        let ledger = self.directory.join(format!("ledger-{number}"));
        if self.nature.http {
            // Session ids are named after the spawns in the ledger: no two in a row may be the same.
            let mut lines = Vec::new();
            for spawn in 0..number % SESSION_NAMES {
                let spawn = u32::try_from(spawn).unwrap_or(u32::MAX);
                let entry = Entry { spawn, at: 0, event: Event::Spawned { pid: None } };
                writeln!(lines, "{}", serde_json::to_string(&entry)?)?;
            }
            fs::write(&ledger, lines)?;
        }
        plan.at_start.iter().for_each(|name| *state.faults.entry(name).or_default() += 1);
        let args = [("--script", script), ("--ledger", ledger.clone()), ("--alone", self.lock_path())];
        state.unread.push(Spawn::new(ledger, plan.in_calls));
        Ok(args.into_iter().flat_map(|(name, path)| [name.into(), path.into_os_string()]).collect())
    }

    /// The process of the newest spawn.
    fn entered(&self, pid: Option<u32>) {
        let pid = pid.and_then(|pid| Pid::from_raw(pid.cast_signed()));
        // One that has been reaped already gets no signal.
        let process = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        self.state().process = process.map(Arc::new);
    }

    /// The newest process, to be signalled: whoever holds it reaches that one and no other.
    pub(super) fn process(&self) -> Option<Arc<OwnedFd>> {
        self.state().process.clone()
    }

    /// Lets go of a process that has ended, or will.
    pub(super) fn forget_process(&self) {
        self.state().process = None;
    }

    /// Reads all that the spawns wrote. Only the newest may write more.
    pub(super) fn read_into(&self, book: &mut Book) -> io::Result<Vec<Violation>> {
        let mut state = self.state();
        let State { unread, faults, .. } = &mut *state;
        let mut wrong = Vec::new();
        for spawn in &mut *unread {
            spawn.read_into(self.server, book, faults, &mut wrong)?;
        }
        let newest = unread.pop();
        for spawn in std::mem::take(unread) {
            drop(fs::remove_file(spawn.ledger()));
        }
        unread.extend(newest);
        Ok(wrong)
    }

    fn lock_path(&self) -> PathBuf {
        self.directory.join("tree")
    }

    /// Waits until no process of any spawn is left; blocks a thread of its own for that long.
    pub(super) async fn alone(&self) -> io::Result<()> {
        let file = File::options().write(true).create(true).truncate(false).open(self.lock_path())?;
        let taken = tokio::task::spawn_blocking(move || rustix::fs::flock(&file, FlockOperation::LockExclusive));
        Ok(taken.await.map_err(io::Error::other)??)
    }
}

/// Whether it was there to get it.
pub(super) fn signal(process: &OwnedFd, signal: Signal) -> bool {
    pidfd_send_signal(process, signal).is_ok()
}

/// Links to children, each with the next plan.
pub(super) struct Children(pub(super) Arc<Stage>);

#[async_trait]
impl Connector for Children {
    async fn connect(&self, attempt: Attempt) -> Result<Link, ConnectError> {
        let stage = &self.0;
        let mut command = ServerCommand::new(&stage.program);
        let args = stage.next_spawn();
        command.args = args.map_err(|error| ConnectError::new(FailureClass::Transport, error.to_string()))?;
        command.graces = GRACES;
        let link = StdioConnector::new(command).connect(attempt).await?;
        stage.entered(link.control.facts().pid);
        Ok(link)
    }

    fn close_bound(&self) -> Duration {
        GRACES.total()
    }
}

/// Keeps an HTTP server running on its port, and starts it again a while after each end, until it is told to stop.
pub(super) async fn supervise(stage: Arc<Stage>, port: ReservedPort, stop: CancellationToken) -> io::Result<()> {
    let number = port.address()?.port().to_string();
    while !stop.is_cancelled() {
        let args = stage.next_spawn()?;
        let mut command = Command::new(&stage.program);
        command.args(args).args(["--http", &number]).kill_on_drop(true);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn()?;
        stage.entered(child.id());
        tokio::select! {
            ended = child.wait() => drop(ended?),
            () = stop.cancelled() => child.kill().await?,
        }
        stage.forget_process();
        let away = Duration::from_millis(stage.state().dice.up_to(AWAY));
        tokio::select! {
            () = sleep(away) => {}
            () = stop.cancelled() => {}
        }
    }
    Ok(())
}

/// Where an HTTP server is to listen.
pub(super) fn reserve() -> io::Result<(ReservedPort, SocketAddr)> {
    let port = ReservedPort::new()?;
    let address = port.address()?;
    Ok((port, address))
}
