//! One request of the host, from its words to the answer.

use std::sync::Arc;

use rmcp::model::ServerCapabilities;
use serde_json::value::RawValue;

use super::answer::{error_of, is_outage};
use super::asks::Answer;
use super::changes::Kind;
use super::dispatch::{METHOD_NOT_FOUND, Session, Upstream};
use crate::connection::RawRequest;
use crate::error::CallError;
use crate::options::CallOptions;
use crate::protocol::Era;
use crate::protocol::frame::{self, empty_result};
use crate::session::catalogue::Catalogue;
use crate::session::spec::Setting;
use crate::wire::relay::TakenBack;

impl Session {
    /// The answer to a request of the host, however long that takes.
    pub(super) async fn answer_of(
        self: &Arc<Self>,
        id: &RawValue,
        method: &str,
        params: Option<&RawValue>,
        taken_back: &TakenBack,
    ) -> Answer {
        let Some(upstream) = self.upstream() else { return Err(frame::error_body(-32_603, "not begun", None)) };
        match (method, upstream.era()) {
            ("initialize", _) => self.promised(Ok(self.initialize(upstream).await)),
            ("server/discover", Era::Modern) => self.promised(self.discover(upstream, params).await),
            ("subscriptions/listen", Era::Modern) => self.listen(upstream, id, params).await,
            _ => match Kind::of_list(method) {
                Some(Kind::Tools) => {
                    let tools = self.list(upstream, Kind::Tools, method, params, taken_back).await;
                    self.shown(upstream, tools)
                }
                Some(kind) => self.list(upstream, kind, method, params, taken_back).await,
                None => match self.own_answer(upstream, method, params).await {
                    Some(answer) => answer,
                    None => self.forward(upstream, method, params, taken_back).await,
                },
            },
        }
    }

    async fn forward(
        &self,
        upstream: &Upstream,
        method: &str,
        params: Option<&RawValue>,
        taken_back: &TakenBack,
    ) -> Answer {
        let request = RawRequest { method, params, era: upstream.era() };
        let mut options = self.options.calls;
        let setting = params.filter(|params| Setting::read(method, params).is_some());
        if setting.is_some() {
            options.max_wait = options.max_wait.min(self.options.start_wait);
        }
        match upstream.connection.request_raw_until(request, &options, taken_back).await {
            Ok((_, result)) => Ok(result),
            // It is set up in the sessions to come: nobody need wait for that.
            Err(error) if error.not_run() && is_outage(&error) && setting.is_some() => {
                if let Some(params) = setting {
                    upstream.connection.set_later(method, params);
                }
                Ok(empty_result())
            }
            Err(error) => {
                if is_outage(&error) {
                    tracing::info!(method, %error, "told the host that a call brought no result");
                }
                Err(error_of(&upstream.connection, &error))
            }
        }
    }

    /// A list: the server's own where there is a session in time, what is known of it else.
    async fn list(
        &self,
        upstream: &Upstream,
        kind: Kind,
        method: &str,
        params: Option<&RawValue>,
        taken_back: &TakenBack,
    ) -> Answer {
        let connection = &upstream.connection;
        let wait = self.options.start_wait;
        let options = CallOptions { max_wait: wait.min(self.options.calls.max_wait), ..self.options.calls };
        // Whether the host asks for what it was promised and the server does not have.
        let lacks = || {
            let published = connection.0.published.borrow();
            let declared = published.session.as_ref().map(|session| kind.is_declared(&session.server().capabilities));
            self.changes.promised_too_much() && declared == Some(false)
        };
        if lacks() {
            return Ok(self.known(kind, None));
        }
        let request = RawRequest { method, params, era: upstream.era() };
        match connection.request_raw_until(request, &options, taken_back).await {
            Ok((session, result)) => {
                self.changes.listed(kind, &session);
                self.tell_of_later_session(connection, session.epoch());
                Ok(result)
            }
            Err(CallError::Server { error, .. })
                if lacks() || (self.changes.promised_too_much() && error.code.0 == METHOD_NOT_FOUND) =>
            {
                Ok(self.known(kind, None))
            }
            Err(error) if is_outage(&error) => {
                tracing::info!(method, %error, "answered with what is known of the server");
                Ok(self.known(kind, connection.catalogue().as_deref()))
            }
            Err(error) => Err(error_of(connection, &error)),
        }
    }

    /// What is known of a list.
    fn known(&self, kind: Kind, catalogue: Option<&Catalogue>) -> Box<RawValue> {
        self.changes.shown(kind, catalogue);
        catalogue.map_or_else(|| kind.page(&Catalogue::default()), |catalogue| kind.page(catalogue))
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

    /// The member of a page that holds them.
    pub(super) const fn member(self) -> &'static str {
        match self {
            Self::Tools => "tools",
            Self::Prompts => "prompts",
            Self::Resources => "resources",
            Self::Templates => "resourceTemplates",
        }
    }

    /// A list of these, in one page.
    pub(super) fn page(self, catalogue: &Catalogue) -> Box<RawValue> {
        self.page_of(&self.items(catalogue))
    }

    /// One page of items, each a JSON text.
    pub(super) fn page_of(self, items: &[impl AsRef<str>]) -> Box<RawValue> {
        let member = self.member();
        let items = items.iter().map(AsRef::as_ref).collect::<Vec<_>>().join(",");
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
