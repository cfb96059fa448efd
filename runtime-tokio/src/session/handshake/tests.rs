use mcp_reconnect_core::FailureClass::{self, NeedsAuth, Permanent, RateLimited, Transport};
use rmcp::model::{ClientConfig, Implementation};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio::time::advance;

use super::*;
use crate::link::{Ended, SendFailure};
use crate::protocol::{Client, EraFacts};
use crate::wire::testlink::{EXIT, Far, settle, wire};

type Outcome = Result<Established, HandshakeError>;

fn client() -> Client {
    Client::of(&ClientConfig::new(
        serde_json::from_value(json!({ "elicitation": { "form": {} } })).unwrap(),
        Implementation::new("editor", "1.0"),
    ))
}

/// One attempt at a server of which `memory` knows.
struct Dial {
    wire: Wire,
    far: Far,
    outcome: JoinHandle<Outcome>,
}

impl Dial {
    fn new(memory: &Arc<EraMemory>) -> Self {
        Self::with(memory, EraPolicy::Auto, false)
    }

    fn with(memory: &Arc<EraMemory>, policy: EraPolicy, after_probe_killed: bool) -> Self {
        let (wire, far) = wire();
        let (memory, tasks, on) = (memory.clone(), far.tasks.clone(), wire.clone());
        let outcome = tokio::spawn(async move {
            let options = Handshake {
                memory: &memory,
                policy,
                client: &client(),
                start_timeout: Duration::from_secs(30),
                probe_patience: Duration::from_secs(2),
                after_probe_killed,
                tasks: &tasks,
            };
            handshake(&on, options).await
        });
        Self { wire, far, outcome }
    }

    async fn established(self) -> (Established, Wire, Far) {
        (self.outcome.await.unwrap().expect("established"), self.wire, self.far)
    }

    async fn failed(self, class: FailureClass) -> Arc<str> {
        match self.outcome.await.unwrap().expect_err("failed") {
            HandshakeError::Failed { failure, cause } => {
                assert_eq!(failure.class, class, "{cause}");
                cause
            }
            killed @ HandshakeError::ProbeKilled { .. } => panic!("{killed:?}"),
        }
    }

    /// Plays a legacy server from `initialize` on.
    async fn greet(&mut self) -> Value {
        let request = self.far.expect("initialize").await;
        self.far.answer(&request, initialized("2025-11-25")).await;
        assert_eq!(self.far.expect("notifications/initialized").await.get("id"), None);
        request
    }
}

fn initialized(version: &str) -> Value {
    json!({ "protocolVersion": version, "capabilities": { "tools": {} }, "serverInfo": { "name": "s", "version": "1" } })
}

fn discovered(versions: &[&str]) -> Value {
    json!({
        "resultType": "complete", "supportedVersions": versions, "capabilities": { "tools": { "listChanged": true } },
        "ttlMs": 0, "cacheScope": "private", "_meta": { "io.modelcontextprotocol/serverInfo": { "name": "s", "version": "1" } }
    })
}

fn unknown() -> Arc<EraMemory> {
    EraMemory::new(EraFacts::default())
}

fn known(era: Era) -> Arc<EraMemory> {
    EraMemory::new(EraFacts { era: Some(era), ..EraFacts::default() })
}

#[tokio::test(start_paused = true)]
async fn a_modern_server_is_found_and_remembered() {
    let memory = unknown();
    let mut dial = Dial::new(&memory);
    let probe = dial.far.expect("server/discover").await;
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": { "name": "editor", "version": "1.0" },
        "io.modelcontextprotocol/clientCapabilities": { "elicitation": { "form": {} } },
    });
    for (name, value) in meta.as_object().unwrap() {
        assert_eq!(&probe["params"]["_meta"][name], value, "{probe}");
    }
    dial.far.answer(&probe, discovered(&["2025-11-25", "2026-07-28"])).await;
    let (session, wire, mut far) = dial.established().await;
    assert_eq!((session.era, session.version.as_str()), (Era::Modern, "2026-07-28"));
    assert_eq!(session.peer.server_info.as_ref().unwrap().name, "s");
    assert!(session.peer.capabilities.tools.is_some());
    assert_eq!(*far.control.negotiated.lock().unwrap(), ["2026-07-28"]);
    assert!(far.is_quiet().await);
    assert_eq!(memory.facts().era, Some(Era::Modern));
    // Liveness is a raw discover, and no open call.
    let mut ping = session.ping(&wire);
    let asked = tokio::select! {
        biased;
        answer = ping.answer() => panic!("{answer:?}"),
        asked = far.expect("server/discover") => asked,
    };
    assert_eq!(asked["params"]["_meta"], probe["params"]["_meta"]);
    assert_eq!(wire.oldest_open(), None);
    drop(ping);
    assert!(far.is_quiet().await);
}

