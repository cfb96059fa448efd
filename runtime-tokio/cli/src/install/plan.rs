//! The plan for a host's file: text in, text out.

use std::collections::{BTreeMap, BTreeSet};

use mcp_reconnect::config::{ConfigErrors, FleetConfig, Parsed, Problem, ProblemKind};

use super::document::{Document, Edit, Entry, edited};
use super::entry::{self, Front, Route};

/// The outcome for one server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Outcome {
    Done,
    /// It goes through the front.
    Already,
    /// Why it stays as it is.
    Left(String),
}

/// The servers that are meant.
#[derive(Clone, Default, Debug)]
pub(super) struct Choice {
    /// None: all.
    pub(super) only: BTreeSet<String>,
    pub(super) except: BTreeSet<String>,
}

impl Choice {
    fn takes(&self, name: &str) -> bool {
        (self.only.is_empty() || self.only.contains(name)) && !self.except.contains(name)
    }

    /// Names that no server has.
    fn unknown(&self, doc: &Document<'_>) -> Result<(), Refusal> {
        let entries = doc.entries();
        let has = |name: &String| entries.iter().any(|entry| entry.name == name);
        let Some(unknown) = self.only.union(&self.except).find(|name| !has(name)) else { return Ok(()) };
        let known: Vec<_> = entries.iter().map(|entry| entry.name).collect();
        let known = if known.is_empty() { "it has no servers".into() } else { format!("it has: {}", known.join(", ")) };
        Err(Refusal::Words(format!("no server `{unknown}`; {known}")))
    }
}

/// Why nothing is done at all.
#[derive(Debug)]
pub(super) enum Refusal {
    Config(ConfigErrors),
    /// About the host's file.
    Words(String),
    /// About the file of the originals.
    Originals(String),
}

/// Everything that is to be done to the files.
#[derive(Debug)]
pub(super) struct Plan {
    /// The outcome for each server that is meant, in the order of the file.
    pub(super) servers: Vec<(String, Outcome)>,
    /// The file afterwards.
    pub(super) text: String,
    pub(super) originals: Originals,
}

/// The change to the file of the originals.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum Originals {
    Stay,
    /// Written; `keep`: the file that is there holds more, and is kept under another name.
    Write {
        text: String,
        keep: bool,
    },
    Remove,
    /// These servers are in no other file.
    Needed(Vec<String>),
}

/// Two files as they are, byte order marks and all.
#[derive(Clone, Copy)]
pub(super) struct Files<'a> {
    /// The name of the host's file in problems.
    pub(super) source: &'a str,
    pub(super) host: &'a str,
    pub(super) originals: Option<&'a str>,
    /// The path of that file.
    pub(super) originals_path: &'a str,
}

const MARK: &str = "\u{feff}";

/// Why a server stays that somebody else put behind the front.
const BEFORE: &str = "it went through the front before this command came";

/// The text after its byte order mark, and that.
fn marked(text: &str) -> (&str, &str) {
    text.strip_prefix(MARK).map_or(("", text), |rest| (MARK, rest))
}

impl<'a> Files<'a> {
    fn host(&self) -> Result<Document<'a>, Refusal> {
        Document::parse(marked(self.host).1).map_err(Refusal::Words)
    }

    fn originals(&self) -> Result<Option<Document<'a>>, Refusal> {
        self.originals.map(|text| Document::parse(marked(text).1).map_err(Refusal::Originals)).transpose()
    }
}

