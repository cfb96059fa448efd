//! Reads what the host says, and sees to it that each request is answered once.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use serde_json::value::RawValue;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::Instrument as _;

use super::member::Member;
use super::route::Routes;
use super::{FrontAll, FrontAllOptions};
use crate::front::asks::{Answer, Asks};
use crate::front::changes::Kind;
use crate::front::control::Subject;
use crate::front::dispatch::{INVALID_REQUEST, METHOD_NOT_FOUND, opening};
use crate::front::open::{self, OpenRequests};
use crate::front::outbox::Outbox;
use crate::protocol::Era;
use crate::protocol::frame::{self, Frame};
use crate::wire::relay::TakenBack;

/// How long the last messages may wait for the host.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// What the parts of a host's session share.
pub(super) struct Hub {
    pub(super) options: FrontAllOptions,
    /// In the order of their names.
    pub(super) members: Vec<Member>,
    disabled: Vec<Arc<str>>,
    pub(super) outbox: Outbox,
    pub(super) asks: Asks,
    pub(super) routes: Routes,
    /// The host's era, and the version that it asked for, since its first message.
    pub(super) begun: OnceLock<(Era, Box<str>)>,
    /// Cancelled when the host may be told and asked what it has not asked for.
    pub(super) greeted: CancellationToken,
    /// The host's requests under way.
    open: OpenRequests,
    pub(super) tasks: TaskTracker,
}

