//! A host on `Connection`, in the line protocol of `tests/bench/hosts/README.md`:
//! `race-host [--require none] [--stable-after MS] [--redial-spread MS] -- COMMAND ARG… | --url URL`.
//!
//! The error of a call without a result tells its outcome in `data`: `{"outcome":"unknown" | "not sent"}`.

use std::io::{self, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use mcp_reconnect::core::Config;
use mcp_reconnect::http::HttpConnector;
use mcp_reconnect::stdio::StdioConnector;
use mcp_reconnect::{CallError, CallOptions, Connection, HttpServer, Require, ServerCommand};
use rmcp::model::{CallToolRequestParams, CallToolResponse, JsonObject};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader, stdin};

type Failure = Box<dyn std::error::Error + Send + Sync>;

#[derive(Deserialize)]
struct Order {
    id: u64,
    call: Option<String>,
    args: Option<JsonObject>,
    timeout_ms: u64,
}

#[tokio::main]
async fn main() -> ExitCode {
    match run(std::env::args().skip(1)).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tell(&json!({ "event": "failed", "error": error.to_string() }));
            ExitCode::FAILURE
        }
    }
}

async fn run(arguments: impl Iterator<Item = String>) -> Result<(), Failure> {
    let connection = connection(arguments)?;
    let session = connection.session().await?;
    tell(&json!({ "event": "ready", "version": session.server().protocol_version }));
    drop(session);
    let mut orders = BufReader::new(stdin()).lines();
    while let Some(line) = orders.next_line().await? {
        let order: Order = serde_json::from_str(&line)?;
        let connection = connection.clone();
        tokio::spawn(async move { tell(&answer(&connection, order).await) });
    }
    connection.shutdown().await;
    Ok(())
}

fn connection(mut arguments: impl Iterator<Item = String>) -> Result<Connection, Failure> {
    let mut config = Config::builder();
    let mut require = Require::default();
    loop {
        let option = arguments.next().ok_or("-- is missing")?;
        if option == "--" {
            break;
        }
        let value = arguments.next().ok_or_else(|| format!("{option} needs a value"))?;
        let time = || value.parse().map(Duration::from_millis).map_err(|error| format!("{option} {value}: {error}"));
        match option.as_str() {
            "--require" if value == "none" => require = Require::None,
            "--stable-after" => config = config.stable_after(time()?),
            "--redial-spread" => config = config.redial_spread(time()?),
            _ => return Err(format!("{option} {value}: no such option").into()),
        }
    }
    let server: Vec<String> = arguments.collect();
    let config = config.build()?;
    let builder = match server.as_slice() {
        [option, url] if option == "--url" => Connection::builder(HttpConnector::new(HttpServer::new(url)?)),
        [program, arguments @ ..] => {
            let mut command = ServerCommand::new(program);
            command.args = arguments.iter().map(Into::into).collect();
            Connection::builder(StdioConnector::new(command))
        }
        [] => return Err("a command or --url is missing".into()),
    };
    Ok(builder.name("race").config(config).require(require).build()?)
}

async fn answer(connection: &Connection, Order { id, call, args, timeout_ms }: Order) -> Value {
    let Some(tool) = call else { return json!({ "id": id, "error": { "message": "it makes calls, nothing else" } }) };
    let params = CallToolRequestParams::new(tool).with_arguments(args.unwrap_or_default());
    let options = CallOptions { timeout: Duration::from_millis(timeout_ms), ..CallOptions::default() };
    match connection.call_tool_with(params, &options).await {
        Ok(CallToolResponse::Complete(result)) => {
            let text = result.content.first().and_then(|content| content.as_text()).map(|text| text.text.as_str());
            json!({ "id": id, "text": text.unwrap_or_default(), "is_error": result.is_error.unwrap_or_default() })
        }
        Ok(_) => json!({ "id": id, "error": { "message": "a task" } }),
        Err(error) => {
            json!({ "id": id, "error": { "message": error.to_string(), "data": { "outcome": outcome(&error) } } })
        }
    }
}

fn outcome(error: &CallError) -> &'static str {
    match error {
        CallError::Server { .. } => "error",
        error if error.not_run() => "not sent",
        _ => "unknown",
    }
}

fn tell(line: &Value) {
    // A parent that does not read is gone.
    _ = writeln!(io::stdout().lock(), "{line}");
}
