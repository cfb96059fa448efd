use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use mcp_reconnect::core::Status;
use mcp_reconnect::{Connection, EraPolicy};
use mcp_reconnect_tests::least::{Least, Server};
use serde_json::{Value, json};
use tokio::runtime::Builder;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// In which everybody has begun to wait.
const SETTLE: Duration = Duration::from_millis(20);

/// How a caller waits.
#[derive(Clone, Copy)]
enum How {
    /// `Connection::session`.
    Session,
    /// A look at the state, and again after so long.
    Poll(Duration),
    /// A bare `watch` channel: what tokio takes to wake so many tasks.
    Bare,
}

/// The time of each caller in each round, in nanoseconds.
pub(crate) fn run(runtime: &str, how: &str, waiters: u32, rounds: u32) -> Option<Value> {
    let how = match how.strip_prefix("poll-") {
        Some(millis) => How::Poll(Duration::from_millis(millis.parse().ok()?)),
        None if how == "session" => How::Session,
        None if how == "bare" => How::Bare,
        None => return None,
    };
    let runtime = match runtime {
        "multi" => Builder::new_multi_thread().enable_time().build(),
        "current" => Builder::new_current_thread().enable_time().build(),
        _ => return None,
    };
    let published = Published::default();
    tracing::subscriber::set_global_default(published.clone()).expect("the first one");
    // On a task, as callers are: the main thread is none of the workers.
    let rounds = async move {
        let mut nanos = Vec::new();
        for round in 0..rounds {
            let waited = once(how, waiters, f64::from(round) / f64::from(rounds), &published).await;
            nanos.extend(waited.iter().map(|waited| waited.as_nanos() as u64));
        }
        nanos
    };
    let runtime = runtime.expect("a runtime");
    let nanos = runtime.block_on(async { tokio::spawn(rounds).await.expect("no caller panics") });
    Some(json!({ "nanos": nanos }))
}

/// One handshake, and how long after it each caller runs. `phase`: of 0 to 1, at which point of a caller's pause it ends.
async fn once(how: How, waiters: u32, phase: f64, published: &Published) -> Vec<Duration> {
    if matches!(how, How::Bare) {
        return bare(waiters).await;
    }
    let server = Server::closed(true);
    let builder = Connection::builder(Least(server.clone())).name("waiting").era(EraPolicy::Legacy);
    let connection = builder.build().expect("inside a runtime");
    let mut callers = JoinSet::new();
    for caller in 0..waiters {
        let connection = connection.clone();
        callers.spawn(async move {
            match how {
                How::Session | How::Bare => drop(connection.session().await.expect("a session")),
                How::Poll(pause) => {
                    // Not all at the same time: callers come as they come.
                    sleep(pause.mul_f64(f64::from(caller) / f64::from(waiters))).await;
                    while !matches!(connection.snapshot().status, Status::Ready(_)) {
                        sleep(pause).await;
                    }
                }
            }
            Instant::now()
        });
    }
    sleep(SETTLE).await;
    if let How::Poll(pause) = how {
        sleep(pause.mul_f64(1.0 + phase)).await;
    }
    server.open();
    let ran = callers.join_all().await;
    let at = published.last();
    connection.shutdown().await;
    ran.into_iter().map(|ran| ran.saturating_duration_since(at)).collect()
}

async fn bare(waiters: u32) -> Vec<Duration> {
    let (publish, published) = watch::channel(false);
    let mut callers = JoinSet::new();
    for _ in 0..waiters {
        let mut published = published.clone();
        callers.spawn(async move {
            published.wait_for(|ready| *ready).await.expect("somebody publishes");
            Instant::now()
        });
    }
    sleep(SETTLE).await;
    let at = Instant::now();
    publish.send_replace(true);
    callers.join_all().await.into_iter().map(|ran| ran.saturating_duration_since(at)).collect()
}

/// Notes when the owner last told its status: it does so in the turn in which it publishes it, right before.
#[derive(Clone, Default)]
struct Published(Arc<Mutex<Option<Instant>>>);

impl Published {
    fn last(&self) -> Instant {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).expect("a status was told")
    }
}

impl Subscriber for Published {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && metadata.target() == "mcp_reconnect::connection::owner"
    }

    fn event(&self, _: &Event<'_>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}
