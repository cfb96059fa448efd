//! Asks a session what it has answered before, where an answer of it is doubted, and acts by what it says.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::Shared;
use mcp_reconnect_core::{Failure, FailureClass};
use serde_json::value::RawValue;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};

use crate::link::{Ended, LinkNews};
use crate::protocol::frame::{Object, member};
use crate::session::doubt::{
    Asked, Doubt, History, Order, Outcome, Reply, Said, Step, Suspicion, Verdict, gone, judge, judge_ping,
};
use crate::session::established::Established;
use crate::wire::{Answer, Call, CallFailure, HARMLESS, Raised, RequestOptions, Wire};

/// How long the session may take to answer an ask, whoever waits for it.
const ASK_TIMEOUT: Duration = Duration::from_secs(5);
/// How long after an empty list of tools it is asked for once more.
const LIST_AGAIN: Duration = Duration::from_secs(1);

/// How far apart lists are that are asked for because they may have changed unheard: twice as far each time.
const PRESUMED: Duration = Duration::from_secs(1);
/// The farthest.
const MOST_PRESUMED: Duration = Duration::from_secs(15 * 60);

/// What the connection remembers of doubts, beside what each session does.
pub(crate) struct AskMemory {
    history: Mutex<History>,
    /// The longest rate limit that is waited for.
    retry_after_max: Mutex<Duration>,
}

impl AskMemory {
    pub(crate) fn new(retry_after_max: Duration) -> Self {
        Self { history: Mutex::default(), retry_after_max: Mutex::new(retry_after_max) }
    }

    /// Another longest rate limit.
    pub(crate) fn retune(&self, retry_after_max: Duration) {
        *lock(&self.retry_after_max) = retry_after_max;
    }
}

/// One session's doubts.
pub(crate) struct Asker {
    wire: Wire,
    established: Established,
    memory: Arc<AskMemory>,
    state: Mutex<State>,
    /// The session is given up: not handed out, though the owner may not have come to it yet.
    condemned: AtomicBool,
}

#[derive(Default)]
struct State {
    suspicion: Suspicion,
    /// The ask under way.
    flight: Option<Flight>,
    /// What the last ask of the session has found.
    over: Option<Verdict>,
    /// Whether the session ever listed a tool.
    had_tools: bool,
    presumed: Presumed,
}

/// The presumption that the lists have changed: when the last one was made, or will be.
#[derive(Default)]
struct Presumed {
    at: Option<Instant>,
    wait: Duration,
}

impl Presumed {
    /// When to presume it, for a reason that comes now; `None` where that is settled already.
    fn due(&mut self, now: Instant) -> Option<Instant> {
        match self.at {
            Some(at) if at > now => return None,
            Some(at) if now < at + MOST_PRESUMED => self.wait = (self.wait * 2).clamp(PRESUMED, MOST_PRESUMED),
            Some(_) | None => self.wait = Duration::ZERO,
        }
        let due = self.at.map_or(now, |at| now.max(at + self.wait));
        self.at = Some(due);
        Some(due)
    }
}

type Flight = Shared<oneshot::Receiver<Verdict>>;

impl Asker {
    pub(crate) fn new(wire: Wire, established: Established, memory: Arc<AskMemory>, had_tools: bool) -> Arc<Self> {
        let state = Mutex::new(State { had_tools, ..State::default() });
        let asker = Arc::new(Self { wire, established, memory, state, condemned: AtomicBool::new(false) });
        let raised = Arc::downgrade(&asker);
        asker.wire.raise_to(Box::new(move |method, what| {
            if let Some(asker) = raised.upgrade() {
                asker.raised(method, what);
            }
        }));
        let told = Arc::downgrade(&asker);
        asker.wire.control().report_to(Box::new(move |news| {
            if let Some(asker) = told.upgrade() {
                asker.told(news);
            }
        }));
        asker
    }

    pub(crate) fn condemn(&self) {
        self.condemned.store(true, Ordering::Release);
    }

    pub(crate) fn is_condemned(&self) -> bool {
        self.condemned.load(Ordering::Acquire)
    }

