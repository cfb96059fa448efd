//! The timeline of a replay: for people, with runs of like turns folded, or as JSON lines.

use std::io::{self, Write};

use anstyle::{AnsiColor, Style};
use mcp_reconnect::core::{Event, Input, Output, Status, Timestamp};
use mcp_reconnect::trace::Turn;
use serde_json::{Value, json};

use super::Played;
use super::words::{self, Said, clock, ordered, told};

const GOOD: Style = AnsiColor::Green.on_default();
const BAD: Style = AnsiColor::Red.on_default();
const ODD: Style = AnsiColor::Yellow.on_default();
const PLAIN: Style = Style::new();

/// The longest pattern of rows that is folded: a ping and its answer are two samples and two ticks, a dial that fails
/// is four rows.
const PATTERN: usize = 4;

struct Row {
    at: Timestamp,
    told: Said,
    orders: Vec<(Said, Style)>,
}

/// Prints the timeline.
pub(super) fn text(out: &mut impl Write, played: &Played<'_>) -> io::Result<()> {
    let header = &played.trace.header;
    let restored = if header.memory.is_some() { ", restored" } else { "" };
    writeln!(out, "{}: seed {}{restored}", header.name.escape_debug(), header.seed)?;
    let rows = rows(played);
    let mut next = 0;
    while next < rows.len() {
        let (length, times) = run(&rows[next..]);
        for row in &rows[next..next + length] {
            print(out, row, header.start)?;
        }
        next += length * times;
        if times > 1 {
            let lines = if length == 1 { "so".to_owned() } else { format!("these {length}") };
            let until = clock(rows[next - 1].at.since(header.start));
            writeln!(out, "{:>14}  {lines}, {times} times in all, until {until}", "⋮")?;
        }
    }
    end(out, played)
}

fn rows(played: &Played<'_>) -> Vec<Row> {
    let mut config = played.trace.header.config;
    let mut before = played.trace.header.machine().snapshot().state;
    let row = |turn: &Turn<'_>| {
        let at = turn.step.at;
        let told = told(at, &turn.step.input, &before, &config);
        if let Input::Retune(new) = turn.step.input {
            config = new;
        }
        before = turn.snapshot.state;
        let orders = turn.answer.outputs.iter().map(|output| (ordered(at, output), style(output))).collect();
        Row { at, told, orders }
    };
    let mut rows: Vec<Row> = Vec::new();
    let mut last = None;
    for (turn, row) in played.turns.iter().zip(played.turns.iter().map(row)) {
        match (turn.step.input, rows.last_mut()) {
            // How far a dial gets in one go is one row.
            (Input::Reached { epoch, flag }, Some(before))
                if before.orders.is_empty() && last == Some((epoch, turn.step.at)) =>
            {
                before.told.and(&format!(", {}", words::flag(flag)));
                before.orders = row.orders;
            }
            _ => rows.push(row),
        }
        last = match turn.step.input {
            Input::Reached { epoch, .. } => Some((epoch, turn.step.at)),
            _ => None,
        };
    }
    rows
}

const fn style(output: &Output) -> Style {
    match output {
        Output::Event(Event::StatusChanged { status, .. }) => match status {
            Status::Ready(_) => GOOD,
            Status::Parked(_) => BAD,
            Status::TransientFailure => ODD,
            Status::Idle | Status::Connecting | Status::Shutdown => PLAIN.bold(),
        },
        Output::Event(_) => ODD,
        Output::Dial { .. }
        | Output::Close { .. }
        | Output::Ping { .. }
        | Output::Ask { .. }
        | Output::Publish { .. }
        | Output::Withdraw
        | Output::Admit(_) => PLAIN,
    }
}

