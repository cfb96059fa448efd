//! What a server said of itself, kept for the next start.

use std::io::{self, Write as _};
use std::path::Path;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::changes::Kind;
use super::dispatch::Session;
use super::greet::Greeting;
use crate::connection::Builder;
use crate::protocol::Era;
use crate::session;
use crate::session::catalogue::{Catalogue, Item, Part};

/// The version of the file's format.
const VERSION: u32 = 1;

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct File {
    version: u32,
    era: Era,
    greeting: Box<RawValue>,
    tools: Vec<Box<RawValue>>,
    prompts: Vec<Box<RawValue>>,
    resources: Vec<Box<RawValue>>,
    resource_templates: Vec<Box<RawValue>>,
}

impl File {
    fn load(path: &Path) -> io::Result<Self> {
        let file: Self = serde_json::from_slice(&std::fs::read(path)?)?;
        if file.version == VERSION {
            Ok(file)
        } else {
            Err(io::Error::other(format!("`version` is {}, not {VERSION}", file.version)))
        }
    }

    fn of(session: &session::Session, catalogue: &Catalogue) -> Self {
        let texts = |kind: Kind| {
            let texts = kind.items(catalogue).into_iter();
            texts.filter_map(|text| RawValue::from_string(text.to_owned()).ok()).collect()
        };
        Self {
            version: VERSION,
            era: if session.server().protocol_version.has_initialize() { Era::Legacy } else { Era::Modern },
            greeting: session.server_raw().to_owned(),
            tools: texts(Kind::Tools),
            prompts: texts(Kind::Prompts),
            resources: texts(Kind::Resources),
            resource_templates: texts(Kind::Templates),
        }
    }

    fn catalogue(&self) -> Catalogue {
        Catalogue {
            tools: part(&self.tools),
            prompts: part(&self.prompts),
            resources: part(&self.resources),
            templates: part(&self.resource_templates),
        }
    }

    /// Puts it in the place of what is there, whole or not at all.
    fn store(&self, path: &Path) -> io::Result<()> {
        let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        std::fs::create_dir_all(dir)?;
        let mut file = tempfile::NamedTempFile::new_in(dir)?;
        file.write_all(&serde_json::to_vec(self)?)?;
        file.persist(path)?;
        Ok(())
    }
}

fn part<T: DeserializeOwned>(texts: &[Box<RawValue>]) -> Part<T> {
    Part::Listed(texts.iter().filter_map(|text| Item::from_json(text.clone()).ok()).collect())
}

impl Session {
    /// Begins with what an earlier run knew.
    pub(super) fn with_cache(&self, builder: Builder) -> Builder {
        let Some(path) = &self.options.cache else { return builder };
        match File::load(path) {
            Ok(file) => {
                let builder = builder.known_catalogue(file.catalogue());
                self.remember(Greeting { era: file.era, raw: file.greeting });
                builder
            }
            Err(error) => {
                if error.kind() != io::ErrorKind::NotFound {
                    tracing::warn!(path = %path.display(), %error, "the cache cannot be read, and is left out");
                }
                builder
            }
        }
    }

    /// Keeps what a session said and lists.
    pub(super) async fn keep(&self, session: &session::Session, catalogue: &Arc<Catalogue>) {
        let Some(path) = self.options.cache.clone() else { return };
        if Kind::ALL.iter().any(|kind| kind.is_unlisted(catalogue)) {
            return; // about to be listed
        }
        let file = File::of(session, catalogue);
        let stored = tokio::task::spawn_blocking(move || file.store(&path).map_err(|error| (path, error))).await;
        if let Ok(Err((path, error))) = stored {
            tracing::warn!(path = %path.display(), %error, "the cache cannot be written");
        }
    }
}
