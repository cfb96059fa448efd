//! From an open link to an established session, for servers of both protocol eras.

use std::sync::Arc;
use std::time::Duration;

use mcp_reconnect_core::replay::Sent;
use mcp_reconnect_core::{Failure, FailureClass};
use rmcp::model::{ErrorCode, ProtocolVersion, ServerPeerInfo};
use serde_json::value::RawValue;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::task::TaskTracker;

use crate::link::WHY_TIMEOUT;
use crate::protocol::era::{self, EraMemory, best_common, offered, offered_in_text};
use crate::protocol::frame::RpcError;
use crate::protocol::greeting::{DiscoverReply, InitializeReply};
use crate::protocol::{Client, Era, EraPolicy};
use crate::session::established::Established;
use crate::wire::{Answer, Call, CallFailure, RequestOptions, Wire};

/// The terms of a handshake.
pub(crate) struct Handshake<'a> {
    /// The knowledge of earlier epochs, to which this one adds its own.
    pub(crate) memory: &'a Arc<EraMemory>,
    /// Which era to speak.
    pub(crate) policy: EraPolicy,
    /// The client to speak for.
    pub(crate) client: &'a Client,
    /// The attempt's whole time; a third of it bounds the wait for a probe's answer.
    pub(crate) start_timeout: Duration,
    /// How long a server may take to answer the probe before `initialize` is sent as well.
    pub(crate) probe_patience: Duration,
    /// The server died on the probe before, in this attempt: no second one.
    pub(crate) after_probe_killed: bool,
    /// Where the wait for a late probe answer is spawned; it ends with the wire.
    pub(crate) tasks: &'a TaskTracker,
}

/// Why there is no session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum HandshakeError {
    /// A server of unknown era ended on the probe: older servers do. Ask the connector once more, in the same attempt,
    /// with [`Handshake::after_probe_killed`].
    ProbeKilled {
        /// How the link ended.
        cause: Arc<str>,
    },
    /// The attempt has failed.
    Failed {
        /// The class of it.
        failure: Failure,
        /// The cause in words.
        cause: Arc<str>,
    },
}

fn failed(class: FailureClass, cause: impl Into<Arc<str>>) -> HandshakeError {
    HandshakeError::Failed { failure: Failure::new(class), cause: cause.into() }
}

/// Establishes a session on a fresh wire. The caller sets the deadline; dropping the future leaves nothing behind.
///
/// # Errors
///
/// The failure that kept the session from being established, classified.
pub(crate) async fn handshake(wire: &Wire, options: Handshake<'_>) -> Result<Established, HandshakeError> {
    let facts = options.memory.facts();
    let remembered = facts.version.as_deref().map(era::version);
    let mut attempt = Attempt {
        wire,
        was_unknown: facts.era.is_none(),
        legacy_version: remembered
            .clone()
            .filter(ProtocolVersion::has_initialize)
            .unwrap_or_else(|| newest_legacy(options.client)),
        modern_version: remembered
            .filter(|version| !version.has_initialize())
            .unwrap_or(ProtocolVersion::NO_INITIALIZE),
        started: Instant::now(),
        version_retried: false,
        refused_initialize: false,
        refused_discover: false,
        options,
    };
    let legacy = match attempt.options.policy {
        EraPolicy::Legacy => true,
        EraPolicy::Modern => false,
        EraPolicy::Auto => attempt.options.after_probe_killed || attempt.options.memory.begins_legacy(),
    };
    let mut next = if legacy { Next::Initialize(None) } else { Next::Discover };
    loop {
        next = match next {
            Next::Discover => attempt.discover().await?,
            Next::Initialize(call) => attempt.initialize(call).await?,
            Next::Done(established) => return Ok(*established),
        };
    }
}

/// The version to offer in `initialize`: the client's own, if it has a handshake.
fn newest_legacy(client: &Client) -> ProtocolVersion {
    let own = client.version();
    if own.has_initialize() { own.clone() } else { ProtocolVersion::LATEST_WITH_INITIALIZE }
}

struct Attempt<'a> {
    wire: &'a Wire,
    options: Handshake<'a>,
    /// Whether nothing was known about the server when the attempt began.
    was_unknown: bool,
    legacy_version: ProtocolVersion,
    modern_version: ProtocolVersion,
    started: Instant,
    version_retried: bool,
    refused_initialize: bool,
    refused_discover: bool,
}

