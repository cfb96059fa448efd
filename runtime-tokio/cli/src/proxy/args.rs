//! A front's command line.

use std::collections::BTreeMap;
use std::fs::File;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use clap::ValueEnum;
use mcp_reconnect::CallOptions;
use mcp_reconnect::config::{CataloguePolicy, Connect, Endpoint, FleetConfig, Http, ServerConfig, Stdio};
use mcp_reconnect::core::ConfigBuilder;
use mcp_reconnect::core::replay::ReplayPolicy;
use mcp_reconnect::front::{Front, FrontAll, FrontAllOptions, FrontOptions, FrontStatus, HostEnd};
use tokio_util::sync::CancellationToken;

use super::listen::ListenArgs;
use super::pipes::MESSAGE_LIMIT;
use super::socket::StatusSocket;
use crate::source::{self, ConfigArgs, WRONG, known, shown};
use crate::text::printable;

const HELP: &str = "\
In the host's config, put `mcp-reconnect` where the server's command was, and before its arguments `proxy --`:

  { \"mcpServers\": { \"files\": { \"command\": \"mcp-reconnect\",
      \"args\": [\"proxy\", \"--\", \"npx\", \"-y\", \"@modelcontextprotocol/server-filesystem\", \"/home/me\"] } } }

With --server NAME or --all, what the config says of a server holds: which tools it has, what calls may take.

Exit status:
  0    the host has ended the session
  2    bad arguments, a config that is wrong, no such server
  130  interrupted (143: terminated, 129: the terminal is gone)

No fault of the server ends the host's session. Stdout is the protocol's; the log goes to stderr.";

/// Serve a host on stdin and stdout, in front of a server that may come and go
#[derive(clap::Args)]
#[command(after_help = HELP)]
#[command(group = clap::ArgGroup::new("upstream").required(true).args(["command", "url", "server", "all"]))]
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
    /// Every enabled server of the config; their tools are called `server__tool`
    #[arg(long, conflicts_with_all = ["name", "cache", "record"])]
    all: bool,
    #[command(flatten)]
    config: ConfigArgs,
    /// The server's name in messages and the log [default: its name in the config, else its command or host]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// How long the host's first requests wait for a server that is not there yet
    #[arg(long, value_name = "DURATION", value_parser = source::duration, default_value = "5s")]
    start_wait: Duration,
    /// How long a call waits for a server that is not there [default: what its config says, else 30s]
    #[arg(long, value_name = "DURATION", value_parser = source::duration)]
    max_wait: Option<Duration>,
    /// How long a silent server may hold a call that can be sent again before it is given up [default: 25s over HTTP,
    /// else 65s]
    #[arg(long, value_name = "DURATION", value_parser = source::duration)]
    hung_after: Option<Duration>,
    /// Which calls may be sent again when a session has failed under them [default: what its config says, else
    /// annotated]
    #[arg(long, value_enum)]
    replay: Option<ReplayArg>,
    /// Add two tools by which a model sees how the connection stands, and tries to have it back
    #[arg(long)]
    control_tools: bool,
    /// Where what the server says of itself is kept for the next start [default: in the user's cache folder]
    #[arg(long, value_name = "FILE")]
    cache: Option<PathBuf>,
    /// Keep nothing for the next start
    #[arg(long, conflicts_with = "cache")]
    no_cache: bool,
    /// Record what happens to the connection, for `mcp-reconnect replay`
    #[arg(long, value_name = "FILE", conflicts_with = "address")]
    record: Option<PathBuf>,
    #[command(flatten)]
    pub(super) listen: ListenArgs,
    /// Log to this file instead of stderr
    #[arg(long, value_name = "FILE")]
    pub(super) log_file: Option<PathBuf>,
    /// Tell `mcp-reconnect status` how things stand, on this Unix socket; `auto`: on one that it finds by itself
    #[arg(long, value_name = "PATH", conflicts_with = "address")]
    status_socket: Option<PathBuf>,
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

impl From<ReplayArg> for ReplayPolicy {
    fn from(replay: ReplayArg) -> Self {
        match replay {
            ReplayArg::Never => Self::NotRun,
            ReplayArg::Annotated => Self::Annotated,
            ReplayArg::Always => Self::Always,
        }
    }
}

/// Silence after which a server is asked for a sign of life unless its config says otherwise, and time to give one: a
/// host waits for a minute, as a rule, and a server that hangs must be found out and replaced within.
const KEEPALIVE: Duration = Duration::from_secs(15);
const PING_TIMEOUT: Duration = Duration::from_secs(5);

/// Time for a server to end after the end of its input, SIGTERM and SIGKILL, unless its config says otherwise.
/// Hosts end a server that does not end by itself after 2 s each by SIGTERM and SIGKILL: by then nothing must be left
/// behind the front.
const CLOSE: [Duration; 3] = [Duration::from_millis(1_500), Duration::from_millis(1_500), Duration::from_millis(500)];

/// The servers and options of fronts, enough for any number of hosts.
pub(super) enum Plan {
    One { server: Box<ServerConfig>, options: FrontOptions },
    All { config: FleetConfig, options: FrontAllOptions, each: BTreeMap<Box<str>, FrontOptions> },
}

/// A host's session, as long as it is polled.
pub(super) type Session = Pin<Box<dyn Future<Output = ()> + Send>>;

impl Plan {
    /// The name of what is served.
    pub(super) fn name(&self) -> &Arc<str> {
        match self {
            Self::One { options, .. } => &options.name,
            Self::All { options, .. } => &options.name,
        }
    }

    /// A front for one host: how it stands, the host's end, and its session.
    pub(super) fn open(&self, record: Option<File>, stop: CancellationToken) -> (FrontStatus, HostEnd, Session) {
        match self {
            Self::One { server, options } => {
                let mut builder = server.builder(&options.name).connect(Connect::Eager);
                if let Some(file) = record {
                    builder = builder.record(file);
                }
                let front = Front::new(builder, options.clone());
                let status = front.status();
                let (host, session) = front.open(stop);
                (status, host, Box::pin(session))
            }
            Self::All { config, options, each } => {
                let of = |name: &str, _: &ServerConfig| each.get(name).cloned().unwrap_or_default();
                let front = FrontAll::new(config.clone(), options.clone(), of);
                let status = front.status();
                let (host, session) = front.open(stop);
                (status, host, Box::pin(session))
            }
        }
    }
}

impl ProxyArgs {
    /// Makes the plan from the arguments and the config.
    ///
    /// # Errors
    ///
    /// The exit status, once the problem was told on stderr.
    pub(super) fn plan(&self) -> Result<Plan, u8> {
        if self.all {
            return self.every_server();
        }
        let (name, mut server) = self.upstream()?;
        let name = self.name.clone().unwrap_or(name);
        prepare(&name, &mut server);
        // There are no others whose redials it could meet.
        if server.machine.redial_spread() == ServerConfig::new(server.endpoint.clone()).machine.redial_spread() {
            let alone = server.connector().config().redial_spread();
            server.machine = ConfigBuilder::from(server.machine).redial_spread(alone).build().unwrap_or(server.machine);
        }
        let options = self.options(&name, &server)?;
        Ok(Plan::One { server: Box::new(server), options })
    }

    /// Opens the recording, if one is wanted.
    ///
    /// # Errors
    ///
    /// The exit status, once the problem was told on stderr.
    pub(super) fn recording(&self) -> Result<Option<File>, u8> {
        let create = |path: &PathBuf| File::create(path).map_err(|error| unusable(path, "--record <FILE>", &error));
        self.record.as_ref().map(create).transpose()
    }

    fn every_server(&self) -> Result<Plan, u8> {
        let (path, mut config) = self.config.load_usable()?;
        if !config.servers.values().any(|server| server.enabled) {
            return Err(wrong(&format!("{}: no server is enabled: {}", shown(&path), known(&config))));
        }
        let mut each = BTreeMap::new();
        for (name, server) in config.servers.iter_mut().filter(|(_, server)| server.enabled) {
            prepare(name, server);
            each.insert(name.clone(), self.options(name, server)?);
        }
        let mut options = FrontAllOptions::default();
        options.start_wait = self.start_wait;
        options.control_tools = self.control_tools;
        Ok(Plan::All { config, options, each })
    }

    /// The options of one server's front: from the command line, else from its config.
    fn options(&self, name: &str, server: &ServerConfig) -> Result<FrontOptions, u8> {
        let mut options = FrontOptions::default();
        options.name = name.into();
        options.start_wait = self.start_wait;
        options.tools = server.tools.clone();
        options.control_tools = self.control_tools;
        options.cache = self.cache(name, server)?;
        let (calls, configured, usual) = (&mut options.calls, server.calls, CallOptions::default());
        if configured.timeout != usual.timeout {
            calls.timeout = configured.timeout;
        }
        if configured.max_wait != usual.max_wait {
            calls.max_wait = configured.max_wait;
        }
        calls.max_timeout = configured.max_timeout;
        calls.replay = self.replay.map_or(configured.replay, Into::into);
        calls.max_wait = self.max_wait.unwrap_or(calls.max_wait);
        calls.hung_after = self.hung_after.or(configured.hung_after).or(calls.hung_after);
        Ok(options)
    }

    fn upstream(&self) -> Result<(String, ServerConfig), u8> {
        // clap lets these pass beside what their partner conflicts with.
        if self.url.is_none() && !self.headers.is_empty() {
            return Err(wrong("'--header <HEADER>' goes with '--url <URL>' alone"));
        }
        if self.server.is_none() && self.config.is_named() {
            return Err(wrong("'--config <FILE>' goes with '--server <NAME>' alone"));
        }
        if let Some((program, args)) = self.command.split_first() {
            let mut stdio = Stdio::new(program);
            stdio.args = args.to_vec();
            let name = PathBuf::from(program).file_name().unwrap_or(program).to_string_lossy().into_owned();
            return Ok((name, ServerConfig::new(stdio)));
        }
        if let Some(url) = &self.url {
            return Ok((host(url).to_owned(), ServerConfig::new(Endpoint::Http(self.http(url)?))));
        }
        // A host that names a server wants it, whether the config's other users do or not.
        let name = self.server.clone().unwrap_or_default();
        self.config.load_server(&name).map(|server| (name, server))
    }

    fn http(&self, url: &str) -> Result<Http, u8> {
        let mut http = Http::new(url);
        if let Err(error) = http.server() {
            return Err(wrong(&format!("invalid value '{}' for '--url <URL>': {error}", origin(url))));
        }
        for (place, header) in (1..).zip(&self.headers) {
            // The wrong part may be the secret.
            let invalid = |why: &str| wrong(&format!("invalid value for '--header <HEADER>', number {place}: {why}"));
            let (name, value) = header.split_once(':').ok_or_else(|| invalid("write `Name: value`"))?;
            let (name, value) = (name.trim(), expanded(value.trim()).map_err(|why| invalid(&why))?);
            if http.headers.insert(name.to_owned(), value).is_some() {
                return Err(invalid(&format!("`{}` is given twice", printable(name))));
            }
            http.server().map_err(|error| invalid(&printable(&error.to_string())))?;
        }
        Ok(http)
    }

    fn cache(&self, name: &str, server: &ServerConfig) -> Result<Option<PathBuf>, u8> {
        if self.no_cache {
            return Ok(None);
        }
        if let Some(path) = &self.cache {
            // As it will be written: another file in its folder, which takes its place.
            let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
            let usable = if path.is_dir() { Err(std::io::ErrorKind::IsADirectory.into()) } else { Ok(()) };
            let usable = usable.and_then(|()| std::fs::create_dir_all(dir));
            let usable = usable.and_then(|()| tempfile::NamedTempFile::new_in(dir));
            return usable.map(|_| Some(path.clone())).map_err(|error| unusable(path, "--cache <FILE>", &error));
        }
        let var = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let dir = var("XDG_CACHE_HOME").or_else(|| var("HOME").map(|home| home.join(".cache")));
        let name: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).take(32).collect();
        let digest = server.digest().to_string();
        let digest: String = digest.chars().filter(char::is_ascii_hexdigit).take(16).collect();
        Ok(dir.map(|dir| dir.join("mcp-reconnect").join(format!("{name}-{digest}.json"))))
    }

    /// The socket that tells how things stand, where one is wanted.
    ///
    /// # Errors
    ///
    /// The exit status, once the problem was told on stderr.
    pub(super) fn status_socket(&self, name: &Arc<str>, status: FrontStatus) -> Result<Option<StatusSocket>, u8> {
        let Some(path) = &self.status_socket else { return Ok(None) };
        let socket = StatusSocket::open(path, name, status);
        socket.map(Some).map_err(|error| unusable(path, "--status-socket <PATH>", &error))
    }
}

