//! K18: the tool catalogue after a reconnect is the new server's, whole, and there before anybody sees Ready.

use std::sync::Arc;

use mcp_reconnect::core::{ParkReason, Status, WakeCause};
use mcp_reconnect::{CallError, Event, Events, Part, Require};
use mcp_reconnect_tests::fake::FakeServer;

use crate::support::*;

/// The words of all events up to this one.
async fn words_until(events: &mut Events, last: &str) -> Vec<String> {
    let mut words = Vec::new();
    loop {
        // Virtual time passes for as long as it is let.
        let event = tokio::time::timeout(secs(86_400), events.next()).await;
        words.extend(word(&event.ok().flatten().unwrap_or_else(|| panic!("{words:?}, and no more"))));
        if words.last().is_some_and(|word| word == last) {
            return words;
        }
    }
}

/// Those of all events that happened by then.
async fn words_within(events: &mut Events, time: std::time::Duration) -> Vec<String> {
    let mut words = Vec::new();
    let read = async {
        while let Some(event) = events.next().await {
            words.extend(word(&event));
        }
    };
    drop(tokio::time::timeout(time, read).await);
    words
}

/// Also R068.
#[tokio::test(start_paused = true)]
async fn k18_park_revive() {
    let server = memory("spawn 1:\n after 20s exit 1");
    let connection = connect(&server);
    let mut events = connection.events();
    assert_eq!(words_until(&mut events, "READY(1)").await, ["tools +echo +write", "READY(1)"]);
    server.set_script("initialize exit 1").unwrap();
    assert_eq!(words_until(&mut events, "PARKED(exhausted)").await, ["withdrawn", "PARKED(exhausted)"]);
    assert_eq!(offered(&connection), None);
    tokio::time::sleep(secs(300)).await;
    assert_eq!(offered(&connection), None);
    server.set_script("").unwrap();
    let mut revived = Vec::new();
    while !matches!(connection.snapshot().status, Status::Ready(_)) {
        let event = events.next().await.unwrap();
        // Before Ready is visible in any way, the tools are there.
        if matches!(event, Event::Catalogue(_)) {
            assert_eq!(offered(&connection).unwrap(), ["echo", "write"]);
        }
        revived.extend(word(&event));
    }
    let Status::Ready(epoch) = connection.snapshot().status else { unreachable!() };
    let ready = format!("READY({epoch})");
    if revived.last() != Some(&ready) {
        revived.extend(words_until(&mut events, &ready).await);
    }
    assert_eq!(revived, ["tools +echo +write", &ready]);
    assert_eq!(connection.session().await.unwrap().epoch(), epoch);
    assert_eq!(words_within(&mut events, secs(600)).await, [] as [&str; 0]);
}

/// Parked on request, and woken: the same.
#[tokio::test(start_paused = true)]
async fn k18_park_on_request() {
    let server = memory("spawn 2:\n tools echo(readOnly), more");
    let connection = connect(&server);
    let mut events = connection.events();
    words_until(&mut events, "READY(1)").await;
    connection.park();
    assert_eq!(words_until(&mut events, "PARKED(requested)").await, ["withdrawn", "PARKED(requested)"]);
    assert_eq!(offered(&connection), None);
    let refused = connection.call_tool(tool("echo")).await;
    assert!(matches!(
        refused,
        Err(CallError::Refused { why: mcp_reconnect::core::Refusal::Parked(ParkReason::Requested), .. })
    ));
    connection.wake(WakeCause::Operator);
    assert_eq!(words_until(&mut events, "READY(2)").await, ["tools +echo +more", "READY(2)"]);
    connection.shutdown().await;
    assert_eq!(words_within(&mut events, secs(1)).await, ["withdrawn", "SHUTDOWN"]);
    assert_eq!(offered(&connection), None);
}

/// What was never offered is not withdrawn.
#[tokio::test(start_paused = true)]
async fn k18_never_published() {
    let server = memory("initialize exit 1");
    let connection = connect(&server);
    let mut events = connection.events();
    assert_eq!(words_until(&mut events, "PARKED(exhausted)").await, ["PARKED(exhausted)"]);
    assert_eq!(offered(&connection), None);
    connection.shutdown().await;
    assert_eq!(words_within(&mut events, secs(1)).await, ["SHUTDOWN"]);
}

