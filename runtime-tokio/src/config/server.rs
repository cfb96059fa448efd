//! One server, as the clients write it.

use std::collections::BTreeMap;
use std::time::Duration;

use super::address::{self, Fields};
use super::json::Json;
use super::problem::ProblemKind;
use super::scope::{Scope, join};
use super::settings::{self, OURS, Settings};
use super::{Endpoint, ServerConfig, ToolFilter};

/// The keys that are read, besides [`OURS`].
const KNOWN: [&str; 21] = [
    "args",
    "command",
    "cwd",
    "disabled",
    "disabledTools",
    "enabled",
    "env",
    "environment",
    "excludeTools",
    "headers",
    "httpUrl",
    "includeTools",
    "mcp-reconnect",
    "serverUrl",
    "source",
    "timeout",
    "tools",
    "transport",
    "transportType",
    "type",
    "url",
];

/// Keys that other clients use for what is their own business.
const OTHERS: [&str; 23] = [
    "$schema",
    "alwaysAllow",
    "autoApprove",
    "category",
    "comment",
    "description",
    "disabledPrompts",
    "displayName",
    "documentation",
    "gallery",
    "icon",
    "iconUrl",
    "icons",
    "id",
    "label",
    "name",
    "note",
    "notes",
    "settings",
    "tags",
    "title",
    "trust",
    "version",
];

/// Keys that a user may count on, and why they do nothing here.
const NOT_READ: [(&str, &str); 9] = [
    ("auth", "logins are the host's business"),
    ("authProviderType", "logins are the host's business"),
    ("dev", "servers are not restarted when their files change"),
    ("envFile", "name its variables under `env`"),
    ("headersHelper", "logins are the host's business"),
    ("oauth", "logins are the host's business"),
    ("sandbox", "the server runs without one"),
    ("sandboxEnabled", "the server runs without one"),
    ("watchPaths", "servers are not restarted when their files change"),
];

/// Up to this a `timeout` counts seconds: clients that count them let no more be set.
const MOST_SECONDS: f64 = 3_600.0;

/// Whose way of writing it is, where that makes a difference.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Dialect {
    Common,
    /// Its `timeout` is about listing tools.
    OpenCode,
}

/// Reads one server; `None` where something is wrong with it, which was told, or where it is another program's alone.
pub(super) fn read(scope: &mut Scope<'_>, value: Json, defaults: &Settings, dialect: Dialect) -> Option<ServerConfig> {
    let before = scope.log.errors.len();
    let members = scope.object("", value)?;
    let mut fields = BTreeMap::new();
    let mut ours = Vec::new();
    for (key, value) in members {
        if value == Json::Null {
            continue;
        }
        if key == OURS {
            ours = scope.object(OURS, value).unwrap_or_default();
        } else if let Some(known) = KNOWN.into_iter().find(|known| *known == key) {
            fields.insert(known, value);
        } else {
            unknown(scope, &key);
        }
    }
    if matches!(fields.get("source"), Some(Json::String(source)) if source == "extension") {
        scope.warn("source", ProblemKind::Ignored, "the server is an editor's extension, and left to it");
        return None;
    }
    let enabled = enabled(scope, &fields);
    // A server that will not be dialled need not be complete.
    scope.unset = (!enabled).then(Vec::new);
    let endpoint = address::read(scope, &mut fields);
    let unset = scope.unset.take().unwrap_or_default();
    let endpoint = if unset.is_empty() { endpoint } else { Some(Endpoint::Refused(unset.join("; ").into())) };

    let mut settings = Settings::read(scope, ours);
    if let Some(timeout) = fields.get("timeout").and_then(|value| timeout(scope, value, dialect)) {
        settings.or_call_timeout(timeout);
    }
    if let Some(filter) = filter(scope, &mut fields) {
        settings.or_tools(filter);
    }
    let mut server = ServerConfig::new(endpoint?);
    server.enabled = enabled;
    settings.warn_of_idle(scope, &server.endpoint);
    let (server, _) = settings.over(defaults).apply(scope, server);
    check(scope, &server);
    (scope.log.errors.len() == before).then_some(server)
}

