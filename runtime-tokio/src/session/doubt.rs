//! Doubt about a session, and how it is settled: which answers raise it, when the session may be asked, and what the
//! answer to that means. Pure: no I/O, and the time is given.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use mcp_reconnect_core::{Failure, FailureClass};
use serde_json::value::RawValue;
use tokio::time::Instant;

use crate::link::Refusal;
use crate::protocol::frame::RpcError;

/// How often a session is asked within [`MINUTE`].
const ASKS: usize = 6;
/// The span within which asks are counted, and for which a text is not asked about again.
const MINUTE: Duration = Duration::from_secs(60);
/// How many texts are kept.
const TEXTS: usize = 16;
/// How much of a text is compared.
const TEXT: usize = 300;
/// So many answers of "nothing at all" in a row rebuild a session.
const NOTHINGS: u32 = 3;
/// So many asks without an answer in a row end a session.
const SILENT_ASKS: u32 = 3;
/// So many calls, over at least [`MINUTE`], with nothing but the same refusal make a session suspect.
const SAME_REFUSALS: u32 = 5;
/// How many names of tools are kept that had a result.
const NAMES: usize = 1_000;

/// The headers of a request do not say what its body holds: the list of tools, and with it the headers, is old.
pub(crate) const HEADER_MISMATCH: i64 = -32020;
/// A tool needs something of its client: the tool's own answer.
const MISSING_CAPABILITY: i64 = -32021;
/// The server does not speak the protocol version that it agreed to.
const UNSUPPORTED_VERSION: i64 = -32022;
/// A method that the server does not know: it refuses nothing.
pub(crate) const METHOD_NOT_FOUND: i64 = -32601;

/// What was said instead of a result: as much of it as is compared.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Said {
    status: Option<u16>,
    pub(crate) code: Option<i64>,
    /// Masked.
    text: Box<str>,
    /// The exchange broke: there is no text of a server to be remembered.
    broken: bool,
}

impl Said {
    pub(crate) fn new(status: Option<u16>, code: Option<i64>, text: &str) -> Self {
        Self { status, code, text: masked(text), broken: false }
    }

    /// A refusal as a transport tells it.
    pub(crate) fn refusal(refusal: &Refusal) -> Self {
        let broken = refusal.status.is_none() && refusal.code.is_none();
        Self { broken, ..Self::new(refusal.status, refusal.code, &refusal.message) }
    }

    /// An error under the request's own id.
    pub(crate) fn error(error: &RpcError) -> Self {
        Self::new(None, Some(error.code), &error.message)
    }

    /// Whether both were refused in the same way. Texts are not compared: they may hold ids.
    fn is_as(&self, other: &Self) -> bool {
        (self.status, self.code) == (other.status, other.code) && (self.status.is_some() || self.code.is_some())
    }

    /// A 2xx answer that holds nothing for the request.
    fn is_nothing(&self) -> bool {
        self.status.is_some_and(|status| (200..300).contains(&status))
    }
}

/// A text with its ids made equal: each run of digits, and each run of at least four hexadecimal digits, is one `#`.
fn masked(text: &str) -> Box<str> {
    let mut masked = String::new();
    let mut rest: &str = match text.char_indices().nth(TEXT) {
        Some((end, _)) => &text[..end],
        None => text,
    };
    while let Some(first) = rest.chars().next() {
        let hex = rest.find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(rest.len());
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let run = if hex >= 4 { hex } else { digits };
        if run > 0 {
            if !masked.ends_with('#') {
                masked.push('#');
            }
            rest = &rest[run..];
        } else if hex > 0 {
            // A short run of letters: taken whole, so that its end is not taken for the beginning of another.
            masked.push_str(&rest[..1]);
            rest = &rest[1..];
        } else {
            masked.push(first);
            rest = &rest[first.len_utf8()..];
        }
    }
    masked.into()
}

/// Doubt about an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Doubt {
    /// The method that was asked; empty where that is not known.
    pub(crate) method: Box<str>,
    pub(crate) said: Said,
    /// Whether no handler has run where something else is refused with the same status, code and message.
    pub(crate) gate: bool,
    /// A ping settles it: a list that was answered before.
    pub(crate) by_ping: bool,
    /// What was said, in words for a cause.
    pub(crate) cause: Box<str>,
}