/// A short outage takes nothing back and publishes nothing twice.
#[tokio::test(start_paused = true)]
async fn k18_short_outage_does_not_flicker() {
    let server = memory("spawn 1:\n after 20s exit 1\nspawn 2..4:\n initialize exit 1");
    let connection = connect(&server);
    let mut events = connection.events();
    words_until(&mut events, "READY(1)").await;
    until_status(&mut events, |status| status == Status::TransientFailure).await;
    assert_eq!(offered(&connection).unwrap(), ["echo", "write"]);
    assert_eq!(words_until(&mut events, "READY(5)").await, ["READY(5)"]);
    assert_eq!(words_within(&mut events, secs(600)).await, [] as [&str; 0]);
}

/// H-list-500 and R069, by every way in which a list can fail.
#[tokio::test(start_paused = true)]
async fn k18_r069_list_fails() {
    for failing in [
        "list error -32603 \"broken\"",
        "list exit 1",
        "list never",
        "list bad-shape",
        "list result '{}'",
        "list result '{\"tools\":null}'",
        "list wrong-id",
        "paging 2\n list#2 error -32603 \"broken\"",
    ] {
        let server = memory(&format!("spawn 1..2:\n {failing}"));
        let quick = config(|config| config.connect_timeout(secs(5)));
        let connection = builder(&server).config(quick).build().unwrap();
        let mut events = connection.events();
        let (words, offered) = (words_until(&mut events, "READY(3)").await, offered(&connection));
        assert_eq!(words, ["tools +echo +write", "READY(3)"], "{failing}");
        assert_eq!(offered.unwrap(), ["echo", "write"]);
        assert_eq!(server.ledger().spawns(), 3, "{failing}");
    }
}

/// A server that has no list, or says that it does not know it, offers nothing, and that is no failure.
#[tokio::test(start_paused = true)]
async fn k18_nothing_to_list() {
    for script in ["tools none", "capabilities none", "list error -32601 \"unknown\""] {
        let server = memory(script);
        let connection = connect(&server);
        connection.session().await.unwrap();
        assert_eq!(offered(&connection), Some(vec![]), "{script}");
        assert!(matches!(connection.call_tool(tool("write")).await, Err(CallError::NotOffered { .. })));
        assert_eq!((server.ledger().spawns(), server.ledger().calls("write")), (1, 0), "{script}");
    }
}

const RESTARTED: &str = "tools b(desc \"v2\"), c\nspawn 1:\n tools a, b(desc \"v1\")\n after 20s exit 1";

/// Also R070, on a pipe.
#[tokio::test(start_paused = true)]
async fn k18_restart_new_tools() {
    let server = memory(RESTARTED);
    let connection = connect(&server);
    let mut events = connection.events();
    words_until(&mut events, "READY(1)").await;
    assert_eq!(offered(&connection).unwrap(), ["a", "b"]);
    assert_eq!(words_until(&mut events, "READY(2)").await, ["tools +c -a ~b", "READY(2)"]);
    let catalogue = connection.catalogue().unwrap();
    assert_eq!(tool_names(&catalogue), ["b", "c"]);
    assert_eq!(catalogue.tool("b").unwrap().description.as_deref(), Some("v2"));
    assert!(matches!(connection.call_tool(tool("a")).await, Err(CallError::NotOffered { tool, .. }) if &*tool == "a"));
    assert_eq!(server.ledger().calls("a"), 0);
    assert_eq!(words_within(&mut events, secs(600)).await, [] as [&str; 0]);
}

/// A call that waited through the restart meets the new catalogue.
#[tokio::test(start_paused = true)]
async fn k18_restart_under_a_waiting_call() {
    let server = memory(RESTARTED);
    let connection = connect(&server);
    let mut events = connection.events();
    until_status(&mut events, |status| status == Status::TransientFailure).await;
    let (gone, new) = tokio::join!(connection.call_tool(tool("a")), connection.call_tool(tool_with("c", "new")));
    assert!(matches!(gone, Err(CallError::NotOffered { epoch: of, .. }) if of == epoch(2)), "{gone:?}");
    assert_eq!(text(new), "new");
}

/// Nobody ever sees a session together with the tools of another one.
#[tokio::test(start_paused = true)]
async fn k18_ready_and_catalogue_belong_together() {
    let server = memory(RESTARTED);
    let connection = connect(&server);
    let mut events = connection.events();
    for (number, expected) in [(1, ["a", "b"]), (2, ["b", "c"])] {
        assert_eq!(until_ready(&mut events).await, number);
        let session = connection.session().await.unwrap();
        assert_eq!(
            (tool_names(&session.catalogue()), offered(&connection).unwrap()),
            (expected.map(str::to_owned).to_vec(), expected.map(str::to_owned).to_vec())
        );
    }
}

const LISTENING: &str = "tools a\ncapabilities tools(listChanged)\n";

fn lists(server: &Arc<FakeServer>) -> usize {
    server.ledger().requests("tools/list")
}

