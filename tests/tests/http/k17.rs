//! K17: nothing runs twice over HTTP that must not.

use mcp_reconnect::core::replay::{ReplayPolicy, Sent};
use mcp_reconnect::{CallError, CallOptions, Connection};
use mcp_reconnect_tests::fake::FakeHttp;
use rmcp::model::{CallToolResponse, ClientRequest, ListToolsRequest, ReadResourceRequestParams, ServerResult};

use super::clock::{quick, skip, turns};
use super::{builder, ready, serve};
use crate::support::*;

fn list_tools() -> ClientRequest {
    ClientRequest::ListToolsRequest(ListToolsRequest::default())
}

fn replaying(replay: ReplayPolicy) -> CallOptions {
    CallOptions { replay, ..within(secs(120)) }
}

fn is_unknown(result: &Result<CallToolResponse, CallError>, of: u64) -> bool {
    matches!(result, Err(CallError::OutcomeUnknown { epoch: failed, .. }) if *failed == epoch(of))
}

/// A Ready connection with a quick ladder.
async fn quickly(script: &str) -> (FakeHttp, Connection) {
    let server = serve(script).await;
    let connection = builder(&server).config(config(quick)).build().unwrap();
    connection.session().await.unwrap();
    (server, connection)
}

/// What may still be going to be sent is sent: an hour passes.
async fn later() {
    for _ in 0..4 {
        skip(secs(900)).await;
        turns().await;
    }
}

#[tokio::test]
async fn k17_commit_then_die() {
    let (server, connection) = quickly("respawn 10ms\nspawn 1:\n call write commit, exit 1").await;
    let result = connection.call_tool(tool("write")).await;
    assert!(is_unknown(&result, 1), "{result:?}");
    assert!(!result.unwrap_err().not_run());
    connection.session_after(epoch(1)).await.unwrap();
    assert_eq!(text(connection.call_tool(tool_with("echo", "back")).await), "back");
    later().await;
    let ledger = server.ledger();
    assert_eq!((ledger.posts_of("tools/call"), ledger.executions("write"), ledger.spawns()), (2, 1, 2));
}

/// A list in the same situation is simply asked for again.
#[tokio::test]
async fn k17_r065_ledger_then_exit() {
    let script = "respawn 10ms\nspawn 1..2:\n call write commit, kill\n list#2 exit 1";
    let (server, connection) = quickly(script).await;
    let result = connection.call_tool(tool("write")).await;
    assert!(is_unknown(&result, 1), "{result:?}");
    connection.session_after(epoch(1)).await.unwrap();
    // The second spawn dies of it, the third one answers.
    let listed = connection.request(list_tools(), &CallOptions::default()).await.unwrap();
    assert!(matches!(listed, ServerResult::ListToolsResult(list) if list.tools.len() == 2));
    let ledger = server.ledger();
    assert_eq!((ledger.calls("write"), ledger.executions("write"), ledger.spawns()), (1, 1, 3));
    assert_eq!(ledger.of_spawn(2).requests("tools/list"), 2);
}

/// The connection ends before anything of it is read: nobody can know that, so it is reported, or the call was never
/// sent and is sent once.
#[tokio::test]
async fn k17_die_before_read() {
    for (failure, spawns) in [("reset", 1), ("cut", 1), ("exit 1", 2), ("kill", 2)] {
        let (server, connection) = quickly("respawn 10ms").await;
        turns().await;
        server.set_script(&format!("respawn 10ms\nspawn 1:\n post#1 {failure}\n post#2.. ok")).await.unwrap();
        let result = connection.call_tool(tool_with("write", "x")).await;
        let ledger = server.ledger();
        match &result {
            Ok(_) => assert_eq!(ledger.executions("write"), 1, "{failure}"),
            Err(CallError::OutcomeUnknown { .. }) => assert_eq!(ledger.executions("write"), 0, "{failure}"),
            Err(_) => panic!("{failure}: {result:?}"),
        }
        assert!(ledger.spawns() <= spawns);
    }
}

/// Nobody listens: it was never sent, and is sent once, when there is a server again.
#[tokio::test]
async fn k17_never_sent() {
    for name in ["write", "echo"] {
        let (server, connection) = quickly("get status 405").await;
        server.down().await;
        let call = tokio::spawn({
            let connection = connection.clone();
            async move { connection.call_tool(tool_with(name, "x")).await }
        });
        let mut events = connection.events();
        until_status(&mut events, |status| status == mcp_reconnect::core::Status::TransientFailure).await;
        server.up().await;
        assert_eq!(text(call.await.unwrap()), "x");
        assert_eq!((server.ledger().calls(name), server.ledger().executions(name)), (1, 1));
    }
}

