//! K23: protocol versions and eras, per epoch.

use mcp_reconnect::core::{Breaker, FailureClass, ParkReason, Status};
use mcp_reconnect::{CallError, Era, Event};
use mcp_reconnect_tests::fake::Ledger;

use super::front::loss;
use super::{builder, ready, serve};
use crate::support::*;

const VERSION: &str = "mcp-protocol-version";

/// The version that each request of a session says in its header.
fn stated(ledger: &Ledger) -> Vec<Option<&str>> {
    ledger.asked().filter(|asked| asked.session.is_some()).map(|asked| asked.header(VERSION)).collect()
}

/// Also R092: whatever the refusal looks like.
#[tokio::test]
async fn k23_version_list() {
    for refusal in [
        "with-status 400, only 2024-11-05 2025-03-26",
        "only 2024-11-05 2025-03-26",
        "status 400 \"Bad Request: Unsupported protocol version (supported versions: 2025-03-26, 2024-11-05)\"",
    ] {
        let script = format!("initialize#1 {refusal}\nversions 2025-03-26, 2024-11-05");
        let (server, connection, _events) = ready(&script).await;
        assert_eq!(version(&connection).await, "2025-03-26", "{refusal}");
        let ledger = server.ledger();
        assert_eq!((ledger.posts_of("initialize"), ledger.live_sessions().len()), (2, 1), "{refusal}");
        assert_eq!(connection.snapshot().stats.failures, 0);
        assert_eq!(versions_asked_for(&ledger).last().map(String::as_str), Some("2025-03-26"), "{refusal}");
        assert!(stated(&ledger).iter().all(|version| *version == Some("2025-03-26")), "{:?}", stated(&ledger));
    }
}

/// Also R092: without a common version it is parked at once; there is no ladder.
#[tokio::test]
async fn k23_version_list_disjoint() {
    for refusal in [
        "with-status 400, only 2023-01-01 2023-06-01",
        "status 400 \"Unsupported protocol version (supported versions: 2023-01-01, 2023-06-01)\"",
    ] {
        let server = serve(&format!("initialize {refusal}")).await;
        let connection = builder(&server).build().unwrap();
        let mut events = connection.events();
        let seen = until_status(&mut events, |status| status == Status::Parked(ParkReason::Permanent)).await;
        assert_eq!(seen, [Status::Connecting, Status::Parked(ParkReason::Permanent)]);
        assert_eq!(server.ledger().posts_of("initialize"), 1);
        assert_eq!(connection.snapshot().failure, Some(FailureClass::Permanent));
        assert!(connection.last_failure().unwrap().contains("2023-06-01"));
    }
}

/// Also R091: each server takes its own version and no other, on every request.
#[tokio::test]
async fn k23_upgrade() {
    let script = "spawn 1:
          versions 2025-03-26
          require-header mcp-protocol-version 2025-03-26 -> 400
          tools old, shared(readOnly)
          info fake 1
        spawn 2:
          versions 2025-06-18
          require-header mcp-protocol-version 2025-06-18 -> 400
          tools new, shared(readOnly)
          info fake 2
          prompts hello";
    let (server, connection, mut events) = ready(script).await;
    assert_eq!(version(&connection).await, "2025-03-26");
    assert_eq!(text(connection.call_tool(tool_with("shared", "one")).await), "one");
    server.watch().wait_until(|ledger| ledger.open_streams() == 1).await;
    server.restart().await;
    assert_eq!(text(connection.call_tool(tool_with("shared", "two")).await), "two");
    let (mut diff, mut changed) = (None, None);
    loop {
        match events.next().await.unwrap() {
            Event::Catalogue(news) => diff = Some(news),
            Event::ServerChanged { version } => changed = Some(version),
            Event::Status { status: Status::Ready(_), .. } => break,
            _ => {}
        }
    }
    assert_eq!((&*version(&connection).await, changed.as_deref()), ("2025-06-18", Some("2025-06-18")));
    let diff = diff.expect("the tools changed, and that came before Ready");
    assert_eq!((&*diff.tools.added, &*diff.tools.removed), (&["new".to_owned()][..], &["old".to_owned()][..]));
    assert!(matches!(connection.call_tool(tool("old")).await, Err(CallError::NotOffered { .. })));
    let ledger = server.watch().wait_until(|ledger| ledger.open_streams() == 1).await;
    for (spawn, version) in [(1, "2025-03-26"), (2, "2025-06-18")] {
        let of_spawn = ledger.of_spawn(spawn);
        // What carries an id of the server before is of the epoch before.
        let own = of_spawn.sessions();
        let fresh = of_spawn.asked().filter(|asked| asked.session.as_deref().is_some_and(|id| own.contains(&id)));
        let versions: Vec<_> = fresh.map(|asked| asked.header(VERSION)).collect();
        assert!(versions.len() >= 4 && versions.iter().all(|stated| *stated == Some(version)), "{versions:?}");
        assert_eq!(of_spawn.calls("old"), 0);
    }
    connection.shutdown().await;
    assert!(server.ledger().live_sessions().is_empty(), "the DELETE carries the version as well");
}

