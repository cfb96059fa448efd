//! K17: nothing runs twice that must not.

use std::collections::BTreeSet;

use mcp_reconnect::core::replay::{ReplayPolicy, Sent};
use mcp_reconnect::{CallError, CallOptions};
use mcp_reconnect_tests::fake::{Event as Seen, Ledger};
use rmcp::model::{CallToolResponse, ClientRequest, ListToolsRequest, ReadResourceRequestParams, ServerResult};
use tokio::task::JoinSet;
use tokio::time::timeout;

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

#[tokio::test(start_paused = true)]
async fn k17_commit_then_die() {
    let server = memory("spawn 1:\n call write commit, exit 1");
    let connection = connect(&server);
    let result = connection.call_tool(tool("write")).await;
    assert!(is_unknown(&result, 1), "{result:?}");
    assert!(!result.unwrap_err().not_run());
    assert_eq!(connection.session_after(epoch(1)).await.unwrap().epoch(), epoch(2));
    tokio::time::sleep(secs(3600)).await;
    assert_eq!((server.ledger().calls("write"), server.ledger().executions("write")), (1, 1));
}

/// With a real process; a list in the same situation is simply asked for again.
#[tokio::test]
async fn k17_r065_ledger_then_exit() {
    let server = process("spawn 1..2:\n call write commit, exit 1\n list#2 exit 1");
    let connection = connect_process(&server);
    timeout(secs(60), async {
        let result = connection.call_tool(tool("write")).await;
        assert!(is_unknown(&result, 1), "{result:?}");
        // The second spawn dies of it, the third one answers.
        let listed = connection.request(list_tools(), &CallOptions::default()).await.unwrap();
        assert!(matches!(listed, ServerResult::ListToolsResult(list) if list.tools.len() == 2));
        connection.shutdown().await;
    })
    .await
    .unwrap();
    let ledger = server.ledger().unwrap();
    assert_eq!((ledger.calls("write"), ledger.executions("write"), ledger.spawns()), (1, 1, 3));
    assert_eq!(ledger.of_spawn(2).requests("tools/list"), 2);
}

/// The server dies without having read the call: nobody can know that, so it is reported, and the rows are right.
#[tokio::test(start_paused = true)]
async fn k17_die_before_read() {
    let server = memory("spawn 1:\n after 20s deaf\n after 40s exit 1");
    let connection = connect(&server);
    connection.session().await.unwrap();
    tokio::time::sleep(secs(30)).await;
    let result = connection.call_tool(tool("write")).await;
    assert!(is_unknown(&result, 1), "{result:?}");
    connection.session_after(epoch(1)).await.unwrap();
    assert_eq!((server.ledger().calls("write"), server.ledger().executions("write")), (0, 0));
}

/// What waits behind a full pipe never left us: it is sent once on the next session, and only that.
#[tokio::test(start_paused = true)]
async fn k17_never_sent_is_sent_once() {
    let server = memory("spawn 1:\n after 20s deaf\n after 40s exit 1");
    let connection = connect(&server);
    connection.session().await.unwrap();
    tokio::time::sleep(secs(30)).await;
    let mut calls = JoinSet::new();
    for number in 0..300 {
        let connection = connection.clone();
        calls.spawn(async move {
            let text = number.to_string();
            (text.clone(), connection.call_tool(tool_with("write", &text)).await)
        });
    }
    let (mut unknown, mut ran) = (0, BTreeSet::new());
    while let Some(call) = calls.join_next().await {
        match call.unwrap() {
            (_, Err(CallError::OutcomeUnknown { .. })) => unknown += 1,
            (asked, answer) => {
                assert_eq!(text(answer), asked);
                ran.insert(asked);
            }
        }
    }
    assert!(unknown > 0 && !ran.is_empty(), "{unknown} unknown, {} ran", ran.len());
    assert_eq!(unknown + ran.len(), 300);
    let ledger = server.ledger();
    assert_eq!((ledger.of_spawn(1).calls("write"), ledger.executions("write")), (0, ran.len()));
    assert_eq!(texts_run(&ledger), ran);
}

