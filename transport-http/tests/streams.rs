//! Streams that are cut before the answer, and resumed.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use mcp_reconnect_core::FailureClass;
use mcp_reconnect_core::replay::Sent;
use mcp_reconnect_http::{HttpServer, Reach};

use crate::support::{End, Server, answer, event, sse, status};
use crate::{CALL, Peer, RESULT, begin};

#[tokio::test]
async fn a_cut_stream_is_resumed_after_its_last_event() {
    let resumes = AtomicU32::new(0);
    let server = Server::start(move |request| {
        if let Some(steps) = begin(request) {
            return steps;
        }
        match request.header("last-event-id") {
            None => sse(&[], &["id: e1\nretry: 1\ndata:\n\n", "id: e2\ndata: {\"half"], End::Cut),
            // Three times without a new id, then another id, then the answer.
            Some("e1") if resumes.fetch_add(1, Ordering::SeqCst) < 2 => sse(&[], &[": nothing yet\n\n"], End::Clean),
            Some("e1") => sse(&[], &[&format!("id: e2\n{}", event(r#"{"method":"n"}"#))], End::Reset),
            Some(_) => sse(&[], &[&format!("id: e3\n{}", event(RESULT))], End::Clean),
        }
    })
    .await;
    let mut peer = Peer::new(&server);
    peer.initialize().await;
    peer.received();
    peer.exchange(CALL).await.unwrap();
    assert_eq!(peer.received(), [r#"{"method":"n"}"#.into(), RESULT.into()]);
    let resumed: Vec<_> = server.requests().into_iter().filter(|request| request.method == "GET").collect();
    let ids: Vec<_> = resumed.iter().filter_map(|request| request.header("last-event-id")).collect();
    assert_eq!(ids, ["e1", "e1", "e1", "e2"]);
    assert!(resumed.iter().all(|request| request.session() == Some("S1")));
    assert_eq!(server.count("tools/call"), 1);
}

#[tokio::test]
async fn a_stream_is_resumed_three_times_in_vain_and_no_more() {
    let server =
        Server::start(|request| begin(request).unwrap_or_else(|| sse(&[], &["id: e1\nretry: 1\n\n"], End::Cut))).await;
    let peer = Peer::new(&server);
    peer.initialize().await;
    let error = peer.exchange(CALL).await.unwrap_err();
    assert_eq!((error.sent, error.reach), (Sent::Maybe, Reach::Doubt), "{error}");
    assert_eq!(server.count("GET"), 3);
}

/// A server that lets its client poll, by a new event id each time, is polled.
#[tokio::test]
async fn a_stream_that_goes_on_by_ids_alone_is_resumed() {
    let streams = AtomicU32::new(0);
    let server = Server::start(move |request| {
        begin(request).unwrap_or_else(|| {
            let stream = streams.fetch_add(1, Ordering::SeqCst);
            let answer = if stream == 5 { event(RESULT) } else { String::new() };
            sse(&[], &[&format!("id: e{stream}\nretry: 0\n\n{answer}")], End::Clean)
        })
    })
    .await;
    let peer = Peer::new(&server);
    peer.initialize().await;
    peer.exchange(CALL).await.unwrap();
    assert_eq!((server.count("GET"), server.count("tools/call")), (5, 1));
}

#[tokio::test]
async fn no_wait_for_the_rest_of_a_stream_is_longer_than_the_bound() {
    let gets = AtomicU32::new(0);
    let server = Server::start(move |request| {
        begin(request).unwrap_or_else(|| match request.method.as_str() {
            "GET" if gets.fetch_add(1, Ordering::SeqCst) == 0 => answer(503, &[("retry-after", "99999999999999")], ""),
            "GET" => sse(&[], &[&event(RESULT)], End::Clean),
            _ => sse(&[], &["id: e1\nretry: 4294967295\n\n"], End::Cut),
        })
    })
    .await;
    let bounded = HttpServer::new(&server.url()).unwrap().retry_after_max(Duration::from_millis(50));
    let peer = Peer::of(&bounded);
    peer.initialize().await;
    peer.exchange(CALL).await.unwrap();
}

#[tokio::test]
async fn a_stream_is_not_resumed_where_that_makes_no_sense() {
    // No event id; a server that does not resume; a session that is lost meanwhile; the modern era.
    for (events, version, get, gets, class) in [
        ("retry: 1\n\n", "2025-11-25", 405, 0, FailureClass::Transport),
        ("id: e1\nretry: 1\n\n", "2025-11-25", 405, 1, FailureClass::Transport),
        ("id: e1\nretry: 1\n\n", "2025-11-25", 404, 1, FailureClass::Transport),
        ("id: e\u{7f}1\nretry: 1\n\n", "2025-11-25", 405, 0, FailureClass::Transport),
        ("id: e1\nretry: 1\n\n", "2026-07-28", 405, 0, FailureClass::Transport),
    ] {
        let server = Server::start(move |request| match request.method.as_str() {
            "GET" => status(get),
            _ => begin(request).unwrap_or_else(|| sse(&[], &[events], End::Cut)),
        })
        .await;
        let peer = Peer::new(&server);
        peer.initialize().await;
        peer.client.negotiated(version);
        let error = peer.exchange(CALL).await.unwrap_err();
        assert_eq!((error.sent, error.failure.class, error.reach), (Sent::Maybe, class, Reach::Doubt), "{error}");
        assert_eq!(server.count("GET"), gets, "{error}");
    }
}
