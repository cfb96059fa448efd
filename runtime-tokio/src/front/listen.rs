//! Fronts behind streamable HTTP: hosts that speak HTTP instead of stdio.
//!
//! ```text
//!                     POST /mcp ──▶ ┌──────────┐ ─▶ one front for each session (up to 2025-11-25)
//!   hosts    JSON or events ◀────── │ Listener │
//!          GET, DELETE /mcp ──────▶ └──────────┘ ─▶ one front for all hosts (from 2026-07-28)
//! ```
//!
//! # Sessions, up to 2025-11-25
//!
//! `initialize` begins a session and opens a front of its own; it ends by DELETE, when nothing was asked of it for
//! [`session_idle`](ListenOptions::session_idle), or when its front ends. What is open then is answered with an error that
//! says so. Ids go through as they are.
//!
//! A request is answered by a stream of events, or as JSON where the host takes no events. What the front says without
//! naming a request goes to the stream of the only request that is open, else to the standing stream (GET), else to the
//! oldest request; progress goes to the request with its token. A stream that was cut is resumed with `Last-Event-ID`; a
//! request goes on without its host, and the last 16 answers are kept. Where there is nothing to resume, the answer is 405.
//!
//! # Without sessions, from 2026-07-28
//!
//! All requests go to one front, which sees ids and progress tokens of the listener's own; hosts get theirs back, in
//! `io.modelcontextprotocol/subscriptionId` too. Headers are held to the message, those that a listed tool asks for
//! included. An answer that nothing comes before is JSON, with the status that belongs to it; a host that goes away cancels
//! its request. Log messages name no request, so they go to the only open one that asked for them, or to none.
//!
//! # Security
//!
//! There are no credentials: whoever may connect may use the server. So a listener is bound to this machine
//! ([`Exposure`]), requests that name another one (DNS rebinding) and web pages from elsewhere
//! ([`allowed_origins`](ListenOptions::allowed_origins)) are refused with 403. A body may have 64 MiB.

mod answer;
mod edit;
mod endpoint;
mod guard;
mod hub;
mod message;
mod modern;
mod session;
mod stream;

use std::fmt;
use std::future::IntoFuture as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::routing::any;
use axum::serve::ListenerExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use self::guard::{InvalidOrigin, Origin};

use self::endpoint::{Endpoint, endpoint};
use self::guard::Guard;
use self::hub::Hub;
use self::session::Sessions;
use super::HostEnd;

/// How long connections may take to end once everything that they wait for has ended.
const LINGER: Duration = Duration::from_secs(1);

/// Opens a front.
pub type Opener = Arc<dyn Fn(SessionKind) -> HostEnd + Send + Sync>;

/// What a front is opened for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum SessionKind {
    /// One session of one host; its first message is `initialize`.
    Legacy,
    /// All hosts that speak a version without sessions.
    Modern,
}

/// Who can reach a listener.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub enum Exposure {
    /// This machine: the address must be a loopback one, and requests must name it.
    #[default]
    Loopback,
    /// Whoever can connect to the address.
    Any,
}

/// How a listener treats its hosts.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ListenOptions {
    /// Who can reach it. Default: this machine.
    pub exposure: Exposure,
    /// The origins of web pages that may speak to it besides those of this machine. Default: none.
    pub allowed_origins: Vec<Origin>,
    /// How many sessions there may be at once; a further one is refused with 503. Default: 64.
    pub max_sessions: usize,
    /// How long a session stays of which nothing is asked and nothing read. Default: 30 minutes.
    pub session_idle: Duration,
}

impl Default for ListenOptions {
    fn default() -> Self {
        Self {
            exposure: Exposure::default(),
            allowed_origins: Vec::new(),
            max_sessions: 64,
            session_idle: Duration::from_secs(30 * 60),
        }
    }
}

/// Why there is no listener.
#[derive(Debug)]
#[non_exhaustive]
pub enum ListenError {
    /// The address is reachable from elsewhere, which [`Exposure`] does not allow.
    NotLoopback(SocketAddr),
    /// The system did not give the address.
    Io(std::io::Error),
}

impl fmt::Display for ListenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotLoopback(address) => write!(f, "{address} can be reached from other machines"),
            Self::Io(error) => write!(f, "cannot listen: {error}"),
        }
    }
}

impl From<std::io::Error> for ListenError {
    fn from(error: std::io::Error) -> Self {
        Self::Io(error)
    }
}

impl std::error::Error for ListenError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::NotLoopback(_) => None,
            Self::Io(error) => Some(error),
        }
    }
}

/// A listener that is bound, and serves hosts once [`serve`](Self::serve) runs.
#[derive(Debug)]
pub struct Listener {
    socket: TcpListener,
    options: ListenOptions,
}

impl Listener {
    /// Binds the address; port 0 is any free one.
    ///
    /// # Errors
    ///
    /// The address is not one that may be bound, or not free.
    pub async fn bind(address: SocketAddr, options: ListenOptions) -> Result<Self, ListenError> {
        if options.exposure == Exposure::Loopback && !address.ip().is_loopback() {
            return Err(ListenError::NotLoopback(address));
        }
        let socket = TcpListener::bind(address).await?;
        Ok(Self { socket, options })
    }

    /// The address that it is bound to.
    ///
    /// # Errors
    ///
    /// The system does not say.
    pub fn local_addr(&self) -> std::io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Serves hosts at `/mcp` and `/` until it is stopped; returns when every front has ended.
    pub async fn serve(self, opener: Opener, stop: CancellationToken) {
        let Self { socket, options } = self;
        if let Ok(address) = socket.local_addr() {
            tracing::info!(%address, "listening for hosts");
        }
        let fronts = TaskTracker::new();
        let sessions = Sessions::new(
            opener.clone(),
            options.max_sessions,
            options.session_idle,
            stop.child_token(),
            fronts.clone(),
        );
        let endpoint_state = Arc::new(Endpoint {
            guard: Guard { local_only: options.exposure == Exposure::Loopback, allowed: options.allowed_origins },
            sessions,
            hub: Hub::new(opener, stop.child_token(), fronts.clone()),
        });
        let router = Router::new().route("/mcp", any(endpoint)).route("/", any(endpoint)).with_state(endpoint_state);
        let socket = socket.tap_io(|stream: &mut TcpStream| {
            if let Err(error) = stream.set_nodelay(true) {
                tracing::debug!(%error, "small messages may be held back");
            }
        });
        let serving = axum::serve(socket, router).with_graceful_shutdown(stop.clone().cancelled_owned()).into_future();
        let ending = async {
            stop.cancelled().await;
            fronts.close();
            fronts.wait().await;
        };
        let mut serving = std::pin::pin!(serving);
        tokio::select! {
            _ = &mut serving => {} // stopped, and all hosts have gone
            () = ending => drop(timeout(LINGER, serving).await), // a host that says nothing holds up nobody
        }
        fronts.close();
        fronts.wait().await;
    }
}

#[cfg(test)]
mod tests;