/// `initialize` says its version in its body: nothing of an earlier epoch goes with it.
#[tokio::test]
async fn k23_initialize_carries_nothing_over() {
    let (server, connection, mut events) = ready("versions 2025-03-26").await;
    server.restart().await;
    connection.call_tool(tool("echo")).await.unwrap();
    assert_eq!(until_ready(&mut events).await, 2);
    let ledger = server.ledger();
    let greetings = ledger.asked().filter(|asked| asked.method.as_deref() == Some("initialize"));
    let carried: Vec<_> = greetings.map(|asked| (asked.header(VERSION), asked.session.as_deref())).collect();
    assert_eq!(carried, [(None, None), (None, None)]);
    assert_eq!(versions_asked_for(&ledger), ["2025-11-25", "2025-11-25"]);
}

/// The modern era with the headers that it wants, which the fake server checks: no session, no handshake, no standing
/// stream, nothing to end.
#[tokio::test]
async fn k23_modern() {
    let script = "era modern\nresources file:///a\nprompts hello\ncapabilities tools(listChanged), prompts, resources";
    let (server, connection, _events) = ready(script).await;
    assert_eq!((era(&connection).await, version(&connection).await), (Era::Modern, "2026-07-28".into()));
    assert_eq!(text(connection.call_tool(tool_with("write", "one")).await), "one");
    let _prompt = connection.get_prompt(rmcp::model::GetPromptRequestParams::new("hello")).await;
    server.watch().wait_until(|ledger| ledger.open_listens() == 1).await;
    connection.shutdown().await;
    let ledger = server.ledger();
    assert_eq!((ledger.initializes(), ledger.gets(), ledger.deletes().len(), ledger.answered(400)), (0, 0, 0, 0));
    assert!(ledger.asked().all(|asked| asked.session.is_none() && asked.header(VERSION) == Some("2026-07-28")));
    let called = |asked: &&mcp_reconnect_tests::fake::Asked| asked.method.as_deref() == Some("tools/call");
    assert_eq!(ledger.asked().find(called).unwrap().header("mcp-name"), Some("write"));
}

/// Arguments that the tool wants as headers go as headers, wrapped where they must be; a tool with an annotation that
/// cannot be a header is not offered.
#[tokio::test]
async fn k23_modern_param_headers() {
    let script = r#"era modern
        tools place
        list result '{"tools":[
{"name":"place","inputSchema":{"type":"object","properties":{"city":{"type":"string","x-mcp-header":"City"}}}},
{"name":"bad","inputSchema":{"type":"object","properties":{"city":{"type":"string","x-mcp-header":"a b"}}}}]}'"#
        .replace("\n{", "{");
    let (server, connection, _events) = ready(&script).await;
    assert!(matches!(connection.call_tool(tool("bad")).await, Err(CallError::NotOffered { .. })));
    for (city, header) in [("Oslo", "Oslo"), ("Zürich", "=?base64?WsO8cmljaA==?=")] {
        let mut arguments = rmcp::model::JsonObject::new();
        arguments.insert("city".into(), city.into());
        let params = rmcp::model::CallToolRequestParams::new("place").with_arguments(arguments);
        connection.call_tool(params).await.unwrap();
        let ledger = server.ledger();
        assert_eq!(ledger.asked().last().unwrap().header("mcp-param-city"), Some(header));
    }
}

