//! Wake-ups of connections that are Ready and idle.

use mcp_reconnect_tests::held::{Held, Kind};
use mcp_reconnect_tests::least::Server;
use tokio::runtime::Runtime;
use tokio::time::{Duration, sleep};

use crate::{each, hold, runtime, show, table};

const CONNECTIONS: u32 = 1_000;
/// Each begins at its own time, so that the timers of one do not hide those of another.
const APART: Duration = Duration::from_millis(11);
const MINUTE: Duration = Duration::from_secs(60);

fn pass(runtime: &Runtime, time: Duration) {
    runtime.block_on(async move { sleep(time).await });
}

/// How often the thread wakes up in a minute: one that has nothing to run parks until the next timer, also in virtual
/// time.
fn wakes(runtime: &Runtime) -> u64 {
    let parked = || runtime.metrics().worker_park_count(0);
    let before = parked();
    pass(runtime, MINUTE);
    parked() - before
}

#[test]
fn idle_connections_wake_up_for_keepalives_only() {
    let (timers, server) = (runtime(), Server::new(true));
    timers.block_on(Held::new(Kind::Timers, CONNECTIONS).start(&server, APART));
    pass(&timers, MINUTE * 10);
    let least = wakes(&timers);

    let (runtime, mut held) = (runtime(), Held::new(Kind::Supervised, CONNECTIONS));
    runtime.block_on(held.start(&server, APART));
    // Until every session has proven itself.
    pass(&runtime, MINUTE * 10);
    assert_eq!(held.ready(), CONNECTIONS as usize);
    let heard = server.heard();
    let woken = wakes(&runtime);
    let heard = server.heard() - heard;
    table("a minute of a thousand idle connections");
    hold("pings for each", each(heard, CONNECTIONS), 1, "1");
    show("wake-ups of the thread, by a timer for each keepalive and nothing else", each(least, 1));
    // Some come by how tokio's wheel of timers turns, more or fewer by when the timers began; a second one of each would be 200.
    let least = u32::try_from(least).expect("a few");
    hold("wake-ups of the thread, in per cent of those", each(woken * 100, least), 105, "100");
}
