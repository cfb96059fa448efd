//! The recovery logic of an MCP connection as a pure state machine.
#![no_std]

mod failure;
mod id;
pub mod replay;
mod time;

pub use failure::{Failure, FailureClass};
pub use id::Epoch;
pub use time::Timestamp;
