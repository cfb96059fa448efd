//! The fake server itself.

mod grammar;
mod http;
mod memory;
mod process;

use std::time::Duration;

use serde_json::{Value, json};

/// A request as a client would write it.
fn request(id: u64, method: &str, params: &Value) -> Box<str> {
    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string().into()
}

fn initialize(id: u64) -> Box<str> {
    let client = json!({"name": "test", "version": "1"});
    let params = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client});
    request(id, "initialize", &params)
}

fn call(id: u64, tool: &str) -> Box<str> {
    request(id, "tools/call", &json!({"name": tool, "arguments": {"text": format!("call {id}")}}))
}

fn notification(method: &str, params: &Value) -> Box<str> {
    json!({"jsonrpc": "2.0", "method": method, "params": params}).to_string().into()
}

/// Far beyond anything a slow machine needs; reaching it is a failure, not a measurement.
const SOON: Duration = Duration::from_secs(60);

async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(SOON, future).await.expect("it should have happened by now")
}
