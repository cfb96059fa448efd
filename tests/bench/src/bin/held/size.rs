use std::time::Duration;

use allocation_counter::measure;
use mcp_reconnect_tests::held::{Held, Kind};
use mcp_reconnect_tests::least::Server;
use serde_json::{Value, json};
use tokio::time::sleep;

/// In which the last handshakes end and what they took is given back.
const SETTLE: Duration = Duration::from_secs(2);

pub(crate) fn run(kind: Kind, count: u32) -> Value {
    // Without tools: the catalogue is the server's.
    let (runtime, server, mut held) = (crate::runtime(), Server::new(false), Held::new(kind, count));
    let before = resident();
    let info = measure(|| {
        runtime.block_on(async {
            held.start(&server, Duration::ZERO).await;
            sleep(SETTLE).await;
        });
    });
    json!({ "ready": held.ready(), "bytes": info.bytes_current, "resident": resident() - before })
}

/// Bytes of this process in memory.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let kibibytes =
        status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.split_whitespace().next()?.parse().ok());
    kibibytes.map_or(0, |kibibytes: u64| kibibytes * 1_024)
}
