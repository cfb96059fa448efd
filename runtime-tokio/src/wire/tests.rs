use mcp_reconnect_core::replay::Sent;
use serde_json::{Value, json};
use tokio::time::advance;

use super::*;
use crate::wire::testlink::{EXIT, Far, settle, wire};
use crate::wire::{Answer, CallFailure};

fn ask(wire: &Wire) -> Call {
    wire.request("tools/call", None, RequestOptions::default())
}

fn result(answer: Result<Answer, CallFailure>) -> Value {
    serde_json::from_str(answer.expect("answered").expect("a result").get()).unwrap()
}

/// A call whose frame the far end has read.
async fn written(wire: &Wire, far: &mut Far) -> (Call, Value) {
    let mut call = ask(wire);
    let request = tokio::select! {
        biased;
        answer = call.answer() => panic!("{answer:?}"),
        request = far.read() => request,
    };
    settled(&mut call).await;
    (call, request)
}

/// Gives the call its turns, without an answer to come.
async fn settled(call: &mut Call) {
    tokio::select! {
        biased;
        answer = call.answer() => panic!("{answer:?}"),
        () = settle() => {}
    }
}

#[tokio::test(start_paused = true)]
async fn k25_each_call_gets_its_own_answer_once_in_any_order() {
    let (wire, mut far) = wire();
    let calls: Vec<_> = (0..1000)
        .map(|n| {
            let params = serde_json::value::to_raw_value(&json!({ "n": n })).unwrap();
            let mut call = wire.request("echo", Some(&params), RequestOptions::default());
            tokio::spawn(async move { (n, result(call.answer().await)) })
        })
        .collect();
    let mut requests = Vec::new();
    while requests.len() < 1000 {
        requests.push(far.read().await);
    }
    for (at, request) in requests.iter().rev().enumerate() {
        far.answer(request, request["params"]["n"].clone()).await;
        if at % 100 == 0 {
            far.answer(request, json!("a duplicate")).await;
        }
    }
    far.say(json!({ "jsonrpc": "2.0", "id": FIRST_ID + 5000, "result": "never asked" })).await;
    for call in calls {
        let (n, answer) = call.await.unwrap();
        assert_eq!(answer, json!(n));
    }
    settle().await;
    assert_eq!(wire.stats(), WireStats { late: 11, ..WireStats::default() });
    assert_eq!(wire.open_count(), 0);
}

#[tokio::test(start_paused = true)]
async fn an_id_that_came_back_as_text_or_float_is_the_same_id() {
    let (wire, mut far) = wire();
    for turn in [|id: u64| json!(id.to_string()), |id: u64| json!(id as f64)] {
        let (mut call, request) = written(&wire, &mut far).await;
        far.say(json!({ "id": turn(request["id"].as_u64().unwrap()), "result": null })).await;
        assert_eq!(result(call.answer().await), Value::Null);
    }
    // An old habit.
    let (mut call, request) = written(&wire, &mut far).await;
    far.say(json!({ "id": request["id"], "result": 1, "error": null })).await;
    assert_eq!(result(call.answer().await), json!(1));
}

