//! Credentials: asked for once, whoever needs them.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use mcp_reconnect_core::FailureClass;
use tokio::time::timeout;

/// Where the `Authorization` header comes from.
#[async_trait]
pub trait Credentials: Send + Sync + 'static {
    /// The bearer token to send now, if there is one. Called for every request: it should answer from memory.
    async fn token(&self) -> Option<String>;

    /// The server refused the token, with this `WWW-Authenticate` challenge (empty where it gave none). Called once,
    /// however many requests were refused.
    ///
    /// Only where `interactive` is true may a user be asked: somebody is there, who wants it.
    async fn refresh(&self, challenge: &str, interactive: bool) -> Refresh;
}

/// What came of a refresh.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refresh {
    /// [`token`](Credentials::token) gives a new one.
    Refreshed,
    /// A user has to log in. With the reason, in words.
    NeedsUser(Arc<str>),
    /// It did not work this time: who renews them is down, say. The next attempt asks again. With the reason, in words.
    Failed(Arc<str>),
}

/// Why credentials were not renewed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unrenewed {
    /// [`FailureClass::NeedsAuth`] where it takes a user, else [`FailureClass::Transport`].
    pub(crate) class: FailureClass,
    pub(crate) why: Arc<str>,
}

type Outcome = Result<(), Unrenewed>;

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
}

impl Renewal {
    pub(crate) fn new(credentials: Arc<dyn Credentials>, patience: Duration) -> Self {
        let state = State { generation: 0, token: None, last: Ok(()), running: None };
        Self { credentials, patience, state: Mutex::new(state) }
    }

