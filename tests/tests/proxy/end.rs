//! However a session ends, the front ends, and nothing of the server is left.

use rustix::process::Signal;
use serde_json::json;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::Command;

use super::*;
use crate::support::process;

/// Ends by nothing but SIGKILL, and has a child of the same kind that holds its stdout.
const STUBBORN: &str = "ignore EOF\nignore TERM\nstart grandchild hold stdout ignore TERM\n";

/// A session in which everything has been said.
async fn begun(home: &Home, script: &str) -> (FakeProcess, Host) {
    let server = process(script);
    let mut host = Host::of(home, &[], &server);
    host.initialize().await;
    host.echo("hello").await;
    // A grandchild is started beside everything else.
    let processes = if script.contains("grandchild") { 2 } else { 1 };
    soon(server.watch().wait_until(|ledger| ledger.pids().len() == processes)).await;
    (server, host)
}

#[tokio::test]
async fn end_of_input() {
    for script in ["", "start grandchild hold stdout ignore TERM", "ignore EOF", STUBBORN] {
        let home = Home::new();
        let (server, mut host) = begun(&home, script).await;
        assert_eq!(host.close().await, Some(0), "{script}: {}", home.stderr());
        nothing_is_left(&server);
        assert_eq!(host.next().await, None);
    }
}

