//! Plans for hosts' files: those that people write are here, all others in `properties`.

mod properties;

use std::collections::BTreeSet;

use super::document::Document;
use super::entry::{self, Front, Route};
use super::plan::{self, Choice, Files, Originals, Outcome, Plan, Refusal};

const ORIGINALS: &str = "/h/mcp.json.mcp-reconnect-backup.json";

fn front() -> Front {
    Front { program: "/opt/bin/mcp-reconnect".into(), originals: Some(ORIGINALS.into()) }
}

fn files<'a>(host: &'a str, originals: Option<&'a str>) -> Files<'a> {
    Files { source: "mcp.json", host, originals, originals_path: ORIGINALS }
}

fn install(host: &str, originals: Option<&str>) -> Plan {
    plan::install(files(host, originals), &Choice::default(), &front()).unwrap()
}

fn undo(host: &str, originals: Option<&str>) -> Plan {
    plan::undo(files(host, originals), &Choice::default()).unwrap()
}

fn only(names: &[&str]) -> Choice {
    Choice { only: names.iter().map(|&name| name.into()).collect(), except: BTreeSet::new() }
}

fn unmarked(text: &str) -> &str {
    text.trim_start_matches('\u{feff}')
}

fn json(text: &str) -> Option<serde_json::Value> {
    serde_json::from_str(unmarked(text)).ok()
}

/// A file with one server of each kind, as people write it.
const HOST: &str = r#"{
  // what I use
  "mcpServers": {
    "files": {
      "command": "npx",
      "args": [
        "-y", // yes
        "server"
      ],
      "env": { "TOKEN": "t" }
    },
    "bare": { "command": "server" },
    "search": {
      // team B's
      "type": "http",
      "url": "https://example.com/mcp",
      "headers": {
        "Authorization": "Bearer t"
      }, // secret
      "disabled": false
    },
    "last": { "disabled": true, "url": "https://example.com/mcp", "headers": {} }
  }
}
"#;

#[test]
fn what_is_installed_looks_as_a_person_would_have_written_it() {
    let expected = r#"{
  // what I use
  "mcpServers": {
    "files": {
      "command": "/opt/bin/mcp-reconnect",
      "args": [
        "proxy",
        "--name",
        "files",
        "--",
        "npx",
        "-y", // yes
        "server"
      ],
      "env": { "TOKEN": "t" }
    },
    "bare": { "command": "/opt/bin/mcp-reconnect", "args": ["proxy", "--name", "bare", "--", "server"] },
    "search": {
      // team B's
      "command": "/opt/bin/mcp-reconnect",
      "args": ["proxy", "--config", "/h/mcp.json.mcp-reconnect-backup.json", "--server", "search"],
      // secret
      "disabled": false
    },
    "last": { "disabled": true, "command": "/opt/bin/mcp-reconnect", "args": ["proxy", "--config", "/h/mcp.json.mcp-reconnect-backup.json", "--server", "last"] }
  }
}
"#;
    assert_eq!(install(HOST, None).text, expected);
    assert_eq!(install(&HOST.replace('\n', "\r\n"), None).text, expected.replace('\n', "\r\n"));
}

#[test]
fn opencode_has_its_own_way_of_writing_commands() {
    let host = r#"{ "mcp": {
  "a": { "type": "local", "command": ["npx", "-y"], "environment": { "A": "b" } },
  "b": { "type": "remote", "url": "https://h/", "enabled": true, "headers": { "A": "b" } }
} }"#;
    let expected = r#"{ "mcp": {
  "a": { "type": "local", "command": ["/opt/bin/mcp-reconnect", "proxy", "--name", "a", "--", "npx", "-y"], "environment": { "A": "b" } },
  "b": { "type": "local", "command": ["/opt/bin/mcp-reconnect", "proxy", "--config", "/h/mcp.json.mcp-reconnect-backup.json", "--server", "b"], "enabled": true }
} }"#;
    let plan = install(host, None);
    assert_eq!(plan.text, expected);
    assert_eq!(undo(&plan.text, Some(host)).text, host);
    // With a change made since.
    let edited = expected.replace("\"enabled\": true", "\"enabled\": false");
    assert_eq!(json(&undo(&edited, Some(host)).text), json(&host.replace("\"enabled\": true", "\"enabled\": false")));
}