/// Also R071, on a pipe: a burst is one re-list; what comes during its reply is one more.
#[tokio::test(start_paused = true)]
async fn k18_notify_burst() {
    for reply in ["delay 50ms", "delay 500ms", "ok"] {
        let server = memory(&format!(
            "{LISTENING}
             list#2 notify tools/list_changed, {reply}
             after 20s set-tools a b c, notify tools/list_changed x30 every 3ms"
        ));
        let connection = connect(&server);
        let mut events = connection.events();
        words_until(&mut events, "READY(1)").await;
        assert_eq!(words_within(&mut events, secs(60)).await, ["tools +b +c"], "{reply}");
        assert_eq!(offered(&connection).unwrap(), ["a", "b", "c"]);
        assert_eq!(lists(&server), 1 + 2, "{reply}");
    }
}

/// A server that never stops announcing is neither listed all the time nor never.
#[tokio::test(start_paused = true)]
async fn k18_notify_storm() {
    let server = memory(&format!("{LISTENING}after 20s set-tools a b, notify tools/list_changed x12000 every 5ms"));
    let connection = connect(&server);
    let mut events = connection.events();
    words_until(&mut events, "READY(1)").await;
    let changed = words_within(&mut events, secs(30)).await;
    assert_eq!(changed, ["tools +b"], "while the storm lasts");
    tokio::time::sleep(secs(60)).await;
    assert!(lists(&server) < 1000, "{} lists in a minute", lists(&server));
    assert_eq!(server.ledger().spawns(), 1);
}

/// Told, and gone: the next epoch lists the change.
#[tokio::test(start_paused = true)]
async fn k18_r071_notify_then_exit() {
    let server = memory(&format!(
        "{LISTENING}tools a, b
         spawn 1:
          tools a
          after 20s set-tools a b, notify tools/list_changed, exit 1"
    ));
    let connection = connect(&server);
    let mut events = connection.events();
    words_until(&mut events, "READY(1)").await;
    assert_eq!(words_until(&mut events, "READY(2)").await, ["tools +b", "READY(2)"]);
    assert_eq!(server.ledger().of_spawn(2).requests("tools/list"), 1);
}

/// Whenever it comes: before the first list is asked for, while it is answered, right after.
#[tokio::test(start_paused = true)]
async fn k18_notify_during_the_start() {
    for change in [
        "on initialized set-tools a b, notify tools/list_changed",
        "list#1 set-tools a b, notify tools/list_changed, delay 1s",
        "list#1 delay 1s, ok, set-tools a b, notify tools/list_changed",
        "list#1 ok, delay 10s, set-tools a b, notify tools/list_changed",
    ] {
        let server = memory(&format!("{LISTENING}{change}"));
        let connection = connect(&server);
        tokio::time::sleep(secs(30)).await;
        assert_eq!(offered(&connection).unwrap(), ["a", "b"], "{change}");
        assert_eq!(tool_names(&connection.session().await.unwrap().catalogue()), ["a", "b"]);
        assert!(lists(&server) <= 2, "{change}: {}", lists(&server));
    }
}

/// The stateless era announces over a subscription.
#[tokio::test(start_paused = true)]
async fn k18_notify_modern() {
    let server = memory(&format!("era modern\n{LISTENING}after 20s set-tools a b, notify tools/list_changed"));
    let connection = connect(&server);
    tokio::time::sleep(secs(30)).await;
    assert_eq!(offered(&connection).unwrap(), ["a", "b"]);
    assert_eq!((lists(&server), server.ledger().spawns()), (2, 1));
}

/// A re-list that fails costs nobody a tool; the next one that does not fail is right again.
#[tokio::test(start_paused = true)]
async fn k18_relist_fails() {
    for failing in ["error -32603 \"broken\"", "bad-shape", "result '{}'"] {
        let server = memory(&format!(
            "{LISTENING}list#2 {failing}
             after 20s set-tools a b, notify tools/list_changed
             after 60s notify tools/list_changed"
        ));
        let connection = connect(&server);
        let mut events = connection.events();
        words_until(&mut events, "READY(1)").await;
        assert_eq!(words_within(&mut events, secs(30)).await, [] as [&str; 0], "{failing}");
        let catalogue = connection.catalogue().unwrap();
        assert!(matches!(catalogue.tools, Part::Stale { .. }), "{failing}: {catalogue:?}");
        assert_eq!(tool_names(&catalogue), ["a"]);
        // What it does not name may be new.
        assert_eq!(text(connection.call_tool(tool_with("b", "new")).await), "new");
        assert_eq!(words_within(&mut events, secs(60)).await, ["tools +b"], "{failing}");
        assert!(matches!(connection.catalogue().unwrap().tools, Part::Listed(_)));
        assert_eq!(server.ledger().spawns(), 1);
    }
}

