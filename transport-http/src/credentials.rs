//! Credentials: asked for once, whoever needs them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use mcp_reconnect_core::FailureClass;
use tokio::time::{Instant, timeout};

/// Where the `Authorization` header comes from.
#[async_trait]
pub trait Credentials: Send + Sync + 'static {
    /// The bearer token to send now, if there is one. Called for every request: it should answer from memory.
    async fn token(&self) -> Option<String>;

    /// The server refused the token, with this `WWW-Authenticate` challenge (empty where it gave none). Called once,
    /// however many requests were refused.
    ///
    /// Only where `interactive` is true may a user be asked: somebody is there, who wants it. It is true for the
    /// handshake of an attempt that a user asked for, and false for everything else.
    async fn refresh(&self, challenge: &str, interactive: bool) -> Refresh;
}

/// What came of a refresh.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refresh {
    /// [`token`](Credentials::token) gives another one than was refused: the request is sent again with it, on the same
    /// session. Where `token` still gives the refused one, it is taken as [`Failed`](Self::Failed).
    Refreshed,
    /// Nothing but a user can renew them. With the reason, in words.
    ///
    /// The one answer after which the server is not asked again by itself. A session that is refused so is given up
    /// first: one `initialize` without it tells whether the server meant the session, and only if that is refused too,
    /// the connection waits for a login.
    NeedsUser(Arc<str>),
    /// It did not work this time, and may the next: who renews them is down, or is not ready yet. With the reason, in
    /// words.
    ///
    /// The session stays, and the request is told that it was not sent. The hook is asked again when the next request
    /// is refused, [`demand_interval`](crate::HttpServer::demand_interval) apart; after
    /// [`park_after`](crate::HttpServer::park_after) of that the session is given up.
    Failed(Arc<str>),
}

/// Why credentials were not renewed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unrenewed {
    /// [`FailureClass::NeedsAuth`] where it takes a user, else [`FailureClass::Transport`].
    pub(crate) class: FailureClass,
    pub(crate) why: Arc<str>,
    /// How long renewals have failed, since the last request that was not refused.
    pub(crate) failing: Duration,
}

type Outcome = Result<(), Unrenewed>;

/// A token as it was sent.
#[derive(Clone, Default)]
pub(crate) struct Bearer {
    generation: u64,
    pub(crate) token: Option<String>,
}

/// For whom credentials are renewed.
#[derive(Clone, Copy)]
pub(crate) struct Asking {
    pub(crate) interactive: bool,
    /// A request of a session, not one that begins it.
    pub(crate) established: bool,
    /// How far apart the hook is asked within a session, after it has failed.
    pub(crate) apart: Duration,
}

/// Renews credentials, one at a time, for all sessions of a server.
pub(crate) struct Renewal {
    credentials: Arc<dyn Credentials>,
    patience: Duration,
    state: Mutex<State>,
}

struct State {
    /// How many tokens there were, by a renewal of ours or otherwise.
    generation: u64,
    /// The token of this generation, once it was asked for.
    token: Option<String>,
    /// What came of the last one.
    last: Outcome,
    running: Option<Shared<BoxFuture<'static, Outcome>>>,
    failing: Option<Failing>,
    /// The token for which a session was given up because only a user can renew it.
    given_up: Option<Option<String>>,
}

/// Renewals that fail in a row.
struct Failing {
    since: Instant,
    last: Instant,
}

impl Renewal {
    pub(crate) fn new(credentials: Arc<dyn Credentials>, patience: Duration) -> Self {
        let state = State { generation: 0, token: None, last: Ok(()), running: None, failing: None, given_up: None };
        Self { credentials, patience, state: Mutex::new(state) }
    }

    /// The token to send.
    pub(crate) async fn token(&self) -> Bearer {
        let before = self.state().generation;
        let token = self.credentials.token().await;
        let mut state = self.state();
        if state.generation == before {
            // Their owner has renewed them unasked: a late refusal of the old token is no reason to do it again.
            if state.token.is_some() && state.token != token {
                state.generation += 1;
                state.last = Ok(());
            }
            state.token.clone_from(&token);
        } else if state.token != token {
            return Bearer { generation: before, token };
        }
        Bearer { generation: state.generation, token }
    }

