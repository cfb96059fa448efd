//! K02: a session that the server ends with 404.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use futures::future::join_all;
use mcp_reconnect::core::{FailureClass, State, Status, WakeCause};
use mcp_reconnect::http::HttpConnector;
use mcp_reconnect::{CallError, Connection, Credentials, Events, HttpServer, Refresh};
use mcp_reconnect_tests::fake::{FakeHttp, Ledger};
use rmcp::model::CallToolResponse;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::{builder, ready, serve};
use crate::support::*;

/// What this comes to; nothing real takes a minute here.
pub(super) async fn soon<T>(what: impl Future<Output = T>) -> T {
    timeout(secs(60), what).await.expect("a hang")
}

/// Calls `write` so often at once, with its number as text, and checks that each got its own answer.
pub(super) async fn wave(connection: &Connection, calls: usize) {
    let answers = (0..calls).map(|number| {
        let connection = connection.clone();
        async move { text(connection.call_tool(tool_with("write", &number.to_string())).await) }
    });
    let answers = soon(join_all(answers)).await;
    assert_eq!(answers, (0..calls).map(|number| number.to_string()).collect::<Vec<_>>());
}

/// Starts a call that has all the time in the world, and waits until the server has run it.
pub(super) async fn call_in_flight(
    server: &FakeHttp,
    connection: &Connection,
) -> JoinHandle<Result<CallToolResponse, CallError>> {
    let before = server.ledger().executions("write");
    let call = {
        let connection = connection.clone();
        tokio::spawn(async move { connection.call_tool_with(tool("write"), &within(secs(1800))).await })
    };
    soon(server.watch().wait_until(|ledger| ledger.executions("write") > before)).await;
    call
}

/// No `initialize` carried an id, and after the next `initialize` no id was used but to release it, which a server does no
/// more that has lost it.
pub(super) fn assert_forgotten(ledger: &Ledger) {
    let (mut used, mut dead) = (BTreeSet::new(), BTreeSet::new());
    for asked in ledger.asked() {
        if asked.method.as_deref() == Some("initialize") {
            assert_eq!(asked.session, None, "an initialize with an id");
            dead.append(&mut used);
        }
        if let Some(session) = &asked.session {
            assert!(asked.verb == "DELETE" || !dead.contains(session), "{session} was used again: {asked:?}");
            used.insert(session);
        }
    }
    assert!(
        ledger.deletes().into_iter().all(|session| dead.iter().any(|dead| *dead == session)),
        "a session in use was released"
    );
}

/// Every tool call of a session comes after its list of tools.
pub(super) fn assert_listed_before_calls(ledger: &Ledger) {
    for session in ledger.sessions() {
        let first = |method| {
            let of_session = ledger.asked().filter(|asked| asked.session.as_deref() == Some(session));
            of_session.map(|asked| asked.method.as_deref()).position(|asked| asked == Some(method))
        };
        if let Some(call) = first("tools/call") {
            assert!(first("tools/list").is_some_and(|list| list < call), "{session}");
        }
    }
}

#[tokio::test]
async fn k02_restart_404() {
    let (server, connection, mut events) = ready("").await;
    assert_eq!(text(connection.call_tool(tool_with("write", "first")).await), "first");
    server.restart().await;
    wave(&connection, 20).await;
    assert_eq!(until_ready(&mut events).await, 2);
    let ledger = server.ledger();
    assert_eq!((ledger.initializes(), ledger.executions("write")), (2, 21));
    assert!(ledger.posts_of("tools/call") <= 1 + 2 * 20, "each was refused once at most");
    assert_eq!((ledger.sessions(), connection.snapshot().stats.dials), (vec!["A1", "B1"], 2));
    assert_forgotten(&ledger);
    assert_listed_before_calls(&ledger);
}

/// The same when nothing tells of the loss but the 404 that the calls get: no connection breaks.
#[tokio::test]
async fn k02_forgotten_404() {
    for tool_name in ["write", "echo"] {
        let (server, connection, mut events) = ready("get status 405").await;
        server.forget_sessions().await;
        let calls = (0..20).map(|_| connection.call_tool(tool_with(tool_name, "x")));
        assert!(soon(join_all(calls)).await.into_iter().all(|answer| text(answer) == "x"));
        assert_eq!(until_ready(&mut events).await, 2);
        let ledger = server.ledger();
        assert_eq!((ledger.initializes(), ledger.executions(tool_name)), (2, 20));
        assert!(ledger.answered(404) > 0);
        assert_forgotten(&ledger);
    }
}

