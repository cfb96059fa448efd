//! The parts of a trace, and how it is written. `docs/trace.md` describes it for other programs.

use std::io::{self, Write};
use std::num::NonZeroU64;

use mcp_reconnect_core::{Config, ConnectionMachine, Input, Memory, Output, Outputs, Timestamp};
use serde::{Deserialize, Serialize};

/// How the header names the format.
pub(super) const FORMAT: &str = "mcp-reconnect-trace";
/// The version of the format that is written.
pub(super) const VERSION: u32 = 2;
/// The oldest version that is read.
pub(super) const OLDEST: u32 = 1;

/// Everything that a machine was told, in order.
#[derive(Clone, PartialEq, Debug)]
pub struct Trace {
    /// The machine at its start.
    pub header: Header,
    /// The inputs that followed.
    pub entries: Vec<Entry>,
    /// The number of a last line that could not be read because it was cut, by a crash say. It is left out.
    pub cut: Option<usize>,
}

/// The start of a machine: its knobs, its seed, its memory.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Header {
    /// The server's name in logs.
    pub name: String,
    /// The wall clock at the start, in milliseconds since 1970. It only tells which logs belong to a trace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<u64>,
    /// The seed of the jitter.
    pub seed: u64,
    /// When the machine was made, on the clock of all times that follow.
    pub start: Timestamp,
    /// The knobs. Those that version 1 did not have are off where they are left out.
    #[serde(default = "knobs_left_out")]
    pub config: Config,
    /// The memory that it was restored from, if it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Memory>,
}

/// One entry after the header.
#[derive(Clone, PartialEq, Debug)]
#[expect(clippy::large_enum_variant, reason = "nearly all are steps")]
pub enum Entry {
    /// The machine was told something.
    Step(Step),
    /// Here inputs are missing, which could not be written fast enough.
    Dropped {
        /// The number of the line.
        line: usize,
        /// How many.
        count: NonZeroU64,
    },
}

/// One input.
#[derive(Clone, PartialEq, Debug)]
pub struct Step {
    /// The number of the line, counted from 1.
    pub line: usize,
    /// The time that the machine was given.
    pub at: Timestamp,
    /// The input.
    pub input: Input,
    /// The machine's answer, where that was recorded.
    pub answer: Option<Answer>,
}

/// A machine's answer to one input.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Answer {
    /// Orders and facts, in order.
    #[serde(rename = "out")]
    pub outputs: Vec<Output>,
    /// When it wanted to be called again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wake_at: Option<Timestamp>,
}

fn knobs_left_out() -> Config {
    serde_json::from_str("{}").unwrap_or_default()
}

impl Header {
    /// A machine as the recorded one was at its start.
    pub fn machine(&self) -> ConnectionMachine {
        match self.memory {
            Some(memory) => ConnectionMachine::restore(self.config, self.seed, self.start, memory),
            None => ConnectionMachine::new(self.config, self.seed, self.start),
        }
    }
}

impl Answer {
    pub(super) fn of(outputs: &Outputs) -> Self {
        Self { outputs: outputs.iter().collect(), wake_at: outputs.wake_at() }
    }

    /// Itself, written and read again: deadlines beyond [`Timestamp::MAX`] are cut to it.
    pub(super) fn as_read(&self) -> Option<Self> {
        serde_json::from_value(serde_json::to_value(self).ok()?).ok()
    }
}

impl Trace {
    /// Writes it as a [`Recorder`](super::Recorder) does. A cut line is left out.
    ///
    /// # Errors
    ///
    /// Those of the writer.
    pub fn write(&self, mut writer: impl Write) -> io::Result<()> {
        header_line(&mut writer, &self.header)?;
        for entry in &self.entries {
            match entry {
                Entry::Step(step) => step_lines(&mut writer, step.at, &step.input, step.answer.as_ref())?,
                Entry::Dropped { count, .. } => dropped_line(&mut writer, *count)?,
            }
        }
        Ok(())
    }
}

#[derive(Serialize)]
struct HeaderLine<'a> {
    format: &'static str,
    version: u32,
    #[serde(flatten)]
    header: &'a Header,
}

#[derive(Serialize)]
struct InputLine<'a> {
    at: Timestamp,
    #[serde(rename = "in")]
    input: &'a Input,
}

#[derive(Serialize)]
struct DroppedLine {
    dropped: NonZeroU64,
}

pub(super) fn header_line(writer: &mut impl Write, header: &Header) -> io::Result<()> {
    line(writer, &HeaderLine { format: FORMAT, version: VERSION, header })
}

pub(super) fn step_lines(
    writer: &mut impl Write,
    at: Timestamp,
    input: &Input,
    answer: Option<&Answer>,
) -> io::Result<()> {
    line(writer, &InputLine { at, input })?;
    answer.map_or(Ok(()), |answer| line(writer, answer))
}

pub(super) fn dropped_line(writer: &mut impl Write, count: NonZeroU64) -> io::Result<()> {
    line(writer, &DroppedLine { dropped: count })
}

fn line(writer: &mut impl Write, value: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer(&mut *writer, value)?;
    writer.write_all(b"\n")
}
