//! Arbitrary files of hosts, in arbitrary layouts: an installation works, and can be undone.

use std::collections::BTreeSet;

use mcp_reconnect::config::FleetConfig;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use super::super::document::{Document, Entry, literal};
use super::super::entry::{self, Route};
use super::super::plan::{self, Choice, Originals, Outcome, Plan, Refusal};
use super::super::shown;
use super::{ORIGINALS, files, front, install, json, only, undo, unmarked};

/// Is in every text that is a secret.
const SECRET: &str = "s3cret";

/// JSON whose members stand in any order.
#[derive(Clone, Debug)]
enum Json {
    Leaf(String),
    Array(Vec<Self>),
    Object(Vec<(String, Self)>),
}

fn text(text: &str) -> Json {
    Json::Leaf(literal(text))
}

fn leaf(leaf: &str) -> Json {
    Json::Leaf(leaf.into())
}

impl Json {
    fn tokens(&self, trailing: bool, tokens: &mut Vec<String>) {
        let (close, items): (_, Vec<_>) = match self {
            Self::Leaf(leaf) => return tokens.push(leaf.clone()),
            Self::Array(items) => ("]", items.iter().map(|item| (None, item)).collect()),
            Self::Object(members) => ("}", members.iter().map(|(key, value)| (Some(key), value)).collect()),
        };
        tokens.push(if close == "]" { "[".into() } else { "{".into() });
        let count = items.len();
        for (at, (key, value)) in items.into_iter().enumerate() {
            tokens.extend(key.into_iter().flat_map(|key| [literal(key), ":".into()]));
            value.tokens(trailing, tokens);
            if trailing || at + 1 < count {
                tokens.push(",".into());
            }
        }
        tokens.push(close.into());
    }
}

/// Blanks and comments that may stand between tokens.
const PLAIN: [&str; 7] = ["", " ", "\n", "\n  ", "\n    ", "\r\n\t", "  "];
const COMMENTED: [&str; 8] = [
    "",
    " ",
    "\n  ",
    "\n\t",
    "// s3cret \" , }\n",
    " /* s3cret\n { */ ",
    "\n    // s3cret\n    ",
    "\r\n  //s3cret\r\n",
];

/// A layout: plain JSON, or with comments and trailing commas.
fn layout() -> impl Strategy<Value = (Vec<&'static str>, bool)> {
    prop_oneof![
        (vec(select(&PLAIN[..]), 1..30), Just(false)),
        (vec(select(&COMMENTED[..]), 1..30), any::<bool>()),
        Just((vec![" "], false)),
        Just((vec![""], false)),
    ]
}

fn word() -> impl Strategy<Value = Json> {
    select(&["s3cret", "--key=s3cret", "${NOT_SET}s3cret", "we\"ird\\s3cret", "ü s3cret", "s3cret\n"][..])
        .prop_map(text)
}

fn members(of: &'static [(&'static str, &'static str)]) -> impl Strategy<Value = Vec<(String, Json)>> {
    proptest::sample::subsequence(of, 0..=of.len())
        .prop_map(|members| members.into_iter().map(|(key, value)| ((*key).to_owned(), leaf(value))).collect())
}

const ANY: [(&str, &str); 5] = [
    ("disabled", "true"),
    ("timeout", "60.0"),
    ("alwaysAllow", "[\"s3cret\"]"),
    ("x", "{ \"s3cret\": 1 }"),
    ("description", "\"s3cret\""),
];

fn command() -> impl Strategy<Value = Json> {
    let program = select(&["npx", "/opt/ser ver", "${HOME}/x", "we\"ird"][..]);
    let args = prop_oneof![
        2 => vec(word(), 0..3).prop_map(|words| Some(Json::Array(words))),
        1 => Just(None),
        1 => Just(Some(leaf("null"))),
    ];
    let env =
        members(&[("env", "{ \"A\": \"s3cret\", \"N\": 12345678 }"), ("cwd", "\"/s3cret\""), ("type", "\"stdio\"")]);
    (program, args, env, members(&ANY), any::<bool>(), word()).prop_map(|(program, args, env, any, array, word)| {
        let command = if array { Json::Array(vec![text(program), word]) } else { text(program) };
        let mut members = vec![("command".to_owned(), command)];
        members.extend(args.map(|args| ("args".to_owned(), args)));
        members.extend(env.into_iter().chain(any));
        Json::Object(members)
    })
}

fn http() -> impl Strategy<Value = Json> {
    let url = select(&["url", "serverUrl", "httpUrl"][..]);
    let rest = members(&[
        ("headers", "{\n \"Authorization\": \"Bearer s3cret\", \"X\": \"s3cret\" }"),
        ("type", "\"http\""),
        ("oauth", "false"),
        ("command", "null"),
        ("args", "[\"s3cret\"]"),
        ("headersHelper", "null"),
    ]);
    (url, rest, members(&ANY)).prop_map(|(url, rest, any)| {
        let mut members = vec![(url.to_owned(), text("https://example.com/s3cret?key=s3cret"))];
        members.extend(rest.into_iter().chain(any));
        Json::Object(members)
    })
}

