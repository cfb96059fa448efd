use std::sync::Arc;

use mcp_reconnect_core::replay::Sent;
use rmcp::model::{ClientConfig, ProtocolVersion, ServerPeerInfo};
use serde_json::json;

use super::*;
use crate::protocol::{Client, Era};
use crate::wire::testlink::{EXIT, Far, wire};

fn session(capabilities: Value) -> Established {
    let version = ProtocolVersion::LATEST;
    let peer = ServerPeerInfo::new(version.clone(), serde_json::from_value(capabilities).unwrap());
    let raw: Arc<RawValue> = RawValue::from_string("{}".into()).unwrap().into();
    Established {
        era: Era::Modern,
        version: version.clone(),
        raw,
        peer: peer.into(),
        meta: Client::of(&ClientConfig::default()).meta(&version),
    }
}

/// Lists from a server that answers each page as `page` says, until it has no more to say.
async fn list_from<T: Entry>(
    pages: usize,
    most: usize,
    mut page: impl FnMut(Value) -> Option<Value>,
) -> Result<Listing<T>, ListError> {
    let (wire, mut far) = wire();
    let session = session(json!({ "tools": {}, "prompts": {}, "resources": {} }));
    let server = async {
        while let Some(mut answer) = page(far.read().await) {
            let keep = answer["keep"].take();
            far.say(answer).await;
            drop(keep);
        }
        hang_up(far);
    };
    tokio::select! {
        listing = list_up_to(&wire, &session, pages, most) => listing,
        () = async { server.await; std::future::pending().await } => unreachable!(),
    }
}

fn hang_up(far: Far) {
    far.hang_up();
}

fn tool(name: &str) -> Value {
    json!({ "name": name, "inputSchema": { "type": "object" } })
}

fn names(listing: &Listing<Tool>) -> Vec<&str> {
    listing.items.iter().map(|tool| &*tool.name).collect()
}

fn part(tools: &[Value]) -> Part<Tool> {
    part_as(tools, |json| json.to_string())
}

fn part_as(tools: &[Value], text: fn(&Value) -> String) -> Part<Tool> {
    let item = |json: &Value| Item {
        value: serde_json::from_value(json.clone()).unwrap(),
        json: RawValue::from_string(text(json)).unwrap(),
    };
    Part::Listed(tools.iter().map(item).collect())
}

#[tokio::test(start_paused = true)]
async fn all_pages_are_read() {
    let mut asked = Vec::new();
    let listing = list_from::<Tool>(10, 10, |request| {
        asked.push((request["method"].clone(), request["params"]["cursor"].clone()));
        assert_eq!(request["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"], "2026-07-28");
        let page = asked.len();
        let next = ["two\"", ""].get(page - 1).copied();
        Some(json!({ "id": request["id"], "result": { "tools": [tool(&page.to_string())], "nextCursor": next } }))
    });
    let listing = listing.await.unwrap();
    assert_eq!(names(&listing), ["1", "2"]);
    assert!(listing.warnings.is_empty());
    assert_eq!(asked, [("tools/list".into(), Value::Null), ("tools/list".into(), "two\"".into())]);
}

#[tokio::test(start_paused = true)]
async fn paging_is_bounded() {
    // A cursor that comes again.
    let mut page = 0;
    let listing = list_from::<Tool>(100, 100, |request| {
        page += 1;
        let next = if page % 2 == 0 { "even" } else { "odd" };
        Some(json!({ "id": request["id"], "result": { "tools": [tool(&page.to_string())], "nextCursor": next } }))
    });
    let listing = listing.await.unwrap();
    assert_eq!(names(&listing), ["1", "2", "3"]);
    assert_eq!(listing.warnings.len(), 1);

    // Pages without end.
    let mut page = 0;
    let listing = list_from::<Tool>(5, 100, |request| {
        page += 1;
        Some(
            json!({ "id": request["id"], "result": { "tools": [tool(&page.to_string())], "nextCursor": page.to_string() } }),
        )
    });
    let listing = listing.await.unwrap();
    assert_eq!(names(&listing), ["1", "2", "3", "4", "5"]);
    assert_eq!(listing.warnings, ["more than 5 pages"]);

    // Items without end.
    let listing = list_from::<Tool>(5, 3, |request| {
        let tools: Vec<_> = (0..7).map(|n| tool(&n.to_string())).collect();
        Some(json!({ "id": request["id"], "result": { "tools": tools, "nextCursor": "more" } }))
    });
    let listing = listing.await.unwrap();
    assert_eq!(names(&listing), ["0", "1", "2"]);
    assert_eq!(listing.warnings, ["more than 3 items"]);
}

