//! What a server asks of the host, and what becomes of it with the session that asked.

use serde_json::Value;

use super::support::{Raw, Stage, request};

fn ask(id: &str) -> String {
    request(id, "elicitation/create", r#"{"message":"name?"}"#)
}

fn id_of(asked: &Value) -> u64 {
    asked["id"].as_u64().expect("an integer")
}

#[tokio::test(start_paused = true)]
async fn a_session_that_ends_takes_its_questions_back() {
    let (mut host, mut stage, far) = Stage::legacy("{}").await;
    far.say(&ask("1")).await;
    let first = id_of(&host.expect("elicitation/create").await);
    drop(far);
    let told = host.expect("notifications/cancelled").await;
    assert_eq!(told["params"]["requestId"].as_u64(), Some(first));
    assert!(told["params"]["reason"].is_string(), "{told}");
    // The next session asks under the same id, which is another one for the host.
    let mut far = stage.far().await;
    far.greet("{}").await;
    far.say(&ask("1")).await;
    let second = id_of(&host.expect("elicitation/create").await);
    assert_ne!(second, first);
    // The late answer settles nothing.
    host.say(&format!(r#"{{"jsonrpc":"2.0","id":{first},"result":{{"late":1}}}}"#)).await;
    assert_eq!(far.rest().await, [] as [&str; 0]);
    host.say(&format!(r#"{{"jsonrpc":"2.0","id":{second},"result":{{"good":1}}}}"#)).await;
    let answer = far.hear().await;
    assert_eq!((Raw::of(&answer).id(), Raw::of(&answer).result.unwrap().get()), ("1", r#"{"good":1}"#));
    // Once.
    host.say(&format!(r#"{{"jsonrpc":"2.0","id":{second},"result":{{"twice":1}}}}"#)).await;
    assert_eq!(far.rest().await, [] as [&str; 0]);
    host.leave().await;
}

#[tokio::test(start_paused = true)]
async fn a_server_takes_a_question_back_in_its_own_words() {
    let (mut host, _stage, mut far) = Stage::legacy("{}").await;
    for id in [r#""q""#, "0"] {
        far.say(&ask(id)).await;
        let asked = id_of(&host.expect("elicitation/create").await);
        let said = r#"{ "reason":"done\u0021", "requestId" :ID ,"x":1e999}"#;
        let params = said.replace("ID", id);
        far.say(&format!(r#"{{"method":"notifications/cancelled","params":{params}}}"#)).await;
        let told = host.hear().await;
        assert_eq!(Raw::of(&told).method.as_deref(), Some("notifications/cancelled"));
        assert_eq!(Raw::of(&told).params(), said.replace("ID", &asked.to_string()));
        host.say(&format!(r#"{{"jsonrpc":"2.0","id":{asked},"result":{{}}}}"#)).await;
        assert_eq!(far.rest().await, [] as [&str; 0]);
    }
    // Of nothing that is open.
    far.say(r#"{"method":"notifications/cancelled","params":{"requestId":"none"}}"#).await;
    assert_eq!(host.rest().await, [] as [&str; 0]);
    host.leave().await;
}

#[tokio::test(start_paused = true)]
async fn many_questions_are_told_apart_and_too_many_are_refused() {
    let (mut host, _stage, mut far) = Stage::legacy("{}").await;
    far.say(&ask("5")).await;
    let asked = id_of(&host.expect("elicitation/create").await);
    // An id that is open: nobody could tell the answers apart.
    far.say(&ask("5")).await;
    let refused = far.hear().await;
    assert_eq!(Raw::of(&refused).id(), "5");
    assert!(Raw::of(&refused).error.is_some(), "{refused}");
    // Progress of the host's work goes to who asked.
    let progress = r#"{"progressToken":"t","progress":1}"#;
    host.say(&format!(r#"{{"method":"notifications/progress","params":{progress}}}"#)).await;
    assert_eq!(Raw::of(&far.expect("notifications/progress").await).params(), progress);
    host.say(&format!(r#"{{"jsonrpc":"2.0","id":{asked},"error":{{"code":-1,"message":"no"}}}}"#)).await;
    assert_eq!(Raw::of(&far.hear().await).error.unwrap().get(), r#"{"code":-1,"message":"no"}"#);
    // A host that turned the number into text is understood.
    far.say(&ask(r#""again""#)).await;
    let asked = id_of(&host.expect("elicitation/create").await);
    host.say(&format!(r#"{{"jsonrpc":"2.0","id":"{asked}","result":{{}}}}"#)).await;
    assert_eq!(Raw::of(&far.hear().await).id(), r#""again""#);
    let (server, client) = (
        async {
            for number in 0..257 {
                far.say(&ask(&format!("{}", 1_000 + number))).await;
            }
            far.hear().await
        },
        async {
            for _ in 0..256 {
                host.expect("elicitation/create").await;
            }
        },
    );
    let (refused, ()) = tokio::join!(server, client);
    assert_eq!(Raw::of(&refused).id(), "1256");
    assert!(Raw::of(&refused).error.is_some(), "{refused}");
    host.leave().await;
}

#[tokio::test(start_paused = true)]
async fn what_a_server_says_during_the_handshake_is_kept() {
    let (mut host, mut stage) = Stage::new(mcp_reconnect::front::FrontOptions::default());
    host.say(&request(0, "initialize", super::support::LEGACY)).await;
    let mut far = stage.far().await;
    let initialize = far.expect("initialize").await;
    for number in 0..3 {
        far.say(&format!(r#"{{"method":"notifications/message","params":{number}}}"#)).await;
    }
    far.say(&ask("1")).await;
    far.answer(&initialize, "result", r#"{"protocolVersion":"2025-11-25","capabilities":{}}"#).await;
    far.expect("notifications/initialized").await;
    assert!(host.answer(0).await["result"].is_object());
    for number in 0..3 {
        assert_eq!(host.expect("notifications/message").await["params"], number);
    }
    let asked = id_of(&host.expect("elicitation/create").await);
    host.say(&format!(r#"{{"jsonrpc":"2.0","id":{asked},"result":{{}}}}"#)).await;
    assert_eq!(Raw::of(&far.hear().await).id(), "1");
    host.leave().await;
}
