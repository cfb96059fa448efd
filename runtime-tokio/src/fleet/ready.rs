//! Waiting for servers, without waiting for bad ones.

use std::sync::Arc;
use std::time::Duration;

use mcp_reconnect_core::Status;
use tokio::time::timeout;

use super::Fleet;
use crate::connection::{ServerState, ServerStatus};

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
    /// is ready by then can be used, and what is not goes on trying. A parked server that was just woken, or registered
    /// again, is waited for.
    pub async fn ready(&self, servers: &Select, within: Duration) -> Readiness {
        let names = self.select(servers);
        let settled = names.iter().map(|name| self.settled(name));
        drop(timeout(within, futures::future::join_all(settled)).await); // those not ready by then are reported as such
        let mut readiness = Readiness::default();
        for name in names {
            match self.connection(&name).map(|connection| connection.status()) {
                Some(status) if status.state == ServerState::Ready => readiness.ready.push(name),
                Some(status) => readiness.not_ready.push(status),
                None => readiness.not_ready.push(ServerStatus::without_connection(name, ServerState::Disabled)),
            }
        }
        readiness
    }

    /// Resolves when the connection that stands for this server by then is ready, or will not be soon.
    async fn settled(&self, server: &str) {
        let mut settled = None;
        while let Some(connection) = self.connection(server).filter(|next| !next.is(settled.as_ref())) {
            connection.settled().await;
            if connection.snapshot().status != Status::Shutdown {
                return;
            }
            // Shut down: perhaps there is another one by now.
            settled = Some(connection);
        }
    }

    fn select(&self, which: &Select) -> Vec<Arc<str>> {
        match which {
            Select::All => {
                let servers = self.0.lock();
                let eager = servers.by_name.iter().filter(|(_, server)| server.is_expected());
                eager.map(|(name, _)| name.clone()).collect()
            }
            Select::Named(names) => names.clone(),
        }
    }
}
