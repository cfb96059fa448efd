//! The recovery logic of an MCP connection as a pure state machine: no I/O, no clock, no randomness, no allocation.
//!
//! A [`ConnectionMachine`] decides when to dial, wait, park or give up a session; a driver owns sockets, processes and
//! clocks, and does as it is told. It is told everything that happens as an [`Input`], with the time, and answers with
//! all that follows, in order, and with when to come back: [`Outputs`]. Nothing is queued inside.
//!
//! ```text
//!           Connect, Wake                every flag reached
//!   IDLE ───────────────▶ CONNECTING ─────────────────────────▶ READY ◀─▶ ping, breaker
//!    ▲                     ▲  │ failed                           │ lost, parked,
//!    │ put to rest         │  ▼                                  ▼ rest, lifetime
//!    │◀────────────────── CLOSING (until gone, or its deadline) ◀┘
//!    │                     │  │
//!    │        retry_at ┌───┘  │ outage > park_after, permanent,
//!    │                 ▼      ▼ login, on request
//!    │   TRANSIENT_FAILURE   PARKED ── probe, caller, wake ──▶ CONNECTING
//!    ▼
//!   Shutdown in any state: CLOSING, then SHUTDOWN, for good
//! ```
//!
//! The names are gRPC's connectivity states, where it has them, and resilience4j's for the breaker.
//!
//! # A driver
//!
//! ```
//! use std::{sync::mpsc::channel, time::Instant};
//!
//! use mcp_reconnect_core::{Config, ConnectionMachine, FailureClass, Input, Output, ReadyFlags, State, Timestamp};
//!
//! let origin = Instant::now();
//! let now = || Timestamp::from_origin(origin.elapsed());
//! let (tell, inbox) = channel();
//! tell.send(Input::Connect { until: now() })?;
//! let mut machine = ConnectionMachine::new(Config::default(), 42, now());
//! while machine.snapshot().state != State::Shutdown {
//!     let input = match machine.next_timeout().map(|at| at.since(now())) {
//!         Some(wait) => inbox.recv_timeout(wait).unwrap_or(Input::Tick),
//!         None => inbox.recv()?,
//!     };
//!     for output in machine.handle(now(), input) {
//!         match output {
//!             // Here a real driver dials, and reports how far it gets.
//!             Output::Dial { epoch, .. } => ReadyFlags::ALL.into_iter().try_for_each(|flag| tell.send(Input::Reached { epoch, flag }))?,
//!             Output::Publish { .. } => tell.send(Input::Shutdown)?,
//!             Output::Close { epoch, .. } => tell.send(Input::Gone { epoch, failure: FailureClass::Transport.into() })?,
//!             Output::Ping { .. } | Output::Ask { .. } | Output::Withdraw | Output::Admit(_) | Output::Event(_) => println!("{output:?}"),
//!         }
//!     }
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A turn of a driver for real sessions reports [`Resumed`](Input::Resumed) after a gap and
//! [`Traffic`](Input::Traffic) of the live session before a tick that is due and before a
//! [`NoReply`](Input::NoReply), among others. The [guide](driver_guide) says all that one must do.
//!
//! # Guarantees
//!
//! Each is a property, checked on random walks by the test that is named (`tests/suite/rules.rs`). [`rules`]
//! has them in full.
//!
//! - No input in any state panics or fails; a report of an epoch that is over does nothing: `r01`.
//! - [`Outputs::wake_at`] is later than now, or `None`; waking early changes nothing: `r02`. A clock that stalls, jumps
//!   or goes back does no harm: `r03`. The same seed and inputs give the same outputs: `r04`.
//! - Nothing is ever stuck: whatever state a machine is in, a deadline or a wake leads to a dial: `r05`.
//! - At most one epoch is alive: `r06`, each dial ends exactly once: `r07`, a lost epoch is never handed out again, and
//!   a hundred callers that saw it fail cause one rebuild: `r08`, `r10`, `r11`.
//! - Ready means that every [`ReadyFlag`] was reached in this epoch, and ends in the step that asks for the rebuild: `r09`.
//! - No two dials are closer than `min_dial_interval`, or after one that nobody listened to, `refused_interval`: `r14`;
//!   the ladder, the server's `Retry-After` and what refunds them: `r12`, `r13`, `r15`.
//! - A server that stays away is parked, its tools are withdrawn once, it is probed for ever, and tells of it once:
//!   `r16`, `r17`. A suspend is no outage: `r18`.
//! - Silence is asked about before it is held against a session, last by something that the session has answered before,
//!   and never while a call works: `r19`, `r20`.
//! - The breaker counts calls without a reply, of a server that has answered nothing that was sent later, and nothing
//!   else, and lets one caller through per open time: `r21`. Every caller is answered in its own step: `r22`.
//! - Shutdown is terminal and bounded: `r23`. Rest and renewal wait for open calls: `r24`.
//!
//! # Features
//!
//! - `serde`: [`Config`], [`Input`], [`Output`], [`State`], [`Snapshot`] and what they are made of.
//! - `testing`: normal forms of a machine's states, for the model check.
#![no_std]

mod backoff;
mod breaker;
mod config;
#[doc = include_str!("../docs/driver.md")]
pub mod driver_guide {}
mod failure;
mod gate;
mod id;
mod input;
mod machine;
#[cfg(feature = "testing")]
pub mod normal;
mod output;
pub mod replay;
mod rng;
#[doc = include_str!("../docs/rules.md")]
pub mod rules {}
mod snapshot;
mod state;
mod time;

pub use breaker::Breaker;
pub use config::{Config, ConfigBuilder, ConfigError, Restart};
pub use failure::{Failure, FailureClass};
pub use gate::{DialGate, Gate, MaxDialsError, Slot};
pub use id::Epoch;
pub use input::{Input, WakeCause};
pub use machine::ConnectionMachine;
pub use output::{Admission, CloseCause, Event, Output, Outputs, Refusal};
pub use snapshot::{Memory, Snapshot, Stats, Want};
pub use state::{Liveness, ParkReason, PingSupport, ReadyFlag, ReadyFlags, State, Status, Then};
pub use time::Timestamp;
