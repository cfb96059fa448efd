//! TLS for the servers of the tests.

use std::sync::Arc;

use mcp_reconnect_http::pki_types::pem::PemObject;
use mcp_reconnect_http::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy, copy_bidirectional, sink, split};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};
use tokio_rustls::server::TlsStream;

use crate::support::Server;

pub(crate) type Identity = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

/// The root of the tests. Its key is gone; those that it has signed are for tests only.
pub(crate) fn root() -> CertificateDer<'static> {
    CertificateDer::from_pem_slice(include_bytes!("../certs/ca.pem")).unwrap()
}

/// A client that the root vouches for.
pub(crate) fn client() -> Identity {
    identity(include_bytes!("../certs/client.pem"), include_bytes!("../certs/client.key"))
}

/// One that nobody vouches for.
pub(crate) fn stranger() -> Identity {
    identity(
        include_bytes!("../../../tests/tests/http/certs/self-signed.pem"),
        include_bytes!("../../../tests/tests/http/certs/self-signed.key"),
    )
}

fn identity(certificate: &[u8], key: &[u8]) -> Identity {
    let chain = vec![CertificateDer::from_pem_slice(certificate).unwrap()];
    (chain, PrivateKeyDer::from_pem_slice(key).unwrap())
}

/// A server called `localhost` and `server.example` that speaks these protocols, to clients that the root vouches for or
/// to all.
pub(crate) fn acceptor(protocols: &[&str], known_clients_only: bool) -> TlsAcceptor {
    let (chain, key) = identity(include_bytes!("../certs/server.pem"), include_bytes!("../certs/server.key"));
    let provider = Arc::new(default_provider());
    let config = ServerConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions().unwrap();
    let config = if known_clients_only {
        let mut roots = RootCertStore::empty();
        roots.add(root()).unwrap();
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build().unwrap();
        config.with_client_cert_verifier(verifier)
    } else {
        config.with_no_client_auth()
    };
    let mut config = config.with_single_cert(chain, key).unwrap();
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
    TlsAcceptor::from(Arc::new(config))
}

/// A handshake; where it fails, the alert is read by the client before the connection ends.
pub(crate) async fn accept(acceptor: &TlsAcceptor, socket: TcpStream) -> Option<TlsStream<TcpStream>> {
    match acceptor.accept(socket).into_fallible().await {
        Ok(stream) => Some(stream),
        Err((_, mut socket)) => {
            drop(socket.shutdown().await);
            drop(copy(&mut socket, &mut sink()).await);
            None
        }
    }
}

/// How much of what the server says gets through.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Passes {
    All,
    /// So many bytes of its side of the handshake; then the connection is closed.
    Bytes(u64),
}

/// TLS in front of a server. Ends with it.
pub(crate) struct Front {
    pub(crate) port: u16,
    /// The protocol of each connection whose handshake was done, where one was agreed on.
    pub(crate) protocols: watch::Receiver<Vec<Option<Vec<u8>>>>,
    _tasks: JoinSet<()>,
}

impl Front {
    pub(crate) async fn start(server: &Server, acceptor: TlsAcceptor, passes: Passes) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (port, backend) = (listener.local_addr().unwrap().port(), server.address);
        let (log, protocols) = watch::channel(Vec::new());
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((socket, _)) = listener.accept().await {
                let (acceptor, log) = (acceptor.clone(), log.clone());
                connections.spawn(async move {
                    if let Passes::Bytes(bytes) = passes {
                        return truncated(&acceptor, socket, bytes).await;
                    }
                    let Some(mut stream) = accept(&acceptor, socket).await else { return };
                    log.send_modify(|log| log.push(stream.get_ref().1.alpn_protocol().map(<[u8]>::to_vec)));
                    let Ok(mut backend) = TcpStream::connect(backend).await else { return };
                    drop(copy_bidirectional(&mut stream, &mut backend).await);
                });
            }
        });
        Self { port, protocols, _tasks: tasks }
    }

    pub(crate) fn url(&self) -> String {
        format!("https://localhost:{}/mcp", self.port)
    }
}

async fn truncated(acceptor: &TlsAcceptor, socket: TcpStream, bytes: u64) {
    let (inner, outer) = tokio::io::duplex(64 * 1024);
    let ((mut from_client, mut to_client), (from_server, mut to_server)) = (socket.into_split(), split(outer));
    let mut first = from_server.take(bytes);
    tokio::select! {
        _ = acceptor.accept(inner) => {}
        _ = copy(&mut from_client, &mut to_server) => {}
        _ = copy(&mut first, &mut to_client) => {}
    }
}
