//! The clients: programs, each on its SDK, all driven by the same lines.

use std::ffi::OsString;
use std::time::Duration;

use mcp_reconnect_bench::programs::{Answer, Host, Kind, Runs};

use crate::Race;
use crate::report::Section;

/// A client, and what it says of itself.
#[derive(Clone, Copy)]
pub(crate) struct Contender {
    pub(crate) kind: Kind,
    /// Whether it says that it brings a session back.
    pub(crate) supervises: bool,
}

const fn contender(name: &'static str, runs: Runs, options: &'static [&'static str], supervises: bool) -> Contender {
    Contender { kind: Kind { name, runs, options, other_era: "modern" }, supervises }
}

pub(crate) const OURS: Contender =
    contender("mcp-reconnect", Runs::Beside("race-host"), &["--stable-after", "500", "--redial-spread", "0"], true);

/// All others.
pub(crate) const PEERS: [Contender; 8] = [
    contender("hermes-agent 0.19.0", Runs::Python("hermes", "hermes.py"), &[], true),
    contender("ADK 2.13.0", Runs::Python("adk", "adk.py"), &[], true),
    contender("fastmcp 4.2.3, entered per call", Runs::Python("fastmcp", "fastmcp4.py"), &["--reenter"], false),
    contender("fastmcp 4.2.3, left open", Runs::Python("fastmcp", "fastmcp4.py"), &[], false),
    contender("rmcp 3.11.0", Runs::Installed("rmcp/release/rmcp-host"), &[], false),
    contender("Python mcp 2.3.0", Runs::Python("mcp-2", "mcp2.py"), &[], false),
    contender("TypeScript SDK 1.32.2", Runs::Node("ts1.mjs"), &[], false),
    contender("TypeScript SDK 2.4.0", Runs::Node("ts2.mjs"), &[], false),
];

impl Contender {
    /// Starts it before this server; `None` if it cannot be, which the section says.
    pub(crate) async fn start(self, race: &Race, section: &mut Section, server: Vec<OsString>) -> Option<Host> {
        match Host::start(self.kind, &race.installed, server, race.scratch.path()).await {
            Ok(host) => Some(host),
            Err(why) => {
                section.not_run(self.kind.name, why);
                None
            }
        }
    }
}

/// Outcome of a call as the client told it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    Answered,
    /// It said that the call may have run.
    Unknown,
    Failed,
}

/// Makes a call and tells what was told of it. An answer that is not this call's is a failure.
pub(crate) async fn call(host: &Host, patience: Duration, tool: &str, text: &str) -> Told {
    match host.call_within(patience, tool, text).await {
        Answer::Text { text: said, is_error: false } if said == text => Told::Answered,
        Answer::Error(error) if error["data"]["outcome"] == "unknown" => Told::Unknown,
        Answer::Text { .. } | Answer::Error(_) => Told::Failed,
    }
}
