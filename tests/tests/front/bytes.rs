//! Frames go through, not types: what a type would lose, sort or round is the same on the other side.

use serde_json::Value;

use mcp_reconnect::front::FrontOptions;

use super::support::{Host, LEGACY, Raw, Stage, call, cancelled, request, text_of};
use crate::support::memory;

/// Odd spacing, unknown members, numbers that no type holds, escapes, keys that come twice.
const ODD: &str = r#"{ "a" :1 ,"a":2,	"big":123456789012345678901234567890.0100, "huge":1e999,"esc":"\u0041\/\"\ud83d\ude00", "nested":{"x" : [ 1 , { } ,null ], "x":-0.0}, "":true }"#;

/// What the wire makes of it does not matter to bytes; names and tokens are as a host would give them.
const REQUESTS: [(&str, &str, &str); 17] = [
    (
        "7",
        "tools/call",
        r#"{ "name" : "x" ,"arguments":{ "n":1.50 ,"n":2 }, "_meta":{ "progressToken": "t" ,"k":1e400}, "new":[ ] }"#,
    ),
    (r#""7""#, "tools/call", r#"{"name":"x","name":"y"}"#),
    (r#""\u0041\"/""#, "prompts/get", r#"{ "name":"p","arguments":{"a":"\u0062"}}"#),
    ("-3", "resources/read", r#"{"uri":"file:///\u0061" , "x":0.10}"#),
    (
        "0",
        "completion/complete",
        r#"{"ref":{"type":"ref/prompt","name":"p"},"argument":{"name":"a","value":"v" },"context":{ } }"#,
    ),
    ("9007199254740993", "logging/setLevel", r#"{ "level":"debug","x":1 }"#),
    (r#""ünï""#, "resources/subscribe", r#"{ "uri" : "file:///a" , "x":1 }"#),
    ("1.5", "resources/unsubscribe", r#"{ "uri" : "file:///a" , "x":2 }"#),
    ("18446744073709551616", "tools/list", r#"{ "cursor":"c" ,"x":[ 1 ] }"#),
    ("2", "prompts/list", r#"{ "x":[ 1 ] }"#),
    ("3", "resources/list", r#"{ "x":[ 2 ] }"#),
    ("4", "resources/templates/list", r#"{ "x":[ 3 ] }"#),
    ("5", "tasks/get", r#"{ "taskId":"t" , "x":1}"#),
    ("6", "server/discover", r#"{ "for a legacy host":"a method as any other" }"#),
    ("11", "subscriptions/listen", r#"{ "notifications":{ } , "x":2 }"#),
    ("8", "vendor/anything", ODD),
    ("9", "vendor/no_object", r#"[ 1 , 2.50 ]"#),
];

#[tokio::test(start_paused = true)]
async fn requests_and_their_answers_keep_every_byte() {
    let (mut host, _stage, mut far) = Stage::legacy("{}").await;
    let results =
        [ODD, "null", "[ 1 ,2.0 ]", r#""\u0041""#, r#"{ "content":[ ] , "resultType":"input_required_not" }"#];
    let error = format!(r#"{{"code":-31999 , "message":"\u0041" , "data":{ODD} ,"more":[ 1 ] }}"#);
    for (at, (id, method, params)) in REQUESTS.into_iter().enumerate() {
        host.say(&format!(
            " {{\"params\" : {params} ,\"id\" :{id}, \"method\":\"{method}\",\"jsonrpc\":\"2.0\", \"x\":1 }} "
        ))
        .await;
        let asked = far.expect(method).await;
        assert_eq!(Raw::of(&asked).params(), params, "{method}");
        let (member, value) = match at % 3 {
            0 => ("error", error.as_str()),
            _ => ("result", results[at % results.len()]),
        };
        far.answer(&asked, member, value).await;
        let answer = host.answer_text(id).await;
        let raw = Raw::of(&answer);
        let (here, there) = if member == "error" { (raw.error, raw.result) } else { (raw.result, raw.error) };
        // A member that is null is hard to tell from none in this reading.
        assert_eq!(here.map_or("null", serde_json::value::RawValue::get), value, "{method}");
        assert!(there.is_none(), "{answer}");
    }
    // No parameters are no parameters.
    host.say(r#"{"jsonrpc":"2.0","id":10,"method":"vendor/bare"}"#).await;
    let asked = far.expect("vendor/bare").await;
    assert!(Raw::of(&asked).params.is_none(), "{asked}");
    far.answer(&asked, "result", "{}").await;
    host.answer("10").await;
    assert_eq!(host.rest().await, [] as [&str; 0]);
    host.leave().await;
}

#[tokio::test(start_paused = true)]
async fn notifications_keep_every_byte_both_ways() {
    let (mut host, _stage, mut far) = Stage::legacy("{}").await;
    let down = ["notifications/roots/list_changed", "notifications/progress", "notifications/vendor"];
    for method in down {
        host.say(&format!(r#"{{ "method":"{method}","params":{ODD},"jsonrpc":"2.0"}}"#)).await;
        let told = far.expect(method).await;
        assert_eq!((Raw::of(&told).params(), Raw::of(&told).id.is_none()), (ODD, true));
    }
    let up = [
        "notifications/progress",
        "notifications/message",
        "notifications/tools/list_changed",
        "notifications/prompts/list_changed",
        "notifications/resources/list_changed",
        "notifications/resources/updated",
        "notifications/elicitation/complete",
        "notifications/vendor",
    ];
    for method in up {
        far.say(&format!(r#"{{ "method":"{method}","params":{ODD} ,"jsonrpc":"2.0"}}"#)).await;
        let told = host.hear().await;
        assert_eq!((Raw::of(&told).method.as_deref(), Raw::of(&told).params()), (Some(method), ODD));
    }
    far.say(r#"{"jsonrpc":"2.0","method":"notifications/vendor"}"#).await;
    let told = host.hear().await;
    assert!(Raw::of(&told).params.is_none(), "{told}");
    host.leave().await;
}

#[tokio::test(start_paused = true)]
async fn what_the_server_asks_keeps_every_byte_both_ways() {
    let (mut host, _stage, mut far) = Stage::legacy("{}").await;
    let mut ids = Vec::new();
    let methods = ["sampling/createMessage", "elicitation/create", "roots/list", "vendor/ask"];
    for (method, id) in methods.into_iter().zip([r#""\u0073-1""#, "0", "-7", "1.25"]) {
        far.say(&format!(r#"{{"id":{id},"method":"{method}","params":{ODD} }}"#)).await;
        let asked = host.hear().await;
        let raw = Raw::of(&asked);
        assert_eq!((raw.method.as_deref(), raw.params()), (Some(method), ODD));
        let number: u64 = raw.id().parse().expect("an integer of the front's own");
        ids.push(number);
        let refuses = id == "0";
        let member = if refuses { "error" } else { "result" };
        host.say(&format!(r#"{{"{member}":{ODD},"jsonrpc":"2.0","id":{number}}}"#)).await;
        let answer = far.hear().await;
        let raw = Raw::of(&answer);
        let outcome = if refuses { raw.error } else { raw.result };
        assert_eq!((raw.id(), outcome.expect("the outcome").get()), (id, ODD));
    }
    let all = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), all);
    // A ping is between the front and the server.
    far.say(r#"{"jsonrpc":"2.0","id":"p","method":"ping"}"#).await;
    assert_eq!(Raw::of(&far.hear().await).id(), r#""p""#);
    assert_eq!(host.rest().await, [] as [&str; 0]);
    host.leave().await;
}

#[tokio::test(start_paused = true)]
async fn what_was_told_before_an_answer_comes_before_it() {
    let (mut host, _stage, mut far) = Stage::legacy("{}").await;
    host.say(&request(1, "tools/call", r#"{"name":"x","_meta":{"progressToken":5}}"#)).await;
    let asked = far.expect("tools/call").await;
    let id = Raw::of(&asked).id().to_owned();
    let server = async {
        for step in 0..500 {
            let params = format!(r#"{{"progressToken":5,"progress":{step}}}"#);
            far.say(&format!(r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{params}}}"#)).await;
        }
        far.say(&format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#)).await;
    };
    let client = async {
        for step in 0..500 {
            let told = host.expect("notifications/progress").await;
            assert_eq!(told["params"]["progress"], step);
        }
        assert_eq!(Raw::of(&host.hear().await).id(), "1");
    };
    tokio::join!(server, client);
    host.leave().await;
}

#[tokio::test(start_paused = true)]
async fn a_cancellation_reaches_the_server_under_the_id_that_it_knows() {
    let (mut host, _stage, mut far) = Stage::legacy("{}").await;
    for id in [r#""a""#, "1"] {
        host.say(&call(id, "x")).await;
        let asked = far.expect("tools/call").await;
        let known = Raw::of(&asked).id();
        let said = r#"{ "reason":"no\u0021" ,"requestId" : ID, "x":1e999 }"#;
        host.say(&format!(r#"{{"method":"notifications/cancelled","params":{}}}"#, said.replace("ID", id))).await;
        let told = far.expect("notifications/cancelled").await;
        assert_eq!(Raw::of(&told).params(), said.replace("ID", known));
        // Too late, and not said to the host.
        far.answer(&asked, "result", "{}").await;
        assert_eq!(host.rest().await, [] as [&str; 0]);
        // The id is free again.
        host.say(&call(id, "y")).await;
        let asked = far.expect("tools/call").await;
        far.answer(&asked, "result", r#"{"second":1}"#).await;
        assert_eq!(host.answer(id).await["result"]["second"], 1);
    }
    // Of nothing that is open.
    host.say(&cancelled(99)).await;
    host.say(r#"{"method":"notifications/cancelled","params":[]}"#).await;
    assert_eq!(far.rest().await, [] as [&str; 0]);
    host.leave().await;
}

#[tokio::test(start_paused = true)]
async fn the_hosts_own_words_initialize_every_session() {
    let (mut host, mut stage) = Stage::new(FrontOptions::default());
    let words = r#"{ "protocolVersion" : "2025-06-18", "capabilities":{ "x":{ "y":1.0 } } ,"clientInfo":{"name":"h\u0041","version":"1", "extra":[ ]},"_meta":{"a":1 }, "more":null }"#;
    host.say(&request(1, "initialize", words)).await;
    for epoch in 1..=3 {
        let mut far = stage.far().await;
        assert_eq!(far.greet("{}").await, words);
        if epoch == 1 {
            let answer = host.answer(1).await;
            assert_eq!(answer["result"]["serverInfo"]["name"], "far", "{answer}");
            host.say(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#).await;
        }
        // The host's own is not a second one.
        assert_eq!(far.rest().await, [] as [&str; 0], "epoch {epoch}");
    }
    host.leave().await;
}

#[tokio::test(start_paused = true)]
async fn the_servers_own_words_are_the_hosts_answer() {
    let (mut host, mut stage) = Stage::new(FrontOptions::default());
    host.say(&request(1, "initialize", LEGACY)).await;
    let mut far = stage.far().await;
    let asked = far.expect("initialize").await;
    let words = r#"{ "protocolVersion":"2025-11-25" ,"capabilities":{ "vendor":{"a":1.00} },"serverInfo":{"name":"\u0061","version":"1","icons":[ ]}, "instructions":"i" ,"new":1e999 }"#;
    far.answer(&asked, "result", words).await;
    far.expect("notifications/initialized").await;
    assert_eq!(Raw::of(&host.answer_text("1").await).result.unwrap().get(), words);
    host.leave().await;
}

fn code(answer: &Value) -> (i64, &str) {
    (answer["error"]["code"].as_i64().unwrap_or_default(), answer["error"]["message"].as_str().unwrap_or_default())
}

#[tokio::test(start_paused = true)]
async fn what_is_no_message_is_named_and_ends_nothing() {
    let server = memory("");
    let mut host = Host::of(&server);
    let garbage = [
        ("hello", -32700, "hello"),
        (r#"{"jsonrpc":"2.0","id":1,"#, -32700, "jsonrpc"),
        (r#"[{"jsonrpc":"2.0","id":1,"method":"ping"}]"#, -32600, "ping"),
        ("42", -32600, "42"),
        ("null", -32600, "null"),
        (r#""text""#, -32600, "text"),
        ("{}", -32600, "{}"),
        (r#"{"id":1}"#, -32600, "id"),
        (r#"{"id":null,"method":"ping"}"#, -32600, "ping"),
        (r#"{"id":{},"method":"ping"}"#, -32600, "ping"),
        (r#"{"id":1,"method":7}"#, -32600, "7"),
        (r#"{"id":1,"id":2,"method":"ping"}"#, -32600, "ping"),
    ];
    for round in 0..2 {
        for (text, wanted, named) in garbage {
            host.say(text).await;
            let answer: Value = serde_json::from_str(&host.hear().await).unwrap();
            assert!(answer["id"].is_null(), "{answer}");
            let (code, message) = code(&answer);
            assert!(code == wanted && message.contains(named), "{text}: {answer}");
        }
        // What is an answer is never answered, or two sides would go on for ever.
        host.say(r#"{"id":null,"error":{"code":-32700,"message":"what?"}}"#).await;
        host.say(r#"{"result":{}}"#).await;
        host.say(r#"{"id":77,"result":{}}"#).await;
        assert_eq!(host.rest().await, [] as [&str; 0]);
        if round == 0 {
            host.initialize().await;
        }
    }
    assert_eq!(text_of(&host.call(5, "echo").await), "echo");
    assert_eq!(server.ledger().garbage(), 0);
    host.leave().await;
}

#[tokio::test(start_paused = true)]
async fn requests_out_of_turn_are_refused_by_name() {
    let server = memory("server:\n call echo delay 1s");
    let mut host = Host::of(&server);
    // Nothing is dialled for any of them.
    for (params, named) in
        [("{}", "protocolVersion"), ("[]", "object"), (r#"{"protocolVersion":7}"#, "protocolVersion")]
    {
        let answer = host.ask(1, "initialize", params).await;
        assert!(code(&answer).0 == -32602 && code(&answer).1.contains(named), "{answer}");
    }
    let answer = host.call(1, "echo").await;
    assert!(code(&answer).0 == -32600 && code(&answer).1.contains("before `initialize`"), "{answer}");
    let answer = host.ask(1, "server/discover", "{}").await;
    assert!(code(&answer).0 == -32602 && code(&answer).1.contains("protocolVersion"), "{answer}");
    assert_eq!(host.ask(1, "ping", "{}").await["result"], serde_json::json!({}));
    host.say(r#"{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}"#).await;
    assert_eq!((host.rest().await.len(), server.ledger().spawns()), (0, 0));
    host.say(&request(1, "initialize", LEGACY)).await;
    host.say(&request(2, "initialize", LEGACY)).await;
    let answer = host.answer(2).await;
    assert!(code(&answer).0 == -32600 && code(&answer).1.contains("initialized already"), "{answer}");
    assert!(host.answer(1).await["result"].is_object());
    let answer = host.ask(3, "initialize", LEGACY).await;
    assert!(code(&answer).1.contains("initialized already"), "{answer}");
    // The same id twice; another spelling is another id.
    host.say(&call(4, "echo")).await;
    host.say(&call(4, "echo")).await;
    host.say(&call(r#""4""#, "echo")).await;
    let answer = host.answer(4).await;
    assert!(code(&answer).0 == -32600 && code(&answer).1.contains("is open"), "{answer}");
    assert_eq!(text_of(&host.answer(4).await), "echo");
    assert_eq!(text_of(&host.answer(r#""4""#).await), "echo");
    assert_eq!((server.ledger().executions("echo"), server.ledger().initializes()), (2, 1));
    host.leave().await;
}
