//! Sessions, gates and incarnations.

use super::*;

#[tokio::test]
async fn an_empty_script_is_a_well_behaved_server() {
    let server = server("").await;
    let mut client = Client::initialized(&server).await;
    assert_eq!(client.session.as_deref(), Some("A1"));
    let (head, answer) = client.post(&call(1, "write")).await;
    assert_eq!((head.is_stream(), text(&answer)), (true, "call 1"));
    assert_eq!(head.header("mcp-session-id"), None);
    let other = Client::initialized(&server).await;
    assert_eq!(other.session.as_deref(), Some("A2"));
    let (head, _) = client.ask("DELETE", &[], "").await;
    assert_eq!(head.status, 200);
    let (head, answer) = client.post(&call(2, "write")).await;
    assert_eq!((head.status, &answer["id"], &answer["error"]["code"]), (404, &Value::Null, &json!(-32001)));
    client.session = None;
    let (head, answer) = client.post(&call(3, "write")).await;
    assert_eq!((head.status, &answer["error"]["code"]), (400, &json!(-32000)));
    for (verb, status) in [("PUT", 405), ("OPTIONS", 405)] {
        assert_eq!(client.ask(verb, &[], "").await.0.status, status);
    }
    assert_eq!(client.post("[]").await.0.status, 400);

    let ledger = server.ledger();
    assert_eq!(
        (ledger.sessions(), ledger.live_sessions(), ledger.deletes()),
        (vec!["A1", "A2"], vec!["A2"], vec!["A1"])
    );
    assert_eq!((ledger.initializes(), ledger.initializes_with_session()), (2, 0));
    assert_eq!((ledger.posts_of("tools/call"), ledger.calls("write"), ledger.executions("write")), (3, 1, 1));
    assert_eq!((ledger.requests_with_session("A1"), ledger.posts(), ledger.gets()), (4, 8, 0));
    assert_eq!((ledger.connections(), ledger.open_connections(), ledger.open_requests()), (2, 2, 0));
    drop((client, other));
    soon(server.watch().wait_until(|ledger| ledger.open_connections() == 0)).await;
}

#[tokio::test]
async fn answers_can_be_one_document() {
    let server = server("answers json\ncall write notify message, ok").await;
    let mut client = Client::initialized(&server).await;
    let (head, answer) = client.post(&call(1, "write")).await;
    assert_eq!((head.header("content-type"), text(&answer)), (Some("application/json"), "call 1"));
    assert_eq!(server.ledger().undelivered()[0]["method"], "notifications/message");
    server
        .set_script("answers json\ncontent-type text/html\ncall write with-status 500, error -32000 \"boom\"")
        .await
        .expect("a script");
    assert_eq!(client.post(&call(2, "echo")).await.0.header("content-type"), Some("text/html"));
    let (head, answer) = client.post(&call(3, "write")).await;
    assert_eq!((head.status, &answer["id"], &answer["error"]["message"]), (500, &json!(3), &json!("boom")));
}

/// What servers of the field do with an id from before a restart, and with a POST without one.
#[tokio::test]
async fn every_kind_of_stale_answer_can_be_played() {
    const NO_SESSION: &str =
        r#"{"jsonrpc":"2.0","error":{"code":-32000,"message":"Bad Request: No valid session ID provided"}}"#;
    let not_initialized =
        r#"{"jsonrpc":"2.0","error":{"code":-32000,"message":"Bad Request: Server not initialized"},"id":null}"#;
    let rows = [
        // TypeScript, one map of transports.
        (format!("stale status 400 '{NO_SESSION}'\nmissing status 400 '{not_initialized}'"), [400, 400, 400, 400, 400]),
        // TypeScript, one transport per process.
        (
            format!(
                "stale status 400 '{not_initialized}'\nstale-initialize ok\nstale-get status 404\nstale-delete status 404"
            ),
            [400, 200, 404, 404, 400],
        ),
        (String::new(), [404, 404, 404, 404, 400]),
        // Stateless.
        ("sessions none\nget status 405\ndelete status 405".into(), [200, 200, 405, 405, 200]),
        // Python.
        (
            "missing status 400 '{\"jsonrpc\":\"2.0\",\"id\":\"server-error\",\"error\":{\"code\":-32600,\"message\":\"Missing session ID\"}}' header mcp-session-id bogus"
                .into(),
            [404, 404, 404, 404, 400],
        ),
        // Rust.
        (
            "stale status 404 \"Session not found\" header content-type none\nstale-delete status 202".into(),
            [404, 404, 404, 202, 400],
        ),
        ("stale status 401 \"Unauthorized: Session not found\"".into(), [401, 401, 401, 401, 400]),
        ("stale status 503\nstale-initialize ok".into(), [503, 200, 503, 503, 400]),
        ("stale error -32000 \"Server not initialized\"".into(), [200, 200, 200, 200, 400]),
    ];
    for (script, expected) in rows {
        let server = server(&script).await;
        let mut client = Client::initialized(&server).await;
        let old = client.session.clone();
        server.restart().await;
        client = Client::of(&server).await;
        let mut seen = Vec::new();
        for (verb, session, body) in [
            ("POST", old.or(Some("A1".into())), call(1, "write")),
            ("POST", Some("A1".into()), initialize(2)),
            ("GET", Some("A1".into()), "".into()),
            ("DELETE", Some("A1".into()), "".into()),
            ("POST", None, call(3, "write")),
        ] {
            client.session = session;
            let (head, _) = client.ask(verb, &[], &body).await;
            seen.push(head.status);
        }
        assert_eq!(seen, expected, "{script}");
        let served =
            expected.iter().zip([1, 0, 0, 0, 1]).filter(|(status, calls)| **status == 200 && *calls == 1).count();
        let served = if script.contains("stale error") { 0 } else { served };
        assert_eq!(server.ledger().executions("write"), served, "{script}");
        let reinitialized = expected[1] == 200 && !script.contains("none") && !script.contains("stale error");
        assert_eq!(server.ledger().of_spawn(2).sessions().len(), usize::from(reinitialized), "{script}");
    }
}

