//! The one front of all hosts of the era without sessions.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mcp_reconnect_http::headers::ToolHeaders;
use serde_json::value::RawValue;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::answer::lost;
use super::edit::{find, give_back, number, one_line, replace};
use super::{Opener, SessionKind};
use crate::front::HostEnd;
use crate::protocol::frame::{self, Frame};

/// How many requests may be open, of all hosts.
const OPEN: usize = 1024;
/// How many messages may wait for a host; one that falls further behind is cut off.
const ROOM: usize = 256;

const TOKEN: &[&str] = &["params", "_meta", "progressToken"];
const SUBSCRIPTION: &str = "io.modelcontextprotocol/subscriptionId";

/// Makes the ids of many hosts into those of one, and back.
pub(super) struct Hub {
    inner: Mutex<Inner>,
    opener: Opener,
    stop: CancellationToken,
    tasks: TaskTracker,
}

#[derive(Default)]
struct Inner {
    front: Option<Front>,
    fronts: u64,
    requests: HashMap<u64, Waiting>,
    last: u64,
    /// What the tools that were listed want as headers.
    tools: HashMap<String, ToolHeaders>,
}

#[derive(Clone)]
struct Front {
    number: u64,
    to_front: mpsc::Sender<Box<str>>,
    /// What is said without waiting.
    notices: mpsc::UnboundedSender<Box<str>>,
}

/// A request of a host, by the id that it has on the front's side.
struct Waiting {
    front: u64,
    /// As they are written by the host.
    id: Box<str>,
    token: Option<Box<str>>,
    kind: Kind,
    host: mpsc::Sender<Told>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    ListTools,
    /// Asks for log messages.
    Logging,
    Other,
}

/// A message for a host.
#[derive(Debug)]
pub(super) struct Told {
    pub(super) message: Box<str>,
    /// Whether it is the answer, and if so which error it is.
    pub(super) answer: Option<Result<(), i64>>,
}

/// Why a request was not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum NotTaken {
    /// Too many are open.
    Full,
    /// The listener is being closed, or its front has ended.
    Ended,
}

impl Hub {
    pub(super) fn new(opener: Opener, stop: CancellationToken, tasks: TaskTracker) -> Arc<Self> {
        Arc::new(Self { inner: Mutex::default(), opener, stop, tasks })
    }

    /// What a tool wants as headers, as far as it was listed.
    pub(super) fn tool(&self, name: &str) -> Option<ToolHeaders> {
        self.inner().tools.get(name).cloned()
    }

    /// Sends a request. Dropping the exchange before its answer cancels the request.
    ///
    /// # Errors
    ///
    /// Why it was not taken; then it was not sent.
    pub(super) async fn ask(self: &Arc<Self>, id: &str, method: &str, message: &str) -> Result<Exchange, NotTaken> {
        let (host, told) = mpsc::channel(ROOM);
        let (number, front) = {
            let mut inner = self.inner();
            let front = self.front(&mut inner)?;
            if inner.requests.len() >= OPEN {
                return Err(NotTaken::Full);
            }
            inner.last += 1;
            let number = inner.last;
            let logs = || find(message, &["params", "_meta", "io.modelcontextprotocol/logLevel"]).is_some();
            let kind = match method {
                "tools/list" => Kind::ListTools,
                _ if logs() => Kind::Logging,
                _ => Kind::Other,
            };
            let token = find(message, TOKEN).map(Into::into);
            inner.requests.insert(number, Waiting { front: front.number, id: id.into(), token, kind, host });
            (number, front)
        };
        // From here on the request is taken back where it comes to nothing.
        let mut exchange = Exchange { hub: self.clone(), number, told, sent: false };
        let ours = number.to_string();
        let mut renamed = replace(message, &["id"], &ours).ok_or(NotTaken::Ended)?;
        if let Some(with_token) = replace(&renamed, TOKEN, &ours) {
            renamed = with_token;
        }
        // Whether a message that is being handed over when the host leaves got through is not known.
        exchange.sent = true;
        tokio::select! {
            biased;
            () = self.stop.cancelled() => return Err(NotTaken::Ended),
            sent = front.to_front.send(renamed.into()) => if sent.is_err() {
                exchange.sent = false;
                return Err(NotTaken::Ended);
            }
        }
        Ok(exchange)
    }

