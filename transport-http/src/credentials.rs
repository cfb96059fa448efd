//! Credentials: asked for once, however many requests need them.

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
    /// Only where `interactive` is true may a user be asked: one is there, and wants it. It is true for the
    /// handshake of an attempt that a user asked for, and false for everything else.
    async fn refresh(&self, challenge: &str, interactive: bool) -> Refresh;
}

/// The outcome of a refresh.
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
    /// It did not work this time, and may the next: the authorization server is down, or is not ready yet. With the reason, in
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

/// The kind of request that credentials are renewed for.
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
    /// The outcome of the last renewal.
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

    /// This token was refused: renews it, or joins the renewal that is under way.
    ///
    /// A renewal that no request waits for any more stands still until one does: a token that rotates is not asked for
    /// twice.
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
mod tests;
