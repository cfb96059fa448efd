//! A fleet of fake servers in memory.

use std::sync::Arc;
use std::time::Duration;

use mcp_reconnect::config::{Custom, FleetConfig, ServerConfig};
use mcp_reconnect::core::Status;
use mcp_reconnect::fleet::{ApplyReport, Fleet, FleetEvent, FleetEvents};
use mcp_reconnect_tests::fake::{Event, FakeServer};
use mcp_reconnect_tests::link::MemoryConnector;

use crate::support::secs;

/// What a config says of this server; another `version` is another configuration of it.
pub(crate) fn server(server: &Arc<FakeServer>, version: u32) -> ServerConfig {
    ServerConfig::new(Custom::new(version.to_string(), MemoryConnector(server.clone())))
}

/// A config with these servers, in their first version.
pub(crate) fn config(servers: &[(&str, &Arc<FakeServer>)]) -> FleetConfig {
    servers.iter().fold(FleetConfig::default(), |config, (name, fake)| config.with(*name, server(fake, 1)))
}

/// A fleet with a fixed seed and nothing in it.
pub(crate) fn fleet() -> Fleet {
    Fleet::builder().seed(7).build().unwrap()
}

/// `name: outcome` of every server, in order.
pub(crate) fn outcomes(report: &ApplyReport) -> Vec<String> {
    report.servers.iter().map(|(name, outcome)| format!("{name}: {outcome}")).collect()
}

/// Waits until every one of these is Ready.
pub(crate) async fn all_ready(fleet: &Fleet, names: &[&str]) {
    let select = mcp_reconnect::fleet::Select::Named(names.iter().map(|name| (*name).into()).collect());
    let readiness = fleet.ready(&select, secs(3_600)).await;
    assert!(readiness.is_complete(), "{readiness:?}");
}

/// The names of all tools that are offered.
pub(crate) fn tools(fleet: &Fleet) -> Vec<String> {
    fleet.tools().iter().map(|tool| tool.name.to_string()).collect()
}

/// The next event of this server's status.
pub(crate) async fn next_status(events: &mut FleetEvents, name: &str) -> Status {
    let wait = async {
        loop {
            match events.next().await {
                Some(FleetEvent::Server { server, event: mcp_reconnect::Event::Status { status, .. } })
                    if *server == *name =>
                {
                    return status;
                }
                Some(FleetEvent::Missed { count }) => panic!("missed {count} events"),
                Some(_) => {}
                None => panic!("the fleet has ended"),
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(86_400), wait).await.expect("nothing in a day")
}

/// How many links to this server were open at the same time, at most.
pub(crate) fn most_live(server: &FakeServer) -> usize {
    let mut live = 0_usize;
    let ledger = server.ledger();
    let counts = ledger.entries().iter().map(|entry| {
        match entry.event {
            Event::Spawned { .. } => live += 1,
            Event::Ended => live -= 1,
            _ => {}
        }
        live
    });
    counts.max().unwrap_or(0)
}
