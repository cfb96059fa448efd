//! Settings of the host that belong to a session: made again in each epoch, before it is Ready.

#![expect(deprecated, reason = "rmcp deprecates logging levels, which are how legacy servers are told")]

use std::sync::Arc;
use std::time::Duration;

use rmcp::model::{ServerCapabilities, SetLevelRequestParams, SubscribeRequestParams, SubscriptionFilter};
use serde::Serialize;
use serde_json::value::to_raw_value;
use tokio::time::{Instant, timeout};

use crate::session::established::Established;
use crate::session::spec::{Spec, Wanted};
use crate::wire::{Call, RequestOptions, Wire};

/// How long one request of the set-up may take: a server that hangs on it still serves calls.
const SETUP_TIMEOUT: Duration = Duration::from_secs(5);
/// A `subscriptions/listen` stream that ends sooner than this failed.
const QUICK: Duration = Duration::from_secs(1);
/// How often in a row it may fail quickly; then there is none in this epoch.
const QUICK_FAILURES: u32 = 5;

/// One thing that could not be set up.
pub(crate) struct SetupFailure {
    pub(crate) what: &'static str,
    pub(crate) cause: String,
}

/// Sets up what is wanted on a fresh legacy session; the modern era has [`listen`] instead.
pub(crate) async fn set_up(wire: &Wire, session: &Established, wanted: &Wanted) -> Vec<SetupFailure> {
    let capabilities = &session.peer.capabilities;
    let mut failures = Vec::new();
    if !session.version.has_initialize() {
        return failures;
    }
    if let Some(level) = wanted.log_level
        && capabilities.logging.is_some()
    {
        let failed = ask(wire, session, "logging/setLevel", &SetLevelRequestParams::new(level)).await;
        failures.extend(failed);
    }
    for uri in &wanted.subscriptions {
        failures.extend(ask(wire, session, "resources/subscribe", &SubscribeRequestParams::new(uri.clone())).await);
    }
    failures
}

async fn ask(wire: &Wire, session: &Established, what: &'static str, params: &impl Serialize) -> Option<SetupFailure> {
    let failed = |cause: String| Some(SetupFailure { what, cause });
    let params = match to_raw_value(params) {
        Ok(params) => params,
        Err(error) => return failed(error.to_string()),
    };
    let options = RequestOptions { meta: &session.meta, ..Default::default() };
    match timeout(SETUP_TIMEOUT, wire.request(what, Some(&params), options).answer()).await {
        Ok(Ok(Ok(_))) => None,
        Ok(Ok(Err(error))) => failed(error.to_string()),
        Ok(Err(failure)) => failed(failure.cause.to_string()),
        Err(_) => failed(format!("no answer within {SETUP_TIMEOUT:?}")),
    }
}

/// Keeps one `subscriptions/listen` stream open on a modern session: list changes that the server announces, and the
/// resources that are wanted. Returns what made it give up.
pub(crate) async fn listen(wire: Wire, session: Established, spec: Arc<Spec>) -> Option<SetupFailure> {
    let mut quick_failures = 0;
    loop {
        let began = Instant::now();
        let wanted = spec.wanted.get();
        let filter = filter(&session.peer.capabilities, &wanted);
        let changed = || spec.wanted.when(|now| (*now != wanted).then_some(()));
        let cause = match filter {
            None => None,
            Some(filter) => {
                let mut call = open(&wire, &session, &filter)?;
                tokio::select! {
                    () = changed() => continue,
                    answer = call.answer() => match answer {
                        Ok(Ok(_)) => Some("the server ended the stream".to_owned()),
                        Ok(Err(error)) => Some(error.to_string()),
                        // The stream broke, or the link has ended (while a probe decides, this is as good as alive).
                        Err(failure) if wire.end_cause().is_none() => {
                            // Changes that were announced meanwhile are lost.
                            wire.presume_changes();
                            Some(failure.cause.to_string())
                        }
                        Err(_) => return None,
                    },
                }
            }
        };
        match cause {
            None => changed().await,
            Some(_) if began.elapsed() >= QUICK => quick_failures = 0,
            Some(cause) => {
                quick_failures += 1;
                if quick_failures >= QUICK_FAILURES {
                    return Some(SetupFailure { what: "subscriptions/listen", cause });
                }
            }
        }
    }
}

fn open(wire: &Wire, session: &Established, filter: &SubscriptionFilter) -> Option<Call> {
    let params = to_raw_value(&serde_json::json!({ "notifications": filter })).ok()?;
    let options = RequestOptions { meta: &session.meta, uncounted: true, ..Default::default() };
    Some(wire.request("subscriptions/listen", Some(&params), options))
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
