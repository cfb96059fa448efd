//! One request and its answer.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use mcp_reconnect_core::FailureClass;
use mcp_reconnect_core::replay::Sent;
use mcp_reconnect_http::{HttpServer, Reach, Stage};
use tokio::sync::Semaphore;

use crate::support::{End, Server, Step, answer, event, json, sse, status};
use crate::{CALL, Peer, RESULT, begin, in_time, stages};

#[tokio::test]
async fn an_answer_comes_as_json_as_a_batch_and_as_a_stream() {
    let ping = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;
    for (steps, frames) in [
        (json(RESULT), vec![RESULT]),
        (json(&format!("[{ping},{RESULT}]")), vec![ping, RESULT]),
        (answer(200, &[], RESULT), vec![RESULT]),
        (answer(200, &[("content-type", "Application/JSON; charset=utf-8")], RESULT), vec![RESULT]),
        (sse(&[], &[&event(ping), &event(RESULT)], End::Clean), vec![ping, RESULT]),
        (sse(&[], &[&event(RESULT)], End::Cut), vec![RESULT]),
    ] {
        let server = Server::start(move |_| steps.clone()).await;
        let mut peer = Peer::new(&server);
        peer.exchange(CALL).await.unwrap();
        assert_eq!(peer.received().iter().map(|frame| &**frame).collect::<Vec<_>>(), frames);
    }
}

#[tokio::test]
async fn a_request_says_what_it_accepts() {
    let server = Server::start(|_| json(RESULT)).await;
    let custom = HttpServer::new(&server.url()).unwrap().header("X-Api-Key", "k").unwrap();
    Peer::of(&custom).exchange(CALL).await.unwrap();
    let request = &server.requests()[0];
    assert_eq!(request.header("accept"), Some("application/json, text/event-stream"));
    assert_eq!(request.header("content-type"), Some("application/json"));
    assert_eq!(request.header("x-api-key"), Some("k"));
    assert_eq!((request.session(), request.header("mcp-protocol-version")), (None, None));
}

#[tokio::test]
async fn an_answer_is_over_though_the_stream_goes_on() {
    let server = Server::start(|_| sse(&[], &[&event(RESULT)], End::Hold)).await;
    let peer = Peer::new(&server);
    let rest = in_time(peer.client.exchange(CALL, &peer.frames)).await.unwrap();
    drop(rest);
    server.until_open(0).await;
}

#[tokio::test]
async fn connections_are_used_again() {
    let server = Server::start(|request| match request.rpc().as_str() {
        "tools/call" => sse(&[], &[&event(RESULT)], End::Clean),
        "missing" => answer(404, &[], "not here"),
        _ => status(202),
    })
    .await;
    let peer = Peer::new(&server);
    for frame in [CALL, r#"{"jsonrpc":"2.0","method":"notifications/x"}"#, r#"{"id":7,"method":"missing"}"#, CALL] {
        drop(peer.exchange(frame).await);
    }
    assert!(server.requests().iter().all(|request| request.connection == 0), "{:?}", server.requests());
}

#[tokio::test]
async fn a_stream_is_read_to_its_end_for_its_connection() {
    let end = Arc::new(Semaphore::new(0));
    let permits = end.clone();
    let server = Server::start(move |_| {
        let mut steps = sse(&[], &[&event(RESULT)], End::Clean);
        steps.insert(steps.len() - 1, Step::Wait(permits.clone()));
        steps
    })
    .await;
    let peer = Peer::new(&server);
    for _ in 0..2 {
        let rest = in_time(peer.client.exchange(CALL, &peer.frames)).await.unwrap();
        end.add_permits(1);
        in_time(rest.drain()).await;
    }
    assert!(server.requests().iter().all(|request| request.connection == 0));
}

#[tokio::test]
async fn a_dropped_exchange_ends_on_the_wire() {
    for steps in [vec![Step::Hold], sse(&[], &[": hi\n\n"], End::Hold)] {
        let server = Server::start(move |_| steps.clone()).await;
        let peer = Peer::new(&server);
        tokio::select! {
            _ = peer.client.exchange(CALL, &peer.frames) => panic!("no answer was given"),
            () = server.until("the call", |log| log.len() == 1) => {}
        }
        server.until_open(0).await;
    }
}

