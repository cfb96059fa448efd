//! One exchange: a POST, and its body until the answer has come.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use http::header::CONTENT_TYPE;
use mcp_reconnect_core::FailureClass;
use mcp_reconnect_core::replay::Sent;
use reqwest::Response;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use crate::classify::{Asked, is_gate_error};
use crate::client::{HttpClient, Outgoing, Reply};
use crate::error::{ExchangeError, Reach};
use crate::message::{Message, messages};
use crate::sse::{EventStream, StreamEvent};

/// How often a stream is resumed without a new event id.
const RESUMES: u32 = 3;
/// How long to wait before a stream is resumed, where the server does not say (`retry:`).
pub(crate) const RETRY: Duration = Duration::from_secs(1);
/// How much of what follows an answer is read so that the connection can be used again, and how long it is waited for.
const DRAIN_LIMIT: usize = 64 * 1024;
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a look at the endpoint of an old transport may take.
const LOOK_TIMEOUT: Duration = Duration::from_secs(2);

/// What became of a stream.
enum Read {
    /// The answer was in it.
    Answered,
    /// It ended before the answer.
    Cut(Cut),
}

/// How often a stream was resumed after the same event.
#[derive(Default)]
struct Resumes {
    after: Option<Arc<str>>,
    in_vain: u32,
}

/// How a stream ended.
struct Cut {
    cause: String,
    /// By the server's own will, as far as can be seen.
    clean: bool,
}

impl HttpClient {
    /// Sends a frame; what comes back goes to `frames`. Over when the answer has come, for a request, or the server has
    /// taken it, for anything else. Dropping it ends it on the wire.
    ///
    /// # Errors
    ///
    /// Why there is no answer, how far the request got, and what that says about the session.
    pub async fn exchange(&self, frame: &str, frames: &mpsc::Sender<Box<str>>) -> Result<Rest, ExchangeError> {
        let message = Message::read(frame);
        let outgoing = Outgoing::post(frame, message.as_ref());
        let reply = match self.send(&outgoing).await {
            Ok(reply) => reply,
            Err(error) if outgoing.is_initialize() => return Err(self.blame_old_transport(error).await),
            Err(error) => return Err(error),
        };
        let (response, session) = match reply {
            Reply::Stream(response, session) => (response, session),
            Reply::Body(body) => {
                let asked = Asked { id: outgoing.id, session: false };
                return self.deliver_body(&body, asked, frames).await.map(|()| Rest(None));
            }
        };
        if outgoing.is_initialize() {
            self.begin_session(response.headers());
        }
        match outgoing.id {
            Some(_) => self.read_answer(response, Asked { id: outgoing.id, session }, frames).await,
            None => Ok(Rest(Some(response))),
        }
    }

    /// Asks whether the session is alive, with a request of its own.
    ///
    /// # Errors
    ///
    /// As [`exchange`](Self::exchange). An error that the server answers is a sign of life.
    pub async fn probe(&self) -> Result<(), ExchangeError> {
        // Nobody is interested in what the server has to say beside the answer.
        let (frames, _) = mpsc::channel(1);
        self.exchange(&self.probe_frame(), &frames).await?.drain().await;
        Ok(())
    }

    async fn read_answer(
        &self,
        mut response: Response,
        asked: Asked<'_>,
        frames: &mpsc::Sender<Box<str>>,
    ) -> Result<Rest, ExchangeError> {
        if !is_event_stream(&response) {
            let status = response.status();
            let body = self.read_body(&mut response).await?;
            if body.trim().is_empty() {
                return Err(ExchangeError::unusable(format!("HTTP {status} without an answer")));
            }
            return self.deliver_body(&body, asked, frames).await.map(|()| Rest(None));
        }
        let mut events = EventStream::new(self.server.frame_limit);
        let mut resumes = Resumes::default();
        loop {
            match self.read_events(&mut response, &mut events, asked, frames).await? {
                Read::Answered => return Ok(Rest(Some(response))),
                Read::Cut(cut) => response = self.resume(&events, &mut resumes, cut.cause).await?,
            }
            events.resume();
        }
    }

