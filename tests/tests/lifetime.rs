//! What lives and ends with a session, and with the connection: client handlers, rounds of input, links, tasks.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use mcp_reconnect::core::{Epoch, Status};
use mcp_reconnect::{CallError, CallOptions, Connection, Events};
use mcp_reconnect_tests::fake::{Event as Entry, FakeServer, Ledger};
use rmcp::handler::client::ClientHandler;
use rmcp::model::{CallToolResponse, ElicitRequestParams, ElicitResult, ElicitationAction};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleClient};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};

use crate::support::*;

// What the server asks of the client.

/// A user, and what became of each question: in which epoch, when, and how it ended.
#[derive(Clone)]
struct User {
    epoch: Epoch,
    /// Goes on when nobody wants the answer any more.
    stubborn: bool,
    takes: Duration,
    notes: Notes,
}

type Notes = Arc<Mutex<Vec<(u64, &'static str, Duration)>>>;

impl ClientHandler for User {
    async fn create_elicitation(
        &self,
        _: ElicitRequestParams,
        context: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        let asked = Instant::now();
        let thinking = sleep(self.takes);
        tokio::pin!(thinking);
        let how = tokio::select! {
            () = context.ct.cancelled() => "cancelled",
            () = &mut thinking => "answered",
        };
        self.notes.lock().unwrap().push((self.epoch.get(), how, asked.elapsed()));
        if self.stubborn {
            thinking.await;
        }
        Ok(ElicitResult::new(ElicitationAction::Accept).with_content(json!({"name": "Ada"})))
    }
}

/// A Ready connection with a user who takes this long to answer.
async fn ready_with_user(
    script: &str,
    takes: Duration,
    stubborn: bool,
) -> (Arc<FakeServer>, Connection, Events, Notes) {
    let server = memory(script);
    let notes = Notes::default();
    let told = notes.clone();
    let user = move |epoch| User { epoch, stubborn, takes, notes: told.clone() };
    let connection = builder(&server).handler(user).build().unwrap();
    let mut events = connection.events();
    assert_eq!(until_ready(&mut events).await, 1);
    (server, connection, events, notes)
}

const ELICIT: &str = r#"on initialized request elicitation"#;

#[tokio::test(start_paused = true)]
async fn lifetime_the_user_answers_in_the_epoch_that_asked() {
    let (server, _connection, _events, notes) = ready_with_user(ELICIT, secs(3), false).await;
    let answered = |ledger: &Ledger| !ledger.answers("elicitation/create").is_empty();
    let ledger = server.watch().wait_until(answered).await;
    assert_eq!(ledger.answers("elicitation/create")[0]["result"]["content"]["name"], "Ada");
    assert_eq!(*notes.lock().unwrap(), [(1, "answered", secs(3))]);
}

/// When the session ends, its handlers know at once.
#[tokio::test(start_paused = true)]
async fn lifetime_handlers_end_with_their_session() {
    let script = format!("spawn 1:\n {ELICIT}\n after 20s exit 1");
    let (server, connection, mut events, notes) = ready_with_user(&script, secs(3600), false).await;
    until_status(&mut events, |status| status == Status::TransientFailure).await;
    assert_eq!(*notes.lock().unwrap(), [(1, "cancelled", secs(20))]);
    until_ready(&mut events).await;
    connection.call_tool(tool("write")).await.unwrap();
    sleep(secs(7200)).await;
    assert!(server.ledger().answers("elicitation/create").is_empty() && server.ledger().answers("").is_empty());
}

/// One that does not listen to that talks to nobody: the next epoch hears nothing of it.
#[tokio::test(start_paused = true)]
async fn lifetime_late_answers_of_handlers_are_dropped() {
    let script = format!("spawn 1:\n {ELICIT}\n after 20s exit 1");
    let (server, connection, mut events, notes) = ready_with_user(&script, secs(60), true).await;
    assert_eq!(until_ready(&mut events).await, 2);
    sleep(secs(120)).await;
    assert_eq!(*notes.lock().unwrap(), [(1, "cancelled", secs(20))]);
    let ledger = server.ledger();
    assert!(ledger.answers("elicitation/create").is_empty() && ledger.answers("").is_empty());
    assert_eq!((ledger.spawns(), ledger.live_links()), (2, 1));
    connection.shutdown().await;
}

/// The same when the session is closed by us.
#[tokio::test(start_paused = true)]
async fn lifetime_handlers_end_with_a_session_that_is_invalidated() {
    let script = format!("spawn 1:\n {ELICIT}\n ignore EOF\n ignore TERM");
    let (server, connection, mut events, notes) = ready_with_user(&script, secs(3600), false).await;
    sleep(secs(5)).await;
    connection.invalidate(epoch(1), "to be replaced");
    assert_eq!(next_status(&mut events).await, Status::TransientFailure);
    sleep(millis(1)).await;
    assert_eq!(*notes.lock().unwrap(), [(1, "cancelled", secs(5))]);
    assert_eq!(server.ledger().live_links(), 1, "while the old server lingers");
}

/// Calls through rmcp's own service settle with the session too, whatever its handlers are still doing: rmcp waits a
/// moment for those that do not listen.
#[tokio::test(start_paused = true)]
async fn lifetime_typed_calls_end_with_their_session() {
    for (stubborn, settled) in [(false, millis(20_100)), (true, secs(22))] {
        let script = format!("spawn 1:\n {ELICIT}\n call write never\n after 20s exit 1");
        let (server, connection, mut events, _notes) = ready_with_user(&script, secs(3600), stubborn).await;
        let session = connection.session().await.unwrap();
        let began = Instant::now();
        let call = session.service().call_tool(tool("write"));
        timeout(secs(60), call).await.expect("it settles").expect_err("the session has ended");
        assert!(began.elapsed() < settled, "{:?}", began.elapsed());
        assert_eq!(until_ready(&mut events).await, 2);
        // The next epoch has a service of its own.
        let session = connection.session().await.unwrap();
        assert!(session.service().call_tool(tool("write")).await.is_ok());
        assert_eq!((server.ledger().calls("write"), server.ledger().executions("write")), (2, 1));
    }
}

// Rounds and tasks.

/// The parameters of each call, as the server read them.
fn rounds(ledger: &Ledger) -> Vec<&Value> {
    let rounds = ledger.entries().iter().filter_map(|entry| match &entry.event {
        Entry::Request { tool: Some(_), params, .. } => Some(params),
        _ => None,
    });
    rounds.collect()
}

/// The server asks for input, the user gives it, the call goes on.
#[tokio::test(start_paused = true)]
async fn lifetime_input_required() {
    let script = "era modern\ncall write input-required";
    let (server, connection, _events, notes) = ready_with_user(script, secs(3), false).await;
    assert_eq!(text(connection.call_tool(tool_with("write", "done")).await), "done");
    assert_eq!(*notes.lock().unwrap(), [(1, "answered", secs(3))]);
    let ledger = server.ledger();
    assert_eq!((ledger.calls("write"), ledger.executions("write")), (2, 1));
    let rounds = rounds(&ledger);
    assert_eq!(rounds[1]["inputResponses"]["name"]["content"]["name"], "Ada");
    assert_eq!(rounds[1]["requestState"], "round-1");
    assert_eq!(rounds[1]["arguments"], rounds[0]["arguments"]);
    assert!(rounds[0].get("inputResponses").is_none());
}

/// rmcp's `()` declines for the user, and the call goes on with that.
#[tokio::test(start_paused = true)]
async fn lifetime_input_required_without_a_handler() {
    let (server, connection, _events) = ready("era modern\ncall write input-required").await;
    assert_eq!(text(connection.call_tool(tool_with("write", "done")).await), "done");
    assert_eq!(rounds(&server.ledger())[1]["inputResponses"]["name"]["action"], "decline");
}

/// What the handler refuses ends the call; nothing runs.
#[tokio::test(start_paused = true)]
async fn lifetime_input_required_that_nobody_gives() {
    let ask = r#"{"key":{"method":"sampling/createMessage","params":{"messages":[],"maxTokens":1}}}"#;
    let (server, connection, _events) = ready(&format!("era modern\ncall write input-required '{ask}'")).await;
    connection.call_tool(tool_with("write", "done")).await.expect_err("nobody can sample");
    assert_eq!((server.ledger().calls("write"), server.ledger().executions("write")), (1, 0));
}

/// The session ends while the user thinks: the call may have run in part, and the user is told at once.
#[tokio::test(start_paused = true)]
async fn lifetime_input_required_when_the_session_ends() {
    let script = "era modern\nspawn 1:\n call write input-required\n after 20s exit 1";
    let (server, connection, _events, _notes) = ready_with_user(script, secs(3600), false).await;
    let began = Instant::now();
    let answer = connection.call_tool_with(tool("write"), &within(secs(1800))).await;
    match answer {
        Err(CallError::OutcomeUnknown { epoch: failed, .. }) => assert_eq!(failed, epoch(1)),
        other => panic!("{other:?}"),
    }
    assert!(began.elapsed() < secs(25), "{:?}", began.elapsed());
    sleep(secs(60)).await;
    assert_eq!((server.ledger().calls("write"), server.ledger().executions("write")), (1, 0));
}

/// From the second round on even a refusal by the session gate is no proof that nothing ran.
#[tokio::test(start_paused = true)]
async fn lifetime_input_required_is_not_begun_again() {
    let script =
        "era modern\nspawn 1:\n call write#1 input-required\n call write#2 error -32600 \"Session terminated\"";
    let (server, connection, _events, _notes) = ready_with_user(script, secs(1), false).await;
    let answer = connection.call_tool(tool_with("write", "done")).await;
    assert!(matches!(answer, Err(CallError::OutcomeUnknown { .. })), "{answer:?}");
    assert_eq!(server.ledger().calls("write"), 2);
    assert_eq!(connection.session().await.unwrap().epoch(), epoch(2), "the session was replaced all the same");
}

/// A user who never answers: the call's cap holds.
#[tokio::test(start_paused = true)]
async fn lifetime_input_required_is_bounded() {
    let script = "era modern\ncall write input-required";
    let (_server, connection, _events, _notes) = ready_with_user(script, secs(1_000_000), false).await;
    let options = CallOptions { max_timeout: Some(secs(300)), ..within(secs(60)) };
    let began = Instant::now();
    let answer = connection.call_tool_with(tool("write"), &options).await;
    assert!(matches!(answer, Err(CallError::DeadlineExceeded { .. })), "{answer:?}");
    assert!(began.elapsed() <= secs(300), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn lifetime_a_task_is_returned_as_such() {
    let (server, connection, _events) = ready("era modern\ncall write task").await;
    match connection.call_tool(tool("write")).await {
        Ok(CallToolResponse::Task(created)) => {
            let created = serde_json::to_value(created).unwrap();
            assert_eq!((&created["taskId"], &created["status"]), (&json!("task-1"), &json!("working")));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(server.ledger().calls("write"), 1);
}

// The end of everything.

/// Nothing is left: the owner has ended, and with it the events, the links, the tasks.
async fn gone(events: &mut Events, server: &FakeServer) {
    while timeout(secs(60), events.next()).await.expect("the connection ends").is_some() {}
    assert_eq!(server.ledger().live_links(), 0);
    tokio::task::yield_now().await;
    assert_eq!(tokio::runtime::Handle::current().metrics().num_alive_tasks(), 0);
}

#[tokio::test(start_paused = true)]
async fn lifetime_dropping_every_handle_leaves_nothing() {
    for script in [
        "",                                 // Ready
        "era modern",                       // with a stream open
        "ignore EOF\nignore TERM",          // Ready, and hard to end
        "on initialized deaf",              // Ready, and deaf
        "initialize never\ndiscover never", // hangs in the handshake
        "initialize never\ndiscover never\nignore EOF\nignore TERM",
        "start exit 1", // backs off
    ] {
        let server = memory(script);
        let connection = connect(&server);
        let mut events = connection.events();
        let other = connection.clone();
        sleep(millis(800)).await;
        drop(connection);
        sleep(millis(100)).await;
        assert_ne!(other.snapshot().status, Status::Shutdown, "a handle is left");
        drop(other);
        gone(&mut events, &server).await;
    }
}

/// Parked, with handlers at work, with a call given up in mid-flight, with a session still in hand.
#[tokio::test(start_paused = true)]
async fn lifetime_dropping_every_handle_whatever_it_does() {
    let server = memory("start exit 1");
    let connection = connect(&server);
    let mut events = connection.events();
    until_status(&mut events, |status| matches!(status, Status::Parked(_))).await;
    drop(connection);
    gone(&mut events, &server).await;

    let (server, connection, mut events, _notes) = ready_with_user(ELICIT, secs(3600), false).await;
    drop(connection);
    gone(&mut events, &server).await;

    let (server, connection, mut events) = ready("call write never").await;
    timeout(secs(1), connection.call_tool(tool("write"))).await.expect_err("never answered");
    let session = connection.session().await.unwrap();
    drop(connection);
    while timeout(secs(60), events.next()).await.expect("the connection ends").is_some() {}
    assert!(session.is_ended());
    assert_eq!(server.ledger().live_links(), 0);
    drop(session);
    gone(&mut events, &server).await;
}

/// Real processes: the whole tree is gone.
#[tokio::test]
async fn lifetime_dropping_every_handle_leaves_no_process() {
    for script in ["", "start grandchild hold stdout", "initialize never\ndiscover never", "call write never\nserial"] {
        let server = process(script);
        let connection = connect_process(&server);
        let mut events = connection.events();
        timeout(secs(60), server.watch().wait_until(|ledger| ledger.discovers() == 1)).await.expect("no hang");
        drop(connection);
        timeout(secs(60), async { while events.next().await.is_some() {} }).await.expect("no hang");
        let ledger = server.ledger().unwrap();
        assert_eq!((ledger.spawns(), ledger.live_pids(), ledger.zombies()), (1, vec![], vec![]), "{script}");
    }
}

/// The server has begun what it asks input for, even where the answer does not reach it by the deadline.
#[tokio::test(start_paused = true)]
async fn lifetime_a_round_that_never_left_does_not_hide_the_first() {
    let script = "era modern\nserial\ncall write input-required\ncall echo delay 1h";
    let (_server, connection, _events, _notes) = ready_with_user(script, secs(3), false).await;
    let options = CallOptions { timeout: secs(10), ..CallOptions::default() };
    let call = connection.call_tool_with(tool("write"), &options);
    let jam = async {
        sleep(secs(1)).await;
        // More than the link and the pipe hold between them.
        let jam = (0..300).map(|_| connection.call_tool_with(tool("echo"), &options));
        futures::future::join_all(jam).await
    };
    let (result, _) = tokio::join!(call, jam);
    let error = result.unwrap_err();
    assert!(!error.not_run(), "{error:?}");
}
