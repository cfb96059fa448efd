//! A host that is started again: what it kept of its servers spares them its questions, and nobody is told anything
//! that is not so.

use std::path::Path;
use std::sync::Arc;

use mcp_reconnect::core::{ParkReason, Status, WakeCause};
use mcp_reconnect::fleet::state::{SavedServer, SavedState, StateFile};
use mcp_reconnect::{Connection, Era, Event, Events, Part};
use mcp_reconnect_tests::fake::FakeServer;
use tempfile::{TempDir, tempdir};
use tokio::time::{Instant, sleep, timeout};

use crate::support::*;

const PARKED: Status = Status::Parked(ParkReason::Exhausted);

/// Where the host keeps its state.
struct Host {
    folder: TempDir,
}

impl Host {
    fn new() -> Self {
        Self { folder: tempdir().unwrap() }
    }

    fn file(&self) -> StateFile {
        StateFile::new(Path::new(self.folder.path()).join("state.json"))
    }

    /// Saves what is known, then ends the connection.
    async fn stop(&self, connection: Connection) {
        let state = SavedState::from_iter([("fake".to_owned(), SavedServer::of(&connection, "digest"))]);
        self.file().save(&state).unwrap();
        connection.shutdown().await;
    }

    fn kept(&self) -> SavedServer {
        let (state, warnings) = self.file().load();
        assert_eq!(warnings, []);
        state.server("fake", "digest").unwrap()
    }

    /// Starts again, with what was kept.
    fn start(&self, server: &Arc<FakeServer>) -> (Connection, Events) {
        restart(&self.kept(), server)
    }
}

fn restart(kept: &SavedServer, server: &Arc<FakeServer>) -> (Connection, Events) {
    let connection = kept.restore(builder(server)).build().unwrap();
    let events = connection.events();
    (connection, events)
}

/// What is offered and whether it is up to date; `None`: nothing may be.
fn offered(connection: &Connection) -> Option<(Vec<String>, bool)> {
    let catalogue = connection.catalogue()?;
    let names = catalogue.tools.items().iter().map(|tool| tool.name.to_string()).collect();
    Some((names, matches!(catalogue.tools, Part::Listed(_))))
}

fn tools(names: &[&str], listed: bool) -> Option<(Vec<String>, bool)> {
    Some((names.iter().map(|name| (*name).to_owned()).collect(), listed))
}

/// Events as words, up to this status.
async fn words_until(events: &mut Events, wanted: impl Fn(Status) -> bool) -> Vec<String> {
    let mut words = Vec::new();
    loop {
        match timeout(secs(86_400), events.next()).await.ok().flatten() {
            Some(Event::Status { status: Status::Connecting | Status::TransientFailure, .. }) => {}
            Some(Event::Status { status, .. }) => {
                words.push(status.to_string());
                if wanted(status) {
                    return words;
                }
            }
            Some(Event::Catalogue(diff)) => {
                let tools = &diff.tools;
                words.push(format!("+{:?} -{:?} ~{:?}", tools.added, tools.removed, tools.changed));
            }
            Some(Event::Withdrawn) => words.push("withdrawn".into()),
            other => panic!("{other:?} after {words:?}"),
        }
    }
}

fn is_ready(status: Status) -> bool {
    matches!(status, Status::Ready(_))
}

/// A host whose server never came up, stopped when it was parked; the server is well again.
async fn parked() -> (Host, Arc<FakeServer>) {
    let (host, server) = (Host::new(), memory("start exit 1"));
    let connection = connect(&server);
    until_status(&mut connection.events(), |status| status == PARKED).await;
    sleep(secs(20)).await;
    host.stop(connection).await;
    server.set_script("").unwrap();
    (host, server)
}

