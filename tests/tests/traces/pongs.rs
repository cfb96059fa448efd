//! When a machine is told of the answer to its ping: as soon as it comes, and once.

use mcp_reconnect::Connection;
use mcp_reconnect::core::{Config, Input, Output, Timestamp};
use mcp_reconnect::trace::{Recorder, Step};

use super::{Memory, steps};
use crate::support::*;

/// A connection, and what it writes down.
fn recorded(
    script: &str,
    config: Config,
) -> (std::sync::Arc<mcp_reconnect_tests::fake::FakeServer>, Connection, Memory) {
    let (file, server) = (Memory::default(), memory(script));
    let recorder = Recorder::new(file.clone()).outputs(true);
    let connection = builder(&server).config(config).record(recorder).build().unwrap();
    (server, connection, file)
}

fn asks(step: &Step) -> bool {
    let answer = step.answer.as_ref().expect("it was recorded");
    answer.outputs.iter().any(|output| matches!(output, Output::Ping { .. }))
}

/// What was told after each question, up to the moment of the next or the shutdown: how much later, and when something
/// had come in by then.
fn told(file: &Memory) -> Vec<Vec<(u64, Option<u64>)>> {
    let (mut asked, mut told) = (Timestamp::ZERO, Vec::<Vec<_>>::new());
    let millis = |at: Timestamp, asked| u64::try_from(at.since(asked).as_millis()).unwrap();
    for step in steps(&file.trace()) {
        if matches!(step.input, Input::Shutdown) {
            break;
        }
        if asks(step) {
            told.push(Vec::new());
            asked = step.at;
        } else if let Some(told) = told.last_mut() {
            let inbound = match step.input {
                Input::Traffic { inbound, .. } => Some(millis(inbound, asked)),
                _ => None,
            };
            told.push((millis(step.at, asked), inbound));
        }
    }
    told
}

/// So the deadline of the ping wakes nobody. The tick that is left over is of the moment of the question: a sample came
/// first, which was the machine's reason to ask.
#[tokio::test(start_paused = true)]
async fn traces_tell_of_a_pong_when_it_comes_and_of_nothing_else() {
    let (server, connection, file) = recorded("ping delay 5s, ok", Config::default());
    tokio::time::sleep(secs(600)).await;
    connection.shutdown().await;
    let pings = server.ledger().requests("ping");
    assert!(pings > 8, "{pings}");
    let mut expected = vec![vec![(0, None), (5_000, Some(5_000))]; pings];
    expected[0].push((5_000, None)); // that it answers pings is news once
    assert_eq!(told(&file), expected);
}

/// Calls that go well meanwhile tell it nothing, and neither does what the server says by itself.
#[tokio::test(start_paused = true)]
async fn traces_tell_of_one_pong_however_much_comes_in_before_it() {
    let (server, connection, file) = recorded("ping delay 5s, ok", Config::default());
    connection.session().await.unwrap();
    server.watch().wait_until(|ledger| ledger.requests("ping") == 1).await;
    for _ in 0..100 {
        assert_eq!(text(connection.call_tool(tool_with("write", "fast")).await), "fast");
        tokio::time::sleep(millis(10)).await;
    }
    tokio::time::sleep(secs(10)).await;
    connection.shutdown().await;
    assert_eq!(told(&file), [[(0, None), (5_000, Some(5_000))]]);
}

/// The earlier of two answers is life for both questions, the later one no news.
#[tokio::test(start_paused = true)]
async fn traces_tell_of_the_first_pong_after_a_suspend() {
    let (server, connection, file) = recorded("ping delay 5s, ok", Config::default());
    connection.session().await.unwrap();
    server.watch().wait_until(|ledger| ledger.requests("ping") == 1).await;
    tokio::time::sleep(secs(1)).await;
    connection.resumed();
    tokio::time::sleep(secs(10)).await;
    connection.shutdown().await;
    assert_eq!(server.ledger().requests("ping"), 2);
    assert_eq!(told(&file), [vec![(0, None)], vec![(4_000, Some(4_000))]]);
}

/// An answer that comes when its question was given up is seen at the deadline of the next one.
#[tokio::test(start_paused = true)]
async fn traces_tell_of_a_pong_that_is_too_late_at_the_next_deadline() {
    let (server, connection, file) = recorded("ping#1 delay 25s, ok\nping never", Config::default());
    connection.session().await.unwrap();
    server.watch().wait_until(|ledger| ledger.requests("ping") == 2).await;
    tokio::time::sleep(secs(30)).await;
    connection.shutdown().await;
    assert_eq!(told(&file), [vec![(0, None)], vec![(0, None), (20_000, Some(5_000)), (20_000, None)]]);
}

/// A call without a reply has the server asked, and is told of the answer as any question is: the strike stays.
#[tokio::test(start_paused = true)]
async fn traces_tell_of_the_pong_that_a_silent_call_led_to() {
    let (server, connection, file) = recorded("call write never\nping delay 5s, ok", Config::default());
    assert!(connection.call_tool_with(tool("write"), &within(secs(1))).await.is_err());
    tokio::time::sleep(secs(30)).await;
    assert_eq!(connection.snapshot().breaker, mcp_reconnect::core::Breaker::Closed { strikes: 1 });
    connection.shutdown().await;
    assert_eq!(server.ledger().requests("ping"), 1);
    assert_eq!(told(&file), [[(5_000, Some(5_000))]]);
}
