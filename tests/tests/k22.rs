//! K22: what else a server writes to its pipes.

use mcp_reconnect::core::FailureClass;
use mcp_reconnect::{CallError, CallOptions, Connection, Events};
use mcp_reconnect_tests::fake::FakeProcess;
use mcp_reconnect_tests::link::process_command;

use crate::support::*;

const MIB: usize = 1024 * 1024;
/// The frame limit of these tests.
const LIMIT: usize = 2 * MIB;

/// A Ready connection to real processes, patient with a slow machine.
async fn ready(script: &str) -> (FakeProcess, Connection, Events) {
    let server = process(script);
    let mut command = process_command(&server);
    command.frame_limit = LIMIT;
    let connection = Connection::builder(mcp_reconnect::stdio::StdioConnector::new(command))
        .name("fake")
        .call_options(CallOptions { timeout: secs(60), max_wait: secs(60), ..CallOptions::default() })
        .build()
        .unwrap();
    let mut events = connection.events();
    assert_eq!(soon(until_ready(&mut events)).await, 1);
    (server, connection, events)
}

/// Guards against a hang.
async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(secs(60), what).await.expect("no hang")
}

async fn echo(connection: &Connection, word: &str) {
    assert_eq!(text(soon(connection.call_tool(tool_with("echo", word))).await), word);
}

async fn noise(connection: &Connection) -> u64 {
    connection.session().await.unwrap().facts().noise
}

async fn end(server: FakeProcess, connection: Connection) {
    soon(connection.shutdown()).await;
    let ledger = server.ledger().unwrap();
    assert!(ledger.live_pids().is_empty() && ledger.zombies().is_empty());
}

/// Also R086.
#[tokio::test]
async fn k22_noise() {
    let script = r#"start stdout "banner\n\n  \n\r\n\xff\xc3\x28\n[]\n42\n\"text\"\nnull\n""#;
    let (server, connection, _events) = ready(script).await;
    echo(&connection, "one").await;
    // banner, blank, spaces, CRLF, bad UTF-8, array, number, string, null.
    assert_eq!(noise(&connection).await, 9);
    assert_eq!(server.ledger().unwrap().spawns(), 1);
    end(server, connection).await;
}

/// Noise in the middle of the conversation: around each answer, and in a JSON-RPC batch.
#[tokio::test]
async fn k22_noise_between_replies() {
    let script = r#"
        initialize stdout "starting up\n", ok, stdout "up\n"
        list stdout "[{\"jsonrpc\":\"2.0\"}]\n"
        call echo stdout "working ...\n\n", ok"#;
    let (server, connection, _events) = ready(script).await;
    for word in ["one", "two", "three"] {
        echo(&connection, word).await;
    }
    assert_eq!(noise(&connection).await, 9);
    assert_eq!(server.ledger().unwrap().spawns(), 1);
    end(server, connection).await;
}

/// Objects that are no messages: what structured loggers write.
#[tokio::test]
async fn k22_noise_of_structured_logs() {
    let script = r#"
        start stdout "{\"level\":30,\"msg\":\"listening\"}\n{not json}\n{}\n"
        call echo stdout "{\"level\":30,\"id\":7,\"msg\":\"called\"}\n", ok"#;
    let (server, connection, _events) = ready(script).await;
    echo(&connection, "one").await;
    assert_eq!(noise(&connection).await, 4, "they are counted as well");
    assert_eq!(server.ledger().unwrap().spawns(), 1);
    end(server, connection).await;
}

/// Noise is not answered: nothing is written to the server but the protocol.
#[tokio::test]
async fn k22_noise_is_not_answered() {
    let script = r#"start stdout "banner\n[]\n{\"jsonrpc\":\"2.0\",\"error\":{\"code\":-32700,\"message\":\"Parse error\"},\"id\":null}\n""#;
    let (server, connection, _events) = ready(script).await;
    echo(&connection, "one").await;
    let ledger = server.ledger().unwrap();
    assert_eq!((ledger.garbage(), ledger.answers("").len()), (0, 0));
    end(server, connection).await;
}

/// Lines of the protocol that end in CRLF are as good as others, and so are batches, and what comes after a byte order
/// mark.
#[tokio::test]
async fn k22_crlf_batches_and_byte_order_marks_are_read() {
    let script = r#"
        start stdout "\xef\xbb\xbf"
        on initialized stdout "[{\"jsonrpc\":\"2.0\",\"id\":\"p\",\"method\":\"ping\"}]\r\n""#;
    let (server, connection, _events) = ready(script).await;
    let answered = |ledger: &mcp_reconnect_tests::fake::Ledger| {
        ledger.answers("").iter().any(|answer| answer["id"] == "p" && answer["result"].is_object())
    };
    soon(server.watch().wait_until(answered)).await;
    assert_eq!(noise(&connection).await, 0);
    end(server, connection).await;
}

