//! Which known word was meant.

/// The known word that is nearest to this one, if it is near: the same but for case and separators, or at most one
/// letter in three added, left out, changed or swapped with its neighbour.
pub(crate) fn near<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    const LONGEST: usize = 40;
    let letters = letters(word);
    if letters.len() > LONGEST {
        return None;
    }
    let distances = known.into_iter().map(|known| (distance(&letters, &self::letters(known)), known));
    let (distance, nearest) = distances.min_by_key(|&(distance, _)| distance)?;
    (distance * 3 <= letters.len()).then_some(nearest)
}

fn letters(word: &str) -> Vec<char> {
    word.chars().filter(|c| !matches!(c, '_' | '-')).map(|c| c.to_ascii_lowercase()).collect()
}

/// The optimal string alignment distance.
fn distance(a: &[char], b: &[char]) -> usize {
    let mut rows = vec![vec![0; b.len() + 1]; a.len() + 1];
    for i in 0..=a.len() {
        for j in 0..=b.len() {
            rows[i][j] = if i == 0 || j == 0 {
                i + j
            } else {
                let changed = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
                let mut least = changed.min(rows[i - 1][j] + 1).min(rows[i][j - 1] + 1);
                if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                    least = least.min(rows[i - 2][j - 2] + 1);
                }
                least
            };
        }
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_words_are_found_and_others_are_not() {
        let known = ["command", "args", "env", "url", "keepalive", "connect_timeout"];
        for (word, meant) in [
            ("comand", Some("command")),
            ("Command", Some("command")),
            ("argz", Some("args")),
            ("evn", Some("env")),
            ("connectTimeout", Some("connect_timeout")),
            ("keep-alive", Some("keepalive")),
            ("uri", Some("url")),
            ("x", None),
            ("", None),
            ("something else", None),
        ] {
            assert_eq!(near(word, known), meant, "{word}");
        }
    }
}
