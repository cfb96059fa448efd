//! What goes wrong on the wire.

use std::io::ErrorKind;
use std::process::Stdio;
use std::time::Duration;

use mcp_reconnect_tests::fake::{FakeProcess, Ledger, ReservedPort};
use tokio::process::Command;

use super::*;

#[tokio::test]
async fn every_way_to_break_an_answer() {
    let server = server(
        r#"call write#1 reset
           call write#2 commit, headers, delay 1ms, reset
           call write#3 cut
           call write#4 headers-only
           call write#5 cut after 10, ok
           call write#6 end"#,
    )
    .await;
    let client = Client::initialized(&server).await;
    let mut seen = Vec::new();
    for id in 1..=6 {
        let mut client = client.again(&server).await;
        client.send("POST", &[("Connection", "close")], &call(id, "write")).await;
        let head = client.head().await.map(|_| String::new());
        let end = client.end().await.map(|rest| String::from_utf8(rest).expect("text"));
        // A broken connection says so once.
        seen.push((head.is_ok(), head.and(end).map_err(|error| error.kind())));
    }
    let cut = "\r\nevent: mes";
    assert_eq!(seen[0], (false, Err(ErrorKind::ConnectionReset)));
    assert_eq!(seen[1], (true, Err(ErrorKind::ConnectionReset)));
    assert_eq!(seen[2], (false, Err(ErrorKind::UnexpectedEof)));
    assert_eq!(seen[3], (true, Ok(String::new())));
    let (true, Ok(body)) = &seen[4] else { panic!("{seen:?}") };
    assert!(body.ends_with(cut), "{body:?}");
    assert_eq!(seen[5], (true, Ok("0\r\n\r\n".to_owned())));
    assert_eq!((server.ledger().calls("write"), server.ledger().executions("write")), (6, 2));

    server.set_script("answers json\ncall echo cut after 1000, big 64KiB").await.expect("a script");
    let mut client = client.again(&server).await;
    client.send("POST", &[], &call(7, "echo")).await;
    let head = client.head().await.expect("an answer");
    assert_eq!(head.header("content-length"), Some("65536"));
    assert_eq!(client.end().await.expect("an orderly end").len(), 1000);
}

/// Whether nothing comes, as far as one can tell: what another connection gets answered was asked later.
async fn is_silent(client: &mut Client) -> bool {
    let quiet = Duration::from_millis(50);
    tokio::time::timeout(quiet, client.stream.fill_buf()).await.is_err()
}

#[tokio::test]
async fn a_black_hole_and_a_silent_call_hold_their_connection() {
    let server = server("call write black-hole\ncall echo#1 never").await;
    let client = Client::initialized(&server).await;
    let (mut hole, mut silent) = (client.again(&server).await, client.again(&server).await);
    hole.send("POST", &[], &call(1, "write")).await;
    silent.send("POST", &[], &call(2, "echo")).await;
    soon(server.watch().wait_until(|ledger| ledger.calls("write") + ledger.calls("echo") == 2)).await;
    let mut other = client.again(&server).await;
    other.post(&call(3, "echo")).await;
    assert!(is_silent(&mut hole).await && is_silent(&mut silent).await);
    drop((hole, silent));
    soon(server.watch().wait_until(|ledger| ledger.abandoned() == 1)).await;
    assert_eq!(server.ledger().open_requests(), 1, "a black hole does not notice that its client has left");
}

#[tokio::test]
async fn frozen_it_accepts_and_answers_nothing() {
    let server = server("").await;
    let mut client = Client::initialized(&server).await;
    server.freeze().await;
    client.send("POST", &[], &call(1, "write")).await;
    let mut late = Client::of(&server).await;
    late.send("POST", &[], &initialize(2)).await;
    assert!(is_silent(&mut client).await && is_silent(&mut late).await);
    assert_eq!((server.ledger().calls("write"), server.ledger().initializes()), (0, 1));
    server.thaw().await;
    assert_eq!(text(&client.hear().await.1), "call 1");
    assert_eq!(late.hear().await.0.header("mcp-session-id"), Some("A2"));
}

