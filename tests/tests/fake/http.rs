//! The same over HTTP, as a client sees it that knows nothing but bytes.

mod faults;
mod sessions;
mod streams;

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;

use mcp_reconnect_tests::fake::FakeHttp;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

use super::{call, initialize, notification, request, soon};

async fn server(script: &str) -> FakeHttp {
    FakeHttp::start(script).await.unwrap_or_else(|error| panic!("{error}"))
}

/// The beginning of an answer.
#[derive(Debug)]
struct Head {
    status: u16,
    headers: BTreeMap<String, String>,
}

impl Head {
    fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }

    fn is_stream(&self) -> bool {
        self.header("content-type") == Some("text/event-stream")
    }
}

/// A connection, and the session that its requests name.
struct Client {
    stream: BufReader<TcpStream>,
    session: Option<String>,
}

impl Client {
    async fn of(server: &FakeHttp) -> Self {
        Self::at(server.address()).await.expect("the port is open")
    }

    async fn at(address: SocketAddr) -> io::Result<Self> {
        let stream = soon(TcpStream::connect(address)).await?;
        stream.set_nodelay(true)?;
        Ok(Self { stream: BufReader::new(stream), session: None })
    }

    /// One that has a session, if the server has sessions.
    async fn initialized(server: &FakeHttp) -> Self {
        let mut client = Self::of(server).await;
        let (head, answer) = client.post(&initialize(0)).await;
        assert!(head.status == 200 && answer["result"].is_object(), "{head:?} {answer}");
        client.session = head.header("mcp-session-id").map(str::to_owned);
        let (head, _) = client.post(&notification("notifications/initialized", &json!({}))).await;
        assert_eq!(head.status, 202);
        client
    }

    /// Another connection with the same session.
    async fn again(&self, server: &FakeHttp) -> Self {
        Self { session: self.session.clone(), ..Self::of(server).await }
    }

    async fn send(&mut self, verb: &str, headers: &[(&str, &str)], body: &str) {
        let mut request = format!("{verb} /mcp HTTP/1.1\r\nHost: fake\r\nContent-Length: {}\r\n", body.len());
        let session = self.session.iter().map(|session| ("Mcp-Session-Id", &**session));
        for (name, value) in session.chain(headers.iter().copied()) {
            request.extend([name, ": ", value, "\r\n"]);
        }
        request.extend(["\r\n", body]);
        soon(self.stream.get_mut().write_all(request.as_bytes())).await.expect("the server reads");
    }

    async fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        soon(self.stream.read_line(&mut line)).await?;
        let line = line.strip_suffix("\r\n").ok_or(io::ErrorKind::UnexpectedEof)?;
        Ok(line.to_owned())
    }

    async fn head(&mut self) -> io::Result<Head> {
        let status = self.line().await?;
        let status = status.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
        let mut headers = BTreeMap::new();
        loop {
            let line = self.line().await?;
            let Some((name, value)) = line.split_once(": ") else { return Ok(Head { status, headers }) };
            headers.insert(name.to_owned(), value.to_owned());
        }
    }

    /// The next piece of a stream; `None` at its well-formed end.
    async fn chunk(&mut self) -> io::Result<Option<String>> {
        let size = self.line().await?;
        let size = usize::from_str_radix(&size, 16).expect("a size");
        let mut bytes = vec![0; size + 2];
        soon(self.stream.read_exact(&mut bytes)).await?;
        bytes.truncate(size);
        Ok((size > 0).then(|| String::from_utf8(bytes).expect("text")))
    }

    /// The next message of a stream.
    async fn event(&mut self) -> Value {
        let chunk = self.chunk().await.expect("the stream goes on").expect("the stream goes on");
        let data = chunk.lines().find_map(|line| line.strip_prefix("data: ")).expect("data");
        serde_json::from_str(data).expect("a message")
    }

    async fn body(&mut self, head: &Head) -> io::Result<String> {
        let length = head.header("content-length").expect("a length").parse().expect("a length");
        let mut bytes = vec![0; length];
        soon(self.stream.read_exact(&mut bytes)).await?;
        Ok(String::from_utf8(bytes).expect("text"))
    }

    /// The head, and the last message of a stream or the body; text that is not JSON as a string.
    async fn hear(&mut self) -> (Head, Value) {
        let head = self.head().await.expect("an answer");
        if !head.is_stream() {
            let body = self.body(&head).await.expect("a body");
            return (head, serde_json::from_str(&body).unwrap_or(Value::String(body)));
        }
        let mut last = Value::Null;
        while let Some(chunk) = self.chunk().await.expect("the stream ends well") {
            if let Some(data) = chunk.lines().find_map(|line| line.strip_prefix("data: ")) {
                last = serde_json::from_str(data).expect("a message");
            }
        }
        (head, last)
    }

    async fn ask(&mut self, verb: &str, headers: &[(&str, &str)], body: &str) -> (Head, Value) {
        self.send(verb, headers, body).await;
        self.hear().await
    }

    async fn post(&mut self, body: &str) -> (Head, Value) {
        self.ask("POST", &[], body).await
    }

    /// Opens a standing stream on this connection.
    async fn listen(&mut self) {
        self.send("GET", &[], "").await;
        let head = self.head().await.expect("an answer");
        assert!(head.is_stream(), "{head:?}");
    }

    /// How the connection ends: `Ok` for an orderly end.
    async fn end(&mut self) -> io::Result<Vec<u8>> {
        let mut rest = Vec::new();
        soon(self.stream.read_to_end(&mut rest)).await?;
        Ok(rest)
    }
}

fn text(answer: &Value) -> &str {
    answer["result"]["content"][0]["text"].as_str().unwrap_or_else(|| panic!("no text in {answer}"))
}
