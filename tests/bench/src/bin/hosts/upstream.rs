//! The server behind it all: the fake server, and what is done to its processes.

use std::ffi::OsString;
use std::time::Duration;

use mcp_reconnect_tests::fake::{Event, FakeProcess, Ledger, ReservedPort};
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::Command;
use tokio::time::timeout;

use mcp_reconnect_bench::programs::Process;

/// How the server is spoken to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    Stdio,
    Http,
}

impl Transport {
    pub(crate) const ALL: [Self; 2] = [Self::Stdio, Self::Http];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Stdio => "stdio",
            Self::Http => "HTTP",
        }
    }
}

/// The server as a host sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Served {
    pub(crate) transport: Transport,
    /// `both`, so that a host gets the one that it prefers; or only `legacy` or `modern`.
    pub(crate) era: &'static str,
}

impl Served {
    pub(crate) fn name(self) -> String {
        match self.era {
            "both" => self.transport.name().to_owned(),
            era => format!("{}, {era} only", self.transport.name()),
        }
    }
}

/// Slow tools are there to be interrupted, before they ran or after.
const SCRIPT: &str = "capabilities tools(listChanged)
call slow_read commit, delay 1s
call slow_write commit, delay 1s
call late_write delay 1s
tools slow_read(readOnly), slow_write, late_write, echo(readOnly), write, ";
/// Further tool, before and after the restart with other tools.
const TOOLS: [&str; 2] = ["put(idempotent)", "search(readOnly)"];
/// Ends before it says anything.
const DOWN: &str = r#"initialize never
discover never
start stderr "no database\n", exit 1"#;

/// How long a call may take to come to the server before a fault is made without it.
const ARRIVAL: Duration = Duration::from_secs(5);

/// The fake server. Over stdio the program before it starts its processes; over HTTP this does.
pub(crate) struct Upstream {
    fake: FakeProcess,
    http: Option<(ReservedPort, Option<Process>)>,
    era: &'static str,
    other_tools: bool,
}

impl Upstream {
    pub(crate) async fn start(Served { transport, era }: Served) -> Result<Self, String> {
        let program = std::env::current_exe().map_err(|error| error.to_string())?.with_file_name("fake-server");
        let fake = FakeProcess::new(program, &script(era, false)).map_err(|error| error.to_string())?;
        let http = match transport {
            Transport::Stdio => None,
            Transport::Http => Some((ReservedPort::new().map_err(|error| error.to_string())?, None)),
        };
        let mut upstream = Self { fake, http, era, other_tools: false };
        upstream.start_process().await?;
        Ok(upstream)
    }

    /// Its command, over stdio.
    pub(crate) fn command(&self) -> Vec<OsString> {
        let mut command = vec![self.fake.program().into()];
        command.extend(self.fake.args());
        command
    }

    /// Where it listens, over HTTP.
    pub(crate) fn url(&self) -> Option<String> {
        let address = self.http.as_ref()?.0.address().ok()?;
        Some(format!("http://{address}/mcp"))
    }

    /// SIGKILL. Over HTTP it is back at once; over stdio that is up to the program that started it.
    pub(crate) async fn restart(&mut self) -> Result<(), String> {
        self.kill().await?;
        self.start_process().await
    }

    /// Restarts it as [`restart`](Self::restart), with other tools.
    pub(crate) async fn restart_with_other_tools(&mut self) -> Result<(), String> {
        self.other_tools = true;
        self.set_script(&script(self.era, true))?;
        self.restart().await
    }

    /// SIGKILL, and it cannot be started any more.
    pub(crate) async fn go_down(&mut self) -> Result<(), String> {
        self.set_script(DOWN)?;
        self.kill().await
    }

    /// It can be started again; over HTTP it is.
    pub(crate) async fn come_back(&mut self) -> Result<(), String> {
        self.set_script(&script(self.era, self.other_tools))?;
        self.start_process().await
    }

    /// SIGSTOP or SIGCONT, to every process of it.
    pub(crate) fn signal(&self, signal: Signal) -> Result<(), String> {
        for pid in self.ledger()?.live_pids() {
            if let Some(pid) = Pid::from_raw(pid.cast_signed()) {
                _ = kill_process(pid, signal); // it may have ended by itself
            }
        }
        Ok(())
    }

    pub(crate) fn ledger(&self) -> Result<Ledger, String> {
        self.fake.ledger().map_err(|error| error.to_string())
    }

    /// Waits until calls with all these texts have come to it, or so long that they will not.
    pub(crate) async fn until_asked(&self, texts: &[String]) {
        let asked =
            |ledger: &Ledger| texts.iter().all(|text| ledger.entries().iter().any(|entry| asks(&entry.event, text)));
        _ = timeout(ARRIVAL, self.fake.watch().wait_until(asked)).await;
    }

    async fn kill(&mut self) -> Result<(), String> {
        match &mut self.http {
            Some((_, process)) => match process.take() {
                Some(process) => process.kill().await,
                None => Ok(()),
            },
            None => self.signal(Signal::KILL),
        }
    }

    async fn start_process(&mut self) -> Result<(), String> {
        let Some((port, process)) = &mut self.http else { return Ok(()) };
        let port = port.address().map_err(|error| error.to_string())?.port();
        let mut command = Command::new(self.fake.program());
        command.args(self.fake.http_args(port));
        *process = Some(Process::start(&mut command, &port.to_string()).await?);
        Ok(())
    }

    fn set_script(&self, script: &str) -> Result<(), String> {
        self.fake.set_script(script).map_err(|error| error.to_string())
    }
}

fn script(era: &str, other_tools: bool) -> String {
    format!("era {era}\n{SCRIPT}{}\n", TOOLS[usize::from(other_tools)])
}

fn asks(event: &Event, wanted: &str) -> bool {
    matches!(event, Event::Request { tool: Some(_), params, .. } if params["arguments"]["text"] == wanted)
}
