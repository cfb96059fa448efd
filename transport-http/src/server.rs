//! Where a server is and how it is reached.

use std::error::Error;
use std::fmt;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, header};
use mcp_reconnect_core::FailureClass;
use reqwest::Url;
use reqwest::redirect::Policy;
use rustls::ClientConfig;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls_platform_verifier::Verifier;

use crate::client::HttpClient;
use crate::credentials::{Credentials, Renewal};
use crate::proxy::{Way, host_and_port};
use crate::resolve::{Hook, Resolve};

/// How long a message or an event may be, in bytes, unless [`HttpServer::frame_limit`] says otherwise.
pub const DEFAULT_FRAME_LIMIT: NonZeroUsize = NonZeroUsize::new(16 * 1024 * 1024).unwrap();

/// How long the DELETE of a session may take, unless [`HttpServer::close_timeout`] says otherwise.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a connection may take to be made, over all addresses of the name: less than a start, so that the address
/// is named.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);
/// How long a refresh of the credentials may take.
const REFRESH_TIMEOUT: Duration = Duration::from_secs(30);
/// How far apart a hook is asked that fails, unless [`HttpServer::demand_interval`] says otherwise.
const DEMAND_INTERVAL: Duration = Duration::from_secs(5);
/// How long a hook may fail, unless [`HttpServer::park_after`] says otherwise.
const PARK_AFTER: Duration = Duration::from_secs(60);
/// The longest wait that a server may ask for, unless [`HttpServer::retry_after_max`] says otherwise: the default of the
/// machine's setting of this name.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(15 * 60);

/// A server behind streamable HTTP: its URL, and what its requests carry. Clones share their credentials.
#[derive(Clone)]
pub struct HttpServer {
    pub(crate) url: Url,
    pub(crate) headers: HeaderMap,
    pub(crate) frame_limit: NonZeroUsize,
    pub(crate) close_timeout: Duration,
    pub(crate) renewal: Option<Arc<Renewal>>,
    pub(crate) connect_timeout: Duration,
    pub(crate) demand_interval: Duration,
    pub(crate) park_after: Duration,
    pub(crate) retry_after_max: Duration,
    /// Whether the words of known session gates are a shortcut.
    pub(crate) words: bool,
    proxy: Option<Url>,
    resolver: Option<Arc<dyn Resolve>>,
    roots: Vec<CertificateDer<'static>>,
    identity: Option<Arc<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>>,
    /// Built at the first dial, and again once it has proved wrong.
    tls: Arc<Mutex<Option<ClientConfig>>>,
}

impl HttpServer {
    /// The server at this `http://` or `https://` URL.
    ///
    /// # Errors
    ///
    /// The URL cannot be read, or is neither http nor https.
    pub fn new(url: &str) -> Result<Self, ServerError> {
        let parsed = Url::parse(url)
            .map_err(|error| ServerError::permanent(format!("the server's URL cannot be read: {error}")))?;
        if !matches!(parsed.scheme(), "http" | "https") || parsed.host_str().is_none() {
            return Err(ServerError::permanent("the server's URL is no http or https URL".into()));
        }
        Ok(Self {
            url: parsed,
            headers: HeaderMap::new(),
            frame_limit: DEFAULT_FRAME_LIMIT,
            close_timeout: CLOSE_TIMEOUT,
            renewal: None,
            connect_timeout: CONNECT_TIMEOUT,
            demand_interval: DEMAND_INTERVAL,
            park_after: PARK_AFTER,
            retry_after_max: RETRY_AFTER_MAX,
            words: true,
            proxy: None,
            resolver: None,
            roots: Vec::new(),
            identity: None,
            tls: Arc::default(),
        })
    }

