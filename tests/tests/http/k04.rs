//! K04: an answer is an answer, a transient failure is tried again, a permanent one is not.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use mcp_reconnect::core::{Breaker, FailureClass, ParkReason, Refusal, Status, WakeCause};
use mcp_reconnect::http::HttpConnector;
use mcp_reconnect::{Builder, CallError, Connection, Event, Events, HttpServer};
use mcp_reconnect_tests::fake::FakeHttp;
use rmcp::model::CallToolResponse;
use tokio::io::{AsyncReadExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::k02::{soon, wave};
use super::{builder, ready, serve};
use crate::support::*;

/// Fast steps, for outages that are shown by their order and not by their length.
fn fast(builder: Builder) -> Builder {
    builder
        .config(config(|config| config.min_dial_interval(millis(10)).backoff(millis(50)).demand_interval(millis(50))))
}

/// Waits for the next failure that is told, with its class and its cause.
async fn next_failure(events: &mut Events) -> (Status, FailureClass, String) {
    loop {
        match soon(events.next()).await.expect("a connection") {
            Event::Status { status, failure: Some(failure), cause }
                if matches!(status, Status::TransientFailure | Status::Parked(_)) =>
            {
                return (status, failure, cause.as_deref().unwrap_or_default().to_owned());
            }
            _ => {}
        }
    }
}

/// Waits until the connection is up again, having parked never.
async fn until_back(events: &mut Events) {
    let seen = soon(until_status(events, |status| matches!(status, Status::Ready(_) | Status::Parked(_)))).await;
    assert!(matches!(seen.last(), Some(Status::Ready(_))), "{seen:?}");
}

/// Whatever was answered, the first session still serves, and nothing counts against it.
async fn assert_untouched(server: &FakeHttp, connection: Connection, events: Events) {
    let snapshot = connection.snapshot();
    assert_eq!((snapshot.status, snapshot.breaker), (Status::Ready(epoch(1)), Breaker::Closed { strikes: 0 }));
    assert_eq!((snapshot.stats.failures, snapshot.stats.no_replies, snapshot.stats.dials), (0, 0, 1));
    assert_eq!(server.ledger().initializes(), 1);
    assert_eq!(drain_statuses(connection, events).await, [Status::Shutdown]);
}

/// Also R013. The window is as long as it takes to see what is done in it: a call in vain, and three more dials.
#[tokio::test]
async fn k04_transient_404() {
    for status in [404, 502, 503] {
        let server = serve("sessions none\nget status 405").await;
        let connection = fast(builder(&server)).build().unwrap();
        let mut events = connection.events();
        assert_eq!(until_ready(&mut events).await, 1);
        assert_eq!(text(connection.call_tool(tool_with("write", "one")).await), "one");
        server
            .set_script(&format!("sessions none\npost status {status} \"not here\" header content-type text/plain"))
            .await
            .unwrap();

        // In the window a call fails by type, at the latest when its own wait is over, and the state says so.
        let impatient = mcp_reconnect::CallOptions { max_wait: millis(100), ..within(secs(1800)) };
        let outcome = soon(connection.call_tool_with(tool("write"), &impatient)).await;
        match (&outcome, status) {
            (Err(CallError::Refused { why: Refusal::NotInTime, cause: Some(cause), .. }), 404) => {
                assert!(cause.contains("404"), "{cause}");
            }
            (Err(CallError::NotSent { class: FailureClass::Transport, cause, .. }), 404) => {
                assert!(cause.contains("404"), "{cause}");
            }
            // It may have run.
            (Err(CallError::OutcomeUnknown { class: FailureClass::Transport, cause, .. }), 502 | 503) => {
                assert!(cause.contains(&status.to_string()), "{cause}");
            }
            other => panic!("{other:?}"),
        }
        let (state, class, cause) = next_failure(&mut events).await;
        assert_eq!((state, class), (Status::TransientFailure, FailureClass::Transport));
        assert!(cause.contains(&status.to_string()), "{cause}");
        let refused = server.ledger().answered(status);
        soon(server.watch().wait_until(|ledger| ledger.answered(status) >= refused + 3)).await;
        assert!(!matches!(connection.snapshot().status, Status::Ready(_)), "it is not");

        // One that has time waits for the end of it, and nobody has to do anything.
        let patient = {
            let connection = connection.clone();
            tokio::spawn(async move { connection.call_tool(tool_with("write", "two")).await })
        };
        server.set_script("sessions none").await.unwrap();
        until_back(&mut events).await;
        assert_eq!(text(soon(patient).await.unwrap()), "two", "{status}");
        wave(&connection, 3).await;
        assert_eq!(server.ledger().executions("write"), 1 + 1 + 3, "{status}");
    }
}

/// The same with one bad answer only, to the call itself: the session is asked, and stays.
#[tokio::test]
async fn k04_one_transient_answer() {
    for status in [404, 502, 503] {
        let script = format!("sessions none\ncall write#1 status {status} \"not here\"");
        let (server, connection, events) = ready(&script).await;
        let outcome = soon(connection.call_tool(tool("write"))).await;
        match outcome {
            Err(CallError::NotSent { class: FailureClass::Transport, .. }) if status == 404 => {}
            Err(CallError::OutcomeUnknown { class: FailureClass::Transport, .. }) if status > 404 => {}
            other => panic!("{status}: {other:?}"),
        }
        wave(&connection, 3).await;
        assert_untouched(&server, connection, events).await;
    }
}

/// Also R014: errors of the tool as such, in a stream, in a document, and with a status of their own.
#[tokio::test]
async fn k04_app_errors() {
    for how in ["", "answers json", "sessions none"] {
        for status in ["", "with-status 400, ", "with-status 404, ", "with-status 500, "] {
            if how != "sessions none" && status.contains("404") {
                continue; // with a session id, 404 is the session's, whatever is in it
            }
            let script = format!(
                "{how}\ncall write#1 {status}error -32602 \"bad path\" '{{\"path\":\"/x\"}}'\ncall write#2 is-error \"no such file\""
            );
            let (server, connection, events) = ready(&script).await;
            match soon(connection.call_tool(tool("write"))).await {
                Err(CallError::Server { epoch: answered, error }) => {
                    assert_eq!((answered, error.code.0, &*error.message), (epoch(1), -32602, "bad path"));
                    assert_eq!(error.data, Some(serde_json::json!({"path": "/x"})));
                }
                other => panic!("{how} {status}: {other:?}"),
            }
            match soon(connection.call_tool(tool("write"))).await {
                Ok(CallToolResponse::Complete(result)) => {
                    assert_eq!(result.is_error, Some(true));
                    assert_eq!(text(Ok(CallToolResponse::Complete(result))), "no such file");
                }
                other => panic!("{how} {status}: {other:?}"),
            }
            assert_eq!((server.ledger().calls("write"), server.ledger().posts_of("ping")), (2, 0), "{how} {status}");
            assert_untouched(&server, connection, events).await;
        }
    }
}

/// The texts are those that clients match strings in.
#[tokio::test]
async fn k04_no_error_of_a_tool_is_sent_again_or_breaks_the_session() {
    let errors = [
        (-32602, "Session not found"),
        (-32603, "ECONNRESET: connection closed"),
        (-32000, "Connection closed"),
        (-32001, "Request timed out"),
        (-32002, "404 Not Found"),
        (401, "Unauthorized"),
        (503, "Service Unavailable"),
    ];
    let lines: Vec<_> =
        (1..).zip(errors).map(|(n, (code, text))| format!("call echo#{n} error {code} {text:?}")).collect();
    let (server, connection, events) = ready(&lines.join("\n")).await;
    for (code, text) in errors {
        match soon(connection.call_tool(tool("echo"))).await {
            Err(CallError::Server { error, .. }) => assert_eq!((error.code.0, &*error.message), (code, text)),
            other => panic!("{code}: {other:?}"),
        }
    }
    assert_eq!(server.ledger().calls("echo"), errors.len());
    assert_untouched(&server, connection, events).await;
}

/// I04b, the transient ones: each is tried again, unasked.
#[tokio::test]
async fn k04_transient_starts_are_tried_again() {
    for trouble in [
        "status 404",
        "status 404 \"404 page not found\" header content-type text/plain",
        "status 408",
        "status 429",
        "status 500",
        "status 502 \"<html>Bad Gateway</html>\" header content-type text/html",
        "status 503",
        "status 504",
        "reset",
        "cut",
        "headers-only",
        "end",
        "cut after 10, ok",
        "error -32603 \"warming up\"",
        "result '{}'",
        "with-status 500, error -32603 \"warming up\"",
    ] {
        for line in ["initialize", "list"] {
            if line == "list" && trouble.starts_with("status 404") {
                continue; // with an id: K02
            }
            let lines: Vec<_> = (1..=3).map(|n| format!("{line}#{n} {trouble}")).collect();
            let server = serve(&lines.join("\n")).await;
            let connection = fast(builder(&server)).build().unwrap();
            let mut events = connection.events();
            let seen =
                soon(until_status(&mut events, |status| matches!(status, Status::Ready(_) | Status::Parked(_)))).await;
            assert_eq!(seen.last(), Some(&Status::Ready(epoch(4))), "{line} {trouble}: {seen:?}");
            assert_eq!(connection.snapshot().stats.failures, 3, "{line} {trouble}");
            wave(&connection, 1).await;
        }
    }
}

/// The same before there is a server at all.
#[tokio::test]
async fn k04_a_refused_connection_is_transient() {
    let server = serve("").await;
    server.down().await;
    let connection = fast(builder(&server)).build().unwrap();
    let mut events = connection.events();
    for _ in 0..3 {
        let (state, class, cause) = next_failure(&mut events).await;
        assert_eq!((state, class), (Status::TransientFailure, FailureClass::Transport));
        assert!(cause.contains(&server.address().to_string()) && cause.contains("refused"), "{cause}");
    }
    server.up().await;
    until_back(&mut events).await;
    wave(&connection, 1).await;
}

/// I04b, those that no further try can help.
#[tokio::test]
async fn k04_permanent_and_needs_user() {
    for (script, reason, says) in [
        ("initialize only 2031-01-01", ParkReason::Permanent, "2031-01-01"),
        ("token T1", ParkReason::NeedsAuth, "401"),
        ("post status 403 \"not you\"", ParkReason::NeedsAuth, "not you"),
    ] {
        let server = serve(script).await;
        let connection = fast(builder(&server)).build().unwrap();
        let (state, _, cause) = next_failure(&mut connection.events()).await;
        assert_eq!(state, Status::Parked(reason), "{script}");
        assert!(cause.contains(says), "{script}: {cause}");
        // Callers cannot help it, and are told at once.
        let posts = server.ledger().posts();
        for _ in 0..10 {
            match soon(connection.call_tool(tool("echo"))).await {
                Err(CallError::Refused { why: Refusal::Parked(parked), cause: Some(told), .. }) => {
                    assert_eq!((parked, &*told), (reason, &*cause), "{script}");
                }
                other => panic!("{script}: {other:?}"),
            }
        }
        assert_eq!((server.ledger().posts(), connection.snapshot().stats.dials), (posts, 1), "{script}");
        // Whoever repaired it says so.
        server.set_script("").await.unwrap();
        let wake = if reason == ParkReason::Permanent { WakeCause::Config } else { WakeCause::Credentials };
        let mut events = connection.events();
        connection.wake(wake);
        assert_eq!(soon(until_ready(&mut events)).await, 2, "{script}");
    }
}

/// I04d: status and text of the server reach whoever asks.
#[tokio::test]
async fn k04_the_cause_reaches_whoever_asks() {
    let server = serve("initialize status 502 \"licence server unreachable\"").await;
    let config = config(|config| config.backoff(secs(30)).demand_interval(secs(30)));
    let connection = builder(&server).config(config).build().unwrap();
    let (_, class, cause) = next_failure(&mut connection.events()).await;
    assert_eq!(class, FailureClass::Transport);
    assert!(cause.contains("502") && cause.contains("licence server unreachable"), "{cause}");
    assert_eq!(connection.last_failure().as_deref(), Some(&*cause));
    match soon(connection.call_tool(tool("echo"))).await {
        Err(error @ CallError::Refused { .. }) => assert!(error.to_string().contains(&cause), "{error}"),
        other => panic!("{other:?}"),
    }
}

/// What answers at the port of a server with TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Face {
    /// Reads the ClientHello, and closes.
    Truncated,
    /// A certificate that nobody vouches for.
    SelfSigned,
    /// A certificate for `localhost` of a root that the client trusts.
    Good,
}

