//! Tokens to lines.

use std::time::Duration;

use serde_json::json;

use super::http::{self, GATES};
use super::lex::{ScriptError, Token, Tokens};
use super::script::{Action, Era, Event, Ignored, Item, Line, Paging, Rule, Section, Setting, Signal, When};

const LINES: &str = "a heading (server:, spawn N:, spawn N..M:, until D:, from D:), a setting (era, versions, info, \
    capabilities, tools, prompts, resources, templates, paging, ignore, serial, exit-unless-initialize, sessions, \
    answers, content-type, require-header, token, respawn), a request (initialize, discover, list, ping, call NAME, \
    post, get, delete, resume, stale, stale-initialize, stale-get, stale-delete, missing, unauthorized, or a method \
    with a slash) or an event (start, after D, on EVENT)";
const ACTIONS: &str = "an action (ok, reply, result, error, is-error, version, only, big, wrong-id, bad-shape, \
    duplicate, input-required, task, endless, never, commit, delay, progress, hold, replay-old, notify, request, \
    set-tools, stop, stdout, stderr, close, deaf, mute, grandchild, bind, exit, kill, status, with-status, header, \
    retry-after, headers, headers-only, end, cut, reset, black-hole, event-id, retry, forget, set-token, \
    disconnect)";
const TOOL_FLAGS: [&str; 5] = ["readOnly", "readOnly=false", "idempotent", "idempotent=false", "destructive"];
const SPAN: &str = "a number from 1, N..M or N..";

/// Reads a whole script.
pub(crate) fn sections(text: &str) -> Result<Vec<Section>, ScriptError> {
    let mut sections = vec![Section { when: When::Always, lines: Vec::new() }];
    for (index, text) in text.lines().enumerate() {
        let mut tokens = Tokens::of(index + 1, text)?;
        if tokens.is_empty() {
            continue;
        }
        if let Some(when) = heading(&mut tokens)? {
            sections.push(Section { when, lines: Vec::new() });
        } else if let Some(section) = sections.last_mut() {
            section.lines.push(line(&mut tokens)?);
        }
        tokens.end()?;
    }
    Ok(sections)
}

fn heading(tokens: &mut Tokens) -> Result<Option<When>, ScriptError> {
    let when = if tokens.eat_word("server:") {
        When::Always
    } else if tokens.eat_word("spawn") {
        let (from, to) = tokens.parsed("a spawn such as 1:, 2..4: or 5..:", |word| span(word.strip_suffix(':')?))?;
        When::Spawns { from, to }
    } else if tokens.eat_word("until") {
        When::Until(time_heading(tokens)?)
    } else if tokens.eat_word("from") {
        When::From(time_heading(tokens)?)
    } else {
        return Ok(None);
    };
    Ok(Some(when))
}

fn time_heading(tokens: &mut Tokens) -> Result<Duration, ScriptError> {
    const EXPECTED: &str = "a time such as 60s:";
    let word = tokens.word(EXPECTED)?;
    let inner = word.strip_suffix(':').ok_or_else(|| tokens.error_before(EXPECTED))?;
    Tokens::of(tokens.line(), inner)?.duration().map_err(|_| tokens.error_before(EXPECTED))
}

fn span(word: &str) -> Option<(u32, u32)> {
    let (from, to) = match word.split_once("..") {
        None => (word.parse().ok()?, word.parse().ok()?),
        Some((from, "")) => (from.parse().ok()?, u32::MAX),
        Some((from, to)) => (from.parse().ok()?, to.parse().ok()?),
    };
    (from >= 1 && from <= to).then_some((from, to))
}

fn line(tokens: &mut Tokens) -> Result<Line, ScriptError> {
    if let Some(setting) = setting(tokens)? {
        return Ok(Line::Set(setting));
    }
    if let Some(event) = event(tokens)? {
        let cancelled = matches!(&event, Event::Notification(method) if method == "notifications/cancelled");
        return Ok(Line::On(event, actions(tokens, Place::Event { cancelled })?));
    }
    rule(tokens).map(Line::Rule)
}