/// A server that does not announce its changes is listed anew when it refuses a tool that it offered; one that does
/// announce is not.
#[tokio::test(start_paused = true)]
async fn k18_unannounced_change() {
    for (capabilities, diffs) in [("tools", vec!["tools -write".to_owned()]), ("tools(listChanged)", vec![])] {
        let change = "after 20s set-tools echo(readOnly)\ncall write error -32602 \"Tool write not found\"";
        let (_server, connection, mut events) = ready(&format!("capabilities {capabilities}\n{change}")).await;
        tokio::time::sleep(secs(30)).await;
        let refused = connection.call_tool(tool("write")).await;
        assert!(matches!(refused, Err(CallError::Server { .. })), "{refused:?}");
        assert_eq!(words_within(&mut events, secs(5)).await, diffs, "{capabilities}");
        let again = connection.call_tool(tool("write")).await;
        assert_eq!(matches!(again, Err(CallError::NotOffered { .. })), !diffs.is_empty(), "{again:?}");
    }
}

/// A re-list of an epoch that is over does not touch the catalogue of the one that came after it.
#[tokio::test(start_paused = true)]
async fn k18_late_relist_of_an_old_epoch() {
    let server = memory(&format!(
        "{LISTENING}tools c
         spawn 1:
          tools a
          list#2 delay 3s
          after 20s set-tools a b, notify tools/list_changed
          on EOF delay 4s, exit 0"
    ));
    let connection = connect(&server);
    let mut events = connection.events();
    words_until(&mut events, "READY(1)").await;
    tokio::time::sleep(secs(21)).await;
    connection.invalidate(epoch(1), "a test");
    assert_eq!(words_until(&mut events, "READY(2)").await, ["tools +c -a", "READY(2)"]);
    assert_eq!(words_within(&mut events, secs(60)).await, [] as [&str; 0]);
    assert_eq!(offered(&connection).unwrap(), ["c"]);
}

/// Who does not wait for the list before Ready gets it right after.
#[tokio::test(start_paused = true)]
async fn k18_list_after_ready() {
    let server = memory("list delay 10s");
    let connection = builder(&server).require(Require::None).build().unwrap();
    let mut events = connection.events();
    assert_eq!(words_until(&mut events, "READY(1)").await, ["READY(1)"]);
    // Nothing is known, so nothing is refused.
    assert_eq!(text(connection.call_tool(tool_with("echo", "early")).await), "early");
    assert_eq!(words_within(&mut events, secs(60)).await, ["tools +echo +write"]);
}

/// Prompts, resources and templates follow the same rule, without holding up Ready.
#[tokio::test(start_paused = true)]
async fn k18_other_lists() {
    let server = memory(
        "prompts greet
         resources file:///a
         templates file:///{name}
         prompts/list delay 5s
         spawn 1:
          after 20s exit 1
         spawn 2:
          prompts other
          resources/list error -32603 \"broken\"",
    );
    let connection = connect(&server);
    let mut events = connection.events();
    let ready = tokio::time::Instant::now();
    until_ready(&mut events).await;
    assert!(ready.elapsed() < secs(1));
    tokio::time::sleep(secs(10)).await;
    let catalogue = connection.catalogue().unwrap();
    assert_eq!(
        (catalogue.prompts.items().len(), catalogue.resources.items().len(), catalogue.templates.items().len()),
        (1, 1, 1)
    );
    assert_eq!(until_ready(&mut events).await, 2);
    // What the new epoch has not listed yet is what it was; nothing is ever shown as gone for that.
    let catalogue = connection.catalogue().unwrap();
    assert_eq!(catalogue.prompts.items().len(), 1, "{:?}", catalogue.prompts);
    tokio::time::sleep(secs(10)).await;
    let catalogue = connection.catalogue().unwrap();
    assert_eq!(catalogue.prompts.items()[0].name, "other");
    assert!(matches!(&catalogue.resources, Part::Stale { items, .. } if items.len() == 1), "{:?}", catalogue.resources);
    let mut changes = Vec::new();
    while let Ok(Some(event)) = tokio::time::timeout(secs(1), events.next()).await {
        if let Event::Catalogue(diff) = event {
            changes.push((diff.prompts.clone(), diff.resources.clone()));
        }
    }
    assert_eq!(changes.len(), 1, "{changes:?}");
    assert_eq!(
        (changes[0].0.added.clone(), changes[0].0.removed.clone()),
        (vec!["other".to_owned()], vec!["greet".to_owned()])
    );
    assert!(changes[0].1.is_empty());
}
