//! One connection after another under the same name: never two at once, and only the last one counts.

use mcp_reconnect::config::FleetConfig;
use mcp_reconnect::core::WakeCause;
use mcp_reconnect::fleet::{FleetEvent, Select};
use mcp_reconnect::{CallError, ServerState};
use tokio::time::{Instant, sleep, timeout};

use super::support::*;
use crate::support::{memory, millis, secs, tool};

/// A server that closes slowly: three of the seven seconds that it is given.
const SLOW: &str = "on EOF delay 3s, exit 0";

#[tokio::test(start_paused = true)]
async fn a_replaced_server_dials_when_its_predecessor_is_gone() {
    let slow = memory(&format!("spawn 1:\n {SLOW}"));
    let fleet = fleet();
    fleet.apply(config(&[("slow", &slow)]));
    all_ready(&fleet, &["slow"]).await;
    let began = Instant::now();
    assert_eq!(outcomes(&fleet.apply(only("slow", server(&slow, 2)))), ["slow: replaced"]);
    assert_eq!(tools(&fleet), [""; 0], "what it offered goes with it");
    all_ready(&fleet, &["slow"]).await;
    assert_eq!((slow.ledger().spawns(), most_live(&slow), began.elapsed().as_secs()), (2, 1, 3));
    fleet.shutdown().await;
}

/// And again while it still closes, and once more: never two live, and the last one wins.
#[tokio::test(start_paused = true)]
async fn a_chain_of_replacements_is_bounded_by_one_close_ladder() {
    let stubborn = memory("ignore EOF\nignore TERM");
    let fleet = fleet();
    fleet.apply(config(&[("a", &stubborn)]));
    all_ready(&fleet, &["a"]).await;
    let began = Instant::now();
    for version in 2..=4 {
        assert_eq!(outcomes(&fleet.apply(only("a", server(&stubborn, version)))), ["a: replaced"]);
        sleep(millis(500)).await;
    }
    assert_eq!(outcomes(&fleet.apply(only("a", server(&stubborn, 4)))), ["a: untouched"]);
    all_ready(&fleet, &["a"]).await;
    assert!(began.elapsed() < secs(8), "{:?}", began.elapsed());
    assert_eq!((stubborn.ledger().spawns(), most_live(&stubborn)), (2, 1), "the ones between never dialled");
    fleet.shutdown().await;
    assert_eq!(stubborn.ledger().live_links(), 0);
}

#[tokio::test(start_paused = true)]
async fn enabled_or_added_again_waits_for_the_end_of_the_one_before() {
    let server = memory(SLOW);
    let off = only("a", with(&server, |server| server.enabled = false));
    for (away, outcome) in [(off, "a: disabled"), (FleetConfig::default(), "a: removed")] {
        let fleet = fleet();
        let spawns = server.ledger().spawns();
        fleet.apply(config(&[("a", &server)]));
        all_ready(&fleet, &["a"]).await;
        let mut events = fleet.events();
        assert_eq!(outcomes(&fleet.apply(away.clone())), [outcome]);
        assert!(fleet.connection("a").is_none() && !fleet.wake("a", WakeCause::Operator) && !fleet.park("a"));
        assert_eq!(tools(&fleet), [""; 0]);
        fleet.apply(away.clone());
        let word = outcome.trim_start_matches("a: ");
        assert_eq!(words(&mut events, millis(10)).await, ["tools -a__echo -a__write", word], "told once");
        assert_eq!(outcomes(&fleet.apply(config(&[("a", &server)]))), ["a: started"]);
        all_ready(&fleet, &["a"]).await;
        assert_eq!(server.ledger().spawns(), spawns + 2);
        assert_eq!(outcomes(&fleet.apply(away)), [outcome]);
        sleep(secs(60)).await;
        assert_eq!((server.ledger().spawns(), server.ledger().live_links()), (spawns + 2, 0));
        fleet.shutdown().await;
    }
    assert_eq!(most_live(&server), 1);
}

