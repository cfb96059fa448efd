//! Where the reader stands, so that every problem names its place; and the readings that every part shares.

use super::expand::{Env, expand, looks_like_a_variable};
use super::json::{Json, Members};
use super::near::near;
use super::problem::{Problem, ProblemKind};

/// The problems found so far.
#[derive(Debug)]
pub(super) struct Log {
    pub(super) source: Box<str>,
    pub(super) errors: Vec<Problem>,
    pub(super) warnings: Vec<Problem>,
}

/// One server, or the file as a whole.
pub(super) struct Scope<'a> {
    pub(super) log: &'a mut Log,
    pub(super) server: Option<&'a str>,
    pub(super) env: Env<'a>,
    /// The variables that could not be replaced, where that is no error: in a server that is disabled.
    pub(super) unset: Option<Vec<String>>,
}

impl Scope<'_> {
    fn problem(&self, field: &str, kind: ProblemKind, text: String) -> Problem {
        let field = (!field.is_empty()).then(|| field.into());
        Problem { source: self.log.source.clone(), server: self.server.map(Into::into), field, kind, text: text.into() }
    }

    pub(super) fn error(&mut self, field: &str, kind: ProblemKind, text: impl Into<String>) {
        let problem = self.problem(field, kind, text.into());
        self.log.errors.push(problem);
    }

    pub(super) fn warn(&mut self, field: &str, kind: ProblemKind, text: impl Into<String>) {
        let problem = self.problem(field, kind, text.into());
        self.log.warnings.push(problem);
    }

    /// Refuses a value for its type. Of the value only its kind is told.
    pub(super) fn wrong_type(&mut self, field: &str, value: &Json, wanted: &str) {
        self.error(field, ProblemKind::Type, format!("is {}, not {wanted}", value.kind()));
    }

    /// Warns of a key that nobody knows, and names the one that was meant, if one is near.
    pub(super) fn unknown(&mut self, field: &str, key: &str, known: impl IntoIterator<Item = &'static str>) {
        let suggestion = near(key, known);
        let text = match suggestion {
            Some(suggestion) => format!("is not known and was ignored; did you mean `{suggestion}`?"),
            None => "is not known and was ignored".to_owned(),
        };
        self.warn(field, ProblemKind::UnknownKey { suggestion }, text);
    }

    /// The members without those whose key is there already, which are refused, and those that are null. `within` is
    /// the field that holds them.
    pub(super) fn unique(&mut self, within: &str, members: Members, ignore_case: bool) -> Members {
        let mut seen = std::collections::BTreeSet::new();
        let mut kept = Vec::with_capacity(members.len());
        for (key, value) in members {
            if seen.insert(if ignore_case { key.to_ascii_lowercase() } else { key.clone() }) {
                kept.push((key, value));
            } else {
                self.error(&join(within, &key), ProblemKind::Duplicate, "is there twice");
            }
        }
        kept
    }

    pub(super) fn object(&mut self, field: &str, value: Json) -> Option<Members> {
        match value {
            Json::Object(members) => Some(self.unique(field, members, false)),
            other => {
                self.wrong_type(field, &other, "an object");
                None
            }
        }
    }

    /// A string, its variables replaced.
    pub(super) fn expanded(&mut self, field: &str, value: &Json) -> Option<String> {
        let Json::String(text) = value else {
            self.wrong_type(field, value, "a string");
            return None;
        };
        self.replaced(field, text)
    }

    fn replaced(&mut self, field: &str, text: &str) -> Option<String> {
        if looks_like_a_variable(text) {
            let text = "looks like a variable and was taken as it stands; variables are written `${NAME}`";
            self.warn(field, ProblemKind::Variable, text);
        }
        let wrong = match expand(text, self.env) {
            Ok(expanded) if expanded.contains('\0') => {
                self.error(field, ProblemKind::Value, "holds a NUL character");
                return None;
            }
            Ok(expanded) => return Some(expanded),
            Err(wrong) => wrong,
        };
        for why in wrong {
            match &mut self.unset {
                Some(unset) => {
                    unset.push(format!("`{field}`: {why}"));
                    self.warn(field, ProblemKind::Variable, why);
                }
                None => self.error(field, ProblemKind::Variable, why),
            }
        }
        None
    }

    pub(super) fn flag(&mut self, field: &str, value: &Json) -> Option<bool> {
        if let Json::Bool(flag) = value {
            return Some(*flag);
        }
        self.error(field, ProblemKind::Type, format!("{} is not `true` or `false`", value.shown()));
        None
    }

    /// A list of names or patterns.
    pub(super) fn names(&mut self, field: &str, value: &Json) -> Option<Vec<Box<str>>> {
        let Json::Array(items) = value else {
            self.wrong_type(field, value, "an array of strings");
            return None;
        };
        let mut names = Vec::with_capacity(items.len());
        for (at, item) in items.iter().enumerate() {
            match item {
                Json::String(name) if !name.is_empty() => names.push(name.as_str().into()),
                Json::String(_) => self.error(&format!("{field}[{at}]"), ProblemKind::Value, "is empty"),
                other => self.wrong_type(&format!("{field}[{at}]"), other, "a string"),
            }
        }
        Some(names)
    }
}

/// The field within another.
pub(super) fn join(within: &str, key: &str) -> String {
    if within.is_empty() { key.to_owned() } else { format!("{within}.{key}") }
}
