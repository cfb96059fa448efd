//! A link over streams that somebody else has opened.

use mcp_reconnect::lines;
use mcp_reconnect::link::{Attempt, Link, Outbound};
use mcp_reconnect_core::replay::Sent;
use mcp_reconnect_core::{Epoch, FailureClass};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex, split};
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
