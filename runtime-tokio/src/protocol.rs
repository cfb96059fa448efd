//! The protocol as text: messages, the two eras, and what both sides say of themselves.

pub(crate) mod client;
pub(crate) mod era;
pub(crate) mod frame;
pub(crate) mod greeting;

pub use client::{Client, NoClient};
pub use era::{Era, EraFacts, EraPolicy};