/// Undo keeps later changes, and removes only what the command put there.
#[test]
fn what_was_changed_since_stays() {
    let now = install(HOST, None).text;
    let edited = now
        .replace("\"TOKEN\": \"t\"", "\"TOKEN\": \"new\"")
        .replace("\"server\"\n", "\"server\", \"--more\"\n")
        .replace("\"bare\", \"--\", \"server\"]", "\"bare\", \"--\", \"other server\"]")
        .replace("\"disabled\": false", "\"disabled\": true")
        .replace("\"mcpServers\": {", "\"mcpServers\": {\n    \"new\": { \"command\": \"x\" },");
    let expected = HOST
        .replace("\"TOKEN\": \"t\"", "\"TOKEN\": \"new\"")
        .replace("\"server\"\n", "\"server\", \"--more\"\n")
        .replace("\"bare\": { \"command\": \"server\"", "\"bare\": { \"command\": \"other server\"")
        .replace("\"disabled\": false", "\"disabled\": true")
        .replace("\"mcpServers\": {", "\"mcpServers\": {\n    \"new\": { \"command\": \"x\" },");
    let back = undo(&edited, Some(HOST));
    assert_eq!(members_of(&back.text), members_of(&expected));
    assert_eq!(back.originals, Originals::Remove);
    for comment in ["// what I use", "// yes", "// team B's", "// secret"] {
        assert!(back.text.contains(comment), "{}", back.text);
    }
}

fn members_of(text: &str) -> Vec<String> {
    // Members of one server may have changed places.
    let doc = Document::parse(text).unwrap();
    let mut servers = Vec::new();
    for entry in doc.entries() {
        for member in &entry.object().unwrap().properties {
            let words = doc.words(member.range.start..member.range.end).concat();
            servers.push(format!("{} {words}", entry.name));
        }
    }
    servers.sort_unstable();
    servers
}

/// Later originals are kept beside the earlier ones, and none is lost.
#[test]
fn a_server_that_came_later_joins_the_originals() {
    let first = install(HOST, None);
    let added = first.text.replace(
        "\"mcpServers\": {",
        "\"mcpServers\": {\n    \"later\": { \"url\": \"https://h/\", \"headers\": { \"A\": \"b\" } },",
    );
    let second = install(&added, Some(HOST));
    let outcomes: Vec<_> = second.servers.iter().map(|(name, outcome)| (name.as_str(), outcome.clone())).collect();
    assert_eq!(outcomes[0], ("later", Outcome::Done));
    assert!(outcomes[1..].iter().all(|(_, outcome)| *outcome == Outcome::Already), "{outcomes:?}");
    let expected = HOST.replace(
        "\"mcpServers\": {",
        "\"mcpServers\": {\n    \"later\": { \"url\": \"https://h/\", \"headers\": { \"A\": \"b\" } },",
    );
    assert_eq!(second.originals, Originals::Write { text: expected.clone(), keep: false });
    assert_eq!(undo(&second.text, Some(&expected)).text, expected);
}

#[test]
fn originals_that_the_file_no_longer_has_are_kept() {
    let first = install(HOST, None).text;
    let start = first.find("    \"search\"").unwrap();
    let end = first.find("    \"last\"").unwrap();
    let without = format!("{}{}", &first[..start], &first[end..]);
    let added = without.replace("\"mcpServers\": {", "\"mcpServers\": {\n    \"later\": { \"command\": \"x\" },");
    let Originals::Write { text, keep } = install(&added, Some(HOST)).originals else { panic!("not written") };
    assert!(keep && !text.contains("Authorization"));
    assert_eq!(undo(&without, Some(HOST)).originals, Originals::Needed(vec!["search".into()]));
}