/// What came of a caller's request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Outcome<'a> {
    Result(&'a RawValue),
    Error(&'a RpcError),
    /// The transport doubts it.
    Refused(&'a Refusal),
    /// Settled, and nothing to learn from.
    Other,
}

/// What is to be done about a session beside asking it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// It is replaced by a fresh one, once.
    Rebuild(Arc<str>),
    /// It is suspect, and a fresh one would cost a process.
    Suspect(i64),
}

/// What a session answered when it was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    /// A result; whether it is an empty list of tools.
    Answered {
        empty: bool,
    },
    Refused(Said),
    /// There was no exchange, or none that a session had a part in.
    Broken(Failure, Arc<str>),
    /// Too many requests.
    Limited,
    Silent,
    /// The session had ended meanwhile.
    Ended,
}

/// What an ask has found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The session is well.
    Well,
    /// It is gone. With what the ask was told, where it was refused.
    Gone(Option<Arc<Said>>),
    /// The way to it is broken.
    Lost,
    /// Nothing was found out.
    Silent,
    /// It had ended meanwhile.
    Ended,
}

/// What follows from a reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Verdict(Verdict),
    /// Refused in another way than the doubted request, or an empty list twice: a ping decides.
    Ping,
    /// An empty list where there were tools: asked once more a moment later.
    Again,
}

/// What the answer to an ask means for the doubt that led to it.
pub(crate) fn judge(doubted: &Said, pinged: bool, had_tools: bool, again: bool, reply: &Reply) -> Step {
    Step::Verdict(match reply {
        Reply::Answered { empty: true } if had_tools => return if again { Step::Ping } else { Step::Again },
        Reply::Answered { .. } => Verdict::Well,
        Reply::Refused(said) if pinged && said.code == Some(METHOD_NOT_FOUND) => Verdict::Well,
        Reply::Refused(said) if said.is_as(doubted) => Verdict::Gone(Some(Arc::new(said.clone()))),
        Reply::Refused(_) => return Step::Ping,
        Reply::Broken(..) => Verdict::Lost,
        Reply::Limited | Reply::Silent => Verdict::Silent,
        Reply::Ended => Verdict::Ended,
    })
}

/// What the answer to the ping means that follows an ask which was refused in another way.
pub(crate) fn judge_ping(reply: &Reply) -> Verdict {
    match reply {
        Reply::Refused(said) if said.code != Some(METHOD_NOT_FOUND) => Verdict::Gone(None),
        Reply::Answered { .. } | Reply::Refused(_) => Verdict::Well,
        Reply::Broken(..) => Verdict::Lost,
        Reply::Limited | Reply::Silent => Verdict::Silent,
        Reply::Ended => Verdict::Ended,
    }
}

/// What is remembered of doubts over the sessions of a connection.
#[derive(Debug, Default)]
pub(crate) struct History {
    /// A session was rebuilt on suspicion, and no call had a result since.
    spent: bool,
    /// The same for a server that limits the rate of everything.
    limited: bool,
    /// Tools that had a result.
    served: BTreeSet<Box<str>>,
}

impl History {
    /// An order is carried out: there is no other before a call has had a result. `false`: there was one.
    pub(crate) fn spend(&mut self) -> bool {
        !std::mem::replace(&mut self.spent, true)
    }
}

/// What is remembered of doubts within one session.
#[derive(Debug, Default)]
pub(crate) struct Suspicion {
    asks: VecDeque<Instant>,
    texts: VecDeque<(Said, Instant)>,
    errors: u32,
    nothings: u32,
    silent_asks: u32,
    /// Nobody is held until something was answered.
    silent: bool,
    /// Whether the last ask was answered.
    well: bool,
    same: Option<Same>,
    /// Since when asks and pings have got nothing but 429.
    limited: Option<Instant>,
}

/// Calls in a row that were refused in the same way.
#[derive(Debug)]
struct Same {
    /// Status and code.
    key: (Option<u16>, Option<i64>),
    since: Instant,
    calls: u32,
    /// Whether one of the tools had a result before.
    served: bool,
}

/// What is known of a caller's request beside its outcome.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked<'a> {
    pub(crate) method: &'a str,
    pub(crate) tool: Option<&'a str>,
    /// Whether a request of this method was answered with a result in this session.
    pub(crate) known: bool,
    /// Whether another call is open.
    pub(crate) busy: bool,
    /// Whether a fresh session costs a process.
    pub(crate) process: bool,
    /// Whether it is no caller's request.
    pub(crate) own: bool,
}

