//! The language of the scripts.

use std::time::Duration;

use mcp_reconnect_tests::fake::{Script, Signal};

fn error(script: &str) -> String {
    Script::parse(script).expect_err("it should not parse").to_string()
}

#[test]
fn errors_name_line_token_and_what_fits() {
    let starts = [
        ("\n# fine\nserve:", "line 3: `serve:`: expected a heading (server:, spawn N:"),
        ("spawn 0:", "line 1: `0:`: expected a spawn such as 1:, 2..4: or 5..:"),
        ("spawn 3..2:", "line 1: `3..2:`: expected a spawn"),
        ("until soon:", "line 1: `soon:`: expected a time such as 60s:"),
        ("call", "line 1: `end of line`: expected a tool or *"),
        ("call a#0 ok", "line 1: `a#0`: expected a tool or *"),
        ("call a explode", "line 1: `explode`: expected an action (ok, reply"),
        ("call a ok ok", "line 1: `ok`: expected a comma and an action"),
        ("call a ok,", "line 1: `end of line`: expected an action"),
        ("call a delay 10", "line 1: `10`: expected a duration such as 500ms"),
        ("call a big 1KB", "line 1: `1KB`: expected a size such as"),
        ("call a exit 256", "line 1: `256`: expected an exit code from 0 to 255"),
        ("call a result \"x\"", "line 1: `\"x\"`: expected a JSON result in single quotes"),
        ("call a result '{'", "line 1: `'{'`: expected JSON (EOF"),
        ("call a error", "line 1: `end of line`: expected an error code, a text"),
        ("call a reply \"\\q\"", "line 1: `\\q`: expected one of \\n"),
        ("call a reply \"\\xff\"", "line 1: `\"\\xff\"`: expected text that is UTF-8"),
        ("call a reply \"x", "line 1: `end of line`: expected a closing \""),
        ("call a stop", "line 1: `stop`: expected an action other than stop"),
        ("call a version 1", "line 1: `version`: expected an action other than version"),
        ("after 1s reply \"x\"", "line 1: `reply`: expected an action other than reply, for there is no request"),
        ("on HUP never", "line 1: `never`: expected an action other than never"),
        ("on lunch exit 1", "line 1: `lunch`: expected initialized, cancelled, EOF"),
        ("tools a(readonly)", "line 1: `readonly`: expected one of [readOnly,"),
        ("tools a b", "line 1: `b`: expected the end of the line"),
        ("capabilities tool", "line 1: `tool`: expected one of tools, prompts"),
        ("paging 0", "line 1: `0`: expected a number of pages from 1"),
        ("ignore eof", "line 1: `eof`: expected EOF or TERM"),
        ("era new", "line 1: `new`: expected legacy, modern or both"),
        ("sessions some", "line 1: `some`: expected none or required"),
        ("answers xml", "line 1: `xml`: expected json or sse"),
        ("require-header A b -> 400", "line 1: `A`: expected a header's name in lower case"),
        ("require-header a b 400", "line 1: `400`: expected ->"),
        ("token", "line 1: `end of line`: expected a token"),
        ("token a until soon", "line 1: `soon`: expected a duration"),
        ("respawn", "line 1: `end of line`: expected a duration"),
        ("stale", "line 1: `end of line`: expected an action"),
        ("stale#0 ok", "line 1: `stale#0`: expected a heading"),
        ("post status 99", "line 1: `99`: expected a status from 200 to 599"),
        ("post status 200 '{'", "line 1: `'{'`: expected JSON"),
        ("post status 429 header retry-after", "line 1: `end of line`: expected a header's value"),
        ("post header a \"b\\r\\nc\"", "line 1: `\"b\\r\\nc\"`: expected a text of one line"),
        ("post cut after", "line 1: `end of line`: expected a size"),
        ("after 1s reset", "line 1: `reset`: expected an action other than reset, for there is no request"),
        ("after 1s header a b", "line 1: `header`: expected an action other than header"),
    ];
    for (script, start) in starts {
        let error = error(script);
        assert!(error.starts_with(start), "{script:?} gave {error:?}");
    }
}

/// The plan of the first spawn is what a script means.
fn meaning(script: &str) -> impl PartialEq + std::fmt::Debug {
    Script::parse(script).unwrap_or_else(|error| panic!("{error}")).plan(1, Duration::ZERO)
}