fn setting(tokens: &mut Tokens) -> Result<Option<Setting>, ScriptError> {
    let setting = if tokens.eat_word("era") {
        Setting::Era(tokens.parsed("legacy, modern or both", |word| match word {
            "legacy" => Some(Era::Legacy),
            "modern" => Some(Era::Modern),
            "both" => Some(Era::Both),
            _ => None,
        })?)
    } else if tokens.eat_word("versions") {
        Setting::Versions(versions(tokens, true)?)
    } else if tokens.eat_word("info") {
        Setting::Info { name: tokens.word("a server name")?, version: tokens.word("a server version")? }
    } else if tokens.eat_word("capabilities") {
        Setting::Capabilities(capabilities(tokens)?)
    } else if tokens.eat_word("tools") {
        Setting::Tools(items(tokens, true, &TOOL_FLAGS)?)
    } else if tokens.eat_word("prompts") {
        Setting::Prompts(items(tokens, true, &[])?)
    } else if tokens.eat_word("resources") {
        Setting::Resources(items(tokens, true, &[])?)
    } else if tokens.eat_word("templates") {
        Setting::Templates(items(tokens, true, &[])?)
    } else if tokens.eat_word("paging") {
        Setting::Paging(tokens.parsed("a number of pages from 1, repeat or endless", |word| match word {
            "repeat" => Some(Paging::Repeat),
            "endless" => Some(Paging::Endless),
            pages => pages.parse().ok().filter(|pages| *pages > 0).map(Paging::Pages),
        })?)
    } else if tokens.eat_word("ignore") {
        Setting::Ignore(tokens.parsed("EOF or TERM", |word| match word {
            "EOF" => Some(Ignored::Eof),
            "TERM" => Some(Ignored::Term),
            _ => None,
        })?)
    } else if tokens.eat_word("serial") {
        Setting::Serial
    } else if tokens.eat_word("exit-unless-initialize") {
        Setting::ExitUnlessInitialize
    } else {
        return Ok(http::setting(tokens)?.map(Setting::Http));
    };
    Ok(Some(setting))
}

fn event(tokens: &mut Tokens) -> Result<Option<Event>, ScriptError> {
    const EVENTS: &str = "initialized, cancelled, EOF, TERM, HUP, USR1, USR2 or a notification's method";
    if tokens.eat_word("start") {
        return Ok(Some(Event::Start));
    }
    if tokens.eat_word("after") {
        return tokens.duration().map(|delay| Some(Event::After(delay)));
    }
    if !tokens.eat_word("on") {
        return Ok(None);
    }
    let event = tokens.parsed(EVENTS, |word| {
        Some(match word {
            "initialized" | "cancelled" => Event::Notification(format!("notifications/{word}")),
            "EOF" => Event::Eof,
            "TERM" => Event::Signal(Signal::Term),
            "HUP" => Event::Signal(Signal::Hup),
            "USR1" => Event::Signal(Signal::Usr1),
            "USR2" => Event::Signal(Signal::Usr2),
            method if method.contains('/') => Event::Notification(method.to_owned()),
            _ => return None,
        })
    })?;
    Ok(Some(event))
}

fn rule(tokens: &mut Tokens) -> Result<Rule, ScriptError> {
    let numbered = |word: &str| match word.split_once('#') {
        None => Some((word.to_owned(), None)),
        Some((name, nth)) => span(nth).map(|nth| (name.to_owned(), Some(nth))),
    };
    let (tool, nth, method) = if tokens.eat_word("call") {
        let (tool, nth) = tokens.parsed(&format!("a tool or *, optionally with # and {SPAN}"), numbered)?;
        (Some(tool).filter(|tool| tool != "*"), nth, "tools/call".to_owned())
    } else {
        let (subject, nth) = tokens.parsed(LINES, |word| {
            let name = word.split('#').next()?;
            let named = ["initialize", "discover", "list", "ping"].contains(&name) || GATES.contains(&name);
            let known = named || name.contains('/');
            if known { numbered(word) } else { None }
        })?;
        let method = match &*subject {
            "discover" => "server/discover".to_owned(),
            "list" => "tools/list".to_owned(),
            _ => subject,
        };
        (None, nth, method)
    };
    let actions = actions(tokens, Place::Request(&method))?;
    Ok(Rule { method, tool, nth, actions })
}

/// Where an action stands, which decides whether it makes sense.
#[derive(Clone, Copy, Debug)]
enum Place<'a> {
    Request(&'a str),
    Event { cancelled: bool },
}

fn actions(tokens: &mut Tokens, place: Place<'_>) -> Result<Vec<Action>, ScriptError> {
    let mut actions = Vec::new();
    loop {
        let action = action(tokens, place)?;
        actions.push(action);
        if tokens.peek().is_none() {
            return Ok(actions);
        }
        if !tokens.eat(&Token::Comma) {
            return Err(tokens.error("a comma and an action, or the end of the line"));
        }
    }
}

