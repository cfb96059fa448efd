//! rmcp's `StreamableHttpService` as a server, run as `rmcp-server PORT`. See ../README.md for what it offers.

use std::borrow::Cow;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, ErrorData, ListToolsResult,
    PaginatedRequestParams, ServerCapabilities, ServerConfig, Tool, ToolAnnotations,
};
use rmcp::service::RequestContext;
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::{StreamableHttpServerConfig, StreamableHttpService};
use rmcp::{RoleServer, ServerHandler};
use serde_json::{Value, json};
use tokio::net::TcpListener;

struct Server;

fn others() -> bool {
    std::env::var_os("OTHER_TOOLS").is_some()
}

fn tool(name: &'static str, read_only: bool) -> Tool {
    let properties = json!({ "text": { "type": "string" }, "seconds": { "type": "number" } });
    let schema = json!({ "type": "object", "properties": properties, "required": ["text"] });
    let Value::Object(schema) = schema else { unreachable!("an object") };
    let tool = Tool::new(name, "", schema);
    if read_only { tool.with_annotations(ToolAnnotations::new().read_only(true)) } else { tool }
}

impl ServerHandler for Server {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let last = if others() { tool("extra", true) } else { tool("append", false) };
        Ok(ListToolsResult::with_all_items(vec![tool("echo", true), tool("slow", true), last]))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let internal = |error: std::io::Error| ErrorData::internal_error(error.to_string(), None);
        let arguments = request.arguments.unwrap_or_default();
        let text = arguments.get("text").and_then(Value::as_str).unwrap_or_default();
        match (&*request.name, others()) {
            ("echo", _) | ("extra", true) => {}
            ("slow", _) => println!("running {text}"),
            ("append", false) => {
                let path = std::env::var_os("LEDGER").unwrap_or_default();
                let mut ledger = OpenOptions::new().append(true).create(true).open(path).map_err(internal)?;
                ledger.write_all(format!("{text}\n").as_bytes()).map_err(internal)?;
                println!("running {text}");
            }
            (name, _) => return Err(ErrorData::invalid_params(format!("unknown tool {name}"), None)),
        }
        let seconds = arguments.get("seconds").and_then(Value::as_f64).unwrap_or_default();
        tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
        let text: Cow<'_, str> = text.into();
        Ok(CallToolResult::success(vec![ContentBlock::text(text)]).into())
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let port: u16 = std::env::args().nth(1).ok_or("usage: rmcp-server PORT")?.parse()?;
    let service = StreamableHttpService::new(
        || Ok(Server),
        LocalSessionManager::default().into(),
        StreamableHttpServerConfig::default(),
    );
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    println!("listening");
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let service = TowerToHyperService::new(service.clone());
        tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
    }
}
