use std::error::Error;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::control::ServerStdout;
use crate::framing::{CHUNK, Frames, Overflow};

/// How many bytes [`FrameReader::leftover`] takes from the pipe in all: as much as a pipe holds at most by default.
pub const LEFTOVER_LIMIT: usize = 1024 * 1024;

/// Reads [`Frames`] from a server.
#[derive(Debug)]
pub struct FrameReader<R> {
    pipe: R,
    frames: Frames,
    /// How many bytes `leftover` may still take.
    leftover: usize,
    traffic: Arc<Traffic>,
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    /// Reads from any pipe. A line may have `limit` bytes, its end not counted.
    pub fn new(pipe: R, limit: usize) -> Self {
        Self::noting(pipe, limit, Arc::new(Traffic::new()))
    }

    pub(crate) fn noting(pipe: R, limit: usize, traffic: Arc<Traffic>) -> Self {
        Self { pipe, frames: Frames::new(limit), leftover: LEFTOVER_LIMIT, traffic }
    }

    /// Its observations so far, and those to come.
    pub fn traffic(&self) -> &Arc<Traffic> {
        &self.traffic
    }

    /// The next frame, without its line end; `None` at the end of the pipe, now and ever after.
    ///
    /// Cancel safe: nothing is lost.
    ///
    /// # Errors
    ///
    /// A line exceeds the frame limit, now or before (nothing more is read then: what follows would be the middle of a
    /// frame), or the pipe fails.
    pub async fn next(&mut self) -> Result<Option<Box<str>>, ReadError> {
        loop {
            if let Some(frame) = self.buffered()? {
                return Ok(Some(frame));
            }
            if self.frames.at_end() {
                return Ok(None);
            }
            let count = self.pipe.read_buf(self.frames.room()).await.map_err(ReadError::Io)?;
            self.took(count);
        }
    }

    /// The next frame of what was read.
    fn buffered(&mut self) -> Result<Option<Box<str>>, ReadError> {
        let frame = self.frames.next();
        self.traffic.noise.store(self.frames.noise(), Ordering::Relaxed);
        frame.map_err(|Overflow { limit }| ReadError::Overflow { limit })
    }

    fn took(&mut self, count: usize) {
        if count == 0 {
            self.frames.end();
        } else {
            self.traffic.byte_came();
        }
    }
}

impl FrameReader<ServerStdout> {
    /// The next frame of what can be read without waiting; `None` when nothing is left of it, now and ever after.
    ///
    /// For a server that has exited, while a process it left behind holds the pipe open: what the server wrote is there
    /// by then. A last line that has not ended is treated as at the end of the pipe. Takes at most [`LEFTOVER_LIMIT`]
    /// bytes from the pipe in all, so it ends even when that process writes without pause.
    ///
    /// # Errors
    ///
    /// As [`next`](Self::next).
    pub fn leftover(&mut self) -> Result<Option<Box<str>>, ReadError> {
        loop {
            if let Some(frame) = self.buffered()? {
                return Ok(Some(frame));
            }
            if self.frames.at_end() {
                return Ok(None);
            }
            let mut chunk = vec![0; CHUNK.min(self.leftover)];
            let count = match self.pipe.read_now(&mut chunk) {
                Ok(count) => count,
                Err(rustix::io::Errno::INTR) => continue,
                Err(rustix::io::Errno::AGAIN) => 0,
                Err(error) => return Err(ReadError::Io(error.into())),
            };
            self.leftover -= count;
            self.frames.room().extend_from_slice(&chunk[..count]);
            self.took(count);
        }
    }
}

/// The observations of a reader, shared with others.
#[derive(Debug)]
pub struct Traffic {
    origin: Instant,
    /// Nanoseconds since `origin`, plus one; 0 before the first byte.
    last_byte: AtomicU64,
    noise: AtomicU64,
    /// Whether the server has written anything, to stdout or stderr.
    spoke: watch::Sender<bool>,
}

