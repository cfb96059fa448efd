//! What HTTP answers mean, and what requests say in their headers.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use http::header::{RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use mcp_reconnect_core::FailureClass;
use mcp_reconnect_core::replay::Sent;
use mcp_reconnect_http::classify::{Asked, Classification, SESSION_LOSS, Says, classify, is_gate_sentence};
use mcp_reconnect_http::headers::{ToolHeaders, standard_headers, version_of};
use mcp_reconnect_http::retry_after;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::cursor::Cursor;

/// 1994-11-06 08:49:37 UTC, the example of RFC 9110.
const NOW: u64 = 784_111_777;

/// Every answer is classified, by the table and never against it; every hint is read; every header that is sent says what
/// the request holds.
///
/// Bytes: which of the three, then what it takes.
pub fn http_classify(data: &[u8]) {
    let mut data = Cursor(data);
    match data.byte() % 4 {
        0 | 1 => answer(data),
        2 => hint(data),
        _ => headers(data),
    }
}

/// Bytes: status, request, a line with a `Retry-After`, a line with a challenge, the body.
fn answer(mut data: Cursor<'_>) {
    const STATUS: [u16; 16] = [400, 401, 403, 404, 405, 410, 429, 500, 501, 502, 503, 504, 302, 308, 418, 599];
    let listed = data.one(STATUS);
    let other = 100 + 4 * u16::from(data.byte());
    let status = if other == 100 { listed } else { other.min(999) };
    let status = StatusCode::from_u16(status).expect("three digits");
    let flags = data.byte();
    let session = flags & 1 != 0;
    let id = [Some("7"), Some("\"a\""), Some("null"), None][usize::from(flags / 2 % 4)];
    let mut map = HeaderMap::new();
    for name in [RETRY_AFTER, WWW_AUTHENTICATE] {
        let line = data.line();
        if !line.is_empty()
            && let Ok(value) = HeaderValue::from_bytes(line)
        {
            map.append(name, value);
        }
    }
    let challenged = map.contains_key(WWW_AUTHENTICATE);
    let body = String::from_utf8_lossy(data.0);
    let now = SystemTime::UNIX_EPOCH + Duration::from_secs(NOW);
    let judge = |session, body: &str| classify(Asked { id, session }, status, &map, body, now);

    let verdict = judge(session, &body);
    assert_eq!(judge(session, &format!("\r\n {body}\t")), verdict, "white space around a body says nothing");
    let failure = verdict.failure();
    let hint = map.get(RETRY_AFTER).and_then(|value| retry_after(value.to_str().ok()?, now));
    assert!(failure.retry_after.is_none() || failure.retry_after == hint, "{verdict:?} with the hint {hint:?}");
    match &verdict {
        Classification::Answer => {
            assert!(id.is_some() && has_error_or_result(&body), "{body} is no answer");
            assert!(!matches!(status.as_u16(), 401 | 429), "{status}: {verdict:?}");
        }
        Classification::SessionGone => {
            assert!(session && !challenged, "{status}: lost what it did not have: {body}");
            let listed = SESSION_LOSS.iter().find(|loss| loss.status == status.as_u16());
            let gate = is_gate_sentence(&body) || has_gate(&body);
            assert!(listed.is_some_and(|loss| loss.says == Says::Anything) || gate, "{status}: no loss: {body}");
            assert_eq!((failure.class, verdict.sent()), (FailureClass::SessionGone, Sent::Refused));
        }
        Classification::Unauthorized(challenge) => {
            assert!(matches!(status.as_u16(), 401 | 403) && challenge.is_empty() != challenged);
            assert_eq!(failure.class, FailureClass::NeedsAuth);
        }
        Classification::RateLimited(_) => assert_eq!((status.as_u16(), failure.retry_after), (429, hint)),
        Classification::ServerError(_) => {
            assert!(status.as_u16() >= 500 && verdict.sent() == Sent::Maybe && failure.retry_after == hint);
        }
        Classification::Forbidden => assert!(status == 403 && !challenged),
        Classification::NotFound => assert_eq!(status.as_u16(), 404),
        Classification::Refused => assert!(status.as_u16() < 500 || status == 501),
    }
    let bare = classify(Asked { id, session: true }, status, &HeaderMap::new(), &body, now);
    let lost = bare == Classification::SessionGone && !challenged;
    assert_eq!(judge(true, &body) == Classification::SessionGone, lost, "of the headers the challenge alone counts");
    assert_ne!(judge(false, &body), Classification::SessionGone, "without an id nothing is lost");
}

/// The objects that a body holds: itself, or those of a batch. Members stay text: a number may be one that no type holds.
fn objects(body: &str) -> Vec<HashMap<String, Box<RawValue>>> {
    let body = body.trim();
    if let Ok(object) = serde_json::from_str(body) {
        return vec![object];
    }
    let batch = serde_json::from_str::<Vec<Box<RawValue>>>(body).unwrap_or_default();
    batch.iter().filter_map(|value| serde_json::from_str(value.get()).ok()).collect()
}

