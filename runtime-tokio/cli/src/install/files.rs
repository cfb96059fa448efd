//! The host's file and the file of the originals beside it: read whole, written whole or not at all.

use std::ffi::OsString;
use std::fs::{self, File, Permissions};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::path::{Path, PathBuf};

/// The largest file that is read, in bytes.
const MAX_SIZE: u64 = 64 << 20;

/// Suffix of the originals' file, after the name of the host's file.
const SUFFIX: &str = ".mcp-reconnect-backup";

/// A file as it was read.
#[derive(Debug)]
pub(super) struct HostFile {
    /// Its place after all links: a link to it stays.
    target: PathBuf,
    permissions: Permissions,
    text: String,
}

/// A problem with a file, in words.
pub(super) type Wrong = String;

impl HostFile {
    /// # Errors
    ///
    /// A file that is not there, is no file, cannot be read, or holds no text.
    pub(super) fn read(path: &Path) -> Result<Self, Wrong> {
        let target = fs::canonicalize(path).map_err(|error| format!("cannot be read: {error}"))?;
        let text = read(&target)?.ok_or("cannot be read: it is gone")?;
        let metadata = fs::metadata(&target).map_err(|error| format!("cannot be read: {error}"))?;
        Ok(Self { target, permissions: metadata.permissions(), text })
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// The file of the originals, which is beside it.
    pub(super) fn originals(&self) -> PathBuf {
        self.beside("")
    }

    fn beside(&self, number: &str) -> PathBuf {
        let mut name = self.target.file_name().map_or_else(OsString::new, ToOwned::to_owned);
        name.push(format!("{SUFFIX}{number}.json"));
        folder_of(&self.target).join(name)
    }

    /// Puts another text in its place, whose permissions are the same.
    ///
    /// # Errors
    ///
    /// A file that may not be written, or that was changed since it was read: it is as it was then.
    pub(super) fn replace(&self, text: &str) -> Result<(), Wrong> {
        if self.permissions.readonly() {
            return Err("cannot be written: it is read-only".into());
        }
        let written = write_beside(&self.target, text, Some(&self.permissions))?;
        match read(&self.target) {
            Ok(Some(now)) if now == self.text => {}
            _ => return Err("was changed by somebody else just now, and was left as it is; try again".into()),
        }
        put(written, &self.target)
    }

    /// Keeps the file of the originals under a name that is free. That name.
    pub(super) fn keep_originals(&self) -> Result<PathBuf, Wrong> {
        let old = self.originals();
        for number in 1..=u16::MAX {
            let kept = self.beside(&format!("-{number}"));
            match fs::hard_link(&old, &kept) {
                Ok(()) => return Ok(kept),
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return Err(format!("cannot be kept under another name: {error}")),
            }
        }
        Err("cannot be kept under another name: there are too many".into())
    }
}

/// The text of a file; `None` where there is none.
pub(super) fn read(path: &Path) -> Result<Option<String>, Wrong> {
    let cannot = |error: io::Error| format!("cannot be read: {error}");
    // Looked at before it is opened: opening a pipe waits for its other end.
    if fs::metadata(path).is_ok_and(|found| !found.is_file()) {
        return Err("is no file".into());
    }
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(cannot(error)),
    };
    let mut bytes = Vec::new();
    file.take(MAX_SIZE + 1).read_to_end(&mut bytes).map_err(cannot)?;
    if bytes.len() as u64 > MAX_SIZE {
        return Err("is too large".into());
    }
    String::from_utf8(bytes)
        .map(Some)
        .map_err(|error| format!("is not UTF-8 from byte {} on", error.utf8_error().valid_up_to()))
}

/// Writes a file that its owner alone may read.
pub(super) fn write(path: &Path, text: &str) -> Result<(), Wrong> {
    put(write_beside(path, text, None)?, path)
}

/// Removes a file, if it is there.
pub(super) fn remove(path: &Path) -> Result<(), Wrong> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(format!("cannot be removed: {error}")),
        _ => Ok(()),
    }
}

fn write_beside(path: &Path, text: &str, permissions: Option<&Permissions>) -> Result<tempfile::NamedTempFile, Wrong> {
    let written = || {
        let mut file = tempfile::Builder::new().prefix(".mcp-reconnect-").tempfile_in(folder_of(path))?;
        file.write_all(text.as_bytes())?;
        if let Some(permissions) = permissions {
            file.as_file().set_permissions(permissions.clone())?;
        }
        file.as_file().sync_all()?;
        Ok(file)
    };
    written().map_err(|error: io::Error| format!("cannot be written: {error}"))
}

fn put(written: tempfile::NamedTempFile, path: &Path) -> Result<(), Wrong> {
    written.persist(path).map_err(|error| format!("cannot be written: {}", error.error))?;
    // The new name survives a power failure too; where that cannot be had, the old file may be back after one.
    drop(File::open(folder_of(path)).and_then(|folder| folder.sync_all()));
    Ok(())
}

fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        Some(_) | None => Path::new("."),
    }
}
