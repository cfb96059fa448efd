//! The library's modules stand on floors: each uses only what stands below it.
//!
//! Every path in the sources that begins at `crate`, `super` or `self`, or names a module of its file in a `use`, is
//! followed to the module that defines what it names, through re-exports. It may not lead to a higher floor, and two
//! modules side by side (on one floor, or in one folder) may not use each other, directly or around. A module and those
//! in its own folder count as one: they may use each other. Comments and strings are skipped; tests are not. The
//! inside of `front` is not looked at.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The floors from top to bottom, each with its modules.
const FLOORS: &[(&str, &[&str])] = &[
    (FRONT, &[FRONT]),
    ("fleet", &["fleet"]),
    ("config", &["config"]),
    ("connection", &["connection"]),
    ("session", &["session"]),
    ("wire", &["wire"]),
    ("options", &["options"]),
    ("link", &["link"]),
    ("trace", &["trace"]),
    ("protocol", &["protocol"]),
    ("base", &["clock", "error", "watched"]),
];

/// To become a package of its own: what is inside it is not looked at.
const FRONT: &str = "front";

#[test]
fn no_module_uses_a_floor_above_its_own() {
    let sources = Sources::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"));
    let report = sources.offences();
    assert!(report.is_empty(), "{} uses break the rule of the floors:\n{}", report.len(), report.join("\n"));
}

type Module = Vec<String>;

/// One path in the sources.
struct Use {
    file: String,
    line: usize,
    /// The module of the file.
    from: Module,
    /// The path from the root of the crate.
    path: Module,
}

#[derive(Default)]
struct Sources {
    /// All modules, with those that stand inside a file: each with the module of its file.
    modules: BTreeMap<Module, Module>,
    uses: Vec<Use>,
    /// What the names that a module imports stand for.
    names: BTreeMap<(Module, String), Module>,
}

impl Sources {
    fn read(root: &Path) -> Self {
        let mut files = Vec::new();
        list(root, &mut files);
        let mut sources = Self::default();
        let files: Vec<_> = files
            .into_iter()
            .map(|path| {
                let text = fs::read_to_string(&path).expect("a source that can be read");
                let name = path.strip_prefix(root).expect("below the root").to_str().expect("UTF-8").replace('\\', "/");
                let module: Module = name
                    .trim_end_matches(".rs")
                    .split('/')
                    .filter(|part| !["lib", "mod"].contains(part))
                    .map(str::to_owned)
                    .collect();
                sources.modules.insert(module.clone(), module.clone());
                (name, module, tokens(&text))
            })
            .collect();
        // Modules are known before paths are read, for a `use` may begin with one.
        for (name, module, tokens) in &files {
            Reader { sources: &mut sources, file: name, module, tokens, at: 0, inside: Vec::new() }.read();
        }
        sources
    }

    /// The module of the file that defines what this path names.
    fn defined_in(&self, path: &[String], depth: usize) -> Module {
        let mut module = Module::new();
        for (at, part) in path.iter().enumerate() {
            let child = [module.as_slice(), std::slice::from_ref(part)].concat();
            if self.modules.contains_key(&child) {
                module = child;
            } else if let Some(target) = self.names.get(&(module.clone(), part.clone()))
                && depth < 8
            {
                return self.defined_in(&[target.as_slice(), &path[at + 1..]].concat(), depth + 1);
            } else {
                break;
            }
        }
        self.modules[&module].clone()
    }

