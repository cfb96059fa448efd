//! An MCP server as a child process, as frames.
