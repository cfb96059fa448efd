//! Calls around an outage: they wait, and then it is said what became of them.

use mcp_reconnect::core::replay::ReplayPolicy;
use mcp_reconnect::front::FrontOptions;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::support::{Host, Stage, call, text_of};
use crate::support::{builder, memory, secs};

/// The `data` of an error, which has all that a model may act on.
fn data(answer: &Value) -> &Value {
    let error = &answer["error"];
    let data = &error["data"];
    let names: Vec<_> = data.as_object().unwrap_or_else(|| panic!("{answer}")).keys().map(String::as_str).collect();
    assert_eq!(names, ["class", "outcome", "reason", "retryAfterMs", "server"]);
    let code = if data["outcome"] == "not_sent" { -32010 } else { -32011 };
    assert_eq!((&error["code"], &data["server"]), (&json!(code), &json!("fake")), "{answer}");
    let (message, reason) = (error["message"].as_str().unwrap(), data["reason"].as_str().unwrap());
    assert!(message.starts_with(reason) && message.len() > reason.len(), "{answer}");
    data
}

#[tokio::test(start_paused = true)]
async fn a_call_waits_for_the_next_session() {
    let server = memory("server:\n tools echo(readOnly), die\n call die kill\n spawn 2:\n initialize delay 20s");
    let mut host = Host::legacy(&server).await;
    host.call(1, "die").await;
    let began = Instant::now();
    assert_eq!(text_of(&host.call(2, "echo").await), "echo");
    assert!((20..22).contains(&began.elapsed().as_secs()), "{:?}", began.elapsed());
    host.leave().await;
}

#[tokio::test(start_paused = true)]
async fn a_call_waits_no_longer_than_allowed() {
    let server = memory("server:\n tools echo(readOnly), die\n call die exit 3\n spawn 2..:\n start exit 4");
    let mut options = FrontOptions::default();
    options.calls.max_wait = secs(12);
    let mut host = Host::new(builder(&server), options);
    host.initialize().await;
    host.call(1, "die").await;
    let began = Instant::now();
    let answer = host.call(2, "echo").await;
    assert!(began.elapsed() <= secs(12), "{:?}", began.elapsed());
    let data = data(&answer);
    assert_eq!((&data["class"], &data["outcome"]), (&json!("transport"), &json!("not_sent")));
    assert!(data["retryAfterMs"].as_u64().unwrap() >= 1_000, "{answer}");
    assert!(data["reason"].as_str().unwrap().contains("status 4"), "{answer}");
    assert_eq!(server.ledger().calls("echo"), 0);
    // The session is as good as ever.
    assert_eq!(host.ask(3, "ping", "{}").await["result"], json!({}));
    host.leave().await;
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_given_up_is_told_with_a_time() {
    let server = memory("server:\n tools echo(readOnly), die\n call die exit 3\n spawn 2..:\n start exit 4");
    let mut host = Host::legacy(&server).await;
    host.call(1, "die").await;
    host.within(secs(100)).await;
    let began = Instant::now();
    let answer = host.call(2, "echo").await;
    assert!(began.elapsed() <= secs(30), "{:?}", began.elapsed());
    let data = data(&answer);
    assert_eq!(data["outcome"], "not_sent");
    assert!(data["retryAfterMs"].as_u64().is_some_and(|after| after <= 900_000), "{answer}");
    assert!(data["reason"].as_str().unwrap().contains("status 4"), "{answer}");
    host.leave().await;
}

#[tokio::test(start_paused = true)]
async fn an_open_breaker_is_told_with_its_time() {
    let server = memory("server:\n ping never\n call write never");
    let mut options = FrontOptions::default();
    options.calls.timeout = secs(2);
    let mut host = Host::new(builder(&server), options);
    host.initialize().await;
    for id in 0..5 {
        let answer = host.call(id, "write").await;
        let data = data(&answer);
        assert_eq!((&data["class"], &data["outcome"]), (&json!("unresponsive"), &json!("unknown")));
    }
    let answer = host.call(6, "write").await;
    let data = data(&answer);
    assert_eq!(data["outcome"], "not_sent");
    assert!((1..=30_000).contains(&data["retryAfterMs"].as_u64().unwrap()), "{answer}");
    assert!(data["reason"].as_str().unwrap().contains("breaker"), "{answer}");
    assert_eq!(server.ledger().spawns(), 1);
    host.leave().await;
}

/// What becomes of a call that runs and is not answered, and how often it ran.
async fn commit_then_die(tool: &str, replay: ReplayPolicy) -> (Value, usize) {
    let server = memory("spawn 1:\n call * commit, kill");
    let mut options = FrontOptions::default();
    options.calls.replay = replay;
    let mut host = Host::new(builder(&server), options);
    host.initialize().await;
    let answer = host.call(1, tool).await;
    host.within(secs(60)).await;
    host.leave().await;
    (answer, server.ledger().executions(tool))
}

#[tokio::test(start_paused = true)]
async fn no_call_runs_twice_unless_it_may() {
    for (tool, replay, twice) in [
        ("write", ReplayPolicy::Annotated, false),
        ("echo", ReplayPolicy::Annotated, true),
        ("echo", ReplayPolicy::NotRun, false),
        ("write", ReplayPolicy::NotRun, false),
        ("write", ReplayPolicy::Always, true),
    ] {
        let (answer, runs) = commit_then_die(tool, replay).await;
        if twice {
            assert_eq!((text_of(&answer), runs), (tool, 2), "{replay:?}");
        } else {
            let data = data(&answer);
            assert_eq!(
                (&data["outcome"], &data["class"], runs),
                (&json!("unknown"), &json!("transport"), 1),
                "{replay:?}"
            );
            assert_eq!(data["retryAfterMs"], Value::Null);
            assert!(data["reason"].as_str().unwrap().contains("SIGKILL"), "{answer}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_never_left_is_sent_to_the_next_session() {
    let (mut host, mut stage, far) = Stage::legacy("{}").await;
    host.say(&call(1, "write")).await;
    assert_eq!(host.rest().await, [] as [&str; 0]);
    drop(far); // it was never read
    let mut far = stage.far().await;
    far.greet("{}").await;
    let asked = far.expect("tools/call").await;
    far.answer(&asked, "result", r#"{"n":1}"#).await;
    assert_eq!(host.answer(1).await["result"]["n"], 1);
    host.leave().await;
}

#[tokio::test(start_paused = true)]
async fn progress_and_cancellation_go_through_a_rebuild() {
    let script = "server:\n tools echo(readOnly)
        spawn 1:\n call echo progress 2 every 1s, kill
        spawn 2:\n call echo progress 3 every 1s, never";
    let server = memory(script);
    let mut host = Host::legacy(&server).await;
    let params = r#"{"name":"echo","arguments":{},"_meta":{"progressToken":"mine"}}"#;
    host.say(&super::support::request(1, "tools/call", params)).await;
    // The second run begins anew; what was told is not told again.
    for wanted in [1, 2, 3] {
        let told = host.expect("notifications/progress").await;
        assert_eq!((&told["params"]["progressToken"], &told["params"]["progress"]), (&json!("mine"), &json!(wanted)));
    }
    host.say(&super::support::cancelled(1)).await;
    assert_eq!(host.within(secs(30)).await, [] as [&str; 0]);
    let ledger = server.ledger();
    let ids = crate::support::call_ids(&ledger, "echo");
    assert_eq!(ids.iter().map(|(spawn, _)| *spawn).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(crate::support::cancellations(&ledger), [ids[1].clone()]);
    host.leave().await;
}
