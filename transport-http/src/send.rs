//! How a request of a session is sent, and what a refusal of it means.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, LOCATION};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use mcp_reconnect_core::FailureClass;
use mcp_reconnect_core::replay::Sent;
use reqwest::{Response, Url};
use serde_json::value::RawValue;
use tokio::time::{Instant, timeout};

use crate::classify::{Asked, Classification, Reach, classify, words};
use crate::client::{HttpClient, SessionId, is_modern};
use crate::credentials::{Asking, Bearer, Unrenewed};
use crate::error::ExchangeError;
use crate::headers::{standard_headers, version_of};
use crate::message::{Message, trimmed};
use crate::stage::{OnStage, Outbound, Stage};

pub(crate) const SESSION_ID: HeaderName = HeaderName::from_static("mcp-session-id");
const PROTOCOL_VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
const JSON: HeaderValue = HeaderValue::from_static("application/json");
const STREAM: HeaderValue = HeaderValue::from_static("text/event-stream");
const EITHER: HeaderValue = HeaderValue::from_static("application/json, text/event-stream");

/// How often a request may be redirected.
const REDIRECTS: usize = 10;
/// How soon all addresses have refused a connection: what takes longer has met one that does not answer.
const REFUSED_WITHIN: Duration = Duration::from_secs(1);
/// How much of a refusal is read, and how long it is waited for.
const REFUSAL_LIMIT: usize = 64 * 1024;
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(5);

/// A request as it is about to be sent.
pub(crate) struct Outgoing<'a> {
    pub(crate) method: Method,
    pub(crate) accept: HeaderValue,
    /// The body of a POST.
    pub(crate) frame: Option<&'a str>,
    /// The id of the JSON-RPC request in it, as it is written.
    pub(crate) id: Option<&'a str>,
    pub(crate) rpc_method: Option<&'a str>,
    pub(crate) params: Option<&'a RawValue>,
    pub(crate) last_event_id: Option<HeaderValue>,
    pub(crate) on_stage: OnStage,
}

impl<'a> Outgoing<'a> {
    pub(crate) fn post(frame: &'a str, message: Option<&'a Message<'a>>, on_stage: OnStage) -> Self {
        let rpc_method = message.and_then(|message| message.method.as_deref());
        Self {
            method: Method::POST,
            accept: EITHER,
            frame: Some(frame),
            id: message.filter(|_| rpc_method.is_some()).and_then(|message| message.id).map(RawValue::get),
            rpc_method,
            params: message.and_then(|message| message.params),
            last_event_id: None,
            on_stage,
        }
    }

    pub(crate) fn get(last_event_id: Option<HeaderValue>) -> Self {
        Self {
            method: Method::GET,
            accept: STREAM,
            frame: None,
            id: None,
            rpc_method: None,
            params: None,
            last_event_id,
            on_stage: regardless(),
        }
    }

    /// Such a request begins a session: it carries nothing of an earlier one.
    pub(crate) fn is_initialize(&self) -> bool {
        self.rpc_method == Some("initialize")
    }

    /// Such a request is the first one to a server.
    pub(crate) fn is_greeting(&self) -> bool {
        matches!(self.rpc_method, Some("initialize" | "server/discover"))
    }

    pub(crate) fn waits(&self) {
        (self.on_stage)(Stage::Waiting);
    }
}

/// For a request whose stages are of no interest.
pub(crate) fn regardless() -> OnStage {
    std::sync::Arc::new(|_| true)
}

/// The reply to a request.
pub(crate) enum Reply {
    /// A 2xx answer with its body to come, and whether the request carried a session id.
    Stream(Response, bool),
    /// A refusal whose body is the answer.
    Body(String, StatusCode),
}

/// A refusal, read.
struct Refused {
    status: StatusCode,
    headers: HeaderMap,
    body: String,
}

