//! One server of a host's file: how it goes through the front, and how it did without.

use std::path::Path;

use jsonc_parser::ast::{Array, Object, ObjectProp, StringLit, Value};

use super::document::{Dialect, Document, Edit, Entry, edited, literal, member, range, strings};

const URLS: [&str; 3] = ["url", "serverUrl", "httpUrl"];
const TRANSPORTS: [&str; 3] = ["type", "transport", "transportType"];
/// A login that is the host's own.
const LOGINS: [&str; 4] = ["auth", "authProviderType", "headersHelper", "oauth"];

/// Number of words before the server's own command.
const BEFORE_COMMAND: usize = 5;

/// The front that goes before the servers.
#[derive(Clone, Debug)]
pub(super) struct Front {
    /// The program, as a host is to call it.
    pub(super) program: String,
    /// The file of the originals, where its path can stand in JSON.
    pub(super) originals: Option<String>,
}

/// The way from the front to a server, where this command installed it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Route<'d> {
    Command { name: &'d str },
    Config { file: &'d str, name: &'d str },
}

impl<'d> Route<'d> {
    pub(super) fn of(entry: Entry<'d, '_>) -> Option<Self> {
        match words(entry.object()?)?[..] {
            [_, "proxy", "--name", name, "--", _, ..] => Some(Self::Command { name }),
            [_, "proxy", "--config", file, "--server", name] => Some(Self::Config { file, name }),
            _ => None,
        }
    }

    /// The server's name when it was installed.
    pub(super) const fn name(&self) -> &'d str {
        match self {
            Self::Command { name } | Self::Config { name, .. } => name,
        }
    }
}

