//! The [rules](mcp_reconnect_core::rules) of the machine as checks, for tests and fuzzers: random inputs that reach every
//! corner ([`Walk`]), and a machine that is checked at each step ([`Checker`]).
//!
//! # Examples
//!
//! ```
//! use mcp_reconnect_checker::{Checker, Rules, Walk};
//!
//! let bytes = [0x5a; 400];
//! let mut walk = Walk::new(&bytes);
//! let mut checker = Checker::new(walk.config(), walk.seed(), walk.start(), Rules::ALL);
//! while let Some((now, input)) = walk.step(checker.machine()) {
//!     let _outputs = checker.step(now, input); // panics with the number of the rule that does not hold
//! }
//! ```

#![no_std]
#![allow(clippy::wildcard_enum_match_arm, reason = "each check looks at a few kinds of outputs and states")]

mod checker;
mod model;
mod normal;
mod rules;
mod walk;

pub use checker::{Checker, Rules};
pub use mcp_reconnect_core::normal::{Draw, Frame, View};
pub use walk::Walk;
