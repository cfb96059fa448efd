//! The runtime from the outside: real children, and the command.

#[cfg(feature = "cli")]
mod cli;
mod stdio_link;
