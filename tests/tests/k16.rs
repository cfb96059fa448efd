//! K16: a close is complete, bounded and final.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use mcp_reconnect::core::replay::ReplayPolicy;
use mcp_reconnect::core::{Status, WakeCause};
use mcp_reconnect::link::{Attempt, ConnectError, Connector, Link};
use mcp_reconnect::stdio::StdioConnector;
use mcp_reconnect::{BuildError, CallError, CallOptions, CloseGraces, Connection, Event, Events};
use mcp_reconnect_tests::fake::FakeServer;
use mcp_reconnect_tests::link::{MemoryConnector, process_command};
use rmcp::model::{CallToolResponse, ElicitRequestParams, ElicitResult};
use rmcp::service::{NotificationContext, RequestContext};
use rmcp::{ClientHandler, ErrorData, RoleClient};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use crate::support::*;

fn tasks() -> usize {
    Handle::current().metrics().num_alive_tasks()
}

/// Lets tasks that have nothing left to do end.
async fn settle() {
    tokio::time::sleep(millis(1)).await;
}

/// Also R060.
#[tokio::test]
async fn k16_stubborn() {
    let server = process("ignore EOF\nignore TERM");
    let mut command = process_command(&server);
    command.graces = CloseGraces { eof: millis(50), term: millis(50), ..CloseGraces::default() };
    let connection = Connection::builder(StdioConnector::new(command)).name("fake").build().unwrap();
    connection.session().await.unwrap();
    timeout(secs(60), connection.shutdown()).await.unwrap();
    let ledger = server.ledger().unwrap();
    assert_eq!((ledger.live_pids(), ledger.zombies()), (vec![], vec![]));
    // It ended by no decision of its own.
    assert_eq!(ledger.exits(), []);
}

/// One that needs a while after the end of its input gets it.
#[tokio::test]
async fn k16_r060_graceful() {
    let server = process("on EOF delay 1s, exit 0\non TERM exit 9");
    let mut command = process_command(&server);
    command.graces = CloseGraces { eof: secs(30), ..CloseGraces::default() };
    let patient = config(|config| config.close_timeout(secs(40)));
    let connection = Connection::builder(StdioConnector::new(command)).config(patient).name("fake").build().unwrap();
    connection.session().await.unwrap();
    timeout(secs(60), connection.shutdown()).await.unwrap();
    let ledger = server.ledger().unwrap();
    assert_eq!(ledger.exits(), [(1, "exit 0")]);
    assert_eq!((ledger.live_pids(), ledger.zombies()), (vec![], vec![]));
}

/// The same on paused time, to the second: how long each kind of server takes to go.
#[tokio::test(start_paused = true)]
async fn k16_how_long_a_close_takes() {
    for (script, takes) in [
        ("", 0),
        ("on EOF delay 3s, exit 0", 3),
        ("ignore EOF", 5),
        ("ignore EOF\nignore TERM", 7),
        ("start deaf\nignore TERM\ninitialize never", 7),
        ("ignore EOF\nignore TERM\ndiscover never\ninitialize never", 7),
        ("ignore EOF\nignore TERM\nlist never", 7),
    ] {
        let server = memory(script);
        let connection = connect(&server);
        tokio::time::sleep(secs(1)).await;
        let asked = Instant::now();
        connection.shutdown().await;
        assert_eq!(asked.elapsed(), secs(takes), "{script}");
        assert_eq!(server.ledger().live_links(), 0, "{script}");
    }
}

/// A ladder that would outlast the deadline of a close is refused before anything is started.
#[tokio::test(start_paused = true)]
async fn k16_ladder_within_the_close_deadline() {
    let short = config(|config| config.close_timeout(secs(7)));
    let refused = builder(&memory("")).config(short).build();
    assert!(matches!(refused, Err(BuildError::CloseTimeout { .. })), "{refused:?}");
}

/// A connector that never gets further than its first step, and counts who is there.
struct HungDial(watch::Sender<usize>);

#[async_trait]
impl Connector for HungDial {
    async fn connect(&self, _: Attempt) -> Result<Link, ConnectError> {
        struct There<'a>(&'a watch::Sender<usize>);
        impl Drop for There<'_> {
            fn drop(&mut self) {
                self.0.send_modify(|there| *there -= 1);
            }
        }
        self.0.send_modify(|there| *there += 1);
        let _there = There(&self.0);
        std::future::pending().await
    }
}