#[tokio::test(start_paused = true)]
async fn state_a_parked_server_is_left_alone_until_its_wait_is_over() {
    let (host, server) = parked().await;
    let spawns = server.ledger().spawns();
    // However often the host is started. The time between two starts is real, and taken off too.
    let mut kept = host.kept();
    for _ in 0..3 {
        let wait = kept.memory().next_dial_in.unwrap();
        assert!(wait > secs(5) && wait <= secs(52), "the rest of it: {wait:?}");
        let (connection, _events) = restart(&kept, &server);
        assert_eq!(connection.snapshot().status, PARKED);
        sleep(secs(5)).await;
        host.stop(connection).await;
        kept = host.kept();
        assert!(kept.memory().next_dial_in.unwrap() <= wait - secs(5));
    }
    let wait = kept.memory().next_dial_in.unwrap();
    let (connection, mut events) = restart(&kept, &server);
    let began = Instant::now();
    sleep(wait - millis(100)).await;
    assert_eq!((server.ledger().spawns(), connection.snapshot().status), (spawns, PARKED));
    until_ready(&mut events).await;
    assert!(began.elapsed() < wait + millis(100), "{:?}", began.elapsed());
    assert_eq!(server.ledger().spawns(), spawns + 1);
}

/// Version 0.1.0 kept no cause.
#[tokio::test(start_paused = true)]
async fn state_of_an_earlier_version_is_read_and_a_park_has_words() {
    let (host, server) = parked().await;
    let text = std::fs::read_to_string(host.file().path()).unwrap();
    let mut content: serde_json::Value = serde_json::from_str(&text).unwrap();
    content["version"] = 1.into();
    let entry = content["servers"]["fake"].as_object_mut().unwrap();
    assert!(entry.remove("cause").unwrap().as_str().unwrap().contains("exited with status 1"), "{text}");
    entry.remove("last_dial_at").unwrap();
    let kept = entry["memory"].as_object_mut().unwrap();
    assert!(kept.remove("failure").is_some());
    std::fs::write(host.file().path(), content.to_string()).unwrap();
    let (connection, _events) = host.start(&server);
    assert_eq!(connection.snapshot().status, PARKED);
    assert_eq!(connection.last_failure().as_deref(), Some("parked by an earlier process"));
    host.stop(connection).await;
    assert_eq!(host.kept().cause(), Some("parked by an earlier process"));
}

#[tokio::test(start_paused = true)]
async fn state_who_asks_for_a_parked_server_gets_it() {
    let (host, server) = parked().await;
    let (connection, _events) = host.start(&server);
    let began = Instant::now();
    connection.session().await.unwrap();
    assert!(began.elapsed() <= secs(5));
}

