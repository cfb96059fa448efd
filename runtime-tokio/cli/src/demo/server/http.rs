//! The embedded server behind streamable HTTP, as servers up to 2025-11-25 do it: sessions that live in this process
//! alone, an answer per POST, no standing stream. A thread for each connection.

use std::collections::HashSet;
use std::hash::{BuildHasher as _, RandomState};
use std::io::{self, BufRead, BufReader, Read as _, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use serde_json::Value;

use super::reply;
use crate::demo::stage::Stage;

/// The path.
pub(in crate::demo) const ENDPOINT: &str = "/mcp";

const SESSION_ID: &str = "mcp-session-id";
/// Limits of a request's head and body, in bytes.
const HEAD_LIMIT: u64 = 64 * 1024;
const BODY_LIMIT: u64 = 16 * 1024 * 1024;

/// Says on stdout where it listens, then serves until stdin ends: the starter holds the other end.
pub(super) fn serve(address: SocketAddr, stage: Stage) -> io::Result<()> {
    let listener = TcpListener::bind(address)?;
    println!("{}", listener.local_addr()?);
    thread::spawn(|| {
        drop(io::copy(&mut io::stdin().lock(), &mut io::sink()));
        process::exit(0)
    });
    let server = Arc::new(Server { stage, sessions: Mutex::default() });
    for stream in listener.incoming() {
        let (stream, server) = match stream {
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => continue,
            stream => (stream?, server.clone()),
        };
        // The client sees how its connection ends.
        thread::spawn(move || drop(server.converse(&stream)));
    }
    Ok(())
}

struct Server {
    stage: Stage,
    sessions: Mutex<HashSet<String>>,
}

impl Server {
    fn converse(&self, stream: &TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let (mut requests, mut answers) = (BufReader::new(stream), stream);
        while let Some(request) = Request::read(&mut requests)? {
            answers.write_all(&self.answer(&request)?.to_bytes())?;
        }
        Ok(())
    }

    fn answer(&self, request: &Request) -> io::Result<Response> {
        if self.stage.is_unavailable() {
            return Ok(Response::new("503 Service Unavailable").header("Retry-After", "1"));
        }
        match &*request.method {
            _ if request.path.split('?').next() != Some(ENDPOINT) => Ok(Response::new("404 Not Found")),
            "POST" => match serde_json::from_slice(&request.body) {
                Ok(message) => self.post(request, &message),
                Err(error) => Ok(Response::new("400 Bad Request").text(&error.to_string())),
            },
            "DELETE" => Ok(match self.gate(request) {
                Ok(session) => {
                    self.sessions().remove(session);
                    Response::new("204 No Content")
                }
                Err(refusal) => refusal,
            }),
            _ => Ok(Response::new("405 Method Not Allowed").header("Allow", "POST, DELETE")),
        }
    }

    fn post(&self, request: &Request, message: &Value) -> io::Result<Response> {
        let begins = message["method"] == "initialize";
        if !begins && let Err(refusal) = self.gate(request) {
            return Ok(refusal);
        }
        let Some(answer) = reply(&self.stage, message)? else { return Ok(Response::new("202 Accepted")) };
        let answer = Response::new("200 OK").json(&answer);
        if !begins {
            return Ok(answer);
        }
        // Random, so that the next process does not know it.
        let session = format!("{:016x}", RandomState::new().hash_one(0_u8));
        self.sessions().insert(session.clone());
        Ok(answer.header(SESSION_ID, &session))
    }

    /// The session of a request, or the answer to one without a good session.
    fn gate<'a>(&self, request: &'a Request) -> Result<&'a str, Response> {
        match request.session.as_deref() {
            Some(session) if self.sessions().contains(session) => Ok(session),
            Some(_) => Err(Response::new("404 Not Found").text("no such session")),
            None => Err(Response::new("400 Bad Request").text("no Mcp-Session-Id")),
        }
    }

    fn sessions(&self) -> MutexGuard<'_, HashSet<String>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(PartialEq, Eq, Debug)]
struct Request {
    method: String,
    path: String,
    session: Option<String>,
    body: Vec<u8>,
}

impl Request {
    /// Reads the next one; `None` at the end of the connection. Bodies must come with their length.
    fn read(from: &mut impl BufRead) -> io::Result<Option<Self>> {
        let mut head = from.take(HEAD_LIMIT);
        let mut line = String::new();
        if head.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        let mut words = line.split_whitespace().map(str::to_owned);
        let (Some(method), Some(path)) = (words.next(), words.next()) else { return Err(invalid(&line)) };
        let (mut session, mut length) = (None, 0_u64);
        loop {
            let mut line = String::new();
            head.read_line(&mut line)?;
            if line.trim().is_empty() && line.ends_with('\n') {
                break;
            }
            let (name, value) = line.split_once(':').ok_or_else(|| invalid(&line))?;
            match &*name.to_ascii_lowercase() {
                SESSION_ID => session = Some(value.trim().to_owned()),
                "content-length" => length = value.trim().parse().map_err(|_| invalid(&line))?,
                "transfer-encoding" => return Err(invalid(&line)),
                _ => {}
            }
        }
        if length > BODY_LIMIT {
            return Err(invalid("too long a body"));
        }
        let mut body = Vec::new();
        if from.take(length).read_to_end(&mut body)? as u64 != length {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(Some(Self { method, path, session, body }))
    }
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("no request that can be read: {}", what.trim()))
}