    /// Asks for the rest of a stream that was cut.
    async fn resume(
        &self,
        events: &EventStream,
        resumes: &mut Resumes,
        mut cut: String,
    ) -> Result<Response, ExchangeError> {
        loop {
            let last = events.last_event_id().cloned().filter(|_| !self.is_modern());
            let Some(last) = last else { return Err(ExchangeError::cut(cut)) };
            if resumes.after.as_ref() != Some(&last) {
                *resumes = Resumes { after: Some(last.clone()), in_vain: 0 };
            }
            if resumes.in_vain == RESUMES {
                return Err(ExchangeError::cut(format!("{cut}; resumed {RESUMES} times in vain")));
            }
            resumes.in_vain += 1;
            sleep(events.retry().unwrap_or(RETRY)).await;
            match self.send(&Outgoing::get(Some(&last))).await {
                Ok(Reply::Stream(response, _)) if is_event_stream(&response) => return Ok(response),
                Ok(_) => return Err(ExchangeError::cut(format!("{cut}; the server does not resume streams"))),
                Err(error) => match error.reach {
                    Reach::Doubt => cut = error.cause.to_string(),
                    Reach::Session => return Err(error.after_sending()),
                    Reach::Exchange => return Err(ExchangeError::cut(format!("{cut}; not resumed: {error}"))),
                },
            }
        }
    }

    /// Passes on what a stream holds, until the answer or the end.
    async fn read_events(
        &self,
        response: &mut Response,
        events: &mut EventStream,
        asked: Asked<'_>,
        frames: &mpsc::Sender<Box<str>>,
    ) -> Result<Read, ExchangeError> {
        loop {
            let mut chunk = match response.chunk().await {
                Ok(Some(chunk)) => chunk,
                Ok(None) => {
                    let cause = "the response stream ended before the answer".into();
                    return Ok(Read::Cut(Cut { cause, clean: true }));
                }
                Err(error) => {
                    let cause = ExchangeError::request(&error, self.target()).cause.to_string();
                    return Ok(Read::Cut(Cut { cause, clean: false }));
                }
            };
            self.touch();
            while let Some(event) = events.next(&mut chunk) {
                match event {
                    StreamEvent::Frame(frame) => {
                        let answered = self.deliver(&frame, asked, frames).await?;
                        if answered {
                            return Ok(Read::Answered);
                        }
                    }
                    StreamEvent::TooLong => {
                        let limit = self.server.frame_limit;
                        return Err(ExchangeError::unusable(format!("an event is longer than {limit} bytes")));
                    }
                    StreamEvent::Other(..) => {}
                }
            }
        }
    }

    /// Passes on what a standing stream holds, until its end.
    pub(crate) async fn read_standing(
        &self,
        mut response: Response,
        events: &mut EventStream,
        frames: &mpsc::Sender<Box<str>>,
    ) -> Result<(), ExchangeError> {
        match self.read_events(&mut response, events, Asked { id: None, session: true }, frames).await? {
            Read::Answered | Read::Cut(Cut { clean: true, .. }) => Ok(()),
            Read::Cut(Cut { cause, .. }) => Err(ExchangeError::cut(cause)),
        }
    }

    async fn read_body(&self, response: &mut Response) -> Result<String, ExchangeError> {
        let mut body = Vec::new();
        let limit = self.server.frame_limit.get();
        loop {
            match response.chunk().await {
                Ok(Some(chunk)) if chunk.len() > limit - body.len() => {
                    return Err(ExchangeError::unusable(format!("the answer is longer than {limit} bytes")));
                }
                Ok(Some(chunk)) => body.extend_from_slice(&chunk),
                Ok(None) => break,
                Err(error) => return Err(ExchangeError::request(&error, self.target()).after_sending()),
            }
            self.touch();
        }
        String::from_utf8(body).map_err(|_| ExchangeError::unusable("the answer is not UTF-8"))
    }

