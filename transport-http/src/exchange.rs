//! One exchange: a POST, and its body until the answer has come.

use std::sync::Arc;
use std::time::Duration;

use http::header::CONTENT_TYPE;
use http::{HeaderValue, StatusCode};
use mcp_reconnect_core::FailureClass;
use mcp_reconnect_core::replay::Sent;
use reqwest::Response;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use crate::classify::{Asked, Reach, nothing};
use crate::client::HttpClient;
use crate::error::ExchangeError;
use crate::message::{Message, messages, trimmed};
use crate::send::{Outgoing, Reply, regardless};
use crate::sse::{EventStream, StreamEvent};
use crate::stage::OnStage;

/// How often a stream is resumed without a new event id.
const RESUMES: u32 = 3;
/// How long to wait before a stream is resumed, where the server does not say (`retry:`).
const RETRY: Duration = Duration::from_secs(1);
/// The shortest wait before a stream is resumed, whatever the server says. It doubles with each stream that brings no
/// message, up to [`LONGEST_FLOOR`].
const FLOOR: Duration = Duration::from_millis(100);
/// The bound on the doubling of [`FLOOR`]: a server that lets its clients poll for a long answer is asked this often.
const LONGEST_FLOOR: Duration = Duration::from_secs(5);
/// How much of what follows an answer is read so that the connection can be used again, and how long it is waited for.
const DRAIN_LIMIT: usize = 64 * 1024;
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a look at the endpoint of an old transport may take.
const LOOK_TIMEOUT: Duration = Duration::from_secs(2);

/// How reading a stream ended.
pub(crate) enum Read {
    /// The answer was in it.
    Answered,
    /// It ended before the answer.
    Cut(Cut),
}

/// How often a stream was resumed.
#[derive(Default)]
struct Resumes {
    after: Option<Arc<str>>,
    /// After the same event.
    in_vain: u32,
    /// Without a message since.
    empty: u32,
}

impl Resumes {
    /// The shortest wait before the next one.
    fn floor(&mut self) -> Duration {
        let floor = FLOOR.saturating_mul(1 << self.empty.min(10)).min(LONGEST_FLOOR);
        self.empty = self.empty.saturating_add(1);
        floor
    }
}

/// How a stream ended.
pub(crate) struct Cut {
    pub(crate) cause: String,
    /// By the server's own will, as far as can be seen.
    pub(crate) clean: bool,
    /// Whether it brought a message.
    pub(crate) brought: bool,
}

impl HttpClient {
    /// Sends a frame; what comes back goes to `frames`. Over when the answer has come, for a request, or the server has
    /// taken it, for anything else. Dropping it ends it on the wire.
    ///
    /// # Errors
    ///
    /// Why there is no answer, how far the request got, and what that says about the session.
    pub async fn exchange(&self, frame: &str, frames: &mpsc::Sender<Box<str>>) -> Result<Rest, ExchangeError> {
        self.exchange_in_stages(frame, frames, regardless()).await
    }

    /// As [`exchange`](Self::exchange), and tells how far the request is.
    ///
    /// # Errors
    ///
    /// As [`exchange`](Self::exchange).
    pub async fn exchange_in_stages(
        &self,
        frame: &str,
        frames: &mpsc::Sender<Box<str>>,
        on_stage: OnStage,
    ) -> Result<Rest, ExchangeError> {
        let message = Message::read(frame);
        let outgoing = Outgoing::post(frame, message.as_ref(), on_stage);
        let reply = match self.send(&outgoing).await {
            Ok(reply) => reply,
            Err(error) if outgoing.is_initialize() => return Err(self.blame_old_transport(error).await),
            Err(error) => {
                if error.sent != Sent::Maybe {
                    outgoing.waits();
                }
                return Err(error);
            }
        };
        let (mut response, session) = match reply {
            Reply::Stream(response, session) => (response, session),
            Reply::Body(body, status) => {
                self.deliver_body(&body, self.asked(&outgoing, false), status, frames).await?;
                return Ok(Rest { status, left: None });
            }
        };
        let status = response.status();
        if outgoing.is_initialize() {
            self.begin_session(response.headers());
        }
        let asked = self.asked(&outgoing, session);
        if asked.id.is_none() {
            return Ok(Rest { status, left: Some(response) });
        }
        if is_event_stream(&response) {
            let left = self.read_stream(response, asked, frames).await?;
            return Ok(Rest { status, left: Some(left) });
        }
        let body = self.read_body(&mut response).await?;
        if outgoing.is_greeting() && !asked.established && is_page(&response, &body) {
            let cause = format!("{} answers with a web page: this is no MCP endpoint", self.target());
            return Err(ExchangeError {
                status: Some(status),
                ..ExchangeError::new(FailureClass::Permanent, Sent::Maybe, Reach::Exchange, cause)
            });
        }
        self.deliver_body(&body, asked, status, frames).await?;
        Ok(Rest { status, left: None })
    }

