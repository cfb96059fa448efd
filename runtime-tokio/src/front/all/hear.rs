//! What the servers' fronts say to the host, and the host's streams.

use std::future::pending;
use std::sync::Arc;

use futures::future::join_all;
use serde_json::value::RawValue;
use tokio::sync::mpsc;
use tracing::Instrument as _;

use super::hub::Hub;
use super::member::{Asked, progress_token};
use crate::front::asks::Answer;
use crate::front::changes::Kind;
use crate::front::dispatch::INVALID_PARAMS;
use crate::front::streams::{STREAM, on_stream};
use crate::protocol::frame::{self, Frame, set_member};
use crate::wire::relay::TakenBack;

impl Hub {
    /// Takes what the front of this member says, until it has ended.
    pub(super) async fn hear(self: Arc<Self>, index: usize, mut from_front: mpsc::Receiver<Box<str>>) {
        let Some(member) = self.members.get(index) else { return };
        while let Some(text) = from_front.recv().await {
            match Frame::parse(&text) {
                Frame::Response { id, outcome } => {
                    member.answered(id, outcome.map(ToOwned::to_owned).map_err(ToOwned::to_owned));
                }
                Frame::Request { id, method, params } => self.pass_ask(index, id, &method, params),
                Frame::Notification { method, params } if method == "notifications/cancelled" => {
                    let id = params.and_then(|params| frame::member_of(params, "requestId"));
                    // When it is dropped, the host is told.
                    if let Some(asked) = id.and_then(|id| member.asked().remove(id.get())) {
                        asked.taken_back.say(params);
                        asked.task.abort();
                    }
                }
                Frame::Notification { method, params } => self.pass(index, &text, &method, params),
                Frame::Unreadable(why) => tracing::debug!(server = %member.name, "{why}"),
            }
        }
        member.ended();
    }

    /// Tells the host what a server tells.
    fn pass(&self, index: usize, text: &str, method: &str, params: Option<&RawValue>) {
        let is_announcement = method.ends_with("/list_changed");
        if method == "notifications/subscriptions/acknowledged" || (is_announcement && !self.greeted.is_cancelled()) {
            return;
        }
        let stream = params
            .and_then(|params| frame::member_of(params, "_meta"))
            .and_then(|meta| frame::member_of(meta, STREAM))
            .and_then(|stream| self.members.get(index)?.stream_of(stream));
        match stream {
            Some(host) => self.outbox.tell(frame::notification(method, Some(&on_stream(params, host.get())))),
            None => self.outbox.tell(text.into()),
        }
    }

    /// Asks the host on behalf of a server: under an id that no other server has.
    fn pass_ask(self: &Arc<Self>, index: usize, id: &RawValue, method: &str, params: Option<&RawValue>) {
        let Some(member) = self.members.get(index) else { return };
        let (hub, key, token) = (self.clone(), Box::<str>::from(id.get()), progress_token(params));
        let (id, method, params) = (id.to_owned(), method.to_owned(), params.map(ToOwned::to_owned));
        let taken_back = TakenBack::default();
        let said = taken_back.clone();
        // The task may be through before it is noted here.
        let mut asked = member.asked();
        let asking = async move {
            // A host that waits for its greeting expects nothing else.
            hub.greeted.cancelled().await;
            let answer = hub.asks.ask(&method, params.as_deref(), &said).await;
            if let Some(member) = hub.members.get(index)
                && { member.asked().remove(id.get()).is_some() }
            {
                member.answer(&id, &answer).await;
            }
        };
        let task = self.tasks.spawn(asking.in_current_span()).abort_handle();
        asked.insert(key, Asked { task, token, taken_back });
    }

    /// Keeps a stream of every server for one of the host's, until the host cancels it.
    pub(super) async fn listen(&self, id: &RawValue, params: Option<&RawValue>) -> Answer {
        let invalid = || frame::error_body(INVALID_PARAMS, "`notifications` is missing, or no object", None);
        let params = params.ok_or_else(invalid)?;
        let wanted = frame::member_of(params, "notifications").ok_or_else(invalid)?;
        if !wanted.get().starts_with('{') {
            return Err(invalid());
        }
        let accepted = RawValue::from_string(format!(r#"{{"notifications":{}}}"#, wanted.get())).ok();
        let accepted = on_stream(accepted.as_deref(), id.get());
        self.outbox.owe(frame::notification("notifications/subscriptions/acknowledged", Some(&accepted))).await;
        let streams = self.members.iter().enumerate().map(|(index, member)| async move {
            let own = self.subscriptions_of(index, wanted).and_then(|own| set_member(params, "notifications", &own));
            member.listen(id, Some(own.as_deref().unwrap_or(params))).await
        });
        let ends = join_all(streams).await;
        match ends.into_iter().next() {
            Some(end) => end,
            None => pending().await,
        }
    }

    /// The filter with the resources that are this member's, or may be; `None` where that makes no difference.
    fn subscriptions_of(&self, index: usize, wanted: &RawValue) -> Option<String> {
        let uris: Vec<String> = serde_json::from_str(frame::member_of(wanted, "resourceSubscriptions")?.get()).ok()?;
        let of = |uri: &&String| {
            let found = self.find(Kind::Resources, uri).map(|(at, _)| at).or_else(|| self.by_template(uri));
            found.is_none_or(|at| at == index)
        };
        let own: Vec<_> = uris.iter().filter(of).collect();
        if own.len() == uris.len() {
            return None;
        }
        let own = serde_json::to_string(&own).ok()?;
        set_member(wanted, "resourceSubscriptions", &own).map(|own| own.get().to_owned())
    }
}
