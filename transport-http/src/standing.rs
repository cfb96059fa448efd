//! The standing stream: what the server has to say outside of any exchange.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderValue;
use mcp_reconnect_core::FailureClass;
use reqwest::Response;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use crate::classify::{Asked, Reach};
use crate::client::HttpClient;
use crate::error::ExchangeError;
use crate::exchange::{Cut, Read, is_event_stream};
use crate::send::{Outgoing, Reply};
use crate::sse::EventStream;

/// The first wait before the stream is opened again. It doubles up to [`LONGEST_WAIT`], and starts anew after a stream
/// that was a success.
const FIRST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// A stream that lasts this long is a success, though it brings nothing.
const LASTING: Duration = Duration::from_secs(30);
/// How often in a row an event id may lead to a stream without a message.
const EMPTY: u32 = 2;
/// These answers to a GET that was never open in a session say that there is none in it.
const NOT_HERE: [u16; 6] = [400, 404, 405, 406, 415, 501];
const METHOD_NOT_FOUND: i64 = -32601;
/// These answers to a GET that was open before in its session may concern the session.
const DOUBTFUL: [u16; 5] = [400, 401, 403, 404, 410];

/// The standing GET stream of a session: optional, and open as long as the server likes. It has no idle timeout.
pub struct Standing {
    client: Arc<HttpClient>,
    events: EventStream,
    open: Option<Open>,
    /// Whether it was ever open: then the server has the route.
    opened: bool,
    waits: Waits,
    /// An event id that led to a stream without a message, and how often in a row.
    empty: Option<(Arc<str>, u32)>,
    /// When it may be opened again.
    next: Option<Instant>,
    absent: Option<Arc<str>>,
}

/// An open stream.
struct Open {
    response: Response,
    since: Instant,
    /// The event that it goes on after.
    after: Option<Arc<str>>,
}

/// News of the standing stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StandingEvent {
    /// It was open before, and is open again without going on after its last event: what the server had to say in
    /// between is lost. [`run`](Standing::run) goes on.
    Reopened,
    /// The server has none: there is none in this session. With the reason.
    Absent(Arc<str>),
    /// It broke, or is refused after it was open, which may concern the session. If the session is alive,
    /// [`run`](Standing::run) goes on.
    Doubt(ExchangeError),
    /// The session is given up already.
    Session(ExchangeError),
}

impl Standing {
    /// A stream of this session, not open yet.
    pub fn new(client: Arc<HttpClient>) -> Self {
        let events = EventStream::new(client.server.frame_limit);
        Self {
            client,
            events,
            open: None,
            opened: false,
            waits: Waits::default(),
            empty: None,
            next: None,
            absent: None,
        }
    }

    /// Keeps the stream open and passes on what comes, until there is something else to be known. Dropping the future
    /// keeps the stream; of a message that was just read it may lose the rest.
    pub async fn run(&mut self, frames: &mpsc::Sender<Box<str>>) -> StandingEvent {
        loop {
            if let Some(why) = &self.absent {
                return StandingEvent::Absent(why.clone());
            }
            let event = match self.open.is_some() {
                true => self.read(frames).await,
                false => self.open().await,
            };
            if let Some(event) = event {
                return event;
            }
        }
    }

    async fn read(&mut self, frames: &mpsc::Sender<Box<str>>) -> Option<StandingEvent> {
        let open = self.open.as_mut()?;
        let asked = Asked { session: true, established: true, ..Asked::default() };
        let read = self.client.read_events(&mut open.response, &mut self.events, asked, frames).await;
        let Open { since, after, .. } = self.open.take()?;
        // Nothing was asked, so nothing is answered.
        let Ok(Read::Cut(Cut { cause, clean, brought })) = read else {
            self.wait(false, None);
            return None;
        };
        self.empty = after.filter(|_| !brought).map(|id| match self.empty.take() {
            Some((known, times)) if known == id => (id, times + 1),
            Some(_) | None => (id, 1),
        });
        if self.empty.as_ref().is_some_and(|(id, times)| *times >= EMPTY && self.events.last_event_id() == Some(id)) {
            self.events.drop_id();
        }
        self.wait(brought || since.elapsed() >= LASTING, None);
        (!clean).then(|| StandingEvent::Doubt(ExchangeError::cut(cause)))
    }

