//! K03 without HTTP: a session that is lost behind pipes which stay open, and errors that only sound like it.

use std::sync::Arc;

use mcp_reconnect::core::{FailureClass, Status};
use mcp_reconnect::{CallError, Connection, Event, Events};
use mcp_reconnect_tests::fake::FakeServer;
use tokio::time::{Instant, sleep};

use crate::support::*;

/// How servers refuse everything but pings, once they were started anew behind the same pipes; and whether it is known
/// of these words that no handler stands before them.
const LOST: [(&str, bool); 5] = [
    ("error -32602 \"Invalid request parameters\"", true), // Python mcp
    ("error -32600 \"Session not found\"", true),
    ("error -32002 \"Server not initialized\"", false),
    ("error -32603 \"Received request before initialization was complete\"", false),
    ("error -32050 \"nobody knows what\"", false),
];

/// The error that a call was answered with.
fn server_error(outcome: Result<rmcp::model::CallToolResponse, CallError>) -> i32 {
    match outcome {
        Err(CallError::Server { error, .. }) => error.code.0,
        other => panic!("{other:?}"),
    }
}

/// A server whose first spawn refuses everything in these words but the set-up, and is well otherwise.
async fn lost(words: &str) -> (Arc<FakeServer>, Connection, Events) {
    ready(&format!("spawn 1:\n list#2.. {words}\n call * {words}")).await
}

/// The session is found to be gone within two calls and with one ask; what may be repeated is.
#[tokio::test(start_paused = true)]
async fn k03_a_server_started_anew_behind_its_pipes_is_found_out() {
    for (words, _) in LOST {
        for pinged in ["", "\n ping error \"no\""] {
            let (server, connection, mut events) = lost(&format!("{words}{pinged}")).await;
            // The first error is the tool's own, unless its words speak of a session.
            let first = connection.call_tool(tool_with("echo", "x")).await;
            if first.is_err() {
                server_error(first);
                assert_eq!(text(connection.call_tool(tool_with("echo", "y")).await), "y", "{words}");
            }
            assert_eq!(until_ready(&mut events).await, 2, "{words}");
            let ledger = server.ledger();
            assert_eq!((ledger.spawns(), ledger.executions("echo")), (2, 1), "{words}");
            assert_eq!(ledger.of_spawn(1).requests("tools/list"), 2, "{words}: one ask");
        }
    }
}

/// An unannotated call is sent again only where no handler stands before those words; otherwise its outcome is unknown,
/// once.
#[tokio::test(start_paused = true)]
async fn k03_equal_words_do_not_prove_that_nothing_ran() {
    for (words, known) in LOST {
        let (server, connection, _events) = lost(words).await;
        let mut outcomes = Vec::new();
        for number in 0..3 {
            outcomes.push(connection.call_tool(tool_with("write", &number.to_string())).await);
        }
        let unknown =
            outcomes.iter().filter(|outcome| matches!(outcome, Err(CallError::OutcomeUnknown { .. }))).count();
        assert_eq!(unknown, usize::from(!known), "{words}: {outcomes:?}");
        assert_eq!(text(outcomes.pop().unwrap()), "2", "{words}");
        assert_eq!((server.ledger().spawns(), server.ledger().of_spawn(1).executions("write")), (2, 0), "{words}");
    }
}

/// An application error in the words of a gate costs no session, no process and no second run (A2).
#[tokio::test(start_paused = true)]
async fn k03_a_tools_own_session_error_is_its_own() {
    for (code, words) in [
        (-32600, "Session not found"),
        (-32000, "Server not initialized"),
        (-32001, "session expired"),
        (-32000, "Bad Request: No valid session ID provided"),
        (-32602, "Invalid request parameters"),
        (-32005, "Session 'A1' not found or expired. Please re-initialize the connection."),
    ] {
        let (server, connection, events) = ready(&format!("call write commit, error {code} \"{words}\"")).await;
        for _ in 0..5 {
            assert_eq!(server_error(connection.call_tool(tool("write")).await), code, "{words}");
        }
        let ledger = server.ledger();
        assert_eq!((ledger.spawns(), ledger.calls("write"), ledger.executions("write")), (1, 5, 5), "{words}");
        // Once for the words; a text is not asked about again for a minute.
        assert_eq!(ledger.requests("tools/list"), 2, "{words}");
        assert_eq!(drain_statuses(connection, events).await, [Status::Shutdown], "{words}");
    }
}

/// The same as a result (`isError`).
#[tokio::test(start_paused = true)]
async fn k03_a_failed_tool_that_speaks_of_sessions_is_well() {
    let (server, connection, events) = ready("call write commit, is-error \"browser session not found\"").await;
    for _ in 0..5 {
        assert!(connection.call_tool(tool("write")).await.is_ok());
    }
    assert_eq!((server.ledger().spawns(), server.ledger().executions("write")), (1, 5));
    assert_eq!(server.ledger().requests("tools/list"), 2);
    assert_eq!(drain_statuses(connection, events).await, [Status::Shutdown]);
}

