//! Single values of a message, read and replaced in place: every other byte stays as it came.

use serde_json::value::RawValue;

use crate::protocol::frame::{Object, id_number};

/// The text of the value at this path of member names.
pub(super) fn find<'a>(text: &'a str, path: &[&str]) -> Option<&'a str> {
    let Some((name, rest)) = path.split_first() else { return Some(text) };
    let Object(members) = serde_json::from_str(text).ok()?;
    let (_, value) = members.iter().find(|(known, _)| known == name)?;
    find(value.get(), rest)
}

/// `text` with another value at this path; `None` where it has none there.
pub(super) fn replace(text: &str, path: &[&str], value: &str) -> Option<String> {
    let old = find(text, path)?;
    let start = old.as_ptr().addr().checked_sub(text.as_ptr().addr())?; // it was borrowed from the text
    let (head, tail) = (text.get(..start)?, text.get(start + old.len()..)?);
    Some([head, value, tail].concat())
}

/// Whether two ids or tokens are the same: as they are written, or as numbers.
pub(super) fn same(one: &str, other: &str) -> bool {
    one == other || number(one).is_some_and(|one| number(other) == Some(one))
}

/// The number that an id is, a quoted one included.
pub(super) fn number(id: &str) -> Option<u64> {
    id_number(serde_json::from_str::<&RawValue>(id).ok()?)
}

/// The id to give back for `written`, which stood for it: as a string where the peer made it one.
pub(super) fn give_back(original: &str, written: &str) -> String {
    if written.starts_with('"') && !original.starts_with('"') { format!("\"{original}\"") } else { original.to_owned() }
}

/// A message as one line: outside of strings a line break is blank, and inside there is none.
pub(super) fn one_line(text: String) -> Box<str> {
    if text.contains(['\n', '\r']) { text.replace(['\n', '\r'], " ").into() } else { text.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MESSAGE: &str = r#"{"id" : 1, "params":{"_meta":{"progressToken":"a","x":1.50}} }"#;

    #[test]
    fn a_value_is_replaced_and_nothing_else() {
        let edited = replace(MESSAGE, &["params", "_meta", "progressToken"], "7");
        assert_eq!(edited.as_deref(), Some(r#"{"id" : 1, "params":{"_meta":{"progressToken":7,"x":1.50}} }"#));
        assert_eq!(replace(MESSAGE, &["params", "none"], "7"), None);
        assert_eq!(replace(MESSAGE, &["id", "below"], "7"), None);
    }

    #[test]
    fn ids_are_told_apart_and_given_back_as_they_were() {
        assert!(same("1", "1.0") && same("\"a\"", "\"a\"") && !same("\"a\"", "\"b\"") && !same("1", "2"));
        assert_eq!(give_back("7", "\"1\""), "\"7\"");
        assert_eq!(give_back("\"x\"", "\"1\""), "\"x\"");
        assert_eq!(give_back("7", "1"), "7");
    }

    #[test]
    fn a_message_becomes_one_line() {
        let text = "{\r\n \"a\": \"b\\n\"}".to_owned();
        assert_eq!(&*one_line(text), "{   \"a\": \"b\\n\"}");
    }
}
