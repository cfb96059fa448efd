//! The stream that the server may keep open.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use mcp_reconnect_core::FailureClass;
use mcp_reconnect_http::{Standing, StandingEnd};
use tokio::sync::Semaphore;

use crate::support::{End, Server, Step, event, json, sse, status};
use crate::{Peer, begin, in_time};

#[tokio::test]
async fn a_refusal_means_that_there_is_none() {
    for refusal in [status(400), status(405), status(406), status(501), json("{}"), status(302)] {
        let server = Server::start(move |request| begin(request).unwrap_or_else(|| refusal.clone())).await;
        let peer = Peer::new(&server);
        peer.initialize().await;
        let mut standing = Standing::new(peer.client.clone());
        for _ in 0..2 {
            let end = in_time(standing.run(&peer.frames)).await;
            assert!(matches!(end, StandingEnd::Absent(_)), "{end:?}");
        }
        assert_eq!(server.count("GET"), 1);
    }
}

#[tokio::test]
async fn a_404_is_doubted_before_the_first_stream_and_believed_after() {
    let open = Arc::new(AtomicU32::new(0));
    let opens = open.clone();
    let server = Server::start(move |request| {
        begin(request).unwrap_or_else(|| {
            match opens.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1)) {
                Ok(_) => sse(&[], &["retry: 1\n\n"], End::Clean),
                Err(_) => status(404),
            }
        })
    })
    .await;
    let peer = Peer::new(&server);
    peer.initialize().await;
    let mut standing = Standing::new(peer.client.clone());
    assert!(matches!(in_time(standing.run(&peer.frames)).await, StandingEnd::Doubt(_)));
    assert!(peer.client.session_id().is_some());
    assert!(matches!(in_time(standing.run(&peer.frames)).await, StandingEnd::Absent(_)));
    assert_eq!(server.count("GET"), 1);

    open.store(1, Ordering::SeqCst);
    let mut standing = Standing::new(peer.client.clone());
    let end = in_time(standing.run(&peer.frames)).await;
    assert!(matches!(&end, StandingEnd::Session(error) if error.failure.class == FailureClass::SessionGone), "{end:?}");
    assert_eq!(peer.client.session_id(), None);
}

#[tokio::test]
async fn a_stream_that_ends_is_opened_again_after_its_last_event() {
    let go = Arc::new(Semaphore::new(0));
    let permits = go.clone();
    let server = Server::start(move |request| {
        begin(request).unwrap_or_else(|| match request.header("last-event-id") {
            None => sse(&[], &[&format!("retry: 1\nid: 5\n{}", event(r#"{"method":"a"}"#))], End::Clean),
            Some(_) => {
                let mut steps = sse(&[], &[&event(r#"{"method":"b"}"#)], End::Hold);
                steps.insert(1, Step::Wait(permits.clone()));
                steps
            }
        })
    })
    .await;
    let mut peer = Peer::new(&server);
    peer.initialize().await;
    peer.received();
    let mut standing = Standing::new(peer.client.clone());
    tokio::select! {
        end = standing.run(&peer.frames) => panic!("{end:?}"),
        () = async {
            assert_eq!(in_time(peer.inbound.recv()).await.as_deref(), Some(r#"{"method":"a"}"#));
            server.until("the second GET", |log| log.iter().filter(|request| request.method == "GET").count() == 2).await;
            go.add_permits(1);
            assert_eq!(in_time(peer.inbound.recv()).await.as_deref(), Some(r#"{"method":"b"}"#));
        } => {}
    }
    let last = server.requests().pop().unwrap();
    assert_eq!(
        (last.header("last-event-id"), last.session(), last.header("accept")),
        (Some("5"), Some("S1"), Some("text/event-stream"))
    );
    // Dropped, it is closed.
    drop((standing, peer));
    server.until_open(0).await;
}

#[tokio::test]
async fn five_quick_failures_are_enough() {
    let server =
        Server::start(|request| begin(request).unwrap_or_else(|| sse(&[], &["retry: 1\n\n"], End::Clean))).await;
    let peer = Peer::new(&server);
    peer.initialize().await;
    let mut standing = Standing::new(peer.client.clone());
    assert!(matches!(in_time(standing.run(&peer.frames)).await, StandingEnd::Absent(_)));
    assert_eq!(server.count("GET"), 5);
}

#[tokio::test]
async fn a_stream_that_breaks_is_a_doubt_each_time() {
    let server =
        Server::start(|request| begin(request).unwrap_or_else(|| sse(&[], &["retry: 1\n\n"], End::Reset))).await;
    let peer = Peer::new(&server);
    peer.initialize().await;
    let mut standing = Standing::new(peer.client.clone());
    for _ in 0..4 {
        assert!(matches!(in_time(standing.run(&peer.frames)).await, StandingEnd::Doubt(_)));
    }
    assert!(matches!(in_time(standing.run(&peer.frames)).await, StandingEnd::Absent(_)));
}