impl Traffic {
    pub(crate) fn new() -> Self {
        Self {
            origin: Instant::now(),
            last_byte: AtomicU64::new(0),
            noise: AtomicU64::new(0),
            spoke: watch::Sender::new(false),
        }
    }

    fn byte_came(&self) {
        let nanos = u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX - 1);
        self.last_byte.store(nanos + 1, Ordering::Relaxed);
        self.server_spoke();
    }

    pub(crate) fn server_spoke(&self) {
        self.spoke.send_if_modified(|spoke| !std::mem::replace(spoke, true));
    }

    /// Waits for the first byte.
    pub async fn first_byte(&self) {
        // The sender is here, so there is no error.
        drop(self.spoke.subscribe().wait_for(|&spoke| spoke).await);
    }

    /// When the last byte came in.
    pub fn last_byte(&self) -> Option<Instant> {
        let nanos = self.last_byte.load(Ordering::Relaxed).checked_sub(1)?;
        Some(self.origin + std::time::Duration::from_nanos(nanos))
    }

    /// How many lines were left out because they are no frames.
    pub fn noise(&self) -> u64 {
        self.noise.load(Ordering::Relaxed)
    }
}

/// Why no more frames can be read.
#[derive(Debug)]
pub enum ReadError {
    /// A line is longer than the frame limit.
    Overflow {
        /// The limit, in bytes.
        limit: usize,
    },
    /// The pipe failed.
    Io(io::Error),
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Overflow { limit } => write!(f, "a line on stdout exceeds the frame limit of {limit} bytes"),
            Self::Io(error) => write!(f, "reading from stdout failed: {error}"),
        }
    }
}