fn action(tokens: &mut Tokens, place: Place<'_>) -> Result<Action, ScriptError> {
    let name = tokens.word(ACTIONS)?;
    let misplaced = |expected: &str| Err(tokens.error_before(expected));
    match (place, &*name) {
        (Place::Event { cancelled: true }, "stop") => {}
        (_, "stop") => return misplaced("an action other than stop, which belongs to `on cancelled`"),
        (Place::Request("initialize"), "version") => {}
        (_, "version") => return misplaced("an action other than version, which belongs to `initialize`"),
        _ => {}
    }
    let action = match &*name {
        "ok" => Action::Ok,
        "reply" => tokens.text_if()?.map_or(Action::Ok, Action::Reply),
        "result" => Action::Result(tokens.json_if()?.ok_or_else(|| tokens.error("a JSON result in single quotes"))?),
        "error" => error(tokens)?,
        "is-error" => Action::IsError(tokens.text_if()?.unwrap_or_else(|| "the tool failed".into())),
        "version" => Action::Version(tokens.word("a protocol version")?),
        "only" => Action::Only(versions(tokens, false)?),
        "big" => Action::Big(tokens.size()?),
        "wrong-id" => Action::WrongId,
        "bad-shape" => Action::BadShape,
        "duplicate" => Action::Duplicate,
        "input-required" => Action::InputRequired(tokens.json_if()?),
        "task" => Action::Task,
        "endless" => Action::Endless,
        "never" => Action::Never,
        "commit" => Action::Commit,
        "delay" => Action::Delay(tokens.duration()?),
        "progress" => progress(tokens)?,
        "hold" => Action::Hold(tokens.parsed("how many to hold, from 1", |word| word.parse().ok().filter(|n| *n > 0))?),
        "replay-old" => Action::ReplayOld,
        "notify" => notify(tokens)?,
        "request" => request(tokens)?,
        "set-tools" => Action::SetTools(items(tokens, false, &TOOL_FLAGS)?),
        "stop" => Action::Stop,
        "stdout" => Action::Stdout(tokens.bytes_if().ok_or_else(|| tokens.error("bytes in double quotes"))?),
        "stderr" => match tokens.bytes_if() {
            Some(bytes) => Action::Stderr(bytes),
            None => Action::StderrFill(tokens.size()?),
        },
        "close" => tokens.parsed("stdin or stdout", |word| match word {
            "stdin" => Some(Action::CloseStdin),
            "stdout" => Some(Action::CloseStdout),
            _ => None,
        })?,
        "deaf" => Action::Deaf,
        "mute" => Action::Mute,
        "grandchild" => grandchild(tokens)?,
        "bind" => Action::Bind(tokens.number("a port")?),
        "exit" => Action::Exit(tokens.parsed("an exit code from 0 to 255", |word| word.parse::<u8>().ok())?.into()),
        "kill" => Action::Kill,
        _ => Action::Http(http::action(&name, tokens)?.ok_or_else(|| tokens.error_before(ACTIONS))?),
    };
    if matches!(place, Place::Event { .. }) && action.needs_request() {
        let expected = format!("an action other than {name}, for there is no request to answer here");
        return Err(ScriptError { line: tokens.line(), token: name, expected });
    }
    Ok(action)
}

fn error(tokens: &mut Tokens) -> Result<Action, ScriptError> {
    let code = tokens.word_if(|word| word.parse::<i64>().is_ok()).and_then(|word| word.parse().ok());
    let text = tokens.text_if()?;
    if code.is_none() && text.is_none() {
        return Err(tokens.error("an error code, a text in double quotes, or both"));
    }
    Ok(Action::Error { code, text: text.unwrap_or_else(|| "scripted error".into()), data: tokens.json_if()? })
}

fn progress(tokens: &mut Tokens) -> Result<Action, ScriptError> {
    let times = tokens.number("how many progress notifications")?;
    let every = every(tokens)?.ok_or_else(|| tokens.error("every D"))?;
    Ok(Action::Progress { times, every, foreign: tokens.eat_word("foreign") })
}

fn every(tokens: &mut Tokens) -> Result<Option<Duration>, ScriptError> {
    if tokens.eat_word("every") { tokens.duration().map(Some) } else { Ok(None) }
}

