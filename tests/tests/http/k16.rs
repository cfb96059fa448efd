//! K16: a close is complete, bounded and final, and no session is left behind at the server.

use std::collections::HashSet;
use std::net::SocketAddr;

use mcp_reconnect::core::{ConfigBuilder, Status, WakeCause};
use mcp_reconnect::http::HttpConnector;
use mcp_reconnect::{Builder, CallError, CallOptions, Connection, Event, Events, HttpServer};
use mcp_reconnect_tests::fake::{Event as Seen, FakeHttp, HttpEvent, Ledger};
use rmcp::model::CallToolResponse;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use super::clock::{quick, quiet, skip, turns};
use super::{builder, ready, serve};
use crate::support::*;

/// How many tasks there are when everything has run that can.
async fn tasks() -> usize {
    turns().await;
    Handle::current().metrics().num_alive_tasks()
}

/// The file descriptors of this process that are sockets of clients of this server.
fn sockets(address: SocketAddr) -> usize {
    let port = format!(":{:04X}", address.port());
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let inodes: HashSet<String> = table
        .lines()
        .skip(1)
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .filter(|fields| fields[2].ends_with(&port))
        .map(|fields| format!("socket:[{}]", fields[9]))
        .collect();
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap().filter_map(Result::ok);
    let targets = descriptors.filter_map(|descriptor| std::fs::read_link(descriptor.path()).ok());
    targets.filter(|target| target.to_str().is_some_and(|target| inodes.contains(target))).count()
}

/// The most streams of GETs that were ever open at the same time.
fn most_streams(ledger: &Ledger) -> usize {
    let (mut open, mut most) = (HashSet::new(), 0);
    for entry in ledger.entries() {
        match &entry.event {
            Seen::Http(HttpEvent::StreamOpened { exchange }) => _ = open.insert(*exchange),
            Seen::Http(HttpEvent::Finished { exchange, .. }) => _ = open.remove(exchange),
            _ => {}
        }
        most = most.max(open.len());
    }
    most
}

/// Nothing of the connection is left on either side.
async fn nothing_left(server: &FakeHttp, tasks_before: usize) {
    server.watch().wait_until(|ledger| (ledger.open_connections(), ledger.open_requests()) == (0, 0)).await;
    assert_eq!((tasks().await, sockets(server.address())), (tasks_before, 0));
}

/// A connection that does not wait long for the answer to a DELETE.
fn bounded(server: &FakeHttp, knobs: impl FnOnce(ConfigBuilder) -> ConfigBuilder) -> Builder {
    let address = HttpServer::new(&server.url()).unwrap().close_timeout(millis(100));
    Connection::builder(HttpConnector::new(address)).name("fake").seed(7).config(config(knobs))
}

/// Also R062: what the server says to the DELETE, or that it says nothing, changes nothing. Twenty reconnects with an
/// answer, and without one.
#[tokio::test]
async fn k16_ghost_count() {
    for delete in ["ok", "status 405", "status 404", "status 500", "reset", "never", "black-hole", "status 429"] {
        let silent = matches!(delete, "never" | "black-hole");
        let server = serve(&format!("delete {delete}")).await;
        let before = tasks().await;
        let connection = builder(&server).config(config(quick)).build().unwrap();
        let mut events = connection.events();
        assert_eq!(until_ready(&mut events).await, 1);
        let last = if matches!(delete, "ok" | "never") { 21 } else { 6 };
        for number in 2..=last {
            server.watch().wait_until(|ledger| ledger.open_streams() == 1).await;
            assert_eq!(text(connection.call_tool(tool_with("echo", "fine")).await), "fine");
            connection.park();
            connection.wake(WakeCause::Operator);
            if silent {
                give_up_delete(&server, number as usize - 1).await;
            }
            assert_eq!(until_ready(&mut events).await, number);
            // The new session's stream and a call or two; of the old one nothing.
            assert!(sockets(server.address()) <= 3, "{delete}: {}", sockets(server.address()));
        }
        if silent {
            tokio::join!(connection.shutdown(), give_up_delete(&server, last as usize));
        } else {
            connection.shutdown().await;
        }
        let ledger = server.ledger();
        assert_eq!(ledger.sessions().len() as u64, last, "{delete}");
        assert_eq!(ledger.deletes(), ledger.sessions(), "{delete}: one each, in turn");
        assert_eq!(most_streams(&ledger), 1, "{delete}");
        drop((connection, events));
        if delete == "black-hole" {
            // The server's own sockets stay: it never looks at them again.
            turns().await;
            assert_eq!(sockets(server.address()), 0);
        } else {
            nothing_left(&server, before).await;
        }
    }
}

