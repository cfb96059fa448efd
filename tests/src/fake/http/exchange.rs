//! One request of HTTP, from its gates to the end of its answer.

use std::future::pending;
use std::ops::ControlFlow;
use std::sync::Arc;

use serde_json::Value;
use tokio::sync::mpsc;

use super::HttpOutput;
use super::gate;
use super::host::{HttpHost, Item, Parked};
use super::ledger::{Asked, HttpEvent};
use super::message::{Connection, HttpRequest};
use super::plan::{HeaderValue, HttpAction};
use super::reply::{Fate, Played, Reply};
use crate::fake::host::{Frame, FrameKind, Output, Route};
use crate::fake::script::Action;

/// Answers a request; `true`: the connection may be used again.
pub(crate) async fn answer(
    connection: &mut Connection,
    host: &Arc<HttpHost>,
    frames: &mpsc::Sender<Frame>,
    request: HttpRequest,
) -> bool {
    let closes = request.header("connection").is_some_and(|value| value.eq_ignore_ascii_case("close"));
    let mut exchange = Exchange::new(connection, host, frames, request);
    let fate = match exchange.play().await {
        ControlFlow::Break(fate) => fate,
        ControlFlow::Continue(never) => match never {},
    };
    exchange.finish(fate).await;
    fate == Fate::Answered && !closes
}

enum Never {}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Verb,
    Token,
    Headers,
    Session,
    Delivery,
    Delivered,
}

struct Exchange<'a> {
    reply: Reply<'a>,
    host: &'a Arc<HttpHost>,
    frames: &'a mpsc::Sender<Frame>,
    request: HttpRequest,
    message: Value,
    number: u64,
    route: Route,
    stage: Stage,
    outputs: mpsc::Receiver<Item>,
    /// The rest of another answer, which this GET asked for.
    resumed: Option<mpsc::Receiver<Item>>,
    /// Whose rest that is, and the events' whose ids are sent here.
    origin: Option<u64>,
    awaits_origin: bool,
    /// Whether it took that rest over.
    attached: bool,
    standing: bool,
    /// Whether all of the message that it waits for was written.
    complete: bool,
    finished: bool,
}

impl Drop for Exchange<'_> {
    fn drop(&mut self) {
        if !self.finished {
            self.host.close(self.number);
        }
        self.reply.finished("ended");
    }
}

impl<'a> Exchange<'a> {
    fn new(
        connection: &'a mut Connection,
        host: &'a Arc<HttpHost>,
        frames: &'a mpsc::Sender<Frame>,
        request: HttpRequest,
    ) -> Self {
        let number = host.number();
        let message: Value = serde_json::from_str(&request.body).unwrap_or_default();
        let session = request.header("mcp-session-id").map(str::to_owned);
        let keep = |(name, value): (&str, &str)| {
            let value = if name == "authorization" { "present" } else { value };
            (name.to_owned(), value.to_owned())
        };
        host.record(HttpEvent::Asked(Asked {
            exchange: number,
            connection: connection.number,
            verb: request.verb.clone(),
            path: request.path.clone(),
            session: session.clone(),
            method: message["method"].as_str().map(str::to_owned),
            headers: request.headers().map(keep).collect(),
        }));
        Self {
            outputs: host.open(number),
            origin: request.header("last-event-id").and_then(|id| host.origin(id)),
            route: Route { exchange: Some(number), session: session.map(Into::into) },
            reply: Reply::new(connection, host, number),
            host,
            frames,
            request,
            message,
            number,
            stage: Stage::Verb,
            resumed: None,
            awaits_origin: false,
            attached: false,
            standing: false,
            complete: false,
            finished: false,
        }
    }

    fn method(&self) -> &str {
        self.message["method"].as_str().unwrap_or_default()
    }

    /// Whether its message waits for an answer.
    fn is_request(&self) -> bool {
        !self.method().is_empty() && !self.message["id"].is_null()
    }

    async fn play(&mut self) -> Played<Never> {
        self.advance().await?;
        loop {
            let origin = self.origin.filter(|_| self.awaits_origin);
            tokio::select! {
                biased;
                item = self.outputs.recv() => self.on(item).await?,
                item = async {
                    match &mut self.resumed {
                        Some(items) => items.recv().await,
                        None => pending().await,
                    }
                } => self.on(item).await?,
                rest = async {
                    match origin {
                        Some(origin) => self.host.unpark(origin).await,
                        None => pending().await,
                    }
                } => self.resume(rest).await?,
                () = self.reply.connection.gone() => return ControlFlow::Break(Fate::Abandoned),
            }
        }
    }

