//! The tests of the machine, from fast to slow: one property per rule, the transition table, scripted scenarios, and
//! simulations.

mod rules;
