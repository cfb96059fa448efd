//! Faults of what is in front of a server (K04, K11, K12, K17): the network, a balancer, a NAT. The server itself is
//! well all the time, and its ledger tells what arrived.

use futures::future::join_all;
use mcp_reconnect::core::replay::Sent;
use mcp_reconnect::core::{Config, FailureClass, Status};
use mcp_reconnect::http::HttpConnector;
use mcp_reconnect::{CallError, Connection, Event, Events, HttpServer};
use mcp_reconnect_tests::chaos::{ChaosProxy, Cut, Direction, End, Faults, Flow};
use mcp_reconnect_tests::fake::FakeHttp;
use rmcp::model::CallToolResponse;

use super::clock::{quick, skip, turns};
use super::k02::{soon, wave};
use super::serve;
use crate::support::*;

/// A server, what is in front of it, and a connection through it.
struct Fronted {
    server: FakeHttp,
    proxy: ChaosProxy,
    connection: Connection,
    events: Events,
}

/// With a standing stream, in its first session.
async fn fronted(script: &str, config: Config) -> Fronted {
    let server = serve(script).await;
    let proxy = ChaosProxy::start(server.address()).await.unwrap();
    let url = HttpServer::new(&format!("http://{}/mcp", proxy.address())).unwrap();
    let connection = Connection::builder(HttpConnector::new(url)).name("fake").seed(7).config(config).build().unwrap();
    let mut events = connection.events();
    assert_eq!(soon(until_ready(&mut events)).await, 1);
    soon(server.watch().wait_until(|ledger| ledger.open_streams() == 1)).await;
    Fronted { server, proxy, connection, events }
}

/// Silence is noticed soon; nothing else is hurried.
fn attentive() -> Config {
    config(|config| quick(config).ping_timeout(secs(1)).ping_misses(2).connect_timeout(secs(2)))
}

impl Fronted {
    fn call(&self, name: &'static str, text: &str) -> tokio::task::JoinHandle<Result<CallToolResponse, CallError>> {
        let (connection, params) = (self.connection.clone(), tool_with(name, text));
        tokio::spawn(async move { connection.call_tool_with(params, &within(secs(1800))).await })
    }

    async fn echoes(&self) {
        assert_eq!(text(soon(self.connection.call_tool(tool_with("echo", "fine"))).await), "fine");
    }

    /// One response alone breaks off: the next.
    async fn cut_next(&self, direction: Direction, after: u64, end: End) {
        let flow = Flow::Cut(Cut { after, end, once: true });
        self.proxy.set(Faults::only(direction, flow)).await.unwrap();
    }

    /// The first session serves, and nothing was told of it.
    async fn untouched(self, what: &str) {
        self.echoes().await;
        let snapshot = self.connection.snapshot();
        assert_eq!((snapshot.status, snapshot.stats.dials), (Status::Ready(epoch(1)), 1), "{what}");
        assert_eq!(self.server.ledger().initializes(), 1, "{what}");
        assert_eq!(drain_statuses(self.connection, self.events).await, [Status::Shutdown], "{what}");
    }
}

/// Waits for the loss of the session, and gives its class.
pub(super) async fn loss(events: &mut Events) -> FailureClass {
    loop {
        match soon(events.next()).await.expect("a connection") {
            Event::Status { status: Status::Ready(_), .. } => panic!("another session before the first was lost"),
            Event::Status { status: Status::Parked(reason), .. } => panic!("parked: {reason}"),
            Event::Status { failure: Some(class), .. } => return class,
            _ => {}
        }
    }
}

