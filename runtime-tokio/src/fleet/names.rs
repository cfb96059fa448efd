//! The name of a server's tool among the tools of all.

use std::fmt;

use sha2::{Digest as _, Sha256};

/// The least that `max_len` may be.
const MIN_MAX_LEN: usize = 16;
/// The most characters that a separator may have.
const MAX_SEPARATOR: usize = 8;
/// How many hex digits a suffix has.
const DIGITS: usize = 8;

/// How the public name of a tool is made of its server's name and its own.
///
/// A public name matches `^[A-Za-z0-9_-]{1,max_len}$`, which is what model providers take as the name of a function. It
/// depends on the server's name, the tool's name and this naming alone, never on which other servers there are, so it is
/// the same in every process and may be kept.
///
/// It is `server`, separator, `tool` wherever that is valid and can be read in one way only. Where it is not, what is not
/// allowed becomes `_`, the text is cut, and `_` with eight hex digits is appended: the first four bytes of the SHA-256 of
/// the server's length (eight bytes, little-endian), the server and the tool. This is so for
///
/// - a character outside the set, and a name above `max_len`;
/// - a server's name that contains the separator, or runs into it (`a_` with `__`), so that another server and tool could
///   give the same text;
/// - a text that ends like such a suffix by itself.
///
/// So two names without a suffix never meet, nor does one with and one without. Two with a suffix can, if 32 bits of the
/// hash and the rest of the text are equal, which does not happen unless somebody wants it. Then the name belongs to the
/// first tool that was offered under it, for good, and the other one is not offered.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ToolNaming {
    separator: String,
    max_len: usize,
}

impl Default for ToolNaming {
    /// `__`, and at most 64 characters.
    fn default() -> Self {
        Self { separator: "__".into(), max_len: 64 }
    }
}

impl ToolNaming {
    /// A naming with this separator, of one to eight characters, and names of at most `max_len` characters, 16 or more.
    ///
    /// # Errors
    ///
    /// [`NamingError`], by the knob's name and its value.
    pub fn new(separator: impl Into<String>, max_len: usize) -> Result<Self, NamingError> {
        let separator = separator.into();
        if separator.is_empty() || separator.len() > MAX_SEPARATOR || !separator.chars().all(is_allowed) {
            return Err(NamingError::Separator { separator });
        }
        if max_len < MIN_MAX_LEN {
            return Err(NamingError::MaxLen { max_len });
        }
        Ok(Self { separator, max_len })
    }

    /// The text between the server's name and the tool's.
    pub fn separator(&self) -> &str {
        &self.separator
    }

    /// How many characters a public name may have.
    pub fn max_len(&self) -> usize {
        self.max_len
    }

    /// The public name of this tool of this server.
    pub fn public_name(&self, server: &str, tool: &str) -> String {
        let plain = format!("{server}{}{tool}", self.separator);
        // The first separator is the one that was put there: nothing of the server's name takes part in an earlier one.
        let is_clear = plain.find(&self.separator) == Some(server.len());
        if is_clear && plain.len() <= self.max_len && plain.chars().all(is_allowed) && !ends_like_suffix(&plain) {
            return plain;
        }
        let sanitized = |text: &str| text.chars().map(|c| if is_allowed(c) { c } else { '_' }).collect::<String>();
        let (mut name, tool_part) = (sanitized(server), sanitized(tool));
        let room = self.max_len - (DIGITS + 1);
        // A long server's name leaves at least half of the room to what tells its tools apart.
        name.truncate((room / 2).max(room.saturating_sub(self.separator.len() + tool_part.len())));
        name += &self.separator;
        name += &tool_part;
        name.truncate(room);
        name + &suffix(server, tool)
    }
}

/// Whether a public name may hold this character.
fn is_allowed(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == '-'
}

fn suffix(server: &str, tool: &str) -> String {
    let hash = Sha256::new()
        .chain_update((server.len() as u64).to_le_bytes())
        .chain_update(server)
        .chain_update(tool)
        .finalize();
    let first = hash.iter().take(DIGITS / 2).fold(0_u32, |digits, byte| digits << 8 | u32::from(*byte));
    format!("_{first:08x}")
}

fn ends_like_suffix(text: &str) -> bool {
    let tail = text.len().checked_sub(DIGITS + 1).and_then(|at| text.as_bytes().get(at..));
    matches!(tail, Some([b'_', digits @ ..]) if digits.iter().all(|c| matches!(c, b'0'..=b'9' | b'a'..=b'f')))
}

/// Why there is no such naming.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NamingError {
    /// `separator` is empty, longer than eight characters, or has one that no public name may have.
    Separator {
        /// The knob's value.
        separator: String,
    },
    /// `max_len` leaves no room for a name and its suffix.
    MaxLen {
        /// The knob's value.
        max_len: usize,
    },
}

impl fmt::Display for NamingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Separator { separator } => {
                write!(f, "`separator` is {separator:?}, not 1 to {MAX_SEPARATOR} characters of A-Z, a-z, 0-9, _ and -")
            }
            Self::MaxLen { max_len } => write!(f, "`max_len` is {max_len}, below {MIN_MAX_LEN}"),
        }
    }
}

