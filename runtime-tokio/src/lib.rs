//! A connection to an MCP server that never dies for good and never lies about its state.
//!
//! [`Connection`] is one server, [`fleet::Fleet`] many, [`config`] what says where they are.
//!
//! # Logs
//!
//! Through `tracing`, with the targets `mcp_reconnect…`: a line at `info` or above for each change, none for each
//! attempt; secrets in none. rmcp logs whole payloads at `info`: a host that does not want what its tools are given and
//! return in its log sets a filter such as `mcp_reconnect=info,rmcp=off`.
//!
//! # Features
//!
//! - `http` (default): servers behind streamable HTTP ([`http`]).
//! - `oauth`: rmcp's OAuth as the credentials of such servers (`oauth::OAuth`).
//! - `metrics`: figures through the facade of that name (`metrics`).
//! - `front`: sessions of hosts that outlive those of their server (`front`).

// The floors, from top to bottom: a module uses what stands below it, and nothing above (`tests/suite/floors.rs`).

// Hosts in front of a connection or a fleet: their requests, one table of them, HTTP.
#[cfg(feature = "front")]
pub mod front;

// Many servers: applied from a config, their tools in one list, approved, saved.
pub mod fleet;

// Servers as data: read from a file, checked, expanded. Makes builders of connections.
pub mod config;

// One server: the handle, the task that owns its machine, its calls.
mod connection;

// One epoch's session: the handshake, what is set up in it, what the server offers, rmcp's view of it.
mod session;

// The JSON-RPC conversation over one link: requests and their answers, the server's own messages.
mod wire;

// Settings of a connection and of its calls.
mod options;

// The seam to the transports, and the links over them: a child, streams, HTTP.
pub mod link;

// Recordings of a machine, and their replay. Uses the machine alone.
pub mod trace;

// The protocol as text: frames, eras, what client and server say of themselves.
mod protocol;

// Errors, the clock, and a value that can be waited on.
mod clock;
mod error;
mod watched;

#[cfg(feature = "metrics")]
pub use connection::metrics;
pub use connection::{Builder, Connection, Event, Events, LastFailure, ServerState, ServerStatus, SessionStatus};
pub use error::{BuildError, CallError};
#[cfg(feature = "http")]
pub use link::http;
#[cfg(feature = "oauth")]
pub use link::oauth;
#[cfg(unix)]
pub use link::{lines, stdio};
pub use mcp_reconnect_core as core;
#[cfg(feature = "http")]
pub use mcp_reconnect_http::{Credentials, HttpServer, Refresh, Resolve};
#[cfg(unix)]
pub use mcp_reconnect_stdio::{CloseGraces, ServerCommand};
pub use options::{CallOptions, OnPark, Require, Tuning};
pub use protocol::{Era, EraFacts, EraPolicy};
pub use session::Session;
pub use session::catalogue::{Catalogue, CatalogueDiff, Changes, Item, Part};
pub use session::view::{Handler, ViewError};

/// The raw view of a connection: what a server asks and tells goes to a [`Relay`](relay::Relay) as it came, and any
/// request can be sent as it is ([`Connection::request_raw`]). Nothing is read as a type, so nothing that a type does
/// not know is lost.
pub mod relay {
    pub use crate::connection::RawRequest;
    pub use crate::protocol::{Client, NoClient};
    pub use crate::wire::relay::{Ask, Relay, TakenBack};
}

/// The example in the README compiles.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