    /// Passes a notification on.
    ///
    /// # Errors
    ///
    /// There is no front.
    pub(super) async fn tell(self: &Arc<Self>, message: Box<str>) -> Result<(), NotTaken> {
        let front = self.front(&mut self.inner())?;
        tokio::select! {
            biased;
            () = self.stop.cancelled() => Err(NotTaken::Ended),
            sent = front.to_front.send(message) => sent.map_err(|_| NotTaken::Ended),
        }
    }

    /// The front; opened where there is none.
    fn front(self: &Arc<Self>, inner: &mut Inner) -> Result<Front, NotTaken> {
        if self.stop.is_cancelled() {
            return Err(NotTaken::Ended);
        }
        if let Some(front) = inner.front.as_ref().filter(|front| !front.to_front.is_closed()) {
            return Ok(front.clone());
        }
        let HostEnd { to_front, from_front } = (self.opener)(SessionKind::Modern);
        let (notices, said) = mpsc::unbounded_channel();
        inner.fronts += 1;
        let front = Front { number: inner.fronts, to_front, notices };
        inner.front = Some(front.clone());
        self.tasks.spawn(self.clone().run(front.number, from_front));
        self.tasks.spawn(speak(front.to_front.clone(), said, self.stop.clone()));
        Ok(front)
    }

    /// Carries what a front says to the hosts, until it ends.
    async fn run(self: Arc<Self>, number: u64, mut from_front: mpsc::Receiver<Box<str>>) {
        loop {
            tokio::select! {
                biased;
                () = self.stop.cancelled() => break,
                message = from_front.recv() => match message {
                    Some(message) => self.route(message),
                    None => break,
                },
            }
        }
        {
            let mut inner = self.inner();
            if inner.front.as_ref().is_some_and(|front| front.number == number) {
                inner.front = None; // the end of the hosts' input
            }
            let open: Vec<u64> = inner.requests.keys().copied().collect();
            for open in open {
                if inner.requests.get(&open).is_some_and(|waiting| waiting.front == number)
                    && let Some(waiting) = inner.requests.remove(&open)
                {
                    let told = Told { message: lost(&waiting.id), answer: Some(Ok(())) };
                    drop(waiting.host.try_send(told)); // there is room for an answer, or nobody to take it
                }
            }
        }
        while from_front.recv().await.is_some() {} // nobody is there to be told
    }

    /// Gives a message of the front to the host that it is for, with that host's own id and token.
    fn route(&self, message: Box<str>) {
        let message = one_line(message.into());
        let frame = Frame::parse(&message);
        let mut inner = self.inner();
        let (request, told) = match frame {
            Frame::Response { id, outcome } => {
                let Some(waiting) = number(id.get()).and_then(|number| inner.requests.remove(&number)) else {
                    return tracing::debug!("an answer that nobody waits for");
                };
                if let (Kind::ListTools, Ok(result)) = (waiting.kind, outcome) {
                    inner.learn(result);
                }
                drop(inner);
                let told = Told { message: waiting.answer(&message), answer: Some(code(outcome)) };
                drop(waiting.host.try_send(told)); // there is room for an answer, or nobody to take it
                return;
            }
            Frame::Notification { method, params } => {
                let params = params.map_or("{}", RawValue::get);
                match inner.addressee(&method, params) {
                    Some((request, path, original)) => {
                        let edited = path.and_then(|path| replace(&message, path, &original));
                        (request, edited.map_or(message, Into::into))
                    }
                    None => return tracing::debug!("`{method}`, which is for no request"),
                }
            }
            Frame::Request { id, method, .. } => {
                tracing::debug!("the server asked for `{method}`, which this era does not know");
                let refusal = frame::error(id, -32601, "a server asks nothing in this protocol version");
                if let Some(front) = &inner.front {
                    drop(front.notices.send(refusal)); // a front that has ended needs none
                }
                return;
            }
            Frame::Unreadable(why) => return tracing::debug!("a front wrote {why}"),
        };
        let Some(waiting) = inner.requests.get(&request) else { return };
        // The last place is the answer's.
        if waiting.host.capacity() > 1 {
            drop(waiting.host.try_send(Told { message: told, answer: None })); // a host that has gone takes its request back
        } else {
            tracing::warn!("a host reads too slowly and is cut off");
            inner.abandon(request, true);
        }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where a notification goes: the request, and what is written where in it.
type Addressee = (u64, Option<&'static [&'static str]>, String);

impl Inner {
    fn addressee(&self, method: &str, params: &str) -> Option<Addressee> {
        let of = |path: &[&str]| {
            let written = find(params, path)?;
            let number = number(written)?;
            Some((number, written, self.requests.get(&number)?))
        };
        match method {
            "notifications/progress" => {
                let (number, _, waiting) = of(&["progressToken"])?;
                Some((number, Some(&["params", "progressToken"]), waiting.token.as_deref()?.to_owned()))
            }
            "notifications/cancelled" => {
                let (number, written, waiting) = of(&["requestId"])?;
                Some((number, Some(&["params", "requestId"]), give_back(&waiting.id, written)))
            }
            "notifications/message" if find(params, &["_meta", SUBSCRIPTION]).is_none() => {
                // It names no request: a message of one host's call is not for another's eyes.
                let mut logging = self.requests.iter().filter(|(_, waiting)| waiting.kind == Kind::Logging);
                let (number, _) = logging.next().filter(|_| logging.next().is_none())?;
                Some((*number, None, String::new()))
            }
            _ => {
                let (number, written, waiting) = of(&["_meta", SUBSCRIPTION])?;
                Some((number, Some(&["params", "_meta", SUBSCRIPTION]), give_back(&waiting.id, written)))
            }
        }
    }