/// However many errors a server gives, and however different: six asks a minute, and each caller gets its own.
#[tokio::test(start_paused = true)]
async fn k03_six_asks_a_minute_whatever_a_server_says() {
    let words =
        |number: usize| char::from(b'g' + u8::try_from(number % 16).unwrap()).to_string().repeat(5 + number / 16);
    let rules: String =
        (0..60).map(|number| format!("call *#{} error {} \"{}\"\n", number + 1, -32100, words(number))).collect();
    let (server, connection, events) = ready(&rules).await;
    let mut asks = Vec::new();
    let began = Instant::now();
    for _ in 0..60 {
        assert_eq!(server_error(connection.call_tool(tool("write")).await), -32100);
        sleep(secs(2)).await;
        asks.push((began.elapsed(), server.ledger().requests("tools/list") - 1));
    }
    for (at, count) in &asks {
        let earlier = asks.iter().rev().find(|(before, _)| *before + secs(60) <= *at).map_or(0, |(_, count)| *count);
        assert!(count - earlier <= 6, "{count} asks at {at:?}, {earlier} a minute before");
    }
    assert!(asks.last().unwrap().1 >= 10, "{asks:?}");
    assert_eq!(drain_statuses(connection, events).await, [Status::Shutdown]);
}

/// A session that does not answer the ask costs its callers no more than they have, and gives them what came.
#[tokio::test(start_paused = true)]
async fn k03_a_held_answer_is_given_at_the_deadline() {
    let (server, connection, events) = ready("list#2.. never\ncall * error -32000 \"no session\"").await;
    let asked = Instant::now();
    assert_eq!(server_error(connection.call_tool_with(tool("write"), &within(secs(2))).await), -32000);
    assert_eq!(asked.elapsed(), secs(2));
    sleep(secs(70)).await; // the ask has come to nothing
    let asked = Instant::now();
    assert_eq!(server_error(connection.call_tool(tool("write")).await), -32000);
    assert_eq!(asked.elapsed(), secs(0), "after a silent ask nobody is held");
    sleep(secs(10)).await;
    assert_eq!((server.ledger().requests("tools/list"), connection.snapshot().stats.no_replies), (3, 0));
    assert_eq!(drain_statuses(connection, events).await, [Status::Shutdown]);
}

/// Three asks in a row without an answer, and no result between, end the session.
#[tokio::test(start_paused = true)]
async fn k03_three_silent_asks_end_a_session() {
    let (server, connection, mut events) =
        ready("spawn 1:\n list#2.. never\n call * error -32000 \"no session\"").await;
    for _ in 0..3 {
        assert_eq!(server_error(connection.call_tool(tool("write")).await), -32000);
        sleep(secs(61)).await;
    }
    assert_eq!(until_ready(&mut events).await, 2);
    assert_eq!(text(connection.call_tool(tool_with("write", "well")).await), "well");
    assert_eq!(server.ledger().of_spawn(1).requests("tools/list"), 4);
}

/// A server that gives one error for ever to a tool that worked, and answers when it is asked: its process is left alone,
/// and the host is told.
#[tokio::test(start_paused = true)]
async fn k03_a_suspect_process_is_told_of_once() {
    let (server, connection, mut events) = ready("call *#2.. error -32050 \"out of order\"").await;
    assert_eq!(text(connection.call_tool(tool_with("write", "a")).await), "a");
    for _ in 0..20 {
        assert_eq!(server_error(connection.call_tool(tool("write")).await), -32050);
        sleep(secs(10)).await;
    }
    connection.shutdown().await;
    drop(connection);
    let mut told = 0;
    while let Some(event) = events.next().await {
        match event {
            Event::Suspect { code } => {
                assert_eq!(code, -32050);
                told += 1;
            }
            Event::Status { status, .. } => assert_eq!(status, Status::Shutdown),
            _ => {}
        }
    }
    assert_eq!((told, server.ledger().spawns()), (1, 1));
}

/// A modern server that was replaced by one of other versions says -32022 to everything (A6).
#[tokio::test(start_paused = true)]
async fn k03_a_server_that_no_longer_speaks_the_version() {
    let other = "error -32022 \"unsupported protocol version\" '{\"supported\":[\"2025-11-25\"]}'";
    let script = format!(
        "era modern\nspawn 1:\n discover#2.. {other}\n list#2.. {other}\n call * {other}\nspawn 2..:\n era legacy"
    );
    let (server, connection, mut events) = ready(&script).await;
    assert_eq!(text(connection.call_tool(tool_with("write", "x")).await), "x");
    let mut lost = None;
    while lost.is_none() {
        if let Some(Event::Status { failure, .. }) = events.next().await {
            lost = failure;
        }
    }
    assert_eq!(lost, Some(FailureClass::SessionGone));
    assert_eq!((server.ledger().spawns(), server.ledger().executions("write")), (2, 1));
}

/// An error to a ping is no answer that pings are unknown, unless the server says so, or is well otherwise.
#[tokio::test(start_paused = true)]
async fn k03_an_error_to_a_ping_is_asked_about() {
    let (server, connection, events) = ready("ping error -32603 \"out of order\"").await;
    sleep(secs(100)).await;
    assert_eq!((server.ledger().requests("ping"), server.ledger().requests("tools/list")), (1, 2));
    assert_eq!(drain_statuses(connection, events).await, [Status::Shutdown]);
    let (server, _connection, mut events) =
        ready("spawn 1:\n ping error -32603 \"x\"\n list#2.. error -32603 \"x\"").await;
    assert_eq!(until_ready(&mut events).await, 2);
    assert_eq!(server.ledger().spawns(), 2);
}
