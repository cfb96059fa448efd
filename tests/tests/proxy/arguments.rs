//! What is wrong is told before anything is started: the field, its value unless that may be a secret, and status 2.

use std::os::unix::net::UnixListener;

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
    let config = json!({ "mcpServers": { "one": { "command": "x" }, "two": { "url": "http://127.0.0.1:1/" } } });
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
        (&["--config", "mcp.json", "--", "x"], &["'--config <FILE>'", "--server <NAME>"]),
        (&["--replay", "sometimes", "--", "x"], &["'sometimes' for '--replay <REPLAY>'", "annotated"]),
        (&["--max-wait", "soon", "--", "x"], &["'soon' for '--max-wait <DURATION>'", "250ms"]),
        (&["--start-wait", "0", "--", "x"], &["'0' for '--start-wait <DURATION>'"]),
        (&["--hung-after", "-1s", "--", "x"], &["--hung-after"]),
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