impl Hub {
    /// Serves the host until it has said all, or is told to stop; then nothing of any server is left.
    pub(super) async fn run(
        all: FrontAll,
        mut said: mpsc::Receiver<Box<str>>,
        told: mpsc::Sender<Box<str>>,
        stop: CancellationToken,
    ) {
        let host_gone = told.clone();
        let (outbox, carry) = Outbox::new(told);
        let tasks = TaskTracker::new();
        let carrying = tokio::spawn(carry.in_current_span());
        let ending = stop.child_token();
        // When this is dropped before its end, so are the servers.
        let _ending = ending.clone().drop_guard();
        let (mut members, mut heard) = (Vec::new(), Vec::new());
        for server in all.servers {
            let (member, carry, from_front, session) = Member::open(server, ending.clone());
            tasks.spawn(session.in_current_span());
            tasks.spawn(carry);
            members.push(member);
            heard.push(from_front);
        }
        let hub = Arc::new(Self {
            asks: Asks::new(outbox.clone()),
            outbox,
            options: all.options,
            members,
            disabled: all.disabled,
            routes: Routes::default(),
            begun: OnceLock::new(),
            greeted: CancellationToken::new(),
            open: OpenRequests::default(),
            tasks: tasks.clone(),
        });
        for (index, from_front) in heard.into_iter().enumerate() {
            tasks.spawn(hub.clone().hear(index, from_front).in_current_span());
        }
        while let Some(frame) = open::next(&mut said, &host_gone, &stop).await {
            // It may wait for a host that does not read.
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                () = host_gone.closed() => break,
                () = hub.take(&frame) => {}
            }
        }
        drop(host_gone);
        hub.open.abort();
        ending.cancel();
        drop(hub);
        tasks.close();
        tasks.wait().await;
        let flushing = carrying.abort_handle();
        if timeout(FLUSH_TIMEOUT, carrying).await.is_err() {
            flushing.abort();
        }
    }

    async fn refuse(&self, id: &RawValue, code: i32, why: &str) {
        self.outbox.owe(frame::error(id, code, why)).await;
    }

    async fn take(self: &Arc<Self>, text: &str) {
        match Frame::parse(text) {
            Frame::Response { id, outcome } => {
                self.asks.answer(id, outcome.map(ToOwned::to_owned).map_err(ToOwned::to_owned));
            }
            Frame::Notification { method, params } => self.note(&method, params),
            Frame::Request { id, method, params } => {
                if method == "ping" {
                    return self.outbox.owe(frame::result(id, "{}")).await;
                }
                if self.begun.get().is_none()
                    && let Err((code, why)) = self.begin(&method, params)
                {
                    return self.refuse(id, code, &why).await;
                }
                if let Some(why) = self.open.refusal(id) {
                    return self.refuse(id, INVALID_REQUEST, why).await;
                }
                self.serve(id, &method, params);
            }
            Frame::Unreadable(why) => {
                if let Some(refusal) = open::unreadable(text, why) {
                    self.outbox.owe(refusal).await;
                }
            }
        }
    }

    fn begin(self: &Arc<Self>, method: &str, params: Option<&RawValue>) -> Result<(), (i32, String)> {
        const DISCOVER: &str = "server/discover";
        let (era, client) = opening(method, params)?;
        drop(self.begun.set((era, client.version().as_str().into()))); // by this loop alone
        if era == Era::Modern {
            // It asks for what it wants to be told.
            self.greeted.cancel();
            if method != DISCOVER
                && let Some(meta) = params.and_then(|params| frame::member_of(params, "_meta"))
            {
                // Every server is to be there, whichever is asked first.
                let (hub, params) = (self.clone(), format!(r#"{{"_meta":{}}}"#, meta.get()));
                self.tasks.spawn(async move {
                    if let Ok(params) = RawValue::from_string(params) {
                        drop(hub.greet(DISCOVER, Some(&params)).await); // nobody asked for it
                    }
                });
            }
        }
        Ok(())
    }

    fn serve(self: &Arc<Self>, id: &RawValue, method: &str, params: Option<&RawValue>) {
        let hub = self.clone();
        let (id, method, params) = (id.to_owned(), method.to_owned(), params.map(ToOwned::to_owned));
        self.open.begin(&id.clone(), |taken_back| {
            let answering = async move {
                let answer = hub.answer_of(&id, &method, params.as_deref(), &taken_back).await;
                if !hub.open.close(&id, &taken_back) {
                    return;
                }
                let frame = match &answer {
                    Ok(result) => frame::result(&id, result.get()),
                    Err(error) => frame::error_raw(&id, error.get()),
                };
                hub.outbox.owe(frame).await;
                if method == "initialize" && answer.is_ok() {
                    hub.greeted.cancel();
                }
            };
            self.tasks.spawn(answering.in_current_span()).abort_handle()
        });
    }

    async fn answer_of(
        self: &Arc<Self>,
        id: &RawValue,
        method: &str,
        params: Option<&RawValue>,
        taken_back: &TakenBack,
    ) -> Answer {
        match method {
            "initialize" | "server/discover" => self.greet(method, params).await,
            "subscriptions/listen" => self.listen(id, params).await,
            "tools/call" => self.call(params, taken_back).await,
            "prompts/get" => self.prompt(params, taken_back).await,
            "resources/read" | "resources/subscribe" | "resources/unsubscribe" => {
                self.resource(method, params, taken_back).await
            }
            "completion/complete" => self.complete(params, taken_back).await,
            "logging/setLevel" => self.set_level(params).await,
            _ => match Kind::of_list(method) {
                Some(kind) => self.list(kind, method, params, taken_back).await,
                None => Err(unknown_method(method)),
            },
        }
    }

    fn note(&self, method: &str, params: Option<&RawValue>) {
        match method {
            "notifications/cancelled" => self.open.take_back(params),
            "notifications/progress" => {
                let token = params.and_then(|params| frame::member_of(params, "progressToken")).map(RawValue::get);
                for to in self.members.iter().filter(|to| to.waits_for_progress(token)) {
                    to.tell(method, params);
                }
            }
            _ => self.members.iter().for_each(|to| to.tell(method, params)),
        }
    }

    /// What the front's own tools are about.
    pub(super) fn subjects(&self) -> Vec<Subject> {
        let of =
            |member: &Member| Subject { name: member.name.clone(), connection: member.connection(), enabled: true };
        let disabled =
            self.disabled.iter().map(|name| Subject { name: name.clone(), connection: None, enabled: false });
        self.members.iter().map(of).chain(disabled).collect()
    }
}

/// The refusal of a method that no server has.
pub(super) fn unknown_method(method: &str) -> Box<RawValue> {
    frame::error_body(METHOD_NOT_FOUND, &format!("no server here knows `{method}`"), None)
}
