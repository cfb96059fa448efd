//! K06: a start has one deadline, leaves nothing behind, and holds up nobody else.

use std::time::Duration;

use mcp_reconnect::core::{Config, FailureClass, Status};
use mcp_reconnect::stdio::StdioConnector;
use mcp_reconnect::{CloseGraces, Connection, Event};
use mcp_reconnect_tests::link::process_command;
use tokio::time::{Instant, timeout};

use crate::support::*;

const START: Duration = Duration::from_secs(30); // the default

/// Waits for the next failed attempt: its class, its cause, and when it was given up.
async fn next_failure(events: &mut mcp_reconnect::Events) -> (FailureClass, String, Instant) {
    loop {
        match events.next().await {
            Some(Event::Status {
                status: Status::TransientFailure | Status::Parked(_),
                failure: Some(failure),
                cause,
            }) => {
                return (failure, cause.as_deref().unwrap_or_default().to_owned(), Instant::now());
            }
            Some(Event::Status { status: Status::Ready(epoch), .. }) => panic!("Ready({epoch})"),
            Some(_) => {}
            None => panic!("the connection has ended"),
        }
    }
}

/// S-silent-init, S-silent-list, and other ways not to come to an end. Also R020.
#[tokio::test(start_paused = true)]
async fn k06_silent_init_and_silent_list() {
    for silence in [
        "initialize never",
        "list never",
        "discover never\n initialize never",
        "start deaf",
        "start mute",
        "paging 2\n list#2 never",
        // Bytes alone are no progress.
        "initialize notify message x200 every 1s, never",
        "list notify message x200 every 1s, never",
        "initialize request ping, delay 10s, request ping, delay 10s, request ping, never",
        "initialize wrong-id",
        "list wrong-id",
    ] {
        let server = memory(&format!("spawn 1:\n {silence}\n ignore EOF\n ignore TERM"));
        let connection = connect(&server);
        let mut events = connection.events();
        let began = Instant::now();
        let (class, cause, at) = next_failure(&mut events).await;
        assert_eq!(class, FailureClass::StartTimeout, "{silence}: {cause}");
        assert_eq!(at - began, START, "{silence}");
        assert_eq!(until_ready(&mut events).await, 2, "{silence}");
        // The first was gone before the second began, deaf to everything but a kill.
        let ledger = server.ledger();
        assert_eq!((ledger.spawns(), ledger.live_links()), (2, 1), "{silence}");
        assert!(ledger.spawn_times()[1] >= 30_000 + 7_000, "{silence}: {:?}", ledger.spawn_times());
        connection.shutdown().await;
        assert_eq!(server.ledger().live_links(), 0, "{silence}");
    }
}

#[tokio::test]
async fn k06_r020_the_process_of_a_silent_start_is_gone() {
    for silence in ["initialize never", "list never", "start deaf"] {
        let server = process(&format!("spawn 1:\n {silence}"));
        let mut command = process_command(&server);
        command.graces = CloseGraces { eof: millis(200), term: millis(200), ..CloseGraces::default() };
        let config = config(|config| config.connect_timeout(secs(1)).connect_timeout_max(secs(60)));
        let connection = Connection::builder(StdioConnector::new(command)).config(config).seed(7).build().unwrap();
        let mut events = connection.events();
        timeout(secs(60), async {
            // On a machine that is slow enough the second start times out as well.
            let (class, ..) = next_failure(&mut events).await;
            assert_eq!(class, FailureClass::StartTimeout, "{silence}");
            until_ready(&mut events).await;
            let ledger = server.ledger().unwrap();
            assert_eq!(ledger.live_pids(), ledger.pids()[ledger.spawns() - 1..], "{silence}");
            assert!(ledger.zombies().is_empty(), "{silence}");
            connection.shutdown().await;
        })
        .await
        .expect("a hang");
        let ledger = server.ledger().unwrap();
        assert!(ledger.live_pids().is_empty() && ledger.zombies().is_empty(), "{silence}");
    }
}

#[tokio::test(start_paused = true)]
async fn k06_one_deadline_covers_all_steps_of_a_start() {
    // Each step alone would be in time; the second begins 2 s after the first.
    let server = memory("spawn 1:\n discover delay 9s\n initialize delay 14s\n list delay 15s");
    let connection = connect(&server);
    let mut events = connection.events();
    let began = Instant::now();
    let (class, _, at) = next_failure(&mut events).await;
    assert_eq!((class, at - began), (FailureClass::StartTimeout, START));
    assert_eq!(until_ready(&mut events).await, 2);
}

#[tokio::test(start_paused = true)]
async fn k06_a_start_just_in_time_is_in_time() {
    let server = memory("initialize delay 15s\nlist delay 14900ms");
    let connection = connect(&server);
    let began = Instant::now();
    assert_eq!(until_ready(&mut connection.events()).await, 1);
    assert_eq!(began.elapsed(), millis(29_900));
}

/// Also R021, without HTTP.
#[tokio::test(start_paused = true)]
async fn k06_noise_before_reply() {
    let server = memory(
        "initialize notify message '{\"level\":\"info\",\"data\":\"starting\"}', request ping wait, ok\n\
         list notify message '{\"level\":\"info\",\"data\":\"listing\"}', request ping wait, ok",
    );
    let connection = connect(&server);
    assert_eq!(until_ready(&mut connection.events()).await, 1);
    let ledger = server.ledger();
    assert_eq!((ledger.spawns(), ledger.initializes()), (1, 1));
    let answers = ledger.answers("ping");
    assert_eq!(answers.len(), 2);
    assert!(answers.iter().all(|answer| answer["result"] == serde_json::json!({})), "{answers:?}");
}

