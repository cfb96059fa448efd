//! TLS: what is trusted, what is shown, and what a failure of it means.

use std::process::Command;

use mcp_reconnect_core::FailureClass;
use mcp_reconnect_core::replay::Sent;
use mcp_reconnect_http::{HttpServer, Stage};
use tokio::io::{AsyncWriteExt, copy, sink};
use tokio::net::TcpListener;

use crate::addresses::fixed;
use crate::servers::http2::{Fate, Http2Server};
use crate::servers::tls::{Front, Passes, acceptor, client, root, stranger};
use crate::support::{Server, json};
use crate::{CALL, Peer, RESULT, in_time, stages};

async fn backend() -> Server {
    Server::start(|_| json(RESULT)).await
}

fn trusting(url: &str) -> HttpServer {
    HttpServer::new(url).unwrap().extra_roots([root()])
}

#[tokio::test]
async fn an_extra_root_is_trusted_and_an_unknown_one_is_permanent() {
    let server = backend().await;
    let front = Front::start(&server, acceptor(&[], false), Passes::All).await;
    let error = Peer::of(&HttpServer::new(&front.url()).unwrap()).exchange(CALL).await.unwrap_err();
    assert_eq!((error.failure.class, error.sent), (FailureClass::Permanent, Sent::No), "{error}");
    assert!(error.cause.contains("TLS") && error.cause.contains("certificate"), "{error}");
    Peer::of(&trusting(&front.url())).exchange(CALL).await.unwrap();
    assert_eq!(server.requests().len(), 1);
}

/// The roots of the platform are those of the dial: one that was installed since is trusted.
#[tokio::test]
async fn roots_are_read_anew_after_a_certificate_was_refused() {
    let server = backend().await;
    let front = Front::start(&server, acceptor(&[], false), Passes::All).await;
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "tls::two_dials_in_a_process_of_their_own", "--ignored", "--nocapture"]);
    command.env("TEST_URL", front.url()).env("TEST_CA", concat!(env!("CARGO_MANIFEST_DIR"), "/tests/certs/ca.pem"));
    command.env("SSL_CERT_FILE", std::env::temp_dir().join(format!("roots-{}.pem", std::process::id())));
    command.env_remove("SSL_CERT_DIR");
    let output = in_time(tokio::task::spawn_blocking(move || command.output())).await.unwrap().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(server.requests().len(), 2);
}

/// The environment belongs to a process.
#[tokio::test]
#[ignore = "run by another test, with an environment"]
async fn two_dials_in_a_process_of_their_own() {
    let Ok(url) = std::env::var("TEST_URL") else { return };
    let (roots, ca) = (std::env::var("SSL_CERT_FILE").unwrap(), std::env::var("TEST_CA").unwrap());
    // Some root there must be, and this one vouches for nobody here.
    let stranger = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/tests/http/certs/self-signed.pem");
    std::fs::copy(stranger, &roots).unwrap();
    let server = HttpServer::new(&url).unwrap();
    let error = Peer::of(&server).exchange(CALL).await.unwrap_err();
    assert_eq!(error.failure.class, FailureClass::Permanent, "{error}");
    std::fs::copy(&ca, &roots).unwrap();
    Peer::of(&server).exchange(CALL).await.unwrap();
    // Roots that are known to work are kept, until they are said to have changed.
    std::fs::copy(stranger, &roots).unwrap();
    Peer::of(&server).exchange(CALL).await.unwrap();
    server.forget_roots();
    Peer::of(&server).exchange(CALL).await.unwrap_err();
    std::fs::remove_file(&roots).unwrap();
}

#[tokio::test]
async fn a_certificate_for_another_name_is_permanent() {
    let server = backend().await;
    let front = Front::start(&server, acceptor(&[], false), Passes::All).await;
    // It is good for `localhost` and `127.0.0.1`.
    Peer::of(&trusting(&format!("https://127.0.0.1:{}/", front.port))).exchange(CALL).await.unwrap();
    let elsewhere = trusting(&format!("https://other.localhost:{}/", front.port));
    let elsewhere = elsewhere.resolver(fixed(&["127.0.0.1"]));
    let error = Peer::of(&elsewhere).exchange(CALL).await.unwrap_err();
    assert_eq!((error.failure.class, error.sent), (FailureClass::Permanent, Sent::No), "{error}");
    assert_eq!(server.requests().len(), 1);
}

/// Before the first byte, within the ServerHello, and within what is encrypted; the client tries once.
#[tokio::test]
async fn a_handshake_that_breaks_off_is_transient() {
    for bytes in [0, 40, 300] {
        let server = backend().await;
        let front = Front::start(&server, acceptor(&[], false), Passes::Bytes(bytes)).await;
        let error = Peer::of(&trusting(&front.url())).exchange(CALL).await.unwrap_err();
        assert_eq!((error.failure.class, error.sent), (FailureClass::Transport, Sent::No), "{bytes}: {error}");
        assert!(!error.cause.contains("certificate"), "{bytes}: {error}");
    }
}

/// A balancer that has nothing better to say yet.
#[tokio::test]
async fn what_is_no_tls_is_transient() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let peer = Peer::of(&trusting(&format!("https://{}/", listener.local_addr().unwrap())));
    let answers = async {
        let (mut socket, _) = listener.accept().await.unwrap();
        socket.write_all(b"HTTP/1.1 503 Service Unavailable\r\n\r\n").await.unwrap();
        drop(copy(&mut socket, &mut sink()).await); // until the client hangs up
    };
    let (outcome, ()) = in_time(async { tokio::join!(peer.exchange(CALL), answers) }).await;
    let error = outcome.unwrap_err();
    assert_eq!((error.failure.class, error.sent), (FailureClass::Transport, Sent::No), "{error}");
    assert!(error.cause.contains("TLS"), "{error}");
}