    /// Sends this header with every request.
    ///
    /// # Errors
    ///
    /// An invalid header, or one that belongs to the protocol: `Accept`, `Content-Type`, `Mcp-*`, `Last-Event-ID`.
    pub fn header(mut self, name: &str, value: &str) -> Result<Self, ServerError> {
        let invalid =
            || ServerError::permanent(format!("the header `{}` or its value is invalid", name.escape_debug()));
        let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| invalid())?;
        let mut value = HeaderValue::from_str(value).map_err(|_| invalid())?;
        if matches!(name, header::ACCEPT | header::CONTENT_TYPE | header::CONTENT_LENGTH | header::HOST)
            || name.as_str().starts_with("mcp-")
            || name == "last-event-id"
        {
            return Err(ServerError::permanent(format!("the header `{name}` belongs to the protocol")));
        }
        value.set_sensitive(name == header::AUTHORIZATION);
        self.headers.append(name, value);
        Ok(self)
    }

    /// Takes the `Authorization` header from here.
    pub fn credentials(mut self, credentials: Arc<dyn Credentials>) -> Self {
        self.renewal = Some(Arc::new(Renewal::new(credentials, REFRESH_TIMEOUT)));
        self
    }

    /// A digest of the token that [`credentials`](Self::credentials) would give now; `None` without any. Good for a
    /// comparison within this process.
    pub async fn credentials_digest(&self) -> Option<u64> {
        let bearer = self.renewal.as_ref()?.token().await;
        let mut hasher = DefaultHasher::new();
        bearer.token.hash(&mut hasher);
        Some(hasher.finish())
    }

    /// Reaches the server through this proxy (`http`, `https`, `socks5`), whatever the environment says.
    ///
    /// By default `HTTP_PROXY`, `HTTPS_PROXY`, `ALL_PROXY` and `NO_PROXY` are honoured, in upper and lower case, but
    /// for loopback addresses, which are reached directly. They are read anew for each session; a variable in upper case
    /// goes before the one in lower case, though it be empty.
    ///
    /// # Errors
    ///
    /// The URL cannot be read.
    pub fn proxy(mut self, url: &str) -> Result<Self, ServerError> {
        let url = Url::parse(url)
            .map_err(|error| ServerError::permanent(format!("the proxy's URL cannot be read: {error}")))?;
        self.proxy = Some(url);
        Ok(self)
    }

    /// Asks this for the addresses of the server's name, and of the proxy's. Default: the system's resolver. Either is
    /// asked anew for each connection.
    pub fn resolver(mut self, resolver: Arc<dyn Resolve>) -> Self {
        self.resolver = Some(resolver);
        self
    }

    /// Trusts these certificates beside those of the platform.
    pub fn extra_roots(mut self, roots: impl IntoIterator<Item = CertificateDer<'static>>) -> Self {
        self.roots.extend(roots);
        self.tls = Arc::default();
        self
    }

    /// Shows this certificate chain to servers that ask for one.
    pub fn identity(mut self, chain: Vec<CertificateDer<'static>>, key: PrivateKeyDer<'static>) -> Self {
        self.identity = Some(Arc::new((chain, key)));
        self.tls = Arc::default();
        self
    }

    /// How long a message or an event may be, in bytes. Default [`DEFAULT_FRAME_LIMIT`].
    pub fn frame_limit(mut self, bytes: NonZeroUsize) -> Self {
        self.frame_limit = bytes;
        self
    }

    /// How long a connection may take to be made, over all addresses of the name. Default 20 s.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// How long the DELETE of a session may take. Default 2 s.
    pub fn close_timeout(mut self, timeout: Duration) -> Self {
        self.close_timeout = timeout;
        self
    }

    /// How far apart the credentials are asked to renew themselves after they have failed to, within a session.
    /// Default 5 s.
    pub fn demand_interval(mut self, interval: Duration) -> Self {
        self.demand_interval = interval;
        self
    }

    /// How long the credentials may fail to renew themselves before a session is given up for it. Default 60 s.
    pub fn park_after(mut self, time: Duration) -> Self {
        self.park_after = time;
        self
    }

    /// The longest that a stream is not asked for again because the server wants it so, by `Retry-After` or by `retry:`.
    /// Default 15 min. (What else a `Retry-After` holds up is the machine's to bound, by its setting of this name.)
    pub fn retry_after_max(mut self, time: Duration) -> Self {
        self.retry_after_max = time;
        self
    }

    /// Without the shortcut by the words of known session gates: each of them is a doubt then, as every other refusal.
    #[doc(hidden)]
    pub fn without_words(mut self) -> Self {
        self.words = false;
        self
    }

    /// Reads the platform's roots anew at the next dial; they are read anew by themselves after a certificate was
    /// refused.
    pub fn forget_roots(&self) {
        *self.tls.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// How long [`HttpClient::close`] takes at most.
    pub fn close_bound(&self) -> Duration {
        self.close_timeout
    }

    /// The URL.
    pub fn url(&self) -> &str {
        self.url.as_str()
    }

    /// Prepares one session: no connection is made. Its sockets end with the client. `interactive` is what the
    /// credentials are told until the session is established.
    ///
    /// # Errors
    ///
    /// A proxy or a certificate that cannot be used.
    pub fn open(&self, interactive: bool) -> Result<HttpClient, ServerError> {
        let way = Way::new(&self.url, self.proxy.as_ref(), self.resolver.clone())?;
        let mut builder = reqwest::Client::builder()
            .tls_backend_preconfigured(self.tls()?)
            .redirect(Policy::none())
            .referer(false)
            .retry(reqwest::retry::never())
            .connect_timeout(self.connect_timeout)
            .tcp_nodelay(true);
        if let Some(resolver) = &self.resolver {
            builder = builder.dns_resolver(Hook(resolver.clone()));
        }
        builder = match way.proxy()? {
            Some(proxy) => builder.proxy(proxy),
            None => builder.no_proxy(),
        };
        let http = builder.build().map_err(|error| ServerError::permanent(format!("no HTTP client: {error}")))?;
        Ok(HttpClient::new(self.clone(), http, Arc::new(way), interactive))
    }

    fn tls(&self) -> Result<ClientConfig, ServerError> {
        let mut known = self.tls.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(config) = &*known {
            return Ok(config.clone());
        }
        let unusable = |error: rustls::Error| ServerError::permanent(format!("TLS cannot be set up: {error}"));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider.clone());
        let builder = builder.with_safe_default_protocol_versions().map_err(unusable)?;
        // Redirects stay within the origin: without https there is no certificate to verify.
        let builder = if self.url.scheme() == "https" {
            let verifier = Verifier::new_with_extra_roots(self.roots.iter().cloned(), provider).map_err(unusable)?;
            builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier))
        } else {
            builder.with_root_certificates(rustls::RootCertStore::empty())
        };
        let mut config = match self.identity.as_deref() {
            Some((chain, key)) => builder.with_client_auth_cert(chain.clone(), key.clone_key()).map_err(unusable)?,
            None => builder.with_no_client_auth(),
        };
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(known.insert(config).clone())
    }
}

