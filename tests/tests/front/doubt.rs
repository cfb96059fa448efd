//! A server that is down when it is first dialled has not said of which era it is.

use std::sync::atomic::{AtomicU32, Ordering};

use async_trait::async_trait;
use mcp_reconnect::Connection;
use mcp_reconnect::core::FailureClass;
use mcp_reconnect::front::FrontOptions;
use mcp_reconnect::link::{Attempt, ConnectError, Connector, Link};
use mcp_reconnect_tests::link::MemoryConnector;

use super::eras::asked;
use super::modern::with_meta;
use super::support::{Host, text_of};
use crate::support::{connect, memory, secs, tool_with, until_ready};

/// Of both eras, and for half a minute not up to any of them.
const DOWN: &str = "server:\n era both\nuntil 30s:\n discover exit 1\n initialize exit 1";

#[tokio::test(start_paused = true)]
async fn a_server_down_at_first_is_greeted_in_a_modern_hosts_era() {
    for script in [DOWN, "server:\n era both\nuntil 30s:\n start exit 1"] {
        let server = memory(script);
        let mut host = Host::of(&server);
        host.ask(0, "server/discover", &with_meta("")).await;
        host.within(secs(60)).await;
        let params = with_meta(r#","name":"echo","arguments":{"text":"hi"}"#);
        assert_eq!(text_of(&host.ask(1, "tools/call", &params).await), "hi");
        let ledger = server.ledger();
        let last = ledger.of_spawn(ledger.spawns() as u32);
        assert_eq!((last.discovers(), last.initializes()), (1, 0), "{script}");
        assert_eq!(asked(&last, "tools/call").len(), 1);
        host.leave().await;
    }
}

/// Its second dial is refused.
struct Flaky(MemoryConnector, AtomicU32);

#[async_trait]
impl Connector for Flaky {
    async fn connect(&self, attempt: Attempt) -> Result<Link, ConnectError> {
        match self.1.fetch_add(1, Ordering::Relaxed) {
            1 => Err(ConnectError::new(FailureClass::Transport, "not now")),
            _ => self.0.connect(attempt).await,
        }
    }
}

#[tokio::test(start_paused = true)]
async fn so_is_one_that_was_away_after_it_ended_on_the_probe() {
    let server = memory("server:\n era both\nspawn 1:\n discover exit 1");
    let upstream = Connection::builder(Flaky(MemoryConnector(server.clone()), AtomicU32::new(0))).name("flaky").seed(7);
    let mut host = Host::new(upstream, FrontOptions::default());
    host.ask(0, "server/discover", &with_meta("")).await;
    host.within(secs(30)).await;
    let ledger = server.ledger();
    assert_eq!((ledger.spawns(), ledger.of_spawn(1).discovers(), ledger.initializes()), (2, 1, 0));
    host.leave().await;
}

#[tokio::test(start_paused = true)]
async fn a_client_without_an_era_of_its_own_probes_once() {
    let server = memory(DOWN);
    let connection = connect(&server);
    let mut events = connection.events();
    until_ready(&mut events).await;
    let result = connection.call_tool(tool_with("echo", "hi")).await;
    assert_eq!(crate::support::text(result), "hi");
    let ledger = server.ledger();
    assert!(ledger.spawns() > 3, "it was down for several dials");
    assert_eq!((ledger.discovers(), ledger.initializes()), (1, ledger.spawns() - 1));
    connection.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_legacy_host_never_probes() {
    let server = memory(DOWN);
    let mut host = Host::of(&server);
    host.initialize().await;
    host.within(secs(60)).await;
    assert_eq!(text_of(&host.call(1, "echo").await), "echo");
    assert_eq!(server.ledger().discovers(), 0);
    host.leave().await;
}
