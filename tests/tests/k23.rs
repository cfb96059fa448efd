//! K23: protocol versions and eras, per epoch.

use mcp_reconnect::core::{Breaker, FailureClass, ParkReason, Status};
use mcp_reconnect::{Connection, Era, Event, Events};
use mcp_reconnect_tests::fake::{Event as Entry, Ledger};
use tokio::time::{Instant, sleep};

use crate::support::*;

/// Ends the session and waits for the next one.
async fn replace(connection: &Connection, events: &mut Events) -> u64 {
    sleep(secs(20)).await; // proven
    let current = connection.session().await.unwrap().epoch();
    connection.invalidate(current, "to be replaced");
    until_status(events, |status| status == Status::TransientFailure).await;
    until_ready(events).await
}

/// The protocol version that each request of this method states in its `_meta`.
fn stated(ledger: &Ledger, wanted: &str) -> Vec<Option<String>> {
    let versions = ledger.entries().iter().filter_map(|entry| match &entry.event {
        Entry::Request { method, version, .. } if method == wanted => Some(version.clone()),
        _ => None,
    });
    versions.collect()
}

/// Also R093.
#[tokio::test(start_paused = true)]
async fn k23_probe_kills() {
    let (server, connection, mut events) = ready("exit-unless-initialize").await;
    let ledger = server.ledger();
    assert_eq!((ledger.spawns(), ledger.discovers(), ledger.initializes()), (2, 1, 1));
    let snapshot = connection.snapshot();
    assert_eq!((snapshot.stats.dials, snapshot.stats.failures), (1, 0), "the probe's death is no crash");
    assert_eq!(snapshot.breaker, Breaker::Closed { strikes: 0 });
    assert_eq!(ledger.live_links(), 1, "the first process is gone");
    assert_eq!(text(connection.call_tool(tool_with("write", "one")).await), "one");
    // From now on it is known.
    for next in 2..=4 {
        assert_eq!(replace(&connection, &mut events).await, next);
        let ledger = server.ledger();
        assert_eq!((ledger.spawns(), ledger.discovers()), (1 + usize::try_from(next).unwrap(), 1));
    }
    assert_eq!(connection.era_facts().era, Some(Era::Legacy));
}

/// The same with real processes: the first one is reaped before the second one starts.
#[tokio::test]
async fn k23_r093_probe_kills_a_process() {
    let server = process("exit-unless-initialize");
    let connection = connect_process(&server);
    let mut events = connection.events();
    tokio::time::timeout(secs(60), async {
        assert_eq!(until_ready(&mut events).await, 1);
        let ledger = server.ledger().unwrap();
        assert_eq!((ledger.spawns(), ledger.exits()), (2, vec![(1, "exit 1")]));
        assert_eq!((ledger.live_pids().len(), ledger.zombies().len()), (1, 0));
        connection.invalidate(epoch(1), "to be replaced");
        assert_eq!(until_ready(&mut events).await, 2);
        connection.shutdown().await;
    })
    .await
    .expect("no hang");
    let ledger = server.ledger().unwrap();
    assert_eq!((ledger.spawns(), ledger.discovers(), ledger.initializes()), (3, 1, 2));
    assert!(ledger.live_pids().is_empty() && ledger.zombies().is_empty());
}

/// What was learnt can be given to the next program.
#[tokio::test(start_paused = true)]
async fn k23_the_era_is_known_from_before() {
    let (_, connection, _) = ready("exit-unless-initialize").await;
    let facts = connection.era_facts();
    let server = memory("exit-unless-initialize");
    let connection = builder(&server).era_facts(facts).build().unwrap();
    assert_eq!(until_ready(&mut connection.events()).await, 1);
    assert_eq!((server.ledger().spawns(), server.ledger().discovers()), (1, 0));
}

/// A server that is really broken dies on both: one extra spawn in the first attempt, and then a dead server as others.
#[tokio::test(start_paused = true)]
async fn k23_probe_kills_and_so_does_initialize() {
    let server = memory("initialize exit 1\ndiscover exit 1");
    let connection = connect(&server);
    let mut events = connection.events();
    until_status(&mut events, |status| status == Status::TransientFailure).await;
    assert_eq!(server.ledger().spawns(), 2);
    until_status(&mut events, |status| matches!(status, Status::Parked(_))).await;
    let dials = connection.snapshot().stats.dials;
    assert_eq!(server.ledger().spawns() as u64, dials + 1, "once per connection, not per attempt");
}

