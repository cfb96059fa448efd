//! The recovery logic of an MCP connection as a pure state machine: no I/O, no clock, no randomness, no allocation.
#![no_std]

mod backoff;
mod breaker;
mod config;
mod failure;
mod gate;
mod id;
mod input;
mod machine;
mod output;
pub mod replay;
mod rng;
mod snapshot;
mod state;
#[cfg(feature = "testing")]
pub mod testing;
mod time;

pub use breaker::Breaker;
pub use config::{Config, ConfigBuilder, ConfigError};
pub use failure::{Failure, FailureClass};
pub use gate::{DialGate, Gate, MaxDialsError, Slot};
pub use id::Epoch;
pub use input::{Input, WakeCause};
pub use machine::ConnectionMachine;
pub use output::{Admission, CloseCause, Event, Output, Outputs, Refusal};
pub use snapshot::{Memory, Snapshot, Stats, Want};
pub use state::{Liveness, ParkReason, PingSupport, ReadyFlag, ReadyFlags, State, Status, Then};
pub use time::Timestamp;
