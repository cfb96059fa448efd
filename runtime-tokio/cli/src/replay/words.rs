//! Inputs and outputs in words.

use std::fmt;
use std::time::Duration;

use mcp_reconnect::core::{
    Admission, CloseCause, Config, Event, Failure, Input, Output, ReadyFlag, Refusal, State, Timestamp, WakeCause,
};
use serde_json::{Map, Value};

/// An event in words, and its details; turns that differ in details alone are alike.
pub(super) struct Said {
    what: String,
    detail: String,
}

impl Said {
    /// Whether it is the same but for details and for epochs, which differ from dial to dial.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        let words = |said: &Self| {
            said.what.split(' ').map(|word| word.strip_prefix('#').map_or(word, |_| "#").to_owned()).collect::<Vec<_>>()
        };
        words(self) == words(other)
    }

    /// Adds another word of the same kind.
    pub(super) fn and(&mut self, more: &str) {
        self.what.push_str(more);
    }
}

impl fmt::Display for Said {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.detail {
            "" => f.pad(&self.what),
            detail => f.pad(&format!("{} ({detail})", self.what)),
        }
    }
}

fn said(what: impl Into<String>, details: impl IntoIterator<Item = String>) -> Said {
    let details: Vec<_> = details.into_iter().collect();
    Said { what: what.into(), detail: details.join(", ") }
}

/// Time since the start: hours, minutes, seconds, and milliseconds.
pub(super) fn clock(since: Duration) -> String {
    let seconds = since.as_secs();
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    format!("{hours}:{minutes:02}:{seconds:02}.{:03}", since.subsec_millis())
}

/// To the millisecond, where it is that long.
fn span(time: Duration) -> String {
    let millis = Duration::from_millis(u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
    format!("{:?}", if millis.is_zero() { time } else { millis })
}

/// The stage that a dial reached, in a word.
pub(super) const fn flag(flag: ReadyFlag) -> &'static str {
    match flag {
        ReadyFlag::Started => "started",
        ReadyFlag::Transport => "transport",
        ReadyFlag::Initialized => "initialized",
        ReadyFlag::Catalogue => "catalogue",
    }
}

/// An input of the machine in words; `before` is the state it was in, `config` its settings.
pub(super) fn told(at: Timestamp, input: &Input, before: &State, config: &Config) -> Said {
    let ago = |then: Timestamp| span(at.since(then));
    let (epoch, mut said) = match *input {
        Input::Tick => return said("tick", None),
        Input::Connect { until } => {
            return said("connect", (until > at).then(|| format!("waits {}", span(until.since(at)))));
        }
        Input::Wake(cause) => {
            let cause = match cause {
                WakeCause::Operator => "an operator",
                WakeCause::Config => "new configuration",
                WakeCause::Credentials => "new credentials",
            };
            return said(format!("wake: {cause}"), None);
        }
        Input::Park => return said("park", None),
        Input::Shutdown => return said("shut down", None),
        Input::Retune(new) => return said("retune", changed(config, &new)),
        Input::Resumed { .. } => return said("the host slept", None),
        Input::Reached { epoch, flag: reached } => (epoch, said(format!("#{epoch} reached: {}", flag(reached)), None)),
        Input::Lost { epoch, failure } => (epoch, said(format!("#{epoch} lost: {}", failure.class), hint(failure))),
        Input::Gone { epoch, failure } => (epoch, said(format!("#{epoch} gone: {}", failure.class), hint(failure))),
        Input::Traffic { epoch, inbound, answered, oldest, .. } => {
            let last = if inbound >= at { "last now".into() } else { format!("last {} ago", ago(inbound)) };
            let answered = answered.then(|| "a call answered".to_owned());
            let oldest = oldest.map(|sent| format!("oldest open call {}", ago(sent)));
            (epoch, said(format!("#{epoch} traffic"), [Some(last), answered, oldest].into_iter().flatten()))
        }
        Input::NoReply { epoch, sent } => (epoch, said(format!("#{epoch} no reply"), [format!("after {}", ago(sent))])),
        Input::Pong { epoch } => (epoch, said(format!("#{epoch} answers pings"), None)),
        Input::Listed { epoch, took } => (epoch, said(format!("#{epoch} listed"), [format!("in {}", span(took))])),
        Input::Renew { epoch } => (epoch, said(format!("renew #{epoch}"), None)),
        Input::ServerChanged { epoch } => (epoch, said(format!("#{epoch} is another server"), None)),
        Input::Silence { epoch, sent } => (epoch, said(format!("#{epoch} silence"), [format!("for {}", ago(sent))])),
        Input::PingUnsupported { epoch } => (epoch, said(format!("#{epoch} knows no ping"), None)),
    };
    if before.live_epoch() != Some(epoch) {
        said.what.push_str(", which is over");
    }
    said
}

