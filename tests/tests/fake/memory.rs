//! Spawns in memory, on paused time.

use std::time::Duration;

use mcp_reconnect_tests::fake::{Exit, FakeLink, FakeServer, Signal};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{call, initialize, notification, request, soon};

/// A client that says and hears single messages.
struct Client(FakeLink);

impl Client {
    fn of(server: &FakeServer) -> Self {
        Self(server.spawn())
    }

    async fn say(&self, line: Box<str>) {
        soon(self.0.to_server.send(line)).await.expect("the server reads");
    }

    async fn hear(&mut self) -> Value {
        let line = self.hear_line().await.expect("the server writes");
        serde_json::from_str(&line).expect("a message")
    }

    /// `None`: the link has ended. Within a virtual day, for scripts that wait.
    async fn hear_line(&mut self) -> Option<Box<str>> {
        let day = Duration::from_secs(86_400);
        tokio::time::timeout(day, self.0.from_server.recv()).await.expect("a line or the end, within a day")
    }

    async fn ask(&mut self, line: Box<str>) -> Value {
        self.say(line).await;
        self.hear().await
    }

    async fn initialized(server: &FakeServer) -> Self {
        let mut client = Self::of(server);
        let answer = client.ask(initialize(0)).await;
        assert!(answer["result"].is_object(), "{answer}");
        client.say(notification("notifications/initialized", &json!({}))).await;
        client
    }
}

fn text(answer: &Value) -> &str {
    answer["result"]["content"][0]["text"].as_str().unwrap_or_else(|| panic!("no text in {answer}"))
}

fn server(script: &str) -> FakeServer {
    FakeServer::new(script).unwrap_or_else(|error| panic!("{error}"))
}

fn names(answer: &Value, list: &str) -> Vec<String> {
    let items = answer["result"][list].as_array().unwrap_or_else(|| panic!("no {list} in {answer}"));
    items.iter().map(|item| item["name"].as_str().expect("a name").to_owned()).collect()
}

#[tokio::test(start_paused = true)]
async fn an_empty_script_is_a_well_behaved_legacy_server() {
    let server = server("");
    let mut client = Client::of(&server);
    let discover = client.ask(request(1, "server/discover", &json!({}))).await;
    assert_eq!(discover["error"]["code"], -32601);
    let answer = client.ask(initialize(2)).await;
    assert_eq!(answer["result"]["protocolVersion"], "2025-11-25");
    assert_eq!(answer["result"]["capabilities"], json!({"tools": {"listChanged": true}}));
    let tools = client.ask(request(3, "tools/list", &json!({}))).await;
    assert_eq!(names(&tools, "tools"), ["echo", "write"]);
    assert_eq!(tools["result"]["tools"][0]["annotations"], json!({"readOnlyHint": true}));
    assert_eq!(tools["result"]["tools"][1].get("annotations"), None);
    assert_eq!(text(&client.ask(call(4, "echo")).await), "call 4");
    assert_eq!(text(&client.ask(call(5, "write")).await), "call 5");
    assert_eq!(client.ask(request(6, "ping", &json!({}))).await["result"], json!({}));
    assert_eq!(client.ask(call(7, "missing")).await["error"]["code"], -32602);
    assert_eq!(client.ask(request(8, "no/such", &json!({}))).await["error"]["code"], -32601);
    let ledger = server.ledger();
    assert_eq!((ledger.spawns(), ledger.initializes(), ledger.discovers()), (1, 1, 1));
    assert_eq!((ledger.calls("write"), ledger.executions("write")), (1, 1));
    assert_eq!((ledger.calls("missing"), ledger.executions("missing")), (1, 0));

    drop(client.0.to_server);
    assert_eq!(client.0.handle.ended().await, Exit::Code(0));
    assert_eq!(server.ledger().exits(), [(1, "eof")]);
    assert_eq!(server.ledger().live_links(), 0);
}

