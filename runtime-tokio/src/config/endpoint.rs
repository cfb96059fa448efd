//! Where a server is.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use mcp_reconnect_core::{Config, FailureClass};

use crate::link::{Attempt, ConnectError, Connector, Link};

/// Where a server is, and by which transport it is reached.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Endpoint {
    /// A child process.
    Stdio(Stdio),
    /// Streamable HTTP.
    Http(Http),
    /// A server that a connector of the host's own reaches.
    Custom(Custom),
    /// Nothing that can be dialled: the connection is parked as permanently failed, for this reason.
    Refused(Box<str>),
}

/// A server that runs as a child process.
///
/// `Debug` shows neither arguments nor values of the environment: they are where secrets are.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stdio {
    /// The command: a path if it holds a `/` (a relative one counts from [`cwd`](Self::cwd)), else looked up in the
    /// `PATH` that the server will get.
    pub program: OsString,
    /// Its arguments, the program's name not included.
    pub args: Vec<OsString>,
    /// Changes to the environment that the server inherits: set to this value, or removed.
    pub env: BTreeMap<OsString, Option<OsString>>,
    /// Whether the server inherits only the harmless part of this process's environment (`HOME`, `LANG`, `LC_*`,
    /// `LOGNAME`, `PATH`, `SHELL`, `TERM`, `TMPDIR`, `USER`) and not all of it. Default `false`.
    pub clean_env: bool,
    /// The directory that the server starts in; this process's own by default.
    pub cwd: Option<PathBuf>,
    /// How many bytes a message may have; `None`: the transport's default, 16 MiB.
    pub frame_limit: Option<NonZeroUsize>,
    /// How long the server may take to end after its stdin was closed. Default 5 s.
    pub close_eof: Duration,
    /// How long a server may take to end after SIGTERM. Default 2 s.
    pub close_term: Duration,
    /// How long a server may take to end after SIGKILL. Default 1 s.
    pub close_kill: Duration,
}

impl Stdio {
    /// A command without arguments that inherits the environment and the working directory.
    pub fn new(program: impl Into<OsString>) -> Self {
        Self {
            program: program.into(),
            args: Vec::new(),
            env: BTreeMap::new(),
            clean_env: false,
            cwd: None,
            frame_limit: None,
            close_eof: Duration::from_secs(5),
            close_term: Duration::from_secs(2),
            close_kill: Duration::from_secs(1),
        }
    }

    /// The transport's form of it.
    #[cfg(unix)]
    pub fn command(&self) -> mcp_reconnect_stdio::ServerCommand {
        let mut command = mcp_reconnect_stdio::ServerCommand::new(&self.program);
        command.args.clone_from(&self.args);
        command.env.clone_from(&self.env);
        command.clean_env = self.clean_env;
        command.cwd.clone_from(&self.cwd);
        if let Some(limit) = self.frame_limit {
            command.frame_limit = limit.get();
        }
        command.graces =
            mcp_reconnect_stdio::CloseGraces { eof: self.close_eof, term: self.close_term, kill: self.close_kill };
        command
    }
}

impl fmt::Debug for Stdio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let env: BTreeMap<_, _> =
            self.env.iter().map(|(name, value)| (name, if value.is_some() { "(set)" } else { "(removed)" })).collect();
        f.debug_struct("Stdio")
            .field("program", &self.program)
            .field("args", &format_args!("({})", self.args.len()))
            .field("env", &env)
            .field("clean_env", &self.clean_env)
            .field("cwd", &self.cwd)
            .finish_non_exhaustive()
    }
}

/// A server behind streamable HTTP.
///
/// `Debug` shows scheme and host of the URL, and the names of the headers: the rest is where secrets are.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Http {
    /// Its `http://` or `https://` URL.
    pub url: String,
    /// The headers of every request.
    pub headers: BTreeMap<String, String>,
    /// The proxy to reach it through (`http`, `https`, `socks5`); by default what the environment says.
    pub proxy: Option<String>,
    /// How many bytes a message may have; `None`: the transport's default, 16 MiB.
    pub frame_limit: Option<NonZeroUsize>,
}

impl Http {
    /// The server at this URL.
    pub fn new(url: impl Into<String>) -> Self {
        Self { url: url.into(), headers: BTreeMap::new(), proxy: None, frame_limit: None }
    }

