//! What a request of the era without sessions must say outside of its message.

use axum::http::{HeaderMap, StatusCode};
use mcp_reconnect_http::headers::{STANDARD_HEADERS, ToolHeaders, decode, standard_headers, version_of};
use serde_json::value::RawValue;

use super::answer::{HEADER_MISMATCH, INVALID_PARAMS, METHOD_NOT_FOUND, Refusal};
use super::edit::find;

pub(super) const VERSION: &str = "mcp-protocol-version";
const PARAM: &str = "mcp-param-";
const CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";

/// What the era has left behind is not there, whatever is behind the listener.
const LEFT_BEHIND: &[&str] =
    &["initialize", "ping", "logging/setLevel", "resources/subscribe", "resources/unsubscribe"];

/// Whether a message speaks a version without sessions: it says so inside or outside, or asks what only that knows.
pub(super) fn is_modern(headers: &HeaderMap, method: Option<&str>, params: Option<&RawValue>) -> bool {
    let modern = |version: &str| version >= STANDARD_HEADERS;
    let outside = headers.get(VERSION).and_then(|version| version.to_str().ok());
    // The handshake names its version in a place of its own, and clients may put the one they want outside as well.
    let outside = outside.filter(|_| method != Some("initialize"));
    outside.is_some_and(modern) || method == Some("server/discover") || version_of(params).is_some()
}

/// Holds a request's headers to its message.
///
/// # Errors
///
/// The refusal, without the request's id.
pub(super) fn check(
    headers: &HeaderMap,
    method: &str,
    params: Option<&RawValue>,
    tool: impl Fn(&str) -> Option<ToolHeaders>,
) -> Result<(), Refusal> {
    let mismatch = |message: String| Refusal::new(StatusCode::BAD_REQUEST, HEADER_MISMATCH, message);
    let missing = |what: &str| {
        Refusal::new(StatusCode::BAD_REQUEST, INVALID_PARAMS, format!("the parameters' _meta has no {what}"))
    };
    let version = version_of(params).ok_or_else(|| missing("io.modelcontextprotocol/protocolVersion"))?;
    let sent = only(headers, VERSION).map_err(mismatch)?;
    if sent != Some(&*version) {
        return Err(mismatch(format!("MCP-Protocol-Version is {}, the message says `{version}`", quoted(sent))));
    }
    let capabilities = params.and_then(|params| find(params.get(), &["_meta", CAPABILITIES]));
    if !capabilities.is_some_and(|capabilities| capabilities.starts_with('{')) {
        return Err(missing(CAPABILITIES));
    }
    let wanted = standard_headers(method, params, &tool);
    for (name, value) in &wanted {
        let sent = only(headers, name.as_str()).map_err(mismatch)?;
        let said = sent.map(decode);
        let expected = value.to_str().ok().and_then(decode);
        // The method is no value that may be wrapped.
        let equal = if name == "mcp-method" { sent == Some(method) } else { said.flatten() == expected };
        if sent.is_none() || !equal {
            return Err(mismatch(format!("{name} is {}, the message says otherwise", quoted(sent))));
        }
    }
    let absent = |name: &String| headers.contains_key(name) && wanted.iter().all(|(wanted, _)| wanted.as_str() != name);
    let called = called_tool(method, params).and_then(|name| tool(&name));
    let mut annotated = called.iter().flat_map(ToolHeaders::names).map(|name| format!("{PARAM}{name}").to_lowercase());
    if let Some(stray) = annotated.find(absent) {
        return Err(mismatch(format!("{stray} stands for no argument of the message")));
    }
    if LEFT_BEHIND.contains(&method) {
        return Err(Refusal::new(StatusCode::NOT_FOUND, METHOD_NOT_FOUND, format!("{version} has no `{method}`")));
    }
    Ok(())
}

/// The tool that is called.
fn called_tool(method: &str, params: Option<&RawValue>) -> Option<String> {
    let name = params.filter(|_| method == "tools/call").and_then(|params| find(params.get(), &["name"]))?;
    serde_json::from_str(name).ok()
}

/// The only value of a header.
fn only<'a>(headers: &'a HeaderMap, name: &str) -> Result<Option<&'a str>, String> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (None, _) => Ok(None),
        (Some(value), None) => {
            let text = value.to_str().map_err(|_| format!("{name} cannot be read"))?;
            Ok(Some(text.trim_matches([' ', '\t'])))
        }
        (Some(_), Some(_)) => Err(format!("{name} stands twice")),
    }
}

fn quoted(value: Option<&str>) -> String {
    value.map_or_else(|| "missing".into(), |value| format!("`{value}`"))
}

/// The status that goes with an answer.
pub(super) fn status_of(answer: Result<(), i64>) -> StatusCode {
    match answer {
        Err(METHOD_NOT_FOUND) => StatusCode::NOT_FOUND,
        Err(-32022..=-32020) => StatusCode::BAD_REQUEST,
        _ => StatusCode::OK,
    }
}