#[tokio::test(start_paused = true)]
async fn an_error_of_any_other_code_means_legacy_on_the_same_process() {
    for code in [-32601, -32602, -32600, -32603, 0, 7] {
        let memory = unknown();
        let mut dial = Dial::new(&memory);
        let probe = dial.far.expect("server/discover").await;
        dial.far.refuse(&probe, code, "what?", Value::Null).await;
        let request = dial.greet().await;
        assert_eq!(request["params"]["protocolVersion"], "2025-11-25");
        assert_eq!(request["params"]["clientInfo"]["name"], "editor");
        let (session, wire, mut far) = dial.established().await;
        assert_eq!((session.era, session.version.as_str()), (Era::Legacy, "2025-11-25"));
        assert!(session.meta.is_empty());
        assert_eq!(*far.control.negotiated.lock().unwrap(), ["2025-11-25"]);
        let mut ping = session.ping(&wire);
        tokio::select! {
            biased;
            answer = ping.answer() => panic!("{answer:?}"),
            asked = far.expect("ping") => assert_eq!(asked.get("params"), None),
        }
        // Remembered: no probe in the next epoch.
        let mut dial = Dial::new(&memory);
        dial.greet().await;
        assert_eq!(dial.established().await.0.era, Era::Legacy);
    }
}

#[tokio::test(start_paused = true)]
async fn a_result_that_is_no_discovery_means_legacy() {
    for result in [json!({}), json!(null), json!({ "supportedVersions": ["2025-06-18"] })] {
        let mut dial = Dial::new(&unknown());
        let probe = dial.far.expect("server/discover").await;
        dial.far.answer(&probe, result).await;
        dial.greet().await;
        assert_eq!(dial.established().await.0.era, Era::Legacy);
    }
    let mut dial = Dial::new(&unknown());
    let probe = dial.far.expect("server/discover").await;
    dial.far.answer(&probe, discovered(&["2031-01-01"])).await;
    assert!(dial.failed(Permanent).await.contains("2031-01-01"));
}

#[tokio::test(start_paused = true)]
async fn a_modern_refusal_is_permanent() {
    for code in [-32020, -32021] {
        let memory = unknown();
        let mut dial = Dial::new(&memory);
        let probe = dial.far.expect("server/discover").await;
        dial.far.refuse(&probe, code, "no", Value::Null).await;
        dial.failed(Permanent).await;
        assert_eq!(memory.facts().era, Some(Era::Modern));
    }
}

#[tokio::test(start_paused = true)]
async fn k23_an_unsupported_version_is_negotiated_once() {
    let data = json!({ "supported": ["2026-07-28", "2031-01-01"], "requested": "2026-07-28" });
    let mut dial = Dial::new(&unknown());
    for _ in 0..2 {
        let probe = dial.far.expect("server/discover").await;
        dial.far.refuse(&probe, -32022, "unsupported", data.clone()).await;
    }
    dial.failed(Permanent).await;

    let mut dial = Dial::new(&unknown());
    let probe = dial.far.expect("server/discover").await;
    dial.far.refuse(&probe, -32022, "unsupported", data).await;
    let probe = dial.far.expect("server/discover").await;
    dial.far.answer(&probe, discovered(&["2026-07-28"])).await;
    assert_eq!(dial.established().await.0.era, Era::Modern);

    for data in [json!({ "supported": ["2031-01-01"] }), Value::Null] {
        let mut dial = Dial::new(&unknown());
        let probe = dial.far.expect("server/discover").await;
        dial.far.refuse(&probe, -32022, "unsupported", data).await;
        dial.failed(Permanent).await;
    }

    let mut dial = Dial::new(&unknown());
    let probe = dial.far.expect("server/discover").await;
    dial.far.refuse(&probe, -32022, "unsupported", json!({ "supported": ["2025-11-25"] })).await;
    dial.greet().await;
    assert_eq!(dial.established().await.0.era, Era::Legacy);
}