/// How many rows repeat at the start of these, and how often they come in all: the pattern that covers most.
fn run(rows: &[Row]) -> (usize, usize) {
    let alike = |one: &Row, other: &Row| {
        one.told.is_like(&other.told)
            && one.orders.len() == other.orders.len()
            && one.orders.iter().zip(&other.orders).all(|((one, _), (other, _))| one.is_like(other))
    };
    let times = |length: usize| {
        let again = rows[length..].iter().zip(rows).take_while(|(later, row)| alike(later, row)).count();
        1 + again / length
    };
    let folds = (1..=PATTERN.min(rows.len())).map(|length| (length, times(length))).filter(|&(_, times)| times > 2);
    // Of those that cover as much, the shortest.
    folds.rev().max_by_key(|(length, times)| length * times).unwrap_or((1, 1))
}

fn print(out: &mut impl Write, row: &Row, start: Timestamp) -> io::Result<()> {
    write!(out, "{:>14}  ", clock(row.at.since(start)))?;
    if row.orders.is_empty() {
        return writeln!(out, "{}", row.told);
    }
    write!(out, "{:<56}", row.told)?;
    for (place, (order, style)) in row.orders.iter().enumerate() {
        let comma = if place == 0 { " " } else { ", " };
        write!(out, "{comma}{style}{order}{style:#}")?;
    }
    writeln!(out)
}

fn end(out: &mut impl Write, played: &Played<'_>) -> io::Result<()> {
    if let Some(turn) = played.turns.last() {
        let (inputs, stats) = (played.turns.len(), turn.snapshot.stats);
        let took = clock(turn.step.at.since(played.trace.header.start));
        let (dials, sessions, failures) = (stats.dials, stats.sessions, stats.failures);
        writeln!(out, "{inputs} inputs in {took}; dials: {dials}, sessions: {sessions}, failures: {failures}")?;
    }
    if let Some(gap) = &played.gap {
        writeln!(out, "{ODD}{gap}{ODD:#}")?;
    }
    if let Some(line) = played.trace.cut {
        writeln!(out, "{ODD}line {line}, the last, is cut: it is left out{ODD:#}")?;
    }
    match (&played.difference, compared(played)) {
        (Some(difference), _) => writeln!(out, "{BAD}{difference}{BAD:#}"),
        (None, 0) => writeln!(out, "no answers were recorded, so none were compared"),
        (None, compared) => writeln!(out, "{GOOD}the {compared} answers that were recorded are the same{GOOD:#}"),
    }
}

fn compared(played: &Played<'_>) -> usize {
    played.turns.iter().filter(|turn| turn.step.answer.is_some()).count()
}

/// Prints JSON lines; `--help` documents them.
pub(super) fn json(out: &mut impl Write, played: &Played<'_>) -> io::Result<()> {
    let header = &played.trace.header;
    tell(out, "trace", serde_json::to_value(header)?)?;
    for turn in &played.turns {
        let step = turn.step;
        let fields = json!({
            "line": step.line,
            "at": step.at,
            "elapsed_ms": u64::try_from(step.at.since(header.start).as_millis()).unwrap_or(u64::MAX),
            "input": step.input,
            "outputs": turn.answer.outputs,
            "wake_at": turn.answer.wake_at,
            "status": turn.snapshot.status,
        });
        tell(out, "turn", fields)?;
    }
    if let Some(difference) = &played.difference {
        tell(out, "difference", serde_json::to_value(difference)?)?;
    }
    if let Some(gap) = &played.gap {
        tell(out, "gap", serde_json::to_value(gap)?)?;
    }
    if let Some(line) = played.trace.cut {
        tell(out, "cut", json!({ "line": line }))?;
    }
    let stats = played.turns.last().map(|turn| turn.snapshot.stats).unwrap_or_default();
    let fields = json!({
        "inputs": played.turns.len(),
        "compared": compared(played),
        "dials": stats.dials,
        "sessions": stats.sessions,
        "failures": stats.failures,
        "ok": played.difference.is_none(),
    });
    tell(out, "summary", fields)
}

fn tell(out: &mut impl Write, event: &str, fields: Value) -> io::Result<()> {
    let mut line = json!({ "event": event });
    if let (Value::Object(line), Value::Object(fields)) = (&mut line, fields) {
        line.extend(fields);
    }
    writeln!(out, "{line}")
}
