//! rmcp's running service as a view on a wire: typed use of one epoch.

use std::borrow::Cow;
use std::future::{pending, ready};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use std::{error, fmt};

use futures::future::Either;
use futures::{FutureExt as _, TryFutureExt as _};
use rmcp::model::{
    ClientJsonRpcMessage, ClientNotification, ClientRequest, ErrorCode, JsonRpcError, JsonRpcMessage, JsonRpcResponse,
    ProtocolVersion, RequestId, ServerJsonRpcMessage, ServerNotification, ServerRequest, ServerResult,
};
use rmcp::service::{
    DynService, MaybeSendFuture, NotificationContext, RequestContext, RunningService, Service, ServiceRole,
    serve_directly_with_ct,
};
use rmcp::transport::Transport;
use rmcp::{ErrorData, RoleClient};
use serde_json::value::{RawValue, to_raw_value};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::link::SendFailure;
use crate::protocol::frame::{self, Frame, RpcError};
use crate::session::established::Established;
use crate::wire::mailbox::MailboxReader;
use crate::wire::relay::Relay;
use crate::wire::{Raised, Relayed, Wire};

/// How long a handler may go on after its session has ended (its context's token tells it); then it is dropped.
const HANDLER_GRACE: Duration = Duration::from_secs(1);

/// How many notifications of a server may wait for a handler at once; what is more is dropped.
const MAX_TOLD: usize = 1024;

/// A client handler of any type: what a server may ask of us, and tell us, in one epoch.
pub struct Handler {
    inner: Box<dyn DynService<RoleClient>>,
    /// Cancelled at the end of the session.
    end: CancellationToken,
    /// Counts what runs, rmcp's loop included.
    tasks: TaskTracker,
    /// Takes what the server asks and tells, before it is read.
    relay: Option<Arc<dyn Relay>>,
    /// The session that it serves, once there is one.
    wire: Option<Wire>,
    /// How many notifications wait for it.
    told: Arc<AtomicUsize>,
}

impl Handler {
    /// Wraps an rmcp client handler (or any other client service).
    pub fn new(handler: impl Service<RoleClient>) -> Self {
        Self {
            inner: Box::new(handler),
            end: CancellationToken::new(),
            tasks: TaskTracker::new(),
            relay: None,
            wire: None,
            told: Arc::default(),
        }
    }

    /// Counts its tasks there.
    pub(crate) fn counted_in(self, tasks: TaskTracker) -> Self {
        Self { tasks, ..self }
    }

    /// A view for this relay: rmcp's service sees the answers to its own requests and nothing else.
    pub(crate) fn relayed(relay: Arc<dyn Relay>) -> Self {
        Self { relay: Some(relay), ..Self::new(()) }
    }

    /// Where what the server asks goes to, if not to rmcp's service.
    pub(crate) fn relay(&self) -> Option<&Arc<dyn Relay>> {
        self.relay.as_ref()
    }

    /// Runs what the host does for the server until it is done, or the session has ended and the grace is over: rmcp
    /// would let it run for ever.
    async fn run<T>(&self, handling: impl Future<Output = Result<T, ErrorData>>) -> Result<T, ErrorData> {
        let _running = self.tasks.token();
        let over = async {
            self.end.cancelled().await;
            sleep(HANDLER_GRACE).await;
        };
        tokio::select! {
            done = handling => done,
            () = over => Err(ErrorData::internal_error("the session has ended", None)),
        }
    }
}

impl fmt::Debug for Handler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Handler").finish_non_exhaustive()
    }
}

impl Service<RoleClient> for Handler {
    fn handle_request(
        &self,
        request: <RoleClient as ServiceRole>::PeerReq,
        context: RequestContext<RoleClient>,
    ) -> impl Future<Output = Result<<RoleClient as ServiceRole>::Resp, ErrorData>> + MaybeSendFuture + '_ {
        let asked = Asked { wire: self.wire.as_ref(), id: raw_id(&context.id) };
        let running = self.run(DynService::handle_request(&*self.inner, request, context));
        async move {
            let _asked = asked;
            running.await
        }
    }

    fn handle_notification(
        &self,
        notification: <RoleClient as ServiceRole>::PeerNot,
        context: NotificationContext<RoleClient>,
    ) -> impl Future<Output = Result<(), ErrorData>> + MaybeSendFuture + '_ {
        let token = match &notification {
            ServerNotification::ProgressNotification(progress) => to_raw_value(&progress.params.progress_token).ok(),
            _ => None,
        };
        let telling = Telling { wire: self.wire.as_ref(), token, told: &self.told };
        let running = self.run(DynService::handle_notification(&*self.inner, notification, context));
        async move {
            let _telling = telling;
            running.await
        }
    }

    fn get_info(&self) -> <RoleClient as ServiceRole>::Info {
        DynService::get_info(&*self.inner)
    }

    fn supported_protocol_versions(&self) -> Cow<'static, [ProtocolVersion]> {
        DynService::supported_protocol_versions(&*self.inner)
    }
}

