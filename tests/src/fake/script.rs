//! What a script says, and what of it holds for one spawn.

use std::collections::BTreeSet;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use serde_json::Value;

use super::http::{HttpAction, HttpPlan, HttpSetting};
use super::lex::ScriptError;
use super::parse;

/// A script that was read; see the [module](super) for the language.
#[derive(Clone, Debug, PartialEq)]
pub struct Script {
    source: Box<str>,
    sections: Vec<Section>,
}

impl Script {
    /// Reads a script.
    ///
    /// # Errors
    ///
    /// The first line that does not follow the grammar, with the token and what would have fitted.
    pub fn parse(text: &str) -> Result<Self, ScriptError> {
        Ok(Self { source: text.into(), sections: parse::sections(text)? })
    }

    /// The text it was read from.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The signals for which any line waits.
    pub fn signals(&self) -> BTreeSet<Signal> {
        let lines = self.sections.iter().flat_map(|section| &section.lines);
        lines
            .filter_map(|line| match line {
                Line::On(Event::Signal(signal), _) => Some(*signal),
                Line::Set(Setting::Ignore(Ignored::Term)) => Some(Signal::Term),
                _ => None,
            })
            .collect()
    }

    /// What holds for the `spawn`th process, started this long after the first one.
    pub fn plan(&self, spawn: u32, since_first: Duration) -> Plan {
        let mut plan = Plan::default();
        let general = self.sections.iter().filter(|section| section.when == When::Always);
        let special = self.sections.iter().filter(|section| match section.when {
            When::Always => false,
            When::Spawns { from, to } => (from..=to).contains(&spawn),
            When::Until(end) => since_first < end,
            When::From(start) => since_first >= start,
        });
        for section in general.chain(special) {
            for line in &section.lines {
                plan.apply(line, section.when != When::Always);
            }
        }
        plan
    }
}

/// The signals that a script can name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Signal {
    /// SIGTERM.
    Term,
    /// SIGHUP.
    Hup,
    /// SIGUSR1.
    Usr1,
    /// SIGUSR2.
    Usr2,
}

/// The plan of a running spawn, which may change under it.
#[derive(Clone, Debug)]
pub struct SharedPlan(Arc<RwLock<Arc<Plan>>>);

impl SharedPlan {
    pub(crate) fn get(&self) -> Arc<Plan> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn set(&self, plan: Plan) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(plan);
    }
}

impl From<Plan> for SharedPlan {
    fn from(plan: Plan) -> Self {
        Self(Arc::new(RwLock::new(Arc::new(plan))))
    }
}

/// The lines under one heading.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Section {
    pub(crate) when: When,
    pub(crate) lines: Vec<Line>,
}

/// Which spawns a section is about.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum When {
    Always,
    Spawns { from: u32, to: u32 },
    Until(Duration),
    From(Duration),
}

/// One line.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Line {
    Set(Setting),
    Rule(Rule),
    On(Event, Vec<Action>),
}

/// What the server is like.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Setting {
    Era(Era),
    Versions(Vec<String>),
    Info { name: String, version: String },
    Capabilities(Vec<Item>),
    Tools(Vec<Item>),
    Prompts(Vec<Item>),
    Resources(Vec<Item>),
    Templates(Vec<Item>),
    Paging(Paging),
    Ignore(Ignored),
    Serial,
    ExitUnlessInitialize,
    Http(HttpSetting),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Ignored {
    Eof,
    Term,
}

/// Which protocol era a server speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Era {
    #[default]
    Legacy,
    Modern,
    Both,
}

/// How lists are split.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Paging {
    /// Into this many pages.
    Pages(usize),
    /// Everything, always with the same cursor for more.
    Repeat,
    /// Everything, then empty pages, each with a new cursor.
    Endless,
}

/// A name with attributes in brackets: `b(readOnly, desc "v2")`.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Item {
    pub(crate) name: String,
    pub(crate) flags: Vec<String>,
    pub(crate) description: Option<String>,
}

/// What is done about some requests.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Rule {
    pub(crate) method: String,
    /// Of `tools/call`: only this tool.
    pub(crate) tool: Option<String>,
    /// Only these, counted from 1 within the spawn.
    pub(crate) nth: Option<(u32, u32)>,
    pub(crate) actions: Vec<Action>,
}

/// What happens without a request.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Event {
    Start,
    After(Duration),
    Notification(String),
    Eof,
    Signal(Signal),
}

/// One step; the grammar's table explains them.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Action {
    Ok,
    Reply(String),
    Result(Value),
    Error { code: Option<i64>, text: String, data: Option<Value> },
    IsError(String),
    Version(String),
    Only(Vec<String>),
    Big(usize),
    WrongId,
    BadShape,
    Duplicate,
    InputRequired(Option<Value>),
    Task,
    Endless,
    Never,
    Commit,
    Delay(Duration),
    Progress { times: u32, every: Duration, foreign: bool },
    Hold(usize),
    ReplayOld,
    Notify { method: String, params: Option<Value>, times: u32, every: Duration, standing: bool },
    Request { method: String, params: Value, wait: bool, standing: bool },
    SetTools(Vec<Item>),
    Stop,
    Stdout(Vec<u8>),
    Stderr(Vec<u8>),
    StderrFill(usize),
    CloseStdin,
    CloseStdout,
    Deaf,
    Mute,
    Grandchild { hold_stdout: bool, ignore_term: bool },
    Bind(u16),
    Exit(i32),
    Kill,
    Http(HttpAction),
}

impl Action {
    /// Whether it decides what becomes of the request, so that no `ok` follows by itself.
    pub(crate) fn settles(&self) -> bool {
        match self {
            Self::Http(action) => action.settles(),
            Self::Exit(_) | Self::Kill => true,
            _ => self.needs_request(),
        }
    }

