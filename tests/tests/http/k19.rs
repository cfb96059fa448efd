//! K19: credentials that expire in mid-session, and users who are not asked.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use futures::future::join_all;
use mcp_reconnect::core::{FailureClass, ParkReason, Refusal, State, Status, WakeCause};
use mcp_reconnect::http::HttpConnector;
use mcp_reconnect::{Builder, CallError, Connection, Credentials, Events, HttpServer, Refresh};
use mcp_reconnect_tests::fake::FakeHttp;
use tokio::sync::Semaphore;

use super::clock::skip;
use super::serve;
use crate::support::*;

/// What a host keeps: an access token, and whether it may be renewed without a user. A renewal waits for a permit.
struct Keyring {
    token: Mutex<&'static str>,
    next: Mutex<Option<&'static str>>,
    refreshes: AtomicUsize,
    prompts: AtomicUsize,
    leave: Semaphore,
}

impl Keyring {
    fn holding(token: &'static str, next: Option<&'static str>) -> Arc<Self> {
        Arc::new(Self {
            token: Mutex::new(token),
            next: Mutex::new(next),
            refreshes: AtomicUsize::new(0),
            prompts: AtomicUsize::new(0),
            leave: Semaphore::new(1000),
        })
    }

    /// A user has logged in.
    fn log_in(&self, token: &'static str) {
        *self.token.lock().unwrap() = token;
    }

    fn renewable_to(&self, token: &'static str) {
        *self.next.lock().unwrap() = Some(token);
    }

    fn hold_renewals(&self) {
        self.leave.forget_permits(1000);
    }

    /// How often it was asked to renew, and how often a user was.
    fn asked(&self) -> (usize, usize) {
        (self.refreshes.load(Ordering::SeqCst), self.prompts.load(Ordering::SeqCst))
    }
}

#[async_trait]
impl Credentials for Keyring {
    async fn token(&self) -> Option<String> {
        Some((*self.token.lock().unwrap()).to_owned())
    }

    async fn refresh(&self, challenge: &str, interactive: bool) -> Refresh {
        assert!(challenge.is_empty() || challenge.starts_with("Bearer"), "{challenge}");
        self.refreshes.fetch_add(1, Ordering::SeqCst);
        self.prompts.fetch_add(usize::from(interactive), Ordering::SeqCst);
        self.leave.acquire().await.unwrap().forget();
        // A refresh token is good for once.
        match self.next.lock().unwrap().take() {
            Some(token) => {
                self.log_in(token);
                Refresh::Refreshed
            }
            None => Refresh::NeedsUser("log in, please".into()),
        }
    }
}

fn builder(server: &FakeHttp, keys: &Arc<Keyring>) -> Builder {
    let http = HttpServer::new(&server.url()).unwrap().credentials(keys.clone());
    Connection::builder(HttpConnector::new(http)).name("fake").seed(7)
}

async fn ready(script: &str, keys: &Arc<Keyring>) -> (FakeHttp, Connection, Events) {
    let server = serve(script).await;
    let connection = builder(&server, keys).build().unwrap();
    let mut events = connection.events();
    assert_eq!(until_ready(&mut events).await, 1);
    (server, connection, events)
}

async fn call_20(connection: &Connection) {
    let calls = (0..20).map(|number| {
        let connection = connection.clone();
        async move { (number, text(connection.call_tool(tool_with("write", &format!("call {number}"))).await)) }
    });
    for (number, answer) in join_all(calls).await {
        assert_eq!(answer, format!("call {number}"));
    }
}

/// Also R075: every call is refused the old token before the new one is there.
#[tokio::test]
async fn k19_expiry_20() {
    let keys = Keyring::holding("T1", Some("T2"));
    let (server, connection, events) = ready("token T1", &keys).await;
    keys.hold_renewals();
    server.set_script("token T2").await.unwrap();
    let refused = async {
        server.watch().wait_until(|ledger| ledger.answered(401) >= 20).await;
        keys.leave.add_permits(1);
    };
    tokio::join!(call_20(&connection), refused);
    assert_eq!(keys.asked(), (1, 0));
    let ledger = server.ledger();
    assert_eq!((ledger.executions("write"), ledger.initializes(), ledger.answered(401)), (20, 1, 20));
    assert_eq!(drain_statuses(connection, events).await, [Status::Shutdown]);
}

