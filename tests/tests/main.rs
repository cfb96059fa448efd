//! The suites that need more than one crate, in one binary.

mod fake;
mod fleet;
mod http;
mod k01;
mod k04;
mod k05;
mod k06;
mod k07;
mod k08;
mod k09;
mod k10;
mod k12;
mod k13;
mod k14;
mod k15;
mod k16;
mod k17;
mod k18;
mod k20;
mod k22;
mod k23;
mod k24;
mod k25;
mod lifetime;
mod seeds;
mod support;