#[tokio::test]
async fn bodies_and_headers_are_as_written() {
    let server = server(
        r#"stale error -32000 "Server not initialized"
           missing status 404 "gone" header content-type none
           call write#1 retry-after 7, status 429
           call write#2 retry-after date 90s, status 503 "busy" header x-hint "a b"
           call write#3 retry-after "one of these days", status 429"#,
    )
    .await;
    let mut client = Client::initialized(&server).await;
    let (head, body) = client.post(&call(1, "write")).await;
    assert_eq!((head.status, head.header("retry-after"), body), (429, Some("7"), json!("")));
    let (head, body) = client.post(&call(2, "write")).await;
    assert_eq!((head.status, head.header("x-hint"), body), (503, Some("a b"), json!("busy")));
    assert!(head.header("retry-after").is_some_and(|date| date.ends_with(" GMT")), "{head:?}");
    let (head, _) = client.post(&call(3, "write")).await;
    assert_eq!(head.header("retry-after"), Some("one of these days"));
    assert_eq!(server.ledger().executions("write"), 0);

    client.session = Some("Z9".into());
    let (head, answer) = client.post(&call(4, "write")).await;
    assert_eq!((head.status, &answer["id"], &answer["error"]["code"]), (200, &json!(4), &json!(-32000)));
    client.session = None;
    let (head, body) = client.post(&call(5, "write")).await;
    assert_eq!((head.status, head.header("content-type"), body), (404, None, json!("gone")));
}

#[tokio::test]
async fn a_session_can_be_forgotten_without_a_restart() {
    let server = server("call *#1 forget, ok\nmissing forget, status 400\nspawn 2:\n initialize forget, ok").await;
    let (mut client, mut other) = (Client::initialized(&server).await, Client::initialized(&server).await);
    client.listen().await;
    let mut poster = client.again(&server).await;
    assert_eq!(poster.post(&call(1, "write")).await.0.status, 200);
    assert_eq!(server.ledger().live_sessions(), ["A2"]);
    assert_eq!(poster.post(&call(2, "write")).await.0.status, 404);
    assert_eq!(other.post(&call(3, "write")).await.0.status, 200);
    assert_eq!(server.ledger().open_streams(), 1);
    let mut third = Client::initialized(&server).await;
    Client::of(&server).await.post(&call(3, "write")).await;
    assert_eq!(third.post(&call(3, "write")).await.0.status, 404, "a line about no session is about all");
    server.set_script("spawn 2:\n initialize forget, ok").await.expect("a script");
    other = Client::initialized(&server).await;
    server.forget_sessions().await;
    assert_eq!(other.post(&call(4, "write")).await.0.status, 404);

    server.restart().await;
    client.chunk().await.expect_err("a cut");
    let mut client = Client::of(&server).await;
    let (head, _) = client.post(&initialize(0)).await;
    client.session = head.header("mcp-session-id").map(str::to_owned);
    assert_eq!(client.session.as_deref(), Some("B1"));
    assert_eq!(client.post(&notification("notifications/initialized", &json!({}))).await.0.status, 404);
    assert_eq!(server.ledger().live_sessions(), Vec::<&str>::new());
}

#[tokio::test]
async fn a_restart_keeps_the_port_and_nothing_else() {
    let server = server("spawn 2:\n tools late").await;
    let mut client = Client::initialized(&server).await;
    let url = server.url();
    server.restart().await;
    assert_eq!((server.ledger().open_connections(), server.url()), (0, url));
    assert_eq!(client.end().await.expect("an orderly end"), b"");
    let mut client = Client::of(&server).await;
    client.session = Some("A1".into());
    assert_eq!(client.post(&call(1, "late")).await.0.status, 404);
    let mut client = Client::initialized(&server).await;
    assert_eq!(client.session.as_deref(), Some("B1"));
    let (_, tools) = client.post(&request(1, "tools/list", &json!({}))).await;
    assert_eq!(tools["result"]["tools"][0]["name"], "late");
    let ledger = server.ledger();
    assert_eq!((ledger.spawns(), ledger.of_spawn(2).initializes(), ledger.live_sessions()), (2, 1, vec!["B1"]));
}

