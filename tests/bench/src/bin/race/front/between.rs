//! The program between the host and the server, and its start.

use std::ffi::OsString;
use std::path::Path;

use mcp_reconnect_bench::programs::{KEPT_IN, Process, beside, node};
use mcp_reconnect_tests::fake::{FakeProcess, ReservedPort};
use tokio::process::Command;

use super::host::Host;
use crate::Race;

/// A kind of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Between {
    /// The host speaks to the server itself.
    Nothing,
    /// `cat` on both ways, which copies bytes: one more process each.
    Cat,
    /// `mcp-reconnect proxy`.
    Front,
    McpProxy,
    McpRemote,
    /// fastmcp's proxy as it is made of a target: each request has a session of its own.
    Fastmcp,
    /// fastmcp's proxy made of a connected client: one session for all requests.
    FastmcpOneSession,
}

impl Between {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Nothing => "no proxy",
            Self::Cat => "`cat` on both ways",
            Self::Front => "mcp-reconnect proxy",
            Self::McpProxy => "mcp-proxy 0.13.0",
            Self::McpRemote => "mcp-remote 0.15.1",
            Self::Fastmcp => "fastmcp 4.2.3",
            Self::FastmcpOneSession => "fastmcp 4.2.3, one session",
        }
    }
}

/// The server, in the form that the program before it takes.
pub(crate) enum Upstream {
    /// To be started.
    Command(Vec<OsString>),
    /// It listens there, as long as this lives.
    Url { url: String, _process: Box<Process>, _port: ReservedPort },
}

impl Upstream {
    /// The fake server.
    pub(crate) fn fake(fake: &FakeProcess) -> Self {
        Self::Command(fake_command(fake))
    }

    /// The fake server over HTTP.
    pub(crate) async fn fake_http(fake: &FakeProcess) -> Result<Self, String> {
        let port = ReservedPort::new().map_err(|error| error.to_string())?;
        let address = port.address().map_err(|error| error.to_string())?;
        let number = address.port().to_string();
        let mut command = command(fake_command(fake))?;
        command.args(["--http", &number]);
        let process = Process::start(&mut command, &number).await?;
        Ok(Self::Url { url: format!("http://{address}/mcp"), _process: Box::new(process), _port: port })
    }

    /// A server on the Python SDK.
    pub(crate) fn python(installed: &Path) -> Self {
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/servers/python.py");
        Self::Command(vec![installed.join("mcp-2/bin/python").into(), source.into(), "stdio".into()])
    }

    /// After the options of a program.
    fn words(&self) -> Vec<OsString> {
        match self {
            Self::Command(command) => std::iter::once("--".into()).chain(command.iter().cloned()).collect(),
            Self::Url { url, .. } => vec!["--url".into(), url.into()],
        }
    }
}

/// Without the bell: nobody waits for entries of its ledger.
fn fake_command(fake: &FakeProcess) -> Vec<OsString> {
    let files = fake.args().into_iter().take(4);
    std::iter::once(fake.program().into()).chain(files).collect()
}

/// A host with its session, and what serves it where the host does not start that itself.
pub(crate) struct Candidate {
    pub(crate) between: Between,
    pub(crate) host: Host,
    pub(crate) service: Option<(Process, ReservedPort)>,
}

impl Candidate {
    /// The host over stdio; with nothing between, over what the server speaks.
    pub(crate) async fn start(between: Between, upstream: &Upstream, race: &Race) -> Result<Self, String> {
        let installed = &race.installed;
        let mut words: Vec<OsString> = Vec::new();
        match (between, upstream) {
            (Between::Nothing, Upstream::Command(command)) => words.clone_from(command),
            (Between::Nothing, Upstream::Url { url, .. }) => {
                return Ok(Self { between, host: Host::connect(url.clone()).await?, service: None });
            }
            (Between::Cat, Upstream::Command(command)) => {
                words.extend(["sh", "-c", r#"cat | "$@" | cat"#, "sh"].map(OsString::from));
                words.extend(command.iter().cloned());
            }
            (Between::Front, _) => {
                words.extend([beside("mcp-reconnect")?.into(), "proxy".into()]);
                words.extend(upstream.words());
            }
            (Between::McpProxy, Upstream::Url { url, .. }) => {
                words.push(installed.join("mcp-proxy/bin/mcp-proxy").into());
                words.extend(["--transport", "streamablehttp", url].map(OsString::from));
            }
            (Between::McpRemote, Upstream::Url { url, .. }) => {
                words.push(node(installed).into());
                words.push(installed.join("node/node_modules/mcp-remote/dist/proxy.js").into());
                words.extend([url, "--transport", "http-only"].map(OsString::from));
            }
            (Between::Fastmcp | Between::FastmcpOneSession, _) => {
                words.push(installed.join("fastmcp/bin/python").into());
                words.push(concat!(env!("CARGO_MANIFEST_DIR"), "/hosts/fastmcp_proxy.py").into());
                if between == Between::FastmcpOneSession {
                    words.push("--one-session".into());
                }
                if let Upstream::Url { .. } = upstream {
                    words.push("--".into());
                }
                words.extend(upstream.words());
            }
            (Between::McpProxy | Between::McpRemote, Upstream::Command(_)) | (Between::Cat, Upstream::Url { .. }) => {
                return Err("it does not reach this server for a host over stdio".into());
            }
        }
        let mut command = command(words)?;
        keep_files(&mut command, race);
        Ok(Self { between, host: Host::start(command).await?, service: None })
    }

    /// The host over HTTP, before a stdio server.
    pub(crate) async fn serving(between: Between, upstream: &Upstream, race: &Race) -> Result<Self, String> {
        let port = ReservedPort::new().map_err(|error| error.to_string())?;
        let address = port.address().map_err(|error| error.to_string())?;
        let mut words: Vec<OsString> = Vec::new();
        let ready = match between {
            Between::Front => {
                words.push(beside("mcp-reconnect")?.into());
                words.extend(["proxy", "--listen", &address.to_string()].map(OsString::from));
                "listening on"
            }
            Between::McpProxy => {
                words.push(race.installed.join("mcp-proxy/bin/mcp-proxy").into());
                words.extend(["--port", &address.port().to_string()].map(OsString::from));
                "Uvicorn running on"
            }
            _ => return Self::start(between, upstream, race).await,
        };
        words.extend(upstream.words());
        let mut command = command(words)?;
        keep_files(&mut command, race);
        let process = Process::start(&mut command, ready).await?;
        let host = Host::connect(format!("http://{address}/mcp")).await?;
        Ok(Self { between, host, service: Some((process, port)) })
    }

    pub(crate) async fn end(self) {
        self.host.end().await;
        if let Some((process, _port)) = self.service {
            _ = process.kill().await; // it may have ended by itself
        }
    }
}

fn command(words: Vec<OsString>) -> Result<Command, String> {
    let mut words = words.into_iter();
    let mut command = Command::new(words.next().ok_or("no command")?);
    command.args(words);
    Ok(command)
}

fn keep_files(command: &mut Command, race: &Race) {
    command.envs(KEPT_IN.map(|name| (name, race.scratch.path())));
}
