//! What goes where: stdout is the protocol's, whatever the server writes and whoever reads.

use std::io::{ErrorKind, Write as _};
use std::os::fd::OwnedFd;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, UnixStream};

use super::*;
use crate::support::process;

const NOISY: &str = r#"
    start stdout "Server v1.2 is ready\n", stderr "on the error output\n"
    call echo stdout "debug: \xff\xfe\x00\n", stdout "[1,2]\n{\"half\":\n", ok
    call write stderr "no database\xff\n", exit 3
"#;

#[tokio::test]
async fn output_beside_messages_goes_nowhere_near_stdout() {
    let (home, server) = (Home::new(), process(NOISY));
    let mut host = Host::of(&home, &["--max-wait", "1s"], &server);
    host.initialize().await;
    host.echo("quiet").await;
    // Its last words are part of what the host is told.
    let answer = host.call("write", "x").await;
    let reason = answer["error"]["data"]["reason"].as_str().expect("a reason");
    assert!(reason.contains("exited with status 3; stderr: on the error output | no database"), "{answer}");
    assert_eq!(answer["error"]["data"]["outcome"], "unknown", "{answer}");
    assert_eq!(host.close().await, Some(0));
    assert!(home.stderr().contains("no database"), "and of the log: {}", home.stderr());
    assert_eq!(host.told, Vec::<Value>::new());
}

#[tokio::test]
async fn the_log_goes_to_a_file_instead() {
    let (home, server) = (Home::new(), process(""));
    let log = home.path("front.log");
    let mut host = Host::of(&home, &["--log-file", log.to_str().unwrap(), "-vv"], &server);
    host.initialize().await;
    assert_eq!(host.close().await, Some(0));
    assert_eq!(home.stderr(), "");
    let log = fs::read_to_string(log).unwrap();
    assert!(log.contains("mcp_reconnect"), "{log}");
}

/// A pipe that takes nothing, as if its other end were never read.
fn full() -> (std::io::PipeReader, std::io::PipeWriter) {
    let (reader, mut writer) = std::io::pipe().unwrap();
    let flags = fcntl_getfl(&writer).unwrap();
    fcntl_setfl(&writer, flags | OFlags::NONBLOCK).unwrap();
    loop {
        match writer.write(&[b'x'; 4_096]) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) => panic!("{error}"),
        }
    }
    // The front shares these flags.
    fcntl_setfl(&writer, flags).unwrap();
    (reader, writer)
}

/// Many hosts give their servers a stderr that nobody ever reads.
#[tokio::test]
async fn a_stderr_that_is_never_read_holds_nothing_up() {
    let (home, server) = (Home::new(), process("call write exit 1"));
    let (_unread, stderr) = full();
    let mut command = home.command(in_front_of(&["--log", "trace"], &server));
    command.stderr(stderr);
    let mut host = Host::start(&mut command);
    drop(command);
    host.initialize().await;
    for text in ["a", "b", "c"] {
        host.echo(text).await;
        let answer = host.call("write", "x").await;
        assert_eq!(answer["error"]["data"]["outcome"], "unknown", "{answer}");
    }
    assert_eq!(host.close().await, Some(0));
    nothing_is_left(&server);
}

/// Line ends between the members of a message, as a server behind HTTP may write them, end no line.
#[tokio::test]
async fn a_message_of_many_lines_is_one_line() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/mcp", listener.local_addr().unwrap());
    let server = tokio::spawn(async move {
        let mut connections = tokio::task::JoinSet::new();
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            connections.spawn(pretty(stream));
        }
    });
    let home = Home::new();
    let mut host = Host::start(&mut home.command(["proxy", "--url", &url]));
    let greeting = host.initialize().await;
    assert_eq!(greeting["serverInfo"]["name"], "pretty");
    let answer = host.call("echo", "x").await;
    assert_eq!(answer["result"]["content"][0]["text"], "two\nlines", "{answer}");
    assert_eq!(host.close().await, Some(0));
    server.abort();
}

/// A server whose messages have many lines, over one connection.
async fn pretty(stream: tokio::net::TcpStream) {
    use tokio::io::AsyncBufReadExt as _;
    let mut stream = BufReader::new(stream);
    loop {
        let mut length = 0;
        let mut post = false;
        loop {
            let mut line = String::new();
            if stream.read_line(&mut line).await.unwrap_or(0) == 0 {
                return;
            }
            let line = line.trim_end().to_ascii_lowercase();
            post |= line.starts_with("post ");
            if let Some(value) = line.strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
            if line.is_empty() {
                break;
            }
        }
        let mut body = vec![0; length];
        stream.read_exact(&mut body).await.unwrap();
        let request: Value = serde_json::from_slice(&body).unwrap_or_default();
        let result = match request["method"].as_str() {
            Some("initialize") => json!({ "protocolVersion": "2025-11-25", "capabilities": { "tools": {} },
                "serverInfo": { "name": "pretty", "version": "1" } }),
            Some("tools/list") => json!({ "tools": [{ "name": "echo", "inputSchema": { "type": "object" } }] }),
            Some("tools/call") => json!({ "content": [{ "type": "text", "text": "two\nlines" }] }),
            _ => Value::Null,
        };
        let (status, body) = match (post, request["id"].is_null(), result) {
            (false, ..) => ("405 Method Not Allowed", String::new()),
            (_, true, _) => ("202 Accepted", String::new()),
            (.., Value::Null) => {
                let error = json!({ "code": -32601, "message": "no such method" });
                let message = json!({ "jsonrpc": "2.0", "id": request["id"], "error": error });
                ("200 OK", serde_json::to_string_pretty(&message).unwrap())
            }
            (.., result) => {
                let message = json!({ "jsonrpc": "2.0", "id": request["id"], "result": result });
                ("200 OK", serde_json::to_string_pretty(&message).unwrap().replace('\n', "\r\n"))
            }
        };
        let head = format!(
            "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        if stream.write_all(head.as_bytes()).await.is_err() {
            return;
        }
    }
}

