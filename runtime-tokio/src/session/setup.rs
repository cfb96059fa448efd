//! Settings of the host that belong to a session: made again in each epoch, before it is Ready.

#![expect(deprecated, reason = "rmcp deprecates logging levels, which are how legacy servers are told")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::StreamExt as _;
use mcp_reconnect_core::FailureClass;
use mcp_reconnect_core::replay::Sent;
use rmcp::model::{ErrorCode, ServerCapabilities, SetLevelRequestParams, SubscribeRequestParams, SubscriptionFilter};
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};
use tokio::time::{Instant, sleep, timeout};

use crate::link::OUTBOUND_CAPACITY;
use crate::session::established::Established;
use crate::session::spec::{Spec, Wanted};
use crate::watched::Watched;
use crate::wire::{Answer, Call, CallFailure, RequestOptions, Wire};

/// How long Ready waits for what is set up, all of it together: a server that hangs on it still serves calls.
pub(crate) const BUDGET: Duration = Duration::from_secs(5);
/// How long the first wait is before `subscriptions/listen` is tried again; each next one doubles it.
const FIRST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// A stream of changes that lasted so long did well, though it brought nothing.
const LASTING: Duration = Duration::from_secs(30);

const LISTEN: &str = "subscriptions/listen";

/// One thing that could not be set up.
pub(crate) struct SetupFailure {
    pub(crate) what: &'static str,
    pub(crate) cause: String,
}

/// What is being set up in a session.
#[derive(Default)]
pub(crate) struct SetUp {
    /// The methods that wait for an answer.
    open: Watched<Vec<&'static str>>,
    /// Whether the tools have been listed: what a stream tells that is begun later may have changed in between.
    listed: AtomicBool,
}

impl SetUp {
    /// Begins with one thing.
    pub(crate) fn step(self: &Arc<Self>, what: &'static str) -> Step {
        self.open.update(|open| open.push(what));
        Step { set_up: self.clone(), what }
    }

    /// The methods that wait for an answer.
    pub(crate) fn open(&self) -> Vec<&'static str> {
        self.open.get()
    }

    /// Resolves when nothing waits for an answer.
    pub(crate) async fn done(&self) {
        self.open.when(|open| open.is_empty().then_some(())).await;
    }

    /// Notes that the tools have been listed.
    pub(crate) fn tools_are_listed(&self) {
        self.listed.store(true, Ordering::Release);
    }
}

/// One thing that is being set up, until it is dropped.
pub(crate) struct Step {
    set_up: Arc<SetUp>,
    what: &'static str,
}

impl Drop for Step {
    fn drop(&mut self) {
        self.set_up.open.update(|open| {
            open.iter().position(|what| *what == self.what).map(|at| open.swap_remove(at));
        });
    }
}

/// A request of the set-up.
pub(crate) struct Setting {
    step: Step,
    params: Option<Box<RawValue>>,
}

/// What is to be set up on a fresh legacy session; the modern era has [`Listen`] instead.
pub(crate) fn settings(set_up: &Arc<SetUp>, session: &Established, wanted: &Wanted) -> Vec<Setting> {
    fn setting(set_up: &Arc<SetUp>, what: &'static str, params: &impl Serialize) -> Setting {
        Setting { step: set_up.step(what), params: to_raw_value(params).ok() }
    }
    if !session.version.has_initialize() {
        return Vec::new();
    }
    let level = wanted.log_level.filter(|_| session.peer.capabilities.logging.is_some());
    let level = level.map(|level| setting(set_up, "logging/setLevel", &SetLevelRequestParams::new(level)));
    let subscribe = |uri: &String| setting(set_up, "resources/subscribe", &SubscribeRequestParams::new(uri.clone()));
    level.into_iter().chain(wanted.subscriptions.iter().map(subscribe)).collect()
}

/// Sends all of them side by side. Tells what is refused; what has no answer within `patience` is given up.
pub(crate) async fn set_up(
    wire: Wire,
    session: Established,
    settings: Vec<Setting>,
    patience: Duration,
    tell: impl Fn(SetupFailure),
) {
    let ask = async |Setting { step, params }: Setting| {
        let options = RequestOptions { meta: &session.meta, uncounted: true, ..Default::default() };
        let cause = match timeout(patience, wire.request(step.what, params.as_deref(), options).answer()).await {
            Ok(Ok(Err(error))) => error.to_string(),
            Ok(Err(failure)) if wire.end_cause().is_none() => failure.cause.to_string(),
            Ok(Ok(Ok(_)) | Err(_)) => return,
            Err(_) => return tracing::debug!(what = step.what, "no answer within {patience:?}"),
        };
        tell(SetupFailure { what: step.what, cause });
    };
    futures::stream::iter(settings).for_each_concurrent(OUTBOUND_CAPACITY, ask).await;
}

/// Keeps one `subscriptions/listen` stream open on a modern session: list changes that the server announces, and the
/// resources that are wanted.
pub(crate) struct Listen<T> {
    pub(crate) wire: Wire,
    pub(crate) session: Established,
    pub(crate) spec: Arc<Spec>,
    /// What is set up at the stream's first frame.
    pub(crate) set_up: Arc<SetUp>,
    /// Takes why there is no stream.
    pub(crate) tell: T,
}

/// How a stream of changes ended, or why there was none.
struct StreamEnd {
    cause: String,
    /// How long the server wants to be left alone.
    retry_after: Option<Duration>,
    /// There is none in this session.
    absent: bool,
}

