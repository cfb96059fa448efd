//! K24: how long a request lives, and how its end is told.

#![expect(deprecated, reason = "rmcp deprecates roots, which legacy servers ask for")]

use std::time::Duration;

use mcp_reconnect::core::replay::Sent;
use mcp_reconnect::core::{Breaker, FailureClass, Status};
use mcp_reconnect::{CallError, CallOptions, Connection};
use rmcp::handler::client::ClientHandler;
use rmcp::model::{CallToolResponse, ElicitRequestParams, ElicitResult, ElicitationAction, ListRootsResult};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleClient};
use tokio::time::{Instant, sleep, timeout};

use crate::support::*;

/// Makes the call, and how long it took.
async fn timed(connection: &Connection, options: &CallOptions) -> (Result<CallToolResponse, CallError>, Duration) {
    let began = Instant::now();
    let answer = connection.call_tool_with(tool("write"), options).await;
    (answer, began.elapsed())
}

// Progress.

/// Also R095.
#[tokio::test(start_paused = true)]
async fn k24_progress() {
    let (server, connection, _events) = ready("call write progress 10 every 20s, reply \"done\"").await;
    let (answer, took) = timed(&connection, &within(secs(60))).await;
    assert_eq!((text(answer).as_str(), took), ("done", secs(200)));
    assert!(server.ledger().cancelled().is_empty());
}

/// Also R095: progress of something else does not extend.
#[tokio::test(start_paused = true)]
async fn k24_progress_foreign() {
    let (server, connection, _events) = ready("call write progress 10 every 20s foreign, reply \"done\"").await;
    let (answer, took) = timed(&connection, &within(secs(60))).await;
    assert!(matches!(answer, Err(CallError::DeadlineExceeded { sent: Sent::Maybe, .. })), "{answer:?}");
    assert_eq!(took, secs(60));
    sleep(millis(1)).await;
    assert_eq!(cancellations(&server.ledger()), call_ids(&server.ledger(), "write"));
}

/// Two calls at once: the progress of one is none of the other's.
#[tokio::test(start_paused = true)]
async fn k24_progress_of_another_call() {
    let script = "call write progress 10 every 20s, reply \"done\"\ncall echo never";
    let (_server, connection, _events) = ready(script).await;
    let options = within(secs(60));
    let began = Instant::now();
    let quiet = async { (connection.call_tool_with(tool("echo"), &options).await, began.elapsed()) };
    let (busy, (quiet, took)) = tokio::join!(connection.call_tool_with(tool("write"), &options), quiet);
    assert_eq!(text(busy), "done");
    assert!(matches!(quiet, Err(CallError::DeadlineExceeded { .. })), "{quiet:?}");
    assert_eq!(took, secs(60));
}

/// Progress that stops extends no further than one timeout from its last sign.
#[tokio::test(start_paused = true)]
async fn k24_progress_that_stops() {
    let (_server, connection, _events) = ready("call write progress 3 every 20s, never").await;
    let (answer, took) = timed(&connection, &within(secs(30))).await;
    assert!(matches!(answer, Err(CallError::DeadlineExceeded { .. })), "{answer:?}");
    assert_eq!(took, secs(90));
}

#[tokio::test(start_paused = true)]
async fn k24_progress_up_to_the_cap() {
    let (server, connection, _events) = ready("call write progress 1000 every 20s").await;
    let options = CallOptions { max_timeout: Some(secs(150)), ..within(secs(60)) };
    let (answer, took) = timed(&connection, &options).await;
    assert!(matches!(answer, Err(CallError::DeadlineExceeded { .. })), "{answer:?}");
    assert_eq!(took, secs(150));
    // Without one of its own the cap is ten timeouts.
    let (answer, took) = timed(&connection, &within(secs(60))).await;
    assert!(matches!(answer, Err(CallError::DeadlineExceeded { .. })), "{answer:?}");
    assert_eq!(took, secs(600));
    sleep(millis(1)).await;
    assert_eq!(cancellations(&server.ledger()), call_ids(&server.ledger(), "write"));
}

