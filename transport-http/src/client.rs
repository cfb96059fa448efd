//! One session's client: what is known of the session, and how a request of it is sent.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use mcp_reconnect_core::FailureClass;
use mcp_reconnect_core::replay::Sent;
use reqwest::{Response, StatusCode};
use serde_json::value::RawValue;
use tokio::time::{Instant, timeout};

use crate::classify::{Asked, Classification, classify, words};
use crate::credentials::Unrenewed;
use crate::error::{ExchangeError, Reach};
use crate::headers::{STANDARD_HEADERS, ToolHeaders, standard_headers, version_of};
use crate::message::Message;
use crate::server::HttpServer;

const SESSION_ID: HeaderName = HeaderName::from_static("mcp-session-id");
const PROTOCOL_VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
const JSON: HeaderValue = HeaderValue::from_static("application/json");
const STREAM: HeaderValue = HeaderValue::from_static("text/event-stream");
const EITHER: HeaderValue = HeaderValue::from_static("application/json, text/event-stream");

/// How much of a refusal is read, and how long it is waited for.
const REFUSAL_LIMIT: usize = 64 * 1024;
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(5);

/// The client of one session: frames go out with [`exchange`](Self::exchange), one request each.
///
/// It spawns nothing; a future that is dropped ends its exchange on the wire. Once the server has disowned the session
/// nothing is sent that carries its id.
pub struct HttpClient {
    pub(crate) server: HttpServer,
    http: reqwest::Client,
    target: String,
    interactive: AtomicBool,
    state: Mutex<State>,
    probes: AtomicU64,
}

#[derive(Default)]
struct State {
    session: SessionId,
    version: Option<String>,
    tools: HashMap<String, ToolHeaders>,
    /// The parameters of the last `server/discover`: a probe asks the same again.
    discover: Option<Box<RawValue>>,
    last_byte: Option<Instant>,
}

#[derive(Clone, Default)]
enum SessionId {
    #[default]
    None,
    Held(HeaderValue),
    Gone,
}

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
    pub(crate) last_event_id: Option<&'a str>,
    /// Whether a refusal may mean nothing but that the server has no such thing.
    pub(crate) optional: bool,
}

impl<'a> Outgoing<'a> {
    pub(crate) fn post(frame: &'a str, message: Option<&'a Message<'a>>) -> Self {
        let rpc_method = message.and_then(|message| message.method.as_deref());
        Self {
            method: Method::POST,
            accept: EITHER,
            frame: Some(frame),
            id: message.filter(|_| rpc_method.is_some()).and_then(|message| message.id).map(RawValue::get),
            rpc_method,
            params: message.and_then(|message| message.params),
            last_event_id: None,
            optional: false,
        }
    }

    pub(crate) fn get(last_event_id: Option<&'a str>) -> Self {
        Self {
            method: Method::GET,
            accept: STREAM,
            frame: None,
            id: None,
            rpc_method: None,
            params: None,
            last_event_id,
            optional: false,
        }
    }

    /// A standing stream, which was open before or not.
    pub(crate) fn standing(last_event_id: Option<&'a str>, opened: bool) -> Self {
        Self { optional: !opened, ..Self::get(last_event_id) }
    }

    /// Such a request begins a session: it carries nothing of an earlier one.
    pub(crate) fn is_initialize(&self) -> bool {
        self.rpc_method == Some("initialize")
    }

    /// Such a request is sent for its answer alone, whatever it is.
    fn asks_for_life(&self) -> bool {
        matches!(self.rpc_method, Some("ping" | "server/discover"))
    }
}

/// What a request got.
pub(crate) enum Reply {
    /// A 2xx answer with its body to come, and whether the request carried a session id.
    Stream(Response, bool),
    /// A refusal whose body is the answer.
    Body(String),
}

impl HttpClient {
    pub(crate) fn new(server: HttpServer, http: reqwest::Client, interactive: bool) -> Self {
        let target = server.route();
        Self {
            server,
            http,
            target,
            interactive: AtomicBool::new(interactive),
            state: Mutex::default(),
            probes: AtomicU64::new(0),
        }
    }

    /// A client for another session, over the connections of this one: for a server that was there to say that it knows
    /// this session no more. `interactive` as for [`HttpServer::open`].
    pub fn another(&self, interactive: bool) -> Self {
        Self::new(self.server.clone(), self.http.clone(), interactive)
    }

