//! A server on rmcp with everything that the server conformance suite asks for by name, run as
//! `rmcp-conformance stdio` or `rmcp-conformance PORT` (streamable HTTP at `http://127.0.0.1:PORT/mcp`).
#![expect(deprecated, reason = "sampling, roots and logging are of the era that the suite tests too")]

mod fixtures;
mod rounds;

use std::time::Duration;

use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use rmcp::model::*;
use rmcp::service::{RequestContext, SubscriptionContext};
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::{StreamableHttpServerConfig, StreamableHttpService};
use rmcp::{RoleServer, ServerHandler, ServiceExt as _};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::broadcast;

use rounds::Round;

#[derive(Clone)]
struct Server {
    /// Which list changed.
    changes: broadcast::Sender<&'static str>,
}

type Context = RequestContext<RoleServer>;

/// The result of a request.
fn result<T: DeserializeOwned>(mut result: Value) -> Result<T, ErrorData> {
    result["resultType"] = "complete".into();
    of(result)
}

/// A value as rmcp has it.
fn of<T: DeserializeOwned>(value: Value) -> Result<T, ErrorData> {
    serde_json::from_value(value).map_err(|error| ErrorData::internal_error(error.to_string(), None))
}

fn text(text: impl Into<String>) -> Result<CallToolResponse, ErrorData> {
    Ok(CallToolResult::success(vec![ContentBlock::text(text.into())]).into())
}

fn failed(error: impl ToString) -> Result<CallToolResponse, ErrorData> {
    Ok(CallToolResult::error(vec![ContentBlock::text(error.to_string())]).into())
}

impl Server {
    async fn log(context: &Context, message: &str) {
        let params = LoggingMessageNotificationParam::new(LoggingLevel::Info, json!(message));
        drop(context.peer.notify_logging_message(params).await);
    }

    /// The tools that do something on the way.
    async fn act(&self, tool: &str, arguments: &Value, context: &Context) -> Result<CallToolResponse, ErrorData> {
        let step = || tokio::time::sleep(Duration::from_millis(50));
        let modern = context.meta.protocol_version().is_some();
        match tool {
            "test_tool_with_logging" | "test_logging_tool" => {
                for message in ["Tool execution started", "Tool processing data", "Tool execution completed"] {
                    if !modern || context.meta.log_level().is_some() {
                        Self::log(context, message).await;
                    }
                    step().await;
                }
                text("logged")
            }
            "test_tool_with_progress" => {
                for progress in [0, 50, 100] {
                    if let Some(token) = context.meta.get_progress_token() {
                        let params = ProgressNotificationParam::new(token, f64::from(progress)).with_total(100.0);
                        drop(context.peer.notify_progress(params).await);
                    }
                    step().await;
                }
                text("progressed")
            }
            "test_error_handling" => failed("This tool intentionally returns an error for testing"),
            "test_missing_capability" => {
                let capabilities = context.meta.client_capabilities().unwrap_or_default();
                if capabilities.sampling.is_some() {
                    return text("the host can sample");
                }
                Err(ErrorData::missing_required_client_capability(of(json!({ "sampling": {} }))?))
            }
            "test_trigger_tool_change" | "test_trigger_prompt_change" => {
                let list = if tool == "test_trigger_tool_change" { "tools" } else { "prompts" };
                drop(self.changes.send(list)); // nobody may be listening
                text("changed")
            }
            "test_sampling" => {
                let prompt = arguments["prompt"].as_str().unwrap_or_default();
                let messages = json!([{ "role": "user", "content": { "type": "text", "text": prompt } }]);
                let params = of(json!({ "messages": messages, "maxTokens": 100 }))?;
                match context.peer.create_message(params).await {
                    Ok(result) => {
                        let answer = result.message.content.first().and_then(|content| content.as_text());
                        text(format!("LLM response: {}", answer.map(|text| &*text.text).unwrap_or_default()))
                    }
                    Err(error) => failed(error),
                }
            }
            _ => {
                let message = arguments["message"].as_str().unwrap_or("Please fill in");
                let Some(params) = fixtures::elicitation(tool, message) else {
                    return Err(ErrorData::invalid_params(format!("unknown tool {tool}"), None));
                };
                match context.peer.create_elicitation(of(params)?).await {
                    Ok(result) => {
                        let (action, content) = (json!(result.action), json!(result.content));
                        text(format!(
                            "User response: action={}, content={content}",
                            action.as_str().unwrap_or_default()
                        ))
                    }
                    Err(error) => failed(error),
                }
            }
        }
    }
}

impl ServerHandler for Server {
    fn get_info(&self) -> ServerConfig {
        let capabilities = json!({
            "tools": { "listChanged": true },
            "prompts": { "listChanged": true },
            "resources": { "subscribe": true, "listChanged": true },
            "logging": {},
            "completions": {},
        });
        ServerConfig::new(of(capabilities).unwrap_or_default())
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        of::<Vec<Tool>>(fixtures::tools()).ok()?.into_iter().find(|tool| tool.name == name)
    }

