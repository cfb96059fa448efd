//! Callers that wait for a session.

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::pin;

use futures::future::join_all;
use tokio::time::{Duration, Instant, sleep};

use crate::{each, hold, runtime, supervise, table};
use mcp_reconnect_tests::least::{Least, Server};

const WAITERS: u32 = 1_000;

/// The same, with its polls counted.
async fn counted<T>(polls: &Cell<u64>, future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    poll_fn(|cx| {
        polls.set(polls.get() + 1);
        future.as_mut().poll(cx)
    })
    .await
}

#[test]
fn a_thousand_waiters_are_woken_together_and_look_at_nothing_before() {
    let (runtime, server) = (runtime(), Server::closed(true));
    let polls = Cell::new(0);
    let (before, after, asleep) = runtime.block_on(async {
        let connection = supervise(Least(server.clone()));
        let all = join_all((0..WAITERS).map(|_| counted(&polls, connection.session())));
        let open = async {
            sleep(Duration::from_secs(1)).await;
            let asked = polls.get();
            sleep(Duration::from_secs(9)).await;
            let before = polls.get();
            server.open();
            (before - asked, before, Instant::now())
        };
        let (sessions, (idle, before, opened)) = tokio::join!(all, open);
        assert!(sessions.iter().all(Result::is_ok));
        (idle, polls.get() - before, opened.elapsed())
    });
    assert_eq!(asleep, Duration::ZERO, "somebody slept on");
    table("a thousand callers that wait for a session");
    hold("polls of all in nine seconds of a slow handshake", each(before, 1), 0, "0");
    hold("polls of each from the handshake to its session", each(after, WAITERS), 5, "1");
}
