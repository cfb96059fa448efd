//! The same scripts over streamable HTTP.

mod exchange;
mod gate;
mod host;
mod ledger;
mod message;
mod plan;
mod port;
mod reply;
mod serve;
mod server;

pub use host::HttpOutput;
pub use ledger::{Asked, HttpEvent};
pub(crate) use plan::{GATES, HttpAction, HttpPlan, HttpSetting, action, setting};
pub(crate) use port::Door;
pub use port::ReservedPort;
pub use serve::serve_http;
pub use server::FakeHttp;

/// Where the server is; every other path is unknown.
pub(crate) const PATH: &str = "/mcp";
