//! What the host is told of changes: what the server announces as it comes, and what is different in a later session.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mcp_reconnect_core::Status;
use serde_json::value::RawValue;

use super::dispatch::{Session, Upstream};
use crate::catalogue::Catalogue;
use crate::connection::Connection;
use crate::era::Era;
use crate::frame;

/// One list of a server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Tools,
    Prompts,
    Resources,
    Templates,
}

impl Kind {
    const ALL: [Self; 4] = [Self::Tools, Self::Prompts, Self::Resources, Self::Templates];

    /// How a change of it is announced.
    pub(super) const fn announcement(self) -> &'static str {
        match self {
            Self::Tools => "notifications/tools/list_changed",
            Self::Prompts => "notifications/prompts/list_changed",
            Self::Resources | Self::Templates => "notifications/resources/list_changed",
        }
    }
}

/// What the host knows of the server.
#[derive(Default)]
pub(super) struct Changes(Mutex<Known>);

#[derive(Default)]
struct Known {
    greeted: bool,
    /// The host was told that the server can do everything.
    guessed: bool,
    lists: [List; 4],
}

#[derive(Default)]
struct List {
    /// What the host may have seen; `None`: it has asked for none.
    seen: Option<u64>,
    /// The server has announced a change by itself, that has not been seen yet.
    announced: bool,
}

impl Changes {
    /// The host was greeted; `guessed`: with a guess.
    pub(super) fn greet(&self, guessed: bool) {
        let mut known = self.lock();
        (known.greeted, known.guessed) = (true, guessed);
    }

    pub(super) fn greeted(&self) -> bool {
        self.lock().greeted
    }

    /// Whether the host may ask for what the server does not have.
    pub(super) fn promised_too_much(&self) -> bool {
        self.lock().guessed
    }

    /// The host asks for this list; this is known of it now.
    pub(super) fn listed(&self, kind: Kind, now: Option<&Catalogue>) {
        self.lock().lists[kind as usize].seen = Some(digest(kind, now));
    }

    fn announced(&self, method: &str) {
        let mut known = self.lock();
        for kind in Kind::ALL.into_iter().filter(|kind| kind.announcement() == method) {
            known.lists[kind as usize].announced = true;
        }
    }

    /// What the host has to be told, now that this is offered: nothing twice.
    fn news(&self, now: Option<&Catalogue>) -> Vec<&'static str> {
        let mut known = self.lock();
        let mut news = Vec::new();
        for kind in Kind::ALL {
            let list = &mut known.lists[kind as usize];
            let digest = digest(kind, now);
            if let Some(seen) = &mut list.seen
                && *seen != digest
            {
                *seen = digest;
                if !std::mem::take(&mut list.announced) && !news.contains(&kind.announcement()) {
                    news.push(kind.announcement());
                }
            }
        }
        news
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn digest(kind: Kind, catalogue: Option<&Catalogue>) -> u64 {
    let mut hasher = DefaultHasher::new();
    if let Some(catalogue) = catalogue {
        kind.items(catalogue).hash(&mut hasher);
    } else {
        Vec::<&str>::new().hash(&mut hasher);
    }
    hasher.finish()
}

impl Session {
    /// Tells the host what is different, and keeps what is known for the next start, until the connection has ended.
    pub(super) async fn watch(self: Arc<Self>, connection: Connection) {
        let mut published = connection.0.published.clone();
        let mut kept = None;
        loop {
            let (catalogue, session) = {
                let published = published.borrow_and_update();
                if published.snapshot.status == Status::Shutdown {
                    return;
                }
                (published.catalogue.clone(), published.session.clone())
            };
            for method in self.changes.news(catalogue.as_deref()) {
                self.announce(method);
            }
            if let (Some(session), Some(catalogue)) = (session, catalogue)
                && kept
                    .as_ref()
                    .is_none_or(|(epoch, known)| *epoch != session.epoch() || !Arc::ptr_eq(known, &catalogue))
            {
                self.keep(&session, &catalogue).await;
                kept = Some((session.epoch(), catalogue));
            }
            if published.changed().await.is_err() {
                return;
            }
        }
    }

    /// What the server tells, for the host.
    pub(super) fn told(&self, method: &str, params: Option<&RawValue>) {
        self.changes.announced(method);
        match method {
            "notifications/tools/list_changed"
            | "notifications/prompts/list_changed"
            | "notifications/resources/list_changed"
            | "notifications/resources/updated" => self.deliver(method, params),
            // Of the front's own stream, or of a handshake that was not the host's.
            "notifications/subscriptions/acknowledged" => {}
            _ => self.outbox.tell(frame::notification(method, params.map(RawValue::get))),
        }
    }

    fn announce(&self, method: &str) {
        self.deliver(method, None);
    }

    /// A notification that a modern host gets on its streams only.
    fn deliver(&self, method: &str, params: Option<&RawValue>) {
        match self.upstream() {
            Some(Upstream { era: Era::Modern, .. }) => {
                for params in self.streams.addressed(method, params) {
                    self.outbox.tell(frame::notification(method, Some(&params)));
                }
            }
            Some(Upstream { era: Era::Legacy, .. }) if self.changes.greeted() => {
                let without = params.and_then(super::streams::without_stream);
                let params = without.as_deref().or(params);
                self.outbox.tell(frame::notification(method, params.map(RawValue::get)));
            }
            Some(_) | None => {}
        }
    }
}