struct Response {
    /// Status line and headers, each with its end.
    head: String,
    body: Vec<u8>,
}

impl Response {
    fn new(status: &str) -> Self {
        Self { head: format!("HTTP/1.1 {status}\r\n"), body: Vec::new() }
    }

    fn header(mut self, name: &str, value: &str) -> Self {
        self.head += &format!("{name}: {value}\r\n");
        self
    }

    fn text(self, text: &str) -> Self {
        Self { body: text.into(), ..self.header("Content-Type", "text/plain") }
    }

    fn json(self, value: &Value) -> Self {
        Self { body: value.to_string().into(), ..self.header("Content-Type", "application/json") }
    }

    fn to_bytes(&self) -> Vec<u8> {
        // 204 must not have it.
        let length = match self.body.len() {
            0 if self.head.starts_with("HTTP/1.1 204") => String::new(),
            length => format!("Content-Length: {length}\r\n"),
        };
        [self.head.as_bytes(), length.as_bytes(), b"\r\n", &self.body].concat()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn request(method: &str, session: Option<&str>, body: Value) -> Request {
        let session = session.map(str::to_owned);
        Request { method: method.into(), path: ENDPOINT.into(), session, body: body.to_string().into() }
    }

    fn status(answer: &Response) -> &str {
        answer.head.split(' ').nth(1).unwrap()
    }

    #[test]
    fn requests_are_read_one_after_the_other() {
        let wire = "POST /mcp HTTP/1.1\r\nMcp-Session-Id: a\r\ncontent-length: 2\r\n\r\n{}GET /x HTTP/1.1\r\n\r\n";
        let mut from = wire.as_bytes();
        let post = Request::read(&mut from).unwrap().unwrap();
        assert_eq!(post, request("POST", Some("a"), json!({})));
        let get = Request::read(&mut from).unwrap().unwrap();
        assert_eq!((&*get.method, &*get.path, get.session, &*get.body), ("GET", "/x", None, &b""[..]));
        assert_eq!(Request::read(&mut from).unwrap(), None);
    }

    #[test]
    fn what_is_cut_or_cannot_be_read_is_an_error() {
        for wire in [
            "POST /mcp HTTP/1.1\r\nContent-Length: 9\r\n\r\n{}",
            "POST /mcp HTTP/1.1\r\nContent-Length: 2\r\n",
            "POST /mcp HTTP/1.1\r\nContent-Length: two\r\n\r\n{}",
            "POST /mcp HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n{}",
            "POST /mcp HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
            "POST\r\n\r\n",
        ] {
            assert!(Request::read(&mut wire.as_bytes()).is_err(), "{wire:?}");
        }
        let endless = format!("GET / HTTP/1.1\r\nx: {}", "y".repeat(1 << 17));
        assert!(Request::read(&mut endless.as_bytes()).is_err());
    }

    #[test]
    fn a_session_lives_from_initialize_to_delete() {
        let dir = tempfile::tempdir().unwrap();
        let server = Server { stage: Stage::new(dir.path()), sessions: Mutex::default() };
        let initialize = json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {} });
        let ping = json!({ "jsonrpc": "2.0", "id": 2, "method": "ping" });
        let answer = |method, session, body| server.answer(&request(method, session, body)).unwrap();

        assert_eq!(status(&answer("POST", None, ping.clone())), "400");
        assert_eq!(status(&answer("POST", Some("stale"), ping.clone())), "404");
        let begun = answer("POST", None, initialize);
        assert_eq!(status(&begun), "200");
        let id = begun.head.lines().find_map(|line| line.strip_prefix("mcp-session-id: ")).unwrap();
        assert_eq!(status(&answer("POST", Some(id), ping.clone())), "200");
        assert_eq!(status(&answer("POST", Some(id), json!({ "method": "notifications/initialized" }))), "202");
        assert_eq!(status(&answer("GET", Some(id), Value::Null)), "405");
        assert_eq!(status(&answer("DELETE", Some(id), Value::Null)), "204");
        assert_eq!(status(&answer("POST", Some(id), ping.clone())), "404");
    }

    #[test]
    fn while_it_is_unavailable_it_is_so_for_everybody() {
        let dir = tempfile::tempdir().unwrap();
        let stage = Stage::new(dir.path());
        let server = Server { stage: stage.clone(), sessions: Mutex::default() };
        let initialize = request("POST", None, json!({ "id": 1, "method": "initialize" }));
        stage.set_unavailable(true).unwrap();
        let refused = server.answer(&initialize).unwrap();
        assert_eq!(status(&refused), "503");
        assert!(refused.head.contains("Retry-After: 1\r\n"), "{}", refused.head);
        stage.set_unavailable(false).unwrap();
        assert_eq!(status(&server.answer(&initialize).unwrap()), "200");
    }
}
