//! Many servers at once: registration, the common list of tools, the common pace.

mod catalogue;
mod end;
mod limit;
mod property;
mod registration;
mod replace;
mod restart;
mod retune;
mod storm;
mod support;
