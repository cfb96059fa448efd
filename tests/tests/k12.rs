//! K12: keepalive raises no false alarm.

use mcp_reconnect::core::{Config, FailureClass, PingSupport, Status};
use mcp_reconnect::{Connection, Event};

use crate::support::*;

/// Pings every three minutes at the earliest, with half a minute for the answer.
fn slow_pings() -> Config {
    config(|config| config.keepalive(secs(180)).ping_timeout(secs(30)))
}

async fn an_hour() {
    tokio::time::sleep(secs(3600)).await;
}

fn is_ready(connection: &Connection, number: u64) -> bool {
    connection.snapshot().status == Status::Ready(epoch(number))
}

/// Also R042.
#[tokio::test(start_paused = true)]
async fn k12_no_ping() {
    for unknown in [
        "ping error \"Unknown method: ping\"",
        "ping error 0 \"Unknown method: ping\"",
        "ping error -32601 \"Method not found\"",
        "ping error -32603 \"internal error\"",
    ] {
        let server = memory(unknown);
        let connection = builder(&server).config(slow_pings()).build().unwrap();
        an_hour().await;
        assert!(is_ready(&connection, 1), "{unknown}: {connection:?}");
        let ledger = server.ledger();
        assert_eq!((ledger.spawns(), ledger.requests("ping")), (1, 1), "{unknown}");
        assert_eq!(connection.snapshot().pings, PingSupport::Refuses);
    }
}

#[tokio::test(start_paused = true)]
async fn k12_no_ping_is_remembered_across_epochs() {
    let server = memory("ping error \"Unknown method: ping\"\nspawn 1:\n after 1h exit 1");
    let connection = connect(&server);
    an_hour().await;
    an_hour().await;
    assert!(is_ready(&connection, 2), "{connection:?}");
    let ledger = server.ledger();
    assert_eq!((ledger.of_spawn(1).requests("ping"), ledger.of_spawn(2).requests("ping")), (1, 0));
}

/// Also R043.
#[tokio::test(start_paused = true)]
async fn k12_busy_240s() {
    let server = memory("serial\ncall write delay 240s, reply \"done\"");
    let connection = builder(&server).config(slow_pings()).build().unwrap();
    let asked = tokio::time::Instant::now();
    assert_eq!(text(connection.call_tool_with(tool("write"), &within(secs(300))).await), "done");
    assert_eq!(asked.elapsed(), secs(240));
    tokio::time::sleep(secs(1)).await;
    assert!(is_ready(&connection, 1));
    assert_eq!(server.ledger().requests("ping"), 0, "who works is not asked");
    assert_eq!((server.ledger().spawns(), server.ledger().executions("write")), (1, 1));
}

/// The question is on its way already when the server gets busy with something that was asked before it.
#[tokio::test(start_paused = true)]
async fn k12_asked_while_busy() {
    let server = memory("serial\ncall write delay 240s, reply \"done\"");
    let connection = connect(&server);
    let mut events = connection.events();
    until_ready(&mut events).await;
    let asker = connection.clone();
    let call = tokio::spawn(async move { asker.call_tool_with(tool("write"), &within(secs(300))).await });
    server.watch().wait_until(|ledger| ledger.calls("write") == 1).await;
    // A second later, so that nothing that came before counts as the answer.
    tokio::time::sleep(secs(1)).await;
    connection.resumed();
    tokio::time::sleep(secs(1)).await;
    assert_eq!(connection.snapshot().stats.pings, 1);
    assert_eq!(text(call.await.unwrap()), "done");
    // The verdict is not made up for afterwards.
    tokio::time::sleep(secs(600)).await;
    assert!(is_ready(&connection, 1), "{connection:?}");
    assert_eq!(server.ledger().spawns(), 1);
}

/// Also R044.
#[tokio::test(start_paused = true)]
async fn k12_heavy_list() {
    let server = memory("list delay 40s");
    let patient = config(|config| config.connect_timeout(secs(60)));
    let connection = builder(&server).config(patient).build().unwrap();
    an_hour().await;
    assert!(is_ready(&connection, 1), "{connection:?}");
    let ledger = server.ledger();
    assert_eq!((ledger.spawns(), ledger.requests("tools/list")), (1, 1));
    assert!(ledger.requests("ping") > 40, "an idle session is asked: {}", ledger.requests("ping"));
}

