//! The framing of stdio.

use mcp_reconnect_stdio::framing::{Frames, one_line};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::cursor::{Cursor, pieces};

/// What a decoder gives of a stream: its frames, how many lines were none, and whether a line was too long.
type Found = (Vec<String>, u64, bool);

/// However the reads fall, a stream has the frames that its lines have, within the limit, and within bounded memory; and
/// what is written as a frame is read as that frame.
///
/// Bytes: limit, how to cut, how often the rest is repeated, the stream.
pub fn stdio_frames(data: &[u8]) {
    let mut data = Cursor(data);
    let limit = data.one([64, 0, 1, 2, 10, 1_000, 20_000, 70_000]);
    let most = data.byte();
    let times = data.one([1, 1, 1, 2, 50, 500]).min(1 + 100_000 / data.0.len().max(1));
    let stream = data.0.repeat(times);
    let wanted = by_lines(&stream, limit);
    assert_eq!(decoded(pieces(&stream, most), limit), wanted, "cut by {most}, limit {limit}");
    assert_eq!(decoded([&*stream].into_iter(), limit), wanted, "whole, limit {limit}");
    round_trip(&String::from_utf8_lossy(data.0));
}

fn decoded<'a>(pieces: impl Iterator<Item = &'a [u8]>, limit: usize) -> Found {
    let mut frames = Frames::new(limit);
    let mut found = Vec::new();
    let mut most = 0;
    for piece in pieces {
        most = most.max(piece.len());
        frames.room().extend_from_slice(piece);
        while let Ok(Some(frame)) = frames.next() {
            found.push(frame.into());
        }
        // Twice what is read at once, and once more where a piece is longer than that (a vector may then double).
        let bound = limit + 4 * 16 * 1024 + 2 * most;
        assert!(frames.capacity() <= bound, "{} bytes are kept for lines of {limit}", frames.capacity());
    }
    frames.end();
    let overflow = loop {
        match frames.next() {
            Ok(Some(frame)) => found.push(frame.into()),
            Ok(None) => break false,
            Err(_) => break true,
        }
    };
    assert_eq!(frames.next().is_err(), overflow, "an end is final");
    (found, frames.noise(), overflow)
}

/// Finds the frames by looking at the whole.
fn by_lines(stream: &[u8], limit: usize) -> Found {
    let (mut found, mut noise) = (Vec::new(), 0);
    let mut torn: Option<Vec<&[u8]>> = None;
    let lines = stream.strip_suffix(b"\n").unwrap_or(stream).split(|byte| *byte == b'\n');
    for line in lines.filter(|_| !stream.is_empty()) {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.len() > limit {
            return (found, noise, true);
        }
        let line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line);
        let text = String::from_utf8_lossy(line.trim_ascii());
        let before = found.len();
        if text.starts_with('{') && text.ends_with('}') {
            torn = None;
            found.push(text.into_owned());
        } else if text.starts_with('[') && text.ends_with(']') {
            let batch: Vec<&RawValue> = serde_json::from_str(&text).unwrap_or_default();
            found.extend(batch.iter().map(|one| one.get()).filter(|one| one.starts_with('{')).map(str::to_owned));
        } else if !text.is_empty() {
            match &mut torn {
                Some(torn) if line[0] != b'{' => torn.push(line.trim_ascii_end()),
                _ => torn = text.starts_with('{').then(|| vec![line.trim_ascii()]),
            }
            if let Some(lines) = &torn {
                let whole = lines.join(&b'\n');
                match fate(lines) {
                    Fate::NoAnswer => torn = None,
                    _ if lines.len() > 1 && whole.len() > limit.min(16 * 1024) => torn = None,
                    Fate::Answer => {
                        found.push(String::from_utf8_lossy(&whole).into_owned());
                        torn = None;
                    }
                    Fate::Unknown => {}
                }
            }
        }
        noise += u64::from(found.len() == before);
    }
    (found, noise, false)
}
/// What the lines of a message that is not whole on one of them show.
enum Fate {
    Answer,
    NoAnswer,
    Unknown,
}

fn fate(lines: &[&[u8]]) -> Fate {
    let lines: Vec<_> = lines.iter().map(|line| String::from_utf8_lossy(line)).collect();
    let indent = |line: &str| line.len() - line.trim_ascii_start().len();
    let own = |name: &str| {
        let mut members = lines[1..].iter().filter(|line| indent(line) == indent(&lines[1]));
        members.any(|line| line.trim_ascii_start().starts_with(name))
    };
    let first = |name: &str| lines[0].contains(name);
    let has = |name: &str| first(name) || own(name);
    let outcome = has("\"result\"") || has("\"error\"") || first("\"id\"") && first("\"jsonrpc\"");
    match (has("\"method\""), has("\"id\"") && outcome) {
        (true, _) => Fate::NoAnswer,
        (false, true) => Fate::Answer,
        (false, false) => Fate::Unknown,
    }
}

fn round_trip(text: &str) {
    let frame = format!("{{{text}}}");
    let mut line = one_line(&frame).into_owned();
    assert_eq!(line.len(), frame.len());
    assert_eq!(serde_json::from_str::<Value>(&line).ok(), as_json(&frame), "the same JSON");
    let mut frames = Frames::new(line.len());
    line.push('\n');
    frames.room().extend_from_slice(line.repeat(2).as_bytes());
    for _ in 0..2 {
        assert_eq!(frames.next().expect("within the limit").as_deref(), Some(line.trim_end_matches('\n')));
    }
    assert!(matches!(frames.next(), Ok(None)) && frames.noise() == 0);
}

/// What is JSON only with its raw line ends as spaces was none: those in strings are not allowed.
fn as_json(frame: &str) -> Option<Value> {
    let relaxed = frame.replace(['\n', '\r'], " ");
    serde_json::from_str(frame).ok().or_else(|| serde_json::from_str(&relaxed).ok())
}
