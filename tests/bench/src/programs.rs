//! Programs that are run beside the tests: in groups of their own, gone with their handles.

mod host;
mod process;

pub use host::{Answer, CALL_TIMEOUT, Host, KEPT_IN, KINDS, Kind, Runs, beside, node};
pub use process::{PATIENCE, Process};