    fn offences(&self) -> Vec<String> {
        let mut offences = Vec::new();
        // Uses among modules that stand side by side, by what they stand in.
        let mut beside = BTreeMap::<Module, BTreeMap<String, BTreeSet<String>>>::new();
        let mut edges = Vec::new();
        for from in self.modules.values().filter(|module| !module.is_empty()) {
            assert!(floor(from).is_some(), "`{}` stands on no floor", from.join("::"));
        }
        for module in FLOORS.iter().flat_map(|(_, modules)| *modules) {
            assert!(self.modules.contains_key([(*module).to_owned()].as_slice()), "there is no module `{module}`");
        }
        for it in self.uses.iter().filter(|it| !it.from.is_empty()) {
            let to = self.defined_in(&it.path, 0);
            if to.is_empty() || to.starts_with(&it.from) || it.from.starts_with(&to) {
                continue;
            }
            let shared = it.from.iter().zip(&to).take_while(|(a, b)| a == b).count();
            if shared > 0 && it.from[0] == FRONT {
                continue;
            }
            let group = if shared > 0 {
                it.from[..shared].to_vec()
            } else {
                let (from_floor, to_floor) = (floor(&it.from).expect("checked"), floor(&to).expect("checked"));
                if from_floor != to_floor {
                    if to_floor < from_floor {
                        let (below, above) = (FLOORS[from_floor].0, FLOORS[to_floor].0);
                        let why = format!("floor {below} uses floor {above} above it");
                        offences.push(offence(it, &to, &why));
                    }
                    continue;
                }
                vec![format!("floor {}", FLOORS[from_floor].0)]
            };
            let (from, next) = (it.from[shared].clone(), to[shared].clone());
            beside.entry(group.clone()).or_default().entry(from.clone()).or_default().insert(next.clone());
            edges.push((it, to, group, from, next));
        }
        for (it, to, group, from, next) in edges {
            if let Some(way) = way(&beside[&group], &next, &from, &mut BTreeSet::new()) {
                let why = format!("a circle in {}: {from} → {way}", group.join("::"));
                offences.push(offence(it, &to, &why));
            }
        }
        offences.sort();
        offences.dedup();
        offences
    }
}

fn offence(it: &Use, to: &[String], why: &str) -> String {
    format!("{}:{}: `{}` uses `{}`: {why}", it.file, it.line, it.from.join("::"), to.join("::"))
}

fn floor(module: &[String]) -> Option<usize> {
    FLOORS.iter().position(|(_, modules)| modules.contains(&module[0].as_str()))
}

/// A way from one module to another.
fn way(uses: &BTreeMap<String, BTreeSet<String>>, from: &str, to: &str, seen: &mut BTreeSet<String>) -> Option<String> {
    if from == to {
        return Some(to.to_owned());
    }
    let onward = uses.get(from).filter(|_| seen.insert(from.to_owned()))?;
    onward.iter().find_map(|next| way(uses, next, to, seen)).map(|rest| format!("{from} → {rest}"))
}

fn list(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            list(&path, files);
        } else if path.extension().is_some_and(|kind| kind == "rs") {
            files.push(path);
        }
    }
}

/// Finds the paths of one file.
struct Reader<'a> {
    sources: &'a mut Sources,
    file: &'a str,
    module: &'a Module,
    tokens: &'a [(usize, String)],
    at: usize,
    /// The modules inside the file that are open here; `None` for any other brace.
    inside: Vec<Option<String>>,
}