/// TLS in front of a fake server. Ends with it.
struct Tls {
    url: String,
    face: watch::Sender<Face>,
    accepted: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

impl Drop for Tls {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn acceptor(certificate: &[u8], key: &[u8]) -> TlsAcceptor {
    let chain = vec![CertificateDer::from_pem_slice(certificate).unwrap()];
    let key = PrivateKeyDer::from_pem_slice(key).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(default_provider()));
    let config = config.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
    TlsAcceptor::from(Arc::new(config.with_single_cert(chain, key).unwrap()))
}

async fn tls(server: &FakeHttp, face: Face, truncated: usize) -> Tls {
    let good = acceptor(
        include_bytes!("../../../transport-http/tests/certs/server.pem"),
        include_bytes!("../../../transport-http/tests/certs/server.key"),
    );
    let self_signed = acceptor(include_bytes!("certs/self-signed.pem"), include_bytes!("certs/self-signed.key"));
    let (listener, backend) = (TcpListener::bind("127.0.0.1:0").await.unwrap(), server.address());
    let url = format!("https://localhost:{}/mcp", listener.local_addr().unwrap().port());
    let (faces, accepted) = (watch::Sender::new(face), Arc::new(AtomicUsize::new(0)));
    let (face, count) = (faces.subscribe(), accepted.clone());
    let task = tokio::spawn(async move {
        let mut connections = tokio::task::JoinSet::new();
        while let Ok((mut socket, _)) = listener.accept().await {
            let number = count.fetch_add(1, Ordering::SeqCst);
            match *face.borrow() {
                _ if number < truncated => {
                    _ = connections.spawn(async move { drop(socket.read(&mut [0; 4096]).await) })
                }
                Face::Truncated => _ = connections.spawn(async move { drop(socket.read(&mut [0; 4096]).await) }),
                Face::SelfSigned => _ = connections.spawn(forward(self_signed.clone(), socket, backend)),
                Face::Good => _ = connections.spawn(forward(good.clone(), socket, backend)),
            }
        }
    });
    Tls { url, face: faces, accepted, task }
}

async fn forward(acceptor: TlsAcceptor, socket: TcpStream, backend: SocketAddr) {
    let Ok(mut stream) = acceptor.accept(socket).await else { return };
    let Ok(mut backend) = TcpStream::connect(backend).await else { return };
    drop(copy_bidirectional(&mut stream, &mut backend).await);
}

fn trusting(url: &str) -> Builder {
    let root = CertificateDer::from_pem_slice(include_bytes!("../../../transport-http/tests/certs/ca.pem")).unwrap();
    Connection::builder(HttpConnector::new(HttpServer::new(url).unwrap().extra_roots([root]))).seed(7)
}

/// Also R015, its first half.
#[tokio::test]
async fn k04_tls_truncated() {
    let server = serve("").await;
    let tls = tls(&server, Face::Good, 3).await;
    let connection = fast(trusting(&tls.url)).build().unwrap();
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
    let tls = tls(&server, Face::SelfSigned, 0).await;
    let connection = trusting(&tls.url).build().unwrap();
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
    assert_eq!((tls.accepted.load(Ordering::SeqCst), connection.snapshot().stats.dials), (1, 1));
    // A certificate that was replaced is seen at a user's word.
    tls.face.send_replace(Face::Good);
    connection.wake(WakeCause::Operator);
    assert_eq!(soon(until_ready(&mut events)).await, 2);
    wave(&connection, 3).await;
    soon(connection.shutdown()).await;
}

/// The slow probe finds it out as well.
#[tokio::test]
async fn k04_tls_self_signed_is_probed() {
    let server = serve("").await;
    let tls = tls(&server, Face::SelfSigned, 0).await;
    let config = config(|config| config.park_probe(millis(700)).park_probe_max(millis(700)));
    let connection = trusting(&tls.url).config(config).build().unwrap();
    let mut events = connection.events();
    let (state, ..) = next_failure(&mut events).await;
    assert_eq!(state, Status::Parked(ParkReason::Permanent));
    tls.face.send_replace(Face::Good);
    // What was parked is told once: no event but Ready.
    assert!(matches!(soon(next_status(&mut events)).await, Status::Ready(_)));
    soon(connection.shutdown()).await;
}

/// In mid-session too: a restart behind a balancer whose handshakes break off is an outage like any other.
#[tokio::test]
async fn k04_tls_truncated_in_mid_session() {
    let server = serve("").await;
    let tls = tls(&server, Face::Good, 0).await;
    let connection = fast(trusting(&tls.url)).build().unwrap();
    let mut events = connection.events();
    assert_eq!(soon(until_ready(&mut events)).await, 1);
    tls.face.send_replace(Face::Truncated);
    server.restart().await;
    for _ in 0..2 {
        let (state, class, cause) = next_failure(&mut events).await;
        assert_eq!((state, class), (Status::TransientFailure, FailureClass::Transport), "{cause}");
    }
    tls.face.send_replace(Face::Good);
    until_back(&mut events).await;
    wave(&connection, 3).await;
    soon(connection.shutdown()).await;
}