/// An output of the machine in words.
pub(super) fn ordered(at: Timestamp, output: &Output) -> Said {
    let left = |then: Timestamp| span(then.since(at));
    match *output {
        Output::Dial { epoch, timeout, interactive } => {
            let interactive = interactive.then(|| "may ask for a login".to_owned());
            said(format!("dial #{epoch}"), [Some(span(timeout)), interactive].into_iter().flatten())
        }
        Output::Close { epoch, cause } => {
            let cause = match cause {
                CloseCause::Failed(class) => class.as_str(),
                CloseCause::Parked => "parked",
                CloseCause::Idle => "idle",
                CloseCause::Lifetime => "age",
                CloseCause::Shutdown => "shutdown",
            };
            said(format!("close #{epoch}: {cause}"), None)
        }
        Output::Ping { epoch } => said(format!("ping #{epoch}"), None),
        Output::Ask { epoch } => said(format!("ask #{epoch}"), None),
        Output::Publish { epoch } => said(format!("publish #{epoch}"), None),
        Output::Withdraw => said("withdraw", None),
        Output::Admit(Admission::Go(epoch)) => said(format!("go on #{epoch}"), None),
        Output::Admit(Admission::Wait { next }) => said("wait", next.map(left)),
        Output::Admit(Admission::Refuse { why, retry_at }) => {
            let why = match why {
                Refusal::Parked(reason) => format!("refuse: parked, {reason}"),
                Refusal::BreakerOpen => "refuse: breaker open".into(),
                Refusal::NotInTime => "refuse: not in time".into(),
                Refusal::Shutdown => "refuse: shut down".into(),
            };
            said(why, retry_at.map(|at| format!("again in {}", left(at))))
        }
        Output::Event(Event::StatusChanged { status, failure }) => {
            said(status.to_string(), failure.map(|class| class.to_string()))
        }
        Output::Event(Event::BreakerChanged { open_until: Some(until) }) => said("breaker opens", [left(until)]),
        Output::Event(Event::BreakerChanged { open_until: None }) => said("breaker closes", None),
        Output::Event(_) => said("an event of a later version", None),
    }
}

fn hint(failure: Failure) -> Option<String> {
    failure.retry_after.map(|after| format!("retry after {}", span(after)))
}

/// The settings that differ.
fn changed(old: &Config, new: &Config) -> Vec<String> {
    let (old, new) = (knobs(old), knobs(new));
    let differs = new.iter().filter(|(name, value)| old.get(*name) != Some(value));
    differs.map(|(name, value)| format!("{name} {} → {}", knob(name, old.get(name)), knob(name, Some(value)))).collect()
}

fn knobs(config: &Config) -> Map<String, Value> {
    match serde_json::to_value(config) {
        Ok(Value::Object(knobs)) => knobs,
        Ok(_) | Err(_) => Map::new(),
    }
}

/// Durations are whole nanoseconds; two knobs are counts.
fn knob(name: &str, value: Option<&Value>) -> String {
    match value.and_then(Value::as_u64) {
        Some(count) if matches!(name, "ping_misses" | "breaker_strikes") => count.to_string(),
        Some(nanos) => span(Duration::from_nanos(nanos)),
        None => "off".into(),
    }
}
