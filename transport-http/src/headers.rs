//! The headers of 2026-07-28, which say outside what a request holds inside (SEP-2243).

use std::borrow::Cow;
use std::collections::HashSet;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use http::{HeaderName, HeaderValue};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

/// From this protocol version on requests carry the standard headers, and no session ids.
pub const STANDARD_HEADERS: &str = "2026-07-28";

/// Which member of the parameters names what a request is about.
const NAMED_BY: &[(&str, &[&str])] = &[
    ("name", &["tools/call", "prompts/get"]),
    ("uri", &["resources/read", "resources/subscribe", "resources/unsubscribe"]),
    ("taskId", &["tasks/get", "tasks/update", "tasks/cancel"]),
];

const ANNOTATION: &str = "x-mcp-header";

/// The `_meta` member that names the version of a request.
const VERSION_META: &str = "io.modelcontextprotocol/protocolVersion";

/// The protocol version that a request says it speaks in its `_meta`.
pub fn version_of(params: Option<&RawValue>) -> Option<String> {
    let params = params?.get();
    if !params.contains(VERSION_META) {
        return None;
    }
    let params: Value = serde_json::from_str(params).ok()?;
    params.get("_meta")?.get(VERSION_META)?.as_str().map(str::to_owned)
}

/// The standard headers of a message with this method and these parameters. `tool` is what its tool wants as headers.
pub fn standard_headers(
    method: &str,
    params: Option<&RawValue>,
    tool: impl FnOnce(&str) -> Option<ToolHeaders>,
) -> Vec<(HeaderName, HeaderValue)> {
    let mut headers = Vec::new();
    push(&mut headers, "mcp-method", method);
    let Some(member) = NAMED_BY.iter().find(|(_, methods)| methods.contains(&method)).map(|(member, _)| member) else {
        return headers;
    };
    let Some(params) = params.and_then(|params| serde_json::from_str::<Value>(params.get()).ok()) else {
        return headers;
    };
    let Some(name) = params.get(member).and_then(Value::as_str) else { return headers };
    push(&mut headers, "mcp-name", name);
    if method == "tools/call"
        && let Some(ToolHeaders(wanted)) = tool(name)
        && let Some(arguments) = params.get("arguments")
    {
        for (path, header) in wanted {
            let value = path.iter().try_fold(arguments, |value, key| value.get(key));
            if let Some(text) = value.and_then(primitive) {
                push(&mut headers, &format!("mcp-param-{header}"), &text);
            }
        }
    }
    headers
}

fn push(headers: &mut Vec<(HeaderName, HeaderValue)>, name: &str, value: &str) {
    let name = HeaderName::from_bytes(name.as_bytes());
    if let (Ok(name), Ok(value)) = (name, HeaderValue::from_str(&encode(value))) {
        headers.push((name, value));
    }
}

fn primitive(value: &Value) -> Option<Cow<'_, str>> {
    match value {
        Value::String(text) => Some(text.into()),
        Value::Bool(_) | Value::Number(_) => Some(value.to_string().into()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

/// A value as it may stand in a header: as it is, or wrapped as `=?base64?…?=`.
fn encode(value: &str) -> Cow<'_, str> {
    let blank = |byte: Option<&u8>| matches!(byte, Some(b' ' | b'\t'));
    let bytes = value.as_bytes();
    let printable = bytes.iter().all(|byte| (0x20..0x7f).contains(byte));
    let looks_wrapped = value.starts_with("=?base64?") && value.ends_with("?=");
    if !printable || looks_wrapped || blank(bytes.first()) || blank(bytes.last()) {
        format!("=?base64?{}?=", BASE64_STANDARD.encode(value)).into()
    } else {
        value.into()
    }
}

/// Reads a header value, unwrapped where it is wrapped as `=?base64?…?=`; `None` where what is wrapped is no text in
/// Base64.
pub fn decode(value: &str) -> Option<Cow<'_, str>> {
    let Some(wrapped) = value.strip_prefix("=?base64?").and_then(|rest| rest.strip_suffix("?=")) else {
        return Some(value.into());
    };
    Some(String::from_utf8(BASE64_STANDARD.decode(wrapped).ok()?).ok()?.into())
}