impl std::error::Error for NamingError {}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn name(server: &str, tool: &str) -> String {
        ToolNaming::default().public_name(server, tool)
    }

    #[test]
    fn a_name_that_can_be_read_in_one_way_is_left_as_it_is() {
        assert_eq!(name("github", "create-issue"), "github__create-issue");
        assert_eq!(name("a", "b__c"), "a__b__c");
        assert_eq!(name("a", "_b"), "a___b");
        assert_eq!(name("", ""), "__");
        let longest = "t".repeat(64 - 8);
        assert_eq!(name("github", &longest), format!("github__{longest}"));
        let naming = ToolNaming::new("-", 16).unwrap();
        assert_eq!(naming.public_name("a_", "b-c"), "a_-b-c");
    }

    /// These are kept by hosts and written into policies: another result is another name for a tool.
    #[test]
    fn names_with_a_suffix_stay_what_they_are() {
        let cases = [
            ("files", "read.text", "files__read_text_4522d997"),
            ("größe", "maß", "gr__e__ma__91dcd9eb"),
            ("a__b", "c", "a__b__c_e4ac9b4b"),
            ("a_", "b", "a___b_57676e40"),
            ("a", "b_0123abcd", "a__b_0123abcd_cd3b0945"),
        ];
        for (server, tool, expected) in cases {
            assert_eq!(name(server, tool), expected);
        }
    }

    #[test]
    fn what_is_too_long_is_cut_and_keeps_of_both() {
        let long = name(&"s".repeat(100), &"t".repeat(100));
        assert_eq!(&long[..56], format!("{}__{}_", "s".repeat(27), "t".repeat(26)));
        let short_tool = name(&"s".repeat(100), "read");
        assert_eq!(&short_tool[..56], format!("{}__read_", "s".repeat(49)));
        let short_server = name("s", &"t".repeat(100));
        assert_eq!(&short_server[..56], format!("s__{}_", "t".repeat(52)));
        assert_eq!([long.len(), short_tool.len(), short_server.len()], [64; 3]);
    }

    #[test]
    fn knobs_are_refused_by_name_and_value() {
        let refused = |separator: &str, max_len| ToolNaming::new(separator, max_len).unwrap_err().to_string();
        for separator in ["", ".", "a b", "ß", "123456789"] {
            assert!(refused(separator, 64).starts_with(&format!("`separator` is {separator:?}, not")), "{separator}");
        }
        assert_eq!(refused("__", 15), "`max_len` is 15, below 16");
        assert!(ToolNaming::new("12345678", 16).is_ok());
    }

    fn naming() -> impl Strategy<Value = ToolNaming> {
        ("[a_-]{1,3}", 16_usize..40).prop_map(|(separator, max_len)| ToolNaming::new(separator, max_len).unwrap())
    }

    /// Texts of few letters, so that pairs meet; some end like a suffix.
    fn text() -> impl Strategy<Value = String> {
        prop_oneof![4 => "[ab_-]{0,6}", 1 => "[a_-]{0,3}_[0-9a-f]{8}", 1 => "[a._é]{0,5}", 1 => "[ab_-]{10,50}"]
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, cases: 2_000, ..ProptestConfig::default() })]

        #[test]
        fn names_are_valid_and_unique(naming in naming(), a in (text(), text()), b in (text(), text())) {
            let (name_a, name_b) = (naming.public_name(&a.0, &a.1), naming.public_name(&b.0, &b.1));
            prop_assert!((1..=naming.max_len()).contains(&name_a.len()), "{name_a}");
            prop_assert!(name_a.chars().all(|c| c.is_ascii_alphanumeric() || "_-".contains(c)), "{name_a}");
            prop_assert_eq!(&name_a, &naming.public_name(&a.0, &a.1));
            prop_assert!(a == b || name_a != name_b, "{:?} and {:?} are both {}", a, b, name_a);
        }

        /// Every other way to split the same text gives another name: what an attacker would try.
        #[test]
        fn no_other_split_gives_the_name(naming in naming(), server in text(), tool in text()) {
            let text = format!("{server}{}{tool}", naming.separator());
            let mut names = std::collections::BTreeMap::new();
            for (at, _) in text.match_indices(|_| true) {
                let Some(rest) = text[at..].strip_prefix(naming.separator()) else { continue };
                let taken = names.insert(naming.public_name(&text[..at], rest), at);
                prop_assert_eq!(taken, None, "{}", text);
            }
            prop_assert!(!names.is_empty());
        }

        /// A tool that calls itself what another one is called with its suffix.
        #[test]
        fn a_name_with_a_suffix_cannot_be_taken(naming in naming(), server in text(), tool in text()) {
            let name = naming.public_name(&server, &tool);
            for (at, separator) in name.match_indices(naming.separator()) {
                let forged = (&name[..at], &name[at + separator.len()..]);
                if forged != (&*server, &*tool) {
                    prop_assert_ne!(naming.public_name(forged.0, forged.1), &*name);
                }
            }
        }
    }
}