    async fn open(&mut self) -> Option<StandingEvent> {
        if let Some(at) = self.next {
            sleep_until(at).await;
            self.next = None;
        }
        let mut after = self.events.last_event_id().cloned();
        let id = after.as_ref().and_then(|id| HeaderValue::from_bytes(id.as_bytes()).ok());
        if id.is_none() {
            self.events.drop_id();
            after = None;
        }
        let error = match self.client.send(&Outgoing::get(id)).await {
            Ok(Reply::Stream(response, _)) if is_event_stream(&response) => {
                self.events.resume();
                let reopened = std::mem::replace(&mut self.opened, true) && after.is_none();
                self.open = Some(Open { response, since: Instant::now(), after });
                return reopened.then_some(StandingEvent::Reopened);
            }
            Ok(_) if !self.opened => return Some(self.absent("the answer to GET is no event stream")),
            Ok(_) => {
                self.wait(false, None);
                return None;
            }
            Err(error) => error,
        };
        if error.failure.class == FailureClass::SessionGone {
            return Some(StandingEvent::Session(error));
        }
        let status = error.status.map(|status| status.as_u16());
        let unknown = error.rpc.as_ref().is_some_and(|(code, _)| *code == METHOD_NOT_FOUND);
        if !self.opened && (unknown || status.is_some_and(|status| NOT_HERE.contains(&status))) {
            return Some(self.absent(&error.cause));
        }
        self.wait(false, error.failure.retry_after);
        // Refused at first it is no doubt: there may never have been one.
        let doubt = self.opened && status.is_none_or(|status| DOUBTFUL.contains(&status));
        doubt.then_some(StandingEvent::Doubt(ExchangeError { reach: Reach::Doubt, ..error }))
    }

    /// Sets the time at which the stream may be opened again.
    fn wait(&mut self, success: bool, hint: Option<Duration>) {
        let [retry, hint] = [self.events.retry(), hint].map(|wait| wait.map(|wait| self.client.cap(wait)));
        self.next = Some(Instant::now() + self.waits.next(success, retry, hint));
    }

    fn absent(&mut self, why: &str) -> StandingEvent {
        let why: Arc<str> = why.into();
        self.absent = Some(why.clone());
        StandingEvent::Absent(why)
    }
}

/// How long to wait before the stream is opened again.
#[derive(Default)]
struct Waits {
    /// How often in a row there was no success.
    failures: u32,
}

impl Waits {
    fn next(&mut self, success: bool, retry: Option<Duration>, hint: Option<Duration>) -> Duration {
        if success {
            self.failures = 0;
        }
        let ladder = FIRST_WAIT.saturating_mul(1 << self.failures.min(10)).min(LONGEST_WAIT);
        self.failures = self.failures.saturating_add(1);
        ladder.max(retry.unwrap_or_default()).max(hint.unwrap_or_default())
    }
}

impl fmt::Debug for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Standing").field("opened", &self.opened).field("absent", &self.absent).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn waits_double_up_to_a_minute_and_start_anew_after_a_success() {
        let mut waits = Waits::default();
        for wait in [1, 2, 4, 8, 16, 32, 60, 60] {
            assert_eq!(waits.next(false, None, None), seconds(wait));
        }
        waits.failures = u32::MAX;
        assert_eq!(waits.next(false, None, None), seconds(60));
        for wait in [1, 1] {
            assert_eq!(waits.next(true, None, None), seconds(wait));
        }
        assert_eq!(waits.next(false, None, None), seconds(2));
    }

    #[test]
    fn the_longest_of_all_waits_counts() {
        assert_eq!(Waits::default().next(false, Some(Duration::ZERO), Some(Duration::ZERO)), seconds(1));
        assert_eq!(Waits::default().next(false, Some(seconds(3)), Some(seconds(2))), seconds(3));
        assert_eq!(Waits::default().next(true, Some(seconds(2)), Some(seconds(100))), seconds(100));
    }
}
