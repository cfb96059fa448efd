//! What is sent to a host on one response stream, kept for a while so that a stream which was cut can be resumed.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use tokio::sync::watch;
use tokio::time::timeout;

/// How long a stream is silent before a comment shows that it is alive.
pub(super) const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// How many events may wait for a host that reads; then it holds up its front.
const ROOM: usize = 256;
/// How many events are kept for a host that does not read, in number and bytes; older ones are dropped.
const KEPT: usize = 1024;
const KEPT_BYTES: usize = 16 << 20;
/// How many events stay after they were sent: what the network lost can be asked for again.
const SENT: usize = 64;
const SENT_BYTES: usize = 1 << 20;

/// The events of one stream, in order.
#[derive(Debug)]
pub(super) struct Stream {
    number: u64,
    /// The request that it answers, as its id is written; none for the standing stream.
    pub(super) request: Option<Box<str>>,
    /// The progress token of that request, as it is written.
    pub(super) token: Option<Box<str>>,
    log: watch::Sender<Log>,
}

#[derive(Debug, Default)]
struct Log {
    events: VecDeque<Box<str>>,
    bytes: usize,
    /// The number of the first event that is kept; events count from 1.
    first: u64,
    /// The number of the next event to be sent.
    unsent: u64,
    finished: bool,
    /// The reader that has the stream, and how many there were.
    reader: Option<u64>,
    readers: u64,
}

impl Log {
    fn end(&self) -> u64 {
        self.first + self.events.len() as u64
    }

    fn waiting(&self) -> usize {
        usize::try_from(self.end().saturating_sub(self.unsent)).unwrap_or(usize::MAX)
    }

    fn drop_first(&mut self) {
        if let Some(event) = self.events.pop_front() {
            self.bytes -= event.len();
            self.first += 1;
            self.unsent = self.unsent.max(self.first);
        }
    }

    /// Drops what was sent long ago, and what is too much for a host that does not read; the last event stays.
    fn shrink(&mut self) {
        let sent = |log: &Self| usize::try_from(log.unsent.saturating_sub(log.first)).unwrap_or(usize::MAX);
        while sent(self) > 0 && (sent(self) > SENT || self.bytes > SENT_BYTES) {
            self.drop_first();
        }
        while self.reader.is_none() && self.events.len() > 1 && (self.events.len() > KEPT || self.bytes > KEPT_BYTES) {
            self.drop_first();
        }
    }
}

impl Stream {
    pub(super) fn new(number: u64, request: Option<Box<str>>, token: Option<Box<str>>) -> Arc<Self> {
        let log = watch::Sender::new(Log { first: 1, unsent: 1, ..Log::default() });
        Arc::new(Self { number, request, token, log })
    }

    /// Which stream of its session it is.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Whether a host reads it.
    pub(super) fn is_read(&self) -> bool {
        self.log.borrow().reader.is_some()
    }

    /// Whether nothing will come behind this event.
    pub(super) fn is_over(&self, after: u64) -> bool {
        let log = self.log.borrow();
        log.finished && after.saturating_add(1) >= log.end()
    }

    /// Adds a message.
    pub(super) fn push(&self, message: Box<str>) {
        self.log.send_modify(|log| {
            log.bytes += message.len();
            log.events.push_back(message);
            log.shrink();
        });
    }

    /// Nothing will be added any more.
    pub(super) fn finish(&self) {
        self.log.send_modify(|log| log.finished = true);
    }

    /// Waits until a host that reads has taken enough of what waits for it.
    pub(super) async fn room(&self) {
        let mut log = self.log.subscribe();
        // The sender lives in `self`.
        drop(log.wait_for(|log| log.finished || log.reader.is_none() || log.waiting() < ROOM).await);
    }

    /// The last message, once the stream is finished.
    pub(super) async fn last(&self) -> Option<Box<str>> {
        let mut log = self.log.subscribe();
        let log = log.wait_for(|log| log.finished).await.ok()?;
        log.events.back().cloned()
    }

    /// Takes the stream over: from behind this event, or from what was not sent yet.
    pub(super) fn read(self: &Arc<Self>, after: Option<u64>, prologue: Prologue) -> Reader {
        let (mut generation, mut next) = (0, 0);
        self.log.send_modify(|log| {
            log.readers += 1;
            generation = log.readers;
            log.reader = Some(generation);
            next = after.map_or(log.unsent, |after| after.saturating_add(1)).clamp(log.first, log.end());
        });
        let first = match prologue {
            // Lets a host resume before anything has come.
            Prologue::Priming => {
                Some(format!("id: {}-{}\nretry: {RETRY_MS}\ndata: \n\n", self.number, next - 1).into())
            }
            Prologue::Comment => Some(Bytes::from_static(b": open\n\n")),
        };
        Reader { log: self.log.subscribe(), stream: Arc::clone(self), generation, next, first }
    }
}

/// After which time a host should resume a stream that was cut.
const RETRY_MS: u64 = 1000;

/// What a stream begins with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Prologue {
    /// An event with an id and no data, as hosts know it since 2025-11-25.
    Priming,
    /// A comment.
    Comment,
}

/// A host that reads a stream; dropped, the stream waits for another.
pub(super) struct Reader {
    stream: Arc<Stream>,
    log: watch::Receiver<Log>,
    generation: u64,
    next: u64,
    first: Option<Bytes>,
}