/// Also R061: wherever it was, nothing happens for an hour after the shutdown, and whoever waited was told at once.
#[tokio::test(start_paused = true)]
async fn k16_close_at_each_await() {
    for (what, script, settled) in [
        ("probe", "discover never\ninitialize never", secs(1)),
        ("initialize", "initialize never", secs(1)),
        ("list", "list never", secs(1)),
        ("backoff", "initialize exit 1", millis(500)),
        ("closing", "initialize error -32603 \"no\"\nignore EOF\nignore TERM", secs(3)),
        ("ready", "", secs(1)),
        ("ready, silent", "start mute", secs(1)),
        ("parked", "initialize exit 1", secs(300)),
    ] {
        let before = tasks();
        let server = memory(script);
        let connection = connect(&server);
        let events = connection.events();
        tokio::time::sleep(settled).await;
        let waiting = waiter(&connection);
        close_for_good(&connection, events).await;
        let waited = waiting.await.unwrap();
        match what {
            // A probe or a caller's dial may be due; whoever waits is told no in any case.
            "parked" => assert!(matches!(waited, Err(CallError::Closed | CallError::Refused { .. })), "{waited:?}"),
            "ready" => assert_eq!(text(waited), "me"),
            _ => assert!(matches!(waited, Err(CallError::Closed)), "{what}: {waited:?}"),
        }
        assert_eq!(server.ledger().live_links(), 0, "{what}");
        let spawns = server.ledger().spawns();
        for cause in [WakeCause::Operator, WakeCause::Config, WakeCause::Credentials] {
            connection.wake(cause);
        }
        connection.resumed();
        connection.park();
        connection.invalidate(epoch(1), "a test");
        tokio::time::sleep(secs(3600)).await;
        assert_eq!(server.ledger().spawns(), spawns, "{what}");
        assert_eq!(connection.snapshot().status, Status::Shutdown);
        assert!(connection.catalogue().is_none());
        assert!(matches!(connection.call_tool(tool("echo")).await, Err(CallError::Closed)));
        assert!(matches!(connection.session().await, Err(CallError::Closed)));
        assert!(connection.events().next().await.is_none());
        assert_eq!(tasks(), before, "{what}");
    }
}

#[tokio::test(start_paused = true)]
async fn k16_close_while_dialling() {
    let before = tasks();
    let (there, seen) = watch::channel(0);
    let connection = Connection::builder(HungDial(there)).name("fake").build().unwrap();
    let events = connection.events();
    seen.clone().wait_for(|there| *there == 1).await.unwrap();
    let waiting = waiter(&connection);
    close_for_good(&connection, events).await;
    assert!(matches!(waiting.await.unwrap(), Err(CallError::Closed)));
    assert_eq!(*seen.borrow(), 0);
    tokio::time::sleep(secs(3600)).await;
    assert_eq!((*seen.borrow(), tasks()), (0, before));
}

fn waiter(connection: &Connection) -> tokio::task::JoinHandle<Result<CallToolResponse, CallError>> {
    let connection = connection.clone();
    let patient = CallOptions { max_wait: secs(1800), timeout: secs(1800), ..CallOptions::default() };
    tokio::spawn(async move { connection.call_tool_with(tool_with("echo", "me"), &patient).await })
}

/// The last event is the end, and there is none after it.
async fn close_for_good(connection: &Connection, mut events: Events) {
    tokio::task::yield_now().await;
    let asked = Instant::now();
    connection.shutdown().await;
    assert!(asked.elapsed() <= secs(8), "{:?}", asked.elapsed());
    let mut last = None;
    while let Some(event) = events.next().await {
        last = Some(event);
    }
    assert!(matches!(last, Some(Event::Status { status: Status::Shutdown, .. })), "{last:?}");
}

/// Calls in flight are told at once, however long the server takes to go: what may have run is not called not run.
#[tokio::test(start_paused = true)]
async fn k16_calls_in_flight() {
    let server = memory("ignore EOF\nignore TERM\ncall * commit, never");
    let connection = connect(&server);
    connection.session().await.unwrap();
    for name in ["write", "echo"] {
        // Annotated or not, nothing is sent again: there is nowhere to.
        for replay in [ReplayPolicy::Annotated, ReplayPolicy::Always] {
            let connection = connection.clone();
            let options = CallOptions { replay, ..within(secs(1800)) };
            tokio::spawn(async move {
                let result = connection.call_tool_with(tool(name), &options).await;
                assert!(matches!(result, Err(CallError::OutcomeUnknown { .. })), "{result:?}");
                Instant::now()
            });
        }
    }
    let watched = server.watch();
    watched.wait_until(|ledger| ledger.calls("write") + ledger.calls("echo") == 4).await;
    let asked = Instant::now();
    let closed = tokio::spawn({
        let connection = connection.clone();
        async move { connection.shutdown().await }
    });
    settle().await;
    assert_eq!(connection.snapshot().status, Status::Shutdown, "at once for the outside");
    closed.await.unwrap();
    assert_eq!(asked.elapsed(), secs(7));
    assert_eq!((server.ledger().executions("write"), server.ledger().executions("echo")), (2, 2));
    assert_eq!(server.ledger().spawns(), 1);
}

