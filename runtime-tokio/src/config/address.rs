//! Where a server is, as the clients write it.

use std::collections::BTreeMap;
use std::ffi::OsString;

#[cfg(feature = "http")]
use super::endpoint::origin;
use super::json::Json;
#[cfg(feature = "http")]
use super::json::quoted;
use super::problem::ProblemKind;
use super::scope::{Scope, join};
use super::{Endpoint, Http, Stdio};

/// The members of a server that are not read yet.
pub(super) type Fields = BTreeMap<&'static str, Json>;

/// The transport that a server's `type` names.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Transport {
    Stdio,
    Http,
    Unsupported(&'static str),
}

/// Reads it; `None` where something is wrong with it, which was told.
pub(super) fn read(scope: &mut Scope<'_>, fields: &mut Fields) -> Option<Endpoint> {
    let said = transport(scope, fields)?;
    if let Some(Transport::Unsupported(name)) = said {
        let text = match name {
            "sse" => {
                "the transport `sse` (HTTP+SSE of 2024-11-05) is not spoken; use the server's streamable HTTP endpoint, \
                 often the same URL with `/mcp` in the place of `/sse`, with `\"type\": \"http\"`"
            }
            _ => "the transport `ws` is not spoken; use `http` or `stdio`",
        };
        scope.warn("type", ProblemKind::Unsupported, text);
        return Some(Endpoint::Refused(text.into()));
    }
    let mut urls = ["url", "serverUrl", "httpUrl"].into_iter().filter_map(|key| fields.remove_entry(key));
    let url = urls.next();
    for (key, _) in urls {
        scope.error(key, ProblemKind::Conflict, "the server has another URL already");
    }
    let command = fields.remove("command");
    match (command, url, said) {
        (Some(_), Some((key, _)), _) => {
            scope.error("command", ProblemKind::Conflict, format!("stands beside `{key}`: a server has one of them"));
            None
        }
        (None, None, said) => {
            let wanted = match said {
                Some(Transport::Stdio) => "`command`",
                Some(Transport::Http) => "`url`",
                Some(Transport::Unsupported(_)) | None => "`command` or `url`",
            };
            scope.error("", ProblemKind::Missing, format!("has no {wanted}"));
            None
        }
        (Some(_), None, Some(Transport::Http)) => {
            scope.error("command", ProblemKind::Conflict, "contradicts the `type`, which wants a `url`");
            None
        }
        (None, Some((key, _)), Some(Transport::Stdio)) => {
            scope.error(key, ProblemKind::Conflict, "contradicts the `type`, which wants a `command`");
            None
        }
        (Some(command), None, _) => stdio(scope, &command, fields).map(Endpoint::Stdio),
        (None, Some((key, url)), _) => http(scope, key, &url, fields).map(Endpoint::Http),
    }
}

/// Reads `type` and its synonyms; the outer `None`: something is wrong with them.
#[expect(clippy::option_option, reason = "wrong, or not there")]
fn transport(scope: &mut Scope<'_>, fields: &Fields) -> Option<Option<Transport>> {
    let mut said = None;
    for key in ["type", "transport", "transportType"] {
        let Some(value) = fields.get(key) else { continue };
        let transport = match value {
            Json::String(name) => match name.to_ascii_lowercase().replace(['-', '_'], "").as_str() {
                "stdio" | "local" => Some(Transport::Stdio),
                "http" | "streamablehttp" | "remote" => Some(Transport::Http),
                "sse" => Some(Transport::Unsupported("sse")),
                "ws" | "websocket" => Some(Transport::Unsupported("ws")),
                _ => None,
            },
            _ => None,
        };
        let Some(transport) = transport else {
            let known = "none of `\"stdio\"`, `\"http\"`, `\"streamable-http\"`";
            scope.error(key, ProblemKind::Value, format!("{} is {known}", value.shown()));
            return None;
        };
        if said.replace(transport).is_some_and(|said| said != transport) {
            scope.error(key, ProblemKind::Conflict, "contradicts `type`, or a synonym");
            return None;
        }
    }
    Some(said)
}

