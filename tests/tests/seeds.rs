//! The cases that this project was born from.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use mcp_reconnect::core::{Breaker, Config, FailureClass, ParkReason, Refusal, Status, WakeCause};
use mcp_reconnect::link::{Attempt, ConnectError, Connector, Link};
use mcp_reconnect::{CallError, Connection, Event, Events};
use mcp_reconnect_tests::fake::FakeServer;
use mcp_reconnect_tests::link::MemoryConnector;
use rustix::process::{Pid, Signal, kill_process};
use tokio::time::{Instant, sleep};

use crate::support::*;

const NO_STRIKE: Breaker = Breaker::Closed { strikes: 0 };

fn is_open(connection: &Connection) -> bool {
    matches!(connection.snapshot().breaker, Breaker::Open { .. })
}

/// Makes calls that get no reply until the breaker is open.
async fn trip(connection: &Connection) {
    while !is_open(connection) {
        match connection.call_tool_with(tool("write"), &within(secs(1))).await {
            Err(CallError::DeadlineExceeded { .. }) => tokio::task::yield_now().await,
            other => panic!("{other:?}"),
        }
    }
}

/// Everything up to this status.
async fn events_until(events: &mut Events, wanted: Status) -> Vec<Event> {
    let mut seen = Vec::new();
    loop {
        let event = events.next().await.expect("the connection lives");
        let found = matches!(event, Event::Status { status, .. } if status == wanted);
        seen.push(event);
        if found {
            return seen;
        }
    }
}

fn withdrawals(events: &[Event]) -> usize {
    events.iter().filter(|event| matches!(event, Event::Withdrawn)).count()
}

/// (1) The session gate's refusal is answered by a newer epoch, and is no strike.
#[tokio::test(start_paused = true)]
async fn seed_session_terminated_gets_a_newer_epoch() {
    let server = memory("spawn 1:\n call write error -32600 \"Session terminated\"");
    let connection = connect(&server);
    let mut events = connection.events();
    assert_eq!(until_ready(&mut events).await, 1);
    assert_eq!(text(connection.call_tool(tool_with("write", "one")).await), "one");
    assert_eq!(connection.session().await.unwrap().epoch(), epoch(2));
    assert_eq!(connection.session_after(epoch(1)).await.unwrap().epoch(), epoch(2));
    assert_eq!(connection.snapshot().breaker, NO_STRIKE);
    let ledger = server.ledger();
    assert_eq!(ledger.of_spawn(1).calls("write"), 1);
    assert_eq!(ledger.executions("write"), 1, "only the second sending ran");
    assert_eq!(ledger.of_spawn(2).executions("write"), 1);
}

/// (1) A waiter that names the failed epoch never gets it, however long the old session takes to go.
#[tokio::test(start_paused = true)]
async fn seed_session_terminated_while_the_old_one_lingers() {
    let server = memory("spawn 1:\n call write error -32600 \"Session terminated\"\n ignore EOF\n ignore TERM");
    let connection = connect(&server);
    let mut events = connection.events();
    assert_eq!(until_ready(&mut events).await, 1);
    let answer = connection.call_tool_with(tool_with("write", "one"), &within(secs(60))).await;
    assert_eq!(text(answer), "one");
    let ledger = server.ledger();
    assert_eq!((ledger.of_spawn(1).calls("write"), ledger.of_spawn(2).calls("write")), (1, 1));
    assert_eq!(ledger.live_links(), 1, "the old server is gone before the new one is asked");
}

/// (2) Readiness is gone in the step that asks for the rebuild, though the old transport still looks alive.
#[tokio::test(start_paused = true)]
async fn seed_readiness_is_gone_with_the_report() {
    let server = memory("spawn 1:\n ignore EOF\n ignore TERM");
    let connection = connect(&server);
    let mut events = connection.events();
    assert_eq!(until_ready(&mut events).await, 1);
    connection.invalidate(epoch(1), "seen to be stale");
    assert_eq!(next_status(&mut events).await, Status::TransientFailure);
    assert_eq!(connection.snapshot().status, Status::TransientFailure);
    assert_eq!(connection.last_failure().as_deref(), Some("seen to be stale"));
    assert_eq!(server.ledger().live_links(), 1, "the old server still runs");
    // Everybody who asks while it lingers gets the next epoch.
    let asked: Vec<_> = (0..20).map(|_| connection.session()).collect();
    for session in futures::future::join_all(asked).await {
        assert_eq!(session.unwrap().epoch(), epoch(2));
    }
    assert_eq!(server.ledger().spawns(), 2);
}