/// The caller is told at its deadline, the pings tell of the session, and what was in the hole comes out late: once.
#[tokio::test]
async fn front_black_hole_during_a_call() {
    for hole in [
        Faults::BLACK_HOLE,
        Faults::only(Direction::Requests, Flow::Hold),
        Faults::only(Direction::Responses, Flow::Hold),
    ] {
        let mut front = fronted("", attentive()).await;
        front.proxy.set(hole).await.unwrap();
        let outcome = soon(front.connection.call_tool_with(tool("write"), &within(millis(300)))).await;
        assert!(matches!(outcome, Err(CallError::DeadlineExceeded { sent: Sent::Maybe, .. })), "{hole:?}: {outcome:?}");
        // One that has more time goes down with the session.
        let second = front.call("write", "second");
        assert_eq!(loss(&mut front.events).await, FailureClass::Unresponsive, "{hole:?}");
        match soon(second).await.unwrap() {
            Err(CallError::OutcomeUnknown { epoch: failed, class, .. }) => {
                assert_eq!((failed, class), (epoch(1), FailureClass::Unresponsive), "{hole:?}");
            }
            other => panic!("{hole:?}: {other:?}"),
        }
        front.proxy.set(Faults::PASS).await.unwrap();
        assert!(soon(until_ready(&mut front.events)).await > 1, "{hole:?}");
        wave(&front.connection, 5).await;
        // Five answered, and two that their callers know nothing of: at most once each.
        let ledger = front.server.ledger();
        assert!((5..=7).contains(&ledger.executions("write")), "{hole:?}: {}", ledger.executions("write"));
        assert!(ledger.calls("write") <= 7, "{hole:?}");
    }
}

/// A call whose tool may be repeated survives the hole, if its time does.
#[tokio::test]
async fn front_black_hole_during_an_annotated_call() {
    let mut front = fronted("", attentive()).await;
    front.proxy.set(Faults::BLACK_HOLE).await.unwrap();
    // What speaks against the session; the verdict waits for calls that are older than that.
    let outcome = soon(front.connection.call_tool_with(tool("echo"), &within(millis(300)))).await;
    assert!(matches!(outcome, Err(CallError::DeadlineExceeded { .. })), "{outcome:?}");
    let patient = front.call("echo", "patient");
    assert_eq!(loss(&mut front.events).await, FailureClass::Unresponsive);
    front.proxy.set(Faults::PASS).await.unwrap();
    assert_eq!(text(soon(patient).await.unwrap()), "patient");
}

/// Nobody calls: the keepalive finds out.
#[tokio::test]
async fn front_black_hole_when_idle() {
    let knobs = config(|config| {
        quick(config).keepalive(millis(300)).ping_timeout(secs(1)).ping_misses(2).connect_timeout(secs(2))
    });
    let mut front = fronted("", knobs).await;
    front.proxy.set(Faults::BLACK_HOLE).await.unwrap();
    assert_eq!(loss(&mut front.events).await, FailureClass::Unresponsive);
    front.proxy.set(Faults::PASS).await.unwrap();
    assert!(soon(until_ready(&mut front.events)).await > 1);
    wave(&front.connection, 5).await;
    assert_eq!(front.server.ledger().executions("write"), 5);
}

/// A NAT that forgot what was idle: one call pays with its deadline, and the session is found alive on a new connection.
#[tokio::test]
async fn front_frozen_connections() {
    let front = fronted("", attentive()).await;
    front.echoes().await; // leaves a connection in the pool
    assert!(soon(front.proxy.freeze()).await.unwrap() >= 2);
    let outcome = soon(front.connection.call_tool_with(tool("write"), &within(millis(300)))).await;
    assert!(matches!(outcome, Err(CallError::DeadlineExceeded { sent: Sent::Maybe, .. })), "{outcome:?}");
    soon(front.server.watch().wait_until(|ledger| ledger.requests("ping") > 0)).await;
    wave(&front.connection, 5).await;
    assert_eq!(front.server.ledger().executions("write"), 5);
    front.untouched("freeze").await;
}

/// The response breaks off once, anywhere: before its head, in it, in its body.
#[tokio::test]
async fn front_response_cut_once() {
    for answers in ["", "answers json"] {
        for end in [End::Close, End::Reset] {
            for after in [0, 30, 100_000] {
                let what = format!("{answers} {end:?} after {after}");
                let front = fronted(&format!("{answers}\ncall * big 200KiB"), config(|config| config)).await;
                front.cut_next(Direction::Responses, after, end).await;
                let outcome = soon(front.call("write", "")).await.unwrap();
                match outcome {
                    Err(CallError::OutcomeUnknown { epoch: failed, .. }) => assert_eq!(failed, epoch(1), "{what}"),
                    other => panic!("{what}: {other:?}"),
                }
                assert_eq!((front.proxy.stats().cut, front.server.ledger().executions("write")), (1, 1), "{what}");
                front.cut_next(Direction::Responses, after, end).await;
                assert!(text(soon(front.call("echo", "")).await.unwrap()).len() > 100_000, "{what}");
                assert_eq!((front.proxy.stats().cut, front.server.ledger().executions("echo")), (2, 2), "{what}");
                front.proxy.set(Faults::PASS).await.unwrap();
                assert!(soon(front.call("write", "")).await.unwrap().is_ok(), "{what}");
                front.server.set_script("").await.unwrap();
                let ledger = front.server.ledger();
                assert_eq!((ledger.calls("write"), ledger.executions("write")), (2, 2), "{what}");
                front.untouched(&what).await;
            }
        }
    }
}

