//! Every server of a config behind one front, and the tools that a front adds.

mod asks;
mod control;
mod faults;
mod lists;
mod modern;
mod offered;
mod routes;
mod support;