#[tokio::test(start_paused = true)]
async fn sections_hold_for_their_spawns_and_times() {
    let server = server(
        "server:
           tools a
         spawn 1:
           initialize exit 3
         spawn 2..3:
           tools b, c(idempotent, desc \"v2\")
         from 60s:
           tools late",
    );
    let mut first = Client::of(&server);
    first.say(initialize(1)).await;
    assert_eq!(first.hear_line().await, None);
    assert_eq!(first.0.handle.ended().await, Exit::Code(3));
    let list = || request(9, "tools/list", &json!({}));
    for _ in 2..=3 {
        let mut client = Client::initialized(&server).await;
        let tools = client.ask(list()).await;
        assert_eq!(names(&tools, "tools"), ["b", "c"]);
        assert_eq!(tools["result"]["tools"][1]["description"], "v2");
    }
    let mut client = Client::initialized(&server).await;
    assert_eq!(names(&client.ask(list()).await, "tools"), ["a"]);
    tokio::time::sleep(Duration::from_secs(60)).await;
    let mut client = Client::initialized(&server).await;
    assert_eq!(names(&client.ask(list()).await, "tools"), ["late"]);
    assert_eq!(server.ledger().spawn_times(), [0, 0, 0, 0, 60_000]);
    assert_eq!(server.ledger().of_spawn(1).exits(), [(1, "exit 3")]);
}

#[tokio::test(start_paused = true)]
async fn a_reply_comes_before_the_exit_behind_it() {
    let server = server("call *#2 reply \"last\", exit 1\nlist ok, delay 1s, kill");
    let mut client = Client::initialized(&server).await;
    client.ask(call(1, "echo")).await;
    assert_eq!(text(&client.ask(call(2, "write")).await), "last");
    assert_eq!(client.hear_line().await, None);
    assert_eq!(client.0.handle.ended().await, Exit::Code(1));

    let mut client = Client::initialized(&server).await;
    let before = Instant::now();
    client.ask(request(1, "tools/list", &json!({}))).await;
    assert_eq!(client.hear_line().await, None);
    assert_eq!(before.elapsed(), Duration::from_secs(1));
    assert_eq!(client.0.handle.exit(), Some(Exit::Killed));
    assert_eq!(server.ledger().exits(), [(1, "exit 1"), (2, "kill")]);
}

#[tokio::test(start_paused = true)]
async fn executions_are_what_ran() {
    let server =
        server("call write commit, exit 1\ncall echo exit 1\nspawn 3: \n call write never\n call echo error 1 \"x\"");
    for (tool, executions) in [("write", 1), ("echo", 0)] {
        let mut client = Client::initialized(&server).await;
        client.say(call(1, tool)).await;
        assert_eq!(client.hear_line().await, None);
        assert_eq!((server.ledger().calls(tool), server.ledger().executions(tool)), (1, executions));
    }
    let mut client = Client::initialized(&server).await;
    client.say(call(1, "write")).await;
    assert_eq!(client.ask(call(2, "echo")).await["error"], json!({"code": 1, "message": "x"}));
    assert_eq!(server.ledger().of_spawn(3).executions("write"), 0);
    assert_eq!(server.ledger().executions("echo"), 0);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_commits_and_replies_runs_once() {
    let server = server("call write commit, delay 1s, reply \"x\"");
    let mut client = Client::initialized(&server).await;
    client.ask(call(1, "write")).await;
    assert_eq!(server.ledger().executions("write"), 1);
}

#[tokio::test(start_paused = true)]
async fn the_most_special_line_holds() {
    let script = "call a#2 reply \"number\"
         call a reply \"tool\"
         call *#3 reply \"any third\"
         call * reply \"any\"
         spawn 2:
           call * reply \"spawn\"
         server:
           call b reply \"early\"
           call b reply \"late\"";
    let server = server(script);
    let mut client = Client::initialized(&server).await;
    let mut heard = Vec::new();
    for (id, tool) in [(1, "c"), (2, "c"), (3, "a"), (4, "a"), (5, "a"), (6, "b")] {
        heard.push(text(&client.ask(call(id, tool)).await).to_owned());
    }
    assert_eq!(heard, ["any", "any", "any third", "number", "tool", "late"]);
    let mut client = Client::initialized(&server).await;
    client.ask(call(1, "a")).await;
    assert_eq!(text(&client.ask(call(2, "a")).await), "spawn");
}

#[tokio::test(start_paused = true)]
async fn delays_and_silence_run_on_virtual_time() {
    let server = server("initialize delay 70s\ncall a#1 never\ncall a delay 5m\nping error \"Unknown method: ping\"");
    let mut client = Client::of(&server);
    let start = Instant::now();
    client.ask(initialize(1)).await;
    assert_eq!(start.elapsed(), Duration::from_secs(70));
    client.say(call(2, "a")).await;
    client.say(call(3, "a")).await;
    let ping = client.ask(request(4, "ping", &json!({}))).await;
    assert_eq!(ping["error"], json!({"message": "Unknown method: ping"}));
    assert_eq!(client.hear().await["id"], 3);
    assert_eq!(start.elapsed(), Duration::from_secs(370));
}

#[tokio::test(start_paused = true)]
async fn a_serial_server_answers_nothing_during_a_call() {
    let script = "tools slow\ncall slow delay 240s";
    for (script, order) in [(format!("serial\n{script}"), [1, 2]), (script.to_owned(), [2, 1])] {
        let mut client = Client::initialized(&server(&script)).await;
        client.say(call(1, "slow")).await;
        client.say(request(2, "ping", &json!({}))).await;
        let heard = [client.hear().await["id"].clone(), client.hear().await["id"].clone()];
        assert_eq!(heard, order.map(Value::from), "{script}");
    }
}

#[tokio::test(start_paused = true)]
async fn held_calls_are_answered_in_reverse() {
    let server = server("call * hold 1000\ncall *#1001 duplicate\nspawn 2: \n call echo replay-old");
    let mut client = Client::initialized(&server).await;
    let outbound = client.0.to_server.clone();
    let asking = tokio::spawn(async move {
        for id in 1..=1001 {
            outbound.send(call(id, "echo")).await.expect("the server reads");
        }
    });
    let mut heard = Vec::new();
    for _ in 1..=1002 {
        let answer = client.hear().await;
        let id = answer["id"].as_u64().expect("an id");
        assert_eq!(text(&answer), format!("call {id}"));
        heard.push(id);
    }
    asking.await.expect("all were asked");
    // The duplicate was not held: where its two answers come among the others is open.
    assert_eq!(heard.iter().filter(|id| **id == 1001).count(), 2);
    heard.retain(|id| *id != 1001);
    assert_eq!(heard, (1..=1000).rev().collect::<Vec<u64>>());

    let mut client = Client::initialized(&server).await;
    client.say(call(5000, "echo")).await;
    for id in (1..=1001).chain([5000]) {
        assert_eq!(client.hear().await["id"], id);
    }
    assert_eq!(client.ask(request(5001, "ping", &json!({}))).await["id"], 5001);
}

#[tokio::test(start_paused = true)]
async fn progress_carries_the_token_of_the_call_or_a_foreign_one() {
    let server = server("tools own, other\ncall own progress 3 every 20s\ncall other progress 1 every 1s foreign");
    let mut client = Client::initialized(&server).await;
    let start = Instant::now();
    let with_token = json!({"name": "own", "_meta": {"progressToken": 7}});
    client.say(request(1, "tools/call", &with_token)).await;
    for step in 1..=3 {
        let progress = client.hear().await;
        assert_eq!(progress["method"], "notifications/progress");
        assert_eq!((&progress["params"]["progressToken"], &progress["params"]["progress"]), (&json!(7), &json!(step)));
        assert_eq!(start.elapsed(), Duration::from_secs(20 * step));
    }
    assert_eq!(client.hear().await["id"], 1);
    let foreign = client.ask(request(2, "tools/call", &json!({"name": "other", "_meta": {"progressToken": 8}}))).await;
    assert_eq!(foreign["params"]["progressToken"], "a foreign token");
}

#[tokio::test(start_paused = true)]
async fn cancellations_are_recorded_and_stop_what_they_should() {
    for (script, answered) in [("call * delay 60s", true), ("call * delay 60s\non cancelled stop", false)] {
        let server = server(script);
        let mut client = Client::initialized(&server).await;
        client.say(call(41, "write")).await;
        client.say(notification("notifications/cancelled", &json!({"requestId": 41}))).await;
        let ledger = soon(server.watch().wait_until(|ledger| !ledger.cancelled().is_empty())).await;
        assert_eq!(ledger.cancelled(), [(1, &json!(41))]);
        tokio::time::sleep(Duration::from_secs(100)).await;
        assert_eq!(server.ledger().executions("write"), usize::from(answered), "{script}");
        let next = client.ask(request(42, "ping", &json!({}))).await;
        assert_eq!(next["id"], if answered { 41 } else { 42 });
    }
}

#[tokio::test(start_paused = true)]
async fn a_deaf_server_reads_nothing_and_a_mute_one_answers_nothing() {
    let server = server("on USR1 deaf\ncall echo ok, mute");
    let deaf = Client::initialized(&server).await;
    deaf.0.handle.signal(Signal::Usr1);
    tokio::time::sleep(Duration::from_secs(1)).await;
    let read = server.ledger().requests("ping");
    for id in 0..64 {
        deaf.0.to_server.try_send(request(id, "ping", &json!({}))).expect("the pipe has room");
    }
    assert!(deaf.0.to_server.try_send("full".into()).is_err());
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(server.ledger().requests("ping"), read);
    deaf.0.handle.kill();
    assert_eq!(deaf.0.handle.ended().await, Exit::Killed);
    assert!(server.ledger().exits().is_empty(), "it was killed from outside");

    let mut mute = Client::initialized(&server).await;
    mute.ask(call(1, "echo")).await;
    mute.say(request(2, "ping", &json!({}))).await;
    soon(server.watch().wait_until(|ledger| ledger.requests("ping") == 1)).await;
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert!(mute.0.from_server.try_recv().is_err());
    assert_eq!(mute.0.handle.exit(), None);
}

#[tokio::test(start_paused = true)]
async fn streams_close_one_at_a_time() {
    let server = server("call echo ok, close stdout\ncall write ok, close stdin");
    let mut client = Client::initialized(&server).await;
    client.ask(call(1, "echo")).await;
    assert_eq!(client.hear_line().await, None);
    client.say(request(2, "ping", &json!({}))).await;
    soon(server.watch().wait_until(|ledger| ledger.requests("ping") == 1)).await;
    assert_eq!(client.0.handle.exit(), None);

    let mut client = Client::initialized(&server).await;
    client.ask(call(1, "write")).await;
    soon(client.0.to_server.closed()).await;
    assert_eq!(client.0.handle.exit(), None);
}

#[tokio::test(start_paused = true)]
async fn the_server_asks_notifies_and_makes_noise() {
    let server = server(
        r#"initialize stdout "banner\n\n\xff\n", notify message '{"level":"info","data":"hi"}', request ping, ok
           call echo request sampling wait, reply "heard"
           call write set-tools new(destructive), notify tools/list_changed x3 every 10ms, stderr "done""#,
    );
    let mut client = Client::of(&server);
    client.say(initialize(1)).await;
    for noise in ["banner", "", "\u{fffd}"] {
        assert_eq!(client.hear_line().await.as_deref(), Some(noise));
    }
    assert_eq!(client.hear().await["params"], json!({"level": "info", "data": "hi"}));
    let ping = client.hear().await;
    assert_eq!(ping["method"], "ping");
    client.say(json!({"jsonrpc": "2.0", "id": ping["id"], "result": {}}).to_string().into()).await;
    assert_eq!(client.hear().await["id"], 1);

    let sampling = client.ask(call(2, "echo")).await;
    assert_eq!(sampling["method"], "sampling/createMessage");
    let refusal = json!({"jsonrpc": "2.0", "id": sampling["id"], "error": {"code": -1, "message": "no"}});
    assert_eq!(text(&client.ask(refusal.to_string().into()).await), "heard");
    assert_eq!(server.ledger().answers("ping").len(), 1);
    assert_eq!(server.ledger().answers("sampling/createMessage"), [&refusal]);

    client.say(call(3, "write")).await;
    for _ in 0..3 {
        assert_eq!(client.hear().await["method"], "notifications/tools/list_changed");
    }
    client.hear().await;
    assert_eq!(client.0.handle.stderr(), b"done");
    let tools = client.ask(request(4, "tools/list", &json!({}))).await;
    assert_eq!(names(&tools, "tools"), ["new"]);
    client.say("not a message".into()).await;
    soon(server.watch().wait_until(|ledger| ledger.garbage() == 1)).await;
}

#[tokio::test(start_paused = true)]
async fn answers_can_be_wrong_in_every_way() {
    let server = server(
        "call a big 65KiB\ncall b wrong-id\ncall c bad-shape\ncall d is-error \"no\"\ncall e result '{\"x\":1}'\n\
         call f error -32000 \"Server not initialized\" '{\"why\":1}'",
    );
    let mut client = Client::initialized(&server).await;
    client.say(call(1, "a")).await;
    assert_eq!(client.hear_line().await.map(|line| line.len()), Some(65 << 10));
    assert_ne!(client.ask(call(2, "b")).await["id"], 2);
    assert_eq!(client.ask(call(3, "c")).await["result"]["content"], 5);
    let failed = client.ask(call(4, "d")).await;
    assert_eq!((text(&failed), &failed["result"]["isError"]), ("no", &json!(true)));
    assert_eq!(client.ask(call(5, "e")).await["result"], json!({"x": 1}));
    let error = json!({"code": -32000, "message": "Server not initialized", "data": {"why": 1}});
    assert_eq!(client.ask(call(6, "f")).await["error"], error);
}

#[tokio::test(start_paused = true)]
async fn versions_are_negotiated_or_refused() {
    let ask = |version: &str| request(1, "initialize", &json!({"protocolVersion": version}));
    let mut client = Client::of(&server("versions 2025-06-18, 2024-11-05"));
    assert_eq!(client.ask(ask("2024-11-05")).await["result"]["protocolVersion"], "2024-11-05");
    assert_eq!(client.ask(ask("2025-11-25")).await["result"]["protocolVersion"], "2025-06-18");
    let mut client = Client::of(&server("initialize#1 version 1999-01-01\ninitialize only 2025-06-18"));
    assert_eq!(client.ask(ask("2025-11-25")).await["result"]["protocolVersion"], "1999-01-01");
    let refused = client.ask(ask("2025-11-25")).await;
    let data = json!({"supported": ["2025-06-18"], "requested": "2025-11-25"});
    assert_eq!((&refused["error"]["code"], &refused["error"]["data"]), (&json!(-32602), &data));
    assert_eq!(client.ask(ask("2025-06-18")).await["result"]["protocolVersion"], "2025-06-18");
}

fn modern(version: &str, mut params: Value) -> Value {
    params["_meta"]["io.modelcontextprotocol/protocolVersion"] = version.into();
    params["_meta"]["io.modelcontextprotocol/clientCapabilities"] = json!({});
    params
}

#[tokio::test(start_paused = true)]
async fn a_modern_server_knows_no_initialize() {
    let server = server("era modern\ncall write input-required\ncall echo task");
    let mut client = Client::of(&server);
    assert_eq!(client.ask(initialize(1)).await["error"]["code"], -32601);
    let mut ask = async |method: &str, params: Value| client.ask(request(1, method, &params)).await;
    let refused = ask("server/discover", modern("2099-01-01", json!({}))).await;
    assert_eq!(refused["error"]["code"], -32022);
    assert_eq!(refused["error"]["data"]["supported"], json!(["2026-07-28"]));
    let now = |params| modern("2026-07-28", params);
    let discovered = ask("server/discover", now(json!({}))).await;
    assert_eq!(discovered["result"]["supportedVersions"], json!(["2026-07-28"]));
    assert_eq!(discovered["result"]["resultType"], "complete");
    assert_eq!(ask("ping", now(json!({}))).await["error"]["code"], -32601);
    assert_eq!(ask("tools/list", json!({})).await["error"]["code"], -32602);
    assert_eq!(ask("tools/list", now(json!({}))).await["result"]["ttlMs"], 0);

    let asked = ask("tools/call", now(json!({"name": "write"}))).await;
    assert_eq!(asked["result"]["resultType"], "input_required");
    assert_eq!(server.ledger().executions("write"), 0);
    let state = &asked["result"]["requestState"];
    let done = ask("tools/call", now(json!({"name": "write", "requestState": state}))).await;
    assert_eq!(done["result"]["resultType"], "complete");
    assert_eq!((server.ledger().calls("write"), server.ledger().executions("write")), (2, 1));
    assert_eq!(ask("tools/call", now(json!({"name": "echo"}))).await["result"]["resultType"], "task");
}

#[tokio::test(start_paused = true)]
async fn a_listener_hears_with_its_subscription_id() {
    let server = server("era both\ncall echo notify tools/list_changed");
    let mut client = Client::of(&server);
    let params = modern("2026-07-28", json!({"notifications": {"toolsListChanged": true}}));
    let acknowledged = client.ask(request(5, "subscriptions/listen", &params)).await;
    assert_eq!(acknowledged["method"], "notifications/subscriptions/acknowledged");
    let changed = client.ask(call(6, "echo")).await;
    assert_eq!(changed["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"], 5);
}

#[tokio::test(start_paused = true)]
async fn lists_come_in_pages() {
    let mut client = Client::initialized(&server("tools a, b, c\npaging 2")).await;
    let first = client.ask(request(1, "tools/list", &json!({}))).await;
    let cursor = &first["result"]["nextCursor"];
    let second = client.ask(request(2, "tools/list", &json!({"cursor": cursor}))).await;
    assert_eq!((names(&first, "tools"), names(&second, "tools")), (vec!["a".into(), "b".into()], vec!["c".into()]));
    assert_eq!(second["result"].get("nextCursor"), None);
    for (paging, same) in [("repeat", true), ("endless", false)] {
        let mut client = Client::initialized(&server(&format!("paging {paging}"))).await;
        let mut cursors = Vec::new();
        for id in 0..3 {
            let params = cursors.last().map_or(json!({}), |cursor| json!({"cursor": cursor}));
            let page = client.ask(request(id, "tools/list", &params)).await;
            cursors.push(page["result"]["nextCursor"].clone());
        }
        assert!(cursors.iter().all(Value::is_string));
        assert_eq!(cursors[1] == cursors[2], same, "{paging}");
    }
}

#[tokio::test(start_paused = true)]
async fn ends_can_be_refused_or_delayed() {
    let server = server(
        "spawn 1:\n ignore EOF\n ignore TERM\n after 1h exit 7\nspawn 2:\n on EOF delay 3s, exit 0\n\
         spawn 3:\n exit-unless-initialize",
    );
    for (exit, after) in [(Exit::Code(7), 3600), (Exit::Code(0), 3), (Exit::Code(0), 0)] {
        let start = Instant::now();
        let FakeLink { to_server, handle, .. } = server.spawn();
        if after == 3600 {
            handle.signal(Signal::Term);
        }
        drop(to_server);
        assert_eq!(handle.ended().await, exit);
        assert_eq!(start.elapsed(), Duration::from_secs(after));
    }
    let link = server.spawn();
    link.handle.signal(Signal::Term);
    assert_eq!(link.handle.ended().await, Exit::Terminated(Signal::Term));
    server.set_script("exit-unless-initialize").expect("a script");
    let mut client = Client::of(&server);
    client.say(request(1, "server/discover", &json!({}))).await;
    assert_eq!(client.hear_line().await, None);
    assert_eq!(client.0.handle.ended().await, Exit::Code(1));
}