/// The request breaks off: the server never sees it whole, the client cannot know.
#[tokio::test]
async fn front_request_cut_once() {
    for after in [0, 30, 200] {
        for end in [End::Close, End::Reset] {
            let what = format!("{end:?} after {after}");
            let front = fronted("", config(|config| config)).await;
            front.cut_next(Direction::Requests, after, end).await;
            let outcome = soon(front.call("write", "lost")).await.unwrap();
            assert!(matches!(outcome, Err(CallError::OutcomeUnknown { .. })), "{what}: {outcome:?}");
            front.cut_next(Direction::Requests, after, end).await;
            assert_eq!(text(soon(front.call("echo", "again")).await.unwrap()), "again", "{what}");
            let ledger = front.server.ledger();
            assert_eq!((front.proxy.stats().cut, ledger.executions("write"), ledger.executions("echo")), (2, 0, 1));
            front.untouched(&what).await;
        }
    }
}

/// Every response breaks off, the probe's too: an outage, which ends with its cause.
#[tokio::test]
async fn front_every_response_cut() {
    for answers in ["", "answers json"] {
        for after in [0, 30] {
            let what = format!("{answers} after {after}");
            let front = fronted(answers, config(quick)).await;
            front.proxy.set(Faults::cut(after)).await.unwrap();
            let outcome = soon(front.call("write", &"x".repeat(1000))).await.unwrap();
            assert!(matches!(outcome, Err(CallError::OutcomeUnknown { .. })), "{what}: {outcome:?}");
            assert_eq!(front.server.ledger().executions("write"), 1, "{what}");
            let repeatable = front.call("echo", &"x".repeat(1000));
            let cuts = front.proxy.stats().cut;
            soon(front.proxy.wait_until(|stats| stats.cut > cuts + 3)).await;
            front.proxy.set(Faults::PASS).await.unwrap();
            // It may have used up its second sending before the end of the outage.
            let outcome = soon(repeatable).await.unwrap();
            assert!(matches!(outcome, Ok(_) | Err(CallError::OutcomeUnknown { .. })), "{what}: {outcome:?}");
            soon(front.connection.session()).await.unwrap();
            wave(&front.connection, 3).await;
            assert_eq!(front.server.ledger().executions("write"), 4, "{what}");
        }
    }
}

/// Nobody gets through for a while: whoever waits is served when it is over, and runs once.
#[tokio::test]
async fn front_nobody_gets_through_for_a_while() {
    for faults in [Faults::RESET_AT_ACCEPT, Faults::REFUSE] {
        let mut front = fronted("", config(quick)).await;
        front.proxy.set(faults).await.unwrap();
        soon(front.proxy.reset()).await.unwrap();
        // The standing stream broke, and its probe got nowhere.
        let class = if faults == Faults::REFUSE { FailureClass::Refused } else { FailureClass::Transport };
        assert_eq!(loss(&mut front.events).await, class, "{faults:?}");
        let calls: Vec<_> =
            (0..20).map(|n| front.call(if n % 2 == 0 { "write" } else { "echo" }, &n.to_string())).collect();
        let failures = front.connection.snapshot().stats.failures;
        while front.connection.snapshot().stats.failures < failures + 3 {
            soon(front.events.next()).await.unwrap();
            if faults == Faults::RESET_AT_ACCEPT {
                let resets = front.proxy.stats().reset;
                soon(front.proxy.wait_until(|stats| stats.reset > resets)).await;
            }
        }
        front.proxy.set(Faults::PASS).await.unwrap();
        for (n, outcome) in soon(join_all(calls)).await.into_iter().enumerate() {
            assert_eq!(text(outcome.unwrap()), n.to_string(), "{faults:?}");
        }
        let ledger = front.server.ledger();
        assert_eq!((ledger.executions("write"), ledger.executions("echo")), (10, 10), "{faults:?}");
        assert_eq!(ledger.initializes(), 2, "{faults:?}");
    }
}