/// A pooled connection that a restart closed: one execution, whatever the client finds out first.
#[tokio::test]
async fn k17_pooled_connection_closed_by_a_restart() {
    for _ in 0..10 {
        let (server, connection) = quickly("get status 405").await;
        assert_eq!(text(connection.call_tool(tool_with("write", "first")).await), "first");
        server.restart().await;
        assert_eq!(text(connection.call_tool(tool_with("write", "second")).await), "second");
        assert_eq!((server.ledger().executions("write"), server.ledger().initializes()), (2, 2));
    }
}

/// Every way to die with a call, for every annotation: twice only where the annotation or the caller allows it.
#[tokio::test]
async fn k17_annotation_matrix() {
    let deaths = [
        ("commit, exit 1", 1),
        ("commit, reset", 1),
        ("commit, cut", 1),
        ("commit, headers-only", 1),
        ("commit, headers, end", 1),
        ("commit, status 502 \"<html>\"", 1),
        ("commit, status 504", 1),
        ("commit, cut after 10, ok", 1),
        ("commit, forget, cut", 1),
        ("reset", 0),
        ("exit 1", 0),
        ("status 503", 0),
    ];
    for (offered, annotated) in [
        ("a", false),
        ("a(readOnly)", true),
        ("a(idempotent)", true),
        ("a(idempotent=false)", false),
        ("a(destructive)", false),
    ] {
        for (death, rows) in deaths {
            for replay in [ReplayPolicy::Annotated, ReplayPolicy::Always, ReplayPolicy::NotRun] {
                let script =
                    format!("respawn 5ms\ntools {offered}\nspawn 1:\n call a#1 {death}\nspawn 2..:\n call a ok");
                let (server, connection) = quickly(&script).await;
                let result = connection.call_tool_with(tool_with("a", "x"), &replaying(replay)).await;
                let allowed = replay == ReplayPolicy::Always || (replay == ReplayPolicy::Annotated && annotated);
                let what = format!("{offered}, {death}, {replay:?}: {result:?}");
                let ledger = server.ledger();
                assert_eq!(ledger.executions("a"), rows + usize::from(allowed), "{what}");
                assert_eq!(ledger.calls("a"), 1 + usize::from(allowed), "{what}");
                if allowed {
                    assert_eq!(text(result), "x", "{what}");
                } else {
                    assert!(is_unknown(&result, 1), "{what}");
                }
            }
        }
    }
}

/// What counts is what the epoch that ran the call said of the tool.
#[tokio::test]
async fn k17_annotation_of_the_epoch_that_was_asked() {
    for (before, after, rows) in [("a", "a(readOnly)", 1), ("a(readOnly)", "a", 2)] {
        let script = format!("respawn 5ms\ntools {after}\nspawn 1:\n tools {before}\n call a commit, exit 1");
        let (server, connection) = quickly(&script).await;
        let result = connection.call_tool(tool_with("a", "x")).await;
        assert_eq!(result.is_ok(), rows == 2, "{before} {after}: {result:?}");
        assert_eq!(server.ledger().executions("a"), rows, "{before} {after}");
    }
}

/// A call that breaks every answer is not sent for ever.
#[tokio::test]
async fn k17_a_deadly_call_is_not_sent_for_ever() {
    for death in ["exit 1", "cut", "reset", "status 502", "headers-only"] {
        for replay in [ReplayPolicy::Annotated, ReplayPolicy::Always] {
            let (server, connection) = quickly(&format!("respawn 5ms\ncall echo commit, {death}")).await;
            let result = connection.call_tool_with(tool("echo"), &replaying(replay)).await;
            assert!(matches!(result, Err(CallError::OutcomeUnknown { .. })), "{death}: {result:?}");
            later().await;
            assert_eq!(server.ledger().executions("echo"), 2, "{death}");
        }
    }
}

/// What was refused before it ran is sent once more on a fresh session, whatever the tool, and not a third time.
#[tokio::test]
async fn k17_refused_by_the_gate() {
    for gate in [
        "status 404",
        "status 404 \"Session not found\"",
        "status 400 '{\"jsonrpc\":\"2.0\",\"id\":null,\"error\":{\"code\":-32000,\"message\":\"Bad Request: No valid session ID provided\"}}'",
        "error -32001 \"Session not found\"",
    ] {
        let (server, connection) = quickly(&format!("call write#1 {gate}")).await;
        assert_eq!(text(connection.call_tool(tool_with("write", "x")).await), "x", "{gate}");
        let ledger = server.ledger();
        assert_eq!((ledger.calls("write"), ledger.executions("write"), ledger.initializes()), (2, 1, 2), "{gate}");
        let (server, connection) = quickly(&format!("call write {gate}")).await;
        let result = connection.call_tool(tool("write")).await;
        assert!(matches!(result, Err(CallError::NotSent { .. })), "{gate}: {result:?}");
        later().await;
        assert_eq!((server.ledger().calls("write"), server.ledger().executions("write")), (2, 0), "{gate}");
    }
}

