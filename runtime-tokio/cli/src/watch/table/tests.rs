//! The table on a terminal that is a buffer, of a fleet whose servers stand as fleets' servers do.

use std::time::Duration;

use async_trait::async_trait;
use mcp_reconnect::LastFailure;
use mcp_reconnect::config::{Custom, FleetConfig, ServerConfig};
use mcp_reconnect::core::{FailureClass, ParkReason};
use mcp_reconnect::fleet::{Fleet, Select};
use mcp_reconnect::link::{Attempt, ConnectError, Connector, Link};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;

use super::*;

/// So many servers that are known and disabled, to be changed as a test needs them.
fn servers(names: &[&str]) -> Vec<ServerStatus> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let _guard = runtime.enter();
    let fleet = Fleet::builder().build().unwrap();
    let mut disabled = ServerConfig::stdio("server", [""; 0]);
    disabled.enabled = false;
    let config = names.iter().fold(FleetConfig::default(), |config, name| config.with(*name, disabled.clone()));
    fleet.apply(config);
    fleet.status()
}

fn view(names: &[&str]) -> View {
    let mut view = View::new("mcp.json".into());
    view.servers = servers(names);
    view
}

fn draw(view: &mut View, width: u16, height: u16) -> Buffer {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| view.draw(frame)).unwrap();
    terminal.backend().buffer().clone()
}

fn lines(buffer: &Buffer) -> Vec<String> {
    let row = |y| (0..buffer.area.width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
    (0..buffer.area.height).map(|y| row(y).trim_end().to_owned()).collect()
}

fn down(server: &mut ServerStatus) {
    server.state = ServerState::TransientFailure;
    server.since = Duration::from_secs(75);
    server.failures_in_a_row = 3;
    server.next_dial = Some(Duration::from_millis(3_200));
    server.last_failure = Some(last_failure());
}

struct Failing;

#[async_trait]
impl Connector for Failing {
    async fn connect(&self, _: Attempt) -> Result<Link, ConnectError> {
        Err(ConnectError::new(FailureClass::Permanent, "exited with status 1;\nstderr: no \x1b[2J config"))
    }
}

/// The failure of a server that fails so.
fn last_failure() -> LastFailure {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let fleet = Fleet::builder().build().unwrap();
        fleet.apply(FleetConfig::default().with("failing", ServerConfig::new(Custom::new("", Failing))));
        let readiness = fleet.ready(&Select::All, Duration::from_secs(60)).await;
        readiness.not_ready[0].last_failure.clone().expect("it failed")
    })
}

#[test]
fn each_server_has_its_row() {
    let mut view = view(&["files", "search", "time"]);
    view.servers[0].state = ServerState::Ready;
    view.servers[0].tools = 12;
    view.servers[0].in_flight = 2;
    view.servers[0].breaker_open = Some(Duration::from_secs(29));
    down(&mut view.servers[1]);
    let buffer = draw(&mut view, 150, 14);
    let lines = lines(&buffer);
    assert_eq!(lines[0], "mcp.json  1 of 3 ready");
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>().join(" ");
    assert_eq!(words(&lines[1]), "server state epoch since speaks tools calls fails next breaker last failure");
    assert_eq!(words(&lines[2]), "files ready 0s 12 2 - open 29s");
    let failure = "exited with status 1; stderr: no \u{fffd}[2J config";
    assert_eq!(words(&lines[3]), format!("search transient failure 1m15 - - 3 4s closed {failure}"));
    assert_eq!(words(&lines[4]), "time disabled - - -");
    assert_eq!(lines[13], KEYS);
    // The state has its colour, and the selected row stands out.
    let x = u16::try_from(lines[2].find("ready").unwrap()).unwrap();
    assert_eq!(
        (buffer[(x, 2)].fg, buffer[(x, 3)].fg, buffer[(x, 4)].fg),
        (Color::Green, Color::Yellow, Color::DarkGray)
    );
    assert!(
        buffer[(0, 2)].modifier.contains(Modifier::REVERSED) && !buffer[(0, 3)].modifier.contains(Modifier::REVERSED)
    );
}