    /// The session has listed tools: an empty list is suspect from now on.
    pub(crate) fn had_tools(&self) {
        self.lock().had_tools = true;
    }

    /// Hears of what came of a caller's request: what of it is doubted, and what is to be
    /// done if the session turns out to be well.
    pub(crate) fn hear(
        self: &Arc<Self>,
        method: &str,
        tool: Option<&str>,
        answer: &Result<Answer, CallFailure>,
    ) -> (Option<Doubt>, Option<Order>) {
        let outcome = match answer {
            Ok(Ok(result)) => Outcome::Result(result),
            Ok(Err(error)) => Outcome::Error(error),
            Err(CallFailure { doubt: Some(refusal), .. }) => Outcome::Refused(refusal),
            Err(_) => Outcome::Other,
        };
        let asked = match outcome {
            Outcome::Result(_) | Outcome::Other => {
                Asked { method, tool, known: false, busy: false, process: false, own: false }
            }
            Outcome::Error(_) | Outcome::Refused(_) => Asked { tool, ..self.asked(method) },
        };
        let mut history = lock(&self.memory.history);
        let (doubt, order) = self.lock().suspicion.hear(&mut history, asked, outcome, Instant::now());
        drop(history);
        if matches!(outcome, Outcome::Result(_)) && doubt.is_none() && !method.ends_with("/list") {
            self.wire.note_served();
        }
        (doubt, order)
    }

    /// Replaces the session, which is well but suspect, by a fresh one. `false`: that was tried, and no call has had a
    /// result since.
    pub(crate) fn rebuild(&self, cause: Arc<str>) -> bool {
        let first = self.spend();
        if first {
            self.lose(Ended { failure: gone(), cause }, Verdict::Gone(None));
        }
        first
    }

    /// Notes that something is done about a suspect session. `false`: that was so, and no call has had a result since.
    pub(crate) fn spend(&self) -> bool {
        lock(&self.memory.history).spend()
    }

