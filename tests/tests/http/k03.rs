//! K03: a session loss that is told in another way than by 404.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use futures::future::join_all;
use mcp_reconnect::core::{FailureClass, Status};
use mcp_reconnect::http::HttpConnector;
use mcp_reconnect::{CallError, Connection, Credentials, Events, HttpServer, Refresh};
use mcp_reconnect_tests::fake::FakeHttp;

use super::front::loss;
use super::k02::{assert_forgotten, assert_listed_before_calls, soon, wave};
use super::{builder, ready, serve};
use crate::support::*;

/// How servers tell that they do not know a session (the lines of a script), where no handler has run.
const GATES: [&str; 14] = [
    // server-everything
    r#"stale status 400 '{"jsonrpc":"2.0","error":{"code":-32000,"message":"Bad Request: No valid session ID provided"}}'"#,
    // TypeScript, one transport per process
    "stale status 400 '{\"jsonrpc\":\"2.0\",\"error\":{\"code\":-32000,\"message\":\"Bad Request: Server not initialized\"},\"id\":null}'\n\
     stale-get status 404 '{\"jsonrpc\":\"2.0\",\"error\":{\"code\":-32001,\"message\":\"Session not found\"},\"id\":null}'\n\
     stale-initialize ok",
    r#"stale status 404 '{"jsonrpc":"2.0","error":{"code":-32001,"message":"Session not found"},"id":null}'"#,
    // Python, new and old
    r#"stale status 404 '{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"Session not found"}}'"#,
    r#"stale status 404 '{"jsonrpc":"2.0","id":"server-error","error":{"code":-32600,"message":"Session not found"}}'"#,
    // rmcp
    "stale status 404 \"Not Found: Session not found\"\nstale-delete status 202",
    "stale status 404",
    "stale status 410 \"Gone\"",
    "stale status 400 \"Invalid or expired session\"",
    "stale status 400 '{\"error\":\"Unknown session\"}'",
    "stale status 401 \"Unauthorized: Session not found\"",
    "stale status 401 '{\"jsonrpc\":\"2.0\",\"id\":null,\"error\":{\"code\":-32001,\"message\":\"Session expired\"}}'",
    "stale status 503 '{\"jsonrpc\":\"2.0\",\"id\":null,\"error\":{\"code\":-32001,\"message\":\"Session not found\"}}'",
    "stale error -32000 \"Server not initialized\"\nstale-get status 404",
];

/// A server that lost its sessions and tells by these lines; nothing else tells of it.
async fn after_a_loss(gate: &str) -> (FakeHttp, Connection, Events) {
    let (server, connection, events) = ready(&format!("{gate}\nget status 405")).await;
    server.forget_sessions().await;
    (server, connection, events)
}

/// Whoever told that it knows the session no more is asked for the next one on a connection that is open.
#[tokio::test]
async fn k03_the_next_session_needs_no_new_connection() {
    for gate in &GATES[..3] {
        let (server, connection, mut events) = ready(&format!("{gate}\nget status 405\ncall * delay 50ms")).await;
        wave(&connection, 5).await; // leaves as many connections in the pool
        server.forget_sessions().await;
        let before = server.ledger().asked().map(|asked| asked.connection).max();
        wave(&connection, 1).await;
        assert_eq!(until_ready(&mut events).await, 2, "{gate}");
        let ledger = server.ledger();
        let initialize = ledger.asked().filter(|asked| asked.method.as_deref() == Some("initialize")).last();
        assert!(initialize.map(|asked| asked.connection) <= before, "{gate}");
    }
}

/// A refusal of the gate is one new session and one more sending, whatever words it is told in.
#[tokio::test]
async fn k03_every_gate_is_one_new_session() {
    for gate in GATES {
        let (server, connection, mut events) = after_a_loss(gate).await;
        wave(&connection, 5).await;
        assert_eq!(until_ready(&mut events).await, 2, "{gate}");
        let ledger = server.ledger();
        assert_eq!((ledger.initializes(), ledger.executions("write")), (2, 5), "{gate}");
        assert!(ledger.posts_of("tools/call") <= 2 * 5, "{gate}");
        assert_eq!(ledger.posts_of("ping"), 0, "{gate}: what is told needs no question");
        assert_forgotten(&ledger);
        assert_listed_before_calls(&ledger);
    }
}

