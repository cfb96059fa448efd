//! Servers under rmcp's own client, for comparison.

use std::path::Path;
use std::time::Duration;

use tokio::process::Command;

use crate::servers::{Server, ToolKind, rmcp_peer};
use mcp_reconnect_bench::programs::Process;

/// A call without an answer for so long hangs.
const HANGS: Duration = Duration::from_secs(10);

/// Restarts the server under rmcp's client and reports its behaviour: with a call in flight, and with a call made afterwards.
pub(crate) async fn restart(server: Server, installed: &Path, ledger: &Path, port: u16) -> Result<String, String> {
    let in_flight = one_call(server, installed, ledger, port, ToolKind::Slow(3), true).await?;
    let after = one_call(server, installed, ledger, port, ToolKind::Echo, false).await?;
    Ok(format!("in flight: {in_flight}; next call: {after}"))
}

async fn one_call(
    server: Server,
    installed: &Path,
    ledger: &Path,
    port: u16,
    tool: ToolKind,
    in_flight: bool,
) -> Result<String, String> {
    let mut command = server.command(installed, port, ledger, false);
    let process = Process::start(&mut command, server.ready()).await?;
    let mut bare = Command::new(rmcp_peer(installed, "bare-rmcp"));
    let mut client = Process::start(bare.arg(format!("http://127.0.0.1:{port}/mcp")), "ready").await?;
    let (params, _) = server.call(tool, "bare");
    let line = format!("{} {}", params.name, serde_json::Value::Object(params.arguments.unwrap_or_default()));
    let running = server.running("bare");
    if in_flight {
        let before = process.count(&running);
        client.tell(&line).await?;
        let begun = |lines: &[String]| lines.iter().filter(|said| said.contains(&running)).count() > before;
        process.until(mcp_reconnect_bench::programs::PATIENCE, begun).await?;
    }
    process.kill().await?;
    let process = Process::start(&mut command, server.ready()).await?;
    if !in_flight {
        client.tell(&line).await?;
    }
    let over = |lines: &[String]| lines.iter().any(|line| line == "answered" || line.starts_with("failed"));
    let outcome = match client.until(HANGS, over).await {
        Ok(()) => client.tail().into_iter().find(|line| line == "answered" || line.starts_with("failed")),
        Err(_) => None,
    };
    client.kill().await?;
    process.kill().await?;
    Ok(match outcome {
        // rmcp names its types and the URL before the cause.
        Some(line) => match line.split_once("] error: ") {
            Some((_, cause)) => format!("failed ({})", cause.split(" for url").next().unwrap_or(cause)),
            None => line,
        },
        None => "hangs".to_owned(),
    })
}
