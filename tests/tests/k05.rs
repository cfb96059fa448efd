//! K05: no request outlives its epoch.

use mcp_reconnect::core::replay::Sent;
use mcp_reconnect::core::{FailureClass, Status};
use mcp_reconnect::stdio::StdioConnector;
use mcp_reconnect::{CallError, CloseGraces, Connection, Event};
use mcp_reconnect_tests::link::process_command;
use tokio::time::{Instant, sleep, timeout};

use crate::support::*;

/// Starts a call that has all the time in the world, and waits until the server has run it.
async fn call_in_flight(
    connection: &Connection,
    server: &mcp_reconnect_tests::fake::FakeServer,
) -> tokio::task::JoinHandle<Result<rmcp::model::CallToolResponse, CallError>> {
    let call = {
        let connection = connection.clone();
        tokio::spawn(async move { connection.call_tool_with(tool("write"), &within(secs(1800))).await })
    };
    server.watch().wait_until(|ledger| ledger.executions("write") == 1).await;
    call
}

fn assert_unknown(outcome: &Result<rmcp::model::CallToolResponse, CallError>, of: u64) {
    match outcome {
        Err(error @ CallError::OutcomeUnknown { epoch: failed, .. }) => {
            assert_eq!(*failed, epoch(of));
            assert!(!error.not_run());
        }
        other => panic!("{other:?}"),
    }
}

/// H-die-mid-call and R017 without HTTP.
#[tokio::test(start_paused = true)]
async fn k05_die_mid_call() {
    for end in [
        "exit 0",
        "exit 1",
        "kill",
        "close stdout, never",
        "stdout \"{\\\"jsonrpc\\\":\\\"2.0\\\",\\\"id\\\":\", kill",
        "notify message, progress 3 every 10ms, kill",
    ] {
        let server = memory(&format!("spawn 1:\n call write commit, delay 50ms, {end}"));
        let connection = connect(&server);
        let asked = Instant::now();
        let outcome = connection.call_tool_with(tool("write"), &within(secs(1800))).await;
        assert_unknown(&outcome, 1);
        assert!(asked.elapsed() < secs(1), "{end}: {:?}", asked.elapsed());
        assert_eq!(server.ledger().executions("write"), 1, "{end}");
        assert_eq!(text(connection.call_tool(tool_with("write", "next")).await), "next", "{end}");
        assert_eq!((server.ledger().spawns(), server.ledger().executions("write")), (2, 2), "{end}");
    }
}