impl Error for ReadError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Overflow { .. } => None,
            Self::Io(error) => Some(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncWriteExt, DuplexStream, duplex};

    use super::{CHUNK, FrameReader, ReadError};

    const LIMIT: usize = 64;

    fn reader(buffer: usize) -> (FrameReader<DuplexStream>, DuplexStream) {
        let (ours, theirs) = duplex(buffer);
        (FrameReader::new(ours, LIMIT), theirs)
    }

    /// Reads all that `input` gives, through a pipe that hands it on in pieces of `piece` bytes.
    async fn read(input: &[u8], piece: usize) -> (Vec<String>, u64, Option<ReadError>) {
        let (mut reader, mut theirs) = reader(piece);
        let feed = async {
            // The reader ends before its input where a line is too long.
            drop(theirs.write_all(input).await);
            drop(theirs);
        };
        let read = async {
            let mut frames = Vec::new();
            loop {
                match reader.next().await {
                    Ok(Some(frame)) => frames.push(String::from(frame)),
                    Ok(None) => break (frames, reader.traffic.noise(), None),
                    Err(error) => {
                        assert!(reader.next().await.is_err(), "an overflow is final");
                        let noise = reader.traffic.noise();
                        drop(reader);
                        break (frames, noise, Some(error));
                    }
                }
            }
        };
        tokio::join!(feed, read).1
    }

    #[tokio::test]
    async fn k22_noise_is_counted_and_frames_found_however_reads_fall() {
        let input = b"Server listening\n\n\r\n42\n\"x\"\n[]\n[2, \"x\"]\n[INFO] [x]\n{not json}\n\
            \xff\n{\"id\":1}\r\n  {\"id\":2} \t\n{\"id\":\n\x00\n{\"id\":3}\n";
        for piece in [1, 2, 3, 7, 64, 4096] {
            let (frames, noise, error) = read(input, piece).await;
            assert_eq!(frames, ["{not json}", "{\"id\":1}", "{\"id\":2}", "{\"id\":3}"], "in pieces of {piece}");
            assert_eq!(noise, 11, "in pieces of {piece}");
            assert!(error.is_none());
        }
    }

    /// Reads all of it, in pieces of every size.
    async fn found(input: &[u8]) -> (Vec<String>, u64) {
        let mut all = Vec::new();
        for piece in 1..=input.len() {
            let (frames, noise, error) = read(input, piece).await;
            assert!(error.is_none(), "{error:?}");
            all.push((frames, noise));
        }
        all.dedup();
        assert_eq!(all.len(), 1, "however the reads fall");
        all.swap_remove(0)
    }

    #[tokio::test]
    async fn k22_a_byte_order_mark_is_no_part_of_a_line() {
        assert_eq!(found(b"\xef\xbb\xbf{\"id\":1}\n{\"id\":2}\n").await.0, ["{\"id\":1}", "{\"id\":2}"]);
        assert_eq!(found(b"\xef\xbb\xbf\n{\"id\":2}\n").await, (vec!["{\"id\":2}".to_owned()], 1));
    }

    #[tokio::test]
    async fn k22_a_batch_is_its_messages() {
        let input = b"[{\"id\":1},{\"id\":2}]\n [ 7, {\"id\":\t[{}]} ] \r\n{\"id\":4}\n[{\"id\":5}";
        assert_eq!(
            found(input).await,
            (["{\"id\":1}", "{\"id\":2}", "{\"id\":\t[{}]}", "{\"id\":4}"].map(Into::into).into(), 1)
        );
    }

    #[tokio::test]
    async fn k22_bad_utf8_in_a_message_becomes_the_replacement_character() {
        let (frames, noise) = found(b"{\"a\":\"caf\xe9\"}\n[{\"a\":\"\xff\"}]\n").await;
        assert_eq!(frames, ["{\"a\":\"caf\u{fffd}\"}", "{\"a\":\"\u{fffd}\"}"]);
        assert_eq!(noise, 0);
    }

    #[tokio::test]
    async fn k22_the_beginning_of_a_message_that_names_an_answer_is_given_as_it_is() {
        // Cut off, or broken by a line end in a string.
        let (frames, noise) = found(b"{\"id\":12,\"result\":{\"te\nxt\":\"a\"}}\n{\"x\":1}\n").await;
        assert_eq!(frames, ["{\"id\":12,\"result\":{\"te", "{\"x\":1}"]);
        assert_eq!(noise, 1);
        let cut = b"{\"jsonrpc\":\"2.0\",\"id\":12,\"resu\n{\"x\":1}\n";
        assert_eq!(found(cut).await.0, ["{\"jsonrpc\":\"2.0\",\"id\":12,\"resu", "{\"x\":1}"]);
    }

    #[tokio::test]
    async fn k22_an_answer_over_several_lines_is_given_once_it_says_whose_it_is() {
        let (first, _) = found(b"{\n  \"id\": 12,\n  \"result\": {\n    \"id\": 1\n  }\n}\n").await;
        assert_eq!(first, ["{\n  \"id\": 12,\n  \"result\": {"]);
        // Members of what it holds are not its own.
        let input = b"{\n  \"error\": {\n    \"id\": 1\n  },\n  \"id\": 12\n}\n";
        assert_eq!(found(input).await, (vec![String::from_utf8_lossy(&input[..input.len() - 3]).into_owned()], 5));
    }

    #[tokio::test]
    async fn k22_a_request_over_several_lines_is_noise() {
        // What a server prints of what it was asked.
        let input =
            b"{\n \"id\": 12,\n \"method\": \"x\",\n \"result\": 1\n}\n{\"id\":12,\"method\":\"x\",\n\"result\"\n";
        assert_eq!(found(input).await, (vec![], 7));
    }

    #[tokio::test]
    async fn k22_a_message_over_several_lines_ends_where_another_begins() {
        let (frames, _) = found(b"{\n  \"id\": 12,\n{\"x\":1}\n  \"result\": 1\n").await;
        assert_eq!(frames, ["{\"x\":1}"]);
        assert_eq!(found(b"{\n  \"id\": 12,\n{\n  \"result\": 1\n").await, (vec![], 4));
    }

    #[tokio::test]
    async fn k22_a_message_over_several_lines_is_kept_up_to_the_limit() {
        for (digits, kept) in [(32, 1), (33, 0)] {
            let input = format!("{{\n \"result\": 1,\n \"a\": {},\n \"id\": 1\n", "1".repeat(digits));
            assert_eq!(found(input.as_bytes()).await.0.len(), kept);
        }
    }

    #[tokio::test]
    async fn a_last_line_without_end_is_a_frame_if_it_is_an_object() {
        assert_eq!(read(b"{\"id\":1}\n{\"id\":2}", 5).await.0, ["{\"id\":1}", "{\"id\":2}"]);
        let (frames, noise, _) = read(b"{\"id\":1}\n{\"id\":", 5).await;
        assert_eq!((frames.len(), noise), (1, 1));
        let (frames, noise, _) = read(b"", 5).await;
        assert_eq!((frames.len(), noise), (0, 0));
    }

    #[tokio::test]
    async fn k22_a_line_longer_than_the_limit_ends_the_link() {
        let frame = |len: usize| format!("{{{}}}", " ".repeat(len - 2));
        for piece in [1, 4096] {
            for end in ["\n", "\r\n", ""] {
                let fits = format!("{}\n{}{end}", frame(LIMIT - 1), frame(LIMIT));
                let (frames, _, error) = read(fits.as_bytes(), piece).await;
                assert_eq!(frames.len(), 2, "in pieces of {piece}, ended by {end:?}");
                assert!(error.is_none());

                let exceeds = format!("{{}}\n{}{end}{{}}\n", frame(LIMIT + 1));
                let (frames, _, error) = read(exceeds.as_bytes(), piece).await;
                assert_eq!(frames, ["{}"], "in pieces of {piece}, ended by {end:?}");
                assert!(matches!(error, Some(ReadError::Overflow { limit: LIMIT })));
            }
            let endless_noise = vec![b'.'; 3 * CHUNK];
            assert!(read(&endless_noise, piece).await.2.is_some(), "noise has the same limit");
        }
    }

    #[tokio::test]
    async fn memory_is_bounded_by_the_limit() {
        let (ours, mut theirs) = duplex(1 << 20);
        let limit = 8 * CHUNK;
        let mut reader = FrameReader::new(ours, limit);
        let frame = format!("{{{}}}\n", " ".repeat(limit - 2));
        for _ in 0..4 {
            theirs.write_all(frame.as_bytes()).await.expect("room");
        }
        for _ in 0..4 {
            assert!(matches!(reader.next().await, Ok(Some(_))));
            let capacity = reader.frames.capacity();
            assert!(capacity <= limit + 2 * CHUNK, "{capacity}");
        }
        theirs.write_all(b"{}\n").await.expect("room");
        assert!(matches!(reader.next().await, Ok(Some(_))));
        assert!(reader.frames.capacity() <= 4 * CHUNK, "a large frame leaves no large buffer");
    }

    #[tokio::test]
    async fn a_dropped_read_loses_nothing() {
        let (mut reader, mut theirs) = reader(4);
        let feed = async {
            for byte in b"{\"id\":1}\n" {
                theirs.write_all(&[*byte]).await.expect("room");
                tokio::task::yield_now().await;
            }
            theirs
        };
        let mut feed = std::pin::pin!(feed);
        let frame = loop {
            tokio::select! {
                biased;
                frame = reader.next() => break frame,
                () = tokio::task::yield_now() => {}
            }
            // One more byte, while no read is waiting.
            tokio::select! {
                biased;
                _ = &mut feed => {}
                () = std::future::ready(()) => {}
            }
        };
        assert_eq!(frame.expect("open").as_deref(), Some("{\"id\":1}"));
        assert!(reader.traffic.last_byte().is_some());
    }
}
