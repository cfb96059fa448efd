//! K01: a dead server is noticed and restarted.

use std::time::Duration;

use mcp_reconnect::core::{FailureClass, Refusal, Status};
use mcp_reconnect::stdio::StdioConnector;
use mcp_reconnect::{CallError, CallOptions, CloseGraces, Connection, Event};
use mcp_reconnect_tests::fake::FakeProcess;
use mcp_reconnect_tests::link::process_command;
use rustix::process::{Pid, Signal, kill_process};
use tokio::time::{Instant, timeout};

use crate::support::*;

/// Far beyond anything a slow machine needs: a hang, not a measurement.
const HANG: Duration = Duration::from_secs(60);

async fn soon<T>(future: impl Future<Output = T>) -> T {
    timeout(HANG, future).await.expect("it should have happened by now")
}

/// Its servers need not hear the end of their input.
fn connect_impatient(server: &FakeProcess) -> Connection {
    let mut command = process_command(server);
    command.graces = CloseGraces { eof: millis(100), term: millis(100), ..CloseGraces::default() };
    Connection::builder(StdioConnector::new(command)).name("fake").seed(7).build().unwrap()
}

#[tokio::test(start_paused = true)]
async fn k01_crash_then_call() {
    let server = memory("spawn 1:\n after 10s exit 1");
    let connection = connect(&server);
    let mut events = connection.events();
    assert_eq!(until_ready(&mut events).await, 1);
    assert_eq!(text(connection.call_tool(tool_with("echo", "one")).await), "one");
    assert_eq!(next_status(&mut events).await, Status::TransientFailure);
    // A patient caller does not wait for its own deadline, but for the server.
    let asked = Instant::now();
    let answer = connection.call_tool_with(tool_with("echo", "two"), &within(secs(1800))).await;
    assert_eq!(text(answer), "two");
    assert!(asked.elapsed() < secs(5), "{:?}", asked.elapsed());
    assert_eq!(server.ledger().spawns(), 2);
    assert_eq!(until_ready(&mut events).await, 2);
}

/// Also R002.
#[tokio::test(start_paused = true)]
async fn k01_kill_in_call() {
    let server = memory("spawn 1:\n call write commit, delay 3s, kill");
    let connection = connect(&server);
    let asked = Instant::now();
    match connection.call_tool_with(tool("write"), &within(secs(1800))).await {
        Err(CallError::OutcomeUnknown { epoch: failed, cause, .. }) => {
            assert_eq!(failed, epoch(1));
            assert!(cause.contains("SIGKILL"), "{cause}");
        }
        other => panic!("{other:?}"),
    }
    assert!(asked.elapsed() < secs(4), "{:?}", asked.elapsed());
    assert_eq!(text(connection.call_tool(tool_with("write", "two")).await), "two");
    assert_eq!(server.ledger().executions("write"), 2);
}

/// The same with a process that nobody asked to die.
#[tokio::test]
async fn k01_killed_process_in_a_call() {
    let server = process("spawn 1:\n call write commit, never");
    let connection = connect_process(&server);
    let session = soon(connection.session()).await.unwrap();
    let call = {
        let connection = connection.clone();
        tokio::spawn(async move { connection.call_tool_with(tool("write"), &within(secs(1800))).await })
    };
    soon(server.watch().wait_until(|ledger| ledger.executions("write") == 1)).await;
    let pid = session.facts().pid.and_then(|pid| Pid::from_raw(pid.cast_signed())).expect("a process");
    kill_process(pid, Signal::KILL).expect("it runs");
    match soon(call).await.unwrap() {
        Err(CallError::OutcomeUnknown { cause, .. }) => assert!(cause.contains("SIGKILL"), "{cause}"),
        other => panic!("{other:?}"),
    }
    assert_eq!(text(soon(connection.call_tool(tool_with("write", "two"))).await), "two");
    soon(connection.shutdown()).await;
    let ledger = server.ledger().unwrap();
    assert_eq!((ledger.spawns(), ledger.executions("write")), (2, 2));
    assert_eq!((ledger.live_pids(), ledger.zombies()), (vec![], vec![]));
}