#[tokio::test(start_paused = true)]
async fn state_a_server_that_was_parked_on_request_stays_parked() {
    let host = Host::new();
    let (server, connection, mut events) = ready("").await;
    connection.park();
    let requested = |status| status == Status::Parked(ParkReason::Requested);
    until_status(&mut events, requested).await;
    host.stop(connection).await;
    let (connection, mut events) = host.start(&server);
    sleep(secs(86_400)).await;
    assert!(requested(connection.snapshot().status));
    assert_eq!((server.ledger().spawns(), offered(&connection)), (1, None));
    connection.wake(WakeCause::Operator);
    // Nothing was offered in this process, so everything is new.
    assert_eq!(words_until(&mut events, is_ready).await, [r#"+["echo", "write"] -[] ~[]"#, "READY(1)"]);
    assert_eq!(offered(&connection), tools(&["echo", "write"], true));
}

#[tokio::test(start_paused = true)]
async fn state_a_server_that_backed_off_keeps_its_wait() {
    let server = memory("start exit 1");
    let connection = connect(&server);
    let mut events = connection.events();
    // The waits double: this is the fourth.
    for _ in 0..4 {
        until_status(&mut events, |status| status == Status::TransientFailure).await;
    }
    let kept = SavedServer::of(&connection, "digest");
    connection.shutdown().await;
    let spawns = server.ledger().spawns();
    let wait = kept.memory().next_dial_in.unwrap();
    assert!(wait > secs(3), "{wait:?}");
    let (connection, _events) = restart(&kept, &server);
    assert_eq!(connection.snapshot().status, Status::TransientFailure);
    sleep(wait - millis(100)).await;
    assert_eq!(server.ledger().spawns(), spawns);
    sleep(millis(200)).await;
    assert!(server.ledger().spawns() > spawns);
}

/// Legacy, legacy that dies of the question, modern.
#[tokio::test(start_paused = true)]
async fn state_the_era_is_not_asked_for_again() {
    for (script, era, before, after) in [
        ("", Era::Legacy, (1, 1, 1), (2, 1, 2)),
        ("exit-unless-initialize", Era::Legacy, (2, 1, 1), (3, 1, 2)),
        ("era modern", Era::Modern, (1, 1, 0), (2, 2, 0)),
    ] {
        let host = Host::new();
        let (server, connection, _events) = ready(script).await;
        let seen = || (server.ledger().spawns(), server.ledger().discovers(), server.ledger().initializes());
        assert_eq!(seen(), before, "{script}");
        host.stop(connection).await;
        assert_eq!(host.kept().era().era, Some(era));
        let (connection, mut events) = host.start(&server);
        assert_eq!(until_ready(&mut events).await, 1);
        assert_eq!(connection.session().await.unwrap().era(), era);
        assert_eq!(seen(), after, "{script}");
    }
}

#[tokio::test(start_paused = true)]
async fn state_the_last_catalogue_is_stale_until_the_first_session() {
    let host = Host::new();
    let (server, connection, _events) = ready("tools a, b(readOnly), c").await;
    host.stop(connection).await;
    server.set_script("initialize delay 5s\ntools b(readOnly), c(desc \"new\"), d").unwrap();
    let (connection, mut events) = host.start(&server);
    assert_eq!(offered(&connection), tools(&["a", "b", "c"], false));
    sleep(secs(4)).await;
    assert_eq!(
        (connection.snapshot().status, offered(&connection)),
        (Status::Connecting, tools(&["a", "b", "c"], false))
    );
    assert_eq!(words_until(&mut events, is_ready).await, [r#"+["d"] -["a"] ~["c"]"#, "READY(1)"]);
    assert_eq!(offered(&connection), tools(&["b", "c", "d"], true));
}

#[tokio::test(start_paused = true)]
async fn state_a_catalogue_that_did_not_change_is_no_event() {
    let host = Host::new();
    let (server, connection, _events) = ready("").await;
    host.stop(connection).await;
    let (connection, mut events) = host.start(&server);
    assert_eq!(words_until(&mut events, is_ready).await, ["READY(1)"]);
    assert_eq!(offered(&connection), tools(&["echo", "write"], true));
}

/// The machine knows of no catalogue before the first session; what is offered of the last process is taken back all
/// the same, once, before anybody is told that the server is parked.
#[tokio::test(start_paused = true)]
async fn state_kept_tools_are_withdrawn_if_the_server_does_not_come() {
    let host = Host::new();
    let (server, connection, _events) = ready("").await;
    host.stop(connection).await;
    server.set_script("start exit 1").unwrap();
    let (connection, mut events) = host.start(&server);
    assert_eq!(words_until(&mut events, |status| status == PARKED).await, ["withdrawn", "PARKED(exhausted)"]);
    assert_eq!(offered(&connection), None);
    // The next start offers nothing; what it was is still known.
    host.stop(connection).await;
    assert!(host.kept().catalogue().is_some_and(|known| known.tool("write").is_some()));
    let (connection, mut events) = host.start(&server);
    assert_eq!(offered(&connection), None);
    server.set_script("tools echo(readOnly)").unwrap();
    assert_eq!(words_until(&mut events, is_ready).await, [r#"+["echo"] -[] ~[]"#, "READY(1)"]);
    connection.shutdown().await;
    assert_eq!(words_until(&mut events, |status| status == Status::Shutdown).await, ["withdrawn", "SHUTDOWN"]);
}

#[tokio::test(start_paused = true)]
async fn state_what_was_kept_is_withdrawn_with_the_connection() {
    let host = Host::new();
    let (server, connection, _events) = ready("").await;
    host.stop(connection).await;
    server.set_script("initialize never").unwrap();
    let (connection, mut events) = host.start(&server);
    sleep(secs(1)).await;
    connection.shutdown().await;
    assert_eq!(words_until(&mut events, |status| status == Status::Shutdown).await, ["withdrawn", "SHUTDOWN"]);
    assert_eq!(offered(&connection), None);
}