#[cfg(test)]
mod tests {
    use axum::http::{HeaderName, HeaderValue};
    use serde_json::{Value, json};

    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(HeaderName::from_static(name), HeaderValue::from_str(value).unwrap());
        }
        headers
    }

    fn params(more: Value) -> Box<RawValue> {
        let mut params = json!({
            "_meta": { "io.modelcontextprotocol/protocolVersion": "2026-07-28", CAPABILITIES: {} },
        });
        params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        RawValue::from_string(params.to_string()).unwrap()
    }

    fn checked(pairs: &[(&'static str, &str)], method: &str, params: &RawValue) -> i64 {
        let tool = |name: &str| {
            let tool =
                r#"{"name":"t","inputSchema":{"properties":{"region":{"type":"string","x-mcp-header":"Region"}}}}"#;
            ToolHeaders::of_tool(tool).unwrap().filter(|(known, _)| known == name).map(|(_, headers)| headers)
        };
        check(&headers(pairs), method, Some(params), tool).map_or_else(|refusal| refusal.code, |()| 0)
    }

    #[test]
    fn headers_are_held_to_the_message() {
        let version = ("mcp-protocol-version", "2026-07-28");
        let list = params(json!({}));
        assert_eq!(checked(&[version, ("mcp-method", "tools/list")], "tools/list", &list), 0);
        for wrong in [
            &[version] as &[_],
            &[("mcp-method", "tools/list")],
            &[("mcp-protocol-version", "2026-07-29"), ("mcp-method", "tools/list")],
            &[version, ("mcp-method", "TOOLS/LIST")],
            &[version, ("mcp-method", "tools/list"), ("mcp-method", "tools/list")],
            &[version, version, ("mcp-method", "tools/list")],
        ] {
            assert_eq!(checked(wrong, "tools/list", &list), HEADER_MISMATCH, "{wrong:?}");
        }
    }

    #[test]
    fn names_and_arguments_are_held_to_the_message() {
        let call = params(json!({ "name": "t", "arguments": { "region": "Ü" } }));
        let base = [("mcp-protocol-version", "2026-07-28"), ("mcp-method", "tools/call")];
        let with = |more: &[(&'static str, &'static str)]| checked(&[&base, more].concat(), "tools/call", &call);
        let region = ("mcp-param-region", "=?base64?w5w=?=");
        assert_eq!(with(&[("mcp-name", " t "), region]), 0);
        assert_eq!(with(&[("mcp-name", "=?base64?dA==?="), region]), 0);
        assert_eq!(with(&[region]), HEADER_MISMATCH);
        assert_eq!(with(&[("mcp-name", "u"), region]), HEADER_MISMATCH);
        assert_eq!(with(&[("mcp-name", "=?base64?!?="), region]), HEADER_MISMATCH);
        assert_eq!(with(&[("mcp-name", "t")]), HEADER_MISMATCH);
        assert_eq!(with(&[("mcp-name", "t"), ("mcp-param-region", "=?base64?w5w?=")]), HEADER_MISMATCH);
        let without = params(json!({ "name": "t", "arguments": {} }));
        let sent = [&base as &[_], &[("mcp-name", "t"), region]].concat();
        assert_eq!(checked(&sent, "tools/call", &without), HEADER_MISMATCH, "a header for no argument");
        let other = params(json!({ "name": "u", "arguments": {} }));
        let sent = [&base as &[_], &[("mcp-name", "u"), region]].concat();
        assert_eq!(checked(&sent, "tools/call", &other), 0, "a tool that is not known");
    }

    #[test]
    fn a_request_says_its_version_and_what_its_host_can() {
        let sent = [("mcp-protocol-version", "2026-07-28"), ("mcp-method", "tools/list")];
        let raw = |text: &str| RawValue::from_string(text.into()).unwrap();
        for bad in [
            "{}",
            r#"{"_meta":{"io.modelcontextprotocol/clientCapabilities":{}}}"#,
            r#"{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}"#,
            r#"{"_meta":{"io.modelcontextprotocol/protocolVersion":7,"io.modelcontextprotocol/clientCapabilities":{}}}"#,
            "[]",
        ] {
            assert_eq!(checked(&sent, "tools/list", &raw(bad)), INVALID_PARAMS, "{bad}");
        }
        for method in ["initialize", "ping", "resources/subscribe"] {
            let sent = [("mcp-protocol-version", "2026-07-28"), ("mcp-method", method)];
            assert_eq!(checked(&sent, method, &params(json!({}))), METHOD_NOT_FOUND);
        }
    }

    #[test]
    fn the_era_of_a_message() {
        let modern = headers(&[("mcp-protocol-version", "2026-07-28")]);
        let legacy = headers(&[("mcp-protocol-version", "2025-11-25")]);
        let none = HeaderMap::new();
        let inside = params(json!({}));
        assert!(is_modern(&modern, Some("tools/list"), None));
        assert!(is_modern(&none, Some("server/discover"), None));
        assert!(is_modern(&legacy, Some("tools/list"), Some(&inside)));
        assert!(is_modern(&modern, Some("initialize"), Some(&inside)));
        assert!(!is_modern(&modern, Some("initialize"), None));
        assert!(!is_modern(&legacy, Some("tools/list"), None));
        assert!(!is_modern(&none, None, None));
    }
}
