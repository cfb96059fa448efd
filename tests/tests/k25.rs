//! K25: a fresh session is a fresh one.

use std::collections::BTreeSet;

use mcp_reconnect::core::{Refusal, Status};
use mcp_reconnect::{CallError, CallOptions};
use mcp_reconnect_tests::fake::{Event as Entry, Ledger};
use rmcp::model::CallToolRequestParams;
use tokio::time::{Instant, sleep};

use crate::support::*;

fn call_ids(ledger: &Ledger) -> Vec<String> {
    let ids = ledger.entries().iter().filter_map(|entry| match &entry.event {
        Entry::Request { id, tool: Some(_), .. } => Some(id.to_string()),
        _ => None,
    });
    ids.collect()
}

/// Also R099.
#[tokio::test(start_paused = true)]
async fn k25_slow_drop() {
    let script = "spawn 1:\n call echo error -32001 \"Session not found\"\n on EOF delay 500ms, exit 0";
    let (server, connection, _events) = ready(script).await;
    let (answer, waiter) =
        tokio::join!(connection.call_tool(tool_with("echo", "one")), connection.session_after(epoch(1)));
    assert_eq!(text(answer), "one");
    assert_eq!(waiter.unwrap().epoch(), epoch(2));
    assert_eq!((server.ledger().of_spawn(1).calls("echo"), server.ledger().of_spawn(2).calls("echo")), (1, 1));
}

/// Also R100: no event of the link, only a caller's report.
#[tokio::test(start_paused = true)]
async fn k25_report_only() {
    let (server, connection, _events) = ready("").await;
    sleep(secs(20)).await;
    connection.invalidate(epoch(1), "seen to be stale");
    for _ in 0..5 {
        assert_eq!(connection.session().await.unwrap().epoch(), epoch(2));
    }
    assert_eq!(server.ledger().spawns(), 2);
}

/// The same for calls.
#[tokio::test(start_paused = true)]
async fn k25_report_only_then_call() {
    let (server, connection, _events) = ready("").await;
    sleep(secs(20)).await;
    connection.invalidate(epoch(1), "seen to be stale");
    assert_eq!(text(connection.call_tool(tool_with("write", "one")).await), "one");
    assert_eq!((server.ledger().of_spawn(1).calls("write"), server.ledger().of_spawn(2).calls("write")), (0, 1));
}

/// A hundred callers that saw the same epoch fail cause one rebuild; reports of other epochs cause none.
#[tokio::test(start_paused = true)]
async fn k25_reports_of_one_epoch_are_one_rebuild() {
    let (server, connection, mut events) = ready("").await;
    sleep(secs(20)).await;
    for _ in 0..100 {
        connection.invalidate(epoch(1), "seen to be stale");
    }
    assert_eq!(until_ready(&mut events).await, 2);
    for _ in 0..100 {
        connection.invalidate(epoch(1), "seen again");
        connection.invalidate(epoch(3), "of the future");
    }
    sleep(secs(60)).await;
    assert_eq!(connection.session().await.unwrap().epoch(), epoch(2));
    assert_eq!(connection.session_after(epoch(1)).await.unwrap().epoch(), epoch(2));
    assert_eq!(server.ledger().spawns(), 2);
    assert_eq!(drain_statuses(connection, events).await, [Status::Shutdown]);
}

/// A hundred calls that the gate refuses are a hundred answers of the next epoch, and one rebuild.
#[tokio::test(start_paused = true)]
async fn k25_a_hundred_refused_calls_are_one_rebuild() {
    let script = "spawn 1:\n call write error -32600 \"Session terminated\"";
    let (server, connection, _events) = ready(script).await;
    let words: Vec<String> = (0..100).map(|n| n.to_string()).collect();
    let calls = words.iter().map(|word| connection.call_tool(tool_with("write", word)));
    for (answer, word) in futures::future::join_all(calls).await.into_iter().zip(&words) {
        assert_eq!(&text(answer), word);
    }
    let ledger = server.ledger();
    assert_eq!((ledger.spawns(), ledger.executions("write"), ledger.of_spawn(2).calls("write")), (2, 100, 100));
}

/// What the gate refused is sent once more, not for ever.
#[tokio::test(start_paused = true)]
async fn k25_a_gate_that_refuses_every_epoch() {
    let (server, connection, _events) = ready("call write error -32600 \"Session terminated\"").await;
    match connection.call_tool(tool("write")).await {
        Err(error @ CallError::NotSent { .. }) => assert!(error.not_run()),
        other => panic!("{other:?}"),
    }
    sleep(millis(1)).await;
    assert_eq!((server.ledger().calls("write"), server.ledger().executions("write")), (2, 0));
}

