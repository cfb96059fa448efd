//! Which tools are offered, by the config.

use mcp_reconnect::config::{FleetConfig, ToolFilter};
use serde_json::json;

use super::support::*;
use crate::support::memory;

fn without(hidden: &str) -> ToolFilter {
    let mut filter = ToolFilter::default();
    filter.exclude = vec![hidden.into()];
    filter
}

#[tokio::test(start_paused = true)]
async fn hidden_tools_of_one_of_many_are_refused() {
    let (a, b) = (memory(""), memory(""));
    let mut filtered = of(&a);
    filtered.tools = without("wri*");
    let mut host = Host::greeted(FleetConfig::default().with("a", filtered).with("b", of(&b))).await;
    assert_eq!(host.names("tools/list").await, ["a__echo", "b__echo", "b__write"]);
    let answer = host.ask("tools/call", json!({ "name": "a__write" })).await;
    let (code, message) = error_of(&answer);
    assert!(code == -32_602 && message.contains("`a__write`") && message.contains("hidden"), "{message}");
    let answer = host.ask("tools/call", json!({ "name": "a__writ" })).await;
    let (_, message) = error_of(&answer);
    assert!(!message.contains("a__write"), "what is hidden is not named: {message}");
    assert_eq!(a.ledger().requests("tools/call"), 0);
    assert_eq!(host.call("b__write", "1").await, "1");
}

#[tokio::test(start_paused = true)]
async fn hidden_tools_of_a_server_alone_are_refused() {
    let server = memory("paging 2");
    let mut host = Host::of_one(&server, |options| options.tools = without("write"));
    host.initialize().await;
    assert_eq!(host.names("tools/list").await, ["echo"]);
    let answer = host.ask("tools/call", json!({ "name": "write" })).await;
    let (code, message) = error_of(&answer);
    assert!(code == -32_602 && message.contains("`write`"), "{message}");
    assert_eq!(host.call("echo", "1").await, "1");
    assert_eq!(server.ledger().calls("write"), 0);
}

/// What is known of a server that is not there is filtered too.
#[tokio::test(start_paused = true)]
async fn hidden_tools_stay_hidden_in_an_outage() {
    let a = memory("after 1s deaf");
    let mut filtered = of(&a);
    filtered.tools = without("write");
    let mut host = Host::greeted(FleetConfig::default().with("a", filtered)).await;
    tokio::time::sleep(crate::support::secs(2)).await;
    assert_eq!(host.names("tools/list").await, ["a__echo"]);
}