/// Sets what suits a host best, where the config says nothing else.
fn for_host(endpoint: &mut Endpoint) {
    let limit = NonZeroUsize::new(MESSAGE_LIMIT);
    match endpoint {
        Endpoint::Stdio(stdio) => {
            stdio.frame_limit = stdio.frame_limit.or(limit);
            let defaults = Stdio::new("");
            let ladder = [&mut stdio.close_eof, &mut stdio.close_term, &mut stdio.close_kill];
            let defaults = [defaults.close_eof, defaults.close_term, defaults.close_kill];
            if ladder.iter().zip(defaults).all(|(grace, default)| **grace == default) {
                ladder.into_iter().zip(CLOSE).for_each(|(grace, short)| *grace = short);
            }
        }
        Endpoint::Http(http) => http.frame_limit = http.frame_limit.or(limit),
        _ => {}
    }
}

/// Expands the variables in a header's value from the environment: a command line is for everybody to see.
fn expanded(value: &str) -> Result<String, String> {
    let mut expanded = String::new();
    let mut rest = value;
    while let Some((before, after)) = rest.split_once("${") {
        let Some((variable, after)) = after.split_once('}') else { break };
        let held = std::env::var(variable).map_err(|_| format!("`${{{}}}` is not set", printable(variable)))?;
        expanded += before;
        expanded += &held;
        rest = after;
    }
    Ok(expanded + rest)
}