/// (3) A call that finds no session joins the rebuild.
#[tokio::test(start_paused = true)]
async fn seed_a_call_joins_the_rebuild() {
    let server = memory("spawn 1:\n after 10s exit 1\nspawn 2:\n initialize delay 3s");
    let connection = connect(&server);
    let mut events = connection.events();
    assert_eq!(until_ready(&mut events).await, 1);
    assert_eq!(next_status(&mut events).await, Status::TransientFailure);
    let asked = Instant::now();
    assert_eq!(text(connection.call_tool(tool_with("write", "two")).await), "two");
    assert!(asked.elapsed() < secs(5), "{:?}", asked.elapsed());
    assert_eq!(connection.snapshot().breaker, NO_STRIKE);
    assert_eq!((server.ledger().spawns(), server.ledger().executions("write")), (2, 1));
}

/// (4) A rebuild that does not come in time is a refusal with the next time, and one rebuild for all who asked.
#[tokio::test(start_paused = true)]
async fn seed_a_late_rebuild_refuses_with_the_next_time() {
    let server = memory("spawn 1:\n after 10s exit 1\nspawn 2:\n start exit 1");
    let connection = connect(&server);
    let mut events = connection.events();
    assert_eq!(until_ready(&mut events).await, 1);
    // The session is lost, redialled at once, and that fails too: now there is a wait.
    until_status(&mut events, |status| status == Status::Connecting).await;
    assert_eq!(next_status(&mut events).await, Status::TransientFailure);
    let asked = Instant::now();
    let options = mcp_reconnect::CallOptions { max_wait: millis(100), ..Default::default() };
    let calls: Vec<_> = (0..20).map(|_| connection.call_tool_with(tool("write"), &options)).collect();
    let mut promised = None;
    for refused in futures::future::join_all(calls).await {
        match refused {
            Err(CallError::Refused { why: Refusal::NotInTime, retry_at: Some(at), cause: Some(cause) }) => {
                assert!(at > asked && at <= asked + secs(1), "{:?}", at - asked);
                assert!(cause.contains("status 1"), "{cause}");
                promised = Some(at);
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(server.ledger().spawns(), 2, "nobody dialled by asking");
    assert_eq!(connection.snapshot().breaker, NO_STRIKE);
    // Who comes back at the time named is served.
    tokio::time::sleep_until(promised.unwrap()).await;
    assert_eq!(text(connection.call_tool(tool_with("write", "later")).await), "later");
    assert_eq!((server.ledger().spawns(), server.ledger().executions("write")), (3, 1));
}

/// (5) An open breaker and a dead child: the next call leads to a dial.
#[tokio::test(start_paused = true)]
async fn seed_an_open_breaker_does_not_keep_a_dead_server_dead() {
    let server = memory("spawn 1:\n call write never\n after 20s exit 1\nspawn 2:\n initialize delay 1s");
    let connection = connect(&server);
    let mut events = connection.events();
    assert_eq!(until_ready(&mut events).await, 1);
    trip(&connection).await;
    let seen = events_until(&mut events, Status::TransientFailure).await;
    assert!(seen.iter().any(|event| matches!(event, Event::Breaker { open_until: Some(_) })), "{seen:?}");
    assert!(is_open(&connection));
    assert_eq!(text(connection.call_tool(tool_with("write", "two")).await), "two");
    let seen = events_until(&mut events, Status::Ready(epoch(2))).await;
    assert!(seen.iter().any(|event| matches!(event, Event::Breaker { open_until: None })), "{seen:?}");
    assert_eq!(connection.snapshot().breaker, NO_STRIKE);
    assert_eq!(server.ledger().spawns(), 2);
}

/// (5) The same with a real child and real pipes.
#[tokio::test]
async fn seed_an_open_breaker_dials_and_writes_to_no_closed_pipe() {
    let server = process("spawn 1:\n call write never");
    let connection = Connection::builder(mcp_reconnect_tests::link::process_connector(&server))
        .config(config(|knobs| knobs.breaker_strikes(2).breaker_open(secs(3600))))
        .call_options(mcp_reconnect::CallOptions { max_wait: secs(60), ..Default::default() })
        .build()
        .unwrap();
    let mut events = connection.events();
    tokio::time::timeout(secs(120), async {
        let pid = connection.session().await.unwrap().facts().pid.unwrap();
        while !is_open(&connection) {
            let options = mcp_reconnect::CallOptions { timeout: millis(20), ..Default::default() };
            match connection.call_tool_with(tool("write"), &options).await {
                Err(CallError::DeadlineExceeded { .. } | CallError::Refused { why: Refusal::BreakerOpen, .. }) => {}
                other => panic!("{other:?}"),
            }
            tokio::task::yield_now().await;
        }
        kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), Signal::KILL).unwrap();
        until_status(&mut events, |status| status == Status::TransientFailure).await;
        assert_eq!(text(connection.call_tool(tool_with("write", "two")).await), "two");
        assert_eq!(connection.snapshot().breaker, NO_STRIKE);
        connection.shutdown().await;
    })
    .await
    .expect("no hang");
    let ledger = server.ledger().unwrap();
    assert_eq!((ledger.spawns(), ledger.of_spawn(2).executions("write")), (2, 1));
    assert!(ledger.live_pids().is_empty() && ledger.zombies().is_empty());
}

/// Refuses to connect for want of credentials, when told so.
struct Login {
    server: MemoryConnector,
    refused: Arc<AtomicBool>,
}

#[async_trait]
impl Connector for Login {
    async fn connect(&self, attempt: Attempt) -> Result<Link, ConnectError> {
        if self.refused.load(Ordering::SeqCst) {
            return Err(ConnectError::new(FailureClass::NeedsAuth, "the token has expired"));
        }
        self.server.connect(attempt).await
    }
}

fn connect_with_login(server: &Arc<FakeServer>) -> (Connection, Arc<AtomicBool>) {
    let refused = Arc::new(AtomicBool::new(false));
    let login = Login { server: MemoryConnector(server.clone()), refused: refused.clone() };
    (Connection::builder(login).seed(7).build().unwrap(), refused)
}

/// (6) Recovered credentials close the breaker only with the reconnect that they made possible.
#[tokio::test(start_paused = true)]
async fn seed_credentials_close_the_breaker_only_by_a_reconnect() {
    let server = memory("spawn 1:\n call write never\n after 20s exit 1");
    let (connection, refused) = connect_with_login(&server);
    let mut events = connection.events();
    assert_eq!(until_ready(&mut events).await, 1);
    trip(&connection).await;
    // The session stands: nothing is reconnected, and nothing says that calls get replies again.
    connection.wake(WakeCause::Credentials);
    sleep(secs(1)).await;
    assert!(is_open(&connection));
    assert_eq!(server.ledger().spawns(), 1);
    // It dies and the login is refused: parked, and a wake with the same bad credentials changes nothing.
    refused.store(true, Ordering::SeqCst);
    until_status(&mut events, |status| status == Status::Parked(ParkReason::NeedsAuth)).await;
    connection.wake(WakeCause::Credentials);
    sleep(secs(5)).await;
    assert!(is_open(&connection), "the dial failed");
    assert_eq!(connection.snapshot().status, Status::Parked(ParkReason::NeedsAuth));
    // Good ones.
    refused.store(false, Ordering::SeqCst);
    connection.wake(WakeCause::Credentials);
    until_ready(&mut events).await;
    assert_eq!(connection.snapshot().breaker, NO_STRIKE);
    assert_eq!(text(connection.call_tool(tool_with("write", "two")).await), "two");
    assert_eq!(server.ledger().spawns(), 2);
}

/// (7) An exhausted budget parks and withdraws the tools once; the parked connection still answers a wake.
#[tokio::test(start_paused = true)]
async fn seed_a_parked_connection_comes_back() {
    let server = memory("spawn 1:\n after 20s exit 1\nspawn 2..:\n start exit 1");
    let connection = connect(&server);
    let mut events = connection.events();
    assert_eq!(until_ready(&mut events).await, 1);
    assert_eq!(connection.catalogue().unwrap().tools.items().len(), 2);
    let seen = events_until(&mut events, Status::Parked(ParkReason::Exhausted)).await;
    assert_eq!(withdrawals(&seen), 1);
    assert!(connection.catalogue().is_none());
    // Whatever fails or parks again withdraws nothing more.
    connection.wake(WakeCause::Operator);
    sleep(secs(5)).await;
    connection.park();
    let seen = events_until(&mut events, Status::Parked(ParkReason::Requested)).await;
    assert_eq!(withdrawals(&seen), 0);
    assert!(connection.catalogue().is_none());
    // A wake respawns the child and publishes its tools again.
    server.set_script("").unwrap();
    let spawns = server.ledger().spawns();
    connection.wake(WakeCause::Operator);
    let mut added = 0;
    loop {
        match events.next().await.unwrap() {
            Event::Catalogue(diff) => added += diff.tools.added.len(),
            Event::Status { status: Status::Ready(_), .. } => break,
            Event::Withdrawn => panic!("withdrawn once more"),
            _ => {}
        }
    }
    assert_eq!(added, 2, "both tools are news after a withdrawal");
    assert_eq!(connection.catalogue().unwrap().tools.items().len(), 2);
    assert_eq!(server.ledger().spawns(), spawns + 1);
    assert_eq!(text(connection.call_tool(tool_with("write", "back")).await), "back");
}

/// (7) It also comes back by itself.
#[tokio::test(start_paused = true)]
async fn seed_a_parked_connection_probes() {
    let server = memory("until 4h:\n start exit 1");
    let connection = connect(&server);
    let mut events = connection.events();
    let seen = events_until(&mut events, Status::Parked(ParkReason::Exhausted)).await;
    assert_eq!(withdrawals(&seen), 0, "nothing was published before");
    let parked = Instant::now();
    until_ready(&mut events).await;
    let limit = secs(4 * 3600) + Config::default().park_probe_max() * 2;
    assert!(parked.elapsed() < limit, "{:?}", parked.elapsed());
    assert_eq!(text(connection.call_tool(tool_with("write", "back")).await), "back");
}

/// (8) A server that drops once an hour for a month is never given up.
#[tokio::test(start_paused = true)]
async fn seed_a_drop_an_hour_for_a_month_never_parks() {
    const HOURS: u64 = 30 * 24;
    let server = memory("after 1h exit 1");
    let connection = connect(&server);
    let mut events = connection.events();
    let began = Instant::now();
    for hour in 1..=HOURS {
        let seen = until_status(&mut events, |status| matches!(status, Status::Ready(_))).await;
        assert!(!seen.iter().any(|status| matches!(status, Status::Parked(_))), "hour {hour}: {seen:?}");
        assert_eq!(seen.last(), Some(&Status::Ready(epoch(hour))), "one dial for each drop");
    }
    assert!(began.elapsed() >= secs((HOURS - 1) * 3600));
    assert!(began.elapsed() < secs(HOURS * 3600), "each redial came at once");
    assert_eq!(connection.snapshot().stats.probes, 0);
}

/// (9) A healthy session is left alone by any number of wakes.
#[tokio::test(start_paused = true)]
async fn seed_wakes_leave_a_healthy_session_alone() {
    let server = memory("call write delay 10s, reply \"done\"");
    let connection = connect(&server);
    let mut events = connection.events();
    assert_eq!(until_ready(&mut events).await, 1);
    let session = connection.session().await.unwrap();
    let call = connection.call_tool(tool("write"));
    let wakes = async {
        for _ in 0..100 {
            for cause in [WakeCause::Operator, WakeCause::Config, WakeCause::Credentials] {
                connection.wake(cause);
            }
            sleep(millis(50)).await;
        }
    };
    let (answer, ()) = tokio::join!(call, wakes);
    assert_eq!(text(answer), "done");
    assert!(!session.is_ended());
    assert!(Arc::ptr_eq(&session, &connection.session().await.unwrap()));
    let ledger = server.ledger();
    assert_eq!((ledger.spawns(), ledger.initializes(), ledger.executions("write")), (1, 1, 1));
    // A wake that came while it was Ready does not redial what is lost later either.
    assert_eq!(drain_statuses(connection, events).await, [Status::Shutdown]);
}
