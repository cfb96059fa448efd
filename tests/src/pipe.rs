//! The least server behind a pipe in memory: lines both ways, as over stdio, without a process.

use std::sync::Arc;

use async_trait::async_trait;
use mcp_reconnect::lines;
use mcp_reconnect::link::{Attempt, ConnectError, Connector, Link};
use mcp_reconnect_stdio::DEFAULT_FRAME_LIMIT;
use rmcp::model::CallToolRequestParams;
use rmcp::service::RunningService;
use rmcp::transport::async_rw::AsyncRwTransport;
use rmcp::{RoleClient, ServiceExt as _};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, DuplexStream, duplex, split};

use crate::least::Server;

/// As much as a pipe holds by default.
const PIPE: usize = 64 * 1024;

/// Serves lines until the pipe is closed.
async fn serve(server: Arc<Server>, pipe: DuplexStream) {
    let (reader, mut writer) = split(pipe);
    let (mut reader, mut line) = (BufReader::new(reader), String::new());
    while reader.read_line(&mut line).await.is_ok_and(|count| count > 0) {
        if let Some(answer) = server.answer(&line).await {
            let mut answer = String::from(answer);
            answer.push('\n');
            if writer.write_all(answer.as_bytes()).await.is_err() {
                return;
            }
        }
        line.clear();
    }
}

/// A pipe to a spawn of the server, which ends with it.
pub fn pipe(server: &Arc<Server>) -> DuplexStream {
    let (ours, theirs) = duplex(PIPE);
    tokio::spawn(serve(server.clone(), theirs));
    ours
}

/// Links to spawns of a server over such pipes, by the code that carries a child's.
#[derive(Debug)]
pub struct Piped(pub Arc<Server>);

#[async_trait]
impl Connector for Piped {
    async fn connect(&self, attempt: Attempt) -> Result<Link, ConnectError> {
        let (reader, writer) = split(pipe(&self.0));
        Ok(lines::link(reader, writer, DEFAULT_FRAME_LIMIT, &attempt))
    }
}

/// rmcp's client on such a pipe, by its own transport.
///
/// # Panics
///
/// Without a session: outside a runtime, or from a server that does not answer.
pub async fn rmcp(server: &Arc<Server>) -> RunningService<RoleClient, ()> {
    let (reader, writer) = split(pipe(server));
    ().serve(AsyncRwTransport::new(reader, writer)).await.expect("a session")
}

/// A call of the server's tool, with one argument.
pub fn echo() -> CallToolRequestParams {
    let text = [("text".to_owned(), "hello".into())];
    CallToolRequestParams::new("echo").with_arguments(text.into_iter().collect())
}
