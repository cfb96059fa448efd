//! The events of a fleet, in order, for every subscriber.

use std::sync::Arc;

use tokio::sync::broadcast::{self, error::RecvError};

use super::report::Outcome;
use super::tools::ToolsDiff;
use crate::connection::Event;

/// How many events a slow subscriber may fall behind before it is told that it missed some.
pub(super) const FLEET_EVENT_CAPACITY: usize = 4_096;

/// Something that happened to a fleet.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum FleetEvent {
    /// The tools that may be called have changed. Applied in order, these events give at any time exactly
    /// [`Fleet::tools`](super::Fleet::tools).
    Tools(Arc<ToolsDiff>),
    /// Something happened to this server's connection.
    Server {
        /// The server.
        server: Arc<str>,
        /// The connection's event.
        event: Event,
    },
    /// A configuration was applied, and this became of the server. Not told where nothing changed: never
    /// [`Outcome::Untouched`], nor of a server that was disabled before.
    Applied {
        /// The server.
        server: Arc<str>,
        /// The outcome for the server.
        outcome: Outcome,
    },
    /// This subscriber was too slow: so many events were left out here. What is offered now is to be read anew.
    Missed {
        /// How many.
        count: u64,
    },
}

/// A subscription to a fleet's events, from the moment it was made.
#[derive(Debug)]
pub struct FleetEvents(pub(super) broadcast::Receiver<FleetEvent>);

impl FleetEvents {
    /// The next event; `None` when the fleet has ended and every event was given.
    ///
    /// Cancel safe: no event is lost when the future is dropped.
    pub async fn next(&mut self) -> Option<FleetEvent> {
        match self.0.recv().await {
            Ok(event) => Some(event),
            Err(RecvError::Lagged(count)) => Some(FleetEvent::Missed { count }),
            Err(RecvError::Closed) => None,
        }
    }
}
