//! The library from the outside, on real children and sockets.

#[cfg(feature = "http")]
mod config;
mod floors;
#[cfg(feature = "http")]
mod http_link;
#[cfg(feature = "http")]
#[path = "../../../transport-http/tests/support/mod.rs"]
mod http_support;
mod lines;
#[cfg(feature = "front")]
mod listen;
mod stdio_link;
mod trace;
