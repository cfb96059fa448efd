//! A link over streams that somebody else has opened.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures::future::BoxFuture;
use mcp_reconnect::link::{Attempt, ConnectError, Connector, Ended, Link, LinkControl, LinkFacts, Outbound};
use mcp_reconnect::{CallError, Connection, Event, lines};
use mcp_reconnect_core::replay::Sent;
use mcp_reconnect_core::{Epoch, FailureClass, Status};
use rmcp::model::CallToolRequestParams;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader, DuplexStream, duplex, split};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// A link with lines of 64 bytes, and the server's end of it.
fn link() -> (Link, DuplexStream, Attempt) {
    let (ours, theirs) = duplex(1024);
    let (reader, writer) = split(ours);
    let (cancel, tasks) = (CancellationToken::new(), TaskTracker::new());
    let attempt = Attempt { epoch: Epoch::FIRST, interactive: false, cancel, tasks };
    let link = lines::link(reader, writer, 64, &attempt);
    attempt.tasks.close();
    (link, theirs, attempt)
}

#[tokio::test(start_paused = true)]
async fn frames_go_both_ways_and_the_facts_are_told() {
    let (mut link, mut server, _attempt) = link();
    let (frame, fate) = Outbound::new("{\n\"id\":1}".into());
    link.outbound.send(frame).await.unwrap();
    assert_eq!(fate.await, Ok(()));
    let mut line = [0; 10];
    server.read_exact(&mut line).await.unwrap();
    assert_eq!(&line, b"{ \"id\":1}\n");
    server.write_all(b"hello\r\n{\"id\":1}\r\n{\"id\":2}\n").await.unwrap();
    link.control.first_byte().await;
    assert_eq!(link.inbound.recv().await.as_deref(), Some(r#"{"id":1}"#));
    assert_eq!(link.inbound.recv().await.as_deref(), Some(r#"{"id":2}"#));
    let facts = link.control.facts();
    assert_eq!((facts.noise, facts.pid, facts.last_byte.is_some()), (1, None, true));
}

#[tokio::test(start_paused = true)]
async fn the_end_of_what_the_server_says_ends_the_link() {
    let (mut link, mut server, attempt) = link();
    server.write_all(b"{\"id\":1}\n{\"id\":2}").await.unwrap();
    server.shutdown().await.unwrap();
    assert_eq!(link.inbound.recv().await.as_deref(), Some(r#"{"id":1}"#));
    assert_eq!(link.inbound.recv().await.as_deref(), Some(r#"{"id":2}"#));
    assert_eq!(link.inbound.recv().await, None);
    link.outbound.closed().await;
    let why = link.control.why().await;
    assert_eq!((why.failure.class, &*why.cause), (FailureClass::Transport, "the server closed the connection"));
    attempt.tasks.wait().await;
}

#[tokio::test(start_paused = true)]
async fn a_server_that_hears_nothing_ends_the_link() {
    let (mut link, server, attempt) = link();
    let (reader, writer) = split(server);
    drop((reader, writer));
    let (frame, fate) = Outbound::new("{}".into());
    // The link may have seen its end before the frame comes: not sent either way.
    drop(link.outbound.send(frame).await);
    assert_eq!(fate.await.unwrap_err().sent, Sent::No);
    assert_eq!(link.inbound.recv().await, None);
    attempt.tasks.wait().await;
}

#[tokio::test(start_paused = true)]
async fn a_line_beyond_the_limit_ends_the_link_and_is_the_cause() {
    let (mut link, mut server, attempt) = link();
    server.write_all(format!("{{\"text\":\"{}\"}}\n", "a".repeat(64)).as_bytes()).await.unwrap();
    assert_eq!(link.inbound.recv().await, None);
    let cause = link.control.why().await.cause;
    assert!(cause.contains("exceeds the frame limit of 64 bytes"), "{cause}");
    attempt.tasks.wait().await;
}

#[tokio::test(start_paused = true)]
async fn given_up_anyhow_the_server_sees_the_end_and_no_task_stays() {
    for how in ["kill", "close", "drop", "cancel"] {
        let (link, mut server, attempt) = link();
        match how {
            "kill" => link.control.kill(),
            "close" => assert_eq!(&*link.control.close().await.cause, "the connection was closed"),
            "drop" => drop(link),
            _ => attempt.cancel.cancel(),
        }
        attempt.tasks.wait().await;
        assert_eq!(server.read(&mut [0]).await.unwrap(), 0, "{how}");
    }
}

/// Hands the server's end of each link out, and notes how each is closed.
struct Duplexes(mpsc::UnboundedSender<DuplexStream>, Arc<Mutex<Vec<&'static str>>>);

#[async_trait]
impl Connector for Duplexes {
    async fn connect(&self, attempt: Attempt) -> Result<Link, ConnectError> {
        let (ours, theirs) = duplex(1024);
        let (reader, writer) = split(ours);
        self.0.send(theirs).unwrap();
        let link = lines::link(reader, writer, 1024, &attempt);
        Ok(Link { control: Arc::new(Closes(link.control, self.1.clone())), ..link })
    }
}

struct Closes(Arc<dyn LinkControl>, Arc<Mutex<Vec<&'static str>>>);

impl LinkControl for Closes {
    fn kill(&self) {
        self.0.kill();
    }

    fn close(&self) -> BoxFuture<'_, Ended> {
        self.1.lock().unwrap().push("polite");
        self.0.close()
    }

    fn close_wedged(&self) -> BoxFuture<'_, Ended> {
        self.1.lock().unwrap().push("wedged");
        self.0.close_wedged()
    }

    fn facts(&self) -> LinkFacts {
        self.0.facts()
    }

    fn survives(&self) -> bool {
        self.0.survives()
    }

    fn why(&self) -> BoxFuture<'_, Ended> {
        self.0.why()
    }
}

/// A server of the legacy era with the tools `read`, which only reads, and `write`. It breaks the answers to all calls, of
/// which it tells, and reads nothing more after a second ping.
async fn break_answers(pipe: DuplexStream, calls: mpsc::UnboundedSender<String>) {
    let (reader, mut writer) = split(pipe);
    let (mut requests, mut pings) = (BufReader::new(reader).lines(), 0);
    while let Some(line) = requests.next_line().await.unwrap() {
        let request: Value = serde_json::from_str(&line).unwrap();
        let (id, method) = (&request["id"], request["method"].as_str().unwrap_or_default());
        let result = match method {
            "initialize" => json!({ "protocolVersion": request["params"]["protocolVersion"],
                "capabilities": { "tools": {} }, "serverInfo": { "name": "breaks", "version": "1" } }),
            "tools/list" => json!({ "tools": [
                { "name": "read", "inputSchema": { "type": "object" }, "annotations": { "readOnlyHint": true } },
                { "name": "write", "inputSchema": { "type": "object" } },
            ] }),
            "ping" if pings > 0 => std::future::pending().await,
            "ping" => {
                pings += 1;
                json!({})
            }
            "tools/call" => {
                calls.send(request["params"]["name"].as_str().unwrap().to_owned()).unwrap();
                let answer = format!("{{\n  \"jsonrpc\": \"2.0\",\n  \"id\": {id},\n  \"result\": {{}}\n}}\n");
                writer.write_all(answer.as_bytes()).await.unwrap();
                continue;
            }
            _ if id.is_null() => continue,
            _ => {
                let refusal = json!({ "jsonrpc": "2.0", "id": id, "error": { "code": -32601, "message": "no" } });
                writer.write_all(format!("{refusal}\n").as_bytes()).await.unwrap();
                continue;
            }
        };
        let answer = json!({ "jsonrpc": "2.0", "id": id, "result": result });
        writer.write_all(format!("{answer}\n").as_bytes()).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_broken_answer_ends_its_call_at_once_and_nothing_else() {
    let (pipes, mut servers) = mpsc::unbounded_channel();
    let (told, mut calls) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Some(pipe) = servers.recv().await {
            tokio::spawn(break_answers(pipe, told.clone()));
        }
    });
    let connection = Connection::builder(Duplexes(pipes, Arc::default())).name("breaks").build().unwrap();
    assert_eq!(connection.session().await.unwrap().epoch(), Epoch::FIRST);
    let start = Instant::now();
    // A call that only reads is sent once more, on the same session.
    for (tool, times) in [("write", 1), ("read", 2)] {
        let error = connection.call_tool(CallToolRequestParams::new(tool)).await.unwrap_err();
        let CallError::OutcomeUnknown { epoch, class: FailureClass::Transport, cause } = &error else {
            panic!("{error:?}");
        };
        assert_eq!(*epoch, Epoch::FIRST);
        assert!(cause.starts_with("the answer cannot be read: {   \"jsonrpc\": \"2.0\",   \"id\": "), "{cause}");
        for _ in 0..times {
            assert_eq!(calls.try_recv().as_deref(), Ok(tool));
        }
        assert!(calls.try_recv().is_err());
    }
    assert!(start.elapsed() < Duration::from_secs(1), "nobody has waited: {:?}", start.elapsed());
    assert_eq!(connection.session().await.unwrap().epoch(), Epoch::FIRST);
}

#[tokio::test(start_paused = true)]
async fn a_link_goes_on_until_either_end_gives_it_up() {
    let (link, server, attempt) = self::link();
    assert!(link.control.survives());
    attempt.cancel.cancel();
    assert!(!link.control.survives(), "given up here");
    drop(server);

    let (mut link, server, _attempt) = self::link();
    drop(server);
    assert_eq!(link.inbound.recv().await, None);
    assert!(!link.control.survives(), "given up there");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_reads_nothing_is_closed_as_a_wedged_one() {
    let (pipes, mut servers) = mpsc::unbounded_channel();
    let (told, _calls) = mpsc::unbounded_channel();
    let closes = Arc::<Mutex<Vec<_>>>::default();
    let connection = Connection::builder(Duplexes(pipes, closes.clone())).name("wedged").build().unwrap();
    let mut events = connection.events();
    // One that never answers, one that stops to, one that hangs up, and one that is put away.
    let mute = servers.recv().await.unwrap();
    let mut failures = Vec::new();
    for ready in 2..=4 {
        let server = tokio::spawn(break_answers(servers.recv().await.unwrap(), told.clone()));
        loop {
            match events.next().await.unwrap() {
                Event::Status { status: Status::Ready(_), .. } => break,
                Event::Status { failure: Some(failure), .. } => failures.push(failure),
                _ => {}
            }
        }
        if ready == 3 {
            server.abort();
        }
    }
    connection.shutdown().await;
    drop(mute);
    assert_eq!(*closes.lock().unwrap(), ["wedged", "wedged", "polite", "polite"]);
    failures.dedup();
    assert_eq!(failures, [FailureClass::StartTimeout, FailureClass::Unresponsive, FailureClass::Transport]);
}