    /// The handshake settled on this version: it is said in a header from now on, and nobody is asked to log in any
    /// more.
    pub fn negotiated(&self, version: &str) {
        self.interactive.store(false, Ordering::Release);
        self.state().version = Some(version.to_owned());
    }

    /// The session id, while it is good.
    pub fn session_id(&self) -> Option<Arc<str>> {
        match &self.state().session {
            SessionId::Held(id) => id.to_str().ok().map(Into::into),
            SessionId::None | SessionId::Gone => None,
        }
    }

    /// When the last byte came in.
    pub fn last_byte(&self) -> Option<Instant> {
        self.state().last_byte
    }

    /// The session is lost, whoever saw it: nothing with its id is sent from now on.
    pub fn disown(&self) {
        let mut state = self.state();
        if !matches!(state.session, SessionId::None) {
            state.session = SessionId::Gone;
        }
    }

    /// Notes a tool that the server lists, as it is listed: some of its arguments may be wanted as headers.
    ///
    /// # Errors
    ///
    /// Why the tool must not be offered: its `x-mcp-header` annotations are invalid.
    pub fn note_tool(&self, tool: &str) -> Result<(), String> {
        if !self.is_modern() {
            return Ok(());
        }
        if let Some((name, headers)) = ToolHeaders::of_tool(tool)? {
            self.state().tools.insert(name, headers);
        }
        Ok(())
    }

    /// Ends the session at the server, if there is one to end. Bounded by
    /// [`HttpServer::close_timeout`](crate::HttpServer::close_timeout); whatever the server answers is fine.
    pub async fn close(&self) {
        let session = std::mem::replace(&mut self.state().session, SessionId::Gone);
        let SessionId::Held(id) = session else { return };
        let ended = async {
            let mut headers = self.headers();
            headers.insert(SESSION_ID, id);
            self.authorize(&mut headers).await;
            let request = self.http.delete(self.server.url.clone()).headers(headers);
            // 405, 404, whatever it is: the id is not used any more.
            drop(request.send().await);
        };
        // Silence is an answer too.
        drop(timeout(self.server.close_timeout, ended).await);
    }

    /// Whether what was negotiated is of the modern era (2026-07-28 on): without sessions.
    pub fn is_modern(&self) -> bool {
        self.state().version.as_deref().is_some_and(is_modern)
    }

    /// The header that a request of the session carries, if there is an id.
    pub(crate) fn holds_session(&self) -> bool {
        matches!(self.state().session, SessionId::Held(_))
    }

    /// Takes the session id of a 2xx answer to `initialize`.
    pub(crate) fn begin_session(&self, headers: &HeaderMap) {
        if let Some(id) = headers.get(SESSION_ID) {
            self.state().session = SessionId::Held(id.clone());
        }
    }

    pub(crate) fn touch(&self) {
        self.state().last_byte = Some(Instant::now());
    }

