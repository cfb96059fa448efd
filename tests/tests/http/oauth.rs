//! rmcp's OAuth as credentials: what an authorization server may do to a connection.

mod endpoint;

use std::sync::Arc;

use futures::future::join_all;
use mcp_reconnect::core::{FailureClass, ParkReason, Refusal, State, Status, WakeCause};
use mcp_reconnect::http::HttpConnector;
use mcp_reconnect::oauth::OAuth;
use mcp_reconnect::{Builder, CallError, Connection, Credentials, HttpServer, Refresh};
use mcp_reconnect_tests::fake::FakeHttp;
use rmcp::transport::AuthorizationManager;
use rmcp::transport::auth::{
    AuthorizationMetadata, CredentialStore, InMemoryCredentialStore, OAuthTokenResponse, StoredCredentials,
};
use serde_json::json;

use self::endpoint::{Reply, TokenEndpoint};
use super::clock::{quick, skip, turns};
use super::serve;
use crate::support::*;

/// What a user has once logged in.
fn login(access: &str, refresh: Option<&str>, expires_in: Option<u64>) -> StoredCredentials {
    let response = json!({
        "access_token": access, "token_type": "bearer", "refresh_token": refresh, "expires_in": expires_in,
    });
    let response: OAuthTokenResponse = serde_json::from_value(response).unwrap();
    // Received long ago: what says when it expires has expired.
    StoredCredentials::new("client".into(), Some(response), Vec::new(), Some(0))
}

/// The manager of that login, and its store.
async fn manager(
    endpoint: &TokenEndpoint,
    login: StoredCredentials,
) -> (AuthorizationManager, InMemoryCredentialStore) {
    _ = rustls::crypto::ring::default_provider().install_default(); // another test may have been first
    let mut manager = AuthorizationManager::new("http://127.0.0.1/").await.unwrap();
    let mut metadata = AuthorizationMetadata::default();
    metadata.authorization_endpoint = "http://127.0.0.1:9/nobody-is-to-be-sent-here".into();
    metadata.token_endpoint = endpoint.url();
    manager.set_metadata(metadata);
    let store = InMemoryCredentialStore::new();
    store.save(login).await.unwrap();
    manager.set_credential_store(store.clone());
    assert!(manager.initialize_from_store().await.unwrap());
    (manager, store)
}

async fn oauth(endpoint: &TokenEndpoint, login: StoredCredentials) -> Arc<OAuth> {
    Arc::new(OAuth::new(manager(endpoint, login).await.0))
}

fn builder(server: &FakeHttp, oauth: &Arc<OAuth>) -> Builder {
    let http = HttpServer::new(&server.url()).unwrap().credentials(oauth.clone());
    Connection::builder(HttpConnector::new(http)).name("fake").seed(7)
}

fn parked(status: Status) -> bool {
    matches!(status, Status::Parked(_))
}

/// The server refuses 50 calls, and what they get instead is about to expire: each is one renewal, whoever needs it.
#[tokio::test]
async fn an_expiry_under_50_calls_is_one_renewal() {
    let endpoint = TokenEndpoint::start([Reply::tokens("T2", Some("R2"), 0), Reply::tokens("T3", Some("R3"), 3600)]);
    let server = serve("token T1").await;
    let oauth = oauth(&endpoint, login("T1", Some("R1"), None)).await;
    let connection = builder(&server, &oauth).build().unwrap();
    let mut events = connection.events();
    assert_eq!(until_ready(&mut events).await, 1);
    endpoint.hold();
    server.set_script("token T3").await.unwrap();
    let calls = (0..50).map(|number| {
        let connection = connection.clone();
        async move { (number, text(connection.call_tool(tool_with("write", &format!("call {number}"))).await)) }
    });
    let refused = async {
        server.watch().wait_until(|ledger| ledger.answered(401) >= 50).await;
        endpoint.release(2);
    };
    for (number, answer) in tokio::join!(join_all(calls), refused).0 {
        assert_eq!(answer, format!("call {number}"));
    }
    assert_eq!(endpoint.refresh_tokens(), ["R1", "R2"]);
    let ledger = server.ledger();
    assert_eq!((ledger.executions("write"), ledger.initializes(), ledger.answered(401)), (50, 1, 50));
    assert_eq!(drain_statuses(connection, events).await, [Status::Shutdown]);
}

