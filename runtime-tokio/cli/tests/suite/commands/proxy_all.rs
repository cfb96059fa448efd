//! `mcp-reconnect proxy` over a config, as a host runs it.

use std::io::{BufRead as _, BufReader, Lines, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde_json::{Value, json};

use super::{Done, Home};

/// A front under way. Ends by force when it is dropped.
struct Proxy {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Lines<BufReader<ChildStdout>>,
    next: u64,
}

impl Proxy {
    fn start(home: &Home, args: &[&str]) -> Self {
        let mut command = home.command(&[&["proxy"], args].concat());
        command.args(["--log", "off"]).env("XDG_CACHE_HOME", home.dir.path().join("cache"));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        Self { stdin: child.stdin.take(), child, lines, next: 0 }
    }

    fn greeted(home: &Home, args: &[&str]) -> Self {
        let mut proxy = Self::start(home, args);
        let greeting = proxy.ask(
            "initialize",
            &json!({ "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": { "name": "h", "version": "1" } }),
        );
        assert!(greeting["result"]["capabilities"]["tools"].is_object(), "{greeting}");
        proxy
    }

    /// Asks, and reads up to the answer.
    fn ask(&mut self, method: &str, params: &Value) -> Value {
        self.next += 1;
        let request = json!({ "jsonrpc": "2.0", "id": self.next, "method": method, "params": params });
        writeln!(self.stdin.as_mut().expect("open"), "{request}").expect("it reads");
        for line in &mut self.lines {
            let message: Value = serde_json::from_str(&line.expect("UTF-8")).expect("JSON");
            if message["id"] == self.next && message["method"].is_null() {
                return message;
            }
        }
        panic!("the front has ended before the answer to {request}");
    }

    fn call(&mut self, tool: &str) -> Value {
        self.ask("tools/call", &json!({ "name": tool, "arguments": {} }))
    }

    fn tools(&mut self) -> Vec<String> {
        let list = self.ask("tools/list", &json!({}));
        let tools = list["result"]["tools"].as_array().expect("tools").iter();
        tools.map(|tool| tool["name"].as_str().expect("a name").to_owned()).collect()
    }

    /// Its exit status, when the host has said all and everything is read.
    fn leave(&mut self) -> Option<i32> {
        drop(self.stdin.take());
        self.end()
    }

    fn end(&mut self) -> Option<i32> {
        for line in &mut self.lines {
            line.expect("UTF-8");
        }
        self.child.wait().expect("a status").code()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // It has ended, unless the test fails.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn text(answer: &Value) -> &str {
    answer["result"]["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{answer}"))
}

#[test]
fn every_server_of_a_config_is_behind_one_front() {
    let home = Home::new(&json!({ "a": "shell", "b": "shell", "missing": { "command": "/nowhere/server" },
        "off": { "command": "sh", "disabled": true } }));
    let mut proxy = Proxy::greeted(&home, &["--all", "--control-tools"]);
    let tools = proxy.tools();
    assert_eq!((tools.len(), &*tools[0], &*tools[6]), (14, "a__say", "b__say"), "{tools:?}");
    assert_eq!(tools[12..], ["connection_status", "reconnect"]);
    assert_eq!(text(&proxy.call("b__say")), "hello");

    kill_process_group(home.groups("a")[0], Signal::KILL).expect("it runs");
    // Unless it was handed to the one that was dying.
    let first = proxy.call("a__say");
    assert!(first["error"]["data"]["outcome"] == "unknown" || text(&first) == "hello", "{first}");
    assert_eq!(text(&proxy.call("a__say")), "hello");
    assert_eq!((home.groups("a").len() > 1, home.groups("b").len()), (true, 1), "one restarts, the other goes on");
    let died = proxy.call("a__die");
    assert_eq!((&died["error"]["code"], &died["error"]["data"]["outcome"]), (&json!(-32_011), &json!("unknown")));
    assert_eq!(text(&proxy.call("b__say")), "hello");

    let status = proxy.call("connection_status");
    let servers = status["result"]["structuredContent"]["servers"].as_array().expect("servers");
    let names: Vec<_> = servers.iter().map(|server| server["name"].as_str().unwrap_or_default()).collect();
    assert_eq!(names, ["a", "b", "missing", "off"]);
    assert!(text(&status).contains("/nowhere/server"), "{status}");
    assert_eq!(proxy.leave(), Some(0));
    home.assert_clean();
    let kept = home.dir.path().join("cache/mcp-reconnect").read_dir().expect("a cache").count();
    assert_eq!(kept, 2, "one file for each server that was there");
}

#[test]
fn a_signal_ends_all() {
    let home = Home::new(&json!({ "a": "shell", "b": "shell" }));
    let mut proxy = Proxy::greeted(&home, &["--all", "--no-cache"]);
    assert_eq!(proxy.tools().len(), 12);
    kill_process(Pid::from_child(&proxy.child), Signal::TERM).expect("it runs");
    // Its stdin is still open.
    assert_eq!(proxy.end(), Some(143));
    home.assert_clean();
}

#[test]
fn a_config_says_which_tools_there_are_and_how_long_calls_take() {
    let home = Home::new(&json!({}));
    let mut server = home.servers(&json!({ "a": "shell" }));
    server["a"]["excludeTools"] = json!(["fail", "refuse"]);
    server["a"]["mcp-reconnect"] = json!({ "call_timeout": "1s" });
    home.write(&json!({ "mcpServers": server }).to_string());
    let mut proxy = Proxy::greeted(&home, &["--server", "a", "--no-cache"]);
    assert_eq!(proxy.tools(), ["say", "die", "hang", "picture"]);
    assert_eq!(proxy.call("fail")["error"]["code"], -32_602);
    assert_eq!(text(&proxy.call("say")), "hello");
    let hung = proxy.call("hang");
    assert_eq!(hung["error"]["data"]["outcome"], "unknown", "{hung}");
    assert_eq!(proxy.leave(), Some(0));
    home.assert_clean();
}

#[test]
fn what_cannot_be_served_is_told() {
    let home = Home::new(&json!({ "a": "shell", "off": { "command": "sh", "disabled": true } }));
    let run = |args: &[&str]| Done::of(&mut home.command(&[&["proxy"], args].concat()));
    run(&["--server", "c"]).assert_ended(2, &["no server `c`"]);
    for [flag, value] in [["--name", "x"], ["--cache", "x"], ["--record", "x"], ["--server", "a"]] {
        run(&["--all", flag, value]).assert_ended(2, &["cannot be used with"]);
    }
    home.write(r#"{ "mcpServers": { "off": { "command": "sh", "disabled": true } } }"#);
    run(&["--all"]).assert_ended(2, &["no server is enabled"]);
    assert!(!home.was_started("a"));
}

/// The host that starts this for one server wants it; whether it is disabled for others is nothing to it.
#[test]
fn a_named_server_serves_though_disabled_and_others_are_wrong() {
    let home = Home::new(&json!({}));
    let mut servers = home.servers(&json!({ "a": "shell" }));
    servers["a"]["disabled"] = json!(true);
    servers["b"] = json!({ "command": 7 });
    home.write(&json!({ "mcpServers": servers }).to_string());
    let mut proxy = Proxy::greeted(&home, &["--server", "a", "--no-cache"]);
    assert_eq!(text(&proxy.call("say")), "hello");
    assert_eq!(proxy.leave(), Some(0));
    home.assert_clean();
}
