//! The watch on a terminal: a table that follows the servers.

use std::io;
use std::time::Duration;

use crossterm::event::{Event as TerminalEvent, EventStream};
use futures::StreamExt as _;
use mcp_reconnect::config::{ConfigErrors, Parsed};
use mcp_reconnect::core::WakeCause;
use mcp_reconnect::fleet::{Fleet, FleetEvent};
use ratatui::DefaultTerminal;
use tokio::time::{Instant, sleep_until};

use super::super::signals::Signals;
use super::super::source::shown;
use super::file::ConfigFile;
use super::keys::{Action, action};
use super::table::View;

/// Shortest time between two drawings of the table: events come in crowds.
const FRAME: Duration = Duration::from_millis(50);
/// Time between two drawings while a time on the table runs.
const SECOND: Duration = Duration::from_secs(1);

/// Applies the config, and its versions to come, until the user or a signal ends it. The terminal is then as it was.
pub(super) async fn run(fleet: &Fleet, parsed: Parsed, file: &mut ConfigFile, signals: &mut Signals) -> io::Result<()> {
    let mut screen = Screen::open()?;
    let mut events = fleet.events();
    let mut keys = EventStream::new();
    let mut view = View::new(shown(file.path()));
    apply(fleet, &mut view, Ok(parsed));
    view.notices.extend(file.unseen.as_ref().map(|unseen| format!("warning: {unseen}")));
    // When it is drawn next; `None` while nothing on it moves.
    let mut due = Some(Instant::now());
    loop {
        let soon = Instant::now() + FRAME;
        tokio::select! {
            biased;
            _ = signals.next() => return Ok(()),
            () = at(due) => {
                view.servers = fleet.status();
                screen.0.draw(|frame| view.draw(frame))?;
                due = view.has_times().then(|| Instant::now() + SECOND);
                continue;
            }
            key = keys.next() => match key {
                Some(Ok(TerminalEvent::Key(key))) => match action(&key) {
                    Some(Action::Quit) => return Ok(()),
                    Some(wanted) => act(fleet, &mut view, file, wanted),
                    None => continue,
                },
                Some(Ok(TerminalEvent::Resize(..))) => {}
                Some(Ok(_)) => continue,
                Some(Err(error)) => return Err(error),
                None => return Err(io::ErrorKind::UnexpectedEof.into()),
            },
            version = file.next() => apply(fleet, &mut view, version),
            Some(event) = events.next() => {
                if let FleetEvent::Tools(diff) = event {
                    view.notices.extend(diff.notices.iter().map(ToString::to_string));
                }
            }
        }
        due = Some(due.map_or(soon, |due| due.min(soon)));
    }
}

async fn at(due: Option<Instant>) {
    match due {
        Some(due) => sleep_until(due).await,
        None => std::future::pending().await,
    }
}

fn act(fleet: &Fleet, view: &mut View, file: &ConfigFile, action: Action) {
    match action {
        Action::Up => view.select_next_to(-1),
        Action::Down => view.select_next_to(1),
        Action::Reload => apply(fleet, view, file.read()),
        Action::Wake | Action::Park => {
            let Some(server) = view.selected() else { return };
            let (is_known, done) = match action {
                Action::Wake => (fleet.wake(&server, WakeCause::Operator), "woken"),
                _ => (fleet.park(&server), "parked"),
            };
            view.notices = vec![format!("{server}: {}", if is_known { done } else { "not running" })];
        }
        Action::Quit => {}
    }
}

/// Applies the config to the fleet; a wrong one changes nothing.
fn apply(fleet: &Fleet, view: &mut View, version: Result<Parsed, ConfigErrors>) {
    let words = |kind: &str, problem: &mcp_reconnect::config::Problem| format!("{kind}: {problem}");
    view.notices = match version {
        Ok(parsed) => {
            let report = fleet.apply(parsed.config);
            let applied = format!("config applied: {report}");
            let warnings = parsed.warnings.iter().map(|warning| words("warning", warning));
            std::iter::once(applied).chain(warnings).collect()
        }
        Err(errors) => {
            let problems = errors.problems.iter().map(|problem| words("error", problem));
            let nothing = "the config is wrong: the servers stay as they are".to_owned();
            std::iter::once(nothing).chain(problems).collect()
        }
    };
    view.servers = fleet.status();
}

/// The terminal while it shows the table: as it was before when this is dropped, and when something panics.
struct Screen(DefaultTerminal);

impl Screen {
    fn open() -> io::Result<Self> {
        ratatui::try_init().map(Self).inspect_err(|_| drop(ratatui::try_restore()))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // A terminal that is gone needs none.
        drop(ratatui::try_restore());
    }
}
