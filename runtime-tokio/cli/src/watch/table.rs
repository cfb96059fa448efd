//! The layout of the table.

use std::sync::Arc;

use mcp_reconnect::{ServerState, ServerStatus};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Cell, Paragraph, Row, Table, TableState, Wrap};

use super::super::text::{age, countdown, named, printable, spoken, state};

/// Columns that the last failure has at least, before others make room for it.
const FAILURE_WIDTH: usize = 24;
/// Columns that a server's name may have.
const NAME_WIDTH: usize = 24;
/// Lines of the selected server's details, their frame included.
const DETAILS: u16 = 6;
/// Number of notices shown; the rest are counted.
const NOTICES: usize = 8;

const KEYS: &str = "up/down select  w wake  p park  r reload  q quit";

/// The content of the table.
pub(super) struct View {
    /// The config's path, as it is shown.
    file: String,
    /// The servers' states, by name.
    pub(super) servers: Vec<ServerStatus>,
    /// Lines beside that: about the config, and about the user's last key.
    pub(super) notices: Vec<String>,
    selected: Option<Arc<str>>,
    table: TableState,
}

/// A column: title, width, readiness to make room (the highest first; 0 never), and cells.
struct Column {
    title: &'static str,
    width: usize,
    yields: u8,
    text: fn(&ServerStatus) -> String,
}

static COLUMNS: [Column; 10] = [
    Column { title: "server", width: 0, yields: 0, text: |it| printable(&it.name).into_owned() },
    Column { title: "state", width: 18, yields: 0, text: state },
    Column { title: "epoch", width: 5, yields: 4, text: |it| of_session(it, |session| session.epoch.to_string()) },
    Column { title: "since", width: 6, yields: 0, text: since },
    Column { title: "speaks", width: 17, yields: 6, text: |it| of_session(it, spoken) },
    Column { title: "tools", width: 5, yields: 3, text: |it| count(it.tools as u64) },
    Column { title: "calls", width: 5, yields: 7, text: |it| count(u64::from(it.in_flight)) },
    Column { title: "fails", width: 5, yields: 2, text: |it| count(it.failures_in_a_row) },
    Column { title: "next", width: 6, yields: 1, text: |it| it.next_dial.map(countdown).unwrap_or_default() },
    Column { title: "breaker", width: 11, yields: 5, text: breaker },
];

fn of_session(status: &ServerStatus, text: fn(&mcp_reconnect::SessionStatus) -> String) -> String {
    status.session.as_ref().map(text).unwrap_or_default()
}

fn since(status: &ServerStatus) -> String {
    if status.state == ServerState::Disabled { String::new() } else { age(status.since) }
}

fn count(count: u64) -> String {
    if count == 0 { "-".into() } else { count.to_string() }
}

fn breaker(status: &ServerStatus) -> String {
    match status.breaker_open {
        Some(left) => format!("open {}", countdown(left)),
        None if status.state == ServerState::Disabled => String::new(),
        None => "closed".into(),
    }
}

/// The last failure in one line.
fn failure(status: &ServerStatus) -> String {
    let Some(last) = &status.last_failure else { return String::new() };
    let cause = last.cause.as_deref().map(printable);
    cause.map_or_else(|| last.class.to_string(), |cause| cause.split_whitespace().collect::<Vec<_>>().join(" "))
}

fn colour(state: ServerState) -> Style {
    let colour = match state {
        ServerState::Ready => Color::Green,
        ServerState::Connecting => Color::Cyan,
        ServerState::TransientFailure => Color::Yellow,
        ServerState::Parked => Color::Red,
        _ => Color::DarkGray,
    };
    Style::new().fg(colour)
}

impl View {
    pub(super) fn new(file: String) -> Self {
        Self { file, servers: Vec::new(), notices: Vec::new(), selected: None, table: TableState::new() }
    }

    /// Whether something on it changes with time alone.
    pub(super) fn has_times(&self) -> bool {
        self.servers.iter().any(|server| server.state != ServerState::Disabled)
    }

    /// The server that the keys are about.
    pub(super) fn selected(&self) -> Option<Arc<str>> {
        self.servers.get(self.place()?).map(|server| server.name.clone())
    }

    /// Selects the server that is so many places after the selected one, if there is one.
    pub(super) fn select_next_to(&mut self, places: isize) {
        let place = self.place().and_then(|place| place.checked_add_signed(places));
        if let Some(server) = place.and_then(|place| self.servers.get(place)) {
            self.selected = Some(server.name.clone());
        }
    }

    /// The row of the selected server: that of its name, or the first.
    fn place(&self) -> Option<usize> {
        let found = self.servers.iter().position(|server| Some(&server.name) == self.selected.as_ref());
        found.or_else(|| (!self.servers.is_empty()).then_some(0))
    }