/// Also before the host has said anything, and while the server is being started.
#[tokio::test]
async fn end_of_input_before_there_is_a_session() {
    let (home, server) = (Home::new(), process("ignore EOF\nignore TERM\ninitialize never\ndiscover never"));
    assert_eq!(Host::of(&home, &[], &server).close().await, Some(0));
    assert_eq!(server.ledger().unwrap().spawns(), 0, "nobody has asked for it");
    let mut host = Host::of(&home, &[], &server);
    let client = json!({ "name": "host", "version": "1" });
    let params = json!({ "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client });
    host.ask("initialize", params).await;
    soon(server.watch().wait_until(|ledger| ledger.initializes() == 1)).await;
    assert_eq!(host.close().await, Some(0));
    nothing_is_left(&server);
}

/// While stdin is blocked in a read: the host does not close it.
#[tokio::test]
async fn signals() {
    for (signal, status) in [(Signal::TERM, 143), (Signal::INT, 130), (Signal::HUP, 129)] {
        for script in ["", STUBBORN] {
            let home = Home::new();
            let (server, mut host) = begun(&home, script).await;
            host.signal(signal);
            assert_eq!(host.ended().await.code(), Some(status), "{script}: {}", home.stderr());
            nothing_is_left(&server);
        }
    }
}

/// A front whose host has asked for more than its pipe holds, goes on asking, and reads nothing.
async fn unread(home: &Home, server: &FakeProcess, pings: usize) -> Host {
    let mut host = Host::of(home, &[], server);
    host.initialize().await;
    for _ in 0..16 {
        host.ask("tools/call", json!({ "name": "echo" })).await;
    }
    soon(server.watch().wait_until(|ledger| ledger.executions("echo") == 16)).await;
    for _ in 0..pings {
        host.ask("ping", json!({})).await;
    }
    host
}

#[tokio::test]
async fn a_host_that_never_reads() {
    let script = "call echo big 2MiB\nignore EOF";
    let (home, server) = (Home::new(), process(script));
    // More than it takes before it waits for the host, and less than what is then left in the pipe.
    let mut host = unread(&home, &server, 2_000).await;
    host.signal(Signal::TERM);
    assert_eq!(host.ended().await.code(), Some(143), "{}", home.stderr());
    nothing_is_left(&server);

    let (home, server) = (Home::new(), process(script));
    assert_eq!(unread(&home, &server, 500).await.close().await, Some(0), "{}", home.stderr());
    nothing_is_left(&server);
}

/// It reads late, and gets everything.
#[tokio::test]
async fn a_host_that_reads_late() {
    let (home, server) = (Home::new(), process("call echo big 2MiB"));
    let mut host = unread(&home, &server, 2_000).await;
    // `initialize` was answered.
    let mut left: std::collections::BTreeSet<u64> = (2..=host.next_id).collect();
    while !left.is_empty() {
        let answer = host.next().await.expect("the session goes on");
        assert!(left.remove(&answer["id"].as_u64().expect("an id")), "{}", answer["id"]);
        assert!(answer["result"].is_object(), "{}", answer["id"]);
    }
    assert_eq!(host.close().await, Some(0));
    nothing_is_left(&server);
}

#[tokio::test]
async fn a_host_that_closes_both_pipes() {
    let home = Home::new();
    let (server, Host { mut front, stdin, stdout, .. }) = begun(&home, STUBBORN).await;
    drop((stdin, stdout));
    assert_eq!(soon(front.wait()).await.unwrap().code(), Some(0), "{}", home.stderr());
    nothing_is_left(&server);
}

/// The next word to it finds out.
#[tokio::test]
async fn a_host_that_closes_stdout_alone() {
    let home = Home::new();
    let (server, Host { mut front, stdin, stdout, .. }) = begun(&home, "").await;
    drop(stdout);
    let mut stdin = stdin.expect("it is open");
    let ping = json!({ "jsonrpc": "2.0", "id": 99, "method": "ping" });
    soon(stdin.write_all(format!("{ping}\n").as_bytes())).await.unwrap();
    assert_eq!(soon(front.wait()).await.unwrap().code(), Some(0), "{}", home.stderr());
    assert!(home.stderr().contains("the host has closed stdout"), "{}", home.stderr());
    nothing_is_left(&server);
}

/// The host is a process that holds the only other end of stdin, and is killed.
#[tokio::test]
async fn a_host_that_is_killed() {
    const HOST: &str = r#"
        mkfifo pipe
        "$@" <pipe &
        exec 3>pipe
        echo '{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"host","version":"1"}}}' >&3
        read -r forever
    "#;
    let (home, server) = (Home::new(), process(STUBBORN));
    let mut host = shell(&home, HOST, &server).spawn().unwrap();
    let mut stdout = BufReader::new(host.stdout.take().unwrap());
    let mut answer = String::new();
    soon(stdout.read_line(&mut answer)).await.unwrap();
    assert!(answer.contains(r#""id":1"#), "{answer}");
    soon(server.watch().wait_until(|ledger| ledger.pids().len() == 2)).await;

    soon(host.kill()).await.unwrap();
    // The front was the last to hold it.
    let mut rest = Vec::new();
    soon(stdout.read_to_end(&mut rest)).await.unwrap();
    nothing_is_left(&server);
}

/// What started the front may go: the session is with whoever has the pipes.
#[tokio::test]
async fn a_parent_that_is_killed() {
    // What a shell starts beside it has no stdin but one that it is told.
    let (home, server) = (Home::new(), process(""));
    let mut host = Host::start(&mut shell(&home, r#"exec 3<&0; "$@" <&3 & wait"#, &server));
    host.initialize().await;
    soon(host.front.kill()).await.unwrap();
    host.echo("still here").await;
    host.stdin = None;
    assert_eq!(host.next().await, None, "it has ended");
    nothing_is_left(&server);
}

/// A shell with this script, whose arguments are the command of a front.
fn shell(home: &Home, script: &str, server: &FakeProcess) -> Command {
    let mut shell = home.program("sh", ["-c", script, "sh"]);
    shell.arg(program()).args(in_front_of(&[], server));
    shell
}

/// Stopped and continued: nothing is lost.
#[tokio::test]
async fn a_front_that_is_stopped() {
    let home = Home::new();
    let (server, mut host) = begun(&home, "").await;
    host.signal(Signal::STOP);
    let id = host.ask("tools/call", json!({ "name": "write", "arguments": { "text": "later" } })).await;
    host.signal(Signal::CONT);
    assert_eq!(host.answer(id).await["result"]["content"][0]["text"], "later");
    // Signals that come while it is stopped are heard when it goes on.
    host.signal(Signal::STOP);
    host.signal(Signal::TERM);
    host.signal(Signal::CONT);
    assert_eq!(host.ended().await.code(), Some(143));
    nothing_is_left(&server);
    assert_eq!(server.ledger().unwrap().executions("write"), 1);
}