#[tokio::test]
async fn down_means_refused_and_up_means_the_same_sessions() {
    let server = server("").await;
    let mut client = Client::initialized(&server).await;
    server.down().await;
    assert_eq!(client.end().await.expect("an orderly end"), b"");
    for _ in 0..2 {
        let refused = Client::at(server.address()).await.map(|_| ()).expect_err("the port is closed");
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    }
    assert_eq!(server.ledger().open_connections(), 0);
    server.up().await;
    let mut client = client.again(&server).await;
    assert_eq!(text(&client.post(&call(1, "write")).await.1), "call 1");
    assert_eq!((server.ledger().spawns(), server.ledger().initializes()), (1, 1));

    server.down_for(Duration::from_millis(1)).await;
    server.restart().await; // opens the port, whatever was planned
    assert_eq!(client.again(&server).await.post(&call(1, "write")).await.0.status, 404);
}

#[tokio::test]
async fn a_script_can_end_it_and_say_when_it_is_back() {
    let server = server("call write commit, big 8MiB, exit 1\nspawn 2:\n respawn 0s\n call write kill").await;
    let mut client = Client::initialized(&server).await;
    // More than the socket's buffers hold: it waits until the client has read.
    assert!(text(&client.post(&call(1, "write")).await.1).len() > 8_000_000);
    assert_eq!(client.end().await.expect("an orderly end"), b"");
    soon(server.watch().wait_until(|ledger| ledger.live_links() == 0)).await;
    assert_eq!(
        Client::at(server.address()).await.map(|_| ()).expect_err("closed").kind(),
        ErrorKind::ConnectionRefused
    );
    server.restart().await;
    let mut client = Client::initialized(&server).await;
    client.send("POST", &[], &call(2, "write")).await;
    assert!(client.head().await.is_err());
    let ledger = soon(server.watch().wait_until(|ledger| ledger.spawns() == 3)).await;
    assert_eq!((ledger.exits(), ledger.executions("write")), (vec![(1, "exit 1"), (2, "kill")], 1));
}

#[tokio::test]
async fn all_connections_can_be_reset_at_once() {
    let server = server("on cancelled disconnect\ncall write never").await;
    let client = Client::initialized(&server).await;
    let (mut standing, mut caller, mut canceller) =
        (client.again(&server).await, client.again(&server).await, client.again(&server).await);
    standing.listen().await;
    caller.send("POST", &[], &call(1, "write")).await;
    soon(server.watch().wait_until(|ledger| ledger.calls("write") == 1)).await;
    canceller.send("POST", &[], &notification("notifications/cancelled", &json!({"requestId": 1}))).await;
    for mut client in [client, standing, caller] {
        assert_eq!(client.end().await.expect_err("a reset").kind(), ErrorKind::ConnectionReset);
    }
    soon(server.watch().wait_until(|ledger| ledger.open_connections() == 0)).await;
    let mut client = Client::initialized(&server).await;
    server.disconnect().await;
    assert_eq!(client.end().await.expect_err("a reset").kind(), ErrorKind::ConnectionReset);
    assert_eq!((server.ledger().spawns(), server.ledger().cancelled().len()), (1, 1));
}

#[tokio::test]
async fn a_mute_server_still_reads() {
    let server = server("call write mute").await;
    let client = Client::initialized(&server).await;
    let (mut first, mut second) = (client.again(&server).await, client.again(&server).await);
    first.send("POST", &[], &call(1, "write")).await;
    soon(server.watch().wait_until(|ledger| ledger.calls("write") == 1)).await;
    second.send("POST", &[], &call(2, "write")).await;
    soon(server.watch().wait_until(|ledger| ledger.calls("write") == 2)).await;
    assert_eq!(server.ledger().open_requests(), 2);
}

#[tokio::test]
async fn it_can_move_to_another_address() {
    let old = server("").await;
    let port = old.address().port();
    let new = FakeHttp::start_on((std::net::Ipv6Addr::LOCALHOST, port).into(), "").await;
    let Ok(new) = new else { return }; // a machine without IPv6, or the port is another test's
    drop(old);
    assert_eq!(new.url(), format!("http://[::1]:{port}/mcp"));
    new.down().await;
    new.up().await;
    Client::initialized(&new).await;
}