    /// Asks whether the session is alive, with a request of its own.
    ///
    /// # Errors
    ///
    /// As [`exchange`](Self::exchange). An error that the server answers is a sign of life.
    pub async fn probe(&self) -> Result<(), ExchangeError> {
        // Other messages than the answer are dropped.
        let (frames, _) = mpsc::channel(1);
        self.exchange(&self.probe_frame(), &frames).await?.drain().await;
        Ok(())
    }

    /// Reads a stream, and those that it is resumed by, up to the answer; what is left of the last one.
    async fn read_stream(
        &self,
        mut response: Response,
        asked: Asked<'_>,
        frames: &mpsc::Sender<Box<str>>,
    ) -> Result<Response, ExchangeError> {
        let mut events = EventStream::new(self.server.frame_limit);
        let mut resumes = Resumes::default();
        loop {
            match self.read_events(&mut response, &mut events, asked, frames).await? {
                Read::Answered => return Ok(response),
                Read::Cut(cut) => response = self.resume(&events, &mut resumes, cut).await?,
            }
            events.resume();
        }
    }

    /// Asks for the rest of a stream that was cut.
    async fn resume(&self, events: &EventStream, resumes: &mut Resumes, cut: Cut) -> Result<Response, ExchangeError> {
        let mut cause = cut.cause;
        let mut hint = Duration::ZERO;
        if cut.brought {
            resumes.empty = 0;
        }
        loop {
            let last = events.last_event_id().filter(|_| !self.is_modern());
            let Some(last) = last else { return Err(ExchangeError::cut(cause)) };
            let Ok(id) = HeaderValue::from_bytes(last.as_bytes()) else {
                return Err(ExchangeError::cut(format!("{cause}; its last event id cannot be sent")));
            };
            if resumes.after.as_ref() != Some(last) {
                (resumes.after, resumes.in_vain) = (Some(last.clone()), 0);
            }
            if resumes.in_vain == RESUMES {
                return Err(ExchangeError::cut(format!("{cause}; resumed {RESUMES} times in vain")));
            }
            resumes.in_vain += 1;
            sleep(self.cap(events.retry().unwrap_or(RETRY)).max(hint).max(resumes.floor())).await;
            match self.send(&Outgoing::get(Some(id))).await {
                Ok(Reply::Stream(response, _)) if is_event_stream(&response) => return Ok(response),
                Ok(_) => return Err(ExchangeError::cut(format!("{cause}; the server does not resume streams"))),
                Err(error) if error.reach == Reach::Session => return Err(error.after_sending()),
                Err(error) if error.status.is_none_or(is_busy) => {
                    hint = self.cap(error.failure.retry_after.unwrap_or_default());
                    cause = error.cause.to_string();
                }
                Err(error) => return Err(ExchangeError::cut(format!("{cause}; not resumed: {error}"))),
            }
        }
    }

