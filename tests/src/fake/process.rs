//! Fake servers that are real processes, from the outside.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::process::{Pid, Signal, kill_process};
use tokio::net::UnixDatagram;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::ledger::{Entry, Ledger, LedgerWatch};
use super::script::Script;

/// A script and a ledger for the binary `fake-server`, in a directory of their own.
///
/// Every process that is started with [`program`](Self::program) and [`args`](Self::args) is a spawn of this server.
/// Dropping it kills those that are left (found by their command line, on Linux) and removes the directory.
#[derive(Debug)]
pub struct FakeProcess {
    program: PathBuf,
    directory: PathBuf,
    watch: LedgerWatch,
    pump: Option<JoinHandle<()>>,
}

impl FakeProcess {
    /// A server without a spawn so far, within a tokio runtime. `program` is the binary: in integration tests of this
    /// crate `env!("CARGO_BIN_EXE_fake-server")`.
    ///
    /// # Errors
    ///
    /// The script does not follow the grammar, or the directory cannot be made.
    pub fn new(program: impl Into<PathBuf>, script: &str) -> io::Result<Self> {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let name = format!("fake-server-{}-{}", process::id(), MADE.fetch_add(1, Ordering::Relaxed));
        let directory = std::env::temp_dir().join(name);
        fs::create_dir(&directory)?;
        let (ledger, watch) = watch::channel(Ledger::default());
        // From here on, dropping it removes the directory.
        let mut made = Self { program: program.into(), directory, watch: LedgerWatch::new(watch), pump: None };
        made.set_script(script)?;
        let file = File::options().read(true).append(true).create_new(true).open(made.ledger_path())?;
        let bell = UnixDatagram::bind(made.bell_path())?;
        made.pump = Some(tokio::spawn(follow(file, bell, ledger)));
        Ok(made)
    }

    /// Replaces the script for the spawns to come.
    ///
    /// # Errors
    ///
    /// The script does not follow the grammar, or cannot be written; the old one stays.
    pub fn set_script(&self, script: &str) -> io::Result<()> {
        let script = Script::parse(script).map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        let new = self.directory.join("new-script");
        fs::write(&new, script.source())?;
        fs::rename(new, self.directory.join("script"))
    }

    /// The program to start.
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// Its arguments.
    pub fn args(&self) -> Vec<OsString> {
        let args = [("--script", self.directory.join("script")), ("--ledger", self.ledger_path())];
        let args = args.into_iter().chain([("--notify", self.bell_path())]);
        args.flat_map(|(name, path)| [name.into(), path.into_os_string()]).collect()
    }

    /// The same for one that speaks HTTP on this loopback port; 0 for any. It writes the port as its first line.
    pub fn http_args(&self, port: u16) -> Vec<OsString> {
        let mut args = self.args();
        args.extend(["--http".into(), port.to_string().into()]);
        args
    }

    /// What its spawns saw and did, read from the file now.
    ///
    /// # Errors
    ///
    /// The file cannot be read.
    pub fn ledger(&self) -> io::Result<Ledger> {
        Ledger::read(&self.ledger_path())
    }

    /// The same, to wait for.
    pub fn watch(&self) -> LedgerWatch {
        self.watch.clone()
    }

    fn ledger_path(&self) -> PathBuf {
        self.directory.join("ledger")
    }

    fn bell_path(&self) -> PathBuf {
        self.directory.join("bell")
    }

    fn kill_all(&self) {
        // A ledger that cannot be read names nobody; the processes' own caps remain.
        for pid in self.ledger().unwrap_or_default().live_pids() {
            let ours = fs::read(format!("/proc/{pid}/cmdline"))
                .is_ok_and(|line| String::from_utf8_lossy(&line).contains(&*self.directory.to_string_lossy()));
            let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
            if let Some(pid) = pid.filter(|_| ours) {
                // It may have ended meanwhile.
                kill_process(pid, Signal::KILL).ok();
            }
        }
    }
}

impl Drop for FakeProcess {
    fn drop(&mut self) {
        if let Some(pump) = &self.pump {
            pump.abort();
        }
        self.kill_all();
        // What cannot be removed lies in the system's temporary directory.
        drop(fs::remove_dir_all(&self.directory));
    }
}

/// Takes over new lines of the ledger whenever the bell rings.
async fn follow(mut file: File, bell: UnixDatagram, ledger: watch::Sender<Ledger>) {
    let mut rest = Vec::new();
    loop {
        if bell.recv(&mut [0]).await.is_err() {
            return;
        }
        // One look covers every bell so far.
        while bell.try_recv(&mut [0]).is_ok() {}
        if file.read_to_end(&mut rest).is_err() {
            return;
        }
        let whole = rest.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        let lines: Vec<u8> = rest.drain(..whole).collect();
        let entries: Result<Vec<Entry>, _> =
            lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).map(serde_json::from_slice).collect();
        let Ok(entries) = entries else { return };
        ledger.send_modify(|ledger| ledger.extend(entries));
    }
}

/// What a pid stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProcessState {
    Running,
    /// Ended, and not waited for.
    Zombie,
}

/// `None`: there is no such process.
#[cfg(target_os = "linux")]
pub(crate) fn process_state(pid: u32) -> Option<ProcessState> {
    // "PID (NAME) STATE …", where NAME may hold anything.
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(')')?;
    let ended = fields.trim_start().starts_with(['Z', 'X']);
    Some(if ended { ProcessState::Zombie } else { ProcessState::Running })
}

/// `None`: there is no such process. Zombies cannot be told from the living here.
#[cfg(not(target_os = "linux"))]
pub(crate) fn process_state(pid: u32) -> Option<ProcessState> {
    let pid = Pid::from_raw(i32::try_from(pid).ok()?)?;
    rustix::process::test_kill_process(pid).ok().map(|()| ProcessState::Running)
}
