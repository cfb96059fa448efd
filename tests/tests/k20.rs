//! K20: what the circuit breaker counts, and what it must never hold up.

use std::sync::Arc;

use mcp_reconnect::core::replay::ReplayPolicy;
use mcp_reconnect::core::{Breaker, Refusal, Status};
use mcp_reconnect::{CallError, CallOptions, Connection, Event, Events};
use mcp_reconnect_tests::fake::FakeServer;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::support::*;

const OPEN_TIME: u64 = 30;
/// Waits a minute for a session.
const PATIENT: CallOptions = CallOptions {
    timeout: secs(60),
    max_timeout: None,
    max_wait: secs(60),
    replay: ReplayPolicy::Annotated,
    hung_after: None,
};

const fn strikes(strikes: u8) -> Breaker {
    Breaker::Closed { strikes }
}

fn is_open(connection: &Connection) -> bool {
    matches!(connection.snapshot().breaker, Breaker::Open { .. })
}

/// A Ready connection to a server that answers no ping: strikes are for the deaf. It is not given up for that.
async fn deaf(script: &str) -> (Arc<FakeServer>, Connection, Events) {
    let server = memory(&format!("server:\n ping never\n call write never\n{script}"));
    let patient = config(|knobs| knobs.ping_timeout(secs(600)));
    let connection = builder(&server).config(patient).build().unwrap();
    let mut events = connection.events();
    assert_eq!(until_ready(&mut events).await, 1);
    (server, connection, events)
}

/// Calls of `write` that get no reply within a second each.
async fn strike(connection: &Connection, times: usize) {
    for _ in 0..times {
        match connection.call_tool_with(tool("write"), &within(secs(1))).await {
            Err(CallError::DeadlineExceeded { .. }) => sleep(millis(1)).await,
            other => panic!("{other:?}"),
        }
    }
}

/// When the open breaker lets the next caller through, as this refused caller is told.
async fn refused_until(connection: &Connection) -> Instant {
    match connection.call_tool(tool("echo")).await {
        Err(CallError::Refused { why: Refusal::BreakerOpen, retry_at: Some(at), .. }) => at,
        other => panic!("{other:?}"),
    }
}

async fn next_breaker(events: &mut Events) -> Option<Instant> {
    let found = async {
        loop {
            if let Event::Breaker { open_until } = events.next().await.expect("the connection lives") {
                return open_until;
            }
        }
    };
    timeout(secs(60), found).await.expect("the breaker changes")
}

/// Also R078.
#[tokio::test(start_paused = true)]
async fn k20_wedge() {
    let script = "spawn 1:\n after 20s exit 1\nspawn 2..:\n start exit 1";
    let (server, connection, mut events) = deaf(script).await;
    strike(&connection, 5).await;
    assert!(is_open(&connection));
    assert!(next_breaker(&mut events).await.is_some());
    // Down, and with it the session: calls are refused or wait, by the state of the rebuild.
    until_status(&mut events, |status| status == Status::TransientFailure).await;
    sleep(secs(60)).await;
    assert!(is_open(&connection), "nothing has come back");
    // Up, and the cooldown is over: the first call is a dial, a success, and closes the breaker.
    server.set_script("").unwrap();
    sleep(secs(OPEN_TIME)).await;
    assert_eq!(text(connection.call_tool_with(tool_with("write", "up"), &PATIENT).await), "up");
    assert_eq!(connection.snapshot().breaker, strikes(0));
    assert_eq!(server.ledger().executions("write"), 1);
}

