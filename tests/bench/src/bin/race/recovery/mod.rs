//! Back after a death.

mod http;
mod stdio;

pub(crate) use http::run as http;
pub(crate) use stdio::run as stdio;
