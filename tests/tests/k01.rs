//! K01: a dead server is noticed and restarted.

use mcp_reconnect::CallError;
use mcp_reconnect::core::Status;

use crate::support::*;

#[tokio::test(start_paused = true)]
async fn k01_crash_then_call() {
    let server = memory("spawn 1:\n after 10s exit 1");
    let connection = connect(&server);
    let mut events = connection.events();
    assert_eq!(until_ready(&mut events).await, 1);
    assert_eq!(text(connection.call_tool(tool_with("echo", "one")).await), "one");
    assert_eq!(next_status(&mut events).await, Status::TransientFailure);
    // A patient caller does not wait for its own deadline, but for the server.
    let asked = tokio::time::Instant::now();
    let answer = connection.call_tool_with(tool_with("echo", "two"), &within(secs(1800))).await;
    assert_eq!(text(answer), "two");
    assert!(asked.elapsed() < secs(5), "{:?}", asked.elapsed());
    assert_eq!(server.ledger().spawns(), 2);
    assert_eq!(until_ready(&mut events).await, 2);
}

#[tokio::test(start_paused = true)]
async fn k01_kill_in_call() {
    let server = memory("spawn 1:\n call write commit, delay 3s, kill");
    let connection = connect(&server);
    let asked = tokio::time::Instant::now();
    match connection.call_tool_with(tool("write"), &within(secs(1800))).await {
        Err(CallError::OutcomeUnknown { epoch: failed, cause, .. }) => {
            assert_eq!(failed, epoch(1));
            assert!(cause.contains("SIGKILL"), "{cause}");
        }
        other => panic!("{other:?}"),
    }
    assert!(asked.elapsed() < secs(4), "{:?}", asked.elapsed());
    assert_eq!(text(connection.call_tool(tool_with("write", "two")).await), "two");
    assert_eq!(server.ledger().executions("write"), 2);
}
