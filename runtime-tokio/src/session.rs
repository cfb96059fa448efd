//! One epoch's session: everything that a caller may do with it while it lasts.

pub(crate) mod catalogue;
pub(crate) mod established;
pub(crate) mod handshake;
pub(crate) mod setup;
pub(crate) mod spec;
pub(crate) mod view;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use mcp_reconnect_core::Epoch;
use mcp_reconnect_core::replay::Effect;
use rmcp::model::{
    ClientResult, ErrorCode, ErrorData, InputRequest, RequestId, ServerCapabilities, ServerPeerInfo, ServerRequest,
    Tool,
};
use rmcp::service::{RequestContext, RunningService};
use rmcp::{RoleClient, Service as _};
use serde_json::value::RawValue;
use tokio::time::{Instant, sleep_until};

use crate::error::CallError;
use crate::link::LinkFacts;
use crate::protocol::Era;
use crate::protocol::frame::{Meta, Object, RpcError};
use crate::session::catalogue::{Catalogue, Entry, Part};
use crate::session::established::Established;
use crate::session::view::Handler;
use crate::watched::Watched;
use crate::wire::relay::{Ask, Relay, TakenBack};
use crate::wire::{Change, Wire};

/// A session of one epoch. It ends with its epoch and is never revived: ask the connection for another one.
///
/// Messages sent through it go to this session or fail with it; deadlines, waiting and sending again are the
/// connection's ([`Connection::call_tool`](crate::Connection::call_tool)).
pub struct Session {
    wire: Wire,
    established: Established,
    service: RunningService<RoleClient, Handler>,
    catalogue: Mutex<Arc<Catalogue>>,
    tools: Watched<ToolList>,
    /// Reported to be broken: not handed out, though the owner may not have come to it yet.
    condemned: AtomicBool,
}

/// How it stands with the list of tools of a session.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ToolList {
    /// Which changes it covers.
    pub(crate) covered: Change,
    /// When it was listed last, or could not be.
    pub(crate) listed: Option<Instant>,
    /// How long after that no caller has it listed.
    pub(crate) rest: Duration,
    /// Whether it was listed in this session: until then the tools are those of the session before.
    pub(crate) is_own: bool,
}

impl ToolList {
    /// Nothing was listed in this session yet.
    pub(crate) const UNLISTED: Self =
        Self { covered: Change { told: 0, presumed: 0, asked: 0 }, listed: None, rest: Duration::ZERO, is_own: false };
}

impl Session {
    pub(crate) fn new(
        wire: Wire,
        established: Established,
        service: RunningService<RoleClient, Handler>,
        catalogue: Catalogue,
        tools: ToolList,
    ) -> Self {
        Self {
            wire,
            established,
            service,
            catalogue: Mutex::new(Arc::new(catalogue)),
            tools: Watched::new(tools),
            condemned: AtomicBool::new(false),
        }
    }

    /// The epoch.
    pub fn epoch(&self) -> Epoch {
        self.wire.epoch()
    }

    /// rmcp's service of this session, for what the connection has no method for.
    pub fn service(&self) -> &RunningService<RoleClient, Handler> {
        &self.service
    }

    /// How the session began.
    pub fn era(&self) -> Era {
        self.established.era
    }

    /// The server's words about itself: version, capabilities, name, instructions.
    pub fn server(&self) -> &ServerPeerInfo {
        &self.established.peer
    }

    /// The result of `initialize` or `server/discover`, as it came.
    pub fn server_raw(&self) -> &RawValue {
        &self.established.raw
    }

    /// The facts about the link: process id, session id, noise, the last lines of stderr.
    pub fn facts(&self) -> LinkFacts {
        let mut facts = self.wire.control().facts();
        // Frames that looked like messages to the transport and are none.
        facts.noise += self.wire.stats().unreadable;
        facts
    }