/// A recording is a trace that `replay` reads, that of a session which ended by a signal too.
#[tokio::test]
async fn a_recording_is_a_trace() {
    let (home, server) = (Home::new(), process("call write exit 3"));
    let trace = home.path("trace.jsonl");
    let trace = trace.to_str().unwrap();
    let mut host = Host::of(&home, &["--record", trace], &server);
    host.initialize().await;
    host.call("write", "x").await;
    host.echo("again").await;
    host.signal(rustix::process::Signal::TERM);
    assert_eq!(host.ended().await.code(), Some(143));
    let replayed = home.run(["replay", trace]).await;
    let shown = String::from_utf8(replayed.stdout).unwrap();
    assert!(replayed.status.success(), "{shown}{}", String::from_utf8_lossy(&replayed.stderr));
    for told in ["#1 lost: transport", "publish #2, READY(2)", "SHUTDOWN"] {
        assert!(shown.contains(told), "{told}: {shown}");
    }
}

#[tokio::test]
async fn what_is_no_message_is_answered_and_ends_nothing() {
    let (home, server) = (Home::new(), process(""));
    let mut host = Host::of(&home, &[], &server);
    host.initialize().await;
    for (line, code) in [
        (&b"not json"[..], -32700),
        (br#"[{"jsonrpc":"2.0","id":1,"method":"ping"}]"#, -32600),
        (b"{\"jsonrpc\":\"2.0\",\"method\":\"notifications/x\",\"params\":{\"y\":\"\xff\"}}", -32700),
        (b"\x00\x01\x02", -32700),
        (br#"{"jsonrpc":"2.0","id":{},"method":"ping"}"#, -32600),
    ] {
        let stdin = host.stdin.as_mut().unwrap();
        soon(stdin.write_all(&[line, b"\r\n\n"].concat())).await.unwrap();
        let answer = host.next().await.unwrap();
        assert_eq!((&answer["error"]["code"], &answer["id"]), (&json!(code), &Value::Null), "{answer}");
    }
    host.echo("still here").await;
    assert_eq!(server.ledger().unwrap().garbage(), 0, "nothing of it got further");
    assert_eq!(host.close().await, Some(0));
}

/// A stream between the host and the front, as Node makes its pipes; a copy of the front's end is kept.
fn socket() -> (UnixStream, OwnedFd, OwnedFd) {
    let (host, front) = std::os::unix::net::UnixStream::pair().unwrap();
    host.set_nonblocking(true).unwrap();
    let kept = OwnedFd::from(front.try_clone().unwrap());
    (UnixStream::from_std(host).unwrap(), front.into(), kept)
}

/// Whoever shares the front's ends finds them as they were: a read of theirs still waits.
#[tokio::test]
async fn sockets_are_as_good_as_pipes() {
    let (home, server) = (Home::new(), process("call write big 4MiB"));
    let ((stdin, to_front, kept), (stdout, from_front, also_kept)) = (socket(), socket());
    let mut command = home.command(in_front_of(&[], &server));
    let front = command.stdin(to_front).stdout(from_front).spawn().unwrap();
    drop(command); // its copies of the front's ends
    let mut host = Host::over(front, stdin, stdout);
    host.initialize().await;
    host.echo(&"x".repeat(3 * 1024 * 1024)).await; // more than fits
    let answer = host.call("write", "x").await;
    assert!(answer["result"]["content"][0]["text"].as_str().is_some_and(|text| text.len() > 3 * 1024 * 1024));
    for end in [&kept, &also_kept] {
        assert!(!fcntl_getfl(end).unwrap().contains(OFlags::NONBLOCK));
    }
    drop((kept, also_kept));
    assert_eq!(host.close().await, Some(0));
    nothing_is_left(&server);
    // A host that is gone is no reason to stay: its stdout is as closed as its stdin.
    let ((stdin, to_front, _), (stdout, from_front, _)) = (socket(), socket());
    let mut command = home.command(in_front_of(&[], &server));
    let front = command.stdin(to_front).stdout(from_front).spawn().unwrap();
    drop(command);
    let mut host = Host::over(front, stdin, stdout);
    host.initialize().await;
    let Host { mut front, stdin, stdout, .. } = host;
    drop((stdin, stdout));
    assert_eq!(soon(front.wait()).await.unwrap().code(), Some(0), "{}", home.stderr());
    nothing_is_left(&server);
}

/// A person who types: a terminal echoes what is said, which is no answer.
#[tokio::test]
async fn a_terminal_will_do() {
    let (home, server) = (Home::new(), process(""));
    let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
    grantpt(&terminal).unwrap();
    unlockpt(&terminal).unwrap();
    let name = ptsname(&terminal, Vec::new()).unwrap().into_string().unwrap();
    let ends = || fs::OpenOptions::new().read(true).write(true).open(&name).unwrap();
    let mut command = home.command(in_front_of(&[], &server));
    let front = command.stdin(ends()).stdout(ends()).spawn().unwrap();
    drop(command);
    let terminal = File::from(terminal);
    let typed = tokio::fs::File::from_std(terminal.try_clone().unwrap());
    let mut host = Host::over(front, typed, tokio::fs::File::from_std(terminal));
    host.initialize().await;
    host.echo("typed").await;
    host.write("\u{4}").await; // the end of what is typed
    assert_eq!(host.ended().await.code(), Some(0));
    nothing_is_left(&server);
}