/// The same where no call asks: the keepalive's ping is refused.
#[tokio::test]
async fn k03_every_gate_is_noticed_in_idleness() {
    let servers = GATES.map(|gate| async move {
        let server = serve(&format!("{gate}\nget status 405")).await;
        let config = config(|config| config.keepalive(millis(200)));
        let connection = builder(&server).config(config).build().unwrap();
        let mut events = connection.events();
        assert_eq!(until_ready(&mut events).await, 1, "{gate}");
        server.forget_sessions().await;
        assert_eq!(soon(until_ready(&mut events)).await, 2, "{gate}");
        let ledger = server.ledger();
        assert_eq!((ledger.initializes(), ledger.posts_of("tools/call")), (2, 0), "{gate}");
        assert_forgotten(&ledger);
    });
    join_all(servers).await;
}

/// The same at a restart, with a standing stream that is cut.
#[tokio::test]
async fn k03_every_gate_after_a_restart() {
    for gate in GATES {
        let (server, connection, mut events) = ready(gate).await;
        server.restart().await;
        wave(&connection, 5).await;
        assert_eq!(until_ready(&mut events).await, 2, "{gate}");
        assert_eq!((server.ledger().initializes(), server.ledger().executions("write")), (2, 5), "{gate}");
        assert_forgotten(&server.ledger());
    }
}

/// Also R010.
#[tokio::test]
async fn k03_gate_32000() {
    let gate =
        "stale status 400 '{\"jsonrpc\":\"2.0\",\"error\":{\"code\":-32000,\"message\":\"Server not initialized\"}}'";
    for restart in [true, false] {
        let (server, connection, mut events) = ready(&format!("{gate}\nget status 405")).await;
        assert_eq!(text(connection.call_tool(tool_with("write", "before")).await), "before");
        if restart {
            server.restart().await;
        } else {
            server.forget_sessions().await;
        }
        assert_eq!(text(soon(connection.call_tool(tool_with("write", "after"))).await), "after");
        assert_eq!(until_ready(&mut events).await, 2);
        let ledger = server.ledger();
        assert_eq!((ledger.initializes(), ledger.executions("write")), (2, 2));
        assert_eq!(ledger.posts_of("tools/call"), 3);
        assert_forgotten(&ledger);
    }
}

/// Credentials that count how often they are refused.
#[derive(Default)]
struct Counted(AtomicUsize);

#[async_trait]
impl Credentials for Counted {
    async fn token(&self) -> Option<String> {
        Some("T1".into())
    }

    async fn refresh(&self, _: &str, _: bool) -> Refresh {
        self.0.fetch_add(1, Ordering::SeqCst);
        Refresh::NeedsUser("a user has to log in".into())
    }
}

/// Also R008.
#[tokio::test]
async fn k03_401_session() {
    let server = serve("token T1\nget status 405\nstale status 401 \"Unauthorized: Session not found\"").await;
    let credentials = Arc::new(Counted::default());
    let reached = HttpServer::new(&server.url()).unwrap().credentials(credentials.clone());
    let connection = Connection::builder(HttpConnector::new(reached)).seed(7).build().unwrap();
    let mut events = connection.events();
    assert_eq!(until_ready(&mut events).await, 1);
    server.forget_sessions().await;
    wave(&connection, 5).await;
    assert_eq!(until_ready(&mut events).await, 2);
    assert_eq!(credentials.0.load(Ordering::SeqCst), 0, "no login for a lost session");
    assert_eq!((server.ledger().initializes(), server.ledger().executions("write")), (2, 5));
    assert_forgotten(&server.ledger());
}

/// The same words with a challenge may be about the login; one `initialize` without the id tells that they are not.
#[tokio::test]
async fn k03_a_challenge_may_mean_the_session() {
    let challenge = "stale status 401 \"Session not found\" header www-authenticate \"Bearer error=invalid_token\"";
    let (server, connection, mut events) = after_a_loss(challenge).await;
    wave(&connection, 5).await;
    assert_eq!(until_ready(&mut events).await, 2);
    assert_eq!((server.ledger().initializes(), server.ledger().executions("write")), (2, 5));
}