impl Reader {
    async fn chunk(&mut self) -> Option<Bytes> {
        if let Some(first) = self.first.take() {
            return Some(first);
        }
        loop {
            {
                let log = self.log.borrow_and_update();
                if log.reader != Some(self.generation) {
                    return None; // another has taken it over
                }
                self.next = self.next.max(log.first);
                let event = usize::try_from(self.next - log.first).ok().and_then(|at| log.events.get(at));
                match event {
                    Some(event) => {
                        let chunk = event_bytes(self.stream.number, self.next, event);
                        drop(log);
                        self.next += 1;
                        self.sent();
                        return Some(chunk);
                    }
                    None if log.finished => return None,
                    None => {}
                }
            }
            match timeout(KEEP_ALIVE, self.log.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return None,
                Err(_) => return Some(Bytes::from_static(b": alive\n\n")),
            }
        }
    }

    fn sent(&self) {
        self.stream.log.send_if_modified(|log| {
            log.unsent = log.unsent.max(self.next);
            log.shrink();
            log.waiting() < ROOM
        });
    }

    /// The stream as the body of an answer; `held` is dropped with it.
    pub(super) fn into_body(self, held: impl Send + 'static) -> Body {
        body(futures::stream::unfold((self, held), |(mut reader, held)| async move {
            let chunk = reader.chunk().await?;
            Some((chunk, (reader, held)))
        }))
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.stream.log.send_if_modified(|log| {
            let mine = log.reader == Some(self.generation);
            if mine {
                log.reader = None;
                log.shrink();
            }
            mine
        });
    }
}

/// Chunks as the body of an answer.
pub(super) fn body(chunks: impl futures::Stream<Item = Bytes> + Send + 'static) -> Body {
    use futures::StreamExt as _;
    Body::from_stream(chunks.map(Ok::<_, Infallible>))
}

/// An event with a place in its stream. The message is one line.
fn event_bytes(stream: u64, number: u64, message: &str) -> Bytes {
    format!("id: {stream}-{number}\ndata: {message}\n\n").into()
}

/// The stream and the event that a `Last-Event-ID` names.
pub(super) fn event_id(text: &str) -> Option<(u64, u64)> {
    let (stream, event) = text.trim().split_once('-')?;
    Some((stream.parse().ok()?, event.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(chunk: Option<Bytes>) -> String {
        chunk.map(|chunk| String::from_utf8(chunk.to_vec()).unwrap()).unwrap_or_default()
    }

    /// A reader that has begun.
    async fn open(stream: &Arc<Stream>, after: Option<u64>) -> Reader {
        let mut reader = stream.read(after, Prologue::Comment);
        assert_eq!(text(reader.chunk().await), ": open\n\n");
        reader
    }

    #[tokio::test(start_paused = true)]
    async fn a_cut_stream_is_resumed_where_it_was() {
        let stream = Stream::new(3, None, None);
        let mut reader = stream.read(None, Prologue::Priming);
        assert_eq!(text(reader.chunk().await), "id: 3-0\nretry: 1000\ndata: \n\n");
        for message in ["a", "b", "c"] {
            stream.push(message.into());
        }
        assert_eq!(text(reader.chunk().await), "id: 3-1\ndata: a\n\n");
        assert_eq!(text(reader.chunk().await), "id: 3-2\ndata: b\n\n");
        drop(reader);
        assert!(!stream.is_read());
        stream.finish();
        let mut reader = open(&stream, Some(1)).await;
        assert_eq!(text(reader.chunk().await), "id: 3-2\ndata: b\n\n");
        assert_eq!(text(reader.chunk().await), "id: 3-3\ndata: c\n\n");
        assert_eq!(reader.chunk().await, None);
        let mut fresh = open(&stream, None).await;
        assert_eq!(fresh.chunk().await, None, "all was sent");
    }

    #[tokio::test(start_paused = true)]
    async fn a_second_reader_ends_the_first() {
        let stream = Stream::new(0, None, None);
        let mut old = open(&stream, None).await;
        let mut new = open(&stream, None).await;
        stream.push("a".into());
        assert_eq!(old.chunk().await, None);
        drop(old);
        assert!(stream.is_read());
        assert_eq!(text(new.chunk().await), "id: 0-1\ndata: a\n\n");
    }

    #[tokio::test(start_paused = true)]
    async fn silence_is_broken_by_comments() {
        let stream = Stream::new(0, None, None);
        let mut reader = open(&stream, None).await;
        assert_eq!(text(reader.chunk().await), ": alive\n\n");
    }

    #[tokio::test(start_paused = true)]
    async fn memory_is_bounded_and_the_last_event_stays() {
        let stream = Stream::new(0, None, None);
        for n in 0..KEPT + 10 {
            stream.push(n.to_string().into());
        }
        assert_eq!(stream.log.borrow().events.len(), KEPT);
        let answer = "x".repeat(KEPT_BYTES + 1);
        stream.push(answer.clone().into());
        assert_eq!(stream.log.borrow().events.len(), 1);
        stream.finish();
        assert_eq!(stream.last().await.as_deref(), Some(&*answer));

        let stream = Stream::new(0, None, None);
        let mut reader = open(&stream, None).await;
        for n in 0..3 * SENT {
            stream.push(n.to_string().into());
            reader.chunk().await.unwrap();
        }
        assert_eq!(stream.log.borrow().events.len(), SENT);
    }

    #[tokio::test(start_paused = true)]
    async fn a_host_that_reads_slowly_holds_up_its_own_front_alone() {
        let stream = Stream::new(0, None, None);
        let mut reader = open(&stream, None).await;
        for _ in 0..ROOM {
            stream.push("m".into());
        }
        assert!(timeout(KEEP_ALIVE, stream.room()).await.is_err());
        reader.chunk().await.unwrap();
        stream.room().await;
        stream.push("m".into());
        drop(reader);
        stream.room().await;
    }

    #[test]
    fn event_ids() {
        assert_eq!(event_id(" 3-14 "), Some((3, 14)));
        for id in ["", "3", "3-", "-3", "a-b", "99999999999999999999-1"] {
            assert_eq!(event_id(id), None, "{id}");
        }
    }
}
