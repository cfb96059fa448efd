//! A refused login is not the end of a session, and a lost session is not a refused login.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use mcp_reconnect_core::FailureClass;
use mcp_reconnect_core::replay::Sent;
use mcp_reconnect_http::{Credentials, ExchangeError, HttpServer, Reach, Refresh, Stage};
use tokio::sync::Semaphore;

use crate::support::{Server, answer, json, status};
use crate::{CALL, Peer, RESULT, begin, in_time, stages};

const INITIALIZE: &str = r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{}}"#;
const CHALLENGE: (&str, &str) = ("www-authenticate", "Bearer error=\"invalid_token\"");

/// A hook that says what it is told; where it says `Refreshed`, it has the next token, if there is one.
struct Hook {
    token: Mutex<&'static str>,
    next: Option<&'static str>,
    says: Refresh,
    asked: AtomicU32,
    leave: Semaphore,
}

impl Hook {
    fn new(says: Refresh, next: Option<&'static str>) -> Arc<Self> {
        let leave = Semaphore::new(Semaphore::MAX_PERMITS);
        Arc::new(Self { token: Mutex::new("T1"), next, says, asked: AtomicU32::new(0), leave })
    }

    fn asked(&self) -> u32 {
        self.asked.load(Ordering::SeqCst)
    }
}

#[async_trait]
impl Credentials for Hook {
    async fn token(&self) -> Option<String> {
        Some((*self.token.lock().unwrap()).to_owned())
    }

    async fn refresh(&self, _: &str, _: bool) -> Refresh {
        self.asked.fetch_add(1, Ordering::SeqCst);
        let _leave = self.leave.acquire().await;
        if let (Refresh::Refreshed, Some(next)) = (&self.says, self.next) {
            *self.token.lock().unwrap() = next;
        }
        self.says.clone()
    }
}

/// A server that begins sessions whatever the token, and lets requests of sessions in with these tokens.
async fn letting_in(tokens: &'static [&'static str], challenge: bool) -> Server {
    Server::start(move |request| {
        begin(request).unwrap_or_else(|| {
            let token = request.header("authorization").and_then(|value| value.strip_prefix("Bearer "));
            match token.is_some_and(|token| tokens.contains(&token)) {
                true => json(RESULT),
                false if challenge => answer(401, &[CHALLENGE], ""),
                false => status(401),
            }
        })
    })
    .await
}

fn with(server: &Server, hook: &Arc<Hook>) -> HttpServer {
    HttpServer::new(&server.url()).unwrap().credentials(hook.clone())
}

async fn refused(peer: &Peer) -> ExchangeError {
    peer.exchange(CALL).await.unwrap_err()
}

fn judged(error: &ExchangeError) -> (FailureClass, Sent, Reach) {
    (error.failure.class, error.sent, error.reach)
}

const LOST: (FailureClass, Sent, Reach) = (FailureClass::SessionGone, Sent::Refused, Reach::Session);

#[tokio::test]
async fn another_token_goes_out_on_the_same_session() {
    let server = letting_in(&["T2"], true).await;
    let hook = Hook::new(Refresh::Refreshed, Some("T2"));
    let peer = Peer::of(&with(&server, &hook));
    peer.initialize().await;
    peer.exchange(CALL).await.unwrap();
    assert_eq!((hook.asked(), server.count("tools/call")), (1, 2));
    assert!(server.requests().iter().skip(1).all(|request| request.session() == Some("S1")));
}

/// A renewal that fails says nothing of the session. So does one that gives what was refused.
#[tokio::test]
async fn a_renewal_that_fails_keeps_the_session() {
    for says in [Refresh::Failed("the vault is down".into()), Refresh::Refreshed] {
        for challenge in [true, false] {
            let server = letting_in(&[], challenge).await;
            let hook = Hook::new(says.clone(), None);
            let peer = Peer::of(&with(&server, &hook));
            peer.initialize().await;
            for _ in 0..3 {
                let error = refused(&peer).await;
                assert_eq!(judged(&error), (FailureClass::Transport, Sent::No, Reach::Exchange), "{error}");
            }
            // The next ones come sooner than the hook is to be asked again.
            assert_eq!((hook.asked(), server.count("tools/call")), (1, 3));
            assert!(peer.client.session_id().is_some());
        }
    }
}

