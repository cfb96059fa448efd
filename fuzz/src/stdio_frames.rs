//! The framing of stdio.

use mcp_reconnect_stdio::framing::{Frames, one_line};
use serde_json::Value;

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

/// The same by looking at the whole.
fn by_lines(stream: &[u8], limit: usize) -> Found {
    let (mut found, mut noise) = (Vec::new(), 0);
    let lines = stream.strip_suffix(b"\n").unwrap_or(stream).split(|byte| *byte == b'\n');
    for line in lines.filter(|_| !stream.is_empty()) {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.len() > limit {
            return (found, noise, true);
        }
        match std::str::from_utf8(line.trim_ascii()) {
            Ok(line) if line.starts_with('{') && line.ends_with('}') => found.push(line.to_owned()),
            Ok(_) | Err(_) => noise += 1,
        }
    }
    (found, noise, false)
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
