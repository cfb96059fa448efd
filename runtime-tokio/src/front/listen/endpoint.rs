//! The endpoint: what becomes of each request of HTTP.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_REQUEST_HEADERS, ALLOW, VARY,
};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::response::Response;
use serde_json::value::RawValue;
use tokio::time::timeout;

use super::answer::{Accepts, LOST, NOT_SENT, Refusal, event_stream, invalid, json_response, status_only};
use super::edit::find;
use super::guard::Guard;
use super::hub::{Exchange, Hub, NotTaken as HubNotTaken, Told};
use super::message::{Kind, Message};
use super::modern;
use super::session::{NoSession, NotTaken, Session, Sessions};
use super::stream::{KEEP_ALIVE, Prologue, body, event_id};

/// How long an answer is waited for before a stream is begun in its place, which shows that it is being worked on.
const PATIENCE: Duration = Duration::from_secs(5);
/// The versions with sessions.
const VERSIONS: &[&str] = &["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"];
/// Hosts know events without data from this version on.
const PRIMING: &str = "2025-11-25";
const METHODS: &str = "GET, POST, DELETE";
const SESSION_ID: &str = "mcp-session-id";
const LAST_EVENT_ID: &str = "last-event-id";

pub(super) struct Endpoint {
    pub(super) guard: Guard,
    pub(super) sessions: Arc<Sessions>,
    pub(super) hub: Arc<Hub>,
}

/// Answers a request.
pub(super) async fn endpoint(State(endpoint): State<Arc<Endpoint>>, request: Request) -> Response {
    let origin = match endpoint.guard.admit(request.uri(), request.headers()) {
        Ok(origin) => origin.cloned(),
        Err(why) => {
            tracing::warn!("a request was refused: {why}");
            return Refusal::new(StatusCode::FORBIDDEN, NOT_SENT, why).into_response();
        }
    };
    let (parts, body) = request.into_parts();
    let answer = match parts.method {
        Method::POST => endpoint.post(&parts.headers, body).await,
        Method::GET => endpoint.get(&parts.headers),
        Method::DELETE => endpoint.delete(&parts.headers),
        Method::OPTIONS if origin.is_some() => Ok(preflight(&parts.headers)),
        _ => Ok(not_allowed(METHODS)),
    };
    let mut answer = answer.unwrap_or_else(Refusal::into_response);
    if let Some(origin) = origin {
        let headers = answer.headers_mut();
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static(SESSION_ID));
        headers.insert(VARY, HeaderValue::from_static("origin"));
    }
    answer
}

/// A browser asks what a page of an origin that was let in may send.
fn preflight(asked: &HeaderMap) -> Response {
    let mut response = status_only(StatusCode::NO_CONTENT, Body::empty());
    let headers = response.headers_mut();
    headers.insert(ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static(METHODS));
    if let Some(asked) = asked.get(ACCESS_CONTROL_REQUEST_HEADERS) {
        headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, asked.clone());
    }
    response
}

impl Endpoint {
    async fn post(&self, headers: &HeaderMap, body: Body) -> Result<Response, Refusal> {
        let accepts = Accepts::of(headers);
        if !accepts.json && !accepts.events {
            return Err(invalid(StatusCode::NOT_ACCEPTABLE, "accept application/json and text/event-stream"));
        }
        let message = Message::read(headers, accepts, body).await?;
        let params = find(&message.text, &["params"]).and_then(|params| serde_json::from_str::<&RawValue>(params).ok());
        let method = match &message.kind {
            Kind::Request { method, .. } | Kind::Notification { method } => Some(&**method),
            Kind::Response => None,
        };
        if modern::is_modern(headers, method, params) {
            return self.modern(headers, params, &message).await;
        }
        match (session_id(headers)?, &message.kind) {
            (None, Kind::Request { id, method }) if &**method == "initialize" => self.initialize(id, &message).await,
            (None, _) => Err(invalid(StatusCode::BAD_REQUEST, "Mcp-Session-Id is missing")),
            (Some(_), Kind::Request { id, method }) if &**method == "initialize" => {
                Err(invalid(StatusCode::BAD_REQUEST, "a session is initialized once").of(Some(id)))
            }
            (Some(session), _) => {
                let session = self.session(session)?;
                known_version(headers, &session)?;
                legacy(&session, message).await
            }
        }
    }

    fn session(&self, id: &str) -> Result<Arc<Session>, Refusal> {
        self.sessions.get(id).ok_or_else(no_session)
    }

