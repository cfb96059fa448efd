//! The file: read with every doubt, written whole or not at all.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder, File};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde::Serialize;
use serde_json::value::RawValue;

use super::warning::{MAX_SIZE, StateProblem, StateWarning};
use super::{SavedServer, SavedState};
use crate::clock::unix_millis;
use crate::protocol::frame;

const FORMAT: &str = "mcp-reconnect-state";
/// The version that is written, and those that are read.
const VERSION: u64 = 2;
const READ: RangeInclusive<u64> = 1..=VERSION;
/// The beginning that is enough to know a damaged file as ours.
const MARK: &str = r#"{"format":"mcp-reconnect-state""#;

/// The name of a temporary file begins with a dot and the name of the state file, and ends with this.
const TEMPORARY: &str = ".tmp";
/// A temporary file this old is of a process that was killed while it wrote.
const ABANDONED: Duration = Duration::from_secs(3600);
/// How many symbolic links are followed, as by most kernels.
const MAX_LINKS: usize = 40;

/// A state file, which need not exist yet. Its methods block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateFile {
    path: PathBuf,
}

#[derive(Serialize)]
struct Content<'a> {
    format: &'static str,
    version: u64,
    servers: BTreeMap<&'a str, WithRest<'a, &'a SavedServer>>,
}

/// A value, and the members that only another release knows.
#[derive(Serialize)]
struct WithRest<'a, T> {
    #[serde(flatten)]
    known: T,
    #[serde(flatten)]
    rest: BTreeMap<&'a str, &'a RawValue>,
}

/// The members of a file and of a server that this version writes.
const OF_FILE: [&str; 3] = ["format", "version", "servers"];
const OF_SERVER: [&str; 8] = ["digest", "saved_at", "era", "memory", "last_dial_at", "cause", "tools", "approvals"];

impl StateFile {
    /// The file at this path. A symbolic link is followed, and stays.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// The path as it was given.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Everything that can be used of it, and what is wrong with the rest. A file that does not exist is empty.
    ///
    /// Removes the temporary files of processes that were killed while they wrote, once they are an hour old.
    pub fn load(&self) -> (SavedState, Vec<StateWarning>) {
        let mut warnings = Vec::new();
        let mut state = SavedState::default();
        match self.read(&mut state) {
            Ok(problems) => warnings.extend(problems),
            Err(problem) => warnings.push(problem),
        }
        (state, warnings.into_iter().map(|problem| problem.at(&self.path)).collect())
    }

    fn read(&self, state: &mut SavedState) -> Result<Vec<StateProblem>, StateProblem> {
        let target = self.target()?;
        remove_abandoned(&target);
        let Some(bytes) = read_bytes(&target)? else { return Ok(Vec::new()) };
        let mut problems = Vec::new();
        match parse(&bytes) {
            Ok(content) => {
                for (name, json) in content.servers {
                    match serde_json::from_str::<SavedServer>(json.get()) {
                        Ok(server) => state.insert(name, server),
                        Err(error) => problems.push(StateProblem::Server { name, reason: error.to_string() }),
                    }
                }
            }
            Err(problem) => {
                if matches!(problem, StateProblem::Damaged(_)) {
                    // As good as possible: the name may be taken, and not every file system has links.
                    let mut kept = target.clone().into_os_string();
                    kept.push(".bak");
                    drop(fs::hard_link(&target, kept));
                }
                return Err(problem);
            }
        }
        Ok(problems)
    }

    /// Writes the file: whole, or not at all. It is then readable by its owner alone; a folder that is missing is
    /// made. Of several processes that write, the last one's file stays.
    ///
    /// # Errors
    ///
    /// A file there that is not ours (see the [module](super)), a state that is too large, or the file system's.
    pub fn save(&self, state: &SavedState) -> Result<(), StateWarning> {
        self.write(state).map_err(|problem| problem.at(&self.path))
    }

    fn write(&self, state: &SavedState) -> Result<(), StateProblem> {
        let target = self.target()?;
        let old = read_bytes(&target)?.unwrap_or_default();
        let old = match parse(&old) {
            Ok(old) => old,
            Err(StateProblem::Damaged(_)) => Kept::default(),
            Err(problem) => return Err(problem),
        };
        let bytes = old.with(state).map_err(|error| StateProblem::io("encode it")(error.into()))?;
        if bytes.len() as u64 > MAX_SIZE {
            return Err(StateProblem::TooLarge);
        }
        let folder = folder_of(&target);
        make_folder(folder).map_err(StateProblem::io("make its folder"))?;
        let mut temporary = tempfile::Builder::new()
            .prefix(&temporary_prefix(&target))
            .suffix(TEMPORARY)
            .tempfile_in(folder)
            .map_err(StateProblem::io("make a temporary file beside it"))?;
        temporary.write_all(&bytes).map_err(StateProblem::io("write it"))?;
        temporary.as_file().sync_all().map_err(StateProblem::io("write it"))?;
        temporary.persist(&target).map_err(|error| StateProblem::io("replace it")(error.error))?;
        sync_folder(folder);
        Ok(())
    }

    /// Where the path leads.
    fn target(&self) -> Result<PathBuf, StateProblem> {
        let mut target = self.path.clone();
        for _ in 0..MAX_LINKS {
            match fs::read_link(&target) {
                Ok(next) => target = folder_of(&target).join(next),
                // No link, or nothing there.
                Err(_) => return Ok(target),
            }
        }
        let error = io::Error::new(ErrorKind::InvalidInput, "too many symbolic links");
        Err(StateProblem::io("find it")(error))
    }
}