fn stdio(scope: &mut Scope<'_>, command: &Json, fields: &mut Fields) -> Option<Stdio> {
    let mut words = Vec::new();
    let mut whole = true;
    match command {
        // The program and its first arguments in one list.
        Json::Array(items) if !items.is_empty() => {
            for (at, item) in items.iter().enumerate() {
                let word = scope.expanded(&format!("command[{at}]"), item);
                whole &= word.is_some();
                words.extend(word);
            }
        }
        Json::String(_) => {
            let word = scope.expanded("command", command);
            whole &= word.is_some();
            words.extend(word);
        }
        other => {
            scope.wrong_type("command", other, "a string, or an array of strings that is not empty");
            whole = false;
        }
    }
    match fields.remove("args") {
        None => {}
        Some(Json::Array(items)) => {
            for (at, item) in items.iter().enumerate() {
                let word = scope.expanded(&format!("args[{at}]"), item);
                whole &= word.is_some();
                words.extend(word);
            }
        }
        Some(other) => {
            scope.wrong_type("args", &other, "an array of strings");
            whole = false;
        }
    }
    let env = env(scope, fields);
    let cwd = match fields.remove("cwd") {
        None => Some(None),
        Some(value) => scope.expanded("cwd", &value).map(Some),
    };
    if let Some(Some(cwd)) = &cwd
        && cwd.is_empty()
    {
        scope.error("cwd", ProblemKind::Value, "is empty");
    }
    if fields.contains_key("headers") {
        scope.warn("headers", ProblemKind::Ignored, "has no meaning for a child process");
    }
    let (true, Some(env), Some(cwd)) = (whole, env, cwd) else { return None };
    let mut words = words.into_iter();
    let program = words.next().unwrap_or_default();
    if program.trim().is_empty() {
        scope.error("command", ProblemKind::Value, "is empty");
    }
    for (field, path) in [("command", Some(&program)), ("cwd", cwd.as_ref())] {
        if path.is_some_and(|path| path == "~" || path.starts_with("~/")) {
            scope.warn(field, ProblemKind::Value, "`~` stands for itself; write `${HOME}` for the home directory");
        }
    }
    let mut stdio = Stdio::new(program);
    stdio.args = words.map(Into::into).collect();
    stdio.env = env;
    stdio.cwd = cwd.map(Into::into);
    Some(stdio)
}

fn env(scope: &mut Scope<'_>, fields: &mut Fields) -> Option<BTreeMap<OsString, Option<OsString>>> {
    let mut env = BTreeMap::new();
    let mut whole = true;
    let given: Vec<_> = ["env", "environment"].into_iter().filter_map(|key| fields.remove_entry(key)).collect();
    for (key, value) in given {
        for (name, value) in scope.object(key, value)? {
            let field = join(key, &name);
            if name.is_empty() || name.contains(['=', '\0']) {
                scope.error(&field, ProblemKind::Value, "is no name for a variable");
                whole = false;
                continue;
            }
            let value = match value {
                Json::Null => Some(None),
                Json::Number(number) => Some(Some(number.to_string())),
                other => scope.expanded(&field, &other).map(Some),
            };
            match value {
                Some(value) => {
                    if env.insert(OsString::from(name), value.map(OsString::from)).is_some() {
                        scope.error(&field, ProblemKind::Duplicate, "is there twice");
                    }
                }
                None => whole = false,
            }
        }
    }
    whole.then_some(env)
}

fn http(scope: &mut Scope<'_>, key: &str, url: &Json, fields: &mut Fields) -> Option<Http> {
    let url = scope.expanded(key, url);
    let mut headers = Some(BTreeMap::new());
    if let Some(value) = fields.remove("headers") {
        match value {
            Json::Object(members) => {
                for (name, value) in scope.unique("headers", members, true) {
                    match (scope.expanded(&join("headers", &name), &value), &mut headers) {
                        (Some(value), Some(headers)) => drop(headers.insert(name, value)),
                        (_, headers) => *headers = None,
                    }
                }
            }
            other => scope.wrong_type("headers", &other, "an object"),
        }
    }
    for key in ["args", "cwd", "env", "environment"] {
        if fields.contains_key(key) {
            scope.warn(key, ProblemKind::Ignored, "has no meaning for a server behind HTTP");
        }
    }
    let mut http = Http::new(url?);
    http.headers = headers?;
    #[cfg(feature = "http")]
    check_http(scope, key, &http);
    Some(http)
}

/// Adds the transport's own complaint about each part, so that all of them are reported at once.
#[cfg(feature = "http")]
fn check_http(scope: &mut Scope<'_>, key: &str, http: &Http) {
    use mcp_reconnect_http::HttpServer;

    if let Err(error) = HttpServer::new(&http.url) {
        let origin = match origin(&http.url) {
            "" => String::new(),
            origin => format!("{}: ", quoted(origin)),
        };
        scope.error(key, ProblemKind::Value, format!("{origin}{error}"));
    }
    for (name, value) in &http.headers {
        let checked = HttpServer::new("http://localhost/").and_then(|server| server.header(name, value));
        if let Err(error) = checked {
            scope.error(&join("headers", name), ProblemKind::Value, error.to_string());
        }
    }
}
