//! One server: a connection that is rebuilt for as long as it lives, and the task that owns its machine.

pub(crate) mod builder;
mod call;
mod epoch;
mod event;
pub(crate) mod gate;
mod handle;
mod inbox;
mod limit;
mod lists;
mod messages;
#[cfg(feature = "metrics")]
pub mod metrics;
#[cfg(not(feature = "metrics"))]
#[path = "connection/no_metrics.rs"]
mod metrics;
mod owner;
pub(crate) mod published;
mod raw;
mod status;
mod wait;

pub use builder::Builder;
pub use event::{Event, Events};
pub use handle::Connection;
pub use raw::RawRequest;
pub use status::{LastFailure, ServerState, ServerStatus, SessionStatus};
