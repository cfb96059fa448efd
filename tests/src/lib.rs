//! The scripted fake server, and the suites that need more than one crate of mcp-reconnect.

pub mod chaos;
pub mod drivers;
pub mod fake;
pub mod held;
pub mod least;
pub mod link;
pub mod model;
pub mod pipe;
#[cfg(target_os = "linux")]
pub mod soak;
pub mod storm;
