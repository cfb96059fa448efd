//! Many servers at once: registration, the common list of tools, the common pace.

mod registration;
mod support;