/// Without a wait, which paused time would pass over in silence.
async fn expect_at_once(far: &mut Far, method: &str) -> Value {
    let start = Instant::now();
    let message = far.expect(method).await;
    assert_eq!(start.elapsed(), Duration::ZERO, "{method} came late");
    message
}

/// Whether it shows signs of life or none: a byte below the level of frames, a frame.
#[tokio::test(start_paused = true)]
async fn a_silent_server_is_waited_for_as_long_as_is_said() {
    for (byte, frame) in [(false, false), (true, false), (false, true)] {
        let mut dial = Dial::new(&unknown());
        dial.far.expect("server/discover").await;
        advance(Duration::from_millis(1_000)).await;
        if frame {
            dial.far.say(json!({ "jsonrpc": "2.0", "method": "notifications/message" })).await;
        }
        if byte {
            dial.far.control.first_byte.cancel();
        }
        settle().await;
        advance(Duration::from_millis(990)).await;
        assert!(dial.far.is_quiet().await);
        advance(Duration::from_millis(20)).await;
        expect_at_once(&mut dial.far, "initialize").await;
    }
}

/// A dial of a server that has been silent, with both requests.
async fn silent(memory: &Arc<EraMemory>) -> (Dial, Value, Value) {
    let mut dial = Dial::new(memory);
    dial.far.control.first_byte.cancel();
    let probe = dial.far.expect("server/discover").await;
    settle().await;
    advance(Duration::from_secs(3)).await;
    let request = expect_at_once(&mut dial.far, "initialize").await;
    (dial, probe, request)
}

#[tokio::test(start_paused = true)]
async fn a_silent_server_decides_by_what_it_answers() {
    // initialize; the probe is answered late, for the next epoch.
    let memory = unknown();
    let (mut dial, probe, request) = silent(&memory).await;
    dial.far.answer(&request, initialized("2025-06-18")).await;
    dial.far.expect("notifications/initialized").await;
    let (session, wire, far) = dial.established().await;
    assert_eq!((session.era, session.version.as_str()), (Era::Legacy, "2025-06-18"));
    assert_eq!(memory.facts().era, Some(Era::Legacy));
    assert_eq!(wire.oldest_open(), None);
    far.answer(&probe, discovered(&["2026-07-28"])).await;
    settle().await;
    assert_eq!(memory.facts().era, Some(Era::Modern));
    far.tasks.close();
    far.token.cancel();
    far.tasks.wait().await;

    // The probe, with a result: the late answer to initialize harms nobody, and it is not cancelled.
    let (dial, probe, request) = silent(&unknown()).await;
    dial.far.answer(&probe, discovered(&["2026-07-28"])).await;
    let (session, wire, mut far) = dial.established().await;
    assert_eq!(session.era, Era::Modern);
    assert!(far.is_quiet().await);
    far.answer(&request, initialized("2025-11-25")).await;
    settle().await;
    assert_eq!(wire.stats().late, 1);

    // The probe, with an error: initialize is under way already.
    let (mut dial, probe, request) = silent(&unknown()).await;
    dial.far.refuse(&probe, -32601, "what?", Value::Null).await;
    assert!(dial.far.is_quiet().await);
    dial.far.answer(&request, initialized("2025-11-25")).await;
    dial.far.expect("notifications/initialized").await;
    assert_eq!(dial.established().await.0.era, Era::Legacy);

    // initialize, refused: the probe decides after all.
    let (mut dial, probe, request) = silent(&unknown()).await;
    dial.far.refuse(&request, -32601, "what?", Value::Null).await;
    assert!(dial.far.is_quiet().await);
    dial.far.answer(&probe, discovered(&["2026-07-28"])).await;
    assert_eq!(dial.established().await.0.era, Era::Modern);
}

#[tokio::test(start_paused = true)]
async fn k23_a_server_that_dies_on_the_probe_is_legacy() {
    let memory = unknown();
    let mut dial = Dial::new(&memory);
    dial.far.expect("server/discover").await;
    dial.far.hang_up();
    assert_eq!(dial.outcome.await.unwrap().unwrap_err(), HandshakeError::ProbeKilled { cause: EXIT.into() });
    assert_eq!(memory.facts().era, Some(Era::Legacy));
    let mut dial = Dial::with(&memory, EraPolicy::Auto, true);
    dial.greet().await;
    assert_eq!(dial.established().await.0.era, Era::Legacy);
    // The next epoch needs one process.
    let mut dial = Dial::new(&memory);
    dial.greet().await;
    dial.established().await;

    // Once more with initialize under way.
    let (dial, ..) = silent(&unknown()).await;
    dial.far.hang_up();
    assert!(matches!(dial.outcome.await.unwrap(), Err(HandshakeError::ProbeKilled { .. })));
}

