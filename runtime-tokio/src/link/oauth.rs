//! rmcp's OAuth as the credentials of a server: tokens are renewed in silence, users log in when it suits the host.
//!
//! [`OAuth`] gives each request the access token that rmcp's [`AuthorizationManager`] holds, and renews it with the
//! refresh token: shortly before it expires, or when the server refuses it, once for all requests that need it. It
//! never asks a user, opens a browser or listens for a redirect. Where it takes a user the connection
//! parks as [`NeedsAuth`](crate::core::ParkReason::NeedsAuth) and is silent towards the server and the authorization
//! server until the host says with [`WakeCause::Credentials`](crate::core::WakeCause::Credentials) that somebody has
//! logged in. An authorization server that is down, slow or overloaded is an outage like the server's own: the
//! connection goes on trying, at the pace of its ladder.
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use mcp_reconnect::core::{ParkReason, Status, WakeCause};
//! use mcp_reconnect::http::HttpConnector;
//! use mcp_reconnect::oauth::OAuth;
//! use mcp_reconnect::{Connection, Event, HttpServer};
//! use rmcp::transport::AuthorizationManager;
//! use rmcp::transport::auth::{AuthorizationRequest, OAuthState};
//!
//! const SERVER: &str = "https://example.com/mcp";
//! const REDIRECT: &str = "http://localhost:3000/callback";
//!
//! /// What the host does when a user wants to log in: rmcp's own flow. Only this part asks anybody.
//! async fn log_in() -> Result<AuthorizationManager, Box<dyn std::error::Error>> {
//!     let mut state = OAuthState::new(SERVER, None).await?;
//!     state.start_authorization(AuthorizationRequest::new(REDIRECT).with_client_name("host")).await?;
//!     println!("log in at {}", state.get_authorization_url().await?);
//!     state.handle_callback_url(&redirected_to()?).await?;
//!     state.into_authorization_manager().ok_or_else(|| "not logged in".into())
//! }
//!
//! /// The URL that the user's browser was sent back to: pasted, or taken by a listener at `REDIRECT`.
//! fn redirected_to() -> std::io::Result<String> {
//!     std::io::read_to_string(std::io::stdin())
//! }
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! // Nobody has logged in yet; a host that keeps tokens gives `OAuth::new` a manager that has read its store.
//! let oauth = Arc::new(OAuth::default());
//! let server = HttpServer::new(SERVER)?.credentials(oauth.clone());
//! let connection = Connection::builder(HttpConnector::new(server)).build()?;
//! let mut events = connection.events();
//! while let Some(event) = events.next().await {
//!     if matches!(event, Event::Status { status: Status::Parked(ParkReason::NeedsAuth), .. }) {
//!         // Now, or when the user presses a button.
//!         oauth.log_in(log_in().await?);
//!         connection.wake(WakeCause::Credentials);
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! A manager with a store of its own ([`CredentialStore`](rmcp::transport::auth::CredentialStore)) needs
//! [`initialize_from_store`](AuthorizationManager::initialize_from_store) before it is of use here. That asks the server
//! for its metadata, unless [`set_metadata`](AuthorizationManager::set_metadata) was given what the host kept of it.
//!
//! # More rights
//!
//! A server that wants a scope for one request (403, `insufficient_scope`) refuses that call alone, as
//! [`CallError::NotSent`](crate::CallError::NotSent) of the class
//! [`NeedsAuth`](crate::core::FailureClass::NeedsAuth) with the scope in its words; the session goes on. The token is
//! renewed first where the scope was granted already. To have more granted the host logs in again, or lets the
//! [`manager`](OAuth::manager) do it ([`request_scope_upgrade`](AuthorizationManager::request_scope_upgrade), then
//! [`exchange_code_for_token`](AuthorizationManager::exchange_code_for_token)): the next request has the new token.
//!
//! # TLS
//!
//! A manager brings its own HTTP client, which takes the process's provider of cryptography where this crate's features
//! decide about TLS: install one first (`rustls::crypto::ring::default_provider().install_default()`), or give the
//! manager a client of the host's own.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use mcp_reconnect_http::{Credentials, Refresh};
use oauth2::TokenResponse;
use oauth2::url::Url;
use rmcp::transport::AuthorizationManager;
use rmcp::transport::auth::{AuthError, OAuthTokenResponse, WWWAuthenticateParams};
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

/// How long a renewal may take, unless [`OAuth::refresh_timeout`] says otherwise.
const REFRESH_TIMEOUT: Duration = Duration::from_secs(20);