/// What was replaced is not heard of any more, whatever it still says: neither its tools nor its end.
#[tokio::test(start_paused = true)]
async fn a_replaced_connection_can_publish_nothing_any_more() {
    let noisy = "tools ghost\ncapabilities tools(listChanged)\non EOF set-tools ghost more, notify tools/list_changed x50 every 50ms, delay 1s, exit 0";
    let server = memory(&format!("tools fresh\nspawn 1:\n {}", noisy.replace('\n', "\n ")));
    let fleet = fleet();
    fleet.apply(config(&[("a", &server)]));
    all_ready(&fleet, &["a"]).await;
    let mut events = fleet.events();
    // In the midst of a re-list, which would be published.
    fleet.apply(only("a", super::support::server(&server, 2)));
    all_ready(&fleet, &["a"]).await;
    sleep(secs(20)).await;
    let told = told(&mut events);
    let words: Vec<_> = told.iter().filter_map(word).collect();
    assert_eq!(words, ["tools -a__ghost", "replaced", "tools +a__fresh", "READY(1)"]);
    let withdrawn =
        |event: &FleetEvent| matches!(event, FleetEvent::Server { event: mcp_reconnect::Event::Withdrawn, .. });
    assert!(!told.iter().any(withdrawn), "{told:?}");
    fleet.shutdown().await;
}

/// Neither does a handle that somebody keeps.
#[tokio::test(start_paused = true)]
async fn a_handle_of_an_old_connection_holds_nobody_up() {
    let server = memory("");
    let fleet = fleet();
    fleet.apply(config(&[("a", &server)]));
    all_ready(&fleet, &["a"]).await;
    let old = fleet.connection("a").unwrap();
    let session = old.session().await.unwrap();
    fleet.apply(only("a", super::support::server(&server, 2)));
    all_ready(&fleet, &["a"]).await;
    assert!(matches!(old.call_tool(tool("echo")).await, Err(CallError::Closed)));
    old.wake(WakeCause::Operator);
    sleep(secs(60)).await;
    assert_eq!((server.ledger().spawns(), most_live(&server)), (2, 1));
    assert_eq!(session.epoch().get(), 1);
    fleet.shutdown().await;
    drop((old, session));
    assert_eq!(server.ledger().live_links(), 0);
}

/// A call that was under way when its server was replaced is settled, and told what it has to know.
#[tokio::test(start_paused = true)]
async fn a_call_under_way_is_settled_when_its_server_is_replaced() {
    let server = memory("call write never");
    let fleet = fleet();
    fleet.apply(config(&[("a", &server)]));
    all_ready(&fleet, &["a"]).await;
    let calling = tokio::spawn({
        let fleet = fleet.clone();
        async move { fleet.call_tool("a__write", None).await }
    });
    server.watch().wait_until(|ledger| ledger.calls("write") == 1).await;
    fleet.apply(only("a", super::support::server(&server, 2)));
    let error = timeout(secs(1), calling).await.expect("at once").unwrap().unwrap_err();
    assert!(error.to_string().contains("may have run"), "{error}");
    assert_eq!(server.ledger().calls("write"), 1);
    fleet.shutdown().await;
}

/// The entry without a session that blocks every registration, in its third form: its connection has ended.
#[tokio::test(start_paused = true)]
async fn a_server_that_was_shut_down_by_its_handle_is_started_again() {
    let server = memory(SLOW);
    let fleet = fleet();
    fleet.apply(config(&[("a", &server)]));
    all_ready(&fleet, &["a"]).await;
    let handle = fleet.connection("a").unwrap();
    tokio::spawn(async move { handle.shutdown().await });
    sleep(secs(1)).await;
    assert_eq!((state(&fleet, "a"), tools(&fleet).len()), (ServerState::Shutdown, 0));
    assert_eq!(outcomes(&fleet.apply(config(&[("a", &server)]))), ["a: started"]);
    all_ready(&fleet, &["a"]).await;
    assert_eq!((server.ledger().spawns(), most_live(&server)), (2, 1));
    fleet.shutdown().await;
}

/// Who waits for a server waits for the connection that stands for it by then.
#[tokio::test(start_paused = true)]
async fn waiting_for_a_server_outlives_its_replacement() {
    let server = memory("initialize delay 5s");
    let fleet = fleet();
    fleet.apply(config(&[("a", &server)]));
    let waiting = tokio::spawn({
        let fleet = fleet.clone();
        async move { fleet.ready(&Select::All, secs(60)).await }
    });
    sleep(secs(2)).await;
    fleet.apply(only("a", super::support::server(&server, 2)));
    let readiness = waiting.await.unwrap();
    assert!(readiness.is_complete(), "{readiness:?}");
    fleet.shutdown().await;
}