    pub(super) fn draw(&mut self, frame: &mut Frame<'_>) {
        let notices = self.notices();
        let lines = u16::try_from(notices.len()).unwrap_or(u16::MAX);
        let [head, table, details, notes, keys] = Layout::vertical([
            Constraint::Length(1),
            Constraint::Min(2),
            Constraint::Length(DETAILS),
            Constraint::Length(lines),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        let ready = self.servers.iter().filter(|server| server.state == ServerState::Ready).count();
        let title = format!("{}  {ready} of {} ready", self.file, self.servers.len());
        frame.render_widget(Line::styled(title, Modifier::BOLD), head);
        self.draw_table(frame, table);
        self.draw_details(frame, details);
        frame.render_widget(Paragraph::new(notices), notes);
        frame.render_widget(Line::styled(KEYS, Modifier::DIM), keys);
    }

    fn notices(&self) -> Vec<Line<'static>> {
        let mut lines: Vec<_> = self.notices.iter().map(|notice| printable(notice).into_owned()).collect();
        let more = lines.len().saturating_sub(NOTICES);
        lines.truncate(NOTICES);
        if more > 0 {
            lines.push(format!("… and {more} more"));
        }
        let style = |line: &str| match line.split(':').next() {
            Some("error") => Style::new().fg(Color::Red),
            Some("warning") => Style::new().fg(Color::Yellow),
            _ => Style::new(),
        };
        lines.into_iter().map(|line| Line::styled(line.clone(), style(&line))).collect()
    }

    fn draw_table(&mut self, frame: &mut Frame<'_>, area: Rect) {
        let names = self.servers.iter().map(|server| server.name.chars().count());
        let name_width = names.max().unwrap_or_default().clamp("server".len(), NAME_WIDTH);
        let columns = fitting(name_width, area.width.into());
        let width = |column: &Column| if column.width == 0 { name_width } else { column.width };
        let widths = columns.iter().map(|column| u16::try_from(width(column)).unwrap_or(u16::MAX));
        let widths = widths.map(Constraint::Length).chain([Constraint::Fill(1)]);
        let rows = self.servers.iter().map(|server| {
            let cells = columns.iter().map(|column| {
                let style = if column.title == "state" { colour(server.state) } else { Style::new() };
                Cell::new(Span::styled((column.text)(server), style))
            });
            Row::new(cells.chain([Cell::new(failure(server))]))
        });
        let titles = columns.iter().map(|column| column.title).chain(["last failure"]);
        let table = Table::new(rows, widths)
            .header(Row::new(titles).style(Modifier::DIM))
            .row_highlight_style(Modifier::REVERSED);
        self.table.select(self.place());
        frame.render_stateful_widget(table, area, &mut self.table);
    }

    fn draw_details(&self, frame: &mut Frame<'_>, area: Rect) {
        let server = self.place().and_then(|place| self.servers.get(place));
        let title = server.map(|server| format!(" {} ", printable(&server.name))).unwrap_or_default();
        let block = Block::new().borders(Borders::TOP).title(title);
        let lines = server.map(details).unwrap_or_default();
        frame.render_widget(Paragraph::new(lines).wrap(Wrap { trim: true }).block(block), area);
    }
}

/// The columns that there is room for beside the last failure.
fn fitting(name_width: usize, room: usize) -> Vec<&'static Column> {
    let mut columns: Vec<_> = COLUMNS.iter().collect();
    let needed = |columns: &[&Column]| {
        let own: usize = columns.iter().map(|column| if column.width == 0 { name_width } else { column.width }).sum();
        own + columns.len() + FAILURE_WIDTH
    };
    while needed(&columns) > room {
        let Some((place, column)) = columns.iter().enumerate().max_by_key(|(_, column)| column.yields) else { break };
        if column.yields == 0 {
            break;
        }
        columns.remove(place);
    }
    columns
}

/// All that is known of a server.
fn details(status: &ServerStatus) -> Vec<Line<'static>> {
    let mut first = vec![format!("{} for {}", state(status), age(status.since))];
    if let Some(session) = &status.session {
        first.extend([format!("epoch {}", session.epoch), spoken(session)]);
        first.extend(named(session));
        first.extend(session.pid.map(|pid| format!("pid {pid}")));
        first.extend(session.address.as_deref().map(|address| printable(address).into_owned()));
    }
    let mut second = vec![
        format!("{} tools", status.tools),
        format!("{} calls in flight, {} waiting", status.in_flight, status.waiting),
        format!("{} failures in a row", status.failures_in_a_row),
    ];
    second.extend(status.next_dial.map(|left| format!("next dial in {}", countdown(left))));
    second.extend(status.breaker_open.map(|left| format!("breaker open for {}", countdown(left))));
    let mut lines = vec![Line::raw(first.join(", ")), Line::raw(second.join(", "))];
    if let Some(last) = &status.last_failure {
        lines.push(Line::raw(format!("{}: {}", last.class, failure(status))));
    }
    lines
}

#[cfg(test)]
mod tests;