fn server() -> impl Strategy<Value = Json> {
    let others = select(
        &[
            "{ \"type\": \"sse\", \"url\": \"https://old.example.com/s3cret\" }",
            "{ \"command\": 1 }",
            "{ \"url\": \"${NOT_SET}\" }",
            "{ \"command\": \"a\", \"command\": \"b\" }",
            "\"s3cret\"",
            "{}",
            "{ \"source\": \"extension\", \"settings\": {} }",
            "{ \"command\": \"mcp-reconnect\", \"args\": [\"proxy\", \"--url\", \"http://s3cret/\"] }",
            "{ \"command\": \"/x/mcp-reconnect\", \"args\": [\"proxy\", \"--name\", \"me\", \"--\", \"npx\", \"s3cret\"] }",
            "{ \"command\": \"x\", \"args\": [\"proxy\", \"--config\", \"s3cret\", \"--server\", \"me\"] }",
        ][..],
    );
    let shuffled = |server: Json| match server {
        Json::Object(members) => Just(members).prop_shuffle().prop_map(Json::Object).boxed(),
        other => Just(other).boxed(),
    };
    prop_oneof![
        4 => command().prop_flat_map(shuffled),
        4 => http().prop_flat_map(shuffled),
        1 => others.prop_map(leaf),
    ]
}

/// A host's file as JSON.
fn host() -> impl Strategy<Value = Json> {
    let name = select(&["a", "b", "my server", "ü\"", "servers", "-x", "${x}", "c", "d"][..]);
    let servers = proptest::collection::btree_map(name, server(), 0..6)
        .prop_map(|servers| servers.into_iter().map(|(name, server)| (name.to_owned(), server)).collect::<Vec<_>>())
        .prop_shuffle()
        .prop_map(Json::Object);
    let container = select(&["mcpServers", "servers", "context_servers", "mcp", "mcp.servers"][..]);
    let settings = members(&[
        ("font", "13"),
        ("token", "[\"s3cret\", { \"b\": null }]"),
        ("mcpServers", "null"),
        ("servers", "{}"),
    ]);
    (container, servers, settings).prop_flat_map(|(container, servers, settings)| {
        let mut members = settings;
        members.retain(|(key, _)| key != container);
        members.push(match container {
            "mcp.servers" => {
                ("mcp".into(), Json::Object(vec![("inputs".into(), leaf("[]")), ("servers".into(), servers)]))
            }
            container => (container.to_owned(), servers),
        });
        Just(members).prop_shuffle().prop_map(Json::Object)
    })
}

fn host_text() -> impl Strategy<Value = String> {
    (host(), layout(), any::<bool>()).prop_map(|(host, (gaps, trailing), mark)| {
        let mut text = String::from(if mark { "\u{feff}" } else { "" });
        let mut tokens = Vec::new();
        host.tokens(trailing, &mut tokens);
        for (gap, token) in gaps.into_iter().cycle().zip(tokens) {
            text += gap;
            text += &token;
        }
        text + "\n"
    })
}