/// A modern server that is restarted serves on; what it offers now is found out without any call.
#[tokio::test]
async fn k23_modern_restart_with_other_tools() {
    let script = "server:\n era modern\n capabilities tools(listChanged)\nspawn 2:\n tools new(readOnly)";
    let (server, connection, mut events) = ready(script).await;
    server.watch().wait_until(|ledger| ledger.open_listens() == 1).await;
    server.restart().await;
    let diff = loop {
        if let Event::Catalogue(diff) = events.next().await.unwrap() {
            break diff;
        }
    };
    assert_eq!(diff.tools.added, ["new"]);
    assert_eq!(text(connection.call_tool(tool_with("new", "hi")).await), "hi");
    server.watch().wait_until(|ledger| ledger.open_listens() == 1).await;
}

#[tokio::test]
async fn k23_both_eras() {
    let (server, connection, mut events) = ready("era both").await;
    assert_eq!(era(&connection).await, Era::Modern);
    connection.invalidate(epoch(1), "to be replaced");
    assert_eq!(until_ready(&mut events).await, 2);
    assert_eq!((server.ledger().initializes(), server.ledger().posts_of("server/discover")), (0, 2));
}

/// A legacy server that comes back as a modern one.
#[tokio::test]
async fn k23_legacy_server_becomes_modern() {
    let (server, connection, mut events) = ready("spawn 2:\n era modern").await;
    server.restart().await;
    assert_eq!(text(connection.call_tool(tool_with("echo", "hi")).await), "hi");
    until_ready(&mut events).await;
    assert_eq!(era(&connection).await, Era::Modern);
    assert_eq!(connection.snapshot().breaker, Breaker::Closed { strikes: 0 });
}

/// A modern server that is rolled back to a legacy one: what it refuses of the modern era ends the epoch, and the call
/// that it refused is served by the next.
#[tokio::test]
async fn k23_modern_server_becomes_legacy() {
    // Without a list that changes there is no `subscriptions/listen` whose end would tell as well.
    for back in [
        "",
        "\n capabilities tools\nspawn 2:\n missing status 400 \"an id, please\"",
        "\n capabilities tools\nspawn 2:\n missing status 406",
        "\n capabilities tools\nspawn 2:\n missing status 426",
    ] {
        let (server, connection, mut events) = ready(&format!("spawn 1:\n era modern{back}")).await;
        server.restart().await;
        assert_eq!(text(connection.call_tool(tool_with("echo", "hi")).await), "hi", "{back}");
        let class = loss(&mut events).await;
        // Without a call the end of the stream tells first, and the question may find nobody there yet.
        assert!(back.is_empty() || class == FailureClass::SessionGone, "{back}: {class}");
        until_ready(&mut events).await;
        assert_eq!(era(&connection).await, Era::Legacy, "{back}");
    }
}

/// Endpoints that know nothing of the modern era say so in many ways; none of them is a failure.
#[tokio::test]
async fn k23_probe_refused() {
    for status in [400, 404, 405, 406, 415] {
        let (server, connection, _events) = ready(&format!("post#1 status {status}")).await;
        assert_eq!((era(&connection).await, connection.snapshot().stats.failures), (Era::Legacy, 0), "{status}");
        assert_eq!((server.ledger().posts_of("server/discover"), server.ledger().initializes()), (1, 1), "{status}");
    }
}

/// Silence is no answer either: `initialize` is sent as well, and decides.
#[tokio::test]
async fn k23_probe_meets_silence() {
    let server = serve("post#1 black-hole").await;
    let connection = builder(&server).probe_patience(millis(100)).build().unwrap();
    assert_eq!(until_ready(&mut connection.events()).await, 1);
    assert_eq!(server.ledger().posts_of("server/discover"), 1);
    assert_eq!(text(connection.call_tool(tool_with("write", "hi")).await), "hi");
}

/// What says nothing about the era is not taken for an answer.
#[tokio::test]
async fn k23_probe_that_teaches_nothing() {
    for status in [429, 500, 503] {
        let server = serve(&format!("era modern\npost#1 status {status}")).await;
        let connection = builder(&server).build().unwrap();
        assert_eq!(until_ready(&mut connection.events()).await, 2, "{status}");
        assert_eq!((era(&connection).await, server.ledger().posts_of("initialize")), (Era::Modern, 0), "{status}");
    }
}
