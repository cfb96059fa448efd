//! The suites that need more than one crate, in one binary.

mod fake;
mod k01;
mod support;