/// Puts the front before the servers that are meant.
pub(super) fn install(files: Files<'_>, choice: &Choice, front: &Front) -> Result<Plan, Refusal> {
    let reasons = reasons(files)?;
    let (doc, originals) = (files.host()?, files.originals()?);
    choice.unknown(&doc)?;
    let mut servers = Vec::new();
    let mut edits = Vec::new();
    for entry in doc.entries().into_iter().filter(|entry| choice.takes(entry.name)) {
        let outcome = if entry::is_through(entry, front) {
            Outcome::Already
        } else if let Some(reason) = reason(&reasons, choice, entry, front) {
            Outcome::Left(reason)
        } else {
            edits.extend(entry::wrap(&doc, doc.dialect(), entry, front));
            Outcome::Done
        };
        servers.push((entry.name.to_owned(), outcome));
    }
    if edits.is_empty() {
        return Ok(Plan { servers, text: files.host.to_owned(), originals: Originals::Stay });
    }
    let Some(then) = originals else {
        let originals = Originals::Write { text: files.host.to_owned(), keep: false };
        return Ok(Plan { servers, text: changed(files.host, &doc, edits), originals });
    };
    // The file as it would be without the front is kept, so that servers installed earlier are in it as well.
    let mut back = Vec::new();
    for entry in doc.entries() {
        let Some(original) = original(&then, entry) else { continue };
        let Ok(put_back) = entry::unwrap(&doc, entry, Some((&then, original)), files.originals_path) else { continue };
        back.extend(put_back);
        if matches!(Route::of(entry), Some(Route::Config { name, .. }) if name != entry.name) {
            edits.extend(entry::rename(entry));
        }
    }
    let text = changed(files.host, &doc, back);
    let keep = {
        let next = Document::parse(marked(&text).1).map_err(Refusal::Words)?;
        let is_kept = |old: &Entry<'_, '_>| {
            let words = next.entry(old.name).map(|new| next.words(new.range()));
            words == Some(then.words(old.range()))
        };
        !then.entries().iter().all(is_kept)
    };
    let originals = match files.originals {
        Some(same) if same == text => Originals::Stay,
        _ => Originals::Write { text, keep },
    };
    Ok(Plan { servers, text: changed(files.host, &doc, edits), originals })
}

fn changed(text: &str, doc: &Document<'_>, edits: Vec<Edit>) -> String {
    marked(text).0.to_owned() + &edited(doc.text, 0..doc.text.len(), edits)
}

/// The original of a server that goes through the front: by the name that it had, else by the one that it has.
fn original<'d, 'a>(then: &'d Document<'a>, entry: Entry<'_, '_>) -> Option<Entry<'d, 'a>> {
    let route = Route::of(entry)?;
    let found = then.entry(route.name()).or_else(|| then.entry(entry.name))?;
    Route::of(found).is_none().then_some(found)
}

/// Why a server cannot go through the front.
fn reason(reasons: &BTreeMap<String, Reasons>, choice: &Choice, entry: Entry<'_, '_>, front: &Front) -> Option<String> {
    let http = entry::is_http(entry);
    if let Some(reasons) = reasons.get(entry.name)
        && let Some(reason) = reasons.first(http)
    {
        return Some(reason.to_owned());
    }
    if entry.name.starts_with('-') || entry.name.contains("${") {
        return Some("its name would be read as something else on a command line".into());
    }
    if !http {
        return None;
    }
    if front.originals.is_none() {
        return Some("the path of the file is not UTF-8, and cannot be named in it".into());
    }
    let login = entry::login(entry).filter(|_| !choice.only.contains(entry.name))?;
    Some(format!("its login (`{login}`) is the host's, and the front has none; --server takes it all the same"))
}

/// The problems of one server.
#[derive(Default)]
struct Reasons {
    whatever: Option<String>,
    /// A variable that only the host knows, which fills it in where the server is a command.
    variable: Option<String>,
}

impl Reasons {
    fn first(&self, http: bool) -> Option<&str> {
        self.whatever.as_deref().or(self.variable.as_deref().filter(|_| http))
    }
}

/// The problems of each server that cannot be used, as the reader of configs puts them.
fn reasons(files: Files<'_>) -> Result<BTreeMap<String, Reasons>, Refusal> {
    let read = FleetConfig::parse(files.host, files.source, |name| std::env::var(name).ok());
    let (mut errors, warnings) = match read {
        Ok(Parsed { warnings, .. }) => (Vec::new(), warnings),
        Err(mut errors) => {
            let warnings = std::mem::take(&mut errors.warnings);
            if errors.problems.iter().any(|problem| problem.server.is_none()) {
                errors.problems.retain(|problem| problem.server.is_none());
                return Err(Refusal::Config(errors));
            }
            (errors.problems, warnings)
        }
    };
    let of_an_editor =
        |warning: &Problem| warning.kind == ProblemKind::Ignored && warning.field.as_deref() == Some("source");
    errors.extend(warnings.into_iter().filter(|it| it.kind == ProblemKind::Unsupported || of_an_editor(it)));
    let mut reasons: BTreeMap<String, Reasons> = BTreeMap::new();
    for problem in errors {
        let Some(server) = problem.server else { continue };
        let reasons = reasons.entry(server.into()).or_default();
        let words = match problem.field {
            Some(field) => format!("`{field}`: {}", problem.text),
            None => problem.text.into(),
        };
        let place = match problem.kind {
            ProblemKind::Variable => &mut reasons.variable,
            _ => &mut reasons.whatever,
        };
        place.get_or_insert(words);
    }
    Ok(reasons)
}