#[tokio::test]
async fn tokens_are_checked_and_replaced() {
    let server = server("token T1\ncall write set-token T2, ok\nspawn 2:\n token T1 until 0s, T3").await;
    let mut client = Client::of(&server).await;
    let (head, _) = client.post(&initialize(0)).await;
    assert_eq!(head.status, 401);
    let challenge = head.header("www-authenticate").expect("a challenge");
    assert!(challenge.starts_with("Bearer ") && challenge.contains("resource_metadata"), "{challenge}");
    let authorized = |token: &str| format!("Bearer {token}");
    let (head, _) = client.ask("POST", &[("Authorization", &authorized("T1"))], &initialize(1)).await;
    client.session = head.header("mcp-session-id").map(str::to_owned);
    for (token, status) in [("T1", 200), ("T1", 401), ("T2", 200)] {
        let (head, _) = client.ask("POST", &[("Authorization", &authorized(token))], &call(2, "write")).await;
        assert_eq!(head.status, status, "{token}");
    }
    server.restart().await;
    let mut client = Client::of(&server).await;
    for (token, status) in [("T1", 401), ("T3", 200)] {
        let (head, _) = client.ask("POST", &[("Authorization", &authorized(token))], &initialize(0)).await;
        assert_eq!(head.status, status, "{token}");
    }
    let ledger = server.ledger();
    let headers: Vec<_> = ledger.asked().map(|asked| asked.header("authorization")).collect();
    assert_eq!(headers[..2], [None, Some("present")], "the ledger keeps no token");
    server.set_script("token T9\nunauthorized status 401 \"nope\"").await.expect("a script");
    let (head, body) = client.post(&initialize(0)).await;
    assert_eq!((head.status, head.header("www-authenticate"), body), (401, None, json!("nope")));
}

#[tokio::test]
async fn required_and_standard_headers_are_checked() {
    let server = server("era both\nrequire-header mcp-protocol-version 2025-06-18 -> 400").await;
    let mut client = Client::of(&server).await;
    let (head, _) = client.post(&initialize(0)).await;
    client.session = head.header("mcp-session-id").map(str::to_owned);
    for (version, status) in [(None, 400), (Some("2025-11-25"), 400), (Some("2025-06-18"), 200)] {
        let headers = version.map(|version| ("MCP-Protocol-Version", version));
        let (head, _) = client.ask("POST", headers.as_slice(), &call(1, "write")).await;
        assert_eq!(head.status, status, "{version:?}");
    }
    client.session = None;
    let meta = json!({"io.modelcontextprotocol/protocolVersion": "2026-07-28"});
    let body = request(2, "tools/call", &json!({"name": "write", "_meta": meta}));
    let version = ("MCP-Protocol-Version", "2026-07-28");
    let full = [version, ("Mcp-Method", "tools/call"), ("Mcp-Name", "write")];
    let wrapped = [version, ("Mcp-Method", "tools/call"), ("Mcp-Name", "=?base64?d3JpdGU=?=")];
    let wrong = [version, ("Mcp-Method", "tools/call"), ("Mcp-Name", "echo")];
    for (headers, status) in [(&full[..], 200), (&wrapped, 200), (&wrong, 400), (&full[..2], 400), (&full[..1], 400)] {
        let (head, answer) = client.ask("POST", headers, &body).await;
        assert_eq!(head.status, status, "{headers:?}");
        assert_eq!(answer["error"]["code"], if status == 200 { Value::Null } else { json!(-32020) });
    }
    let body =
        request(3, "server/discover", &json!({"_meta": {"io.modelcontextprotocol/protocolVersion": "2027-01-01"}}));
    let headers = [("MCP-Protocol-Version", "2027-01-01"), ("Mcp-Method", "server/discover")];
    let (head, answer) = client.ask("POST", &headers, &body).await;
    assert_eq!((head.status, &answer["error"]["code"]), (400, &json!(-32022)));
    assert_eq!(server.ledger().executions("write"), 3);
    assert_eq!(server.ledger().discovers(), 1);
}

#[tokio::test]
async fn a_version_is_refused_with_a_status_and_a_list() {
    let server = server("initialize#1 with-status 400, only 2025-06-18\ninitialize#2 only 2025-11-25").await;
    let mut client = Client::of(&server).await;
    let (head, answer) = client.post(&initialize(1)).await;
    assert_eq!((head.status, &answer["error"]["data"]["supported"]), (400, &json!(["2025-06-18"])));
    assert_eq!((&answer["id"], head.header("mcp-session-id")), (&json!(1), None));
    let (head, answer) = client.post(&initialize(2)).await;
    assert_eq!((head.header("mcp-session-id"), answer["error"].is_null()), (Some("A2"), true));
}
