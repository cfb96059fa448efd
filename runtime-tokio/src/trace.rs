//! Recordings of everything that a connection's machine was told: a bug report that can be run again.
//!
//! A connection that is given a [`Recorder`] ([`Builder::record`](crate::Builder::record)) writes JSON lines: a header
//! with the knobs and the seed, then every [`Input`](crate::core::Input) with its time, exactly as the machine saw it.
//! [`read()`] takes them in again, and [`Trace::replay`] runs them through a fresh machine, which says the same.
//! `docs/trace.md` in the source describes the format; `mcp-reconnect replay FILE` prints and draws it.
//!
//! A trace holds no secrets: no texts of the server or of a failure, no commands, addresses or headers. The name of the
//! connection is in it.
//!
//! Reading and replaying need no runtime.
//!
//! # Examples
//!
//! ```
//! let recorded = br#"{"format":"mcp-reconnect-trace","version":2,"name":"files","seed":42,"start":0}
//! {"at":0,"in":{"connect":{"until":0}}}
//! {"out":[{"dial":{"epoch":1,"timeout":{"secs":30,"nanos":0},"interactive":false}},{"admit":{"wait":{"next":null}}},{"event":{"status_changed":{"status":"connecting","failure":null}}}],"wake_at":300000000000}
//! "#;
//! let trace = mcp_reconnect::trace::read(&recorded[..])?;
//! let verified = trace.verify()?;
//! assert_eq!((verified.inputs, verified.compared), (1, 1));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod format;
mod read;
mod record;
mod replay;

pub use format::{Answer, Entry, Header, Step, Trace};
pub use read::{TraceError, read};
pub use record::Recorder;
pub(crate) use record::Recording;
pub use replay::{Difference, Gap, TraceReplay, Turn, Verified};
