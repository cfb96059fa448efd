//! K04, its TLS half: what was rejected stays so until somebody repairs it, what broke off is tried again; and what the
//! server agrees on, HTTP/2 and client certificates, serves like anything else.

use mcp_reconnect::core::{FailureClass, ParkReason, Refusal, Status, WakeCause};
use mcp_reconnect::http::HttpConnector;
use mcp_reconnect::{Builder, CallError, Connection, HttpServer};

use super::k02::{call_in_flight, soon, wave};
use super::k04::{fast, next_failure, until_back};
use super::serve;
use super::tls::{Face, Tls, client, self_signed, trusting};
use crate::support::*;

fn connection_to(server: HttpServer) -> Builder {
    Connection::builder(HttpConnector::new(server)).name("fake").seed(7)
}

/// Also R015, its first half.
#[tokio::test]
async fn k04_tls_truncated() {
    let server = serve("").await;
    let tls = Tls::truncating(&server, 3).await;
    let connection = fast(connection_to(trusting(&tls.url))).build().unwrap();
    let mut events = connection.events();
    for _ in 0..3 {
        let (state, class, cause) = next_failure(&mut events).await;
        assert_eq!((state, class), (Status::TransientFailure, FailureClass::Transport), "{cause}");
        assert!(!cause.contains("certificate"), "{cause}");
    }
    assert_eq!(soon(until_ready(&mut events)).await, 4);
    wave(&connection, 3).await;
    assert_eq!((server.ledger().initializes(), connection.snapshot().stats.failures), (1, 3));
    soon(connection.shutdown()).await;
}