/// The arguments of the calls that were read.
fn texts_run(ledger: &Ledger) -> BTreeSet<String> {
    let texts = ledger.entries().iter().filter_map(|entry| match &entry.event {
        Seen::Request { tool: Some(_), params, .. } => Some(params["arguments"]["text"].as_str().unwrap().to_owned()),
        _ => None,
    });
    texts.collect()
}

/// Part of a frame has left us when the server dies; that may have been enough of it. What waits behind it is safe.
#[tokio::test]
async fn k17_half_a_frame() {
    let server = process("spawn 1:\n list deaf, ok");
    let connection = connect_process(&server);
    timeout(secs(60), async {
        let pid = connection.session().await.unwrap().facts().pid.unwrap();
        let huge = "x".repeat(4 << 20);
        let half = connection.call_tool(tool_with("write", &huge));
        let behind = connection.call_tool(tool_with("write", "behind"));
        let kill = async {
            // The pipe has had room all the time: the writer needs a few turns of the runtime, and then it is stuck.
            for _ in 0..1000 {
                tokio::task::yield_now().await;
            }
            rustix::process::kill_process(
                rustix::process::Pid::from_raw(pid.try_into().unwrap()).unwrap(),
                rustix::process::Signal::KILL,
            )
            .unwrap();
        };
        let (half, behind, ()) = tokio::join!(half, behind, kill);
        assert!(is_unknown(&half, 1), "{half:?}");
        assert_eq!(text(behind), "behind");
        connection.shutdown().await;
    })
    .await
    .unwrap();
    let ledger = server.ledger().unwrap();
    assert_eq!((ledger.of_spawn(1).calls("write"), ledger.executions("write")), (0, 1));
}

