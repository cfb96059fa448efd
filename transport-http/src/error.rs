//! Why an exchange failed: its class, how far it got, its reach, and the hop that failed in words.

use std::error::Error;
use std::fmt;
use std::io;
use std::sync::Arc;

use http::StatusCode;
use mcp_reconnect_core::replay::Sent;
use mcp_reconnect_core::{Failure, FailureClass};
use rustls::AlertDescription;

use crate::classify::{Reach, Refusal};
use crate::proxy::Way;
use crate::stage::TakenBack;

/// Why an exchange brought no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExchangeError {
    /// The class, as the machine will see it.
    pub failure: Failure,
    /// How far the request got. With [`Reach::Doubt`]: as far as it is known without asking the session.
    pub sent: Sent,
    /// Whether other exchanges are concerned.
    pub reach: Reach,
    /// The cause in words, the failing hop included.
    pub cause: Arc<str>,
    /// The status that was answered, if one was.
    pub status: Option<StatusCode>,
    /// Code and message of the JSON-RPC error that came in place of an answer.
    pub rpc: Option<(i64, Box<str>)>,
    /// Whether the request counts as [`Sent::Refused`] once something else was refused with the same status, code and
    /// message.
    pub gate: bool,
}

impl ExchangeError {
    pub(crate) fn new(class: FailureClass, sent: Sent, reach: Reach, cause: impl Into<Arc<str>>) -> Self {
        Self { failure: class.into(), sent, reach, cause: cause.into(), status: None, rpc: None, gate: false }
    }

    /// A request that got this status and no answer.
    pub(crate) fn refused(refusal: Refusal, status: StatusCode, cause: impl Into<Arc<str>>) -> Self {
        let Refusal { failure, reach, sent, gate, rpc } = refusal;
        Self { failure, sent, reach, cause: cause.into(), status: Some(status), rpc, gate }
    }

    /// An exchange that would carry a session id which was given up.
    pub(crate) fn session_gone() -> Self {
        Self::new(FailureClass::SessionGone, Sent::No, Reach::Session, "the server has lost the session")
    }

    /// The answer did not come, or not whole.
    pub(crate) fn cut(cause: impl Into<Arc<str>>) -> Self {
        Self::new(FailureClass::Transport, Sent::Maybe, Reach::Doubt, cause)
    }

    /// The answer came and cannot be used.
    pub(crate) fn unusable(cause: impl Into<Arc<str>>) -> Self {
        Self::new(FailureClass::Transport, Sent::Maybe, Reach::Exchange, cause)
    }

    /// Marks the request as one that had reached the server already.
    pub(crate) fn after_sending(mut self) -> Self {
        self.sent = Sent::Maybe;
        self
    }

    /// Reads reqwest's error for a request that went this way.
    pub(crate) fn request(error: &reqwest::Error, way: &Way) -> Self {
        let causes = causes(error);
        let target = way.words();
        let connecting = error.is_connect();
        let rejected = causes.iter().any(|cause| is_rejected_certificate(*cause));
        let mut texts: Vec<String> = Vec::new();
        for text in causes.iter().map(ToString::to_string) {
            if !texts.iter().any(|known| known.contains(&text)) {
                texts.push(text);
            }
        }
        // The type of this error is not public.
        if texts.iter().any(|text| text.contains("tunnel error: proxy authorization required")) {
            return Self::new(FailureClass::Permanent, Sent::No, Reach::Doubt, way.wants_authentication());
        }
        let class = match () {
            () if rejected => FailureClass::Permanent,
            () if connecting && way.proxy_name().is_none() && causes.iter().any(|cause| is_refusal(*cause)) => {
                FailureClass::Refused
            }
            () => FailureClass::Transport,
        };
        let hop = if rejected || causes.iter().any(|cause| cause.is::<rustls::Error>()) {
            "TLS with"
        } else if texts.iter().any(|text| text.contains("dns error")) {
            "the resolver, for"
        } else if texts.iter().any(|text| text.contains("tunnel") || text.contains("socks")) {
            "the proxy to"
        } else if connecting {
            "the connection to"
        } else {
            "the exchange with"
        };
        // The outer layers only say that there was a client and a request.
        let said =
            texts.iter().filter(|text| !text.starts_with("error sending request") && !text.starts_with("client error"));
        let said = said.map(String::as_str).collect::<Vec<_>>().join(": ");
        let not_run = connecting || causes.iter().any(|cause| is_unprocessed(*cause) || cause.is::<TakenBack>());
        let sent = if not_run { Sent::No } else { Sent::Maybe };
        Self::new(class, sent, Reach::Doubt, format!("{hop} {target} failed: {said}"))
    }

