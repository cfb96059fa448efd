//! How many calls a server gets at once.

use std::num::NonZeroU32;
use std::sync::Arc;

use mcp_reconnect::core::{Breaker, Refusal};
use mcp_reconnect::fleet::{Fleet, FleetCallError};
use mcp_reconnect::{CallError, CallOptions};
use mcp_reconnect_tests::fake::{Event, FakeServer};
use rmcp::model::{CallToolRequestParams, CallToolResponse};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use super::support::*;
use crate::support::{config as knobs, memory, millis, secs, within};

type Called = Result<CallToolResponse, FleetCallError>;

/// A server that gets this many calls at once, and is Ready.
async fn limited(script: &str, limit: u32) -> (Arc<FakeServer>, Fleet) {
    let server = memory(script);
    let fleet = fleet();
    fleet.apply(only("a", at_most(&server, limit)));
    all_ready(&fleet, &["a"]).await;
    (server, fleet)
}

/// Zero for no limit.
fn at_most(server: &Arc<FakeServer>, limit: u32) -> mcp_reconnect::config::ServerConfig {
    with(server, |server| server.max_in_flight = NonZeroU32::new(limit))
}

fn call(fleet: &Fleet, text: &str, options: CallOptions) -> JoinHandle<Called> {
    let fleet = fleet.clone();
    let params =
        CallToolRequestParams::new("a__write").with_arguments([("text".to_owned(), text.into())].into_iter().collect());
    tokio::spawn(async move { fleet.call_tool_with(params, Some(&options)).await })
}

/// What was asked with, in the order in which the server read it.
fn asked(server: &FakeServer) -> Vec<String> {
    let ledger = server.ledger();
    let texts = ledger.entries().iter().filter_map(|entry| match &entry.event {
        Event::Request { params, tool: Some(_), .. } => params["arguments"]["text"].as_str(),
        _ => None,
    });
    texts.map(str::to_owned).collect()
}

fn is_busy(called: &Called) -> bool {
    matches!(called, Err(FleetCallError::Call { error: CallError::Busy, .. }))
}

fn counts(fleet: &Fleet) -> (u32, usize) {
    let status = status(fleet, "a");
    (status.in_flight, status.waiting)
}

#[tokio::test(start_paused = true)]
async fn one_at_a_time_first_come_first_served() {
    let (server, fleet) = limited("call write delay 1s", 1).await;
    let began = Instant::now();
    let mut calls = Vec::new();
    for number in 0..10 {
        calls.push(call(&fleet, &number.to_string(), CallOptions::default()));
        tokio::task::yield_now().await;
    }
    assert_eq!(counts(&fleet), (1, 9));
    for (number, call) in calls.into_iter().enumerate() {
        assert_eq!(text(call.await.unwrap()), number.to_string());
        assert_eq!(began.elapsed(), secs(number as u64 + 1));
    }
    assert_eq!(asked(&server), (0..10).map(|number| number.to_string()).collect::<Vec<_>>());
    assert_eq!(counts(&fleet), (0, 0));
    fleet.shutdown().await;
}

