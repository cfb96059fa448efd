//! The tests of the machine, from fast to slow: one property per rule, the transition table, scripted scenarios, and
//! simulations.

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
