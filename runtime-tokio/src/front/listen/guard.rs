//! Who may speak to the listener: hosts on this machine, and web pages of origins that are allowed.

use std::fmt;
use std::str::FromStr;

use axum::http::header::{HOST, ORIGIN};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, Uri};

/// The origin of web pages: `scheme://host` or `scheme://host:port`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Origin {
    scheme: String,
    host: String,
    /// The scheme's own where none was given.
    port: Option<u16>,
}

/// A text that is no origin.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InvalidOrigin(String);

impl fmt::Display for InvalidOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` is no origin such as https://example.com or http://localhost:8080", self.0)
    }
}

impl std::error::Error for InvalidOrigin {}

impl FromStr for Origin {
    type Err = InvalidOrigin;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::parse(text).ok_or_else(|| InvalidOrigin(text.to_owned()))
    }
}

impl Origin {
    fn parse(text: &str) -> Option<Self> {
        let (scheme, authority) = text.split_once("://")?;
        let scheme = scheme.to_ascii_lowercase();
        let authority = Authority::from_str(authority).ok()?;
        if scheme.is_empty() || authority.as_str().contains('@') {
            return None;
        }
        let own = match &*scheme {
            "http" => Some(80),
            "https" => Some(443),
            _ => None,
        };
        let port = match authority.as_str().strip_prefix(authority.host())? {
            "" => own,
            // None where the text is no port.
            _ => Some(authority.port_u16()?),
        };
        Some(Self { scheme, host: authority.host().to_ascii_lowercase(), port })
    }
}

/// What is let in.
#[derive(Debug)]
pub(super) struct Guard {
    /// Whether a request must name this machine: a name from outside that leads here is DNS rebinding.
    pub(super) local_only: bool,
    pub(super) allowed: Vec<Origin>,
}

impl Guard {
    /// Lets a request in; its origin, where it is of a web page.
    ///
    /// # Errors
    ///
    /// Why not.
    pub(super) fn admit<'a>(&self, uri: &Uri, headers: &'a HeaderMap) -> Result<Option<&'a HeaderValue>, &'static str> {
        if self.local_only && !names_this_machine(uri, headers) {
            return Err("the Host header names another machine");
        }
        let mut origins = headers.get_all(ORIGIN).iter();
        let Some(sent) = origins.next() else { return Ok(None) };
        let origin = sent.to_str().ok().and_then(Origin::parse).filter(|_| origins.next().is_none());
        match origin {
            Some(origin) if is_loopback(&origin.host) || self.allowed.contains(&origin) => Ok(Some(sent)),
            _ => Err("the Origin is not allowed"),
        }
    }
}

fn names_this_machine(uri: &Uri, headers: &HeaderMap) -> bool {
    let mut hosts = headers.get_all(HOST).iter();
    let host = match (hosts.next(), hosts.next()) {
        (Some(host), None) => host.to_str().ok().and_then(|host| Authority::from_str(host).ok()),
        (None, None) => uri.authority().cloned(),
        _ => None,
    };
    host.is_some_and(|host| !host.as_str().contains('@') && is_loopback(&host.host().to_ascii_lowercase()))
}

fn is_loopback(host: &str) -> bool {
    let address = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    host == "localhost" || address.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admits(guard: &Guard, host: &str, origin: Option<&str>) -> bool {
        let mut headers = HeaderMap::new();
        headers.insert(HOST, HeaderValue::from_str(host).unwrap());
        if let Some(origin) = origin {
            headers.insert(ORIGIN, HeaderValue::from_str(origin).unwrap());
        }
        guard.admit(&Uri::from_static("/mcp"), &headers).is_ok()
    }

    #[test]
    fn only_names_of_this_machine() {
        let guard = Guard { local_only: true, allowed: Vec::new() };
        for host in ["localhost", "LOCALHOST:1", "127.0.0.1:80", "127.1.2.3", "[::1]", "[::1]:80"] {
            assert!(admits(&guard, host, None), "{host}");
        }
        for host in ["", "evil.example", "localhost.evil.example", "10.0.0.1", "a@localhost", "[::2]:1", "localhost:x/"]
        {
            assert!(!admits(&guard, host, None), "{host}");
        }
        assert!(guard.admit(&Uri::from_static("/mcp"), &HeaderMap::new()).is_err());
        assert!(guard.admit(&Uri::from_static("http://localhost/mcp"), &HeaderMap::new()).is_ok());
    }

    #[test]
    fn only_origins_of_this_machine_and_allowed_ones() {
        let allowed = vec!["https://Good.example".parse().unwrap(), "http://odd.example:81".parse().unwrap()];
        let guard = Guard { local_only: false, allowed };
        for origin in [
            "http://localhost:5173",
            "https://[::1]",
            "https://good.example",
            "https://good.example:443",
            "http://odd.example:81",
        ] {
            assert!(admits(&guard, "any.example", Some(origin)), "{origin}");
        }
        for origin in [
            "null",
            "",
            "http://good.example",
            "https://good.example:444",
            "https://good.example.evil",
            "http://odd.example",
            "http://a@localhost",
        ] {
            assert!(!admits(&guard, "any.example", Some(origin)), "{origin}");
        }
    }

    #[test]
    fn two_origins_are_none() {
        let mut headers = HeaderMap::new();
        headers.append(ORIGIN, HeaderValue::from_static("http://localhost"));
        headers.append(ORIGIN, HeaderValue::from_static("http://evil.example"));
        assert!(Guard { local_only: false, allowed: Vec::new() }.admit(&Uri::from_static("/"), &headers).is_err());
    }

    #[test]
    fn an_origin_that_is_none_is_told_so() {
        for text in ["example.com", "://x", "http://", "http://a/b", "http://a:99999", "*"] {
            assert!(text.parse::<Origin>().is_err(), "{text}");
        }
    }
}
