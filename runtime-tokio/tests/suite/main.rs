//! The runtime from the outside: real children, and the command.

#[cfg(feature = "cli")]
mod cli;
#[cfg(feature = "cli")]
mod commands;
#[cfg(feature = "http")]
mod config;
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