/// Also R087.
#[tokio::test]
async fn k22_stderr_1mib() {
    let script = "server:\n initialize stderr 1MiB, ok\n call echo stderr 1MiB, ok\n\
                  spawn 1:\n call write stderr 1MiB, stderr \"\\nlast words\\n\", exit 3";
    let (server, connection, mut events) = ready(script).await;
    for word in ["one", "two", "three", "four"] {
        echo(&connection, word).await;
    }
    let tail = connection.session().await.unwrap().facts().stderr_tail;
    assert!(!tail.is_empty() && tail.len() <= 65, "{}", tail.len());
    assert!(tail.iter().map(String::len).sum::<usize>() <= 65 * 1024, "what is kept is bounded");
    match soon(connection.call_tool(tool("write"))).await {
        Err(CallError::OutcomeUnknown { cause, class: FailureClass::Transport, .. }) => {
            assert!(cause.contains("last words") && cause.contains("status 3"), "{cause}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(soon(until_ready(&mut events)).await, 2);
    echo(&connection, "again").await;
    end(server, connection).await;
}

/// stderr is drained while nothing else happens, and before the handshake.
#[tokio::test]
async fn k22_stderr_before_and_between() {
    let (server, connection, _events) = ready("start stderr 1MiB, stderr 1MiB\non initialized stderr 1MiB").await;
    echo(&connection, "one").await;
    end(server, connection).await;
}

/// Also R088, the first half: up to the limit everything is fine.
#[tokio::test]
async fn k22_big_within_the_limit() {
    let script = "call echo#1 big 65KiB\ncall echo#2 big 1MiB\ncall echo#3 big 2MiB-1\ncall echo#4 big 2MiB";
    let (server, connection, _events) = ready(script).await;
    for size in [65 * 1024, MIB, LIMIT - 1, LIMIT] {
        let answer = text(soon(connection.call_tool(tool("echo"))).await);
        assert!(answer.len() < size && answer.len() > size - 1024, "{} of {size}", answer.len());
    }
    assert_eq!(server.ledger().unwrap().spawns(), 1);
    end(server, connection).await;
}

/// Calls `write`, whose answer is too long; others in flight are settled with it, and the next session serves.
async fn overflows(script: &str) {
    let (server, connection, mut events) = ready(script).await;
    let limit = LIMIT.to_string();
    let never = connection.call_tool(tool("never"));
    let write = connection.call_tool(tool("write"));
    for answer in <[_; 2]>::from(soon(async { tokio::join!(never, write) }).await) {
        match answer {
            Err(CallError::OutcomeUnknown { epoch: failed, cause, class }) => {
                assert_eq!((failed, class), (epoch(1), FailureClass::Transport));
                assert!(cause.contains("frame limit") && cause.contains(&limit), "{cause}");
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(soon(until_ready(&mut events)).await, 2);
    echo(&connection, "again").await;
    let ledger = server.ledger().unwrap();
    assert_eq!((ledger.spawns(), ledger.calls("write")), (2, 1), "a call that may have run is not repeated");
    end(server, connection).await;
}

/// Also R088: one byte too many.
#[tokio::test]
async fn k22_big_over_the_limit() {
    overflows("server:\n tools echo(readOnly), write, never\n call never never\nspawn 1:\n call write big 2MiB+1")
        .await;
}

/// Also R088: without end.
#[tokio::test]
async fn k22_big_endless() {
    overflows("server:\n tools echo(readOnly), write, never\n call never never\nspawn 1:\n call write endless").await;
}

/// A line without end instead of a handshake fails the attempt at once.
#[tokio::test]
async fn k22_endless_handshake() {
    let server = process("spawn 1:\n discover endless\n initialize endless");
    let mut command = process_command(&server);
    command.frame_limit = LIMIT;
    let connection = Connection::builder(mcp_reconnect::stdio::StdioConnector::new(command)).build().unwrap();
    let mut events = connection.events();
    assert!(soon(until_ready(&mut events)).await <= 2);
    echo(&connection, "one").await;
    assert_eq!(server.ledger().unwrap().spawns(), 2);
    end(server, connection).await;
}

/// What a server has written when it dies counts: a whole last answer without its line end, too.
#[tokio::test]
async fn k22_a_last_answer_before_the_end() {
    let script = "spawn 1:\n call write reply \"made it\", exit 0";
    let (server, connection, mut events) = ready(script).await;
    assert_eq!(text(soon(connection.call_tool(tool("write"))).await), "made it");
    assert_eq!(soon(until_ready(&mut events)).await, 2);
    end(server, connection).await;
}

/// The same in the middle of a frame: what is cut off is never taken for an answer.
#[tokio::test]
async fn k22_a_cut_off_answer() {
    let script = r#"spawn 1:
        call write commit, stdout "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"conte", exit 1"#;
    let (server, connection, mut events) = ready(script).await;
    match soon(connection.call_tool(tool("write"))).await {
        Err(CallError::OutcomeUnknown { cause, .. }) => assert!(cause.contains("status 1"), "{cause}"),
        other => panic!("{other:?}"),
    }
    assert_eq!(soon(until_ready(&mut events)).await, 2);
    echo(&connection, "again").await;
    assert_eq!(server.ledger().unwrap().executions("write"), 1);
    end(server, connection).await;
}

/// A flood of noise is read as fast as it comes, and nothing of it is kept.
#[tokio::test]
async fn k22_a_flood_of_noise() {
    const LINES: u64 = 20_000;
    let flood = "noise\\n".repeat(usize::try_from(LINES).unwrap());
    let (server, connection, _events) = ready(&format!("start stdout \"{flood}\"")).await;
    echo(&connection, "one").await;
    assert_eq!(noise(&connection).await, LINES);
    end(server, connection).await;
}
