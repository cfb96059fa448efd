//! A host's file as text with places: edits are made in the text, and everything else stays as it is.

use std::ops::Range;

use jsonc_parser::ast::{Object, ObjectProp, StringLit, Value};
use jsonc_parser::common::Ranged as _;
use jsonc_parser::tokens::{Token, TokenAndRange};
use jsonc_parser::{CollectOptions, CommentCollectionStrategy, ParseOptions, parse_to_ast};
use mcp_reconnect::config::CONTAINERS;

/// JSON with comments and trailing commas, as the reader of configs takes it, and nothing more.
const SYNTAX: ParseOptions = ParseOptions {
    allow_comments: true,
    allow_trailing_commas: true,
    allow_loose_object_property_names: false,
    allow_missing_commas: false,
    allow_single_quoted_strings: false,
    allow_hexadecimal_numbers: false,
    allow_unary_plus_numbers: false,
    allow_bare_decimal_point_numbers: false,
    allow_non_finite_numbers: false,
    allow_extended_string_escapes: false,
};

/// A host's way to write its servers, where that makes a difference.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Dialect {
    Common,
    /// `type` must be there, and `command` is an array.
    OpenCode,
}

/// A file without its byte order mark.
pub(super) struct Document<'a> {
    pub(super) text: &'a str,
    root: Value<'a>,
    /// Comments included.
    tokens: Vec<TokenAndRange<'a>>,
}

/// One server of it.
#[derive(Clone, Copy)]
pub(super) struct Entry<'d, 'a> {
    pub(super) name: &'d str,
    pub(super) value: &'d Value<'a>,
}

impl<'d, 'a> Entry<'d, 'a> {
    pub(super) fn object(&self) -> Option<&'d Object<'a>> {
        self.value.as_object()
    }

    pub(super) fn range(&self) -> Range<usize> {
        range(self.value)
    }
}

impl<'a> Document<'a> {
    /// # Errors
    ///
    /// Parses a file. The error says where it is no JSON, and quotes nothing of it.
    pub(super) fn parse(text: &'a str) -> Result<Self, String> {
        let collect = CollectOptions { comments: CommentCollectionStrategy::AsTokens, tokens: true };
        let parsed = parse_to_ast(text, &collect, &SYNTAX).map_err(|error| {
            let (line, column) = (error.line_display(), error.column_display());
            format!("is no JSON: {} at line {line} column {column}", error.kind())
        })?;
        let root = parsed.value.ok_or("is no JSON: it is empty")?;
        Ok(Self { text, root, tokens: parsed.tokens.unwrap_or_default() })
    }