/// With TLS 1.3 the server's verdict comes after the handshake, over HTTP/2 as an error of the connection.
#[tokio::test]
async fn a_client_certificate_that_is_missing_or_unknown_is_permanent() {
    let http1 = backend().await;
    let front = Front::start(&http1, acceptor(&["http/1.1"], true), Passes::All).await;
    let http2 = Http2Server::start(acceptor(&["h2"], true), |_| Fate::Answer(RESULT)).await;
    for url in [front.url(), http2.url()] {
        let (stranger, client) = (stranger(), client());
        for (server, says) in [
            (trusting(&url), "CertificateRequired"),
            (trusting(&url).identity(stranger.0, stranger.1), "CertificateUnknown"),
        ] {
            let error = Peer::of(&server).exchange(CALL).await.unwrap_err();
            assert_eq!(error.failure.class, FailureClass::Permanent, "{error}");
            assert!(error.cause.contains("TLS") && error.cause.contains(says), "{error}");
        }
        Peer::of(&trusting(&url).identity(client.0, client.1)).exchange(CALL).await.unwrap();
    }
    assert_eq!((http1.requests().len(), http2.runs().len()), (1, 1));
}

#[tokio::test]
async fn the_protocol_is_agreed_on() {
    let server = backend().await;
    for (protocols, agreed) in [(&["http/1.1"][..], Some(b"http/1.1".to_vec())), (&[], None)] {
        let front = Front::start(&server, acceptor(protocols, false), Passes::All).await;
        Peer::of(&trusting(&front.url())).exchange(CALL).await.unwrap();
        assert_eq!(*front.protocols.borrow(), [agreed]);
    }
    // Both are offered: the server's choice is HTTP/2, on one connection for all.
    let server = Http2Server::start(acceptor(&["h2", "http/1.1"], false), |_| Fate::Answer(RESULT)).await;
    let peer = Peer::of(&trusting(&server.url()));
    for _ in 0..3 {
        peer.exchange(CALL).await.unwrap();
    }
    assert_eq!(server.runs(), [(0, CALL.to_owned()), (0, CALL.to_owned()), (0, CALL.to_owned())]);
}

/// A connection that ends under a request says nothing of it, also where the request was within its last GOAWAY.
#[tokio::test]
async fn a_request_that_may_have_run_is_not_repeated_over_http2() {
    for fate in [Fate::GoAway, Fate::Hangup] {
        let how = fate.clone();
        let server = Http2Server::start(acceptor(&["h2"], false), move |run| match run {
            1 => how.clone(),
            _ => Fate::Answer(RESULT),
        })
        .await;
        let peer = Peer::of(&trusting(&server.url()));
        peer.exchange(CALL).await.unwrap();
        let error = peer.exchange(CALL).await.unwrap_err();
        assert_eq!((error.failure.class, error.sent), (FailureClass::Transport, Sent::Maybe), "{fate:?}: {error}");
        assert_eq!(server.runs().len(), 2, "{fate:?}");
        // The next one finds a connection.
        peer.exchange(CALL).await.unwrap();
        assert_eq!(server.runs().len(), 3, "{fate:?}");
    }
}

/// RFC 9113, 8.7: a refused stream, and one above the last of a GOAWAY. Once on the same session.
#[tokio::test]
async fn a_request_that_was_not_processed_is_repeated_once_over_http2() {
    for (refusals, leaving, answered) in [(1, 0, true), (2, 0, false), (0, 1, true), (0, 2, false), (1, 1, false)] {
        let server = Http2Server::leaving(acceptor(&["h2"], false), leaving, move |run| match run < refusals {
            true => Fate::Refuse,
            false => Fate::Answer(RESULT),
        })
        .await;
        let peer = Peer::of(&trusting(&server.url()));
        let (stages, on_stage) = stages();
        let outcome = in_time(peer.client.exchange_in_stages(CALL, &peer.frames, on_stage)).await;
        assert_eq!(outcome.is_ok(), answered, "{refusals} {leaving}: {outcome:?}");
        match outcome {
            Ok(rest) => in_time(rest.drain()).await,
            Err(error) => {
                assert_eq!((error.failure.class, error.sent), (FailureClass::Transport, Sent::No), "{error}");
                peer.exchange(CALL).await.unwrap();
            }
        }
        assert_eq!(server.runs().len(), refusals + 1);
        let told = [Stage::Sent, Stage::Waiting, Stage::Sent, Stage::Waiting];
        assert_eq!(*stages.lock().unwrap(), told[..if answered { 3 } else { 4 }], "{refusals} {leaving}");
    }
}

/// A server that leaves lets what it has begun come to its end; what comes later goes to the next one.
#[tokio::test]
async fn a_goaway_ends_no_request_that_is_under_way() {
    let done = std::sync::Arc::new(tokio::sync::Semaphore::new(0));
    let permits = done.clone();
    let server = Http2Server::start(acceptor(&["h2"], false), move |run| match run {
        0 => Fate::Leave(RESULT, permits.clone()),
        _ => Fate::Answer(RESULT),
    })
    .await;
    let peer = Peer::of(&trusting(&server.url()));
    let under_way = peer.exchange(CALL);
    let meanwhile = async {
        server.until_runs(1).await;
        done.add_permits(1);
    };
    let (answered, ()) = in_time(async { tokio::join!(under_way, meanwhile) }).await;
    answered.unwrap();
    peer.exchange(CALL).await.unwrap();
    let connections: Vec<_> = server.runs().into_iter().map(|(connection, _)| connection).collect();
    assert_eq!(connections, [0, 1]);
}
