//! The page `docs/rules.md` has each rule, the tests that it names exist, and the lines that hold a rule are marked.
//!
//! This is a program of its own: mutants of the core lose marks, and are to be caught by what they do.
#![allow(clippy::std_instead_of_core, reason = "tests are programs with std")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

const RULES: usize = 24;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The sources below this folder, by path from there.
fn sources(folder: &Path) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(&next).unwrap_or_else(|error| panic!("{}: {error}", next.display())) {
            let path = entry.expect("an entry of a folder").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let name = path.strip_prefix(folder).expect("below the folder").to_string_lossy().into_owned();
                found.insert(name, fs::read_to_string(&path).expect("a source is text"));
            }
        }
    }
    found
}

/// The numbers of the marks (`// R1`, `// R12, R14`) in a source, its unit tests left out.
fn marks(source: &str) -> BTreeSet<usize> {
    let code = source.split("#[cfg(test)]").next().unwrap_or_default();
    let comments = code.lines().filter_map(|line| line.rsplit_once("// "));
    comments.filter_map(|(_, comment)| numbers(comment)).flatten().collect()
}

fn numbers(mark: &str) -> Option<Vec<usize>> {
    mark.split(", ").map(|number| number.strip_prefix('R')?.parse().ok()).collect()
}

fn tests(source: &str) -> BTreeSet<&str> {
    let functions = source.split("#[test]\nfn ").skip(1);
    functions.filter_map(|function| function.split('(').next()).collect()
}

/// The words in backticks.
fn names(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// One rule of the page.
struct Rule<'a> {
    /// The files of `src` that hold it.
    files: Vec<&'a str>,
    /// Its tests, each with its file in `tests/suite`.
    tests: Vec<(&'a str, &'a str)>,
}

/// The rules of the page, by number.
fn page(text: &str) -> BTreeMap<usize, Rule<'_>> {
    let mut rules = BTreeMap::new();
    for section in text.split("\n## ").skip(1) {
        let (number, rest) = section.split_once(": ").expect("a heading is `R1: …`");
        let number = numbers(number).expect("a heading is `R1: …`")[0];
        let (_, held) =
            rest.split_once("\nHeld in ").unwrap_or_else(|| panic!("R{number} does not say where it is held"));
        let held = held.split("\n# ").next().unwrap_or(held);
        let (files, named) = held.split_once("Tests: ").unwrap_or_else(|| panic!("R{number} names no tests"));
        let mut file = None;
        let mut tests = Vec::new();
        for name in names(named) {
            if name.ends_with(".rs") {
                file = Some(name);
            } else {
                tests.push((file.unwrap_or_else(|| panic!("{name} is named without its file")), name));
            }
        }
        let twice = rules.insert(number, Rule { files: names(files).collect(), tests });
        assert!(twice.is_none(), "R{number} is there twice");
    }
    rules
}

#[test]
fn each_rule_has_its_heading_its_tests_and_its_marks() {
    let text = fs::read_to_string(root().join("docs/rules.md")).expect("the page of the rules");
    let machine = sources(&root().join("src"));
    let suite = sources(&root().join("tests/suite"));
    let rules = page(&text);
    assert!(rules.keys().copied().eq(1..=RULES), "the page has {:?}", rules.keys());
    for (number, Rule { files, tests: named }) in rules {
        assert!(!files.is_empty(), "R{number} names no file of src");
        for file in files {
            let source = machine.get(file).unwrap_or_else(|| panic!("R{number}: no file src/{file}"));
            assert!(marks(source).contains(&number), "R{number}: no line of src/{file} is marked `// R{number}`");
        }
        for (file, test) in &named {
            let source = suite.get(*file).unwrap_or_else(|| panic!("R{number}: no file tests/suite/{file}"));
            assert!(tests(source).contains(test), "R{number}: no test {test} in tests/suite/{file}");
        }
        let of_its_number = format!("r{number:02}_");
        for (file, source) in &suite {
            for test in tests(source).into_iter().filter(|test| test.starts_with(&of_its_number)) {
                assert!(named.contains(&(file.as_str(), test)), "R{number} does not name {test} of {file}");
            }
        }
        assert!(named.iter().any(|(_, test)| test.starts_with(&of_its_number)), "R{number} has no test of its number");
    }
    for (file, source) in machine {
        let unknown: Vec<usize> = marks(&source).into_iter().filter(|number| !(1..=RULES).contains(number)).collect();
        assert!(unknown.is_empty(), "src/{file} marks {unknown:?}, which are no rules");
    }
}
