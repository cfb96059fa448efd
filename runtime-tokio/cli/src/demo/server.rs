//! The embedded MCP server: JSON-RPC lines on stdin and stdout, one call at a time, or streamable HTTP. Written by hand,
//! so that the demo does not test a library against itself.

mod http;

use std::io::{self, BufRead as _, Write as _};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use super::stage::{Misdeed, Stage};
pub(super) use http::ENDPOINT;

/// The tool that is annotated as read-only, and the one without an annotation. Both return their `text`.
pub(super) const ECHO: &str = "echo";
pub(super) const APPEND: &str = "append";

/// Duration of a call after it is in the ledger: a fault is then likely to hit one that ran and has no answer yet.
const WORK: Duration = Duration::from_millis(10);
/// Exit status of a crash loop.
const CRASH_STATUS: u8 = 3;

const METHOD_NOT_FOUND: i64 = -32601;
const INVALID_PARAMS: i64 = -32602;

/// Runs the server of `mcp-reconnect demo`
#[derive(clap::Args)]
pub(crate) struct ServerArgs {
    /// Where its ledger is, and its orders
    #[arg(long)]
    dir: PathBuf,
    /// Serve streamable HTTP at this address, which is said on stdout, instead of stdio
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
}

/// Serves until stdin ends.
pub(crate) fn serve(args: &ServerArgs) -> ExitCode {
    let stage = Stage::new(&args.dir);
    match stage.take_crash() {
        Ok(false) => {}
        Ok(true) => {
            eprintln!("told to crash");
            return ExitCode::from(CRASH_STATUS);
        }
        Err(error) => {
            eprintln!("{}: {error}", args.dir.display());
            return ExitCode::FAILURE;
        }
    }
    let served = match args.listen {
        Some(address) => http::serve(address, stage)
            .map_err(|error| io::Error::new(error.kind(), format!("cannot serve on {address}: {error}"))),
        None => answer_all(&stage),
    };
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn answer_all(stage: &Stage) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    for line in io::stdin().lock().lines() {
        let Ok(message) = serde_json::from_str::<Value>(&line?) else { continue };
        if let Some(answer) = reply(stage, &message)? {
            writeln!(stdout, "{answer}")?;
            stdout.flush()?;
        }
    }
    Ok(())
}

/// The answer to a message, if it gets one.
fn reply(stage: &Stage, message: &Value) -> io::Result<Option<Value>> {
    // Without an id it is a notification, without a method an answer: neither is answered.
    let (Some(id), Some(method)) = (message.get("id"), message.get("method").and_then(Value::as_str)) else {
        return Ok(None);
    };
    Ok(Some(match answer(stage, method, &message["params"])? {
        Ok(result) => json!({ "jsonrpc": "2.0", "id": id, "result": result }),
        Err((code, text)) => json!({ "jsonrpc": "2.0", "id": id, "error": { "code": code, "message": text } }),
    }))
}

fn answer(stage: &Stage, method: &str, params: &Value) -> io::Result<Result<Value, (i64, String)>> {
    Ok(match method {
        "initialize" => Ok(json!({
            "protocolVersion": "2025-11-25",
            "capabilities": { "tools": {} },
            "serverInfo": { "name": "mcp-reconnect-demo", "version": env!("CARGO_PKG_VERSION") },
        })),
        "ping" => Ok(json!({})),
        "tools/list" => Ok(json!({ "tools": [tool(ECHO, json!({ "readOnlyHint": true })), tool(APPEND, json!({}))] })),
        "tools/call" => return call(stage, params),
        _ => Err((METHOD_NOT_FOUND, format!("no method `{method}`"))),
    })
}

fn tool(name: &str, annotations: Value) -> Value {
    json!({
        "name": name,
        "description": "Returns its text.",
        "annotations": annotations,
        "inputSchema": { "type": "object", "properties": { "text": { "type": "string" } }, "required": ["text"] },
    })
}

#[expect(clippy::disallowed_methods, reason = "a server without a runtime, which takes its time")]
fn work() {
    thread::sleep(WORK);
}

fn call(stage: &Stage, params: &Value) -> io::Result<Result<Value, (i64, String)>> {
    let (Some(name @ (ECHO | APPEND)), Some(text)) = (params["name"].as_str(), params["arguments"]["text"].as_str())
    else {
        return Ok(Err((INVALID_PARAMS, format!("cannot call {params}"))));
    };
    stage.record(text)?;
    if name == APPEND && stage.take(Misdeed::DoubleRun) {
        stage.record(text)?;
    }
    work();
    let text = if stage.take(Misdeed::WrongAnswer) { "another caller's text" } else { text };
    Ok(Ok(json!({ "content": [{ "type": "text", "text": text }] })))
}
