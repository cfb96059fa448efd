//! Which tools are offered.

/// Which of a server's tools are offered, by name. A `*` in a pattern stands for any characters, or none.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct ToolFilter {
    /// Offer only what one of these names; `None`: everything; an empty list: nothing.
    pub include: Option<Vec<Box<str>>>,
    /// Offer nothing that one of these names, included or not.
    pub exclude: Vec<Box<str>>,
}

impl ToolFilter {
    /// Whether the tool of this name is offered.
    pub fn allows(&self, tool: &str) -> bool {
        let named = |patterns: &[Box<str>]| patterns.iter().any(|pattern| matches(pattern, tool));
        self.include.as_deref().is_none_or(named) && !named(&self.exclude)
    }
}

/// Whether the pattern names this; in time linear in both for one star, and never worse than their product.
fn matches(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(rest) = parts.next().and_then(|start| name.strip_prefix(start)) else { return false };
    let Some(end) = parts.next_back() else { return rest.is_empty() };
    let Some(mut rest) = rest.strip_suffix(end) else { return false };
    // A part between two stars may stand at its first occurrence.
    for part in parts {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_names_what_it_says() {
        for (pattern, name, named) in [
            ("read", "read", true),
            ("read", "reads", false),
            ("read", "rea", false),
            ("", "", true),
            ("", "a", false),
            ("*", "", true),
            ("*", "anything", true),
            ("read_*", "read_", true),
            ("read_*", "read_file", true),
            ("read_*", "unread_file", false),
            ("*_file", "read_file", true),
            ("*_file", "_file", true),
            ("a*a", "a", false),
            ("a*a", "aa", true),
            ("a*b*c", "abc", true),
            ("a*b*c", "a.b.b.c", true),
            ("a*b*c", "acb", false),
            ("*b*b*", "b", false),
            ("*b*b*", "xbxbx", true),
            ("**", "x", true),
            ("r?ad", "read", false),
            ("ü*", "über", true),
        ] {
            assert_eq!(matches(pattern, name), named, "{pattern} {name}");
        }
    }

    #[test]
    fn exclusion_wins_and_an_empty_list_offers_nothing() {
        let boxed = |names: &[&str]| names.iter().map(|&name| name.into()).collect::<Vec<Box<str>>>();
        let mut filter = ToolFilter::default();
        assert!(filter.allows("a"));
        filter.exclude = boxed(&["b*"]);
        assert!(filter.allows("a") && !filter.allows("b1"));
        filter.include = Some(boxed(&["a", "b1"]));
        assert!(filter.allows("a") && !filter.allows("b1") && !filter.allows("c"));
        filter.include = Some(Vec::new());
        assert!(!filter.allows("a"));
    }
}