/// Also R009. Whatever a proxy says of a session that its backend does not know.
#[tokio::test]
async fn k03_503_with_id() {
    for status in [500, 502, 503, 504] {
        let (server, connection, mut events) = after_a_loss(&format!("stale status {status} \"try again\"")).await;
        // It may have run, as far as anybody can tell from such a status.
        match soon(connection.call_tool(tool("write"))).await {
            Err(CallError::OutcomeUnknown { epoch: failed, cause, .. }) => {
                assert_eq!(failed, epoch(1));
                assert!(cause.contains(&status.to_string()), "{cause}");
            }
            other => panic!("{status}: {other:?}"),
        }
        // The server is there, with everything but this session: no outage.
        assert_eq!(loss(&mut events).await, FailureClass::SessionGone, "{status}");
        let seen = soon(until_status(&mut events, |status| matches!(status, Status::Ready(_)))).await;
        assert_eq!(seen.last(), Some(&Status::Ready(epoch(2))), "{status}");
        assert!(!seen.iter().any(|status| matches!(status, Status::Parked(_))), "{status}: {seen:?}");
        let ledger = server.ledger();
        assert_eq!((ledger.initializes(), ledger.executions("write")), (2, 0), "{status}");
        // The call, and one question, beside what made it Ready; the session that was given up is released in its time.
        let old = ledger.asked().filter(|asked| asked.session.as_deref() == Some("A1"));
        let old: Vec<_> = old.filter_map(|asked| asked.method.clone()).collect();
        assert_eq!(old[old.len() - 2..], ["tools/call", "tools/list"], "{status}");
        assert_eq!(old.iter().filter(|method| *method == "tools/list").count(), 2, "{status}");
        assert_eq!(connection.snapshot().stats.dials, 2, "no ladder");
        wave(&connection, 3).await;
        assert_forgotten(&server.ledger());
    }
}

/// The same for twenty at once, of a tool that may be repeated: all are answered, after one question.
#[tokio::test]
async fn k03_503_with_id_for_many() {
    let (server, connection, mut events) = after_a_loss("stale status 503").await;
    let calls = (0..20).map(|_| connection.call_tool(tool_with("echo", "x")));
    assert!(soon(join_all(calls)).await.into_iter().all(|answer| text(answer) == "x"));
    assert_eq!(until_ready(&mut events).await, 2);
    let ledger = server.ledger();
    assert_eq!((ledger.initializes(), ledger.executions("echo")), (2, 20));
    assert!((2..=22).contains(&ledger.answered(503)), "{}", ledger.answered(503));
    assert_forgotten(&ledger);
}

/// Where the restart cuts the standing stream, its loss is the question.
#[tokio::test]
async fn k03_503_with_id_in_idleness() {
    let (server, _connection, mut events) = ready("stale status 503").await;
    soon(server.watch().wait_until(|ledger| ledger.open_streams() == 1)).await;
    server.restart().await;
    assert_eq!(soon(until_ready(&mut events)).await, 2);
    assert_eq!((server.ledger().initializes(), server.ledger().posts_of("ping")), (2, 1));
    assert_forgotten(&server.ledger());
}

/// Not the session's fault: the endpoint is down as a whole, and comes back with the session.
#[tokio::test]
async fn k03_one_503_is_not_the_end() {
    for status in [500, 502, 503, 504] {
        let script = format!("call write#1 commit, status {status}\ncall echo#1 commit, status {status}");
        let (server, connection, events) = ready(&script).await;
        let outcome = soon(connection.call_tool(tool("write"))).await;
        assert!(matches!(outcome, Err(CallError::OutcomeUnknown { .. })), "{status}: {outcome:?}");
        // What may be repeated is, on the same session.
        assert_eq!(text(soon(connection.call_tool(tool_with("echo", "again"))).await), "again", "{status}");
        wave(&connection, 3).await;
        let ledger = server.ledger();
        assert_eq!(
            (ledger.initializes(), ledger.executions("write"), ledger.executions("echo")),
            (1, 4, 2),
            "{status}"
        );
        assert_eq!(drain_statuses(connection, events).await, [Status::Shutdown], "{status}");
    }
}

/// A gate that refuses every session: one more sending, no loop. The status does not matter.
#[tokio::test]
async fn k03_a_gate_that_never_opens() {
    for refusal in ["status 404", "status 410", "status 401 \"session not found\""] {
        let server = serve(&format!("get status 405\ncall * {refusal}")).await;
        let config = config(|config| config.backoff(secs(30)).demand_interval(secs(30)));
        let connection = builder(&server).config(config).build().unwrap();
        let mut events = connection.events();
        assert_eq!(until_ready(&mut events).await, 1);
        let outcome = soon(connection.call_tool(tool("write"))).await;
        match outcome {
            Err(CallError::NotSent { class: FailureClass::SessionGone, .. }) => {}
            other => panic!("{refusal}: {other:?}"),
        }
        assert_eq!(until_ready(&mut events).await, 2, "{refusal}");
        soon(until_status(&mut events, |status| status == Status::TransientFailure)).await;
        assert_eq!((server.ledger().initializes(), server.ledger().calls("write")), (2, 2), "{refusal}");
    }
}

