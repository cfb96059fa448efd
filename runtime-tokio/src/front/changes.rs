//! What the host is told of changes: what the server announces as it comes, and what is different in a later session.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mcp_reconnect_core::{Epoch, Status};
use serde_json::value::RawValue;

use super::dispatch::{Session, Upstream};
use crate::connection::Connection;
use crate::protocol::{Era, frame};
use crate::session;
use crate::session::catalogue::{Catalogue, Part, canonical};

/// One list of a server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Tools,
    Prompts,
    Resources,
    Templates,
}

impl Kind {
    pub(super) const ALL: [Self; 4] = [Self::Tools, Self::Prompts, Self::Resources, Self::Templates];

    /// Whether this list is up to date.
    const fn is_listed(self, catalogue: &Catalogue) -> bool {
        match self {
            Self::Tools => matches!(catalogue.tools, Part::Listed(_)),
            Self::Prompts => matches!(catalogue.prompts, Part::Listed(_)),
            Self::Resources => matches!(catalogue.resources, Part::Listed(_)),
            Self::Templates => matches!(catalogue.templates, Part::Listed(_)),
        }
    }

    /// Whether it was never listed.
    pub(super) const fn is_unlisted(self, catalogue: &Catalogue) -> bool {
        match self {
            Self::Tools => matches!(catalogue.tools, Part::Unlisted),
            Self::Prompts => matches!(catalogue.prompts, Part::Unlisted),
            Self::Resources => matches!(catalogue.resources, Part::Unlisted),
            Self::Templates => matches!(catalogue.templates, Part::Unlisted),
        }
    }

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
    /// What it holds of each list; `None`: it has asked for none.
    held: [Option<Held>; 4],
}

/// What the host holds of a list.
enum Held {
    /// One of this digest.
    Seen(u64),
    /// What the server of this epoch says itself, or is about to be asked for, told of a change: the next list of ours
    /// after this one is the same.
    Fresh { epoch: Epoch, after: Option<Arc<Catalogue>> },
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

    /// The host was given this list as it is known.
    pub(super) fn shown(&self, kind: Kind, catalogue: Option<&Catalogue>) {
        self.lock().held[kind as usize] = Some(Held::Seen(digest(kind, catalogue)));
    }

    /// The server of this session has given the host its list.
    pub(super) fn listed(&self, kind: Kind, session: &session::Session) {
        let (epoch, catalogue) = (session.epoch(), session.catalogue());
        let mut known = self.lock();
        let held = &mut known.held[kind as usize];
        // A list of ours that is older than the change that was announced says nothing of the host's.
        let is_old = matches!(held, Some(Held::Fresh { epoch: told, after: Some(after) })
            if *told == epoch && Arc::ptr_eq(after, &catalogue));
        *held = Some(if is_old || !kind.is_listed(&catalogue) {
            Held::Fresh { epoch, after: Some(catalogue) }
        } else {
            Held::Seen(digest(kind, Some(&catalogue)))
        });
    }

    /// The server of this epoch has told the host of a change.
    fn announced(&self, method: &str, epoch: Epoch, now: Option<&Arc<Catalogue>>) {
        let mut known = self.lock();
        for kind in Kind::ALL.into_iter().filter(|kind| kind.announcement() == method) {
            if let Some(held) = &mut known.held[kind as usize] {
                *held = Held::Fresh { epoch, after: now.cloned() };
            }
        }
    }