    /// A request with the token at hand was not refused.
    pub(crate) fn accepted(&self) {
        let mut state = self.state();
        (state.failing, state.given_up) = (None, None);
    }

    /// This token was refused: renews it, or joins whoever does.
    ///
    /// A renewal that nobody waits for any more stands still until somebody does: a token that rotates is not asked
    /// for twice.
    pub(crate) async fn renew(&self, refused: &Bearer, challenge: &str, asking: Asking) -> Outcome {
        let joins = {
            let state = self.state();
            state.running.is_some() && state.generation == refused.generation
        };
        if !joins && self.token().await.token != refused.token {
            return Ok(());
        }
        let running = {
            let mut state = self.state();
            // The hook has just said that it takes a user: the session was given up for it.
            let said = state.given_up.take_if(|token| !asking.established && *token == refused.token).is_some();
            if state.generation != refused.generation || said && !asking.interactive {
                return state.last.clone();
            }
            let too_soon = |failing: &Failing| asking.established && failing.last.elapsed() < asking.apart;
            if state.failing.as_ref().is_some_and(too_soon) && state.last.is_err() {
                return state.last.clone();
            }
            let begin = || self.refresh(refused.token.clone(), challenge.to_owned(), asking.interactive);
            state.running.get_or_insert_with(begin).clone()
        };
        let outcome = running.clone().await;
        let mut state = self.state();
        if state.running.as_ref().is_some_and(|known| known.ptr_eq(&running)) {
            state.running = None;
            state.generation += 1;
            state.token = None;
            state.note(outcome);
        }
        if state.last.as_ref().is_err_and(|error| error.class == FailureClass::NeedsAuth) && asking.established {
            state.given_up = Some(refused.token.clone());
        }
        state.last.clone()
    }

