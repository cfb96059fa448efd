//! K05: no request outlives its epoch, and none waits for an answer whose stream has ended.

use futures::future::join_all;
use mcp_reconnect::core::replay::Sent;
use mcp_reconnect::core::{FailureClass, Status};
use mcp_reconnect::{CallError, Connection, Event};
use rmcp::model::CallToolResponse;

use super::k02::{call_in_flight, soon, wave};
use super::{builder, ready, serve};
use crate::support::*;

fn assert_unknown(outcome: &Result<CallToolResponse, CallError>, what: &str) {
    match outcome {
        Err(error @ CallError::OutcomeUnknown { epoch: failed, cause, .. }) => {
            assert_eq!((*failed, error.not_run()), (epoch(1), false), "{what}");
            assert!(!cause.is_empty(), "{what}");
        }
        other => panic!("{what}: {other:?}"),
    }
}

/// The ways in which an answer does not come.
const ENDS: [&str; 14] = [
    "headers, delay 50ms, cut",
    "headers, delay 50ms, reset",
    "headers, delay 50ms, end",
    "cut",
    "reset",
    "headers-only",
    "end",
    "cut after 10, ok",
    "progress 3 every 10ms, cut",
    "notify message, reset",
    "stdout \"data: {\\\"jsonrpc\\\":\\\"2.0\\\",\\\"id\\\":\", cut",
    "wrong-id, end",
    "with-status 200, cut after 5, ok",
    "status 200",
];

/// Also R017. The call has half an hour, and does not need it; what broke was one stream, so the session stays.
#[tokio::test]
async fn k05_die_mid_call() {
    for script in ["", "answers json"] {
        for end in ENDS {
            let (server, connection, events) = ready(&format!("{script}\ncall write#1 commit, {end}")).await;
            let outcome = soon(connection.call_tool_with(tool("write"), &within(secs(1800)))).await;
            assert_unknown(&outcome, end);
            assert_eq!(server.ledger().executions("write"), 1, "{end}");
            wave(&connection, 1).await;
            let ledger = server.ledger();
            assert_eq!((ledger.initializes(), ledger.executions("write"), ledger.calls("write")), (1, 2, 2), "{end}");
            assert_eq!(drain_statuses(connection, events).await, [Status::Shutdown], "{end}");
        }
    }
}

/// The same for a tool that may be repeated: it is, once, on the session that goes on.
#[tokio::test]
async fn k05_die_mid_call_of_a_repeatable_tool() {
    for end in ENDS {
        let (server, connection, events) = ready(&format!("call echo#1 commit, {end}")).await;
        let answer = soon(connection.call_tool_with(tool_with("echo", "again"), &within(secs(1800)))).await;
        assert_eq!(text(answer), "again", "{end}");
        let ledger = server.ledger();
        assert_eq!((ledger.initializes(), ledger.executions("echo"), ledger.calls("echo")), (1, 2, 2), "{end}");
        assert_eq!(drain_statuses(connection, events).await, [Status::Shutdown], "{end}");
    }
}

/// One that never gets through is sent twice, and then its outcome is told as what it is.
#[tokio::test]
async fn k05_a_tool_whose_stream_always_breaks_is_no_loop() {
    for end in ENDS {
        let (server, connection, _events) = ready(&format!("call echo commit, {end}")).await;
        let outcome = soon(connection.call_tool_with(tool("echo"), &within(secs(1800)))).await;
        assert_unknown(&outcome, end);
        assert_eq!((server.ledger().calls("echo"), server.ledger().initializes()), (2, 1), "{end}");
    }
}

/// The server itself dies, and is back a moment later.
#[tokio::test]
async fn k05_die_mid_call_with_the_server() {
    for end in ["exit 1", "kill", "headers, exit 0", "progress 3 every 10ms, kill"] {
        let script = format!("respawn 50ms\nspawn 1:\n call write#1 commit, delay 50ms, {end}");
        let (server, connection, mut events) = ready(&script).await;
        let outcome = soon(connection.call_tool_with(tool("write"), &within(secs(1800)))).await;
        assert_unknown(&outcome, end);
        assert_eq!(server.ledger().executions("write"), 1, "{end}");
        soon(until_ready(&mut events)).await;
        wave(&connection, 3).await;
        assert_eq!((server.ledger().spawns(), server.ledger().executions("write")), (2, 4), "{end}");
    }
}

