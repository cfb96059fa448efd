//! An MCP server behind streamable HTTP, as frames.
//!
//! [`HttpServer`] says where the server is; [`HttpServer::open`] gives the client of one session:
//!
//! ```text
//!                 exchange ──POST──▶ ┌────────┐
//!   whole JSON-RPC         ◀─ body ─ │        │   JSON, or a stream of events that is resumed where it is cut
//!   messages      Standing ◀── GET ─ │ server │
//!                    probe ──POST──▶ │        │   is the session alive?
//!                    close ─DELETE─▶ └────────┘
//! ```
//!
//! They are plain async parts: this crate spawns no task, and dropping a future ends its exchange on the wire. What goes
//! wrong becomes an [`ExchangeError`], once, here: the class, how far the request got, and how far its meaning reaches.
//!
//! # Guarantees
//!
//! - A session id is taken from 2xx answers to `initialize` only, and never sent on `initialize`. Once the server has
//!   disowned it, or it was given up, nothing is sent that carries it: no POST, no GET; a DELETE where it was given up.
//! - No request is repeated, but for one whose credentials were refused and could be renewed, and, once, for one of which
//!   HTTP/2 says that it was not processed. Redirects are followed within the origin, where they keep the method (307,
//!   308).
//! - An answer under the request's own id is delivered, whatever it says and with whatever status. No verdict on a
//!   session is made by words alone, but for a shortcut to what asking it would say.
//! - An error that names no request settles the exchange that it came with.
//! - Memory is bounded by the frame limit for each exchange.
//! - TLS is set up without touching the process-wide crypto provider.
//!
//! Without the feature `client` only the pure parts are built.

pub mod classify;
#[cfg(feature = "client")]
mod client;
#[cfg(feature = "client")]
mod credentials;
#[cfg(feature = "client")]
mod error;
#[cfg(feature = "client")]
mod exchange;
pub mod headers;
#[cfg_attr(not(feature = "client"), allow(dead_code, reason = "the client reads all of a message"))]
mod message;
#[cfg(feature = "client")]
mod proxy;
#[cfg(feature = "client")]
mod resolve;
mod retry_after;
#[cfg(feature = "client")]
mod send;
#[cfg(feature = "client")]
mod server;
pub mod sse;
#[cfg(feature = "client")]
mod stage;
#[cfg(feature = "client")]
mod standing;

pub use classify::Reach;
#[cfg(feature = "client")]
pub use client::HttpClient;
#[cfg(feature = "client")]
pub use credentials::{Credentials, Refresh};
#[cfg(feature = "client")]
pub use error::ExchangeError;
#[cfg(feature = "client")]
pub use exchange::Rest;
#[cfg(feature = "client")]
pub use resolve::Resolve;
pub use retry_after::{LONGEST_HINT, retry_after};
#[cfg(feature = "client")]
pub use rustls::pki_types;
#[cfg(feature = "client")]
pub use server::{DEFAULT_FRAME_LIMIT, HttpServer, ServerError};
#[cfg(feature = "client")]
pub use stage::{OnStage, Stage};
#[cfg(feature = "client")]
pub use standing::{Standing, StandingEvent};