impl<T: Fn(SetupFailure)> Listen<T> {
    /// Runs until there is no stream to be had in this session, or the link has ended.
    pub(crate) async fn run(self) {
        let mut step = Some(self.set_up.step(LISTEN));
        let mut waits = Waits::default();
        let mut opened = false;
        // A stream for what was wanted before: it goes on until the next one is there.
        let mut previous = None;
        loop {
            let wanted = self.spec.wanted.get();
            let changed = self.spec.wanted.when(|now| (*now != wanted).then_some(()));
            let Some(mut call) = self.open(&wanted) else {
                step = None;
                previous = None;
                changed.await;
                continue;
            };
            let (began, seen) = (Instant::now(), self.wire.announced());
            let mut is_open = false;
            let mut changed = std::pin::pin!(changed);
            let ended = loop {
                let first = self.wire.announced_since(seen, previous.is_some());
                tokio::select! {
                    biased;
                    () = first, if !is_open => {
                        is_open = true;
                        step = None;
                        self.is_open(previous.take().is_some(), opened);
                        opened = true;
                    }
                    answer = call.answer() => break Some(answer),
                    () = &mut changed => break None,
                }
            };
            let Some(answer) = ended else {
                previous = is_open.then_some(call).or(previous);
                continue;
            };
            previous = None;
            self.wire.set_announcing(false);
            let Some(end) = self.ended(answer, opened) else { return };
            if step.take().is_some() || end.absent {
                (self.tell)(SetupFailure { what: LISTEN, cause: end.cause });
            }
            if end.absent {
                return;
            }
            let brought = self.wire.announced().events != seen.events;
            sleep(waits.next(brought || began.elapsed() >= LASTING, end.retry_after)).await;
        }
    }

    /// A stream has begun. What was to be told in between is lost, unless another one went on until then.
    fn is_open(&self, seamless: bool, opened: bool) {
        self.wire.set_announcing(true);
        if !seamless && (opened || self.set_up.listed.load(Ordering::Acquire)) {
            self.wire.presume_changes();
        }
    }

    fn open(&self, wanted: &Wanted) -> Option<Call> {
        let filter = filter(&self.session.peer.capabilities, wanted)?;
        let params = to_raw_value(&serde_json::json!({ "notifications": filter })).ok()?;
        let options = RequestOptions { meta: &self.session.meta, uncounted: true, ..Default::default() };
        Some(self.wire.request(LISTEN, Some(&params), options))
    }

    /// Why it has ended; `None` when the link has.
    fn ended(&self, answer: Result<Answer, CallFailure>, opened: bool) -> Option<StreamEnd> {
        let ended = |cause: String| StreamEnd { cause, retry_after: None, absent: false };
        Some(match answer {
            Ok(Ok(_)) => ended("the server ended the stream".to_owned()),
            Ok(Err(error)) => {
                let absent = error.code == i64::from(ErrorCode::METHOD_NOT_FOUND.0);
                StreamEnd { absent, ..ended(error.to_string()) }
            }
            // While a probe decides, the link is as good as alive.
            Err(_) if self.wire.end_cause().is_some() => return None,
            Err(failure) => StreamEnd {
                retry_after: failure.failure.retry_after,
                absent: !opened && is_refusal(&failure),
                ..ended(failure.cause.to_string())
            },
        })
    }
}

/// Whether a request was refused as one that the server has no use for, whatever the session. (A rate limit, and what the
/// server or a proxy cannot do for now, pass.)
fn is_refusal(failure: &CallFailure) -> bool {
    failure.sent == Sent::Refused && failure.failure == FailureClass::Transport.into()
}

/// How long to wait before a stream is tried again.
#[derive(Default)]
struct Waits {
    /// How often in a row none did well.
    failures: u32,
}

impl Waits {
    fn next(&mut self, did_well: bool, hint: Option<Duration>) -> Duration {
        if did_well {
            self.failures = 0;
        }
        let wait = FIRST_WAIT.saturating_mul(1 << self.failures.min(6)).min(LONGEST_WAIT);
        self.failures = self.failures.saturating_add(1);
        wait.max(hint.unwrap_or_default())
    }
}

fn filter(capabilities: &ServerCapabilities, wanted: &Wanted) -> Option<SubscriptionFilter> {
    let mut filter = SubscriptionFilter::new();
    let tools = capabilities.tools.as_ref().is_some_and(|tools| tools.list_changed == Some(true));
    let prompts = capabilities.prompts.as_ref().is_some_and(|prompts| prompts.list_changed == Some(true));
    let resources = capabilities.resources.as_ref().is_some_and(|resources| resources.list_changed == Some(true));
    filter.tools_list_changed = tools.then_some(true);
    filter.prompts_list_changed = prompts.then_some(true);
    filter.resources_list_changed = resources.then_some(true);
    if !wanted.subscriptions.is_empty() {
        filter.resource_subscriptions = Some(wanted.subscriptions.iter().cloned().collect());
    }
    (filter != SubscriptionFilter::new()).then_some(filter)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_a_minute_and_begin_anew_after_a_stream_that_did_well() {
        let mut waits = Waits::default();
        let mut next = |did_well, hint: Option<u64>| waits.next(did_well, hint.map(Duration::from_secs)).as_secs();
        assert_eq!([0; 8].map(|_| next(false, None)), [1, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!([next(true, None), next(true, None), next(false, None)], [1, 1, 2]);
        assert_eq!([next(false, Some(100)), next(false, Some(3)), next(true, Some(0))], [100, 8, 1]);
    }
}