#[tokio::test(start_paused = true)]
async fn errors_come_back_whatever_their_shape() {
    let (wire, mut far) = wire();
    let shapes = [
        (json!({ "code": -32000, "message": "boom", "data": { "a": 1 } }), -32000, "boom", Some(json!({ "a": 1 }))),
        (json!({ "message": "Unknown method: ping" }), 0, "Unknown method: ping", None),
        (json!("just text"), 0, "just text", None),
    ];
    for (error, code, message, data) in shapes {
        let (mut call, request) = written(&wire, &mut far).await;
        far.say(json!({ "jsonrpc": "2.0", "id": request["id"], "result": null, "error": error.clone() })).await;
        let expected = frame::RpcError { code, message: message.into(), data, json: error.to_string().into() };
        assert_eq!(call.answer().await.unwrap().unwrap_err(), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn an_error_that_names_no_request_settles_none() {
    let (wire, mut far) = wire();
    let (mut call, request) = written(&wire, &mut far).await;
    far.say(json!({ "jsonrpc": "2.0", "id": null, "error": { "code": -32700, "message": "parse error" } })).await;
    far.say(json!({ "jsonrpc": "2.0", "error": { "code": -32700, "message": "parse error" } })).await;
    for noise in ["[]", "42", "\"text\"", "{", "{}", r#"{"id":{},"method":"x"}"#] {
        far.say_text(noise).await;
    }
    settled(&mut call).await;
    assert_eq!(wire.stats().unreadable, 8);
    far.answer(&request, json!(1)).await;
    assert_eq!(result(call.answer().await), json!(1));
}

#[tokio::test(start_paused = true)]
async fn k24_a_dropped_call_is_cancelled_once_if_it_may_have_arrived() {
    let (wire, mut far) = wire();
    // Never awaited.
    drop(ask(&wire));
    assert!(far.is_quiet().await);

    // Queued, not begun.
    let mut call = ask(&wire);
    settled(&mut call).await;
    assert_eq!(call.abandon("never mind"), Sent::No);
    let mut frame = far.frames.try_recv().expect("was queued");
    assert!(!frame.begin());
    drop(frame);
    assert!(far.is_quiet().await);

    // Being written.
    let mut call = ask(&wire);
    settled(&mut call).await;
    let mut frame = far.frames.try_recv().expect("was queued");
    assert!(frame.begin());
    let id = call.id();
    assert_eq!(call.abandon("deadline exceeded"), Sent::Maybe);
    frame.finish(Ok(()));
    let cancelled = far.expect("notifications/cancelled").await;
    assert_eq!(cancelled["params"], json!({ "requestId": id, "reason": "deadline exceeded" }));
    assert_eq!(cancelled.get("id"), None);
    assert!(far.is_quiet().await);

    // Written.
    let (call, request) = written(&wire, &mut far).await;
    drop(call);
    assert_eq!(far.expect("notifications/cancelled").await["params"]["requestId"], request["id"]);
    far.answer(&request, json!("late")).await;
    assert!(far.is_quiet().await);
    assert_eq!(wire.stats().late, 1);

    // Answered: in time, and unseen.
    for look in [true, false] {
        let (mut call, request) = written(&wire, &mut far).await;
        far.answer(&request, json!(1)).await;
        if look {
            result(call.answer().await);
        }
        settle().await;
        drop(call);
        assert!(far.is_quiet().await);
    }

    // Not to be cancelled.
    let mut call = wire.request("initialize", None, RequestOptions { uncancelled: true, ..Default::default() });
    settled(&mut call).await;
    far.expect("initialize").await;
    drop(call);
    assert!(far.is_quiet().await);
}

#[tokio::test(start_paused = true)]
async fn k24_nothing_is_cancelled_after_the_end() {
    let (wire, mut far) = wire();
    let (call, _) = written(&wire, &mut far).await;
    wire.end(closed_here());
    wire.ended().await;
    drop(call);
    assert!(far.is_quiet().await);
    far.tasks.close();
    far.tasks.wait().await;
}

#[tokio::test(start_paused = true)]
async fn k17_the_end_says_how_far_each_call_got_and_why() {
    let (wire, mut far) = wire();
    let (mut seen, _) = written(&wire, &mut far).await;
    let mut begun = ask(&wire);
    settled(&mut begun).await;
    let mut frame = far.frames.try_recv().unwrap();
    assert!(frame.begin());
    let mut queue = Vec::new();
    for _ in 0..crate::link::OUTBOUND_CAPACITY {
        let mut queued = ask(&wire);
        settled(&mut queued).await;
        queue.push(queued);
    }
    let mut waiting = ask(&wire);
    settled(&mut waiting).await;
    drop(frame);
    let token = far.token.clone();
    far.hang_up();
    let lost = |sent| CallFailure { sent, failure: FailureClass::Transport.into(), cause: EXIT.into() };
    assert_eq!(seen.answer().await.unwrap_err(), lost(Sent::Maybe));
    assert_eq!(begun.answer().await.unwrap_err(), lost(Sent::Maybe));
    for mut queued in queue {
        assert_eq!(queued.answer().await.unwrap_err(), lost(Sent::No));
    }
    assert_eq!(waiting.answer().await.unwrap_err(), lost(Sent::No));
    // Asked after the end.
    assert_eq!(ask(&wire).answer().await.unwrap_err(), lost(Sent::No));
    assert_eq!(wire.end_cause().unwrap().cause, EXIT.into());
    assert!(!wire.was_given_up());
    assert!(token.is_cancelled());
}

#[tokio::test(start_paused = true)]
async fn a_frame_that_failed_by_itself_fails_its_call_only() {
    let (wire, mut far) = wire();
    let (mut other, other_request) = written(&wire, &mut far).await;
    let mut call = ask(&wire);
    settled(&mut call).await;
    let failure =
        SendFailure { failure: FailureClass::RateLimited.into(), sent: Sent::Refused, cause: "HTTP 429".into() };
    far.frames.recv().await.unwrap().finish(Err(failure));
    let expected =
        CallFailure { sent: Sent::Refused, failure: FailureClass::RateLimited.into(), cause: "HTTP 429".into() };
    assert_eq!(call.answer().await.unwrap_err(), expected);
    far.answer(&other_request, json!(1)).await;
    assert_eq!(result(other.answer().await), json!(1));
    assert_eq!(wire.open_count(), 0);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_came_before_the_end_counts() {
    let (wire, mut far) = wire();
    let (mut call, request) = written(&wire, &mut far).await;
    far.answer(&request, json!("the last word")).await;
    far.hang_up();
    wire.ended().await;
    assert_eq!(result(call.answer().await), json!("the last word"));

    let (wire, mut far) = self::wire();
    let (mut call, request) = written(&wire, &mut far).await;
    far.answer(&request, json!("the last word")).await;
    wire.end(closed_here());
    wire.ended().await;
    assert_eq!(result(call.answer().await), json!("the last word"));
}

#[tokio::test(start_paused = true)]
async fn calls_are_told_the_owners_verdict() {
    let (wire, mut far) = wire();
    let (mut call, _) = written(&wire, &mut far).await;
    let verdict = Ended { failure: FailureClass::Unresponsive.into(), cause: "two pings unanswered".into() };
    wire.end(verdict.clone());
    let failure = call.answer().await.unwrap_err();
    assert_eq!(failure, CallFailure { sent: Sent::Maybe, failure: verdict.failure, cause: verdict.cause });
    assert!(wire.was_given_up());
    assert!(far.token.is_cancelled());
    // The link may be slower to go.
    let mut late = ask(&wire);
    tokio::select! {
        biased;
        answer = late.answer() => assert_eq!(answer.unwrap_err().sent, Sent::No),
        () = settle() => panic!("waits for the link"),
    }
}

#[tokio::test(start_paused = true)]
async fn k06_pings_are_answered_and_the_rest_is_kept_for_the_view() {
    let (wire, mut far) = wire();
    far.say(json!({ "jsonrpc": "2.0", "method": "notifications/message", "params": { "n": 1 } })).await;
    far.say(json!({ "jsonrpc": "2.0", "id": "p", "method": "ping" })).await;
    far.say(json!({ "jsonrpc": "2.0", "id": 7, "method": "roots/list" })).await;
    assert_eq!(far.read().await, json!({ "jsonrpc": "2.0", "id": "p", "result": {} }));
    let mut frames = wire.attach().unwrap();
    far.say(json!({ "jsonrpc": "2.0", "id": 8, "method": "ping" })).await;
    far.say(json!({ "jsonrpc": "2.0", "method": "notifications/message", "params": { "n": 2 } })).await;
    assert_eq!(far.read().await["id"], json!(8));
    for id in 100..400 {
        far.say(json!({ "jsonrpc": "2.0", "id": id, "method": "ping" })).await;
        assert_eq!(far.read().await["id"], json!(id));
    }
    for expected in ["\"n\":1", "roots/list", "\"n\":2"] {
        assert!(frames.next().await.unwrap().contains(expected), "{expected}");
    }
    assert!(wire.attach().is_none());
}

#[tokio::test(start_paused = true)]
async fn early_frames_are_bounded_and_a_slow_view_loses_nothing() {
    let (wire, mut far) = wire();
    let (mut call, request) = written(&wire, &mut far).await;
    for n in 0..1100 {
        far.say(json!({ "jsonrpc": "2.0", "method": "notifications/message", "params": { "n": n } })).await;
    }
    far.answer(&request, json!(1)).await;
    assert_eq!(result(call.answer().await), json!(1));
    assert_eq!(wire.stats().dropped, 1100 - crate::wire::mailbox::FRAMES as u64);
    let mut frames = wire.attach().unwrap();
    let inbound = far.inbound.clone();
    let more = tokio::spawn(async move {
        for n in 1100..3000 {
            let message = json!({ "jsonrpc": "2.0", "method": "notifications/message", "params": { "n": n } });
            inbound.send(message.to_string().into()).await.unwrap();
        }
    });
    settle().await;
    assert!(!more.is_finished());
    for n in (0..crate::wire::mailbox::FRAMES).chain(1100..3000) {
        assert!(frames.next().await.unwrap().contains(&format!("\"n\":{n}}}")), "{n}");
    }
    assert_eq!(wire.stats().dropped, 1100 - crate::wire::mailbox::FRAMES as u64);
    // 8 MiB are a bound as well.
    let large = json!({ "jsonrpc": "2.0", "method": "x", "params": { "x": "x".repeat(5 << 20) } });
    let (wire, far) = self::wire();
    far.say(large.clone()).await;
    far.say(large).await;
    settle().await;
    assert_eq!(wire.stats().dropped, 1);
}

#[tokio::test(start_paused = true)]
async fn k24_progress_with_its_own_token_is_reported_and_passed_on() {
    let (wire, mut far) = wire();
    let params =
        serde_json::value::to_raw_value(&json!({ "name": "x", "_meta": { "progressToken": "mine", "trace": 1 } }))
            .unwrap();
    let mut call = wire.request(
        "tools/call",
        Some(&params),
        RequestOptions { progress: ProgressToken::Own, ..Default::default() },
    );
    let progress = call.progress();
    settled(&mut call).await;
    let frame = far.frames.recv().await.unwrap();
    assert_eq!(frame.frame().matches("progressToken").count(), 1);
    let request: Value = serde_json::from_str(frame.frame()).unwrap();
    frame.finish(Ok(()));
    assert_eq!(request["params"], json!({ "name": "x", "_meta": { "trace": 1, "progressToken": call.id() } }));
    let bumped = async |progress: &crate::wire::call::Progress| {
        tokio::select! {
            biased;
            () = progress.bumped() => true,
            () = settle() => false,
        }
    };
    let mut frames = wire.attach().unwrap();
    for (token, expected) in
        [(json!(1), false), (json!(call.id() + 1), false), (json!("mine"), false), (json!(call.id()), true)]
    {
        far.say(json!({ "jsonrpc": "2.0", "method": "notifications/progress", "params": { "progressToken": token, "progress": 1 } })).await;
        settle().await;
        assert_eq!(bumped(&progress).await, expected, "{token}");
        assert!(frames.next().await.unwrap().contains("notifications/progress"));
    }
    assert!(!bumped(&ask(&wire).progress()).await);
}

#[tokio::test(start_paused = true)]
async fn list_changes_are_counted_and_passed_on() {
    let (wire, far) = wire();
    for list in ["tools", "tools", "prompts", "resources"] {
        far.say(json!({ "jsonrpc": "2.0", "method": format!("notifications/{list}/list_changed") })).await;
    }
    settle().await;
    let told = |told| Change { told, ..Change::default() };
    assert_eq!(wire.list_changes(), ListChanges { tools: told(2), prompts: told(1), resources: told(1) });
    assert!(wire.attach().unwrap().next().await.unwrap().contains("tools/list_changed"));
}

#[tokio::test(start_paused = true)]
async fn the_facts_of_liveness_are_kept() {
    let (wire, mut far) = wire();
    let start = Instant::now();
    assert_eq!(wire.oldest_open(), None);
    assert_eq!(wire.last_inbound(), start);
    advance(Duration::from_secs(1)).await;
    let mut standing =
        wire.request("subscriptions/listen", None, RequestOptions { uncounted: true, ..Default::default() });
    settled(&mut standing).await;
    assert_eq!((wire.oldest_open(), wire.open_count()), (None, 0));
    far.expect("subscriptions/listen").await;
    advance(Duration::from_secs(1)).await;
    let (first, request) = written(&wire, &mut far).await;
    advance(Duration::from_secs(1)).await;
    wire.view_asked(3);
    assert_eq!((wire.oldest_open(), wire.open_count()), (Some(start + Duration::from_secs(2)), 2));
    assert!(!wire.take_answered());
    far.say(json!({ "jsonrpc": "2.0", "method": "notifications/message" })).await;
    settle().await;
    assert_eq!(wire.last_inbound(), start + Duration::from_secs(3));
    assert!(!wire.take_answered());
    far.answer(&request, json!(1)).await;
    settle().await;
    assert!(wire.take_answered() && !wire.take_answered());
    assert_eq!(wire.oldest_open(), Some(start + Duration::from_secs(3)));
    far.say(json!({ "jsonrpc": "2.0", "id": 3, "error": {} })).await;
    settle().await;
    assert!(wire.take_answered());
    assert_eq!((wire.oldest_open(), wire.open_count()), (None, 0));
    drop(first);
}

#[tokio::test(start_paused = true)]
async fn a_pipe_that_is_stuck_holds_back_neither_answers_nor_drops() {
    let (wire, mut far) = wire();
    let (mut call, request) = written(&wire, &mut far).await;
    let mut stuck = Vec::new();
    for _ in 0..crate::link::OUTBOUND_CAPACITY + 10 {
        let mut call = ask(&wire);
        settled(&mut call).await;
        stuck.push(call);
    }
    for id in 0..1000 {
        far.say(json!({ "jsonrpc": "2.0", "id": id, "method": "ping" })).await;
    }
    drop(stuck);
    far.answer(&request, json!(1)).await;
    assert_eq!(result(call.answer().await), json!(1));
    assert!(wire.stats().dropped >= 900, "{:?}", wire.stats());
    wire.end(closed_here());
    far.tasks.close();
    far.tasks.wait().await;
}

#[tokio::test(start_paused = true)]
async fn a_wire_is_drained_when_nothing_is_open() {
    let (wire, mut far) = wire();
    wire.drained().await;
    let (mut own, request) = written(&wire, &mut far).await;
    let dropped = ask(&wire);
    wire.view_asked(1);
    let waiting = wire.clone();
    let drained = tokio::spawn(async move { waiting.drained().await });
    let is_drained = async || {
        settle().await;
        drained.is_finished()
    };
    far.answer(&request, json!(1)).await;
    result(own.answer().await);
    assert!(!is_drained().await);
    drop(dropped);
    assert!(!is_drained().await);
    far.say(json!({ "jsonrpc": "2.0", "id": 1, "result": 1 })).await;
    assert!(is_drained().await);
    // Or at the end.
    let _open = ask(&wire);
    let waiting = wire.clone();
    let drained = tokio::spawn(async move { waiting.drained().await });
    settle().await;
    far.hang_up();
    drained.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_broken_pipe_is_explained_by_the_end_of_the_process() {
    let (wire, mut far) = wire();
    far.control.process.store(true, Ordering::Relaxed);
    let mut call = ask(&wire);
    settled(&mut call).await;
    let failure =
        SendFailure { failure: FailureClass::Transport.into(), sent: Sent::Maybe, cause: "broken pipe".into() };
    far.frames.recv().await.unwrap().finish(Err(failure));
    settled(&mut call).await;
    far.hang_up();
    let expected = CallFailure { sent: Sent::Maybe, failure: FailureClass::Transport.into(), cause: EXIT.into() };
    assert_eq!(call.answer().await.unwrap_err(), expected);
}

#[tokio::test(start_paused = true)]
async fn the_wait_for_an_answer_can_be_resumed_after_the_end() {
    let (wire, mut far) = wire();
    let mut call = ask(&wire);
    settled(&mut call).await;
    wire.end(closed_here());
    wire.ended().await;
    // The link has not said yet what became of the frame.
    settled(&mut call).await;
    far.frames.close();
    drop(far.frames.try_recv());
    assert_eq!(call.answer().await.unwrap_err().sent, Sent::No);
    settled(&mut call).await;
}