    /// Passes on what a stream holds, until the answer or the end.
    pub(crate) async fn read_events(
        &self,
        response: &mut Response,
        events: &mut EventStream,
        asked: Asked<'_>,
        frames: &mpsc::Sender<Box<str>>,
    ) -> Result<Read, ExchangeError> {
        let mut brought = false;
        loop {
            let mut chunk = match response.chunk().await {
                Ok(Some(chunk)) => chunk,
                Ok(None) => {
                    let cause = "the response stream ended before the answer".into();
                    return Ok(Read::Cut(Cut { cause, clean: true, brought }));
                }
                Err(error) => {
                    let cause = ExchangeError::request(&error, &self.way).cause.to_string();
                    return Ok(Read::Cut(Cut { cause, clean: false, brought }));
                }
            };
            self.touch();
            while let Some(event) = events.next(&mut chunk) {
                match event {
                    StreamEvent::Frame(frame) => {
                        brought = true;
                        for text in messages(&frame) {
                            if self.deliver(text, asked, response.status(), frames).await? {
                                return Ok(Read::Answered);
                            }
                        }
                    }
                    // To ask for it again would bring it again.
                    StreamEvent::TooLong if asked.id.is_none() => events.drop_id(),
                    StreamEvent::TooLong => {
                        let limit = self.server.frame_limit;
                        return Err(ExchangeError::unusable(format!("an event is longer than {limit} bytes")));
                    }
                    StreamEvent::Other(..) => {}
                }
            }
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
                Err(error) => return Err(ExchangeError::request(&error, &self.way).after_sending()),
            }
            self.touch();
        }
        // Bytes that are no UTF-8 are most likely within some text.
        Ok(String::from_utf8(body).unwrap_or_else(|body| String::from_utf8_lossy(body.as_bytes()).into_owned()))
    }

    async fn deliver_body(
        &self,
        body: &str,
        asked: Asked<'_>,
        status: StatusCode,
        frames: &mpsc::Sender<Box<str>>,
    ) -> Result<(), ExchangeError> {
        let mut answered = false;
        for text in messages(body) {
            answered |= self.deliver(text, asked, status, frames).await?;
        }
        if answered {
            return Ok(());
        }
        // An error that names another request is no answer to this one, and all there is.
        let error = messages(body).into_iter().find_map(|text| Message::read(text)?.rpc_error());
        let excerpt: String = trimmed(body).chars().take(200).collect();
        let cause = match excerpt.is_empty() {
            true => format!("HTTP {status} without an answer"),
            false => format!("the response holds no answer to the request: {excerpt}"),
        };
        Err(ExchangeError::refused(nothing(Asked { words: false, ..asked }, status, error), status, cause))
    }

    /// Passes a frame on; whether it is the answer. An error that names no request is the fate of the request
    /// whose response it is in.
    async fn deliver(
        &self,
        text: &str,
        asked: Asked<'_>,
        status: StatusCode,
        frames: &mpsc::Sender<Box<str>>,
    ) -> Result<bool, ExchangeError> {
        let message = Message::read(text);
        let answers = message.as_ref().is_some_and(|message| asked.id.is_some_and(|id| message.answers(id)));
        if let Some(message) = message.filter(|message| !answers && asked.id.is_some() && message.is_unaddressed())
            && let Some(error) = message.rpc_error()
        {
            let said = format!("{} (code {})", error.message, error.code);
            let refusal = nothing(asked, status, Some(error));
            let cause = if refusal.reach == Reach::Session {
                self.denied();
                format!("the server has lost the session: {said}")
            } else {
                format!("the server answered with an error that names no request: {said}")
            };
            return Err(ExchangeError::refused(refusal, status, cause));
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

/// The rest of a response, after its answer.
#[derive(Debug)]
#[must_use = "a connection whose body was read to the end can be used again"]
pub struct Rest {
    status: StatusCode,
    left: Option<Response>,
}

impl Rest {
    /// The status that the answer came with. An error of JSON-RPC may come with any.
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// Reads it to its end, so that the connection can be used again. A body that goes on is cut off.
    pub async fn drain(self) {
        let Some(mut response) = self.left else { return };
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

/// Whether a server may answer better to the same question later.
fn is_busy(status: StatusCode) -> bool {
    status == StatusCode::TOO_MANY_REQUESTS || status.is_server_error() && status != StatusCode::NOT_IMPLEMENTED
}

/// Whether an answer is for browsers.
fn is_page(response: &Response, body: &str) -> bool {
    let html = essence(response).is_some_and(|essence| essence.eq_ignore_ascii_case("text/html"));
    html && !trimmed(body).starts_with(['{', '['])
}

pub(crate) fn is_event_stream(response: &Response) -> bool {
    essence(response).is_some_and(|essence| essence.eq_ignore_ascii_case("text/event-stream"))
}

fn essence(response: &Response) -> Option<&str> {
    let content_type = response.headers().get(CONTENT_TYPE)?.to_str().ok()?;
    content_type.split(';').next().map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_without_a_message_are_resumed_more_and_more_slowly() {
        let mut resumes = Resumes::default();
        for wait in [100, 200, 400, 800, 1600, 3200, 5000, 5000] {
            assert_eq!(resumes.floor(), Duration::from_millis(wait));
        }
        resumes.empty = u32::MAX;
        assert_eq!(resumes.floor(), LONGEST_FLOOR);
    }
}
