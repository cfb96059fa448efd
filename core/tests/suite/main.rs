//! The tests of the machine, from fast to slow: one property per rule, the transition table, scripted scenarios, and
//! simulations.
#![allow(clippy::std_instead_of_core, reason = "tests are programs with std")]
#![allow(clippy::wildcard_enum_match_arm, reason = "each test looks at a few kinds of outputs and states")]

mod calls;
mod coverage;
mod data;
mod golden;
mod liveness;
mod pacing;
mod rules;
mod scenarios;
mod seeds;
mod sim;
mod transitions;
