//! Logging in at the suite's authorization servers, as a user who consents to everything.

use std::error::Error;
use std::sync::Arc;

use async_trait::async_trait;
use mcp_reconnect::oauth::OAuth;
use mcp_reconnect::{Credentials, Refresh};
use reqwest::header::LOCATION;
use reqwest::redirect::Policy;
use rmcp::transport::auth::{AuthorizationRequest, OAuthState};
use serde::Deserialize;

/// Where the user's browser is sent back to. Nobody listens there: the redirect itself says what is to be known.
const REDIRECT: &str = "http://localhost:3000/callback";
/// The document that the suite wants clients to name themselves by, at servers that take one.
const CLIENT_METADATA: &str = "https://conformance-test.local/client-metadata.json";

/// A client that is registered already.
#[derive(Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Registered {
    client_id: Option<String>,
    client_secret: Option<String>,
}

/// Logs in wherever the server wants it. The user is a program, so automatic attempts may ask it as well.
pub(crate) struct Login {
    url: String,
    registered: Registered,
    oauth: OAuth,
}

impl Login {
    pub(crate) fn new(url: &str, registered: Registered) -> Self {
        Self { url: url.to_owned(), registered, oauth: OAuth::default() }
    }

    async fn log_in(&self, challenge: &str) -> Result<(), Box<dyn Error + Send + Sync>> {
        let mut request = AuthorizationRequest::new(REDIRECT)
            .with_challenge(challenge)
            .with_client_name(env!("CARGO_BIN_NAME"))
            .with_client_metadata_url(CLIENT_METADATA);
        request.client_id.clone_from(&self.registered.client_id);
        request.client_secret.clone_from(&self.registered.client_secret);
        // The last manager knows which scopes were granted.
        let mut state = match self.oauth.log_out().and_then(Arc::into_inner) {
            Some(manager) => OAuthState::Unauthorized(manager),
            None => OAuthState::new(self.url.as_str(), None).await?,
        };
        state.start_authorization(request).await?;
        let browser = reqwest::Client::builder().redirect(Policy::none()).build()?;
        let page = browser.get(state.get_authorization_url().await?).send().await?;
        let back = page.headers().get(LOCATION).ok_or("the authorization server sends nobody back")?;
        state.handle_callback_url(back.to_str()?).await?;
        self.oauth.log_in(state.into_authorization_manager().ok_or("the login ended without an authorization")?);
        Ok(())
    }
}

#[async_trait]
impl Credentials for Login {
    async fn token(&self) -> Option<String> {
        self.oauth.token().await
    }

    async fn refresh(&self, challenge: &str, interactive: bool) -> Refresh {
        match self.oauth.refresh(challenge, interactive).await {
            Refresh::NeedsUser(_) => {}
            settled => return settled,
        }
        match self.log_in(challenge).await {
            Ok(()) => Refresh::Refreshed,
            Err(error) => Refresh::NeedsUser(error.to_string().into()),
        }
    }
}
