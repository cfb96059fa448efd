//! An MCP server as a child process, as frames.
//!
//! [`ServerCommand::spawn`] starts the server in a process group of its own and gives its three parts:
//!
//! ```text
//!                  FrameWriter ──stdin──▶ ┌────────────────┐
//!   whole JSON-RPC                        │ process group  │ ──stderr──▶ bounded tail
//!   messages       FrameReader ◀─stdout── └────────────────┘                 │
//!                                            ▲ TERM, KILL   exit status      │
//!                                            └──────── ServerControl ◀───────┘
//! ```
//!
//! They are plain async parts: this crate spawns no task, the caller decides where they are driven. It knows frames (lines
//! of one JSON object each, or of an array of them), not what is in them.
//!
//! ```no_run
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! use mcp_reconnect_stdio::{Ladder, Server, ServerCommand};
//!
//! let Server { mut stdout, mut stdin, control } = ServerCommand::new("my-mcp-server").spawn()?;
//! let talk = async {
//!     stdin.write(r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#).await?;
//!     let answer = stdout.next().await?;
//!     drop(stdin); // so that the server sees the end of its input
//!     println!("{answer:?}; {}", control.close(Ladder::Polite).await);
//!     Ok::<_, Box<dyn std::error::Error>>(())
//! };
//! // stderr has to be drained all the time, or the server freezes when the pipe is full.
//! let (_, talked) = tokio::join!(control.drain_stderr(), talk);
//! talked
//! # }
//! ```
//!
//! # Guarantees
//!
//! - When [`ServerControl::close`] returns, or soon after the last handle of the control was dropped (also without a
//!   runtime), no process of the group is left, and no zombie. A process that *leaves* the group on purpose (`setsid`,
//!   `setpgid`) is out of reach.
//! - [`ServerControl::kill`] is synchronous and waits for nothing, whatever the other parts are stuck in.
//! - No output of the server ends the link, except a line longer than the frame limit: what is no frame is counted.
//! - Memory is bounded by the frame limit for stdout, by [`STDERR_LINES`] times [`STDERR_LINE_BYTES`] for stderr.
//!
//! Unix only. Without the feature `process` only [`framing`] is built.
#![cfg(unix)]

#[cfg(feature = "process")]
mod command;
#[cfg(feature = "process")]
mod control;
#[cfg(feature = "process")]
mod exit;
pub mod framing;
#[cfg(feature = "process")]
mod group;
#[cfg(feature = "process")]
mod read;
#[cfg(feature = "process")]
mod stderr;
#[cfg(feature = "process")]
mod write;

#[cfg(feature = "process")]
pub use command::{CLEAN_ENV, CloseGraces, DEFAULT_FRAME_LIMIT, ServerCommand, SpawnError};
#[cfg(feature = "process")]
pub use control::{Ladder, Server, ServerControl, ServerStdout};
#[cfg(feature = "process")]
pub use exit::{Exit, last_words};
#[cfg(feature = "process")]
pub use read::{FrameReader, LEFTOVER_LIMIT, ReadError, Traffic};
#[cfg(feature = "process")]
pub use stderr::{STDERR_LINE_BYTES, STDERR_LINES};
#[cfg(feature = "process")]
pub use write::{FrameWriter, WriteError};