/// I03a: what is not in the table ends nothing; the refused call alone fails, and says why.
#[tokio::test]
async fn k03_other_refusals_are_no_session_loss() {
    for refusal in [
        "status 400 \"missing parameter: path\"",
        "status 400 '{\"jsonrpc\":\"2.0\",\"id\":null,\"error\":{\"code\":-32000,\"message\":\"browser session not found: tab 3\"}}'",
        "status 400 '{\"jsonrpc\":\"2.0\",\"id\":null,\"error\":{\"code\":-32602,\"message\":\"session id must be a number\"}}'",
        "status 403 \"Forbidden\"",
        "status 405",
        "status 409 \"conflict\"",
        "status 413",
        "status 418 \"a teapot\"",
        "status 422 '{\"error\":\"unprocessable\"}'",
    ] {
        let (server, connection, events) = ready(&format!("call write#1 {refusal}")).await;
        match soon(connection.call_tool(tool("write"))).await {
            Err(error @ (CallError::NotSent { .. } | CallError::OutcomeUnknown { .. })) => {
                let status = refusal.split(' ').nth(1).unwrap();
                // About the request's form; of the others nobody knows what stood before them.
                let not_run = matches!(status, "405" | "413");
                assert!(error.not_run() == not_run && error.to_string().contains(status), "{refusal}: {error}");
            }
            other => panic!("{refusal}: {other:?}"),
        }
        wave(&connection, 1).await;
        let ledger = server.ledger();
        assert_eq!((ledger.initializes(), ledger.calls("write")), (1, 2), "{refusal}");
        assert_eq!(drain_statuses(connection, events).await, [Status::Shutdown], "{refusal}");
    }
}

/// A session id in a refusal is not one (Python servers send it).
#[tokio::test]
async fn k03_a_session_id_in_a_refusal_is_not_taken() {
    let refusal = |status| {
        format!(
            "status {status} '{{\"jsonrpc\":\"2.0\",\"id\":\"server-error\",\"error\":{{\"code\":-32600,\"message\":\"Bad Request: Missing session ID\"}}}}' header mcp-session-id Z9"
        )
    };
    let script = format!("missing {}\nstale {}\nget status 405 header mcp-session-id Z9", refusal(400), refusal(404));
    let (server, connection, mut events) = ready(&script).await;
    soon(server.watch().wait_until(|ledger| ledger.answered(405) == 1)).await;
    wave(&connection, 1).await;
    server.forget_sessions().await;
    wave(&connection, 3).await;
    assert_eq!(until_ready(&mut events).await, 2);
    let ledger = server.ledger();
    assert_eq!((ledger.requests_with_session("Z9"), ledger.initializes(), ledger.executions("write")), (0, 2, 4));
    assert_forgotten(&ledger);
}

/// An error that names no request is the fate of the one whose answer it is in, at once: nobody waits for the timeout.
#[tokio::test]
async fn k03_an_error_that_names_no_request_settles_its_call() {
    for id in ["\"id\":null,", "\"id\":\"server-error\",", ""] {
        for status in [200, 400, 500] {
            let refusal = format!(
                "status {status} '{{\"jsonrpc\":\"2.0\",{id}\"error\":{{\"code\":-32603,\"message\":\"out of order\"}}}}'"
            );
            let (server, connection, _events) = ready(&format!("call write#1 {refusal}")).await;
            let outcome = soon(connection.call_tool_with(tool("write"), &within(secs(1800)))).await;
            match outcome {
                Err(error) => assert!(error.to_string().contains("out of order"), "{refusal}: {error}"),
                Ok(answer) => panic!("{refusal}: {answer:?}"),
            }
            wave(&connection, 1).await;
            assert_eq!(server.ledger().initializes(), 1, "{refusal}");
        }
    }
}