/// The same in the stateless era: its question is `server/discover`, and that is no list either.
#[tokio::test(start_paused = true)]
async fn k12_heavy_list_modern() {
    let server = memory("era modern\nlist delay 20s");
    let connection = connect(&server);
    an_hour().await;
    assert!(is_ready(&connection, 1), "{connection:?}");
    let ledger = server.ledger();
    assert_eq!((ledger.spawns(), ledger.requests("tools/list"), ledger.requests("ping")), (1, 1, 0));
    assert!(ledger.discovers() > 40, "{}", ledger.discovers());
}

#[tokio::test(start_paused = true)]
async fn k12_ping_fails_with_call() {
    let server = memory("ping error \"Unknown method: ping\"\ncall write delay 5s, reply \"done\"");
    asked_during_a_call(&server).await;
    assert_eq!(server.ledger().requests("ping"), 1);
}

/// Also R045, on a pipe.
#[tokio::test(start_paused = true)]
async fn k12_r045_modern_ping_fails_with_call() {
    let server = memory("era modern\ndiscover#2.. error -32601 \"gone\"\ncall write delay 5s, reply \"done\"");
    asked_during_a_call(&server).await;
    assert_eq!((server.ledger().discovers(), server.ledger().requests("ping")), (2, 0));
}

/// The host wakes in the middle of a call, which has the server asked whatever it is busy with.
async fn asked_during_a_call(server: &std::sync::Arc<mcp_reconnect_tests::fake::FakeServer>) {
    let connection = connect(server);
    connection.session().await.unwrap();
    let asker = connection.clone();
    let call = tokio::spawn(async move { asker.call_tool(tool("write")).await });
    server.watch().wait_until(|ledger| ledger.calls("write") == 1).await;
    // A second later, so that nothing that came before counts as the answer.
    tokio::time::sleep(secs(1)).await;
    connection.resumed();
    assert_eq!(text(call.await.unwrap()), "done");
    assert_eq!(connection.snapshot().stats.pings, 1);
    an_hour().await;
    assert!(is_ready(&connection, 1), "{connection:?}");
    assert_eq!((server.ledger().spawns(), server.ledger().executions("write")), (1, 1));
    assert!(server.ledger().cancelled().is_empty());
}

#[tokio::test(start_paused = true)]
async fn k12_one_missed_ping_is_no_verdict() {
    let server = memory("ping#1 never");
    let connection = connect(&server);
    an_hour().await;
    assert!(is_ready(&connection, 1), "{connection:?}");
    assert_eq!(server.ledger().spawns(), 1);
}

/// An answer that comes after its question was given up is life all the same.
#[tokio::test(start_paused = true)]
async fn k12_late_answers_are_life() {
    let server = memory("ping delay 25s");
    let connection = connect(&server);
    an_hour().await;
    assert!(is_ready(&connection, 1), "{connection:?}");
    assert_eq!(server.ledger().spawns(), 1);
}

/// Whatever comes in is life: who talks by itself is not asked.
#[tokio::test(start_paused = true)]
async fn k12_whoever_talks_is_not_asked() {
    let server =
        memory("ping never\nstart notify notifications/message '{\"level\":\"info\",\"data\":1}' x120 every 30s");
    let connection = connect(&server);
    tokio::time::sleep(secs(3500)).await;
    assert!(is_ready(&connection, 1), "{connection:?}");
    assert_eq!((server.ledger().spawns(), server.ledger().requests("ping")), (1, 0));
}

/// A server that never answered a ping in its life, and answers everything else, is never torn down for it.
#[tokio::test(start_paused = true)]
async fn k12_a_server_that_ignores_pings_is_asked_to_list() {
    let server = memory("ping never");
    let connection = connect(&server);
    tokio::time::sleep(secs(86_400)).await;
    assert!(is_ready(&connection, 1), "{connection:?}");
    assert_eq!((server.ledger().spawns(), connection.snapshot().pings), (1, PingSupport::Silent));
}

/// A dead one is found out: the verdict ends the epoch by the normal path, which tells the caller the truth.
#[tokio::test(start_paused = true)]
async fn k12_silence_is_a_verdict_in_the_end() {
    let server = memory("spawn 1:\n after 30s mute");
    let connection = connect(&server);
    let mut events = connection.events();
    until_ready(&mut events).await;
    loop {
        if let Event::Status { status: Status::TransientFailure, failure, .. } = events.next().await.unwrap() {
            assert_eq!(failure, Some(FailureClass::Unresponsive));
            break;
        }
    }
    // Two questions after the silence began; the first at most a fifth late.
    assert_eq!(server.ledger().of_spawn(1).requests("ping"), 2);
    assert_eq!(until_ready(&mut events).await, 2);
}
