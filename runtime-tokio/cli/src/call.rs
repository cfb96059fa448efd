//! `mcp-reconnect call`: one call of one tool.

use std::io::{self, IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use mcp_reconnect::config::{FleetConfig, ServerConfig};
use mcp_reconnect::{CallError, CallOptions, Connection};
use rmcp::model::{CallToolRequestParams, CallToolResponse, CallToolResult, JsonObject};
use serde_json::Value;

use super::attempt::NO_SESSION;
use super::signals::Signals;
use super::source::{self, ConfigArgs, Source, WRONG, known, shown};
use super::text::printable_lines;

/// Exit status of a call that the server refused.
const REFUSED: u8 = 1;

const HELP: &str = "\
Exit status:
  0    the tool's result was printed
  1    the tool says that it failed, or the server answered with an error
  2    bad arguments, a config that is wrong, no such server or tool
  3    no session, or none that lasted: the message says whether the tool may have run
  130  interrupted (143: terminated): the tool may have run

Text is printed as it is; a result with anything else in it as the JSON that it is. Only this server is started.";

/// Call a tool of a server, and print its result
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub(crate) struct CallArgs {
    /// The server, as the config names it
    server: String,
    /// The tool, as the server names it
    tool: String,
    /// The arguments, as a JSON object
    #[arg(value_name = "JSON")]
    arguments: Option<String>,
    #[command(flatten)]
    config: ConfigArgs,
    /// How long the call may take, the server's start included [default: as configured, else 60s]
    #[arg(long, value_name = "DURATION", value_parser = source::duration)]
    timeout: Option<Duration>,
    /// Print the whole result as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: &CallArgs) -> ExitCode {
    match try_run(args).await {
        Ok(status) => ExitCode::from(status),
        Err(Stop { status, why }) => {
            if let Some(why) = why {
                anstream::eprintln!("error: {}", printable_lines(&why));
            }
            ExitCode::from(status)
        }
    }
}

/// Why there is no result.
struct Stop {
    status: u8,
    /// None if it was told already, or needs no telling.
    why: Option<String>,
}

impl Stop {
    fn new(status: u8, why: impl Into<String>) -> Self {
        Self { status, why: Some(why.into()) }
    }
}

async fn try_run(args: &CallArgs) -> Result<u8, Stop> {
    let mut params = CallToolRequestParams::new(args.tool.clone());
    params.arguments = args.arguments.as_deref().map(arguments).transpose().map_err(|why| Stop::new(WRONG, why))?;
    let Source { path, parsed } = args.config.load().map_err(|status| Stop { status, why: None })?;
    let server = choose(&parsed.config, &args.server, &args.tool)
        .map_err(|why| Stop::new(WRONG, format!("{}: {why}", shown(&path))))?;
    let options = options(server, args.timeout);
    let failed = |error: &dyn std::fmt::Display| Stop::new(REFUSED, error.to_string());
    let mut signals = Signals::new().map_err(|error| failed(&error))?;
    let connection = server.builder(&args.server).build().map_err(|error| Stop::new(WRONG, error.to_string()))?;
    let ended = tokio::select! {
        biased;
        status = signals.next() => Err(Stop { status, why: None }),
        called = connection.call_tool_with(params, &options) => match called {
            Ok(response) => show(&response, args.json).map_err(|error| failed(&error)),
            Err(error) => Err(stop(&error, &connection, server)),
        },
    };
    connection.shutdown().await;
    ended
}

fn arguments(text: &str) -> Result<JsonObject, String> {
    match serde_json::from_str(text) {
        Ok(Value::Object(arguments)) => Ok(arguments),
        Ok(other) => Err(format!("the arguments are no JSON object but {}", kind(&other))),
        Err(error) => Err(format!("the arguments are no JSON: {error}")),
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

fn choose<'a>(config: &'a FleetConfig, server: &str, tool: &str) -> Result<&'a ServerConfig, String> {
    let Some(found) = config.servers.get(server) else {
        return Err(format!("no server `{server}`; {}", known(config)));
    };
    if !found.enabled {
        return Err(format!("server `{server}` is disabled"));
    }
    if !found.tools.allows(tool) {
        return Err(format!("server `{server}`: the tool `{tool}` is filtered out"));
    }
    Ok(found)
}

/// One call is all that this process does: it waits for the server's start as long as that may take.
fn options(server: &ServerConfig, timeout: Option<Duration>) -> CallOptions {
    let mut options = server.calls;
    if let Some(timeout) = timeout {
        (options.timeout, options.max_timeout) = (timeout, Some(timeout));
    }
    options.max_wait = options.max_wait.max(server.machine.connect_timeout());
    options
}

/// The exit status for an error, and the error in words.
fn stop(error: &CallError, connection: &Connection, server: &ServerConfig) -> Stop {
    match error {
        CallError::NotOffered { tool, .. } => {
            let catalogue = connection.catalogue();
            let offered = catalogue.iter().flat_map(|catalogue| catalogue.tools.items());
            let names: Vec<_> = offered.map(|tool| &*tool.name).filter(|name| server.tools.allows(name)).collect();
            let only = if names.is_empty() { "none at all".into() } else { format!("only: {}", names.join(", ")) };
            Stop::new(WRONG, format!("the server offers no tool `{tool}`, {only}"))
        }
        CallError::Server { .. } | CallError::InputRefused { .. } | CallError::UnexpectedAnswer { .. } => {
            Stop::new(REFUSED, error.to_string())
        }
        CallError::InvalidParams(_) => Stop::new(WRONG, error.to_string()),
        _ => Stop::new(NO_SESSION, error.to_string()),
    }
}

/// Prints a result. The exit status that it calls for.
fn show(response: &CallToolResponse, json: bool) -> io::Result<u8> {
    let (failed, text) = match response {
        CallToolResponse::Complete(result) => (result.is_error == Some(true), text(result)),
        _ => (false, None),
    };
    match text.filter(|_| !json) {
        // Beside the output of other commands, it would pass for a result.
        Some(text) if failed => anstream::eprintln!("error: the tool failed: {}", printable_lines(&text)),
        Some(text) => {
            let mut out = io::stdout().lock();
            let end = if text.ends_with('\n') || text.is_empty() { "" } else { "\n" };
            let text = if out.is_terminal() { printable_lines(&text) } else { text };
            write!(out, "{text}{end}")?;
            out.flush()?;
        }
        None => {
            let mut out = io::stdout().lock();
            writeln!(out, "{}", as_json(response)?)?;
        }
    }
    Ok(if failed { REFUSED } else { 0 })
}

fn as_json(response: &CallToolResponse) -> serde_json::Result<String> {
    match response {
        CallToolResponse::Complete(result) => serde_json::to_string(result),
        CallToolResponse::InputRequired(result) => serde_json::to_string(result),
        CallToolResponse::Task(task) => serde_json::to_string(task),
        // None that this SDK makes of an answer.
        other => serde_json::to_string(&format!("{other:?}")),
    }
}

/// The result as text, if it is nothing else: each block begins a line. Structured content is that of the text.
fn text(result: &CallToolResult) -> Option<String> {
    if result.content.is_empty() && result.structured_content.is_some() {
        return None;
    }
    let blocks: Option<Vec<_>> = result.content.iter().map(|block| block.as_text().map(|text| &*text.text)).collect();
    Some(blocks?.join("\n"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn result(value: Value) -> CallToolResult {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn text_alone_is_text() {
        let of = |value| text(&result(value));
        let block = |text: &str| json!({ "type": "text", "text": text });
        assert_eq!(of(json!({ "content": [block("a"), block("b")] })).as_deref(), Some("a\nb"));
        assert_eq!(of(json!({ "content": [] })).as_deref(), Some(""));
        let both = json!({ "content": [block("{}")], "structuredContent": {} });
        assert_eq!(of(both).as_deref(), Some("{}"));
        let image = json!({ "type": "image", "data": "", "mimeType": "image/png" });
        assert_eq!(of(json!({ "content": [block("a"), image] })), None);
        assert_eq!(of(json!({ "content": [], "structuredContent": { "a": 1 } })), None);
    }

    #[test]
    fn arguments_are_an_object() {
        assert_eq!(arguments(r#"{ "a": 1 }"#).unwrap().len(), 1);
        assert_eq!(arguments("[1]").unwrap_err(), "the arguments are no JSON object but an array");
        let error = arguments("{ \"a\": 1,\n  b }").unwrap_err();
        assert!(error.ends_with("at line 2 column 3"), "{error}");
    }
}
