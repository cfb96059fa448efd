//! Response streams, the standing stream, and the modern one.

use futures::FutureExt as _;

use super::*;

#[tokio::test]
async fn a_modern_listen_stream_is_reopened_and_lists_are_read_again() {
    let cut = Arc::new(tokio::sync::Semaphore::new(0));
    let permits = cut.clone();
    let restarted = Arc::new(AtomicU32::new(0));
    let restarts = restarted.clone();
    let server = Server::start(move |request| match request.rpc().as_str() {
        "server/discover" => {
            let result = json!({ "resultType": "complete", "supportedVersions": ["2026-07-28"],
                "capabilities": { "tools": { "listChanged": true } }, "serverInfo": { "name": "s", "version": "1" } });
            json(&request.result(&result.to_string()))
        }
        "tools/list" => {
            let name = if restarts.load(Ordering::SeqCst) == 0 { "add" } else { "sub" };
            let list = json!({ "tools": [{ "name": name, "inputSchema": { "type": "object" } }] });
            json(&request.result(&list.to_string()))
        }
        "subscriptions/listen" => {
            let mut steps = sse(&[], &[": hi\n\n"], End::Reset);
            steps.insert(steps.len() - 1, Step::Wait(permits.clone()));
            steps
        }
        _ => status(405),
    })
    .await;
    let connection = connect(&server);
    let listens = |log: &Vec<Request>| log.iter().filter(|request| request.rpc() == "subscriptions/listen").count();
    server.until("the first stream", |log| listens(log) == 1).await;
    let mut events = connection.events();
    restarted.store(1, Ordering::SeqCst);
    cut.add_permits(1);
    server.until("the second stream", |log| listens(log) == 2).await;
    in_time(async {
        loop {
            match events.next().await.unwrap() {
                Event::Catalogue(diff) if diff.tools.added == ["sub"] => break,
                _ => {}
            }
        }
    })
    .await;
    assert_eq!(epoch(&connection).await, 1);
}

#[tokio::test]
async fn k05_a_cut_answer_settles_its_call_and_leaves_the_session() {
    for end in [End::Clean, End::Cut, End::Reset] {
        let (server, server_state) = legacy(move |legacy, request| {
            let first = request.rpc() == "tools/call" && legacy.calls() == 0;
            first.then(|| {
                legacy.calls.fetch_add(1, Ordering::SeqCst);
                sse(&[], &[": hi\n\n"], end.clone())
            })
        })
        .await;
        let connection = connect(&server);
        let error = add(&connection).await.unwrap_err();
        assert!(matches!(error, CallError::OutcomeUnknown { .. }), "{error:?}");
        assert_eq!(server_state.calls(), 1);
        add(&connection).await.unwrap();
        // Listed for Ready, and asked once.
        assert_eq!((epoch(&connection).await, server.count("tools/list"), server.count("tools/call")), (1, 2, 2));
    }
}

#[tokio::test]
async fn k11_a_refused_standing_stream_costs_one_get() {
    for refusal in [status(400), status(404), status(405), status(406), status(501), json("{}"), status(401)] {
        let (server, _) = legacy(move |_, request| (request.method == "GET").then(|| refusal.clone())).await;
        let connection = connect(&server);
        add(&connection).await.unwrap();
        server.until("the GET", |log| log.iter().any(|request| request.method == "GET")).await;
        add(&connection).await.unwrap();
        assert_eq!((server.count("GET"), epoch(&connection).await, server.count("initialize")), (1, 1, 1));
    }
}

