//! The way to a server: direct or through a proxy, read once for dialling and for words.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderValue, Uri};
use hyper_util::client::proxy::matcher::{Intercept, Matcher};
use reqwest::Url;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;

use crate::resolve::Resolve;
use crate::server::ServerError;

/// How long a second look at a proxy that refused a tunnel may take.
const LOOK_TIMEOUT: Duration = Duration::from_secs(1);
/// How much of its answer is read: a status line.
const LOOK_LIMIT: u64 = 1024;

/// The way to a server.
pub(crate) struct Way {
    /// Host and port of the server.
    server: String,
    proxy: Option<Intercept>,
    resolver: Option<Arc<dyn Resolve>>,
}

impl Way {
    /// By the configured proxy, or by what the environment says now. Loopback is reached directly.
    pub(crate) fn new(
        url: &Url,
        configured: Option<&Url>,
        resolver: Option<Arc<dyn Resolve>>,
    ) -> Result<Self, ServerError> {
        let proxy = match configured {
            Some(proxy) => {
                let matcher = Matcher::builder().all(proxy.as_str()).build();
                let found = intercept(&matcher, url);
                Some(found.ok_or_else(|| ServerError::permanent(format!("no proxy: {}", host_and_port(proxy))))?)
            }
            None if is_loopback(url) => None,
            None => intercept(&Matcher::from_system(), url),
        };
        Ok(Self { server: host_and_port(url), proxy, resolver })
    }

    /// The proxy as the HTTP library takes it.
    pub(crate) fn proxy(&self) -> Result<Option<reqwest::Proxy>, ServerError> {
        let Some(found) = &self.proxy else { return Ok(None) };
        let unusable = |error: &dyn std::fmt::Display| ServerError::permanent(format!("no proxy: {error}"));
        let mut url = Url::parse(&found.uri().to_string()).map_err(|error| unusable(&error))?;
        if let Some((user, password)) = found.raw_auth() {
            let set = url.set_username(user).and_then(|()| url.set_password(Some(password)));
            set.map_err(|()| unusable(&"its user cannot be written in its URL"))?;
        }
        let proxy = reqwest::Proxy::all(url).map_err(|error| unusable(&error))?;
        Ok(Some(match found.basic_auth() {
            Some(auth) => proxy.custom_http_auth(auth.clone()),
            None => proxy,
        }))
    }

    /// Host and port of the proxy, if there is one.
    pub(crate) fn proxy_name(&self) -> Option<String> {
        let uri = self.proxy.as_ref()?.uri();
        Url::parse(&uri.to_string()).ok().map(|url| host_and_port(&url))
    }

    /// Where requests go, in words.
    pub(crate) fn words(&self) -> String {
        match self.proxy_name() {
            Some(proxy) => format!("{} through the proxy {proxy}", self.server),
            None => self.server.clone(),
        }
    }

    /// The cause in words where a proxy on the way asks for a login.
    pub(crate) fn wants_authentication(&self) -> String {
        match self.proxy_name() {
            Some(proxy) => format!("the proxy {proxy} to {} wants authentication (HTTP 407)", self.server),
            None => format!("a proxy on the way to {} wants authentication (HTTP 407)", self.server),
        }
    }

    /// Asks a proxy that has refused a tunnel once more, for its status: the HTTP library keeps that to itself. `None`
    /// where it cannot be told soon.
    pub(crate) async fn refused_tunnel(&self) -> Option<String> {
        let proxy = self.proxy.as_ref().filter(|proxy| proxy.uri().scheme_str() == Some("http"))?;
        timeout(LOOK_TIMEOUT, self.look(proxy)).await.ok()?
    }

    async fn look(&self, proxy: &Intercept) -> Option<String> {
        let host = proxy.uri().host()?;
        let mut socket =
            TcpStream::connect(&*self.addresses(host, proxy.uri().port_u16().unwrap_or(80)).await?).await.ok()?;
        let server = &self.server;
        let mut ask = format!("CONNECT {server} HTTP/1.1\r\nHost: {server}\r\n").into_bytes();
        if let Some(auth) = proxy.basic_auth().map(HeaderValue::as_bytes) {
            ask.extend([b"Proxy-Authorization: ", auth, b"\r\n"].concat());
        }
        ask.extend(b"\r\n");
        socket.write_all(&ask).await.ok()?;
        let (mut line, mut answer) = (Vec::new(), socket.take(LOOK_LIMIT));
        while !line.ends_with(b"\n") {
            line.push(answer.read_u8().await.ok()?);
        }
        let line = String::from_utf8_lossy(&line).into_owned();
        let (version, status) = line.trim_end().split_once(' ')?;
        (version.starts_with("HTTP/") && !status.starts_with('2')).then(|| format!("HTTP {status}"))
    }

    async fn addresses(&self, host: &str, port: u16) -> Option<Vec<SocketAddr>> {
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        match &self.resolver {
            Some(resolver) if bare.parse::<std::net::IpAddr>().is_err() => {
                let found = resolver.resolve(host).await.ok()?;
                Some(found.into_iter().map(|address| SocketAddr::new(address, port)).collect())
            }
            Some(_) | None => Some(lookup_host((bare, port)).await.ok()?.collect()),
        }
    }
}

fn intercept(matcher: &Matcher, url: &Url) -> Option<Intercept> {
    matcher.intercept(&url.as_str().parse::<Uri>().ok()?)
}

pub(crate) fn host_and_port(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    match url.port_or_known_default() {
        Some(port) => format!("{host}:{port}"),
        None => host.to_owned(),
    }
}

pub(crate) fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default().trim_end_matches('.').to_ascii_lowercase();
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<std::net::IpAddr>();
    host == "localhost"
        || host.ends_with(".localhost")
        || address.is_ok_and(|address| address.to_canonical().is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_told_by_name_and_address() {
        for (url, loopback) in [
            ("http://localhost:1/", true),
            ("http://a.LOCALHOST/", true),
            ("http://127.8.0.1/", true),
            ("http://[::1]:2/", true),
            ("http://[::ffff:127.0.0.1]/", true),
            ("http://localhost.example/", false),
            ("http://10.0.0.1/", false),
        ] {
            assert_eq!(is_loopback(&Url::parse(url).unwrap()), loopback, "{url}");
        }
    }

    #[test]
    fn a_configured_proxy_is_named_without_its_user() {
        let url = Url::parse("https://server.example/mcp").unwrap();
        for (proxy, named) in [
            ("http://user:secret@proxy.example:3128", Some("proxy.example:3128")),
            ("http://proxy.example", Some("proxy.example:80")),
            ("socks5h://user:secret@[::1]:1080", Some("[::1]:1080")),
            ("ftp://proxy.example", None),
        ] {
            let way = Way::new(&url, Some(&Url::parse(proxy).unwrap()), None);
            assert_eq!(way.as_ref().ok().and_then(Way::proxy_name).as_deref(), named, "{proxy}");
            if let Ok(way) = way {
                assert!(way.proxy().unwrap().is_some() && !way.words().contains("secret"), "{}", way.words());
            }
        }
    }
}