#[tokio::test(start_paused = true)]
async fn k06_only_the_id_makes_a_reply() {
    for noise in [
        r#"{\"jsonrpc\":\"2.0\",\"id\":77,\"result\":{\"protocolVersion\":\"1999-01-01\"}}"#,
        r#"{\"jsonrpc\":\"2.0\",\"id\":null,\"error\":{\"code\":-32700,\"message\":\"Parse error\"}}"#,
        r#"{\"jsonrpc\":\"2.0\",\"id\":\"initialize\",\"error\":{\"code\":-32000,\"message\":\"no\"}}"#,
        r#"{\"jsonrpc\":\"2.0\",\"method\":\"initialize\",\"params\":{}}"#,
        r#"{\"jsonrpc\":\"2.0\",\"id\":9,\"method\":\"no/such\",\"params\":{}}"#,
        r"starting up on port 3000...",
        r"[1, 2",
    ] {
        let server = memory(&format!("start stdout \"{noise}\\n\"\ninitialize stdout \"{noise}\\n\", delay 1s, ok"));
        let connection = connect(&server);
        assert_eq!(until_ready(&mut connection.events()).await, 1, "{noise}");
        assert_eq!(server.ledger().spawns(), 1, "{noise}");
        assert_eq!(text(connection.call_tool(tool_with("echo", "fine")).await), "fine", "{noise}");
    }
}

/// Also R022. B dies as soon as it starts: what a refused connection is to a child process.
#[tokio::test(start_paused = true)]
async fn k06_three_servers() {
    let scripts = ["initialize delay 50ms", "initialize exit 9", "initialize never"];
    let servers = scripts.map(memory);
    let began = Instant::now();
    let connections = servers.each_ref().map(connect);
    let [mut a, mut b, mut c] = connections.each_ref().map(Connection::events);
    assert_eq!(began.elapsed(), Duration::ZERO, "building waits for nobody");
    assert_eq!(until_ready(&mut a).await, 1);
    assert_eq!(began.elapsed(), millis(50));
    assert_eq!(text(connections[0].call_tool(tool_with("echo", "a")).await), "a");
    let (class, cause, at) = next_failure(&mut b).await;
    assert_eq!(class, FailureClass::Transport);
    assert!(cause.contains("status 9"), "{cause}");
    assert!(at - began < secs(1));
    let (class, cause, at) = next_failure(&mut c).await;
    assert_eq!((class, at - began), (FailureClass::StartTimeout, START), "{cause}");
    assert_eq!(connections[0].snapshot().status, Status::Ready(epoch(1)));
    assert_eq!(servers[0].ledger().spawns(), 1);
}

#[tokio::test(start_paused = true)]
async fn k06_a_hundred_silent_servers_hold_up_nobody() {
    let silent: Vec<_> = (0..100).map(|_| memory("initialize never\nignore EOF\nignore TERM")).collect();
    let silent: Vec<_> = silent.iter().map(connect).collect();
    let server = memory("");
    let began = Instant::now();
    let connection = connect(&server);
    assert_eq!(text(connection.call_tool(tool_with("echo", "here")).await), "here");
    assert_eq!(began.elapsed(), Duration::ZERO);
    // Nor do those that are being closed.
    let closing = futures::future::join_all(silent.iter().map(Connection::shutdown));
    let serving = async {
        assert_eq!(text(connection.call_tool(tool_with("echo", "still")).await), "still");
        began.elapsed()
    };
    let (_, answered) = tokio::join!(closing, serving);
    assert_eq!(answered, Duration::ZERO);
    assert!(began.elapsed() <= Config::default().close_timeout(), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn k06_what_is_not_needed_to_be_ready_delays_nothing() {
    let server = memory("prompts p\nresources file:///a\nprompts/list never\nresources/list never");
    let connection = connect(&server);
    let began = Instant::now();
    assert_eq!(until_ready(&mut connection.events()).await, 1);
    assert_eq!(began.elapsed(), Duration::ZERO);
    assert_eq!(text(connection.call_tool(tool_with("echo", "here")).await), "here");
    tokio::time::sleep(secs(300)).await;
    assert_eq!((server.ledger().spawns(), connection.snapshot().status), (1, Status::Ready(epoch(1))));
}

#[tokio::test(start_paused = true)]
async fn k06_a_set_up_that_hangs_keeps_no_session_from_ready() {
    let server =
        memory("resources file:///a\ncapabilities tools, resources(subscribe)\nspawn 2..:\n resources/subscribe never");
    let connection = connect(&server);
    let mut events = connection.events();
    until_ready(&mut events).await;
    connection.subscribe("file:///a").await.unwrap();
    connection.invalidate(epoch(1), "start anew");
    let began = Instant::now();
    assert_eq!(until_ready(&mut events).await, 2);
    assert!(began.elapsed() < secs(10), "{:?}", began.elapsed());
}

/// The probe of the modern era is part of the start, and its silence leaves time for the rest.
#[tokio::test(start_paused = true)]
async fn k06_a_silent_probe_fails_no_start() {
    let server = memory("discover never");
    let connection = connect(&server);
    let began = Instant::now();
    assert_eq!(until_ready(&mut connection.events()).await, 1);
    assert!(began.elapsed() <= START / 3, "{:?}", began.elapsed());
    assert_eq!((server.ledger().spawns(), server.ledger().initializes()), (1, 1));
}
