//! Lines as frames, without I/O: what [`FrameReader`](crate::FrameReader) and [`FrameWriter`](crate::FrameWriter) do
//! between the pipes.

use std::borrow::Cow;
use std::error::Error;
use std::fmt;
use std::ops::Range;
use std::str;
use std::vec;

use memchr::{memchr, memchr2};
use serde_json::value::RawValue;

use torn::Torn;

mod torn;

/// How many bytes there is room for at once, at least; also what an idle decoder keeps.
pub(crate) const CHUNK: usize = 16 * 1024;

/// Takes frames out of a stream of bytes, wherever the reads fall: lines that hold one JSON object each, or several in an
/// array (the batches of the revision 2025-03-26).
///
/// A line is a frame when, without the white space around it and a byte order mark before it, it begins with `{` and ends
/// with `}`: enough to tell protocol from banners and logs without parsing twice. Its parser must take what turns
/// out not to be JSON-RPC for noise too. Bad UTF-8 in a frame becomes U+FFFD.
///
/// A message that is cut off, or written over several lines, is no frame. But where it shows that it answers a request and
/// names one, its beginning up to there is given like a frame, so that the request can be given up at once.
///
/// Every other line (blank, a bare number or string, an array without objects) is counted and left out.
///
/// ```
/// use mcp_reconnect_stdio::framing::Frames;
///
/// let mut frames = Frames::new(1024);
/// frames.room().extend_from_slice(b"listening\n{\"id\":1}\r\n{\"id\"");
/// assert_eq!(frames.next()?.as_deref(), Some("{\"id\":1}"));
/// assert_eq!((frames.next()?, frames.noise()), (None, 1));
/// # Ok::<_, mcp_reconnect_stdio::framing::Overflow>(())
/// ```
#[derive(Debug)]
pub struct Frames {
    limit: usize,
    /// Bytes that were read; those before `start` are done with, those before `seen` hold no line end.
    buffer: Vec<u8>,
    start: usize,
    seen: usize,
    end: Option<End>,
    noise: u64,
    /// The rest of the last array.
    batch: vec::IntoIter<Box<str>>,
    torn: Option<Torn>,
}

/// Why nothing more is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Eof,
    Overflow,
}

impl Frames {
    /// Starts with an empty stream. A line may have `limit` bytes, its end not counted.
    pub fn new(limit: usize) -> Self {
        let batch = Vec::new().into_iter();
        Self { limit, buffer: Vec::new(), start: 0, seen: 0, end: None, noise: 0, batch, torn: None }
    }

    /// The next frame, without its line end; `None` when what came is used up, and after the [end](Self::end) for good.
    ///
    /// # Errors
    ///
    /// A line exceeds the limit, now or before: what follows would be the middle of a frame.
    #[expect(clippy::should_implement_trait, reason = "`None` is not the end, and it can fail")]
    pub fn next(&mut self) -> Result<Option<Box<str>>, Overflow> {
        while self.end != Some(End::Overflow) {
            if let Some(frame) = self.batch.next() {
                return Ok(Some(frame));
            }
            let ended = memchr(b'\n', &self.buffer[self.seen..]).map(|at| self.seen + at);
            let (line, next) = match (ended, self.end) {
                (Some(at), _) => (self.start..at, at + 1),
                (None, Some(_)) if self.start < self.buffer.len() => (self.start..self.buffer.len(), self.buffer.len()),
                (None, _) => {
                    self.seen = self.buffer.len();
                    if without_return(&self.buffer[self.start..]).len() <= self.limit {
                        return Ok(None);
                    }
                    (self.start..self.seen, self.seen)
                }
            };
            if without_return(&self.buffer[line.clone()]).len() > self.limit {
                self.end = Some(End::Overflow);
                (self.buffer, self.start, self.seen, self.torn) = (Vec::new(), 0, 0, None);
                break;
            }
            let frame = self.take(line);
            (self.start, self.seen) = (next, next);
            if frame.is_some() {
                return Ok(frame);
            }
            self.noise += 1;
        }
        Err(Overflow { limit: self.limit })
    }

