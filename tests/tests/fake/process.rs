//! Spawns as processes.

use std::fs::File;
use std::io::Write;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use mcp_reconnect_tests::fake::{Event, FakeProcess, SpawnClaim};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};

use super::{SOON, call, initialize, notification, request, soon};

fn server(script: &str) -> FakeProcess {
    FakeProcess::new(env!("CARGO_BIN_EXE_fake-server"), script).unwrap_or_else(|error| panic!("{error}"))
}

/// One process with a client's ends of its pipes.
struct Client {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    stderr: ChildStderr,
}

impl Client {
    fn of(server: &FakeProcess) -> Self {
        let mut command = Command::new(server.program());
        command.args(server.args()).kill_on_drop(true);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the binary starts");
        let stdin = child.stdin.take().expect("piped");
        let stdout = BufReader::new(child.stdout.take().expect("piped"));
        let stderr = child.stderr.take().expect("piped");
        Self { child, stdin, stdout, stderr }
    }

    async fn say(&mut self, line: &str) {
        let line = format!("{line}\n");
        soon(self.stdin.write_all(line.as_bytes())).await.expect("the server reads");
    }

    /// The next bytes up to a line end; empty at the end.
    async fn hear_line(&mut self) -> Vec<u8> {
        let mut line = Vec::new();
        soon(self.stdout.read_until(b'\n', &mut line)).await.expect("the pipe works");
        line
    }

    async fn hear(&mut self) -> Value {
        serde_json::from_slice(&self.hear_line().await).expect("a message")
    }

    async fn ask(&mut self, line: &str) -> Value {
        self.say(line).await;
        self.hear().await
    }

    async fn initialized(server: &FakeProcess) -> Self {
        let mut client = Self::of(server);
        let answer = client.ask(&initialize(0)).await;
        assert!(answer["result"].is_object(), "{answer}");
        client.say(&notification("notifications/initialized", &json!({}))).await;
        client
    }

    /// The exit code, or minus the signal.
    async fn ended(&mut self) -> i32 {
        let status = soon(self.child.wait()).await.expect("a status");
        status.code().unwrap_or_else(|| -status.signal().expect("neither code nor signal"))
    }

    fn signal(&self, signal: Signal) {
        let pid = self.child.id().and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
        kill_process(pid.expect("it was not waited for"), signal).expect("it lives");
    }
}

#[tokio::test]
async fn a_process_answers_and_ends_with_its_input() {
    let server = server("");
    let mut client = Client::initialized(&server).await;
    let tools = client.ask(&request(1, "tools/list", &json!({}))).await;
    assert_eq!(tools["result"]["tools"].as_array().map(Vec::len), Some(2));
    assert_eq!(client.ask(&call(2, "write")).await["result"]["content"][0]["text"], "call 2");
    let ledger = server.ledger().expect("a ledger");
    assert_eq!((ledger.spawns(), ledger.initializes(), ledger.executions("write")), (1, 1, 1));
    assert_eq!(ledger.live_pids(), [client.child.id().expect("it lives")]);
    drop(client.stdin);
    let status = soon(client.child.wait()).await.expect("a status");
    assert_eq!(status.code(), Some(0));
    let ledger = server.ledger().expect("a ledger");
    assert_eq!(ledger.exits(), [(1, "eof")]);
    assert_eq!((ledger.live_pids(), ledger.zombies()), (vec![], vec![]));
}

#[tokio::test]
async fn scripted_exits_and_kills_are_real() {
    let server = server("call echo reply \"last\", exit 7\ncall write commit, kill");
    let mut client = Client::initialized(&server).await;
    assert_eq!(client.ask(&call(1, "echo")).await["result"]["content"][0]["text"], "last");
    assert_eq!(client.ended().await, 7);
    let mut client = Client::initialized(&server).await;
    client.say(&call(1, "write")).await;
    assert_eq!(client.hear_line().await, b"");
    assert_eq!(client.ended().await, -Signal::KILL.as_raw());
    let ledger = server.ledger().expect("a ledger");
    assert_eq!(ledger.exits(), [(1, "exit 7"), (2, "kill")]);
    assert_eq!((ledger.executions("echo"), ledger.executions("write")), (1, 1));
}

