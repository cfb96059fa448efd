//! A modern host's `subscriptions/listen`: open as long as the host wants it, whatever becomes of sessions. What it is to be
//! told comes from the connection's own stream, or from a legacy server's announcements.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mcp_reconnect_core::Status;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::sync::Notify;

use super::asks::Answer;
use super::dispatch::{Session, Upstream};
use crate::connection::Connection;
use crate::protocol::frame::{self, Object, member, set_member, with_first};

pub(super) const STREAM: &str = "io.modelcontextprotocol/subscriptionId";

/// The open streams, by the host's id of the request.
#[derive(Default)]
pub(super) struct Streams {
    open: Mutex<BTreeMap<Box<str>, Filter>>,
    /// Told when what they want together may have changed.
    changed: Notify,
}

/// What a stream is for.
#[derive(Clone, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
struct Filter {
    #[serde(skip_serializing_if = "Option::is_none")]
    tools_list_changed: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompts_list_changed: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    resources_list_changed: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    resource_subscriptions: Option<BTreeSet<String>>,
}

impl Filter {
    fn takes(&self, method: &str, uri: Option<&str>) -> bool {
        match method {
            "notifications/tools/list_changed" => self.tools_list_changed == Some(true),
            "notifications/prompts/list_changed" => self.prompts_list_changed == Some(true),
            "notifications/resources/list_changed" => self.resources_list_changed == Some(true),
            // A server may tell of a part of what was subscribed to.
            _ => uri.is_some_and(|uri| {
                let wanted = self.resource_subscriptions.iter().flatten();
                let mut rest = wanted.filter_map(|wanted| Some((wanted, uri.strip_prefix(&**wanted)?)));
                rest.any(|(wanted, rest)| rest.is_empty() || rest.starts_with('/') || wanted.ends_with('/'))
            }),
        }
    }
}

impl Streams {
    /// The parameters of this notification for each stream that it is for.
    pub(super) fn addressed(&self, method: &str, params: Option<&RawValue>) -> Vec<String> {
        let members =
            params.and_then(|params| serde_json::from_str::<Object<'_>>(params.get()).ok()).unwrap_or_default();
        let uri = member(&members.0, "uri").and_then(frame::string);
        let open = self.lock();
        let streams = open.iter().filter(|(_, filter)| filter.takes(method, uri.as_deref()));
        streams.map(|(id, _)| on_stream(params, id)).collect()
    }

    fn wanted(&self) -> BTreeSet<String> {
        self.lock().values().flat_map(|filter| filter.resource_subscriptions.iter().flatten().cloned()).collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Box<str>, Filter>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Session {
    /// Keeps a stream until the host cancels it.
    pub(super) async fn listen(
        self: &Arc<Self>,
        upstream: &Upstream,
        id: &RawValue,
        params: Option<&RawValue>,
    ) -> Answer {
        #[derive(Deserialize)]
        struct Wanted<'a> {
            #[serde(borrow)]
            notifications: &'a RawValue,
        }
        let invalid = |error: serde_json::Error| frame::error_body(-32_602, &format!("`notifications`: {error}"), None);
        let params = params.map_or("{}", RawValue::get);
        let Wanted { notifications } = serde_json::from_str(params).map_err(invalid)?;
        let mut filter: Filter = serde_json::from_str(notifications.get()).map_err(invalid)?;
        if let Some(session) = &upstream.connection.0.published.borrow().session
            && session.server().protocol_version.has_initialize()
            && session
                .server()
                .capabilities
                .resources
                .as_ref()
                .is_none_or(|resources| resources.subscribe != Some(true))
        {
            // Changes of lists are seen without the server's help.
            filter.resource_subscriptions = None;
        }
        let accepted =
            serde_json::value::to_raw_value(&serde_json::json!({ "notifications": filter })).map_err(invalid)?;
        self.streams.lock().insert(id.get().into(), filter);
        let _stream = Stream { streams: &self.streams, id };
        self.streams.changed.notify_one();
        let accepted = on_stream(Some(&accepted), id.get());
        let acknowledged = "notifications/subscriptions/acknowledged";
        self.outbox.owe(frame::notification(acknowledged, Some(&accepted))).await;
        std::future::pending().await
    }

    /// Wants of the server what all streams together want, until the connection has ended.
    pub(super) async fn keep_subscribed(self: Arc<Self>, connection: Connection) {
        let mut published = connection.0.published.clone();
        let ended = async {
            // An error says the same.
            drop(published.wait_for(|published| published.snapshot.status == Status::Shutdown).await);
        };
        let keep = async {
            let mut known = BTreeSet::new();
            loop {
                self.streams.changed.notified().await;
                let wanted = self.streams.wanted();
                for uri in wanted.difference(&known) {
                    if let Err(error) = connection.subscribe(uri).await {
                        tracing::warn!(%error, "a subscription failed");
                    }
                }
                for uri in known.difference(&wanted) {
                    drop(connection.unsubscribe(uri).await); // nobody waits for what it would tell
                }
                known = wanted;
            }
        };
        tokio::select! {
            () = ended => {}
            () = keep => {}
        }
    }
}

/// An open stream; it is closed when this is dropped.
struct Stream<'a> {
    streams: &'a Streams,
    id: &'a RawValue,
}

impl Drop for Stream<'_> {
    fn drop(&mut self) {
        self.streams.lock().remove(self.id.get());
        self.streams.changed.notify_one();
    }
}

/// Parameters that name this stream, and else are as they were.
pub(super) fn on_stream(params: Option<&RawValue>, id: &str) -> String {
    let Some(params) = params else { return format!(r#"{{"_meta":{{"{STREAM}":{id}}}}}"#) };
    let Ok(Object(members)) = serde_json::from_str::<Object<'_>>(params.get()) else { return params.get().to_owned() };
    let named = match member(&members, "_meta") {
        Some(meta) => {
            let named = set_member(meta, STREAM, id).map(|meta| meta.get().to_owned());
            let named = named.unwrap_or_else(|| with_first(meta.get(), STREAM, id));
            set_member(params, "_meta", &named).map(|params| params.get().to_owned())
        }
        None => Some(with_first(params.get(), "_meta", &format!(r#"{{"{STREAM}":{id}}}"#))),
    };
    named.unwrap_or_else(|| params.get().to_owned())
}

/// Parameters that name no stream; `None` where they do not name one.
pub(super) fn without_stream(params: &RawValue) -> Option<Box<RawValue>> {
    let Object(members) = serde_json::from_str(params.get()).ok()?;
    let Object(meta) = serde_json::from_str(member(&members, "_meta")?.get()).ok()?;
    member(&meta, STREAM)?;
    let kept = meta.iter().filter(|(name, _)| name != STREAM);
    let kept = kept.map(|(name, value)| format!("{}:{}", serde_json::Value::from(&**name), value.get()));
    set_member(params, "_meta", &format!("{{{}}}", kept.collect::<Vec<_>>().join(",")))
}
