//! Time and knobs of the scenarios over HTTP.

use std::time::Duration;

use mcp_reconnect::Connection;
use mcp_reconnect::core::ConfigBuilder;
use mcp_reconnect_tests::fake::{FakeHttp, Ledger};

use crate::support::*;

/// Lets this much time pass in an instant, for both ends: every timer that is due fires. Nothing may be on the wire
/// whose deadline is shorter.
pub(super) async fn skip(time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
    turns().await;
}

/// Lets everything run that can run without a wait.
pub(super) async fn turns() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

/// Waits until nothing is on the wire but streams that stand.
pub(super) async fn quiet(server: &FakeHttp, connection: &Connection) {
    let standing = |ledger: &Ledger| ledger.open_streams() + ledger.open_listens();
    server.watch().wait_until(|ledger| ledger.open_requests() == standing(ledger)).await;
    // Behind what was answered before it.
    assert_eq!(text(connection.call_tool(tool_with("echo", "fine")).await), "fine");
    turns().await;
}

/// The ladder and the pace a tenth or less of what they are, the rest as it is.
pub(super) fn quick(config: ConfigBuilder) -> ConfigBuilder {
    config.backoff(millis(60)).min_dial_interval(millis(20)).demand_interval(millis(60))
}
