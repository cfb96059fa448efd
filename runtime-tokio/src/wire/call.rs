//! A request of ours on its way: its answer, how far it got, and its end when nobody waits any more.

use std::future::pending;
use std::sync::Arc;

use mcp_reconnect_core::replay::Sent;
use mcp_reconnect_core::{Failure, FailureClass};
use serde_json::value::RawValue;
use tokio::sync::oneshot;

use crate::link::{Ended, Fate, Outbound, Refusal, SendFailure};
use crate::protocol::frame::RpcError;
use crate::wire::open::{RawAnswer, Settled};
use crate::wire::progress::{CallProgress, Progress};
use crate::wire::relay::TakenBack;
use crate::wire::{Raised, Wire};

/// The server's answer: a result, or an error.
pub(crate) type Answer = Result<Box<RawValue>, RpcError>;

/// One open request. Dropping it gives the request up: the server is told, if it may have seen it.
pub(crate) struct Call {
    wire: Wire,
    id: u64,
    /// The frame, until the link has it.
    frame: Option<Outbound>,
    fate: Fate,
    written: bool,
    answer: oneshot::Receiver<Settled>,
    state: State,
    progress: Option<Arc<CallProgress>>,
    /// The reason that the server is given when the call is dropped; `None` where it must not be told.
    reason: Option<&'static str>,
    /// The caller's own words about it, if it says any.
    taken_back: TakenBack,
    /// The method, where doubts about its answer are raised.
    raises: Option<Box<str>>,
}

enum State {
    Open,
    /// The frame did not make it.
    Failed(SendFailure),
    /// Its answer cannot be read, in words.
    Broken(Arc<str>),
    /// The wire has ended.
    Lost,
    /// The outcome was handed out.
    Taken,
}

/// Why a request has no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CallFailure {
    /// How far it got.
    pub(crate) sent: Sent,
    /// The class of what went wrong.
    pub(crate) failure: Failure,
    /// The cause in words.
    pub(crate) cause: Arc<str>,
    /// Present where the session is to be asked what the failure means.
    pub(crate) doubt: Option<Refusal>,
}

impl From<SendFailure> for CallFailure {
    fn from(SendFailure { failure, sent, cause, doubt }: SendFailure) -> Self {
        Self { sent, failure, cause, doubt }
    }
}

impl Call {
    pub(crate) fn new(
        wire: Wire,
        id: u64,
        (outbound, fate): (Outbound, Fate),
        answer: oneshot::Receiver<Settled>,
        progress: Option<Arc<CallProgress>>,
        uncancelled: bool,
    ) -> Self {
        let reason = (!uncancelled).then_some("the caller stopped waiting");
        Self {
            wire,
            id,
            frame: Some(outbound),
            fate,
            written: false,
            answer,
            state: State::Open,
            progress,
            reason,
            taken_back: TakenBack::default(),
            raises: None,
        }
    }

    /// The request's id.
    #[cfg(test)]
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Sets the words that the server is told when the call is dropped, if any are said until then.
    pub(crate) fn taken_back_with(&mut self, taken_back: &TakenBack) {
        self.taken_back = taken_back.clone();
    }

    /// Its progress, where [`RequestOptions::progress`](crate::wire::RequestOptions::progress) asked for it.
    pub(crate) fn progress(&self) -> Progress {
        Progress(self.progress.clone())
    }

    /// Takes its place among what is sent at once, where there is room.
    pub(crate) fn begin(&mut self) {
        if let Some(frame) = self.frame.take() {
            self.frame = self.wire.try_queue(frame).err();
        }
    }

    /// Sends the request and waits for its answer. Cancel safe; resolves once.
    ///
    /// An answer that has arrived wins over whatever happened since.
    ///
    /// # Errors
    ///
    /// How far the request got, and why there will be no answer.
    pub(crate) async fn answer(&mut self) -> Result<Answer, CallFailure> {
        loop {
            let outcome = match &self.state {
                State::Open => match self.advance().await {
                    Some(answer) => Ok(answer.map_err(|error| RpcError::parse(&error))),
                    None => continue,
                },
                State::Failed(failure) => Err(self.wire.explain(failure.clone()).await.into()),
                State::Broken(cause) => {
                    let (failure, cause) = (FailureClass::Transport.into(), cause.clone());
                    let doubt = Some(Refusal { status: None, code: None, message: cause.as_ref().into(), gate: false });
                    Err(CallFailure { sent: Sent::Maybe, failure, cause, doubt })
                }
                // How far did the frame get?
                State::Lost if self.frame.is_none() && !self.written => {
                    match (&mut self.fate).await {
                        Ok(()) => self.written = true,
                        Err(failure) => self.state = State::Failed(failure),
                    }
                    continue;
                }
                State::Lost => {
                    let Ended { failure, cause } = self.wire.ended().await;
                    let sent = if self.written { Sent::Maybe } else { Sent::No };
                    Err(CallFailure { sent, failure, cause, doubt: None })
                }
                State::Taken => pending().await,
            };
            self.state = State::Taken;
            self.raise(&outcome);
            return outcome;
        }
    }

    /// Doubts about its answer are raised by the wire, and not settled by who awaits it.
    pub(crate) fn raises(&mut self, method: &str) {
        self.raises = Some(method.into());
    }

    fn raise(&self, outcome: &Result<Answer, CallFailure>) {
        let Some(method) = &self.raises else { return };
        match outcome {
            Ok(Err(error)) => self.wire.raise(method, Raised::Error(error)),
            Err(CallFailure { doubt: Some(refusal), .. }) => self.wire.raise(method, Raised::Failed(refusal)),
            Ok(Ok(_)) | Err(_) => {}
        }
    }

    /// One step of an open request: `None` when it has led to another one.
    async fn advance(&mut self) -> Option<RawAnswer> {
        let answer = if self.frame.is_some() {
            tokio::select! {
                biased;
                answer = &mut self.answer => answer,
                permit = self.wire.reserve() => {
                    // Without a permit the frame is dropped unsent: its fate says so.
                    if let (Ok(permit), Some(frame)) = (permit, self.frame.take()) {
                        permit.send(frame);
                    }
                    return None;
                }
            }
        } else if self.written {
            (&mut self.answer).await
        } else {
            tokio::select! {
                biased;
                answer = &mut self.answer => answer,
                fate = &mut self.fate => {
                    match fate {
                        Ok(()) => self.written = true,
                        Err(failure) => {
                            self.wire.forget(self.id);
                            self.state = State::Failed(failure);
                        }
                    }
                    return None;
                }
            }
        };
        let settled = answer.map_err(|_| self.state = State::Lost).ok()?;
        settled.map_err(|cause| self.state = State::Broken(cause)).ok()
    }

    /// Gives the request up and says how far it got; the server is told `reason`, if it may have seen the request.
    pub(crate) fn abandon(mut self, reason: &'static str) -> Sent {
        self.reason = self.reason.and(Some(reason));
        self.give_up()
    }

    fn give_up(&mut self) -> Sent {
        let sent = match (&self.frame, self.written) {
            (Some(_), _) => Sent::No,
            (None, true) => Sent::Maybe,
            (None, false) => self.fate.give_up(),
        };
        let was_open = self.wire.forget(self.id);
        if let (true, Sent::Maybe | Sent::Refused, Some(reason)) = (was_open, sent, self.reason) {
            self.wire.cancel(self.taken_back.notification(self.id, reason));
        }
        sent
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.give_up();
    }
}
