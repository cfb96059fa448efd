//! What the host is told of all servers together.

use mcp_reconnect::config::FleetConfig;
use mcp_reconnect::front::FrontAllOptions;
use serde_json::json;

use super::support::*;
use crate::support::{memory, secs};

#[tokio::test(start_paused = true)]
async fn the_greeting_is_of_all() {
    let greeting = |capabilities: &str, instructions: &str| {
        format!(
            r#"initialize result '{{"protocolVersion":"2025-11-25","capabilities":{capabilities},"serverInfo":{{"name":"x","version":"1"}},"instructions":"{instructions}"}}'"#
        )
    };
    let a = memory(&greeting(r#"{"tools":{"listChanged":false},"logging":{},"tasks":{"list":{}}}"#, "Be kind."));
    let b = memory(&greeting(r#"{"tools":{"listChanged":true},"prompts":{}}"#, "Be quick."));
    let c = memory("");
    let mut host = Host::of(config(&[("b", &b), ("a", &a), ("c", &c)]));
    let greeting = host.initialize().await;
    assert_eq!(greeting["protocolVersion"], "2025-11-25");
    assert_eq!(greeting["serverInfo"]["name"], "mcp-reconnect");
    assert_eq!(greeting["capabilities"], json!({ "tools": { "listChanged": true }, "logging": {}, "prompts": {} }));
    assert_eq!(greeting["instructions"], "# a\n\nBe kind.\n\n# b\n\nBe quick.");
    let again = host.ask("initialize", json!({ "protocolVersion": "2025-11-25" })).await;
    assert_eq!(error_of(&again).0, -32_600);
    host.leave().await;
    // In the host's own words.
    for server in [&a, &b, &c] {
        let ledger = server.ledger();
        let words = ledger.entries().iter().find_map(|entry| match &entry.event {
            mcp_reconnect_tests::fake::Event::Request { method, params, .. } if method == "initialize" => Some(params),
            _ => None,
        });
        assert_eq!(words.unwrap()["capabilities"], json!({ "roots": { "listChanged": true }, "sampling": {} }));
    }
}

#[tokio::test(start_paused = true)]
async fn an_older_host_is_answered_in_its_version() {
    let server = memory("");
    let mut host = Host::of(config(&[("a", &server)]));
    let params =
        json!({ "protocolVersion": "2024-11-05", "capabilities": {}, "clientInfo": { "name": "h", "version": "1" } });
    let greeting = host.ask("initialize", params).await;
    assert_eq!(greeting["result"]["protocolVersion"], "2024-11-05");
}

#[tokio::test(start_paused = true)]
async fn something_before_initialize_is_refused() {
    let server = memory("");
    let mut host = Host::of(config(&[("a", &server)]));
    assert_eq!(error_of(&host.ask("tools/list", json!({})).await).0, -32_600);
    assert_eq!(host.ask("ping", json!({})).await["result"], json!({}));
    assert_eq!(server.ledger().spawns(), 0);
}

#[tokio::test(start_paused = true)]
async fn lists_are_in_the_order_of_the_names_and_drained() {
    let lists = "tools z, y, x\nprompts p2, p1\nresources file:///2, file:///1\ntemplates t:///{b}, t:///{a}\npaging 3";
    let b = memory(lists);
    let a = memory("tools m\ntemplates u:///{a}");
    let mut host = Host::greeted(config(&[("b", &b), ("a", &a)])).await;
    assert_eq!(host.names("tools/list").await, ["a__m", "b__z", "b__y", "b__x"]);
    assert_eq!(host.names("prompts/list").await, ["p2", "p1"]);
    assert_eq!(host.names("resources/list").await, ["file:///2", "file:///1"]);
    assert_eq!(host.names("resources/templates/list").await, ["u:///{a}", "t:///{b}", "t:///{a}"]);
    let answer = host.ask("tools/list", json!({ "cursor": "page-1" })).await;
    assert_eq!(error_of(&answer).0, -32_602);
    assert_eq!(a.ledger().requests("prompts/list"), 0, "it has none, as it says");
}

#[tokio::test(start_paused = true)]
async fn an_endless_list_ends() {
    let (a, b) = (memory("paging repeat\ntools x"), memory("tools y"));
    let mut host = Host::greeted(config(&[("a", &a), ("b", &b)])).await;
    assert_eq!(host.names("tools/list").await, ["a__x", "b__y"]);
    let endless = memory("paging endless\ntools x");
    let mut host = Host::greeted(config(&[("a", &endless), ("b", &b)])).await;
    assert_eq!(host.names("tools/list").await, ["a__x", "b__y"]);
}

#[tokio::test(start_paused = true)]
async fn every_byte_of_an_entry_stays_but_its_name() {
    let tools = r#"{ "tools": [ {"description":"d\u00e9", "name" : "x" ,"inputSchema":{"type":"object"},"n":1.0,"more":[ 1 , null ]} ]}"#;
    let called = r#"{ "content":[],  "structuredContent" : {"x":1e2} , "extra":"\u0041" }"#;
    let server = Verbatim::new([("tools/list", tools.to_owned()), ("tools/call", called.to_owned())]);
    let mut host = Host::greeted(FleetConfig::default().with("v", by(server.clone()))).await;
    let id = host.begin("tools/list", json!({})).await;
    let text = host.hear_text(|message| message["id"] == id).await;
    let entry =
        r#"{"description":"d\u00e9", "name" : "v__x" ,"inputSchema":{"type":"object"},"n":1.0,"more":[ 1 , null ]}"#;
    assert!(text.contains(entry), "{text}");

    let params = r#"{ "arguments":{"name":"v__x", "f":1.50} , "name":"v__x" ,"_meta":{"progressToken": "t" } }"#;
    host.say(format!(r#"{{"jsonrpc":"2.0","id":"é","method":"tools/call","params":{params}}}"#)).await;
    let text = host.hear_text(|message| message["id"] == "é").await;
    assert_eq!(&*text, &format!(r#"{{"jsonrpc":"2.0","id":"é","result":{called}}}"#));
    let read = server.read.lock().unwrap().clone();
    let renamed = r#"{ "arguments":{"name":"v__x", "f":1.50} , "name":"x" ,"#;
    assert!(read.iter().any(|read| read.contains(renamed)), "{read:?}");
}

#[tokio::test(start_paused = true)]
async fn odd_names_are_handled() {
    let long = "t".repeat(80);
    let (a, b) = (memory(&format!("tools read.text, {long}")), memory("tools c"));
    let mut host = Host::greeted(config(&[("files", &a), ("a__b", &b)])).await;
    let names = host.names("tools/list").await;
    assert_eq!((&*names[0], &*names[1]), ("a__b__c_e4ac9b4b", "files__read_text_4522d997"));
    for name in &names {
        assert!(name.len() <= 64 && name.chars().all(|c| c.is_ascii_alphanumeric() || "_-".contains(c)), "{name}");
        assert_eq!(host.call(name, name).await, *name);
    }
    let executed = ["read.text", &long].map(|tool| a.ledger().executions(tool));
    assert_eq!((executed, b.ledger().executions("c")), ([1, 1], 1));
}

#[tokio::test(start_paused = true)]
async fn the_naming_is_the_embedders() {
    let server = memory("tools x");
    let naming = mcp_reconnect::fleet::ToolNaming::new("-", 32).unwrap();
    let mut host = Host::with(config(&[("a", &server)]), |options: &mut FrontAllOptions| options.naming = naming);
    host.initialize().await;
    assert_eq!(host.names("tools/list").await, ["a-x"]);
    assert_eq!(host.call("a-x", "1").await, "1");
}

#[tokio::test(start_paused = true)]
async fn of_two_of_one_name_the_first_counts() {
    let a = memory("prompts p(desc \"a's\"), q\nresources r:///x");
    let b = memory("prompts p(desc \"b's\")\nresources r:///x, r:///y\ntools none");
    let mut host = Host::greeted(config(&[("b", &b), ("a", &a)])).await;
    assert_eq!(host.names("prompts/list").await, ["p", "q"]);
    assert_eq!(host.names("resources/list").await, ["r:///x", "r:///y"]);
    host.ask("prompts/get", json!({ "name": "p" })).await;
    host.ask("resources/read", json!({ "uri": "r:///x" })).await;
    host.ask("resources/read", json!({ "uri": "r:///y" })).await;
    let of = |method: &str| (a.ledger().requests(method), b.ledger().requests(method));
    assert_eq!((of("prompts/get"), of("resources/read")), ((1, 0), (1, 1)));
}

#[tokio::test(start_paused = true)]
async fn what_servers_announce_is_passed_on() {
    let a = memory("after 10s set-tools x y\nafter 11s notify tools/list_changed");
    let b = memory("");
    let mut host = Host::greeted(config(&[("a", &a), ("b", &b)])).await;
    assert_eq!(host.names("tools/list").await.len(), 4);
    host.told("notifications/tools/list_changed").await;
    assert_eq!(host.names("tools/list").await, ["a__x", "a__y", "b__echo", "b__write"]);
    tokio::time::sleep(secs(60)).await;
    assert_eq!(host.unread("notifications/tools/list_changed").len(), 0, "once");
}
