mod file;
mod saver;

use mcp_reconnect_core::{Epoch, FailureClass, ParkReason, PingSupport, Status};
use serde_json::json;
use serde_json::value::RawValue;

use super::*;
use crate::protocol::Era;

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

fn server(digest: &str, status: Status, next_dial_in: Option<Duration>, tools: Option<&[&str]>) -> SavedServer {
    let item = |text: &&str| Item::from_json(RawValue::from_string((*text).to_owned()).unwrap()).unwrap();
    SavedServer {
        digest: digest.into(),
        saved_at: THEN,
        era: EraFacts {
            era: Some(Era::Legacy),
            version: Some("2025-06-18".into()),
            server: Some(("fake".into(), "1".into())),
        },
        memory: memory(status, next_dial_in),
        last_dial_at: None,
        cause: None,
        tools: tools.map(|tools| tools.iter().map(item).collect()),
        approvals: Value::Null,
    }
}

/// A tool with members that rmcp does not know, in an order and with spaces of its own.
const ODD_TOOL: &str = r#"{ "zz": [1.50, {"deep":"ü"}], "name":"odd",  "inputSchema":{"type":"object"} }"#;

fn sample() -> SavedState {
    let mut ready = server("d1", Status::Ready(Epoch::FIRST), None, Some(&[ODD_TOOL]));
    ready.approvals = json!({ "odd": "sha256:00" });
    SavedState::from_iter([
        ("ready \"ü\"".to_owned(), ready),
        ("parked".to_owned(), server("d2", Status::Parked(ParkReason::Exhausted), Some(61 * SECOND), Some(&[]))),
        ("never met".to_owned(), server("d3", Status::TransientFailure, Some(SECOND / 3), None)),
    ])
}

fn as_json(state: &SavedState) -> Value {
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

/// A server that asked to be left alone for 600 s, 20 s after the dial that it refused, as it is saved.
fn limited() -> SavedServer {
    let mut server = server("d1", Status::TransientFailure, Some(580 * SECOND), None);
    server.memory.failure = Some(FailureClass::RateLimited);
    server.memory.hint_in = Some(580 * SECOND);
    server.last_dial_at = Some(THEN - 20_000);
    server.cause = Some("HTTP 429".into());
    server
}

#[test]
fn a_last_dial_is_kept_by_the_wall_clock() {
    let json = serde_json::to_value(limited()).unwrap();
    assert_eq!(json["last_dial_at"], json!(THEN - 20_000));
    assert_eq!(json["cause"], json!("HTTP 429"));
    assert!(!json["memory"].as_object().unwrap().contains_key("last_dial_ago"), "{json}");
    let state = SavedState::from_iter([("a".to_owned(), limited())]);
    let at = |now: u64| {
        let server = state.server_at("a", "d1", now).unwrap();
        (server.memory().last_dial_ago.unwrap(), server.memory.hint_in, server.last_dial_at.unwrap())
    };
    assert_eq!(at(THEN), (20 * SECOND, Some(580 * SECOND), THEN - 20_000));
    assert_eq!(at(THEN + 100_000), (120 * SECOND, Some(480 * SECOND), THEN - 20_000));
    assert_eq!(at(THEN + 580_000), (600 * SECOND, None, THEN - 20_000));
    // A clock that was set back: to before the save, to before the dial. That one counts as made now.
    assert_eq!(at(THEN - 15_000), (5 * SECOND, Some(580 * SECOND), THEN - 20_000));
    assert_eq!(at(THEN - 60_000), (Duration::ZERO, Some(580 * SECOND), THEN - 60_000));
    assert_eq!(at(0), (Duration::ZERO, Some(580 * SECOND), 0));
}

#[test]
fn an_entry_of_version_1_is_read() {
    let entry = json!({
        "digest": "d1",
        "saved_at": THEN,
        "era": { "era": "legacy", "version": "2025-06-18", "server": ["fake", "1"] },
        "memory": {
            "status": { "parked": "needs_auth" },
            "next_dial_in": null,
            "start_timeout": { "secs": 30, "nanos": 0 },
            "pings": "mute",
            "probe_doublings": 2,
        },
    });
    let server: SavedServer = serde_json::from_value(entry).unwrap();
    let mut expected = memory(Status::Parked(ParkReason::NeedsAuth), None);
    expected.pings = PingSupport::Silent;
    assert_eq!((server.memory(), &server.cause), (expected, &None));
    let server = SavedState::from_iter([("a".to_owned(), server)]).server_at("a", "d1", THEN + 1).unwrap();
    assert_eq!(server.memory(), expected, "nothing is made up");
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
fn time_is_taken_off_once_when_saved_again_after_a_late_look_up() {
    let server = sample().server_at("parked", "d2", THEN + 10_000).unwrap();
    let state = SavedState::from_iter([("parked".to_owned(), server)]);
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
