//! The program between a host and the server.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use mcp_reconnect_tests::fake::ReservedPort;
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe;
use tokio::process::Command;
use tokio::time::timeout;

use crate::upstream::{Transport, Upstream};
use mcp_reconnect_bench::programs::Process;

/// How long it may live on when its host has ended.
const END: Duration = Duration::from_secs(15);

/// A kind of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Between {
    /// `mcp-reconnect proxy`.
    Front,
    McpRemote,
    McpProxy,
    /// The host speaks to the server itself.
    Nothing,
}

impl Between {
    pub(crate) const ALL: [Self; 4] = [Self::Front, Self::McpProxy, Self::McpRemote, Self::Nothing];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Front => "mcp-reconnect proxy",
            Self::McpRemote => "mcp-remote 0.15.1",
            Self::McpProxy => "mcp-proxy 0.13.0",
            Self::Nothing => "nothing",
        }
    }

    pub(crate) fn supports(self, transport: Transport) -> bool {
        self != Self::McpRemote || transport == Transport::Http
    }
}

/// One that is set up. Dropping it kills what is left of it.
pub(crate) struct Middle {
    /// Command that the host starts, or `--url` and the address that it connects to.
    pub(crate) server: Vec<OsString>,
    /// A file with its process ids.
    pids: PathBuf,
    /// Ends when no process holds it any more.
    alive: pipe::Receiver,
    service: Option<(ReservedPort, Process)>,
}

impl Middle {
    pub(crate) async fn new(
        between: Between,
        installed: &Path,
        upstream: &Upstream,
        scratch: &Path,
    ) -> Result<Self, String> {
        let alive = alive(&scratch.join("alive")).await.map_err(|error| error.to_string())?;
        let mut middle = Self { server: Vec::new(), pids: scratch.join("pids"), alive, service: None };
        let words = |words: &[&str]| words.iter().map(OsString::from).collect::<Vec<_>>();
        let server = match (between, upstream.url()) {
            (Between::Front, url) => {
                let mut server = front()?;
                match url {
                    Some(url) => server.extend(words(&["--url", &url])),
                    None => {
                        server.push("--".into());
                        server.extend(upstream.command());
                    }
                }
                server
            }
            (Between::McpRemote, Some(url)) => {
                let program = installed.join("node/node_modules/mcp-remote/dist/proxy.js");
                let mut server = vec![mcp_reconnect_bench::programs::node(installed).into(), program.into()];
                server.extend(words(&[&url, "--transport", "http-only"]));
                server
            }
            (Between::McpRemote, None) => return Err("it has no stdio upstream".to_owned()),
            (Between::McpProxy, Some(url)) => {
                let mut server = vec![installed.join("mcp-proxy/bin/mcp-proxy").into()];
                server.extend(words(&["--transport", "streamablehttp", &url]));
                server
            }
            // It serves a stdio server over HTTP, and nothing else.
            (Between::McpProxy, None) => {
                let port = ReservedPort::new().map_err(|error| error.to_string())?;
                let address = port.address().map_err(|error| error.to_string())?;
                let mut command = Command::new(installed.join("mcp-proxy/bin/mcp-proxy"));
                command.args(["--port", &address.port().to_string(), "--"]).args(upstream.command());
                middle.service = Some((port, Process::start(&mut command, "Uvicorn running on").await?));
                words(&["--url", &format!("http://{address}/mcp")])
            }
            (Between::Nothing, Some(url)) => words(&["--url", &url]),
            (Between::Nothing, None) => upstream.command(),
        };
        middle.server = if server.first().is_some_and(|word| word == "--url") { server } else { middle.noted(server) };
        Ok(middle)
    }

    /// The command, started so that its process is known, whatever group or session the SDK gives it, and that its end
    /// can be waited for, and that of its children.
    fn noted(&self, command: Vec<OsString>) -> Vec<OsString> {
        const NOTE: &str = r#"cd "$0" && echo $$ >>pids && exec 9>alive && cd / && exec "$@""#;
        let mut noted: Vec<OsString> = ["sh", "-c", NOTE].map(OsString::from).into();
        noted.push(self.folder().into());
        noted.extend(command);
        noted
    }

    /// Its processes so far: the host's SDK may start more than one.
    pub(crate) fn started(&self) -> Vec<Pid> {
        let pids = fs::read_to_string(&self.pids).unwrap_or_default();
        pids.lines().filter_map(|pid| pid.parse().ok().and_then(Pid::from_raw)).collect()
    }

    /// Whether a process of it runs; always, where the host is only told a URL.
    pub(crate) fn runs(&self) -> bool {
        let started = self.started();
        started.is_empty() || started.iter().any(|&pid| self.is_ours(pid))
    }

    /// Waits until nothing of it is left, a reasonable time; whether that is so.
    pub(crate) async fn ended(&mut self) -> bool {
        // A pipe that nobody has held does not end.
        self.started().is_empty() || timeout(END, self.alive.read_to_end(&mut Vec::new())).await.is_ok()
    }

    fn folder(&self) -> &Path {
        self.pids.parent().unwrap_or(&self.pids)
    }

    /// Whether it runs, and was started for this: this very folder is in its environment.
    fn is_ours(&self, pid: Pid) -> bool {
        let state = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let runs = state.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X']));
        let folder = self.folder().as_os_str().as_encoded_bytes();
        runs && fs::read(format!("/proc/{pid}/environ"))
            .is_ok_and(|environment| environment.split(|byte| *byte == 0).any(|entry| entry.ends_with(folder)))
    }
}

impl Drop for Middle {
    fn drop(&mut self) {
        // Whatever group, session or parent it has by now.
        let all = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok().and_then(Pid::from_raw));
        for pid in pids.filter(|&pid| self.is_ours(pid)) {
            _ = kill_process(pid, Signal::KILL); // it may have ended by itself
        }
    }
}

/// The command of the front, without its upstream.
pub(crate) fn front() -> Result<Vec<OsString>, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?.with_file_name("mcp-reconnect");
    let options = ["proxy", "--hung-after", "3s"];
    Ok(std::iter::once(program.into()).chain(options.map(OsString::from)).collect())
}

/// A named pipe that was made, and is open for reading.
async fn alive(path: &Path) -> io::Result<pipe::Receiver> {
    let made = Command::new("mkfifo").arg(path).status().await?;
    if !made.success() {
        return Err(io::Error::other("mkfifo failed"));
    }
    pipe::OpenOptions::new().open_receiver(path)
}
