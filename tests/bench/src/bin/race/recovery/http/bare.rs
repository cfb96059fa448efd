//! The floor: the exchanges that a fresh session takes, sent one after another on one connection, and nothing else.
//! Beside it, the share of an HTTP library.

use std::net::SocketAddr;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// More headers than any answer of the server has.
const HEADERS: usize = 16;

/// Exchanges before the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Before {
    /// `initialize` and `initialized`.
    Handshake,
    /// These and `tools/list`.
    List,
    /// The call itself, with the id of a session that is no more; then these.
    Refusal,
    /// As `Refusal`, by way of the HTTP library that all clients in Rust are on.
    Library,
}

pub(super) struct Bare {
    address: SocketAddr,
    before: Before,
    stream: Option<TcpStream>,
    http: reqwest::Client,
    /// Its server is no more, and no session of the next one is there.
    lost: bool,
    session: Option<String>,
    last: u64,
    received: Vec<u8>,
}

struct Reply {
    status: u16,
    session: Option<String>,
    body: Vec<u8>,
}

impl Bare {
    pub(super) fn new(address: SocketAddr, before: Before) -> Self {
        _ = rustls::crypto::ring::default_provider().install_default(); // it may be there already
        let http = reqwest::Client::new();
        Self { address, before, stream: None, http, lost: true, session: None, last: 0, received: Vec::new() }
    }

    /// Its server is no more.
    pub(super) fn lost(&mut self) {
        self.stream = None;
        self.lost = true;
    }

    /// Calls a tool, on a fresh session if there is none; what was answered.
    pub(super) async fn call(&mut self, tool: &str, text: &str) -> Result<String, String> {
        if self.lost {
            if matches!(self.before, Before::Refusal | Before::Library) && self.session.is_some() {
                let reply = self.ask("tools/call", &json!({ "name": tool, "arguments": { "text": text } })).await?;
                if reply.status == 200 {
                    return Err("a session outlived its server".into());
                }
            }
            self.begin().await?;
            self.lost = false;
        }
        let reply = self.ask("tools/call", &json!({ "name": tool, "arguments": { "text": text } })).await?;
        let answer = answer(&reply.body)?;
        Ok(answer["result"]["content"][0]["text"].as_str().unwrap_or_default().to_owned())
    }

    async fn begin(&mut self) -> Result<(), String> {
        self.session = None;
        let client = json!({ "name": "bare", "version": "1" });
        let params = json!({ "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client });
        self.session = self.ask("initialize", &params).await?.session;
        self.send(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" })).await?;
        if self.before != Before::Handshake {
            answer(&self.ask("tools/list", &json!({})).await?.body)?;
        }
        Ok(())
    }

    async fn ask(&mut self, method: &str, params: &Value) -> Result<Reply, String> {
        self.last += 1;
        self.send(&json!({ "jsonrpc": "2.0", "id": self.last, "method": method, "params": params })).await
    }

    /// A POST and its answer.
    async fn send(&mut self, message: &Value) -> Result<Reply, String> {
        let body = message.to_string();
        if self.before == Before::Library {
            return self.by_library(body).await.map_err(|error| format!("{}: {error}", message["method"]));
        }
        let session = self.session.as_ref();
        let session = session.map(|id| format!("mcp-session-id: {id}\r\nmcp-protocol-version: 2025-11-25\r\n"));
        let request = format!(
            "POST /mcp HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\naccept: application/json, \
             text/event-stream\r\n{}content-length: {}\r\n\r\n{body}",
            self.address,
            session.unwrap_or_default(),
            body.len(),
        );
        let sent = self.exchange(request.as_bytes()).await;
        sent.map_err(|error| format!("{}: {error}", message["method"]))
    }

    async fn by_library(&self, body: String) -> Result<Reply, reqwest::Error> {
        let url = format!("http://{}/mcp", self.address);
        let mut request = self.http.post(url).header("content-type", "application/json").body(body);
        request = request.header("accept", "application/json, text/event-stream");
        if let Some(session) = &self.session {
            request = request.header("mcp-session-id", session).header("mcp-protocol-version", "2025-11-25");
        }
        let response = request.send().await?;
        let session = response.headers().get("mcp-session-id").and_then(|id| id.to_str().ok()).map(str::to_owned);
        Ok(Reply { status: response.status().as_u16(), session, body: response.bytes().await?.into() })
    }

    async fn exchange(&mut self, request: &[u8]) -> Result<Reply, String> {
        let stream = match &mut self.stream {
            Some(stream) => stream,
            none => {
                let stream = TcpStream::connect(self.address).await.map_err(|error| error.to_string())?;
                stream.set_nodelay(true).map_err(|error| error.to_string())?;
                none.insert(stream)
            }
        };
        stream.write_all(request).await.map_err(|error| error.to_string())?;
        self.received.clear();
        loop {
            if let Some(reply) = read(&self.received)? {
                return Ok(reply);
            }
            if stream.read_buf(&mut self.received).await.map_err(|error| error.to_string())? == 0 {
                return Err("the connection ended".into());
            }
        }
    }
}

/// The answer, if all of it is there.
fn read(received: &[u8]) -> Result<Option<Reply>, String> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS];
    let mut head = httparse::Response::new(&mut headers);
    let length = match head.parse(received).map_err(|error| error.to_string())? {
        httparse::Status::Complete(length) => length,
        httparse::Status::Partial => return Ok(None),
    };
    let header = |name: &str| {
        let header = head.headers.iter().find(|header| header.name.eq_ignore_ascii_case(name))?;
        std::str::from_utf8(header.value).ok()
    };
    let body = &received[length..];
    let whole = match header("content-length").and_then(|length| length.parse().ok()) {
        Some(length) => body.len() >= length,
        None => header("transfer-encoding").is_none() || body.ends_with(b"0\r\n\r\n"),
    };
    let session = header("mcp-session-id").map(str::to_owned);
    Ok(whole.then(|| Reply { status: head.code.unwrap_or_default(), session, body: body.to_vec() }))
}

/// The message in a document, or in a stream of events: it is the only line that is an object.
fn answer(body: &[u8]) -> Result<Value, String> {
    let text = String::from_utf8_lossy(body);
    let mut lines = text.lines().map(|line| line.strip_prefix("data:").unwrap_or(line).trim_start());
    let message = lines.find(|line| line.starts_with('{')).ok_or("no message in the answer")?;
    let message: Value = serde_json::from_str(message).map_err(|error| error.to_string())?;
    if message["result"].is_object() { Ok(message) } else { Err(message.to_string()) }
}