impl Suspicion {
    /// Hears of the outcome of a caller's request: what is to be doubted of it, and what is to be done if the session
    /// turns out to be well.
    pub(crate) fn hear(
        &mut self,
        history: &mut History,
        asked: Asked<'_>,
        outcome: Outcome<'_>,
        now: Instant,
    ) -> (Option<Doubt>, Option<Order>) {
        let failed = match outcome {
            Outcome::Result(result) => match error_text(asked.method, result) {
                Some(text) => {
                    let said = Said::new(None, None, &text);
                    return (self.hear_error(asked, Doubt { said, ..Doubt::about(asked.method, &text) }, &text), None);
                }
                None => {
                    self.has_result(history, asked);
                    return (None, None);
                }
            },
            Outcome::Other => return (None, None),
            Outcome::Refused(refusal) => Said::refusal(refusal),
            Outcome::Error(error) => Said::error(error),
        };
        self.nothings = if failed.is_nothing() { self.nothings + 1 } else { 0 };
        let order = self.order(history, asked, &failed, now);
        let doubt = match outcome {
            Outcome::Error(error) => self.hear_rpc(asked, error),
            Outcome::Refused(refusal) => Some(Doubt::of(asked.method, refusal)),
            Outcome::Result(_) | Outcome::Other => None,
        };
        (doubt, order)
    }

    /// Hears of an error under a request's own id, whoever asked.
    pub(crate) fn hear_rpc(&mut self, asked: Asked<'_>, error: &RpcError) -> Option<Doubt> {
        if matches!(error.code, HEADER_MISMATCH | MISSING_CAPABILITY) {
            return None;
        }
        let data = error.data.as_ref().map(ToString::to_string).unwrap_or_default();
        let text = format!("{} {data}", error.message);
        let doubt = Doubt::error(asked.method, error);
        let listed = asked.known && asked.method.ends_with("/list");
        let heard = self.hear_error(asked, doubt.clone(), &text);
        if listed {
            Some(Doubt { by_ping: true, ..doubt })
        } else if error.code == UNSUPPORTED_VERSION {
            Some(doubt)
        } else {
            heard
        }
    }

    fn hear_error(&mut self, asked: Asked<'_>, doubt: Doubt, text: &str) -> Option<Doubt> {
        // Of our own requests one that the server does not know refuses nothing.
        if asked.own && doubt.said.code == Some(METHOD_NOT_FOUND) {
            return None;
        }
        self.errors = self.errors.saturating_add(1);
        (self.errors > 1 || speaks_of_sessions(text)).then_some(doubt)
    }

    fn has_result(&mut self, history: &mut History, asked: Asked<'_>) {
        if asked.method.ends_with("/list") || asked.method == "ping" {
            return;
        }
        self.errors = 0;
        self.nothings = 0;
        self.silent_asks = 0;
        self.silent = false;
        self.same = None;
        self.limited = None;
        (history.spent, history.limited) = (false, false);
        if let Some(tool) = asked.tool
            && !history.served.contains(tool)
            && history.served.len() < NAMES
        {
            history.served.insert(tool.into());
        }
    }

    fn order(&mut self, history: &mut History, asked: Asked<'_>, said: &Said, now: Instant) -> Option<Order> {
        let key = (said.status, said.code);
        let same = match self.same.take_if(|same| same.key == key && !said.broken) {
            Some(same) => same,
            None => Same { key, since: now, calls: 0, served: false },
        };
        let served = same.served || asked.tool.is_some_and(|tool| history.served.contains(tool));
        let same = Same { calls: same.calls.saturating_add(1), served, ..same };
        let suspect =
            same.calls >= SAME_REFUSALS && now - same.since >= MINUTE && same.served && self.well && !asked.busy;
        self.same = Some(same);
        if history.spent {
            return None;
        }
        match said.code.or(said.status.map(i64::from)) {
            _ if self.nothings >= NOTHINGS => {
                Some(Order::Rebuild(format!("{NOTHINGS} calls in a row were answered with nothing").into()))
            }
            Some(code) if suspect && asked.process => Some(Order::Suspect(code)),
            Some(code) if suspect => Some(Order::Rebuild(format!("calls get nothing but {code} for a minute").into())),
            _ => None,
        }
    }

