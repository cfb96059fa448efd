//! Our own keys: the object `mcp-reconnect` of a server, and of the file for all of them.

use std::collections::BTreeMap;
use std::num::{NonZeroU32, NonZeroUsize};
use std::rc::Rc;
use std::time::Duration;

use mcp_reconnect_core::replay::ReplayPolicy;
use mcp_reconnect_core::{Config, ConfigBuilder, ConfigError, Restart};

use super::json::Json;
use super::problem::ProblemKind;
use super::scope::{Scope, join};
use super::{Endpoint, Http, ServerConfig, Stdio, ToolFilter};
use crate::options::{CataloguePolicy, Connect, OnPark, Require};
use crate::protocol::EraPolicy;

/// The key that our own keys stand under.
pub(super) const OURS: &str = "mcp-reconnect";

/// How a setting is written, and what it sets.
#[derive(Clone, Copy)]
enum Kind {
    Knob(fn(ConfigBuilder, Duration) -> ConfigBuilder),
    /// A knob that may be `"off"`.
    OptionalKnob(fn(ConfigBuilder, Option<Duration>) -> ConfigBuilder),
    SmallKnob(fn(ConfigBuilder, u8) -> ConfigBuilder),
    WordKnob(&'static [KnobWord]),
    Duration(Zero, fn(&mut ServerConfig, Duration)),
    /// A number from 1 on, or `"off"`.
    Count(fn(&mut ServerConfig, Option<NonZeroU32>)),
    Bytes(fn(&mut ServerConfig, NonZeroUsize)),
    Flag(fn(&mut ServerConfig, bool)),
    Word(&'static [Word]),
    /// A string with variables.
    Text(fn(&mut ServerConfig, String)),
    Tools,
}

/// A word that a knob may be, and what it sets.
type KnobWord = (&'static str, fn(ConfigBuilder) -> ConfigBuilder);

/// A word that a setting may be, and what it sets.
type Word = (&'static str, fn(&mut ServerConfig));

#[derive(Clone, Copy, PartialEq, Eq)]
enum Zero {
    Allowed,
    Refused,
}

/// Which servers a setting has a meaning for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum For {
    All,
    Stdio,
    Http,
}

struct Key {
    name: &'static str,
    of: For,
    kind: Kind,
}

const fn key(name: &'static str, kind: Kind) -> Key {
    Key { name, of: For::All, kind }
}

const fn stdio_key(name: &'static str, kind: Kind) -> Key {
    Key { name, of: For::Stdio, kind }
}

fn stdio(server: &mut ServerConfig, set: impl FnOnce(&mut Stdio)) {
    if let Endpoint::Stdio(stdio) = &mut server.endpoint {
        set(stdio);
    }
}

fn http(server: &mut ServerConfig, set: impl FnOnce(&mut Http)) {
    if let Endpoint::Http(http) = &mut server.endpoint {
        set(http);
    }
}

static KEYS: [Key; 41] = [
    key("connect_timeout", Kind::Knob(ConfigBuilder::connect_timeout)),
    key("connect_timeout_max", Kind::Knob(ConfigBuilder::connect_timeout_max)),
    key("backoff", Kind::Knob(ConfigBuilder::backoff)),
    key("backoff_max", Kind::Knob(ConfigBuilder::backoff_max)),
    key("stable_after", Kind::Knob(ConfigBuilder::stable_after)),
    key("keepalive", Kind::Knob(ConfigBuilder::keepalive)),
    key("ping_timeout", Kind::Knob(ConfigBuilder::ping_timeout)),
    key("ping_misses", Kind::SmallKnob(ConfigBuilder::ping_misses)),
    key("redial_spread", Kind::Knob(ConfigBuilder::redial_spread)),
    key("breaker_strikes", Kind::SmallKnob(ConfigBuilder::breaker_strikes)),
    key("breaker_open", Kind::Knob(ConfigBuilder::breaker_open)),
    key("close_timeout", Kind::Knob(ConfigBuilder::close_timeout)),
    key("park_after", Kind::Knob(ConfigBuilder::park_after)),
    key("park_probe", Kind::Knob(ConfigBuilder::park_probe)),
    key("park_probe_max", Kind::Knob(ConfigBuilder::park_probe_max)),
    key("demand_interval", Kind::Knob(ConfigBuilder::demand_interval)),
    key("demand_backoff", Kind::Knob(ConfigBuilder::demand_backoff)),
    key("refused_interval", Kind::Knob(ConfigBuilder::refused_interval)),
    key("min_dial_interval", Kind::Knob(ConfigBuilder::min_dial_interval)),
    key("retry_after_max", Kind::Knob(ConfigBuilder::retry_after_max)),
    key("idle_timeout", Kind::OptionalKnob(ConfigBuilder::idle_timeout)),
    key("max_lifetime", Kind::OptionalKnob(ConfigBuilder::max_lifetime)),
    key(
        "connect",
        Kind::Word(&[("eager", |s| s.connect = Connect::Eager), ("on-demand", |s| s.connect = Connect::OnDemand)]),
    ),
    key("call_timeout", Kind::Duration(Zero::Refused, |s, value| s.calls.timeout = value)),
    key("call_max_timeout", Kind::Duration(Zero::Refused, |s, value| s.calls.max_timeout = Some(value))),
    key("call_max_wait", Kind::Duration(Zero::Allowed, |s, value| s.calls.max_wait = value)),
    key(
        "replay",
        Kind::Word(&[
            ("not-run", |s| s.calls.replay = ReplayPolicy::NotRun),
            ("annotated", |s| s.calls.replay = ReplayPolicy::Annotated),
            ("always", |s| s.calls.replay = ReplayPolicy::Always),
        ]),
    ),
    key("max_in_flight", Kind::Count(|s, value| s.max_in_flight = value)),
    key(
        "era",
        Kind::Word(&[
            ("auto", |s| s.era = EraPolicy::Auto),
            ("legacy", |s| s.era = EraPolicy::Legacy),
            ("modern", |s| s.era = EraPolicy::Modern),
        ]),
    ),
    key("probe_patience", Kind::Duration(Zero::Refused, |s, value| s.probe_patience = value)),
    key("require", Kind::Word(&[("none", |s| s.require = Require::None), ("tools", |s| s.require = Require::Tools)])),
    key("tools", Kind::Tools),
    key(
        "on_change",
        Kind::Word(&[
            ("accept", |s| s.on_change = CataloguePolicy::Accept),
            ("warn", |s| s.on_change = CataloguePolicy::Warn),
            ("refuse", |s| s.on_change = CataloguePolicy::Refuse),
        ]),
    ),
    key(
        "on_park",
        Kind::Word(&[("withdraw", |s| s.on_park = OnPark::Withdraw), ("keep", |s| s.on_park = OnPark::Keep)]),
    ),
    key(
        "restart",
        Kind::WordKnob(&[
            ("always", |knobs| knobs.restart(Some(Restart::Always))),
            ("on-failure", |knobs| knobs.restart(Some(Restart::OnFailure))),
            ("never", |knobs| knobs.restart(Some(Restart::Never))),
        ]),
    ),
    key(
        "frame_limit",
        Kind::Bytes(|s, value| {
            stdio(s, |stdio| stdio.frame_limit = Some(value));
            http(s, |http| http.frame_limit = Some(value));
        }),
    ),
    stdio_key("clean_env", Kind::Flag(|s, value| stdio(s, |stdio| stdio.clean_env = value))),
    stdio_key("close_eof", Kind::Duration(Zero::Allowed, |s, value| stdio(s, |stdio| stdio.close_eof = value))),
    stdio_key("close_term", Kind::Duration(Zero::Allowed, |s, value| stdio(s, |stdio| stdio.close_term = value))),
    stdio_key("close_kill", Kind::Duration(Zero::Refused, |s, value| stdio(s, |stdio| stdio.close_kill = value))),
    Key { name: "proxy", of: For::Http, kind: Kind::Text(|s, value| http(s, |http| http.proxy = Some(value))) },
];

/// The names of all settings that a server may have.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    KEYS.iter().map(|key| key.name)
}

/// A server whose knobs are not checked yet.
struct Draft {
    machine: ConfigBuilder,
    server: ServerConfig,
}

type Setting = Rc<dyn Fn(&mut Draft)>;

/// Settings that were read, by name. Later ones replace earlier ones.
#[derive(Clone, Default)]
pub(super) struct Settings(BTreeMap<&'static str, Setting>);

impl Settings {
    /// Reads the settings of one object; what is wrong is told and left out.
    pub(super) fn read(scope: &mut Scope<'_>, members: Vec<(String, Json)>) -> Self {
        let mut settings = Self::default();
        for (name, value) in members {
            let field = join(OURS, &name);
            match KEYS.iter().find(|key| key.name == name) {
                Some(_) if value == Json::Null => {}
                Some(key) => {
                    if let Some(setting) = key.read(scope, &field, &value) {
                        settings.0.insert(key.name, setting);
                    }
                }
                None => scope.unknown(&field, &name, names()),
            }
        }
        settings
    }

    /// Sets the deadline of calls, unless one is set.
    pub(super) fn or_call_timeout(&mut self, timeout: Duration) {
        self.0.entry("call_timeout").or_insert(Rc::new(move |draft| draft.server.calls.timeout = timeout));
    }

    /// Sets the tool filter, unless one is set.
    pub(super) fn or_tools(&mut self, filter: ToolFilter) {
        self.0.entry("tools").or_insert(Rc::new(move |draft| draft.server.tools = filter.clone()));
    }

    /// These settings, and those of `defaults` that are not among them.
    pub(super) fn over(self, defaults: &Self) -> Self {
        let mut all = defaults.clone();
        all.0.extend(self.0);
        all
    }

    /// Warns of settings that have no meaning for a server like this.
    pub(super) fn warn_of_idle(&self, scope: &mut Scope<'_>, endpoint: &Endpoint) {
        let (other, kind) = match endpoint {
            Endpoint::Stdio(_) => (For::Http, "a child process"),
            Endpoint::Http(_) => (For::Stdio, "a server behind HTTP"),
            Endpoint::Custom(_) | Endpoint::Refused(_) => return,
        };
        for key in KEYS.iter().filter(|key| key.of == other && self.0.contains_key(key.name)) {
            scope.warn(&join(OURS, key.name), ProblemKind::Ignored, format!("has no meaning for {kind}"));
        }
    }

    /// The server with these settings. Knobs that contradict each other are told, each pair, and given back.
    pub(super) fn apply(mut self, scope: &mut Scope<'_>, server: ServerConfig) -> (ServerConfig, Self) {
        loop {
            let mut draft = Draft { machine: ConfigBuilder::from(server.machine), server: server.clone() };
            self.0.values().for_each(|setting| setting(&mut draft));
            if draft.server.connect == Connect::OnDemand && !self.0.contains_key("idle_timeout") {
                draft.machine = draft.machine.idle_timeout(Some(ON_DEMAND_IDLE));
            }
            let error = match draft.machine.build() {
                Ok(machine) => return (ServerConfig { machine, ..draft.server }, self),
                Err(error) => error,
            };
            let knobs = match error {
                ConfigError::Below { knob, least_knob, .. } => [knob.trim_end_matches(" / 2"), least_knob],
                ConfigError::Zero { knob } | ConfigError::TooLong { knob, .. } => [knob, knob],
                _ => ["", ""],
            };
            let [first, second] = knobs.map(|knob| self.0.remove(knob).is_some());
            let named = if first || !second { knobs[0] } else { knobs[1] };
            scope.error(&join(OURS, named), ProblemKind::Value, error.to_string());
            if !first && !second {
                return (draft.server, self);
            }
        }
    }
}

/// How long a server that is dialled on demand may go without a call, where the file does not say.
const ON_DEMAND_IDLE: Duration = Duration::from_secs(300);

impl Key {
    fn read(&self, scope: &mut Scope<'_>, field: &str, value: &Json) -> Option<Setting> {
        let off = matches!(value, Json::String(word) if word == "off");
        Some(match self.kind {
            Kind::Knob(set) => {
                let duration = knob(scope, field, value, |duration| set(Config::builder(), duration).build())?;
                Rc::new(move |draft| draft.machine = set(draft.machine, duration))
            }
            Kind::OptionalKnob(set) if off => Rc::new(move |draft| draft.machine = set(draft.machine, None)),
            Kind::OptionalKnob(set) => {
                let duration = knob(scope, field, value, |duration| set(Config::builder(), Some(duration)).build())?;
                Rc::new(move |draft| draft.machine = set(draft.machine, Some(duration)))
            }
            Kind::SmallKnob(set) => {
                let count = number(scope, field, value, u8::MAX.into())?;
                let count = u8::try_from(count).unwrap_or(u8::MAX);
                Rc::new(move |draft| draft.machine = set(draft.machine, count))
            }
            Kind::WordKnob(words) => {
                let set = word(scope, field, value, words)?;
                Rc::new(move |draft| draft.machine = set(draft.machine))
            }
            Kind::Duration(zero, set) => {
                let duration = checked_duration(scope, field, self.name, value, zero)?;
                Rc::new(move |draft| set(&mut draft.server, duration))
            }
            Kind::Count(set) if off => Rc::new(move |draft| set(&mut draft.server, None)),
            Kind::Count(set) => {
                let count = number(scope, field, value, u32::MAX.into())?;
                let count = u32::try_from(count).ok().and_then(NonZeroU32::new);
                Rc::new(move |draft| set(&mut draft.server, count))
            }
            Kind::Bytes(set) => {
                let bytes = number(scope, field, value, usize::MAX as u64)?;
                let bytes = usize::try_from(bytes).ok().and_then(NonZeroUsize::new)?;
                Rc::new(move |draft| set(&mut draft.server, bytes))
            }
            Kind::Flag(set) => {
                let flag = scope.flag(field, value)?;
                Rc::new(move |draft| set(&mut draft.server, flag))
            }
            Kind::Word(words) => {
                let set = word(scope, field, value, words)?;
                Rc::new(move |draft| set(&mut draft.server))
            }
            Kind::Text(set) => {
                let text = scope.expanded(field, value)?;
                Rc::new(move |draft| set(&mut draft.server, text.clone()))
            }
            Kind::Tools => {
                let filter = tools(scope, field, value.clone())?;
                Rc::new(move |draft| draft.server.tools = filter.clone())
            }
        })
    }
}

/// A duration that the machine takes as this knob: what it says of it alone is told in its words.
fn knob(
    scope: &mut Scope<'_>,
    field: &str,
    value: &Json,
    build: impl Fn(Duration) -> Result<Config, ConfigError>,
) -> Option<Duration> {
    let duration = duration(scope, field, value)?;
    match build(duration) {
        Err(error @ (ConfigError::Zero { .. } | ConfigError::TooLong { .. })) => {
            scope.error(field, ProblemKind::Value, format!("{}: {error}", value.shown()));
            None
        }
        // How it goes with others is seen when all are known.
        Ok(_) | Err(_) => Some(duration),
    }
}

/// A duration by the same rules, for settings that the machine does not know.
fn checked_duration(
    scope: &mut Scope<'_>,
    field: &str,
    name: &'static str,
    value: &Json,
    zero: Zero,
) -> Option<Duration> {
    let duration = duration(scope, field, value)?;
    let limits = Config::builder().redial_spread(duration).build();
    let error = match limits {
        _ if duration.is_zero() && zero == Zero::Refused => ConfigError::Zero { knob: name },
        Err(ConfigError::TooLong { value, .. }) => ConfigError::TooLong { knob: name, value },
        _ => return Some(duration),
    };
    scope.error(field, ProblemKind::Value, format!("{}: {error}", value.shown()));
    None
}

/// The deadline of calls, in the key that other clients share.
pub(super) fn call_timeout(scope: &mut Scope<'_>, field: &str, value: &Json) -> Option<Duration> {
    checked_duration(scope, field, "timeout", value, Zero::Refused)
}

/// `"30s"`, `"250ms"`, or a number of seconds.
fn duration(scope: &mut Scope<'_>, field: &str, value: &Json) -> Option<Duration> {
    let duration = match value {
        Json::String(text) => duration_of(text),
        Json::Number(number) => match number.as_u64() {
            Some(seconds) => Some(Duration::from_secs(seconds)),
            None => number.as_f64().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()),
        },
        Json::Null | Json::Bool(_) | Json::Array(_) | Json::Object(_) => None,
    };
    if duration.is_none() {
        let forms = "write `\"250ms\"`, `\"30s\"`, `\"15m\"`, `\"1h\"` or a number of seconds, at most 30 days";
        scope.error(field, ProblemKind::Value, format!("{} is no duration: {forms}", value.shown()));
    }
    duration
}

fn duration_of(text: &str) -> Option<Duration> {
    let digits = text.find(|c: char| !c.is_ascii_digit())?;
    let (count, unit) = text.split_at(digits);
    let count: u64 = count.parse().ok()?;
    let seconds = match unit.trim_start() {
        "ms" => return Some(Duration::from_millis(count)),
        "s" => 1,
        "m" | "min" => 60,
        "h" => 3_600,
        "d" => 86_400,
        _ => return None,
    };
    count.checked_mul(seconds).map(Duration::from_secs)
}

/// A whole number from 1 to `max`.
pub(super) fn number(scope: &mut Scope<'_>, field: &str, value: &Json, max: u64) -> Option<u64> {
    let count = match value {
        Json::Number(number) => number.as_u64().filter(|count| (1..=max).contains(count)),
        _ => None,
    };
    if count.is_none() {
        let text = format!("{} is no whole number from 1 to {max}", value.shown());
        scope.error(field, ProblemKind::Value, text);
    }
    count
}

fn word<T: Copy>(scope: &mut Scope<'_>, field: &str, value: &Json, words: &'static [(&'static str, T)]) -> Option<T> {
    let found = match value {
        Json::String(word) => words.iter().find(|(known, _)| known == word),
        _ => None,
    };
    if found.is_none() {
        let known: Vec<_> = words.iter().map(|(word, _)| format!("`\"{word}\"`")).collect();
        scope.error(field, ProblemKind::Value, format!("{} is none of {}", value.shown(), known.join(", ")));
    }
    found.map(|&(_, meaning)| meaning)
}

/// `{ "include": […], "exclude": […] }`.
pub(super) fn tools(scope: &mut Scope<'_>, field: &str, value: Json) -> Option<ToolFilter> {
    let mut filter = ToolFilter::default();
    for (key, value) in scope.object(field, value)? {
        let within = join(field, &key);
        match key.as_str() {
            "include" | "exclude" if value == Json::Null => {}
            "include" => filter.include = scope.names(&within, &value),
            "exclude" => filter.exclude = scope.names(&within, &value).unwrap_or_default(),
            _ => scope.unknown(&within, &key, ["include", "exclude"]),
        }
    }
    Some(filter)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_knob_of_the_machine_has_a_key() {
        let serde_json::Value::Object(knobs) = serde_json::to_value(Config::default()).unwrap() else {
            panic!("an object");
        };
        let ours: Vec<_> = KEYS
            .iter()
            .filter(|key| {
                matches!(key.kind, Kind::Knob(_) | Kind::OptionalKnob(_) | Kind::SmallKnob(_) | Kind::WordKnob(_))
            })
            .map(|key| key.name)
            .collect();
        assert_eq!(knobs.len(), ours.len(), "{knobs:?} {ours:?}");
        for knob in ours {
            assert!(knobs.contains_key(knob), "{knob}");
        }
    }

    #[test]
    fn each_key_sets_its_knob_and_no_other() {
        for key in &KEYS {
            let set = match key.kind {
                Kind::Knob(set) => set(Config::builder(), Duration::from_nanos(77)),
                Kind::OptionalKnob(set) => set(Config::builder(), Some(Duration::from_nanos(77))),
                Kind::SmallKnob(set) => set(Config::builder(), 77),
                Kind::WordKnob(words) => words[0].1(Config::builder()),
                _ => continue,
            };
            let (set, default) = (serde_json::to_value(set).unwrap(), serde_json::to_value(Config::builder()).unwrap());
            for (name, value) in default.as_object().unwrap() {
                assert_eq!(&set[name] != value, name == key.name, "{} {name}", key.name);
            }
        }
    }

    #[test]
    fn the_docs_name_every_key() {
        let docs = include_str!("../../docs/config.md");
        for name in names() {
            assert!(docs.contains(&format!("`{name}`")), "{name}");
        }
    }

    #[test]
    fn durations_have_a_unit() {
        for (text, duration) in [
            ("250ms", Some(Duration::from_millis(250))),
            ("30s", Some(Duration::from_secs(30))),
            ("30 s", Some(Duration::from_secs(30))),
            ("15m", Some(Duration::from_secs(900))),
            ("15min", Some(Duration::from_secs(900))),
            ("1h", Some(Duration::from_secs(3_600))),
            ("2d", Some(Duration::from_secs(172_800))),
            ("30", None),
            ("s", None),
            ("", None),
            ("-1s", None),
            ("1.5s", None),
            ("30S", None),
            ("99999999999999999999s", None),
            ("18446744073709551615d", None),
        ] {
            assert_eq!(duration_of(text), duration, "{text}");
        }
    }
}
