//! One request of the host, from its words to the answer.

use std::sync::Arc;

use mcp_reconnect_core::Refusal;
use rmcp::model::ServerCapabilities;
use serde_json::value::RawValue;

use super::answer::{error_of, is_outage};
use super::asks::Answer;
use super::changes::Kind;
use super::dispatch::{INVALID_REQUEST, METHOD_NOT_FOUND, Session, Upstream};
use crate::call::CallOptions;
use crate::catalogue::Catalogue;
use crate::error::CallError;
use crate::frame;
use crate::relay::RawRequest;

impl Session {
    /// The answer to a request of the host, however long that takes.
    pub(super) async fn answer_of(self: &Arc<Self>, id: &RawValue, method: &str, params: Option<&RawValue>) -> Answer {
        let Some(upstream) = self.upstream() else { return Err(frame::error_body(-32_603, "not begun", None)) };
        match method {
            "initialize" if self.changes.greeted() => {
                Err(frame::error_body(INVALID_REQUEST, "the session is initialized already", None))
            }
            "initialize" => Ok(self.initialize(upstream).await),
            "server/discover" => self.discover(upstream, params).await,
            "subscriptions/listen" => self.listen(upstream, id, params).await,
            _ => match Kind::of_list(method) {
                Some(kind) => self.list(upstream, kind, method, params).await,
                None => self.forward(upstream, method, params).await,
            },
        }
    }

    pub(super) async fn forward(&self, upstream: &Upstream, method: &str, params: Option<&RawValue>) -> Answer {
        let request = RawRequest { method, params, era: upstream.era };
        match upstream.connection.request_raw(request, &self.options.calls).await {
            Ok((_, result)) => Ok(result),
            Err(error) => {
                if is_outage(&error) {
                    tracing::info!(method, %error, "told the host that a call brought no result");
                }
                Err(error_of(&upstream.connection, &error))
            }
        }
    }

    /// A list: the server's own where there is a session in time, what is known of it else.
    async fn list(&self, upstream: &Upstream, kind: Kind, method: &str, params: Option<&RawValue>) -> Answer {
        let connection = &upstream.connection;
        let wait = self.options.start_wait;
        let options = CallOptions { max_wait: wait.min(self.options.calls.max_wait), ..self.options.calls };
        // Whatever changes after this is news for the host.
        self.changes.listed(kind, connection.catalogue().as_deref());
        if let Some(session) = &connection.0.published.borrow().session
            && self.changes.promised_too_much()
            && !kind.is_declared(&session.server().capabilities)
        {
            return Ok(kind.page(&Catalogue::default()));
        }
        match connection.request_raw(RawRequest { method, params, era: upstream.era }, &options).await {
            Ok((_, result)) => Ok(result),
            Err(CallError::Server { error, .. })
                if self.changes.promised_too_much() && error.code.0 == METHOD_NOT_FOUND =>
            {
                Ok(kind.page(&Catalogue::default()))
            }
            Err(error) if is_outage(&error) => {
                let parked = matches!(error, CallError::Refused { why: Refusal::Parked(_), .. });
                tracing::info!(method, %error, parked, "answered with what is known of the server");
                Ok(kind.page(&connection.catalogue().map(|known| (*known).clone()).unwrap_or_default()))
            }
            Err(error) => Err(error_of(connection, &error)),
        }
    }
}

impl Kind {
    pub(super) fn of_list(method: &str) -> Option<Self> {
        Some(match method {
            "tools/list" => Self::Tools,
            "prompts/list" => Self::Prompts,
            "resources/list" => Self::Resources,
            "resources/templates/list" => Self::Templates,
            _ => return None,
        })
    }

    fn is_declared(self, capabilities: &ServerCapabilities) -> bool {
        match self {
            Self::Tools => capabilities.tools.is_some(),
            Self::Prompts => capabilities.prompts.is_some(),
            Self::Resources | Self::Templates => capabilities.resources.is_some(),
        }
    }

    /// A list of these, in one page.
    pub(super) fn page(self, catalogue: &Catalogue) -> Box<RawValue> {
        let member = match self {
            Self::Tools => "tools",
            Self::Prompts => "prompts",
            Self::Resources => "resources",
            Self::Templates => "resourceTemplates",
        };
        let items = self.items(catalogue).join(",");
        let page = format!(r#"{{"{member}":[{items}],"resultType":"complete","ttlMs":0,"cacheScope":"private"}}"#);
        RawValue::from_string(page).unwrap_or_else(|_| RawValue::NULL.to_owned())
    }

    /// The JSON text of each.
    pub(super) fn items(self, catalogue: &Catalogue) -> Vec<&str> {
        match self {
            Self::Tools => catalogue.tools.items().iter().map(|item| item.json().get()).collect(),
            Self::Prompts => catalogue.prompts.items().iter().map(|item| item.json().get()).collect(),
            Self::Resources => catalogue.resources.items().iter().map(|item| item.json().get()).collect(),
            Self::Templates => catalogue.templates.items().iter().map(|item| item.json().get()).collect(),
        }
    }
}
