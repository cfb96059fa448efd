#![expect(deprecated, reason = "log messages are what a server tells first")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use mcp_reconnect_core::FailureClass;
use mcp_reconnect_core::replay::Sent;
use rmcp::handler::client::ClientHandler;
use rmcp::model::{
    CallToolRequestParams, ElicitRequestParams, ElicitResult, ElicitationAction, LoggingMessageNotificationParam,
    ServerPeerInfo, SubscriptionFilter,
};
use rmcp::service::ServiceError;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::*;
use crate::link::Ended;
use crate::protocol::era::version;
use crate::protocol::{Client, Era};
use crate::wire::testlink::{Far, settle, wire};

/// A user who takes a minute to answer, and notes each message.
#[derive(Clone, Default)]
struct User {
    notes: Arc<Mutex<Vec<String>>>,
}

impl User {
    fn notes(&self) -> Vec<String> {
        std::mem::take(&mut self.notes.lock().unwrap())
    }

    fn note(&self, text: impl Into<String>) {
        self.notes.lock().unwrap().push(text.into());
    }
}

impl ClientHandler for User {
    async fn create_elicitation(
        &self,
        _request: ElicitRequestParams,
        context: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        tokio::select! {
            () = tokio::time::sleep(Duration::from_secs(60)) => self.note("answered"),
            () = context.ct.cancelled() => self.note("cancelled"),
        }
        Ok(ElicitResult::new(ElicitationAction::Accept))
    }

    async fn on_logging_message(&self, params: LoggingMessageNotificationParam, _: NotificationContext<RoleClient>) {
        self.note(params.data.to_string());
    }
}

type Running = Arc<RunningService<RoleClient, Handler>>;

fn session(agreed: &str) -> Established {
    let version = version(agreed);
    let era = if version.has_initialize() { Era::Legacy } else { Era::Modern };
    let raw: Arc<RawValue> = RawValue::from_string("{}".into()).unwrap().into();
    let meta = Client::of(&ClientHandler::get_info(&User::default())).meta(&version);
    let peer = ServerPeerInfo::new(version.clone(), Default::default()).into();
    Established { era, version, raw, peer, meta }
}

fn view(agreed: &str) -> (User, Running, Wire, Far) {
    let (wire, far) = wire();
    let user = User::default();
    let running = serve(&wire, Handler::new(user.clone()), &session(agreed)).expect("the first view");
    (user, Arc::new(running), wire, far)
}

/// A call by rmcp's own means.
fn call(running: &Running) -> tokio::task::JoinHandle<Result<Value, ServiceError>> {
    let running = running.clone();
    tokio::spawn(async move {
        let result = running.call_tool(CallToolRequestParams::new("x")).await?;
        Ok(serde_json::to_value(result).unwrap())
    })
}

fn elicitation(id: i64) -> Value {
    let params =
        json!({ "mode": "form", "message": "your name?", "requestedSchema": { "type": "object", "properties": {} } });
    json!({ "jsonrpc": "2.0", "id": id, "method": "elicitation/create", "params": params })
}

fn done(text: &str) -> Value {
    json!({ "content": [{ "type": "text", "text": text }] })
}

#[tokio::test(start_paused = true)]
async fn typed_calls_go_and_come() {
    let (_user, running, wire, mut far) = view("2025-11-25");
    let (first, second) = (call(&running), call(&running));
    let (one, two) = (far.expect("tools/call").await, far.expect("tools/call").await);
    assert_eq!(one["params"]["name"], "x");
    assert_eq!(one["params"]["_meta"].as_object().unwrap().keys().collect::<Vec<_>>(), ["progressToken"]);
    assert_eq!(wire.open_count(), 2);
    assert!(wire.oldest_open().is_some());
    far.answer(&two, done("two")).await;
    far.answer(&one, done("one")).await;
    far.answer(&one, done("twice")).await;
    assert_eq!(first.await.unwrap().unwrap()["content"][0]["text"], "one");
    assert_eq!(second.await.unwrap().unwrap()["content"][0]["text"], "two");
    assert_eq!(wire.open_count(), 0);
    assert!(wire.take_answers().answered);
    // Our own requests are answered beside the view.
    let mut own = wire.request("ping", None, Default::default());
    let (answer, ()) = tokio::join!(own.answer(), async {
        let ping = far.expect("ping").await;
        far.answer(&ping, json!({})).await;
    });
    assert!(answer.unwrap().is_ok());
}

#[tokio::test(start_paused = true)]
async fn modern_typed_requests_bring_the_clients_context() {
    let (_user, running, wire, mut far) = view("2026-07-28");
    let pending = call(&running);
    let request = far.expect("tools/call").await;
    let sent = request["params"]["_meta"].as_object().unwrap();
    for (name, value) in session("2026-07-28").meta.iter() {
        assert_eq!(sent[&**name], serde_json::from_str::<Value>(value.get()).unwrap(), "{name}");
    }
    assert_eq!(sent.len(), 4);
    far.answer(&request, done("x")).await;
    pending.await.unwrap().unwrap();
    // A subscription stays open for good: it is no sign of a server that hangs.
    let listening = running.clone();
    let listening = tokio::spawn(async move { listening.listen(SubscriptionFilter::default()).await.map(drop) });
    far.expect("subscriptions/listen").await;
    assert_eq!(wire.oldest_open(), None);
    listening.abort();
}

