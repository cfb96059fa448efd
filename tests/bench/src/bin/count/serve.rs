//! The least server as a process: over stdio, and over HTTP.

use std::io::{self, BufRead as _, Write as _};
use std::net::Ipv4Addr;
use std::sync::Arc;

use futures::FutureExt as _;
use mcp_reconnect_tests::least::Server;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, stdin};
use tokio::net::{TcpListener, TcpStream};

/// Serves stdin and stdout until stdin ends.
pub(crate) fn stdio() -> io::Result<()> {
    let server = Server::new(true);
    let mut stdout = io::stdout().lock();
    for line in io::stdin().lock().lines() {
        // It waits for nothing.
        if let Some(Some(answer)) = server.answer(&line?).now_or_never() {
            stdout.write_all(format!("{answer}\n").as_bytes())?;
            stdout.flush()?;
        }
    }
    Ok(())
}

/// Serves a port of 127.0.0.1, which it prints, until stdin ends.
pub(crate) async fn http() -> io::Result<()> {
    let (server, listener) = (Server::new(true), TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?);
    println!("port {}", listener.local_addr()?.port());
    let mut stdin = stdin();
    let mut input = [0; 64];
    loop {
        tokio::select! {
            count = stdin.read(&mut input) => if count? == 0 {
                return Ok(());
            },
            accepted = listener.accept() => drop(tokio::spawn(connection(accepted?.0, server.clone()))),
        }
    }
}

/// Answers the requests of one connection: with JSON, and without the stream that a client may ask for.
async fn connection(mut stream: TcpStream, server: Arc<Server>) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = Vec::with_capacity(4096);
    loop {
        let Some((head, length, is_post)) = head(&buffer) else {
            if stream.read_buf(&mut buffer).await? == 0 {
                return Ok(());
            }
            continue;
        };
        while buffer.len() < head + length {
            if stream.read_buf(&mut buffer).await? == 0 {
                return Ok(());
            }
        }
        let body = std::str::from_utf8(&buffer[head..head + length]).unwrap_or_default();
        let answer = match (is_post, server.answer(body).await) {
            (true, Some(answer)) => format!(
                "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nmcp-session-id: 1\r\ncontent-length: {}\r\n\r\n{answer}",
                answer.len()
            ),
            (true, None) => "HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n".to_owned(),
            (false, _) => "HTTP/1.1 405 Method Not Allowed\r\ncontent-length: 0\r\n\r\n".to_owned(),
        };
        stream.write_all(answer.as_bytes()).await?;
        buffer.drain(..head + length);
    }
}

/// The lengths of a request's head and body, and whether it is a POST; `None` before the head is there.
fn head(buffer: &[u8]) -> Option<(usize, usize, bool)> {
    let mut headers = [httparse::EMPTY_HEADER; 32];
    let mut request = httparse::Request::new(&mut headers);
    let httparse::Status::Complete(head) = request.parse(buffer).ok()? else { return None };
    let length = request.headers.iter().find(|header| header.name.eq_ignore_ascii_case("content-length"));
    let length = length.and_then(|length| std::str::from_utf8(length.value).ok()?.parse().ok()).unwrap_or(0);
    Some((head, length, request.method == Some("POST")))
}