    /// Sends a request, with the credentials renewed once where they are refused.
    pub(crate) async fn send(&self, outgoing: &Outgoing<'_>) -> Result<Reply, ExchangeError> {
        let mut renewed = false;
        loop {
            let mut headers = self.headers();
            let session = self.add_headers(&mut headers, outgoing)?;
            let generation = self.authorize(&mut headers).await;
            // The session may have been lost while the credentials were asked for.
            if session && !self.holds_session() {
                return Err(ExchangeError::session_gone());
            }
            let mut request = self.http.request(outgoing.method.clone(), self.server.url.clone()).headers(headers);
            if let Some(frame) = outgoing.frame {
                request = request.body(frame.to_owned());
            }
            let response = request.send().await.map_err(|error| ExchangeError::request(&error, &self.target))?;
            self.touch();
            if response.status().is_success() {
                return Ok(Reply::Stream(response, session));
            }
            let (status, headers) = (response.status(), response.headers().clone());
            let body = refusal(response).await;
            let asked = Asked { id: outgoing.id, session: session && !outgoing.optional };
            #[expect(clippy::disallowed_methods, reason = "a date in Retry-After is one of the wall clock's")]
            let verdict = classify(asked, status, &headers, &body, SystemTime::now());
            match &verdict {
                Classification::Answer => return Ok(Reply::Body(body)),
                Classification::SessionGone => self.disown(),
                Classification::Unauthorized(challenge) => {
                    if let (Some(renewal), false) = (&self.server.renewal, renewed) {
                        let interactive = self.interactive.load(Ordering::Acquire);
                        renewed = true;
                        match renewal.renew(generation, challenge, interactive).await {
                            Ok(()) => continue,
                            Err(Unrenewed { class, why }) => {
                                let mut error = refused(&verdict, status, &body, Some(&why));
                                error.failure.class = class;
                                if class != FailureClass::NeedsAuth && error.reach == Reach::Session {
                                    // It is as good as never sent: the next session may try to renew them again.
                                    error.sent = Sent::No;
                                }
                                return Err(error);
                            }
                        }
                    }
                }
                Classification::Forbidden
                | Classification::RateLimited(_)
                | Classification::NotFound
                | Classification::Refused
                | Classification::ServerError(_) => {}
            }
            let mut error = refused(&verdict, status, &body, None);
            // A server that came back may refuse everything that this session is made of: its version, its era, its
            // missing id. A refused question after life is no such sign: some servers know none.
            if verdict == Classification::Refused && outgoing.frame.is_some() && !outgoing.asks_for_life() {
                error.reach = Reach::Doubt;
            }
            return Err(error);
        }
    }

    /// What every request carries.
    fn headers(&self) -> HeaderMap {
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
        if let Some(id) = outgoing.last_event_id.and_then(|id| HeaderValue::from_bytes(id.as_bytes()).ok()) {
            headers.insert(LAST_EVENT_ID, id);
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

    /// Adds the token; which one it is.
    async fn authorize(&self, headers: &mut HeaderMap) -> u64 {
        let Some(renewal) = &self.server.renewal else { return 0 };
        let (generation, token) = renewal.token().await;
        if let Some(mut value) = token.and_then(|token| HeaderValue::from_str(&format!("Bearer {token}")).ok()) {
            value.set_sensitive(true);
            headers.insert(AUTHORIZATION, value);
        }
        generation
    }

    /// A request that only asks whether the session is alive.
    pub(crate) fn probe_frame(&self) -> String {
        let number = self.probes.fetch_add(1, Ordering::Relaxed);
        let discover = self.is_modern().then(|| self.state().discover.clone()).flatten();
        match discover {
            Some(params) => {
                format!(r#"{{"jsonrpc":"2.0","id":"probe-{number}","method":"server/discover","params":{params}}}"#)
            }
            None => format!(r#"{{"jsonrpc":"2.0","id":"probe-{number}","method":"ping"}}"#),
        }
    }

    /// Where requests go, and by which proxy: for words about failures.
    pub fn target(&self) -> &str {
        &self.target
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for HttpClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpClient").field("server", &self.server).finish_non_exhaustive()
    }
}

/// Versions are dates: they compare as text.
fn is_modern(version: &str) -> bool {
    version >= STANDARD_HEADERS
}

/// Reads what a refusal says, as far as it comes soon.
async fn refusal(mut response: Response) -> String {
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
    String::from_utf8_lossy(&body).into_owned()
}

fn refused(verdict: &Classification, status: StatusCode, body: &str, more: Option<&str>) -> ExchangeError {
    let reach = match verdict {
        // The credentials are good, for other things than this.
        Classification::Unauthorized(_) if status == StatusCode::FORBIDDEN => Reach::Exchange,
        Classification::SessionGone | Classification::Unauthorized(_) => Reach::Session,
        Classification::NotFound | Classification::ServerError(_) => Reach::Doubt,
        Classification::Answer
        | Classification::Forbidden
        | Classification::RateLimited(_)
        | Classification::Refused => Reach::Exchange,
    };
    let mut cause = format!("HTTP {status}");
    let said = words(body);
    // A page is for browsers.
    for text in [Some(&*said), more].into_iter().flatten().filter(|text| !text.is_empty() && !text.starts_with('<')) {
        cause.push_str(": ");
        cause.extend(text.chars().take(500));
    }
    ExchangeError { failure: verdict.failure(), sent: verdict.sent(), reach, cause: cause.into(), status: Some(status) }
}