/// With these a token endpoint refuses the client or its grant for good (RFC 6749, section 5.2); what it says beside
/// them, `temporarily_unavailable` say, may be otherwise next time. `invalid_grant` is rmcp's to tell.
const FINAL: [&str; 4] = ["invalid_client", "unauthorized_client", "unsupported_grant_type", "invalid_scope"];

/// An [`AuthorizationManager`] as [`Credentials`], for [`HttpServer::credentials`](crate::HttpServer::credentials).
///
/// The default is one that nobody has logged in to: requests go out without a token.
pub struct OAuth {
    patience: Duration,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    manager: Option<Arc<AuthorizationManager>>,
    running: Option<Running>,
    /// The token whose early renewal failed. It is sent as long as the server takes it.
    stale: Option<Arc<str>>,
}

/// The renewal under way. It goes on when nobody waits for it any more: a refresh token may be good for once, and what
/// comes of it must not be lost.
struct Running {
    renewal: Renewal,
    driver: Option<AbortOnDropHandle<()>>,
}

type Renewal = Shared<BoxFuture<'static, Result<Token, Refresh>>>;

#[derive(Clone)]
struct Token {
    secret: Arc<str>,
    /// It is not the one that there was before.
    renewed: bool,
}

/// When a token is renewed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum When {
    /// If rmcp finds that it is about to expire.
    Due,
    /// Regardless of its expiry: the server has refused it.
    Now,
}

impl OAuth {
    /// Takes the tokens from this manager, which a user has logged in to.
    pub fn new(manager: impl Into<Arc<AuthorizationManager>>) -> Self {
        let oauth = Self::default();
        oauth.log_in(manager);
        oauth
    }

    /// How long a renewal may take until it counts as failed for now. Default 20 s; a start of the
    /// connection should take longer, and more than 30 s are never waited for once a token is refused.
    pub fn refresh_timeout(mut self, timeout: Duration) -> Self {
        self.patience = timeout;
        self
    }

    /// Takes the tokens from this manager from now on. To be followed by
    /// [`Connection::wake`](crate::Connection::wake) with
    /// [`WakeCause::Credentials`](crate::core::WakeCause::Credentials).
    pub fn log_in(&self, manager: impl Into<Arc<AuthorizationManager>>) {
        *self.state() = State { manager: Some(manager.into()), ..State::default() };
    }

    /// Takes no tokens any more: requests go out without one. Gives back the manager, which keeps what it has.
    pub fn log_out(&self) -> Option<Arc<AuthorizationManager>> {
        std::mem::take(&mut *self.state()).manager
    }

    /// The manager, if there is one.
    pub fn manager(&self) -> Option<Arc<AuthorizationManager>> {
        self.state().manager.clone()
    }

    /// Joins the renewal under way, or begins one.
    async fn renew(&self, manager: &Arc<AuthorizationManager>, when: When) -> Result<Token, Refresh> {
        let renewal = {
            let mut state = self.state();
            let running = state.running.take().filter(|running| running.renewal.peek().is_none());
            let running = match (running, when) {
                (Some(running), When::Due) => running,
                // It may turn out that what is under way was not due.
                (running, _) => {
                    let previous = running.map(|running| running.renewal);
                    let renewal = renew(manager.clone(), previous, when, self.patience).boxed().shared();
                    Running { renewal, driver: None }
                }
            };
            state.running.insert(running).renewal.clone()
        };
        // Nearly always nothing is due.
        let settled = renewal.clone().now_or_never();
        let outcome = match settled {
            Some(outcome) => outcome,
            None => {
                self.drive(&renewal);
                renewal.clone().await
            }
        };
        self.state().running.take_if(|running| running.renewal.ptr_eq(&renewal));
        outcome
    }