/// Scheme, host and port: all of a URL that is no secret.
fn origin(url: &str) -> String {
    let scheme = url.split_once("://").map(|(scheme, _)| format!("{scheme}://"));
    printable(&format!("{}{}", scheme.unwrap_or_default(), host(url))).into_owned()
}

fn host(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    authority.rsplit('@').next().filter(|host| !host.is_empty()).unwrap_or("server")
}

fn unusable(path: &Path, option: &str, error: &std::io::Error) -> u8 {
    wrong(&format!("invalid value '{}' for '{option}': {error}", shown(path)))
}

/// Sets what is different for a server behind a front.
fn prepare(name: &str, server: &mut ServerConfig) {
    let defaults = ServerConfig::new(server.endpoint.clone()).machine;
    if (server.machine.keepalive(), server.machine.ping_timeout()) == (defaults.keepalive(), defaults.ping_timeout()) {
        let prompt = ConfigBuilder::from(server.machine).keepalive(KEEPALIVE).ping_timeout(PING_TIMEOUT);
        server.machine = prompt.build().unwrap_or(server.machine);
    }
    for_host(&mut server.endpoint);
    if server.on_change != CataloguePolicy::Accept {
        anstream::eprintln!("warning: server `{}`: a front offers tools that change as they are", printable(name));
    }
}