/// The command line of a child process.
pub(super) fn words<'d>(server: &'d Object<'_>) -> Option<Vec<&'d str>> {
    let mut words = match member(server, "command")? {
        Value::StringLit(program) => vec![program],
        Value::Array(words) => strings(&words.elements)?,
        _ => return None,
    };
    if let Some(args) = member(server, "args") {
        words.extend(strings(&args.as_array()?.elements)?);
    }
    Some(words.into_iter().map(|word: &StringLit<'_>| word.value.as_ref()).collect())
}

/// The program that is called.
pub(super) fn program<'d>(entry: Entry<'d, '_>) -> Option<&'d str> {
    words(entry.object()?)?.first().copied()
}

/// Whether the server goes through the front, be it by this command or by hand.
pub(super) fn is_through(entry: Entry<'_, '_>, front: &Front) -> bool {
    let Some(words) = entry.object().and_then(words) else { return false };
    let Some((program, args)) = words.split_first() else { return false };
    let ours = *program == front.program || Path::new(program).file_stem().is_some_and(|it| it == "mcp-reconnect");
    let before_command = args.iter().take_while(|arg| **arg != "--");
    Route::of(entry).is_some() || ours && before_command.into_iter().any(|arg| *arg == "proxy")
}

pub(super) fn is_http(entry: Entry<'_, '_>) -> bool {
    entry.object().is_some_and(|server| member(server, "command").is_none())
}

/// The login of the host that the server would lose.
pub(super) fn login(entry: Entry<'_, '_>) -> Option<&'static str> {
    let server = entry.object()?;
    let off = |value: &Value<'_>| value.as_boolean_lit().is_some_and(|flag| !flag.value);
    LOGINS.into_iter().find(|login| member(server, login).is_some_and(|value| !off(value)))
}

/// Puts the front before a server that the reader of configs understands.
pub(super) fn wrap(doc: &Document<'_>, dialect: Dialect, entry: Entry<'_, '_>, front: &Front) -> Vec<Edit> {
    let Some(server) = entry.object() else { return Vec::new() };
    match (member(server, "command"), &front.originals) {
        (Some(command), _) => wrap_command(doc, server, command, entry.name, front),
        (None, Some(originals)) => wrap_url(doc, dialect, server, entry.name, &front.program, originals),
        (None, None) => Vec::new(),
    }
}

fn wrap_command(doc: &Document<'_>, server: &Object<'_>, command: &Value<'_>, name: &str, front: &Front) -> Vec<Edit> {
    let program = literal(&front.program);
    let mut before = ["proxy", "--name", name, "--"].map(literal).to_vec();
    if let Value::Array(words) = command {
        before.insert(0, program);
        return vec![prepend(doc, words, &before)];
    }
    before.push(doc.slice(range(command)).to_owned());
    let args = match server.get("args") {
        Some(ObjectProp { value: Value::Array(args), .. }) => prepend(doc, args, &before),
        Some(null) => Edit::new(range(&null.value), array(&before)),
        None => {
            let lead = server.get("command").map_or(" ", |command| doc.lead(command.range.start));
            Edit::insert(range(command).end, format!(",{lead}\"args\": {}", array(&before)))
        }
    };
    vec![Edit::new(range(command), program), args]
}

fn array(words: &[String]) -> String {
    format!("[{}]", words.join(", "))
}

/// More words at the start of an array, laid out as those that are there.
fn prepend(doc: &Document<'_>, array: &Array<'_>, words: &[String]) -> Edit {
    let Some(first) = array.elements.first() else {
        return Edit::insert(array.range.start + 1, words.join(", "));
    };
    let at = range(first).start;
    let lead = doc.lead(at);
    Edit::insert(at, words.iter().map(|word| format!("{word},{lead}")).collect::<String>())
}

/// Headers are secrets, which belong into no command line: the front reads them where they were kept.
fn wrap_url(
    doc: &Document<'_>,
    dialect: Dialect,
    server: &Object<'_>,
    name: &str,
    program: &str,
    originals: &str,
) -> Vec<Edit> {
    let is_url = |property: &&ObjectProp<'_>| {
        URLS.contains(&property.name.as_str()) && property.value.as_null_keyword().is_none()
    };
    let Some(url) = server.properties.iter().find(is_url) else { return Vec::new() };
    let words = ["proxy", "--config", originals, "--server", name].map(literal);
    let program = literal(program);
    let command = match dialect {
        Dialect::Common => {
            format!("\"command\": {program},{}\"args\": {}", doc.lead(url.range.start), array(&words))
        }
        Dialect::OpenCode => format!("\"command\": {}", array(&[&[program][..], &words].concat())),
    };
    let mut edits = vec![Edit::new(url.range.start..url.range.end, command)];
    if let Some(kind) = kept_type(dialect, server) {
        edits.push(Edit::new(range(kind), literal("local")));
    }
    let url = url.range;
    edits.extend(doc.without(server, |property| property.range != url && goes(dialect, property)));
    edits
}

/// The `type` of a server that must have one.
fn kept_type<'d, 'a>(dialect: Dialect, server: &'d Object<'a>) -> Option<&'d Value<'a>> {
    member(server, "type").filter(|_| dialect == Dialect::OpenCode)
}

/// Whether a member has no meaning for a server that is a command, or makes way for one that has.
fn goes(dialect: Dialect, property: &ObjectProp<'_>) -> bool {
    let key = property.name.as_str();
    let is_kept_type = key == "type" && dialect == Dialect::OpenCode && property.value.as_null_keyword().is_none();
    let of_http = URLS.contains(&key) || LOGINS.contains(&key) || TRANSPORTS.contains(&key) && !is_kept_type;
    of_http || ["headers", "command", "args"].contains(&key)
}

