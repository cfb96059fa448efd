//! Event streams.

use std::num::NonZeroUsize;
use std::time::Duration;

use mcp_reconnect_http::sse::{EventStream, StreamEvent};

use crate::cursor::{Cursor, pieces};

/// What a stream gave: its events, and what is known at its end.
#[derive(PartialEq, Eq, Debug)]
struct Found {
    events: Vec<StreamEvent>,
    id: Option<String>,
    retry: Option<Duration>,
}

/// However it is cut, a stream has the same events, those of the specification's own words; none is longer than the
/// limit; and a stream that goes on where another ended knows its id and nothing else of it.
///
/// Bytes: limit, how to cut, where the first stream ends, the stream.
pub fn sse(data: &[u8]) {
    let mut data = Cursor(data);
    let limit = data.one([usize::MAX, 1, 2, 10, 64, 1_000]);
    let (most, end) = (data.byte(), usize::from(data.byte()));
    let stream = data.0;
    let events = || EventStream::new(NonZeroUsize::new(limit).unwrap_or(NonZeroUsize::MIN));

    let mut whole = events();
    let found = read(&mut whole, [stream].into_iter());
    assert_eq!(read(&mut events(), pieces(stream, most)), found, "cut by {most}, limit {limit}");
    for event in &found.events {
        let (name, data) = match event {
            StreamEvent::Frame(data) => ("", &**data),
            StreamEvent::Other(name, data) => (&**name, &**data),
            StreamEvent::TooLong => continue,
        };
        assert!(!matches!(event, StreamEvent::Frame(_)) || !data.trim().is_empty(), "an empty frame");
        // What is no UTF-8 is replaced by three bytes for each.
        assert!(name.len().max(data.len()) <= limit.saturating_mul(3), "{event:?} is longer than {limit}");
    }
    if limit == usize::MAX {
        assert_eq!(found, specified(stream, None));
    }

    let (first, second) = stream.split_at(end.min(stream.len()));
    let mut resumed = events();
    let before = read(&mut resumed, pieces(first, most));
    resumed.resume();
    assert_eq!(resumed.last_event_id().map(|id| id.to_string()), before.id, "the id is kept");
    let after = read(&mut resumed, pieces(second, most));
    if limit == usize::MAX {
        let mut wanted = specified(second, before.id);
        wanted.retry = wanted.retry.or(before.retry);
        assert_eq!(after, wanted, "after {end} bytes of another stream");
    }
}

fn read<'a>(events: &mut EventStream, pieces: impl Iterator<Item = &'a [u8]>) -> Found {
    let mut found = Vec::new();
    for mut piece in pieces {
        while let Some(event) = events.next(&mut piece) {
            found.push(event);
        }
        assert!(piece.is_empty(), "every byte is taken");
    }
    Found { events: found, id: events.last_event_id().map(|id| id.to_string()), retry: events.retry() }
}

/// HTML, 9.2.6 "Interpreting an event stream", line by line; where an empty id is none.
fn specified(stream: &[u8], id: Option<String>) -> Found {
    let mut found = Found { events: Vec::new(), id, retry: None };
    let (mut name, mut data, mut id): (&[u8], Vec<u8>, _) = (b"", Vec::new(), found.id.clone());
    for line in lines(stream.strip_prefix(b"\xef\xbb\xbf").unwrap_or(stream)) {
        if line.is_empty() {
            found.id.clone_from(&id);
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned().into_boxed_str();
            if data.pop().is_some() {
                match name {
                    b"" | b"message" if text(&data).trim().is_empty() => {}
                    b"" | b"message" => found.events.push(StreamEvent::Frame(text(&data))),
                    name => found.events.push(StreamEvent::Other(text(name), text(&data))),
                }
            }
            (name, data) = (b"", Vec::new());
            continue;
        }
        let colon = line.iter().position(|byte| *byte == b':');
        let (field, value) = line.split_at(colon.unwrap_or(line.len()));
        let value = value.get(1..).unwrap_or_default();
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match field {
            b"event" => name = value,
            b"data" => data.extend([value, b"\n"].concat()),
            b"id" if !value.contains(&0) => {
                id = (!value.is_empty()).then(|| String::from_utf8_lossy(value).into_owned());
            }
            b"retry" if value.iter().all(u8::is_ascii_digit) => {
                let number = std::str::from_utf8(value).ok().and_then(|text| text.parse::<u32>().ok());
                found.retry = number.map(|number| Duration::from_millis(number.into())).or(found.retry);
            }
            _ => {}
        }
    }
    found
}

/// The lines that have ended.
fn lines(mut stream: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let at = stream.iter().position(|byte| matches!(byte, b'\r' | b'\n'))?;
        let (line, rest) = stream.split_at(at);
        stream = rest.strip_prefix(b"\r\n").unwrap_or(&rest[1..]);
        Some(line)
    })
}