fn wrong(why: &str) -> u8 {
    anstream::eprintln!("error: {why}");
    WRONG
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_of_a_url_is_shown_than_its_origin() {
        for (url, shown) in [
            ("https://user:hunter2@example.com:8443/mcp?key=x#y", "https://example.com:8443"),
            ("ftp://example.com/hunter2", "ftp://example.com"),
            ("localhost:3000/hunter2", "localhost:3000"),
            ("https://?hunter2", "https://server"),
        ] {
            assert_eq!(origin(url), shown);
        }
    }

    #[test]
    fn a_server_is_closed_before_a_host_ends_the_front_by_force() {
        let mut endpoint = Endpoint::Stdio(Stdio::new("x"));
        for_host(&mut endpoint);
        let Endpoint::Stdio(stdio) = &endpoint else { panic!("{endpoint:?}") };
        // SIGTERM after 2 s, SIGKILL 2 s later: less the time to write and to go.
        assert!(stdio.close_eof < Duration::from_secs(2));
        assert!(stdio.close_eof + stdio.close_term + stdio.close_kill < Duration::from_secs(4));
        let mut patient = Stdio::new("x");
        patient.close_term = Duration::from_secs(20);
        let mut endpoint = Endpoint::Stdio(patient.clone());
        for_host(&mut endpoint);
        patient.frame_limit = NonZeroUsize::new(MESSAGE_LIMIT);
        assert_eq!(endpoint, Endpoint::Stdio(patient), "its own ladder stays");
    }

    #[test]
    fn variables_of_headers_are_those_of_the_environment() {
        let home = std::env::var("PATH").unwrap();
        assert_eq!(expanded("a ${PATH}${PATH} b"), Ok(format!("a {home}{home} b")));
        assert_eq!(expanded("plain $PATH ${open"), Ok("plain $PATH ${open".into()));
        let error = expanded("Bearer ${NOT_SET_ANYWHERE}").unwrap_err();
        assert_eq!(error, "`${NOT_SET_ANYWHERE}` is not set");
    }
}
