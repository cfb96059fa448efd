//! K04: an answer is an answer, a transient failure is tried again, a permanent one is not.

use mcp_reconnect::core::{Breaker, FailureClass, ParkReason, Refusal, Status, WakeCause};
use mcp_reconnect::stdio::StdioConnector;
use mcp_reconnect::{CallError, Connection, Event, ServerCommand};
use mcp_reconnect_tests::fake::FakeServer;
use rmcp::model::{CallToolResponse, GetPromptRequestParams, ReadResourceRequestParams};

use crate::support::*;

/// Whatever was answered, the first session still serves, and nothing counts against it.
async fn assert_untouched(connection: Connection, server: &FakeServer, events: mcp_reconnect::Events) {
    let snapshot = connection.snapshot();
    assert_eq!(snapshot.status, Status::Ready(epoch(1)));
    assert_eq!(snapshot.breaker, Breaker::Closed { strikes: 0 });
    assert_eq!((snapshot.stats.failures, snapshot.stats.no_replies, snapshot.stats.dials), (0, 0, 1));
    let ledger = server.ledger();
    assert_eq!((ledger.spawns(), ledger.initializes()), (1, 1));
    let seen = drain_statuses(connection, events).await;
    assert_eq!(seen, [Status::Shutdown]);
}

/// Also R014.
#[tokio::test(start_paused = true)]
async fn k04_app_errors() {
    let server =
        memory("call write#1 error -32602 \"bad path\" '{\"path\":\"/x\"}'\ncall write#2 is-error \"no such file\"");
    let connection = connect(&server);
    connection.session().await.unwrap();
    let events = connection.events();
    match connection.call_tool(tool("write")).await {
        Err(CallError::Server { epoch: answered, error, .. }) => {
            assert_eq!((answered, error.code.0, &*error.message), (epoch(1), -32602, "bad path"));
            assert_eq!(error.data, Some(serde_json::json!({"path": "/x"})));
        }
        other => panic!("{other:?}"),
    }
    match connection.call_tool(tool("write")).await {
        Ok(CallToolResponse::Complete(result)) => {
            assert_eq!(result.is_error, Some(true));
            assert_eq!(text(Ok(CallToolResponse::Complete(result))), "no such file");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(server.ledger().calls("write"), 2);
    assert_untouched(connection, &server, events).await;
}

#[tokio::test(start_paused = true)]
async fn k04_no_error_of_a_tool_is_sent_again_or_breaks_the_session() {
    // `echo` is read-only and might be repeated; the texts are those that clients match strings in.
    let errors = [
        (-32700, "Parse error"),
        (-32600, "Invalid request"),
        (-32601, "Unknown method"),
        (-32602, "Session not found"),
        (-32603, "ECONNRESET: connection closed"),
        (-32000, "Connection closed"),
        (-32000, "no such session: 3"),
        (-32001, "Request timed out"),
        (-32002, "404 Not Found"),
        (-32800, "Request cancelled"),
        (401, "Unauthorized"),
        (503, "Service Unavailable"),
        (0, ""),
    ];
    let lines: Vec<_> =
        (1..).zip(errors).map(|(n, (code, text))| format!("call echo#{n} error {code} {text:?}")).collect();
    let server = memory(&lines.join("\n"));
    let connection = connect(&server);
    connection.session().await.unwrap();
    let events = connection.events();
    for (code, text) in errors {
        match connection.call_tool(tool("echo")).await {
            Err(CallError::Server { error, .. }) => assert_eq!((error.code.0, &*error.message), (code, text)),
            other => panic!("{code}: {other:?}"),
        }
    }
    assert_eq!(server.ledger().calls("echo"), errors.len());
    assert_untouched(connection, &server, events).await;
}

#[tokio::test(start_paused = true)]
async fn k04_errors_of_other_methods_are_answers_too() {
    let server = memory(
        "prompts p\nresources file:///a\n\
         prompts/get error -32603 \"boom\"\nresources/read error -32002 \"gone\"\ncompletion/complete error -32601 \"no\"",
    );
    let connection = connect(&server);
    connection.session().await.unwrap();
    let events = connection.events();
    let prompt = connection.get_prompt(GetPromptRequestParams::new("p")).await;
    assert!(matches!(&prompt, Err(CallError::Server { error, .. }) if error.message == "boom"), "{prompt:?}");
    let resource = connection.read_resource(ReadResourceRequestParams::new("file:///a")).await;
    assert!(matches!(&resource, Err(CallError::Server { error, .. }) if error.code.0 == -32002), "{resource:?}");
    let ledger = server.ledger();
    assert_eq!((ledger.requests("prompts/get"), ledger.requests("resources/read")), (1, 1));
    assert_untouched(connection, &server, events).await;
}

#[tokio::test(start_paused = true)]
async fn k04_an_answer_that_cannot_be_read_is_an_answer() {
    let server = memory("call write#1 bad-shape\ncall write#2 result '{}'\ncall write#3 result '[1]'");
    let connection = connect(&server);
    connection.session().await.unwrap();
    let events = connection.events();
    let answer = connection.call_tool(tool("write")).await;
    assert!(matches!(answer, Err(CallError::UnexpectedAnswer { .. })), "{answer:?}");
    // Whether an empty result is one is rmcp's to say; either way it was an answer.
    let answer = connection.call_tool(tool("write")).await;
    assert!(matches!(answer, Ok(_) | Err(CallError::UnexpectedAnswer { .. })), "{answer:?}");
    let answer = connection.call_tool(tool("write")).await;
    assert!(matches!(answer, Err(CallError::UnexpectedAnswer { .. })), "{answer:?}");
    assert_eq!(text(connection.call_tool(tool_with("write", "fine")).await), "fine");
    assert_eq!(server.ledger().calls("write"), 4);
    assert_untouched(connection, &server, events).await;
}

#[tokio::test(start_paused = true)]
async fn k04_a_hundred_errors_open_no_breaker() {
    let server = memory("call * error -32603 \"timeout\"");
    let connection = connect(&server);
    connection.session().await.unwrap();
    let events = connection.events();
    for _ in 0..100 {
        assert!(matches!(connection.call_tool(tool("write")).await, Err(CallError::Server { .. })));
    }
    assert_untouched(connection, &server, events).await;
}

/// H-transient-404 without HTTP: whatever goes wrong while connecting is tried again, unasked.
#[tokio::test(start_paused = true)]
async fn k04_transient_starts_are_tried_again() {
    for trouble in [
        "start exit 1",
        "initialize exit 0",
        "initialize kill",
        "initialize close stdout, never",
        "initialize error -32603 \"warming up\"",
        "initialize error 503 \"Service Unavailable\"",
        "initialize result '{}'",
        "list exit 1",
        "list error -32603 \"warming up\"",
        "list bad-shape",
    ] {
        let server = memory(&format!("spawn 1..4:\n {trouble}"));
        let connection = connect(&server);
        let mut events = connection.events();
        let seen = until_status(&mut events, |status| matches!(status, Status::Ready(_) | Status::Parked(_))).await;
        assert!(matches!(seen.last(), Some(Status::Ready(_))), "{trouble}: {seen:?}");
        assert_eq!(server.ledger().spawns(), 5, "{trouble}");
        assert_eq!(server.ledger().live_links(), 1, "{trouble}");
        assert_eq!(text(connection.call_tool(tool_with("echo", "up")).await), "up", "{trouble}");
    }
}

/// TLS-truncated without TLS: three transient failures are three steps of the ladder.
#[tokio::test(start_paused = true)]
async fn k04_three_transient_failures_climb_the_ladder() {
    let server = memory("spawn 1..3:\n initialize exit 1");
    let connection = connect(&server);
    let mut events = connection.events();
    assert_eq!(until_ready(&mut events).await, 4);
    let times = server.ledger().spawn_times();
    for (pair, step) in times.windows(2).zip([1000, 2000, 4000]) {
        let wait = pair[1] - pair[0];
        assert!((step / 2..=step + 1).contains(&wait), "{times:?}");
    }
}

/// The same with a failure that no further try can help: once, then parked.
#[tokio::test(start_paused = true)]
async fn k04_no_common_version_parks_at_once() {
    let server = memory("initialize only 2031-01-01");
    let connection = connect(&server);
    let mut events = connection.events();
    let parked = loop {
        match events.next().await {
            Some(Event::Status { status: Status::Parked(reason), failure, cause }) => break (reason, failure, cause),
            Some(Event::Status { status, .. }) => assert_eq!(status, Status::Connecting),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!((parked.0, parked.1), (ParkReason::Permanent, Some(FailureClass::Permanent)));
    assert!(parked.2.as_ref().is_some_and(|cause| cause.contains("2031-01-01")), "{:?}", parked.2);
    // Callers cannot help it either.
    for _ in 0..10 {
        match connection.call_tool(tool("echo")).await {
            Err(CallError::Refused { why: Refusal::Parked(ParkReason::Permanent), cause, retry_at }) => {
                assert_eq!(cause, parked.2);
                assert!(retry_at.is_some());
            }
            other => panic!("{other:?}"),
        }
    }
    tokio::time::sleep(secs(59)).await;
    assert_eq!(server.ledger().spawns(), 1);
    // The slow probe finds out by itself that somebody helped.
    server.set_script("").unwrap();
    tokio::time::sleep(secs(14)).await;
    assert_eq!(connection.snapshot().status, Status::Ready(epoch(2)));
}

#[tokio::test]
async fn k04_a_command_that_is_not_there_is_permanent() {
    let command = ServerCommand::new("/nonexistent/server");
    let connection = Connection::builder(StdioConnector::new(command)).build().unwrap();
    match connection.call_tool(tool("echo")).await {
        Err(CallError::Refused { why: Refusal::Parked(ParkReason::Permanent), cause: Some(cause), .. }) => {
            assert!(cause.contains("/nonexistent/server"), "{cause}");
        }
        other => panic!("{other:?}"),
    }
    let stats = connection.snapshot().stats;
    assert_eq!((stats.dials, stats.failures), (1, 1));
    assert_eq!(connection.last_failure().map(|cause| cause.contains("/nonexistent/server")), Some(true));
}

#[tokio::test]
async fn k04_a_new_configuration_ends_a_permanent_park() {
    // The command appears, as after an installation.
    let server = process("");
    let link = std::env::temp_dir().join(format!("k04-late-command-{}", std::process::id()));
    let _removed = Removed(link.clone());
    let mut command = ServerCommand::new(&link);
    command.args = server.args();
    let connection = Connection::builder(StdioConnector::new(command)).build().unwrap();
    let mut events = connection.events();
    until_status(&mut events, |status| status == Status::Parked(ParkReason::Permanent)).await;
    std::os::unix::fs::symlink(server.program(), &link).unwrap();
    connection.wake(WakeCause::Config);
    until_ready(&mut events).await;
    assert_eq!(text(connection.call_tool(tool_with("echo", "here")).await), "here");
    connection.shutdown().await;
}

/// Removes a file at the end, also of a test that fails.
struct Removed(std::path::PathBuf);

impl Drop for Removed {
    fn drop(&mut self) {
        drop(std::fs::remove_file(&self.0));
    }
}

#[tokio::test(start_paused = true)]
async fn k04_the_cause_reaches_whoever_asks() {
    let server = memory("initialize error -32603 \"licence server unreachable\"");
    let connection = connect(&server);
    let mut events = connection.events();
    let cause = loop {
        if let Some(Event::Status { status: Status::TransientFailure, failure, cause }) = events.next().await {
            assert_eq!(failure, Some(FailureClass::Transport));
            break cause.expect("a cause");
        }
    };
    assert!(cause.contains("licence server unreachable"), "{cause}");
    assert_eq!(connection.last_failure(), Some(cause.clone()));
    match connection.call_tool(tool("echo")).await {
        Err(error @ CallError::Refused { .. }) => assert!(error.to_string().contains(&*cause), "{error}"),
        other => panic!("{other:?}"),
    }
}

/// Whichever message of either era says it.
#[tokio::test(start_paused = true)]
async fn k04_no_common_version_is_permanent_however_it_is_said() {
    let discovered = r#"discover result '{"supportedVersions":["2031-01-01"],"capabilities":{},"serverInfo":{"name":"f","version":"1"}}'"#;
    for refusal in ["initialize only 2031-01-01", "discover only 2031-01-01", discovered] {
        let server = memory(refusal);
        let connection = connect(&server);
        let seen = until_status(&mut connection.events(), |status| status != Status::Connecting).await;
        assert_eq!(seen.last(), Some(&Status::Parked(ParkReason::Permanent)), "{refusal}");
        assert_eq!(connection.snapshot().stats.dials, 1, "{refusal}");
        let cause = connection.last_failure().expect("a cause");
        assert!(cause.contains("2031-01-01"), "{refusal}: {cause}");
    }
}
