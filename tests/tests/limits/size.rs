//! Bytes of a connection that is Ready and idle. That of the machine alone is held by the core's own tests.

use std::time::Duration;

use allocation_counter::measure;
use mcp_reconnect_tests::held::{Held, Kind};
use mcp_reconnect_tests::least::Server;
use tokio::time::sleep;

use crate::{each, hold, runtime, show, table};

const CONNECTIONS: u32 = 1_000;

fn bytes(of: Kind) -> f64 {
    // Without tools: the catalogue is the server's.
    let (runtime, server, mut held) = (runtime(), Server::new(false), Held::new(of, CONNECTIONS));
    let info = measure(|| {
        runtime.block_on(async {
            held.start(&server, Duration::ZERO).await;
            sleep(Duration::from_secs(600)).await;
        });
    });
    assert_eq!(held.ready(), CONNECTIONS as usize);
    each(u64::try_from(info.bytes_current).expect("something is kept"), CONNECTIONS)
}

#[test]
fn an_idle_connection_takes_no_more_than_this() {
    let (bare, supervised) = (bytes(Kind::Rmcp), bytes(Kind::Supervised));
    table("bytes per connection, Ready and idle");
    show("rmcp on the least transport", bare);
    show("supervised", supervised);
    hold("supervised, over rmcp", supervised - bare, 6_144, "4096");
}
