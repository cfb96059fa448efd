//! The taker of a server's own messages, which come to it as they are.

use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use mcp_reconnect_core::Epoch;
use serde_json::value::RawValue;

use crate::protocol::frame::{self, set_member};

/// Takes a server's own messages as they come, in the place of a typed handler.
#[async_trait]
pub trait Relay: Send + Sync + 'static {
    /// The server asks for this; the answer goes to the session that asked, a result or an error as it is. `ping` is
    /// not among it.
    ///
    /// Dropped when the server takes the request back, or its session ends.
    ///
    /// # Errors
    ///
    /// The `error` member of the answer.
    async fn ask(&self, ask: Ask<'_>) -> Result<Box<RawValue>, Box<RawValue>>;

    /// The server tells this. Must not wait.
    fn told(&self, epoch: Epoch, method: &str, params: Option<&RawValue>);
}

/// A request of a server.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    /// The session that asks.
    pub epoch: Epoch,
    /// Its method.
    pub method: &'a str,
    /// The parameters as they came.
    pub params: Option<&'a RawValue>,
    /// Whether it is the input that an `input_required` result asks for, and not a request of its own.
    pub input: bool,
    /// The server's words when it takes the request back, which are there before the request is dropped.
    pub taken_back: &'a TakenBack,
}

/// The words with which a request is taken back: the parameters of `notifications/cancelled`.
#[derive(Clone, Debug, Default)]
pub struct TakenBack(Arc<OnceLock<Box<RawValue>>>);

impl TakenBack {
    /// Says it; heard once.
    pub(crate) fn say(&self, params: Option<&RawValue>) {
        if let Some(params) = params {
            self.0.get_or_init(|| params.to_owned());
        }
    }

    /// The notification for a side that knows the request under this id; `reason` where nothing was said.
    pub(crate) fn notification(&self, id: u64, reason: &str) -> Box<str> {
        let said = self.0.get().and_then(|params| set_member(params, "requestId", &id.to_string()));
        let params = match &said {
            Some(said) => said.get().to_owned(),
            None => serde_json::json!({ "requestId": id, "reason": reason }).to_string(),
        };
        frame::notification("notifications/cancelled", Some(&params))
    }

    /// Whether both are of the same request.
    #[cfg(feature = "front")]
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}
