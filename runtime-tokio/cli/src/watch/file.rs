//! The config file of a watch, as it is now and after each change.

use std::path::{Path, PathBuf};

use mcp_reconnect::config::{ConfigErrors, FleetConfig, Parsed, Watcher};

/// A config file. One that the system does not watch is read at the start, and when the user wants it.
pub(super) struct ConfigFile {
    path: PathBuf,
    watcher: Option<Watcher>,
    /// Why its changes are not seen, where that is so.
    pub(super) unseen: Option<String>,
    is_read: bool,
}

impl ConfigFile {
    pub(super) fn new(path: PathBuf) -> Self {
        let (watcher, unseen) = match Watcher::new(&path) {
            Ok(watcher) => (Some(watcher), None),
            Err(error) => (None, Some(format!("changes of the config are not seen: {error}"))),
        };
        Self { path, watcher, unseen, is_read: false }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The file as it is, at first; then as it is after each change. Cancel safe from the second on.
    pub(super) async fn next(&mut self) -> Result<Parsed, ConfigErrors> {
        let was_read = std::mem::replace(&mut self.is_read, true);
        if let Some(watcher) = &mut self.watcher
            && let Some(version) = watcher.next().await
        {
            return version;
        }
        if was_read { std::future::pending().await } else { self.read() }
    }

    /// The file as it is now.
    pub(super) fn read(&self) -> Result<Parsed, ConfigErrors> {
        FleetConfig::load(&self.path)
    }
}
