//! The command `mcp-reconnect`, as a user runs it: real processes, real signals, exit statuses.

mod commands;
mod demo;
mod replay;
