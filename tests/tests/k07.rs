//! K07: slow starts converge.

use std::time::Duration;

use mcp_reconnect::core::{FailureClass, Refusal, Status};
use mcp_reconnect::{CallError, Event, Events};
use mcp_reconnect_tests::fake::{Event as Entry, FakeServer};
use tokio::time::{Instant, sleep};

use crate::support::*;

/// Each spawn had ended before the next one began.
fn assert_one_at_a_time(server: &FakeServer) {
    let mut live = 0;
    for entry in server.ledger().entries() {
        match entry.event {
            Entry::Spawned { .. } => live += 1,
            Entry::Ended => live -= 1,
            _ => {}
        }
        assert!(live <= 1, "{:?}", server.ledger().entries());
    }
}

/// The epoch that became Ready, and the classes of the failures before it.
async fn until_ready_counting(events: &mut Events) -> (u64, Vec<FailureClass>) {
    let mut failures = Vec::new();
    loop {
        match events.next().await {
            Some(Event::Status { status: Status::Ready(epoch), .. }) => return (epoch.get(), failures),
            Some(Event::Status { status: Status::TransientFailure, failure, .. }) => failures.extend(failure),
            Some(_) => {}
            None => panic!("the connection has ended"),
        }
    }
}

const VARIABLE: &str =
    "spawn 1:\n initialize delay 70s\nspawn 2:\n initialize delay 65s\nspawn 3:\n initialize delay 20s";

/// Also R024: with a fixed deadline it takes until the start that is quick enough.
#[tokio::test(start_paused = true)]
async fn k07_variable_start() {
    let server = memory(VARIABLE);
    let fixed = config(|config| config.connect_timeout(secs(60)).connect_timeout_max(secs(60)));
    let connection = builder(&server).config(fixed).build().unwrap();
    let mut events = connection.events();
    let (ready, failures) = until_ready_counting(&mut events).await;
    assert_eq!(ready, 3);
    assert!(failures.iter().all(|class| *class == FailureClass::StartTimeout), "{failures:?}");
    assert_eq!((server.ledger().spawns(), server.ledger().live_links()), (3, 1));
    assert_one_at_a_time(&server);
}

#[tokio::test(start_paused = true)]
async fn k07_r024_a_deadline_of_its_own_makes_the_first_start_ready() {
    let server = memory(VARIABLE);
    let patient = config(|config| config.connect_timeout(secs(90)));
    let connection = builder(&server).config(patient).build().unwrap();
    let began = Instant::now();
    assert_eq!(until_ready(&mut connection.events()).await, 1);
    assert_eq!((began.elapsed(), server.ledger().spawns()), (secs(70), 1));
}

#[tokio::test(start_paused = true)]
async fn k07_r024_a_deadline_that_grows_is_faster_than_luck() {
    let server = memory(VARIABLE);
    let growing = config(|config| config.connect_timeout(secs(60)));
    let connection = builder(&server).config(growing).build().unwrap();
    let (ready, failures) = until_ready_counting(&mut connection.events()).await;
    assert_eq!((ready, &*failures), (2, &[FailureClass::StartTimeout][..]));
    assert_one_at_a_time(&server);
}

