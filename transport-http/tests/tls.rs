//! TLS: what is trusted, and what a failure of it means.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use mcp_reconnect_core::FailureClass;
use mcp_reconnect_core::replay::Sent;
use mcp_reconnect_http::HttpServer;
use mcp_reconnect_http::pki_types::pem::PemObject;
use mcp_reconnect_http::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring::default_provider;

use crate::support::json;
use crate::{CALL, Peer, RESULT};

/// The key of this root is gone; the server's own is for tests only.
fn root() -> CertificateDer<'static> {
    CertificateDer::from_pem_slice(include_bytes!("certs/ca.pem")).unwrap()
}

/// A server with a certificate for `localhost` that a root of the tests has signed; each request gets one answer.
async fn serve() -> (String, tokio::task::JoinHandle<()>) {
    let chain = vec![CertificateDer::from_pem_slice(include_bytes!("certs/server.pem")).unwrap()];
    let key = PrivateKeyDer::from_pem_slice(include_bytes!("certs/server.key")).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(default_provider()));
    let config = config.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
    let acceptor = TlsAcceptor::from(Arc::new(config.with_single_cert(chain, key).unwrap()));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://localhost:{}/", listener.local_addr().unwrap().port());
    let serving = tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let Ok(mut stream) = acceptor.accept(socket).await else { continue };
            let mut buffer = vec![0; 4096];
            drop(stream.read(&mut buffer).await);
            for step in json(RESULT) {
                if let crate::support::Step::Write(bytes) = step {
                    drop(stream.write_all(&bytes).await);
                }
            }
            drop(stream.shutdown().await);
        }
    });
    (url, serving)
}

#[tokio::test]
async fn an_extra_root_is_trusted_and_an_unknown_one_is_permanent() {
    let (url, serving) = serve().await;
    let server = HttpServer::new(&url).unwrap();
    let error = Peer::of(&server).exchange(CALL).await.unwrap_err();
    assert_eq!((error.failure.class, error.sent), (FailureClass::Permanent, Sent::No), "{error}");
    assert!(error.cause.contains("TLS") && error.cause.contains("certificate"), "{error}");
    Peer::of(&server.extra_roots([root()])).exchange(CALL).await.unwrap();
    serving.abort();
}

#[tokio::test]
async fn a_handshake_that_breaks_off_is_transient() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://localhost:{}/", listener.local_addr().unwrap().port());
    let accepted = Arc::new(AtomicUsize::new(0));
    let count = accepted.clone();
    let serving = tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            count.fetch_add(1, Ordering::SeqCst);
            drop(socket.read(&mut [0; 4096]).await);
        }
    });
    let error = Peer::of(&HttpServer::new(&url).unwrap().extra_roots([root()])).exchange(CALL).await.unwrap_err();
    assert_eq!((error.failure.class, error.sent), (FailureClass::Transport, Sent::No), "{error}");
    assert_eq!(accepted.load(Ordering::SeqCst), 1);
    serving.abort();
}