#[tokio::test(start_paused = true)]
async fn k05_all_requests_of_an_epoch_settle_in_one_turn() {
    let server = memory("prompts p\nspawn 1:\n call * commit, never\n prompts/get never\n after 10s kill");
    let connection = connect(&server);
    let session = connection.session().await.unwrap();
    let began = Instant::now();
    let writes = (0..50).map(|_| async {
        let outcome = connection.call_tool_with(tool("write"), &within(secs(1800))).await;
        assert_unknown(&outcome, 1);
        Instant::now()
    });
    // A typed request on rmcp's own service is one of the epoch's too.
    let typed = async {
        assert!(session.service().call_tool(tool("write")).await.is_err());
        Instant::now()
    };
    // What may be repeated is, on the next session.
    let reads = async { text(connection.call_tool_with(tool_with("echo", "again"), &within(secs(1800))).await) };
    let ended = async {
        session.ended().await;
        Instant::now()
    };
    let (writes, typed, read, ended) = tokio::join!(futures::future::join_all(writes), typed, reads, ended);
    assert!(began.elapsed() < secs(12), "{:?}", began.elapsed());
    assert!(writes.iter().all(|settled| *settled == ended), "{:?} {writes:?}", ended);
    assert_eq!((typed, &*read), (ended, "again"));
    let ledger = server.ledger();
    assert_eq!((ledger.of_spawn(1).executions("write"), ledger.of_spawn(2).executions("write")), (51, 0));
    assert_eq!((ledger.of_spawn(1).executions("echo"), ledger.of_spawn(2).executions("echo")), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn k05_whoever_ends_an_epoch_its_calls_settle() {
    type End = fn(&Connection);
    let ends: [(&str, End); 4] = [
        ("invalidate", |connection| connection.invalidate(epoch(1), "the user says so")),
        ("park", Connection::park),
        ("shutdown", |connection| {
            drop(tokio::spawn({
                let connection = connection.clone();
                async move { connection.shutdown().await }
            }))
        }),
        ("invalidate twice", |connection| {
            connection.invalidate(epoch(1), "one");
            connection.invalidate(epoch(1), "two");
        }),
    ];
    for (name, end) in ends {
        // A server that is in no hurry to end.
        let server = memory("call write commit, never\nignore EOF\nignore TERM");
        let connection = connect(&server);
        let call = call_in_flight(&connection, &server).await;
        let asked = Instant::now();
        end(&connection);
        let outcome = call.await.unwrap();
        assert!(matches!(outcome, Err(CallError::OutcomeUnknown { .. })), "{name}: {outcome:?}");
        assert!(asked.elapsed() < secs(1), "{name}: settled after {:?}", asked.elapsed());
        connection.shutdown().await;
        assert_eq!((server.ledger().executions("write"), server.ledger().live_links()), (1, 0), "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn k05_callers_that_wait_for_a_session_hear_of_the_shutdown() {
    let server = memory("initialize never");
    let connection = connect(&server);
    let waiting = {
        let connection = connection.clone();
        tokio::spawn(async move { connection.call_tool(tool("write")).await })
    };
    let session = {
        let connection = connection.clone();
        tokio::spawn(async move { connection.session().await.map(drop) })
    };
    server.watch().wait_until(|ledger| ledger.initializes() == 1).await;
    let asked = Instant::now();
    connection.shutdown().await;
    assert!(matches!(waiting.await.unwrap(), Err(CallError::Closed)));
    assert!(matches!(session.await.unwrap(), Err(CallError::Closed)));
    assert!(matches!(connection.call_tool(tool("write")).await, Err(CallError::Closed)));
    assert!(asked.elapsed() < secs(1), "{:?}", asked.elapsed());
}

#[tokio::test(start_paused = true)]
async fn k05_the_last_handle_takes_its_calls_along() {
    let server = memory("call write commit, never");
    let connection = connect(&server);
    let session = connection.session().await.unwrap();
    let call = call_in_flight(&connection, &server).await;
    call.abort();
    assert!(call.await.unwrap_err().is_cancelled());
    drop(connection);
    session.ended().await;
    server.watch().wait_until(|ledger| ledger.live_links() == 0).await;
}

/// Also R018.
#[tokio::test(start_paused = true)]
async fn k05_deaf_bridge() {
    let server = memory("spawn 1:\n call *#2.. commit, never\n ping never\n ignore EOF\n ignore TERM");
    let connection = connect(&server);
    let mut events = connection.events();
    assert_eq!(until_ready(&mut events).await, 1);
    assert_eq!(text(connection.call_tool(tool_with("write", "one")).await), "one");
    sleep(secs(1)).await;
    let asked = Instant::now();
    match connection.call_tool_with(tool("write"), &within(secs(5))).await {
        Err(CallError::DeadlineExceeded { epoch: asked, sent: Sent::Maybe }) => assert_eq!(asked, epoch(1)),
        other => panic!("{other:?}"),
    }
    assert_eq!(asked.elapsed(), secs(5));
    // Its silence is asked about at once, and nobody has to call for that.
    loop {
        match events.next().await {
            Some(Event::Status { status, failure, .. }) => {
                assert_eq!((status, failure), (Status::TransientFailure, Some(FailureClass::Unresponsive)));
                break;
            }
            Some(_) => {}
            None => panic!("the connection has ended"),
        }
    }
    assert_eq!(asked.elapsed(), secs(5 + 2 * 20)); // ping_timeout × ping_misses
    assert_eq!(until_ready(&mut events).await, 2);
    assert_eq!(text(connection.call_tool(tool_with("write", "three")).await), "three");
    let ledger = server.ledger();
    assert_eq!((ledger.spawns(), ledger.live_links()), (2, 1));
    assert_eq!((ledger.of_spawn(1).requests("ping"), ledger.executions("write")), (2, 3));
    assert_eq!(ledger.cancelled().len(), 1);
}

#[tokio::test]
async fn k05_deaf_bridge_process_is_killed() {
    let server = process("spawn 1:\n call *#1 deaf, ok\n ignore EOF\n ignore TERM");
    let mut command = process_command(&server);
    command.graces = CloseGraces { eof: millis(100), term: millis(100), kill: secs(5) };
    let config = config(|config| config.ping_timeout(millis(300)));
    let connection = Connection::builder(StdioConnector::new(command)).config(config).seed(7).build().unwrap();
    let mut events = connection.events();
    timeout(secs(60), async {
        assert_eq!(until_ready(&mut events).await, 1);
        assert_eq!(text(connection.call_tool(tool_with("write", "one")).await), "one");
        let outcome = connection.call_tool_with(tool("write"), &within(millis(300))).await;
        assert!(matches!(outcome, Err(CallError::DeadlineExceeded { .. })), "{outcome:?}");
        assert_eq!(until_ready(&mut events).await, 2);
        let ledger = server.ledger().unwrap();
        assert_eq!((ledger.live_pids(), ledger.zombies()), (vec![ledger.pids()[1]], vec![]));
        assert_eq!(text(connection.call_tool(tool_with("write", "three")).await), "three");
        connection.shutdown().await;
    })
    .await
    .expect("a hang");
    let ledger = server.ledger().unwrap();
    assert_eq!((ledger.spawns(), ledger.live_pids(), ledger.zombies()), (2, vec![], vec![]));
}

#[tokio::test(start_paused = true)]
async fn k05_a_timeout_on_a_session_that_talks_is_no_suspicion() {
    // The same timeout, but something came in since the call was sent: no ping, no new process.
    for sign_of_life in [
        "notify message",
        "request roots",
        "stdout \"{\\\"jsonrpc\\\":\\\"2.0\\\",\\\"id\\\":5,\\\"result\\\":{}}\\n\"",
    ] {
        let server = memory(&format!("call write#1 commit, delay 1s, {sign_of_life}, never\nping never"));
        let connection = connect(&server);
        connection.session().await.unwrap();
        sleep(secs(1)).await;
        let outcome = connection.call_tool_with(tool("write"), &within(secs(5))).await;
        assert!(matches!(outcome, Err(CallError::DeadlineExceeded { sent: Sent::Maybe, .. })), "{outcome:?}");
        sleep(secs(40)).await;
        assert_eq!((server.ledger().spawns(), server.ledger().requests("ping")), (1, 0), "{sign_of_life}");
        assert_eq!(text(connection.call_tool(tool_with("write", "two")).await), "two");
    }
}

#[tokio::test(start_paused = true)]
async fn k05_a_suspect_that_answers_the_ping_is_kept() {
    for answer in ["ping ok", "ping error -32601 \"Method not found\"", "ping delay 30s, ok"] {
        let server = memory(&format!("call write#1 commit, never\n{answer}"));
        let connection = connect(&server);
        connection.session().await.unwrap();
        sleep(secs(1)).await;
        let outcome = connection.call_tool_with(tool("write"), &within(secs(5))).await;
        assert!(matches!(outcome, Err(CallError::DeadlineExceeded { .. })), "{outcome:?}");
        sleep(secs(59)).await;
        let ledger = server.ledger();
        assert_eq!(ledger.spawns(), 1, "{answer}");
        assert!(ledger.requests("ping") >= 1, "{answer}");
        assert_eq!(text(connection.call_tool(tool_with("write", "two")).await), "two");
    }
}

#[tokio::test(start_paused = true)]
async fn k05_deaf_bridge_says_so() {
    let server = memory("spawn 1:\n call * commit, never\n ping never");
    let connection = connect(&server);
    let mut events = connection.events();
    until_ready(&mut events).await;
    sleep(secs(1)).await;
    // One caller's timeout starts the question; the patient other one hears what came of it.
    let patient = {
        let connection = connection.clone();
        tokio::spawn(async move {
            sleep(secs(30)).await; // after the ping, so that it does not put the verdict off
            connection.call_tool_with(tool("write"), &within(secs(1800))).await
        })
    };
    assert!(connection.call_tool_with(tool("write"), &within(secs(5))).await.is_err());
    loop {
        if let Some(Event::Status { status: Status::TransientFailure, failure, cause }) = events.next().await {
            assert_eq!(failure, Some(FailureClass::Unresponsive));
            assert!(cause.is_some(), "a verdict has a cause in words");
            break;
        }
    }
    match patient.await.unwrap() {
        Err(CallError::OutcomeUnknown { class: FailureClass::Unresponsive, cause, .. }) => assert!(!cause.is_empty()),
        other => panic!("{other:?}"),
    }
}