/// More wordings of the field, which no table holds.
const UNLISTED: [&str; 13] = [
    // WordPress mcp-adapter, wpcom, mcp-wordpress-remote
    "stale error -32602 \"Invalid params: Invalid or expired session\"",
    "stale error -32005 \"Session not found: Invalid or expired session\"",
    "stale error -32603 \"Invalid or expired session\"",
    // tower-mcp
    r#"stale status 200 '{"jsonrpc":"2.0","id":null,"error":{"code":-32005,"message":"Session \u0027A1\u0027 not found or expired. Please re-initialize the connection."}}'"#,
    // anubis-mcp
    "stale error -32002 \"Server not initialized\"",
    r#"stale status 400 '{"jsonrpc":"2.0","error":{"code":-32000,"message":"Bad Request: Unknown Mcp-Session-Id header"},"id":null}'"#,
    r#"stale status 400 '{"jsonrpc":"2.0","error":{"code":-32000,"message":"Bad Request: No valid session ID or not an initialize request"},"id":null}'"#,
    "stale status 400 \"Invalid or missing session ID\"",
    "stale error -32000 \"Unknown session: abc123\"",
    "stale status 403 \"Forbidden\"",
    "stale with-status 500, error -32099 \"no transport for this id\"",
    "stale status 202",
    "stale status 200",
];

/// Each is found out by asking, at the first call: at most one call without annotation does not know its outcome.
#[tokio::test]
async fn k03_words_of_no_table_are_found_out() {
    for gate in UNLISTED {
        let (server, connection, mut events) = after_a_loss(gate).await;
        let outcome = soon(connection.call_tool(tool_with("write", "0"))).await;
        assert!(matches!(outcome, Ok(_) | Err(CallError::OutcomeUnknown { .. })), "{gate}: {outcome:?}");
        wave(&connection, 3).await;
        assert_eq!(until_ready(&mut events).await, 2, "{gate}");
        let ledger = server.ledger();
        assert_eq!(ledger.initializes(), 2, "{gate}");
        assert!(ledger.executions("write") <= 4, "{gate}");
        let asks = ledger.asked().filter(|asked| asked.method.as_deref() == Some("tools/list")).count() - 2;
        assert_eq!(asks, 1, "{gate}");
        assert_forgotten(&ledger);
    }
}

/// The same in idleness: the keepalive's ping is refused.
#[tokio::test]
async fn k03_words_of_no_table_are_noticed_in_idleness() {
    let servers = UNLISTED.map(|gate| async move {
        let server = serve(&format!("{gate}\nget status 405")).await;
        let config = config(|config| config.keepalive(millis(200)));
        let connection = builder(&server).config(config).build().unwrap();
        let mut events = connection.events();
        assert_eq!(until_ready(&mut events).await, 1, "{gate}");
        server.forget_sessions().await;
        assert_eq!(soon(until_ready(&mut events)).await, 2, "{gate}");
        assert_eq!(server.ledger().posts_of("tools/call"), 0, "{gate}");
    });
    join_all(servers).await;
}

/// A standing stream that was open and is refused is doubt without a call.
#[tokio::test]
async fn k03_a_refused_stream_is_asked_about() {
    for status in [400, 401, 403, 404, 410] {
        let server = serve(&format!("stale status 400 \"who?\"\nstale-get status {status}")).await;
        let connection = builder(&server).build().unwrap();
        let mut events = connection.events();
        assert_eq!(until_ready(&mut events).await, 1);
        soon(server.watch().wait_until(|ledger| ledger.open_streams() == 1)).await;
        server.restart().await;
        assert_eq!(soon(until_ready(&mut events)).await, 2, "{status}");
        assert_eq!(server.ledger().posts_of("tools/call"), 0, "{status}");
    }
}

/// Answers to calls with nothing at all, by a session that is well otherwise: one fresh session after three in a row.
#[tokio::test]
async fn k03_nothing_three_times_rebuilds_once() {
    for nothing in ["status 202", "status 200", "wrong-id", "status 200 \"<html>\""] {
        let (server, connection, mut events) = ready(&format!("answers json\nget status 405\ncall * {nothing}")).await;
        for _ in 0..9 {
            let outcome = soon(connection.call_tool(tool("write"))).await;
            assert!(matches!(outcome, Err(CallError::OutcomeUnknown { .. })), "{nothing}: {outcome:?}");
        }
        assert_eq!(until_ready(&mut events).await, 2, "{nothing}");
        assert_eq!((server.ledger().initializes(), server.ledger().calls("write")), (2, 9), "{nothing}");
    }
}

