//! Servers with TLS, and a proxy to them.

pub(crate) mod http2;
pub(crate) mod tls;
pub(crate) mod tunnel;