/// I05a: whatever takes the server away, everything that was open is settled, each by its kind.
#[tokio::test]
async fn k05_all_requests_of_an_epoch_settle() {
    for how in ["restart", "down", "disconnect and forget"] {
        let (server, connection, mut events) =
            ready("prompts p\nspawn 1:\n call write commit, never\n call echo#1..20 commit, never\n prompts/get never")
                .await;
        let session = connection.session().await.unwrap();
        let patient = within(secs(1800));
        let writes = (0..20).map(|_| connection.call_tool_with(tool("write"), &patient));
        let reads = (0..20).map(|_| connection.call_tool_with(tool_with("echo", "again"), &patient));
        // A typed request on rmcp's own service is one of the epoch's too.
        let typed = session.service().call_tool(tool("write"));
        let trouble = async {
            server
                .watch()
                .wait_until(|ledger| ledger.executions("write") == 21 && ledger.executions("echo") == 20)
                .await;
            match how {
                "restart" => server.restart().await,
                "down" => {
                    server.down().await;
                    server.restart().await;
                }
                _ => {
                    server.forget_sessions().await;
                    server.disconnect().await;
                }
            }
        };
        let (writes, reads, typed, (), ()) =
            soon(async { tokio::join!(join_all(writes), join_all(reads), typed, trouble, session.ended()) }).await;
        writes.iter().for_each(|outcome| assert_unknown(outcome, how));
        assert!(typed.is_err(), "{how}");
        reads.into_iter().for_each(|outcome| assert_eq!(text(outcome), "again", "{how}"));
        assert_eq!(soon(until_ready(&mut events)).await, 2, "{how}");
        let ledger = server.ledger();
        assert_eq!((ledger.executions("write"), ledger.executions("echo"), ledger.initializes()), (21, 40, 2), "{how}");
    }
}

#[tokio::test]
async fn k05_whoever_ends_an_epoch_its_calls_settle() {
    type End = fn(&Connection);
    let ends: [(&str, End); 3] = [
        ("invalidate", |connection| connection.invalidate(epoch(1), "the user says so")),
        ("park", Connection::park),
        ("shutdown", |connection| {
            let connection = connection.clone();
            drop(tokio::spawn(async move { connection.shutdown().await }))
        }),
    ];
    for (name, end) in ends {
        for script in ["call write commit, never", "call write commit, headers, never", "call write commit, black-hole"]
        {
            let (server, connection, _events) = ready(script).await;
            let call = call_in_flight(&server, &connection).await;
            end(&connection);
            let outcome = soon(call).await.unwrap();
            assert!(matches!(outcome, Err(CallError::OutcomeUnknown { .. })), "{name}, {script}: {outcome:?}");
            soon(connection.shutdown()).await;
            assert_eq!(server.ledger().executions("write"), 1, "{name}, {script}");
            if !script.contains("black-hole") {
                // Nothing of it is left on the wire.
                soon(server.watch().wait_until(|ledger| ledger.open_requests() + ledger.open_connections() == 0)).await;
            }
        }
    }
}

#[tokio::test]
async fn k05_callers_that_wait_for_a_session_hear_of_the_shutdown() {
    let server = serve("initialize never").await;
    let connection = builder(&server).build().unwrap();
    let call = {
        let connection = connection.clone();
        tokio::spawn(async move { connection.call_tool(tool("write")).await })
    };
    soon(server.watch().wait_until(|ledger| ledger.initializes() == 1)).await;
    soon(connection.shutdown()).await;
    assert!(matches!(soon(call).await.unwrap(), Err(CallError::Closed)));
    soon(server.watch().wait_until(|ledger| ledger.open_connections() == 0)).await;
}

/// The last handle takes its sockets along, whatever waits in them.
#[tokio::test]
async fn k05_the_last_handle_leaves_nothing() {
    let (server, connection, _events) = ready("call write commit, never").await;
    soon(server.watch().wait_until(|ledger| ledger.open_streams() == 1)).await;
    let call = call_in_flight(&server, &connection).await;
    call.abort();
    assert!(call.await.unwrap_err().is_cancelled());
    drop(connection);
    let gone =
        |ledger: &mcp_reconnect_tests::fake::Ledger| ledger.open_connections() + ledger.live_sessions().len() == 0;
    let ledger = soon(server.watch().wait_until(gone)).await;
    assert_eq!(ledger.deletes(), ["A1"]);
}

