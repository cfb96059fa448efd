//! The stream that the server may keep open.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use mcp_reconnect_http::{HttpServer, Reach, Standing, StandingEvent};
use tokio::sync::Semaphore;

use crate::support::{End, Request, Server, Step, answer, event, json, sse, status};
use crate::{Peer, begin, in_time};

/// A server that answers the GETs of a session one after the other, the last answer for ever.
async fn gets(answers: Vec<Vec<Step>>) -> Server {
    let number = AtomicUsize::new(0);
    Server::start(move |request| {
        begin(request).unwrap_or_else(|| {
            let number = number.fetch_add(1, Ordering::SeqCst);
            answers[number.min(answers.len() - 1)].clone()
        })
    })
    .await
}

async fn standing(server: &Server) -> (Peer, Standing) {
    let peer = Peer::new(server);
    peer.initialize().await;
    let standing = Standing::new(peer.client.clone());
    (peer, standing)
}

/// A stream that ends at once.
fn empty() -> Vec<Step> {
    sse(&[], &[": nothing\n\n"], End::Clean)
}

fn resumed_after(server: &Server) -> Vec<Option<String>> {
    let gets = server.requests().into_iter().filter(|request| request.method == "GET");
    gets.map(|request: Request| request.header("last-event-id").map(str::to_owned)).collect()
}

#[tokio::test]
async fn some_refusals_mean_that_there_is_none() {
    let unknown = answer(500, &[], r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32601,"message":"no"}}"#);
    for refusal in
        [status(400), status(404), status(405), status(406), status(415), status(501), json("{}"), status(202), unknown]
    {
        let server = gets(vec![refusal]).await;
        let (peer, mut standing) = standing(&server).await;
        for _ in 0..2 {
            let end = in_time(standing.run(&peer.frames)).await;
            assert!(matches!(end, StandingEvent::Absent(_)), "{end:?}");
        }
        assert_eq!(server.count("GET"), 1);
        assert!(peer.client.session_id().is_some());
    }
}

/// Another refusal of a first GET says nothing of the session, and may be gone next time.
#[tokio::test]
async fn a_first_get_is_never_a_doubt() {
    for refusal in [status(401), status(403), status(410), status(429), status(503), status(302), vec![Step::Reset]] {
        let server = gets(vec![refusal, sse(&[], &[], End::Hold)]).await;
        let (peer, mut standing) = standing(&server).await;
        tokio::select! {
            end = standing.run(&peer.frames) => panic!("{end:?}"),
            () = server.until("the second GET", |log| log.len() == 3) => {}
        }
    }
}

#[tokio::test]
async fn a_get_that_is_refused_after_it_was_open_is_a_doubt() {
    for code in [400, 401, 403, 404, 410] {
        let server = gets(vec![empty(), status(code), sse(&[], &[], End::Hold)]).await;
        let (peer, mut standing) = standing(&server).await;
        let end = in_time(standing.run(&peer.frames)).await;
        let StandingEvent::Doubt(error) = end else { panic!("{code}: {end:?}") };
        assert_eq!((error.reach, error.status.map(|status| status.as_u16())), (Reach::Doubt, Some(code)));
        assert!(peer.client.session_id().is_some(), "{code}: it is asked first");
        // The session was well: it goes on.
        assert_eq!(in_time(standing.run(&peer.frames)).await, StandingEvent::Reopened);
    }
}

