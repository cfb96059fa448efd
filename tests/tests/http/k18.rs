//! K18: over HTTP, too, the tool catalogue after a reconnect is the new server's, whole, and there before anybody sees
//! Ready.

use mcp_reconnect::core::Status;
use mcp_reconnect::{CallError, Connection, Event, Events, Part};
use mcp_reconnect_tests::fake::FakeHttp;

use super::clock::{quick, quiet, skip, turns};
use super::{builder, serve};
use crate::support::*;

/// An event as a word without an epoch: how many attempts an outage takes depends on the machine.
fn word(event: &Event) -> Option<String> {
    match event {
        Event::Status { status: Status::Ready(_), .. } => Some("READY".into()),
        _ => crate::support::word(event),
    }
}

/// The words of all events up to this one.
async fn words_until(events: &mut Events, last: &str) -> Vec<String> {
    let mut words = Vec::new();
    while words.last().is_none_or(|word| word != last) {
        words.extend(word(&events.next().await.unwrap_or_else(|| panic!("{words:?}, and no more"))));
    }
    words
}

/// The words of all events that are left when the connection is shut down.
async fn words_to_the_end(connection: Connection, mut events: Events) -> Vec<String> {
    connection.shutdown().await;
    drop(connection);
    let mut words = Vec::new();
    while let Some(event) = events.next().await {
        words.extend(word(&event));
    }
    words
}

const THE_END: [&str; 2] = ["withdrawn", "SHUTDOWN"];

async fn begin(script: &str) -> (FakeHttp, Connection, Events) {
    let server = serve(script).await;
    let connection = builder(&server).config(config(|config| quick(config).park_after(millis(200)))).build().unwrap();
    let events = connection.events();
    (server, connection, events)
}

