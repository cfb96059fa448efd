//! `mcp-reconnect tools`.

use serde_json::{Value, json};

use super::Home;

fn home() -> Home {
    Home::new(&json!({ "a": "shell", "b": "shell", "off": { "command": "sh", "disabled": true } }))
}

#[test]
fn tools_are_listed_by_their_public_names() {
    let home = home();
    let done = home.run(&["tools"]);
    done.assert_ended(0, &[]);
    let lines: Vec<Vec<_>> = done.stdout.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines.len(), 12, "{done:?}");
    assert_eq!(lines[0], ["a", "a__say", "Says", "hello."], "the first line of the description");
    assert_eq!(lines[7], ["b", "b__fail"]);
}

#[test]
fn one_server_alone_is_asked() {
    let home = home();
    let done = home.run(&["tools", "b", "--json"]);
    done.assert_ended(0, &[]);
    let tools: Vec<Value> = done.stdout.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    assert_eq!(tools.len(), 6);
    assert_eq!((&tools[0]["server"], &tools[0]["name"]), (&"b".into(), &"b__say".into()));
    assert_eq!(tools[0]["tool"]["description"], "Says hello.\nAnd more.");
    assert!(!home.was_started("a"));
}

#[test]
fn servers_that_fail_are_told_beside_the_others() {
    let home = Home::new(&json!({ "a": "shell", "missing": { "command": "/nowhere/server" } }));
    let done = home.run(&["tools"]);
    done.assert_ended(3, &["error: missing: parked (permanent), permanent: command \"/nowhere/server\": No such file"]);
    assert_eq!(done.stdout.lines().count(), 6);
}

#[test]
fn bad_usage_is_2() {
    let home = home();
    home.run(&["tools", "c"]).assert_ended(2, &["no server `c`", "it has: a, b, off"]);
    home.run(&["tools", "off"]).assert_ended(2, &["server `off` is disabled"]);
    home.write("{");
    home.run(&["tools"]).assert_ended(2, &["error: ", "is no JSON"]);
}
