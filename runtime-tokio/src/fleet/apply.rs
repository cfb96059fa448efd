//! Registration: what a configuration makes of the servers that are there.

use std::collections::BTreeSet;
use std::hash::Hasher as _;
use std::sync::Arc;

use tracing::Instrument as _;

use super::event::FleetEvent;
use super::report::{ApplyReport, Outcome};
use super::tenant::{Server, Tenant, TenantObserver};
use super::{Fleet, Inner, Servers};
use crate::config::{FleetConfig, ServerConfig};
use crate::connection::Connection;
use crate::connection::gate::{Entrance, tenancy};
use crate::error::BuildError;

impl Fleet {
    /// Makes the fleet what the configuration says: starts what is new, replaces what changed, wakes what has no session,
    /// shuts down what is disabled or gone, and leaves alone what is healthy.
    ///
    /// Returns at once; applied again, whatever has happened meanwhile, it repairs and nothing else. After
    /// [`shutdown`](Self::shutdown) it does nothing.
    pub fn apply(&self, config: FleetConfig) -> ApplyReport {
        let mut servers = self.0.lock();
        let mut report = ApplyReport::default();
        if servers.closed {
            return report;
        }
        if let Err(error) = self.0.queue.resize(config.max_dials) {
            tracing::warn!("{error}");
        }
        let gone = |name: &&Arc<str>| !config.servers.contains_key(&***name);
        for name in servers.by_name.keys().filter(gone).cloned().collect::<Vec<_>>() {
            self.0.remove(&mut servers, &name);
            report.servers.insert(name, Outcome::Removed);
        }
        let mut unchanged = BTreeSet::new();
        for (name, config) in config.servers {
            let name = Arc::<str>::from(name);
            let was_disabled = servers.by_name.get(&name).is_some_and(|server| server.tenant.is_none());
            let outcome = self.0.register(&mut servers, &name, config);
            if outcome == Outcome::Untouched || (was_disabled && outcome == Outcome::Disabled) {
                unchanged.insert(name.clone());
            }
            report.servers.insert(name, outcome);
        }
        servers.tenancies.retain(|_, tenancy| tenancy.strong_count() > 0);
        for (server, outcome) in &report.servers {
            if !unchanged.contains(server) {
                tracing::info!(%server, %outcome, "applied");
                self.0.tell(FleetEvent::Applied { server: server.clone(), outcome: outcome.clone() });
            }
        }
        self.0.changed();
        report
    }
}

impl Inner {
    fn register(self: &Arc<Self>, servers: &mut Servers, name: &Arc<str>, config: ServerConfig) -> Outcome {
        let digest = config.digest();
        if !config.enabled {
            let known = servers.by_name.get(name);
            let rest = known.and_then(|server| server.state(name, servers.tools.approvals()));
            self.vacate(servers, name);
            servers.by_name.insert(name.clone(), Server { config, digest, tenant: None, rest });
            return Outcome::Disabled;
        }
        let known = servers.by_name.get(name).filter(|server| server.tenant.is_some() && !server.has_ended());
        let replaced = match known {
            Some(server) if server.digest == digest => return self.renew(servers, name, config),
            Some(_) => true,
            None => false,
        };
        let connection = match self.connect(servers, name, &config) {
            Ok(connection) => connection,
            Err(error) => return Outcome::Failed(error),
        };
        self.vacate(servers, name);
        let tenant = Tenant { number: servers.next, connection };
        let offered = tenant.connection.catalogue();
        let (filter, policy) = (config.tools.clone(), config.on_change);
        servers.by_name.insert(name.clone(), Server { config, digest, tenant: Some(tenant), rest: None });
        // A list that an earlier process knew is offered until the first session lists.
        self.tell_tools(servers.tools.set(name, offered.as_deref(), &filter, policy));
        if replaced { Outcome::Replaced } else { Outcome::Started }
    }

    /// Renews a server whose connection can stay: every other setting is changed while it runs.
    fn renew(&self, servers: &mut Servers, name: &Arc<str>, config: ServerConfig) -> Outcome {
        let Some(server) = servers.by_name.get_mut(name) else { return Outcome::Untouched };
        let Some(connection) = server.connection().cloned() else { return Outcome::Untouched };
        let retuned = server.config != config;
        if retuned {
            if let Err(error) = connection.retune(config.tuning()) {
                return Outcome::Failed(error);
            }
            connection.set_probe_patience(config.probe_patience);
            server.config = config;
            let (filter, policy) = (&server.config.tools, server.config.on_change);
            self.tell_tools(servers.tools.set(name, connection.catalogue().as_deref(), filter, policy));
        }
        let woken = server.demand();
        if retuned {
            Outcome::Retuned
        } else if woken {
            Outcome::Woken
        } else {
            Outcome::Untouched
        }
    }

    /// A connection that dials when the one before it has left nothing behind.
    fn connect(
        self: &Arc<Self>,
        servers: &mut Servers,
        name: &Arc<str>,
        config: &ServerConfig,
    ) -> Result<Connection, BuildError> {
        let tenancy = servers.tenancies.get(name).and_then(std::sync::Weak::upgrade).unwrap_or_else(tenancy);
        servers.next += 1;
        let observer = TenantObserver { fleet: Arc::downgrade(self), server: name.clone(), number: servers.next };
        let (handlers, server) = (self.handlers.clone(), name.clone());
        let mut builder = config
            .builder(name)
            .seed(seed_of(self.seed, name))
            .boxed_handler(move |epoch| handlers(&server, epoch))
            .observer(observer)
            .entrance(Entrance::new(tenancy.clone(), self.queue.clone()));
        if let Some(kept) = servers.kept.server(name, &config.digest()) {
            builder = kept.restore(builder);
        }
        let _runtime = self.runtime.enter();
        let connection = builder.build()?;
        servers.kept.remove(name);
        servers.tenancies.insert(name.clone(), Arc::downgrade(&tenancy));
        Ok(connection)
    }

    fn remove(&self, servers: &mut Servers, name: &Arc<str>) {
        self.vacate(servers, name);
        servers.by_name.remove(name);
        servers.kept.remove(name);
        self.tell_tools(servers.tools.forget(name));
    }

    /// Takes a server's connection from it, with its tools, and shuts it down.
    fn vacate(&self, servers: &mut Servers, name: &Arc<str>) {
        let Some(server) = servers.by_name.get_mut(name) else { return };
        let Some(Tenant { connection, .. }) = server.tenant.take() else { return };
        let (filter, policy) = (&server.config.tools, server.config.on_change);
        self.tell_tools(servers.tools.set(name, None, filter, policy));
        connection.begin_shutdown();
        let gone = async move { connection.shutdown().await };
        self.tasks.spawn_on(gone.in_current_span(), &self.runtime);
    }

    /// Shuts every connection down; nothing starts any more.
    pub(super) fn close(&self) {
        let mut servers = self.lock();
        servers.closed = true;
        for name in servers.by_name.keys().cloned().collect::<Vec<_>>() {
            self.vacate(&mut servers, &name);
        }
    }
}

/// Different for each server, the same in each process with the same root seed.
fn seed_of(root: u64, name: &str) -> u64 {
    let mut hash = std::hash::DefaultHasher::new();
    hash.write_u64(root);
    hash.write(name.as_bytes());
    hash.finish()
}