/// A server under another name is still found, and its reference is never left without its original.
#[test]
fn a_server_may_get_another_name() {
    let renamed = install(HOST, None).text.replace("    \"search\": {", "    \"find\": {");
    let back = undo(&renamed, Some(HOST));
    assert_eq!(back.text, HOST.replace("    \"search\": {", "    \"find\": {"));
    assert_eq!(back.originals, Originals::Needed(vec!["search".into()]));

    let added = renamed.replace("\"mcpServers\": {", "\"mcpServers\": {\n    \"later\": { \"command\": \"x\" },");
    let second = install(&added, Some(HOST));
    let doc = Document::parse(&second.text).unwrap();
    let route = Route::of(doc.entry("find").unwrap());
    assert_eq!(route, Some(Route::Config { file: ORIGINALS, name: "find" }));
    let Originals::Write { text, .. } = &second.originals else { panic!("not written") };
    assert!(Document::parse(text).unwrap().entry("find").is_some_and(entry::is_http));
}

#[test]
fn what_cannot_go_through_the_front_is_left_with_its_reason() {
    let host = r#"{ "servers": {
  "sse": { "type": "sse", "url": "https://h/sse" },
  "input": { "url": "https://h/", "headers": { "A": "${input:token}" } },
  "filled in": { "command": "x", "args": ["${workspaceFolder}", "${input:token}"] },
  "wrong": { "command": 1 },
  "twice": { "command": "a" },
  "twice": { "command": "b" },
  "login": { "url": "https://h/", "oauth": { "clientId": "x" } },
  "-x": { "command": "a" },
  "mine": { "command": "mcp-reconnect", "args": ["--log", "debug", "proxy", "--url", "https://h/"] }
} }"#;
    let plan = install(host, None);
    let left = |name: &str| match &plan.servers.iter().find(|(server, _)| server == name).unwrap().1 {
        Outcome::Left(why) => why.clone(),
        other => format!("{other:?}"),
    };
    for (name, why) in [
        ("sse", "the transport `sse`"),
        ("input", "`headers.A`: `${input:token}` is asked for by the editor"),
        ("filled in", "Done"),
        ("wrong", "`command`: is a number"),
        ("twice", "is there twice"),
        ("login", "its login (`oauth`) is the host's"),
        ("-x", "its name would be read as something else"),
        ("mine", "Already"),
    ] {
        assert!(left(name).contains(why), "{name}: {}", left(name));
    }
    let forced = plan::install(files(host, None), &only(&["login"]), &front()).unwrap();
    assert_eq!(forced.servers, [("login".to_owned(), Outcome::Done)]);
    assert!(!forced.text.contains("oauth"));
}

#[test]
fn a_choice_is_kept_to() {
    let except = Choice { only: BTreeSet::new(), except: ["files".to_owned(), "last".to_owned()].into() };
    let plan = plan::install(files(HOST, None), &except, &front()).unwrap();
    let names: Vec<_> = plan.servers.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["bare", "search"]);

    // Undone one by one; the originals stay as long as they are needed.
    let one = plan::undo(files(&plan.text, Some(HOST)), &only(&["bare"])).unwrap();
    assert_eq!(one.originals, Originals::Stay);
    let two = plan::undo(files(&one.text, Some(HOST)), &only(&["search"])).unwrap();
    assert_eq!((two.text.as_str(), two.originals), (HOST, Originals::Remove));
    let unknown = plan::install(files(HOST, None), &only(&["away"]), &front());
    assert!(matches!(unknown, Err(Refusal::Words(why)) if why.starts_with("no server `away`; it has: files, bare")));
}

/// Without its originals, a command is still known by its words; a URL is not.
#[test]
fn without_originals_only_what_is_known_is_undone() {
    let back = undo(&install(HOST, None).text, None);
    let left: Vec<_> = back.servers.iter().filter(|(_, outcome)| *outcome != Outcome::Done).collect();
    assert!(
        matches!(&left[..], [(a, Outcome::Left(why)), (b, _)]
            if a == "search" && b == "last" && why == &format!("its original is not in {ORIGINALS}")),
        "{left:?}"
    );
    assert!(back.text.contains(r#"{ "command": "server", "args": [] }"#), "{}", back.text);
}