impl HttpClient {
    /// Sends a request: with the credentials renewed once where they are refused, and once more where HTTP/2 says that it
    /// was not processed.
    pub(crate) async fn send(&self, outgoing: &Outgoing<'_>) -> Result<Reply, ExchangeError> {
        let (mut renewed, mut repeated) = (false, false);
        loop {
            let mut headers = self.headers();
            let session = self.add_headers(&mut headers, outgoing)?;
            let bearer = self.authorize(&mut headers).await;
            // The session may have been lost while the credentials were asked for.
            if session && !self.holds_session() {
                return Err(ExchangeError::session_gone());
            }
            let began = Instant::now();
            let response = match self.follow(outgoing, headers).await {
                Ok(response) => response,
                Err(error) if ExchangeError::says_unprocessed(&error) && !repeated => {
                    repeated = true;
                    outgoing.waits();
                    continue;
                }
                Err(error) => return Err(self.broken(&error, began).await),
            };
            self.touch();
            if response.status().is_success() {
                if let Some(renewal) = &self.server.renewal {
                    renewal.accepted();
                }
                return Ok(Reply::Stream(response, session));
            }
            let refused = Refused::read(response).await;
            match self.classify(outgoing, session, &refused) {
                Classification::Answer => return Ok(Reply::Body(refused.body, refused.status)),
                Classification::Unauthorized(challenge) => {
                    self.renew(outgoing, &bearer, &refused, &challenge, renewed).await?;
                    renewed = true;
                    outgoing.waits();
                }
                Classification::Refused(refusal) => {
                    if refusal.reach == Reach::Session {
                        self.denied();
                    }
                    let cause = match refused.status {
                        StatusCode::PROXY_AUTHENTICATION_REQUIRED => self.way.wants_authentication(),
                        _ => refused.words(None),
                    };
                    return Err(ExchangeError::refused(refusal, refused.status, cause));
                }
            }
        }
    }

    /// Sends it, and follows redirects within the origin that keep the method.
    async fn follow(&self, outgoing: &Outgoing<'_>, headers: HeaderMap) -> Result<Response, reqwest::Error> {
        let frame = outgoing.frame.map(|frame| Bytes::copy_from_slice(frame.as_bytes()));
        let mut url = self.server.url.clone();
        let mut redirects = 0;
        loop {
            let mut request = self.http.request(outgoing.method.clone(), url.clone()).headers(headers.clone());
            if let Some(frame) = frame.clone() {
                request = request.body(reqwest::Body::wrap(Outbound::new(frame, outgoing.on_stage.clone())));
            }
            let response = request.send().await?;
            match redirected(&response, &url).filter(|_| redirects < REDIRECTS) {
                Some(next) => url = next,
                None => return Ok(response),
            }
            redirects += 1;
            outgoing.waits();
        }
    }

    /// A request that came to no answer.
    async fn broken(&self, error: &reqwest::Error, began: Instant) -> ExchangeError {
        let mut broken = ExchangeError::request(error, &self.way);
        match broken.failure.class {
            FailureClass::Refused if began.elapsed() >= REFUSED_WITHIN.min(self.server.connect_timeout / 4) => {
                broken.failure.class = FailureClass::Transport;
            }
            // The certificates that are trusted here may be about to be mended.
            FailureClass::Permanent => self.server.forget_roots(),
            _ => {}
        }
        if broken.cause.contains("tunnel error: unsuccessful")
            && let Some(status) = self.way.refused_tunnel().await
        {
            broken.cause = format!("{}: {status}", broken.cause).into();
        }
        broken
    }

    fn classify(&self, outgoing: &Outgoing<'_>, session: bool, refused: &Refused) -> Classification {
        let asked = self.asked(outgoing, session);
        #[expect(clippy::disallowed_methods, reason = "a date in Retry-After is one of the wall clock's")]
        let now = SystemTime::now();
        classify(asked, refused.status, &refused.headers, &refused.body, now)
    }

