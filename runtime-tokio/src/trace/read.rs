//! Reading a trace: line by line, and saying which one is wrong.

use std::fmt;
use std::io::{self, BufRead, Read as _};
use std::num::NonZeroU64;

use mcp_reconnect_core::{Input, Output, Timestamp};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Number, Value};

use super::format::{Answer, Entry, FORMAT, Header, OLDEST, Step, Trace, VERSION};

/// The longest line that is read, in bytes; those that are written have a few thousand at most.
const MAX_LINE: usize = 64 * 1024;

/// Why something could not be read as a trace.
#[derive(Debug)]
#[non_exhaustive]
pub enum TraceError {
    /// The reader failed.
    Io(io::Error),
    /// There is nothing in it.
    Empty,
    /// The first line is not the header of a trace.
    NotATrace {
        /// How it differs from a trace.
        problem: String,
    },
    /// It is a trace of another version.
    Version {
        /// Which, as JSON.
        found: String,
    },
    /// A line cannot be understood.
    Line {
        /// Its number, counted from 1.
        line: usize,
        /// Where in it, in bytes, counted from 1; 0: all of it.
        column: usize,
        /// The problem, in words.
        problem: String,
    },
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => write!(f, "it cannot be read: {error}"),
            Self::Empty => f.write_str("it is empty"),
            Self::NotATrace { problem } => write!(f, "it is no trace: {problem}"),
            Self::Version { found } => {
                write!(f, "it is a trace of version {found}; versions {OLDEST} to {VERSION} can be read")
            }
            Self::Line { line, column: 0, problem } => write!(f, "line {line}: {problem}"),
            Self::Line { line, column, problem } => write!(f, "line {line}, column {column}: {problem}"),
        }
    }
}

impl std::error::Error for TraceError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io(error) => Some(error),
            Self::Empty | Self::NotATrace { .. } | Self::Version { .. } | Self::Line { .. } => None,
        }
    }
}

/// Reads a whole trace. Blank lines count but say nothing. A last line that has no end and makes no sense was cut when
/// its writer ended: it is left out, and [`Trace::cut`] tells of it.
///
/// # Errors
///
/// The first thing that is wrong, with the number of its line: another version, a line that cannot be understood or
/// is longer than 64 KiB, or what the reader fails with.
pub fn read(reader: impl BufRead) -> Result<Trace, TraceError> {
    let mut lines = Lines { reader, number: 0, bytes: Vec::new() };
    let Some(first) = lines.next()? else { return Err(TraceError::Empty) };
    let mut trace = Trace { header: header(&first)?, entries: Vec::new(), cut: None };
    while let Some(line) = lines.next()? {
        match entry(&line, &mut trace.entries) {
            Ok(()) => {}
            Err(_) if !line.ended => trace.cut = Some(line.number),
            Err(error) => return Err(error),
        }
    }
    Ok(trace)
}

struct Lines<R> {
    reader: R,
    number: usize,
    bytes: Vec<u8>,
}

struct Line<'a> {
    number: usize,
    text: &'a [u8],
    /// Whether it has a line end.
    ended: bool,
}

impl<R: BufRead> Lines<R> {
    /// The next line that is not blank.
    fn next(&mut self) -> Result<Option<Line<'_>>, TraceError> {
        loop {
            self.bytes.clear();
            let limit = u64::try_from(MAX_LINE).unwrap_or(u64::MAX) + 1;
            self.reader.by_ref().take(limit).read_until(b'\n', &mut self.bytes).map_err(TraceError::Io)?;
            if self.bytes.is_empty() {
                return Ok(None);
            }
            self.number += 1;
            let ended = self.bytes.last() == Some(&b'\n');
            if !ended && self.bytes.len() > MAX_LINE {
                return Err(problem(self.number, format!("it is longer than {MAX_LINE} bytes")));
            }
            if !self.bytes.trim_ascii().is_empty() {
                return Ok(Some(Line { number: self.number, text: self.bytes.trim_ascii(), ended }));
            }
        }
    }
}

/// Tells a header from other JSON, and one version from another.
#[derive(Deserialize)]
struct Kind {
    format: Option<Value>,
    version: Option<Value>,
}

fn header(line: &Line<'_>) -> Result<Header, TraceError> {
    let not_a_trace = |problem: String| TraceError::NotATrace { problem };
    let kind: Kind = parse(line).map_err(|error| not_a_trace(error.to_string()))?;
    match kind.format {
        Some(Value::String(format)) if format == FORMAT => {}
        Some(other) => return Err(not_a_trace(format!("its format is {}", short(&other)))),
        None => return Err(not_a_trace("its first line names no format".into())),
    }
    match kind.version {
        Some(Value::Number(version)) if is_read(&version) => parse(line),
        Some(other) => Err(TraceError::Version { found: short(&other) }),
        None => Err(not_a_trace("its first line names no version".into())),
    }
}

fn is_read(version: &Number) -> bool {
    version.as_u64().is_some_and(|version| (OLDEST.into()..=VERSION.into()).contains(&version))
}

/// Every line after the header, whichever it is.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields {
    at: Option<Timestamp>,
    #[serde(rename = "in")]
    input: Option<Input>,
    out: Option<Vec<Output>>,
    wake_at: Option<Timestamp>,
    dropped: Option<NonZeroU64>,
}

fn entry(line: &Line<'_>, entries: &mut Vec<Entry>) -> Result<(), TraceError> {
    let number = line.number;
    match parse(line)? {
        Fields { at: Some(at), input: Some(input), out: None, wake_at: None, dropped: None } => {
            entries.push(Entry::Step(Step { line: number, at, input, answer: None }));
        }
        Fields { at: None, input: None, out: Some(outputs), wake_at, dropped: None } => match entries.last_mut() {
            Some(Entry::Step(step)) if step.answer.is_none() => step.answer = Some(Answer { outputs, wake_at }),
            Some(Entry::Step(_) | Entry::Dropped { .. }) | None => {
                return Err(problem(number, "outputs that follow no input".into()));
            }
        },
        Fields { at: None, input: None, out: None, wake_at: None, dropped: Some(count) } => {
            entries.push(Entry::Dropped { line: number, count });
        }
        Fields { .. } => {
            let what = "neither `at` with `in`, nor `out`, with or without `wake_at`, nor `dropped`";
            return Err(problem(number, what.into()));
        }
    }
    Ok(())
}

fn parse<T: DeserializeOwned>(line: &Line<'_>) -> Result<T, TraceError> {
    // An array would be taken for the fields in their order.
    if !line.text.starts_with(b"{") {
        return Err(problem(line.number, "it is no JSON object".into()));
    }
    serde_json::from_slice(line.text).map_err(|error| TraceError::Line {
        line: line.number,
        column: error.column(),
        problem: without_place(&error),
    })
}

fn problem(line: usize, problem: String) -> TraceError {
    TraceError::Line { line, column: 0, problem }
}

/// The problem without its place, which is reported separately.
fn without_place(error: &serde_json::Error) -> String {
    let text = error.to_string();
    text.rsplit_once(" at line ").map_or(text.as_str(), |(problem, _)| problem).to_owned()
}

fn short(value: &Value) -> String {
    const LONGEST: usize = 40;
    let text = value.to_string();
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}