/// Which arguments of a tool are repeated as `Mcp-Param-*` headers: the path of each, and the header's last part.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToolHeaders(Vec<(Vec<String>, String)>);

impl ToolHeaders {
    /// Reads the `x-mcp-header` annotations of a tool's input schema.
    ///
    /// # Errors
    ///
    /// Which annotation is invalid: such a tool must not be offered over HTTP.
    pub fn of_schema(schema: &Map<String, Value>) -> Result<Self, String> {
        if has_stray_annotation(schema, true) || schema.contains_key(ANNOTATION) {
            return Err(format!("{ANNOTATION} stands where no argument is"));
        }
        let mut found = Self::default();
        found.collect(schema, &mut Vec::new())?;
        let mut seen = HashSet::new();
        match found.0.iter().find(|(_, header)| !seen.insert(header.to_ascii_lowercase())) {
            Some((_, twice)) => Err(format!("{ANNOTATION} `{twice}` stands twice")),
            None => Ok(found),
        }
    }

    /// Reads the annotations of a tool as a server lists it; its name, and what it wants.
    ///
    /// # Errors
    ///
    /// As [`of_schema`](Self::of_schema).
    pub fn of_tool(tool: &str) -> Result<Option<(String, Self)>, String> {
        if !tool.contains(ANNOTATION) {
            return Ok(None);
        }
        let Ok(Value::Object(mut tool)) = serde_json::from_str(tool) else { return Ok(None) };
        match (tool.remove("name"), tool.get("inputSchema")) {
            (Some(Value::String(name)), Some(Value::Object(schema))) => Ok(Some((name, Self::of_schema(schema)?))),
            _ => Ok(None),
        }
    }

    /// The last parts of the headers.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(_, header)| header.as_str())
    }

    fn collect(&mut self, schema: &Map<String, Value>, path: &mut Vec<String>) -> Result<(), String> {
        let Some(Value::Object(properties)) = schema.get("properties") else { return Ok(()) };
        for (name, schema) in properties {
            let Value::Object(schema) = schema else { continue };
            path.push(name.clone());
            if let Some(header) = schema.get(ANNOTATION) {
                let argument = path.join(".");
                let header = header.as_str().filter(|header| is_token(header));
                let header = header.ok_or_else(|| format!("{ANNOTATION} of `{argument}` is no header name"))?;
                if !matches!(schema.get("type").and_then(Value::as_str), Some("string" | "integer" | "boolean")) {
                    return Err(format!("{ANNOTATION} of `{argument}`, which is no string, integer or boolean"));
                }
                self.0.push((path.clone(), header.to_owned()));
            }
            self.collect(schema, path)?;
            path.pop();
        }
        Ok(())
    }
}

/// RFC 9110, 5.6.2.
fn is_token(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte))
}

/// Whether an annotation stands off the chain of `properties` that leads to an argument.
fn has_stray_annotation(schema: &Map<String, Value>, on_chain: bool) -> bool {
    schema.iter().any(|(key, value)| match key.as_str() {
        ANNOTATION => !on_chain,
        "properties" => value.as_object().is_some_and(|map| map.values().any(|value| stray(value, on_chain))),
        "$defs" | "definitions" | "dependencies" | "dependentSchemas" | "patternProperties" => {
            value.as_object().is_some_and(|map| map.values().any(|value| stray(value, false)))
        }
        // These hold data, or names.
        "default" | "const" | "enum" | "examples" | "dependentRequired" => false,
        _ => stray(value, false),
    })
}

fn stray(value: &Value, on_chain: bool) -> bool {
    match value {
        Value::Object(schema) => has_stray_annotation(schema, on_chain),
        Value::Array(items) => items.iter().any(|item| stray(item, false)),
        _ => false,
    }
}

#[cfg(test)]
mod tests;