    /// Goes through the gates up to one that must be asked, or to the end.
    async fn advance(&mut self) -> Played {
        loop {
            let plan = self.host.plan.get();
            match self.stage {
                Stage::Verb => {
                    self.stage = Stage::Token;
                    let Some(subject) = gate::verb(&self.request) else {
                        let status = if self.request.path == super::PATH { 405 } else { 404 };
                        return self.reply.whole(status, None, b"").await;
                    };
                    return self.ask(subject, Vec::new()).await;
                }
                Stage::Token => {
                    self.stage = Stage::Headers;
                    if !self.host.authorizes(self.request.header("authorization")) {
                        return self.ask(&["unauthorized"], gate::challenge(&self.request)).await;
                    }
                }
                Stage::Headers => {
                    self.stage = Stage::Session;
                    if let Some((status, body)) = gate::headers(&plan, &self.request, &self.message) {
                        return self.reply.body(status, &body).await;
                    }
                }
                Stage::Session => {
                    self.stage = Stage::Delivery;
                    if let Some((subjects, default)) = gate::session(self.host, &plan, &self.request, &self.message) {
                        return self.ask(subjects, default).await;
                    }
                }
                Stage::Delivery => {
                    self.stage = Stage::Delivered;
                    return self.deliver(plan.http.sessions).await;
                }
                // The engine has read a message that gets no answer.
                Stage::Delivered if self.request.verb != "POST" || self.is_request() => {
                    return ControlFlow::Continue(());
                }
                Stage::Delivered if self.method().is_empty() && self.message["id"].is_null() => {
                    let error = r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"Parse error"}}"#;
                    return self.reply.whole(400, Some("application/json"), error.as_bytes()).await;
                }
                Stage::Delivered => return self.reply.whole(202, None, b"").await,
            }
        }
    }

    async fn ask(&self, subjects: &'static [&'static str], default: Vec<Action>) -> Played {
        let kind = FrameKind::Gate { subjects, default, id: self.message["id"].clone() };
        self.send(kind).await
    }

    async fn send(&self, kind: FrameKind) -> Played {
        let sent = self.frames.send(Frame { kind, route: self.route.clone() }).await;
        // Without its engine the server is about to end.
        sent.map_or(ControlFlow::Break(Fate::Cut), |()| ControlFlow::Continue(()))
    }

    async fn deliver(&mut self, sessions: bool) -> Played {
        match &*self.request.verb {
            "POST" => {
                if self.method() == "initialize" {
                    self.route.session = sessions.then(|| self.host.next_session());
                }
                self.send(FrameKind::Message(self.request.body.as_str().into())).await
            }
            "GET" => {
                self.standing = self.origin.is_none();
                self.awaits_origin = !self.standing;
                self.stream().await
            }
            _ => match self.route.session.clone().filter(|_| sessions) {
                Some(session) => {
                    self.host.end_session(&session, true);
                    self.reply.whole(200, None, b"").await
                }
                None => self.reply.whole(405, None, b"").await,
            },
        }
    }

    /// Carries out what comes next; without anything to come, the stream is over.
    async fn on(&mut self, item: Option<Item>) -> Played {
        let Some(Item { output, done: _done }) = item else { return self.end().await };
        match output {
            Output::Frame(text) if self.streams() => {
                self.stream().await?;
                self.reply.event(None, &text).await
            }
            frame @ Output::Frame(_) => {
                self.host.to_standing(self.route.session.as_ref(), frame).await;
                ControlFlow::Continue(())
            }
            Output::Answer(text) => self.answer(&text).await,
            Output::Raw(bytes) => {
                self.stream().await?;
                self.reply.chunk(&bytes).await
            }
            Output::Http(HttpOutput(action)) => self.act(action).await,
        }
    }

    async fn act(&mut self, action: HttpAction) -> Played {
        match action {
            HttpAction::Pass => return self.advance().await,
            HttpAction::Status { status, body, headers } => {
                self.reply.headers.extend(headers);
                return self.reply.body(status, &body).await;
            }
            HttpAction::WithStatus(status) => self.reply.status = Some(status),
            HttpAction::Header(name, value) => self.reply.headers.push((name, value)),
            HttpAction::Headers => self.stream().await?,
            HttpAction::HeadersOnly => {
                self.stream().await?;
                return ControlFlow::Break(Fate::Cut);
            }
            HttpAction::End => return self.end().await,
            HttpAction::Cut => return ControlFlow::Break(Fate::Cut),
            HttpAction::CutAfter(size) => self.reply.limit = Some(size),
            HttpAction::Reset => return ControlFlow::Break(Fate::Reset),
            HttpAction::BlackHole => pending().await,
            HttpAction::EventId(id) => {
                self.stream().await?;
                self.host.event(&id, self.origin.unwrap_or(self.number));
                return self.reply.event(Some(id), "").await;
            }
            HttpAction::Retry(delay) => {
                self.stream().await?;
                return self.reply.chunk(format!("retry: {}\n\n", delay.as_millis()).as_bytes()).await;
            }
            // The host has done it.
            HttpAction::Forget | HttpAction::SetToken(_) | HttpAction::Disconnect => {}
        }
        ControlFlow::Continue(())
    }

    /// Goes on with the rest of another answer.
    async fn resume(&mut self, rest: Parked) -> Played {
        (self.awaits_origin, self.attached) = (false, true);
        let last = self.request.header("last-event-id").map(str::to_owned);
        let seen = rest.log.iter().position(|(id, _)| *id == last).map_or(rest.log.len(), |index| index + 1);
        let missed: Vec<u8> = rest.log[seen..].iter().flat_map(|(_, bytes)| bytes.clone()).collect();
        self.reply.log = rest.log;
        if rest.standing {
            self.standing = true;
            self.host.stand(self.number, self.route.session.clone());
        }
        self.resumed = rest.outputs;
        self.complete = self.resumed.is_none();
        if !missed.is_empty() {
            self.reply.chunk(&missed).await?;
        }
        if self.complete { self.end().await } else { ControlFlow::Continue(()) }
    }

    /// Whether messages that are no answer can be written here.
    fn streams(&self) -> bool {
        let asks_for_stream = self.request.verb == "GET" || self.method() == "subscriptions/listen";
        self.reply.streaming || asks_for_stream || self.host.plan.get().http.sse
    }

    async fn answer(&mut self, text: &str) -> Played {
        self.complete = true;
        let message: Value = serde_json::from_str(text).unwrap_or_default();
        let status = self.reply.status.unwrap_or_else(|| gate::status_of(&self.message, &message));
        if self.reply.streaming || (status == 200 && self.streams()) {
            if message["error"].is_null() {
                self.stream().await?;
            } else {
                self.stream_without_session().await?;
            }
            self.reply.event(None, text).await?;
            return self.end().await;
        }
        if message["error"].is_null() {
            self.issue_session();
        }
        self.reply.whole(status, Some("application/json"), text.as_bytes()).await
    }

    /// Tells the client of its session with the head that comes next.
    fn issue_session(&mut self) {
        if self.method() == "initialize"
            && let Some(session) = &self.route.session
        {
            self.host.create_session(session);
            self.reply.headers.push(("mcp-session-id".into(), HeaderValue::Text(session.to_string())));
        }
    }

    async fn stream(&mut self) -> Played {
        if !self.reply.streaming {
            self.issue_session();
        }
        self.stream_without_session().await
    }

    async fn stream_without_session(&mut self) -> Played {
        if !self.reply.streaming {
            if self.request.verb == "GET" {
                self.host.record(HttpEvent::StreamOpened { exchange: self.number });
            }
            if self.standing {
                self.host.stand(self.number, self.route.session.clone());
            }
        }
        self.reply.stream().await
    }

    async fn end(&mut self) -> Played {
        self.stream().await?;
        self.reply.end().await
    }

    /// Passes on what came too late, or keeps it for the GET that asks for it.
    async fn finish(mut self, fate: Fate) {
        self.finished = true;
        if fate == Fate::Reset {
            // A socket that is gone already needs no reset.
            self.reply.connection.reset().ok();
        }
        if self.method() == "subscriptions/listen" {
            // Without its engine nobody listens.
            drop(self.frames.send(Frame { kind: FrameKind::Gone, route: self.route.clone() }).await);
        }
        self.reply.finished(fate.word());
        if self.keep() {
            return;
        }
        self.host.close(self.number);
        self.outputs.close();
        while let Ok(Item { output, .. }) = self.outputs.try_recv() {
            match output {
                Output::Frame(_) => self.host.to_standing(self.route.session.as_ref(), output).await,
                _ => self.host.undelivered(output),
            }
        }
    }

    /// Keeps the rest of an answer with event ids; `true`: what is still to come for this request, too.
    fn keep(&mut self) -> bool {
        let log = std::mem::take(&mut self.reply.log);
        let own = self.origin.is_none();
        let Some(origin) = self.origin.filter(|_| self.attached).or(own.then_some(self.number)) else { return false };
        if log.is_empty() {
            return false;
        }
        let outputs = if self.complete {
            None
        } else if own {
            let (_, closed) = mpsc::channel(1);
            Some(std::mem::replace(&mut self.outputs, closed))
        } else {
            self.resumed.take()
        };
        let kept = own && outputs.is_some();
        self.host.park(origin, Parked { outputs, log, standing: self.standing });
        kept
    }
}
