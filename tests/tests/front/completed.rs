//! What a modern host insists on in a result, before servers that do not write it.

use mcp_reconnect::front::FrontOptions;
use rmcp::model::{
    CacheScope, CallToolResult, CompleteResult, GetPromptResult, ListPromptsResult, ListResourceTemplatesResult,
    ListResourcesResult, ListToolsResult, ReadResourceResult, ResultType,
};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::modern::{legacy, modern, with_meta};
use super::support::{Far, Host, Raw, Stage, request};
use crate::support::memory;

const KIND: &str = r#""resultType":"complete""#;
const KEPT: [&str; 2] = [r#""ttlMs":0"#, r#""cacheScope":"private""#];
const CACHEABLE: [&str; 5] =
    ["tools/list", "prompts/list", "resources/list", "resources/templates/list", "resources/read"];

/// The host's result, as it is, where the server's is this one.
async fn through(host: &mut Host, far: &mut Far, method: &str, result: &str) -> String {
    host.say(&request(1, method, &with_meta(r#","uri":"file:///a","name":"x""#))).await;
    let asked = far.expect(method).await;
    far.answer(&asked, "result", result).await;
    let answer = host.answer_text("1").await;
    Raw::of(&answer).result.unwrap_or_else(|| panic!("no result: {answer}")).get().to_owned()
}

/// Checks that these members stand before the rest in any order, each once, and nothing else does.
fn assert_before(result: &str, added: &[&str], rest: &str) {
    let front = result.strip_suffix(rest).unwrap_or_else(|| panic!("{rest} is not the end of {result}"));
    let mut found: Vec<_> = front.trim_start_matches('{').split(',').filter(|member| !member.is_empty()).collect();
    let mut added = added.to_vec();
    found.sort_unstable();
    added.sort_unstable();
    assert_eq!(found, added, "{result}");
}

#[tokio::test(start_paused = true)]
async fn what_is_missing_comes_before_the_members_of_the_server() {
    let (mut host, _stage, mut far, _) = legacy("{}").await;
    let rest = r#""a" : [ 1e999 ] , "_meta":{"k\u0041":1},"resultTypes":0 }"#;
    for method in ["tools/call", "prompts/get", "completion/complete", "vendor/any"] {
        let result = through(&mut host, &mut far, method, &format!("{{ {rest}")).await;
        assert_before(&result, &[KIND], rest);
        assert_eq!(through(&mut host, &mut far, method, "{ }").await, format!("{{{KIND}}}"));
    }
    for method in CACHEABLE {
        let result = through(&mut host, &mut far, method, &format!("{{ {rest}")).await;
        assert_before(&result, &[KIND, KEPT[0], KEPT[1]], rest);
    }
    host.leave().await;
}

#[tokio::test(start_paused = true)]
async fn what_the_server_has_written_is_left_as_it_is() {
    let (mut host, _stage, mut far, _) = legacy("{}").await;
    // However it is written, and whatever it says.
    let whole = r#"{ "ttlMs" : 5,"x":1e999, "cache\u0053cope":null , "resultType":"vendor" }"#;
    for method in CACHEABLE {
        assert_eq!(through(&mut host, &mut far, method, whole).await, whole);
        let rest = r#""ttlMs": 7 }"#;
        assert_before(&through(&mut host, &mut far, method, &format!("{{{rest}")).await, &[KIND, KEPT[1]], rest);
    }
    let kind = r#"{"resultType":"input_required" , "x":1}"#;
    assert_eq!(through(&mut host, &mut far, "vendor/any", kind).await, kind);
    // What is no object has no members.
    for odd in ["[1]", "\"{\"", "7"] {
        assert_eq!(through(&mut host, &mut far, "tools/list", odd).await, odd);
    }
    // Errors are no results.
    host.say(&request(2, "resources/read", &with_meta(r#","uri":"file:///a""#))).await;
    let asked = far.expect("resources/read").await;
    far.answer(&asked, "error", r#"{ "code":-32002,"message":"none" }"#).await;
    let answer = host.answer_text("2").await;
    assert_eq!(Raw::of(&answer).error.unwrap().get(), r#"{ "code":-32002,"message":"none" }"#);
    host.leave().await;
}

#[tokio::test(start_paused = true)]
async fn between_sides_of_one_era_nothing_is_added() {
    let bare = r#"{ "tools" : [] }"#;
    let (mut host, _stage, mut far) = modern("{}").await;
    assert_eq!(through(&mut host, &mut far, "tools/list", bare).await, bare);
    host.leave().await;
    let (mut host, _stage, mut far) = Stage::legacy("{}").await;
    assert_eq!(through(&mut host, &mut far, "tools/list", bare).await, bare);
    host.leave().await;
}

fn read<T: DeserializeOwned>(answer: &Value) -> T {
    assert_eq!(answer["result"]["resultType"], "complete", "{answer}");
    serde_json::from_value(answer["result"].clone()).unwrap_or_else(|error| panic!("{error}: {answer}"))
}

#[tokio::test(start_paused = true)]
async fn the_types_of_an_sdk_read_every_result() {
    let script = "server:\n capabilities tools, prompts, resources, completions\n prompts p\n resources file:///a\n templates file:///{x}";
    let server = memory(script);
    let mut host = Host::new(crate::support::builder(&server), FrontOptions::default());
    macro_rules! ask {
        ($type:ty, $method:expr, $params:expr) => {
            read::<$type>(&host.ask(1, $method, &with_meta($params)).await)
        };
    }
    macro_rules! kept {
        ($result:expr) => {{
            let result = $result;
            let kept = (result.result_type, result.ttl_ms, result.cache_scope);
            assert_eq!(kept, (Some(ResultType::COMPLETE), Some(0), Some(CacheScope::Private)));
        }};
    }
    kept!(ask!(ListToolsResult, "tools/list", ""));
    kept!(ask!(ListPromptsResult, "prompts/list", ""));
    kept!(ask!(ListResourcesResult, "resources/list", ""));
    kept!(ask!(ListResourceTemplatesResult, "resources/templates/list", ""));
    kept!(ask!(ReadResourceResult, "resources/read", r#","uri":"file:///a""#));
    ask!(CallToolResult, "tools/call", r#","name":"echo","arguments":{"text":"hi"}"#);
    ask!(GetPromptResult, "prompts/get", r#","name":"p""#);
    let about = r#","ref":{"type":"ref/prompt","name":"p"},"argument":{"name":"x","value":""}"#;
    ask!(CompleteResult, "completion/complete", about);
    assert_eq!((server.ledger().initializes(), server.ledger().requests("tools/call")), (1, 1));
    host.leave().await;
}
