//! JSON as people write it into config files: with comments and trailing commas, and with every key as it stands.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::Number;

/// A JSON value whose objects keep their order, and keys that are there twice.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Json {
    Null,
    Bool(bool),
    Number(Number),
    String(String),
    Array(Vec<Self>),
    Object(Members),
}

pub(super) type Members = Vec<(String, Json)>;

/// The key under which serde_json hands numbers out when some crate of the program asks it for arbitrary precision.
const NUMBER: &str = "$serde_json::private::Number";

impl Json {
    /// Reads a document.
    pub(super) fn parse(text: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(&plain(text))
    }

    /// Its kind, in words that hold nothing of it.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Bool(_) => "a boolean",
            Self::Number(_) => "a number",
            Self::String(_) => "a string",
            Self::Array(_) => "an array",
            Self::Object(_) => "an object",
        }
    }

    /// The value itself where it is short, for fields that hold no secrets.
    pub(super) fn shown(&self) -> String {
        match self {
            Self::Bool(value) => value.to_string(),
            Self::Number(number) => number.to_string(),
            Self::String(text) => quoted(text),
            Self::Null | Self::Array(_) | Self::Object(_) => self.kind().to_owned(),
        }
    }
}

/// The text in quotes, its beginning where it is long.
pub(super) fn quoted(text: &str) -> String {
    const SHOWN: usize = 60;
    let start: String = text.chars().take(SHOWN).collect();
    let cut = if start.len() < text.len() { "…" } else { "" };
    format!("{start:?}{cut}")
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Reader)
    }
}

struct Reader;

impl<'de> Visitor<'de> for Reader {
    type Value = Json;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E: Error>(self) -> Result<Json, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Json, E> {
        Ok(Json::Bool(value))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Json, E> {
        Ok(Json::Number(value.into()))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Json, E> {
        Ok(Json::Number(value.into()))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Json, E> {
        Number::from_f64(value).map(Json::Number).ok_or_else(|| E::custom("number out of range"))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Json, E> {
        Ok(Json::String(text.to_owned()))
    }

    fn visit_string<E: Error>(self, text: String) -> Result<Json, E> {
        Ok(Json::String(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Json, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element()? {
            items.push(item);
        }
        Ok(Json::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Json, A::Error> {
        let mut members: Members = Vec::new();
        while let Some(member) = map.next_entry()? {
            members.push(member);
        }
        if let [(key, Json::String(digits))] = &members[..]
            && key == NUMBER
            && let Ok(number) = digits.parse()
        {
            return Ok(Json::Number(number));
        }
        Ok(Json::Object(members))
    }
}

/// Turns comments and trailing commas into spaces, so that the text is plain JSON and every byte keeps its place.
fn plain(text: &str) -> String {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut plain = String::with_capacity(text.len());
    // A comma that may turn out to be a trailing one, and what was written last apart from blanks.
    let (mut comma, mut last) = (None, None);
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let len = match c {
            '"' => string_len(rest),
            '/' => comment_len(rest),
            _ => c.len_utf8(),
        };
        let (token, after) = rest.split_at(len);
        rest = after;
        if c == '/' && len > 1 {
            plain.extend(token.chars().flat_map(|c| if c == '\n' { vec!['\n'] } else { vec![' '; c.len_utf8()] }));
            continue;
        }
        match c {
            ',' => comma = matches!(last, Some(last) if !"[{,:".contains(last)).then_some(plain.len()),
            ']' | '}' => {
                if let Some(at) = comma.take() {
                    plain.replace_range(at..=at, " ");
                }
            }
            ' ' | '\t' | '\r' | '\n' => {}
            _ => comma = None,
        }
        if !c.is_ascii_whitespace() {
            last = Some(c);
        }
        plain.push_str(token);
    }
    plain
}

/// The length of the string that begins here, its quotes included.
fn string_len(text: &str) -> usize {
    let mut escaped = false;
    for (at, byte) in text.bytes().enumerate().skip(1) {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// The length of the comment that begins here; 1 where none does, or where it does not end.
fn comment_len(text: &str) -> usize {
    match text.as_bytes().get(1) {
        Some(b'/') => text.find('\n').unwrap_or(text.len()),
        Some(b'*') => text[2..].find("*/").map_or(1, |at| at + 4),
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_trailing_commas_leave_the_rest_where_it_is() {
        for (text, json) in [
            ("[1, 2,]", "[1, 2 ]"),
            ("[1 , /* ü */ ]", "[1            ]"),
            ("{\"a\":[],// x\n}", "{\"a\":[]     \n}"),
            ("\"// no\"", "\"// no\""),
            (r#""\"/*",1"#, r#""\"/*",1"#),
            ("\u{feff}{}", "{}"),
        ] {
            assert_eq!(plain(text), json, "{text}");
            assert_eq!(json.len(), text.trim_start_matches('\u{feff}').len(), "{text}");
        }
    }

    #[test]
    fn what_is_no_json_without_comments_is_none_with_them() {
        for text in ["[,]", "{,}", "[1,,]", "{\"a\":,}", "/*", "/* /", "/", "//", "[1,]]", "\"a", "1 /* */ 2"] {
            assert!(Json::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_place_of_an_error_counts_comments_in() {
        let error = Json::parse("{\n  // one\n  \"a\": x\n}").unwrap_err();
        assert_eq!((error.line(), error.column()), (3, 8));
    }

    #[test]
    fn keys_that_are_there_twice_stay() {
        let Json::Object(members) = Json::parse(r#"{"a":1,"a":-2.5}"#).unwrap() else { panic!("an object") };
        assert_eq!(members.len(), 2);
        assert_eq!(members[1].1.shown(), "-2.5");
    }

    #[test]
    fn depth_is_bounded() {
        let deep = "[".repeat(100_000);
        assert!(Json::parse(&deep).is_err());
    }
}
