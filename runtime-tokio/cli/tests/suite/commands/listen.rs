//! `mcp-reconnect proxy --listen`: hosts over HTTP.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use super::{Done, Home};

/// A front under way. Ends by force when it is dropped.
struct Proxy {
    child: Child,
    address: String,
}

impl Proxy {
    fn start(command: &mut Command) -> Self {
        let mut child = command.args(["--log", "off"]).stderr(Stdio::piped()).spawn().expect("it starts");
        let mut line = String::new();
        BufReader::new(child.stderr.take().expect("piped")).read_line(&mut line).expect("a line");
        let address = line.trim().strip_prefix("listening on http://").and_then(|rest| rest.strip_suffix("/mcp"));
        let address = address.unwrap_or_else(|| panic!("{line}")).to_owned();
        Self { child, address }
    }

    /// Posts a message; the answer, its head included.
    fn post(&self, session: Option<&str>, message: &serde_json::Value) -> String {
        let body = message.to_string();
        let session = session.map(|session| format!("mcp-session-id: {session}\r\n")).unwrap_or_default();
        let head = format!(
            "POST /mcp HTTP/1.1\r\nhost: {}\r\nconnection: close\r\ncontent-type: application/json\r\n{session}\
             accept: application/json, text/event-stream\r\ncontent-length: {}\r\n\r\n",
            self.address,
            body.len(),
        );
        let mut stream = TcpStream::connect(&self.address).expect("a connection");
        stream.write_all((head + &body).as_bytes()).expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        answer
    }

    fn initialize(&self) -> String {
        let params = json!({ "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": { "name": "h", "version": "1" } });
        let answer = self.post(None, &json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params }));
        let session = answer.lines().find_map(|line| line.strip_prefix("mcp-session-id: "));
        session.unwrap_or_else(|| panic!("{answer}")).to_owned()
    }

    fn end(&mut self, signal: Signal) -> Option<i32> {
        kill_process(Pid::from_child(&self.child), signal).expect("it runs");
        self.child.wait().expect("a status").code()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // It has ended, unless the test fails.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

#[test]
fn each_session_has_a_server_of_its_own_and_none_is_left() {
    let home = Home::new(&json!({ "it": "shell" }));
    let mut proxy =
        Proxy::start(&mut home.command(&["proxy", "--listen", "127.0.0.1:0", "--no-cache", "--server", "it"]));
    assert!(!home.was_started("it"), "nobody has asked");
    let sessions = [proxy.initialize(), proxy.initialize()];
    for session in &sessions {
        let call = json!({ "jsonrpc": "2.0", "id": "a", "method": "tools/call", "params": { "name": "say" } });
        let answer = proxy.post(Some(session), &call);
        assert!(answer.contains("hello") && answer.contains(r#""id":"a""#), "{answer}");
    }
    assert_eq!(home.groups("it").len(), 2);
    assert_eq!(proxy.end(Signal::TERM), Some(143));
    home.assert_clean();
}

#[test]
fn arguments_that_would_expose_the_server_must_be_meant() {
    let home = Home::new(&json!({ "it": "shell" }));
    let proxy =
        |args: &[&str]| Done::of(&mut home.command(&[&["proxy", "--no-cache", "--server", "it"], args].concat()));
    proxy(&["--listen", "0.0.0.0:0"]).assert_ended(2, &["--listen", "can be reached from other machines"]);
    proxy(&["--listen", "localhost"]).assert_ended(2, &["--listen"]);
    proxy(&["--expose", "any"]).assert_ended(2, &["--listen"]);
    proxy(&["--listen", "127.0.0.1:0", "--allow-origin", "example.com"]).assert_ended(2, &["is no origin"]);
    proxy(&["--listen", "127.0.0.1:0", "--record", "x"]).assert_ended(2, &["--record"]);
    assert!(!home.was_started("it"));
}