    async fn deliver_body(
        &self,
        body: &str,
        asked: Asked<'_>,
        frames: &mpsc::Sender<Box<str>>,
    ) -> Result<(), ExchangeError> {
        let mut answered = false;
        for text in messages(body) {
            answered |= self.deliver(text, asked, frames).await?;
        }
        if answered {
            return Ok(());
        }
        let excerpt: String = body.trim().chars().take(200).collect();
        Err(ExchangeError::unusable(format!("the response holds no answer to the request: {excerpt}")))
    }

    /// Passes a frame on; whether it is the answer. An error that names no request is the fate of the request
    /// whose response it is in; the session gate's is the fate of the session.
    async fn deliver(
        &self,
        text: &str,
        asked: Asked<'_>,
        frames: &mpsc::Sender<Box<str>>,
    ) -> Result<bool, ExchangeError> {
        let message = Message::read(text);
        let answers = message.as_ref().is_some_and(|message| asked.id.is_some_and(|id| message.answers(id)));
        if let Some(message) = message.as_ref().filter(|message| answers || message.is_unaddressed_error())
            && let Some(error) = message.rpc_error()
        {
            if asked.session && is_gate_error(error.code, &error.message) {
                self.disown();
                let cause = format!("the server has lost the session: {} (code {})", error.message, error.code);
                return Err(ExchangeError::new(FailureClass::SessionGone, Sent::Refused, Reach::Session, cause));
            }
            if !answers && asked.id.is_some() {
                let cause = format!(
                    "the server answered with an error that names no request: {} (code {})",
                    error.message, error.code
                );
                return Err(ExchangeError::unusable(cause));
            }
        }
        // An error says that the link is over.
        drop(frames.send(text.into()).await);
        Ok(answers)
    }

    /// An endpoint that refuses `initialize` may be one of 2024-11-05, which nothing else would tell.
    async fn blame_old_transport(&self, error: ExchangeError) -> ExchangeError {
        let refused = error.status.is_some_and(|status| {
            matches!(status, StatusCode::BAD_REQUEST | StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED)
        });
        let look = async {
            let Ok(Reply::Stream(mut response, _)) = self.send(&Outgoing::get(None)).await else { return false };
            if !is_event_stream(&response) {
                return false;
            }
            let mut events = EventStream::new(self.server.frame_limit);
            while let Ok(Some(mut chunk)) = response.chunk().await {
                if let Some(event) = events.next(&mut chunk) {
                    return matches!(event, StreamEvent::Other(name, _) if &*name == "endpoint");
                }
            }
            false
        };
        if refused && timeout(LOOK_TIMEOUT, look).await.unwrap_or(false) {
            let cause = "the endpoint speaks HTTP+SSE of 2024-11-05 only (type \"sse\"), which is not supported: use \
                         the server's streamable HTTP endpoint, often /mcp in place of /sse";
            return ExchangeError {
                status: error.status,
                ..ExchangeError::new(FailureClass::Permanent, Sent::Refused, Reach::Exchange, cause)
            };
        }
        error
    }
}

/// What comes after the answer.
#[derive(Debug)]
#[must_use = "a connection whose body was read to the end can be used again"]
pub struct Rest(Option<Response>);

impl Rest {
    /// Reads it to its end, so that the connection can be used again. A body that goes on is cut off.
    pub async fn drain(self) {
        let Some(mut response) = self.0 else { return };
        let mut left = DRAIN_LIMIT;
        let read = async {
            while let Ok(Some(chunk)) = response.chunk().await {
                left = left.saturating_sub(chunk.len());
                if left == 0 {
                    break;
                }
            }
        };
        drop(timeout(DRAIN_TIMEOUT, read).await);
    }
}

pub(crate) fn is_event_stream(response: &Response) -> bool {
    let content_type = response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    content_type.is_some_and(|value| {
        let essence = value.split(';').next().unwrap_or_default();
        essence.trim().eq_ignore_ascii_case("text/event-stream")
    })
}