    pub(super) fn root(&self) -> &Value<'a> {
        &self.root
    }

    /// The object that holds the servers: the one that the reader of configs reads.
    pub(super) fn servers(&self) -> Option<(Dialect, &Object<'a>)> {
        let root = self.root.as_object()?;
        let (key, value) = CONTAINERS.into_iter().find_map(|key| Some((key, member(root, key)?)))?;
        let object = value.as_object()?;
        if key != "mcp" {
            return Some((Dialect::Common, object));
        }
        // VS Code's settings, unless it is a server of this name.
        let inner = object.get("servers").and_then(|servers| servers.value.as_object());
        match inner.filter(|inner| inner.properties.iter().all(|server| server.value.as_object().is_some())) {
            Some(inner) => Some((Dialect::Common, inner)),
            None => Some((Dialect::OpenCode, object)),
        }
    }

    pub(super) fn dialect(&self) -> Dialect {
        self.servers().map_or(Dialect::Common, |(dialect, _)| dialect)
    }

    /// The servers, in the order of the file.
    pub(super) fn entries(&self) -> Vec<Entry<'_, 'a>> {
        let properties = self.servers().map(|(_, servers)| &servers.properties[..]).unwrap_or_default();
        properties.iter().map(|server| Entry { name: server.name.as_str(), value: &server.value }).collect()
    }

    pub(super) fn entry(&self, name: &str) -> Option<Entry<'_, 'a>> {
        self.entries().into_iter().find(|entry| entry.name == name)
    }

    pub(super) fn slice(&self, range: Range<usize>) -> &'a str {
        self.text.get(range).unwrap_or_default()
    }

    /// The comments' places.
    pub(super) fn comments(&self) -> impl Iterator<Item = (Range<usize>, bool)> {
        self.tokens.iter().filter_map(|TokenAndRange { token, range }| match token {
            Token::CommentLine(_) => Some((range.start..range.end, true)),
            Token::CommentBlock(_) => Some((range.start..range.end, false)),
            _ => None,
        })
    }

    /// The tokens of a part but for comments: equal where two parts differ in their layout only.
    pub(super) fn words(&self, part: Range<usize>) -> Vec<&'a str> {
        let inside = self.tokens.iter().filter(|token| part.start <= token.range.start && token.range.end <= part.end);
        let words = inside.filter(|token| !matches!(token.token, Token::CommentLine(_) | Token::CommentBlock(_)));
        words.map(|token| self.slice(token.range.start..token.range.end)).collect()
    }

    /// The blanks before this place, to separate others in the same way: the end of the line before and the indentation, if
    /// it is the first of its line, else a blank.
    pub(super) fn lead(&self, at: usize) -> &'a str {
        self.line_lead(at).unwrap_or(" ")
    }

    fn line_lead(&self, at: usize) -> Option<&'a str> {
        let before = self.slice(0..at);
        let indented = before.trim_end_matches([' ', '\t']).len();
        let line = before.get(..indented)?.strip_suffix('\n')?;
        Some(self.slice(line.strip_suffix('\r').unwrap_or(line).len()..at))
    }

    /// The place of the comma between these two places.
    fn comma(&self, after: usize, before: usize) -> Option<usize> {
        let first = self.tokens.partition_point(|token| token.range.start < after);
        let rest = self.tokens.iter().skip(first).take_while(|token| token.range.start < before);
        rest.filter(|token| matches!(token.token, Token::Comma)).map(|token| token.range.start).next()
    }

    /// Takes members out of an object, with their commas and with lines that then are empty. Comments stay.
    pub(super) fn without(&self, object: &Object<'a>, gone: impl Fn(&ObjectProp<'a>) -> bool) -> Vec<Edit> {
        let properties = &object.properties;
        let comma = |at: usize| {
            let before = properties.get(at + 1).map_or(object.range.end, |next| next.range.start);
            properties.get(at).and_then(|property| self.comma(property.range.end, before))
        };
        let mut edits = Vec::new();
        for (at, property) in properties.iter().enumerate().filter(|(_, property)| gone(property)) {
            let comma = comma(at);
            edits.push(Edit::new(self.blanks(property.range.start..comma.map_or(property.range.end, |at| at + 1)), ""));
        }
        // The last one that stays has no comma where the last one had none.
        let kept = properties.iter().rposition(|property| !gone(property));
        if let Some(kept) = kept
            && kept + 1 < properties.len()
            && comma(properties.len() - 1).is_none()
            && let Some(comma) = comma(kept)
        {
            edits.push(Edit::new(comma..comma + 1, ""));
        }
        edits
    }

    /// The place with the blanks around it that have no more use.
    fn blanks(&self, place: Range<usize>) -> Range<usize> {
        let after = self.slice(place.end..self.text.len());
        let end = place.end + (after.len() - after.trim_start_matches([' ', '\t']).len());
        let line_ends = self.slice(end..self.text.len()).starts_with(['\r', '\n']);
        match self.line_lead(place.start) {
            Some(lead) if line_ends => place.start - lead.len()..end,
            None if line_ends || self.slice(end..self.text.len()).starts_with('}') => {
                let before = self.slice(0..place.start);
                before.trim_end_matches([' ', '\t']).len()..place.end
            }
            _ => place.start..end,
        }
    }
}

/// The member of this name, unless it is null, which is as good as none.
pub(super) fn member<'d, 'a>(object: &'d Object<'a>, key: &str) -> Option<&'d Value<'a>> {
    object.get(key).map(|found| &found.value).filter(|value| value.as_null_keyword().is_none())
}

/// An array's elements, if all are strings.
pub(super) fn strings<'d, 'a>(elements: &'d [Value<'a>]) -> Option<Vec<&'d StringLit<'a>>> {
    elements.iter().map(Value::as_string_lit).collect()
}

/// A text as JSON.
pub(super) fn literal(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

pub(super) fn range(value: &Value<'_>) -> Range<usize> {
    value.start()..value.end()
}

/// A text that takes the place of another.
#[derive(Clone, Debug)]
pub(super) struct Edit {
    range: Range<usize>,
    text: String,
}

impl Edit {
    pub(super) fn new(range: Range<usize>, text: impl Into<String>) -> Self {
        Self { range, text: text.into() }
    }

    pub(super) fn insert(at: usize, text: impl Into<String>) -> Self {
        Self::new(at..at, text)
    }
}

/// This part of a text after edits within it. Where they overlap, all that either takes out is gone.
pub(super) fn edited(text: &str, part: Range<usize>, mut edits: Vec<Edit>) -> String {
    edits.sort_by_key(|edit| edit.range.start);
    let mut result = String::with_capacity(part.len());
    let mut at = part.start;
    for edit in edits {
        result += text.get(at..edit.range.start).unwrap_or_default();
        result += &edit.text;
        at = at.max(edit.range.end);
    }
    result + text.get(at..part.end).unwrap_or_default()
}
