//! The server that suffers.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use super::faults::Fault;
use super::server::ENDPOINT;
use super::stage::Stage;

/// Time for the server to listen.
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// The server, by its owner and its transport.
pub(super) enum Subject {
    /// The command that was named, over stdio: the connection runs it.
    Command,
    /// The embedded server, over stdio: the connection runs it.
    Embedded(Stage),
    /// The embedded server, over HTTP: the demo runs it.
    Hosted(Box<Host>),
    /// The URL that was named: others run it.
    Remote,
}

impl Subject {
    /// Behind the scenes, where the server is the embedded one.
    pub(super) fn stage(&self) -> Option<&Stage> {
        match self {
            Self::Embedded(stage) => Some(stage),
            Self::Hosted(host) => Some(&host.stage),
            Self::Command | Self::Remote => None,
        }
    }

    /// The process of a server that the connection does not run.
    pub(super) fn pid(&self) -> Option<u32> {
        match self {
            Self::Hosted(host) => host.child.id(),
            Self::Command | Self::Embedded(_) | Self::Remote => None,
        }
    }
}

/// The embedded server behind HTTP: a child in a process group of its own, which a Ctrl-C does not reach. It ends with
/// this, and when its stdin does.
pub(super) struct Host {
    stage: Stage,
    address: SocketAddr,
    child: Child,
}

impl Host {
    /// Starts it on a free port, and waits until it listens.
    pub(super) async fn start(stage: Stage) -> io::Result<Self> {
        let anywhere = (Ipv4Addr::LOCALHOST, 0).into();
        let child = spawn(&stage, anywhere)?;
        let mut host = Self { stage, address: anywhere, child };
        host.address = host.listening().await?;
        Ok(host)
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}{ENDPOINT}", self.address)
    }

    /// Ends the effect of a fault.
    pub(super) async fn relieve(&mut self, fault: Fault) -> io::Result<()> {
        match fault {
            Fault::Restart => {
                // Its port is free when it is reaped.
                self.stop().await?;
                self.child = spawn(&self.stage, self.address)?;
                self.listening().await.map(drop)
            }
            Fault::Freeze => {
                let group = self.child.id().and_then(|pid| Pid::from_raw(pid.try_into().ok()?));
                group.map_or(Ok(()), |group| Ok(kill_process_group(group, Signal::CONT)?))
            }
            Fault::Unavailable => self.stage.set_unavailable(false),
            Fault::Kill | Fault::Hang | Fault::CrashLoop => Ok(()),
        }
    }

    /// Kills it, and waits until nothing is left of it.
    pub(super) async fn stop(&mut self) -> io::Result<()> {
        self.child.kill().await
    }

    /// Reads its address, which is the first thing that it says.
    async fn listening(&mut self) -> io::Result<SocketAddr> {
        let Some(stdout) = self.child.stdout.take() else { return Err(io::Error::other("no stdout of the server")) };
        let mut lines = BufReader::new(stdout).lines();
        let line = timeout(START_TIMEOUT, lines.next_line()).await??;
        let line = line.ok_or_else(|| io::Error::other("the embedded server ended before it listened"))?;
        line.parse().map_err(|_| io::Error::other(format!("the embedded server listens on {line:?}")))
    }
}

fn spawn(stage: &Stage, address: SocketAddr) -> io::Result<Child> {
    Command::new(std::env::current_exe()?)
        .args(["demo-server", "--listen", &address.to_string(), "--dir"])
        .arg(stage.dir())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
}
