//! A server that hangs, and one that is only slow.

use mcp_reconnect::front::FrontOptions;
use tokio::time::Instant;

use super::support::{Host, call, cancelled, text_of};
use crate::support::{builder, config, memory, secs};

/// A host whose front finds a hung server out within a minute.
async fn prompt(script: &str) -> (std::sync::Arc<mcp_reconnect_tests::fake::FakeServer>, Host) {
    let server = memory(script);
    let knobs = config(|knobs| knobs.keepalive(secs(15)).ping_timeout(secs(5)));
    let mut options = FrontOptions::default();
    options.calls.hung_after = Some(secs(25));
    let mut host = Host::new(builder(&server).config(knobs), options);
    host.initialize().await;
    // Enough to know that it does answer.
    for id in 100..110 {
        host.call(id, "quick").await;
    }
    host.rest().await;
    (server, host)
}

#[tokio::test(start_paused = true)]
async fn a_call_that_may_run_again_gives_a_silent_server_up() {
    let (server, mut host) = prompt("tools echo(readOnly), quick\nspawn 1:\n call echo mute, never").await;
    let began = Instant::now();
    assert_eq!(text_of(&host.call(1, "echo").await), "echo");
    let took = began.elapsed().as_secs();
    // After 25 s it no longer holds the pings back; two of them go unanswered.
    assert!((30..60).contains(&took), "{took}");
    assert_eq!(server.ledger().spawns(), 2);
    host.leave().await;
}

#[tokio::test(start_paused = true)]
async fn a_call_that_may_not_run_again_holds_until_the_host_gives_up() {
    let (server, mut host) =
        prompt("tools echo(readOnly), write, quick\nspawn 1:\n call write commit, mute, never").await;
    host.say(&call(1, "write")).await;
    assert_eq!(host.within(secs(600)).await, [] as [&str; 0]);
    assert_eq!(server.ledger().spawns(), 1, "nobody knows that it hangs");
    host.say(&cancelled(1)).await;
    let began = Instant::now();
    assert_eq!(text_of(&host.call(2, "echo").await), "echo");
    assert!(began.elapsed() < secs(30), "{:?}", began.elapsed());
    let ledger = server.ledger();
    assert_eq!((ledger.spawns(), ledger.executions("write")), (2, 1));
    assert_eq!(host.rest().await, [] as [&str; 0]);
    host.leave().await;
}

#[tokio::test(start_paused = true)]
async fn a_slow_server_that_answers_pings_is_never_cut() {
    let (server, mut host) =
        prompt("server:\n tools echo(readOnly), write, quick\n call echo delay 50m\n call write delay 50m").await;
    assert_eq!(text_of(&host.call(1, "echo").await), "echo");
    // It was asked all the time.
    assert!(server.ledger().requests("ping") > 100);
    assert_eq!(text_of(&host.call(2, "write").await), "write");
    let ledger = server.ledger();
    assert_eq!((ledger.spawns(), ledger.executions("echo"), ledger.executions("write")), (1, 1, 1));
    host.leave().await;
}

#[tokio::test(start_paused = true)]
async fn a_cancellation_after_a_short_while_blames_no_server() {
    let (server, mut host) = prompt("server:\n tools write, quick\n call write never").await;
    host.say(&call(1, "write")).await;
    host.within(secs(3)).await;
    host.say(&cancelled(1)).await;
    host.rest().await;
    assert_eq!(server.ledger().requests("ping"), 0);
    host.leave().await;
}