    /// Whether the session may be asked about this now. It then counts as asked.
    pub(crate) fn may_ask(&mut self, said: &Said, now: Instant) -> bool {
        self.asks.retain(|at| now - *at < MINUTE);
        self.texts.retain(|(_, at)| now - *at < MINUTE);
        if self.asks.len() >= ASKS || self.texts.iter().any(|(text, _)| text == said) {
            return false;
        }
        self.asks.push_back(now);
        if !said.broken {
            self.texts.truncate(TEXTS - 1);
            self.texts.push_front((said.clone(), now));
        }
        true
    }

    /// Whether callers are held while the session is asked.
    pub(crate) const fn holds(&self) -> bool {
        !self.silent
    }

    /// Hears of what an ask has found; `busy`: while an older call was open. Why the session is to be given up for its
    /// silence, if it is.
    pub(crate) fn asked(&mut self, verdict: &Verdict, busy: bool) -> Option<Arc<str>> {
        self.well = *verdict == Verdict::Well;
        match verdict {
            Verdict::Well => (self.silent_asks, self.silent) = (0, false),
            Verdict::Silent => {
                self.silent = true;
                self.silent_asks = if busy { 0 } else { self.silent_asks + 1 };
            }
            Verdict::Gone(_) | Verdict::Lost | Verdict::Ended => {}
        }
        (self.silent_asks >= SILENT_ASKS)
            .then(|| format!("the session was asked {SILENT_ASKS} times in a row, and did not answer").into())
    }

    /// An ask or a ping got 429, or (`false`) something else. Whether a fresh session is to be tried, once nothing else
    /// came for this long.
    pub(crate) fn limited(&mut self, history: &mut History, limited: bool, longest: Duration, now: Instant) -> bool {
        if !limited {
            self.limited = None;
            return false;
        }
        let since = *self.limited.get_or_insert(now);
        let over = now - since >= longest && !history.limited;
        history.limited |= over;
        over
    }
}

impl Doubt {
    /// Doubt about a request that a transport could not settle.
    pub(crate) fn of(method: &str, refusal: &Refusal) -> Self {
        Self { said: Said::refusal(refusal), gate: refusal.gate, ..Self::about(method, &refusal.message) }
    }

    /// Doubt about an error under the request's own id.
    pub(crate) fn error(method: &str, error: &RpcError) -> Self {
        let gate = error.code == UNSUPPORTED_VERSION
            || mcp_reconnect_http::classify::comes_before_handlers(error.code, &error.message);
        Self { said: Said::error(error), gate, ..Self::about(method, &error.to_string()) }
    }

    fn about(method: &str, cause: &str) -> Self {
        let cause = cause.chars().take(TEXT).collect::<String>().into();
        Self { method: method.into(), said: Said::new(None, None, ""), gate: false, by_ping: false, cause }
    }

    /// Whether no handler has run, by what the ask was told.
    pub(crate) fn never_ran(&self, verdict: &Verdict) -> bool {
        matches!(verdict, Verdict::Gone(Some(said)) if self.gate && **said == self.said)
    }
}

/// Whether a text speaks of a session, an initialization or a transport.
fn speaks_of_sessions(text: &str) -> bool {
    let text = text.to_ascii_lowercase();
    ["session", "initiali", "transport"].iter().any(|word| text.contains(word))
}

/// The text of a result that is an error (`isError`).
fn error_text(method: &str, result: &RawValue) -> Option<String> {
    #[derive(serde::Deserialize)]
    struct Parts<'a> {
        #[serde(rename = "isError", default)]
        is_error: Option<bool>,
        #[serde(borrow, default)]
        content: Option<&'a RawValue>,
    }
    if method != "tools/call" || !result.get().contains("\"isError\"") {
        return None;
    }
    let parts: Parts<'_> = serde_json::from_str(result.get()).ok()?;
    let text = parts.content.map_or("", RawValue::get);
    (parts.is_error == Some(true)).then(|| text.chars().take(TEXT * 4).collect())
}

/// Why a session was given up, as the failure of its end.
pub(crate) const fn gone() -> Failure {
    Failure::new(FailureClass::SessionGone)
}

#[cfg(test)]
mod tests;
