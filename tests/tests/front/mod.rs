//! The front: one host's session over a server that comes and goes.

mod asks;
mod bytes;
mod changes;
mod completed;
mod doubt;
mod eras;
mod hung;
mod load;
mod modern;
mod outage;
mod settings;
mod start;
pub(crate) mod support;
