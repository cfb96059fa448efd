//! The meaning of HTTP answers, and the headers of requests.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use http::header::{RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use mcp_reconnect_core::FailureClass;
use mcp_reconnect_core::replay::Sent;
use mcp_reconnect_http::classify::{
    Asked, Classification, Reach, Refusal, classify, comes_before_handlers, is_gate_error, is_gate_sentence,
};
use mcp_reconnect_http::headers::{ToolHeaders, standard_headers, version_of};
use mcp_reconnect_http::{LONGEST_HINT, retry_after};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::cursor::Cursor;

/// 1994-11-06 08:49:37 UTC, the example of RFC 9110.
const NOW: u64 = 784_111_777;

/// Every answer is classified by the rules, and by words only where it says so; every hint is read; every header that is sent says what
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
    const STATUS: [u16; 16] = [400, 401, 403, 404, 405, 410, 429, 500, 501, 502, 503, 504, 302, 308, 407, 408];
    let listed = data.one(STATUS);
    let other = 100 + 4 * u16::from(data.byte());
    let status = if other == 100 { listed } else { other.min(999) };
    let status = StatusCode::from_u16(status).expect("three digits");
    let flags = data.byte();
    let id = [Some("7"), Some("\"a\""), Some("null"), None][usize::from(flags / 2 % 4)];
    let asked = Asked { id, session: flags & 1 != 0, established: flags & 8 != 0, words: flags & 16 != 0 };
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
    let judge = |asked, body: &str| classify(asked, status, &map, body, now);

    let found = judge(asked, &body);
    let mark = if body.starts_with('\u{feff}') { "" } else { "\u{feff}\r\n " };
    assert_eq!(judge(asked, &format!("{mark}{body}\t")), found, "white space around a body says nothing");
    match &found {
        Classification::Answer => {
            assert!(id.is_some() && has_error_or_result(&body), "{body} is no answer");
            assert!(!matches!(status.as_u16(), 401 | 429), "{status}: {found:?}");
            // Whatever else is known of the session.
            let other = Asked { session: !asked.session, established: !asked.established, words: !asked.words, id };
            assert_eq!(judge(other, &body), found);
        }
        Classification::Unauthorized(challenge) => {
            assert!(matches!(status.as_u16(), 401 | 403) && challenge.is_empty() != challenged);
        }
        Classification::Refused(refusal) => {
            let hint = map.get(RETRY_AFTER).and_then(|value| retry_after(value.to_str().ok()?, now));
            refused(refusal, asked, status.as_u16(), &body, hint);
            assert!(!challenged || !matches!(status.as_u16(), 401 | 403), "{status}: a login was asked for");
        }
    }
    // Words are a shortcut: without them it is a doubt of which the gate is known, or a login.
    let with = judge(Asked { words: true, ..asked }, &body);
    let without = judge(Asked { words: false, ..asked }, &body);
    if with != without {
        let Classification::Refused(lost) = &with else { panic!("{with:?} by words, else {without:?}") };
        assert_eq!((lost.reach, lost.sent, lost.gate), (Reach::Session, Sent::Refused, true));
        match without {
            Classification::Refused(doubt) => assert!(doubt.gate && doubt.reach != Reach::Session, "{doubt:?}"),
            Classification::Unauthorized(challenge) => assert!(challenge.is_empty() && !challenged),
            Classification::Answer => panic!("an answer is none, by words: {body}"),
        }
    }
}

fn refused(refusal: &Refusal, asked: Asked<'_>, status: u16, body: &str, hint: Option<Duration>) {
    let code = refusal.rpc.as_ref().map(|(code, _)| *code);
    let lost = refusal.reach == Reach::Session;
    if lost {
        assert!(asked.session && asked.id.is_some(), "{status}: lost what it did not have: {body}");
        assert!(matches!(status, 404 | 410) || asked.words && has_gate(body), "{status}: no loss: {body}");
        assert_eq!(refusal.failure, FailureClass::SessionGone.into());
    } else {
        assert_eq!(refusal.failure.retry_after, hint);
        assert!(asked.id.is_none() || !asked.session || !matches!(status, 404 | 410), "{status}: not lost: {body}");
    }
    assert_eq!(refusal.failure.class == FailureClass::RateLimited, status == 429);
    if refusal.reach == Reach::Exchange {
        assert!(asked.id.is_none() || status == 429 || matches!(code, Some(-32021 | -32020)), "{status}: {body}");
    }
    let form = [405, 406, 407, 411, 413, 414, 415, 417, 421, 425, 426, 428, 429, 431, 511].contains(&status);
    let gate = form || [400, 401, 402, 403, 404, 410, 501].contains(&status);
    let words = refusal.rpc.as_ref().is_some_and(|(code, message)| comes_before_handlers(*code, message));
    assert_eq!(refusal.gate, gate || words || code == Some(-32022), "{status}: {refusal:?}");
    if asked.established && !lost && refusal.sent == Sent::Refused {
        assert!(form || matches!(code, Some(-32020 | -32022)), "{status}: only its words say that it did not run");
    }
    assert_ne!(refusal.sent, Sent::No);
}

/// The objects that a body holds: itself, or those of a batch. Members stay text: a number may be one that no type holds.
fn objects(body: &str) -> Vec<HashMap<String, Box<RawValue>>> {
    let body = body.trim_start_matches('\u{feff}').trim();
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
    is_gate_sentence(body.trim_start_matches('\u{feff}'))
        || objects(body).iter().any(|object| match error(object) {
            Some(Value::String(error)) => is_gate_sentence(&error),
            Some(Value::Object(error)) => {
                let code = error.get("code").map_or(Some(0), Value::as_i64);
                let message = error.get("message").and_then(Value::as_str).unwrap_or_default();
                code.is_some_and(|code| is_gate_error(code, message)) || is_gate_sentence(message)
            }
            _ => false,
        })
}

/// Bytes: four of seconds, then the value of a header.
fn hint(mut data: Cursor<'_>) {
    let seconds = u64::from(u32::from_le_bytes([data.byte(), data.byte(), data.byte(), data.byte()]));
    let now = SystemTime::UNIX_EPOCH + Duration::from_secs(NOW);
    let date = httpdate::fmt_http_date(now + Duration::from_secs(seconds));
    let wanted = Some(Duration::from_secs(seconds).min(LONGEST_HINT));
    assert_eq!(retry_after(&date, now), wanted, "{date}");
    assert_eq!(retry_after(&format!(" {seconds}\t"), now), wanted);
    assert_eq!(retry_after(&date, now + Duration::from_secs(seconds + 1)), Some(Duration::ZERO), "{date} has passed");

    let value = String::from_utf8_lossy(data.0);
    let read = retry_after(&value, now);
    assert_eq!(retry_after(value.trim(), now), read);
    let value = value.trim();
    if let Ok(seconds) = value.parse::<u64>()
        && !value.starts_with('+')
    {
        assert_eq!(read, Some(Duration::from_secs(seconds).min(LONGEST_HINT)));
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

/// Reads a header as its receiver does, which it must reach as it is: SEP-2243.
fn decoded(value: &HeaderValue) -> String {
    let text = value.to_str().expect("visible ASCII");
    assert!(text.trim_matches([' ', '\t']) == text && !text.contains('\t'), "{text:?} does not arrive as it is");
    match text.strip_prefix("=?base64?").and_then(|text| text.strip_suffix("?=")) {
        Some(wrapped) => String::from_utf8(BASE64_STANDARD.decode(wrapped).expect("base64")).expect("UTF-8"),
        None => text.to_owned(),
    }
}
