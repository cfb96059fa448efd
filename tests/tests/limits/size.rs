//! Bytes of a connection that is Ready and idle. That of the machine alone is held by the core's own tests.

use allocation_counter::{AllocationInfo, measure};
use mcp_reconnect::core::Status;
use tokio::time::{Duration, sleep};

use crate::{each, hold, runtime, show, supervise, table};
use mcp_reconnect_tests::least::{Least, Server, bare};

const CONNECTIONS: u32 = 1_000;

#[test]
fn an_idle_connection_takes_no_more_than_this() {
    // Both without tools: the catalogue is the server's.
    let server = Server::new(false);
    let mut kept = Vec::with_capacity(1_000);
    let runtime_of_bare = runtime();
    let bare = measure(|| {
        runtime_of_bare.block_on(async {
            for _ in 0..CONNECTIONS {
                kept.push(bare(&server).await);
            }
            sleep(Duration::from_secs(600)).await;
        });
    });

    let mut connections = Vec::with_capacity(1_000);
    let runtime = runtime();
    let supervised = measure(|| {
        runtime.block_on(async {
            for _ in 0..CONNECTIONS {
                connections.push(supervise(Least(server.clone())));
            }
            sleep(Duration::from_secs(600)).await;
        });
    });
    assert!(connections.iter().all(|connection| matches!(connection.snapshot().status, Status::Ready(_))));

    let (bare, supervised) = (left(bare), left(supervised));
    table("bytes per connection, Ready and idle");
    show("rmcp on the least transport", bare);
    show("supervised", supervised);
    hold("supervised, over rmcp", supervised - bare, 4_864, "4096");
}

fn left(info: AllocationInfo) -> f64 {
    each(u64::try_from(info.bytes_current).expect("something is kept"), CONNECTIONS)
}