#[tokio::test]
async fn a_script_can_change_under_a_running_server() {
    let server = server("sessions none").await;
    let mut client = Client::initialized(&server).await;
    for status in [404, 502, 503] {
        server.set_script(&format!("sessions none\npost status {status} \"no\"")).await.expect("a script");
        assert_eq!(client.post(&call(1, "write")).await.0.status, status);
    }
    server.set_script("nonsense").await.expect_err("it does not parse");
    server.set_script("sessions none").await.expect("a script");
    assert_eq!(client.post(&call(2, "write")).await.0.status, 200);
    assert_eq!((server.ledger().answered(502), server.ledger().executions("write")), (1, 1));
}

#[tokio::test]
async fn held_requests_keep_their_own_answers() {
    let server = server("call write hold 3, ok").await;
    let client = Client::initialized(&server).await;
    let mut callers = Vec::new();
    for id in 1..=3 {
        let mut caller = client.again(&server).await;
        caller.send("POST", &[], &call(id, "write")).await;
        callers.push(caller);
    }
    for (id, caller) in (1..=3).zip(&mut callers) {
        assert_eq!(text(&caller.hear().await.1), format!("call {id}"));
    }
}

#[tokio::test]
async fn nothing_is_left_when_it_is_dropped() {
    let server = server("").await;
    let mut client = Client::initialized(&server).await;
    client.listen().await;
    let address = server.address();
    drop(server);
    client.end().await.expect("it was closed");
    let refused = Client::at(address).await.map(|_| ()).expect_err("the port is closed");
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
}

/// Starts the binary, and reads the port that it writes.
async fn start(process: &FakeProcess, port: u16) -> (tokio::process::Child, u16) {
    let mut command = Command::new(process.program());
    command.args(process.http_args(port)).kill_on_drop(true).stdout(Stdio::piped());
    let mut child = command.spawn().expect("the binary starts");
    let mut line = String::new();
    let stdout = child.stdout.take().expect("piped");
    soon(BufReader::new(stdout).read_line(&mut line)).await.expect("a port");
    (child, line.trim().parse().expect("a port"))
}

#[tokio::test]
async fn a_process_can_be_killed_and_started_on_the_same_port() {
    let script = "call write commit, kill\nspawn 3:\n call write ok, exit 7";
    let process = FakeProcess::new(env!("CARGO_BIN_EXE_fake-server"), script).expect("a script");
    let (mut any, port) = start(&process, 0).await;
    assert_ne!(port, 0);
    any.kill().await.expect("it can be killed");
    let reserved = ReservedPort::new().expect("a port");
    let address = reserved.address().expect("an address");
    let port = address.port();
    let (mut child, _) = start(&process, port).await;
    let initialized = async || {
        let mut client = Client::at(address).await.expect("the port is open");
        let (head, _) = client.post(&initialize(0)).await;
        client.session = head.header("mcp-session-id").map(str::to_owned);
        client
    };
    let mut client = initialized().await;
    client.send("POST", &[], &call(1, "write")).await;
    assert!(client.head().await.is_err());
    assert_eq!(soon(child.wait()).await.expect("a status").code(), None);

    let (mut child, same) = start(&process, port).await;
    assert_eq!(same, port);
    client.stream = Client::at(address).await.expect("the port is open").stream;
    assert_eq!(client.post(&call(2, "write")).await.0.status, 404);
    let mut client = initialized().await;
    assert_eq!(client.session.as_deref(), Some("C1"));
    assert_eq!(text(&client.post(&call(3, "write")).await.1), "call 3");
    assert_eq!(soon(child.wait()).await.expect("a status").code(), Some(7));
    let ledger: Ledger = process.ledger().expect("a ledger");
    assert_eq!((ledger.spawns(), ledger.executions("write"), ledger.sessions()), (3, 2, vec!["B1", "C1"]));
    assert!(ledger.live_pids().is_empty());
}