/// The substance of `H-version-list` on stdio: a refusal that lists versions gets one retry with the best common one.
#[tokio::test(start_paused = true)]
async fn k23_version_list() {
    let (server, connection, mut events) = ready("initialize only 2024-11-05 2025-03-26").await;
    assert_eq!(versions_asked_for(&server.ledger()), ["2025-11-25", "2025-03-26"]);
    assert_eq!(version(&connection).await, "2025-03-26");
    assert_eq!((server.ledger().spawns(), connection.snapshot().stats.failures), (1, 0));
    // The next epoch begins with what worked.
    assert_eq!(replace(&connection, &mut events).await, 2);
    assert_eq!(versions_asked_for(&server.ledger().of_spawn(2)), ["2025-03-26"]);
}

/// Lists without a common version park at once: no ladder.
#[tokio::test(start_paused = true)]
async fn k23_version_list_disjoint() {
    let server = memory("initialize only 2023-01-01 2023-06-01");
    let connection = connect(&server);
    let mut events = connection.events();
    until_status(&mut events, |status| status == Status::Parked(ParkReason::Permanent)).await;
    assert_eq!((server.ledger().spawns(), server.ledger().initializes()), (1, 1));
    assert_eq!(connection.snapshot().failure, Some(FailureClass::Permanent));
    sleep(secs(50)).await;
    assert_eq!(server.ledger().spawns(), 1);
    // A new version of the server is found by the probe.
    server.set_script("").unwrap();
    until_ready(&mut events).await;
}

/// One retry, not one for each refusal.
#[tokio::test(start_paused = true)]
async fn k23_version_list_that_lies() {
    let refusal = r#"error -32602 "Unsupported protocol version" '{"supported":["2025-06-18"]}'"#;
    let server = memory(&format!("spawn 1:\n initialize {refusal}"));
    let connection = connect(&server);
    let mut events = connection.events();
    assert_eq!(until_ready(&mut events).await, 2, "the attempt failed, the next one did not");
    assert_eq!(versions_asked_for(&server.ledger().of_spawn(1)), ["2025-11-25", "2025-06-18"]);
}

/// The same in the modern era.
#[tokio::test(start_paused = true)]
async fn k23_version_list_disjoint_modern() {
    let server = memory("era modern\nversions 2027-06-01");
    let connection = connect(&server);
    let mut events = connection.events();
    until_status(&mut events, |status| status == Status::Parked(ParkReason::Permanent)).await;
    assert_eq!((server.ledger().spawns(), server.ledger().initializes()), (1, 0));
}

/// The substance of `H-upgrade` and R091 on stdio: each epoch speaks the version it negotiated, and offers what its
/// server has.
#[tokio::test(start_paused = true)]
async fn k23_upgrade() {
    let script = "spawn 1:\n versions 2024-11-05\n tools old, shared\n info fake 1\n\
                  spawn 2:\n versions 2025-06-18\n tools new, shared\n info fake 2\n prompts hello";
    let (server, connection, mut events) = ready(script).await;
    assert_eq!(version(&connection).await, "2024-11-05");
    sleep(secs(20)).await;
    connection.invalidate(epoch(1), "to be replaced");
    let (mut diff, mut changed) = (None, None);
    loop {
        match events.next().await.unwrap() {
            Event::Catalogue(news) => diff = Some(news),
            Event::ServerChanged { version } => changed = Some(version),
            Event::Status { status: Status::Ready(_), .. } => break,
            _ => {}
        }
    }
    assert_eq!(version(&connection).await, "2025-06-18");
    assert_eq!(changed.as_deref(), Some("2025-06-18"));
    let diff = diff.expect("the tools changed, and that came before Ready");
    assert_eq!((&*diff.tools.added, &*diff.tools.removed), (&["new".to_owned()][..], &["old".to_owned()][..]));
    assert!(connection.session().await.unwrap().server().capabilities.prompts.is_some());
    assert_eq!(text(connection.call_tool(tool_with("new", "hi")).await), "hi");
    match connection.call_tool(tool("old")).await {
        Err(mcp_reconnect::CallError::NotOffered { epoch: asked, .. }) => assert_eq!(asked, epoch(2)),
        other => panic!("{other:?}"),
    }
    assert_eq!(server.ledger().calls("old"), 0);
}

/// The version that an older server made us speak is not what a newer one is held to.
#[tokio::test(start_paused = true)]
async fn k23_upgrade_lifts_the_old_version() {
    let script = "spawn 1:\n versions 2024-11-05\nspawn 2..:\n versions 2025-11-25, 2024-11-05";
    let (server, connection, mut events) = ready(script).await;
    replace(&connection, &mut events).await;
    assert_eq!(version(&connection).await, "2025-11-25");
    assert_eq!(versions_asked_for(&server.ledger()), ["2025-11-25", "2025-11-25"]);
}