/// A refusal of the old token that arrives when the new one is there already asks for no third one.
#[tokio::test]
async fn k19_expiry_with_a_late_refusal() {
    let keys = Keyring::holding("T1", Some("T2"));
    let (server, connection, _events) = ready("token T1", &keys).await;
    server.set_script("token T2\nunauthorized#1 delay 300ms, status 401").await.unwrap();
    let late = connection.call_tool(tool_with("echo", "late"));
    let prompt = async {
        server.watch().wait_until(|ledger| ledger.posts_of("tools/call") == 1).await;
        text(connection.call_tool(tool_with("write", "prompt")).await)
    };
    let (late, prompt) = tokio::join!(late, prompt);
    assert_eq!((text(late), prompt), ("late".into(), "prompt".into()));
    assert_eq!(keys.asked(), (1, 0));
    assert_eq!(server.ledger().answered(401), 2);
}

#[tokio::test]
async fn k19_r074_refreshed_in_silence() {
    let keys = Keyring::holding("T1", Some("T2"));
    let (server, connection, events) = ready("token T1", &keys).await;
    server.set_script("token T2").await.unwrap();
    assert_eq!(text(connection.call_tool(tool_with("write", "one")).await), "one");
    assert_eq!(connection.session().await.unwrap().epoch(), epoch(1));
    assert_eq!(keys.asked(), (1, 0));
    assert_eq!((server.ledger().executions("write"), server.ledger().posts_of("tools/call")), (1, 2));
    assert_eq!(drain_statuses(connection, events).await, [Status::Shutdown]);
}

/// Expiry after expiry: each is one refresh.
#[tokio::test]
async fn k19_every_expiry_is_one_refresh() {
    let keys = Keyring::holding("T1", None);
    let (server, connection, events) = ready("token T1", &keys).await;
    for (round, token) in ["T2", "T3", "T4"].into_iter().enumerate() {
        keys.renewable_to(token);
        server.set_script(&format!("token {token}")).await.unwrap();
        call_20(&connection).await;
        assert_eq!(keys.asked(), (round + 1, 0));
    }
    assert_eq!(drain_statuses(connection, events).await, [Status::Shutdown]);
}

/// A login that asks for more rights says so with 403 and a challenge.
#[tokio::test]
async fn k19_403_with_a_challenge() {
    let keys = Keyring::holding("T1", Some("T2"));
    let (server, connection, events) = ready("token T1", &keys).await;
    let challenge = r#"header www-authenticate "Bearer error=\"insufficient_scope\"""#;
    server.set_script(&format!("token T2\nunauthorized status 403 {challenge}")).await.unwrap();
    assert_eq!(text(connection.call_tool(tool_with("write", "one")).await), "one");
    assert_eq!(keys.asked(), (1, 0));
    assert_eq!(drain_statuses(connection, events).await, [Status::Shutdown]);
}

