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

mod builder;
mod call;
mod catalogue;
mod client;
mod clock;
pub mod config;
mod connection;
mod epoch;
mod era;
mod error;
mod established;
mod event;
pub mod fleet;
mod frame;
#[cfg(feature = "front")]
pub mod front;
mod gate;
mod greeting;
mod handshake;
#[cfg(feature = "http")]
pub mod http;
mod inbox;
mod limit;
#[cfg(unix)]
pub mod lines;
pub mod link;
mod messages;
#[cfg(feature = "metrics")]
pub mod metrics;
#[cfg(not(feature = "metrics"))]
#[path = "no_metrics.rs"]
mod metrics;
#[cfg(feature = "oauth")]
pub mod oauth;
mod options;
mod owner;
mod published;
mod raw;
mod session;
mod setup;
mod shared;
mod spec;
mod status;
#[cfg(unix)]
pub mod stdio;
pub mod trace;
mod view;
mod watched;
mod wire;

/// The raw view of a connection: what a server asks and tells goes to a [`Relay`](relay::Relay) as it came, and any
/// request can be sent as it is ([`Connection::request_raw`]). Nothing is read as a type, so nothing that a type does not
/// know is lost.
pub mod relay {
    pub use crate::client::{Client, NoClient};
    pub use crate::raw::RawRequest;
    pub use crate::wire::relay::{Ask, Relay, TakenBack};
}

pub use builder::Builder;
pub use catalogue::{Catalogue, CatalogueDiff, Changes, Item, Part};
pub use connection::Connection;
pub use era::{Era, EraFacts, EraPolicy};
pub use error::{BuildError, CallError};
pub use event::{Event, Events};
pub use mcp_reconnect_core as core;
#[cfg(feature = "http")]
pub use mcp_reconnect_http::{Credentials, HttpServer, Refresh, Resolve};
#[cfg(unix)]
pub use mcp_reconnect_stdio::{CloseGraces, ServerCommand};
pub use options::{CallOptions, Require, Tuning};
pub use session::Session;
pub use status::{LastFailure, ServerState, ServerStatus, SessionStatus};
pub use view::{Handler, ViewError};

/// The example in the README compiles.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
