//! `mcp-reconnect replay`: runs a recorded connection again, and shows its inputs and outputs.

mod svg;
mod timeline;
mod words;

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use mcp_reconnect::trace::{self, Difference, Gap, Recorder, Trace, Turn};

const HELP: &str = "\
Exit status:
  0  it was replayed up to its end, or up to where inputs are missing, and answered as it was recorded
  1  an answer is not the recorded one: line, record and answer are told
  2  bad arguments, no trace, or something that could not be written

A trace is written by `mcp-reconnect demo --record FILE`, or by a program that sets a recorder on its connection. Answers
can only be compared where they were recorded.

JSON lines (--json): one object per line, each with `event`, and by event:
  trace       name, origin (milliseconds since 1970), seed, start, config, memory: the header
  turn        line, at (nanoseconds), elapsed_ms, input, outputs, wake_at, status
  difference  line, recorded, replayed
  gap         line, count: inputs are missing from here on
  cut         line: the last one, which is not whole
  summary     inputs, compared, dials, sessions, failures, ok";

/// Replay a recorded connection: what it was told, and what it ordered
///
/// Runs the recorded inputs through the state machine of this version, prints a timeline, and tells the first answer
/// that is not the recorded one.
#[derive(clap::Args)]
#[command(after_long_help = HELP)]
pub(crate) struct ReplayArgs {
    /// The trace; `-` reads standard input
    file: PathBuf,
    /// Print JSON lines instead of a timeline
    #[arg(long)]
    json: bool,
    /// Also draw it into this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// A trace that was run again.
struct Played<'a> {
    trace: &'a Trace,
    turns: Vec<Turn<'a>>,
    difference: Option<Difference>,
    gap: Option<Gap>,
}

/// Runs it.
pub(crate) fn run(args: &ReplayArgs) -> ExitCode {
    match try_run(args) {
        Ok(code) => code,
        Err(error) => {
            // A reader that has closed the pipe is not told so.
            if error.kind() != io::ErrorKind::BrokenPipe {
                anstream::eprintln!("error: {error}");
            }
            ExitCode::from(2)
        }
    }
}

/// A recorder that writes into this file.
///
/// # Errors
///
/// It cannot be created.
pub(crate) fn recorder(path: &Path) -> io::Result<Recorder> {
    let file = File::create(path).map_err(|error| about(path, &error))?;
    Ok(Recorder::new(file).outputs(true))
}

fn try_run(args: &ReplayArgs) -> io::Result<ExitCode> {
    let trace = trace::read(open(&args.file)?).map_err(|error| about(&args.file, &error))?;
    let mut replay = trace.replay();
    let turns: Vec<_> = replay.by_ref().collect();
    let difference = turns.last().and_then(Turn::difference);
    let played = Played { trace: &trace, turns, difference, gap: replay.gap() };
    if let Some(path) = &args.svg {
        fs::write(path, svg::draw(&played)).map_err(|error| about(path, &error))?;
    }
    let mut out = anstream::AutoStream::auto(io::stdout().lock());
    if args.json {
        timeline::json(&mut out, &played)?
    } else {
        timeline::text(&mut out, &played)?
    }
    out.flush()?;
    Ok(if played.difference.is_some() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn open(path: &Path) -> io::Result<Box<dyn BufRead>> {
    if path == Path::new("-") {
        return Ok(Box::new(io::stdin().lock()));
    }
    let file = File::open(path).map_err(|error| about(path, &error))?;
    Ok(Box::new(BufReader::new(file)))
}

fn about(path: &Path, error: &impl std::fmt::Display) -> io::Error {
    io::Error::other(format!("{}: {error}", path.display()))
}