/// A server that was never up cannot trip the breaker, and the first call after it came up is served.
#[tokio::test(start_paused = true)]
async fn k20_wedge_from_the_start() {
    let server = memory("until 10m:\n start exit 1");
    let connection = connect(&server);
    for _ in 0..20 {
        match connection.call_tool(tool("write")).await {
            Err(CallError::Refused { why: Refusal::NotInTime | Refusal::Parked(_), retry_at: Some(at), .. }) => {
                sleep_until(at.min(Instant::now() + secs(20))).await;
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(connection.snapshot().breaker, strikes(0));
    }
    sleep(secs(600)).await;
    assert_eq!(text(connection.call_tool_with(tool_with("write", "up"), &PATIENT).await), "up");
    assert_eq!(connection.snapshot().stats.breaker_opened, 0);
}

/// Also R079.
#[tokio::test(start_paused = true)]
async fn k20_window() {
    let server = memory("spawn 1:\n after 10s exit 1\nspawn 2:\n initialize delay 500ms");
    let connection = connect(&server);
    let mut events = connection.events();
    until_status(&mut events, |status| status == Status::TransientFailure).await;
    let calls: Vec<_> = (0..20).map(|_| connection.call_tool(tool_with("write", "in the window"))).collect();
    for answer in futures::future::join_all(calls).await {
        assert_eq!(text(answer), "in the window");
    }
    assert_eq!(connection.snapshot().breaker, strikes(0));
    assert_eq!((server.ledger().spawns(), server.ledger().executions("write")), (2, 20));
}

/// The window again, with callers whose own deadline passes in it: they wait for a session, which is no strike.
#[tokio::test(start_paused = true)]
async fn k20_window_too_long_for_the_callers() {
    let server = memory("spawn 1:\n after 10s exit 1\nspawn 2:\n initialize delay 5s");
    let connection = connect(&server);
    let mut events = connection.events();
    until_status(&mut events, |status| status == Status::Connecting).await; // the first dial
    until_status(&mut events, |status| status == Status::Connecting).await;
    let options = within(secs(1));
    let calls: Vec<_> = (0..20).map(|_| connection.call_tool_with(tool("write"), &options)).collect();
    for answer in futures::future::join_all(calls).await {
        assert!(matches!(answer, Err(CallError::Refused { why: Refusal::NotInTime, .. })), "{answer:?}");
    }
    assert_eq!(until_ready(&mut events).await, 2);
    assert_eq!(connection.snapshot().breaker, strikes(0));
    assert_eq!(connection.snapshot().stats.no_replies, 0);
    assert_eq!(server.ledger().spawns(), 2);
}

/// Also R080. After that, ends of the link are answered by rebuilds, not by the breaker.
#[tokio::test(start_paused = true)]
async fn k20_app_errors() {
    let script = "server:\n call write is-error \"bad URL\"\n call echo error -32603 \"bad URL\"\n\
                  spawn 1..3:\n after 20s exit 1";
    let (server, connection, mut events) = ready(script).await;
    for _ in 0..10 {
        match connection.call_tool(tool("write")).await.unwrap() {
            rmcp::model::CallToolResponse::Complete(result) => assert_eq!(result.is_error, Some(true)),
            other => panic!("{other:?}"),
        }
        match connection.call_tool(tool("echo")).await {
            Err(CallError::Server { error, .. }) => assert_eq!(error.message, "bad URL"),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(connection.snapshot().breaker, strikes(0));
    assert_eq!(server.ledger().spawns(), 1);
    for next in 2..=4 {
        assert_eq!(until_ready(&mut events).await, next);
        assert_eq!(connection.snapshot().breaker, strikes(0));
    }
    // A server that is gone for good is refused by its state, with the time of the next try.
    server.set_script("start exit 1").unwrap();
    connection.invalidate(epoch(4), "gone");
    until_status(&mut events, |status| matches!(status, Status::Parked(_))).await;
    match connection.call_tool_with(tool("write"), &within(millis(100))).await {
        Err(CallError::Refused { why: Refusal::Parked(_), retry_at: Some(_), .. }) => {}
        other => panic!("{other:?}"),
    }
    assert_eq!(connection.snapshot().stats.breaker_opened, 0);
}

#[tokio::test(start_paused = true)]
async fn k20_half_open_lets_one_caller_through_and_success_closes() {
    let (server, connection, mut events) = deaf("").await;
    strike(&connection, 5).await;
    let until = next_breaker(&mut events).await.expect("open");
    assert_eq!(refused_until(&connection).await, until);
    sleep_until(until).await;
    let calls: Vec<_> = (0..20).map(|_| connection.call_tool(tool_with("echo", "probe"))).collect();
    let (served, refused): (Vec<_>, Vec<_>) =
        futures::future::join_all(calls).await.into_iter().partition(Result::is_ok);
    assert_eq!((served.len(), refused.len()), (1, 19));
    for answer in refused {
        match answer {
            Err(CallError::Refused { why: Refusal::BreakerOpen, retry_at: Some(at), .. }) => {
                assert_eq!(at, until + secs(OPEN_TIME));
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(next_breaker(&mut events).await, None, "closed");
    assert_eq!(text(connection.call_tool(tool_with("echo", "again")).await), "again");
    assert_eq!((server.ledger().calls("echo"), server.ledger().spawns()), (2, 1));
}

/// An application error is an answer as good as any.
#[tokio::test(start_paused = true)]
async fn k20_half_open_closes_on_an_application_error() {
    let (_server, connection, mut events) = deaf(" call echo error -32603 \"no\"").await;
    strike(&connection, 5).await;
    sleep_until(next_breaker(&mut events).await.expect("open")).await;
    assert!(matches!(connection.call_tool(tool("echo")).await, Err(CallError::Server { .. })));
    assert_eq!(next_breaker(&mut events).await, None);
}

/// The caller that was let through goes away: the next open time brings the next one, nothing is stuck.
#[tokio::test(start_paused = true)]
async fn k20_half_open_caller_gives_up() {
    let (server, connection, mut events) = deaf("").await;
    strike(&connection, 5).await;
    sleep_until(next_breaker(&mut events).await.expect("open")).await;
    timeout(millis(10), connection.call_tool(tool("write"))).await.expect_err("no reply to wait for");
    let until = refused_until(&connection).await;
    sleep_until(until).await;
    // One that fails keeps it open.
    strike(&connection, 1).await;
    assert!(is_open(&connection));
    sleep_until(refused_until(&connection).await).await;
    assert_eq!(text(connection.call_tool(tool_with("echo", "up")).await), "up");
    sleep(millis(1)).await;
    assert_eq!(connection.snapshot().breaker, strikes(0));
    assert_eq!((server.ledger().calls("write"), server.ledger().calls("echo")), (7, 1));
}

/// Strikes are calls without a reply *in a row*.
#[tokio::test(start_paused = true)]
async fn k20_an_answer_between_takes_the_strikes_back() {
    let (_server, connection, _events) = deaf("").await;
    for _ in 0..5 {
        strike(&connection, 4).await;
        assert_eq!(connection.snapshot().breaker, strikes(4));
        assert_eq!(text(connection.call_tool(tool_with("echo", "fine")).await), "fine");
        sleep(millis(1)).await;
        assert_eq!(connection.snapshot().breaker, strikes(0));
    }
}

/// Callers that stop waiting say nothing about the server.
#[tokio::test(start_paused = true)]
async fn k20_cancelled_calls_are_no_strikes() {
    let (server, connection, _events) = ready("call write never").await;
    for _ in 0..20 {
        timeout(secs(1), connection.call_tool(tool("write"))).await.expect_err("never answered");
    }
    sleep(millis(1)).await;
    assert_eq!(connection.snapshot().breaker, strikes(0));
    assert_eq!(server.ledger().cancelled().len(), 20);
}

/// Gate refusals and ends of the link are answered by a rebuild.
#[tokio::test(start_paused = true)]
async fn k20_lost_sessions_are_no_strikes() {
    let script = "spawn 1..6:\n call write error -32001 \"Session not found\"\nspawn 7..12:\n call write kill";
    let (server, connection, mut events) = ready(script).await;
    let mut refused = 0;
    let mut unknown = 0;
    while server.ledger().spawns() < 13 {
        match connection.call_tool_with(tool("write"), &PATIENT).await {
            Err(CallError::NotSent { .. }) => refused += 1,
            Err(CallError::OutcomeUnknown { .. }) => unknown += 1,
            other => panic!("{other:?}"),
        }
        assert_eq!(connection.snapshot().breaker, strikes(0));
        until_ready(&mut events).await;
        sleep(secs(20)).await; // proven, so that the next loss begins an outage of its own
    }
    assert!(refused >= 3 && unknown >= 6, "{refused} {unknown}");
    assert_eq!(connection.snapshot().stats.breaker_opened, 0);
}

/// A fresh session is a fresh start, before the breaker opens too.
#[tokio::test(start_paused = true)]
async fn k20_a_fresh_session_takes_the_strikes_back() {
    let (_server, connection, mut events) = deaf("spawn 1:\n after 20s exit 1").await;
    strike(&connection, 4).await;
    assert_eq!(connection.snapshot().breaker, strikes(4));
    assert_eq!(until_ready(&mut events).await, 2);
    assert_eq!(connection.snapshot().breaker, strikes(0));
    strike(&connection, 4).await;
    assert_eq!(connection.snapshot().breaker, strikes(4));
}

/// Strikes against a session that is gone by the time they are reported are none against its successor.
#[tokio::test(start_paused = true)]
async fn k20_strikes_belong_to_their_epoch() {
    let (_server, connection, mut events) = ready("server:\n call write never\nspawn 1:\n after 20s exit 1").await;
    let options = within(secs(40));
    let calls: Vec<_> = (0..10).map(|_| connection.call_tool_with(tool("write"), &options)).collect();
    for answer in futures::future::join_all(calls).await {
        assert!(matches!(answer, Err(CallError::OutcomeUnknown { .. })), "{answer:?}");
    }
    assert_eq!(until_ready(&mut events).await, 2);
    sleep(secs(60)).await;
    assert_eq!(connection.snapshot().breaker, strikes(0));
}

/// A5: a user who stops an agent with calls under way says nothing about the server, however long nothing has come in.
#[tokio::test(start_paused = true)]
async fn k20_calls_dropped_after_a_silence_are_no_strikes() {
    let (server, connection, _events) = ready("call write never\nping never").await;
    let pings = connection.snapshot().stats.pings;
    let calls = (0..5).map(|_| connection.call_tool(tool("write")));
    timeout(secs(6), futures::future::join_all(calls)).await.expect_err("never answered");
    sleep(millis(1)).await;
    assert_eq!(connection.snapshot().breaker, strikes(0));
    assert_eq!(connection.snapshot().stats.pings, pings + 1, "a reason to ask");
    assert_eq!(text(connection.call_tool(tool_with("echo", "served")).await), "served");
    assert_eq!(server.ledger().spawns(), 1);
}

/// A5: one slow tool of a server that answers what was sent after it.
#[tokio::test(start_paused = true)]
async fn k20_calls_of_a_slow_tool_are_no_strikes_while_pings_are_answered() {
    let (server, connection, _events) = ready("call write never").await;
    let options = within(secs(10));
    let calls = (0..5).map(|_| connection.call_tool_with(tool("write"), &options));
    for answer in futures::future::join_all(calls).await {
        assert!(matches!(answer, Err(CallError::DeadlineExceeded { .. })), "{answer:?}");
    }
    sleep(millis(10)).await;
    assert_eq!(connection.snapshot().breaker, strikes(0));
    assert_eq!(text(connection.call_tool(tool_with("echo", "served")).await), "served");
    assert_eq!(server.ledger().spawns(), 1);
}