    /// Whether it makes sense only where there is a request.
    pub(crate) fn needs_request(&self) -> bool {
        matches!(self, Self::Http(action) if action.needs_request())
            || matches!(
                self,
                Self::Ok
                    | Self::Reply(_)
                    | Self::Result(_)
                    | Self::Error { .. }
                    | Self::IsError(_)
                    | Self::Version(_)
                    | Self::Only(_)
                    | Self::Big(_)
                    | Self::WrongId
                    | Self::BadShape
                    | Self::Duplicate
                    | Self::InputRequired(_)
                    | Self::Task
                    | Self::Endless
                    | Self::Never
            )
    }
}

/// What holds for one spawn.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    pub(crate) era: Era,
    pub(crate) versions: Vec<String>,
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) capabilities: Option<Vec<Item>>,
    pub(crate) tools: Vec<Item>,
    pub(crate) prompts: Vec<Item>,
    pub(crate) resources: Vec<Item>,
    pub(crate) templates: Vec<Item>,
    pub(crate) paging: Paging,
    pub(crate) serial: bool,
    pub(crate) exit_unless_initialize: bool,
    pub(crate) ignore_eof: bool,
    pub(crate) ignore_term: bool,
    pub(crate) http: HttpPlan,
    /// With whether the section names spawns or times.
    rules: Vec<(bool, Rule)>,
    events: Vec<(Event, Vec<Action>)>,
}

/// The first revision without `initialize`.
pub(crate) const MODERN: &str = "2026-07-28";
const LEGACY: [&str; 4] = ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"];

impl Default for Plan {
    /// A well-behaved server of the legacy era with the tools `echo` (read-only) and `write` (no annotation).
    fn default() -> Self {
        let echo = Item { name: "echo".into(), flags: vec!["readOnly".into()], description: None };
        let write = Item { name: "write".into(), ..Item::default() };
        Self {
            era: Era::Legacy,
            versions: std::iter::once(MODERN).chain(LEGACY).map(str::to_owned).collect(),
            name: "fake".into(),
            version: "1".into(),
            capabilities: None,
            tools: vec![echo, write],
            prompts: Vec::new(),
            resources: Vec::new(),
            templates: Vec::new(),
            paging: Paging::Pages(1),
            serial: false,
            exit_unless_initialize: false,
            ignore_eof: false,
            ignore_term: false,
            http: HttpPlan::default(),
            rules: Vec::new(),
            events: Vec::new(),
        }
    }
}

impl Plan {
    fn apply(&mut self, line: &Line, special: bool) {
        match line {
            Line::Rule(rule) => self.rules.push((special, rule.clone())),
            Line::On(event, actions) => {
                // Every `after` is its own event; of the others the later line replaces the earlier one.
                if !matches!(event, Event::After(_)) {
                    self.events.retain(|(other, _)| other != event);
                }
                self.events.push((event.clone(), actions.clone()));
            }
            Line::Set(setting) => match setting.clone() {
                Setting::Era(era) => self.era = era,
                Setting::Versions(versions) => self.versions = versions,
                Setting::Info { name, version } => (self.name, self.version) = (name, version),
                Setting::Capabilities(capabilities) => self.capabilities = Some(capabilities),
                Setting::Tools(tools) => self.tools = tools,
                Setting::Prompts(prompts) => self.prompts = prompts,
                Setting::Resources(resources) => self.resources = resources,
                Setting::Templates(templates) => self.templates = templates,
                Setting::Paging(paging) => self.paging = paging,
                Setting::Ignore(Ignored::Eof) => self.ignore_eof = true,
                Setting::Ignore(Ignored::Term) => self.ignore_term = true,
                Setting::Serial => self.serial = true,
                Setting::ExitUnlessInitialize => self.exit_unless_initialize = true,
                Setting::Http(setting) => self.http.apply(setting),
            },
        }
    }

    /// What to do about a request: the most special rule, the later one of equals. A section for some spawns beats
    /// `server:`, a number beats none, a tool's name beats `*`.
    ///
    /// `nth` counts the requests of the method, `nth_of_tool` the calls of the tool.
    pub(crate) fn actions(&self, method: &str, tool: Option<&str>, nth: u32, nth_of_tool: u32) -> Option<&[Action]> {
        let fits = |rule: &Rule| {
            let count = if rule.tool.is_some() { nth_of_tool } else { nth };
            rule.method == method
                && (rule.tool.is_none() || rule.tool.as_deref() == tool)
                && rule.nth.is_none_or(|(from, to)| (from..=to).contains(&count))
        };
        let best = self.rules.iter().filter(|(_, rule)| fits(rule)).max_by_key(|(special, rule)| {
            (*special, rule.nth.is_some(), rule.tool.is_some()) // of equals the last
        });
        best.map(|(_, rule)| &*rule.actions)
    }

    /// What to do when this happens; `None` where no line says it.
    pub(crate) fn on(&self, event: &Event) -> Option<&[Action]> {
        self.events.iter().find(|(other, _)| other == event).map(|(_, actions)| &**actions)
    }

    /// What to do at which time after the start.
    pub(crate) fn timed(&self) -> impl Iterator<Item = (Duration, &[Action])> {
        self.events.iter().filter_map(|(event, actions)| match event {
            Event::After(delay) => Some((*delay, &**actions)),
            Event::Start | Event::Notification(_) | Event::Eof | Event::Signal(_) => None,
        })
    }

    /// The versions of one era that it speaks, best first.
    pub(crate) fn versions(&self, modern: bool) -> Vec<&str> {
        self.versions.iter().map(String::as_str).filter(|version| (*version >= MODERN) == modern).collect()
    }
}