/// A request that the handler works on: over when this is dropped.
struct Asked<'a> {
    wire: Option<&'a Wire>,
    id: Option<Box<RawValue>>,
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        if let (Some(wire), Some(id)) = (self.wire, &self.id) {
            wire.ask_over(id);
        }
    }
}

/// A notification that the handler takes: told when this is dropped.
struct Telling<'a> {
    wire: Option<&'a Wire>,
    /// Of which progress it tells.
    token: Option<Box<RawValue>>,
    told: &'a AtomicUsize,
}

impl Drop for Telling<'_> {
    fn drop(&mut self) {
        self.told.fetch_sub(1, Ordering::AcqRel);
        if let (Some(wire), Some(token)) = (self.wire, &self.token) {
            wire.progress_told(token);
        }
    }
}

/// Puts rmcp's service on the wire of an established session. `None` when the wire has a view already.
///
/// It ends with the wire: contexts of running handlers are cancelled, and what they answer is dropped.
pub(crate) fn serve(
    wire: &Wire,
    mut handler: Handler,
    session: &Established,
) -> Option<RunningService<RoleClient, Handler>> {
    let mut frames = wire.attach()?;
    let token = handler.end.clone();
    if let Some(relay) = handler.relay.clone() {
        wire.relay_to(Relayed::new(wire.clone(), relay, token.clone(), handler.tasks.clone()), &mut frames);
    }
    handler.wire = Some(wire.clone());
    let view = Seen {
        wire: wire.clone(),
        frames,
        token: token.clone(),
        told: handler.told.clone(),
        _running: handler.tasks.token(),
    };
    // From the version in the peer's info rmcp knows whether requests carry the client's context.
    Some(serve_directly_with_ct(handler, View(Box::new(view)), Some((*session.peer).clone()), token))
}

/// Boxed, for rmcp's loop has room for it more than once.
struct View(Box<Seen>);

struct Seen {
    wire: Wire,
    frames: MailboxReader,
    /// rmcp's token for its loop and its handlers.
    token: CancellationToken,
    /// How many notifications wait for the handler.
    told: Arc<AtomicUsize>,
    /// rmcp's loop owns this.
    _running: TaskTrackerToken,
}

/// A message of rmcp's service that could not be sent. `ServiceError::TransportSend` holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ViewError(pub SendFailure);

impl fmt::Display for ViewError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.cause)
    }
}

impl error::Error for ViewError {}

impl Transport<RoleClient> for View {
    type Error = ViewError;

    fn name() -> Cow<'static, str> {
        "mcp-reconnect".into()
    }

    fn send(&mut self, item: ClientJsonRpcMessage) -> impl Future<Output = Result<(), ViewError>> + Send + 'static {
        let wire = self.0.wire.clone();
        let asked = match &item {
            // A subscription is answered at its end only: no sign of a server that hangs.
            JsonRpcMessage::Request(request)
                if matches!(request.request, ClientRequest::SubscriptionsListenRequest(_)) =>
            {
                None
            }
            JsonRpcMessage::Request(request) => number(&request.id),
            JsonRpcMessage::Notification(notification) => {
                if let ClientNotification::CancelledNotification(cancelled) = &notification.notification
                    && let Some(id) = cancelled.params.request_id.as_ref().and_then(number)
                {
                    wire.view_gave_up(id);
                }
                None
            }
            // Answers of a handler to an ended epoch are dropped.
            JsonRpcMessage::Response(_) | JsonRpcMessage::Error(_) if self.0.token.is_cancelled() => {
                return Either::Left(ready(Ok(())).boxed());
            }
            JsonRpcMessage::Response(JsonRpcResponse { id, .. }) => {
                raw_id(id).iter().for_each(|id| wire.ask_over(id));
                None
            }
            JsonRpcMessage::Error(JsonRpcError { id, .. }) => {
                id.as_ref().and_then(raw_id).iter().for_each(|id| wire.ask_over(id));
                None
            }
        };
        let frame = match serde_json::to_string(&item) {
            Ok(frame) => frame.into_boxed_str(),
            Err(error) => return Either::Left(ready(Err(ViewError(SendFailure::unwritable(&error)))).boxed()),
        };
        if let Some(id) = asked {
            wire.view_asked(id);
        }
        Either::Right(wire.send(frame).map_err(move |failure| {
            if let Some(id) = asked {
                wire.view_gave_up(id);
                if let Some(refusal) = &failure.doubt {
                    wire.raise("", Raised::Failed(refusal));
                }
            }
            ViewError(failure)
        }))
    }

    async fn receive(&mut self) -> Option<ServerJsonRpcMessage> {
        loop {
            let Some(text) = self.0.frames.next().await else {
                // Not `None`: rmcp would let its handlers run on for seconds before it cancels them.
                self.0.token.cancel();
                return pending().await;
            };
            if let Some(message) = self.0.read(&text) {
                return Some(message);
            }
        }
    }

    fn close(&mut self) -> impl Future<Output = Result<(), ViewError>> + Send {
        ready(Ok(()))
    }
}

