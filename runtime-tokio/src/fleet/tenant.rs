//! One server of a fleet: what is wanted of it, and the connection that stands for it now.

use std::sync::{Arc, Weak};

use mcp_reconnect_core::{State, Status};

use super::Inner;
use super::approval::Approvals;
use super::event::FleetEvent;
use super::state::SavedServer;
use crate::config::ServerConfig;
use crate::connection::published::Observer;
use crate::connection::{Connection, Event};
use crate::options::Connect;
use crate::session::catalogue::Catalogue;

/// A server that is registered.
pub(super) struct Server {
    pub(super) config: ServerConfig,
    pub(super) digest: String,
    /// None while it is disabled.
    pub(super) tenant: Option<Tenant>,
    /// The state to keep of it while it is disabled.
    pub(super) rest: Option<SavedServer>,
}

/// The connection of a server.
pub(super) struct Tenant {
    /// Tells it from those before it.
    pub(super) number: u64,
    pub(super) connection: Connection,
}

impl Server {
    pub(super) fn connection(&self) -> Option<&Connection> {
        self.tenant.as_ref().map(|tenant| &tenant.connection)
    }

    /// Whether it is to be ready without anybody asking.
    pub(super) fn is_expected(&self) -> bool {
        self.tenant.is_some() && self.config.connect == Connect::Eager
    }

    pub(super) fn is_ready(&self) -> bool {
        self.connection().is_some_and(|connection| matches!(connection.snapshot().status, Status::Ready(_)))
    }

    /// Whether its connection has ended: somebody shut it down by its handle.
    pub(super) fn has_ended(&self) -> bool {
        self.connection().is_some_and(|connection| connection.snapshot().status == Status::Shutdown)
    }

    /// The state to keep of it, its approvals among it.
    pub(super) fn state(&self, name: &str, approvals: &Approvals) -> Option<SavedServer> {
        let Some(connection) = self.connection() else { return self.rest.clone() };
        let mut state = SavedServer::of(connection, self.digest.clone());
        state.approvals = approvals.of(name);
        Some(state)
    }

    /// A registration is a demand. Whether there was no session, and asking could help.
    pub(super) fn demand(&self) -> bool {
        let Some(connection) = self.connection() else { return false };
        let snapshot = connection.snapshot();
        let asleep = match snapshot.status {
            // A probe of a parked server is an attempt under way.
            _ if matches!(snapshot.state, State::Connecting { .. }) => false,
            Status::TransientFailure => true,
            Status::Parked(reason) => reason.probes(),
            Status::Idle => self.config.connect == Connect::Eager,
            Status::Connecting | Status::Ready(_) | Status::Shutdown => false,
        };
        if asleep {
            connection.demand();
        }
        asleep
    }
}

/// Tells the fleet what a connection does, for as long as it is the one that stands for its name.
pub(super) struct TenantObserver {
    pub(super) fleet: Weak<Inner>,
    pub(super) server: Arc<str>,
    pub(super) number: u64,
}

impl Observer for TenantObserver {
    fn offered(&self, catalogue: Option<&Arc<Catalogue>>) {
        let Some(fleet) = self.fleet.upgrade() else { return };
        let mut servers = fleet.lock();
        let servers = &mut *servers;
        let Some(server) = servers.by_name.get(&self.server).filter(|server| self.is_of(server)) else { return };
        let (filter, policy) = (&server.config.tools, server.config.on_change);
        fleet.tell_tools(servers.tools.set(&self.server, catalogue.map(Arc::as_ref), filter, policy));
    }

    fn told(&self, event: &Event) {
        let Some(fleet) = self.fleet.upgrade() else { return };
        let servers = fleet.lock();
        if servers.by_name.get(&self.server).is_some_and(|server| self.is_of(server)) {
            fleet.tell(FleetEvent::Server { server: self.server.clone(), event: event.clone() });
            fleet.changed();
        }
    }
}

impl TenantObserver {
    fn is_of(&self, server: &Server) -> bool {
        server.tenant.as_ref().is_some_and(|tenant| tenant.number == self.number)
    }
}