fn unknown(scope: &mut Scope<'_>, key: &str) {
    if OTHERS.contains(&key) || key.starts_with('_') || key.starts_with("//") {
        return;
    }
    if let Some((_, why)) = NOT_READ.iter().find(|(known, _)| *known == key) {
        return scope.warn(key, ProblemKind::Ignored, format!("is not read: {why}"));
    }
    if let Some(name) = settings::names().find(|name| *name == key) {
        let text = format!("is not known here and was ignored; it belongs into `{OURS}`");
        return scope.warn(key, ProblemKind::UnknownKey { suggestion: Some(name) }, text);
    }
    scope.unknown(key, key, KNOWN);
}

fn enabled(scope: &mut Scope<'_>, fields: &Fields) -> bool {
    let mut flag = |key| fields.get(key).and_then(|value| scope.flag(key, value));
    match (flag("enabled"), flag("disabled")) {
        (Some(enabled), Some(disabled)) if enabled == disabled => {
            scope.error("disabled", ProblemKind::Conflict, "contradicts `enabled`");
            true
        }
        (Some(enabled), _) => enabled,
        (None, disabled) => disabled != Some(true),
    }
}

/// The `timeout` that clients share; some count it in seconds, some in milliseconds.
fn timeout(scope: &mut Scope<'_>, value: &Json, dialect: Dialect) -> Option<Duration> {
    if dialect == Dialect::OpenCode {
        scope.warn("timeout", ProblemKind::Ignored, format!("is not read; `{OURS}.connect_timeout` bounds a start"));
        return None;
    }
    let Json::Number(number) = value else { return settings::call_timeout(scope, "timeout", value) };
    let seconds = number.as_f64().is_some_and(|number| number <= MOST_SECONDS);
    let read = if seconds { value.clone() } else { Json::String(format!("{number}ms")) };
    let timeout = settings::call_timeout(scope, "timeout", &read)?;
    let unit = if seconds { "seconds, as every number up to 3600" } else { "milliseconds, as every number above 3600" };
    let text = format!(
        "{number} was read as {timeout:?} ({unit}), for clients do not agree on the unit; `{OURS}.call_timeout` has one"
    );
    scope.warn("timeout", ProblemKind::Unit, text);
    Some(timeout)
}

/// The tool filters of several clients; all that are there hold.
fn filter(scope: &mut Scope<'_>, fields: &mut Fields) -> Option<ToolFilter> {
    let mut filter = match fields.remove("tools") {
        Some(value @ Json::Array(_)) => ToolFilter { include: scope.names("tools", &value), ..ToolFilter::default() },
        Some(value) => settings::tools(scope, "tools", value).unwrap_or_default(),
        None => ToolFilter::default(),
    };
    if let Some(value) = fields.remove("includeTools") {
        if filter.include.is_some() {
            scope.error("includeTools", ProblemKind::Conflict, "stands beside `tools`");
        }
        filter.include = scope.names("includeTools", &value);
    }
    for key in ["excludeTools", "disabledTools"] {
        if let Some(value) = fields.remove(key) {
            filter.exclude.extend(scope.names(key, &value).unwrap_or_default());
        }
    }
    (filter != ToolFilter::default()).then_some(filter)
}

/// Checks settings against each other.
fn check(scope: &mut Scope<'_>, server: &ServerConfig) {
    let (close_timeout, ladder) = (server.machine.close_timeout(), server.connector().close_bound());
    if close_timeout <= ladder {
        let error = crate::error::BuildError::CloseTimeout { close_timeout, ladder };
        scope.error(&join(OURS, "close_timeout"), ProblemKind::Value, error.to_string());
    }
    if let Some(max) = server.calls.max_timeout
        && max < server.calls.timeout
    {
        let text = format!("`call_max_timeout` is {max:?}, below `call_timeout` ({:?})", server.calls.timeout);
        scope.error(&join(OURS, "call_max_timeout"), ProblemKind::Value, text);
    }
    #[cfg(feature = "http")]
    if let Endpoint::Http(http) = &server.endpoint
        && let Some(proxy) = &http.proxy
    {
        let checked = mcp_reconnect_http::HttpServer::new("http://localhost/").and_then(|server| server.proxy(proxy));
        if let Err(error) = checked {
            scope.error(&join(OURS, "proxy"), ProblemKind::Value, error.to_string());
        }
    }
}
