//! Server-sent events as JSON-RPC frames.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use bytes::Buf;
use sse_core::{SseDecoder, SseEvent};

/// Takes frames out of an event stream, chunk by chunk. What it keeps is bounded by its limit.
#[derive(Clone)]
pub struct Events {
    decoder: SseDecoder,
    retry: Option<Duration>,
    /// An id that is not to be resumed from.
    dropped: Option<Arc<str>>,
}

/// One event of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A message.
    Frame(Box<str>),
    /// An event with another name than `message`, and its data: not ours, but for the `endpoint` of 2024-11-05.
    Other(Box<str>, Box<str>),
    /// An event longer than the limit was left out.
    TooLong,
}

impl Events {
    /// Starts with an empty stream. An event may have `limit` bytes of data.
    pub fn new(limit: NonZeroUsize) -> Self {
        Self { decoder: SseDecoder::with_limit(limit), retry: None, dropped: None }
    }

    /// Takes what `chunk` holds, up to the next event; `None` when it is used up.
    pub fn next(&mut self, chunk: &mut impl Buf) -> Option<Event> {
        loop {
            return Some(match self.decoder.next(chunk)? {
                Ok(SseEvent::Message(message)) if message.event != "message" => {
                    Event::Other(message.event.into(), message.data.into_boxed_str())
                }
                // The priming event of a resumable stream has an id and no data.
                Ok(SseEvent::Message(message)) if message.data.trim().is_empty() => continue,
                Ok(SseEvent::Message(message)) => Event::Frame(message.data.into_boxed_str()),
                Ok(SseEvent::Retry(milliseconds)) => {
                    self.retry = Some(Duration::from_millis(milliseconds.into()));
                    continue;
                }
                Err(_) => Event::TooLong,
            });
        }
    }

    /// Starts a new stream that goes on where this one ended.
    pub fn resume(&mut self) {
        self.decoder.reconnect();
    }

    /// The id of the last complete event, over all streams so far.
    pub fn last_event_id(&self) -> Option<&Arc<str>> {
        self.decoder.last_event_id().filter(|id| !id.is_empty() && self.dropped.as_ref() != Some(*id))
    }

    /// Forgets the id of the last complete event: there is none until another one comes.
    pub fn drop_id(&mut self) {
        self.dropped = self.decoder.last_event_id().cloned();
    }

    /// How long the server wants a client to wait before it resumes (`retry:`).
    pub const fn retry(&self) -> Option<Duration> {
        self.retry
    }
}

impl std::fmt::Debug for Events {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Events").field("last_event_id", &self.last_event_id()).field("retry", &self.retry).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(limit: usize) -> Events {
        Events::new(NonZeroUsize::new(limit).unwrap())
    }

    fn all(events: &mut Events, text: &str) -> Vec<Event> {
        let mut bytes = text.as_bytes();
        std::iter::from_fn(|| events.next(&mut bytes)).collect()
    }

    fn frame(text: &str) -> Event {
        Event::Frame(text.into())
    }

    #[test]
    fn frames_come_out_wherever_the_stream_is_cut() {
        let text = "\u{feff}: hi\r\n\r\nid: 1\nretry: 250\ndata:\n\nevent: message\nid: 2\ndata: {\"a\":\ndata: 1}\n\n\
                    event: endpoint\ndata: /x\n\rdata: {}\r\r";
        for cut in (0..=text.len()).filter(|cut| text.is_char_boundary(*cut)) {
            let mut events = events(100);
            let mut found = all(&mut events, &text[..cut]);
            found.extend(all(&mut events, &text[cut..]));
            assert_eq!(found, [frame("{\"a\":\n1}"), Event::Other("endpoint".into(), "/x".into()), frame("{}")]);
            assert_eq!(events.last_event_id().map(|id| &**id), Some("2"));
            assert_eq!(events.retry(), Some(Duration::from_millis(250)));
        }
    }

    #[test]
    fn an_unfinished_event_is_not_delivered_and_its_id_not_kept() {
        let mut events = events(100);
        assert_eq!(all(&mut events, "id: 1\ndata: {}\n\nid: 2\ndata: {\"cut"), [frame("{}")]);
        events.resume();
        assert_eq!(events.last_event_id().map(|id| &**id), Some("1"));
        assert_eq!(all(&mut events, "data: {}\n\n"), [frame("{}")]);
    }

    #[test]
    fn a_long_event_is_left_out_and_the_next_one_is_not() {
        let mut events = events(16);
        let long = "x".repeat(10_000);
        assert_eq!(all(&mut events, &format!("data: {long}\n\ndata: {{}}\n\n")), [Event::TooLong, frame("{}")]);
    }

    #[test]
    fn an_id_that_was_dropped_is_none_until_another_comes() {
        let mut events = events(16);
        all(&mut events, "id: 1\ndata: {}\n\n");
        events.drop_id();
        all(&mut events, "data: {}\n\nid: 1\ndata: {}\n\n");
        events.resume();
        assert_eq!(events.last_event_id(), None);
        all(&mut events, "id: 2\ndata: {}\n\n");
        assert_eq!(events.last_event_id().map(|id| &**id), Some("2"));
    }

    #[test]
    fn an_id_that_is_empty_is_none() {
        let mut events = events(16);
        all(&mut events, "id: 1\n\nid\n\n");
        assert_eq!(events.last_event_id(), None);
    }
}
