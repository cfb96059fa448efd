//! `mcp-reconnect call`.

use serde_json::{Value, json};

use super::Home;

fn home() -> Home {
    Home::new(&json!({
        "shell": "shell",
        "other": "shell",
        "off": { "command": "sh", "disabled": true },
        "missing": { "command": "/nowhere/server" },
    }))
}

#[test]
fn text_is_printed_as_it_is() {
    let home = home();
    let done = home.run(&["call", "shell", "say"]);
    done.assert_ended(0, &[]);
    assert_eq!(done.stdout, "hello\n");
    assert!(home.was_started("shell") && !home.was_started("other"), "only the server that is meant is started");
}

#[test]
fn all_else_is_printed_as_json() {
    let home = home();
    for args in [&["call", "shell", "picture", "{}"][..], &["call", "--json", "shell", "picture"]] {
        let done = home.run(args);
        done.assert_ended(0, &[]);
        let result: Value = serde_json::from_str(&done.stdout).expect(&done.stdout);
        assert_eq!(result["content"][0]["mimeType"], "image/png");
    }
    let done = home.run(&["call", "shell", "say", "--json"]);
    let result: Value = serde_json::from_str(&done.stdout).expect(&done.stdout);
    assert_eq!(result["content"], json!([{ "type": "text", "text": "hello" }]));
}

#[test]
fn what_the_tool_or_its_server_refuses_is_1() {
    let home = home();
    let failed = home.run(&["call", "shell", "fail"]);
    failed.assert_ended(1, &["error: the tool failed: it broke"]);
    assert_eq!(failed.stdout, "", "no result");
    let json = home.run(&["call", "shell", "fail", "--json"]);
    json.assert_ended(1, &[]);
    assert_eq!(serde_json::from_str::<Value>(&json.stdout).expect(&json.stdout)["isError"], true);
    home.run(&["call", "shell", "refuse"]).assert_ended(1, &["the server answered with error -32000: not today"]);
}

#[test]
fn bad_usage_is_2() {
    let home = home();
    for (args, told) in [
        (&["call", "shel", "say"][..], &["no server `shel`", "it has: missing, off, other, shell"][..]),
        (&["call", "off", "say"], &["server `off` is disabled"]),
        (&["call", "shell", "sya"], &["offers no tool `sya`, only: say, fail, refuse, die, hang, picture"]),
        (&["call", "shell", "say", "{ \"a\" 1 }"], &["the arguments are no JSON", "line 1 column 7"]),
        (&["call", "shell", "say", "[]"], &["no JSON object but an array"]),
        (&["call", "shell", "say", "--timeout", "soon"], &["'soon' for '--timeout <DURATION>'"]),
        (&["call", "shell"], &["<TOOL>"]),
    ] {
        let done = home.run(args);
        done.assert_ended(2, told);
        assert_eq!(done.stdout, "");
    }
}

#[test]
fn a_tool_that_is_filtered_out_is_not_called() {
    let home = Home::new(&json!({}));
    let mut servers = home.servers(&json!({ "shell": "shell" }));
    servers["shell"]["disabledTools"] = json!(["say"]);
    home.write(&json!({ "mcpServers": servers }).to_string());
    home.run(&["call", "shell", "say"]).assert_ended(2, &["the tool `say` is filtered out"]);
    assert!(!home.was_started("shell"));
    let unknown = home.run(&["call", "shell", "sya"]);
    unknown.assert_ended(2, &["only: fail, refuse, die, hang, picture"]);
}

#[test]
fn no_session_or_no_outcome_is_3_and_told_apart() {
    let home = home();
    let missing = ["no session: the server is parked (permanent)", "No such file or directory"];
    home.run(&["call", "missing", "say"]).assert_ended(3, &missing);
    let died = ["the call may have run, its outcome is unknown: exited with status 3"];
    home.run(&["call", "shell", "die"]).assert_ended(3, &died);
    let late = ["no answer by the deadline: the call may have run"];
    home.run(&["call", "shell", "hang", "--timeout", "2s"]).assert_ended(3, &late);
}