/// Lets the patience with this DELETE end.
async fn give_up_delete(server: &FakeHttp, number: usize) {
    server.watch().wait_until(|ledger| ledger.deletes().len() == number).await;
    skip(secs(2)).await;
}

/// The same where the sessions are replaced for their age.
#[tokio::test]
async fn k16_ghost_count_lifetime() {
    let server = serve("").await;
    let before = tasks().await;
    let connection =
        builder(&server).config(config(|config| quick(config).max_lifetime(Some(millis(1))))).build().unwrap();
    let mut events = connection.events();
    while until_ready(&mut events).await <= 20 {}
    connection.shutdown().await;
    let ledger = server.ledger();
    assert_eq!(ledger.deletes(), ledger.sessions());
    assert!(ledger.sessions().len() >= 21 && most_streams(&ledger) <= 1, "{}", most_streams(&ledger));
    drop((connection, events));
    nothing_left(&server, before).await;
}

/// What the server has ended is not deleted once more.
#[tokio::test]
async fn k16_r062_no_delete_for_lost_sessions() {
    let server = serve("").await;
    let before = tasks().await;
    let connection = builder(&server).config(config(quick)).build().unwrap();
    let mut events = connection.events();
    assert_eq!(until_ready(&mut events).await, 1);
    for number in 2..=21 {
        server.watch().wait_until(|ledger| ledger.open_streams() == 1).await;
        server.forget_sessions().await;
        assert_eq!(text(connection.call_tool(tool_with("write", "fine")).await), "fine");
        assert_eq!(until_ready(&mut events).await, number);
    }
    connection.shutdown().await;
    let ledger = server.ledger();
    assert_eq!((ledger.sessions().len(), ledger.executions("write")), (21, 20));
    assert_eq!(ledger.deletes(), ledger.sessions()[20..]);
    assert_eq!(most_streams(&ledger), 1);
    drop((connection, events));
    nothing_left(&server, before).await;
}

/// A session that was begun by an attempt that came to nothing is no ghost either.
#[tokio::test]
async fn k16_failed_attempts_leave_no_session() {
    for script in ["list#1..3 error -32603 \"broken\"", "list#1..3 status 500", "list#1..3 cut", "list#1..3 bad-shape"]
    {
        let server = serve(script).await;
        let connection = builder(&server).config(config(quick)).build().unwrap();
        assert_eq!(until_ready(&mut connection.events()).await, 4, "{script}");
        let ledger = server.ledger();
        assert_eq!((ledger.sessions().len(), ledger.live_sessions().len()), (4, 1), "{script}");
        connection.shutdown().await;
        assert_eq!(server.ledger().live_sessions(), [] as [&str; 0], "{script}");
    }
}

/// There is nothing to end where there are no sessions.
#[tokio::test]
async fn k16_no_session_no_delete() {
    for script in ["sessions none", "era modern"] {
        let (server, connection, _events) = ready(script).await;
        connection.shutdown().await;
        assert_eq!(server.ledger().deletes(), [] as [&str; 0], "{script}");
        server.watch().wait_until(|ledger| ledger.open_connections() == 0).await;
    }
}

/// Also R061: wherever it was, nothing happens in the hour after the shutdown, and whoever waited was told at once.
#[tokio::test]
async fn k16_close_at_each_await() {
    type Reached = fn(&Ledger) -> bool;
    let points: [(&str, Reached); 8] = [
        ("post never", |ledger| ledger.posts() == 1),
        ("initialize never", |ledger| ledger.initializes() == 1),
        ("initialize headers, never", |ledger| ledger.initializes() == 1),
        ("post#3 never", |ledger| ledger.posts() == 3),
        ("list never", |ledger| ledger.requests("tools/list") == 1),
        ("list headers, never", |ledger| ledger.requests("tools/list") == 1),
        ("list error -32603 \"no\"\ndelete never", |ledger| ledger.deletes().len() == 1),
        ("initialize error -32603 \"no\"", |ledger| ledger.initializes() == 2 && ledger.open_requests() == 0),
    ];
    for (script, reached) in points {
        let server = serve(script).await;
        let before = tasks().await;
        let connection = bounded(&server, |config| config).build().unwrap();
        let events = connection.events();
        let waiting = waiter(&connection);
        server.watch().wait_until(reached).await;
        close_for_good(&server, &connection, events).await;
        let waited = waiting.await.unwrap();
        assert!(matches!(waited, Err(CallError::Closed)), "{script}: {waited:?}");
        drop(connection);
        nothing_left(&server, before).await;
    }
}

