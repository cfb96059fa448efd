//! Variables in values: `${NAME}`, `${NAME:-default}`, `${env:NAME}`; `$${` for a literal `${`.

/// Where variables are looked up.
pub(super) type Env<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Variables that an editor fills in and nothing else can.
const EDITOR: [&str; 9] = [
    "cwd",
    "execPath",
    "file",
    "fileDirname",
    "pathSeparator",
    "userHome",
    "workspaceFolder",
    "workspaceFolderBasename",
    "workspaceRoot",
];

/// The text with its variables replaced, once: what they hold is not looked at again.
///
/// # Errors
///
/// Everything that is wrong with the references, in words that hold no default and no value.
pub(super) fn expand(text: &str, env: Env<'_>) -> Result<String, Vec<String>> {
    let mut expanded = String::with_capacity(text.len());
    let mut wrong = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find("${") {
        let (before, reference) = rest.split_at(at);
        if let Some(before) = before.strip_suffix('$') {
            expanded.push_str(before);
            expanded.push_str("${");
            rest = &reference[2..];
            continue;
        }
        expanded.push_str(before);
        let Some((inside, after)) = reference[2..].split_once('}') else {
            wrong.push("a `${` is not closed; write `$${` where it is meant as it stands".to_owned());
            return Err(wrong);
        };
        match value(inside, env) {
            Ok(value) => expanded.push_str(&value),
            Err(why) => wrong.push(why),
        }
        rest = after;
    }
    expanded.push_str(rest);
    if wrong.is_empty() { Ok(expanded) } else { Err(wrong) }
}

/// The value of one reference, given the text between its braces.
fn value(inside: &str, env: Env<'_>) -> Result<String, String> {
    let inside = inside.strip_prefix("env:").unwrap_or(inside);
    let (name, default) = match inside.split_once(":-") {
        Some((name, default)) => (name, Some(default)),
        None => (inside, None),
    };
    if let Some((kind @ ("input" | "command" | "config"), id)) = name.split_once(':') {
        let id = if is_id(id) { id } else { "…" };
        return Err(format!("`${{{kind}:{id}}}` is asked for by the editor; use an environment variable"));
    }
    if !is_name(name) || default.is_some_and(|default| default.contains("${")) {
        return Err("a `${…}` is no variable; write `${NAME}`, or `$${` where it is meant as it stands".to_owned());
    }
    if EDITOR.contains(&name) && default.is_none() && env(name).is_none() {
        return Err(format!("`${{{name}}}` is known to editors only; write a path, or use an environment variable"));
    }
    match (env(name), default) {
        (Some(value), None) => Ok(value),
        // As in a shell, an empty variable is as good as none.
        (Some(value), Some(_)) if !value.is_empty() => Ok(value),
        (_, Some(default)) => Ok(default.to_owned()),
        (None, None) => Err(format!("the variable `{name}` is not set; `${{{name}:-default}}` gives it a default")),
    }
}

/// Whether a text is a variable in the writing of other clients: `$NAME`, `{env:NAME}`.
pub(super) fn looks_like_a_variable(text: &str) -> bool {
    let braced = |(at, _): (usize, &str)| !text[..at].ends_with('$');
    text.strip_prefix('$').is_some_and(is_name) || text.match_indices("{env:").any(braced)
}

fn is_name(name: &str) -> bool {
    is_id(name) && !name.starts_with(|c: char| c.is_ascii_digit()) && !name.contains('-')
}

fn is_id(id: &str) -> bool {
    !id.is_empty() && id.len() <= 100 && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env(name: &str) -> Option<String> {
        match name {
            "A" => Some("a".into()),
            "EMPTY" => Some(String::new()),
            "NESTED" => Some("${A} $${".into()),
            _ => None,
        }
    }

    #[test]
    fn variables_defaults_and_escapes() {
        for (text, expanded) in [
            ("", ""),
            ("plain $A $ $$ } { $$x", "plain $A $ $$ } { $$x"),
            ("${A}", "a"),
            ("x${A}y${A}", "xaya"),
            ("${env:A}", "a"),
            ("${A:-b}", "a"),
            ("${B:-b}", "b"),
            ("${env:B:-b c}", "b c"),
            ("${B:-}", ""),
            ("${B:-:-}", ":-"),
            ("${EMPTY}", ""),
            ("${EMPTY:-b}", "b"),
            ("$${A}", "${A}"),
            ("$$${A}", "$${A}"),
            ("$${A}${A}", "${A}a"),
            ("${NESTED}", "${A} $${"),
            ("ü${A}ü", "üaü"),
        ] {
            assert_eq!(expand(text, &env).as_deref(), Ok(expanded), "{text}");
        }
    }

    #[test]
    fn other_writings_of_variables_are_noticed() {
        for (text, noticed) in [
            ("$TOKEN", true),
            ("Bearer {env:TOKEN}", true),
            ("${TOKEN}", false),
            ("${env:TOKEN}", false),
            ("$", false),
            ("$5 only", false),
            ("pa$$word", false),
        ] {
            assert_eq!(looks_like_a_variable(text), noticed, "{text}");
        }
    }

    #[test]
    fn wrong_references_are_told_all_at_once_without_what_they_hold() {
        for (text, words) in [
            ("${B} ${C}", vec!["`B` is not set", "`C` is not set"]),
            ("${env:B}", vec!["`B` is not set"]),
            ("${input:token}", vec!["`${input:token}` is asked for by the editor"]),
            ("${input:s3cret!}", vec!["`${input:…}`"]),
            ("${workspaceFolder}/x", vec!["known to editors only"]),
            ("${s3cret x}", vec!["is no variable"]),
            ("${1}", vec!["is no variable"]),
            ("${}", vec!["is no variable"]),
            ("${A:-${s3cret}}", vec!["is no variable"]),
            ("${B}${s3cret", vec!["`B` is not set", "is not closed"]),
        ] {
            let wrong = expand(text, &env).unwrap_err();
            assert_eq!(wrong.len(), words.len(), "{wrong:?}");
            for (wrong, words) in wrong.iter().zip(words) {
                assert!(wrong.contains(words) && !wrong.contains("s3cret"), "{wrong}");
            }
        }
    }
}
