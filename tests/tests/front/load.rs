//! Large messages, many calls, and sides that do not read or are gone.

use std::sync::Arc;
use std::time::Duration;

use mcp_reconnect_tests::fake::FakeServer;
use serde_json::{Value, json};
use tokio::time::{Instant, timeout};

use super::support::{Host, Raw, Stage, call, cancelled, request, text_of};
use crate::support::{memory, secs};

const MIB: usize = 1 << 20;

#[tokio::test(start_paused = true)]
async fn sixteen_mebibytes_go_both_ways() {
    let (mut host, _stage, mut far) = Stage::legacy("{}").await;
    let large = format!(r#"{{"name":"x","text":"{}"}}"#, "\\u00e9".repeat(16 * MIB / 6));
    host.say(&request(1, "tools/call", &large)).await;
    let asked = far.expect("tools/call").await;
    assert!(Raw::of(&asked).params() == large);
    far.answer(&asked, "result", &large).await;
    assert!(Raw::of(&host.answer_text("1").await).result.unwrap().get() == large);
    far.say(&request(1, "sampling/createMessage", &large)).await;
    let asked = host.hear().await;
    assert!(Raw::of(&asked).params() == large);
    host.say(&format!(r#"{{"id":{},"result":{large}}}"#, Raw::of(&asked).id())).await;
    assert!(Raw::of(&far.hear().await).result.unwrap().get() == large);
    host.leave().await;
}

/// A hundred calls of this tool, whose first server dies when it has all of them.
async fn hundred(tool: &str) -> (Arc<FakeServer>, Vec<Value>) {
    let server = memory(&format!("spawn 1:\n call {tool} commit, never\n call {tool}#100 commit, kill"));
    let mut host = Host::legacy(&server).await;
    for id in 0..100 {
        let arguments = json!({ "name": tool, "arguments": { "text": format!("call {id}") } });
        host.say(&request(id, "tools/call", &arguments.to_string())).await;
    }
    let mut answers = Vec::new();
    for id in 0..100 {
        answers.push(host.answer(id).await);
    }
    host.leave().await;
    (server, answers)
}

#[tokio::test(start_paused = true)]
async fn a_hundred_calls_go_through_a_rebuild() {
    let (server, answers) = hundred("echo").await;
    for (id, answer) in answers.iter().enumerate() {
        assert_eq!(text_of(answer), format!("call {id}"));
    }
    assert_eq!((server.ledger().spawns(), server.ledger().executions("echo")), (2, 200));
    let (server, answers) = hundred("write").await;
    assert!(answers.iter().all(|answer| answer["error"]["data"]["outcome"] == "unknown"));
    assert_eq!(server.ledger().executions("write"), 100);
}

#[tokio::test(start_paused = true)]
async fn a_host_that_does_not_read_holds_nothing_of_the_server_up() {
    let (mut host, _stage, mut far) = Stage::legacy("{}").await;
    let large = "x".repeat(MIB);
    host.say(&call(1, "x")).await;
    let asked = far.expect("tools/call").await;
    for number in 0..1_000 {
        let params = format!(r#"{{"number":{number},"data":"{large}"}}"#);
        far.say(&format!(r#"{{"method":"notifications/message","params":{params}}}"#)).await;
    }
    // Each is taken: the server is read, its pings are answered, its answer waits its turn.
    far.answer(&asked, "result", "{}").await;
    far.say(&request(5, "ping", "{}")).await;
    assert_eq!(Raw::of(&far.hear().await).id(), "5");
    let kept: Vec<_> = host.rest().await;
    let bytes: usize = kept.iter().map(String::len).sum();
    assert!((7 * MIB..12 * MIB).contains(&bytes), "{bytes}");
    // What is there is in order, and what the host is owed is there.
    assert!(kept[0].contains(r#""number":0,"#), "{}", &kept[0][..60]);
    assert_eq!(Raw::of(kept.last().unwrap()).id(), "1");
    // Nothing is left out any more.
    far.say(r#"{"method":"notifications/message","params":{"now":1}}"#).await;
    assert_eq!(host.expect("notifications/message").await["params"]["now"], 1);
    host.leave().await;
}

#[tokio::test(start_paused = true)]
async fn a_host_that_does_not_read_can_still_cancel_and_go() {
    let (mut host, _stage, mut far) = Stage::legacy("{}").await;
    let large = "x".repeat(MIB);
    for _ in 0..20 {
        far.say(&format!(r#"{{"method":"notifications/message","params":{{"data":"{large}"}}}}"#)).await;
    }
    host.say(&call(1, "x")).await;
    far.expect("tools/call").await;
    // Answers that find no room.
    for id in 100..200 {
        host.say(&request(id, "ping", "{}")).await;
        host.say("garbage").await;
    }
    host.say(&cancelled(1)).await;
    far.expect("notifications/cancelled").await;
    // It holds its end, and reads nothing to the last.
    let began = Instant::now();
    host.to_front = None;
    timeout(secs(60), &mut host.session).await.expect("the session ends").unwrap();
    assert!(began.elapsed() <= secs(2), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_server_that_does_not_read_holds_nothing_of_the_host_up() {
    let (mut host, _stage, mut far) = Stage::legacy("{}").await;
    host.say(&call(1, "x")).await;
    host.rest().await;
    for number in 0..10_000 {
        host.say(&format!(r#"{{"method":"notifications/vendor","params":{number}}}"#)).await;
    }
    assert_eq!(host.ask(2, "ping", "{}").await["result"], json!({}));
    host.say(&call(3, "x")).await;
    host.say(&cancelled(3)).await;
    host.rest().await;
    // Those that were kept are in order; the call that was taken back in time was never sent.
    far.expect("tools/call").await;
    for number in 0..1_000 {
        assert_eq!(Raw::of(&far.expect("notifications/vendor").await).params(), number.to_string());
    }
    let rest = far.rest().await;
    assert!(rest.len() < 10_000 && rest.iter().all(|text| text.contains("notifications/vendor")), "{}", rest.len());
    host.leave().await;
}

#[tokio::test(start_paused = true)]
async fn a_host_that_dies_takes_the_server_with_it() {
    for way in 0..5 {
        let server = memory("server:\n call write never");
        let mut host = Host::legacy(&server).await;
        host.say(&call(1, "write")).await;
        host.rest().await;
        assert_eq!(server.ledger().live_links(), 1);
        match way {
            0 => host.to_front = None,
            1 => host.from_front.close(),
            2 => host.stop.cancel(),
            3 => {
                // Nobody is there to wait any more.
                host.session.abort();
                timeout(secs(60), server.watch().wait_until(|ledger| ledger.live_links() == 0)).await.unwrap();
                continue;
            }
            _ => {
                let Host { to_front, from_front, .. } = &mut host;
                *to_front = None;
                from_front.close();
            }
        }
        timeout(secs(60), &mut host.session).await.expect("the session ends").unwrap();
        assert_eq!(server.ledger().live_links(), 0, "way {way}");
        while timeout(Duration::from_millis(1), host.from_front.recv()).await.expect("closed").is_some() {}
    }
}

#[tokio::test(start_paused = true)]
async fn a_host_that_says_nothing_begins_nothing() {
    let server = memory("");
    let mut host = Host::of(&server);
    assert_eq!(host.within(secs(60)).await, [] as [&str; 0]);
    host.leave().await;
    assert_eq!(server.ledger().spawns(), 0);
}

#[tokio::test(start_paused = true)]
async fn noise_of_a_server_is_not_the_hosts() {
    let script = r#"server:
        start stdout "banner \xff\xfe\n{\"jsonrpc\":\n[]\nnull\n"
        call write stdout "\x00\xff{}\n{\"jsonrpc\":\"2.0\",\"id\":null,\"error\":{}}\n", ok, stdout "more\n""#;
    let server = memory(script);
    let mut host = Host::legacy(&server).await;
    assert_eq!(text_of(&host.call(1, "write").await), "write");
    assert_eq!(text_of(&host.call(2, "echo").await), "echo");
    assert_eq!(host.rest().await, [] as [&str; 0]);
    assert_eq!(server.ledger().spawns(), 1);
    host.leave().await;
}