/// The same where a session is, was, or is out of reach.
#[tokio::test]
async fn k16_close_in_each_state() {
    for state in ["ready", "frozen", "down", "parked", "idle stream cut"] {
        let server = serve("").await;
        let before = tasks().await;
        let parks = |config: ConfigBuilder| quick(config).park_after(millis(100));
        let connection = bounded(&server, parks).build().unwrap();
        let mut events = connection.events();
        until_ready(&mut events).await;
        match state {
            "frozen" => server.freeze().await,
            "down" => {
                server.down().await;
                until_status(&mut events, |status| status == Status::TransientFailure).await;
            }
            "parked" => {
                server.down().await;
                until_status(&mut events, |status| matches!(status, Status::Parked(_))).await;
            }
            "idle stream cut" => server.disconnect().await,
            _ => {}
        }
        close_for_good(&server, &connection, events).await;
        drop(connection);
        if state == "frozen" {
            server.thaw().await;
        }
        nothing_left(&server, before).await;
    }
}

fn waiter(connection: &Connection) -> JoinHandle<Result<CallToolResponse, CallError>> {
    let connection = connection.clone();
    let patient = CallOptions { max_wait: secs(1800), timeout: secs(1800), ..CallOptions::default() };
    tokio::spawn(async move { connection.call_tool_with(tool_with("echo", "me"), &patient).await })
}

/// The last event is the end, and there is none after it; nothing is asked of the server any more, whatever is asked of
/// the connection.
async fn close_for_good(server: &FakeHttp, connection: &Connection, mut events: Events) {
    connection.shutdown().await;
    let mut last = None;
    while let Some(event) = events.next().await {
        last = Some(event);
    }
    assert!(matches!(last, Some(Event::Status { status: Status::Shutdown, .. })), "{last:?}");
    server.up().await;
    let asked = |ledger: &Ledger| (ledger.connections(), ledger.asked().count());
    turns().await;
    let before = asked(&server.ledger());
    for cause in [WakeCause::Operator, WakeCause::Config, WakeCause::Credentials] {
        connection.wake(cause);
    }
    connection.resumed();
    connection.park();
    connection.invalidate(epoch(1), "a test");
    skip(secs(3600)).await;
    assert_eq!(asked(&server.ledger()), before);
    assert_eq!(connection.snapshot().status, Status::Shutdown);
    assert!(connection.catalogue().is_none());
    assert!(matches!(connection.call_tool(tool("echo")).await, Err(CallError::Closed)));
    assert!(matches!(connection.session().await, Err(CallError::Closed)));
}

/// Calls in flight are told at once, however long the server takes: what may have run is not called not run.
#[tokio::test]
async fn k16_calls_in_flight() {
    for extra in ["", "delete never", "answers json\ndelete status 405"] {
        let server = serve(&format!("{extra}\ncall * commit, never")).await;
        let before = tasks().await;
        let connection = bounded(&server, |config| config).build().unwrap();
        connection.session().await.unwrap();
        let calls = ["write", "echo"].map(|name| {
            let connection = connection.clone();
            tokio::spawn(async move { connection.call_tool_with(tool(name), &within(secs(1800))).await })
        });
        server.watch().wait_until(|ledger| ledger.calls("write") + ledger.calls("echo") == 2).await;
        connection.shutdown().await;
        for call in calls {
            let result = call.await.unwrap();
            assert!(matches!(result, Err(CallError::OutcomeUnknown { .. })), "{extra}: {result:?}");
        }
        let ledger = server.ledger();
        assert_eq!((ledger.executions("write"), ledger.executions("echo"), ledger.initializes()), (1, 1, 1));
        drop(connection);
        nothing_left(&server, before).await;
    }
}

/// Whoever drops the last handle gets the same, without waiting for it.
#[tokio::test]
async fn k16_drop_releases_the_session() {
    let server = serve("").await;
    let before = tasks().await;
    let connection = builder(&server).build().unwrap();
    connection.session().await.unwrap();
    quiet(&server, &connection).await;
    drop(connection);
    server.watch().wait_until(|ledger| ledger.deletes() == ["A1"]).await;
    nothing_left(&server, before).await;
}

/// Closing twice, or giving up the wait for it, is closing once.
#[tokio::test]
async fn k16_close_again() {
    let server = serve("").await;
    let connection = builder(&server).build().unwrap();
    connection.session().await.unwrap();
    let other = connection.clone();
    tokio::join!(connection.shutdown(), other.shutdown());
    connection.shutdown().await;
    assert_eq!(server.ledger().deletes(), ["A1"]);
}