/// The file with the front before its servers, where that could be done.
fn installed(host: &str) -> Result<Plan, TestCaseError> {
    match plan::install(files(host, None), &Choice::default(), &front()) {
        Ok(plan) => Ok(plan),
        Err(Refusal::Config(_)) => Err(TestCaseError::reject("no servers")),
        Err(other) => Err(TestCaseError::fail(format!("{other:?}"))),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_installed_is_undone_to_the_byte(host in host_text()) {
        let plan = installed(&host)?;
        if plan.text == host {
            prop_assert_eq!(plan.originals, Originals::Stay);
            return Ok(());
        }
        prop_assert_eq!(&plan.originals, &Originals::Write { text: host.clone(), keep: false });
        let back = undo(&plan.text, Some(&host));
        prop_assert_eq!(&back.text, &host);
        prop_assert_eq!(back.originals, Originals::Remove);

        // Undone server by server, for the file was changed since.
        let edited = format!("{}// edited\n", plan.text);
        let back = undo(&edited, Some(&host));
        prop_assert!(back.text == format!("{host}// edited\n"), "{}", back.text);
    }

    #[test]
    fn what_is_installed_is_installed_once(host in host_text()) {
        let plan = installed(&host)?;
        let again = install(&plan.text, Some(&host));
        prop_assert_eq!(&again.text, &plan.text);
        prop_assert_eq!(again.originals, Originals::Stay);
        for ((name, before), (_, now)) in plan.servers.iter().zip(&again.servers) {
            match before {
                Outcome::Done | Outcome::Already => prop_assert_eq!(now, &Outcome::Already, "{}", name),
                left @ Outcome::Left(_) => prop_assert_eq!(now, left, "{}", name),
            }
        }
    }

    /// Installing servers one by one gives the file of installing them at once.
    #[test]
    fn what_is_installed_in_steps_is_undone_to_the_byte(host in host_text()) {
        let whole = installed(&host)?;
        let done = whole.servers.iter().filter(|(_, outcome)| *outcome == Outcome::Done);
        let (mut now, mut originals) = (host.clone(), None);
        for (name, _) in done {
            let step = plan::install(files(&now, originals.as_deref()), &only(&[name]), &front()).unwrap();
            if let Originals::Write { text, keep } = step.originals {
                prop_assert!(!keep);
                originals = Some(text);
            }
            now = step.text;
        }
        prop_assert_eq!(&now, &whole.text);
        if originals.is_some() {
            prop_assert_eq!(undo(&now, originals.as_deref()).text, host);
        }
    }

    #[test]
    fn what_is_installed_runs_what_was_there_and_leaves_the_rest(host in host_text()) {
        let plan = installed(&host)?;
        prop_assert_eq!(json(&host).is_some(), json(&plan.text).is_some(), "{}", plan.text);
        let (old, new) = (Document::parse(unmarked(&host)).unwrap(), Document::parse(unmarked(&plan.text)).unwrap());
        prop_assert_eq!(old.entries().len(), new.entries().len());
        for (before, now) in old.entries().into_iter().zip(new.entries()) {
            prop_assert_eq!(before.name, now.name);
            let outcome = plan.servers.iter().find(|(name, _)| name == before.name).map(|(_, outcome)| outcome);
            if outcome != Some(&Outcome::Done) {
                prop_assert_eq!(old.slice(before.range()), new.slice(now.range()));
                continue;
            }
            let route = Route::of(now);
            prop_assert_eq!(entry::program(now), Some("/opt/bin/mcp-reconnect"));
            let line = entry::words(now.object().unwrap()).unwrap();
            if entry::is_http(before) {
                prop_assert_eq!(route, Some(Route::Config { file: ORIGINALS, name: before.name }));
                prop_assert!(!line.iter().any(|word| word.contains(SECRET)));
                for key in ["url", "serverUrl", "httpUrl", "headers"] {
                    prop_assert!(now.object().unwrap().get(key).is_none(), "{}", key);
                }
            } else {
                prop_assert_eq!(route, Some(Route::Command { name: before.name }));
                prop_assert_eq!(&line[5..], &entry::words(before.object().unwrap()).unwrap()[..]);
            }
            for kept in ["env", "cwd", "disabled", "timeout", "alwaysAllow", "x", "description"] {
                let of = |doc: &Document<'_>, entry: Entry<'_, '_>| {
                    entry.object().and_then(|server| server.get(kept)).map(|it| doc.slice(it.range.start..it.range.end).to_owned())
                };
                prop_assert_eq!(of(&old, before), of(&new, now));
            }
        }
        // The reader of configs takes it.
        let read = |text: &str| FleetConfig::parse(text, "x", |_| Some("x".into()));
        if let Ok(before) = read(&host) {
            let now = read(&plan.text);
            prop_assert!(now.is_ok(), "{:?}", now);
            let names = |doc: &Document<'_>| doc.entries().iter().filter(|it| {
                !doc.slice(it.range()).contains("extension")
            }).map(|entry| Box::from(entry.name)).collect::<BTreeSet<Box<str>>>();
            prop_assert_eq!(names(&old), before.config.servers.into_keys().collect());
            prop_assert_eq!(names(&new), now.unwrap().config.servers.into_keys().collect());
        }
    }

    /// Hosts write their files anew, in a layout of their own.
    #[test]
    fn what_a_host_laid_out_anew_is_undone_by_meaning((host, pretty) in (host_text(), any::<bool>())) {
        let plan = installed(&host)?;
        let (Some(before), Some(now)) = (json(&host), json(&plan.text)) else { return Ok(()) };
        prop_assume!(!host.contains(r#""command": "a", "command""#));
        let now = if pretty { serde_json::to_string_pretty(&now).unwrap() } else { now.to_string() };
        let back = undo(&now, Some(&host));
        prop_assert_eq!(json(&back.text), Some(before), "{}", now);
        prop_assert!(matches!(back.originals, Originals::Remove | Originals::Needed(_)), "{:?}", back);
    }

    #[test]
    fn no_secret_is_shown(host in host_text()) {
        let plan = installed(&host)?;
        let shown = shown::diff(&host, &plan.text, "mcp.json");
        prop_assert!(!shown.contains("12345678"), "{}", shown);
        for line in shown.lines() {
            // But as a key, or as a path.
            let line = line.replace("\"s3cret\":", "").replace(ORIGINALS, "").replace("\"s3cret\" :", "");
            prop_assert!(!line.contains(SECRET) || line.contains("\"--config\""), "{}", shown);
        }
        prop_assert_eq!(shown.is_empty(), plan.text == host);
    }

    #[test]
    fn any_text_is_planned_or_refused(host in r#"[\[\]{},:/* "\\a1\n$]{0,60}"#, other in ".{0,20}") {
        for (host, originals) in [(&host, None), (&host, Some(other.as_str())), (&other, None)] {
            drop(plan::install(files(host, originals), &Choice::default(), &front()));
            drop(plan::undo(files(host, originals), &Choice::default()));
        }
    }
}