/// Reads the file; `None` where there is none.
fn read_bytes(target: &Path) -> Result<Option<Vec<u8>>, StateProblem> {
    let Some(file) = open(target)? else { return Ok(None) };
    let mut bytes = Vec::new();
    file.take(MAX_SIZE + 1).read_to_end(&mut bytes).map_err(StateProblem::io("read it"))?;
    if bytes.len() as u64 > MAX_SIZE { Err(StateProblem::TooLarge) } else { Ok(Some(bytes)) }
}

fn open(target: &Path) -> Result<Option<File>, StateProblem> {
    // Looked at before it is opened: opening a pipe waits for its other end.
    match fs::metadata(target) {
        Ok(found) if !found.is_file() => return Err(StateProblem::NotAFile),
        Ok(found) if found.len() > MAX_SIZE => return Err(StateProblem::TooLarge),
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(StateProblem::io("read it")(error)),
    }
    match File::open(target) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(StateProblem::io("read it")(error)),
    }
}

/// The content of a file of ours.
#[derive(Default, Debug)]
pub(super) struct Kept<'a> {
    pub(super) servers: BTreeMap<String, &'a RawValue>,
    members: frame::Object<'a>,
}

/// Reads a file of ours. One without a byte in it is ours: somebody made it for us.
pub(super) fn parse(bytes: &[u8]) -> Result<Kept<'_>, StateProblem> {
    if bytes.is_empty() {
        return Ok(Kept::default());
    }
    let begins_as_ours = bytes.starts_with(MARK.as_bytes()) || MARK.as_bytes().starts_with(bytes);
    let broken = |error: serde_json::Error| {
        if begins_as_ours { StateProblem::Damaged(error.to_string()) } else { StateProblem::Foreign }
    };
    let members: frame::Object<'_> = serde_json::from_slice(bytes).map_err(broken)?;
    if text(&members, "format").as_deref() != Some(FORMAT) {
        return Err(StateProblem::Foreign);
    }
    let damaged = |error: serde_json::Error| StateProblem::Damaged(error.to_string());
    match member(&members, "version").map(RawValue::get) {
        Some(version) if READ.map(|read| read.to_string()).any(|read| read == version) => {}
        version => return Err(StateProblem::Version(version.map_or("unknown", frame::excerpt).to_owned())),
    }
    let servers = serde_json::from_str(member(&members, "servers").map_or("", RawValue::get)).map_err(damaged)?;
    Ok(Kept { servers, members })
}

impl Kept<'_> {
    /// The text of a file with this state, and with what only another release knows of the file, and of each server
    /// whose digest is the same.
    fn with(&self, state: &SavedState) -> serde_json::Result<Vec<u8>> {
        let old: BTreeMap<_, frame::Object<'_>> = state
            .iter()
            .filter_map(|(name, server)| {
                let old = serde_json::from_str(self.servers.get(name)?.get()).ok()?;
                (text(&old, "digest")? == server.digest).then_some((name, old))
            })
            .collect();
        let with_rest = |(name, known)| {
            let rest = old.get(name).map(|old| rest(old, &OF_SERVER)).unwrap_or_default();
            (name, WithRest { known, rest })
        };
        let known = Content { format: FORMAT, version: VERSION, servers: state.iter().map(with_rest).collect() };
        serde_json::to_vec(&WithRest { known, rest: rest(&self.members, &OF_FILE) })
    }
}

fn member<'a>(members: &frame::Object<'a>, name: &str) -> Option<&'a RawValue> {
    members.0.iter().find(|(known, _)| known == name).map(|(_, value)| *value)
}

fn text(members: &frame::Object<'_>, name: &str) -> Option<String> {
    serde_json::from_str(member(members, name)?.get()).ok()
}

/// The members that are none of these.
fn rest<'a>(members: &'a frame::Object<'a>, known: &[&str]) -> BTreeMap<&'a str, &'a RawValue> {
    let rest = members.0.iter().filter(|(name, _)| !known.contains(&name.as_ref()));
    rest.map(|(name, value)| (name.as_ref(), *value)).collect()
}

fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        Some(_) | None => Path::new("."),
    }
}

fn make_folder(folder: &Path) -> io::Result<()> {
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder)
}

/// The new name survives a power failure too. Where that cannot be had, the old file may be back after one.
fn sync_folder(folder: &Path) {
    if cfg!(unix) {
        drop(File::open(folder).and_then(|folder| folder.sync_all()));
    }
}

fn temporary_prefix(target: &Path) -> OsString {
    let mut prefix = OsString::from(".");
    prefix.push(target.file_name().unwrap_or_else(|| OsStr::new("state")));
    prefix.push(".");
    prefix
}

fn remove_abandoned(target: &Path) {
    let prefix = temporary_prefix(target);
    let Ok(entries) = fs::read_dir(folder_of(target)) else { return };
    let now = Duration::from_millis(unix_millis());
    for entry in entries.flatten() {
        let name = entry.file_name();
        let name = name.as_encoded_bytes();
        let is_temporary = name.starts_with(prefix.as_encoded_bytes()) && name.ends_with(TEMPORARY.as_bytes());
        let Ok(metadata) = entry.metadata() else { continue };
        let written = metadata.modified().ok().and_then(|at| at.duration_since(SystemTime::UNIX_EPOCH).ok());
        if is_temporary && metadata.is_file() && written.is_some_and(|written| now.saturating_sub(written) >= ABANDONED)
        {
            // It stays where it cannot be removed, and harms nobody.
            drop(fs::remove_file(entry.path()));
        }
    }
}