    fn asked<'a>(&self, method: &'a str) -> Asked<'a> {
        Asked {
            method,
            tool: None,
            known: self.wire.knows(method),
            busy: self.wire.oldest_open().is_some(),
            process: self.wire.control().facts().address.is_none(),
            own: false,
        }
    }

    /// A doubt whose answer nobody holds.
    fn raised(self: &Arc<Self>, method: &str, raised: Raised<'_>) {
        let doubt = match raised {
            Raised::Failed(refusal) => Some(Doubt::of(method, refusal)),
            Raised::Error(error) => {
                // Without a method it is the typed view's.
                let asked = Asked { own: !method.is_empty(), ..self.asked(method) };
                self.lock().suspicion.hear_rpc(asked, error)
            }
        };
        if let Some(doubt) = doubt {
            drop(self.ask(&doubt));
        }
    }

    fn told(self: &Arc<Self>, news: LinkNews) {
        match news {
            LinkNews::Doubt(refusal) => drop(self.ask(&Doubt::of("", &refusal))),
            LinkNews::Reopened => self.presume(),
        }
    }

    /// A stream of changes was open, and is again: what changed between was not told.
    fn presume(&self) {
        let now = Instant::now();
        let Some(due) = self.lock().presumed.due(now) else { return };
        if due <= now {
            return self.wire.presume_changes();
        }
        let wire = self.wire.clone();
        self.wire.spawn(async move {
            tokio::select! {
                _ = wire.ended() => {}
                () = sleep_until(due) => wire.presume_changes(),
            }
        });
    }

    /// Asks the session, unless it may not be asked now, and tells what was found: within this time, where the caller is
    /// held for it.
    pub(crate) async fn settle(self: &Arc<Self>, doubt: &Doubt, until: Instant) -> Verdict {
        let (flight, held) = match self.ask(doubt) {
            Ok(asked) => asked,
            Err(verdict) => return verdict,
        };
        if !held {
            return Verdict::Silent;
        }
        match timeout_at(until, flight).await {
            Ok(Ok(verdict)) => verdict,
            // The runtime that asked is going down.
            Ok(Err(_)) => Verdict::Ended,
            Err(_) => Verdict::Silent,
        }
    }

    /// Asks the session about a ping that was refused. Whether it is well, and knows no pings.
    pub(crate) async fn settle_ping(self: &Arc<Self>, doubt: &Doubt) -> bool {
        // As long as the ask takes.
        self.settle(doubt, Instant::now() + ASK_TIMEOUT * 2).await == Verdict::Well
    }

    /// The ask about this, under way, and whether its caller is held meanwhile. An error is the verdict, where the session
    /// is not asked.
    fn ask(self: &Arc<Self>, doubt: &Doubt) -> Result<(Flight, bool), Verdict> {
        let mut state = self.lock();
        if let Some(over) = &state.over {
            return Err(over.clone());
        }
        let held = state.suspicion.holds();
        if let Some(flight) = &state.flight {
            return Ok((flight.clone(), held));
        }
        if !state.suspicion.may_ask(&doubt.said, Instant::now()) {
            return Err(Verdict::Silent);
        }
        let (sender, receiver) = oneshot::channel();
        let flight = receiver.shared();
        state.flight = Some(flight.clone());
        drop(state);
        tracing::debug!(epoch = %self.wire.epoch(), ?doubt, "an answer is doubted; the session is asked");
        let (asker, doubt) = (self.clone(), doubt.clone());
        self.wire.spawn(async move {
            let verdict = asker.find_out(&doubt).await;
            _ = sender.send(verdict); // nobody may wait for it
        });
        Ok((flight, held))
    }

    /// Asks, and acts by what was found.
    async fn find_out(self: &Arc<Self>, doubt: &Doubt) -> Verdict {
        let began = Instant::now();
        let (verdict, said) = match timeout(ASK_TIMEOUT, self.question(doubt)).await {
            Ok(found) => found,
            Err(_) => (Verdict::Silent, None),
        };
        tracing::debug!(epoch = %self.wire.epoch(), ?verdict, "the session was asked");
        let busy = self.wire.oldest_open().is_some_and(|sent| sent < began);
        let silent = {
            let mut state = self.lock();
            state.flight = None;
            state.suspicion.asked(&verdict, busy)
        };
        let text = &doubt.cause;
        let ended = match (&verdict, silent, said) {
            (Verdict::Gone(_), ..) => {
                Ended { failure: gone(), cause: format!("the server has lost the session: {text}").into() }
            }
            (Verdict::Lost, _, Some((failure, cause))) => {
                Ended { failure, cause: format!("{text}; asked about the session: {cause}").into() }
            }
            (_, Some(cause), _) => Ended { failure: FailureClass::Unresponsive.into(), cause },
            _ => return verdict,
        };
        self.lose(ended, verdict.clone());
        verdict
    }

    /// Asks what the session has answered before, and pings it where that does not tell. With what broke, if the way to
    /// the session did.
    async fn question(self: &Arc<Self>, doubt: &Doubt) -> (Verdict, Option<(Failure, Arc<str>)>) {
        let mut again = false;
        let (asked, reply) = loop {
            let method = self.harmless(doubt);
            let pinged = method == self.ping_method();
            let reply = self.reply(self.request(method)).await;
            let had_tools = method == HARMLESS[0] && self.lock().had_tools;
            match judge(&doubt.said, pinged, had_tools, again, &reply) {
                Step::Verdict(verdict) => return (verdict, broken(reply)),
                Step::Ping => break (reply, self.reply(self.established.ping(&self.wire)).await),
                Step::Again => {
                    again = true;
                    sleep(LIST_AGAIN).await;
                }
            }
        };
        let verdict = match (judge_ping(&reply), asked) {
            (Verdict::Gone(None), Reply::Refused(said)) => Verdict::Gone(Some(Arc::new(said))),
            (verdict, _) => verdict,
        };
        if verdict == Verdict::Well {
            // The list was refused, or is empty: it is not what it was.
            self.wire.presume_changes();
        }
        (verdict, broken(reply))
    }

    fn ping_method(&self) -> &'static str {
        if self.established.version.has_initialize() { "ping" } else { "server/discover" }
    }

    /// The first thing that the session has answered and that is not what is doubted, where there is another.
    fn harmless(&self, doubt: &Doubt) -> &'static str {
        let ping = self.ping_method();
        if doubt.by_ping {
            return ping;
        }
        let known = || HARMLESS.into_iter().filter(|method| self.wire.knows(method));
        // The greeting was answered in every modern session: it is asked for where nothing can be listed.
        let other = known().find(|method| *method != &*doubt.method);
        other.or_else(|| known().next()).unwrap_or(ping)
    }

    fn request(&self, method: &str) -> Call {
        let meta = &self.established.meta;
        let options = RequestOptions { meta, uncancelled: true, uncounted: true, held: true, ..Default::default() };
        self.wire.request(method, None, options)
    }

    async fn reply(&self, mut call: Call) -> Reply {
        let reply = match call.answer().await {
            Ok(Ok(result)) => Reply::Answered { empty: has_no_tools(&result) },
            Ok(Err(error)) => Reply::Refused(Said::error(&error)),
            Err(failure) => self.failed(failure),
        };
        self.limited(reply == Reply::Limited);
        reply
    }

    fn failed(&self, CallFailure { failure, cause, doubt, .. }: CallFailure) -> Reply {
        let control = self.wire.control();
        match (failure.class, doubt) {
            (FailureClass::RateLimited, _) => Reply::Limited,
            _ if self.wire.end_cause().is_some() => Reply::Ended,
            (_, None) if !control.survives() => Reply::Ended,
            // The credentials' affair.
            (FailureClass::NeedsAuth | FailureClass::Unauthorized, None) => Reply::Silent,
            // Settled, by a server that is there.
            (_, None) => Reply::Answered { empty: false },
            (_, Some(refusal)) => match refusal.status {
                None => Reply::Broken(failure, cause),
                Some(500..) if control.facts().session_id.is_none() => Reply::Broken(failure, cause),
                Some(_) => Reply::Refused(Said::refusal(&refusal)),
            },
        }
    }

    /// Notes whether a ping or an ask got 429. Where nothing else comes for long, a fresh session is tried.
    pub(crate) fn limited(&self, limited: bool) {
        let longest = *lock(&self.memory.retry_after_max);
        let mut history = lock(&self.memory.history);
        let over = self.lock().suspicion.limited(&mut history, limited, longest, Instant::now());
        drop(history);
        if over {
            let cause = format!("the server has limited the rate of everything for {longest:?}");
            self.lose(Ended { failure: gone(), cause: cause.into() }, Verdict::Gone(None));
        }
    }

    /// Gives the session up.
    fn lose(&self, ended: Ended, verdict: Verdict) {
        self.condemn();
        self.lock().over = Some(verdict);
        if !self.wire.control().give_up(&ended) {
            self.wire.end(ended);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

fn broken(reply: Reply) -> Option<(Failure, Arc<str>)> {
    match reply {
        Reply::Broken(failure, cause) => Some((failure, cause)),
        _ => None,
    }
}

/// Whether a result is a list of tools without one.
fn has_no_tools(result: &RawValue) -> bool {
    let Ok(Object(members)) = serde_json::from_str(result.get()) else { return false };
    member(&members, "tools")
        .is_some_and(|tools| serde_json::from_str::<Vec<&RawValue>>(tools.get()).is_ok_and(|tools| tools.is_empty()))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for Asker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Asker").field("epoch", &self.wire.epoch()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presumed_changes_are_listed_at_once_and_then_ever_more_rarely() {
        let (mut presumed, began) = (Presumed::default(), Instant::now());
        let at = |seconds| began + Duration::from_secs(seconds);
        let mut due = |seconds| presumed.due(at(seconds)).map(|due| (due - began).as_secs());
        // A proxy cuts the stream each minute.
        assert_eq!([due(0), due(60), due(120), due(180), due(240)], [0, 60, 120, 180, 240].map(Some));
        // Streams that end at once: one list is still to come, and none is added to it.
        assert_eq!([due(241), due(242), due(255), due(257)], [Some(256), None, None, Some(288)]);
        // After a long rest it begins anew.
        assert_eq!([due(1188), due(1188), due(1188)], [Some(1188), Some(1189), None]);
    }
}
