//! What is decided about a request of HTTP before its message has a say.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

use super::PATH;
use super::host::HttpHost;
use super::message::HttpRequest;
use super::plan::{Body, HeaderValue, HttpAction, refusal};
use crate::fake::answer::VERSION_KEY;
use crate::fake::script::{Action, Era, MODERN, Plan};

/// The lines about a verb; `None`: the server does not know it.
pub(crate) fn verb(request: &HttpRequest) -> Option<&'static [&'static str]> {
    match &*request.verb {
        _ if request.path != PATH => None,
        "POST" => Some(&["post"]),
        "GET" if request.header("last-event-id").is_some() => Some(&["resume"]),
        "GET" => Some(&["get"]),
        "DELETE" => Some(&["delete"]),
        _ => None,
    }
}

/// The answer to a request without a good token.
pub(crate) fn challenge(request: &HttpRequest) -> Vec<Action> {
    let metadata = "http://HOST/.well-known/oauth-protected-resource";
    let metadata = metadata.replace("HOST", request.header("host").unwrap_or_default());
    let challenge = format!("Bearer error=\"invalid_token\", resource_metadata=\"{metadata}\"");
    let headers = vec![("www-authenticate".to_owned(), HeaderValue::Text(challenge))];
    vec![Action::Http(HttpAction::Status { status: 401, body: Body::Text(b"Unauthorized".to_vec()), headers })]
}

/// The refusal of a request that has not the headers it must have.
pub(crate) fn headers(plan: &Plan, request: &HttpRequest, message: &Value) -> Option<(u16, Body)> {
    let method = message["method"].as_str().unwrap_or_default();
    if is_modern(plan, request, message) && !message["id"].is_null() {
        let mismatch = standard_headers(request, message).err();
        return mismatch.map(|text| {
            let error = json!({"code": -32020, "message": text});
            (400, Body::Json(json!({"jsonrpc": "2.0", "id": message["id"], "error": error})))
        });
    }
    if ["initialize", "server/discover"].contains(&method) {
        return None;
    }
    let broken = plan.http.required.iter().find(|required| match (&required.value, request.header(&required.name)) {
        (_, None) => true,
        (Some(value), Some(sent)) => value != sent,
        (None, Some(_)) => false,
    });
    broken.map(|required| {
        let value = required.value.as_deref().unwrap_or("present");
        (required.status, Body::Text(format!("Bad Request: {} must be {value}", required.name).into_bytes()))
    })
}

/// The headers that every request has since 2026-07-28.
fn standard_headers(request: &HttpRequest, message: &Value) -> Result<(), String> {
    let method = message["method"].as_str().unwrap_or_default();
    let params = &message["params"];
    let name = match method {
        "tools/call" | "prompts/get" => &params["name"],
        "resources/read" => &params["uri"],
        "tasks/get" | "tasks/update" | "tasks/cancel" => &params["taskId"],
        _ => &Value::Null,
    };
    let version = &params["_meta"][VERSION_KEY];
    for (header, expected) in [("mcp-protocol-version", version.as_str()), ("mcp-method", Some(method))] {
        if request.header(header) != expected {
            return Err(format!("Header mismatch: {header}"));
        }
    }
    let sent = request.header("mcp-name").map(unwrap_header);
    if name.as_str() == sent.as_deref() { Ok(()) } else { Err("Header mismatch: mcp-name".into()) }
}

/// What a header says that may be wrapped as `=?base64?…?=`.
fn unwrap_header(value: &str) -> String {
    let wrapped = value.strip_prefix("=?base64?").and_then(|rest| rest.strip_suffix("?="));
    let bytes = wrapped.and_then(|wrapped| BASE64_STANDARD.decode(wrapped).ok());
    bytes.and_then(|bytes| String::from_utf8(bytes).ok()).unwrap_or_else(|| value.to_owned())
}

/// Whether it is one of the revision that knows no sessions, to a server that knows the revision.
fn is_modern(plan: &Plan, request: &HttpRequest, message: &Value) -> bool {
    let stated = message["params"]["_meta"][VERSION_KEY].as_str().or(request.header("mcp-protocol-version"));
    plan.era != Era::Legacy && stated.is_some_and(|version| version >= MODERN)
}

/// The lines about a request whose session the server does not know, and what it does without one.
pub(crate) fn session(
    host: &HttpHost,
    plan: &Plan,
    request: &HttpRequest,
    message: &Value,
) -> Option<(&'static [&'static str], Vec<Action>)> {
    let initialize = message["method"] == "initialize";
    if !plan.http.sessions || is_modern(plan, request, message) {
        return None;
    }
    let stale = || refusal(404, -32001, "Session not found", Vec::new());
    match (request.header("mcp-session-id"), &*request.verb) {
        (None, _) if initialize => None,
        (None, _) => {
            Some((&["missing"], refusal(400, -32000, "Bad Request: Mcp-Session-Id header is required", Vec::new())))
        }
        (Some(session), _) if host.knows(session) => None,
        (Some(_), _) if initialize => Some((&["stale-initialize", "stale"], stale())),
        (Some(_), "GET") => Some((&["stale-get", "stale"], stale())),
        (Some(_), "DELETE") => Some((&["stale-delete", "stale"], stale())),
        (Some(_), _) => Some((&["stale"], stale())),
    }
}

/// The status that goes with an answer: since 2026-07-28 some errors have their own.
pub(crate) fn status_of(request: &Value, answer: &Value) -> u16 {
    let modern = request["params"]["_meta"][VERSION_KEY].as_str().is_some_and(|version| version >= MODERN);
    match answer["error"]["code"].as_i64() {
        Some(-32601) if modern => 404,
        Some(-32022..=-32020) if modern => 400,
        _ => 200,
    }
}
