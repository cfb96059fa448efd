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
mod quick;
mod rest;
mod rules;
mod scenarios;
mod seeds;
mod sim;
mod transitions;

/// A property is tried on so many cases; `PROPTEST_CASES` asks for another number.
fn cases(cases: u32) -> proptest::test_runner::Config {
    let default = proptest::test_runner::Config::default();
    let asked = std::env::var_os("PROPTEST_CASES").is_some();
    let cases = if asked { default.cases } else { cases };
    proptest::test_runner::Config { cases, failure_persistence: None, ..default }
}
