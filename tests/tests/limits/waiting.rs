//! Callers that wait for a session.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::task::JoinSet;
use tokio::time::{Duration, Instant, sleep};

use crate::{each, hold, runtime, supervise, table};
use mcp_reconnect_tests::least::{Least, Server};

const WAITERS: u32 = 1_000;

/// Counts the polls of a future.
async fn counted<T>(polls: Arc<AtomicU64>, future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    poll_fn(|cx| {
        polls.fetch_add(1, Ordering::Relaxed);
        future.as_mut().poll(cx)
    })
    .await
}

/// Each is a task: of the callers in one task, tokio lets only so many go on at a time, and polls the others in vain.
#[test]
fn a_thousand_waiters_wake_together_and_poll_nothing_before() {
    let (runtime, server) = (runtime(), Server::closed(true));
    let polls = Arc::<AtomicU64>::default();
    let polled = || polls.load(Ordering::Relaxed);
    let (idle, after, asleep) = runtime.block_on(async {
        let connection = supervise(Least(server.clone()));
        let mut waiters = JoinSet::new();
        for _ in 0..WAITERS {
            let connection = connection.clone();
            waiters.spawn(counted(polls.clone(), async move { connection.session().await }));
        }
        sleep(Duration::from_secs(1)).await;
        let asked = polled();
        sleep(Duration::from_secs(9)).await;
        let (before, opened) = (polled(), Instant::now());
        server.open();
        let sessions = waiters.join_all().await;
        assert!(sessions.iter().all(Result::is_ok));
        (before - asked, polled() - before, opened.elapsed())
    });
    assert_eq!(asleep, Duration::ZERO, "somebody slept on");
    table("a thousand callers that wait for a session");
    hold("polls of all in nine seconds of a slow handshake", each(idle, 1), 0, "0");
    hold("polls of each from the handshake to its session", each(after, WAITERS), 1, "1");
}
