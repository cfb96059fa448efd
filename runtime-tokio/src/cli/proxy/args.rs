//! What a front is told on the command line.

use std::fs::File;
use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use mcp_reconnect::Builder;
use mcp_reconnect::config::{Endpoint, Http, ServerConfig, Stdio};
use mcp_reconnect::core::ConfigBuilder;
use mcp_reconnect::core::replay::Replay;
use mcp_reconnect::front::FrontOptions;

use crate::source::{self, ConfigArgs, Source, WRONG, known, shown};
use crate::text::printable;

const HELP: &str = "\
In the host's config, put `mcp-reconnect` where the server's command was, and before its arguments `proxy --`:

  { \"mcpServers\": { \"files\": { \"command\": \"mcp-reconnect\",
      \"args\": [\"proxy\", \"--\", \"npx\", \"-y\", \"@modelcontextprotocol/server-filesystem\", \"/home/me\"] } } }

Exit status:
  0    the host has ended the session
  2    bad arguments, a config that is wrong, no such server
  130  interrupted (143: terminated)

No fault of the server ends the host's session. Stdout is the protocol's; the log goes to stderr.";

/// Serve a host on stdin and stdout, in front of a server that may come and go
#[derive(clap::Args)]
#[command(after_help = HELP)]
#[command(group = clap::ArgGroup::new("upstream").required(true).args(["command", "url", "server"]))]
pub(crate) struct ProxyArgs {
    /// The server's command and its arguments
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<std::ffi::OsString>,
    /// The server's URL (streamable HTTP)
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    /// A header for every request, as `Name: value`; `${VAR}` in it is this variable of the environment
    #[arg(long = "header", value_name = "HEADER", requires = "url")]
    headers: Vec<String>,
    /// The server of this name in the config
    #[arg(long, value_name = "NAME")]
    server: Option<String>,
    #[command(flatten)]
    config: ConfigArgs,
    /// What the server is called in messages and the log [default: its name in the config, else its command or host]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// How long the host's first requests wait for a server that is not there yet
    #[arg(long, value_name = "DURATION", value_parser = source::duration, default_value = "5s")]
    start_wait: Duration,
    /// How long a call waits for a server that is not there
    #[arg(long, value_name = "DURATION", value_parser = source::duration, default_value = "30s")]
    max_wait: Duration,
    /// How long a silent server may hold a call that can be sent again before it is given up
    #[arg(long, value_name = "DURATION", value_parser = source::duration, default_value = "25s")]
    hung_after: Duration,
    /// Which calls may be sent again when a session has failed under them
    #[arg(long, value_enum, default_value_t = ReplayArg::Annotated)]
    replay: ReplayArg,
    /// Where what the server says of itself is kept for the next start [default: in the user's cache folder]
    #[arg(long, value_name = "FILE")]
    cache: Option<PathBuf>,
    /// Keep nothing for the next start
    #[arg(long, conflicts_with = "cache")]
    no_cache: bool,
    /// Record what happens to the connection, for `mcp-reconnect replay`
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Log to this file instead of stderr
    #[arg(long, value_name = "FILE")]
    pub(super) log_file: Option<PathBuf>,
}

#[derive(Clone, Copy, ValueEnum)]
enum ReplayArg {
    /// None that may have run
    Never,
    /// Those of tools that are annotated as read-only or idempotent
    Annotated,
    /// All: a call may run twice
    Always,
}

impl From<ReplayArg> for Replay {
    fn from(replay: ReplayArg) -> Self {
        match replay {
            ReplayArg::Never => Self::NotRun,
            ReplayArg::Annotated => Self::Annotated,
            ReplayArg::Always => Self::Always,
        }
    }
}

/// How often a server is asked for a sign of life unless its config says otherwise, and how long it may take: a host
/// waits for a minute, as a rule, and a server that hangs must be found out and replaced within.
const KEEPALIVE: Duration = Duration::from_secs(15);
const PING_TIMEOUT: Duration = Duration::from_secs(5);

impl ProxyArgs {
    /// The server and how to serve.
    ///
    /// # Errors
    ///
    /// The exit status, when what is wrong was told.
    pub(super) fn front(&self) -> Result<(Builder, FrontOptions), u8> {
        let (name, mut server) = self.upstream()?;
        let name = self.name.clone().unwrap_or(name);
        let defaults = ServerConfig::new(server.endpoint.clone()).machine;
        if (server.machine.keepalive(), server.machine.ping_timeout())
            == (defaults.keepalive(), defaults.ping_timeout())
        {
            let prompt = ConfigBuilder::from(server.machine).keepalive(KEEPALIVE).ping_timeout(PING_TIMEOUT);
            server.machine = prompt.build().unwrap_or(server.machine);
        }
        let mut options = FrontOptions::default();
        options.start_wait = self.start_wait;
        options.calls.max_wait = self.max_wait;
        options.calls.hung_after = Some(self.hung_after);
        options.calls.replay = self.replay.into();
        options.cache = self.cache(&name, &server);
        options.name = name.as_str().into();
        let mut builder = server.builder(&name);
        if let Some(path) = &self.record {
            let file = File::create(path)
                .map_err(|error| wrong(&format!("invalid value '{}' for '--record <FILE>': {error}", shown(path))))?;
            builder = builder.record(file);
        }
        Ok((builder, options))
    }

    fn upstream(&self) -> Result<(String, ServerConfig), u8> {
        if let Some((program, args)) = self.command.split_first() {
            let mut stdio = Stdio::new(program);
            stdio.args = args.to_vec();
            let name = PathBuf::from(program).file_name().unwrap_or(program).to_string_lossy().into_owned();
            return Ok((name, ServerConfig::new(stdio)));
        }
        if let Some(url) = &self.url {
            let mut http = Http::new(url);
            for header in &self.headers {
                let (name, value) = self.header(header)?;
                http.headers.insert(name, value);
            }
            if let Err(error) = http.server() {
                return Err(wrong(&format!("invalid value for '--url <URL>': {error}")));
            }
            let host = url.split("://").nth(1).and_then(|rest| rest.split(['/', '?', '#']).next());
            let host = host.and_then(|host| host.rsplit('@').next());
            return Ok((host.unwrap_or("server").to_owned(), ServerConfig::new(Endpoint::Http(http))));
        }
        let Source { path, parsed } = self.config.load()?;
        let name = self.server.clone().unwrap_or_default();
        match parsed.config.servers.get(name.as_str()) {
            Some(server) => Ok((name, server.clone())),
            None => {
                let known = known(&parsed.config);
                Err(wrong(&format!("{}: no server `{}`: {known}", shown(&path), printable(&name))))
            }
        }
    }

    /// A header with what the environment has for its variables: a command line is for everybody to see.
    fn header(&self, header: &str) -> Result<(String, String), u8> {
        let Some((name, value)) = header.split_once(':') else {
            return Err(wrong("invalid value for '--header <HEADER>': write `Name: value`"));
        };
        let mut expanded = String::new();
        let mut rest = value.trim();
        while let Some((before, after)) = rest.split_once("${") {
            let Some((variable, after)) = after.split_once('}') else { break };
            let Ok(value) = std::env::var(variable) else {
                return Err(wrong(&format!("invalid value for '--header <HEADER>': `{variable}` is not set")));
            };
            expanded += before;
            expanded += &value;
            rest = after;
        }
        expanded += rest;
        Ok((name.trim().to_owned(), expanded))
    }

    fn cache(&self, name: &str, server: &ServerConfig) -> Option<PathBuf> {
        if self.no_cache {
            return None;
        }
        if self.cache.is_some() {
            return self.cache.clone();
        }
        let var = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let dir = var("XDG_CACHE_HOME").or_else(|| var("HOME").map(|home| home.join(".cache")))?;
        let name: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).take(32).collect();
        let digest = server.digest().to_string();
        let digest: String = digest.chars().filter(char::is_ascii_hexdigit).take(16).collect();
        Some(dir.join("mcp-reconnect").join(format!("{name}-{digest}.json")))
    }
}

fn wrong(why: &str) -> u8 {
    anstream::eprintln!("error: {why}");
    WRONG
}