    /// The token to send, and which one it is.
    pub(crate) async fn token(&self) -> (u64, Option<String>) {
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
            return (before, token);
        }
        (state.generation, token)
    }

    /// The token of this generation was refused: renews it, or joins whoever does.
    ///
    /// A renewal that nobody waits for any more stands still until somebody does: a token that rotates is not asked
    /// for twice.
    pub(crate) async fn renew(&self, refused: u64, challenge: &str, interactive: bool) -> Outcome {
        let running = {
            let mut state = self.state();
            if state.generation != refused {
                return state.last.clone();
            }
            state.running.get_or_insert_with(|| self.refresh(challenge.to_owned(), interactive)).clone()
        };
        let outcome = running.clone().await;
        let mut state = self.state();
        if state.running.as_ref().is_some_and(|known| known.ptr_eq(&running)) {
            state.running = None;
            state.generation += 1;
            state.token = None;
            state.last.clone_from(&outcome);
        }
        outcome
    }

    fn refresh(&self, challenge: String, interactive: bool) -> Shared<BoxFuture<'static, Outcome>> {
        let (credentials, patience) = (self.credentials.clone(), self.patience);
        async move {
            let (class, why) = match timeout(patience, credentials.refresh(&challenge, interactive)).await {
                Ok(Refresh::Refreshed) => return Ok(()),
                Ok(Refresh::NeedsUser(why)) => (FailureClass::NeedsAuth, why),
                Ok(Refresh::Failed(why)) => (FailureClass::Transport, why),
                Err(_) => {
                    let why = format!("the credentials were not renewed within {patience:?}");
                    (FailureClass::Transport, why.into())
                }
            };
            Err(Unrenewed { class, why })
        }
        .boxed()
        .shared()
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
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
        leave: Semaphore,
        refused: bool,
    }

    #[async_trait]
    impl Credentials for Rotating {
        async fn token(&self) -> Option<String> {
            Some(format!("T{}", self.asked.load(Ordering::Relaxed)))
        }

        async fn refresh(&self, _: &str, _: bool) -> Refresh {
            self.asked.fetch_add(1, Ordering::Relaxed);
            let _leave = self.leave.acquire().await;
            if self.refused { Refresh::NeedsUser("log in".into()) } else { Refresh::Refreshed }
        }
    }

    fn renewal(leave: usize, refused: bool) -> (Arc<Rotating>, Renewal) {
        let credentials = Arc::new(Rotating { asked: AtomicU32::new(0), leave: Semaphore::new(leave), refused });
        (credentials.clone(), Renewal::new(credentials, Duration::from_secs(30)))
    }

    #[tokio::test(start_paused = true)]
    async fn twenty_refusals_lead_to_one_refresh() {
        let (credentials, renewal) = renewal(1, false);
        let (generation, _) = renewal.token().await;
        let outcomes = join_all((0..20).map(|_| renewal.renew(generation, "Bearer", false))).await;
        assert!(outcomes.iter().all(Result::is_ok));
        assert_eq!(credentials.asked.load(Ordering::Relaxed), 1);
        // One that was refused the old token, and comes late, finds the new one.
        assert_eq!(renewal.renew(generation, "Bearer", false).await, Ok(()));
        assert_eq!(credentials.asked.load(Ordering::Relaxed), 1);
        // The new one may be refused in turn.
        assert_eq!(renewal.renew(generation + 1, "Bearer", false).await, Ok(()));
        assert_eq!(credentials.asked.load(Ordering::Relaxed), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_is_told_to_all_who_wait() {
        let (credentials, renewal) = renewal(1, true);
        let outcomes = join_all((0..20).map(|_| renewal.renew(0, "Bearer", false))).await;
        assert!(outcomes.iter().all(|outcome| outcome.as_ref().is_err_and(|error| &*error.why == "log in")));
        assert!(
            outcomes.iter().all(|outcome| outcome.as_ref().is_err_and(|error| error.class == FailureClass::NeedsAuth))
        );
        assert_eq!(credentials.asked.load(Ordering::Relaxed), 1);
        // A later attempt may ask again.
        let (generation, _) = renewal.token().await;
        assert!(renewal.renew(generation, "Bearer", false).await.is_err());
        assert_eq!(credentials.asked.load(Ordering::Relaxed), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_refresh_outlives_the_call_that_began_it() {
        let (credentials, renewal) = renewal(0, false);
        assert!(timeout(Duration::from_secs(1), renewal.renew(0, "Bearer", false)).await.is_err());
        credentials.leave.add_permits(1);
        assert_eq!(renewal.renew(0, "Bearer", false).await, Ok(()));
        assert_eq!(credentials.asked.load(Ordering::Relaxed), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_refresh_has_a_deadline() {
        let (_credentials, renewal) = renewal(0, false);
        let error = renewal.renew(0, "Bearer", false).await.unwrap_err();
        assert!(error.why.contains("30s"));
        assert_eq!(error.class, FailureClass::Transport, "who does not answer has not asked for a user");
    }

    /// A token that its owner renews before it is refused.
    struct Owned(Mutex<&'static str>, AtomicU32);

    #[async_trait]
    impl Credentials for Owned {
        async fn token(&self) -> Option<String> {
            Some((*self.0.lock().unwrap()).to_owned())
        }

        async fn refresh(&self, _: &str, _: bool) -> Refresh {
            self.1.fetch_add(1, Ordering::Relaxed);
            Refresh::Refreshed
        }
    }

    #[tokio::test]
    async fn a_late_refusal_of_what_was_renewed_unasked_renews_nothing() {
        let owned = Arc::new(Owned(Mutex::new("T1"), AtomicU32::new(0)));
        let renewal = Renewal::new(owned.clone(), Duration::from_secs(30));
        let (old, _) = renewal.token().await;
        assert_eq!(renewal.token().await.0, old);
        *owned.0.lock().unwrap() = "T2";
        let (new, _) = renewal.token().await;
        assert_eq!(renewal.renew(old, "Bearer", false).await, Ok(()));
        assert_eq!(owned.1.load(Ordering::Relaxed), 0);
        assert_eq!(renewal.renew(new, "Bearer", false).await, Ok(()));
        assert_eq!(owned.1.load(Ordering::Relaxed), 1);
    }
}
