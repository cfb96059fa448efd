//! K06: a start has one deadline, leaves nothing behind, and holds up nobody else.

use futures::future::join_all;
use mcp_reconnect::core::{FailureClass, Status};
use mcp_reconnect::{Connection, Event, Events};

use super::k02::{soon, wave};
use super::{builder, ready, serve};
use crate::support::*;

/// Waits for the next failed attempt: its class and its cause.
async fn next_failure(events: &mut Events) -> (FailureClass, String) {
    loop {
        match soon(events.next()).await {
            Some(Event::Status {
                status: Status::TransientFailure | Status::Parked(_),
                failure: Some(failure),
                cause,
            }) => {
                return (failure, cause.as_deref().unwrap_or_default().to_owned());
            }
            Some(Event::Status { status: Status::Ready(epoch), .. }) => panic!("Ready({epoch})"),
            Some(_) => {}
            None => panic!("the connection has ended"),
        }
    }
}

/// S-silent-init, S-silent-list, and other ways not to come to an end. Also R020.
#[tokio::test]
async fn k06_silent_init_and_silent_list() {
    let silences = [
        ("initialize#1 never", "handshake"),
        ("initialize#1 headers, never", "handshake"),
        ("initialize#1 notify message x2000 every 20ms, never", "handshake"),
        ("initialize#1 request ping, delay 50ms, request ping, never", "handshake"),
        ("post#2 never", "handshake"),
        ("post#3 never", "handshake"), // notifications/initialized
        ("discover#1 never\ninitialize#1 never\nsessions none", "handshake"),
        ("list#1 never", "tools/list"),
        ("list#1 headers, never", "tools/list"),
        ("list#1 notify message x2000 every 20ms, never", "tools/list"),
        ("paging 2\nlist#2 never", "tools/list"),
    ];
    let starts = silences.map(|(silence, step)| async move {
        let server = serve(silence).await;
        // On a machine that is slow enough the second start times out as well; each has twice the time of the last.
        let config = config(|config| config.connect_timeout(secs(1)).connect_timeout_max(secs(60)));
        let connection = builder(&server).config(config).build().unwrap();
        let mut events = connection.events();
        let (class, cause) = next_failure(&mut events).await;
        assert_eq!(class, FailureClass::StartTimeout, "{silence}: {cause}");
        assert!(cause.contains(step), "{silence}: {cause}");
        // The first attempt is undone: what it had open is closed, and its session, if it had one, is released.
        assert!(soon(until_ready(&mut events)).await >= 2, "{silence}");
        let ledger = server.ledger();
        assert_eq!(ledger.live_sessions().len(), usize::from(!silence.contains("sessions none")), "{silence}");
        assert!(!ledger.deletes().contains(&""), "{silence}: a DELETE has an id");
        wave(&connection, 1).await;
        soon(connection.shutdown()).await;
        let left = |ledger: &mcp_reconnect_tests::fake::Ledger| ledger.open_connections() + ledger.open_requests();
        let ledger = soon(server.watch().wait_until(|ledger| left(ledger) == 0)).await;
        assert!(ledger.live_sessions().is_empty(), "{silence}");
        assert_eq!(ledger.deletes(), ledger.sessions(), "{silence}: each was released once");
    });
    join_all(starts).await;
}

/// A peer that takes the connection and never says a word.
#[tokio::test]
async fn k06_a_frozen_server_is_a_start_timeout() {
    let server = serve("").await;
    server.freeze().await;
    let config = config(|config| config.connect_timeout(millis(500)).connect_timeout_max(secs(60)));
    let connection = builder(&server).config(config).build().unwrap();
    let mut events = connection.events();
    assert_eq!(next_failure(&mut events).await.0, FailureClass::StartTimeout);
    server.thaw().await;
    soon(until_ready(&mut events)).await;
    wave(&connection, 1).await;
}

/// I06a: each step alone would be in time.
#[tokio::test]
async fn k06_one_deadline_covers_all_steps_of_a_start() {
    let server = serve("initialize#1 delay 700ms\nlist#1 delay 700ms").await;
    let config = config(|config| config.connect_timeout(secs(1)).connect_timeout_max(secs(60)));
    let connection = builder(&server).config(config).build().unwrap();
    let mut events = connection.events();
    assert_eq!(next_failure(&mut events).await.0, FailureClass::StartTimeout);
    assert!(soon(until_ready(&mut events)).await >= 2);
}

