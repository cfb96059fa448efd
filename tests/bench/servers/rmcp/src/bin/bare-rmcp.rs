//! rmcp's own HTTP client, run as `bare-rmcp URL`: prints `ready`; then each line `TOOL ARGUMENTS` on stdin is a call,
//! answered with a line `answered` or `failed: WHY`. It knows no deadline: the caller's business.

use rmcp::ServiceExt as _;
use rmcp::model::{CallToolRequestParams, JsonObject};
use rmcp::transport::StreamableHttpClientTransport;
use tokio::io::{AsyncBufReadExt as _, BufReader, stdin};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1).ok_or("usage: bare-rmcp URL")?;
    let client = ().serve(StreamableHttpClientTransport::from_uri(url)).await?;
    println!("ready");
    let mut calls = BufReader::new(stdin()).lines();
    while let Some(call) = calls.next_line().await? {
        let (tool, arguments) = call.split_once(' ').ok_or("a line is `TOOL ARGUMENTS`")?;
        let arguments: JsonObject = serde_json::from_str(arguments)?;
        match client.call_tool(CallToolRequestParams::new(tool.to_owned()).with_arguments(arguments)).await {
            Ok(_) => println!("answered"),
            Err(error) => println!("failed: {}", error.to_string().replace('\n', " ")),
        }
    }
    Ok(())
}
