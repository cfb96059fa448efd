//! Files that a test writes and compares.

use std::path::Path;

/// Compares with the file, or writes it when the environment says `UPDATE=1`.
pub(crate) fn compare(path: &str, is: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    if std::env::var_os("UPDATE").is_some_and(|set| set == "1") {
        std::fs::write(&path, is).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        return;
    }
    let was = std::fs::read_to_string(&path).unwrap_or_default();
    let differs = was.lines().zip(is.lines()).position(|(was, is)| was != is);
    if was != is {
        let line = differs.unwrap_or_else(|| was.lines().count().min(is.lines().count()));
        panic!(
            "{} is out of date at line {}:\n  file: {}\n  now:  {}\nIf that is meant: UPDATE=1 cargo test -p mcp-reconnect-core --all-features --test suite",
            path.display(),
            line + 1,
            was.lines().nth(line).unwrap_or("(ends)"),
            is.lines().nth(line).unwrap_or("(ends)"),
        );
    }
}