/// Also R003.
#[tokio::test(start_paused = true)]
async fn k01_clean_idle_exit() {
    let server = memory("spawn 1:\n call echo ok, delay 1s, exit 0");
    let connection = connect(&server);
    assert_eq!(text(connection.call_tool(tool_with("echo", "one")).await), "one");
    let mut events = connection.events();
    assert_eq!(next_status(&mut events).await, Status::TransientFailure);
    // At the worst moment: the exit was seen, the next spawn is not there.
    assert_eq!(text(connection.call_tool(tool_with("echo", "two")).await), "two");
    assert_eq!(server.ledger().spawns(), 2);
    assert_eq!(server.ledger().exits(), [(1, "exit 0")]);
}

#[tokio::test(start_paused = true)]
async fn k01_clean_exits_of_proven_sessions_cost_no_budget() {
    // Some launchers end their server after each idle time, for weeks.
    let server = memory("after 20s exit 0");
    let connection = connect(&server);
    let mut events = connection.events();
    for number in 1..=100 {
        assert_eq!(until_ready(&mut events).await, number);
    }
    let ledger = server.ledger();
    let times = ledger.spawn_times();
    assert!(times.windows(2).all(|pair| pair[1] - pair[0] <= 20_500), "{times:?}");
    let seen = drain_statuses(connection, events).await;
    assert!(!seen.iter().any(|status| matches!(status, Status::Parked(_))), "{seen:?}");
}

#[tokio::test(start_paused = true)]
async fn k01_r001_comes_back_without_being_asked() {
    let server = memory("spawn 1:\n call echo ok, exit 1");
    let connection = connect(&server);
    let mut events = connection.events();
    assert_eq!(until_ready(&mut events).await, 1);
    assert_eq!(text(connection.call_tool(tool_with("echo", "one")).await), "one");
    let lost = Instant::now();
    let seen = until_status(&mut events, |status| status == Status::Ready(epoch(2))).await;
    assert_eq!(seen, [Status::TransientFailure, Status::Connecting, Status::Ready(epoch(2))]);
    assert!(lost.elapsed() <= secs(1), "{:?}", lost.elapsed());
    assert_eq!(text(connection.call_tool(tool_with("echo", "two")).await), "two");
    assert_eq!((server.ledger().spawns(), server.ledger().calls("echo")), (2, 2));
}

#[tokio::test(start_paused = true)]
async fn k01_every_end_is_noticed_at_once() {
    // Nobody calls, nobody waits for a session: the end itself must be seen.
    for end in ["exit 0", "exit 1", "kill", "close stdout"] {
        let server = memory(&format!("spawn 1:\n after 10s {end}"));
        let connection = connect(&server);
        let mut events = connection.events();
        let began = Instant::now();
        assert_eq!(until_ready(&mut events).await, 1);
        assert_eq!(next_status(&mut events).await, Status::TransientFailure, "{end}");
        let noticed = began.elapsed();
        assert!((secs(10)..=secs(11)).contains(&noticed), "{end}: {noticed:?}");
        assert_eq!(until_ready(&mut events).await, 2, "{end}");
        assert_eq!(server.ledger().live_links(), 1, "{end}");
    }
}

#[tokio::test]
async fn k01_every_end_of_a_process_is_noticed() {
    for (end, said) in [
        ("exit 3", "status 3"),
        ("kill", "SIGKILL"),
        ("close stdout", "stdout was closed, though the process runs on"),
        // The heir of the pipe does not make the dead live on.
        ("grandchild hold stdout ignore TERM, exit 4", "status 4"),
    ] {
        let server = process(&format!("spawn 1:\n ignore EOF\n on USR1 stderr \"last words\\n\", {end}"));
        let connection = connect_impatient(&server);
        let mut events = connection.events();
        assert_eq!(soon(until_ready(&mut events)).await, 1);
        let pid = Pid::from_raw(server.ledger().unwrap().pids()[0].cast_signed()).unwrap();
        kill_process(pid, Signal::USR1).unwrap();
        let cause = soon(async {
            loop {
                if let Some(Event::Status { status: Status::TransientFailure, failure, cause }) = events.next().await {
                    assert_eq!(failure, Some(FailureClass::Transport));
                    return cause.expect("a cause");
                }
            }
        })
        .await;
        assert!(cause.contains(said), "{end}: {cause}");
        if end != "close stdout" {
            assert!(cause.contains("last words"), "{end}: {cause}");
        }
        assert_eq!(soon(until_ready(&mut events)).await, 2, "{end}");
        let ledger = server.ledger().unwrap();
        assert_eq!(ledger.live_pids(), [*ledger.pids().last().unwrap()], "{end}");
        soon(connection.shutdown()).await;
        // Who reaps an orphan is the system's business.
        assert!(server.ledger().unwrap().live_pids().is_empty(), "{end}");
    }
}

