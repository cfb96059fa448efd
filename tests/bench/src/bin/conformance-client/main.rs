//! `conformance-client URL`: the client that the MCP conformance suite puts to the test, as a host would write it on
//! [`Connection`].
//!
//! The suite says in `MCP_CONFORMANCE_SCENARIO` what to do, in `MCP_CONFORMANCE_PROTOCOL_VERSION` which version to
//! offer, and in `MCP_CONFORMANCE_CONTEXT` which tools to call, where that matters. The server's era is not taken from
//! there: the connection finds it out.

mod login;

use std::env;
use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use futures::future::try_join_all;
use mcp_reconnect::http::HttpConnector;
use mcp_reconnect::{CallOptions, Catalogue, Connection, HttpServer, Session};
use rmcp::model::{
    CallToolRequestParams, ClientCapabilities, ClientConfig, ElicitRequestParams, ElicitResult, ElicitationAction,
    ElicitationCapability, FormElicitationCapability, GetPromptRequestParams, Implementation, ProtocolVersion,
    ReadResourceRequestParams,
};
use rmcp::service::RequestContext;
use rmcp::{ClientHandler, ErrorData, RoleClient};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::login::{Login, Registered};

/// How long a call, or the wait for a session, may take: less than the suite waits for us.
const PATIENCE: Duration = Duration::from_secs(10);

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

#[tokio::main]
async fn main() -> ExitCode {
    // rmcp's OAuth and our browser take the process's provider; the connection brings its own.
    _ = rustls::crypto::ring::default_provider().install_default(); // nobody else has installed one
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("conformance-client: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Outcome {
    let url = env::args().next_back().filter(|arg| arg.starts_with("http")).ok_or("usage: conformance-client URL")?;
    let scenario = env::var("MCP_CONFORMANCE_SCENARIO")?;
    let host = Host { version: variable("MCP_CONFORMANCE_PROTOCOL_VERSION")? };
    let context: Context = variable("MCP_CONFORMANCE_CONTEXT")?.unwrap_or_default();
    let login = Arc::new(Login::new(&url, context.registered.clone()));
    let connection = Connection::builder(HttpConnector::new(HttpServer::new(&url)?.credentials(login)))
        .name(scenario.as_str())
        .call_options(CallOptions { timeout: PATIENCE, max_wait: PATIENCE, ..CallOptions::default() })
        .handler(move |_| host.clone())
        .build()?;
    let played = play(&connection, &scenario, context).await;
    connection.shutdown().await;
    played
}

/// The variable, read as JSON where it is JSON, as a string otherwise.
fn variable<T: for<'de> Deserialize<'de>>(name: &str) -> Outcome<Option<T>> {
    let Ok(text) = env::var(name) else { return Ok(None) };
    let value = serde_json::from_str(&text).unwrap_or(Value::String(text));
    serde_json::from_value(value).map(Some).map_err(|error| format!("{name}: {error}").into())
}

/// The suite's wishes beside the scenario's name.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Context {
    #[serde(rename = "toolCalls")]
    tool_calls: Vec<Wanted>,
    #[serde(flatten)]
    registered: Registered,
}

/// A call that the suite wants.
#[derive(Deserialize)]
struct Wanted {
    name: String,
    #[serde(default)]
    arguments: Map<String, Value>,
}

async fn play(connection: &Connection, scenario: &str, context: Context) -> Outcome {
    let session = connection.session().await?;
    let catalogue = session.catalogue();
    let calls = match scenario {
        // What is under test is whether the schemas that were listed are followed.
        "json-schema-ref-no-deref" => return Ok(()),
        "json-schema-2020-12-preservation" => vec![echo_of_schema(&catalogue)?],
        _ if context.tool_calls.is_empty() => every_tool(&catalogue),
        _ => context.tool_calls,
    };
    // All at the same time, as the calls of a host's agents are.
    let calls = calls.into_iter().map(|Wanted { name, arguments }| {
        connection.call_tool(CallToolRequestParams::new(name).with_arguments(arguments))
    });
    try_join_all(calls).await?;
    read_everything(connection, &session).await
}

/// Every tool on offer, with some value for every argument.
fn every_tool(catalogue: &Catalogue) -> Vec<Wanted> {
    let tools = catalogue.tools.items().iter();
    tools.map(|tool| Wanted { name: tool.name.to_string(), arguments: arguments(&tool.input_schema) }).collect()
}

fn arguments(schema: &Map<String, Value>) -> Map<String, Value> {
    let properties = schema.get("properties").and_then(Value::as_object).into_iter().flatten();
    let some = |schema: &Value| match schema.get("type").and_then(Value::as_str) {
        Some("boolean") => json!(true),
        Some("integer" | "number") => json!(1),
        Some("array") => json!([]),
        Some("object") => json!({}),
        _ => json!("some"),
    };
    properties.map(|(name, schema)| (name.clone(), some(schema))).collect()
}

/// The call that sends a tool's input schema back, as it was listed.
fn echo_of_schema(catalogue: &Catalogue) -> Outcome<Wanted> {
    let tool = catalogue.tool("json_schema_2020_12_tool").ok_or("the tool with the schema is missing")?;
    let schema = Value::Object(tool.input_schema.as_ref().clone());
    Ok(Wanted { name: "json_schema_echo".to_owned(), arguments: Map::from_iter([("schema".to_owned(), schema)]) })
}

/// Reads each resource, and gets each prompt.
async fn read_everything(connection: &Connection, session: &Session) -> Outcome {
    let capabilities = &session.server().capabilities;
    if capabilities.resources.is_some() {
        for resource in session.service().list_all_resources().await? {
            connection.read_resource(ReadResourceRequestParams::new(resource.uri.as_str())).await?;
        }
    }
    if capabilities.prompts.is_some() {
        for prompt in session.service().list_all_prompts().await? {
            connection.get_prompt(GetPromptRequestParams::new(prompt.name.as_str())).await?;
        }
    }
    Ok(())
}

/// The host's side of a session: a user who accepts every form as it is filled in by default.
#[derive(Clone)]
struct Host {
    /// The version to offer, if not the newest.
    version: Option<ProtocolVersion>,
}

impl ClientHandler for Host {
    fn get_info(&self) -> ClientConfig {
        let forms = FormElicitationCapability::new().with_schema_validation(true);
        let mut capabilities = ClientCapabilities::default();
        capabilities.elicitation = Some(ElicitationCapability::new().with_form(forms));
        let own = Implementation::new(env!("CARGO_BIN_NAME"), env!("CARGO_PKG_VERSION"));
        let config = ClientConfig::new(capabilities, own);
        self.version.iter().cloned().fold(config, ClientConfig::with_protocol_version)
    }

    async fn create_elicitation(
        &self,
        request: ElicitRequestParams,
        _: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        let ElicitRequestParams::FormElicitationParams { requested_schema, .. } = request else {
            return Ok(ElicitResult::new(ElicitationAction::Decline));
        };
        let fields = requested_schema.properties.into_iter().filter_map(|(name, field)| {
            let default = serde_json::to_value(field).ok()?.get("default")?.clone();
            Some((name, default))
        });
        Ok(ElicitResult::new(ElicitationAction::Accept).with_content(Value::Object(fields.collect())))
    }
}
