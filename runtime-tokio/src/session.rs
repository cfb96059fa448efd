//! One epoch's session: everything that a caller may do with it while it lasts.

pub(crate) mod ask;
pub(crate) mod catalogue;
pub(crate) mod doubt;
pub(crate) mod established;
pub(crate) mod handshake;
pub(crate) mod setup;
pub(crate) mod spec;
pub(crate) mod view;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use mcp_reconnect_core::Epoch;
use rmcp::model::{ClientResult, ErrorCode, ErrorData, InputRequest, RequestId, ServerPeerInfo, ServerRequest};
use rmcp::service::{RequestContext, RunningService};
use rmcp::{RoleClient, Service as _};
use serde_json::value::RawValue;

use crate::error::CallError;
use crate::link::LinkFacts;
use crate::protocol::Era;
use crate::protocol::frame::{Meta, Object, RpcError};
use crate::session::ask::{AskMemory, Asker};
use crate::session::catalogue::{Catalogue, Part};
use crate::session::established::Established;
use crate::session::view::Handler;
use crate::wire::Wire;
use crate::wire::relay::{Ask, Relay, TakenBack};

/// A session of one epoch. It ends with its epoch and is never revived: ask the connection for another one.
///
/// Messages sent through it go to this session or fail with it; deadlines, waiting and sending again are the
/// connection's ([`Connection::call_tool`](crate::Connection::call_tool)).
pub struct Session {
    wire: Wire,
    established: Established,
    service: RunningService<RoleClient, Handler>,
    catalogue: Mutex<Arc<Catalogue>>,
    asker: Arc<Asker>,
}

impl Session {
    pub(crate) fn new(
        wire: Wire,
        established: Established,
        service: RunningService<RoleClient, Handler>,
        catalogue: Catalogue,
        memory: Arc<AskMemory>,
    ) -> Self {
        let asker = Asker::new(wire.clone(), established.clone(), memory, lists_tools(&catalogue));
        Self { wire, established, service, catalogue: Mutex::new(Arc::new(catalogue)), asker }
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
        let stats = self.wire.stats();
        facts.noise += stats.unreadable;
        facts.refused += stats.refused;
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
        self.asker.condemn();
    }

    pub(crate) fn is_condemned(&self) -> bool {
        self.asker.is_condemned()
    }

    pub(crate) fn wire(&self) -> &Wire {
        &self.wire
    }

    /// Where doubts about the session are settled.
    pub(crate) fn asker(&self) -> &Arc<Asker> {
        &self.asker
    }

    pub(crate) fn meta(&self) -> &Meta {
        &self.established.meta
    }

    pub(crate) fn established(&self) -> &Established {
        &self.established
    }

    /// Whether the server tells when its tools change. One that does not, and keeps no session, may have been restarted
    /// with others unseen.
    pub(crate) fn announces_tools(&self) -> bool {
        let tools = self.established.peer.capabilities.tools.as_ref();
        tools.is_some_and(|tools| tools.list_changed == Some(true))
    }

    pub(crate) fn set_catalogue(&self, catalogue: Arc<Catalogue>) {
        if lists_tools(&catalogue) {
            self.asker.had_tools();
        }
        *self.catalogue.lock().unwrap_or_else(PoisonError::into_inner) = catalogue;
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

/// Whether a catalogue holds tools that this session has listed.
fn lists_tools(catalogue: &Catalogue) -> bool {
    matches!(&catalogue.tools, Part::Listed(tools) if !tools.is_empty())
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("epoch", &self.epoch()).field("era", &self.era()).finish_non_exhaustive()
    }
}