/// Its stdout stays open, so only writing to it tells. The call was not written, and nobody hears of that.
#[tokio::test]
async fn k01_a_process_that_hears_nothing_any_more_is_replaced() {
    let server = process("spawn 1:\n call echo close stdin, delay 300ms, ok");
    let connection = connect_impatient(&server);
    assert_eq!(text(soon(connection.call_tool(tool_with("echo", "one"))).await), "one");
    assert_eq!(text(soon(connection.call_tool(tool_with("write", "two"))).await), "two");
    soon(connection.shutdown()).await;
    let ledger = server.ledger().unwrap();
    assert_eq!((ledger.of_spawn(1).calls("write"), ledger.of_spawn(2).executions("write")), (0, 1));
    assert_eq!((ledger.live_pids(), ledger.zombies()), (vec![], vec![]));
}

#[tokio::test(start_paused = true)]
async fn k01_the_offer_stays_through_a_restart_and_is_republished() {
    let server = memory("spawn 1:\n tools a\n after 10s exit 1\nspawn 2:\n tools b\n initialize delay 3s");
    let connection = connect(&server);
    let mut events = connection.events();
    until_ready(&mut events).await;
    let offered = |tool: &str| connection.catalogue().is_some_and(|catalogue| catalogue.tool(tool).is_some());
    assert_eq!(next_status(&mut events).await, Status::TransientFailure);
    assert!(offered("a"));
    assert_eq!(until_ready(&mut events).await, 2);
    assert!(offered("b") && !offered("a"));
}

#[tokio::test(start_paused = true)]
async fn k01_a_call_while_down_fails_with_the_reason_at_once() {
    let server = memory("spawn 1:\n after 10s exit 1\nspawn 2..:\n initialize exit 3");
    let connection = connect(&server);
    let mut events = connection.events();
    until_ready(&mut events).await;
    assert_eq!(next_status(&mut events).await, Status::TransientFailure);
    let asked = Instant::now();
    match connection.call_tool_with(tool("write"), &within(secs(1800))).await {
        Err(error @ CallError::Refused { why: Refusal::NotInTime, .. }) => {
            assert!(error.not_run());
            let CallError::Refused { retry_at, cause, .. } = error else { unreachable!() };
            assert!(cause.is_some_and(|cause| cause.contains("status 3")));
            assert!(retry_at.is_some());
        }
        other => panic!("{other:?}"),
    }
    assert!(asked.elapsed() <= CallOptions::default().max_wait, "{:?}", asked.elapsed());
    assert_eq!(server.ledger().calls("write"), 0);
}

#[tokio::test]
async fn k01_a_refused_caller_reads_the_last_lines_of_stderr() {
    let server = process("start stderr \"cannot open the data base\\n\", exit 3");
    let connection = connect_process(&server);
    let mut events = connection.events();
    soon(until_status(&mut events, |status| status == Status::TransientFailure)).await;
    let options = CallOptions { max_wait: millis(1), ..within(secs(1800)) };
    match soon(connection.call_tool_with(tool("write"), &options)).await {
        Err(CallError::Refused { cause: Some(cause), .. }) => {
            assert!(cause.contains("status 3") && cause.contains("cannot open the data base"), "{cause}");
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn k01_calls_join_one_recovery() {
    let server = memory("spawn 1:\n after 10s kill\nspawn 2..:\n initialize delay 2s");
    let connection = connect(&server);
    let mut events = connection.events();
    until_ready(&mut events).await;
    assert_eq!(next_status(&mut events).await, Status::TransientFailure);
    let calls = (0..100).map(|number| {
        let connection = connection.clone();
        async move { text(connection.call_tool(tool_with("write", &number.to_string())).await) }
    });
    let answers = futures::future::join_all(calls).await;
    assert_eq!(answers, (0..100).map(|number: i32| number.to_string()).collect::<Vec<_>>());
    let ledger = server.ledger();
    assert_eq!((ledger.spawns(), ledger.initializes(), ledger.executions("write")), (2, 2, 100));
}