// Cancellation.

/// Also R096.
#[tokio::test(start_paused = true)]
async fn k24_cancel() {
    let (server, connection, mut events) = ready("spawn 1:\n call write delay 60s\n after 90s exit 1").await;
    timeout(secs(1), connection.call_tool(tool("write"))).await.expect_err("it takes a minute");
    sleep(millis(1)).await;
    let ledger = server.ledger();
    assert_eq!(cancellations(&ledger), call_ids(&ledger, "write"));
    assert_eq!(ledger.cancelled().len(), 1);
    // Neither the late answer nor the next epoch brings another.
    assert_eq!(until_ready(&mut events).await, 2);
    assert_eq!(text(connection.call_tool(tool_with("write", "two")).await), "two");
    sleep(secs(120)).await;
    assert_eq!(server.ledger().cancelled().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn k24_timeout_cancels_once() {
    let (server, connection, _events) = ready("call write delay 60s").await;
    for _ in 0..3 {
        let (answer, took) = timed(&connection, &within(secs(1))).await;
        assert!(matches!(answer, Err(CallError::DeadlineExceeded { .. })), "{answer:?}");
        assert_eq!(took, secs(1));
    }
    sleep(secs(120)).await;
    let ledger = server.ledger();
    assert_eq!(ledger.cancelled().len(), 3);
    assert_eq!(cancellations(&ledger), call_ids(&ledger, "write"));
}

/// Calls that have ended, or never began, have nothing to cancel.
#[tokio::test(start_paused = true)]
async fn k24_nothing_to_cancel() {
    let script = "server:\n call write delay 1s\nspawn 1:\n after 10s exit 1\nspawn 2:\n initialize delay 5s";
    let (server, connection, mut events) = ready(script).await;
    // Answered, and then dropped.
    let mut call = Box::pin(connection.call_tool(tool("write")));
    text((&mut call).await);
    drop(call);
    // In flight when its session dies.
    sleep(millis(8500)).await;
    let answer = connection.call_tool(tool("write")).await;
    assert!(matches!(answer, Err(CallError::OutcomeUnknown { .. })), "{answer:?}");
    // Waiting for a session.
    timeout(secs(1), connection.call_tool(tool("write"))).await.expect_err("no session yet");
    assert_eq!(until_ready(&mut events).await, 2);
    text(connection.call_tool(tool("write")).await);
    sleep(secs(10)).await;
    assert!(server.ledger().cancelled().is_empty());
    assert_eq!(server.ledger().calls("write"), 3);
}

/// A call that was sent again and is then given up is cancelled where it runs, by the id that it has there.
#[tokio::test(start_paused = true)]
async fn k24_cancel_after_a_second_sending() {
    let script = "spawn 1:\n call write error -32001 \"Session not found\"\nspawn 2:\n call write never";
    let (server, connection, _events) = ready(script).await;
    timeout(secs(10), connection.call_tool(tool("write"))).await.expect_err("never answered");
    sleep(millis(1)).await;
    let ledger = server.ledger();
    assert_eq!(call_ids(&ledger, "write").iter().map(|(spawn, _)| *spawn).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(cancellations(&ledger), [call_ids(&ledger, "write")[1].clone()]);
}

/// A call that never left, because the pipe was full, is left out: neither it nor its cancellation is sent later.
#[tokio::test(start_paused = true)]
async fn k24_cancel_before_it_was_sent() {
    let (server, connection, _events) = ready("serial\ncall echo#1 delay 30s").await;
    let options = within(secs(5));
    // More than the link and the pipe hold between them.
    let jam: Vec<_> = (0..300).map(|_| connection.call_tool_with(tool("echo"), &options)).collect();
    let unsent = connection.call_tool_with(tool("write"), &options);
    let (_, unsent) = tokio::join!(futures::future::join_all(jam), unsent);
    match unsent {
        Err(error @ CallError::DeadlineExceeded { sent: Sent::No, .. }) => assert!(error.not_run()),
        other => panic!("{other:?}"),
    }
    sleep(secs(60)).await;
    let ledger = server.ledger();
    let (sent, cancelled) = (call_ids(&ledger, "echo"), cancellations(&ledger));
    assert!(sent.len() > 1 && sent.len() < 300, "{}", sent.len());
    assert_eq!(cancelled, sent, "the server hears the end of what it heard of, and of nothing else");
    assert_eq!(ledger.calls("write"), 0);
    assert_eq!(text(connection.call_tool(tool_with("write", "fine")).await), "fine");
}

// Servers that hang.

/// A call that ends at its deadline.
async fn hang(connection: &Connection) {
    sleep(secs(1)).await;
    let (answer, _) = timed(connection, &within(secs(10))).await;
    assert!(matches!(answer, Err(CallError::DeadlineExceeded { .. })), "{answer:?}");
}

/// Also R097: the next call is not held hostage.
#[tokio::test(start_paused = true)]
async fn k24_stuck() {
    let (server, connection, mut events) = ready("spawn 1:\n call write deaf, never").await;
    hang(&connection).await;
    let began = Instant::now();
    // Two pings and a listing, 20 s each.
    assert_eq!(text(connection.call_tool_with(tool_with("echo", "two"), &within(secs(120))).await), "two");
    assert!(began.elapsed() < secs(61), "{:?}", began.elapsed());
    assert_eq!(until_ready(&mut events).await, 2);
    let ledger = server.ledger();
    assert_eq!((ledger.spawns(), ledger.of_spawn(2).executions("echo")), (2, 1));
}

/// The same for a call that must not be repeated: it fails with the session, long before its own deadline.
#[tokio::test(start_paused = true)]
async fn k24_stuck_fails_fast() {
    let (server, connection, mut events) = ready("spawn 1:\n call write deaf, never").await;
    hang(&connection).await;
    let (answer, took) = timed(&connection, &within(secs(1800))).await;
    match answer {
        Err(CallError::OutcomeUnknown { epoch: failed, class, .. }) => {
            assert_eq!((failed, class), (epoch(1), FailureClass::Unresponsive));
        }
        other => panic!("{other:?}"),
    }
    assert!(took < secs(61), "{took:?}");
    assert_eq!(until_ready(&mut events).await, 2);
    assert_eq!(server.ledger().calls("write"), 1, "nothing more was read");
}

/// A server that answers nothing but reads on is no better.
#[tokio::test(start_paused = true)]
async fn k24_stuck_mute() {
    let (server, connection, mut events) = ready("spawn 1:\n call write mute, never").await;
    hang(&connection).await;
    assert_eq!(text(connection.call_tool_with(tool_with("echo", "two"), &within(secs(120))).await), "two");
    assert_eq!(until_ready(&mut events).await, 2);
    assert_eq!(server.ledger().spawns(), 2);
}

/// One slow call is no stuck server: what answers pings is kept.
#[tokio::test(start_paused = true)]
async fn k24_a_timeout_alone_recycles_nothing() {
    let (server, connection, events) = ready("call write never").await;
    hang(&connection).await;
    assert_eq!(text(connection.call_tool(tool_with("echo", "two")).await), "two");
    sleep(secs(300)).await;
    assert_eq!(server.ledger().spawns(), 1);
    assert_eq!(drain_statuses(connection, events).await, [Status::Shutdown]);
}

/// Nor is one that does one thing at a time, late: it answers the question when it comes to it.
#[tokio::test(start_paused = true)]
async fn k24_a_serial_server_is_not_recycled() {
    let (server, connection, events) = ready("serial\ncall write delay 12s\ncall echo delay 55s").await;
    hang(&connection).await;
    assert_eq!(text(connection.call_tool(tool_with("echo", "two")).await), "two");
    assert_eq!(server.ledger().spawns(), 1);
    assert_eq!(drain_statuses(connection, events).await, [Status::Shutdown]);
}

/// Who was told that there was no reply is told no lies about the strikes.
#[tokio::test(start_paused = true)]
async fn k24_a_timeout_is_noted_before_it_is_told() {
    let (_server, connection, _events) = ready("ping never\ncall write never").await;
    for strikes in 1..=4 {
        hang(&connection).await;
        assert_eq!(connection.snapshot().breaker, Breaker::Closed { strikes });
    }
}

// Standing still.

/// A user who takes this long for each question.
struct User(Duration);

impl ClientHandler for User {
    async fn create_elicitation(
        &self,
        _: ElicitRequestParams,
        _: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        sleep(self.0).await;
        Ok(ElicitResult::new(ElicitationAction::Accept))
    }

    async fn list_roots(&self, _: RequestContext<RoleClient>) -> Result<ListRootsResult, ErrorData> {
        sleep(self.0).await;
        Ok(ListRootsResult::default())
    }
}

/// A call of this timeout to a server that asks for this in the middle of it, and a user who takes so long.
async fn asked(
    question: &str,
    takes: Duration,
    options: &CallOptions,
) -> (Result<CallToolResponse, CallError>, Duration) {
    let server = memory(&format!("call write request {question} wait, delay 5s, reply \"done\""));
    let connection = builder(&server).handler(move |_| User(takes)).build().unwrap();
    connection.session().await.unwrap();
    timed(&connection, options).await
}

/// M7: the user may take longer for the answer than the call may take without.
#[tokio::test(start_paused = true)]
async fn k24_a_deadline_stands_still_while_the_user_is_asked() {
    let (answer, took) = asked("elicitation", secs(80), &within(secs(10))).await;
    assert_eq!((text(answer).as_str(), took), ("done", secs(85)));
    // Two minutes in all, where the timeout is shorter.
    let (answer, took) = asked("elicitation", secs(1000), &within(secs(30))).await;
    assert!(matches!(answer, Err(CallError::DeadlineExceeded { .. })), "{answer:?}");
    assert_eq!(took, secs(150));
    let options = CallOptions { max_timeout: Some(secs(20)), ..within(secs(10)) };
    let (answer, took) = asked("elicitation", secs(100), &options).await;
    assert!(matches!(answer, Err(CallError::DeadlineExceeded { .. })), "{answer:?}");
    assert_eq!(took, secs(20));
}

/// M7: no user is asked for roots.
#[tokio::test(start_paused = true)]
async fn k24_a_deadline_stands_still_for_roots_for_five_seconds() {
    let (answer, took) = asked("roots", secs(100), &within(secs(10))).await;
    assert!(matches!(answer, Err(CallError::DeadlineExceeded { .. })), "{answer:?}");
    assert_eq!(took, secs(15));
    let (answer, took) = asked("roots", secs(4), &within(secs(6))).await;
    assert_eq!((text(answer).as_str(), took), ("done", secs(9)));
}

// Hung calls.

/// M3: what is known of a tool tells a hung call from a slow one, once ten answers tell anything.
#[tokio::test(start_paused = true)]
async fn k24_a_call_is_hung_by_what_is_known_of_its_tool() {
    for (answers, ends) in [(10, true), (5, false)] {
        let server = memory("tools echo(readOnly), quick\nspawn 1:\n call echo mute, never");
        let knobs = config(|knobs| knobs.keepalive(secs(15)).ping_timeout(secs(5)));
        let connection = builder(&server).config(knobs).build().unwrap();
        connection.session().await.unwrap();
        for _ in 0..answers {
            connection.call_tool(tool("quick")).await.unwrap();
        }
        let options = CallOptions { hung_after: Some(secs(25)), ..within(secs(600)) };
        let call = timeout(secs(300), connection.call_tool_with(tool("echo"), &options)).await;
        assert_eq!((call.is_ok(), server.ledger().spawns() > 1), (ends, ends), "{answers}: {call:?}");
        connection.shutdown().await;
    }
}