/// The gate refuses the id before the message is read, for many calls at once: each runs once.
#[tokio::test]
async fn k17_404_with_id_runs_once() {
    let (server, connection) = quickly("").await;
    server.forget_sessions().await;
    let calls: tokio::task::JoinSet<_> = (0..50)
        .map(|number| {
            let connection = connection.clone();
            async move { text(connection.call_tool(tool_with("write", &number.to_string())).await) }
        })
        .collect();
    let answers = calls.join_all().await;
    let distinct: std::collections::HashSet<_> = answers.into_iter().collect();
    assert_eq!((distinct.len(), server.ledger().executions("write"), server.ledger().initializes()), (50, 50, 2));
}

/// A rate limit is the caller's to wait for: the call did not run and is not sent again.
#[tokio::test]
async fn k17_rate_limited() {
    let (server, connection) = quickly("call * status 429 header retry-after 7").await;
    for name in ["write", "echo"] {
        let result = connection.call_tool(tool(name)).await;
        assert!(result.as_ref().is_err_and(CallError::not_run), "{result:?}");
        assert!(matches!(result, Err(CallError::RateLimited { retry_after: Some(wait), .. }) if wait == secs(7)));
        assert_eq!(server.ledger().calls(name), 1);
    }
}

/// Every way to get no result has an error of its own, and only one of them says that nobody knows.
#[tokio::test]
async fn k17_the_unknown_has_its_own_error() {
    let (server, connection) = quickly(
        "respawn 5ms
         call write#1 error -32603 \"disk full\"
         call write#2 with-status 500, error -32603 \"disk full\"
         call write#3 is-error \"no such file\"
         call write#4 never
         call write#5 commit, cut",
    )
    .await;
    let call = async || connection.call_tool_with(tool("write"), &within(secs(600))).await;
    assert!(matches!(call().await, Err(CallError::Server { .. })));
    assert!(matches!(call().await, Err(CallError::Server { .. })));
    assert!(call().await.is_ok());
    let short = connection.call_tool_with(tool("write"), &within(millis(50))).await;
    assert!(matches!(short, Err(CallError::DeadlineExceeded { sent: Sent::Maybe, .. })), "{short:?}");
    assert!(is_unknown(&call().await, 1));
    later().await;
    assert_eq!((server.ledger().calls("write"), server.ledger().initializes()), (5, 1));
}

/// A caller that has its answer, or has left, gets no second execution behind its back.
#[tokio::test]
async fn k17_nothing_runs_after_the_caller_left() {
    for name in ["write", "echo"] {
        let (server, connection) = quickly(&format!("call {name} commit, delay 30s, cut")).await;
        let waiting = |timeout| {
            let connection = connection.clone();
            let options = CallOptions { replay: ReplayPolicy::Always, ..within(timeout) };
            tokio::spawn(async move { connection.call_tool_with(tool(name), &options).await })
        };
        let (left, late) = (waiting(secs(600)), waiting(secs(10)));
        server.watch().wait_until(|ledger| ledger.calls(name) == 2).await;
        left.abort();
        skip(secs(11)).await;
        let result = late.await.unwrap();
        assert!(matches!(result, Err(CallError::DeadlineExceeded { sent: Sent::Maybe, .. })), "{result:?}");
        server.watch().wait_until(|ledger| ledger.abandoned() == 2 && ledger.cancelled().len() == 2).await;
        later().await;
        assert_eq!((server.ledger().calls(name), server.ledger().executions(name)), (2, 2));
    }
}

/// The protocol's own questions change nothing and are asked again, where the session lives and where it does not.
#[tokio::test]
async fn k17_reading_is_repeated() {
    for failure in ["cut", "status 502", "reset", "forget, cut", "status 404"] {
        let (server, connection) = quickly(&format!(
            "resources file:///a\nresources/read#1 {failure}\nresources/read#2.. ok\nlist#2 {failure}"
        ))
        .await;
        connection.read_resource(ReadResourceRequestParams::new("file:///a")).await.unwrap();
        assert_eq!(server.ledger().requests("resources/read"), 2, "{failure}");
        connection.request(list_tools(), &CallOptions::default()).await.unwrap();
    }
    let (_server, connection) = quickly("list#2 cut").await;
    let result = connection.request(list_tools(), &replaying(ReplayPolicy::NotRun)).await;
    assert!(matches!(result, Err(CallError::OutcomeUnknown { .. })), "{result:?}");
}

/// From its second round on a call has run in part, even where the server refuses the round at its gate.
#[tokio::test]
async fn k17_second_round_of_a_call() {
    for end in ["cut", "status 502", "reset", "status 400"] {
        let script = format!("era modern\ncall write#1 input-required\ncall write#2.. {end}");
        let (server, connection, _events) = ready(&script).await;
        let result = connection.call_tool(tool("write")).await;
        assert!(is_unknown(&result, 1), "{end}: {result:?}");
        later().await;
        assert_eq!(server.ledger().calls("write"), 2, "{end}");
    }
}
