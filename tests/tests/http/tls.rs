//! TLS in front of a fake server, HTTP/2 as well.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, RecvStream};
use mcp_reconnect::HttpServer;
use mcp_reconnect_tests::fake::FakeHttp;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy, copy_bidirectional, sink};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio_rustls::server::TlsStream;

/// What answers at the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Face {
    /// Reads the ClientHello, and closes.
    Truncated,
    /// A certificate that nobody vouches for.
    SelfSigned,
    /// A certificate for `localhost` and `server.example` of a root that the client trusts.
    Good,
    /// The same to clients that the root vouches for.
    KnownClients,
    /// The same with HTTP/2 as the server's choice.
    Http2,
    /// The same, to clients that the root vouches for.
    KnownClientsHttp2,
    /// HTTP/2 where the stream of a tool call is refused.
    RefusesCalls,
}

impl Face {
    fn acceptor(self) -> TlsAcceptor {
        let (chain, key) = if self == Self::SelfSigned {
            self_signed()
        } else {
            identity(
                include_bytes!("../../../transport-http/tests/certs/server.pem"),
                include_bytes!("../../../transport-http/tests/certs/server.key"),
            )
        };
        let provider = Arc::new(default_provider());
        let config = ServerConfig::builder_with_provider(provider.clone());
        let config = config.with_safe_default_protocol_versions().unwrap();
        let config = if matches!(self, Self::KnownClients | Self::KnownClientsHttp2) {
            let mut roots = RootCertStore::empty();
            roots.add(root()).unwrap();
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build().unwrap();
            config.with_client_cert_verifier(verifier)
        } else {
            config.with_no_client_auth()
        };
        let mut config = config.with_single_cert(chain, key).unwrap();
        let protocol = if self.is_http2() { "h2" } else { "http/1.1" };
        config.alpn_protocols = vec![protocol.into()];
        TlsAcceptor::from(Arc::new(config))
    }

    fn is_http2(self) -> bool {
        matches!(self, Self::Http2 | Self::KnownClientsHttp2 | Self::RefusesCalls)
    }
}

type Identity = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

fn root() -> CertificateDer<'static> {
    CertificateDer::from_pem_slice(include_bytes!("../../../transport-http/tests/certs/ca.pem")).unwrap()
}

/// A client that the root vouches for.
pub(super) fn client() -> Identity {
    identity(
        include_bytes!("../../../transport-http/tests/certs/client.pem"),
        include_bytes!("../../../transport-http/tests/certs/client.key"),
    )
}

/// One that nobody vouches for.
pub(super) fn self_signed() -> Identity {
    identity(include_bytes!("certs/self-signed.pem"), include_bytes!("certs/self-signed.key"))
}

fn identity(certificate: &[u8], key: &[u8]) -> Identity {
    let chain = vec![CertificateDer::from_pem_slice(certificate).unwrap()];
    (chain, PrivateKeyDer::from_pem_slice(key).unwrap())
}

/// The server at this URL, with the root of the tests.
pub(super) fn trusting(url: &str) -> HttpServer {
    HttpServer::new(url).unwrap().extra_roots([root()])
}

/// The front. Ends with it.
pub(super) struct Tls {
    pub(super) url: String,
    pub(super) address: SocketAddr,
    face: watch::Sender<Face>,
    goaway: watch::Sender<()>,
    counts: Arc<Counts>,
    _tasks: JoinSet<()>,
}

#[derive(Default)]
struct Counts {
    accepted: AtomicUsize,
    http2: AtomicUsize,
}

/// What every connection of the front shares.
#[derive(Clone)]
struct Shared {
    backend: SocketAddr,
    face: watch::Receiver<Face>,
    goaway: watch::Receiver<()>,
    client: reqwest::Client,
    counts: Arc<Counts>,
}

impl Tls {
    pub(super) async fn start(server: &FakeHttp, face: Face) -> Self {
        Self::begin(server, face, 0).await
    }

    /// Good, but for so many connections at first.
    pub(super) async fn truncating(server: &FakeHttp, connections: usize) -> Self {
        Self::begin(server, Face::Good, connections).await
    }

