//! How a front stands, as plain data for people and programs.

use std::sync::{Arc, Weak};

use serde::Serialize;
use tokio::sync::SetOnce;

use super::dispatch::{Session, Upstream};
use crate::connection::{Connection, ServerStatus};
use crate::protocol::Era;

/// Tells how a front stands. Cheap to clone; keeps nothing alive.
#[derive(Clone, Default)]
pub struct FrontStatus(Vec<Seat>);

/// Where a front puts its session, once the host has begun it.
#[derive(Clone, Default)]
pub(super) struct Seat(Arc<SetOnce<Weak<Session>>>);

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
    /// Of a front for each of these.
    pub(super) fn of(seats: Vec<Seat>) -> Self {
        Self(seats)
    }

    /// How it stands now.
    pub fn snapshot(&self) -> FrontSnapshot {
        let mut snapshot = FrontSnapshot::default();
        for session in self.0.iter().filter_map(Seat::session) {
            let upstream = session.upstream();
            let host = &mut snapshot.host;
            host.era = host.era.or(upstream.map(Upstream::era));
            host.version = host.version.take().or_else(|| upstream.map(|upstream| upstream.version().into()));
            host.open += session.open_requests();
            host.asked += session.asks.open();
            snapshot.servers.extend(upstream.map(|upstream| upstream.connection.status()));
        }
        snapshot
    }
}

impl Seat {
    /// The connection, once the host has begun.
    pub(super) fn connection(&self) -> Option<Connection> {
        self.session()?.upstream().map(|upstream| upstream.connection.clone())
    }

    /// The same, as soon as it is there; never when the front ends before.
    pub(super) async fn begun(&self) -> Connection {
        self.0.wait().await;
        match self.connection() {
            Some(connection) => connection,
            None => std::future::pending().await,
        }
    }

    pub(super) fn take(&self, session: &Arc<Session>) {
        drop(self.0.set(Arc::downgrade(session))); // there is one session
    }

    fn session(&self) -> Option<Arc<Session>> {
        self.0.get().and_then(Weak::upgrade)
    }
}

impl std::fmt::Debug for FrontStatus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("FrontStatus").field(&self.snapshot()).finish()
    }
}

impl std::fmt::Debug for Seat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Seat").field("taken", &self.0.get().is_some()).finish()
    }
}