/// Also R066: how each kind of tool fares in each kind of death, by what the caller allows.
#[tokio::test(start_paused = true)]
async fn k17_annotation_matrix() {
    const UNREAD: &str = "after 20s deaf\n after 40s exit 1";
    const COMMITTED: &str = "call * commit, exit 1";
    let tools = [
        ("plain", false),
        ("ro(readOnly)", true),
        ("not-ro(readOnly=false)", false),
        ("idem(idempotent)", true),
        ("not-idem(idempotent=false)", false),
        ("destroy(destructive)", false),
        ("both(idempotent, destructive)", true),
    ];
    for (offered, harmless) in tools {
        let name: &'static str = offered.split('(').next().unwrap();
        for (death, rows_in_first) in [(UNREAD, 0), (COMMITTED, 1)] {
            for (replay, allowed) in
                [(ReplayPolicy::NotRun, false), (ReplayPolicy::Annotated, harmless), (ReplayPolicy::Always, true)]
            {
                let server = memory(&format!("tools {offered}\nspawn 1:\n {death}"));
                let connection = connect(&server);
                connection.session().await.unwrap();
                tokio::time::sleep(secs(30)).await;
                let result = connection.call_tool_with(tool_with(name, "x"), &replaying(replay)).await;
                tokio::time::sleep(secs(600)).await;
                let what = format!("{offered}, {death}, {replay:?}");
                assert_eq!(server.ledger().spawns(), 2, "{what}");
                assert_eq!(server.ledger().executions(name), rows_in_first + usize::from(allowed), "{what}");
                if allowed {
                    assert_eq!(text(result), "x", "{what}");
                } else {
                    assert!(is_unknown(&result, 1), "{what}: {result:?}");
                }
            }
        }
    }
}

/// What counts is what the epoch that ran the call said of the tool.
#[tokio::test(start_paused = true)]
async fn k17_annotation_of_the_epoch_that_was_asked() {
    for (before, after, rows) in [("a", "a(readOnly)", 1), ("a(readOnly)", "a", 2)] {
        let server = memory(&format!("tools {after}\nspawn 1:\n tools {before}\n call a commit, exit 1"));
        let connection = connect(&server);
        let result = connection.call_tool(tool_with("a", "x")).await;
        assert_eq!(result.is_ok(), rows == 2, "{before} {after}: {result:?}");
        tokio::time::sleep(secs(60)).await;
        assert_eq!(server.ledger().executions("a"), rows, "{before} {after}");
    }
}

/// A name that two tools share, one of them without an annotation.
#[tokio::test(start_paused = true)]
async fn k17_ambiguous_annotation() {
    let server = memory(
        "list result '{\"tools\":[{\"name\":\"a\",\"inputSchema\":{\"type\":\"object\"},\"annotations\":{\"readOnlyHint\":true}},{\"name\":\"a\",\"inputSchema\":{\"type\":\"object\"}}]}'\nspawn 1:\n call a commit, exit 1",
    );
    let connection = connect(&server);
    let result = connection.call_tool(tool("a")).await;
    assert!(is_unknown(&result, 1), "{result:?}");
    assert_eq!(server.ledger().executions("a"), 1);
}

/// A call that kills every server it meets kills two.
#[tokio::test(start_paused = true)]
async fn k17_a_deadly_call_is_not_sent_for_ever() {
    for replay in [ReplayPolicy::Annotated, ReplayPolicy::Always] {
        let server = memory("call echo commit, exit 1");
        let connection = connect(&server);
        let result = connection.call_tool_with(tool("echo"), &replaying(replay)).await;
        assert!(is_unknown(&result, 2), "{result:?}");
        tokio::time::sleep(secs(600)).await;
        assert_eq!(server.ledger().executions("echo"), 2);
    }
}

/// The second sending cannot be made: what is told is that the first one may have run.
#[tokio::test(start_paused = true)]
async fn k17_unknown_stays_unknown() {
    for second in [
        "initialize exit 1",
        "initialize never",
        "tools other",
        "call echo error -32000 \"Server not initialized\"",
        "call echo never",
    ] {
        let server = memory(&format!("spawn 1:\n call echo commit, exit 1\nspawn 2..:\n {second}"));
        let connection = connect(&server);
        let result = connection.call_tool_with(tool("echo"), &within(secs(20))).await;
        match (second, &result) {
            // Its own deadline is what it met, and that says the same.
            ("call echo never", Err(CallError::DeadlineExceeded { sent: Sent::Maybe, .. })) => {}
            _ => assert!(matches!(result, Err(CallError::OutcomeUnknown { .. })), "{second}: {result:?}"),
        }
        assert!(!result.unwrap_err().not_run(), "{second}");
    }
}

/// What the server's gate refused did not run: it is sent once more on a fresh session, whatever the tool.
#[tokio::test(start_paused = true)]
async fn k17_refused_by_the_gate() {
    for gate in [
        "-32000 \"Bad Request: Server not initialized\"",
        "-32001 \"Session not found\"",
        "-32600 \"Session terminated\"",
    ] {
        let server = memory(&format!("spawn 1:\n call write error {gate}"));
        let connection = connect(&server);
        assert_eq!(text(connection.call_tool(tool_with("write", "x")).await), "x", "{gate}");
        let ledger = server.ledger();
        assert_eq!((ledger.calls("write"), ledger.executions("write"), ledger.spawns()), (2, 1, 2), "{gate}");
    }
    let server = memory("call write error -32001 \"Session not found\"");
    let result = connect(&server).call_tool(tool("write")).await;
    assert!(matches!(result, Err(CallError::NotSent { .. })), "{result:?}");
    assert_eq!((server.ledger().calls("write"), server.ledger().executions("write")), (2, 0));
}

/// Every way to get no result has an error of its own, and only one of them says that nobody knows.
#[tokio::test(start_paused = true)]
async fn k17_the_unknown_has_its_own_error() {
    let server = memory(
        "call write#1 error -32603 \"disk full\"
         call write#2 is-error \"no such file\"
         call write#3 never
         call write#4 commit, kill",
    );
    let connection = connect(&server);
    let call = async || connection.call_tool_with(tool("write"), &within(secs(10))).await;
    assert!(matches!(call().await, Err(CallError::Server { .. })));
    assert!(call().await.is_ok());
    assert!(matches!(call().await, Err(CallError::DeadlineExceeded { sent: Sent::Maybe, .. })));
    assert!(is_unknown(&call().await, 1));
    // Only what the link took with it, and none of them again.
    tokio::time::sleep(secs(60)).await;
    assert_eq!((server.ledger().calls("write"), server.ledger().spawns()), (4, 2));
}

/// A caller that has its answer (that there was none in time) gets no second execution behind its back.
#[tokio::test(start_paused = true)]
async fn k17_nothing_runs_after_the_deadline() {
    for name in ["write", "echo"] {
        let server = memory(&format!("spawn 1:\n call {name} commit, delay 30s, exit 1"));
        let connection = connect(&server);
        let result = connection.call_tool_with(tool(name), &within(secs(10))).await;
        assert!(matches!(result, Err(CallError::DeadlineExceeded { sent: Sent::Maybe, .. })), "{result:?}");
        connection.session_after(epoch(1)).await.unwrap_err();
        tokio::time::sleep(secs(600)).await;
        assert_eq!((server.ledger().spawns(), server.ledger().executions(name)), (2, 1));
    }
}

/// Nor does one that stopped waiting.
#[tokio::test(start_paused = true)]
async fn k17_nothing_runs_after_the_caller_left() {
    let server = memory("spawn 1:\n call echo commit, delay 5s, exit 1\nspawn 2:\n initialize delay 5s");
    let connection = connect(&server);
    let always = replaying(ReplayPolicy::Always);
    assert!(timeout(secs(8), connection.call_tool_with(tool("echo"), &always)).await.is_err());
    tokio::time::sleep(secs(600)).await;
    assert_eq!((server.ledger().spawns(), server.ledger().executions("echo")), (2, 1));
}

/// The protocol's own questions change nothing and are asked again.
#[tokio::test(start_paused = true)]
async fn k17_reading_is_repeated() {
    let server = memory(
        "resources file:///a
         spawn 1:
          resources/read exit 1
         spawn 2:
          list#2 kill",
    );
    let connection = connect(&server);
    connection.read_resource(ReadResourceRequestParams::new("file:///a")).await.unwrap();
    assert_eq!(server.ledger().requests("resources/read"), 2);
    connection.request(list_tools(), &CallOptions::default()).await.unwrap();
    assert_eq!(server.ledger().spawns(), 3);
    // But not by somebody who does not want it.
    let server = memory("spawn 1:\n list#2 exit 1");
    let result = connect(&server).request(list_tools(), &replaying(ReplayPolicy::NotRun)).await;
    assert!(matches!(result, Err(CallError::OutcomeUnknown { .. })), "{result:?}");
}

/// From its second round on a call has run in part, even where the server refuses the round at its gate.
#[tokio::test(start_paused = true)]
async fn k17_second_round_of_a_call() {
    for end in ["exit 1", "error -32001 \"Session not found\""] {
        let server = memory(&format!(
            "era modern
             spawn 1:
              call write#1 input-required
              call write#2.. {end}"
        ));
        let connection = connect(&server);
        let result = connection.call_tool(tool("write")).await;
        assert!(is_unknown(&result, 1), "{end}: {result:?}");
        tokio::time::sleep(secs(60)).await;
        assert_eq!(server.ledger().calls("write"), 2, "{end}");
    }
}

/// The second sending of an annotated call never leaves, because the pipe is full: that says nothing of the first, which
/// ran.
#[tokio::test(start_paused = true)]
async fn k17_a_second_sending_that_never_left_does_not_hide_the_first() {
    let (server, connection, mut events) =
        ready("spawn 1:\n call echo commit, delay 5s, exit 1\nspawn 2:\n serial\n call write delay 1h").await;
    let options = within(secs(20));
    let call = connection.call_tool_with(tool("echo"), &options);
    let jam = async {
        assert_eq!(until_ready(&mut events).await, 2);
        // More than the link and the pipe hold between them.
        let jam = (0..300).map(|_| connection.call_tool_with(tool("write"), &options));
        futures::future::join_all(jam).await
    };
    // The jam is asked first.
    let (_, result) = tokio::join!(biased; jam, call);
    let error = result.unwrap_err();
    assert!(!error.not_run(), "{error:?}");
    assert_eq!((server.ledger().executions("echo"), server.ledger().calls("echo")), (1, 1));
}