/// Takes the front away again.
pub(super) fn undo(files: Files<'_>, choice: &Choice) -> Result<Plan, Refusal> {
    let (doc, originals) = (files.host()?, files.originals()?);
    choice.unknown(&doc)?;
    let through: Vec<_> = doc.entries().into_iter().filter(|entry| Route::of(*entry).is_some()).collect();
    let chosen: Vec<_> = through.iter().copied().filter(|entry| choice.takes(entry.name)).collect();
    if let (Some(text), Some(then)) = (files.originals, &originals)
        && chosen.len() == through.len()
        && reinstalled(then, &doc, text, files.originals_path) == files.host
        && text != files.host
    {
        let done = |entry: &Entry<'_, '_>| {
            let original = original(then, *entry);
            let outcome = original.map_or_else(|| Outcome::Left(BEFORE.into()), |_| Outcome::Done);
            (entry.name.to_owned(), outcome)
        };
        let servers = chosen.iter().map(done).collect();
        return Ok(Plan { servers, text: text.to_owned(), originals: Originals::Remove });
    }
    let mut servers = Vec::new();
    let mut edits = Vec::new();
    for entry in &chosen {
        let then = originals.as_ref();
        let original = then.and_then(|then| Some((then, original(then, *entry)?)));
        let put_back = match then.and_then(|then| then.entry(entry.name)) {
            Some(before) if original.is_none() && Route::of(before).is_some() => Err(BEFORE.to_owned()),
            _ => entry::unwrap(&doc, *entry, original, files.originals_path),
        };
        let outcome = match put_back {
            Ok(put_back) => {
                edits.extend(put_back);
                Outcome::Done
            }
            Err(reason) => Outcome::Left(reason),
        };
        servers.push((entry.name.to_owned(), outcome));
    }
    let is_needed = |(_, outcome): &(String, Outcome)| !matches!(outcome, Outcome::Left(why) if why == BEFORE);
    let all = chosen.len() == through.len()
        && servers.iter().filter(|it| is_needed(it)).all(|(_, outcome)| *outcome == Outcome::Done);
    let originals = match originals {
        Some(then) if all => {
            // If nothing was undone, somebody else put the file back, or wrote another one.
            let is_there = |old: &Entry<'_, '_>| match doc.entry(old.name) {
                Some(now) => !edits.is_empty() || doc.words(now.range()) == then.words(old.range()),
                None => false,
            };
            let gone = then.entries().into_iter().filter(|old| !is_there(old));
            let gone: Vec<_> = gone.map(|old| old.name.to_owned()).collect();
            if gone.is_empty() { Originals::Remove } else { Originals::Needed(gone) }
        }
        Some(_) | None => Originals::Stay,
    };
    Ok(Plan { servers, text: changed(files.host, &doc, edits), originals })
}

/// The host's file as it would be if it had only been installed.
fn reinstalled(then: &Document<'_>, now: &Document<'_>, text: &str, file: &str) -> String {
    let mut edits = Vec::new();
    for entry in then.entries().into_iter().filter(|entry| Route::of(*entry).is_none()) {
        let Some(installed) = now.entry(entry.name).filter(|installed| Route::of(*installed).is_some()) else {
            continue;
        };
        let program = entry::program(installed).unwrap_or_default().to_owned();
        let front = Front { program, originals: Some(file.to_owned()) };
        edits.extend(entry::wrap(then, then.dialect(), entry, &front));
    }
    changed(text, then, edits)
}
