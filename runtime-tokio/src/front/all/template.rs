//! Whether a URI is one of a template's (RFC 6570), near enough to know whose it is.

/// How many bytes of the template are no variable, if the URI fits it.
///
/// A variable stands for one or more characters but `/`; with an operator (`+`, `#`, `.`, `/`, `;`, `?`, `&`) or `*`, for
/// any, or none. Time is bounded by the product of both lengths.
pub(super) fn fits(template: &str, uri: &str) -> Option<usize> {
    let mut literal = 0;
    // What has been matched may end here.
    let mut ends = vec![false; uri.len() + 1];
    if let Some(start) = ends.first_mut() {
        *start = true;
    }
    let mut rest = template;
    while !rest.is_empty() {
        let (text, expression, after) = match rest.split_once('{') {
            Some((text, more)) => {
                let (expression, after) = more.split_once('}')?;
                (text, Some(expression), after)
            }
            None => (rest, None, ""),
        };
        literal += text.len();
        ends = after_text(&ends, text, uri);
        if let Some(expression) = expression {
            ends = after_variable(&ends, expression, uri);
        }
        rest = after;
    }
    ends.last().copied().unwrap_or(false).then_some(literal)
}

fn after_text(ends: &[bool], text: &str, uri: &str) -> Vec<bool> {
    let mut next = vec![false; ends.len()];
    for (at, _) in ends.iter().enumerate().filter(|(_, end)| **end) {
        if uri.get(at..).is_some_and(|rest| rest.starts_with(text))
            && let Some(end) = next.get_mut(at + text.len())
        {
            *end = true;
        }
    }
    next
}

fn after_variable(ends: &[bool], expression: &str, uri: &str) -> Vec<bool> {
    let anything = expression.starts_with(['+', '#', '.', '/', ';', '?', '&']) || expression.ends_with('*');
    let mut next = vec![false; ends.len()];
    let mut inside = false;
    for (at, (end, next)) in ends.iter().zip(&mut next).enumerate() {
        *next = inside || (anything && *end);
        let breaks = !anything && uri.as_bytes().get(at) == Some(&b'/');
        inside = (inside || *end) && !breaks;
    }
    next
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uri_fits_its_template() {
        for (template, uri, literal) in [
            ("file:///a", "file:///a", Some(9)),
            ("file:///a", "file:///ab", None),
            ("file:///{name}", "file:///a.txt", Some(8)),
            ("file:///{name}", "file:///", None),
            ("file:///{name}", "file:///a/b", None),
            ("file:///{+path}", "file:///a/b", Some(8)),
            ("file:///{path*}", "file:///a/b", Some(8)),
            ("db://{table}/{row}", "db://users/7", Some(6)),
            ("db://{table}/{row}", "db://users/", None),
            ("db://{table}/rows{?page}", "db://users/rows", Some(10)),
            ("db://{table}/rows{?page}", "db://users/rows?page=2", Some(10)),
            ("{a}{b}", "xy", Some(0)),
            ("{a}{b}", "x", None),
            ("{+a}b", "abcb", Some(1)),
            ("x{", "x{", None),
            ("", "", Some(0)),
            ("{name}", "größe", Some(0)),
        ] {
            assert_eq!(fits(template, uri), literal, "{template} {uri}");
        }
    }

    #[test]
    fn a_template_of_many_variables_takes_no_time() {
        let template = "{+a}".repeat(1_000) + "!";
        assert_eq!(fits(&template, &"x".repeat(2_000)), None);
    }
}