    /// Notes what the tools in a list want as headers.
    fn learn(&mut self, result: &RawValue) {
        let tools = find(result.get(), &["tools"]).and_then(|tools| serde_json::from_str::<Vec<&RawValue>>(tools).ok());
        for tool in tools.into_iter().flatten() {
            match ToolHeaders::of_tool(tool.get()) {
                Ok(Some((name, headers))) => drop(self.tools.insert(name, headers)),
                Ok(None) | Err(_) => {
                    let name = find(tool.get(), &["name"]).and_then(|name| serde_json::from_str::<String>(name).ok());
                    drop(name.and_then(|name| self.tools.remove(&name)));
                }
            }
        }
    }

    /// Takes a request back.
    fn abandon(&mut self, number: u64, sent: bool) {
        let Some(waiting) = self.requests.remove(&number) else { return };
        if let Some(front) = self.front.as_ref().filter(|front| sent && front.number == waiting.front) {
            let params = format!(r#"{{"requestId":{number},"reason":"the host has gone"}}"#);
            drop(front.notices.send(frame::notification("notifications/cancelled", Some(&params)))); // ended: needs none
        }
    }
}

impl Waiting {
    /// An answer with the host's own id, also where the result says which subscription ended.
    fn answer(&self, message: &str) -> Box<str> {
        let path: &[&str] = &["result", "_meta", SUBSCRIPTION];
        let subscription = find(message, path).map(|written| give_back(&self.id, written));
        let edited = subscription.and_then(|id| replace(message, path, &id));
        let message = edited.as_deref().unwrap_or(message);
        replace(message, &["id"], &self.id).map_or_else(|| message.into(), Into::into)
    }
}

/// Says what needs no waiting, in order.
async fn speak(
    to_front: mpsc::Sender<Box<str>>,
    mut notices: mpsc::UnboundedReceiver<Box<str>>,
    stop: CancellationToken,
) {
    let speak = async {
        while let Some(notice) = notices.recv().await {
            if to_front.send(notice).await.is_err() {
                break;
            }
        }
    };
    tokio::select! {
        () = speak => {}
        () = stop.cancelled() => {}
    }
}

/// Which error it is.
fn code(outcome: Result<&RawValue, &RawValue>) -> Result<(), i64> {
    match outcome {
        Ok(_) => Ok(()),
        Err(error) => Err(find(error.get(), &["code"]).and_then(|code| code.parse().ok()).unwrap_or_default()),
    }
}

/// A request that was sent, and what its host is told.
pub(super) struct Exchange {
    hub: Arc<Hub>,
    number: u64,
    told: mpsc::Receiver<Told>,
    sent: bool,
}

impl Exchange {
    /// The next message; `None` after the answer, or where the host was cut off.
    pub(super) async fn next(&mut self) -> Option<Told> {
        self.told.recv().await
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        self.hub.inner().abandon(self.number, self.sent);
    }
}