    /// What the host has to be told, now that this is offered (`None`: nothing may be) in this epoch.
    fn news(&self, now: Option<&Arc<Catalogue>>, epoch: Option<Epoch>) -> Vec<&'static str> {
        let mut known = self.lock();
        let mut news = Vec::new();
        for kind in Kind::ALL {
            let Some(held) = &mut known.held[kind as usize] else { continue };
            if now.is_some_and(|now| !kind.is_listed(now)) {
                continue; // as it was, until it is listed again
            }
            let digest = digest(kind, now.map(|now| &**now));
            let is_new = match held {
                Held::Seen(seen) => *seen != digest,
                Held::Fresh { epoch: told, after } => match (now, epoch) {
                    (Some(now), Some(epoch)) if *told == epoch => {
                        if after.as_ref().is_some_and(|after| Arc::ptr_eq(after, now)) {
                            continue;
                        }
                        false
                    }
                    // The session is being rebuilt: the next one will show.
                    (Some(_), None) => continue,
                    _ => true,
                },
            };
            *held = Held::Seen(digest);
            if is_new && !news.contains(&kind.announcement()) {
                news.push(kind.announcement());
            }
        }
        news
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The same for lists that hold the same, in whatever order. One that is not there is as an empty one.
fn digest(kind: Kind, catalogue: Option<&Catalogue>) -> u64 {
    let texts = catalogue.map(|catalogue| kind.items(catalogue)).unwrap_or_default();
    let mut texts: Vec<_> =
        texts.into_iter().filter_map(|text| serde_json::from_str::<&RawValue>(text).ok()).map(canonical).collect();
    texts.sort_unstable();
    let mut hasher = DefaultHasher::new();
    texts.hash(&mut hasher);
    hasher.finish()
}

impl Session {
    /// Tells the host what is different, and keeps what is known for the next start, until the connection has ended.
    pub(super) async fn watch(self: Arc<Self>, connection: Connection) {
        let mut published = connection.0.published.clone();
        let mut seen = None;
        loop {
            let (catalogue, session) = {
                let published = published.borrow_and_update();
                if published.snapshot.status == Status::Shutdown {
                    return;
                }
                (published.catalogue.clone(), published.session.clone())
            };
            let epoch = session.as_ref().map(|session| session.epoch());
            let is_seen = seen.as_ref().is_some_and(|(seen_in, known): &(_, Option<Arc<Catalogue>>)| {
                *seen_in == epoch && known.as_ref().map(Arc::as_ptr) == catalogue.as_ref().map(Arc::as_ptr)
            });
            if !is_seen {
                for method in self.changes.news(catalogue.as_ref(), epoch) {
                    self.announce(method);
                }
                if let (Some(session), Some(catalogue)) = (&session, &catalogue) {
                    self.keep(session, catalogue).await;
                }
                seen = Some((epoch, catalogue));
            }
            if published.changed().await.is_err() {
                return;
            }
        }
    }

    /// The host was given a list of this epoch, after a later one may have been looked at here.
    pub(super) fn tell_of_later_session(&self, connection: &Connection, epoch: Epoch) {
        let (catalogue, later) = {
            let published = connection.0.published.borrow();
            (published.catalogue.clone(), published.session.as_ref().map(|session| session.epoch()))
        };
        if later.is_some_and(|later| later > epoch) {
            for method in self.changes.news(catalogue.as_ref(), later) {
                self.announce(method);
            }
        }
    }

    /// What the server tells, for the host.
    pub(super) fn told(&self, epoch: Epoch, method: &str, params: Option<&RawValue>) {
        if method.ends_with("/list_changed") {
            let session = self.upstream().and_then(|upstream| upstream.connection.0.published.borrow().session.clone());
            let session = session.filter(|session| session.epoch() == epoch);
            self.changes.announced(method, epoch, session.map(|session| session.catalogue()).as_ref());
        }
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
        match self.upstream().map(Upstream::era) {
            Some(Era::Modern) => {
                for params in self.streams.addressed(method, params) {
                    self.outbox.tell(frame::notification(method, Some(&params)));
                }
            }
            Some(Era::Legacy) if self.changes.greeted() => {
                let without = params.and_then(super::streams::without_stream);
                let params = without.as_deref().or(params);
                self.outbox.tell(frame::notification(method, params.map(RawValue::get)));
            }
            Some(_) | None => {}
        }
    }
}