#[tokio::test(start_paused = true)]
async fn input_required_rounds_are_driven_through_the_handler() {
    let (user, running, _wire, mut far) = view("2026-07-28");
    let pending = call(&running);
    let request = far.expect("tools/call").await;
    let ask = json!({ "method": "elicitation/create", "params": elicitation(0)["params"] });
    far.answer(
        &request,
        json!({ "resultType": "input_required", "inputRequests": { "name": ask }, "requestState": "s" }),
    )
    .await;
    let again = far.expect("tools/call").await;
    assert_ne!(again["id"], request["id"]);
    assert_eq!(again["params"]["requestState"], "s");
    assert_eq!(again["params"]["inputResponses"]["name"]["action"], "accept");
    far.answer(&again, done("hello")).await;
    assert_eq!(pending.await.unwrap().unwrap()["content"][0]["text"], "hello");
    assert_eq!(user.notes(), ["answered"]);
}

#[tokio::test(start_paused = true)]
async fn the_server_is_answered_and_what_came_early_comes_first() {
    let (wire, mut far) = wire();
    for n in 1..=3 {
        far.say(
            json!({ "jsonrpc": "2.0", "method": "notifications/message", "params": { "level": "info", "data": n } }),
        )
        .await;
    }
    far.say(elicitation(1)).await;
    settle().await;
    let user = User::default();
    let _running = serve(&wire, Handler::new(user.clone()), &session("2025-11-25")).unwrap();
    let answer = far.read().await;
    assert_eq!((&answer["id"], &answer["result"]["action"]), (&json!(1), &json!("accept")));
    assert_eq!(user.notes(), ["1", "2", "3", "answered"]);
    assert!(serve(&wire, Handler::new(user.clone()), &session("2025-11-25")).is_none());
    // Nobody knows what it wants, but it gets an answer.
    far.say_text(&format!(
        r#"{{"jsonrpc":"2.0","id":2,"method":"x","params":{}1{}}}"#,
        "[".repeat(200),
        "]".repeat(200)
    ))
    .await;
    let answer = far.read().await;
    assert_eq!((&answer["id"], &answer["error"]["code"]), (&json!(2), &json!(-32602)));
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_rmcp_cannot_read_settles_its_call() {
    let (_user, running, wire, mut far) = view("2025-11-25");
    let deep = format!("{}1{}", "[".repeat(200), "]".repeat(200));
    let results = [&*deep, "1e999", r#"{"content":"\ud800"}"#];
    let errors =
        [r#"{"message":"no code"}"#, r#"{"code":99999999999,"message":"no code"}"#, r#""no code""#, r#"{"code":"x"}"#];
    for (member, text) in results.map(|text| ("result", text)).into_iter().chain(errors.map(|text| ("error", text))) {
        let pending = call(&running);
        let request = far.expect("tools/call").await;
        far.say_text(&format!(r#"{{"jsonrpc":"2.0","id":{},"{member}":{text}}}"#, request["id"])).await;
        let error = pending.await.unwrap().unwrap_err();
        let ServiceError::McpError(error) = error else { panic!("{text}: {error:?}") };
        assert_eq!(error.message.contains("unreadable answer"), member == "result", "{error:?}");
    }
    // A shape that is no tool result is rmcp's to judge.
    for result in [json!(42), json!({ "content": 7 }), Value::Null] {
        let pending = call(&running);
        let request = far.expect("tools/call").await;
        far.answer(&request, result).await;
        assert!(matches!(pending.await.unwrap(), Err(ServiceError::UnexpectedResponse)));
    }
    assert_eq!(wire.open_count(), 0);
}

#[tokio::test(start_paused = true)]
async fn at_the_end_handlers_stop_and_calls_are_over_at_once() {
    for by_us in [false, true] {
        let (user, running, wire, mut far) = view("2025-11-25");
        far.say(elicitation(1)).await;
        let pending = call(&running);
        far.expect("tools/call").await;
        let start = Instant::now();
        let mut frames = if by_us {
            wire.end(Ended { failure: FailureClass::Unresponsive.into(), cause: "deaf".into() });
            Some(far.frames)
        } else {
            far.hang_up();
            None
        };
        assert!(matches!(pending.await.unwrap(), Err(ServiceError::TransportClosed)));
        settle().await;
        assert_eq!(user.notes(), ["cancelled"]);
        assert_eq!(start.elapsed(), Duration::ZERO);
        assert_eq!(wire.open_count(), 0);
        // The handler's later messages went nowhere.
        if let Some(frames) = &mut frames {
            assert!(frames.try_recv().is_err());
        }
        // A request made now fails.
        assert!(call(&running).await.unwrap().is_err());
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_came_before_the_end_reaches_its_typed_call() {
    for by_us in [false, true] {
        let (_user, running, wire, mut far) = view("2025-11-25");
        let pending = call(&running);
        let request = far.expect("tools/call").await;
        far.answer(&request, done("the last word")).await;
        if by_us {
            wire.end(Ended { failure: FailureClass::Unresponsive.into(), cause: "deaf".into() });
        } else {
            far.hang_up();
        }
        assert_eq!(pending.await.unwrap().unwrap()["content"][0]["text"], "the last word");
    }
}

#[tokio::test(start_paused = true)]
async fn a_typed_call_that_is_dropped_is_cancelled_and_no_longer_open() {
    let (_user, running, wire, mut far) = view("2025-11-25");
    let pending = call(&running);
    let request = far.expect("tools/call").await;
    pending.abort();
    assert_eq!(far.expect("notifications/cancelled").await["params"]["requestId"], request["id"]);
    assert_eq!(wire.oldest_open(), None);
}

#[tokio::test(start_paused = true)]
async fn a_message_that_could_not_be_sent_says_how_far_it_got() {
    let (_user, running, wire, mut far) = view("2025-11-25");
    let pending = call(&running);
    let failure = SendFailure {
        failure: FailureClass::RateLimited.into(),
        sent: Sent::Refused,
        cause: "HTTP 429".into(),
        doubt: None,
    };
    far.frames.recv().await.unwrap().finish(Err(failure.clone()));
    let error = pending.await.unwrap().unwrap_err();
    let ServiceError::TransportSend(error) = error else { panic!("{error:?}") };
    assert_eq!(error.error.downcast_ref::<ViewError>(), Some(&ViewError(failure)));
    assert_eq!(wire.open_count(), 0);
    // A pipe that is stuck holds typed calls no longer than the wire lives.
    let calls: Vec<_> = (0..crate::link::OUTBOUND_CAPACITY + 10).map(|_| call(&running)).collect();
    settle().await;
    assert_eq!(wire.open_count(), calls.len());
    wire.end(Ended { failure: FailureClass::Unresponsive.into(), cause: "stuck".into() });
    for call in calls {
        assert!(call.await.unwrap().is_err());
    }
}

#[tokio::test(start_paused = true)]
async fn b2_a_handler_is_asked_256_times_at_once_and_told_1024_times() {
    let (user, _running, wire, mut far) = view("2025-11-25");
    for id in 0..300 {
        far.say(elicitation(id)).await;
        if id >= 256 {
            let refused = far.read().await;
            assert_eq!((&refused["id"], &refused["error"]["code"]), (&json!(id), &json!(-32603)));
        }
    }
    assert_eq!(wire.stats().refused, 44);
    far.say(elicitation(7)).await;
    assert_eq!(far.read().await["error"]["message"], "too many requests are open");
    // One that is taken back leaves its place.
    far.say(json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": 7 } })).await;
    settle().await;
    far.say(elicitation(7)).await;
    assert!(far.is_quiet().await);
    assert_eq!(user.notes(), ["cancelled"]);
}

/// Takes a second for each progress, and for ever for a log message.
#[derive(Clone, Default)]
struct Slow(Arc<Mutex<Vec<f64>>>);

impl ClientHandler for Slow {
    async fn on_progress(&self, params: rmcp::model::ProgressNotificationParam, _: NotificationContext<RoleClient>) {
        tokio::time::sleep(Duration::from_millis(500)).await;
        self.0.lock().unwrap().push(params.progress);
    }

    async fn on_logging_message(&self, _: LoggingMessageNotificationParam, _: NotificationContext<RoleClient>) {
        std::future::pending().await
    }
}

#[tokio::test(start_paused = true)]
async fn b11_the_last_progress_is_told_before_the_result() {
    let (wire, mut far) = wire();
    let slow = Slow::default();
    let _running = serve(&wire, Handler::new(slow.clone()), &session("2025-11-25")).expect("the first view");
    let options = crate::wire::RequestOptions { progress: crate::wire::ProgressToken::Own, ..Default::default() };
    let mut call = wire.request("tools/call", None, options);
    let progress = call.progress();
    let far_end = async {
        let request = far.expect("tools/call").await;
        let params = json!({ "progressToken": request["params"]["_meta"]["progressToken"], "progress": 0.5 });
        far.say(json!({ "jsonrpc": "2.0", "method": "notifications/progress", "params": params })).await;
        far.answer(&request, json!({})).await;
    };
    let (answer, ()) = tokio::join!(call.answer(), far_end);
    assert!(answer.unwrap().is_ok());
    assert!(slow.0.lock().unwrap().is_empty());
    progress.told().await;
    assert_eq!(*slow.0.lock().unwrap(), [0.5]);
}

#[tokio::test(start_paused = true)]
async fn b2_notifications_that_a_slow_handler_cannot_take_are_dropped_and_counted() {
    let (wire, far) = wire();
    let _running = serve(&wire, Handler::new(Slow::default()), &session("2025-11-25")).expect("the first view");
    for n in 0..1100 {
        let params = json!({ "level": "info", "data": n });
        far.say(json!({ "jsonrpc": "2.0", "method": "notifications/message", "params": params })).await;
        settle().await;
    }
    assert_eq!(wire.stats().refused, 76);
}
