//! A legacy host, and servers of both eras; what one does not know of the other is the front's to say.

use mcp_reconnect::front::FrontOptions;
use mcp_reconnect_tests::fake::{Event, Ledger};
use rmcp::model::InitializeResult;
use serde_json::{Value, json};

use super::support::{Far, Host, LEGACY, Raw, Stage, request, text_of};
use crate::support::{memory, secs};

const CAPABILITIES: &str = r#"{"roots":{"listChanged":true},"sampling":{},"elicitation":{}}"#;

/// The parameters of every request of this method.
pub(super) fn asked(ledger: &Ledger, wanted: &str) -> Vec<Value> {
    let asked = ledger.entries().iter().filter_map(|entry| match &entry.event {
        Event::Request { method, params, .. } if method == wanted => Some(params.clone()),
        _ => None,
    });
    asked.collect()
}

/// A legacy host with a modern server of these capabilities.
async fn modern(capabilities: &str) -> (Host, Stage, Far) {
    let (mut host, mut stage) = Stage::new(FrontOptions::default());
    host.say(&request(0, "initialize", LEGACY)).await;
    let mut far = stage.far().await;
    far.discover(capabilities).await;
    host.answer(0).await;
    (host, stage, far)
}

#[tokio::test(start_paused = true)]
async fn a_server_of_both_eras_is_spoken_to_in_each_hosts_era() {
    let script = "server:\n era both\n tools echo(readOnly), die\n call die kill\n spawn 2:\n info fake 2\n spawn 3..:\n info other 3";
    let server = memory(script);
    let mut host = Host::legacy(&server).await;
    for (id, spawn) in [(1, 2), (2, 3), (3, 4)] {
        host.call(id, "die").await;
        server.watch().wait_until(|ledger| ledger.requests("tools/list") == spawn).await;
        host.within(secs(60)).await;
    }
    assert_eq!(text_of(&host.call(9, "echo").await), "echo");
    let ledger = server.ledger();
    assert_eq!((ledger.discovers(), ledger.initializes()), (0, 4));
    assert!(asked(&ledger, "tools/call").iter().all(|params| params["_meta"].is_null()));
    host.leave().await;
}