    /// Whether HTTP/2 says that a request, which had left, was not processed.
    pub(crate) fn says_unprocessed(error: &reqwest::Error) -> bool {
        causes(error).into_iter().any(is_unprocessed)
    }
}

impl fmt::Display for ExchangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.cause)
    }
}

impl Error for ExchangeError {}

/// An error and what it is made of. What an [`io::Error`] wraps is not among its sources.
fn causes<'a>(error: &'a (dyn Error + 'static)) -> Vec<&'a (dyn Error + 'static)> {
    let mut found = Vec::new();
    let mut next = Some(error);
    while let Some(error) = next {
        found.push(error);
        let wrapped = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        next = match wrapped {
            Some(wrapped) => Some(wrapped as &(dyn Error + 'static)),
            None => error.source(),
        };
    }
    found
}

/// Whether the connection was refused at the address whose failure is told: the first of its family. That no other one let the
/// connection run into its time-out shows in how long it took.
fn is_refusal(error: &(dyn Error + 'static)) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

/// Whether the peer says of an HTTP/2 stream that nothing of it was processed: it was refused, or its number is above
/// the last one of a GOAWAY (RFC 9113, 8.7). A stream that a GOAWAY lets go on never has that GOAWAY as its error.
fn is_unprocessed(error: &(dyn Error + 'static)) -> bool {
    error.downcast_ref::<h2::Error>().is_some_and(|error| {
        error.is_remote()
            && (error.is_go_away() || error.is_reset() && error.reason() == Some(h2::Reason::REFUSED_STREAM))
    })
}

/// The alerts by which a server rejects our certificate, or that there is none.
const REJECTIONS: [AlertDescription; 8] = [
    AlertDescription::AccessDenied,
    AlertDescription::BadCertificate,
    AlertDescription::CertificateExpired,
    AlertDescription::CertificateRequired,
    AlertDescription::CertificateRevoked,
    AlertDescription::CertificateUnknown,
    AlertDescription::UnknownCA,
    AlertDescription::UnsupportedCertificate,
];

/// Whether the other side's certificate was rejected, or ours by it. A handshake that breaks off is neither.
fn is_rejected_certificate(error: &(dyn Error + 'static)) -> bool {
    match error.downcast_ref::<rustls::Error>() {
        Some(rustls::Error::InvalidCertificate(_) | rustls::Error::NoCertificatesPresented) => true,
        Some(rustls::Error::AlertReceived(alert)) => REJECTIONS.contains(alert),
        Some(_) => false,
        // With TLS 1.3 the alert follows the handshake, and an HTTP/2 connection keeps nothing of it but its words.
        None => {
            let text = error.to_string();
            REJECTIONS.into_iter().any(|alert| rustls::Error::AlertReceived(alert).to_string() == text)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_found_however_deep_it_is_wrapped() {
        let rejected = rustls::Error::InvalidCertificate(rustls::CertificateError::UnknownIssuer);
        let wrapped = io::Error::other(io::Error::other(rejected));
        assert!(causes(&wrapped).into_iter().any(is_rejected_certificate));
        for alert in [AlertDescription::HandshakeFailure, AlertDescription::InternalError] {
            assert!(!is_rejected_certificate(&rustls::Error::AlertReceived(alert)), "{alert:?}");
        }
        for (text, rejected) in [
            ("received fatal alert: CertificateRequired", true),
            ("received fatal alert: HandshakeFailure", false),
            ("connection error received: not a result of an error (b\"received fatal alert: UnknownCA\")", false),
        ] {
            let words = io::Error::other(text);
            assert_eq!(causes(&words).into_iter().any(is_rejected_certificate), rejected, "{text}");
        }
        let broken = io::Error::other(io::Error::new(io::ErrorKind::UnexpectedEof, "tls handshake eof"));
        assert!(!causes(&broken).into_iter().any(is_rejected_certificate));
    }
}
