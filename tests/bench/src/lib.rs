//! Measurements of mcp-reconnect beside others, and its runs on real servers, hosts and proxies: the parts that more than
//! one program of this package uses, and those with unit tests.

pub mod count;
pub mod programs;
pub mod tally;