#[tokio::test(start_paused = true)]
async fn other_ends_are_no_verdict_on_the_era() {
    // The probe was never sent.
    let memory = unknown();
    let dial = Dial::new(&memory);
    settle().await;
    dial.far.hang_up();
    assert_eq!(dial.outcome.await.unwrap().unwrap_err(), failed(Transport, EXIT));
    assert_eq!(memory.facts().era, None);

    // We gave up.
    let mut dial = Dial::new(&memory);
    dial.far.expect("server/discover").await;
    dial.wire.end(Ended { failure: FailureClass::StartTimeout.into(), cause: "too slow".into() });
    assert_eq!(&*dial.failed(FailureClass::StartTimeout).await, "too slow");
    assert_eq!(memory.facts().era, None);

    // A modern server that crashed, or was replaced by an older one: the next attempt finds out.
    let memory = known(Era::Modern);
    let mut dial = Dial::new(&memory);
    dial.far.expect("server/discover").await;
    dial.far.hang_up();
    assert_eq!(dial.outcome.await.unwrap().unwrap_err(), failed(Transport, EXIT));
    assert_eq!(memory.facts().era, None);

    // It is not legacy either.
    let memory = unknown();
    let (dial, _, request) = silent(&memory).await;
    dial.far.refuse(&request, -32601, "what?", Value::Null).await;
    settle().await;
    dial.far.hang_up();
    assert_eq!(dial.outcome.await.unwrap().unwrap_err(), failed(Transport, EXIT));
    assert_eq!(memory.facts().era, None);

    // A legacy server that died before it answered.
    let memory = known(Era::Legacy);
    let mut dial = Dial::new(&memory);
    dial.far.expect("initialize").await;
    dial.far.hang_up();
    assert_eq!(dial.outcome.await.unwrap().unwrap_err(), failed(Transport, EXIT));
    assert_eq!(memory.facts().era, Some(Era::Legacy));
}

#[tokio::test(start_paused = true)]
async fn an_exchange_that_fails_by_itself_is_judged_by_its_class() {
    let fail = async |far: &mut Far, class: FailureClass, sent| {
        let failure = SendFailure { failure: class.into(), sent, cause: "HTTP".into(), doubt: None };
        far.frames.recv().await.unwrap().finish(Err(failure));
    };
    // 404, 405, …
    let memory = unknown();
    let mut dial = Dial::new(&memory);
    fail(&mut dial.far, Transport, Sent::Refused).await;
    dial.greet().await;
    assert_eq!(dial.established().await.0.era, Era::Legacy);
    // 401, 403, 407, 429, 503, connection refused.
    let others = [
        (NeedsAuth, Sent::Refused),
        (FailureClass::Unauthorized, Sent::Refused),
        (Permanent, Sent::Refused),
        (RateLimited, Sent::Refused),
        (Transport, Sent::Maybe),
        (Transport, Sent::No),
        (FailureClass::Refused, Sent::No),
    ];
    for (class, sent) in others {
        let memory = unknown();
        let mut dial = Dial::new(&memory);
        fail(&mut dial.far, class, sent).await;
        dial.failed(class).await;
        assert_eq!(memory.facts(), EraFacts::default());
    }
}