#[tokio::test]
async fn a_hook_that_fails_is_asked_again_later_and_not_for_ever() {
    let server = letting_in(&[], true).await;
    let hook = Hook::new(Refresh::Failed("the vault is down".into()), None);
    let patient = with(&server, &hook).demand_interval(Duration::ZERO);
    let peer = Peer::of(&patient);
    peer.initialize().await;
    for asked in 1..4 {
        assert_eq!(refused(&peer).await.reach, Reach::Exchange);
        assert_eq!(hook.asked(), asked);
    }
    let peer = Peer::of(&patient.park_after(Duration::ZERO));
    peer.initialize().await;
    let error = refused(&peer).await;
    assert_eq!(judged(&error), LOST, "{error}");
    assert_eq!(peer.client.session_id(), None);
}

/// Refused again with another token, only a user could renew it, or nobody: the session is what is left to be at fault.
#[tokio::test]
async fn a_session_is_given_up_where_nobody_can_renew_its_credentials() {
    for (hook, asked) in [
        (Some(Hook::new(Refresh::Refreshed, Some("T2"))), 1),
        (Some(Hook::new(Refresh::NeedsUser("log in".into()), None)), 1),
        (None, 0),
    ] {
        for challenge in [true, false] {
            let server = letting_in(&[], challenge).await;
            let before = hook.as_ref().map_or(0, |hook| hook.asked());
            let to = HttpServer::new(&server.url()).unwrap();
            let peer = Peer::of(&match &hook {
                Some(hook) => {
                    *hook.token.lock().unwrap() = "T1";
                    to.credentials(hook.clone())
                }
                None => to.header("authorization", "Bearer T1").unwrap(),
            });
            peer.initialize().await;
            let error = refused(&peer).await;
            // Without a challenge nothing says that it was refused before it ran.
            let sent = if challenge { Sent::Refused } else { Sent::Maybe };
            assert_eq!(judged(&error), (FailureClass::SessionGone, sent, Reach::Session), "{error}");
            assert_eq!(hook.as_ref().map_or(0, |hook| hook.asked()) - before, asked);
            assert_eq!(peer.client.session_id(), None);
            // The server may hold it: it did not say that it does not know it.
            assert_eq!(peer.client.left_behind().as_deref(), Some("S1"));
        }
    }
}

#[tokio::test]
async fn a_session_that_was_forgotten_needs_no_user() {
    let server = Server::start(|request| match request.header("mcp-session-id") {
        None if request.header("authorization") == Some("Bearer T1") => begin(request).unwrap(),
        _ => answer(401, &[CHALLENGE], ""),
    })
    .await;
    let hook = Hook::new(Refresh::NeedsUser("log in".into()), None);
    let to = with(&server, &hook);
    let peer = Peer::of(&to);
    peer.initialize().await;
    assert_eq!(judged(&refused(&peer).await), LOST);
    // The token was good: the server had forgotten the session.
    let peer = Peer::of(&to);
    peer.initialize().await;
    assert_eq!(hook.asked(), 1);
    assert_eq!(judged(&refused(&peer).await), LOST);
    assert_eq!(hook.asked(), 2);
    // And now it is not.
    *hook.token.lock().unwrap() = "T2";
    assert_eq!(Peer::of(&to).exchange(INITIALIZE).await.unwrap_err().failure.class, FailureClass::NeedsAuth);
    assert_eq!(hook.asked(), 3, "another token is another question");
    let peer = Peer::of(&to);
    assert_eq!(peer.exchange(INITIALIZE).await.unwrap_err().failure.class, FailureClass::NeedsAuth);
    assert_eq!(hook.asked(), 4, "each attempt may ask");
}

