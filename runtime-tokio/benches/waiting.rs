//! Callers that wait for a session: from the server's last word of the handshake to the last caller that runs. Time, and
//! so not for CI.

use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use mcp_reconnect::core::FailureClass;
use mcp_reconnect::link::{Attempt, ConnectError, Connector, Ended, Link, LinkControl, LinkFacts, Outbound};
use mcp_reconnect::{Connection, EraPolicy};
use tokio::runtime::Builder;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;

/// A server that answers `initialize` when it may, and nothing else.
#[derive(Default)]
struct Held(Arc<Notify>);

#[async_trait::async_trait]
impl Connector for Held {
    async fn connect(&self, attempt: Attempt) -> Result<Link, ConnectError> {
        let (outbound, frames) = mpsc::channel(8);
        let (answers, inbound) = mpsc::channel(8);
        let may = self.0.clone();
        attempt.tasks.spawn(async move {
            tokio::select! {
                () = serve(may, frames, answers) => {}
                () = attempt.cancel.cancelled() => {}
            }
        });
        Ok(Link { outbound, inbound, control: Arc::new(Nothing) })
    }
}

async fn serve(may: Arc<Notify>, mut frames: mpsc::Receiver<Outbound>, answers: mpsc::Sender<Box<str>>) {
    const RESULT: &str =
        r#"{"protocolVersion":"2025-11-25","capabilities":{},"serverInfo":{"name":"held","version":"1"}}"#;
    while let Some(mut frame) = frames.recv().await {
        if !frame.begin() {
            continue;
        }
        let request: serde_json::Value = serde_json::from_str(frame.frame()).expect("JSON");
        frame.finish(Ok(()));
        if request["method"] == "initialize" {
            may.notified().await;
            let answer = format!(r#"{{"jsonrpc":"2.0","id":{},"result":{RESULT}}}"#, request["id"]);
            answers.send(answer.into()).await.expect("somebody reads");
        }
    }
}

struct Nothing;

impl LinkControl for Nothing {
    fn kill(&self) {}

    fn close(&self) -> BoxFuture<'_, Ended> {
        self.why()
    }

    fn facts(&self) -> LinkFacts {
        LinkFacts::default()
    }

    fn why(&self) -> BoxFuture<'_, Ended> {
        std::future::ready(Ended { failure: FailureClass::Transport.into(), cause: "closed".into() }).boxed()
    }
}

/// One handshake that so many wait for.
async fn round(waiters: u32) -> Duration {
    let may = Arc::new(Notify::new());
    let builder = Connection::builder(Held(may.clone())).name("held").era(EraPolicy::Legacy);
    let connection = builder.build().expect("inside a runtime");
    let mut callers = JoinSet::new();
    for _ in 0..waiters {
        let connection = connection.clone();
        callers.spawn(async move { drop(connection.session().await.expect("a session")) });
    }
    // In which everybody has begun to wait.
    tokio::time::sleep(Duration::from_millis(5)).await;
    let began = Instant::now();
    may.notify_one();
    callers.join_all().await;
    let took = began.elapsed();
    connection.shutdown().await;
    took
}

fn waiting(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("waiting");
    group.sample_size(20);
    for waiters in [1, 1_000] {
        group.bench_function(format!("{waiters} callers"), |bencher| {
            let runtime = Builder::new_current_thread().enable_time().build().expect("a runtime");
            bencher.iter_custom(|rounds| {
                runtime.block_on(async {
                    let mut all = Duration::ZERO;
                    for _ in 0..rounds {
                        all += round(waiters).await;
                    }
                    all
                })
            });
        });
    }
    group.finish();
}

criterion_group!(benches, waiting);
criterion_main!(benches);
