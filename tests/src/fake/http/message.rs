//! HTTP/1.1 as bytes: a connection, the requests that come on it, and the heads of the answers.

use std::io;
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::host::HttpHost;
use super::ledger::HttpEvent;

const MAX_HEADERS: usize = 64;

/// A request, as it was read.
#[derive(Debug)]
pub(crate) struct HttpRequest {
    pub(crate) verb: String,
    pub(crate) path: String,
    /// The names in lower case.
    headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl HttpRequest {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(other, _)| other == name).map(|(_, value)| &**value)
    }

    pub(crate) fn headers(&self) -> impl Iterator<Item = (&str, &str)> {
        self.headers.iter().map(|(name, value)| (&**name, &**value))
    }
}

/// A client's connection; dropping it closes it.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: TcpStream,
    read: Vec<u8>,
    host: Arc<HttpHost>,
    pub(crate) number: u64,
}

impl Connection {
    pub(crate) fn new(stream: TcpStream, host: Arc<HttpHost>) -> Self {
        let number = host.number();
        host.record(HttpEvent::Connected { connection: number });
        Self { stream, read: Vec::new(), host, number }
    }

    /// The next request; `None`: the client has closed the connection.
    ///
    /// # Errors
    ///
    /// The connection is broken, or what comes is not HTTP.
    pub(crate) async fn request(&mut self) -> io::Result<Option<HttpRequest>> {
        loop {
            self.host.thawed().await;
            if let Some((request, length)) = parse(&self.read)? {
                self.read.drain(..length);
                return Ok(Some(request));
            }
            if self.stream.read_buf(&mut self.read).await? == 0 {
                return if self.read.is_empty() { Ok(None) } else { Err(io::ErrorKind::UnexpectedEof.into()) };
            }
        }
    }

    /// Ends when the client has closed the connection. Cancel safe; what it reads is kept for the next request.
    pub(crate) async fn gone(&mut self) {
        loop {
            self.host.thawed().await;
            match self.stream.read_buf(&mut self.read).await {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
        }
    }

    pub(crate) async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.host.thawed().await;
        self.stream.write_all(bytes).await
    }

    /// From now on closing it is a reset.
    pub(crate) fn reset(&self) -> io::Result<()> {
        self.stream.set_zero_linger()
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.host.record(HttpEvent::Disconnected { connection: self.number });
    }
}

/// A request and its length, once all of it is there.
fn parse(bytes: &[u8]) -> io::Result<Option<(HttpRequest, usize)>> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut head = httparse::Request::new(&mut headers);
    let parsed = head.parse(bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
    let httparse::Status::Complete(body) = parsed else { return Ok(None) };
    let headers: Vec<(String, String)> = head
        .headers
        .iter()
        .map(|header| (header.name.to_lowercase(), String::from_utf8_lossy(header.value).into_owned()))
        .collect();
    if headers.iter().any(|(name, _)| name == "transfer-encoding") {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a request in chunks is not understood"));
    }
    let length = headers.iter().find(|(name, _)| name == "content-length").map_or(Ok(0), |(_, value)| value.parse());
    let length: usize = length.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
    let Some(end) = body.checked_add(length).filter(|end| *end <= bytes.len()) else { return Ok(None) };
    let request = HttpRequest {
        verb: head.method.unwrap_or_default().to_owned(),
        path: head.path.unwrap_or_default().to_owned(),
        headers,
        body: String::from_utf8_lossy(&bytes[body..end]).into_owned(),
    };
    Ok(Some((request, end)))
}

/// The head of an answer.
pub(crate) fn head(status: u16, headers: &[(String, String)]) -> Vec<u8> {
    let reason = match status {
        200 => "OK",
        202 => "Accepted",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        429 => "Too Many Requests",
        500 => "Internal Server Error",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        _ => "",
    };
    let mut head = format!("HTTP/1.1 {status} {reason}\r\n");
    for (name, value) in headers {
        head.extend([name, ": ", value, "\r\n"]);
    }
    head.push_str("\r\n");
    head.into_bytes()
}
