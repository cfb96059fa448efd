//! K25: a fresh session is a fresh one.

use std::collections::BTreeSet;

use futures::future::join_all;
use mcp_reconnect::CallError;
use mcp_reconnect::core::{Refusal, Status};
use mcp_reconnect_tests::fake::{Event as Entry, Ledger};

use super::{builder, ready, serve};
use crate::support::*;

/// The JSON-RPC methods that were POSTed with this session id, in the order of reading.
fn posted(ledger: &Ledger, session: &str) -> Vec<String> {
    let posts = ledger.asked().filter(|asked| asked.verb == "POST" && asked.session.as_deref() == Some(session));
    posts.filter_map(|asked| asked.method.clone()).collect()
}

/// Also R105: the counter at the server is the number of executions in a session. The first call is refused by the gate
/// (once), then epoch 2 is announced and listed, and only then a call runs in it.
#[tokio::test]
async fn k25_hidden_swap() {
    let (server, connection, mut events) = ready("").await;
    for _ in 0..3 {
        connection.call_tool(tool("write")).await.unwrap();
    }
    server.forget_sessions().await;
    assert_eq!(text(connection.call_tool(tool_with("write", "on B")).await), "on B");
    assert_eq!(until_ready(&mut events).await, 2);
    let session = connection.session().await.unwrap();
    assert_eq!((session.epoch(), session.facts().session_id.as_deref()), (epoch(2), Some("A2")));
    let ledger = server.ledger();
    assert_eq!(posted(&ledger, "A2"), ["notifications/initialized", "tools/list", "tools/call"]);
    let stale = posted(&ledger, "A1");
    assert_eq!(stale.iter().filter(|method| *method == "tools/call").count(), 4, "three that ran, one refused");
    assert_eq!((ledger.posts_of("tools/call"), ledger.executions("write")), (5, 4));
    assert_eq!((ledger.initializes(), ledger.initializes_with_session(), ledger.deletes().len()), (2, 0, 0));
}

/// The session in hand is not swapped under its holder: it ends, and says so.
#[tokio::test]
async fn k25_a_session_in_hand_is_not_swapped() {
    let (server, connection, mut events) = ready("").await;
    let old = connection.session().await.unwrap();
    server.forget_sessions().await;
    assert_eq!(text(connection.call_tool(tool_with("write", "two")).await), "two");
    assert_eq!(until_ready(&mut events).await, 2);
    old.ended().await;
    let sent = server.ledger().requests_with_session("A1");
    assert!(old.service().call_tool(tool("write")).await.is_err());
    assert_eq!((old.epoch(), old.facts().session_id), (epoch(1), None));
    assert_eq!(server.ledger().requests_with_session("A1"), sent, "nothing leaves with the old id");
}

/// Also R100: the transport sees nothing, a caller reports. The session is released politely, and is never given out
/// again.
#[tokio::test]
async fn k25_report_only() {
    let (server, connection, _events) = ready("").await;
    connection.invalidate(epoch(1), "seen to be stale");
    for _ in 0..5 {
        assert_eq!(connection.session().await.unwrap().epoch(), epoch(2));
    }
    assert_eq!(text(connection.call_tool(tool_with("write", "one")).await), "one");
    let ledger = server.ledger();
    assert_eq!((ledger.initializes(), posted(&ledger, "A1").contains(&"tools/call".to_owned())), (2, false));
}

/// A hundred reports of one epoch, and of others that are past or to come, are one rebuild.
#[tokio::test]
async fn k25_reports_of_one_epoch_are_one_rebuild() {
    let (server, connection, mut events) = ready("").await;
    for _ in 0..100 {
        connection.invalidate(epoch(1), "seen to be stale");
    }
    assert_eq!(until_ready(&mut events).await, 2);
    for _ in 0..100 {
        connection.invalidate(epoch(1), "seen again");
        connection.invalidate(epoch(3), "of the future");
    }
    assert_eq!(text(connection.call_tool(tool_with("write", "one")).await), "one");
    assert_eq!(connection.session().await.unwrap().epoch(), epoch(2));
    assert_eq!(server.ledger().initializes(), 2);
    assert_eq!(drain_statuses(connection, events).await, [Status::Shutdown]);
}

