//! The servers, and how each is started and called.

use std::path::{Path, PathBuf};

use mcp_reconnect::EraPolicy;
use rmcp::model::{CallToolRequestParams, JsonObject};
use serde_json::json;
use tokio::process::Command;

/// Where the servers of this repository are.
const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/servers");

/// A kind of server.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The package server-everything: tools, names and output are its own.
    Everything,
    /// servers/typescript.mjs in this mode.
    TypeScript(&'static str),
    /// servers/python.py in this virtual environment.
    Python(&'static str),
    /// servers/rmcp.
    Rmcp,
}

/// One row of the table.
#[derive(Clone, Copy)]
pub(crate) struct Server {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    pub(crate) era: EraPolicy,
    /// Whether bare rmcp is tried on it: once for each kind.
    pub(crate) bare: bool,
}

const fn server(name: &'static str, kind: Kind, era: EraPolicy, bare: bool) -> Server {
    Server { name, kind, era, bare }
}

/// All of them; a server that speaks both eras is there twice.
pub(crate) const SERVERS: &[Server] = &[
    server("server-everything 2026.8.31", Kind::Everything, EraPolicy::Auto, true),
    server("TypeScript SDK 1.32.2, one transport", Kind::TypeScript("one-transport"), EraPolicy::Auto, true),
    server("TypeScript SDK 2.4.0, stateless", Kind::TypeScript("stateless"), EraPolicy::Auto, true),
    server("TypeScript SDK 2.4.0, stateless", Kind::TypeScript("stateless"), EraPolicy::Legacy, false),
    server("Python mcp 2.3.0", Kind::Python("mcp-2"), EraPolicy::Auto, true),
    server("Python mcp 2.3.0", Kind::Python("mcp-2"), EraPolicy::Legacy, false),
    server("Python mcp 1.30.0", Kind::Python("mcp-1"), EraPolicy::Auto, true),
    server("fastmcp 4.2.3", Kind::Python("fastmcp"), EraPolicy::Auto, true),
    server("fastmcp 4.2.3", Kind::Python("fastmcp"), EraPolicy::Legacy, false),
    server("rmcp 3.11.0", Kind::Rmcp, EraPolicy::Auto, true),
    server("rmcp 3.11.0", Kind::Rmcp, EraPolicy::Legacy, false),
];

/// Kind of tool.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum ToolKind {
    /// Read-only, answers at once.
    Echo,
    /// Read-only, takes these seconds.
    Slow(u32),
    /// Not annotated, leaves a line in the ledger, then takes these seconds.
    Append(u32),
    /// Offered only with the other tools.
    Extra,
}

impl Server {
    /// How to start it on this port.
    pub(crate) fn command(&self, installed: &Path, port: u16, ledger: &Path, other_tools: bool) -> Command {
        let node = installed.join("node");
        let mut command = match self.kind {
            Kind::Everything => {
                let mut command = Command::new(node.join("node_modules/.bin/mcp-server-everything"));
                command.arg("streamableHttp").env("PORT", port.to_string());
                command
            }
            Kind::TypeScript(mode) => {
                let mut command = Command::new("node");
                command.arg(Path::new(SOURCES).join("typescript.mjs")).arg(mode).arg(port.to_string());
                command.current_dir(node); // the packages are looked up from here
                command
            }
            Kind::Python(environment) => {
                let mut command = Command::new(installed.join(environment).join("bin/python"));
                command.arg(Path::new(SOURCES).join("python.py")).arg(port.to_string());
                command
            }
            Kind::Rmcp => {
                let mut command = Command::new(rmcp_peer(installed, "rmcp-server"));
                command.arg(port.to_string());
                command
            }
        };
        command.env("LEDGER", ledger);
        if other_tools {
            command.env("OTHER_TOOLS", "1");
        }
        command
    }

    /// Part of the line that it prints when it accepts connections.
    pub(crate) const fn ready(&self) -> &'static str {
        match self.kind {
            Kind::Python(_) => "Uvicorn running on",
            Kind::Everything | Kind::TypeScript(_) | Kind::Rmcp => "listening",
        }
    }

    /// Part of the line that it prints when it runs the call with this text.
    pub(crate) fn running(&self, text: &str) -> String {
        match self.kind {
            Kind::Everything => "Received MCP POST request".to_owned(),
            Kind::TypeScript(_) | Kind::Python(_) | Kind::Rmcp => format!("running {text}"),
        }
    }

    /// Whether its tools are those of servers/README.md.
    pub(crate) fn is_ours(&self) -> bool {
        self.kind != Kind::Everything
    }

    /// A call, and what its answer must contain.
    pub(crate) fn call(&self, tool: ToolKind, text: &str) -> (CallToolRequestParams, String) {
        let (name, arguments, answer) = match (self.kind, tool) {
            (Kind::Everything, ToolKind::Slow(seconds)) => (
                "trigger-long-running-operation",
                json!({ "duration": seconds, "steps": 1 }),
                "Long running operation completed",
            ),
            (Kind::Everything, _) => ("echo", json!({ "message": text }), text),
            (_, ToolKind::Echo) => ("echo", json!({ "text": text }), text),
            (_, ToolKind::Slow(seconds)) => ("slow", json!({ "text": text, "seconds": seconds }), text),
            (_, ToolKind::Append(seconds)) => ("append", json!({ "text": text, "seconds": seconds }), text),
            (_, ToolKind::Extra) => ("extra", json!({ "text": text }), text),
        };
        let arguments = arguments.as_object().cloned().unwrap_or_else(JsonObject::new);
        (CallToolRequestParams::new(name).with_arguments(arguments), answer.to_owned())
    }
}

/// A binary of servers/rmcp.
pub(crate) fn rmcp_peer(installed: &Path, name: &str) -> PathBuf {
    installed.join("rmcp/debug").join(name)
}