enum Next {
    Discover,
    /// With the request, if it was sent already.
    Initialize(Option<Call>),
    Done(Box<Established>),
}

/// The meaning of an answer to `server/discover`.
enum Probed {
    Modern(ProtocolVersion, Box<DiscoverReply>),
    Retry(ProtocolVersion),
    Legacy(String),
}

/// The meaning of an answer to `initialize`.
enum Greeted {
    Done(Box<InitializeReply>),
    Retry(ProtocolVersion),
    NotLegacy(String),
}

impl Attempt<'_> {
    /// Asks with `server/discover`; a server that stays silent is asked to initialize as well.
    async fn discover(&mut self) -> Result<Next, HandshakeError> {
        let mut retried = false;
        let mut probe = self.ask_discover();
        let mut greeting = None;
        let may_fall_back = self.options.policy == EraPolicy::Auto && !self.refused_initialize;
        loop {
            let probed = tokio::select! {
                biased;
                answer = probe.answer() => self.judge_probe(answer, retried).await?,
                // A failure that ended both is the probe's to judge.
                answer = answer_of(&mut greeting) => if answer.is_err() && self.wire.end_cause().is_some() {
                    self.judge_probe(probe.answer().await, retried).await?
                } else {
                    greeting = None;
                    match self.judge_greeting(answer)? {
                        Greeted::Done(reply) => {
                            let next = self.greeted(reply).await?;
                            self.remember_late(probe);
                            return Ok(next);
                        }
                        Greeted::Retry(version) => greeting = Some(self.ask_again(version)),
                        Greeted::NotLegacy(_) => self.refused_initialize = true,
                    }
                    continue;
                },
                () = self.silence(), if may_fall_back && greeting.is_none() && !self.refused_initialize => {
                    tracing::debug!(epoch = %self.wire.epoch(), "no answer to server/discover: initialize is sent as well");
                    greeting = Some(self.ask_initialize());
                    continue;
                }
            };
            match probed {
                Probed::Modern(version, reply) => return Ok(Next::Done(Box::new(self.discovered(version, reply)))),
                Probed::Retry(version) => {
                    retried = true;
                    self.modern_version = version;
                    probe = self.ask_discover();
                }
                Probed::Legacy(why) if self.options.policy == EraPolicy::Modern => {
                    return Err(failed(
                        FailureClass::Permanent,
                        format!("the server does not speak the modern era: {why}"),
                    ));
                }
                Probed::Legacy(why) => {
                    self.refused_discover = true;
                    self.options.memory.learn(Era::Legacy);
                    if self.refused_initialize {
                        self.options.memory.forget();
                        return Err(failed(
                            FailureClass::Transport,
                            format!("the server refused both initialize and server/discover: {why}"),
                        ));
                    }
                    return Ok(Next::Initialize(greeting));
                }
            }
        }
    }

    /// Asks with `initialize`.
    async fn initialize(&mut self, sent: Option<Call>) -> Result<Next, HandshakeError> {
        let mut call = sent.unwrap_or_else(|| self.ask_initialize());
        loop {
            let answer = call.answer().await;
            match self.judge_greeting(answer)? {
                Greeted::Done(reply) => return self.greeted(reply).await,
                Greeted::Retry(version) => call = self.ask_again(version),
                Greeted::NotLegacy(why) => {
                    if self.options.policy == EraPolicy::Legacy {
                        return Err(failed(
                            FailureClass::Permanent,
                            format!("the server does not speak the legacy era: {why}"),
                        ));
                    }
                    self.options.memory.forget();
                    if self.refused_discover || self.options.after_probe_killed {
                        return Err(failed(
                            FailureClass::Transport,
                            format!("the server refused both server/discover and initialize: {why}"),
                        ));
                    }
                    self.refused_initialize = true;
                    return Ok(Next::Discover);
                }
            }
        }
    }

    fn ask_discover(&self) -> Call {
        let meta = self.options.client.meta(&self.modern_version);
        let options = RequestOptions { meta: &meta, uncancelled: true, uncounted: true, ..Default::default() };
        self.wire.request("server/discover", None, options)
    }

    fn ask_initialize(&self) -> Call {
        let params = self.options.client.initialize(&self.legacy_version);
        self.wire.request("initialize", Some(&params), RequestOptions { uncancelled: true, ..Default::default() })
    }

    /// Asks with the version that the server offered instead.
    fn ask_again(&mut self, version: ProtocolVersion) -> Call {
        self.legacy_version = version;
        self.version_retried = true;
        self.ask_initialize()
    }

    /// Resolves when the probe has been waited for long enough. A server that is still starting finds both requests, and
    /// decides by the one that it answers.
    async fn silence(&self) {
        sleep_until(self.started + self.options.probe_patience.min(self.options.start_timeout / 3)).await;
    }

    async fn judge_probe(&self, answer: Result<Answer, CallFailure>, retried: bool) -> Result<Probed, HandshakeError> {
        match answer {
            Ok(Ok(result)) => read_discover(result),
            Ok(Err(error)) => self.judge_probe_error(&error, retried),
            Err(failure) => self.judge_probe_failure(failure).await,
        }
    }

    fn judge_probe_error(&self, error: &RpcError, retried: bool) -> Result<Probed, HandshakeError> {
        match code(error) {
            ErrorCode::HEADER_MISMATCH | ErrorCode::MISSING_REQUIRED_CLIENT_CAPABILITY => {
                self.options.memory.learn(Era::Modern);
                Err(failed(FailureClass::Permanent, format!("the server refuses this client: {error}")))
            }
            ErrorCode::UNSUPPORTED_PROTOCOL_VERSION => {
                let offers = offered(error, &self.modern_version).unwrap_or_default();
                match best_common(Era::Modern, &offers) {
                    Some(version) if !retried => Ok(Probed::Retry(version)),
                    _ if best_common(Era::Legacy, &offers).is_some() => Ok(Probed::Legacy(error.to_string())),
                    _ => Err(failed(
                        FailureClass::Permanent,
                        format!("no common protocol version: {error}, offered: {offers:?}"),
                    )),
                }
            }
            _ => Ok(Probed::Legacy(error.to_string())),
        }
    }

    /// The probe got no answer at all.
    async fn judge_probe_failure(&self, failure: CallFailure) -> Result<Probed, HandshakeError> {
        // An HTTP endpoint that refuses the request as such (400, 404, 405, 406, 415) knows nothing of the modern era;
        // a refused login (401, 403, 407), a rate limit, a 5xx or a refused connection teach nothing.
        if (failure.sent, failure.failure.class) == (Sent::Refused, FailureClass::Transport) {
            return Ok(Probed::Legacy(failure.cause.to_string()));
        }
        let CallFailure { sent, failure, cause, .. } = failure;
        // A link that goes on after a failed frame is not about to end.
        let link_ended = sent != Sent::No
            && !self.wire.control().survives()
            && timeout(WHY_TIMEOUT * 2, self.wire.ended()).await.is_ok()
            && !self.wire.was_given_up();
        if link_ended && self.options.policy == EraPolicy::Auto {
            if self.was_unknown && !self.refused_initialize {
                self.options.memory.learn(Era::Legacy);
                return Err(HandshakeError::ProbeKilled { cause });
            }
            // A modern server that crashed, or another one in its place: the next attempt will tell.
            self.options.memory.forget();
        }
        Err(HandshakeError::Failed { failure, cause })
    }

    fn judge_greeting(&self, answer: Result<Answer, CallFailure>) -> Result<Greeted, HandshakeError> {
        let error = match answer {
            Ok(Ok(result)) => {
                return InitializeReply::read(result)
                    .map(|reply| Greeted::Done(Box::new(reply)))
                    .map_err(|why| failed(FailureClass::Transport, why));
            }
            Ok(Err(error)) => error,
            Err(CallFailure { failure, cause, .. }) => {
                return match offered_in_text(&cause, &self.legacy_version) {
                    Some(offers) => self.judge_offers(&offers, &cause),
                    None => Err(HandshakeError::Failed { failure, cause }),
                };
            }
        };
        if let Some(offers) = offered(&error, &self.legacy_version) {
            return self.judge_offers(&offers, &error.to_string());
        }
        match code(&error) {
            ErrorCode::METHOD_NOT_FOUND | ErrorCode::UNSUPPORTED_PROTOCOL_VERSION => {
                Ok(Greeted::NotLegacy(error.to_string()))
            }
            _ => Err(failed(FailureClass::Transport, format!("the server refused to initialize: {error}"))),
        }
    }

    /// The server refused our version and named its own.
    fn judge_offers(&self, offers: &[String], refusal: &str) -> Result<Greeted, HandshakeError> {
        match best_common(Era::Legacy, offers) {
            Some(version) if version != self.legacy_version && !self.version_retried => Ok(Greeted::Retry(version)),
            _ if best_common(Era::Modern, offers).is_some() => Ok(Greeted::NotLegacy(refusal.to_owned())),
            Some(_) => Err(failed(FailureClass::Transport, format!("the server refused to initialize: {refusal}"))),
            None => Err(failed(
                FailureClass::Permanent,
                format!("no common protocol version: {refusal}, offered: {offers:?}"),
            )),
        }
    }

    async fn greeted(&self, reply: Box<InitializeReply>) -> Result<Next, HandshakeError> {
        let version = era::version(&reply.version);
        self.wire.control().negotiated(version.as_str());
        if let Err(failure) = self.wire.notify("notifications/initialized", None).await {
            let CallFailure { failure, cause, .. } = CallFailure::from(failure);
            return Err(HandshakeError::Failed { failure, cause });
        }
        let memory = self.options.memory;
        memory.learn(Era::Legacy);
        let usual = newest_legacy(self.options.client);
        memory.learn_version((self.legacy_version != usual).then_some(&self.legacy_version));
        let peer = reply.greeting.peer(version);
        Ok(Next::Done(Box::new(self.established(Era::Legacy, reply.greeting.raw, peer))))
    }

    fn discovered(&self, version: ProtocolVersion, reply: Box<DiscoverReply>) -> Established {
        self.wire.control().negotiated(version.as_str());
        self.options.memory.learn(Era::Modern);
        self.options.memory.learn_version(Some(&version));
        let peer = reply.greeting.peer(version);
        self.established(Era::Modern, reply.greeting.raw, peer)
    }

    fn established(&self, era: Era, raw: Box<RawValue>, peer: ServerPeerInfo) -> Established {
        let server = peer.server_info.as_ref();
        self.options.memory.met(server.map(|server| (server.name.clone(), server.version.clone())));
        let version = peer.protocol_version.clone();
        // A server may answer `initialize` with a version that has no handshake: from there on it wants the context.
        let meta = if version.has_initialize() { Arc::default() } else { self.options.client.meta(&version) };
        Established { era, version, raw: raw.into(), peer: peer.into(), meta }
    }

    /// The probe may still be answered: that is for the next epoch.
    fn remember_late(&self, mut probe: Call) {
        let memory = self.options.memory.clone();
        self.options.tasks.spawn(async move {
            if let Ok(Ok(result)) = probe.answer().await
                && let Ok(Probed::Modern(version, _)) = read_discover(result)
            {
                memory.learn(Era::Modern);
                memory.learn_version(Some(&version));
            }
        });
    }
}

fn read_discover(result: Box<RawValue>) -> Result<Probed, HandshakeError> {
    // Some servers answer anything with an empty result.
    let reply = match DiscoverReply::read(result) {
        Ok(reply) => Box::new(reply),
        Err(why) => return Ok(Probed::Legacy(why)),
    };
    if let Some(version) = best_common(Era::Modern, &reply.versions) {
        return Ok(Probed::Modern(version, reply));
    }
    let offers = format!("the server offers {:?}", reply.versions);
    match best_common(Era::Legacy, &reply.versions) {
        Some(_) => Ok(Probed::Legacy(offers)),
        None => Err(failed(FailureClass::Permanent, format!("no common protocol version: {offers}"))),
    }
}

fn code(error: &RpcError) -> ErrorCode {
    ErrorCode(i32::try_from(error.code).unwrap_or(0))
}

async fn answer_of(call: &mut Option<Call>) -> Result<Answer, CallFailure> {
    match call {
        Some(call) => call.answer().await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests;