/// Calls without end on a session that is always disowned when it is used.
async fn always_disowned(script: &str) -> (FakeHttp, Connection, Events) {
    let server = serve(script).await;
    // The loss of the first session is redialled at once; the next dial would be half a minute later.
    let config = config(|config| config.backoff(secs(30)).demand_interval(secs(30)));
    let connection = builder(&server).config(config).build().unwrap();
    let mut events = connection.events();
    assert_eq!(until_ready(&mut events).await, 1);
    (server, connection, events)
}

#[tokio::test]
async fn k02_404_twice() {
    for tool_name in ["write", "echo"] {
        let script = "get status 405\ncall * forget, status 404 \"Session not found\"";
        let (server, connection, mut events) = always_disowned(script).await;
        match soon(connection.call_tool(tool(tool_name))).await {
            Err(error @ CallError::NotSent { epoch: failed, class, .. }) => {
                assert_eq!((failed, class), (epoch(2), FailureClass::SessionGone));
                assert!(error.not_run() && error.to_string().contains("404"), "{error}");
            }
            other => panic!("{other:?}"),
        }
        // Ready(2) on the way, and then it waits.
        let seen = soon(until_status(&mut events, |status| status == Status::TransientFailure)).await;
        let seen = [seen, soon(until_status(&mut events, |status| status == Status::TransientFailure)).await].concat();
        assert_eq!(seen.iter().filter(|status| matches!(status, Status::Ready(_))).count(), 1, "{seen:?}");
        assert!(matches!(connection.snapshot().state, State::TransientFailure { .. } | State::Closing { .. }));
        let ledger = server.ledger();
        assert_eq!((ledger.initializes(), ledger.calls(tool_name), ledger.executions(tool_name)), (2, 2, 0));
        assert_eq!(connection.snapshot().stats.dials, 2);
        assert_forgotten(&ledger);
    }
}

/// The second session is disowned before it is one: on its first request.
#[tokio::test]
async fn k02_404_on_a_session_just_begun() {
    let (server, connection, mut events) = always_disowned("get status 405").await;
    server.forget_sessions().await;
    server.set_script("get status 405\non initialized forget").await.unwrap();
    let outcome = soon(connection.call_tool(tool("write"))).await;
    assert!(outcome.as_ref().is_err_and(CallError::not_run), "{outcome:?}");
    soon(until_status(&mut events, |status| status == Status::TransientFailure)).await;
    assert_eq!((server.ledger().initializes(), server.ledger().executions("write")), (2, 0));
    assert_eq!(connection.snapshot().stats.dials, 2);
    server.set_script("").await.unwrap();
    connection.wake(WakeCause::Operator);
    assert_eq!(until_ready(&mut events).await, 3);
    wave(&connection, 1).await;
    assert_eq!(server.ledger().initializes_with_session(), 0);
}

#[tokio::test]
async fn k02_r005_one_new_session_without_the_old_id() {
    let (server, connection, mut events) = ready("get status 405").await;
    assert_eq!(text(connection.call_tool(tool_with("write", "one")).await), "one");
    server.forget_sessions().await;
    assert_eq!(text(soon(connection.call_tool(tool_with("write", "two"))).await), "two");
    assert_eq!(until_ready(&mut events).await, 2);
    assert_eq!(text(connection.call_tool(tool_with("write", "three")).await), "three");
    let ledger = server.ledger();
    assert_eq!((ledger.initializes(), ledger.executions("write")), (2, 3));
    let calls = ledger.asked().filter(|asked| asked.method.as_deref() == Some("tools/call"));
    let calls: Vec<_> = calls.map(|asked| asked.session.as_deref().unwrap_or_default()).collect();
    assert_eq!(calls, ["A1", "A1", "A2", "A2"]);
    assert_forgotten(&ledger);
}

/// A backend that was killed and is back with an empty session table, and answers 404 or 500.
#[tokio::test]
async fn k02_r006_killed_and_back() {
    for script in ["", "get status 405", "answers json", "spawn 2:\n stale status 500 \"Internal Server Error\""] {
        let (server, connection, mut events) = ready(script).await;
        assert_eq!(text(connection.call_tool(tool_with("echo", "one")).await), "one");
        server.restart().await;
        assert_eq!(text(soon(connection.call_tool(tool_with("echo", "two"))).await), "two", "{script}");
        assert_eq!(until_ready(&mut events).await, 2, "{script}");
        let ledger = server.ledger();
        assert_eq!((ledger.initializes(), ledger.executions("echo")), (2, 2), "{script}");
        assert_forgotten(&ledger);
    }
}

