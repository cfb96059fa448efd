//! rmcp's own client as a host, in the line protocol of `tests/bench/hosts/README.md`: `rmcp-host -- COMMAND ARG… | --url URL`.

use std::io::{self, Write as _};
use std::sync::Arc;
use std::time::Duration;

use rmcp::model::{CallToolRequestParams, JsonObject};
use rmcp::service::RunningService;
use rmcp::transport::{StreamableHttpClientTransport, TokioChildProcess};
use rmcp::{RoleClient, ServiceExt as _};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader, stdin};
use tokio::process::Command;

type Failure = Box<dyn std::error::Error + Send + Sync>;
type Client = RunningService<RoleClient, ()>;

#[derive(Deserialize)]
struct Order {
    id: u64,
    call: String,
    args: JsonObject,
    timeout_ms: u64,
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let client = match client().await {
        Ok(client) => Arc::new(client),
        Err(error) => {
            tell(&json!({ "event": "failed", "error": error.to_string() }));
            return Err(error);
        }
    };
    let version = client.peer_info().map(|info| info.protocol_version.to_string());
    tell(&json!({ "event": "ready", "version": version.unwrap_or_default() }));
    let mut orders = BufReader::new(stdin()).lines();
    while let Some(line) = orders.next_line().await? {
        let order: Order = serde_json::from_str(&line)?;
        let client = Arc::clone(&client);
        tokio::spawn(async move { tell(&answer(&client, order).await) });
    }
    Ok(())
}

async fn client() -> Result<Client, Failure> {
    let words: Vec<String> = std::env::args().skip_while(|word| word != "--").skip(1).collect();
    Ok(match words.as_slice() {
        [option, url] if option == "--url" => ().serve(StreamableHttpClientTransport::from_uri(url.clone())).await?,
        [program, arguments @ ..] => {
            let mut command = Command::new(program);
            command.args(arguments);
            ().serve(TokioChildProcess::new(command)?).await?
        }
        [] => return Err("a command or --url is missing".into()),
    })
}

async fn answer(client: &Client, Order { id, call, args, timeout_ms }: Order) -> Value {
    let call = client.call_tool(CallToolRequestParams::new(call).with_arguments(args));
    match tokio::time::timeout(Duration::from_millis(timeout_ms), call).await {
        Ok(Ok(result)) => {
            let result = serde_json::to_value(result).unwrap_or_default();
            let is_error = result["isError"].as_bool().unwrap_or_default();
            json!({ "id": id, "text": result["content"][0]["text"], "is_error": is_error })
        }
        Ok(Err(error)) => json!({ "id": id, "error": { "message": error.to_string() } }),
        Err(_) => json!({ "id": id, "error": { "message": "no answer in time" } }),
    }
}

fn tell(line: &Value) {
    // A parent that does not read is gone.
    _ = writeln!(io::stdout().lock(), "{line}");
}