#[test]
fn a_park_tells_its_reason() {
    let mut view = view(&["files"]);
    for (reason, words) in [
        (ParkReason::Exhausted, "parked: exhausted"),
        (ParkReason::Flapping, "parked: flapping"),
        (ParkReason::Permanent, "parked: permanent"),
        (ParkReason::NeedsAuth, "parked: needs auth"),
        (ParkReason::Requested, "parked: requested"),
    ] {
        (view.servers[0].state, view.servers[0].park_reason) = (ServerState::Parked, Some(reason));
        let buffer = draw(&mut view, 80, 12);
        let lines = lines(&buffer);
        assert!(lines[2].contains(&format!("  {words} ")), "whole, also where it is narrow: {lines:?}");
        let x = u16::try_from(lines[2].find("parked").unwrap()).unwrap();
        assert_eq!(buffer[(x, 2)].fg, Color::Red);
    }
}

#[test]
fn what_has_no_room_in_the_table_is_in_the_details() {
    let mut view = view(&["a-server-whose-name-is-longer-than-all-others", "search"]);
    view.select_next_to(1);
    down(&mut view.servers[1]);
    let lines = lines(&draw(&mut view, 80, 14));
    assert!(lines[1].contains("state") && lines[1].contains("since") && lines[1].contains("last failure"), "{lines:?}");
    assert!(!lines[1].contains("speaks") && !lines[1].contains("breaker"), "{lines:?}");
    assert!(lines[2].starts_with("a-server-whose-name-is-l "), "{lines:?}");
    let details = lines.iter().position(|line| line.starts_with(" search ")).expect("its details");
    assert_eq!(lines[details + 1], "transient failure for 1m15");
    assert_eq!(lines[details + 2], "0 tools, 0 calls in flight, 0 waiting, 3 failures in a row, next dial in 4s");
    assert_eq!(lines[details + 3], "permanent: exited with status 1; stderr: no \u{fffd}[2J config");
}

#[test]
fn the_selection_follows_its_server() {
    let mut view = view(&["b", "d"]);
    assert_eq!(view.selected().as_deref(), Some("b"), "the first");
    view.select_next_to(1);
    view.select_next_to(1);
    assert_eq!(view.selected().as_deref(), Some("d"), "the last");
    view.servers = servers(&["a", "c", "d", "e"]);
    assert_eq!(view.selected().as_deref(), Some("d"));
    view.select_next_to(-1);
    assert_eq!(view.selected().as_deref(), Some("c"));
    view.servers = servers(&["a", "b"]);
    assert_eq!(view.selected().as_deref(), Some("a"), "it is gone");
    view.servers.clear();
    view.select_next_to(1);
    assert_eq!(view.selected(), None);
    assert!(!view.has_times());
    draw(&mut view, 80, 12);
}

#[test]
fn every_server_can_be_scrolled_to() {
    let names: Vec<_> = (0..40).map(|n| format!("server-{n:02}")).collect();
    let mut view = view(&names.iter().map(String::as_str).collect::<Vec<_>>());
    for _ in 0..39 {
        view.select_next_to(1);
    }
    let lines = lines(&draw(&mut view, 100, 16));
    assert!(lines.iter().any(|line| line.starts_with("server-39 ")), "{lines:?}");
    assert!(!lines.iter().any(|line| line.starts_with("server-00 ")), "{lines:?}");
}

#[test]
fn notices_are_whole_lines_and_bounded() {
    let mut view = view(&["a"]);
    view.notices = (0..20).map(|n| format!("error: problem {n}\n")).collect();
    let buffer = draw(&mut view, 80, 30);
    let lines = lines(&buffer);
    let first = lines.iter().position(|line| line == "error: problem 0").expect("the first");
    assert_eq!(buffer[(0, u16::try_from(first).unwrap())].fg, Color::Red);
    assert_eq!(lines[first + NOTICES], "… and 12 more");
    assert_eq!(lines[29], KEYS);
}

#[test]
fn the_smallest_terminal_is_drawn_on() {
    let mut view = view(&["a", "b"]);
    down(&mut view.servers[0]);
    for (width, height) in [(1, 1), (10, 3), (20, 8)] {
        draw(&mut view, width, height);
    }
}