#[tokio::test]
async fn the_next_initialize_takes_the_hook_at_its_word() {
    let revoked = Arc::new(AtomicU32::new(0));
    let gone = revoked.clone();
    let server = Server::start(move |request| match gone.load(Ordering::SeqCst) {
        0 => begin(request).unwrap_or_else(|| json(RESULT)),
        _ => answer(401, &[CHALLENGE], ""),
    })
    .await;
    let hook = Hook::new(Refresh::NeedsUser("log in".into()), None);
    let to = with(&server, &hook);
    let peer = Peer::of(&to);
    peer.initialize().await;
    revoked.store(1, Ordering::SeqCst);
    assert_eq!(judged(&refused(&peer).await), LOST);
    let error = Peer::of(&to).exchange(INITIALIZE).await.unwrap_err();
    assert_eq!((error.failure.class, hook.asked()), (FailureClass::NeedsAuth, 1), "{error}");
    assert!(error.cause.contains("log in"), "{error}");
}

#[tokio::test]
async fn an_initialize_that_is_refused_is_classed_by_what_can_be_done() {
    for (says, next, class) in [
        (Some(Refresh::NeedsUser("log in".into())), None, FailureClass::NeedsAuth),
        (Some(Refresh::Failed("the vault is down".into())), None, FailureClass::Transport),
        (Some(Refresh::Refreshed), None, FailureClass::Transport),
        (Some(Refresh::Refreshed), Some("T2"), FailureClass::Unauthorized),
        (None, None, FailureClass::Unauthorized),
    ] {
        let server = Server::start(|_| answer(401, &[CHALLENGE], "")).await;
        let to = HttpServer::new(&server.url()).unwrap();
        let peer = Peer::of(&match says {
            Some(says) => to.credentials(Hook::new(says, next)),
            None => to.header("authorization", "Bearer T1").unwrap(),
        });
        let error = peer.exchange(INITIALIZE).await.unwrap_err();
        assert_eq!(error.failure.class, class, "{error}");
    }
    let server = Server::start(|_| status(403)).await;
    let error = Peer::new(&server).exchange(INITIALIZE).await.unwrap_err();
    assert_eq!(error.failure.class, FailureClass::Permanent);
}

/// Credentials that are good, for other things than this.
#[tokio::test]
async fn a_403_with_a_challenge_costs_no_session() {
    let server = Server::start(|request| begin(request).unwrap_or_else(|| answer(403, &[CHALLENGE], ""))).await;
    let hook = Hook::new(Refresh::NeedsUser("more scope".into()), None);
    let peer = Peer::of(&with(&server, &hook));
    peer.initialize().await;
    let error = refused(&peer).await;
    assert_eq!(judged(&error), (FailureClass::NeedsAuth, Sent::Refused, Reach::Exchange), "{error}");
    assert!(peer.client.session_id().is_some());
}

#[tokio::test]
async fn a_request_that_waits_for_its_credentials_has_not_been_sent() {
    let server = letting_in(&["T2"], true).await;
    let hook = Hook::new(Refresh::Refreshed, Some("T2"));
    hook.leave.forget_permits(Semaphore::MAX_PERMITS);
    let peer = Peer::of(&with(&server, &hook));
    peer.initialize().await;
    let (stages, on_stage) = stages();
    let call = peer.client.exchange_in_stages(CALL, &peer.frames, on_stage);
    let meanwhile = async {
        server.until("the call", |log| log.len() == 2).await;
        hook.leave.add_permits(1);
    };
    let (answered, ()) = in_time(async { tokio::join!(call, meanwhile) }).await;
    answered.unwrap().drain().await;
    assert_eq!(*stages.lock().unwrap(), [Stage::Sent, Stage::Waiting, Stage::Sent]);
}
