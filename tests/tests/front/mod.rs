//! The front: one host's session over a server that comes and goes.

mod asks;
mod bytes;
mod changes;
mod eras;
mod hung;
mod load;
mod modern;
mod outage;
mod start;
mod support;