/// Also R068. The five minutes are those until the probe of the parked server.
#[tokio::test]
async fn k18_park_revive() {
    let (server, connection, mut events) = begin("").await;
    assert_eq!(words_until(&mut events, "READY").await, ["tools +echo +write", "READY"]);
    server.down().await;
    let words = words_until(&mut events, "withdrawn").await;
    assert_eq!(words, ["withdrawn"]);
    until_status(&mut events, |status| matches!(status, Status::Parked(_))).await;
    assert_eq!(offered(&connection), None);
    server.up().await;
    skip(secs(300)).await;
    loop {
        match events.next().await.unwrap() {
            Event::Catalogue(diff) => {
                assert_eq!((diff.tools.added.len(), diff.tools.removed.len()), (2, 0));
                // Before Ready is visible in any way, the tools are there.
                assert_eq!(offered(&connection).unwrap(), ["echo", "write"]);
                break;
            }
            Event::Status { status: Status::Connecting | Status::Parked(_), .. } => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(words_until(&mut events, "READY").await, ["READY"]);
    assert_eq!(words_to_the_end(connection, events).await, THE_END);
}

/// A short outage takes nothing back and publishes nothing twice.
#[tokio::test]
async fn k18_short_outage_does_not_flicker() {
    let server = serve("").await;
    let connection = builder(&server).config(config(quick)).build().unwrap();
    let mut events = connection.events();
    let mut steering = connection.events();
    words_until(&mut events, "READY").await;
    until_ready(&mut steering).await;
    server.down().await;
    until_status(&mut steering, |status| status == Status::TransientFailure).await;
    assert_eq!(offered(&connection).unwrap(), ["echo", "write"]);
    server.up().await;
    assert_eq!(words_until(&mut events, "READY").await, ["READY"]);
    server.restart().await;
    assert_eq!(words_until(&mut events, "READY").await, ["READY"]);
    assert_eq!(words_to_the_end(connection, events).await, THE_END);
}

/// Also R069, by every way in which a list can fail, its second page included.
#[tokio::test]
async fn k18_list_500() {
    for (failing, failures) in [
        ("list#1..2 status 500", 2),
        ("list#1..2 status 503 header retry-after 0", 2),
        ("list#1..2 status 404", 2),
        ("list#1..2 status 400", 2),
        ("list#1..2 with-status 500, error -32603 \"broken\"", 2),
        ("list#1..2 error -32603 \"broken\"", 2),
        ("list#1..2 cut", 2),
        ("list#1..2 reset", 2),
        ("list#1..2 end", 2),
        ("list#1..2 cut after 20, ok", 2),
        ("list#1..2 status 200 '{}'", 2),
        ("list#1..2 status 200 \"<html>\" header content-type text/html", 2),
        ("list#1..2 status 202", 2),
        ("list#1..2 bad-shape", 2),
        ("list#1..2 result '{}'", 2),
        ("list#1..2 wrong-id", 2),
        ("paging 2\nlist#2 status 500", 1),
        ("paging 2\nlist#2 cut", 1),
        ("paging 2\nlist#2 forget, status 404", 1),
    ] {
        let (server, connection, mut events) = begin(failing).await;
        let words = words_until(&mut events, "READY").await;
        assert_eq!(words, ["tools +echo +write", "READY"], "{failing}");
        assert_eq!(offered(&connection).unwrap(), ["echo", "write"]);
        assert_eq!(server.ledger().initializes(), 1 + failures, "{failing}");
        assert_eq!(words_to_the_end(connection, events).await, THE_END);
    }
}

/// A list that never comes ends the attempt at its deadline.
#[tokio::test]
async fn k18_list_never() {
    for never in ["list#1 never", "list#1 headers, never", "list#1 black-hole"] {
        let (server, connection, mut events) = begin(never).await;
        server.watch().wait_until(|ledger| ledger.requests("tools/list") == 1).await;
        skip(secs(31)).await;
        let mut words = words_until(&mut events, "READY").await;
        // The outage that the clock made of it parks, which takes nothing back: there was nothing.
        words.retain(|word| !word.starts_with("PARKED"));
        assert_eq!(words, ["tools +echo +write", "READY"], "{never}");
        assert_eq!((server.ledger().initializes(), server.ledger().deletes()), (2, vec!["A1"]));
        assert_eq!(words_to_the_end(connection, events).await, THE_END);
    }
}

/// A server that has no list, or says that it does not know it, offers nothing, and that is no failure.
#[tokio::test]
async fn k18_nothing_to_list() {
    for script in [
        "tools none",
        "capabilities none",
        "list error -32601 \"unknown\"",
        "list with-status 404, error -32601 \"unknown\"",
        "list with-status 400, error -32601 \"unknown\"",
    ] {
        let (server, connection, _events) = begin(script).await;
        connection.session().await.unwrap();
        assert_eq!(offered(&connection), Some(vec![]), "{script}");
        assert!(matches!(connection.call_tool(tool("write")).await, Err(CallError::NotOffered { .. })));
        assert_eq!((server.ledger().initializes(), server.ledger().calls("write")), (1, 0), "{script}");
    }
}

const RESTARTED: &str = "tools b(desc \"v2\"), c\nspawn 1:\n tools a, b(desc \"v1\")";

/// Also R070.
#[tokio::test]
async fn k18_restart_new_tools() {
    for extra in ["", "answers json\n", "sessions none\n", "era modern\n"] {
        let (server, connection, mut events) = begin(&format!("{extra}{RESTARTED}")).await;
        assert_eq!(words_until(&mut events, "READY").await, ["tools +a +b", "READY"]);
        server.watch().wait_until(|ledger| ledger.open_streams() + ledger.open_listens() == 1).await;
        server.restart().await;
        if extra.is_empty() || extra.starts_with("answers") {
            assert_eq!(words_until(&mut events, "READY").await, ["tools +c -a ~b", "READY"]);
            let catalogue = connection.catalogue().unwrap();
            assert_eq!(tool_names(&catalogue), ["b", "c"]);
            assert_eq!(catalogue.tool("b").unwrap().description.as_deref(), Some("v2"));
            let gone = connection.call_tool(tool("a")).await;
            assert!(matches!(gone, Err(CallError::NotOffered { tool, .. }) if &*tool == "a"));
            assert_eq!(server.ledger().calls("a"), 0);
            assert_eq!(words_to_the_end(connection, events).await, THE_END);
        } else {
            // Nothing but the catalogue of what is there is owed where no session ended.
            assert_eq!(text(connection.call_tool(tool_with("b", "x")).await), "x", "{extra}");
        }
    }
}

/// A call that waited through the restart meets the new catalogue.
#[tokio::test]
async fn k18_restart_under_a_waiting_call() {
    let (server, connection, mut events) = begin(RESTARTED).await;
    words_until(&mut events, "READY").await;
    server.down().await;
    until_status(&mut events, |status| status == Status::TransientFailure).await;
    let calls = async { tokio::join!(connection.call_tool(tool("a")), connection.call_tool(tool_with("c", "new"))) };
    let (calls, ()) = tokio::join!(calls, server.restart());
    assert!(matches!(calls.0, Err(CallError::NotOffered { epoch: of, .. }) if of.get() > 1), "{calls:?}");
    assert_eq!(text(calls.1), "new");
    assert_eq!(server.ledger().calls("a"), 0);
}

/// A call that meets the restart itself: its second sending goes by the new catalogue.
#[tokio::test]
async fn k18_restart_met_by_a_call() {
    let (server, connection, mut events) = begin(&format!("get status 405\n{RESTARTED}")).await;
    words_until(&mut events, "READY").await;
    server.restart().await;
    let gone = connection.call_tool(tool("a")).await;
    assert!(matches!(gone, Err(CallError::NotOffered { epoch: of, .. }) if of == epoch(2)), "{gone:?}");
    assert_eq!((server.ledger().calls("a"), server.ledger().initializes()), (0, 2));
}

const LISTENING: &str = "capabilities tools(listChanged)\n";

/// Also R071: a burst is one re-list; what comes during its reply is one more. Whatever stream it comes on.
#[tokio::test]
async fn k18_notify_burst() {
    for (era, stream) in [("legacy", " standing"), ("legacy", ""), ("modern", " standing")] {
        let (server, connection, mut events) = begin(&format!(
            "{LISTENING}era {era}
             tools a
             list#2 notify tools/list_changed{stream}, delay 100ms
             call a set-tools a b c, notify tools/list_changed x30{stream}, ok"
        ))
        .await;
        words_until(&mut events, "READY").await;
        if !stream.is_empty() {
            server.watch().wait_until(|ledger| ledger.open_streams() + ledger.open_listens() == 1).await;
        }
        text(connection.call_tool(tool("a")).await);
        assert_eq!(words_until(&mut events, "tools +b +c").await, ["tools +b +c"], "{era}");
        assert_eq!(offered(&connection).unwrap(), ["a", "b", "c"]);
        server.watch().wait_until(|ledger| ledger.requests("tools/list") == 3).await;
        skip(secs(10)).await;
        turns().await;
        assert_eq!(
            (server.ledger().requests("tools/list"), server.ledger().undelivered()),
            (3, vec![]),
            "{era}{stream}"
        );
        assert_eq!(words_to_the_end(connection, events).await, THE_END);
    }
}

/// Told, and gone: the next epoch lists the change, which is told once.
#[tokio::test]
async fn k18_r071_notify_then_exit() {
    let (server, connection, mut events) = begin(&format!(
        "{LISTENING}respawn 10ms
         tools a, b
         spawn 1:
          tools a
          call a set-tools a b, notify tools/list_changed standing, exit 1"
    ))
    .await;
    words_until(&mut events, "READY").await;
    server.watch().wait_until(|ledger| ledger.open_streams() == 1).await;
    connection.call_tool(tool("a")).await.unwrap_err();
    assert_eq!(words_until(&mut events, "READY").await, ["tools +b", "READY"]);
    assert_eq!(offered(&connection).unwrap(), ["a", "b"]);
    assert_eq!(server.ledger().of_spawn(2).requests("tools/list"), 1);
    assert_eq!(words_to_the_end(connection, events).await, THE_END);
}

/// The change is announced while the standing stream is cut: it comes with the stream that is opened again, or is lost;
/// a server that remembers is heard.
#[tokio::test]
async fn k18_notify_on_a_stream_that_was_cut() {
    let (server, connection, mut events) = begin(&format!(
        "{LISTENING}tools a
         get ok, event-id e1, retry 1ms, cut
         resume ok, notify tools/list_changed standing
         call a set-tools a b, ok"
    ))
    .await;
    words_until(&mut events, "READY").await;
    server.watch().wait_until(|ledger| ledger.gets() >= 2).await;
    text(connection.call_tool(tool("a")).await);
    server.disconnect().await;
    assert_eq!(words_until(&mut events, "tools +b").await, ["tools +b"]);
    assert_eq!(server.ledger().initializes(), 1);
}

/// A re-list that fails costs nobody a tool; the next one that does not fail is right again.
#[tokio::test]
async fn k18_relist_fails() {
    for failing in ["error -32603 \"broken\"", "bad-shape", "status 500", "cut", "status 429", "status 200 '{}'"] {
        let (server, connection, mut events) = begin(&format!(
            "{LISTENING}tools a, echo
             list#2 {failing}
             call a#1 set-tools a b echo, notify tools/list_changed, ok
             call a#2 notify tools/list_changed, ok"
        ))
        .await;
        words_until(&mut events, "READY").await;
        text(connection.call_tool(tool("a")).await);
        server.watch().wait_until(|ledger| ledger.requests("tools/list") == 2).await;
        quiet(&server, &connection).await;
        let catalogue = connection.catalogue().unwrap();
        assert!(matches!(catalogue.tools, Part::Stale { .. }), "{failing}: {catalogue:?}");
        assert_eq!(tool_names(&catalogue), ["a", "echo"]);
        // What it does not name may be new.
        assert_eq!(text(connection.call_tool(tool_with("b", "new")).await), "new");
        text(connection.call_tool(tool("a")).await);
        assert_eq!(words_until(&mut events, "tools +b").await, ["tools +b"], "{failing}");
        assert!(matches!(connection.catalogue().unwrap().tools, Part::Listed(_)));
        assert_eq!(server.ledger().initializes(), 1, "{failing}");
    }
}

/// In the stateless era the subscription is opened again when it is cut, and in each epoch.
#[tokio::test]
async fn k18_notify_modern_after_a_restart() {
    for epoch_over in [false, true] {
        let (server, connection, mut events) = begin(&format!(
            "{LISTENING}era modern
             tools a
             call a set-tools a b, notify tools/list_changed standing, ok"
        ))
        .await;
        words_until(&mut events, "READY").await;
        server.watch().wait_until(|ledger| ledger.open_listens() == 1).await;
        if epoch_over {
            connection.invalidate(epoch(1), "a test");
            words_until(&mut events, "READY").await;
        } else {
            server.disconnect().await;
        }
        let asked = "subscriptions/listen";
        server.watch().wait_until(|ledger| ledger.posts_of(asked) == 2 && ledger.open_listens() == 1).await;
        text(connection.call_tool(tool("a")).await);
        assert_eq!(words_until(&mut events, "tools +b").await, ["tools +b"]);
    }
}

/// A change while the server was away is found by the list of the next epoch; nobody sees the tools of one with the
/// session of another.
#[tokio::test]
async fn k18_ready_and_catalogue_belong_together() {
    let (server, connection, mut events) = begin(RESTARTED).await;
    for expected in [["a", "b"], ["b", "c"]] {
        words_until(&mut events, "READY").await;
        let session = connection.session().await.unwrap();
        assert_eq!(
            (tool_names(&session.catalogue()), offered(&connection).unwrap()),
            (expected.map(str::to_owned).to_vec(), expected.map(str::to_owned).to_vec())
        );
        if expected == ["a", "b"] {
            server.down().await;
            server.restart().await;
        }
    }
}