/// How a server refuses, made of a number: an action of a script, and what is known of it.
#[derive(Debug)]
struct Refusal {
    action: String,
    /// A 2xx without an answer.
    nothing: bool,
    /// Said of a request that got this, by the protocol, without asking: the session is gone.
    told: bool,
}

impl Refusal {
    fn of(seed: u64) -> Self {
        let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0x5851_F42D_4C95_7F2D;
        let mut below = |limit: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            usize::try_from(state >> 33).unwrap() % limit
        };
        let status =
            [200, 202, 400, 402, 403, 404, 405, 406, 408, 409, 410, 413, 418, 422, 451, 499, 500, 501, 502, 503, 504]
                [below(21)];
        let code = [-32000, -32001, -32002, -32005, -32600, -32602, -32603, -32050, 32600, 1][below(10)];
        let words = [
            "Session not found",
            "Server not initialized",
            "no",
            "unknown id: 3f2a9c",
            "expired",
            "try again",
            "Invalid request parameters",
            "Bad Request: No valid session ID provided",
            "internal error",
            "transport closed",
        ][below(10)];
        let words = if below(3) == 0 { format!("{words} ({})", below(100_000)) } else { words.to_owned() };
        let id = ["null", "\"server-error\"", "77"][below(3)];
        let (body, own) = match below(6) {
            0 => (String::new(), false),
            1 => (format!(" \"{words}\""), false),
            2 => (" \"<html><body>no</body></html>\" header content-type text/html".into(), false),
            3 => (
                format!(" '{{\"jsonrpc\":\"2.0\",\"id\":{id},\"error\":{{\"code\":{code},\"message\":\"{words}\"}}}}'"),
                false,
            ),
            4 => (format!(" '{{\"error\":\"{words}\"}}'"), false),
            _ => (String::new(), true),
        };
        let action = match own {
            true => format!("with-status {status}, error {code} \"{words}\""),
            false => format!("status {status}{body}"),
        };
        Self { action, nothing: !own && status < 300, told: !own && matches!(status, 404 | 410) }
    }
}

/// However a server refuses: where the session is lost there is a fresh one within two calls and one ask.
#[tokio::test]
async fn k03_whatever_a_lost_session_says_it_is_found_out() {
    for seed in 0..60 {
        let refusal = Refusal::of(seed);
        let (server, connection, mut events) = after_a_loss(&format!("stale {}", refusal.action)).await;
        let mut outcomes = Vec::new();
        for number in 0..3 {
            outcomes.push(soon(connection.call_tool(tool_with("write", &number.to_string()))).await);
        }
        let unknown =
            outcomes.iter().filter(|outcome| matches!(outcome, Err(CallError::OutcomeUnknown { .. }))).count();
        assert!(unknown <= 1, "{seed}: {refusal:?}: {outcomes:?}");
        assert_eq!(text(outcomes.pop().unwrap()), "2", "{seed}: {refusal:?}");
        assert_eq!(until_ready(&mut events).await, 2, "{seed}: {refusal:?}");
        let ledger = server.ledger();
        assert_eq!(ledger.initializes(), 2, "{seed}: {refusal:?}");
        assert!(ledger.executions("write") <= 3, "{seed}: {refusal:?}");
        assert!(ledger.posts_of("tools/list") <= 3, "{seed}: {refusal:?}: more than one ask");
    }
}

/// Where it is not lost: no session ends, nothing runs twice, and each caller gets what came.
#[tokio::test]
async fn k03_whatever_a_tool_says_its_session_is_well() {
    for seed in 0..60 {
        let refusal = Refusal::of(seed);
        // By the protocol such an answer ends the session.
        if refusal.told {
            continue;
        }
        let calls = if refusal.nothing { 2 } else { 8 };
        let (server, connection, events) = ready(&format!("get status 405\ncall * commit, {}", refusal.action)).await;
        for _ in 0..calls {
            match soon(connection.call_tool(tool("write"))).await {
                Err(CallError::Server { .. } | CallError::OutcomeUnknown { .. } | CallError::NotSent { .. }) => {}
                other => panic!("{seed}: {refusal:?}: {other:?}"),
            }
        }
        let ledger = server.ledger();
        assert_eq!((ledger.initializes(), ledger.executions("write")), (1, calls), "{seed}: {refusal:?}");
        assert!(ledger.posts_of("tools/list") <= 1 + 6, "{seed}: {refusal:?}");
        assert_eq!(drain_statuses(connection, events).await, [Status::Shutdown], "{seed}: {refusal:?}");
    }
}