    fn accepted_subscription_filter(&self, requested: &SubscriptionFilter) -> Option<SubscriptionFilter> {
        Some(requested.clone())
    }

    async fn listen(&self, context: SubscriptionContext) -> Result<(), ErrorData> {
        let mut changes = self.changes.subscribe();
        loop {
            let list = tokio::select! {
                () = context.cancelled() => return Ok(()),
                change = changes.recv() => change,
            };
            match list {
                Ok("tools") => drop(context.sink().notify_tool_list_changed().await),
                Ok(_) => drop(context.sink().notify_prompt_list_changed().await),
                Err(_) => return Ok(()),
            }
        }
    }

    async fn complete(&self, _: CompleteRequestParams, _: Context) -> Result<CompleteResult, ErrorData> {
        result(json!({ "completion": { "values": ["paris", "park"], "total": 2, "hasMore": false } }))
    }

    async fn set_level(&self, _: SetLevelRequestParams, _: Context) -> Result<(), ErrorData> {
        Ok(())
    }

    async fn subscribe(&self, _: SubscribeRequestParams, _: Context) -> Result<(), ErrorData> {
        Ok(())
    }

    async fn unsubscribe(&self, _: UnsubscribeRequestParams, _: Context) -> Result<(), ErrorData> {
        Ok(())
    }

    async fn list_tools(&self, _: Option<PaginatedRequestParams>, _: Context) -> Result<ListToolsResult, ErrorData> {
        result(json!({ "tools": fixtures::tools(), "ttlMs": 0, "cacheScope": "private" }))
    }

    async fn list_prompts(
        &self,
        _: Option<PaginatedRequestParams>,
        _: Context,
    ) -> Result<ListPromptsResult, ErrorData> {
        result(json!({ "prompts": fixtures::prompts(), "ttlMs": 0, "cacheScope": "private" }))
    }

    async fn list_resources(
        &self,
        _: Option<PaginatedRequestParams>,
        _: Context,
    ) -> Result<ListResourcesResult, ErrorData> {
        result(json!({ "resources": fixtures::resources(), "ttlMs": 0, "cacheScope": "private" }))
    }

    async fn list_resource_templates(
        &self,
        _: Option<PaginatedRequestParams>,
        _: Context,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        result(json!({ "resourceTemplates": fixtures::templates(), "ttlMs": 0, "cacheScope": "private" }))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        _: Context,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let Some(contents) = fixtures::contents(&request.uri) else {
            return Err(ErrorData::invalid_params("Resource not found", Some(json!({ "uri": request.uri }))));
        };
        let result: ReadResourceResult = result(json!({ "contents": contents, "ttlMs": 0, "cacheScope": "private" }))?;
        Ok(result.into())
    }

    async fn get_prompt(
        &self,
        request: GetPromptRequestParams,
        context: Context,
    ) -> Result<GetPromptResponse, ErrorData> {
        let (responses, state) = (request.input_responses.as_ref(), request.request_state.as_deref());
        let round = rounds::play(&request.name, responses, state, context.meta.client_capabilities());
        let messages = match round.transpose()? {
            Some(Round::Ask(needed)) => return Ok(needed.into()),
            Some(Round::Done(said)) => json!([{ "role": "user", "content": { "type": "text", "text": said } }]),
            None => fixtures::messages(&request.name, &json!(request.arguments))
                .ok_or_else(|| ErrorData::invalid_params("unknown prompt", None))?,
        };
        let result: GetPromptResult = result(json!({ "messages": messages }))?;
        Ok(result.into())
    }

    async fn call_tool(&self, request: CallToolRequestParams, context: Context) -> Result<CallToolResponse, ErrorData> {
        let (responses, state) = (request.input_responses.as_ref(), request.request_state.as_deref());
        match rounds::play(&request.name, responses, state, context.meta.client_capabilities()).transpose()? {
            Some(Round::Ask(needed)) => return Ok(needed.into()),
            Some(Round::Done(said)) => return text(said),
            None => {}
        }
        match fixtures::content(&request.name) {
            Some(content) => {
                let result: CallToolResult = result(json!({ "content": content }))?;
                Ok(result.into())
            }
            None => self.act(&request.name, &json!(request.arguments), &context).await,
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let place = std::env::args().nth(1).ok_or("usage: rmcp-conformance stdio|PORT")?;
    let server = Server { changes: broadcast::Sender::new(16) };
    if place == "stdio" {
        server.serve(rmcp::transport::stdio()).await?.waiting().await?;
        return Ok(());
    }
    let config = StreamableHttpServerConfig::default();
    let service = StreamableHttpService::new(move || Ok(server.clone()), LocalSessionManager::default().into(), config);
    let listener = TcpListener::bind(("127.0.0.1", place.parse::<u16>()?)).await?;
    println!("listening");
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let service = TowerToHyperService::new(service.clone());
        tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
    }
}