    pub(crate) fn asked<'a>(&self, outgoing: &Outgoing<'a>, session: bool) -> Asked<'a> {
        Asked { id: outgoing.id, session, established: self.is_established(), words: self.server.words }
    }

    /// The credentials were refused: `Ok` where there are other ones to try.
    async fn renew(
        &self,
        outgoing: &Outgoing<'_>,
        bearer: &Bearer,
        refused: &Refused,
        challenge: &str,
        renewed: bool,
    ) -> Result<(), ExchangeError> {
        let established = self.is_established() && outgoing.id.is_some();
        let renewal = self.server.renewal.as_ref().filter(|_| !renewed);
        let asking = Asking { interactive: self.is_interactive(), established, apart: self.server.demand_interval };
        let (class, why, failing) = match renewal {
            Some(renewal) => match renewal.renew(bearer, challenge, asking).await {
                Ok(()) => return Ok(()),
                Err(Unrenewed { class, why, failing }) => (class, Some(why), failing),
            },
            None => (FailureClass::Unauthorized, None, Duration::ZERO),
        };
        let failed = class == FailureClass::Transport;
        // The credentials are good for other things than this, where it is no 401.
        let lost =
            established && refused.status == StatusCode::UNAUTHORIZED && !(failed && failing < self.server.park_after);
        let (class, reach) = match class {
            _ if lost => (FailureClass::SessionGone, Reach::Session),
            // For this it takes others.
            FailureClass::Unauthorized if established => (FailureClass::NeedsAuth, Reach::Exchange),
            class => (class, Reach::Exchange),
        };
        if lost {
            self.disown();
        }
        let sent = match () {
            // As good as never sent: the next one may find them renewed.
            () if failed && !lost => Sent::No,
            () if challenge.is_empty() && established => Sent::Maybe,
            () => Sent::Refused,
        };
        let rpc = Message::read(trimmed(&refused.body)).and_then(|message| message.rpc_error());
        Err(ExchangeError {
            status: Some(refused.status),
            rpc: rpc.map(|error| (error.code, error.message.into())),
            gate: true,
            ..ExchangeError::new(class, sent, reach, refused.words(why.as_deref()))
        })
    }

    /// The longest that a wait which the server asked for may be.
    pub(crate) fn cap(&self, wait: Duration) -> Duration {
        wait.min(self.server.retry_after_max)
    }

    /// The headers that every request carries.
    pub(crate) fn headers(&self) -> HeaderMap {
        let mut headers = self.server.headers.clone();
        if let Some(version) = self.state().version.as_deref().and_then(|version| version.parse().ok()) {
            headers.insert(PROTOCOL_VERSION, version);
        }
        headers
    }

    /// Adds what this request carries; whether a session id is among it.
    fn add_headers(&self, headers: &mut HeaderMap, outgoing: &Outgoing<'_>) -> Result<bool, ExchangeError> {
        headers.insert(ACCEPT, outgoing.accept.clone());
        if outgoing.frame.is_some() {
            headers.insert(CONTENT_TYPE, JSON);
        }
        if let Some(id) = &outgoing.last_event_id {
            headers.insert(LAST_EVENT_ID, id.clone());
        }
        if outgoing.is_initialize() {
            headers.remove(PROTOCOL_VERSION);
            return Ok(false);
        }
        let own_version = version_of(outgoing.params);
        if let Some(version) = own_version.as_deref().and_then(|version| version.parse().ok()) {
            headers.insert(PROTOCOL_VERSION, version);
        }
        let mut state = self.state();
        if outgoing.rpc_method == Some("server/discover") {
            state.discover = outgoing.params.map(ToOwned::to_owned);
        }
        if own_version.as_deref().or(state.version.as_deref()).is_some_and(is_modern)
            && let Some(method) = outgoing.rpc_method
        {
            let standard = standard_headers(method, outgoing.params, |tool| state.tools.get(tool).cloned());
            headers.extend(standard);
        }
        match &state.session {
            SessionId::None => Ok(false),
            SessionId::Gone => Err(ExchangeError::session_gone()),
            SessionId::Held(id) => {
                headers.insert(SESSION_ID, id.clone());
                Ok(true)
            }
        }
    }

    /// Adds the token, and tells which one it is.
    pub(crate) async fn authorize(&self, headers: &mut HeaderMap) -> Bearer {
        let Some(renewal) = &self.server.renewal else { return Bearer::default() };
        let bearer = renewal.token().await;
        let value = bearer.token.as_ref().and_then(|token| HeaderValue::from_str(&format!("Bearer {token}")).ok());
        if let Some(mut value) = value {
            value.set_sensitive(true);
            headers.insert(AUTHORIZATION, value);
        }
        bearer
    }
}

/// The next URL of a redirect that is followed.
fn redirected(response: &Response, url: &Url) -> Option<Url> {
    let kept = matches!(response.status().as_u16(), 307 | 308);
    let next = kept.then(|| response.headers().get(LOCATION))??.to_str().ok()?;
    url.join(next).ok().filter(|next| next.origin() == url.origin())
}

impl Refused {
    /// Reads what a refusal says, as far as it comes soon.
    async fn read(mut response: Response) -> Self {
        let (status, headers) = (response.status(), response.headers().clone());
        let mut body = Vec::new();
        let read = async {
            while let Ok(Some(chunk)) = response.chunk().await {
                body.extend_from_slice(&chunk[..chunk.len().min(REFUSAL_LIMIT - body.len())]);
                if body.len() == REFUSAL_LIMIT {
                    break;
                }
            }
        };
        drop(timeout(REFUSAL_TIMEOUT, read).await); // what has come says enough
        Self { status, headers, body: String::from_utf8_lossy(&body).into_owned() }
    }

    /// The refusal as a cause, with more to it.
    fn words(&self, more: Option<&str>) -> String {
        let mut cause = format!("HTTP {}", self.status);
        let said = words(&self.body);
        // A page is for browsers.
        for text in [Some(&*said), more].into_iter().flatten().filter(|text| !text.is_empty() && !text.starts_with('<'))
        {
            cause.push_str(": ");
            cause.extend(text.chars().take(500));
        }
        cause
    }
}