/// A downgrade, by a list: what the upgraded epoch learnt does not lock out the old server.
#[tokio::test(start_paused = true)]
async fn k23_downgrade() {
    let script = "spawn 2..:\n initialize only 2024-11-05\n tools old";
    let (server, connection, mut events) = ready(script).await;
    assert_eq!(replace(&connection, &mut events).await, 2);
    assert_eq!(version(&connection).await, "2024-11-05");
    assert_eq!(server.ledger().spawns(), 2);
    assert_eq!(connection.catalogue().unwrap().tools.items().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn k23_modern_has_no_handshake_and_no_ping() {
    let (server, connection, _events) = ready("era modern").await;
    assert_eq!((era(&connection).await, version(&connection).await), (Era::Modern, "2026-07-28".into()));
    assert_eq!(text(connection.call_tool(tool_with("write", "one")).await), "one");
    sleep(secs(600)).await;
    let ledger = server.ledger();
    assert_eq!(
        (ledger.initializes(), ledger.requests("ping"), ledger.notifications("notifications/initialized")),
        (0, 0, 0)
    );
    assert!(ledger.discovers() >= 8, "liveness is asked for with server/discover: {}", ledger.discovers());
    for method in ["server/discover", "tools/list", "tools/call"] {
        let versions = stated(&ledger, method);
        assert!(
            !versions.is_empty() && versions.iter().all(|v| v.as_deref() == Some("2026-07-28")),
            "{method}: {versions:?}"
        );
    }
    assert_eq!(ledger.spawns(), 1);
}

/// Nothing of the modern era goes to a legacy server after the probe.
#[tokio::test(start_paused = true)]
async fn k23_legacy_states_no_version() {
    let (server, connection, _events) = ready("").await;
    connection.call_tool(tool("write")).await.unwrap();
    sleep(secs(600)).await;
    let ledger = server.ledger();
    assert_eq!((ledger.discovers(), ledger.requests("subscriptions/listen")), (1, 0));
    for method in ["initialize", "ping", "tools/list", "tools/call"] {
        let versions = stated(&ledger, method);
        assert!(!versions.is_empty() && versions.iter().all(Option::is_none), "{method}: {versions:?}");
    }
}

/// A server that speaks both is spoken to in the newer way, and asked once.
#[tokio::test(start_paused = true)]
async fn k23_both_eras() {
    let (server, connection, mut events) = ready("era both").await;
    assert_eq!(era(&connection).await, Era::Modern);
    replace(&connection, &mut events).await;
    assert_eq!((server.ledger().initializes(), server.ledger().spawns()), (0, 2));
}

/// A server that changes its era between two epochs costs no attempt.
#[tokio::test(start_paused = true)]
async fn k23_era_change_both_ways() {
    let script = "spawn 1:\n era legacy\nspawn 2:\n era modern\nspawn 3:\n era legacy";
    let (server, connection, mut events) = ready(script).await;
    for (next, expected) in [(1, Era::Legacy), (2, Era::Modern), (3, Era::Legacy)] {
        if next > 1 {
            assert_eq!(replace(&connection, &mut events).await, next);
        }
        assert_eq!(era(&connection).await, expected);
        assert_eq!(text(connection.call_tool(tool_with("write", "hi")).await), "hi");
    }
    assert_eq!(server.ledger().spawns(), 3);
    assert_eq!(connection.snapshot().breaker, Breaker::Closed { strikes: 0 });
}

/// A silent probe costs its patience once, not a process.
#[tokio::test(start_paused = true)]
async fn k23_probe_meets_silence() {
    let server = memory("start stdout \"banner\\n\"\ndiscover never");
    let connection = connect(&server);
    let mut events = connection.events();
    let began = Instant::now();
    assert_eq!(until_ready(&mut events).await, 1);
    assert!(began.elapsed() < secs(11), "{:?}", began.elapsed());
    let began = Instant::now();
    assert_eq!(replace(&connection, &mut events).await, 2);
    assert!(began.elapsed() < secs(21), "no patience is needed again: {:?}", began.elapsed());
    let ledger = server.ledger();
    assert_eq!((ledger.spawns(), ledger.discovers(), ledger.initializes()), (2, 1, 2));
    assert!(ledger.cancelled().is_empty(), "a probe is not cancelled");
}

/// An epoch whose probe is met by a crash of a server that is known to be modern is a crash, and not a new era for good.
#[tokio::test(start_paused = true)]
async fn k23_a_modern_server_that_crashes_stays_modern() {
    let (server, connection, mut events) = ready("server:\n era modern\nspawn 2:\n discover exit 1").await;
    let next = replace(&connection, &mut events).await;
    assert_eq!((next, era(&connection).await), (3, Era::Modern));
    assert_eq!((server.ledger().initializes(), server.ledger().spawns()), (0, 3));
}