    fn drive(&self, renewal: &Renewal) {
        let mut state = self.state();
        if let Some(running) = state.running.as_mut().filter(|running| running.renewal.ptr_eq(renewal)) {
            let driven = || AbortOnDropHandle::new(tokio::spawn(renewal.clone().map(drop)));
            running.driver.get_or_insert_with(driven);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for OAuth {
    fn default() -> Self {
        Self { patience: REFRESH_TIMEOUT, state: Mutex::default() }
    }
}

#[async_trait]
impl Credentials for OAuth {
    async fn token(&self) -> Option<String> {
        let manager = self.manager()?;
        let stale = self.state().stale.clone();
        if let Some(stale) = stale
            && held(&manager).await.as_ref() == Some(&stale)
        {
            return Some(stale.as_ref().to_owned());
        }
        let secret = match self.renew(&manager, When::Due).await {
            Ok(token) => Some(token.secret),
            Err(_) => {
                // Whether it is good is the server's to say.
                let held = held(&manager).await;
                self.state().stale.clone_from(&held);
                held
            }
        };
        secret.as_deref().map(ToOwned::to_owned)
    }

    async fn refresh(&self, challenge: &str, _interactive: bool) -> Refresh {
        let Some(manager) = self.manager() else { return Refresh::NeedsUser("nobody has logged in".into()) };
        if let Some(scope) = missing_scope(&manager, challenge).await {
            return Refresh::NeedsUser(format!("a user has to grant the scope `{scope}`").into());
        }
        let outcome = self.renew(&manager, When::Now).await;
        let superseded = self.manager().is_none_or(|current| !Arc::ptr_eq(&current, &manager));
        match outcome {
            Err(refused) if !superseded => refused,
            // That the old login is over is no news once there is a new one.
            Ok(_) | Err(_) => Refresh::Refreshed,
        }
    }
}

impl fmt::Debug for OAuth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OAuth").field("logged_in", &self.manager().is_some()).finish_non_exhaustive()
    }
}

/// One renewal, after the one that was under way.
async fn renew(
    manager: Arc<AuthorizationManager>,
    previous: Option<Renewal>,
    when: When,
    patience: Duration,
) -> Result<Token, Refresh> {
    if let Some(previous) = previous {
        match previous.await {
            Ok(Token { renewed: false, .. }) => {}
            settled => return settled,
        }
    }
    let renewal = async {
        let before = held(&manager).await;
        let renewed = match when {
            When::Due => manager.get_access_token().await.map(Arc::from),
            When::Now => manager.refresh_token().await.map(|response| secret(&response)),
        };
        match renewed {
            Ok(secret) => Ok(Token { renewed: when == When::Now || before.as_ref() != Some(&secret), secret }),
            Err(error) => match held(&manager).await {
                // Somebody has logged in meanwhile, or another process has renewed what is stored.
                Some(secret) if before.as_ref() != Some(&secret) => Ok(Token { secret, renewed: true }),
                _ => Err(judge(&error)),
            },
        }
    };
    timeout(patience, renewal).await.unwrap_or_else(|_| {
        Err(Refresh::Failed(format!("the authorization server did not renew the token within {patience:?}").into()))
    })
}

/// The access token that there is, expired or not.
async fn held(manager: &AuthorizationManager) -> Option<Arc<str>> {
    let (_, response) = manager.get_credentials().await.ok()?;
    response.as_ref().map(secret)
}

fn secret(response: &OAuthTokenResponse) -> Arc<str> {
    response.access_token().secret().as_str().into()
}

/// The scope that this challenge wants, if it was not granted: no renewal changes that (RFC 6749, section 6).
async fn missing_scope(manager: &AuthorizationManager, challenge: &str) -> Option<String> {
    let base = Url::parse("http://localhost").ok()?; // for a pointer that is not followed
    let params = WWWAuthenticateParams::parse(challenge, &base);
    let wanted = params.scope.as_ref().filter(|_| params.is_insufficient_scope())?;
    let granted = manager.get_current_scopes().await;
    // Where it is not known what was granted a renewal tells.
    let missing = |scope: &&str| !granted.is_empty() && !granted.iter().any(|granted| granted == scope);
    let missing: Vec<&str> = wanted.split_whitespace().filter(missing).collect();
    (!missing.is_empty()).then(|| missing.join(" "))
}

/// Whether a renewal that failed takes a user. Descriptions are the authorization server's, and may repeat what it was
/// sent: they are not passed on.
fn judge(error: &AuthError) -> Refresh {
    match error {
        AuthError::AuthorizationRequired | AuthError::TokenExpired => {
            Refresh::NeedsUser("there is no refresh token: a user has to log in".into())
        }
        AuthError::TokenRefreshRejected(_) => {
            Refresh::NeedsUser("the refresh token was refused: a user has to log in".into())
        }
        AuthError::TokenRefreshFailed(said) => match said.strip_prefix("Server returned error response: ") {
            Some(said) => {
                let end = said.find(|letter: char| !letter.is_ascii_lowercase() && letter != '_');
                let code = &said[..end.unwrap_or(said.len())];
                if FINAL.contains(&code) {
                    Refresh::NeedsUser(format!("the client was refused ({code}): a user has to log in").into())
                } else {
                    Refresh::Failed("the authorization server answered with an error".into())
                }
            }
            None => Refresh::Failed(format!("the access token was not renewed: {said}").into()),
        },
        AuthError::InternalError(_) => Refresh::NeedsUser("no client is registered: a user has to log in".into()),
        AuthError::CredentialStoreError(_) => Refresh::Failed("the store of the credentials failed".into()),
        _ => Refresh::Failed("the access token was not renewed".into()),
    }
}
