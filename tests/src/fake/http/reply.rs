//! The bytes of an answer, whole or broken.

use std::ops::ControlFlow;

use super::host::HttpHost;
use super::ledger::HttpEvent;
use super::message::{Connection, head};
use super::plan::{Body, HeaderValue};

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Answered,
    Cut,
    Reset,
    Abandoned,
}

impl Fate {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Answered => "answered",
            Self::Cut => "cut",
            Self::Reset => "reset",
            Self::Abandoned => "abandoned",
        }
    }
}

/// Goes on until the fate of the request is decided.
pub(crate) type Played<T = ()> = ControlFlow<Fate, T>;

/// An answer that is being written.
pub(crate) struct Reply<'a> {
    pub(crate) connection: &'a mut Connection,
    host: &'a HttpHost,
    exchange: u64,
    /// Whether the head of a stream was written.
    pub(crate) streaming: bool,
    /// Instead of the right one.
    pub(crate) status: Option<u16>,
    pub(crate) headers: Vec<(String, HeaderValue)>,
    /// How much more of the body is sent before the cut.
    pub(crate) limit: Option<usize>,
    /// The events since the first one with an id.
    pub(crate) log: Vec<(Option<String>, Vec<u8>)>,
    /// Whether the ledger has its end.
    finished: bool,
}

impl<'a> Reply<'a> {
    pub(crate) fn new(connection: &'a mut Connection, host: &'a HttpHost, exchange: u64) -> Self {
        Self {
            connection,
            host,
            exchange,
            streaming: false,
            status: None,
            headers: Vec::new(),
            limit: None,
            log: Vec::new(),
            finished: false,
        }
    }

    /// Writes the head of a stream, once.
    pub(crate) async fn stream(&mut self) -> Played {
        if self.streaming {
            return ControlFlow::Continue(());
        }
        self.streaming = true;
        let head =
            self.head(self.status.unwrap_or(200), Some("text/event-stream"), ("transfer-encoding", "chunked".into()));
        self.write(&head).await
    }

    /// An answer in one piece. Behind the head of a stream it is too late for one: the stream is cut.
    pub(crate) async fn whole(&mut self, status: u16, content_type: Option<&str>, body: &[u8]) -> Played {
        if self.streaming {
            return ControlFlow::Break(Fate::Cut);
        }
        let mut bytes = self.head(status, content_type, ("content-length", body.len().to_string()));
        let sent = self.limit.map_or(body.len(), |limit| limit.min(body.len()));
        bytes.extend(&body[..sent]);
        let fate = if self.limit.is_some() { Fate::Cut } else { Fate::Answered };
        self.finished(fate.word());
        self.write(&bytes).await?;
        ControlFlow::Break(fate)
    }

    pub(crate) async fn body(&mut self, status: u16, body: &Body) -> Played {
        match body {
            Body::Text(text) if text.is_empty() => self.whole(status, None, b"").await,
            Body::Text(text) => self.whole(status, Some("text/plain; charset=utf-8"), text).await,
            Body::Json(json) => self.whole(status, Some("application/json"), json.to_string().as_bytes()).await,
        }
    }

    pub(crate) async fn event(&mut self, id: Option<String>, data: &str) -> Played {
        let name = id.as_ref().map_or_else(|| "event: message".to_owned(), |id| format!("id: {id}"));
        let event = format!("{name}\ndata: {data}\n\n").into_bytes();
        if id.is_some() || !self.log.is_empty() {
            self.log.push((id, event.clone()));
        }
        self.chunk(&event).await
    }

    pub(crate) async fn chunk(&mut self, body: &[u8]) -> Played {
        let mut bytes = format!("{:x}\r\n", body.len()).into_bytes();
        match &mut self.limit {
            Some(limit) if *limit <= body.len() => {
                bytes.extend(&body[..*limit]);
                self.finished(Fate::Cut.word());
                self.write(&bytes).await?;
                return ControlFlow::Break(Fate::Cut);
            }
            Some(limit) => *limit -= body.len(),
            None => {}
        }
        bytes.extend(body);
        bytes.extend(b"\r\n");
        self.write(&bytes).await
    }

    /// Ends the body as it should be ended, whatever is missing in it.
    pub(crate) async fn end(&mut self) -> Played {
        self.finished(Fate::Answered.word());
        self.write(b"0\r\n\r\n").await?;
        ControlFlow::Break(Fate::Answered)
    }

    /// Says in the ledger how it ends: once, and before the client can see it.
    pub(crate) fn finished(&mut self, how: &str) {
        if !self.finished {
            self.finished = true;
            self.host.record(HttpEvent::Finished { exchange: self.exchange, how: how.into() });
        }
    }

    fn head(&self, status: u16, content_type: Option<&str>, framing: (&str, String)) -> Vec<u8> {
        self.host.record(HttpEvent::Answered { exchange: self.exchange, status });
        let scripted = self.host.plan.get().http.content_type.clone().filter(|_| status == 200);
        let content_type = scripted.or_else(|| content_type.map(|value| HeaderValue::Text(value.into())));
        let mut headers: Vec<(String, String)> = Vec::new();
        let defaults = content_type.map(|value| ("content-type".to_owned(), value));
        for (name, value) in defaults.iter().chain(&self.headers) {
            headers.retain(|(other, _)| other != name);
            headers.extend(value.render().map(|value| (name.clone(), value)));
        }
        headers.push((framing.0.to_owned(), framing.1));
        head(status, &headers)
    }

    async fn write(&mut self, bytes: &[u8]) -> Played {
        let written = self.connection.write(bytes).await;
        written.map_or(ControlFlow::Break(Fate::Abandoned), |()| ControlFlow::Continue(()))
    }
}