    /// Begins a session.
    async fn initialize(&self, id: &str, message: &Message) -> Result<Response, Refusal> {
        let session = self.sessions.open().map_err(|why| {
            let why = match why {
                NoSession::Full => "there are as many sessions as there may be",
                NoSession::Closing => "the listener is being closed",
                NoSession::NoRandomness => "there is no randomness for a session id",
            };
            Refusal::new(StatusCode::SERVICE_UNAVAILABLE, NOT_SENT, why).of(Some(id))
        })?;
        // Ends with this request, unless the session comes to stand.
        let attempt = Attempt(Some(session));
        let Some(session) = &attempt.0 else { return Err(no_session()) };
        let busy = session.busy();
        let stream = session.ask(id, &message.text).map_err(|why| not_taken(why, id))?;
        if !session.send(message.text.clone()).await {
            return Err(no_session().of(Some(id)));
        }
        let answer = stream.last().await.ok_or_else(|| no_session().of(Some(id)))?;
        let version = find(&answer, &["result", "protocolVersion"]);
        let Some(version) = find(&answer, &["result"]).map(|_| version) else {
            return Ok(answered(message.accepts, answer)); // no session came of it
        };
        let version = version.and_then(|version| serde_json::from_str::<Box<str>>(version).ok());
        session.version.get_or_init(|| version.unwrap_or_default());
        let mut response = answered(message.accepts, answer);
        if let Ok(id) = HeaderValue::from_str(&session.id) {
            response.headers_mut().insert(SESSION_ID, id);
        }
        drop(busy);
        attempt.stands();
        Ok(response)
    }

    /// Opens the standing stream, or resumes one that was cut.
    fn get(&self, headers: &HeaderMap) -> Result<Response, Refusal> {
        let Some(session) = session_id(headers)? else { return Ok(without_session(headers)) };
        let session = self.session(session)?;
        known_version(headers, &session)?;
        if !Accepts::of(headers).events {
            return Err(invalid(StatusCode::NOT_ACCEPTABLE, "accept text/event-stream"));
        }
        let (stream, after, prologue) = match headers.get(LAST_EVENT_ID) {
            None if session.standing.is_read() => {
                return Err(invalid(StatusCode::CONFLICT, "the session has a stream already"));
            }
            None => (session.standing.clone(), None, prologue(&session)),
            Some(last) => {
                let last = last.to_str().ok().and_then(event_id);
                let stream = last.and_then(|(stream, event)| Some((session.stream(stream)?, event)));
                // Hosts also ask for what comes behind an answer, if that is an error. The status tells them, as an end of
                // the stream would not, that they need not come again.
                let Some((stream, event)) = stream.filter(|(stream, event)| !stream.is_over(*event)) else {
                    return Ok(not_allowed("POST, DELETE"));
                };
                (stream, Some(event), Prologue::Comment)
            }
        };
        let reader = stream.read(after, prologue);
        let busy = session.busy();
        Ok(event_stream(reader.into_body(busy)))
    }

    fn delete(&self, headers: &HeaderMap) -> Result<Response, Refusal> {
        let Some(session) = session_id(headers)? else { return Ok(without_session(headers)) };
        self.session(session)?.end();
        Ok(status_only(StatusCode::NO_CONTENT, Body::empty()))
    }

    async fn modern(
        &self,
        headers: &HeaderMap,
        params: Option<&RawValue>,
        message: &Message,
    ) -> Result<Response, Refusal> {
        let (id, method) = match &message.kind {
            Kind::Request { id, method } => (&**id, &**method),
            // A request is given up by closing its stream; its id alone does not say whose it is.
            Kind::Notification { method } if &**method == "notifications/cancelled" => return Ok(accepted()),
            Kind::Notification { .. } => {
                let told = self.hub.tell(message.text.clone()).await;
                return told.map(|()| accepted()).map_err(|why| hub_not_taken(why, None));
            }
            Kind::Response => {
                return Err(invalid(StatusCode::BAD_REQUEST, "a server asks nothing in this protocol version"));
            }
        };
        modern::check(headers, method, params, |tool| self.hub.tool(tool)).map_err(|refusal| refusal.of(Some(id)))?;
        let mut exchange = self.hub.ask(id, method, &message.text).await.map_err(|why| hub_not_taken(why, Some(id)))?;
        let mut told = Vec::new();
        loop {
            let next = exchange.next();
            let next = if message.accepts.events {
                let Ok(next) = timeout(PATIENCE, next).await else { break };
                next
            } else {
                next.await
            };
            match next {
                Some(Told { message: answer, answer: Some(outcome) }) => {
                    let status = modern::status_of(outcome);
                    if status == StatusCode::OK {
                        return Ok(answered(message.accepts, answer));
                    }
                    return Ok(json_response(status, String::from(answer)));
                }
                Some(first) if message.accepts.events => {
                    told.push(first.message);
                    break;
                }
                Some(_) => {} // a client that takes no stream cannot be told
                None => return Err(Refusal::new(StatusCode::BAD_GATEWAY, LOST, "the answer is lost").of(Some(id))),
            }
        }
        Ok(event_stream(exchange_body(told, exchange)))
    }
}

