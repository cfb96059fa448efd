//! The model check: every state that a small [`ConnectionMachine`](mcp_reconnect_core::ConnectionMachine) can come to,
//! whatever is done to it and whenever, and every step from there.
//!
//! The machine is the real one. What is checked of each step are the rules in [`mcp_reconnect_checker`], and of each
//! state that a server which has become healthy is Ready again. The environment is hostile: any input of a slice's
//! alphabet in any state, of any epoch, at once, when something is due, late and very late.
//!
//! States are finitely many because what no later step can tell apart is one state: times are counted from now and stop
//! where an age has reached the last knob it is compared with, epochs are counted from the newest, counters stop where
//! the step they stand for is the longest, and what is only told is dropped. That a machine and its normalised twin do the
//! same is a property of its own, tried on random walks. The jitter is what the environment wants: a unit of time is a
//! nanosecond, so that a draw has three values at most, and each is tried.

mod action;
pub mod callers;
mod coverage;
mod recovery;
mod slice;
mod space;
mod trace;
mod twin;

pub use action::{Action, Outcome, What, Whose};
pub use coverage::{Coverage, no_such_timer};
pub use slice::{Slice, slices};
pub use space::{Node, Report, Space};
pub use twin::walk;