    /// The server's catalogue, as of its last listing in this epoch.
    pub fn catalogue(&self) -> Arc<Catalogue> {
        self.catalogue.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Resolves when the session has ended.
    pub async fn ended(&self) {
        self.wire.ended().await;
    }

    /// Whether the session has ended, as far as is known.
    pub fn is_ended(&self) -> bool {
        self.wire.end_cause().is_some()
    }

    pub(crate) fn condemn(&self) {
        self.condemned.store(true, Ordering::Release);
    }

    pub(crate) fn is_condemned(&self) -> bool {
        self.condemned.load(Ordering::Acquire)
    }

    pub(crate) fn wire(&self) -> &Wire {
        &self.wire
    }

    pub(crate) fn meta(&self) -> &Meta {
        &self.established.meta
    }

    pub(crate) fn established(&self) -> &Established {
        &self.established
    }

    /// Whether the server tells when its tools change. One that does not, and keeps no session, may have been restarted
    /// with others unseen.
    fn announces_tools(&self) -> bool {
        Tool::is_announced(&self.established.peer.capabilities)
    }

    /// Changes the catalogue; the new one.
    pub(crate) fn update_catalogue(&self, update: impl FnOnce(&mut Catalogue)) -> Arc<Catalogue> {
        let mut catalogue = self.catalogue.lock().unwrap_or_else(PoisonError::into_inner);
        update(Arc::make_mut(&mut catalogue));
        catalogue.clone()
    }

    /// The request for the first list that the server has answered in this session, if there is any.
    pub(crate) fn listed(&self) -> Option<&'static str> {
        fn listed<T: Entry>(part: &Part<T>, capabilities: &ServerCapabilities) -> Option<&'static str> {
            (matches!(part, Part::Listed(_)) && T::is_declared(capabilities)).then_some(T::METHOD)
        }
        let (catalogue, capabilities) = (self.catalogue(), &self.established.peer.capabilities);
        listed(&catalogue.tools, capabilities)
            .or_else(|| listed(&catalogue.resources, capabilities))
            .or_else(|| listed(&catalogue.prompts, capabilities))
            .or_else(|| listed(&catalogue.templates, capabilities))
    }

    /// How it stands with the list of tools.
    pub(crate) fn tools(&self) -> ToolList {
        self.tools.get()
    }

    /// The tools were listed, or that has failed.
    pub(crate) fn set_tools(&self, tools: ToolList) {
        self.tools.update(|list| *list = tools);
    }

    /// What a second run of a tool does. What was not listed in this epoch may be another server's word.
    pub(crate) fn effect(&self, tool: &str) -> Effect {
        if self.tools.look(|list| list.is_own) { self.catalogue().effect(tool) } else { Effect::Unknown }
    }

    /// Whether a tool may be called. One that is missing from a list that may be old is looked for in a new one, until
    /// then at the latest.
    pub(crate) async fn offers(&self, tool: &str, until: Instant) -> bool {
        let catalogue = self.catalogue();
        if catalogue.tool(tool).is_some() || matches!(catalogue.tools, Part::Unlisted) {
            return true;
        }
        if self.may_be_old(&catalogue)
            && let Some(count) = self.ask_for_tools()
        {
            tokio::select! {
                () = self.tools.when(|list| (list.covered.asked >= count).then_some(())) => {}
                _ = self.wire.ended() => {}
                () = sleep_until(until) => {}
            }
        }
        self.catalogue().offers(tool)
    }

    /// A tool that is offered seems to be gone: the tools are listed again, where nobody would tell that they changed.
    pub(crate) fn doubt_tools(&self) {
        if !self.announces_tools() {
            self.ask_for_tools();
        }
    }

    fn may_be_old(&self, catalogue: &Catalogue) -> bool {
        let presumed = self.wire.list_changes().tools.presumed;
        matches!(catalogue.tools, Part::Stale { .. })
            || !self.announces_tools()
            || !self.wire.is_announcing()
            || self.tools.look(|list| list.covered.presumed != presumed)
    }

    /// Has the tools listed: one listing for all who ask at a time, and none soon after another. What counts it as done.
    fn ask_for_tools(&self) -> Option<u64> {
        let ToolList { covered, listed, rest, .. } = self.tools();
        let asked = self.wire.list_changes().tools.asked;
        if asked > covered.asked {
            return Some(asked);
        }
        let declared = Tool::is_declared(&self.established.peer.capabilities);
        let due = declared && listed.is_none_or(|listed| listed.elapsed() >= rest);
        due.then(|| self.wire.ask_for_tools(covered.asked))
    }

    /// Lets the client's handler or relay answer the requests of an `input_required` result.
    pub(crate) async fn answer_input(
        &self,
        Object(requests): Object<'_>,
    ) -> Result<BTreeMap<String, Box<RawValue>>, CallError> {
        let answers = requests.into_iter().map(|(key, request)| async move {
            let answer = match self.service.service().relay() {
                Some(relay) => self.relay_one(&**relay, request).await?,
                None => self.answer_one(&key, request).await?,
            };
            Ok::<_, CallError>((key.into_owned(), answer))
        });
        let ended = async { self.wire.ended().await };
        tokio::select! {
            answers = futures::future::try_join_all(answers) => answers.map(BTreeMap::from_iter),
            ended = ended => Err(CallError::OutcomeUnknown {
                epoch: self.epoch(),
                class: ended.failure.class,
                cause: ended.cause,
            }),
        }
    }

    async fn relay_one(&self, relay: &dyn Relay, request: &RawValue) -> Result<Box<RawValue>, CallError> {
        #[derive(serde::Deserialize)]
        struct Asked<'a> {
            method: String,
            #[serde(borrow, default)]
            params: Option<&'a RawValue>,
        }
        let epoch = self.epoch();
        let unexpected = |error: serde_json::Error| CallError::UnexpectedAnswer {
            epoch,
            cause: format!("inputRequests: {error}").into(),
        };
        let Asked { method, params } = serde_json::from_str(request.get()).map_err(unexpected)?;
        let taken_back = &TakenBack::default();
        let answer = relay.ask(Ask { epoch, method: &method, params, input: true, taken_back }).await;
        answer.map_err(|error| {
            let error = RpcError::parse(&error);
            let code = i32::try_from(error.code).unwrap_or(ErrorCode::INTERNAL_ERROR.0);
            CallError::InputRefused { epoch, error: ErrorData::new(ErrorCode(code), error.message, error.data) }
        })
    }

    async fn answer_one(&self, key: &str, request: &RawValue) -> Result<Box<RawValue>, CallError> {
        let epoch = self.epoch();
        let unexpected = |cause: &str| CallError::UnexpectedAnswer { epoch, cause: cause.into() };
        let request: InputRequest =
            serde_json::from_str(request.get()).map_err(|error| unexpected(&format!("inputRequests: {error}")))?;
        let request = match request {
            InputRequest::CreateMessage(request) => ServerRequest::CreateMessageRequest(request),
            InputRequest::Elicitation(request) => ServerRequest::ElicitRequest(request),
            InputRequest::ListRoots(request) => ServerRequest::ListRootsRequest(request),
            _ => return Err(unexpected("the server asks for input of an unknown kind")),
        };
        let context = RequestContext::new(RequestId::String(key.into()), self.service.peer().clone());
        let answer = self.service.service().handle_request(request, context).await;
        let answer: ClientResult = answer.map_err(|error| CallError::InputRefused { epoch, error })?;
        serde_json::value::to_raw_value(&answer).map_err(CallError::invalid_params)
    }
}

/// Whether an error is the server's session gate speaking: no handler ran, and no later request will fare better on
/// this session.
pub(crate) fn disowns_session(error: &RpcError) -> bool {
    mcp_reconnect_http::classify::is_gate_error(error.code, &error.message)
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("epoch", &self.epoch()).field("era", &self.era()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(code: i64, message: &str) -> RpcError {
        RpcError { code, message: message.into(), data: None, json: "null".into() }
    }

    #[test]
    fn the_gate_speaks_in_whole_sentences() {
        for (code, message) in [
            (-32000, "Bad Request: Server not initialized"),
            (-32000, "Bad Request: No valid session ID provided"),
            (-32001, "Session not found"),
            (-32600, "Session terminated"),
            (32600, "Session terminated."),
        ] {
            assert!(disowns_session(&error(code, message)), "{code} {message}");
        }
    }

    #[test]
    fn a_tools_own_words_about_sessions_are_not_the_gate() {
        for (code, message) in [
            (-32602, "Session not found"),
            (-32000, "browser session not found: tab 3"),
            (-32603, "Server not initialized"),
            (-32000, "database server not initialized yet, call init first"),
        ] {
            assert!(!disowns_session(&error(code, message)), "{code} {message}");
        }
    }
}