#[tokio::test]
async fn concurrent_spawns_get_numbers_of_their_own() {
    let server = server("spawn 1:\n tools one\nspawn 2:\n tools two\nspawn 3:\n tools three");
    let mut clients: Vec<Client> = (0..3).map(|_| Client::of(&server)).collect();
    let mut tools = Vec::new();
    for client in &mut clients {
        client.say(&initialize(0)).await;
        for id in 1..=200 {
            client.say(&call(id, "any")).await;
        }
    }
    for client in &mut clients {
        for _ in 0..=200 {
            client.hear().await;
        }
        let list = client.ask(&request(300, "tools/list", &json!({}))).await;
        tools.push(list["result"]["tools"][0]["name"].as_str().expect("a name").to_owned());
    }
    tools.sort();
    assert_eq!(tools, ["one", "three", "two"]);
    let ledger = server.ledger().expect("whole lines only");
    assert_eq!((ledger.spawns(), ledger.initializes(), ledger.calls("any")), (3, 3, 600));
    for spawn in 1..=3 {
        assert_eq!(ledger.of_spawn(spawn).calls("any"), 200);
    }
    let mut pids = ledger.pids();
    pids.sort_unstable();
    pids.dedup();
    assert_eq!(pids.len(), 3);
}

#[tokio::test]
async fn a_claim_keeps_others_waiting() {
    let server = server("");
    let path = PathBuf::from(&server.args()[3]);
    let first = SpawnClaim::new(&path).expect("a claim");
    let (claimed, second) = mpsc::channel();
    let claiming = thread::spawn(move || {
        let claim = SpawnClaim::new(&path).expect("a claim");
        claimed.send(claim.spawn()).expect("the test waits");
        claim.record(None).expect("a ledger").spawn()
    });
    second.recv_timeout(Duration::from_millis(100)).expect_err("the first was not recorded yet");
    assert_eq!(first.record(None).expect("a ledger").spawn(), 1);
    assert_eq!(second.recv_timeout(SOON).expect("the lock is free"), 2);
    assert_eq!(claiming.join().expect("it did not panic"), 2);
}

#[tokio::test]
async fn a_line_that_is_being_written_is_left_out() {
    let server = server("");
    let path = &server.args()[3];
    SpawnClaim::new(path.as_ref()).and_then(|claim| claim.record(None)).expect("a ledger");
    let mut file = File::options().append(true).open(path).expect("a ledger");
    file.write_all(b"{\"spawn\":2,").expect("it can be written");
    assert_eq!(server.ledger().expect("whole lines only").spawns(), 1);
    file.write_all(b"\n").expect("it can be written");
    server.ledger().expect_err("a whole line that is no entry");
}

#[tokio::test]
async fn the_ledger_can_be_waited_for() {
    let server = server("call echo never\non USR1 exit 4");
    let watch = server.watch();
    let seen = tokio::spawn(async move { watch.wait_until(|ledger| ledger.calls("echo") == 300).await });
    let mut client = Client::initialized(&server).await;
    for id in 1..=300 {
        client.say(&call(id, "echo")).await;
    }
    let seen = soon(seen).await.expect("the waiter did not panic");
    assert_eq!(seen, server.ledger().expect("a ledger"));
    client.signal(Signal::USR1);
    soon(server.watch().wait_until(|ledger| ledger.exits() == [(1, "exit 4")])).await;
    assert_eq!(client.ended().await, 4);
    assert!(server.ledger().expect("a ledger").live_pids().is_empty());
}

#[tokio::test]
async fn a_stubborn_process_needs_a_kill() {
    let server = server("ignore EOF\nignore TERM");
    let mut client = Client::initialized(&server).await;
    client.signal(Signal::TERM);
    // The answer shows that it survived.
    client.ask(&request(1, "ping", &json!({}))).await;
    soon(client.stdin.shutdown()).await.expect("the pipe closes");
    let (mut child, stdin) = (client.child, client.stdin);
    drop(stdin);
    soon(server.watch().wait_until(|ledger| ledger.entries().iter().any(|entry| entry.event == Event::Eof))).await;
    assert_eq!(server.ledger().expect("a ledger").live_pids().len(), 1);
    soon(child.kill()).await.expect("it can be killed");
    assert_eq!(server.ledger().expect("a ledger").exits(), []);

    server.set_script("on TERM exit 9").expect("a script");
    let mut client = Client::initialized(&server).await;
    client.signal(Signal::TERM);
    assert_eq!(client.ended().await, 9);
    server.set_script("spawn 1:\nignore TERM").expect("a script");
    let mut client = Client::initialized(&server).await;
    client.signal(Signal::TERM);
    assert_eq!(client.ended().await, 128 + Signal::TERM.as_raw(), "the handler is there for another spawn");
    server.set_script("").expect("a script");
    let mut client = Client::initialized(&server).await;
    client.signal(Signal::TERM);
    assert_eq!(client.ended().await, -Signal::TERM.as_raw());
}