/// The server never sees a token that is known to be over.
#[tokio::test]
async fn a_token_is_renewed_before_it_expires() {
    let endpoint = TokenEndpoint::start([Reply::tokens("T2", None, 3600)]);
    let server = serve("token T2").await;
    let oauth = oauth(&endpoint, login("T1", Some("R1"), Some(3600))).await;
    let connection = builder(&server, &oauth).build().unwrap();
    assert_eq!(text(connection.call_tool(tool_with("echo", "in")).await), "in");
    assert_eq!((endpoint.refresh_tokens(), server.ledger().answered(401)), (vec!["R1".to_owned()], 0));
}

/// A refusal that comes while it is renewed early waits for that.
#[tokio::test]
async fn a_refusal_joins_an_early_renewal() {
    let endpoint = TokenEndpoint::start([Reply::tokens("T2", Some("R2"), 3600)]);
    endpoint.hold();
    let oauth = oauth(&endpoint, login("T1", Some("R1"), Some(3600))).await;
    let refused = async {
        endpoint.until_asked(1).await;
        let refused = [oauth.refresh("Bearer", false), oauth.refresh("Bearer", false)];
        let released = async { endpoint.release(3) };
        tokio::join!(join_all(refused), released).0
    };
    let (token, refreshed) = tokio::join!(oauth.token(), refused);
    assert_eq!((token.as_deref(), refreshed), (Some("T2"), vec![Refresh::Refreshed; 2]));
    assert_eq!(endpoint.refresh_tokens(), ["R1"]);
}

/// Where that fails the token is used as long as the server takes it, and nobody is asked again for it.
#[tokio::test]
async fn a_token_that_cannot_be_renewed_early_is_used_up() {
    let endpoint = TokenEndpoint::start([Reply::Status(503, "down")]);
    let server = serve("token T1").await;
    let oauth = oauth(&endpoint, login("T1", Some("R1"), Some(3600))).await;
    let connection = builder(&server, &oauth).build().unwrap();
    let calls = join_all((0..20).map(|_| connection.call_tool(tool_with("echo", "in"))));
    assert!(calls.await.into_iter().all(|answer| text(answer) == "in"));
    assert_eq!((endpoint.asked(), server.ledger().answered(401)), (1, 0));
}

