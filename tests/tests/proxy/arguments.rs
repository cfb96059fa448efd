//! What is wrong is told before anything is started: the field, its value unless that may be a secret, and status 2.

use std::collections::BTreeSet;
use std::os::unix::net::UnixListener;

use mcp_reconnect::config::{Endpoint, FleetConfig};
use serde_json::json;

use super::*;

/// Asserts that it ends at once, with all of this on stderr and nothing on stdout.
async fn assert_wrong(home: &Home, args: &[&str], told: &[&str]) {
    let output = home.run(std::iter::once(&"proxy").chain(args)).await;
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{args:?}: {stderr}");
    assert_eq!(output.stdout, b"", "{args:?}");
    for told in told {
        assert!(stderr.contains(told), "{args:?}: {told}: {stderr}");
    }
    assert!(!stderr.contains("hunter2"), "{args:?}: {stderr}");
}

#[tokio::test]
async fn arguments_that_are_wrong() {
    let home = Home::new();
    let config = json!({ "mcpServers": { "one": { "command": "x" }, "two": { "url": "http://127.0.0.1:1/" },
        "neither": {} } });
    fs::write(home.path("mcp.json"), config.to_string()).unwrap();
    fs::write(home.path("broken.json"), "{").unwrap();
    let url = "http://127.0.0.1:1/";
    for (args, told) in [
        (&[][..], &["--url <URL>", "--server <NAME>", "COMMAND"][..]),
        (&["--url", url, "--", "x"], &["--url <URL>", "[COMMAND]..."]),
        (&["--url", url, "--server", "one"], &["--url <URL>", "--server <NAME>"]),
        (&["--url", "localhost:3000/mcp?key=hunter2"], &["'localhost:3000' for '--url <URL>'", "http"]),
        (&["--url", "ftp://u:hunter2@example.com/"], &["'ftp://example.com' for '--url <URL>'", "no http or https"]),
        (&["--header", "A: hunter2", "--", "x"], &["--url <URL>"]),
        (&["--url", url, "--header", "hunter2"], &["'--header <HEADER>', number 1", "Name: value"]),
        (&["--url", url, "--header", "A: 1", "--header", "B: hunter2 ${NOT_SET}"], &["number 2", "${NOT_SET}"]),
        (
            &["--url", url, "--header", "Mcp-Session-Id: hunter2"],
            &["number 1", "`mcp-session-id` belongs to the protocol"],
        ),
        (&["--url", url, "--header", "A B: hunter2"], &["number 1", "`A B`"]),
        (&["--url", url, "--header", "A: 1", "--header", "A: hunter2"], &["number 2", "`A` is given twice"]),
        (&["--config", "mcp.json", "--server", "three"], &["mcp.json", "`three`", "one, two"]),
        (&["--config", "nowhere.json", "--server", "one"], &["nowhere.json"]),
        (&["--config", "broken.json", "--server", "one"], &["broken.json"]),
        (&["--config", "mcp.json", "--server", "neither"], &["mcp.json", "neither", "command"]),
        (&["--config", "mcp.json", "--", "x"], &["'--config <FILE>'", "--server <NAME>"]),
        (&["--replay", "sometimes", "--", "x"], &["'sometimes' for '--replay <REPLAY>'", "annotated"]),
        (&["--max-wait", "soon", "--", "x"], &["'soon' for '--max-wait <DURATION>'", "250ms"]),
        (&["--start-wait", "0", "--", "x"], &["'0' for '--start-wait <DURATION>'"]),
        (&["--hung-after", "31d", "--", "x"], &["'31d' for '--hung-after <DURATION>'"]),
        (&["--record", "nowhere/trace", "--", "x"], &["'nowhere/trace' for '--record <FILE>'", "No such file"]),
        (&["--log-file", "nowhere/log", "--", "x"], &["'nowhere/log' for '--log-file'", "No such file"]),
        (&["--cache", "mcp.json/x", "--", "x"], &["'mcp.json/x' for '--cache <FILE>'"]),
        (&["--cache", ".", "--", "x"], &["'.' for '--cache <FILE>'", "directory"]),
        (&["--cache", "x", "--no-cache", "--", "x"], &["--cache <FILE>", "--no-cache"]),
        (&["--status-socket", "nowhere/s", "--", "x"], &["'nowhere/s' for '--status-socket <PATH>'", "No such file"]),
        (&["--status-socket", "mcp.json", "--", "x"], &["'mcp.json' for '--status-socket <PATH>'", "no socket"]),
        (&["--log", "mcp_reconnect=loud", "--", "x"], &["'mcp_reconnect=loud' for '--log <FILTER>'"]),
    ] {
        assert_wrong(&home, args, told).await;
    }
    let long = "s".repeat(200);
    assert_wrong(&home, &["--status-socket", &long, "--", "x"], &[&long, "--status-socket <PATH>"]).await;
}

#[tokio::test]
async fn a_socket_of_somebody_else_is_left_alone() {
    let home = Home::new();
    let theirs = UnixListener::bind(home.path("s")).unwrap();
    assert_wrong(&home, &["--status-socket", "s", "--", "x"], &["'s' for '--status-socket <PATH>'", "another process"])
        .await;
    assert!(home.path("s").exists());
    drop(theirs);
}

const DOCS: &str = include_str!("../../../runtime-tokio/cli/docs/proxy.md");

/// Every option that a text names.
fn options(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '-');
    words.filter(|word| word.starts_with("--") && !word.starts_with("---")).collect()
}

#[tokio::test]
async fn the_docs_know_every_option() {
    let help = Home::new().run(["proxy", "--help"]).await;
    let help = String::from_utf8(help.stdout).unwrap();
    // `install` and `status` have options of their own.
    let (docs, _) = DOCS.split_once("## `mcp-reconnect status`").unwrap();
    let (_, docs) = docs.split_once("## Options").unwrap();
    assert_eq!(options(docs), options(&help));
}

/// Each config in the docs is one that hosts and we read, and what it starts is a front.
#[tokio::test]
async fn the_examples_of_the_docs_serve() {
    let home = Home::new();
    let config = json!({ "mcpServers": { "search": { "url": "http://127.0.0.1:1/" } } });
    fs::write(home.path("ours.json"), config.to_string()).unwrap();
    let mut fronts = 0;
    for example in DOCS.split("```json\n").skip(1) {
        let (example, _) = example.split_once("```").unwrap();
        // The host's own program is there; what it is given is for the front to read.
        let example = example.replace("${SEARCH_TOKEN}", "$${SEARCH_TOKEN}");
        let example = example.replace("/home/me/mcp-reconnect.json", home.path("ours.json").to_str().unwrap());
        fs::write(home.path("host.json"), &example).unwrap();
        let parsed = FleetConfig::load(home.path("host.json")).unwrap_or_else(|error| panic!("{error:?}: {example}"));
        for server in parsed.config.servers.values() {
            let Endpoint::Stdio(server) = &server.endpoint else { panic!("{example}") };
            if server.program != "mcp-reconnect" {
                continue;
            }
            fronts += 1;
            let mut command = home.command(&server.args);
            command.stdin(Stdio::null()).env("SEARCH_TOKEN", "x");
            let output = soon(command.output()).await.unwrap();
            assert_eq!((output.status.code(), output.stdout), (Some(0), vec![]), "{example}: {}", home.stderr());
        }
    }
    assert_eq!(fronts, 6);
}
