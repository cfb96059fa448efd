//! A process in a group of its own whose output can be waited for; its whole group is gone with it.

use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::watch;
use tokio::time::timeout;

/// Within what everything that is waited for must happen: Python starts slowly, machines are shared.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Dropping it kills its group.
pub struct Process {
    child: Child,
    group: Pid,
    stdin: Option<ChildStdin>,
    lines: watch::Receiver<Vec<String>>,
}

impl Process {
    /// Starts it and waits for a line that contains `ready`.
    pub async fn start(command: &mut Command, ready: &str) -> Result<Self, String> {
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.process_group(0).kill_on_drop(true).spawn().map_err(|error| {
            format!("{}: {error}; was it installed?", command.as_std().get_program().to_string_lossy())
        })?;
        let group = child.id().and_then(|id| Pid::from_raw(id.cast_signed())).ok_or("a process without an id")?;
        let (sender, lines) = watch::channel(Vec::new());
        if let (Some(stdout), Some(stderr)) = (child.stdout.take(), child.stderr.take()) {
            tokio::spawn(read(stdout, sender.clone()));
            tokio::spawn(read(stderr, sender));
        }
        let stdin = child.stdin.take();
        let process = Self { child, group, stdin, lines };
        process.until(PATIENCE, |lines| lines.iter().any(|line| line.contains(ready))).await?;
        Ok(process)
    }

    /// Waits until the lines that it has printed so far satisfy `enough`.
    pub async fn until(&self, bound: Duration, enough: impl Fn(&[String]) -> bool) -> Result<(), String> {
        let mut lines = self.lines.clone();
        let waited = timeout(bound, lines.wait_for(|lines| enough(lines))).await;
        let why = match waited {
            Ok(Ok(_)) => return Ok(()),
            Ok(Err(_)) => "it ended".to_owned(),
            Err(_) => format!("not within {bound:?}"),
        };
        Err(format!("{why}; its last lines: {:?}", self.tail()))
    }

    /// How many lines so far contain this.
    pub fn count(&self, what: &str) -> usize {
        self.lines.borrow().iter().filter(|line| line.contains(what)).count()
    }

    /// The last lines that it printed.
    pub fn tail(&self) -> Vec<String> {
        let lines = self.lines.borrow();
        lines[lines.len().saturating_sub(5)..].to_vec()
    }

    /// Writes a line to its stdin.
    pub async fn tell(&mut self, line: &str) -> Result<(), String> {
        let stdin = self.stdin.as_mut().ok_or("no stdin")?;
        stdin.write_all(format!("{line}\n").as_bytes()).await.map_err(|error| error.to_string())
    }

    /// SIGKILL to the group; returns when the process is gone.
    pub async fn kill(mut self) -> Result<(), String> {
        kill_process_group(self.group, Signal::KILL).map_err(|error| error.to_string())?;
        self.child.wait().await.map(drop).map_err(|error| error.to_string())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.child.id().is_some() {
            _ = kill_process_group(self.group, Signal::KILL); // it may have ended by itself
        }
    }
}

async fn read(output: impl AsyncRead + Unpin, lines: watch::Sender<Vec<String>>) {
    let mut output = BufReader::new(output).split(b'\n');
    while let Ok(Some(line)) = output.next_segment().await {
        lines.send_modify(|lines| lines.push(String::from_utf8_lossy(&line).into_owned()));
    }
}