/// One event, then silence towards both servers until somebody has logged in.
#[tokio::test]
async fn a_refused_refresh_token_parks_until_a_login() {
    let refusals =
        [r#"{"error":"invalid_grant","error_description":"R-secret is used up"}"#, r#"{"error":"invalid_client"}"#];
    for refusal in refusals {
        let endpoint = TokenEndpoint::start([Reply::Status(400, refusal)]);
        let server = serve("token T1").await;
        let oauth = oauth(&endpoint, login("T1", Some("R-secret"), None)).await;
        let knobs = config(|knobs| {
            let knobs = knobs.backoff(millis(2)).backoff_max(millis(2)).min_dial_interval(millis(1));
            knobs.demand_interval(millis(1)).park_after(millis(1)).park_probe(millis(1)).park_probe_max(millis(1))
        });
        let connection = builder(&server, &oauth).config(knobs).build().unwrap();
        let mut events = connection.events();
        assert_eq!(until_ready(&mut events).await, 1);
        server.set_script("token T9").await.unwrap();
        let error = connection.call_tool(tool("write")).await.unwrap_err();
        assert!(error.not_run(), "{error}");
        let statuses = until_status(&mut events, parked).await;
        assert_eq!(statuses.last(), Some(&Status::Parked(ParkReason::NeedsAuth)), "{statuses:?}");
        let (posts, asked) = (server.ledger().posts(), endpoint.asked());
        for _ in 0..50 {
            match connection.call_tool(tool("write")).await {
                Err(CallError::Refused { why: Refusal::Parked(ParkReason::NeedsAuth), retry_at: None, .. }) => {}
                other => panic!("{other:?}"),
            }
            connection.resumed();
        }
        assert_eq!(connection.snapshot().state, State::Parked { probe_at: None });
        assert_eq!((server.ledger().posts(), endpoint.asked()), (posts, asked));
        let cause = connection.last_failure().unwrap();
        assert!(cause.contains("log in") && !cause.contains("R-secret"), "{cause}");
        // A user has logged in.
        oauth.log_in(manager(&endpoint, login("T9", None, None)).await.0);
        connection.wake(WakeCause::Credentials);
        let statuses = until_status(&mut events, |status| matches!(status, Status::Ready(_))).await;
        assert_eq!(statuses.len(), 1, "{statuses:?}");
        assert_eq!(text(connection.call_tool(tool_with("write", "in")).await), "in");
        assert_eq!(endpoint.asked(), asked);
    }
}

/// Who has no token to renew with, or none at all, is not asked for either.
#[tokio::test]
async fn without_a_refresh_token_nobody_is_asked() {
    let endpoint = TokenEndpoint::start([Reply::tokens("T2", None, 3600)]);
    let server = serve("token T2").await;
    for login in [Some(login("T1", None, None)), Some(login("T1", None, Some(3600))), None] {
        let oauth = match login {
            Some(login) => oauth(&endpoint, login).await,
            None => Arc::new(OAuth::default()),
        };
        let connection = builder(&server, &oauth).build().unwrap();
        let statuses = until_status(&mut connection.events(), parked).await;
        assert_eq!(statuses.last(), Some(&Status::Parked(ParkReason::NeedsAuth)));
    }
    assert_eq!(endpoint.asked(), 0);
}

/// However an authorization server is down, it is an outage: nobody has to log in, the session stays, and calls are told
/// that they were not sent, until it is back.
#[tokio::test]
async fn an_authorization_server_that_is_down_is_an_outage() {
    let down = [
        Reply::Status(503, "<html>down</html>"),
        Reply::Status(503, r#"{"error":"temporarily_unavailable"}"#),
        Reply::Status(429, r#"{"error":"slow_down"}"#),
        Reply::Status(500, ""),
        Reply::Close,
    ];
    for reply in down {
        let endpoint = TokenEndpoint::start([reply.clone()]);
        let server = serve("token T1").await;
        let oauth = oauth(&endpoint, login("T1", Some("R1"), None)).await;
        let connection = builder(&server, &oauth).config(config(quick)).build().unwrap();
        let mut events = connection.events();
        assert_eq!(until_ready(&mut events).await, 1);
        server.set_script("token T2").await.unwrap();
        for _ in 0..3 {
            match connection.call_tool(tool_with("write", "early")).await {
                Err(CallError::NotSent { class: FailureClass::Transport, .. }) => {}
                other => panic!("{reply:?}: {other:?}"),
            }
        }
        assert_eq!(endpoint.asked(), 1, "{reply:?}: the next time is later");
        endpoint.answer([Reply::tokens("T2", Some("R2"), 3600)]);
        skip(secs(5)).await;
        assert_eq!(text(connection.call_tool(tool_with("write", "late")).await), "late", "{reply:?}");
        assert_eq!(drain_statuses(connection, events).await, [Status::Shutdown], "{reply:?}");
        assert_eq!((server.ledger().executions("write"), server.ledger().initializes()), (1, 1));
    }
}

/// So it is when nobody listens where it was, or it does not answer.
#[tokio::test]
async fn a_silent_authorization_server_is_given_up_for_now() {
    let endpoint = TokenEndpoint::start([Reply::tokens("T2", None, 3600)]);
    endpoint.hold();
    let server = serve("token T2").await;
    let (manager, _) = manager(&endpoint, login("T1", Some("R1"), None)).await;
    let oauth = Arc::new(OAuth::new(manager).refresh_timeout(millis(100)));
    let connection = builder(&server, &oauth).config(config(quick)).build().unwrap();
    let mut events = connection.events();
    let seen = until_status(&mut events, |status| status == Status::TransientFailure || parked(status)).await;
    assert_eq!(seen, [Status::Connecting, Status::TransientFailure]);
    let cause = connection.last_failure().unwrap();
    assert!(cause.contains("100ms"), "{cause}");
    endpoint.until_asked(2).await;
    endpoint.release(1000);
    until_ready(&mut events).await;
}

#[tokio::test]
async fn an_authorization_server_that_refuses_connects_is_an_outage() {
    let endpoint = TokenEndpoint::start([]);
    let server = serve("token T2").await;
    let oauth = oauth(&endpoint, login("T1", Some("R1"), None)).await;
    drop(endpoint);
    let connection = builder(&server, &oauth).config(config(quick)).build().unwrap();
    let mut events = connection.events();
    for _ in 0..3 {
        let seen = until_status(&mut events, |status| status == Status::TransientFailure || parked(status)).await;
        assert_eq!(seen.last(), Some(&Status::TransientFailure));
    }
    assert_eq!(connection.snapshot().failure, Some(FailureClass::Transport));
    assert_eq!(server.ledger().posts_of("initialize"), 0, "of the server's era it tells nothing");
}

/// A scope that was not granted is no matter of renewal; the call is refused, and no other.
#[tokio::test]
async fn a_missing_scope_concerns_one_call() {
    let mut granted = Reply::tokens("T2", Some("R2"), 3600);
    granted.scope("files:read");
    let endpoint = TokenEndpoint::start([granted]);
    let challenge =
        r#"header www-authenticate "Bearer error=\"insufficient_scope\", scope=\"files:read files:write\"""#;
    let server = serve(&format!("call write status 403 {challenge}")).await;
    let oauth = oauth(&endpoint, login("T1", Some("R1"), None)).await;
    let connection = builder(&server, &oauth).build().unwrap();
    let mut events = connection.events();
    assert_eq!(until_ready(&mut events).await, 1);
    // What was granted is not known at first: a renewal tells.
    for posts in [2, 3] {
        match connection.call_tool(tool("write")).await {
            Err(error @ CallError::NotSent { class: FailureClass::NeedsAuth, .. }) => {
                assert!(posts == 2 || error.to_string().contains("`files:write`"), "{error}");
            }
            other => panic!("{other:?}"),
        }
        assert_eq!((endpoint.asked(), server.ledger().posts_of("tools/call")), (1, posts));
    }
    assert_eq!(text(connection.call_tool(tool_with("echo", "mine")).await), "mine");
    assert_eq!(server.ledger().initializes(), 1);
    assert_eq!(drain_statuses(connection, events).await, [Status::Shutdown]);
}

/// A caller that does not wait for the renewal does not lose what comes of it, even if nobody waits at all.
#[tokio::test]
async fn a_renewal_goes_on_without_its_caller() {
    let endpoint = TokenEndpoint::start([
        Reply::tokens("T2", Some("R2"), 3600),
        Reply::Status(400, r#"{"error":"invalid_grant"}"#),
    ]);
    endpoint.hold();
    let (manager, store) = manager(&endpoint, login("T1", Some("R1"), None)).await;
    let oauth = OAuth::new(manager);
    tokio::select! {
        biased;
        refreshed = oauth.refresh("Bearer", false) => panic!("{refreshed:?}"),
        () = endpoint.until_asked(1) => {}
    }
    endpoint.release(1);
    endpoint.until_idle().await;
    turns().await;
    let kept = store.load().await.unwrap().unwrap().token_response.unwrap();
    assert_eq!(serde_json::to_value(kept).unwrap()["refresh_token"], "R2");
    assert_eq!(oauth.token().await.as_deref(), Some("T2"));
    assert_eq!(endpoint.asked(), 1);
}

/// The end of an old login is no news once there is a new one, wherever it came from.
#[tokio::test]
async fn a_login_during_a_renewal_counts() {
    for replaced in [true, false] {
        let endpoint = TokenEndpoint::start([Reply::Status(400, r#"{"error":"invalid_grant"}"#)]);
        endpoint.hold();
        let (old, store) = manager(&endpoint, login("T1", Some("R1"), None)).await;
        let oauth = OAuth::new(old);
        let logged_in = async {
            endpoint.until_asked(1).await;
            if replaced {
                oauth.log_in(manager(&endpoint, login("T2", None, None)).await.0);
            } else {
                store.save(login("T2", None, None)).await.unwrap();
            }
            endpoint.release(1);
        };
        assert_eq!(tokio::join!(oauth.refresh("Bearer", false), logged_in).0, Refresh::Refreshed);
        assert_eq!(oauth.token().await.as_deref(), Some("T2"));
    }
}

/// Nobody but the server that it is for gets the token.
#[tokio::test]
async fn a_redirect_takes_no_token_elsewhere() {
    let endpoint = TokenEndpoint::start([]);
    let other = serve("").await;
    let server = serve(&format!("post status 307 header location {}", other.url())).await;
    let oauth = oauth(&endpoint, login("T1", None, None)).await;
    let connection = builder(&server, &oauth).build().unwrap();
    let mut events = connection.events();
    until_status(&mut events, |status| status == Status::TransientFailure).await;
    assert!(server.ledger().posts() > 0);
    assert_eq!((other.ledger().connections(), endpoint.asked()), (0, 0));
}

#[tokio::test]
async fn no_secret_is_shown() {
    let endpoint =
        TokenEndpoint::start([Reply::Status(400, r#"{"error":"invalid_grant","error_description":"R-secret"}"#)]);
    let oauth = oauth(&endpoint, login("T-secret", Some("R-secret"), Some(3600))).await;
    let server = HttpServer::new("http://127.0.0.1:9/").unwrap().credentials(oauth.clone());
    // Fails to renew it, and keeps it.
    assert_eq!(oauth.token().await.as_deref(), Some("T-secret"));
    let refused = oauth.refresh("Bearer", true).await;
    assert!(matches!(refused, Refresh::NeedsUser(_)), "{refused:?}");
    let shown = format!("{oauth:?} {server:?} {:?} {refused:?}", HttpConnector::new(server.clone()));
    assert!(shown.contains("logged_in: true") && !shown.contains("secret"), "{shown}");
}