impl Seen {
    /// The message as rmcp knows it. An answer that rmcp cannot read becomes an error answer, so that its call is settled.
    fn read(&self, text: &str) -> Option<ServerJsonRpcMessage> {
        let frame = Frame::parse(text);
        match &frame {
            Frame::Response { id, outcome } => {
                let id = request_id(id)?;
                Some(match outcome.map(|result| serde_json::from_str::<ServerResult>(result.get())) {
                    Ok(Ok(result)) => JsonRpcMessage::response(result, id),
                    Ok(Err(error)) => JsonRpcMessage::error(
                        ErrorData::internal_error(format!("unreadable answer: {error}"), None),
                        Some(id),
                    ),
                    Err(error) => JsonRpcMessage::error(error_data(RpcError::parse(error)), Some(id)),
                })
            }
            Frame::Request { id, method, .. } => match (request_id(id), serde_json::from_str::<ServerRequest>(text)) {
                (Some(id), Ok(request)) => Some(JsonRpcMessage::request(request, id)),
                (_, request) => {
                    let why = request.err().map_or_else(|| "its id".to_owned(), |error| error.to_string());
                    tracing::warn!(epoch = %self.wire.epoch(), %method, "the server's request cannot be read: {why}");
                    self.wire.reply(frame::error(
                        id,
                        ErrorCode::INVALID_PARAMS.0,
                        &format!("unreadable request: {why}"),
                    ));
                    self.wire.ask_over(id);
                    None
                }
            },
            Frame::Notification { method, .. } => match serde_json::from_str::<ServerNotification>(text) {
                Ok(notification) if self.takes(&notification) => Some(JsonRpcMessage::notification(notification)),
                Ok(_) => {
                    self.wire.note_refused();
                    self.wire.not_seen(&frame);
                    None
                }
                Err(error) => {
                    self.wire.not_seen(&frame);
                    tracing::warn!(epoch = %self.wire.epoch(), %method, "the server's notification cannot be read: {error}");
                    None
                }
            },
            Frame::Unreadable(_) => None,
        }
    }
}

impl Seen {
    /// Takes a notification for the handler, if there is room. One that takes back a request which is open always is.
    fn takes(&self, notification: &ServerNotification) -> bool {
        let takes_back = match notification {
            ServerNotification::CancelledNotification(cancelled) => {
                let id = cancelled.params.request_id.as_ref().and_then(raw_id);
                id.is_some_and(|id| self.wire.is_asked(&id))
            }
            _ => false,
        };
        let room = self.told.load(Ordering::Acquire) < MAX_TOLD || takes_back;
        if room {
            self.told.fetch_add(1, Ordering::AcqRel);
        }
        room
    }
}

fn raw_id(id: &RequestId) -> Option<Box<RawValue>> {
    to_raw_value(id).ok()
}

fn error_data(RpcError { code, message, data, .. }: RpcError) -> ErrorData {
    ErrorData::new(ErrorCode(i32::try_from(code).unwrap_or(ErrorCode::INTERNAL_ERROR.0)), message, data)
}

fn request_id(id: &RawValue) -> Option<RequestId> {
    serde_json::from_str(id.get()).ok()
}

fn number(id: &RequestId) -> Option<u64> {
    match id {
        RequestId::Number(id) => u64::try_from(*id).ok(),
        RequestId::String(_) => None,
    }
}

#[cfg(test)]
mod tests;