/// Also R099: the old session takes its time to go (its DELETE is answered late).
#[tokio::test]
async fn k25_slow_drop() {
    let (_server, connection, _events) = ready("delete delay 500ms, ok").await;
    connection.invalidate(epoch(1), "a call failed");
    let (waiter, call) =
        tokio::join!(connection.session_after(epoch(1)), connection.call_tool(tool_with("write", "one")));
    assert_eq!((waiter.unwrap().epoch(), text(call)), (epoch(2), "one".into()));
}

/// Also R101: who has the time joins the reconnect, who has not is told why.
#[tokio::test]
async fn k25_join() {
    let (server, connection, mut events) = ready("spawn 2:\n initialize delay 2s").await;
    server.restart().await;
    connection.invalidate(epoch(1), "it said 503");
    until_status(&mut events, |status| status == Status::Connecting).await;
    let (patient, hasty) = (within(secs(30)), within(millis(200)));
    let patient = connection.call_tool_with(tool_with("write", "joined"), &patient);
    let hasty = connection.call_tool_with(tool("write"), &hasty);
    let (patient, hasty) = tokio::join!(patient, hasty);
    assert_eq!(text(patient), "joined");
    match hasty {
        Err(error @ CallError::Refused { why: Refusal::NotInTime, .. }) => {
            let told = error.to_string();
            assert!(told.contains("being rebuilt") && told.contains("it said 503"), "{told}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(server.ledger().executions("write"), 1);
}

/// The substance of `S-shuffle` and R102: answers in reverse order, each in its own stream, some twice.
#[tokio::test]
async fn k25_shuffle() {
    let (server, connection, _events) = ready("call echo hold 100\ncall echo#41..50 hold 100, duplicate").await;
    let words: Vec<String> = (0..100).map(|number| format!("word {number}")).collect();
    let calls = words.iter().map(|word| connection.call_tool(tool_with("echo", word)));
    for (answer, word) in join_all(calls).await.into_iter().zip(&words) {
        assert_eq!(&text(answer), word);
    }
    let ledger = server.ledger();
    let ids: Vec<String> = ledger
        .entries()
        .iter()
        .filter_map(|entry| match &entry.event {
            Entry::Request { id, tool: Some(_), .. } => Some(id.to_string()),
            _ => None,
        })
        .collect();
    assert_eq!((ids.len(), ids.iter().collect::<BTreeSet<_>>().len()), (100, 100));
}

/// An answer to another request in the stream of this one is not its answer.
#[tokio::test]
async fn k25_stray_answers() {
    let (_server, connection, events) = ready("call echo#1 wrong-id\ncall echo#2 duplicate").await;
    match connection.call_tool_with(tool("write"), &within(secs(30))).await {
        Ok(_) => {}
        other => panic!("{other:?}"),
    }
    let stray = connection.call_tool_with(tool_with("echo", "one"), &within(secs(30))).await;
    assert!(stray.is_ok() || matches!(stray, Err(CallError::OutcomeUnknown { .. })), "{stray:?}");
    for word in ["two", "three"] {
        assert_eq!(text(connection.call_tool(tool_with("echo", word)).await), word);
    }
    assert_eq!(drain_statuses(connection, events).await, [Status::Shutdown]);
}

/// The id is whatever the server of the epoch says; one that has none gets none.
#[tokio::test]
async fn k25_session_ids_belong_to_their_epoch() {
    let server = serve("spawn 2:\n sessions none").await;
    let connection = builder(&server).build().unwrap();
    let mut events = connection.events();
    until_ready(&mut events).await;
    server.restart().await;
    connection.invalidate(epoch(1), "a test");
    assert_eq!(until_ready(&mut events).await, 2);
    assert_eq!(text(connection.call_tool(tool_with("write", "one")).await), "one");
    let ledger = server.ledger().of_spawn(2);
    let carried = ledger.asked().filter(|asked| asked.session.is_some() && asked.verb != "DELETE").count();
    assert_eq!((carried, connection.session().await.unwrap().facts().session_id), (0, None));
}