/// Also where it is none of those that say that there is none: it was there.
#[tokio::test]
async fn a_stream_that_was_open_is_tried_again_whatever_is_answered() {
    for between in [status(405), json("{}"), status(503)] {
        let server = gets(vec![empty(), between, sse(&[], &[], End::Hold)]).await;
        let (peer, mut standing) = standing(&server).await;
        assert_eq!(in_time(standing.run(&peer.frames)).await, StandingEvent::Reopened);
        assert_eq!(server.count("GET"), 3);
    }
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
async fn no_wait_is_longer_than_the_bound() {
    for first in
        [answer(503, &[("retry-after", "99999999999999999999")], ""), sse(&[], &["retry: 4294967295\n\n"], End::Clean)]
    {
        let server = gets(vec![first, sse(&[], &[&event(r#"{"method":"a"}"#)], End::Hold)]).await;
        let mut peer = Peer::of(&HttpServer::new(&server.url()).unwrap().retry_after_max(Duration::from_secs(2)));
        peer.initialize().await;
        peer.received();
        let mut standing = Standing::new(peer.client.clone());
        tokio::select! {
            () = async { while standing.run(&peer.frames).await == StandingEvent::Reopened {} } => panic!("it ended"),
            frame = in_time(peer.inbound.recv()) => assert_eq!(frame.as_deref(), Some(r#"{"method":"a"}"#)),
        }
    }
}

#[tokio::test]
async fn an_event_id_that_leads_to_nothing_twice_is_dropped() {
    let first = sse(&[], &[&format!("id: 5\n{}", event(r#"{"method":"a"}"#))], End::Clean);
    let server = gets(vec![first, empty(), empty(), sse(&[], &[], End::Hold)]).await;
    let (peer, mut standing) = standing(&server).await;
    // From there on something may have been missed.
    assert_eq!(in_time(standing.run(&peer.frames)).await, StandingEvent::Reopened);
    assert_eq!(resumed_after(&server), [None, Some("5".into()), Some("5".into()), None]);
}

#[tokio::test]
async fn an_event_id_that_is_no_header_is_not_resumed_from() {
    let first = sse(&[], &[&format!("id: a\u{1}b\n{}", event(r#"{"method":"a"}"#))], End::Clean);
    let server = gets(vec![first, sse(&[], &[], End::Hold)]).await;
    let (peer, mut standing) = standing(&server).await;
    assert_eq!(in_time(standing.run(&peer.frames)).await, StandingEvent::Reopened);
    assert_eq!(resumed_after(&server), [None, None]);
}

/// To ask for it again would bring it again; what comes after it in the same stream is read.
#[tokio::test]
async fn an_event_that_is_too_long_is_not_asked_for_again() {
    let long = event(&"x".repeat(2000));
    let small = event(r#"{"method":"b"}"#);
    let first = sse(&[], &[&format!("id: 5\n{}", event(r#"{"method":"a"}"#)), &long, &small], End::Clean);
    let server = gets(vec![first, sse(&[], &[], End::Hold)]).await;
    let limit = NonZeroUsize::new(1000).unwrap();
    let mut peer = Peer::of(&HttpServer::new(&server.url()).unwrap().frame_limit(limit));
    peer.initialize().await;
    peer.received();
    let mut standing = Standing::new(peer.client.clone());
    assert_eq!(in_time(standing.run(&peer.frames)).await, StandingEvent::Reopened);
    assert_eq!(peer.received(), [r#"{"method":"a"}"#.into(), r#"{"method":"b"}"#.into()]);
    assert_eq!(resumed_after(&server), [None, None]);
}

#[tokio::test]
async fn a_stream_that_breaks_is_a_doubt_each_time() {
    let server = gets(vec![sse(&[], &[": hi\n\n"], End::Reset)]).await;
    let (peer, mut standing) = standing(&server).await;
    assert!(matches!(in_time(standing.run(&peer.frames)).await, StandingEvent::Doubt(_)));
    assert_eq!(in_time(standing.run(&peer.frames)).await, StandingEvent::Reopened);
    assert!(matches!(in_time(standing.run(&peer.frames)).await, StandingEvent::Doubt(_)));
}

#[tokio::test]
async fn a_session_that_was_given_up_has_no_stream() {
    let server = gets(vec![empty()]).await;
    let (peer, mut standing) = standing(&server).await;
    peer.client.disown();
    assert!(matches!(in_time(standing.run(&peer.frames)).await, StandingEvent::Session(_)));
    assert_eq!(server.count("GET"), 0);
}