/// Again and again every connection is reset while nobody calls: the stream is opened again, the session is the same.
#[tokio::test]
async fn front_idle_connections_reset() {
    let front = fronted("get ok, retry 1ms", config(|config| config)).await;
    for number in 2..=8 {
        // The client has its head as well.
        front.echoes().await;
        turns().await;
        skip(secs(31)).await; // one that ends sooner is no success: the next one would come later and later
        front.echoes().await;
        assert!(soon(front.proxy.reset()).await.unwrap() >= 1);
        soon(front.server.watch().wait_until(|ledger| ledger.streams() == number && ledger.open_streams() == 1)).await;
    }
    assert_eq!(front.server.ledger().gets(), 8);
    front.untouched("reset").await;
}

/// The standing stream alone breaks, with a message in it: the call beside it is answered, the stream opened again.
#[tokio::test]
async fn front_standing_stream_cut() {
    for end in [End::Close, End::Reset] {
        for after in [0, 20] {
            let script = "get ok, retry 1ms\ncall write notify message standing, delay 500ms, ok";
            let front = fronted(script, config(|config| config)).await;
            front.cut_next(Direction::Responses, after, end).await;
            assert_eq!(text(soon(front.call("write", "beside")).await.unwrap()), "beside", "{end:?} after {after}");
            soon(front.server.watch().wait_until(|ledger| ledger.streams() == 2 && ledger.open_streams() == 1)).await;
            let ledger = front.server.ledger();
            assert_eq!((ledger.executions("write"), ledger.gets(), front.proxy.stats().cut), (1, 2, 1), "{end:?}");
            front.untouched("stream").await;
        }
    }
}

/// The host slept, and the NAT forgot every connection meanwhile: the session is asked at once, and what cannot be told
/// from a dead one is rebuilt on fresh sockets.
#[tokio::test]
async fn front_wake_behind_a_nat() {
    let mut front = fronted("", attentive()).await;
    wave(&front.connection, 20).await; // leaves many connections in the pool
    assert!(soon(front.proxy.freeze()).await.unwrap() >= 4);
    front.connection.resumed();
    assert_eq!(loss(&mut front.events).await, FailureClass::Unresponsive);
    assert_eq!(soon(until_ready(&mut front.events)).await, 2);
    wave(&front.connection, 5).await;
    assert_eq!(front.server.ledger().executions("write"), 25);
}

/// Reset and called at the same moment: the call finds out first, or the pool does. It runs once, or its caller is told.
#[tokio::test]
async fn front_reset_beside_calls() {
    let front = fronted("get ok, retry 1h", config(quick)).await;
    let (mut answered, mut unknown) = (0, 0);
    for round in 0..20 {
        let (reset, outcome) = tokio::join!(front.proxy.reset(), front.call("write", &round.to_string()));
        reset.unwrap();
        match outcome.unwrap() {
            Err(CallError::OutcomeUnknown { .. }) => unknown += 1,
            outcome => {
                assert_eq!(text(outcome), round.to_string());
                answered += 1;
            }
        }
        front.echoes().await;
    }
    let runs = front.server.ledger().executions("write");
    assert!((answered..=answered + unknown).contains(&runs), "{runs} runs, {answered} answered, {unknown} unknown");
}

/// Slow is not dead: the answers come, and nothing else happens.
#[tokio::test]
async fn front_delay() {
    let front = fronted("", config(|config| config)).await;
    front.proxy.set(Faults::delay(millis(150))).await.unwrap();
    wave(&front.connection, 20).await;
    assert_eq!(front.server.ledger().executions("write"), 20);
    // Slower than a caller has time: told so, and the session is asked, and found alive.
    front.proxy.set(Faults::delay(secs(1800))).await.unwrap();
    let read = front.proxy.stats().requests.read;
    let outcome = soon(front.connection.call_tool_with(tool("write"), &within(millis(200)))).await;
    assert!(matches!(outcome, Err(CallError::DeadlineExceeded { sent: Sent::Maybe, .. })), "{outcome:?}");
    assert!(front.proxy.stats().requests.read > read);
    front.proxy.set(Faults::PASS).await.unwrap();
    soon(front.server.watch().wait_until(|ledger| ledger.requests("ping") > 0)).await;
    front.untouched("delay").await;
}
