//! The host is told of what is different, once.

use std::time::Duration;

use serde_json::Value;

use super::eras::asked;
use super::support::Host;
use crate::support::{memory, secs};

const TOOLS: &str = "notifications/tools/list_changed";
const PROMPTS: &str = "notifications/prompts/list_changed";

/// A legacy host that has asked for all lists.
async fn listed(script: &str) -> (std::sync::Arc<mcp_reconnect_tests::fake::FakeServer>, Host) {
    let server = memory(script);
    let mut host = Host::legacy(&server).await;
    for (id, method) in ["tools/list", "prompts/list", "resources/list", "resources/templates/list"].iter().enumerate()
    {
        host.ask(id, method, "{}").await;
    }
    assert_eq!(host.told(secs(10)).await, [] as [&str; 0], "the lists are the server's own");
    (server, host)
}

async fn names(host: &mut Host) -> Vec<String> {
    let answer = host.ask(r#""n""#, "tools/list", "{}").await;
    let tools = answer["result"]["tools"].as_array().unwrap();
    tools.iter().map(|tool| tool["name"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test(start_paused = true)]
async fn a_restart_is_told_by_what_it_changed() {
    let script = "server:\n tools echo(readOnly), die\n prompts p\n resources file:///a\n call die kill
        spawn 3:\n tools echo(readOnly, desc \"new\"), die
        spawn 4:\n tools echo(readOnly, desc \"new\"), die\n prompts p, q
        spawn 5..:\n tools die, echo(readOnly, desc \"new\")\n prompts q, p";
    let (server, mut host) = listed(script).await;
    for (id, wanted) in [(2, &[] as &[&str]), (3, &[TOOLS]), (4, &[PROMPTS]), (5, &[])] {
        host.call(id, "die").await;
        assert_eq!(host.told(secs(60)).await, wanted, "spawn {id}");
        assert_eq!(server.ledger().spawns(), id);
    }
    host.leave().await;
}

#[tokio::test(start_paused = true)]
async fn what_the_server_announces_is_told_once() {
    let script = "server:\n tools echo(readOnly), poke, die, idle
        call poke set-tools poke die fresh, notify tools/list_changed
        call idle notify tools/list_changed x2
        call die kill
        spawn 2..:\n tools other";
    let (_server, mut host) = listed(script).await;
    host.call(1, "poke").await;
    assert_eq!(host.told(secs(60)).await, [TOOLS]);
    assert_eq!(names(&mut host).await, ["poke", "die", "fresh"]);
    assert_eq!(host.told(secs(60)).await, [] as [&str; 0]);
    // An announcement of nothing does not hide the change after it.
    host.call(2, "idle").await;
    assert_eq!(host.told(secs(60)).await.len(), 2);
    host.call(3, "die").await;
    assert_eq!(host.told(secs(60)).await, [TOOLS]);
    assert_eq!(names(&mut host).await, ["other"]);
    host.leave().await;
}

#[tokio::test(start_paused = true)]
async fn an_announcement_right_before_the_end_is_not_the_end_of_it() {
    // The host may have fetched what was announced, and the next session is as it was before.
    let script = "server:\n tools echo(readOnly), poke\n call poke set-tools poke fresh, notify tools/list_changed, reply \"\", delay 100ms, kill";
    let (server, mut host) = listed(script).await;
    host.call(1, "poke").await;
    assert_eq!(host.told(Duration::from_millis(1)).await, [TOOLS]);
    assert_eq!(names(&mut host).await, ["poke", "fresh"]);
    assert_eq!(host.told(secs(60)).await, [TOOLS]);
    assert_eq!((names(&mut host).await, server.ledger().spawns()), (vec!["echo".to_owned(), "poke".to_owned()], 2));
    host.leave().await;
}

#[tokio::test(start_paused = true)]
async fn a_list_that_the_host_had_first_is_no_news() {
    // The connection's own list comes later than the host's.
    let server = memory("server:\n prompts p\n prompts/list#1 delay 5s");
    let mut host = Host::legacy(&server).await;
    host.rest().await;
    assert_eq!(host.ask(1, "prompts/list", "{}").await["result"]["prompts"].as_array().unwrap().len(), 1);
    assert_eq!(host.told(secs(60)).await, [] as [&str; 0]);
    assert_eq!(server.ledger().requests("prompts/list"), 2);
    host.leave().await;
}

#[tokio::test(start_paused = true)]
async fn a_park_and_the_return_are_told_once_each() {
    let script = "until 90s:\n start exit 1\nspawn 1:\n start stderr \"up\"\n tools die\n call die exit 1\nserver:\n tools echo(readOnly), write";
    let (server, mut host) = listed(script).await;
    host.call(1, "die").await;
    // Being rebuilt, then given up for the time being.
    assert_eq!(host.told(secs(30)).await, [] as [&str; 0]);
    assert_eq!(names(&mut host).await, ["die"]);
    assert_eq!(host.told(secs(40)).await, [TOOLS]);
    assert_eq!(names(&mut host).await, [] as [&str; 0]);
    assert_eq!(host.told(secs(300)).await, [TOOLS]);
    assert_eq!(names(&mut host).await, ["echo", "write"]);
    assert!(server.ledger().spawns() > 5);
    host.leave().await;
}

#[tokio::test(start_paused = true)]
async fn what_belongs_to_a_session_is_set_up_in_the_next() {
    let script =
        "server:\n tools die\n resources file:///a\n capabilities tools, resources(subscribe), logging\n call die kill";
    let server = memory(script);
    let mut host = Host::legacy(&server).await;
    host.ask(1, "logging/setLevel", r#"{"level":"warning","x":1}"#).await;
    host.ask(2, "resources/subscribe", r#"{"uri":"file:///a"}"#).await;
    host.ask(3, "resources/subscribe", r#"{"uri":"file:///b"}"#).await;
    host.ask(4, "resources/unsubscribe", r#"{"uri":"file:///b"}"#).await;
    host.call(5, "die").await;
    host.within(secs(30)).await;
    let second = server.ledger().of_spawn(2);
    assert_eq!(asked(&second, "logging/setLevel"), [serde_json::json!({ "level": "warning" })]);
    assert_eq!(asked(&second, "resources/subscribe"), [serde_json::json!({ "uri": "file:///a" })]);
    assert_eq!(asked(&second, "resources/unsubscribe"), [] as [Value; 0]);
    host.leave().await;
}
