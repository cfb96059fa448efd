//! One bad server is unseen by the others.

use mcp_reconnect::config::FleetConfig;
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::support::*;
use crate::support::{memory, millis, secs};

/// One that hangs, one that crashes in a loop, one that is fine.
#[tokio::test(start_paused = true)]
async fn a_fine_server_is_not_slowed_by_bad_ones() {
    let (crashing, fine, hung) = (memory("start exit 3"), memory(""), memory("initialize never"));
    let mut host = Host::of(config(&[("crashing", &crashing), ("fine", &fine), ("hung", &hung)]));
    let began = Instant::now();
    let greeting = host.initialize().await;
    assert!(began.elapsed() <= secs(5), "{:?}", began.elapsed());
    assert!(greeting["capabilities"]["tools"].is_object());
    let began = Instant::now();
    assert_eq!(host.call("fine__write", "1").await, "1");
    assert_eq!(began.elapsed(), secs(0));
    for _ in 0..3 {
        let began = Instant::now();
        assert_eq!(host.names("tools/list").await, ["fine__echo", "fine__write"]);
        assert!(began.elapsed() <= secs(5), "{:?}", began.elapsed());
    }
    // A call of a bad one ends with an error, while the fine one goes on.
    let bad = host.begin("tools/call", json!({ "name": "hung__echo" })).await;
    assert_eq!(host.call("fine__echo", "2").await, "2");
    assert_eq!(error_of(&host.answer(bad).await).0, -32_010);
    assert_eq!(host.unread("notifications/tools/list_changed").len(), 0);
    let began = Instant::now();
    host.leave().await;
    assert!(began.elapsed() <= secs(10), "{:?}", began.elapsed());
    for server in [&crashing, &fine, &hung] {
        assert_eq!(server.ledger().live_links(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_comes_late_is_announced() {
    let (late, fine) = (memory("initialize delay 20s"), memory(""));
    let mut host = Host::greeted(config(&[("late", &late), ("fine", &fine)])).await;
    assert_eq!(host.names("tools/list").await, ["fine__echo", "fine__write"]);
    host.told("notifications/tools/list_changed").await;
    assert_eq!(host.names("tools/list").await, ["fine__echo", "fine__write", "late__echo", "late__write"]);
    assert_eq!(host.call("late__echo", "1").await, "1");
}

/// Those that are there are asked first.
#[tokio::test(start_paused = true)]
async fn a_resource_that_nobody_listed_is_not_asked_of_the_hung_first() {
    let (hung, fine) = (memory("initialize never"), memory("resources r:///x"));
    let mut host = Host::greeted(config(&[("a-hung", &hung), ("fine", &fine)])).await;
    let began = Instant::now();
    let answer = host.ask("resources/read", json!({ "uri": "not:listed" })).await;
    assert!(answer["result"].is_object(), "{answer}");
    assert_eq!(began.elapsed(), secs(0));
}

/// Ready, then silent: what it has is offered all the same.
#[tokio::test(start_paused = true)]
async fn a_server_that_falls_silent_keeps_no_list_up() {
    let (silent, fine) = (memory("after 1s deaf"), memory(""));
    let mut host = Host::greeted(config(&[("silent", &silent), ("fine", &fine)])).await;
    sleep(secs(2)).await;
    let began = Instant::now();
    let all = ["fine__echo", "fine__write", "silent__echo", "silent__write"];
    assert_eq!(host.names("tools/list").await, all);
    assert!(began.elapsed() <= secs(5), "{:?}", began.elapsed());
    assert_eq!(host.call("fine__echo", "1").await, "1");
    // Whatever the host tells goes nowhere for one, and arrives for the other.
    for _ in 0..2_000 {
        host.tell("notifications/roots/list_changed", json!({})).await;
    }
    let watch = fine.watch();
    watch.wait_until(|ledger| ledger.notifications("notifications/roots/list_changed") >= 1_000).await;
    assert_eq!(host.call("fine__echo", "2").await, "2");
    host.leave().await;
}

#[tokio::test(start_paused = true)]
async fn a_death_is_the_calls_of_one_server() {
    let (a, b) = (memory("spawn 1:\ncall write never"), memory("call write delay 30s"));
    let way = Killable::new(&a);
    let mut host = Host::greeted(FleetConfig::default().with("a", by(way.clone())).with("b", of(&b))).await;
    let calls = [("a__write", 1), ("b__write", 2)].map(|(tool, number)| (tool, number));
    let mut ids = Vec::new();
    for (tool, _) in calls {
        ids.push(host.begin("tools/call", json!({ "name": tool, "arguments": { "text": "x" } })).await);
    }
    sleep(secs(1)).await;
    way.kill();
    let answer = host.answer(ids[0]).await;
    assert_eq!(
        (&answer["error"]["data"]["outcome"], &answer["error"]["data"]["server"]),
        (&json!("unknown"), &json!("a"))
    );
    assert_eq!(text_of(&host.answer(ids[1]).await), "x");
    assert_eq!(host.call("a__write", "again").await, "again");
    assert_eq!((a.ledger().spawns(), b.ledger().spawns()), (2, 1));
}

/// Dials share the gate of the config.
#[tokio::test(start_paused = true)]
async fn dials_wait_for_each_other() {
    let servers = [(); 3].map(|()| memory("initialize never"));
    let names = ["a", "b", "c"];
    let mut config = config(&[("a", &servers[0]), ("b", &servers[1]), ("c", &servers[2])]);
    config.max_dials = 1;
    let began = Instant::now();
    let mut host = Host::of(config);
    host.initialize().await;
    assert!(began.elapsed() <= secs(6), "{:?}", began.elapsed());
    let mut starts: Vec<_> = servers.iter().map(|server| server.ledger().spawn_times()[0]).collect();
    starts.sort_unstable();
    // The ledgers count from when they were made, which is when this began.
    assert_eq!(starts, [0, 1_000, 2_000], "{names:?}");
}

#[tokio::test(start_paused = true)]
async fn a_stop_ends_everything() {
    let (a, b) = (memory("ignore EOF"), memory("call write never"));
    let mut host = Host::greeted(config(&[("a", &a), ("b", &b)])).await;
    host.begin("tools/call", json!({ "name": "b__write" })).await;
    sleep(millis(10)).await;
    host.stop().await;
    assert_eq!((a.ledger().live_links(), b.ledger().live_links()), (0, 0));
}

/// The session is dropped in the middle of its work: nothing is left of it all the same.
#[tokio::test(start_paused = true)]
async fn a_session_that_is_dropped_leaves_nothing() {
    let (a, b) = (memory(""), memory(""));
    let host = Host::greeted(config(&[("a", &a), ("b", &b)])).await;
    host.abort();
    for server in [&a, &b] {
        let watch = server.watch();
        let gone = watch.wait_until(|ledger| ledger.live_links() == 0);
        tokio::time::timeout(secs(60), gone).await.expect("it goes");
    }
}

#[tokio::test(start_paused = true)]
async fn without_a_server_there_is_a_session() {
    let server = memory("");
    let mut disabled = of(&server);
    disabled.enabled = false;
    let mut host = Host::of(FleetConfig::default().with("off", disabled));
    assert_eq!(host.initialize().await["capabilities"], json!({}));
    assert_eq!(error_of(&host.ask("tools/list", json!({})).await).0, -32_601);
    assert_eq!(server.ledger().spawns(), 0);
    host.leave().await;
}

/// A host that does not read keeps nothing from its end.
#[tokio::test(start_paused = true)]
async fn a_host_that_never_reads_can_be_ended() {
    let (a, b) = (memory(""), memory(""));
    let host = Host::greeted(config(&[("a", &a), ("b", &b)])).await;
    let flood = async {
        for id in 10_000.. {
            host.say(json!({ "jsonrpc": "2.0", "id": id, "method": "ping" }).to_string()).await;
        }
    };
    drop(tokio::time::timeout(secs(10), flood).await);
    host.stop().await;
    assert_eq!((a.ledger().live_links(), b.ledger().live_links()), (0, 0));
}