impl Reader<'_> {
    fn token(&self, ahead: usize) -> &str {
        self.tokens.get(self.at + ahead).map_or("", |(_, token)| token)
    }

    /// The module at this place.
    fn here(&self) -> Module {
        self.module.iter().chain(self.inside.iter().flatten()).cloned().collect()
    }

    fn read(&mut self) {
        while self.at < self.tokens.len() {
            match self.token(0) {
                "mod" if self.token(2) == "{" => {
                    self.inside.push(Some(self.token(1).to_owned()));
                    self.sources.modules.insert(self.here(), self.module.clone());
                    self.at += 2;
                }
                "{" => self.inside.push(None),
                "}" => _ = self.inside.pop(),
                "use" if self.token(1) != "<" => {
                    self.at += 1;
                    self.tree(&Module::new(), true);
                    continue;
                }
                "crate" | "super" | "self" if self.token(1) == "::" => {
                    self.tree(&Module::new(), false);
                    continue;
                }
                _ => {}
            }
            self.at += 1;
        }
    }

    /// One path, or the branches of one in braces; `imports`: of a `use`.
    fn tree(&mut self, prefix: &[String], imports: bool) {
        let line = self.tokens.get(self.at).map_or(0, |(line, _)| *line);
        let mut path = prefix.to_vec();
        loop {
            match self.token(0) {
                "{" if imports => {
                    while ["{", ","].contains(&self.token(0)) {
                        self.at += 1;
                        if self.token(0) != "}" {
                            self.tree(&path, imports);
                        }
                    }
                    self.at += 1; // the closing brace
                    return;
                }
                "*" => self.at += 1,
                "self" if !path.is_empty() => self.at += 1, // `x::{self}`
                word if word.starts_with(|first: char| first.is_alphabetic() || first == '_') => {
                    path.push(word.to_owned());
                    self.at += 1;
                }
                _ => {}
            }
            if self.token(0) != "::" {
                break;
            }
            self.at += 1;
        }
        let name = if imports && self.token(0) == "as" {
            self.at += 2;
            self.tokens[self.at - 1].1.clone()
        } else {
            path.last().cloned().unwrap_or_default()
        };
        if let Some(path) = self.absolute(path) {
            if imports {
                self.sources.names.insert((self.here(), name), path.clone());
            }
            let (file, from) = (self.file.to_owned(), self.module.clone());
            self.sources.uses.push(Use { file, line, from, path });
        }
    }

    /// The path from the crate's root; `None` where it leads to another crate.
    fn absolute(&self, path: Module) -> Option<Module> {
        let mut base = match path.first()?.as_str() {
            "crate" => return Some(path[1..].to_vec()),
            "super" | "self" => self.here(),
            first => {
                let child = [self.here(), vec![first.to_owned()]].concat();
                return self.sources.modules.contains_key(&child).then(|| [self.here(), path].concat());
            }
        };
        let supers = path.iter().take_while(|part| *part == "super").count();
        base.truncate(base.len() - supers);
        base.extend(path.into_iter().skip_while(|part| ["super", "self"].contains(&part.as_str())));
        Some(base)
    }
}

/// The words and signs of a source with their lines, without comments, strings and characters.
fn tokens(text: &str) -> Vec<(usize, String)> {
    let (mut tokens, mut rest, mut line) = (Vec::new(), text, 1);
    while let Some(first) = rest.chars().next() {
        let word: usize = rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').map(char::len_utf8).sum();
        let raw = rest.trim_start_matches(['b', 'c']);
        let fences = raw.strip_prefix('r').map_or(0, |raw| raw.bytes().take_while(|byte| *byte == b'#').count());
        let is_raw = raw.strip_prefix('r').is_some_and(|raw| raw[fences..].starts_with('"'));
        let skipped = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").expect("an end of the comment") + 2
        } else if is_raw {
            let open = rest.find('"').expect("just seen") + 1;
            let close = format!("\"{}", "#".repeat(fences));
            open + rest[open..].find(&close).expect("an end of the string") + close.len()
        } else if let Some(quoted) = [r#"b""#, r#"c""#, r#"""#].iter().find(|start| rest.starts_with(**start)) {
            quoted.len() + quoted_len(&rest[quoted.len()..], '"')
        } else if rest.starts_with("'\\") {
            1 + quoted_len(&rest[1..], '\'')
        } else if first == '\'' && rest.chars().nth(2) == Some('\'') {
            rest.char_indices().nth(3).map_or(rest.len(), |(at, _)| at)
        } else if first.is_whitespace() || first == '\'' {
            first.len_utf8()
        } else {
            let length = if word > 0 {
                word
            } else if rest.starts_with("::") {
                2
            } else {
                first.len_utf8()
            };
            tokens.push((line, rest[..length].to_owned()));
            length
        };
        line += rest[..skipped].matches('\n').count();
        rest = &rest[skipped..];
    }
    tokens
}

/// How long a quoted text is, its closing quote included.
fn quoted_len(text: &str, quote: char) -> usize {
    let mut escaped = false;
    let end = text.char_indices().find(|(_, c)| {
        let closes = *c == quote && !escaped;
        escaped = *c == '\\' && !escaped;
        closes
    });
    end.expect("an end of the quoted text").0 + 1
}
