//! A connection to an MCP server that never dies for good and never lies about its state.

pub mod link;
