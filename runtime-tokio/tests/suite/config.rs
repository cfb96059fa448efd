//! Reading configs: the files of other clients, everything that can be wrong, and that no secret is told.

mod files;
mod problems;
mod properties;
mod secrets;

use mcp_reconnect::config::{ConfigErrors, FleetConfig, Parsed};

/// The environment of these tests.
fn env(name: &str) -> Option<String> {
    match name {
        "HOME" => Some("/home/me".into()),
        "TOKEN" => Some("t0ken".into()),
        "EMPTY" => Some(String::new()),
        "NUL" => Some("a\0b".into()),
        _ => None,
    }
}

fn parse(text: &str) -> Result<Parsed, ConfigErrors> {
    FleetConfig::parse(text, "mcp.json", env)
}