/// Without a challenge there is nothing that other credentials could mend: the session is asked, and stays.
#[tokio::test]
async fn k19_403_without_a_challenge() {
    let keys = Keyring::holding("T1", Some("T2"));
    let (server, connection, events) = ready("token T1\ncall write status 403 \"not yours\"", &keys).await;
    match connection.call_tool(tool("write")).await {
        Err(error @ CallError::OutcomeUnknown { class: FailureClass::Transport, .. }) => {
            assert!(error.to_string().contains("not yours"), "{error}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(text(connection.call_tool(tool_with("echo", "mine")).await), "mine");
    assert_eq!((keys.asked(), server.ledger().posts_of("tools/call")), ((0, 0), 2));
    assert_eq!(drain_statuses(connection, events).await, [Status::Shutdown]);
}

/// The token expires while nobody calls: the keepalive renews it, and the session is not doubted.
#[tokio::test]
async fn k19_expiry_while_idle() {
    let keys = Keyring::holding("T1", Some("T2"));
    let server = serve("token T1").await;
    let knobs = config(|knobs| knobs.keepalive(millis(50)).ping_timeout(millis(50)).ping_misses(200));
    let connection = builder(&server, &keys).config(knobs).build().unwrap();
    let mut events = connection.events();
    assert_eq!(until_ready(&mut events).await, 1);
    server.set_script("token T2").await.unwrap();
    let pings = server.ledger().requests("ping");
    server.watch().wait_until(|ledger| ledger.requests("ping") >= pings + 2).await;
    assert_eq!(keys.asked(), (1, 0));
    assert_eq!(drain_statuses(connection, events).await, [Status::Shutdown]);
}

/// The token expires while the server is away.
#[tokio::test]
async fn k19_expiry_at_a_redial() {
    let keys = Keyring::holding("T1", Some("T2"));
    let (server, connection, mut events) = ready("spawn 1:\n token T1\nspawn 2:\n token T2", &keys).await;
    server.restart().await;
    assert_eq!(text(connection.call_tool(tool_with("echo", "one")).await), "one");
    assert_eq!(until_ready(&mut events).await, 2);
    assert_eq!(keys.asked(), (1, 0));
    let statuses = drain_statuses(connection, events).await;
    assert_eq!(statuses, [Status::Shutdown], "the first redial succeeded");
}

/// Everything that is sent carries the token, the end of the session too.
#[tokio::test]
async fn k19_the_token_goes_with_every_request() {
    let keys = Keyring::holding("T1", None);
    let (server, connection, _events) = ready("token T1", &keys).await;
    assert_eq!(text(connection.call_tool(tool_with("write", "one")).await), "one");
    server.watch().wait_until(|ledger| ledger.streams() == 1).await;
    connection.shutdown().await;
    let ledger = server.ledger();
    assert_eq!((ledger.deletes(), ledger.live_sessions()), (vec!["A1"], vec![]));
    assert!(ledger.asked().all(|asked| asked.header("authorization").is_some()));
    assert_eq!(keys.asked(), (0, 0));
}

/// A caller that does not wait for the renewal does not waste the refresh token: the next one has what comes of it.
#[tokio::test]
async fn k19_a_renewal_outlives_the_call_that_began_it() {
    let keys = Keyring::holding("T1", Some("T2"));
    let (server, connection, events) = ready("token T1", &keys).await;
    keys.hold_renewals();
    server.set_script("token T2").await.unwrap();
    match connection.call_tool_with(tool("write"), &within(millis(300))).await {
        Err(CallError::DeadlineExceeded { .. }) => {}
        other => panic!("{other:?}"),
    }
    keys.leave.add_permits(1);
    assert_eq!(text(connection.call_tool(tool_with("write", "one")).await), "one");
    assert_eq!((keys.asked(), server.ledger().executions("write")), ((1, 0), 1));
    assert_eq!(drain_statuses(connection, events).await, [Status::Shutdown]);
}

/// The same for a dial that ends at its deadline.
#[tokio::test]
async fn k19_a_renewal_outlives_the_dial_that_began_it() {
    let keys = Keyring::holding("T1", Some("T2"));
    keys.hold_renewals();
    let server = serve("token T2").await;
    let knobs = config(|knobs| knobs.connect_timeout(millis(200)).backoff(millis(40)).min_dial_interval(millis(20)));
    let connection = builder(&server, &keys).config(knobs).build().unwrap();
    let mut events = connection.events();
    until_status(&mut events, |status| status == Status::TransientFailure).await;
    keys.leave.add_permits(1);
    until_ready(&mut events).await;
    assert_eq!(keys.asked(), (1, 0));
}

/// A new token that is refused as well is no reason to ask for the next one, and the next one.
#[tokio::test]
async fn k19_a_refreshed_token_that_is_refused_too() {
    let keys = Keyring::holding("T1", Some("T2"));
    let (server, connection, mut events) = ready("token T1", &keys).await;
    server.set_script("token T3").await.unwrap();
    let result = connection.call_tool(tool("write")).await;
    assert!(result.as_ref().is_err_and(CallError::not_run), "{result:?}");
    until_status(&mut events, |status| status == Status::Parked(ParkReason::NeedsAuth)).await;
    // Once for the session, and once for the `initialize` that followed it.
    assert_eq!((keys.asked(), server.ledger().posts_of("tools/call")), ((2, 0), 2));
    assert_eq!(server.ledger().executions("write"), 0);
}

/// Also R076. The twelve hours are nothing that is due: it is parked, no probe is planned, and neither time nor callers
/// change that (all the knobs that could are as short as they get).
#[tokio::test]
async fn k19_401_forever() {
    let keys = Keyring::holding("T0", None);
    let server = serve("token T1").await;
    let knobs = config(|knobs| {
        let knobs = knobs.backoff(millis(2)).backoff_max(millis(2)).min_dial_interval(millis(1));
        knobs.demand_interval(millis(1)).park_after(millis(1)).park_probe(millis(1)).park_probe_max(millis(1))
    });
    let connection = builder(&server, &keys).config(knobs).build().unwrap();
    let mut events = connection.events();
    let statuses = until_status(&mut events, |status| matches!(status, Status::Parked(_))).await;
    assert_eq!(statuses, [Status::Connecting, Status::Parked(ParkReason::NeedsAuth)]);
    for _ in 0..50 {
        match connection.call_tool(tool("write")).await {
            Err(error @ CallError::Refused { why: Refusal::Parked(ParkReason::NeedsAuth), retry_at: None, .. }) => {
                assert!(error.to_string().contains("log in, please"), "{error}");
            }
            other => panic!("{other:?}"),
        }
        connection.resumed();
    }
    let snapshot = connection.snapshot();
    assert_eq!(snapshot.state, State::Parked { probe_at: None });
    assert_eq!((snapshot.stats.dials, snapshot.stats.probes), (1, 0));
    assert_eq!((keys.asked(), server.ledger().posts()), ((1, 0), 1));
    // The user logs in, somewhere.
    keys.log_in("T1");
    connection.wake(WakeCause::Credentials);
    let statuses = until_status(&mut events, |status| matches!(status, Status::Ready(_))).await;
    assert_eq!(statuses, [Status::Ready(epoch(2))], "one event for needing a user, none while it is looked at again");
    assert_eq!(text(connection.call_tool(tool_with("write", "in")).await), "in");
    assert_eq!(keys.asked(), (1, 0));
}

/// A session whose login is over for good: calls are told, nothing is retried, and the tools are taken back.
#[tokio::test]
async fn k19_401_forever_in_mid_session() {
    let keys = Keyring::holding("T1", None);
    let (server, connection, mut events) = ready("token T1", &keys).await;
    server.set_script("token T2").await.unwrap();
    keys.hold_renewals();
    let calls = join_all((0..20).map(|_| connection.call_tool(tool("write"))));
    let refused = async {
        server.watch().wait_until(|ledger| ledger.answered(401) >= 20).await;
        keys.leave.add_permits(1000);
    };
    for result in tokio::join!(calls, refused).0 {
        assert!(result.as_ref().is_err_and(CallError::not_run), "{result:?}");
    }
    let statuses = until_status(&mut events, |status| matches!(status, Status::Parked(_))).await;
    assert_eq!(statuses.last(), Some(&Status::Parked(ParkReason::NeedsAuth)));
    assert!(connection.catalogue().is_none());
    assert_eq!((keys.asked().1, server.ledger().executions("write")), (0, 0));
    assert!(keys.asked().0 <= 2, "the calls, and at most one dial: {:?}", keys.asked());
    assert_eq!(connection.snapshot().state, State::Parked { probe_at: None });
    keys.log_in("T2");
    connection.wake(WakeCause::Credentials);
    until_ready(&mut events).await;
    assert_eq!(text(connection.call_tool(tool_with("write", "in")).await), "in");
}

/// Only a user who is there is asked, once for each time that they want it.
#[tokio::test]
async fn k19_only_an_operator_is_prompted() {
    let keys = Keyring::holding("T0", None);
    let server = serve("token T1").await;
    let connection = builder(&server, &keys).build().unwrap();
    let mut events = connection.events();
    until_status(&mut events, |status| status == Status::Parked(ParkReason::NeedsAuth)).await;
    assert_eq!(keys.asked(), (1, 0));
    connection.wake(WakeCause::Config);
    server.watch().wait_until(|ledger| ledger.posts() == 2).await;
    // Who waits for that dial is told how it ended, which has no event of its own.
    let refused = connection.session().await;
    assert!(matches!(refused, Err(CallError::Refused { why: Refusal::Parked(_), .. })), "{refused:?}");
    assert_eq!(keys.asked(), (2, 0));
    keys.renewable_to("T1");
    connection.wake(WakeCause::Operator);
    until_ready(&mut events).await;
    assert_eq!(keys.asked(), (3, 1));
    // Once the session stands nobody is asked any more, although it was an operator who wanted it.
    keys.renewable_to("T2");
    server.set_script("token T2").await.unwrap();
    assert_eq!(text(connection.call_tool(tool_with("write", "later")).await), "later");
    assert_eq!(keys.asked(), (4, 1));
}

/// Without a source of credentials there is nothing to refresh; it may pass all the same.
#[tokio::test]
async fn k19_without_credentials() {
    let server = serve("token T1").await;
    let connection = super::builder(&server).build().unwrap();
    let mut events = connection.events();
    until_status(&mut events, |status| status == Status::TransientFailure).await;
    assert_eq!(connection.snapshot().failure, Some(FailureClass::Unauthorized));
    assert!(connection.last_failure().is_some_and(|cause| cause.contains("401")), "{:?}", connection.last_failure());
    server.set_script("").await.unwrap();
    until_ready(&mut events).await;
}

/// Clones of a server share its credentials: two connections that find the token expired renew it once.
#[tokio::test]
async fn k19_two_connections_share_a_refresh() {
    let keys = Keyring::holding("T1", Some("T2"));
    keys.hold_renewals();
    let server = serve("token T2").await;
    let http = HttpServer::new(&server.url()).unwrap().credentials(keys.clone());
    let connections = [http.clone(), http].map(|http| Connection::builder(HttpConnector::new(http)).build().unwrap());
    let mut events = connections.each_ref().map(Connection::events);
    server.watch().wait_until(|ledger| ledger.answered(401) == 2).await;
    keys.leave.add_permits(1);
    for events in &mut events {
        assert_eq!(until_ready(events).await, 1);
    }
    assert_eq!(keys.asked(), (1, 0));
}

/// New credentials that nobody told of are found by the next caller: no operator is needed, and no probe.
#[tokio::test]
async fn k19_a_caller_finds_new_credentials() {
    let keys = Keyring::holding("T1", None);
    let (server, connection, mut events) = ready("token T1", &keys).await;
    server.set_script("token T2").await.unwrap();
    assert!(connection.call_tool(tool("write")).await.is_err());
    until_status(&mut events, |status| status == Status::Parked(ParkReason::NeedsAuth)).await;
    let dials = connection.snapshot().stats.dials;
    keys.log_in("T2");
    skip(secs(6)).await; // looked for once in `demand_interval`
    assert_eq!(text(connection.call_tool(tool_with("write", "in")).await), "in");
    assert_eq!(connection.snapshot().stats.dials, dials + 1);
}

/// With the refused credentials a caller brings no dial, however often it comes.
#[tokio::test]
async fn k19_refused_credentials_are_not_tried_again() {
    let keys = Keyring::holding("T1", None);
    let (server, connection, mut events) = ready("token T1", &keys).await;
    server.set_script("token T2").await.unwrap();
    assert!(connection.call_tool(tool("write")).await.is_err());
    until_status(&mut events, |status| status == Status::Parked(ParkReason::NeedsAuth)).await;
    let dials = connection.snapshot().stats.dials;
    for _ in 0..5 {
        assert!(connection.call_tool(tool("write")).await.is_err());
    }
    assert_eq!(connection.snapshot().stats.dials, dials);
}