impl fmt::Debug for HttpServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // URLs may hold secrets.
        let proxy = self.proxy.as_ref().map(host_and_port);
        let mut shown = f.debug_struct("HttpServer");
        shown.field("server", &host_and_port(&self.url)).field("proxy", &proxy).finish_non_exhaustive()
    }
}

/// Why a server cannot be reached as it is configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerError {
    /// The class, as the machine will see it.
    pub class: FailureClass,
    cause: String,
}

impl ServerError {
    pub(crate) fn permanent(cause: String) -> Self {
        Self { class: FailureClass::Permanent, cause }
    }
}

impl fmt::Display for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.cause)
    }
}

impl Error for ServerError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_of_the_protocol_are_not_for_others_to_set() {
        let server = HttpServer::new("http://localhost/mcp").unwrap();
        for name in ["Accept", "mcp-session-id", "MCP-Protocol-Version", "Last-Event-ID", "bad name"] {
            assert!(server.clone().header(name, "x").is_err(), "{name}");
        }
        assert!(server.clone().header("x", "a\nb").is_err());
        assert!(server.header("X-Api-Key", "k").is_ok());
    }

    #[test]
    fn only_http_urls_are_servers() {
        for url in ["", "ftp://a/", "http://", "/mcp", "file:///x"] {
            assert!(HttpServer::new(url).is_err_and(|error| error.class == FailureClass::Permanent), "{url}");
        }
    }

    #[test]
    fn a_client_is_built_without_a_provider_of_the_process() {
        assert!(HttpServer::new("http://127.0.0.1:9/").unwrap().open(false).is_ok());
        assert!(rustls::crypto::CryptoProvider::get_default().is_none());
    }
}
