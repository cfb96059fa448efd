//! The standing stream: what the server has to say outside of any exchange.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use mcp_reconnect_core::FailureClass;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use crate::client::{HttpClient, Outgoing, Reply};
use crate::error::{ExchangeError, Reach};
use crate::exchange::{RETRY, is_event_stream};
use crate::sse::EventStream;

/// A stream that ends sooner than this failed.
const QUICK: Duration = Duration::from_secs(1);
/// How often in a row it may fail quickly; then there is none in this session.
const QUICK_FAILURES: u32 = 5;

/// The standing GET stream of a session: optional, and open as long as the server likes. It has no idle timeout.
pub struct Standing {
    client: Arc<HttpClient>,
    events: EventStream,
    /// Whether it was ever open: then the server has the route.
    opened: bool,
    quick_failures: u32,
    /// When it may be opened again.
    next: Option<Instant>,
    absent: Option<Arc<str>>,
}

/// Why nothing comes from the standing stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StandingEnd {
    /// The server has none, or it fails all the time: there is none in this session. With the reason.
    Absent(Arc<str>),
    /// It broke in a way that may concern the session: a [`probe`](HttpClient::probe) tells. If the session is alive,
    /// [`run`](Standing::run) goes on.
    Doubt(ExchangeError),
    /// The server has disowned the session.
    Session(ExchangeError),
}

impl Standing {
    /// A stream of this session, not open yet.
    pub fn new(client: Arc<HttpClient>) -> Self {
        let events = EventStream::new(client.server.frame_limit);
        Self { client, events, opened: false, quick_failures: 0, next: None, absent: None }
    }

    /// Keeps the stream open and passes on what comes, until something else has to be done. Cancel safe: what was
    /// read has been passed on.
    pub async fn run(&mut self, frames: &mpsc::Sender<Box<str>>) -> StandingEnd {
        loop {
            if let Some(why) = &self.absent {
                return StandingEnd::Absent(why.clone());
            }
            if let Some(at) = self.next {
                sleep_until(at).await;
                self.next = None;
            }
            let last = self.events.last_event_id().cloned();
            let began = Instant::now();
            let cut = match self.client.send(&Outgoing::standing(last.as_deref(), self.opened)).await {
                Ok(Reply::Stream(response, _)) if is_event_stream(&response) => {
                    self.opened = true;
                    self.events.resume();
                    match self.client.read_standing(response, &mut self.events, frames).await {
                        Err(error) if error.failure.class == FailureClass::SessionGone => {
                            return StandingEnd::Session(error);
                        }
                        ended => ended.err(),
                    }
                }
                Ok(_) => return self.absent("the answer to GET is no event stream"),
                Err(error) if error.failure.class == FailureClass::SessionGone => return StandingEnd::Session(error),
                // Nothing but a missing route? The session can tell.
                Err(error)
                    if error.failure.class == FailureClass::NeedsAuth
                        || error.status == Some(StatusCode::NOT_FOUND) =>
                {
                    self.absent = Some(error.cause.clone());
                    return StandingEnd::Doubt(error);
                }
                Err(error) if error.failure.class != FailureClass::RateLimited && error.reach == Reach::Exchange => {
                    return self.absent(&error.cause);
                }
                Err(error) => Some(error),
            };
            if began.elapsed() >= QUICK {
                self.quick_failures = 0;
            } else {
                self.quick_failures += 1;
                if self.quick_failures >= QUICK_FAILURES {
                    let why = cut.map_or_else(|| "it ends at once".into(), |error| error.cause);
                    return self.absent(&why);
                }
            }
            let wait = cut.as_ref().and_then(|error| error.failure.retry_after).or(self.events.retry());
            self.next = Some(Instant::now() + wait.unwrap_or(RETRY));
            if let Some(error) = cut.filter(|error| error.reach == Reach::Doubt) {
                return StandingEnd::Doubt(error);
            }
        }
    }

    fn absent(&mut self, why: &str) -> StandingEnd {
        let why: Arc<str> = why.into();
        self.absent = Some(why.clone());
        StandingEnd::Absent(why)
    }
}

impl fmt::Debug for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Standing").field("opened", &self.opened).field("absent", &self.absent).finish_non_exhaustive()
    }
}