fn has_error_or_result(body: &str) -> bool {
    objects(body).iter().any(|object| object.contains_key("error") || object.contains_key("result"))
}

/// Whether anything in a body speaks like a gate.
fn has_gate(body: &str) -> bool {
    let error = |object: &HashMap<String, Box<RawValue>>| serde_json::from_str(object.get("error")?.get()).ok();
    objects(body).iter().any(|object| match error(object) {
        Some(Value::String(error)) => is_gate_sentence(&error),
        Some(Value::Object(error)) => error.get("message").and_then(Value::as_str).is_some_and(is_gate_sentence),
        _ => false,
    })
}

/// Bytes: four of seconds, then the value of a header.
fn hint(mut data: Cursor<'_>) {
    let seconds = u64::from(u32::from_le_bytes([data.byte(), data.byte(), data.byte(), data.byte()]));
    let now = SystemTime::UNIX_EPOCH + Duration::from_secs(NOW);
    let date = httpdate::fmt_http_date(now + Duration::from_secs(seconds));
    assert_eq!(retry_after(&date, now), Some(Duration::from_secs(seconds)), "{date}");
    assert_eq!(retry_after(&format!(" {seconds}\t"), now), Some(Duration::from_secs(seconds)));
    assert_eq!(retry_after(&date, now + Duration::from_secs(seconds + 1)), Some(Duration::ZERO), "{date} has passed");

    let value = String::from_utf8_lossy(data.0);
    let read = retry_after(&value, now);
    assert_eq!(retry_after(value.trim(), now), read);
    let value = value.trim();
    if let Ok(seconds) = value.parse::<u64>()
        && !value.starts_with('+')
    {
        assert_eq!(read, Some(Duration::from_secs(seconds)));
    }
    if value.starts_with(['-', '+', '.']) {
        assert_eq!(read, None, "{value:?}");
    }
}

/// Bytes: method, a line with the name, text for the argument; or, for an odd method, a tool's schema as JSON.
fn headers(mut data: Cursor<'_>) {
    let (method, member) = data.one([
        ("tools/call", "name"),
        ("prompts/get", "name"),
        ("resources/read", "uri"),
        ("tasks/cancel", "taskId"),
    ]);
    let name = String::from_utf8_lossy(data.line()).into_owned();
    let text = String::from_utf8_lossy(data.0).into_owned();

    let schema = json!({ "properties": { "a": { "type": "string", "x-mcp-header": "A" } } });
    let tool = json!({ "name": name, "inputSchema": schema });
    let Ok(Some((listed, wanted))) = ToolHeaders::of_tool(&tool.to_string()) else { panic!("{tool} is valid") };
    assert_eq!(listed, name);
    let params = raw(&json!({ member: name, "arguments": { "a": text } }));
    let headers = standard_headers(method, Some(&params), |asked| (asked == name).then(|| wanted.clone()));
    let mut expected = vec![("mcp-method", method), ("mcp-name", &name)];
    if method == "tools/call" {
        expected.push(("mcp-param-a", &text));
    }
    assert_eq!(headers.len(), expected.len(), "{headers:?}");
    for ((found, value), (wanted, text)) in headers.iter().zip(expected) {
        assert_eq!((found.as_str(), decoded(value)), (wanted, text.to_owned()));
    }
    let [(_, value)] = &standard_headers(&text, None, |_| None)[..] else { panic!("one header for {text:?}") };
    assert_eq!(decoded(value), text);

    // Whatever a server lists, and whatever is asked of it.
    if let Ok(Some((name, wanted))) = ToolHeaders::of_tool(&text) {
        let params = raw(&json!({ "name": name, "arguments": serde_json::from_str::<Value>(&text).ok() }));
        for (name, value) in standard_headers("tools/call", Some(&params), |_| Some(wanted)) {
            drop(decoded(&value));
            assert!(HeaderName::from_bytes(name.as_str().as_bytes()).is_ok());
        }
    }
    let version = json!({ "_meta": { "io.modelcontextprotocol/protocolVersion": text } });
    assert_eq!(version_of(Some(&raw(&version))).as_deref(), Some(&*text));
    if let Ok(params) = RawValue::from_string(text) {
        drop(version_of(Some(&params)));
        drop(standard_headers(method, Some(&params), |_| Some(ToolHeaders::default())));
    }
}

fn raw(value: &Value) -> Box<RawValue> {
    serde_json::value::to_raw_value(value).expect("a value")
}

/// What a receiver takes a header for, which must reach it as it is: SEP-2243.
fn decoded(value: &HeaderValue) -> String {
    let text = value.to_str().expect("visible ASCII");
    assert!(text.trim_matches([' ', '\t']) == text && !text.contains('\t'), "{text:?} does not arrive as it is");
    match text.strip_prefix("=?base64?").and_then(|text| text.strip_suffix("?=")) {
        Some(wrapped) => String::from_utf8(BASE64_STANDARD.decode(wrapped).expect("base64")).expect("UTF-8"),
        None => text.to_owned(),
    }
}
