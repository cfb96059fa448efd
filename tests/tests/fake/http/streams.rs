//! Standing streams, events and what goes where.

use super::*;

#[tokio::test]
async fn notifications_go_to_the_standing_stream() {
    let server = server(
        r#"on initialized notify message '{"n":0}'
           call write notify message '{"n":1}', notify message '{"n":2}' standing, ok, notify message '{"n":3}'"#,
    )
    .await;
    let mut client = Client::initialized(&server).await;
    soon(server.watch().wait_until(|ledger| ledger.undelivered().len() == 1)).await;
    let mut standing = client.again(&server).await;
    standing.listen().await;
    let mut foreign = Client::initialized(&server).await;
    foreign.listen().await;
    client.send("POST", &[], &call(1, "write")).await;
    assert!(client.head().await.expect("an answer").is_stream());
    assert_eq!(client.event().await["params"]["n"], 1);
    assert_eq!(text(&client.event().await), "call 1");
    assert_eq!(client.chunk().await.expect("a well-formed end"), None);
    assert_eq!(standing.event().await["params"]["n"], 2);
    assert_eq!(standing.event().await["params"]["n"], 3);
    let ledger = server.ledger();
    assert_eq!((ledger.open_streams(), ledger.streams(), ledger.gets()), (2, 2, 2));
    client.ask("DELETE", &[], "").await;
    assert_eq!(standing.chunk().await.expect("a well-formed end"), None);
    assert_eq!(server.ledger().open_streams(), 1);
    drop(foreign);
    soon(server.watch().wait_until(|ledger| ledger.open_streams() == 0)).await;
    assert_eq!(server.ledger().abandoned(), 1);
}

#[tokio::test]
async fn a_handshake_may_be_full_of_other_messages() {
    let server = server("initialize notify message, request ping wait, ok").await;
    let mut client = Client::of(&server).await;
    client.send("POST", &[], &initialize(1)).await;
    let head = client.head().await.expect("an answer");
    client.session = head.header("mcp-session-id").map(str::to_owned);
    assert_eq!(client.event().await["method"], "notifications/message");
    let ping = client.event().await;
    assert_eq!(ping["method"], "ping");
    let mut other = client.again(&server).await;
    let answer = json!({"jsonrpc": "2.0", "id": ping["id"], "result": {}}).to_string();
    assert_eq!(other.post(&answer).await.0.status, 202);
    assert_eq!(client.event().await["id"], 1);
    assert_eq!(server.ledger().answers("ping").len(), 1);
}

#[tokio::test]
async fn a_get_can_be_refused_or_end() {
    let server = server(
        r#"get#1 status 405
           get#2 status 200 '{}'
           get#3 status 404
           get#4 ok, notify message, end
           get#5 ok, notify message, cut
           get#6 headers-only"#,
    )
    .await;
    let client = Client::initialized(&server).await;
    for status in [405, 200, 404] {
        assert_eq!(client.again(&server).await.ask("GET", &[], "").await.0.status, status);
    }
    for (well_formed, messages) in [(true, 1), (false, 1), (false, 0)] {
        let mut stream = client.again(&server).await;
        stream.listen().await;
        for _ in 0..messages {
            assert_eq!(stream.event().await["method"], "notifications/message");
        }
        assert_eq!(stream.chunk().await.is_ok(), well_formed);
    }
    soon(server.watch().wait_until(|ledger| ledger.open_streams() == 0)).await;
    assert_eq!((server.ledger().streams(), server.ledger().gets()), (3, 6));
}

#[tokio::test]
async fn a_cut_answer_is_resumed_after_its_event() {
    let server = server(
        r#"call write event-id e1, retry 100ms, notify message, cut, commit, notify message, ok
           resume#1 event-id e2, cut"#,
    )
    .await;
    let mut client = Client::initialized(&server).await;
    client.send("POST", &[], &call(1, "write")).await;
    client.head().await.expect("an answer");
    assert_eq!(client.chunk().await.expect("an event").as_deref(), Some("id: e1\ndata: \n\n"));
    assert_eq!(client.chunk().await.expect("a line").as_deref(), Some("retry: 100\n\n"));
    assert_eq!(client.event().await["method"], "notifications/message");
    client.chunk().await.expect_err("a cut");
    soon(server.watch().wait_until(|ledger| ledger.executions("write") == 1)).await;
    for (last, resumed) in [("e1", false), ("e2", true)] {
        let mut stream = client.again(&server).await;
        stream.send("GET", &[("Last-Event-ID", last)], "").await;
        assert!(stream.head().await.expect("an answer").is_stream());
        if resumed {
            // The first message came before; this is the one behind the cut.
            assert_eq!(stream.event().await["method"], "notifications/message");
            assert_eq!(text(&stream.event().await), "call 1");
            assert_eq!(stream.chunk().await.expect("a well-formed end"), None);
        } else {
            assert_eq!(stream.chunk().await.expect("an event").as_deref(), Some("id: e2\ndata: \n\n"));
            stream.chunk().await.expect_err("a cut");
        }
    }
    // What the client did not see of the events behind the id it names comes again.
    let mut stream = client.again(&server).await;
    stream.send("GET", &[("Last-Event-ID", "e1")], "").await;
    assert!(stream.head().await.expect("an answer").is_stream());
    let replayed = stream.chunk().await.expect("events").expect("events");
    assert_eq!(replayed.matches("data: ").count(), 3);
    assert_eq!(server.ledger().asked().filter_map(|asked| asked.header("last-event-id")).count(), 3);
}

#[tokio::test]
async fn a_subscription_is_a_stream_of_its_own() {
    let server = server("era modern\nanswers json\ncall write ok, set-tools late, notify tools/list_changed").await;
    let meta = json!({"io.modelcontextprotocol/protocolVersion": "2026-07-28"});
    let version = ("MCP-Protocol-Version", "2026-07-28");
    let mut client = Client::of(&server).await;
    let body = request(1, "subscriptions/listen", &json!({"_meta": meta, "notifications": {"toolsListChanged": true}}));
    client.send("POST", &[version, ("Mcp-Method", "subscriptions/listen")], &body).await;
    assert!(client.head().await.expect("an answer").is_stream());
    assert_eq!(client.event().await["method"], "notifications/subscriptions/acknowledged");
    assert_eq!(server.ledger().open_listens(), 1);
    let mut caller = Client::of(&server).await;
    let body = request(2, "tools/call", &json!({"_meta": meta, "name": "write"}));
    let headers = [version, ("Mcp-Method", "tools/call"), ("Mcp-Name", "write")];
    let (head, _) = caller.ask("POST", &headers, &body).await;
    assert_eq!((head.status, head.header("mcp-session-id")), (200, None));
    let changed = client.event().await;
    assert_eq!(changed["method"], "notifications/tools/list_changed");
    assert_eq!(changed["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"], 1);
    drop(client);
    soon(server.watch().wait_until(|ledger| ledger.open_listens() == 0)).await;
    caller.ask("POST", &headers, &body).await;
    let ledger = soon(server.watch().wait_until(|ledger| !ledger.undelivered().is_empty())).await;
    assert_eq!(ledger.undelivered()[0].pointer("/params/_meta"), None, "it is no subscription's any more");
    let (head, answer) =
        caller.ask("POST", &[version, ("Mcp-Method", "ping")], &request(3, "ping", &json!({"_meta": meta}))).await;
    assert_eq!((head.status, &answer["error"]["code"]), (404, &json!(-32601)));
}
