//! How a lost session, a failing endpoint and a restart come through.

use super::*;

#[tokio::test]
async fn k02_a_restart_with_twenty_callers_costs_one_initialize() {
    for (code, body) in STALE {
        let (server, server_state) = legacy(move |legacy, request| {
            let body = body.replace("$ID", &request.id());
            let headers = [("content-type", if body.starts_with('{') { "application/json" } else { "text/plain" })];
            legacy.is_stale(request).then(|| answer(code, &headers, &body))
        })
        .await;
        let connection = connect(&server);
        add(&connection).await.unwrap();
        server_state.forget_all();
        let before = server.requests().len();
        let outcomes = join_all((0..20).map(|_| add(&connection))).await;
        assert!(outcomes.iter().all(Result::is_ok), "{code} {body}: {outcomes:?}");
        assert_eq!(server_state.calls(), 21, "{code} {body}");
        assert_eq!(epoch(&connection).await, 2, "{code} {body}");
        let after = server.requests().split_off(before);
        let begins: Vec<_> = after.iter().filter(|request| request.rpc() == "initialize").collect();
        assert_eq!(begins.len(), 1, "{code} {body}");
        assert_eq!(begins[0].session(), None);
        let at = after.iter().position(|request| request.rpc() == "initialize").unwrap();
        let late = after[at..].iter().filter(|request| request.method != "DELETE");
        assert!(late.clone().all(|request| request.session() != Some("S1")), "{code} {body}: {after:#?}");
        in_time(connection.shutdown()).await;
        // A server that says so by the status, or to the credentials, holds no session any more; after an ask it may.
        let expected = if [401, 404].contains(&code) { vec![Some("S2")] } else { vec![Some("S1"), Some("S2")] };
        let deleted: Vec<_> = server.requests().into_iter().filter(|request| request.method == "DELETE").collect();
        assert_eq!(deleted.iter().map(Request::session).collect::<Vec<_>>(), expected, "{code} {body}");
    }
}

#[tokio::test]
async fn k02_a_second_refusal_is_an_error_and_no_loop() {
    let (server, _) = legacy(|_, request| (request.rpc() == "tools/call").then(|| status(404))).await;
    let connection = connect(&server);
    let error = add(&connection).await.unwrap_err();
    assert!(matches!(error, CallError::NotSent { class: FailureClass::SessionGone, .. }), "{error:?}");
    assert_eq!(server.count("tools/call"), 2);
}

#[tokio::test]
async fn k03_a_5xx_for_the_session_alone_is_followed_by_a_fresh_one() {
    let (server, server_state) = legacy(|legacy, request| legacy.is_stale(request).then(|| status(503))).await;
    let connection = connect(&server);
    add(&connection).await.unwrap();
    let mut events = connection.events();
    let before = server.requests().len();
    server_state.forget_all();
    let error = add(&connection).await.unwrap_err();
    assert!(matches!(error, CallError::OutcomeUnknown { .. }), "{error:?}");
    add(&connection).await.unwrap();
    // No outage: the server is fine, it only has lost the session.
    let failure = in_time(async {
        loop {
            if let Event::Status { failure: Some(failure), .. } = events.next().await.unwrap() {
                break failure;
            }
        }
    })
    .await;
    assert_eq!(failure, FailureClass::SessionGone);
    assert_eq!((epoch(&connection).await, server.count("initialize")), (2, 2));
    // The call and one ask, and no other request of the old session after that.
    let stale = server.requests().split_off(before).into_iter().filter(|request| server_state.is_stale(request));
    let stale: Vec<_> = stale.filter(|request| request.method == "POST").map(|request| request.rpc()).collect();
    assert_eq!(stale, ["tools/call", "tools/list"]);
}

#[tokio::test]
async fn k03_one_5xx_of_a_live_session_fails_one_call() {
    let (server, _) = legacy(|legacy, request| {
        (request.rpc() == "tools/call" && legacy.calls.fetch_add(1, Ordering::SeqCst) == 0).then(|| status(500))
    })
    .await;
    let connection = connect(&server);
    assert!(matches!(add(&connection).await.unwrap_err(), CallError::OutcomeUnknown { .. }));
    add(&connection).await.unwrap();
    // Listed for Ready, and asked once.
    assert_eq!((epoch(&connection).await, server.count("tools/list")), (1, 2));
}

#[tokio::test]
async fn k04_a_route_that_is_missing_for_a_while_is_waited_for() {
    let missing = Arc::new(AtomicU32::new(0));
    let left = missing.clone();
    let (server, server_state) = legacy(move |_, request| {
        let missing = left.try_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok();
        // Without sessions.
        match request.rpc().as_str() {
            _ if missing => Some(answer(404, &[("content-type", "text/plain")], "nothing here")),
            "initialize" => Some(json(&request.result(
                r#"{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"s","version":"1"}}"#,
            ))),
            _ => None,
        }
    })
    .await;
    let connection = connect(&server);
    add(&connection).await.unwrap();
    missing.store(6, Ordering::SeqCst);
    add(&connection).await.unwrap();
    assert_eq!(server_state.calls(), 2);
    assert_eq!(missing.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn k04_a_gateway_without_its_server_is_an_outage_that_ends() {
    for code in [502, 503] {
        let failing = Arc::new(AtomicU32::new(0));
        let left = failing.clone();
        let (server, _) = legacy(move |_, request| {
            let failing = left.try_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok();
            match request.rpc().as_str() {
                _ if failing => Some(answer(code, &[("content-type", "text/html")], "<html>")),
                "initialize" => Some(json(&request.result(
                    r#"{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"s","version":"1"}}"#,
                ))),
                _ => None,
            }
        })
        .await;
        let connection = connect(&server);
        add(&connection).await.unwrap();
        failing.store(5, Ordering::SeqCst);
        let error = add(&connection).await.unwrap_err();
        assert!(matches!(error, CallError::OutcomeUnknown { class: FailureClass::Transport, .. }), "{error:?}");
        add(&connection).await.unwrap();
        assert_eq!(failing.load(Ordering::SeqCst), 0);
    }
}

#[tokio::test]
async fn an_error_that_names_no_request_settles_the_call_at_once() {
    for id in ["null", "\"server-error\""] {
        let (server, _) = legacy(move |_, request| {
            let body = format!(r#"{{"jsonrpc":"2.0","error":{{"code":-32600,"message":"no thanks"}},"id":{id}}}"#);
            (request.rpc() == "tools/call").then(|| answer(400, &[("content-type", "application/json")], &body))
        })
        .await;
        let connection = connect(&server);
        let error = add(&connection).await.unwrap_err();
        // The session is well, and the gate that may have been meant has just let the ask through.
        assert!(matches!(&error, CallError::OutcomeUnknown { cause, .. } if cause.contains("no thanks")), "{error:?}");
        assert_eq!((epoch(&connection).await, server.count("tools/call")), (1, 1));
    }
}

#[tokio::test]
async fn a_restart_on_the_same_port_is_survived() {
    let (server, _) = legacy(|_, _| None).await;
    let connection = connect(&server);
    add(&connection).await.unwrap();
    let address = server.address;
    server.stop().await;
    let listener = TcpListener::bind(address).await.unwrap();
    let state = Arc::new(Legacy::default());
    let own = state.clone();
    let server = Server::start_on(listener, move |request| match request.session() {
        Some(_) if own.sessions.load(Ordering::SeqCst) == 0 => status(404),
        _ => own.serve(request),
    });
    add(&connection).await.unwrap();
    assert_eq!((state.calls(), server.count("initialize")), (1, 1));
}
