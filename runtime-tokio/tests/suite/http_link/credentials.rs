//! Credentials that expire.

use super::*;

/// Tokens `T0`, `T1`, …; each refresh gives the next one, until `last`.
struct Tokens {
    current: AtomicU32,
    refreshes: AtomicU32,
    refused: bool,
    interactive: AtomicU32,
}

impl Tokens {
    fn new(refused: bool) -> Arc<Self> {
        let zero = || AtomicU32::new(0);
        Arc::new(Self { current: zero(), refreshes: zero(), refused, interactive: zero() })
    }
}

#[async_trait]
impl Credentials for Tokens {
    async fn token(&self) -> Option<String> {
        Some(format!("T{}", self.current.load(Ordering::SeqCst)))
    }

    async fn refresh(&self, challenge: &str, interactive: bool) -> Refresh {
        assert_eq!(challenge, "Bearer");
        self.refreshes.fetch_add(1, Ordering::SeqCst);
        self.interactive.fetch_add(u32::from(interactive), Ordering::SeqCst);
        tokio::task::yield_now().await;
        if self.refused {
            return Refresh::NeedsUser("the refresh token is spent".into());
        }
        self.current.fetch_add(1, Ordering::SeqCst);
        Refresh::Refreshed
    }
}

/// A server that accepts tokens from number `valid` on.
async fn guarded(valid: Arc<AtomicU32>) -> (Server, Arc<Legacy>) {
    legacy(move |_, request| {
        let token = request.header("authorization").and_then(|value| value.strip_prefix("Bearer T")?.parse().ok());
        let accepted = token.is_some_and(|token: u32| token >= valid.load(Ordering::SeqCst));
        (!accepted).then(|| answer(401, &[("www-authenticate", "Bearer")], "expired"))
    })
    .await
}

#[tokio::test]
async fn k19_twenty_calls_at_expiry_lead_to_one_refresh() {
    let valid = Arc::new(AtomicU32::new(0));
    let (server, server_state) = guarded(valid.clone()).await;
    let tokens = Tokens::new(false);
    let connection = connect_with(server_of(&server).credentials(tokens.clone()));
    add(&connection).await.unwrap();
    valid.store(1, Ordering::SeqCst);
    let outcomes = join_all((0..20).map(|_| add(&connection))).await;
    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
    assert_eq!(tokens.refreshes.load(Ordering::SeqCst), 1);
    assert_eq!(tokens.interactive.load(Ordering::SeqCst), 0);
    assert_eq!((server_state.calls(), epoch(&connection).await), (21, 1));
}

#[tokio::test]
async fn k19_a_refused_refresh_parks_the_server_quietly() {
    let valid = Arc::new(AtomicU32::new(0));
    let (server, _) = guarded(valid.clone()).await;
    let tokens = Tokens::new(true);
    let connection = connect_with(server_of(&server).credentials(tokens.clone()));
    add(&connection).await.unwrap();
    valid.store(1, Ordering::SeqCst);
    let error = add(&connection).await.unwrap_err();
    assert!(matches!(error, CallError::Refused { why: Refusal::Parked(ParkReason::NeedsAuth), .. }), "{error:?}");
    assert!(error.to_string().contains("the refresh token is spent"), "{error}");
    assert_eq!(tokens.refreshes.load(Ordering::SeqCst), 1);
    // What is refused all requests cannot release its session.
    assert_eq!(server.count("DELETE"), 0);
    // A login elsewhere.
    tokens.current.store(1, Ordering::SeqCst);
    connection.wake(mcp_reconnect::core::WakeCause::Credentials);
    until_status(&connection, |status| matches!(status, Status::Ready(_))).await;
    add(&connection).await.unwrap();
}

#[tokio::test]
async fn k19_a_fresh_token_that_is_refused_is_not_renewed_for_ever() {
    let valid = Arc::new(AtomicU32::new(0));
    let (server, _) = guarded(valid.clone()).await;
    let tokens = Tokens::new(false);
    let connection = connect_with(server_of(&server).credentials(tokens.clone()));
    add(&connection).await.unwrap();
    valid.store(u32::MAX, Ordering::SeqCst);
    let options = CallOptions { max_wait: Duration::from_secs(1), ..CallOptions::default() };
    let error = in_time(connection.call_tool_with(CallToolRequestParams::new("add"), &options)).await.unwrap_err();
    // Nobody said that a user is needed: it is tried again, ever more rarely, and each dial asks the hook once.
    assert!(matches!(&error, CallError::Refused { cause: Some(cause), .. } if cause.contains("401")), "{error:?}");
    let refreshes = u64::from(tokens.refreshes.load(Ordering::SeqCst));
    assert!(refreshes <= connection.snapshot().stats.dials, "{refreshes}");
    assert_eq!(server.count("tools/call"), 3);
}