/// Also R015, its second half: once, and never again by itself before the slow probe.
#[tokio::test]
async fn k04_tls_self_signed() {
    let server = serve("").await;
    let tls = Tls::start(&server, Face::SelfSigned).await;
    let connection = connection_to(trusting(&tls.url)).build().unwrap();
    let mut events = connection.events();
    let (state, class, cause) = next_failure(&mut events).await;
    assert_eq!((state, class), (Status::Parked(ParkReason::Permanent), FailureClass::Permanent), "{cause}");
    assert!(cause.contains("certificate"), "{cause}");
    for _ in 0..10 {
        match soon(connection.call_tool(tool("echo"))).await {
            Err(CallError::Refused { why: Refusal::Parked(ParkReason::Permanent), cause: Some(told), .. }) => {
                assert_eq!(*told, *cause);
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((tls.accepted(), connection.snapshot().stats.dials), (1, 1));
    // A certificate that was replaced is seen at a user's word.
    tls.show(Face::Good);
    connection.wake(WakeCause::Operator);
    assert_eq!(soon(until_ready(&mut events)).await, 2);
    wave(&connection, 3).await;
    soon(connection.shutdown()).await;
}

/// The slow probe finds it out as well.
#[tokio::test]
async fn k04_tls_self_signed_is_probed() {
    let server = serve("").await;
    let tls = Tls::start(&server, Face::SelfSigned).await;
    let config = config(|config| config.park_probe(millis(700)).park_probe_max(millis(700)));
    let connection = connection_to(trusting(&tls.url)).config(config).build().unwrap();
    let mut events = connection.events();
    let (state, ..) = next_failure(&mut events).await;
    assert_eq!(state, Status::Parked(ParkReason::Permanent));
    tls.show(Face::Good);
    // What was parked is told once: no event but Ready.
    assert!(matches!(soon(next_status(&mut events)).await, Status::Ready(_)));
    soon(connection.shutdown()).await;
}

/// In mid-session too: a restart behind a balancer whose handshakes break off is an outage like any other.
#[tokio::test]
async fn k04_tls_truncated_in_mid_session() {
    let server = serve("").await;
    let tls = Tls::start(&server, Face::Good).await;
    let connection = fast(connection_to(trusting(&tls.url))).build().unwrap();
    let mut events = connection.events();
    assert_eq!(soon(until_ready(&mut events)).await, 1);
    // What tells of the restart is there.
    soon(server.watch().wait_until(|ledger| ledger.open_streams() == 1)).await;
    tls.show(Face::Truncated);
    server.restart().await;
    for _ in 0..2 {
        let (state, class, cause) = next_failure(&mut events).await;
        assert_eq!((state, class), (Status::TransientFailure, FailureClass::Transport), "{cause}");
    }
    tls.show(Face::Good);
    until_back(&mut events).await;
    wave(&connection, 3).await;
    soon(connection.shutdown()).await;
}

/// Where a server agrees on HTTP/2, all of a session goes over one connection: calls at a time, the standing stream, pings.
#[tokio::test]
async fn k04_http2() {
    let server = serve("").await;
    let tls = Tls::start(&server, Face::Http2).await;
    let connection = connection_to(trusting(&tls.url)).build().unwrap();
    let mut events = connection.events();
    assert_eq!(soon(until_ready(&mut events)).await, 1);
    soon(server.watch().wait_until(|ledger| ledger.open_streams() == 1)).await;
    wave(&connection, 20).await;
    assert_eq!((tls.accepted(), tls.http2()), (1, 1));
    assert_eq!((server.ledger().initializes(), server.ledger().executions("write")), (1, 20));
    soon(connection.shutdown()).await;
    // The session is closed over it too.
    assert_eq!(server.ledger().deletes().len(), 1);
}

/// The server is restarted behind an HTTP/2 front that says GOAWAY, with a call in flight: one execution, told as unknown.
#[tokio::test]
async fn k04_http2_restart() {
    let server = serve("spawn 1:\n call write#1 commit, never").await;
    let tls = Tls::start(&server, Face::Http2).await;
    let connection = fast(connection_to(trusting(&tls.url))).build().unwrap();
    let mut events = connection.events();
    assert_eq!(soon(until_ready(&mut events)).await, 1);
    let call = call_in_flight(&server, &connection).await;
    tls.leave();
    server.restart().await;
    match soon(call).await.unwrap() {
        Err(error @ CallError::OutcomeUnknown { .. }) => assert!(!error.not_run()),
        other => panic!("{other:?}"),
    }
    soon(until_ready(&mut events)).await;
    assert_eq!(server.ledger().executions("write"), 1);
    wave(&connection, 3).await;
    let ledger = server.ledger();
    assert_eq!((ledger.executions("write"), ledger.initializes(), tls.http2() >= 2), (1 + 3, 2, true));
    soon(connection.shutdown()).await;
}

/// A GOAWAY by itself is no outage: what is under way is answered, and the session goes on over another connection.
#[tokio::test]
async fn k04_http2_goaway() {
    let server = serve("call write#1 commit, delay 50ms, ok").await;
    let tls = Tls::start(&server, Face::Http2).await;
    let connection = fast(connection_to(trusting(&tls.url))).build().unwrap();
    let mut events = connection.events();
    assert_eq!(soon(until_ready(&mut events)).await, 1);
    let call = call_in_flight(&server, &connection).await;
    tls.leave();
    text(soon(call).await.unwrap());
    wave(&connection, 3).await;
    let ledger = server.ledger();
    assert_eq!((ledger.initializes(), ledger.executions("write")), (1, 4));
    assert_eq!(drain_statuses(connection, events).await, [Status::Shutdown]);
}

/// A stream that is refused was not processed: the call is sent again, and where that is in vain it has not run.
#[tokio::test]
async fn k04_http2_a_refused_stream() {
    let server = serve("").await;
    let tls = Tls::start(&server, Face::Http2).await;
    let connection = fast(connection_to(trusting(&tls.url))).build().unwrap();
    let events = connection.events();
    soon(connection.session()).await.unwrap();
    tls.show(Face::RefusesCalls);
    match soon(connection.call_tool(tool("write"))).await {
        Err(CallError::NotSent { class: FailureClass::Transport, .. }) => {}
        other => panic!("{other:?}"),
    }
    assert_eq!((server.ledger().calls("write"), server.ledger().executions("write")), (0, 0));
    tls.show(Face::Http2);
    wave(&connection, 3).await;
    assert_eq!((server.ledger().initializes(), server.ledger().executions("write")), (1, 3));
    drop(events);
    soon(connection.shutdown()).await;
}

/// A certificate of ours that the server wants and does not get, or does not take, is a user's to repair; over HTTP/1.1
/// and HTTP/2, of which the second one drops what TLS said but for its words.
#[tokio::test]
async fn k04_tls_client_certificate() {
    for face in [Face::KnownClients, Face::KnownClientsHttp2] {
        let server = serve("").await;
        let tls = Tls::start(&server, face).await;
        for identity in [None, Some(self_signed())] {
            let ours = trusting(&tls.url);
            let ours = match identity {
                Some((chain, key)) => ours.identity(chain, key),
                None => ours,
            };
            let connection = connection_to(ours).build().unwrap();
            let (state, class, cause) = next_failure(&mut connection.events()).await;
            assert_eq!((state, class), (Status::Parked(ParkReason::Permanent), FailureClass::Permanent), "{cause}");
            assert!(cause.contains("TLS with localhost") && cause.contains("Certificate"), "{cause}");
            match soon(connection.call_tool(tool("echo"))).await {
                Err(CallError::Refused { why: Refusal::Parked(ParkReason::Permanent), cause: Some(told), .. }) => {
                    assert_eq!(*told, *cause);
                }
                other => panic!("{other:?}"),
            }
            assert_eq!(connection.snapshot().stats.dials, 1, "{cause}");
            soon(connection.shutdown()).await;
        }
        assert_eq!(server.ledger().posts(), 0);
        let (chain, key) = client();
        let connection = connection_to(trusting(&tls.url).identity(chain, key)).build().unwrap();
        assert_eq!(soon(until_ready(&mut connection.events())).await, 1);
        wave(&connection, 3).await;
        soon(connection.shutdown()).await;
    }
}