#[test]
fn spelling_does_not_matter() {
    let same = [
        ("ping ok", "server:\n\n  ping ok # comment"),
        ("call a#2 ok", "call a#2..2 ok"),
        ("call a reply", "call a ok"),
        ("list never", "tools/list never"),
        ("discover never", "server/discover never"),
        ("call a delay 60s, ok", "call a delay 1m; ok"),
        ("call a delay 1h", "call a delay 3600000ms"),
        ("call a big 1024", "call a big 1KiB"),
        ("call a big 1MiB-1", "call a big 1048575"),
        ("on initialized deaf", "on notifications/initialized deaf"),
        ("call a notify tools/list_changed", "call a notify notifications/tools/list_changed x1 every 0s"),
        ("call a stdout \"A\"", "call a stdout \"\\x41\""),
        ("post retry-after 7, ok", "post header retry-after \"7\", ok"),
        ("sessions required\nanswers sse", ""),
        ("post status 400 \"\"", "post status 400"),
        ("get#2 cut", "get#2..2 cut"),
    ];
    for (one, other) in same {
        assert_eq!(meaning(one), meaning(other), "{one:?} and {other:?}");
    }
    let different = [("call a ok", "call b ok"), ("call a#1 ok", "call a ok"), ("tools a", "tools a(idempotent)")];
    let http =
        [("post cut", "post cut after 0"), ("answers json", ""), ("stale ok", "stale-get ok"), ("token a", "token b")];
    let different = different.into_iter().chain(http);
    for (one, other) in different {
        assert_ne!(meaning(one), meaning(other), "{one:?} and {other:?}");
    }
}

#[test]
fn sections_apply_by_number_and_by_time() {
    let script = Script::parse("spawn 2..3:\nserial\nuntil 5s:\ntools a\nfrom 5s:\ntools b").expect("a script");
    let plain = Script::parse("tools a").expect("a script").plan(1, Duration::ZERO);
    let serial = Script::parse("tools a\nserial").expect("a script").plan(1, Duration::ZERO);
    let late = Script::parse("tools b").expect("a script").plan(1, Duration::ZERO);
    let millis = Duration::from_millis;
    assert_eq!(script.plan(1, millis(0)), plain.clone());
    assert_eq!(script.plan(2, millis(4_999)), serial.clone());
    assert_eq!(script.plan(3, millis(0)), serial);
    assert_eq!(script.plan(4, millis(5_000)), late.clone());
    let until = Script::parse("tools b\nuntil 5s:\ntools a").expect("a script");
    assert_eq!((until.plan(1, millis(4_999)), until.plan(1, millis(5_000))), (plain, late));
    assert_eq!(Script::parse("on USR1 deaf\nignore TERM").expect("a script").signals().len(), 2);
    assert!(Script::parse("on USR1 deaf").expect("a script").signals().contains(&Signal::Usr1));
}

/// Every line and action that the documentation shows is one; every one that there is, it shows.
#[test]
fn the_documentation_is_the_grammar() {
    let documentation = include_str!("../../src/fake/mod.rs");
    let (mut chapter, mut shown) = ("", String::new());
    for line in documentation.lines() {
        if let Some(title) = line.strip_prefix("//! ## ") {
            chapter = title;
        }
        let Some((example, _)) = line.strip_prefix("//! | `").and_then(|row| row.split_once("` |")) else { continue };
        let script = match (chapter, example) {
            ("Headings" | "Settings" | "Requests" | "Events", _) => example.to_owned(),
            ("Settings of HTTP" | "Requests of HTTP", _) => example.to_owned(),
            (_, "stop") => format!("on cancelled {example}"),
            (_, action) if action.starts_with("version ") => format!("initialize {action}"),
            (_, action) => format!("call a {action}"),
        };
        if let Err(error) = Script::parse(&script) {
            panic!("{chapter}: {error}");
        }
        shown.push_str(example.split([' ', '#']).next().unwrap_or_default());
        shown.push('\n');
    }
    // The parser's own lists, as its errors print them.
    for error in [error("?"), error("call a ?")] {
        let (_, names) = error.split_once("expected").expect("an error");
        let names = names.split(['(', ')', ',', ':']).map(str::trim).filter(|name| !name.contains(' '));
        for name in names.filter(|name| !name.is_empty()) {
            assert!(shown.lines().any(|line| line.trim_end_matches(':') == name), "{name} is not in the documentation");
        }
    }
}
