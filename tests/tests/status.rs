//! What is told about a server: its status as data, its figures, and how little it writes into the log.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use mcp_reconnect::core::{FailureClass, ParkReason, Status};
use mcp_reconnect::{CallError, ServerState};
use metrics_util::debugging::{DebugValue, DebuggingRecorder};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::support::*;

#[tokio::test(start_paused = true)]
async fn a_status_says_everything_there_is_to_know() {
    let server = memory("tools a, b\nspawn 1:\n after 20s exit 7\nspawn 2..:\n start exit 3");
    let connection = connect(&server);
    let mut events = connection.events();
    until_ready(&mut events).await;
    tokio::time::sleep(secs(5)).await;
    let status = connection.status();
    assert_eq!((status.state, status.since, status.tools), (ServerState::Ready, secs(5), 2));
    let session = status.session.clone().expect("it is Ready");
    assert_eq!((session.epoch.get(), session.version.as_str()), (1, "2025-11-25"));
    assert_eq!(session.server, Some(("fake".into(), "1".into())));
    assert_eq!((status.last_failure, status.next_dial, status.breaker_open), (None, None, None));

    until_status(&mut events, |status| matches!(status, Status::Parked(_))).await;
    let status = connection.status();
    assert_eq!((status.state, status.park_reason), (ServerState::Parked, Some(ParkReason::Exhausted)));
    assert_eq!((status.session, status.tools), (None, 0));
    let failure = status.last_failure.expect("it failed");
    assert_eq!(failure.class, FailureClass::Transport);
    let cause = failure.cause.expect("in words");
    assert!(cause.contains("exit"), "{cause}");
    let next = status.next_dial.expect("it is probed");
    assert!(next > secs(55) && next <= secs(72), "{next:?}");
    assert_eq!(status.failures_in_a_row, status.stats.failures);

    let json = serde_json::to_value(connection.status()).unwrap();
    assert_eq!((&json["state"], &json["park_reason"]), (&"parked".into(), &"exhausted".into()));
    assert_eq!(json["last_failure"]["class"], "transport");
    assert!(json["next_dial"].as_f64().is_some_and(|seconds| seconds > 50.0), "{json}");
}

#[tokio::test(start_paused = true)]
async fn figures_are_what_happened() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let server = memory("call write error -32000 \"no\"\nspawn 1:\n after 20s exit 1");
    // Metrics are looked up where the connection is built.
    let connection = metrics::with_local_recorder(&recorder, || connect(&server));
    let mut events = connection.events();
    until_ready(&mut events).await;
    assert!(connection.call_tool(tool("echo")).await.is_ok());
    assert!(matches!(connection.call_tool(tool("write")).await, Err(CallError::Server { .. })));
    assert!(matches!(connection.call_tool(tool("none")).await, Err(CallError::NotOffered { .. })));
    until_ready(&mut events).await;
    connection.shutdown().await;
    let mut figures: Vec<_> = snapshotter
        .snapshot()
        .into_vec()
        .into_iter()
        .filter_map(|(key, _, _, value)| {
            let labels: Vec<_> = key.key().labels().map(|label| label.value().to_owned()).collect();
            let value = match value {
                DebugValue::Counter(count) => count.to_string(),
                DebugValue::Gauge(level) => level.to_string(),
                DebugValue::Histogram(samples) => format!("{} samples", samples.len()),
            };
            let name = key.key().name().strip_prefix("mcp_reconnect_")?.to_owned();
            (value != "0").then(|| format!("{name} {} {value}", labels.join(" ")))
        })
        .collect();
    figures.sort();
    assert_eq!(
        figures,
        [
            "call_seconds fake 3 samples",
            "calls_total fake not_run 1",
            "calls_total fake ok 1",
            "calls_total fake server_error 1",
            "dials_total fake 2",
            "failures_in_a_row fake 1",
            "failures_total fake 1",
            "sessions_total fake 2",
            "state fake SHUTDOWN 1",
        ]
    );
}

/// Counts what this project logs at `info` and above, and keeps the lines.
#[derive(Clone, Default)]
struct Lines {
    count: Arc<AtomicUsize>,
    text: Arc<Mutex<String>>,
}

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("mcp_reconnect") && *metadata.level() <= Level::INFO
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        struct Text<'a>(&'a mut String);
        impl Visit for Text<'_> {
            fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
                self.0.push_str(&format!("{field}={value:?} "));
            }
        }
        self.count.fetch_add(1, Ordering::Relaxed);
        let mut text = self.text.lock().unwrap();
        event.record(&mut Text(&mut text));
        text.push('\n');
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// Ways of being dead for a day: a line for each change, none for each attempt.
#[tokio::test(start_paused = true)]
async fn a_day_of_a_dead_server_is_a_short_story() {
    for script in [
        "start exit 1",
        "initialize never",
        "initialize exit 1",
        "on initialized delay 1s, exit 1",
        "list error -32603 \"broken\"",
        "initialize error -32000 \"no\"",
        "ping never\non initialized delay 5s, deaf",
    ] {
        let lines = Lines::default();
        let server = memory(script);
        let guard = tracing::subscriber::set_default(lines.clone());
        let connection = connect(&server);
        tokio::time::sleep(secs(86_400)).await;
        drop(guard);
        let (count, text) = (lines.count.load(Ordering::Relaxed), lines.text.lock().unwrap().clone());
        assert!((1..=50).contains(&count), "{script}: {count} lines in a day\n{text}");
        assert!(server.ledger().spawns() > 50 || script.contains("deaf"), "{script}: it was tried");
        drop(connection);
    }
}
