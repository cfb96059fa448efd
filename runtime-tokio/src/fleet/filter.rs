//! Which tools of a server are wanted.

use std::fmt;
use std::str::FromStr;

use serde::de::{self, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Which tools of a server are wanted, by the names that the server gives them.
///
/// In configuration each member is a list of patterns, or one pattern as a string.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ToolFilter {
    /// What is wanted; everything if this is empty.
    #[serde(deserialize_with = "patterns", skip_serializing_if = "Vec::is_empty")]
    pub include: Vec<Pattern>,
    /// What is not, though it be included.
    #[serde(deserialize_with = "patterns", skip_serializing_if = "Vec::is_empty")]
    pub exclude: Vec<Pattern>,
}

impl ToolFilter {
    /// Whether this tool is wanted.
    pub fn admits(&self, tool: &str) -> bool {
        let any = |patterns: &[Pattern]| patterns.iter().any(|pattern| pattern.matches(tool));
        (self.include.is_empty() || any(&self.include)) && !any(&self.exclude)
    }
}

/// A tool's name, or a glob: `*` stands for any number of characters, none included; everything else for itself.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pattern(Box<str>);

impl Pattern {
    /// As it was written.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether the pattern stands for the whole of this name.
    pub fn matches(&self, name: &str) -> bool {
        let Some((prefix, rest)) = self.0.split_once('*') else { return *self.0 == *name };
        let (between, suffix) = rest.rsplit_once('*').unwrap_or(("", rest));
        let Some(name) = name.strip_prefix(prefix).and_then(|name| name.strip_suffix(suffix)) else { return false };
        // Each piece as early as it goes leaves the most to the others.
        let found = between.split('*').try_fold(name, |name, piece| name.split_once(piece).map(|(_, after)| after));
        found.is_some()
    }
}

impl FromStr for Pattern {
    type Err = PatternError;

    fn from_str(text: &str) -> Result<Self, PatternError> {
        let found =
            text.char_indices().find(|&(at, c)| "?[]{}\\".contains(c) || (at == 0 && c == '!') || c.is_control());
        match found {
            Some((_, character)) => Err(PatternError::Character { pattern: text.into(), character }),
            None if text.trim() != text || text.is_empty() => Err(PatternError::Blank { pattern: text.into() }),
            None => Ok(Self(text.into())),
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Serialize for Pattern {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Pattern {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

/// Why a text is no pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PatternError {
    /// It is empty, or begins or ends with white space.
    Blank {
        /// The text.
        pattern: String,
    },
    /// It has a character that means something in other kinds of pattern, or a control character: most likely a
    /// mistake. A tool that really is called so can be reached with `*`.
    Character {
        /// The text.
        pattern: String,
        /// What may not be in it; a `!` only not at its start.
        character: char,
    },
}

impl fmt::Display for PatternError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Blank { pattern } => write!(f, "pattern {pattern:?} is empty or has white space around it"),
            Self::Character { pattern, character } => {
                write!(f, "pattern {pattern:?} has a {character:?}: only `*` stands for other characters")
            }
        }
    }
}

impl std::error::Error for PatternError {}

/// A list of patterns, or one pattern.
///
/// # Errors
///
/// The first that is no pattern, by its text.
pub(crate) fn patterns<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Pattern>, D::Error> {
    struct Patterns;

    impl<'de> Visitor<'de> for Patterns {
        type Value = Vec<Pattern>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a pattern or a list of patterns")
        }

        fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
            Ok(vec![text.parse().map_err(E::custom)?])
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
            let mut patterns = Vec::new();
            while let Some(pattern) = list.next_element()? {
                patterns.push(pattern);
            }
            Ok(patterns)
        }
    }

    deserializer.deserialize_any(Patterns)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn filter(json: serde_json::Value) -> Result<ToolFilter, String> {
        // From text: a reader has no borrowed strings to give.
        let text = json.to_string();
        let read = serde_json::from_reader::<_, ToolFilter>(text.as_bytes()).map_err(|error| error.to_string());
        assert_eq!(read, serde_json::from_str(&text).map_err(|error: serde_json::Error| error.to_string()));
        read
    }

    fn matches(pattern: &str, name: &str) -> bool {
        pattern.parse::<Pattern>().unwrap().matches(name)
    }

    #[test]
    fn a_star_stands_for_any_number_of_characters() {
        for name in ["read", "read_file", "read*"] {
            assert!(matches("read*", name), "{name}");
            assert!(matches("*", name), "{name}");
            assert!(matches("**", name), "{name}");
        }
        assert!(matches("*", ""));
        assert!(matches("a*b*c", "a-b-b-c"));
        assert!(matches("*.delete", "row.delete"));
        for (pattern, name) in
            [("read", "read_file"), ("read", "Read"), ("a*a", "a"), ("a*b*b", "ab"), ("*b", "abc"), ("a.c", "abc")]
        {
            assert!(!matches(pattern, name), "{pattern} {name}");
        }
    }

    #[test]
    fn exclusion_wins_and_no_inclusion_is_all() {
        assert!(ToolFilter::default().admits("anything"));
        let both = filter(json!({ "include": ["read_*", "list"], "exclude": "*_secret" })).unwrap();
        assert!(both.admits("read_file") && both.admits("list"));
        assert!(!both.admits("read_secret") && !both.admits("lists") && !both.admits("write"));
        let only_exclude = filter(json!({ "exclude": ["list"] })).unwrap();
        assert!(only_exclude.admits("read") && !only_exclude.admits("list"));
    }

    #[test]
    fn errors_name_the_pattern() {
        for text in ["", " ", "read ", "\tread", "read?", "[ab]", "{a,b}", "a\\*", "!read"] {
            let error = text.parse::<Pattern>().unwrap_err().to_string();
            assert!(error.contains(&format!("{text:?}")), "{error}");
            let error = filter(json!({ "include": ["ok", text] })).unwrap_err();
            assert!(error.contains(&format!("{text:?}")), "{error}");
            assert!(filter(json!({ "exclude": text })).is_err());
        }
        assert!(filter(json!({ "includes": [] })).is_err());
        assert!(filter(json!({ "include": [3] })).is_err());
        let wonder = "wow!".parse::<Pattern>().unwrap();
        assert!(wonder.matches("wow!"));
    }

    #[test]
    fn a_filter_is_written_as_it_is_read() {
        let written = json!({ "include": ["a*"], "exclude": ["ab"] });
        assert_eq!(serde_json::to_value(filter(written.clone()).unwrap()).unwrap(), written);
        assert_eq!(serde_json::to_value(ToolFilter::default()).unwrap(), json!({}));
    }

    /// By definition: a star takes nothing, or one character and goes on.
    fn by_definition(pattern: &[u8], name: &[u8]) -> bool {
        match (pattern, name) {
            ([], []) => true,
            ([b'*', rest @ ..], _) => {
                by_definition(rest, name) || (!name.is_empty() && by_definition(pattern, &name[1..]))
            }
            ([a, pattern @ ..], [b, name @ ..]) => a == b && by_definition(pattern, name),
            _ => false,
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, cases: 5_000, ..ProptestConfig::default() })]

        #[test]
        fn matching_is_what_the_definition_says(pattern in "[ab*]{1,6}", name in "[ab]{0,8}") {
            prop_assert_eq!(matches(&pattern, &name), by_definition(pattern.as_bytes(), name.as_bytes()));
        }
    }
}