#[tokio::test(start_paused = true)]
async fn an_item_that_cannot_be_read_is_left_out() {
    let listing = list_from::<Tool>(5, 5, |request| {
        let tools = json!([tool("a"), 42, { "name": 1 }, tool("b")]);
        Some(json!({ "id": request["id"], "result": { "tools": tools } }))
    });
    let listing = listing.await.unwrap();
    assert_eq!(names(&listing), ["a", "b"]);
    assert_eq!(listing.warnings.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn members_that_rmcp_does_not_know_are_kept() {
    let listing = list_from::<Resource>(5, 5, |request| {
        assert_eq!(request["method"], "resources/list");
        Some(json!({ "id": request["id"], "result": { "resources": [{ "uri": "a:b", "name": "b", "x-new": [1] }] } }))
    });
    let listing = listing.await.unwrap();
    assert_eq!(listing.items[0].uri, "a:b");
    assert!(listing.items[0].json().get().contains(r#""x-new":[1]"#));
}

#[tokio::test(start_paused = true)]
async fn what_is_not_declared_or_not_known_is_empty() {
    let (wire, mut far) = wire();
    let listing = list::<Tool>(&wire, &session(json!({ "prompts": {} }))).await.unwrap();
    assert!(listing.items.is_empty());
    assert!(far.is_quiet().await);
    let listing = list_from::<Prompt>(5, 5, |request| {
        assert_eq!(request["method"], "prompts/list");
        Some(json!({ "id": request["id"], "error": { "code": -32601, "message": "what?" } }))
    });
    assert!(listing.await.unwrap().items.is_empty());
}

#[tokio::test(start_paused = true)]
async fn k18_a_list_that_fails_is_an_error_never_empty() {
    let replies = [
        json!({ "error": { "code": -32603, "message": "boom" } }),
        json!({ "result": {} }),
        json!({ "result": { "resourceTemplates": null } }),
        json!({ "result": { "resourceTemplates": {} } }),
        json!({ "result": 42 }),
    ];
    for reply in replies {
        let listing = list_from::<ResourceTemplate>(5, 5, |request| {
            assert_eq!(request["method"], "resources/templates/list");
            let mut reply = reply.clone();
            reply["id"] = request["id"].clone();
            Some(reply)
        });
        assert!(matches!(listing.await.unwrap_err(), ListError::Server(_)), "{reply}");
    }
    // The second page fails, or the server dies on it.
    for dies in [false, true] {
        let mut page = 0;
        let listing = list_from::<Tool>(5, 5, |request| {
            page += 1;
            match (page, dies) {
                (1, _) => Some(json!({ "id": request["id"], "result": { "tools": [tool("a")], "nextCursor": "2" } })),
                (_, false) => Some(json!({ "id": request["id"], "error": { "code": -32603, "message": "boom" } })),
                (_, true) => None,
            }
        });
        match listing.await.unwrap_err() {
            ListError::Server(error) => assert!(!dies && error.message == "boom"),
            ListError::Failed(failure) => assert!(dies && failure.sent == Sent::Maybe && &*failure.cause == EXIT),
        }
    }
}

#[test]
fn k18_a_diff_names_what_was_added_removed_and_changed() {
    let old = part(&[tool("same"), tool("gone"), tool("text"), tool("unknown")]);
    let mut text = tool("text");
    text["description"] = json!("new");
    let mut unknown = tool("unknown");
    unknown["x-new"] = json!(1);
    let new = part_as(&[tool("new"), unknown, text, tool("same")], |json| format!("{json:#}"));
    let catalogue = |tools| Catalogue { tools, ..Catalogue::default() };
    let diff = CatalogueDiff::between(&catalogue(old.clone()), &catalogue(new.clone()));
    let expected = Changes {
        added: vec!["new".into()],
        removed: vec!["gone".into()],
        changed: vec!["text".into(), "unknown".into()],
    };
    assert_eq!(diff, CatalogueDiff { tools: expected, ..CatalogueDiff::default() });
    assert!(!diff.is_empty());
    assert!(CatalogueDiff::between(&catalogue(new.clone()), &catalogue(new.stale("boom"))).is_empty());
    let from_nothing = CatalogueDiff::between(&Catalogue::default(), &catalogue(old));
    assert_eq!(from_nothing.tools.added, ["gone", "same", "text", "unknown"]);
}

#[test]
fn k17_only_annotated_tools_are_harmless() {
    let annotated = |name: &str, hints: Value| {
        let mut tool = tool(name);
        tool["annotations"] = hints;
        tool
    };
    let tools = part(&[
        tool("none"),
        annotated("read", json!({ "readOnlyHint": true })),
        annotated("idempotent", json!({ "readOnlyHint": false, "idempotentHint": true })),
        annotated("not", json!({ "readOnlyHint": false, "idempotentHint": false })),
        annotated("open", json!({ "openWorldHint": true })),
        annotated("twice", json!({ "readOnlyHint": true })),
        tool("twice"),
    ]);
    let catalogue = Catalogue { tools, ..Catalogue::default() };
    for harmless in ["read", "idempotent"] {
        assert_eq!(catalogue.effect(harmless), Effect::Annotated, "{harmless}");
    }
    for unknown in ["none", "not", "open", "twice", "never heard of"] {
        assert_eq!(catalogue.effect(unknown), Effect::Unknown, "{unknown}");
    }
    assert_eq!(catalogue.tool("read").unwrap().name, "read");
}
