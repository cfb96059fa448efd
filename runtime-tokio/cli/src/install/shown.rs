//! A change as a diff that shows no secret: only values that are harmless by their place.

use jsonc_parser::ast::{Object, Value};
use similar::TextDiff;

use super::document::{Document, Edit, Entry, edited, literal, member, range};
use super::entry::Route;

/// The mark for a text that is not shown.
const HIDDEN: &str = "…";

/// Number of lines that a diff shows around a change.
const CONTEXT: usize = 3;

/// The diff of two files; empty where nothing that is shown differs.
pub(super) fn diff(old: &str, new: &str, name: &str) -> String {
    let (old, new) = (masked(old), masked(new));
    TextDiff::from_lines(&old, &new).unified_diff().context_radius(CONTEXT).header(name, name).to_string()
}

/// The file without anything in it that may be secret: texts, comments, and numbers among a server's variables and
/// headers. Nothing at all of a file that is no JSON.
fn masked(text: &str) -> String {
    let Ok(doc) = Document::parse(text.trim_start_matches('\u{feff}')) else { return String::new() };
    let mut edits: Vec<_> = doc
        .comments()
        .map(|(place, is_line)| {
            Edit::new(place, if is_line { format!("// {HIDDEN}") } else { format!("/* {HIDDEN} */") })
        })
        .collect();
    let servers = doc.servers().map(|(_, servers)| servers);
    hide(doc.root(), servers, &mut edits);
    for entry in doc.entries() {
        match entry.object() {
            Some(server) => hide_server(entry, server, &mut edits),
            None => hide_all(entry.value, &mut edits),
        }
    }
    edited(doc.text, 0..doc.text.len(), edits)
}

/// Hides all texts outside the servers.
fn hide(value: &Value<'_>, servers: Option<&Object<'_>>, edits: &mut Vec<Edit>) {
    match value {
        Value::Object(object) if servers.is_some_and(|servers| servers.range == object.range) => {}
        Value::Object(object) => object.properties.iter().for_each(|it| hide(&it.value, servers, edits)),
        Value::Array(array) => array.elements.iter().for_each(|it| hide(it, servers, edits)),
        Value::StringLit(_) => hide_all(value, edits),
        Value::NumberLit(_) | Value::BooleanLit(_) | Value::NullKeyword(_) => {}
    }
}

fn hide_server(entry: Entry<'_, '_>, server: &Object<'_>, edits: &mut Vec<Edit>) {
    // Of a command line: the program, and the words that were put before it.
    let shown = if Route::of(entry).is_some() { 6 } else { 1 };
    // Without a command, these are no arguments.
    let shown = member(server, "command").map_or(0, |command| hide_words(command, shown, edits));
    for property in &server.properties {
        match property.name.as_str() {
            "command" => {}
            "args" => drop(hide_words(&property.value, shown, edits)),
            "type" | "transport" | "transportType" if property.value.as_string_lit().is_some() => {}
            "env" | "environment" | "headers" => hide_all(&property.value, edits),
            _ => hide(&property.value, None, edits),
        }
    }
}

/// Hides all words but the first ones. How many of those were not among them.
fn hide_words(words: &Value<'_>, shown: usize, edits: &mut Vec<Edit>) -> usize {
    match words {
        Value::StringLit(_) if shown > 0 => shown - 1,
        Value::Array(array) => {
            array.elements.iter().skip(shown).for_each(|word| hide_all(word, edits));
            array.elements.iter().take(shown).filter(|word| word.as_string_lit().is_none()).for_each(|word| {
                hide_all(word, edits);
            });
            shown.saturating_sub(array.elements.len())
        }
        other => {
            hide_all(other, edits);
            shown
        }
    }
}

/// Hides every value, keys aside.
fn hide_all(value: &Value<'_>, edits: &mut Vec<Edit>) {
    match value {
        Value::Object(object) => object.properties.iter().for_each(|it| hide_all(&it.value, edits)),
        Value::Array(array) => array.elements.iter().for_each(|it| hide_all(it, edits)),
        leaf => edits.push(Edit::new(range(leaf), literal(HIDDEN))),
    }
}