    fn refresh(
        &self,
        refused: Option<String>,
        challenge: String,
        interactive: bool,
    ) -> Shared<BoxFuture<'static, Outcome>> {
        let (credentials, patience) = (self.credentials.clone(), self.patience);
        async move {
            let renewed = async {
                match credentials.refresh(&challenge, interactive).await {
                    Refresh::Refreshed if credentials.token().await == refused => {
                        Refresh::Failed("the credentials were renewed, but are those that were refused".into())
                    }
                    renewed => renewed,
                }
            };
            let (class, why) = match timeout(patience, renewed).await {
                Ok(Refresh::Refreshed) => return Ok(()),
                Ok(Refresh::NeedsUser(why)) => (FailureClass::NeedsAuth, why),
                Ok(Refresh::Failed(why)) => (FailureClass::Transport, why),
                Err(_) => {
                    let why = format!("the credentials were not renewed within {patience:?}");
                    (FailureClass::Transport, why.into())
                }
            };
            Err(Unrenewed { class, why, failing: Duration::ZERO })
        }
        .boxed()
        .shared()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn note(&mut self, outcome: Outcome) {
        self.last = outcome;
        match &mut self.last {
            Err(Unrenewed { class: FailureClass::Transport, failing, .. }) => {
                let now = Instant::now();
                let since = self.failing.as_ref().map_or(now, |failing| failing.since);
                *failing = now.duration_since(since);
                self.failing = Some(Failing { since, last: now });
            }
            Ok(()) | Err(_) => self.failing = None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use futures::future::join_all;
    use tokio::sync::Semaphore;

    use super::*;

    struct Rotating {
        asked: AtomicU32,
        renewed: AtomicU32,
        leave: Semaphore,
        refused: bool,
    }

    #[async_trait]
    impl Credentials for Rotating {
        async fn token(&self) -> Option<String> {
            Some(format!("T{}", self.renewed.load(Ordering::Relaxed)))
        }

        async fn refresh(&self, _: &str, _: bool) -> Refresh {
            self.asked.fetch_add(1, Ordering::Relaxed);
            let _leave = self.leave.acquire().await;
            if self.refused {
                return Refresh::NeedsUser("log in".into());
            }
            self.renewed.fetch_add(1, Ordering::Relaxed);
            Refresh::Refreshed
        }
    }

    fn renewal(leave: usize, refused: bool) -> (Arc<Rotating>, Renewal) {
        let (asked, renewed) = (AtomicU32::new(0), AtomicU32::new(0));
        let credentials = Arc::new(Rotating { asked, renewed, leave: Semaphore::new(leave), refused });
        (credentials.clone(), Renewal::new(credentials, Duration::from_secs(30)))
    }

    const SESSION: Asking = Asking { interactive: false, established: true, apart: Duration::from_secs(5) };
    const HANDSHAKE: Asking = Asking { established: false, ..SESSION };

    #[tokio::test(start_paused = true)]
    async fn twenty_refusals_lead_to_one_refresh() {
        let (credentials, renewal) = renewal(1, false);
        let old = renewal.token().await;
        let outcomes = join_all((0..20).map(|_| renewal.renew(&old, "Bearer", SESSION))).await;
        assert!(outcomes.iter().all(Result::is_ok));
        assert_eq!(credentials.asked.load(Ordering::Relaxed), 1);
        // One that was refused the old token, and comes late, finds the new one.
        assert_eq!(renewal.renew(&old, "Bearer", SESSION).await, Ok(()));
        assert_eq!(credentials.asked.load(Ordering::Relaxed), 1);
        // The new one may be refused in turn.
        let new = renewal.token().await;
        assert_eq!(renewal.renew(&new, "Bearer", SESSION).await, Ok(()));
        assert_eq!(credentials.asked.load(Ordering::Relaxed), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_is_told_to_all_who_wait() {
        let (credentials, renewal) = renewal(1, true);
        let old = renewal.token().await;
        let outcomes = join_all((0..20).map(|_| renewal.renew(&old, "Bearer", SESSION))).await;
        assert!(outcomes.iter().all(|outcome| outcome.as_ref().is_err_and(|error| &*error.why == "log in")));
        assert!(
            outcomes.iter().all(|outcome| outcome.as_ref().is_err_and(|error| error.class == FailureClass::NeedsAuth))
        );
        assert_eq!(credentials.asked.load(Ordering::Relaxed), 1);
        // A later attempt may ask again.
        let now = renewal.token().await;
        assert!(renewal.renew(&now, "Bearer", SESSION).await.is_err());
        assert_eq!(credentials.asked.load(Ordering::Relaxed), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_refresh_outlives_the_call_that_began_it() {
        let (credentials, renewal) = renewal(0, false);
        let old = renewal.token().await;
        assert!(timeout(Duration::from_secs(1), renewal.renew(&old, "Bearer", SESSION)).await.is_err());
        credentials.leave.add_permits(1);
        assert_eq!(renewal.renew(&old, "Bearer", SESSION).await, Ok(()));
        assert_eq!(credentials.asked.load(Ordering::Relaxed), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_refresh_has_a_deadline() {
        let (_credentials, renewal) = renewal(0, false);
        let old = renewal.token().await;
        let error = renewal.renew(&old, "Bearer", SESSION).await.unwrap_err();
        assert!(error.why.contains("30s"));
        assert_eq!(error.class, FailureClass::Transport, "who does not answer has not asked for a user");
    }

    /// A token that changes when its owner likes, and a hook that says what it is told.
    struct Owned {
        token: Mutex<&'static str>,
        says: Mutex<Refresh>,
        asked: AtomicU32,
    }

    impl Owned {
        fn new(says: Refresh) -> (Arc<Self>, Renewal) {
            let owned = Self { token: Mutex::new("T1"), says: Mutex::new(says), asked: AtomicU32::new(0) };
            let owned = Arc::new(owned);
            (owned.clone(), Renewal::new(owned, Duration::from_secs(30)))
        }

        fn says(&self, says: Refresh) {
            *self.says.lock().unwrap() = says;
        }
    }

    #[async_trait]
    impl Credentials for Owned {
        async fn token(&self) -> Option<String> {
            Some((*self.token.lock().unwrap()).to_owned())
        }

        async fn refresh(&self, _: &str, _: bool) -> Refresh {
            self.asked.fetch_add(1, Ordering::Relaxed);
            self.says.lock().unwrap().clone()
        }
    }

    fn class(outcome: Outcome) -> Option<FailureClass> {
        outcome.err().map(|error| error.class)
    }

    #[tokio::test]
    async fn a_late_refusal_of_what_was_renewed_unasked_renews_nothing() {
        let (owned, renewal) = Owned::new(Refresh::Refreshed);
        let old = renewal.token().await;
        *owned.token.lock().unwrap() = "T2";
        // Whether or not the new one was asked for since.
        assert_eq!(renewal.renew(&old, "Bearer", SESSION).await, Ok(()));
        renewal.token().await;
        assert_eq!(renewal.renew(&old, "Bearer", SESSION).await, Ok(()));
        assert_eq!(owned.asked.load(Ordering::Relaxed), 0);
    }

    #[tokio::test]
    async fn a_renewal_that_gives_the_refused_token_has_failed() {
        let (owned, renewal) = Owned::new(Refresh::Refreshed);
        let old = renewal.token().await;
        assert_eq!(class(renewal.renew(&old, "Bearer", SESSION).await), Some(FailureClass::Transport));
        assert_eq!(owned.asked.load(Ordering::Relaxed), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_hook_that_fails_is_asked_now_and_then() {
        let (owned, renewal) = Owned::new(Refresh::Failed("down".into()));
        // Every second one within a session, for 20 s: at 0, 5, 10, 15 and 20 s.
        for second in 0..=20 {
            let bearer = renewal.token().await;
            let error = renewal.renew(&bearer, "Bearer", SESSION).await.unwrap_err();
            assert_eq!((error.class, error.failing.as_secs()), (FailureClass::Transport, second / 5 * 5));
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        assert_eq!(owned.asked.load(Ordering::Relaxed), 5);
        // The handshake is paced by itself.
        let bearer = renewal.token().await;
        assert!(renewal.renew(&bearer, "Bearer", HANDSHAKE).await.is_err());
        assert_eq!(owned.asked.load(Ordering::Relaxed), 6);
        // What was let through ends the row.
        renewal.accepted();
        let bearer = renewal.token().await;
        assert_eq!(renewal.renew(&bearer, "Bearer", SESSION).await.unwrap_err().failing, Duration::ZERO);
        assert_eq!(owned.asked.load(Ordering::Relaxed), 7);
    }

    #[tokio::test]
    async fn a_hook_that_needs_a_user_is_not_asked_again_by_the_next_initialize() {
        let (owned, renewal) = Owned::new(Refresh::NeedsUser("log in".into()));
        for (asking, asked, needs) in [
            (SESSION, 1, true),
            (HANDSHAKE, 1, true),
            // It was said once; the next attempt asks anew.
            (HANDSHAKE, 2, true),
            (SESSION, 3, true),
            // Somebody is there who may log in.
            (Asking { interactive: true, ..HANDSHAKE }, 4, true),
            (SESSION, 5, true),
        ] {
            let bearer = renewal.token().await;
            let class = class(renewal.renew(&bearer, "Bearer", asking).await);
            assert_eq!((owned.asked.load(Ordering::Relaxed), class == Some(FailureClass::NeedsAuth)), (asked, needs));
        }
        // A session that was let in with the same token has shown that no user was needed.
        renewal.accepted();
        owned.says(Refresh::Failed("down".into()));
        let bearer = renewal.token().await;
        assert_eq!(class(renewal.renew(&bearer, "Bearer", HANDSHAKE).await), Some(FailureClass::Transport));
        assert_eq!(owned.asked.load(Ordering::Relaxed), 6);
    }
}