/// Also R101: who has the time joins the reconnect, who has not is told why, at its own deadline.
#[tokio::test(start_paused = true)]
async fn k25_join() {
    let script = "spawn 1:\n after 20s exit 7\nspawn 2:\n initialize delay 3s";
    let (server, connection, mut events) = ready(script).await;
    until_status(&mut events, |status| status == Status::TransientFailure).await;
    let began = Instant::now();
    let patient = async {
        let answer = connection.call_tool_with(tool_with("write", "joined"), &within(secs(10))).await;
        assert_eq!(text(answer), "joined");
        assert!(began.elapsed() < secs(10));
    };
    let hasty = async {
        match connection.call_tool_with(tool("write"), &within(secs(1))).await {
            Err(error @ CallError::Refused { why: Refusal::NotInTime, .. }) => {
                let text = error.to_string();
                assert!(text.contains("being rebuilt") && text.contains("status 7"), "{text}");
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(began.elapsed(), secs(1));
    };
    tokio::join!(patient, hasty);
    assert_eq!((server.ledger().spawns(), server.ledger().executions("write")), (2, 1));
}

/// The same before the first session, while it backs off, and for a session that is awaited by its epoch.
#[tokio::test(start_paused = true)]
async fn k25_join_in_every_state() {
    let server = memory("spawn 1..2:\n start exit 1\nspawn 3:\n initialize delay 2s");
    let connection = connect(&server);
    // Nothing has been tried yet.
    assert_eq!(text(connection.call_tool(tool_with("write", "first")).await), "first");
    assert_eq!(server.ledger().spawns(), 3);
    let options = CallOptions { max_wait: secs(2), ..CallOptions::default() };
    let impatient = builder(&server).call_options(options).build().unwrap();
    assert_eq!(impatient.session().await.unwrap().epoch(), epoch(1));
    let began = Instant::now();
    match impatient.session_after(epoch(1)).await {
        Err(CallError::Refused { why: Refusal::NotInTime, .. }) => assert_eq!(began.elapsed(), secs(2)),
        other => panic!("{other:?}"),
    }
}

/// Also R102.
#[tokio::test(start_paused = true)]
async fn k25_shuffle() {
    let script = "spawn 1:\n call echo hold 1000\n call echo#491..500 hold 1000, duplicate\n after 60s exit 1\n\
                  spawn 2:\n call echo#1 replay-old\n call echo#2.. hold 999";
    let (server, connection, mut events) = ready(script).await;
    let words: Vec<String> = (0..1000).map(|n| format!("word {n}")).collect();
    for spawn in 1..=2 {
        let calls = words.iter().map(|word| connection.call_tool(tool_with("echo", word)));
        for (answer, word) in futures::future::join_all(calls).await.into_iter().zip(&words) {
            assert_eq!(&text(answer), word, "epoch {spawn}");
        }
        if spawn == 1 {
            assert_eq!(until_ready(&mut events).await, 2);
        }
    }
    let ids = call_ids(&server.ledger());
    assert_eq!((ids.len(), ids.iter().collect::<BTreeSet<_>>().len()), (2000, 2000), "ids are unique per connection");
    assert_eq!(server.ledger().executions("echo"), 2000);
}

/// Answers with ids that nobody used, or of calls that were given up, disturb nothing.
#[tokio::test(start_paused = true)]
async fn k25_stray_answers() {
    let script = "call write#1 delay 5s, reply \"late\"\ncall echo#1 wrong-id, ok\ncall echo#2 duplicate";
    let (server, connection, _events) = ready(script).await;
    let given_up = connection.call_tool_with(tool("write"), &within(secs(1))).await;
    assert!(matches!(given_up, Err(CallError::DeadlineExceeded { .. })), "{given_up:?}");
    sleep(secs(10)).await;
    for word in ["one", "two", "three"] {
        assert_eq!(text(connection.call_tool(tool_with("echo", word)).await), word);
    }
    assert_eq!(text(connection.call_tool(tool_with("write", "again")).await), "again");
    assert_eq!(server.ledger().spawns(), 1);
}

/// A session in hand ends with its epoch: what is asked through it never reaches the next one.
#[tokio::test(start_paused = true)]
async fn k25_an_old_session_stays_dead() {
    let (server, connection, mut events) = ready("spawn 1:\n after 20s exit 1").await;
    let old = connection.session().await.unwrap();
    assert_eq!(old.service().call_tool(CallToolRequestParams::new("write")).await.map(|_| ()).ok(), Some(()));
    assert_eq!(until_ready(&mut events).await, 2);
    assert!(old.is_ended());
    old.ended().await;
    let failed = tokio::time::timeout(secs(10), old.service().call_tool(CallToolRequestParams::new("write"))).await;
    assert!(failed.expect("no hang").is_err());
    assert_eq!((server.ledger().of_spawn(1).calls("write"), server.ledger().of_spawn(2).calls("write")), (1, 0));
    assert_eq!(connection.session().await.unwrap().facts().pid, Some(2));
}

/// Nothing below repeats a request unseen: what dies in flight is one call at the server, in whatever epoch.
#[tokio::test(start_paused = true)]
async fn k25_no_hidden_repeat() {
    let (server, connection, mut events) = ready("spawn 1:\n call write kill").await;
    let answer = connection.call_tool(tool("write")).await;
    assert!(matches!(answer, Err(CallError::OutcomeUnknown { .. })), "{answer:?}");
    assert_eq!(until_ready(&mut events).await, 2);
    sleep(secs(60)).await;
    let ledger = server.ledger();
    assert_eq!((ledger.calls("write"), ledger.initializes(), ledger.requests("tools/list")), (1, 2, 2));
}

/// Each epoch's catalogue is listed before any call runs in it.
#[tokio::test(start_paused = true)]
async fn k25_listed_before_called() {
    let script = "spawn 1:\n call write error -32001 \"Session not found\"\nspawn 2:\n list delay 2s";
    let (server, connection, _events) = ready(script).await;
    assert_eq!(text(connection.call_tool(tool_with("write", "one")).await), "one");
    let methods: Vec<_> = server
        .ledger()
        .of_spawn(2)
        .entries()
        .iter()
        .filter_map(|entry| match &entry.event {
            Entry::Request { method, .. } => Some(method.clone()),
            _ => None,
        })
        .collect();
    assert_eq!(methods, ["initialize", "tools/list", "tools/call"]);
}