/// Puts a server back that [`wrap`] changed. As it was, where nothing else was changed since; else everything that
/// was changed since stays. `original` is the file of the originals, and the server in it.
///
/// # Errors
///
/// Why it cannot be put back, in words.
pub(super) fn unwrap(
    doc: &Document<'_>,
    entry: Entry<'_, '_>,
    originals: Option<(&Document<'_>, Entry<'_, '_>)>,
    file: &str,
) -> Result<Vec<Edit>, String> {
    let (Some(route), Some(server)) = (Route::of(entry), entry.object()) else {
        return Err("was not put behind the front by this command".into());
    };
    if let Some((then, original)) = originals {
        let program = program(entry).unwrap_or_default().to_owned();
        let originals = match route {
            Route::Config { file, .. } => file,
            Route::Command { .. } => file,
        };
        let front = Front { program, originals: Some(originals.to_owned()) };
        let installed = Entry { name: route.name(), value: original.value };
        let edits = wrap(then, then.dialect(), installed, &front);
        if edited(then.text, original.range(), edits) == doc.slice(entry.range()) {
            return Ok(vec![Edit::new(entry.range(), then.slice(original.range()))]);
        }
    }
    match route {
        Route::Command { .. } => unwrap_command(doc, server, originals),
        Route::Config { .. } => {
            let Some((then, original)) = originals else {
                return Err(format!("its original is not in {file}"));
            };
            let Some(was) = original.object().filter(|_| is_http(original)) else {
                return Err(format!("its original in {file} is no server behind HTTP"));
            };
            Ok(unwrap_url(doc, server, then, was))
        }
    }
}

fn unwrap_command(
    doc: &Document<'_>,
    server: &Object<'_>,
    originals: Option<(&Document<'_>, Entry<'_, '_>)>,
) -> Result<Vec<Edit>, String> {
    let changed = || "its command line was changed in a way that cannot be undone".to_owned();
    // The array that begins with the words that were put there, and their number.
    let (array, count) = match member(server, "command") {
        Some(Value::Array(words)) => (words, BEFORE_COMMAND),
        _ => (member(server, "args").and_then(Value::as_array).ok_or_else(changed)?, BEFORE_COMMAND - 1),
    };
    let start = array.elements.first().map(|first| range(first).start).ok_or_else(changed)?;
    let Some(program) = array.elements.get(count) else { return Err(changed()) };
    let Some(command @ Value::StringLit(_)) = member(server, "command") else {
        return Ok(vec![Edit::new(start..range(program).start, "")]);
    };
    let mut edits = vec![Edit::new(range(command), doc.slice(range(program)))];
    let was = originals.and_then(|(then, original)| Some((then, original.object()?.get("args"))));
    match (array.elements.get(count + 1), was) {
        (Some(next), _) => edits.push(Edit::new(start..range(next).start, "")),
        // None, or null.
        (None, Some((_, None))) => {
            edits.extend(doc.without(server, |property| property.name.as_str() == "args"));
        }
        (None, Some((then, Some(args)))) if args.value.as_array().is_none() => {
            edits.push(Edit::new(array.range.start..array.range.end, then.slice(range(&args.value))));
        }
        (None, _) => edits.push(Edit::new(start..range(program).end, "")),
    }
    Ok(edits)
}

fn unwrap_url(doc: &Document<'_>, server: &Object<'_>, then: &Document<'_>, was: &Object<'_>) -> Vec<Edit> {
    let dialect = then.dialect();
    // A member that was added since under the same name stays.
    let has = |key: &str| !["command", "args"].contains(&key) && server.get(key).is_some();
    let back = was.properties.iter().filter(|property| goes(dialect, property) && !has(property.name.as_str()));
    let back: Vec<_> = back.map(|property| then.slice(property.range.start..property.range.end)).collect();
    let command = server.get("command").map(|command| command.range).filter(|_| !back.is_empty());
    let mut edits = Vec::new();
    if let Some(command) = command {
        let lead = doc.lead(command.start);
        edits.push(Edit::new(command.start..command.end, back.join(&format!(",{lead}"))));
    }
    if let (Some(kind), Some(now)) = (kept_type(dialect, was), member(server, "type")) {
        edits.push(Edit::new(range(now), then.slice(range(kind))));
    }
    let made = |property: &ObjectProp<'_>| {
        ["command", "args"].contains(&property.name.as_str()) && Some(property.range) != command
    };
    edits.extend(doc.without(server, made));
    edits
}

/// Lets a server that was given another name since be found under that in the file of the originals.
pub(super) fn rename(entry: Entry<'_, '_>) -> Option<Edit> {
    let server = entry.object()?;
    let last = [member(server, "args"), member(server, "command")].into_iter().flatten();
    let name = last.filter_map(Value::as_array).find_map(|array| array.elements.last())?;
    Some(Edit::new(range(name), literal(entry.name)))
}
