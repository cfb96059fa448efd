//! A modern host, and servers of both eras.

use mcp_reconnect::front::FrontOptions;
use rmcp::model::{DiscoverResult, ListToolsResult, SubscriptionsAcknowledgedNotificationParams};
use serde_json::{Value, json};

use super::eras::asked;
use super::support::{Far, Host, MODERN, Raw, Stage, call, cancelled, request, text_of};
use crate::support::{memory, secs};

pub(super) fn with_meta(rest: &str) -> String {
    format!(r#"{{"_meta":{MODERN}{rest}}}"#)
}

async fn discover(host: &mut Host) -> DiscoverResult {
    let answer = host.ask(r#""d""#, "server/discover", &with_meta("")).await;
    serde_json::from_value(answer["result"].clone()).unwrap_or_else(|error| panic!("{error}: {answer}"))
}

/// A modern host with a legacy server of these capabilities; and what that was greeted with.
pub(super) async fn legacy(capabilities: &str) -> (Host, Stage, Far, Value) {
    let (mut host, mut stage) = Stage::new(FrontOptions::default());
    host.say(&request(0, "server/discover", &with_meta(""))).await;
    let mut far = stage.far().await;
    let probe = far.expect("server/discover").await;
    far.answer(&probe, "error", r#"{"code":-32601,"message":"no such method"}"#).await;
    let greeting = far.greet(capabilities).await;
    host.answer(0).await;
    (host, stage, far, serde_json::from_str(&greeting).unwrap())
}

/// A modern host with a modern server of these capabilities.
pub(super) async fn modern(capabilities: &str) -> (Host, Stage, Far) {
    let (mut host, mut stage) = Stage::new(FrontOptions::default());
    host.say(&request(0, "vendor/first", &with_meta(""))).await;
    let mut far = stage.far().await;
    far.discover(capabilities).await;
    let first = loop {
        let text = far.hear().await;
        match Raw::of(&text).method.as_deref() {
            Some("vendor/first") => break text,
            Some("prompts/list") => far.answer(&text, "result", r#"{"prompts":[]}"#).await,
            Some("subscriptions/listen") => {}
            _ => panic!("{text}"),
        }
    };
    far.answer(&first, "result", "{}").await;
    host.answer(0).await;
    (host, stage, far)
}

async fn listen(host: &mut Host, id: &str, filter: &str) -> Value {
    host.say(&request(id, "subscriptions/listen", &with_meta(&format!(r#","notifications":{filter}"#)))).await;
    let told = host.expect("notifications/subscriptions/acknowledged").await;
    let read: SubscriptionsAcknowledgedNotificationParams = serde_json::from_value(told["params"].clone()).unwrap();
    assert!(read.meta.is_some(), "{told}");
    assert_eq!(stream_of(&told), serde_json::from_str::<Value>(id).unwrap());
    told["params"]["notifications"].clone()
}

fn stream_of(told: &Value) -> Value {
    told["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"].clone()
}

#[tokio::test(start_paused = true)]
async fn a_legacy_server_is_discovered_by_the_front() {
    let server = memory("server:\n info there 5\n prompts p");
    let mut host = Host::of(&server);
    let said = discover(&mut host).await;
    assert_eq!(said.supported_versions.iter().map(|version| version.as_str()).collect::<Vec<_>>(), ["2026-07-28"]);
    assert!(said.capabilities.tools.is_some() && said.capabilities.prompts.is_some());
    assert!(said.capabilities.resources.is_none());
    assert_eq!(said.meta.unwrap()["io.modelcontextprotocol/serverInfo"], json!({ "name": "there", "version": "5" }));
    let answer = host.ask(1, "tools/list", &with_meta("")).await;
    let list: ListToolsResult = serde_json::from_value(answer["result"].clone()).unwrap();
    assert_eq!(list.tools.len(), 2);
    let answer = host.ask(2, "tools/call", &with_meta(r#","name":"echo","arguments":{"text":"hi"}"#)).await;
    assert_eq!(text_of(&answer), "hi");
    let calls = asked(&server.ledger(), "tools/call");
    assert_eq!(calls[0]["_meta"], json!({}));
    host.leave().await;
}

#[tokio::test(start_paused = true)]
async fn the_context_is_taken_out_and_nothing_else() {
    let (host, _stage, mut far, greeting) = legacy("{}").await;
    assert_eq!(greeting["capabilities"], json!({}), "it cannot be asked for what it has");
    assert_eq!(greeting["clientInfo"], json!({ "name": "host", "version": "1" }));
    let context = &MODERN[1..MODERN.len() - 1];
    let params = |meta: &str| format!(r#"{{ "name":"x" , "_meta":{{ {meta}}} ,"n":1e999 }}"#);
    let own = r#""progressToken" : "t" , "k\u0041":1e999"#;
    for method in ["tools/call", "vendor/any", "tools/list"] {
        let level = r#""io.modelcontextprotocol/logLevel":"debug""#;
        host.say(&request(1, method, &params(&format!("{own},{context},{level}")))).await;
        let said = far.expect(method).await;
        let said = Raw::of(&said).params().to_owned();
        assert_eq!(said, r#"{ "name":"x" , "_meta":{"progressToken":"t","kA":1e999} ,"n":1e999 }"#);
        host.say(&cancelled(1)).await;
        far.expect("notifications/cancelled").await;
    }
    host.leave().await;
}

#[tokio::test(start_paused = true)]
async fn what_a_legacy_server_asks_is_refused() {
    let (mut host, _stage, mut far, _) = legacy("{}").await;
    host.say(&request(1, "tools/call", &with_meta(r#","name":"x""#))).await;
    let asked = far.expect("tools/call").await;
    for method in ["sampling/createMessage", "elicitation/create", "roots/list", "vendor/ask"] {
        far.say(&request(r#""q""#, method, "{}")).await;
        let refused: Value = serde_json::from_str(&far.hear().await).unwrap();
        assert_eq!((&refused["id"], &refused["error"]["code"]), (&json!("q"), &json!(-32601)), "{refused}");
        assert!(refused["error"]["message"].as_str().unwrap().contains(method), "{refused}");
    }
    far.answer(&asked, "result", r#"{"content":[]}"#).await;
    assert!(host.answer(1).await["result"].is_object());
    assert_eq!(host.rest().await, [] as [&str; 0]);
    host.leave().await;
}

#[tokio::test(start_paused = true)]
async fn streams_are_the_fronts_and_outlive_sessions() {
    let (mut host, mut stage, mut far, _) = legacy(r#"{"resources":{"subscribe":true}}"#).await;
    let filter = r#"{"toolsListChanged":true,"resourceSubscriptions":["file:///a"],"vendorThings":true}"#;
    let accepted = listen(&mut host, r#""L""#, filter).await;
    assert_eq!(accepted, json!({ "toolsListChanged": true, "resourceSubscriptions": ["file:///a"] }));
    let accepted = listen(&mut host, "7", r#"{"promptsListChanged":true,"toolsListChanged":null}"#).await;
    assert_eq!(accepted, json!({ "promptsListChanged": true }));
    // The lists of the connection's own, and what the stream wants.
    let mut subscribed = 0;
    for text in far.rest().await {
        match Raw::of(&text).method.as_deref() {
            Some("resources/subscribe") => {
                assert_eq!(Raw::of(&text).params(), r#"{"uri":"file:///a"}"#);
                subscribed += 1;
                far.answer(&text, "result", "{}").await;
            }
            Some("resources/list") => far.answer(&text, "result", r#"{"resources":[]}"#).await,
            _ => panic!("{text}"),
        }
    }
    assert_eq!(subscribed, 1);
    let templates = far.expect("resources/templates/list").await;
    far.answer(&templates, "result", r#"{"resourceTemplates":[]}"#).await;
    for round in 0..2 {
        let updated = |uri: &str| {
            format!(r#"{{"method":"notifications/resources/updated","params":{{ "uri":"{uri}" ,"x":1e999}}}}"#)
        };
        far.say(&updated("file:///b")).await;
        far.say(&updated("file:///ab")).await;
        far.say(&updated("file:///a/part")).await;
        far.say(r#"{"method":"notifications/resources/list_changed"}"#).await;
        far.say(r#"{"method":"notifications/tools/list_changed"}"#).await;
        far.say(r#"{"method":"notifications/prompts/list_changed","params":{"_meta":{"k":1}}}"#).await;
        let told = host.hear().await;
        let stream = r#"{"io.modelcontextprotocol/subscriptionId":"L"}"#;
        let wanted = format!(r#"{{"_meta":{stream},"uri":"file:///a/part" ,"x":1e999}}"#);
        assert_eq!(Raw::of(&told).params(), wanted, "round {round}");
        assert_eq!(stream_of(&host.expect("notifications/tools/list_changed").await), "L");
        let told = host.expect("notifications/prompts/list_changed").await;
        assert_eq!((stream_of(&told), &told["params"]["_meta"]["k"]), (json!(7), &json!(1)));
        assert_eq!(host.rest().await, [] as [&str; 0]);
        if round == 0 {
            drop(far);
            far = stage.far().await;
            far.greet(r#"{"resources":{"subscribe":true}}"#).await;
            let again = far.expect("resources/subscribe").await;
            far.answer(&again, "result", "{}").await;
            far.rest().await;
        }
    }
    host.say(&cancelled(r#""L""#)).await;
    assert_eq!(Raw::of(&far.expect("resources/unsubscribe").await).params(), r#"{"uri":"file:///a"}"#);
    far.say(r#"{"method":"notifications/resources/updated","params":{"uri":"file:///a"}}"#).await;
    far.say(r#"{"method":"notifications/tools/list_changed"}"#).await;
    assert_eq!(host.rest().await, [] as [&str; 0]);
    host.leave().await;
}

#[tokio::test(start_paused = true)]
async fn a_stream_hears_what_the_front_notices() {
    let script = "server:\n tools echo(readOnly), die\n call die kill\n capabilities tools\n spawn 2..:\n tools echo(readOnly), new";
    let server = memory(script);
    let mut host = Host::of(&server);
    discover(&mut host).await;
    host.ask(1, "tools/list", &with_meta("")).await;
    // A server that takes no subscriptions accepts none.
    let filter = r#"{"toolsListChanged":true,"resourceSubscriptions":["file:///a"]}"#;
    assert_eq!(listen(&mut host, "2", filter).await, json!({ "toolsListChanged": true }));
    host.ask(3, "tools/call", &with_meta(r#","name":"die""#)).await;
    let told = host.expect("notifications/tools/list_changed").await;
    assert_eq!(stream_of(&told), 2);
    assert_eq!(host.told(secs(60)).await, [] as [&str; 0]);
    let answer = host.ask(4, "subscriptions/listen", &with_meta(r#","notifications":[1]"#)).await;
    assert_eq!(answer["error"]["code"], -32602, "{answer}");
    host.leave().await;
}

#[tokio::test(start_paused = true)]
async fn modern_frames_pass_between_modern_sides() {
    let (mut host, mut stage, mut far) = modern(r#"{"prompts":{"listChanged":true}}"#).await;
    far.rest().await;
    let params = with_meta(r#", "name":"x","arguments":{ "n":1e999}"#);
    host.say(&request(1, "tools/call", &params)).await;
    let asked = far.expect("tools/call").await;
    assert_eq!(Raw::of(&asked).params(), params);
    let result =
        r#"{ "resultType":"input_required" ,"inputRequests":{"q":{"method":"roots/list"}},"requestState":"s" }"#;
    far.answer(&asked, "result", result).await;
    assert_eq!(Raw::of(&host.answer_text("1").await).result.unwrap().get(), result);
    let params = with_meta(r#", "name":"x","inputResponses":{"q":{ "roots":[] }},"requestState":"s""#);
    host.say(&request(1, "tools/call", &params)).await;
    let asked = far.expect("tools/call").await;
    assert_eq!(Raw::of(&asked).params(), params);
    far.answer(&asked, "result", "{}").await;
    host.answer(1).await;
    // Whatever else discover says is the server's own.
    host.say(&request(2, "server/discover", &with_meta(r#","x":1"#))).await;
    let asked = far.expect("server/discover").await;
    assert_eq!(Raw::of(&asked).params(), with_meta(r#","x":1"#));
    far.answer(&asked, "error", r#"{"code":-32022, "message":"no","data":{"supported":[]}}"#).await;
    assert_eq!(host.answer(2).await["error"]["code"], -32022);

    listen(&mut host, r#""L""#, r#"{"promptsListChanged":true}"#).await;
    for _ in 0..2 {
        far.say(r#"{"method":"notifications/prompts/list_changed","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":1073741900,"k":1}}}"#).await;
        let told = host.expect("notifications/prompts/list_changed").await;
        assert_eq!((stream_of(&told), &told["params"]["_meta"]["k"]), (json!("L"), &json!(1)));
        assert_eq!(host.rest().await, [] as [&str; 0]);
        drop(far);
        far = stage.far().await;
        far.discover(r#"{"prompts":{"listChanged":true}}"#).await;
        let first = far.rest().await;
        assert_eq!(first.iter().filter(|text| text.contains("subscriptions/listen")).count(), 1, "{first:?}");
    }
    host.leave().await;
}

#[tokio::test(start_paused = true)]
async fn a_server_of_both_eras_is_spoken_to_in_the_hosts() {
    let server = memory("server:\n era both");
    let mut host = Host::of(&server);
    discover(&mut host).await;
    assert_eq!(
        text_of(&host.ask(1, "tools/call", &with_meta(r#","name":"echo","arguments":{"text":"a"}"#)).await),
        "a"
    );
    assert_eq!(server.ledger().initializes(), 0);
    host.leave().await;
}

#[tokio::test(start_paused = true)]
async fn a_modern_host_is_greeted_at_once_too() {
    let server = memory("server:\n discover never\n initialize never");
    let mut host = Host::of(&server);
    let began = tokio::time::Instant::now();
    let said = discover(&mut host).await;
    assert_eq!(began.elapsed(), secs(5));
    assert!(said.capabilities.tools.is_some() && said.capabilities.completions.is_some());
    host.say(&call(1, "echo")).await;
    let answer = host.answer(1).await;
    assert_eq!(answer["error"]["data"]["outcome"], "not_sent", "{answer}");
    host.leave().await;
}

#[tokio::test(start_paused = true)]
async fn a_host_that_goes_back_to_initialize_is_a_legacy_one() {
    let server = memory("server:\n discover error -32601 \"no\"\n initialize delay 20s\n info there 5");
    let mut host = Host::of(&server);
    host.say(&request(1, "server/discover", &with_meta(""))).await;
    host.within(secs(2)).await;
    let wrong = host.ask(2, "initialize", "{}").await;
    assert_eq!(wrong["error"]["code"], -32602, "{wrong}");
    host.say(&request(2, "initialize", &super::support::LEGACY.replace("2025-11-25", "2025-06-18"))).await;
    assert_eq!(host.answer(2).await["result"]["protocolVersion"], "2025-06-18");
    host.answer(1).await;
    let again = host.ask(3, "initialize", super::support::LEGACY).await;
    assert_eq!(again["error"]["code"], -32600, "{again}");
    assert_eq!(host.ask(4, "tools/list", "{}").await["result"]["tools"], json!([]));
    // What a modern host is told on its streams only.
    assert_eq!(host.told(secs(60)).await, ["notifications/tools/list_changed"]);
    host.say(&call(5, "echo")).await;
    assert_eq!(text_of(&host.answer(5).await), "echo");
    host.leave().await;
}