#[tokio::test(start_paused = true)]
async fn k23_a_refusal_with_versions_gets_one_retry_with_the_best() {
    let refusals = [
        ("no", json!({ "supported": ["2024-11-05", "2025-06-18", "2019-01-01"] })),
        ("no", json!({ "supportedVersions": ["2024-11-05", "2025-06-18"] })),
        ("Unsupported protocol version 2025-11-25 (supported: 2024-11-05, 2025-06-18)", Value::Null),
    ];
    for (message, data) in refusals {
        let memory = known(Era::Legacy);
        let mut dial = Dial::new(&memory);
        let request = dial.far.expect("initialize").await;
        dial.far.refuse(&request, -32602, message, data).await;
        let request = dial.far.expect("initialize").await;
        assert_eq!(request["params"]["protocolVersion"], "2025-06-18");
        dial.far.answer(&request, initialized("2025-06-18")).await;
        dial.far.expect("notifications/initialized").await;
        assert_eq!(dial.established().await.0.version.as_str(), "2025-06-18");
        // The next epoch begins with it, and may be refused in turn.
        let mut dial = Dial::new(&memory);
        let request = dial.far.expect("initialize").await;
        assert_eq!(request["params"]["protocolVersion"], "2025-06-18");
        dial.far.refuse(&request, -32602, "no", json!({ "supported": ["2025-11-25"] })).await;
        assert_eq!(dial.greet().await["params"]["protocolVersion"], "2025-11-25");
        dial.established().await;
        assert_eq!(memory.facts().version, None);
    }
    // As an HTTP status with the list in its text.
    let mut dial = Dial::new(&known(Era::Legacy));
    let cause = "HTTP 400: unsupported version (supported: 2025-06-18)".into();
    let failure = SendFailure { failure: Transport.into(), sent: Sent::Refused, cause, doubt: None };
    dial.far.frames.recv().await.unwrap().finish(Err(failure));
    assert_eq!(dial.far.expect("initialize").await["params"]["protocolVersion"], "2025-06-18");
    // Disjoint.
    let mut dial = Dial::new(&known(Era::Legacy));
    let request = dial.far.expect("initialize").await;
    dial.far.refuse(&request, -32602, "no", json!({ "supported": ["2031-01-01"] })).await;
    dial.failed(Permanent).await;
    // Refused again, whatever else is offered by then.
    let mut dial = Dial::new(&known(Era::Legacy));
    for offer in ["2025-06-18", "2025-03-26"] {
        let request = dial.far.expect("initialize").await;
        dial.far.refuse(&request, -32602, "no", json!({ "supported": [offer] })).await;
    }
    dial.failed(Transport).await;
}

#[tokio::test(start_paused = true)]
async fn a_legacy_server_become_modern_is_found_in_the_same_attempt() {
    let refusals = [(-32601, Value::Null), (-32022, Value::Null), (-32022, json!({ "supported": ["2026-07-28"] }))];
    for (code, data) in refusals {
        let memory = known(Era::Legacy);
        let mut dial = Dial::new(&memory);
        let request = dial.far.expect("initialize").await;
        dial.far.refuse(&request, code, "no", data).await;
        let probe = dial.far.expect("server/discover").await;
        dial.far.answer(&probe, discovered(&["2026-07-28"])).await;
        assert_eq!(dial.established().await.0.era, Era::Modern);
        assert_eq!(memory.facts().era, Some(Era::Modern));
    }
    // Once per attempt, and no initialize after silence.
    let memory = known(Era::Legacy);
    let mut dial = Dial::new(&memory);
    let request = dial.far.expect("initialize").await;
    dial.far.refuse(&request, -32601, "no", Value::Null).await;
    let probe = dial.far.expect("server/discover").await;
    advance(Duration::from_secs(20)).await;
    assert!(dial.far.is_quiet().await);
    dial.far.refuse(&probe, -32601, "no", Value::Null).await;
    dial.failed(Transport).await;
    assert_eq!(memory.facts().era, None);
}

#[tokio::test(start_paused = true)]
async fn a_modern_server_become_legacy_is_found_in_the_same_attempt() {
    let memory = known(Era::Modern);
    let mut dial = Dial::new(&memory);
    let probe = dial.far.expect("server/discover").await;
    dial.far.refuse(&probe, -32601, "no", Value::Null).await;
    dial.greet().await;
    assert_eq!(dial.established().await.0.era, Era::Legacy);
    assert_eq!(memory.facts().era, Some(Era::Legacy));
    // Silence is waited for here too: it may ignore what it does not know.
    let (mut dial, _, request) = silent(&known(Era::Modern)).await;
    dial.far.answer(&request, initialized("2025-11-25")).await;
    dial.far.expect("notifications/initialized").await;
    assert_eq!(dial.established().await.0.era, Era::Legacy);
}

#[tokio::test(start_paused = true)]
async fn another_server_than_before_is_probed_again() {
    for era in [Era::Legacy, Era::Modern] {
        let server = Some(("other".to_owned(), "1".to_owned()));
        let memory = EraMemory::new(EraFacts { era: Some(era), version: None, server });
        let mut dial = Dial::new(&memory);
        if era == Era::Legacy {
            dial.greet().await;
        } else {
            let probe = dial.far.expect("server/discover").await;
            dial.far.answer(&probe, discovered(&["2026-07-28"])).await;
        }
        assert_eq!(dial.established().await.0.era, era);
        assert_eq!(memory.facts(), EraFacts { era: None, version: None, server: Some(("s".into(), "1".into())) });
    }
}