#[tokio::test]
async fn a_grandchild_outlives_its_parent_and_holds_its_output() {
    let server = server("start grandchild hold stdout ignore TERM");
    let mut client = Client::initialized(&server).await;
    drop(client.stdin);
    let status = soon(client.child.wait()).await.expect("a status");
    assert_eq!(status.code(), Some(0));
    let ledger = server.ledger().expect("a ledger");
    let [grandchild] = ledger.live_pids()[..] else { panic!("{ledger:?}") };
    let pid = i32::try_from(grandchild).ok().and_then(Pid::from_raw).expect("a pid");
    kill_process(pid, Signal::TERM).expect("it lives");
    let mut rest = Vec::new();
    // Its end of the output is open: the pipe does not end, however long one waits.
    let ending = client.stdout.read_to_end(&mut rest);
    tokio::pin!(ending);
    assert!(tokio::time::timeout(Duration::from_millis(50), &mut ending).await.is_err());
    drop(server);
    soon(ending).await.expect("the last holder of the pipe was killed");
}

/// A server whose first spawn listens on a port of its own.
async fn bound() -> (FakeProcess, Client) {
    // A port that was free may be taken, or still be open in a process that another test is just starting.
    for _ in 0..20 {
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|free| free.local_addr()).expect("a port");
        let server = server(&format!("start bind {}, stdout \"bound\\n\"", free.port()));
        let mut client = Client::of(&server);
        if client.hear_line().await == b"bound\n" {
            return (server, client);
        }
    }
    panic!("no port can be bound");
}

#[tokio::test]
async fn a_port_is_bound_for_life() {
    let (server, mut holder) = bound().await;
    let mut late = Client::of(&server);
    assert_eq!(late.ended().await, 98);
    let exits = server.ledger().expect("a ledger");
    assert!(matches!(exits.exits()[..], [(2, reason)] if reason.starts_with("port ")), "{exits:?}");
    holder.child.kill().await.expect("it can be killed");
}

#[tokio::test]
async fn streams_close_and_fill() {
    let server = server(
        r#"initialize stdout "banner\r\n\xff\xfe", stdout "\n", ok
           call echo stderr 1MiB, stderr "last words\n", reply "x"
           call write ok, close stdin
           call shut ok, close stdout
           call big big 1MiB+1
           tools echo, write, shut, big"#,
    );
    let mut client = Client::of(&server);
    client.say(&initialize(1)).await;
    assert_eq!(client.hear_line().await, b"banner\r\n");
    assert_eq!(client.hear_line().await, b"\xff\xfe\n");
    assert_eq!(client.hear().await["id"], 1);
    client.say(&call(2, "big")).await;
    assert_eq!(client.hear_line().await.len(), (1 << 20) + 2);

    client.say(&call(3, "echo")).await;
    let mut errors = vec![0; (1 << 20) + 11];
    soon(client.stderr.read_exact(&mut errors)).await.expect("a mebibyte of errors");
    assert!(errors.ends_with(b"eeelast words\n"));
    assert_eq!(client.hear().await["id"], 3);

    client.ask(&call(4, "shut")).await;
    assert_eq!(client.hear_line().await, b"");
    client.say(&call(5, "write")).await;
    let mut refused = soon(client.stdin.write_all(b"\n")).await;
    while refused.is_ok() {
        // Until the pipe breaks, each write waits for the reader or is refused.
        tokio::task::yield_now().await;
        refused = soon(client.stdin.write_all(&[b'\n'; 4096])).await;
    }
    assert_eq!(client.child.try_wait().expect("a status"), None, "it lives on, without streams");
    client.child.kill().await.expect("it can be killed");
}

#[tokio::test]
async fn a_deaf_process_lets_its_pipe_fill() {
    let server = server("call * deaf");
    let mut client = Client::initialized(&server).await;
    client.ask(&call(1, "echo")).await;
    let long_line = vec![b'x'; 1 << 20];
    let stuck = tokio::time::timeout(Duration::from_millis(200), client.stdin.write_all(&long_line)).await;
    assert!(stuck.is_err(), "it read a mebibyte, or closed its input");
    client.child.kill().await.expect("it can be killed");
}

#[tokio::test]
async fn a_bad_script_is_refused_with_its_line() {
    let directory = server("");
    let error = directory.set_script("nonsense").expect_err("it does not parse");
    assert!(error.to_string().starts_with("line 1: `nonsense`"), "{error}");
    let output = Command::new(directory.program()).args(["--script", "/nonexistent"]).output();
    let output = soon(output).await.expect("it runs");
    assert_eq!(output.status.code(), Some(95));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "fake-server: --ledger is missing\n");
}