#[tokio::test]
async fn an_idle_restart_is_noticed_by_the_standing_stream() {
    for end in [End::Cut, End::Clean] {
        let cut = Arc::new(tokio::sync::Semaphore::new(0));
        let permits = cut.clone();
        let (server, server_state) = legacy(move |legacy, request| match request.method.as_str() {
            _ if legacy.is_stale(request) => Some(status(404)),
            "GET" => {
                let mut steps = sse(&[], &["retry: 1\n\n"], end.clone());
                steps.insert(steps.len() - 1, Step::Wait(permits.clone()));
                Some(steps)
            }
            _ => None,
        })
        .await;
        let connection = connect(&server);
        let first = in_time(connection.session()).await.unwrap().epoch();
        server.until("the GET", |log| log.iter().any(|request| request.method == "GET")).await;
        server_state.forget_all();
        cut.add_permits(1);
        let second = in_time(connection.session_after(first)).await.unwrap();
        assert_eq!(second.facts().session_id.as_deref(), Some("S2"));
        assert_eq!(server.count("DELETE"), 0);
    }
}

#[tokio::test]
async fn twenty_broken_streams_lead_to_one_ask() {
    let answer_ask = Arc::new(tokio::sync::Semaphore::new(0));
    let permits = answer_ask.clone();
    let (server, _) = legacy(move |legacy, request| match request.rpc().as_str() {
        "tools/call" if legacy.calls.fetch_add(1, Ordering::SeqCst) < 20 => Some(sse(&[], &[], End::Reset)),
        "tools/list" if legacy.calls() > 0 => {
            let mut steps = legacy.serve(request);
            steps.insert(0, Step::Wait(permits.clone()));
            Some(steps)
        }
        _ => None,
    })
    .await;
    let connection = connect(&server);
    in_time(connection.session()).await.unwrap();
    let outcomes = join_all((0..20).map(|_| add(&connection)));
    let asked = server.until("the ask", |log| log.iter().filter(|request| request.rpc() == "tools/list").count() == 2);
    let (outcomes, ()) = futures::join!(outcomes, asked.map(|()| answer_ask.add_permits(1)));
    assert!(outcomes.iter().all(|outcome| matches!(outcome, Err(CallError::OutcomeUnknown { .. }))), "{outcomes:?}");
    add(&connection).await.unwrap();
    assert_eq!((server.count("tools/list"), epoch(&connection).await), (2, 1));
}

#[tokio::test]
async fn what_the_standing_stream_brings_is_heard() {
    let (server, _) = legacy(|legacy, request| {
        let changed = r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#;
        let tools = if legacy.calls() == 0 { "add" } else { "sub" };
        match (request.method.as_str(), request.rpc().as_str()) {
            ("GET", _) => {
                legacy.calls.fetch_add(1, Ordering::SeqCst);
                Some(sse(&[], &[&event(changed)], End::Hold))
            }
            (_, "tools/list") => {
                let list = json!({ "tools": [{ "name": tools, "inputSchema": { "type": "object" } }] });
                Some(json(&request.result(&list.to_string())))
            }
            _ => None,
        }
    })
    .await;
    let connection = connect(&server);
    let mut events = connection.events();
    in_time(async {
        loop {
            match events.next().await.unwrap() {
                Event::Catalogue(diff) if diff.tools.added == ["sub"] => break,
                _ => {}
            }
        }
    })
    .await;
    in_time(connection.shutdown()).await;
    server.until_open(0).await;
}

#[tokio::test]
async fn k17_a_cut_read_only_tool_runs_again_on_the_same_session() {
    let (server, server_state) = legacy(|legacy, request| match request.rpc().as_str() {
        "tools/list" => {
            let tool =
                json!({ "name": "add", "inputSchema": { "type": "object" }, "annotations": { "readOnlyHint": true } });
            Some(json(&request.result(&json!({ "tools": [tool] }).to_string())))
        }
        "tools/call" if legacy.calls() == 0 => {
            legacy.calls.fetch_add(1, Ordering::SeqCst);
            Some(sse(&[], &[], End::Cut))
        }
        _ => None,
    })
    .await;
    let connection = connect(&server);
    add(&connection).await.unwrap();
    assert_eq!((server_state.calls(), epoch(&connection).await), (2, 1));
}