    async fn begin(server: &FakeHttp, face: Face, truncated: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (face, goaway, counts) = (watch::Sender::new(face), watch::Sender::new(()), Arc::<Counts>::default());
        let shared = Shared {
            backend: server.address(),
            face: face.subscribe(),
            goaway: goaway.subscribe(),
            client: plain_client(),
            counts: counts.clone(),
        };
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((mut socket, _)) = listener.accept().await {
                let number = shared.counts.accepted.fetch_add(1, Ordering::SeqCst);
                let face = *shared.face.borrow();
                if number < truncated || face == Face::Truncated {
                    connections.spawn(async move { drop(socket.read(&mut [0; 4096]).await) });
                } else {
                    connections.spawn(forward(face, socket, shared.clone()));
                }
            }
        });
        let url = format!("https://localhost:{}/mcp", address.port());
        Self { url, address, face, goaway, counts, _tasks: tasks }
    }

    /// From the next connection on; for `RefusesCalls`, from the next call on.
    pub(super) fn show(&self, face: Face) {
        self.face.send_replace(face);
    }

    /// Says GOAWAY on every HTTP/2 connection.
    pub(super) fn leave(&self) {
        self.goaway.send_replace(());
    }

    /// How many connections came.
    pub(super) fn accepted(&self) -> usize {
        self.counts.accepted.load(Ordering::SeqCst)
    }

    /// How many of them speak HTTP/2.
    pub(super) fn http2(&self) -> usize {
        self.counts.http2.load(Ordering::SeqCst)
    }
}

/// A client of the fake server, which speaks HTTP/1.1 without TLS.
fn plain_client() -> reqwest::Client {
    let tls = ClientConfig::builder_with_provider(Arc::new(default_provider()));
    let tls = tls.with_safe_default_protocol_versions().unwrap();
    let tls = tls.with_root_certificates(RootCertStore::empty()).with_no_client_auth();
    reqwest::Client::builder().tls_backend_preconfigured(tls).no_proxy().build().unwrap()
}

async fn forward(face: Face, socket: TcpStream, mut shared: Shared) {
    let mut stream = match face.acceptor().accept(socket).into_fallible().await {
        Ok(stream) => stream,
        // The client reads the alert before the connection ends.
        Err((_, mut socket)) => {
            drop(socket.shutdown().await);
            drop(copy(&mut socket, &mut sink()).await);
            return;
        }
    };
    if stream.get_ref().1.alpn_protocol() == Some(b"h2") {
        shared.counts.http2.fetch_add(1, Ordering::SeqCst);
        shared.goaway.mark_unchanged();
        return drop(forward_http2(stream, shared).await);
    }
    let Ok(mut backend) = TcpStream::connect(shared.backend).await else { return };
    drop(copy_bidirectional(&mut stream, &mut backend).await);
}

async fn forward_http2(stream: TlsStream<TcpStream>, shared: Shared) -> Result<(), h2::Error> {
    let mut connection = h2::server::handshake(stream).await?;
    let mut goaway = shared.goaway.clone();
    let mut exchanges = JoinSet::new();
    loop {
        tokio::select! {
            request = connection.accept() => match request {
                Some(request) => _ = exchanges.spawn(relay(request?, shared.clone())),
                None => return Ok(()),
            },
            Ok(()) = goaway.changed() => connection.graceful_shutdown(),
        }
    }
}

/// One exchange: what breaks behind the front breaks its stream.
async fn relay((request, mut respond): (http::Request<RecvStream>, SendResponse<Bytes>), shared: Shared) {
    let (head, mut body) = request.into_parts();
    let mut bytes = Vec::new();
    while let Some(Ok(chunk)) = body.data().await {
        drop(body.flow_control().release_capacity(chunk.len()));
        bytes.extend_from_slice(&chunk);
    }
    let is_call = String::from_utf8_lossy(&bytes).contains("tools/call");
    if is_call && *shared.face.borrow() == Face::RefusesCalls {
        return respond.send_reset(Reason::REFUSED_STREAM);
    }
    let url = format!("http://{}{}", shared.backend, head.uri.path());
    let asked = shared.client.request(head.method, url).headers(head.headers).body(bytes).send();
    let response = tokio::select! {
        response = asked => response,
        _ = poll_fn(|context| respond.poll_reset(context)) => return,
    };
    let Ok(mut response) = response else { return respond.send_reset(Reason::INTERNAL_ERROR) };
    let mut head = http::Response::new(());
    *head.status_mut() = response.status();
    *head.headers_mut() = response.headers().clone();
    // They are the other connection's.
    for name in ["connection", "keep-alive", "transfer-encoding"] {
        head.headers_mut().remove(name);
    }
    let Ok(mut answer) = respond.send_response(head, false) else { return };
    loop {
        let chunk = tokio::select! {
            chunk = response.chunk() => chunk,
            _ = poll_fn(|context| answer.poll_reset(context)) => return,
        };
        let sent = match chunk {
            Ok(Some(chunk)) => answer.send_data(chunk, false),
            Ok(None) => return drop(answer.send_data(Bytes::new(), true)),
            Err(_) => return answer.send_reset(Reason::INTERNAL_ERROR),
        };
        if sent.is_err() {
            return;
        }
    }
}
