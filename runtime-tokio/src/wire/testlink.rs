//! A link of two channels, and the far end of it, played by the test.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use futures::future::BoxFuture;
use mcp_reconnect_core::{Epoch, Failure, FailureClass};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::link::{Ended, INBOUND_CAPACITY, Link, LinkControl, LinkFacts, OUTBOUND_CAPACITY, Outbound};
use crate::wire::{RequestIds, Wire};

/// The server's side.
pub(crate) struct Far {
    pub(crate) frames: mpsc::Receiver<Outbound>,
    pub(crate) inbound: mpsc::Sender<Box<str>>,
    pub(crate) control: Arc<Control>,
    pub(crate) tasks: TaskTracker,
    pub(crate) token: CancellationToken,
}

#[derive(Default)]
pub(crate) struct Control {
    /// Cancelled when the server has shown a first byte.
    pub(crate) first_byte: CancellationToken,
    pub(crate) negotiated: Mutex<Vec<String>>,
    /// Whether the link is a process.
    pub(crate) process: AtomicBool,
}

pub(crate) const EXIT: &str = "exit status 3";

impl LinkControl for Control {
    fn kill(&self) {}

    fn close(&self) -> BoxFuture<'_, Ended> {
        self.why()
    }

    fn facts(&self) -> LinkFacts {
        LinkFacts { pid: self.process.load(Ordering::Relaxed).then_some(1), ..LinkFacts::default() }
    }

    fn first_byte(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.first_byte.cancelled())
    }

    fn negotiated(&self, version: &str) {
        self.negotiated.lock().unwrap().push(version.to_owned());
    }

    fn why(&self) -> BoxFuture<'_, Ended> {
        Box::pin(async { Ended { failure: Failure::new(FailureClass::Transport), cause: EXIT.into() } })
    }
}

/// A wire, and the far end of its link.
pub(crate) fn wire() -> (Wire, Far) {
    let (outbound, frames) = mpsc::channel(OUTBOUND_CAPACITY);
    let (sender, inbound) = mpsc::channel(INBOUND_CAPACITY);
    let control = Arc::new(Control::default());
    let link = Link { outbound, inbound, control: control.clone() };
    let (token, tasks) = (CancellationToken::new(), TaskTracker::new());
    let wire = Wire::new(Epoch::FIRST, link, token.clone(), &tasks, RequestIds::default());
    (wire, Far { frames, inbound: sender, control, tasks, token })
}

impl Far {
    /// The next frame that was not given up, written in full.
    pub(crate) async fn read(&mut self) -> Value {
        loop {
            let mut frame = self.frames.recv().await.expect("the wire is there");
            if frame.begin() {
                let message = serde_json::from_str(frame.frame()).expect("JSON");
                frame.finish(Ok(()));
                return message;
            }
        }
    }

    /// The next frame, which must be of this method.
    pub(crate) async fn expect(&mut self, method: &str) -> Value {
        let message = self.read().await;
        assert_eq!(message["method"], method, "{message}");
        message
    }

    /// Whether nothing has been sent, all tasks having had their turn.
    pub(crate) async fn is_quiet(&mut self) -> bool {
        settle().await;
        while let Ok(mut frame) = self.frames.try_recv() {
            if frame.begin() {
                return false;
            }
        }
        true
    }

    pub(crate) async fn say(&self, message: Value) {
        self.say_text(&message.to_string()).await;
    }

    pub(crate) async fn say_text(&self, text: &str) {
        self.inbound.send(text.into()).await.expect("the wire reads");
    }

    pub(crate) async fn answer(&self, request: &Value, result: Value) {
        self.say(json!({ "jsonrpc": "2.0", "id": request["id"], "result": result })).await;
    }

    pub(crate) async fn refuse(&self, request: &Value, code: i64, message: &str, data: Value) {
        let error = json!({ "code": code, "message": message, "data": data });
        self.say(json!({ "jsonrpc": "2.0", "id": request["id"], "error": error })).await;
    }

    /// The link is gone, with all that was queued.
    pub(crate) fn hang_up(self) {}
}

/// Lets every task that can run do so.
pub(crate) async fn settle() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}