fn notify(tokens: &mut Tokens) -> Result<Action, ScriptError> {
    let method = tokens.word("a notification such as tools/list_changed")?;
    let method = if method.starts_with("notifications/") { method } else { format!("notifications/{method}") };
    let params = tokens.json_if()?;
    let many = |word: &str| word.strip_prefix('x').and_then(|n| n.parse().ok());
    let times = tokens.word_if(|word| many(word).is_some()).and_then(|word| many(&word)).unwrap_or(1);
    let every = every(tokens)?.unwrap_or_default();
    Ok(Action::Notify { method, params, times, every, standing: tokens.eat_word("standing") })
}

fn request(tokens: &mut Tokens) -> Result<Action, ScriptError> {
    let (method, params) = tokens.parsed("sampling, elicitation, roots or ping", |word| {
        Some(match word {
            "sampling" => {
                let message = json!({"role": "user", "content": {"type": "text", "text": "What now?"}});
                ("sampling/createMessage", json!({"messages": [message], "maxTokens": 10}))
            }
            "elicitation" => {
                let schema = json!({"type": "object", "properties": {"name": {"type": "string"}}});
                ("elicitation/create", json!({"message": "Who are you?", "requestedSchema": schema}))
            }
            "roots" => ("roots/list", json!({})),
            "ping" => ("ping", json!({})),
            _ => return None,
        })
    })?;
    let (wait, standing) = (tokens.eat_word("wait"), tokens.eat_word("standing"));
    Ok(Action::Request { method: method.into(), params, wait, standing })
}

fn grandchild(tokens: &mut Tokens) -> Result<Action, ScriptError> {
    let (mut hold_stdout, mut ignore_term) = (false, false);
    loop {
        if tokens.eat_word("hold") {
            hold_stdout = tokens.parsed("stdout", |word| (word == "stdout").then_some(true))?;
        } else if tokens.eat_word("ignore") {
            ignore_term = tokens.parsed("TERM", |word| (word == "TERM").then_some(true))?;
        } else {
            return Ok(Action::Grandchild { hold_stdout, ignore_term });
        }
    }
}

fn versions(tokens: &mut Tokens, commas: bool) -> Result<Vec<String>, ScriptError> {
    let mut versions = vec![tokens.word("a protocol version")?];
    while more(tokens, commas) {
        versions.push(tokens.word("a protocol version")?);
    }
    Ok(versions)
}

/// Whether a list goes on: after a comma where the line holds nothing else, with the next word among actions.
fn more(tokens: &mut Tokens, commas: bool) -> bool {
    if commas { tokens.eat(&Token::Comma) } else { matches!(tokens.peek(), Some(Token::Word(_))) }
}

fn capabilities(tokens: &mut Tokens) -> Result<Vec<Item>, ScriptError> {
    const KNOWN: [&str; 5] = ["tools", "prompts", "resources", "logging", "completions"];
    let items = items(tokens, true, &["listChanged", "subscribe"])?;
    match items.iter().find(|item| !KNOWN.contains(&&*item.name)) {
        None => Ok(items),
        Some(unknown) => Err(ScriptError {
            line: tokens.line(),
            token: unknown.name.clone(),
            expected: format!("one of {}", KNOWN.join(", ")),
        }),
    }
}

/// Names with attributes; `none` for an empty list.
fn items(tokens: &mut Tokens, commas: bool, flags: &[&str]) -> Result<Vec<Item>, ScriptError> {
    const EXPECTED: &str = "a name, or none";
    let mut items = Vec::new();
    if tokens.eat_word("none") {
        return Ok(items);
    }
    loop {
        let mut item = Item { name: tokens.word(EXPECTED)?, ..Item::default() };
        if tokens.eat(&Token::Open) {
            while !tokens.eat(&Token::Close) {
                if tokens.eat_word("desc") {
                    let text = tokens.text_if()?.ok_or_else(|| tokens.error("a text in double quotes"))?;
                    item.description = Some(text);
                } else {
                    let expected = format!("one of [{}], desc \"text\" or a closing bracket", flags.join(", "));
                    item.flags.push(tokens.parsed(&expected, |word| flags.contains(&word).then(|| word.to_owned()))?);
                }
                tokens.eat(&Token::Comma);
            }
        }
        items.push(item);
        if !more(tokens, commas) {
            return Ok(items);
        }
    }
}