/// Also R025.
#[tokio::test(start_paused = true)]
async fn k07_first_run_27s() {
    for slow in [
        "initialize delay 27s",
        "list delay 27s",
        "initialize delay 14s\nlist delay 13s",
        "discover delay 5s\ninitialize delay 22s",
    ] {
        let server = memory(slow);
        let short = config(|config| config.connect_timeout(secs(20)).connect_timeout_max(secs(120)));
        let connection = builder(&server).config(short).build().unwrap();
        let mut events = connection.events();
        let (ready, failures) = until_ready_counting(&mut events).await;
        assert_eq!((ready, &*failures), (2, &[FailureClass::StartTimeout][..]), "{slow}");
        assert_one_at_a_time(&server);
        // What was learnt stays: no later start is too slow again.
        for lost in 2..5 {
            sleep(secs(20)).await;
            connection.invalidate(epoch(lost), "once more");
            let (ready, failures) = until_ready_counting(&mut events).await;
            assert_eq!((ready, &*failures), (lost + 1, &[FailureClass::SessionGone][..]), "{slow}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn k07_every_start_below_the_maximum_converges() {
    for needed in [31, 59, 61, 119, 239, 299] {
        let server = memory(&format!("initialize delay {needed}s"));
        let connection = connect(&server);
        let mut events = connection.events();
        // Parked meanwhile or not: 30, 60, 120, 240, 300 s.
        let tries = [30, 60, 120, 240, 300].iter().position(|deadline| needed < *deadline).unwrap() + 1;
        assert_eq!(until_ready(&mut events).await, tries as u64, "{needed} s");
        assert_eq!(server.ledger().spawns(), tries, "{needed} s");
        assert_eq!(connection.snapshot().start_timeout, Duration::from_secs([30, 60, 120, 240, 300][tries - 1]));
        assert_one_at_a_time(&server);
    }
}

#[tokio::test(start_paused = true)]
async fn k07_only_timeouts_make_the_deadline_grow() {
    let server = memory("spawn 1..3:\n initialize exit 1\nspawn 4..5:\n initialize error -32603 \"no\"");
    let connection = connect(&server);
    assert_eq!(until_ready(&mut connection.events()).await, 6);
    assert_eq!(connection.snapshot().start_timeout, secs(30));
}

#[tokio::test(start_paused = true)]
async fn k07_the_deadline_of_a_call_is_not_the_deadline_of_a_start() {
    let server = memory("initialize delay 27s");
    let connection = connect(&server);
    let asked = Instant::now();
    match connection.call_tool_with(tool_with("echo", "early"), &within(secs(5))).await {
        Err(error @ CallError::Refused { why: Refusal::NotInTime, .. }) => assert!(error.not_run()),
        other => panic!("{other:?}"),
    }
    assert_eq!(asked.elapsed(), secs(5));
    // The start goes on.
    assert_eq!(until_ready(&mut connection.events()).await, 1);
    assert_eq!((asked.elapsed(), server.ledger().spawns()), (secs(27), 1));
    // And a call may take longer than a start.
    let server = memory("call write delay 20m");
    let connection = connect(&server);
    let answer = connection.call_tool_with(tool_with("write", "late"), &within(secs(1800))).await;
    assert_eq!((text(answer), server.ledger().spawns()), ("late".to_owned(), 1));
}

#[tokio::test(start_paused = true)]
async fn k07_a_start_timeout_says_so() {
    let server = memory("initialize never");
    let connection = connect(&server);
    let mut events = connection.events();
    loop {
        if let Some(Event::Status { status: Status::TransientFailure, failure, cause }) = events.next().await {
            assert_eq!(failure, Some(FailureClass::StartTimeout));
            assert!(cause.is_some(), "a start timeout has a cause in words");
            break;
        }
    }
    assert!(connection.last_failure().is_some());
}

#[tokio::test(start_paused = true)]
async fn k07_a_start_timeout_is_not_told_with_an_older_cause() {
    let server = memory("spawn 1:\n initialize exit 3\nspawn 2..:\n initialize never");
    let connection = connect(&server);
    let mut events = connection.events();
    let mut told = Vec::new();
    while told.len() < 2 {
        if let Some(Event::Status { status: Status::TransientFailure, failure, cause }) = events.next().await {
            told.push((failure.unwrap(), cause.unwrap_or_default()));
        }
    }
    assert_eq!(told[0].0, FailureClass::Transport);
    assert!(told[0].1.contains("status 3"), "{told:?}");
    assert_eq!(told[1].0, FailureClass::StartTimeout);
    assert!(!told[1].1.contains("status 3"), "{told:?}");
}
