//! The server of one client: a process on a port of its own, which is refused while there is none.

use std::collections::{HashMap, HashSet, VecDeque};
use std::net::SocketAddr;

use mcp_reconnect_bench::programs::{Process, beside};
use mcp_reconnect_tests::fake::{Event, FakeProcess, HttpEvent, Ledger, ReservedPort};
use tokio::process::Command;

pub(super) struct Server {
    fake: FakeProcess,
    port: ReservedPort,
    process: Option<Process>,
}

/// Requests to an incarnation until it had run its first call.
pub(super) struct Asked {
    pub(super) posts: usize,
    pub(super) connections: usize,
}

impl Server {
    pub(super) async fn start(script: &str) -> Result<Self, String> {
        let fake = FakeProcess::new(beside("fake-server")?, script).map_err(|error| error.to_string())?;
        let port = ReservedPort::new().map_err(|error| error.to_string())?;
        let mut server = Self { fake, port, process: None };
        server.listen().await?;
        Ok(server)
    }

    pub(super) fn address(&self) -> Result<SocketAddr, String> {
        self.port.address().map_err(|error| error.to_string())
    }

    pub(super) fn url(&self) -> Result<String, String> {
        Ok(format!("http://{}/mcp", self.address()?))
    }

    /// SIGKILL; returns when it is gone.
    pub(super) async fn kill(&mut self) -> Result<(), String> {
        match self.process.take() {
            Some(process) => process.kill().await,
            None => Ok(()),
        }
    }

    /// Starts its next incarnation; returns when that listens.
    pub(super) async fn listen(&mut self) -> Result<(), String> {
        let port = self.address()?.port();
        let mut command = Command::new(self.fake.program());
        command.args(self.fake.http_args(port));
        self.process = Some(Process::start(&mut command, &port.to_string()).await?);
        Ok(())
    }

    pub(super) fn ledger(&self) -> Result<Ledger, String> {
        self.fake.ledger().map_err(|error| error.to_string())
    }
}

/// How many calls of this tool, each with a text of its own, were run more than once.
pub(super) fn doubled(ledger: &Ledger, tool: &str) -> usize {
    // Sessions count their requests alike: of those with the same id the first that came ran first.
    let (mut asked, mut ran, mut doubled) = (HashMap::<_, VecDeque<_>>::new(), HashSet::new(), HashSet::new());
    for entry in ledger.entries() {
        match &entry.event {
            Event::Request { id, tool: Some(wanted), params, .. } if wanted == tool => {
                let text = params["arguments"]["text"].to_string();
                asked.entry((entry.spawn, id.to_string())).or_default().push_back(text);
            }
            Event::Executed { tool: run, id } if run == tool => {
                let text = asked.get_mut(&(entry.spawn, id.to_string())).and_then(VecDeque::pop_front);
                if let Some(text) = text
                    && !ran.insert(text.clone())
                {
                    doubled.insert(text);
                }
            }
            _ => {}
        }
    }
    doubled.len()
}

/// Of each incarnation but the first, in order, if it ran a call.
pub(super) fn asked(ledger: &Ledger) -> Vec<Asked> {
    let mut all = Vec::new();
    let (mut spawn, mut posts, mut connections, mut over) = (0, 0, 0, true);
    for entry in ledger.entries() {
        if entry.spawn != spawn {
            (spawn, posts, connections, over) = (entry.spawn, 0, 0, entry.spawn == 1);
        }
        match &entry.event {
            Event::Http(HttpEvent::Asked(asked)) if asked.verb == "POST" => posts += 1,
            Event::Http(HttpEvent::Connected { .. }) => connections += 1,
            Event::Executed { .. } if !over => {
                over = true;
                all.push(Asked { posts, connections });
            }
            _ => {}
        }
    }
    all
}