/// The loss is noticed without a call: by the standing stream that breaks, that ends, or by the keepalive.
#[tokio::test]
async fn k02_a_loss_in_idleness_is_noticed() {
    for (script, restart) in [
        ("", true),
        ("get ok, retry 10ms", true),
        ("get status 405", true),
        ("get status 405", false),
        ("get ok, retry 10ms", false),
    ] {
        let server = serve(script).await;
        let config = config(|config| config.keepalive(millis(200)));
        let connection = builder(&server).config(config).build().unwrap();
        let mut events = connection.events();
        assert_eq!(until_ready(&mut events).await, 1);
        if restart {
            server.restart().await;
        } else {
            server.forget_sessions().await;
        }
        assert_eq!(soon(until_ready(&mut events)).await, 2, "{script}");
        let ledger = server.ledger();
        assert_eq!((ledger.initializes(), ledger.posts_of("tools/call")), (2, 0), "{script}");
        assert_forgotten(&ledger);
    }
}

/// A standing stream that ends in good order and then gets 404 tells the same as a call would.
#[tokio::test]
async fn k02_a_404_to_the_standing_stream_ends_the_session() {
    let (server, connection, mut events) =
        ready("get#1 ok, retry 10ms, hold 2, forget, end\ncall write#1 hold 2, ok").await;
    soon(server.watch().wait_until(|ledger| ledger.open_streams() == 1)).await;
    assert_eq!(text(soon(connection.call_tool(tool_with("write", "last"))).await), "last");
    assert_eq!(soon(until_ready(&mut events)).await, 2);
    let ledger = server.ledger();
    // The session is asked whether it was meant.
    assert_eq!((ledger.initializes(), ledger.executions("write"), ledger.posts_of("tools/list")), (2, 1, 3));
    assert_forgotten(&ledger);
}