    /// The first frame that a line gives.
    fn take(&mut self, line: Range<usize>) -> Option<Box<str>> {
        let line = &self.buffer[line];
        let line = line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(line);
        let trimmed = line.trim_ascii();
        match (trimmed.first()?, trimmed.last()?) {
            (b'{', b'}') => {
                self.torn = None;
                Some(text(trimmed))
            }
            (b'[', b']') => {
                self.batch = objects(&text(trimmed));
                self.batch.next()
            }
            (first, _) => {
                // Within a message over several lines, only its first is not indented.
                self.torn = match self.torn.take() {
                    Some(torn) if line[0] != b'{' => torn.go_on(line.trim_ascii_end(), self.limit.min(CHUNK)),
                    _ if *first == b'{' => Torn::begin(trimmed),
                    _ => None,
                };
                self.torn.take_if(|torn| torn.is_answer()).map(|torn| text(torn.as_bytes()))
            }
        }
    }

    /// Where to append what is read; drops what is done with. There is room to spare, but never for much more than a
    /// line within the limit. After an overflow nothing is kept.
    pub fn room(&mut self) -> &mut Vec<u8> {
        if self.end == Some(End::Overflow) {
            self.buffer.clear();
        }
        self.buffer.drain(..self.start);
        self.seen -= self.start;
        self.start = 0;
        let len = self.buffer.len();
        if len < CHUNK && self.buffer.capacity() > 4 * CHUNK {
            self.buffer.shrink_to(2 * CHUNK);
        }
        if self.buffer.capacity() - len < CHUNK {
            self.buffer.reserve_exact(len.min(self.limit.saturating_sub(len)).max(CHUNK));
        }
        &mut self.buffer
    }

    /// Nothing more comes: a last line that has not ended is a line all the same.
    pub fn end(&mut self) {
        self.end.get_or_insert(End::Eof);
    }

    /// Whether the stream has [ended](Self::end).
    pub fn at_end(&self) -> bool {
        self.end == Some(End::Eof)
    }

    /// How many bytes it keeps room for.
    pub const fn capacity(&self) -> usize {
        self.buffer.capacity()
    }

    /// How many lines were left out because they are no frames.
    pub const fn noise(&self) -> u64 {
        self.noise
    }
}

/// A line that is longer than the limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Overflow {
    /// The limit, in bytes.
    pub limit: usize,
}

impl fmt::Display for Overflow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a line exceeds the frame limit of {} bytes", self.limit)
    }
}

impl Error for Overflow {}

/// CRLF ends a line too.
fn without_return(line: &[u8]) -> &[u8] {
    line.strip_suffix(b"\r").unwrap_or(line)
}

/// Some programs put one before everything they write.
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

fn text(bytes: &[u8]) -> Box<str> {
    // Faster than the other, which is for the rare line.
    str::from_utf8(bytes).map_or_else(|_| String::from_utf8_lossy(bytes).into(), Box::from)
}

/// The objects of an array; none where it cannot be read.
fn objects(array: &str) -> vec::IntoIter<Box<str>> {
    let elements: Vec<&RawValue> = serde_json::from_str(array).unwrap_or_default();
    let objects = elements.into_iter().map(RawValue::get).filter(|element| element.starts_with('{')).map(Box::from);
    objects.collect::<Vec<_>>().into_iter()
}

/// A frame as one line, without its line end: raw line ends in it are written as spaces. JSON strings hold none, so they
/// are white space, and a space is as good.
pub fn one_line(frame: &str) -> Cow<'_, str> {
    if memchr2(b'\n', b'\r', frame.as_bytes()).is_some() {
        Cow::Owned(frame.replace(['\n', '\r'], " "))
    } else {
        Cow::Borrowed(frame)
    }
}

#[cfg(test)]
mod tests {
    use super::{CHUNK, Frames, Overflow};

    #[test]
    fn an_overflow_is_final_and_keeps_nothing_of_what_follows() {
        let mut frames = Frames::new(4);
        frames.room().extend_from_slice(b"{}\n{long}\n{}\n");
        assert_eq!(frames.next().unwrap().as_deref(), Some("{}"));
        for _ in 0..100 {
            assert_eq!(frames.next(), Err(Overflow { limit: 4 }));
            frames.room().extend_from_slice(&[b'\n'; CHUNK]);
        }
        assert!(frames.capacity() <= 3 * CHUNK, "{}", frames.capacity());
        frames.end();
        assert_eq!((frames.next(), frames.noise()), (Err(Overflow { limit: 4 }), 0));
    }
}
