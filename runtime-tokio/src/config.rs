//! The servers of a fleet, as data: built in code, or read from the `mcpServers` JSON that MCP clients share.
//!
//! Reading is pure: text and an environment in, values out. `docs/config.md` beside this crate is the reference of the
//! format for users.
//!
//! ```
//! use mcp_reconnect::config::{FleetConfig, Parsed};
//!
//! let text = r#"{ "mcpServers": { "files": { "command": "mcp-files", "args": ["--root", "${HOME}"] } } }"#;
//! let env = |name: &str| (name == "HOME").then(|| "/home/me".to_owned());
//! let Parsed { config, warnings, .. } = FleetConfig::parse(text, "mcp.json", env)?;
//! assert!(config.servers.contains_key("files") && warnings.is_empty());
//! # Ok::<_, mcp_reconnect::config::ConfigErrors>(())
//! ```

mod address;
mod digest;
mod endpoint;
mod expand;
mod filter;
mod json;
pub(crate) mod near;
mod places;
mod problem;
mod read;
mod scope;
mod server;
mod settings;
#[cfg(feature = "watch")]
mod watcher;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::num::NonZeroU32;
use std::time::Duration;

use mcp_reconnect_core::{Config, ConfigBuilder};

pub use crate::options::{CataloguePolicy, Connect, OnPark};
pub use endpoint::{Custom, Endpoint, Http, Stdio};
pub use filter::ToolFilter;
pub use places::usual_places;
pub use problem::{ConfigErrors, Problem, ProblemKind};
pub use read::CONTAINERS;
#[cfg(feature = "watch")]
pub use watcher::{WatchError, WatchOptions, Watcher};

use crate::connection::Builder;
use crate::link::{Connector, REDIAL_SPREAD};
use crate::options::{CallOptions, Require, Tuning};
use crate::protocol::EraPolicy;

/// The servers of a fleet, and what they share.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct FleetConfig {
    /// The servers, by name.
    pub servers: BTreeMap<Box<str>, ServerConfig>,
    /// How many dials may run at once, 1 to 128. Default 32.
    pub max_dials: u8,
}

impl Default for FleetConfig {
    fn default() -> Self {
        Self { servers: BTreeMap::new(), max_dials: 32 }
    }
}

impl FleetConfig {
    /// Adds a server, or replaces the one of this name.
    #[must_use]
    pub fn with(mut self, name: impl Into<Box<str>>, server: ServerConfig) -> Self {
        self.servers.insert(name.into(), server);
        self
    }
}

/// The outcome of reading a config.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Parsed {
    /// The servers that were read.
    pub config: FleetConfig,
    /// Settings that were ignored, or read in a way that may not be the one that was meant.
    pub warnings: Vec<Problem>,
}

/// One server: where it is, and how its connection behaves.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ServerConfig {
    /// Where it is.
    pub endpoint: Endpoint,
    /// Whether it is wanted at all: a server that is not is known by name, and never dialled. Default `true`.
    pub enabled: bool,
    /// When it is dialled first. Default [`Connect::Eager`].
    pub connect: Connect,
    /// The knobs of the machine. Default: those of the endpoint's connector, with a `redial_spread` of 250 ms: many
    /// servers share a host.
    pub machine: Config,
    /// The limits of calls that set none of their own.
    pub calls: CallOptions,
    /// How many calls may be open at once. Default `None`: no bound.
    pub max_in_flight: Option<NonZeroU32>,
    /// Which protocol era to speak. Default [`EraPolicy::Auto`].
    pub era: EraPolicy,
    /// The point at which a session is Ready. Default [`Require::Tools`].
    pub require: Require,
    /// How long a server of unknown era may leave the probe of the modern era unanswered before it is asked to
    /// initialize as well. Default 2 s.
    pub probe_patience: Duration,
    /// Which of its tools are offered. Default: all.
    pub tools: ToolFilter,
    /// The reaction to a known tool that changes. Default [`CataloguePolicy::Accept`].
    pub on_change: CataloguePolicy,
    /// The tools that are offered while it is parked. Default [`OnPark::Withdraw`].
    pub on_park: OnPark,
}

impl ServerConfig {
    /// A server with this endpoint, and the default of everything else.
    pub fn new(endpoint: impl Into<Endpoint>) -> Self {
        let endpoint = endpoint.into();
        let config = endpoint.connector().config();
        Self {
            machine: ConfigBuilder::from(config).redial_spread(REDIAL_SPREAD).build().unwrap_or(config),
            endpoint,
            enabled: true,
            connect: Connect::default(),
            calls: CallOptions::default(),
            max_in_flight: None,
            era: EraPolicy::default(),
            require: Require::default(),
            probe_patience: crate::options::PROBE_PATIENCE,
            tools: ToolFilter::default(),
            on_change: CataloguePolicy::default(),
            on_park: OnPark::default(),
        }
    }

    /// A server that runs as a child process.
    pub fn stdio(program: impl Into<OsString>, args: impl IntoIterator<Item: Into<OsString>>) -> Self {
        let mut stdio = Stdio::new(program);
        stdio.args = args.into_iter().map(Into::into).collect();
        Self::new(stdio)
    }

    /// A server behind streamable HTTP.
    pub fn http(url: impl Into<String>) -> Self {
        Self::new(Http::new(url))
    }

    /// Opens links to it. What is wrong with the endpoint shows at the first attempt, as a permanent failure with its
    /// reason.
    pub fn connector(&self) -> Box<dyn Connector> {
        self.endpoint.connector()
    }

    /// A connection to it, ready to be built or to be given more.
    ///
    /// [`enabled`](Self::enabled), [`tools`](Self::tools) and [`on_change`](Self::on_change) are left to the owner of
    /// the connection.
    pub fn builder(&self, name: &str) -> Builder {
        Builder::new(self.connector())
            .name(name)
            .tuning(self.tuning())
            .connect(self.connect)
            .era(self.era)
            .require(self.require)
            .probe_patience(self.probe_patience)
            .on_park(self.on_park)
    }

    /// The settings that can be changed while the connection lives.
    pub fn tuning(&self) -> Tuning {
        Tuning { config: self.machine, options: self.calls, max_in_flight: self.max_in_flight }
    }

    /// A fingerprint of all that a connection cannot change without being replaced, 32 hexadecimal digits: the endpoint
    /// as it is after expansion, secrets included, the era, and what a session must have reached.
    ///
    /// It is equal on every platform, in every process, and in later versions: a setting that they add counts only
    /// where it is set. The hash keeps a secret with the entropy of a key; a password of a few letters could be guessed
    /// from it, so a file that holds digests should be its owner's to read.
    pub fn digest(&self) -> String {
        digest::of(self)
    }
}