/// A call that runs when another one finds out: its outcome is unknown, and it does not run again.
#[tokio::test]
async fn k02_what_was_running_is_not_run_again() {
    let (server, connection, mut events) = ready("get status 405\ncall write#1 commit, never").await;
    let running = call_in_flight(&server, &connection).await;
    server.forget_sessions().await;
    assert_eq!(text(soon(connection.call_tool(tool_with("write", "two"))).await), "two");
    match soon(running).await.unwrap() {
        Err(error @ CallError::OutcomeUnknown { epoch: failed, class, .. }) => {
            assert_eq!((failed, class, error.not_run()), (epoch(1), FailureClass::SessionGone, false));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(until_ready(&mut events).await, 2);
    let ledger = server.ledger();
    assert_eq!((ledger.initializes(), ledger.executions("write")), (2, 2));
    assert_forgotten(&ledger);
}

/// Credentials that take their time with one token: until they may go on.
#[derive(Default)]
struct Slow {
    armed: AtomicBool,
    asked: Notify,
    go_on: Notify,
}

#[async_trait]
impl Credentials for Slow {
    async fn token(&self) -> Option<String> {
        if self.armed.swap(false, Ordering::SeqCst) {
            self.asked.notify_one();
            self.go_on.notified().await;
        }
        Some("t1".into())
    }

    async fn refresh(&self, _: &str, _: bool) -> Refresh {
        Refresh::NeedsUser("not here".into())
    }
}

/// A call that waits for its token when another one finds out: it is not sent with the lost id.
#[tokio::test]
async fn k02_a_loss_while_a_token_is_awaited() {
    let server = serve("get status 405").await;
    let keys = Arc::new(Slow::default());
    let http = HttpServer::new(&server.url()).unwrap().credentials(keys.clone());
    let connection = Connection::builder(HttpConnector::new(http)).name("fake").seed(7).build().unwrap();
    let mut events = connection.events();
    assert_eq!(until_ready(&mut events).await, 1);
    soon(server.watch().wait_until(|ledger| ledger.answered(405) == 1)).await;
    keys.armed.store(true, Ordering::SeqCst);
    let session = connection.session().await.unwrap();
    let waiting = call(&connection, "echo");
    soon(keys.asked.notified()).await;
    server.forget_sessions().await;
    // What goes to this session alone fails as soon as it is refused; what was under way has a moment more.
    soon(session.service().list_all_tools()).await.unwrap_err();
    keys.go_on.notify_one();
    assert_eq!(text(soon(waiting).await.unwrap()), "hi");
    let ledger = server.ledger();
    assert_eq!((ledger.executions("echo"), ledger.initializes()), (1, 2));
    let lost = ledger.asked().filter(|asked| asked.session.as_deref() == Some("A1"));
    assert_eq!(lost.filter(|asked| asked.method.as_deref() == Some("tools/call")).count(), 0);
    assert_forgotten(&ledger);
}

fn call(connection: &Connection, name: &'static str) -> JoinHandle<Result<CallToolResponse, CallError>> {
    let connection = connection.clone();
    tokio::spawn(async move { connection.call_tool(tool_with(name, "hi")).await })
}

/// A call that is answered late, on the session that another one was refused by, is answered all the same.
#[tokio::test]
async fn k02_an_answer_under_way_is_not_thrown_away() {
    let (server, connection, mut events) =
        ready("get status 405\ncall write#1 hold 2, reply \"late\"\ncall write#2 hold 2, reply \"fresh\"").await;
    let late = {
        let connection = connection.clone();
        tokio::spawn(async move { connection.call_tool(tool("write")).await })
    };
    soon(server.watch().wait_until(|ledger| ledger.calls("write") == 1)).await;
    server.forget_sessions().await;
    // The second holds until it runs on the fresh session, and lets the first go on: long before a second is over, or
    // after it.
    assert_eq!(text(soon(connection.call_tool(tool("write"))).await), "fresh");
    match soon(late).await.unwrap() {
        Err(CallError::OutcomeUnknown { class: FailureClass::SessionGone, .. }) => {}
        answer => assert_eq!(text(answer), "late"),
    }
    assert_eq!(until_ready(&mut events).await, 2);
    assert_eq!(server.ledger().executions("write"), 2);
}

/// I02d: what is refused by status and what fails on the wire are failures of one outage, with one budget.
#[tokio::test]
async fn k02_statuses_and_broken_sockets_share_a_budget() {
    for troubles in [["status 404", "status 404"], ["reset", "reset"], ["status 404", "reset"], ["status 500", "cut"]] {
        let [odd, even] = troubles;
        let lines = (1..10).step_by(2).map(|n| format!("initialize#{n} {odd}\ninitialize#{} {even}", n + 1));
        let server = serve(&format!("{}\ninitialize {odd}", lines.collect::<Vec<_>>().join("\n"))).await;
        let config = config(|config| {
            config.min_dial_interval(millis(10)).backoff(millis(50)).demand_interval(millis(50)).park_after(millis(500))
        });
        let connection = builder(&server).config(config).build().unwrap();
        let mut events = connection.events();
        let seen = soon(until_status(&mut events, |status| matches!(status, Status::Parked(_)))).await;
        let stats = connection.snapshot().stats;
        // Waits of 50, 100, 200 ms and so on, each at least half: more than these do not fit into the half second.
        assert!((1..=5).contains(&stats.failures), "{troubles:?}: {stats:?}, {seen:?}");
        assert_eq!(stats.failures_in_a_row, stats.failures, "{troubles:?}");
    }
}

/// Twenty losses one after another: each is one new session, and nothing of the old ones is left.
#[tokio::test]
async fn k02_loss_after_loss() {
    let server = serve("").await;
    let config = config(|config| {
        config.stable_after(millis(1)).min_dial_interval(millis(1)).backoff(millis(2)).demand_interval(millis(1))
    });
    let connection = builder(&server).config(config).build().unwrap();
    let mut events = connection.events();
    for round in 1..=20 {
        assert!(soon(until_ready(&mut events)).await >= round);
        wave(&connection, 3).await;
        server.forget_sessions().await;
        wave(&connection, 3).await;
    }
    soon(connection.shutdown()).await;
    let ledger = soon(server.watch().wait_until(|ledger| ledger.open_connections() == 0)).await;
    assert_eq!((ledger.executions("write"), ledger.initializes_with_session()), (120, 0));
    assert_eq!((ledger.initializes(), ledger.open_streams(), ledger.open_requests()), (21, 0, 0));
    // Only the last was there to be released.
    assert_eq!((ledger.deletes(), ledger.live_sessions()), (vec!["A21"], vec![]));
}
