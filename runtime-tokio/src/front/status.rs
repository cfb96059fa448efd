//! How a front stands, as plain data for people and programs.

use std::sync::{Arc, OnceLock, Weak};

use serde::Serialize;

use super::dispatch::Session;
use crate::connection::Connection;
use crate::era::Era;
use crate::status::ServerStatus;

/// Tells how a front stands. Cheap to clone; keeps nothing alive.
#[derive(Clone, Default)]
pub struct FrontStatus(Arc<OnceLock<Weak<Session>>>);

/// How a front stands at one moment.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct FrontSnapshot {
    /// The host's side.
    pub host: HostStatus,
    /// The servers' side; empty until the host has begun its session, and when that has ended.
    pub servers: Vec<ServerStatus>,
}

/// How a front stands with its host.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct HostStatus {
    /// The era that it speaks; `None`: it has not begun.
    pub era: Option<Era>,
    /// The protocol version that it asked for.
    pub version: Option<Box<str>>,
    /// How many of its requests are not answered yet.
    pub open: usize,
    /// How many requests of servers it has not answered yet.
    pub asked: usize,
}

impl FrontStatus {
    /// How it stands now.
    pub fn snapshot(&self) -> FrontSnapshot {
        let Some(session) = self.0.get().and_then(Weak::upgrade) else { return FrontSnapshot::default() };
        let upstream = session.upstream();
        FrontSnapshot {
            host: HostStatus {
                era: upstream.map(|upstream| upstream.era),
                version: upstream.map(|upstream| upstream.version.clone()),
                open: session.open_requests(),
                asked: session.asks.open(),
            },
            servers: upstream.iter().map(|upstream| upstream.connection.status()).collect(),
        }
    }

    /// The connection, once the host has begun.
    pub(super) fn connection(&self) -> Option<Connection> {
        let session = self.0.get().and_then(Weak::upgrade)?;
        session.upstream().map(|upstream| upstream.connection.clone())
    }

    pub(super) fn watch(&self, session: &Arc<Session>) {
        drop(self.0.set(Arc::downgrade(session))); // there is one session
    }
}

impl std::fmt::Debug for FrontStatus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("FrontStatus").field(&self.snapshot()).finish()
    }
}
