//! The tools that a front adds.

use mcp_reconnect::config::FleetConfig;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::support::*;
use crate::support::{memory, secs};

async fn all(config: FleetConfig) -> Host {
    let mut host = Host::with(config, |options| options.control_tools = true);
    host.initialize().await;
    host
}

async fn run(host: &mut Host, tool: &str, arguments: Value) -> (bool, String, Value) {
    let answer = host.ask("tools/call", json!({ "name": tool, "arguments": arguments })).await;
    let result = &answer["result"];
    (result["isError"] == true, text_of(&answer), result["structuredContent"]["servers"].clone())
}

#[tokio::test(start_paused = true)]
async fn a_model_sees_how_servers_stand_and_has_one_back() {
    let (fine, broken) = (memory(""), memory("until 600s:\nstart stderr \"no disk\\n\", exit 3"));
    let mut off = of(&fine);
    off.enabled = false;
    let mut host = all(config(&[("fine", &fine), ("broken", &broken)]).with("off", off)).await;
    let names = host.names("tools/list").await;
    assert_eq!(names, ["fine__echo", "fine__write", "connection_status", "reconnect"]);
    sleep(secs(300)).await; // parked by now
    let began = Instant::now();
    let (failed, text, servers) = run(&mut host, "connection_status", json!({})).await;
    assert_eq!((failed, began.elapsed()), (false, secs(0)));
    assert_eq!(text.lines().count(), 3, "{text}");
    assert!(text.contains("`fine` is connected (session 1"), "{text}");
    assert!(text.contains("Last failure (transport)") && text.contains("Next try in"), "{text}");
    assert!(text.contains("`off` is disabled"), "{text}");
    let states: Vec<_> = servers.as_array().unwrap().iter().map(|server| (&server["name"], &server["state"])).collect();
    assert_eq!(
        states.iter().map(|(name, state)| (name.as_str().unwrap(), state.as_str().unwrap())).collect::<Vec<_>>(),
        [("broken", "parked"), ("fine", "ready"), ("off", "disabled")]
    );
    assert_eq!((&servers[1]["session"]["pid"], servers[0]["next_dial"].is_number()), (&json!(1), true));

    // Tried at once, and still not there.
    let dials = broken.ledger().spawns();
    let (failed, text, _) = run(&mut host, "reconnect", json!({ "server": "broken" })).await;
    assert!(failed && text.contains("not connected"), "{text}");
    assert!(broken.ledger().spawns() > dials);
    sleep(secs(600)).await;
    let (failed, text, servers) = run(&mut host, "reconnect", json!({})).await;
    assert!(!failed && text.contains("`broken` is connected"), "{text}");
    assert!(text.contains("`fine` is connected, and was left alone"), "{text}");
    assert_eq!((&servers[0]["state"], fine.ledger().spawns()), (&json!("ready"), 1));
    assert_eq!(host.call("broken__echo", "back").await, "back");
}

#[tokio::test(start_paused = true)]
async fn only_force_replaces_a_session() {
    let (a, b) = (memory(""), memory(""));
    let mut host = all(config(&[("a", &a), ("b", &b)])).await;
    sleep(secs(20)).await;
    let (failed, _, _) = run(&mut host, "reconnect", json!({ "server": "a" })).await;
    assert_eq!((failed, a.ledger().spawns()), (false, 1));
    let (failed, text, servers) = run(&mut host, "reconnect", json!({ "server": "a", "force": true })).await;
    assert!(!failed && text.contains("session 2"), "{text}");
    assert_eq!((servers.as_array().unwrap().len(), a.ledger().spawns(), b.ledger().spawns()), (1, 2, 1));
}

#[tokio::test(start_paused = true)]
async fn a_server_alone_has_them_on_its_last_page() {
    let server = memory("tools x, y\npaging 2");
    let mut host = Host::of_one(&server, |options| options.control_tools = true);
    host.initialize().await;
    let first = host.ask("tools/list", json!({})).await;
    assert_eq!(first["result"]["tools"].as_array().unwrap().len(), 1);
    let last = host.ask("tools/list", json!({ "cursor": first["result"]["nextCursor"] })).await;
    let names: Vec<_> = last["result"]["tools"].as_array().unwrap().iter().map(|tool| &tool["name"]).collect();
    assert_eq!(names, ["y", "connection_status", "reconnect"]);
    let (failed, text, servers) = run(&mut host, "connection_status", json!({ "server": "fake" })).await;
    assert!(!failed && text.contains("`fake` is connected"), "{text}");
    assert_eq!(servers[0]["session"]["epoch"], 1);
    assert_eq!(server.ledger().requests("tools/call"), 0);
}

#[tokio::test(start_paused = true)]
async fn control_tools_need_no_server_tools_and_no_server() {
    let server = memory("capabilities prompts\ntools none\nprompts p\nlist error -32601 \"no tools\"");
    let mut host = Host::of_one(&server, |options| options.control_tools = true);
    assert_eq!(host.initialize().await["capabilities"], json!({ "prompts": {}, "tools": {} }));
    assert_eq!(host.names("tools/list").await, ["connection_status", "reconnect"]);

    let away = memory("start exit 1");
    let mut host = Host::of_one(&away, |options| options.control_tools = true);
    host.initialize().await;
    assert_eq!(host.names("tools/list").await, ["connection_status", "reconnect"]);
    let (failed, text, _) = run(&mut host, "connection_status", json!({})).await;
    assert!(!failed && text.contains("Last failure"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn a_name_that_a_server_has_is_the_servers() {
    let server = memory("tools reconnect, x");
    let mut host = Host::of_one(&server, |options| options.control_tools = true);
    host.initialize().await;
    let names = host.names("tools/list").await;
    assert_eq!(names, ["reconnect", "x", "connection_status", "mcp_reconnect_reconnect"]);
    assert_eq!(host.call("reconnect", "the server's").await, "the server's");
    let (failed, text, _) = run(&mut host, "mcp_reconnect_reconnect", json!({})).await;
    assert!(!failed && text.contains("left alone"), "{text}");
    assert_eq!(server.ledger().executions("reconnect"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_public_name_that_is_taken_is_the_servers() {
    let server = memory("tools status");
    let naming = mcp_reconnect::fleet::ToolNaming::new("_", 64).unwrap();
    let mut host = Host::with(config(&[("connection", &server)]), |options| {
        (options.naming, options.control_tools) = (naming, true);
    });
    host.initialize().await;
    let names = host.names("tools/list").await;
    assert_eq!(names, ["connection_status", "mcp_reconnect_connection_status", "reconnect"]);
    assert_eq!(host.call("connection_status", "the server's").await, "the server's");
}

#[tokio::test(start_paused = true)]
async fn without_being_wanted_they_are_not_there() {
    let server = memory("");
    let mut host = Host::greeted(config(&[("a", &server)])).await;
    assert_eq!(host.names("tools/list").await, ["a__echo", "a__write"]);
    assert_eq!(error_of(&host.ask("tools/call", json!({ "name": "reconnect" })).await).0, -32_602);
}