/// R018 at the endpoint itself: it takes everything and answers nothing. I05c: a call in vain makes it suspect, a
/// question decides.
#[tokio::test]
async fn k05_deaf_bridge() {
    for way_back in ["thaw", "restart"] {
        let server = serve("").await;
        let config = config(|config| config.ping_timeout(millis(100)).connect_timeout(secs(1)));
        let connection = builder(&server).config(config).build().unwrap();
        let mut events = connection.events();
        assert_eq!(until_ready(&mut events).await, 1);
        wave(&connection, 1).await;
        server.freeze().await;
        match soon(connection.call_tool_with(tool("write"), &within(millis(200)))).await {
            Err(CallError::DeadlineExceeded { epoch: asked, sent: Sent::Maybe }) => assert_eq!(asked, epoch(1)),
            other => panic!("{other:?}"),
        }
        // Nobody has to call for that.
        let class = loop {
            match soon(events.next()).await {
                Some(Event::Status { status: Status::TransientFailure, failure, cause }) => {
                    assert!(cause.is_some());
                    break failure;
                }
                Some(_) => {}
                None => panic!("the connection has ended"),
            }
        };
        assert_eq!(class, Some(FailureClass::Unresponsive));
        if way_back == "thaw" {
            server.thaw().await;
        } else {
            server.restart().await;
        }
        assert!(soon(until_ready(&mut events)).await > 1);
        assert_eq!(text(soon(connection.call_tool(tool_with("write", "three"))).await), "three");
    }
}

/// A suspect that answers the question is kept, with whatever it answers.
#[tokio::test]
async fn k05_a_suspect_that_answers_the_ping_is_kept() {
    for answer in ["ping ok", "ping error -32601 \"Method not found\"", "ping with-status 400, error -32601 \"no\""] {
        let (server, connection, events) =
            ready(&format!("call write#1 commit, never\n{answer}\nget status 405")).await;
        let outcome = soon(connection.call_tool_with(tool("write"), &within(millis(200)))).await;
        assert!(matches!(outcome, Err(CallError::DeadlineExceeded { .. })), "{outcome:?}");
        soon(server.watch().wait_until(|ledger| ledger.requests("ping") == 1)).await;
        wave(&connection, 1).await;
        // The server was told, and the exchange ended.
        soon(server.watch().wait_until(|ledger| ledger.cancelled().len() == 1)).await;
        assert_eq!(server.ledger().initializes(), 1, "{answer}");
        assert_eq!(drain_statuses(connection, events).await, [Status::Shutdown], "{answer}");
    }
}

/// I05b where the server lets streams be resumed: the answer is fetched, and nothing runs twice. Where that is in vain
/// the call settles.
#[tokio::test]
async fn k05_a_stream_with_event_ids_is_resumed() {
    let (server, connection, events) = ready("call write#1 event-id e1, retry 10ms, cut, reply \"late\"").await;
    assert_eq!(text(soon(connection.call_tool_with(tool("write"), &within(secs(1800)))).await), "late");
    let ledger = server.ledger();
    assert_eq!((ledger.executions("write"), ledger.calls("write"), ledger.initializes()), (1, 1, 1));
    assert_eq!(drain_statuses(connection, events).await, [Status::Shutdown]);

    for refusal in ["resume cut", "resume status 405", "resume status 503", "resume headers-only", "resume reset"] {
        let script = format!("{refusal}\ncall write#1 commit, event-id e1, retry 10ms, cut, never");
        let (server, connection, _events) = ready(&script).await;
        let outcome = soon(connection.call_tool_with(tool("write"), &within(secs(1800)))).await;
        assert_unknown(&outcome, refusal);
        let resumes = server.ledger().asked().filter(|asked| asked.header("last-event-id") == Some("e1")).count();
        assert!((1..=3).contains(&resumes), "{refusal}: {resumes}");
        wave(&connection, 1).await;
        assert_eq!((server.ledger().executions("write"), server.ledger().initializes()), (2, 1), "{refusal}");
    }

    // Where the rest is refused as a lost session would be, the session is asked; the call has run either way.
    let script = "resume status 404\nget status 405\ncall write#1 commit, event-id e1, retry 10ms, cut, never";
    let (server, connection, _events) = ready(script).await;
    let outcome = soon(connection.call_tool_with(tool("write"), &within(secs(1800)))).await;
    assert_unknown(&outcome, "resume status 404");
    wave(&connection, 1).await;
    assert_eq!((server.ledger().executions("write"), server.ledger().initializes()), (2, 1));
}

/// B13: a session that was given up for a broken transport is ended at the server once the next one is up.
#[tokio::test]
async fn k05_a_session_that_was_left_behind_is_released() {
    let (server, connection, mut events) = ready("").await;
    server.down().await;
    drop(connection.call_tool_with(tool("write"), &within(millis(100))).await);
    until_status(&mut events, |status| status == Status::TransientFailure).await;
    server.up().await;
    assert!(until_ready(&mut events).await > 1);
    server.watch().wait_until(|ledger| ledger.deletes() == ["A1"]).await;
    assert_eq!(text(connection.call_tool(tool_with("echo", "on")).await), "on");
}
