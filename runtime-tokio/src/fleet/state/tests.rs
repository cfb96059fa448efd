mod file;
mod saver;

use mcp_reconnect_core::{Epoch, ParkReason, PingSupport, Status};
use serde_json::json;
use serde_json::value::RawValue;

use super::*;
use crate::era::Era;

const SECOND: Duration = Duration::from_secs(1);
/// When the samples were saved.
const THEN: u64 = 1_780_000_000_000;

fn memory(status: Status, next_dial_in: Option<Duration>) -> Memory {
    Memory {
        status,
        next_dial_in,
        start_timeout: 30 * SECOND,
        pings: PingSupport::Unknown,
        probe_doublings: 2,
        failure: None,
        hint_in: None,
        last_dial_ago: None,
    }
}

fn server(digest: &str, status: Status, next_dial_in: Option<Duration>, tools: Option<&[&str]>) -> ServerState {
    let item = |text: &&str| Item::from_json(RawValue::from_string((*text).to_owned()).unwrap()).unwrap();
    ServerState {
        digest: digest.into(),
        saved_at: THEN,
        era: EraFacts {
            era: Some(Era::Legacy),
            version: Some("2025-06-18".into()),
            server: Some(("fake".into(), "1".into())),
        },
        memory: memory(status, next_dial_in),
        tools: tools.map(|tools| tools.iter().map(item).collect()),
        approvals: Value::Null,
    }
}

/// A tool with members that rmcp does not know, in an order and with spaces of its own.
const ODD_TOOL: &str = r#"{ "zz": [1.50, {"deep":"ü"}], "name":"odd",  "inputSchema":{"type":"object"} }"#;

fn sample() -> State {
    let mut ready = server("d1", Status::Ready(Epoch::FIRST), None, Some(&[ODD_TOOL]));
    ready.approvals = json!({ "odd": "sha256:00" });
    State::from_iter([
        ("ready \"ü\"".to_owned(), ready),
        ("parked".to_owned(), server("d2", Status::Parked(ParkReason::Exhausted), Some(61 * SECOND), Some(&[]))),
        ("never met".to_owned(), server("d3", Status::TransientFailure, Some(SECOND / 3), None)),
    ])
}

fn as_json(state: &State) -> Value {
    serde_json::to_value(state).unwrap()
}

#[test]
fn an_entry_says_what_the_format_says_and_no_more() {
    let json = as_json(&sample());
    let mut entry = json["ready \"ü\""].clone();
    let tools = entry["tools"].take();
    assert_eq!(
        entry,
        json!({
            "digest": "d1",
            "saved_at": THEN,
            "era": { "era": "legacy", "version": "2025-06-18", "server": ["fake", "1"] },
            "memory": {
                "status": { "ready": 1 },
                "next_dial_in": null,
                "start_timeout": { "secs": 30, "nanos": 0 },
                "pings": "unknown",
                "probe_doublings": 2,
            },
            "tools": null,
            "approvals": { "odd": "sha256:00" },
        })
    );
    assert_eq!(tools, json!([serde_json::from_str::<Value>(ODD_TOOL).unwrap()]));
    assert!(json["never met"].get("tools").is_none() && json["never met"].get("approvals").is_none());
}

#[test]
fn a_server_that_was_configured_anew_is_not_known() {
    let state = sample();
    assert!(state.server("parked", "d1").is_none());
    assert!(state.server("unheard of", "d1").is_none());
    assert_eq!(state.server("parked", "d2").unwrap().digest(), "d2");
}

#[test]
fn the_time_that_passed_is_taken_off_the_wait() {
    let state = sample();
    let left = |name: &str, digest: &str, now: u64| state.server_at(name, digest, now).unwrap().memory.next_dial_in;
    assert_eq!(left("parked", "d2", THEN), Some(61 * SECOND));
    assert_eq!(left("parked", "d2", THEN + 60_000), Some(SECOND));
    assert_eq!(left("parked", "d2", THEN + 61_000), Some(Duration::ZERO));
    assert_eq!(left("parked", "d2", u64::MAX), Some(Duration::ZERO));
    assert_eq!(left("ready \"ü\"", "d1", u64::MAX), None);
    // Set back.
    assert_eq!(left("parked", "d2", THEN - 60_000), Some(61 * SECOND));
    assert_eq!(left("parked", "d2", 0), Some(61 * SECOND));
}

#[test]
fn what_was_looked_up_late_and_saved_again_has_its_time_taken_off_once() {
    let server = sample().server_at("parked", "d2", THEN + 10_000).unwrap();
    let state = State::from_iter([("parked".to_owned(), server)]);
    let left = state.server_at("parked", "d2", THEN + 20_000).unwrap().memory.next_dial_in;
    assert_eq!(left, Some(41 * SECOND));
}

#[test]
fn a_catalogue_is_known_only_where_there_was_a_list() {
    let state = sample();
    let names = |name: &str, digest: &str| {
        let catalogue = state.server(name, digest).unwrap().catalogue()?;
        Some(catalogue.tools.items().iter().map(|tool| tool.name.to_string()).collect::<Vec<_>>())
    };
    assert_eq!(names("ready \"ü\"", "d1"), Some(vec!["odd".to_owned()]));
    assert_eq!(names("parked", "d2"), Some(vec![]));
    assert_eq!(names("never met", "d3"), None);
}