#[tokio::test(start_paused = true)]
async fn a_modern_server_is_told_who_the_host_is_in_every_request() {
    let server = memory("server:\n era modern\n info there 5");
    let mut host = Host::of(&server);
    let answer = host.initialize().await;
    let said: InitializeResult = serde_json::from_value(answer["result"].clone()).unwrap();
    assert_eq!((said.protocol_version.as_str(), &*said.server_info.name), ("2025-11-25", "there"));
    assert!(said.capabilities.tools.is_some() && said.capabilities.prompts.is_none());
    let params = r#"{"name":"echo","arguments":{"text":"hi"},"_meta":{"progressToken":1,"k":2}}"#;
    assert_eq!(text_of(&host.ask(1, "tools/call", params).await), "hi");
    assert_eq!(host.ask(2, "tools/list", "{}").await["result"]["tools"].as_array().unwrap().len(), 2);
    let ledger = server.ledger();
    let calls = asked(&ledger, "tools/call");
    let meta = &calls[0]["_meta"];
    assert_eq!(meta["io.modelcontextprotocol/protocolVersion"], "2026-07-28");
    assert_eq!(meta["io.modelcontextprotocol/clientInfo"], json!({ "name": "host", "version": "1" }));
    let capabilities: Value = serde_json::from_str(CAPABILITIES).unwrap();
    assert_eq!(meta["io.modelcontextprotocol/clientCapabilities"], capabilities);
    assert_eq!((&meta["progressToken"], &meta["k"]), (&json!(1), &json!(2)));
    assert!(
        asked(&ledger, "tools/list")
            .iter()
            .all(|params| params["_meta"]["io.modelcontextprotocol/clientInfo"].is_object())
    );
    // What only the legacy era knows is the front's to answer.
    for (id, method, params) in [
        (3, "ping", "{}"),
        (4, "logging/setLevel", r#"{"level":"debug"}"#),
        (5, "resources/subscribe", r#"{"uri":"file:///a"}"#),
        (6, "resources/unsubscribe", r#"{"uri":"file:///a"}"#),
    ] {
        assert_eq!(host.ask(id, method, params).await["result"], json!({}), "{method}");
        assert_eq!(server.ledger().requests(method), 0);
    }
    host.call(7, "echo").await;
    let calls = asked(&server.ledger(), "tools/call");
    assert_eq!(calls[1]["_meta"]["io.modelcontextprotocol/logLevel"], "debug");
    assert!(calls[0]["_meta"]["io.modelcontextprotocol/logLevel"].is_null());
    host.leave().await;
}

#[tokio::test(start_paused = true)]
async fn one_stream_tells_of_changes_and_subscriptions() {
    let (mut host, _stage, mut far) = modern(r#"{"tools":{"listChanged":true},"resources":{"subscribe":true}}"#).await;
    let mut first = None;
    let mut lists = 0;
    while first.is_none() || lists < 3 {
        let text = far.hear().await;
        lists += usize::from(text.contains("/list\""));
        match Raw::of(&text).method.as_deref() {
            Some("subscriptions/listen") => assert!(first.replace(text.clone()).is_none(), "a second stream"),
            Some("tools/list") => far.answer(&text, "result", r#"{"tools":[]}"#).await,
            Some("resources/list") => far.answer(&text, "result", r#"{"resources":[]}"#).await,
            Some("resources/templates/list") => far.answer(&text, "result", r#"{"resourceTemplates":[]}"#).await,
            _ => panic!("{text}"),
        }
    }
    let first = first.unwrap();
    let filter = |text: &str| {
        let params: Value = serde_json::from_str(Raw::of(text).params()).unwrap();
        params["notifications"].clone()
    };
    assert_eq!(filter(&first), json!({ "toolsListChanged": true }));
    assert_eq!(host.ask(1, "resources/subscribe", r#"{"uri":"file:///a"}"#).await["result"], json!({}));
    let mut texts = [far.hear().await, far.hear().await];
    texts.sort_by_key(|text| text.contains("listen"));
    assert!(texts[0].contains("notifications/cancelled") && texts[0].contains(Raw::of(&first).id()), "{}", texts[0]);
    assert_eq!(filter(&texts[1]), json!({ "toolsListChanged": true, "resourceSubscriptions": ["file:///a"] }));
    let stream = Raw::of(&texts[1]).id().to_owned();
    far.say(&format!(r#"{{"method":"notifications/subscriptions/acknowledged","params":{{"_meta":{{"io.modelcontextprotocol/subscriptionId":{stream}}},"notifications":{{}}}}}}"#)).await;
    for (method, rest) in [
        ("notifications/tools/list_changed", r#""x":1e999"#),
        ("notifications/resources/updated", r#""uri":"file:///\u0061""#),
    ] {
        let meta = format!(r#"{{"k":1e999,"io.modelcontextprotocol/subscriptionId":{stream}}}"#);
        far.say(&format!(r#"{{"method":"{method}","params":{{ {rest} ,"_meta":{meta} }}}}"#)).await;
        let told = host.hear().await;
        let raw = Raw::of(&told);
        assert_eq!(raw.method.as_deref(), Some(method));
        assert_eq!(raw.params(), format!(r#"{{ {rest} ,"_meta":{{"k":1e999}} }}"#));
    }
    host.leave().await;
}

#[tokio::test(start_paused = true)]
async fn input_is_asked_of_the_host_round_after_round() {
    let (mut host, _stage, mut far) = modern("{}").await;
    let params = r#"{ "name":"x" ,"arguments":{ "n":1e999 } }"#;
    host.say(&request(1, "tools/call", params)).await;
    let asked = far.expect("tools/call").await;
    let question = r#"{ "message":"who\u003f" ,"requestedSchema":{ } }"#;
    let requests = format!(
        r#"{{"who":{{"method":"elicitation/create","params":{question}}},"a\u0041":{{"method":"roots/list"}}}}"#
    );
    let state = r#"{ "opaque":1e999 }"#;
    let result = format!(r#"{{"resultType":"input_required","inputRequests":{requests},"requestState":{state}}}"#);
    far.answer(&asked, "result", &result).await;
    let mut asks = [host.hear().await, host.hear().await];
    asks.sort_by_key(|text| text.contains("roots/list"));
    assert_eq!(
        (Raw::of(&asks[0]).method.as_deref(), Raw::of(&asks[0]).params()),
        (Some("elicitation/create"), question)
    );
    let reply = r#"{ "action":"accept" ,"content":{ "n":1e999 } }"#;
    host.say(&format!(r#"{{"id":{},"result":{{"roots":[ ]}}}}"#, Raw::of(&asks[1]).id())).await;
    host.say(&format!(r#"{{"id":{},"result":{reply}}}"#, Raw::of(&asks[0]).id())).await;
    let second = far.expect("tools/call").await;
    let said = Raw::of(&second).params().to_owned();
    for part in [r#""arguments":{ "n":1e999 }"#, r#""name":"x""#, r#""aA":{"roots":[ ]}"#] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert!(
        said.contains(&format!(r#""who":{reply}"#)) && said.contains(&format!(r#""requestState":{state}"#)),
        "{said}"
    );
    // A round that only keeps its state; the answers are of the first.
    far.answer(&second, "result", r#"{"resultType":"input_required","requestState":"two"}"#).await;
    let third = far.expect("tools/call").await;
    let said: Value = serde_json::from_str(&third.replace("1e999", "1")).unwrap();
    assert_eq!((&said["params"]["requestState"], &said["params"]["inputResponses"]), (&json!("two"), &Value::Null));
    assert_eq!(said["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"], "2026-07-28");
    let result = r#"{ "resultType":"complete" ,"content":[ ]}"#;
    far.answer(&third, "result", result).await;
    assert_eq!(Raw::of(&host.answer_text("1").await).result.unwrap().get(), result);
    host.leave().await;
}

#[tokio::test(start_paused = true)]
async fn input_that_is_refused_or_cut_short_ends_the_call_once() {
    let (mut host, mut stage, mut far) = modern("{}").await;
    let ask =
        r#"{"resultType":"input_required","inputRequests":{"q":{"method":"sampling/createMessage","params":{}}}}"#;
    host.say(&request(1, "tools/call", r#"{"name":"x"}"#)).await;
    let asked = far.expect("tools/call").await;
    far.answer(&asked, "result", ask).await;
    let question = host.expect("sampling/createMessage").await;
    host.say(&format!(r#"{{"id":{},"error":{{"code":-1,"message":"not with me"}}}}"#, question["id"])).await;
    let answer = host.answer(1).await;
    assert!(answer["error"]["message"].as_str().unwrap().contains("not with me"), "{answer}");
    assert_eq!(answer["error"]["data"]["outcome"], "unknown", "{answer}");
    assert_eq!(far.rest().await, [] as [&str; 0]);

    host.say(&request(2, "tools/call", r#"{"name":"x"}"#)).await;
    let asked = far.expect("tools/call").await;
    far.answer(&asked, "result", ask).await;
    let question = host.expect("sampling/createMessage").await;
    drop(far);
    let answer = host.answer(2).await;
    assert_eq!((&answer["error"]["code"], &answer["error"]["data"]["outcome"]), (&json!(-32011), &json!("unknown")));
    assert_eq!(host.expect("notifications/cancelled").await["params"]["requestId"], question["id"]);
    let mut far = stage.far().await;
    far.discover("{}").await;
    host.say(&format!(r#"{{"id":{},"result":{{}}}}"#, question["id"])).await;
    assert_eq!(far.rest().await, [] as [&str; 0]);

    // A host that no longer wants the call takes the question with it.
    host.say(&request(3, "tools/call", r#"{"name":"x"}"#)).await;
    let asked = far.expect("tools/call").await;
    far.answer(&asked, "result", ask).await;
    let question = host.expect("sampling/createMessage").await;
    host.say(&super::support::cancelled(3)).await;
    assert_eq!(host.expect("notifications/cancelled").await["params"]["requestId"], question["id"]);
    host.leave().await;
}