/// Passes a message of a session on.
async fn legacy(session: &Arc<Session>, message: Message) -> Result<Response, Refusal> {
    let busy = session.busy();
    let Kind::Request { id, .. } = &message.kind else {
        let cancels = matches!(&message.kind, Kind::Notification { method } if &**method == "notifications/cancelled");
        let cancelled = find(&message.text, &["params", "requestId"]).filter(|_| cancels).map(str::to_owned);
        if !session.send(message.text).await {
            return Err(no_session());
        }
        if let Some(id) = cancelled {
            session.cancelled(&id);
        }
        return Ok(accepted());
    };
    let stream = session.ask(id, &message.text).map_err(|why| not_taken(why, id))?;
    if message.accepts.events {
        let reader = stream.read(None, prologue(session));
        if !session.send(message.text).await {
            return Err(no_session().of(Some(id)));
        }
        return Ok(event_stream(reader.into_body(busy)));
    }
    if !session.send(message.text).await {
        return Err(no_session().of(Some(id)));
    }
    let answer = stream.last().await.ok_or_else(|| no_session().of(Some(id)))?;
    Ok(answered(message.accepts, answer))
}

/// A session whose handshake is under way: dropped, it ends.
struct Attempt(Option<Arc<Session>>);

impl Attempt {
    fn stands(mut self) {
        self.0 = None;
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        if let Some(session) = &self.0 {
            session.end();
        }
    }
}

fn session_id(headers: &HeaderMap) -> Result<Option<&str>, Refusal> {
    let Some(id) = headers.get(SESSION_ID) else { return Ok(None) };
    id.to_str().map(Some).map_err(|_| no_session())
}

/// Whether a request speaks a version that its session can; without a header it does.
fn known_version(headers: &HeaderMap, session: &Session) -> Result<(), Refusal> {
    let Some(version) = headers.get(modern::VERSION) else { return Ok(()) };
    let agreed = session.version.get().map(|version| &**version);
    let known = version.to_str().is_ok_and(|version| VERSIONS.contains(&version) || agreed == Some(version));
    if known { Ok(()) } else { Err(invalid(StatusCode::BAD_REQUEST, "MCP-Protocol-Version is not supported")) }
}

fn prologue(session: &Session) -> Prologue {
    if session.version.get().is_some_and(|version| &**version >= PRIMING) {
        Prologue::Priming
    } else {
        Prologue::Comment
    }
}

/// An answer that nothing comes before.
fn answered(accepts: Accepts, answer: Box<str>) -> Response {
    if accepts.json {
        return json_response(StatusCode::OK, String::from(answer));
    }
    event_stream(Body::from(format!("data: {answer}\n\n")))
}

/// What a host is told, up to the answer; dropped, its request is given up.
fn exchange_body(told: Vec<Box<str>>, exchange: Exchange) -> Body {
    let data = |message: &str| Bytes::from(format!("data: {message}\n\n"));
    let begun = told.iter().map(|message| data(message)).fold(String::from(": open\n\n"), |mut begun, chunk| {
        begun.push_str(&String::from_utf8_lossy(&chunk));
        begun
    });
    let state = (Some(Bytes::from(begun)), Some(exchange));
    body(futures::stream::unfold(state, move |(begun, exchange)| async move {
        if let Some(begun) = begun {
            return Some((begun, (None, exchange)));
        }
        let mut exchange = exchange?;
        match timeout(KEEP_ALIVE, exchange.next()).await {
            Ok(Some(Told { message, answer: None })) => Some((data(&message), (None, Some(exchange)))),
            Ok(Some(Told { message, answer: Some(_) })) => Some((data(&message), (None, None))),
            Ok(None) => None,
            Err(_) => Some((Bytes::from_static(b": alive\n\n"), (None, Some(exchange)))),
        }
    }))
}

fn accepted() -> Response {
    status_only(StatusCode::ACCEPTED, Body::empty())
}

fn not_allowed(allowed: &'static str) -> Response {
    let mut response = status_only(StatusCode::METHOD_NOT_ALLOWED, Body::empty());
    response.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
    response
}

/// GET and DELETE are about sessions, which the later era has not.
fn without_session(headers: &HeaderMap) -> Response {
    if modern::is_modern(headers, None, None) {
        return not_allowed("POST");
    }
    invalid(StatusCode::BAD_REQUEST, "Mcp-Session-Id is missing").into_response()
}

fn no_session() -> Refusal {
    Refusal::new(StatusCode::NOT_FOUND, LOST, "Session not found")
}

fn not_taken(why: NotTaken, id: &str) -> Refusal {
    match why {
        NotTaken::IdInUse => invalid(StatusCode::BAD_REQUEST, "a request with this id is open").of(Some(id)),
        NotTaken::Full => too_many(Some(id)),
        NotTaken::Ended => no_session().of(Some(id)),
    }
}

fn hub_not_taken(why: HubNotTaken, id: Option<&str>) -> Refusal {
    match why {
        HubNotTaken::Full => too_many(id),
        HubNotTaken::Ended => {
            Refusal::new(StatusCode::SERVICE_UNAVAILABLE, NOT_SENT, "the listener is being closed, or has no front")
                .of(id)
        }
    }
}

fn too_many(id: Option<&str>) -> Refusal {
    Refusal::new(StatusCode::SERVICE_UNAVAILABLE, NOT_SENT, "too many requests are open").of(id)
}
