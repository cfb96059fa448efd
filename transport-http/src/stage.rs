//! How far a request is on its way: its body tells when it is about to leave.

use std::error::Error;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

/// How far a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Nothing of it is with the server, or what was is known not to have run: it waits for a credential, a connection or
    /// its own retry.
    Waiting,
    /// It is about to leave: from now on the server may have all of it.
    Sent,
}

/// Is told each stage of a request as it comes. `false` in answer to [`Stage::Sent`] takes the request back: nothing of
/// its body leaves.
pub type OnStage = Arc<dyn Fn(Stage) -> bool + Send + Sync>;

/// The body of a request: whole, and polled first when a connection is there for it.
pub(crate) struct Outbound {
    left: Option<Bytes>,
    on_stage: OnStage,
}

impl Outbound {
    pub(crate) fn new(frame: Bytes, on_stage: OnStage) -> Self {
        Self { left: Some(frame), on_stage }
    }
}

impl Body for Outbound {
    type Data = Bytes;
    type Error = TakenBack;

    fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, TakenBack>>> {
        let this = self.get_mut();
        Poll::Ready(
            this.left.take().map(
                |frame| {
                    if (this.on_stage)(Stage::Sent) { Ok(Frame::data(frame)) } else { Err(TakenBack) }
                },
            ),
        )
    }

    fn is_end_stream(&self) -> bool {
        self.left.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left.as_ref().map_or(0, Bytes::len) as u64)
    }
}

/// The request was taken back before it left.
#[derive(Debug)]
pub(crate) struct TakenBack;

impl fmt::Display for TakenBack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the request was taken back")
    }
}

impl Error for TakenBack {}