#[tokio::test(start_paused = true)]
async fn a_chosen_era_is_kept_to() {
    let memory = known(Era::Modern);
    let mut dial = Dial::with(&memory, EraPolicy::Legacy, false);
    let request = dial.far.expect("initialize").await;
    dial.far.refuse(&request, -32601, "no", Value::Null).await;
    dial.failed(Permanent).await;

    let mut dial = Dial::with(&known(Era::Legacy), EraPolicy::Modern, false);
    dial.far.control.first_byte.cancel();
    let probe = dial.far.expect("server/discover").await;
    advance(Duration::from_secs(20)).await;
    assert!(dial.far.is_quiet().await);
    dial.far.refuse(&probe, -32601, "no", Value::Null).await;
    dial.failed(Permanent).await;

    let mut dial = Dial::with(&unknown(), EraPolicy::Modern, false);
    dial.far.expect("server/discover").await;
    dial.far.hang_up();
    assert_eq!(dial.outcome.await.unwrap().unwrap_err(), failed(Transport, EXIT));
}

#[tokio::test(start_paused = true)]
async fn k06_noise_before_the_reply_is_not_the_reply() {
    let mut dial = Dial::new(&known(Era::Legacy));
    let request = dial.far.expect("initialize").await;
    dial.far.say_text("starting up").await;
    dial.far.say(json!({ "jsonrpc": "2.0", "method": "notifications/message", "params": { "level": "info" } })).await;
    dial.far.say(json!({ "jsonrpc": "2.0", "id": 1, "method": "ping" })).await;
    dial.far.say(json!({ "jsonrpc": "2.0", "id": 1, "result": initialized("2024-11-05") })).await;
    dial.far.say(json!({ "jsonrpc": "2.0", "error": { "code": -32700, "message": "eh?" } })).await;
    assert_eq!(dial.far.read().await, json!({ "jsonrpc": "2.0", "id": 1, "result": {} }));
    dial.far.answer(&request, initialized("2025-11-25")).await;
    dial.far.expect("notifications/initialized").await;
    let (session, wire, _far) = dial.established().await;
    assert_eq!(session.version.as_str(), "2025-11-25");
    assert!(wire.attach().unwrap().next().await.unwrap().contains("notifications/message"));
}

#[tokio::test(start_paused = true)]
async fn a_bad_reply_is_worth_a_retry_and_an_odd_one_is_read() {
    let bad = [
        json!({ "result": 42 }),
        json!({ "result": {} }),
        json!({ "error": { "code": -32603, "message": "not yet" } }),
    ];
    for reply in bad {
        let mut dial = Dial::new(&known(Era::Legacy));
        let request = dial.far.expect("initialize").await;
        let mut reply = reply;
        reply["id"] = request["id"].clone();
        dial.far.say(reply).await;
        dial.failed(Transport).await;
    }
    let mut dial = Dial::new(&known(Era::Legacy));
    let request = dial.far.expect("initialize").await;
    let capabilities =
        json!({ "tools": true, "prompts": null, "resources": { "subscribe": true }, "logging": false, "more": 1 });
    dial.far
        .answer(
            &request,
            json!({ "protocolVersion": "2025-11-25", "capabilities": capabilities, "serverInfo": { "name": "odd" } }),
        )
        .await;
    dial.far.expect("notifications/initialized").await;
    let (session, ..) = dial.established().await;
    let capabilities = &session.peer.capabilities;
    assert!(capabilities.tools.is_some() && capabilities.prompts.is_none() && capabilities.logging.is_none());
    assert_eq!(capabilities.resources.as_ref().unwrap().subscribe, Some(true));
    assert_eq!(session.peer.server_info.as_ref().unwrap().name, "odd");
    assert!(session.raw.get().contains("\"more\":1"));
}

#[tokio::test(start_paused = true)]
async fn a_handshake_that_is_dropped_leaves_nothing() {
    let (dial, ..) = silent(&unknown()).await;
    dial.outcome.abort();
    assert!(dial.outcome.await.unwrap_err().is_cancelled());
    let mut far = dial.far;
    assert!(far.is_quiet().await);
    assert_eq!(dial.wire.open_count(), 0);
    dial.wire.end(Ended { failure: FailureClass::StartTimeout.into(), cause: "too slow".into() });
    far.tasks.close();
    far.tasks.wait().await;
}
