//! Waiting for servers, without waiting for bad ones.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use super::Fleet;
use crate::connection::Connection;
use crate::status::{ServerState, ServerStatus};

/// Which servers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Select {
    /// All that are not disabled, and not to be dialled on demand only.
    All,
    /// These.
    Named(Vec<Arc<str>>),
}

/// How servers stand.
#[derive(Clone, PartialEq, Debug, Default)]
#[non_exhaustive]
pub struct Readiness {
    /// They have a session.
    pub ready: Vec<Arc<str>>,
    /// They have none, and so they stand. A server that the fleet does not have counts as disabled.
    pub not_ready: Vec<ServerStatus>,
}

impl Readiness {
    /// Whether every selected server has a session.
    pub fn is_complete(&self) -> bool {
        self.not_ready.is_empty()
    }
}

impl Fleet {
    /// Waits until every selected server is ready, or is parked and so will not be soon, but never longer than this: what
    /// is ready by then can be used, and what is not goes on trying.
    pub async fn ready(&self, servers: &Select, within: Duration) -> Readiness {
        let selected = self.select(servers);
        let settled = selected.iter().filter_map(|(_, connection)| connection.as_ref()).map(Connection::settled);
        drop(timeout(within, futures::future::join_all(settled)).await); // who is not ready by then is told as such
        let mut readiness = Readiness::default();
        for (name, connection) in selected {
            match connection.map(|connection| connection.status()) {
                Some(status) if status.state == ServerState::Ready => readiness.ready.push(name),
                Some(status) => readiness.not_ready.push(status),
                None => readiness.not_ready.push(ServerStatus::disabled(name)),
            }
        }
        readiness
    }

    fn select(&self, which: &Select) -> Vec<(Arc<str>, Option<Connection>)> {
        let servers = self.0.lock();
        match which {
            Select::All => {
                let eager = servers.by_name.iter().filter(|(_, server)| server.is_expected());
                eager.map(|(name, server)| (name.clone(), server.connection().cloned())).collect()
            }
            Select::Named(names) => {
                let connection =
                    |name: &Arc<str>| servers.by_name.get(name).and_then(|server| server.connection().cloned());
                names.iter().map(|name| (name.clone(), connection(name))).collect()
            }
        }
    }
}