    /// The transport's form of it, to add credentials or certificates.
    ///
    /// # Errors
    ///
    /// A URL, header or proxy that cannot be used.
    #[cfg(feature = "http")]
    pub fn server(&self) -> Result<mcp_reconnect_http::HttpServer, mcp_reconnect_http::ServerError> {
        let mut server = mcp_reconnect_http::HttpServer::new(&self.url)?;
        for (name, value) in &self.headers {
            server = server.header(name, value)?;
        }
        if let Some(proxy) = &self.proxy {
            server = server.proxy(proxy)?;
        }
        if let Some(limit) = self.frame_limit {
            server = server.frame_limit(limit);
        }
        Ok(server)
    }
}

impl fmt::Debug for Http {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.headers.keys().collect();
        f.debug_struct("Http")
            .field("url", &origin(&self.url))
            .field("headers", &names)
            .field("proxy", &self.proxy.as_deref().map(origin))
            .finish_non_exhaustive()
    }
}

/// Scheme, host and port of a URL: the parts that are no secret. Empty for what is no URL.
pub(super) fn origin(url: &str) -> &str {
    let Some((scheme, rest)) = url.split_once("://").filter(|(scheme, _)| is_scheme(scheme)) else { return "" };
    // Where there is an `@`, a password may be anywhere before it.
    if rest.contains('@') {
        return scheme;
    }
    let host = rest.split(['/', '?', '#', '\\']).next().unwrap_or_default();
    &url[..scheme.len() + 3 + host.len()]
}

/// RFC 3986, 3.1. What is none may be anything, a secret that holds a `://` included.
fn is_scheme(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
}

impl Endpoint {
    /// Opens links to it. What is wrong with it shows at the first attempt, as a permanent failure with its reason.
    pub fn connector(&self) -> Box<dyn Connector> {
        match self {
            #[cfg(unix)]
            Self::Stdio(stdio) => Box::new(crate::link::stdio::StdioConnector::new(stdio.command())),
            #[cfg(not(unix))]
            Self::Stdio(_) => Box::new(Refused("servers as child processes need Unix, so far".into())),
            #[cfg(feature = "http")]
            Self::Http(http) => match http.server() {
                Ok(server) => Box::new(crate::link::http::HttpConnector::new(server)),
                Err(error) => Box::new(Refused(error.to_string().into())),
            },
            #[cfg(not(feature = "http"))]
            Self::Http(_) => Box::new(Refused("built without the feature `http`".into())),
            Self::Custom(custom) => Box::new(SharedConnector(custom.connector.clone())),
            Self::Refused(why) => Box::new(Refused(why.as_ref().into())),
        }
    }
}

/// A server that a connector of the host's own reaches: with credentials, in memory, over another transport.
#[derive(Clone)]
pub struct Custom {
    key: Box<str>,
    connector: Arc<dyn Connector>,
}

impl Custom {
    /// `key` stands for everything that the connector was made of: a server with another key is another one, and its
    /// connection is replaced; with the same key it is left alone.
    pub fn new(key: impl Into<Box<str>>, connector: impl Connector) -> Self {
        Self { key: key.into(), connector: Arc::new(connector) }
    }

    pub(super) fn key(&self) -> &str {
        &self.key
    }
}

impl PartialEq for Custom {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl Eq for Custom {}

impl fmt::Debug for Custom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Custom").finish_non_exhaustive() // a key may be made of secrets
    }
}

/// A connector that several connections use, one after the other.
struct SharedConnector(Arc<dyn Connector>);

#[async_trait]
impl Connector for SharedConnector {
    async fn connect(&self, attempt: Attempt) -> Result<Link, ConnectError> {
        self.0.connect(attempt).await
    }

    fn config(&self) -> Config {
        self.0.config()
    }

    async fn credentials(&self) -> Option<u64> {
        self.0.credentials().await
    }

    fn hung_after(&self) -> Duration {
        self.0.hung_after()
    }

    fn close_bound(&self) -> Duration {
        self.0.close_bound()
    }
}

impl From<Custom> for Endpoint {
    fn from(custom: Custom) -> Self {
        Self::Custom(custom)
    }
}

impl From<Stdio> for Endpoint {
    fn from(stdio: Stdio) -> Self {
        Self::Stdio(stdio)
    }
}

impl From<Http> for Endpoint {
    fn from(http: Http) -> Self {
        Self::Http(http)
    }
}

/// Opens nothing.
struct Refused(Arc<str>);

#[async_trait]
impl Connector for Refused {
    async fn connect(&self, _: Attempt) -> Result<Link, ConnectError> {
        Err(ConnectError::new(FailureClass::Permanent, self.0.clone()))
    }
}
