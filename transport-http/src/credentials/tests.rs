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
    assert!(outcomes.iter().all(|outcome| outcome.as_ref().is_err_and(|error| error.class == FailureClass::NeedsAuth)));
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
    // A request that was let through ends the row.
    renewal.accepted();
    let bearer = renewal.token().await;
    assert_eq!(renewal.renew(&bearer, "Bearer", SESSION).await.unwrap_err().failing, Duration::ZERO);
    assert_eq!(owned.asked.load(Ordering::Relaxed), 7);
}

#[tokio::test]
async fn an_initialize_does_not_repeat_the_question_for_a_user() {
    let (owned, renewal) = Owned::new(Refresh::NeedsUser("log in".into()));
    for (asking, asked, needs) in [
        (SESSION, 1, true),
        (HANDSHAKE, 1, true),
        // It was said once; the next attempt asks anew.
        (HANDSHAKE, 2, true),
        (SESSION, 3, true),
        // A user is there who may log in.
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