/// The wait is part of the call's time: nothing was sent, and it is nothing that speaks against the server.
#[tokio::test(start_paused = true)]
async fn who_has_no_turn_in_time_is_told_that_it_is_busy() {
    let (server, fleet) = limited("call write#1 delay 50s", 1).await;
    let long = call(&fleet, "long", CallOptions::default());
    server.watch().wait_until(|ledger| ledger.calls("write") == 1).await;
    for _ in 0..10 {
        let began = Instant::now();
        let called = call(&fleet, "late", within(secs(2))).await.unwrap();
        assert!(is_busy(&called), "{called:?}");
        assert!(matches!(called, Err(FleetCallError::Call { error, .. }) if error.not_run()));
        assert_eq!(began.elapsed(), secs(2));
    }
    let snapshot = fleet.connection("a").unwrap().snapshot();
    assert_eq!((snapshot.breaker, snapshot.stats.no_replies), (Breaker::Closed { strikes: 0 }, 0));
    // A turn that comes late leaves the rest of the time.
    sleep(secs(29) - millis(500)).await;
    let began = Instant::now();
    let second = call(&fleet, "second", within(secs(5)));
    assert_eq!(text(long.await.unwrap()), "long");
    assert_eq!(text(second.await.unwrap()), "second");
    assert_eq!(began.elapsed(), millis(1_500));
    assert_eq!(asked(&server), ["long", "second"]);
    assert_eq!(epoch_of(&fleet, "a"), 1);
    fleet.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn the_time_that_is_left_after_the_wait_is_all_there_is() {
    let (server, fleet) = limited("call write#1 delay 3s\ncall write#2 never", 1).await;
    let first = call(&fleet, "first", CallOptions::default());
    server.watch().wait_until(|ledger| ledger.calls("write") == 1).await;
    let began = Instant::now();
    let second = call(&fleet, "second", within(secs(5))).await.unwrap();
    assert!(
        matches!(second, Err(FleetCallError::Call { error: CallError::DeadlineExceeded { .. }, .. })),
        "{second:?}"
    );
    assert_eq!(began.elapsed(), secs(5));
    assert!(first.await.unwrap().is_ok());
    assert_eq!(text(call(&fleet, "third", CallOptions::default()).await.unwrap()), "third", "its place is free again");
    fleet.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn who_gives_up_leaves_the_turn_to_the_next() {
    let (server, fleet) = limited("call write delay 1s", 1).await;
    let first = call(&fleet, "first", CallOptions::default());
    server.watch().wait_until(|ledger| ledger.calls("write") == 1).await;
    let (second, third) =
        (call(&fleet, "second", CallOptions::default()), call(&fleet, "third", CallOptions::default()));
    tokio::task::yield_now().await;
    assert_eq!(counts(&fleet), (1, 2));
    second.abort();
    assert!(second.await.is_err());
    // As it runs, too: its place is free at once.
    first.abort();
    assert!(first.await.is_err());
    let began = Instant::now();
    assert_eq!(text(third.await.unwrap()), "third");
    assert_eq!((began.elapsed(), counts(&fleet)), (secs(1), (0, 0)));
    assert_eq!(asked(&server), ["first", "third"]);
    fleet.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn another_limit_holds_at_once() {
    let (server, fleet) = limited("call write delay 10s", 1).await;
    let mut calls: Vec<_> = (0..6).map(|number| call(&fleet, &number.to_string(), CallOptions::default())).collect();
    server.watch().wait_until(|ledger| ledger.calls("write") == 1).await;
    assert_eq!(outcomes(&fleet.apply(only("a", at_most(&server, 3)))), ["a: retuned"]);
    server.watch().wait_until(|ledger| ledger.calls("write") == 3).await;
    sleep(secs(1)).await;
    assert_eq!(counts(&fleet), (3, 3));
    // Fewer: what runs goes on, and nobody else begins before there is room.
    fleet.apply(only("a", at_most(&server, 1)));
    sleep(millis(9_500)).await;
    assert_eq!((server.ledger().calls("write"), counts(&fleet)), (4, (1, 2)));
    fleet.apply(only("a", at_most(&server, 0)));
    sleep(millis(1)).await;
    assert_eq!((server.ledger().calls("write"), counts(&fleet)), (6, (3, 0)));
    for (number, call) in calls.drain(..).enumerate() {
        assert_eq!(text(call.await.unwrap()), number.to_string());
    }
    assert_eq!(server.ledger().spawns(), 1);
    fleet.shutdown().await;
}

/// A place is given back however a call ends: with an error, with its session, at its deadline.
#[tokio::test(start_paused = true)]
async fn a_place_is_given_back_however_the_call_ends() {
    let script = "call write#1 error -32000 \"no\"\ncall write#2 never\ncall write#3 is-error \"no\"\n\
                  spawn 1:\n call write#4 kill";
    let (_server, fleet) = limited(script, 1).await;
    for round in 0..4 {
        drop(call(&fleet, "x", within(secs(2))).await.unwrap());
        assert_eq!(counts(&fleet), (0, 0), "{round}");
    }
    all_ready(&fleet, &["a"]).await;
    drop(call(&fleet, "unknown", within(secs(2))).await.unwrap());
    assert_eq!(counts(&fleet), (0, 0));
    fleet.shutdown().await;
}

/// A server that is not there has no places to be waited for: all are refused when the first one is.
#[tokio::test(start_paused = true)]
async fn who_waits_for_a_session_holds_no_place() {
    let server = memory("initialize never\ndiscover never");
    let slow = knobs(|config| config.connect_timeout(secs(300)).connect_timeout_max(secs(300)));
    let fleet = fleet();
    fleet.apply(only(
        "a",
        with(&server, |server| {
            (server.max_in_flight, server.machine) = (NonZeroU32::new(1), slow);
        }),
    ));
    let connection = fleet.connection("a").unwrap();
    let began = Instant::now();
    let calls = (0..10).map(|_| connection.call_tool(CallToolRequestParams::new("write")));
    for called in futures::future::join_all(calls).await {
        assert!(matches!(called, Err(CallError::Refused { why: Refusal::NotInTime, .. })), "{called:?}");
    }
    assert_eq!(began.elapsed(), secs(15));
    fleet.shutdown().await;
}

/// The session ends while others wait for their turn: they have theirs on the next one.
#[tokio::test(start_paused = true)]
async fn who_waits_for_a_turn_survives_the_session() {
    let (server, fleet) = limited("spawn 1:\n call write delay 1s, kill", 1).await;
    let calls: Vec<_> = (0..3).map(|number| call(&fleet, &number.to_string(), CallOptions::default())).collect();
    let mut results = Vec::new();
    for call in calls {
        results.push(call.await.unwrap());
    }
    let unknown =
        |called: &Called| matches!(called, Err(FleetCallError::Call { error: CallError::OutcomeUnknown { .. }, .. }));
    assert!(unknown(&results[0]), "{results:?}");
    let rest: Vec<_> = results.drain(1..).map(text).collect();
    assert_eq!(rest, ["1", "2"]);
    assert_eq!((server.ledger().of_spawn(1).calls("write"), server.ledger().of_spawn(2).calls("write")), (1, 2));
    fleet.shutdown().await;
}