/// Also R022. The one that is well does not wait for the others; nor does whoever builds them.
#[tokio::test]
async fn k06_three_servers() {
    let (a, b, c) = (serve("initialize delay 50ms").await, serve("").await, serve("").await);
    b.down().await;
    c.freeze().await;
    let config = config(|config| config.connect_timeout(secs(10)));
    let [c_connection, b_connection, a_connection] =
        [&c, &b, &a].map(|server| builder(server).config(config).build().unwrap());
    let [mut a_events, mut b_events, mut c_events] =
        [&a_connection, &b_connection, &c_connection].map(Connection::events);
    assert_eq!(soon(until_ready(&mut a_events)).await, 1);
    wave(&a_connection, 3).await;
    let (class, cause) = next_failure(&mut b_events).await;
    assert_eq!(class, FailureClass::Refused);
    assert!(cause.contains("refused"), "{cause}");
    // Long after, the third is still in its first start.
    assert_eq!((c_connection.snapshot().status, c_connection.snapshot().stats.failures), (Status::Connecting, 0));
    let (class, cause) = next_failure(&mut c_events).await;
    assert_eq!(class, FailureClass::StartTimeout, "{cause}");
    assert_eq!((a_connection.snapshot().status, a.ledger().initializes()), (Status::Ready(epoch(1)), 1));
}

#[tokio::test]
async fn k06_a_hundred_silent_servers_hold_up_nobody() {
    let frozen = serve("").await;
    frozen.freeze().await;
    let silent: Vec<_> = (0..100).map(|_| builder(&frozen).build().unwrap()).collect();
    let (_server, connection, _events) = ready("").await;
    wave(&connection, 3).await;
    let closing = join_all(silent.iter().map(Connection::shutdown));
    let ((), _) = soon(async { tokio::join!(wave(&connection, 3), closing) }).await;
    wave(&connection, 3).await;
}

/// Also R021.
#[tokio::test]
async fn k06_noise_before_reply() {
    for script in [
        "initialize notify message '{\"level\":\"info\",\"data\":\"starting\"}', request ping wait, ok\n\
         list notify message '{\"level\":\"info\",\"data\":\"listing\"}', request ping wait, ok",
        // The answer to the server's own request comes when the handshake is over.
        "initialize notify message '{\"level\":\"info\",\"data\":\"starting\"}', request ping, ok\nlist request ping, ok",
        "sessions none\ninitialize request ping wait, ok\nlist request ping wait, ok",
    ] {
        let (server, connection, _events) = ready(script).await;
        let ledger = soon(server.watch().wait_until(|ledger| ledger.answers("ping").len() == 2)).await;
        assert_eq!((ledger.spawns(), ledger.initializes()), (1, 1), "{script}");
        let answers = ledger.answers("ping");
        assert!(answers.iter().all(|answer| answer["result"] == serde_json::json!({})), "{answers:?}");
        wave(&connection, 3).await;
    }
}

/// I06b: only the id makes a reply, whatever else is in its stream.
#[tokio::test]
async fn k06_only_the_id_makes_a_reply() {
    for noise in [
        r#"{\"jsonrpc\":\"2.0\",\"id\":77,\"result\":{\"protocolVersion\":\"1999-01-01\"}}"#,
        r#"{\"jsonrpc\":\"2.0\",\"method\":\"initialize\",\"params\":{}}"#,
        r#"{\"jsonrpc\":\"2.0\",\"id\":9,\"method\":\"no/such\",\"params\":{}}"#,
        r#"{\"jsonrpc\":\"2.0\",\"id\":\"initialize\",\"result\":{}}"#,
        "starting up on port 3000...",
        "[1, 2",
        "",
    ] {
        for event in ["data: ", "event: other\\ndata: ", "id: 1\\nevent: message\\ndata: ", ": "] {
            let script =
                format!("initialize stdout \"{event}{noise}\\n\\n\", ok\nlist stdout \"{event}{noise}\\n\\n\", ok");
            let (server, connection, _events) = ready(&script).await;
            assert_eq!((server.ledger().initializes(), connection.snapshot().stats.failures), (1, 0), "{event}{noise}");
            wave(&connection, 1).await;
        }
    }
}

/// What is not needed to be Ready delays nothing, the standing stream among it.
#[tokio::test]
async fn k06_what_is_not_needed_to_be_ready_delays_nothing() {
    for script in [
        "prompts p\nresources file:///a\nprompts/list never\nresources/list never",
        "get never",
        "get headers, never",
        "get black-hole",
        "get status 500",
        "get reset",
    ] {
        let (server, connection, _events) = ready(script).await;
        wave(&connection, 3).await;
        assert_eq!(
            (server.ledger().initializes(), connection.snapshot().status),
            (1, Status::Ready(epoch(1))),
            "{script}"
        );
    }
}

/// A set-up that hangs keeps no session from being ready.
#[tokio::test]
async fn k06_a_set_up_that_hangs() {
    let script = "resources file:///a\ncapabilities tools, resources(subscribe)\nresources/subscribe#2.. never";
    let (server, connection, mut events) = ready(script).await;
    soon(connection.subscribe("file:///a")).await.unwrap();
    connection.invalidate(epoch(1), "start anew");
    assert_eq!(soon(until_ready(&mut events)).await, 2);
    wave(&connection, 1).await;
    assert_eq!(server.ledger().requests("resources/subscribe"), 2);
}
