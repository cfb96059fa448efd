//! The events of a connection, in order, for every subscriber.

use std::sync::{Arc, OnceLock};

use mcp_reconnect_core::{FailureClass, Status};
use tokio::sync::broadcast::{self, error::RecvError};
use tokio::time::Instant;

use crate::session::catalogue::CatalogueDiff;

/// How many events a slow subscriber may fall behind before it is told that it missed some.
const EVENT_CAPACITY: usize = 256;

/// Something that happened to a connection.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// The status changed: exactly one event for each change, and none without one.
    Status {
        /// The status now; equal to the snapshot's.
        status: Status,
        /// The class of the last failure since the last Ready, where there was one.
        failure: Option<FailureClass>,
        /// That failure in words.
        cause: Option<Arc<str>>,
    },
    /// The circuit breaker opened (until then) or closed (`None`).
    Breaker {
        /// When the next caller is let through.
        open_until: Option<Instant>,
    },
    /// The catalogue is not the one that was offered before. Comes before the Ready event of its epoch.
    Catalogue(Arc<CatalogueDiff>),
    /// The catalogue must no longer be offered: the server is parked, or the connection was shut down.
    Withdrawn,
    /// Something that belongs to a session could not be set up again; the session serves without it.
    SetupFailed {
        /// The method of the protocol that failed.
        what: Arc<str>,
        /// Why, in words.
        cause: Arc<str>,
    },
    /// The server speaks another protocol version, or announces other capabilities, than its last session did.
    ServerChanged {
        /// The protocol version of this epoch.
        version: Arc<str>,
    },
    /// For at least a minute calls have got nothing but the same error, though the server answers when it is asked for its
    /// lists: a fresh session may help, but costs a process, so that it is left to the host. Told once until a call has
    /// a result.
    Suspect {
        /// The error's code.
        code: i64,
    },
    /// This subscriber was too slow: so many events were left out here.
    Missed {
        /// How many.
        count: u64,
    },
}

/// Where a connection's events are told. A channel has all its room from the start, so there is none before the first
/// subscription.
#[derive(Debug, Default)]
pub(crate) struct Telling(OnceLock<broadcast::Sender<Event>>);

impl Telling {
    pub(crate) fn tell(&self, event: Event) {
        if let Some(events) = self.0.get() {
            // An error says that nobody listens.
            drop(events.send(event));
        }
    }

    pub(crate) fn subscribe(&self) -> Events {
        Events(self.0.get_or_init(|| broadcast::Sender::new(EVENT_CAPACITY)).subscribe())
    }
}

/// A subscription to a connection's events, from the moment it was made.
#[derive(Debug)]
pub struct Events(broadcast::Receiver<Event>);

impl Events {
    /// There is nothing to come: the receiver of a channel without sender ends at once.
    pub(crate) fn ended() -> Self {
        Self(broadcast::Sender::new(1).subscribe())
    }

    /// The next event; `None` when the connection has ended and every event was given.
    ///
    /// Cancel safe: no event is lost when the future is dropped.
    pub async fn next(&mut self) -> Option<Event> {
        match self.0.recv().await {
            Ok(event) => Some(event),
            Err(RecvError::Lagged(count)) => Some(Event::Missed { count }),
            Err(RecvError::Closed) => None,
        }
    }
}