#[tokio::test]
async fn a_session_id_comes_from_a_good_answer_to_initialize_only() {
    for (code, rpc, held) in [(200, "initialize", true), (400, "initialize", false), (200, "tools/list", false)] {
        let server = Server::start(move |request| {
            answer(code, &[("content-type", "application/json"), ("mcp-session-id", "S1")], &request.result("{}"))
        })
        .await;
        let peer = Peer::new(&server);
        drop(peer.exchange(&format!(r#"{{"jsonrpc":"2.0","id":7,"method":"{rpc}"}}"#)).await);
        assert_eq!(peer.client.session_id().is_some(), held, "{code} {rpc}");
    }
}

#[tokio::test]
async fn after_the_loss_nothing_carries_the_id() {
    let server = Server::start(|request| begin(request).unwrap_or_else(|| status(404))).await;
    let peer = Peer::new(&server);
    peer.initialize().await;
    let error = peer.exchange(CALL).await.unwrap_err();
    assert_eq!(
        (error.failure.class, error.sent, error.reach),
        (FailureClass::SessionGone, Sent::Refused, Reach::Session)
    );
    let error = peer.exchange(CALL).await.unwrap_err();
    assert_eq!((error.failure.class, error.sent), (FailureClass::SessionGone, Sent::No));
    assert!(in_time(peer.client.probe()).await.is_err());
    in_time(peer.client.close()).await;
    assert_eq!(peer.client.left_behind(), None);
    // A new session begins without it.
    peer.initialize().await;
    let sessions: Vec<_> = server.requests().iter().map(|request| request.session().map(str::to_owned)).collect();
    assert_eq!(sessions, [None, Some("S1".into()), None]);
}

#[tokio::test]
async fn a_live_session_is_deleted_once_and_without_patience() {
    for deleted in [status(200), status(405), status(404), vec![Step::Hold], vec![Step::Reset]] {
        let server = Server::start(move |request| begin(request).unwrap_or_else(|| deleted.clone())).await;
        let quick = HttpServer::new(&server.url()).unwrap().close_timeout(Duration::from_secs(3));
        let peer = Peer::of(&quick);
        peer.initialize().await;
        in_time(peer.client.close()).await;
        in_time(peer.client.close()).await;
        let deletes: Vec<_> = server.requests().into_iter().filter(|request| request.method == "DELETE").collect();
        assert_eq!(deletes.len(), 1);
        assert_eq!((deletes[0].session(), deletes[0].header("mcp-protocol-version")), (Some("S1"), Some("2025-11-25")));
        drop(peer);
        server.until_open(0).await;
    }
}

#[tokio::test]
async fn a_request_tells_when_it_leaves() {
    let (stages, on_stage) = stages();
    let server = Server::start(|_| json(RESULT)).await;
    let peer = Peer::new(&server);
    for _ in 0..2 {
        in_time(peer.client.exchange_in_stages(CALL, &peer.frames, on_stage.clone())).await.unwrap().drain().await;
    }
    // The second one over a connection that is there.
    assert_eq!(*stages.lock().unwrap(), [Stage::Sent, Stage::Sent]);
    assert_eq!(server.requests()[0].header("content-length"), Some(&*CALL.len().to_string()));
    server.stop().await;
    for _ in 0..2 {
        drop(in_time(peer.client.exchange_in_stages(CALL, &peer.frames, on_stage.clone())).await);
    }
    // Without a connection it does not leave.
    assert_eq!(*stages.lock().unwrap(), [Stage::Sent, Stage::Sent, Stage::Waiting, Stage::Waiting]);
}

#[tokio::test]
async fn a_request_that_was_taken_back_does_not_leave() {
    let server = Server::start(|_| json(RESULT)).await;
    let peer = Peer::new(&server);
    let error = in_time(peer.client.exchange_in_stages(CALL, &peer.frames, Arc::new(|_| false))).await.unwrap_err();
    assert_eq!(error.sent, Sent::No, "{error}");
    drop(peer);
    server.until_open(0).await;
    assert!(server.requests().is_empty());
}

#[tokio::test]
async fn a_session_that_was_given_up_is_released_by_the_next_client() {
    let server = Server::start(|request| begin(request).unwrap_or_else(|| status(202))).await;
    let peer = Peer::new(&server);
    peer.initialize().await;
    assert_eq!(peer.client.left_behind(), None);
    peer.client.disown();
    in_time(peer.client.close()).await;
    let left = peer.client.left_behind().unwrap();
    in_time(peer.client.another(false).release(&left)).await;
    let last = server.requests().pop().unwrap();
    assert_eq!((last.method.as_str(), last.session(), server.count("DELETE")), ("DELETE", Some("S1"), 1));
}

#[tokio::test]
async fn memory_is_bounded_by_the_frame_limit() {
    let limit = NonZeroUsize::new(1000).unwrap();
    let body = |bytes: usize| {
        let frame = |padding: &str| format!(r#"{{"jsonrpc":"2.0","id":7,"result":{{"x":"{padding}"}}}}"#);
        frame(&"x".repeat(bytes - frame("").len()))
    };
    let endless = || {
        let mut steps = vec![Step::Write(b"HTTP/1.1 200 OK\r\n\r\n".to_vec())];
        steps.extend((0..100).map(|_| Step::Write(vec![b' '; 100])));
        steps.push(Step::Hold);
        steps
    };
    for (steps, fits) in [
        (json(&body(1000)), true),
        (json(&body(1001)), false),
        (endless(), false),
        (sse(&[], &[&event(&body(1000))], End::Clean), true),
        (sse(&[], &[&event(&body(1001))], End::Clean), false),
        (sse(&[], &[&format!("data: {}", "x".repeat(2000))], End::Hold), false),
    ] {
        let server = Server::start(move |_| steps.clone()).await;
        let peer = Peer::of(&HttpServer::new(&server.url()).unwrap().frame_limit(limit));
        let outcome = peer.exchange(CALL).await;
        assert_eq!(outcome.is_ok(), fits, "{outcome:?}");
        if let Err(error) = outcome {
            assert!(error.cause.contains("1000 bytes"), "{error}");
            assert_eq!(error.reach, Reach::Exchange);
        }
        drop(peer);
        server.until_open(0).await;
    }
}

#[tokio::test]
async fn a_probe_asks_what_the_era_knows() {
    let server = Server::start(|request| begin(request).unwrap_or_else(|| json(&request.result("{}")))).await;
    let mut peer = Peer::new(&server);
    peer.initialize().await;
    peer.received();
    in_time(peer.client.probe()).await.unwrap();
    let discover = r#"{"jsonrpc":"2.0","id":1,"method":"server/discover","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}}"#;
    peer.exchange(discover).await.unwrap();
    peer.received();
    peer.client.negotiated("2026-07-28");
    in_time(peer.client.probe()).await.unwrap();
    let rpcs: Vec<_> = server.requests().iter().map(|request| request.rpc()).collect();
    assert_eq!(rpcs, ["initialize", "ping", "server/discover", "server/discover"]);
    let last = server.requests().pop().unwrap();
    assert_eq!(last.json()["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"], "2026-07-28");
    // Nobody is told of the answers.
    assert!(peer.received().is_empty());
}
