//! What registering again and again does to servers that are there.

use mcp_reconnect::config::FleetConfig;

use super::support::*;
use crate::support::{memory, secs};

#[tokio::test(start_paused = true)]
async fn the_same_config_twice_does_nothing_the_second_time() {
    let (one, two) = (memory(""), memory("tools a"));
    let fleet = fleet();
    assert_eq!(outcomes(&fleet.apply(config(&[("one", &one), ("two", &two)]))), ["one: started", "two: started"]);
    all_ready(&fleet, &["one", "two"]).await;
    assert_eq!(tools(&fleet), ["one__echo", "one__write", "two__a"]);
    assert_eq!(outcomes(&fleet.apply(config(&[("one", &one), ("two", &two)]))), ["one: untouched", "two: untouched"]);
    tokio::time::sleep(secs(60)).await;
    assert_eq!((one.ledger().spawns(), two.ledger().spawns()), (1, 1));
    let called = fleet.call_tool("one__echo", None).await;
    assert!(called.is_ok(), "{called:?}");
    assert_eq!(outcomes(&fleet.apply(FleetConfig::default())), ["one: removed", "two: removed"]);
    assert_eq!(tools(&fleet), [""; 0]);
    fleet.shutdown().await;
    assert_eq!((one.ledger().live_links(), two.ledger().live_links()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_replaced_server_dials_when_its_predecessor_is_gone() {
    let slow = memory("spawn 1:\n on EOF delay 3s, exit 0");
    let fleet = fleet();
    fleet.apply(config(&[("slow", &slow)]));
    all_ready(&fleet, &["slow"]).await;
    let next = FleetConfig::default().with("slow", server(&slow, 2));
    assert_eq!(outcomes(&fleet.apply(next)), ["slow: replaced"]);
    assert_eq!(tools(&fleet), [""; 0], "what it offered goes with it");
    all_ready(&fleet, &["slow"]).await;
    assert_eq!((slow.ledger().spawns(), most_live(&slow)), (2, 1));
    fleet.shutdown().await;
}
