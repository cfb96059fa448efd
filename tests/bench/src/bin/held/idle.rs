use std::time::Duration;

use mcp_reconnect::core::Config;
use mcp_reconnect_tests::held::{Held, Kind};
use mcp_reconnect_tests::least::Server;
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};
use tokio::time::sleep;

/// The starts are spread over it, and as long is measured.
const MINUTE: Duration = Duration::from_secs(60);

pub(crate) fn run(kind: Kind, count: u32) -> Value {
    let (runtime, server, mut held) = (crate::runtime(), Server::new(true), Held::new(kind, count));
    let config = Config::default();
    runtime.block_on(async {
        held.start(&server, MINUTE / count.max(1)).await;
        // The first ping is up to a fifth late. Once the first of them has been asked again, all come as often as ever.
        sleep(config.keepalive() / 5 + config.ping_timeout() + Duration::from_secs(1)).await;
    });
    let ready = held.ready();
    let parked = || runtime.metrics().worker_park_count(0);
    let before = (cpu(), parked(), switches(), server.heard());
    runtime.block_on(async { sleep(MINUTE).await });
    json!({
        "ready": ready,
        "nanos": (cpu() - before.0).as_nanos() as u64,
        "wakes": parked() - before.1,
        "switches": switches() - before.2,
        "pings": server.heard() - before.3,
    })
}

/// Processor time of this process.
fn cpu() -> Duration {
    let spent = clock_gettime(ClockId::ProcessCPUTime);
    Duration::try_from(spent).unwrap_or_default()
}

/// How often its thread has gone to sleep, as the system counts it.
fn switches() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")?.trim().parse().ok());
    count.unwrap_or(0)
}