#[tokio::test(start_paused = true)]
async fn k16_calls_in_flight_are_told_at_once() {
    let server = memory("ignore EOF\nignore TERM\ncall * commit, never");
    let connection = connect(&server);
    connection.session().await.unwrap();
    let calls = [tool("write"), tool("echo")].map(|params| {
        let connection = connection.clone();
        tokio::spawn(async move { (connection.call_tool_with(params, &within(secs(1800))).await, Instant::now()) })
    });
    server.watch().wait_until(|ledger| ledger.calls("write") + ledger.calls("echo") == 2).await;
    let asked = Instant::now();
    connection.shutdown().await;
    for call in calls {
        let (result, told) = call.await.unwrap();
        assert!(matches!(result, Err(CallError::OutcomeUnknown { .. })), "{result:?}");
        assert_eq!(told, asked);
    }
}

/// Closing twice, at once or later, by clones or while everybody drops his handle, is closing once.
#[tokio::test(start_paused = true)]
async fn k16_close_again() {
    let server = memory("on EOF delay 3s, exit 0");
    let connection = connect(&server);
    connection.session().await.unwrap();
    let other = connection.clone();
    // One who stops waiting for the end does not stop the end.
    assert!(timeout(secs(1), connection.shutdown()).await.is_err());
    tokio::join!(connection.shutdown(), other.shutdown());
    drop(other);
    let asked = Instant::now();
    connection.shutdown().await;
    assert_eq!(asked.elapsed(), Duration::ZERO);
    assert_eq!(server.ledger().exits(), [(1, "exit 0")]);
}

/// Whoever drops the last handle gets the same, without waiting for it.
#[tokio::test(start_paused = true)]
async fn k16_drop_at_each_await() {
    for (script, settled) in [
        ("discover never\ninitialize never", secs(1)),
        ("list never", secs(1)),
        ("initialize exit 1", millis(500)),
        ("initialize exit 1", secs(300)),
        ("ignore EOF\nignore TERM", secs(1)),
    ] {
        let before = tasks();
        let server: Arc<FakeServer> = memory(script);
        let connection = connect(&server);
        let events = connection.events();
        tokio::time::sleep(settled).await;
        let spawns = server.ledger().spawns();
        drop(connection);
        let mut all = events;
        while all.next().await.is_some() {}
        tokio::time::sleep(secs(3600)).await;
        assert_eq!((server.ledger().spawns(), server.ledger().live_links(), tasks()), (spawns, 0, before), "{script}");
    }
}

/// What the server asked and told us is still being handled: that does not keep a closed connection alive.
#[tokio::test(start_paused = true)]
async fn k16_handlers_under_way() {
    #[derive(Clone)]
    struct Stuck(watch::Sender<u32>);
    impl ClientHandler for Stuck {
        async fn create_elicitation(
            &self,
            _: ElicitRequestParams,
            _: RequestContext<RoleClient>,
        ) -> Result<ElicitResult, ErrorData> {
            self.0.send_modify(|under_way| *under_way += 1);
            std::future::pending().await
        }

        async fn on_tool_list_changed(&self, _: NotificationContext<RoleClient>) {
            self.0.send_modify(|under_way| *under_way += 1);
            std::future::pending().await
        }
    }
    let before = tasks();
    let (stuck, under_way) = watch::channel(0);
    let server = memory("on initialized request elicitation, notify tools/list_changed");
    let connection =
        Connection::builder(MemoryConnector(server.clone())).handler(move |_| Stuck(stuck.clone())).build().unwrap();
    connection.session().await.unwrap();
    under_way.clone().wait_for(|under_way| *under_way == 2).await.unwrap();
    connection.shutdown().await;
    drop(connection);
    settle().await;
    assert_eq!((server.ledger().live_links(), tasks()), (0, before));
}
