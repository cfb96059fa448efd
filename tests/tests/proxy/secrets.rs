//! What is secret is in no log, however much is logged, and in nothing else that a front writes.

use super::*;
use crate::support::process;
use mcp_reconnect_tests::fake::FakeHttp;

const SECRET: &str = "hunter2hunter2";

/// Asserts that nothing below this folder holds it.
fn assert_silent(home: &Home) {
    let mut folders = vec![home.0.path().to_owned()];
    let mut files = 0;
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.is_file() {
                files += 1;
                let text = String::from_utf8_lossy(&fs::read(&path).unwrap()).into_owned();
                let shown = text.lines().find(|line| line.contains(SECRET));
                assert_eq!(shown, None, "{}", path.display());
            }
        }
    }
    assert!(files >= 3, "a log, a trace and a cache");
}

#[tokio::test]
async fn of_a_server_behind_http() {
    let server = FakeHttp::start("").await.unwrap();
    let refused = format!("http://127.0.0.1:1/mcp?key={SECRET}");
    for (url, there) in [(server.url(), true), (refused, false)] {
        let home = Home::new();
        let url = url.replace("http://", &format!("http://user:{SECRET}@"));
        let headers = ["--header", "Authorization: Bearer ${TOKEN}", "--header", &format!("X-Api-Key: {SECRET}")];
        let options = ["--log", "trace", "--record", "trace.jsonl", "--cache", "cache.json", "--status-socket", "s"];
        let mut command = home.command(["proxy", "--url", &url, "--start-wait", "1s", "--max-wait", "1s"]);
        let mut host = Host::start(command.args(headers).args(options).env("TOKEN", SECRET));
        host.initialize().await;
        let answer = host.call("echo", "x").await;
        assert_eq!(answer["result"].is_object(), there, "{answer}");
        assert!(!answer.to_string().contains(SECRET), "{answer}");
        let status = home.run(["status", "--json", "s"]).await;
        let status = String::from_utf8(status.stdout).unwrap();
        assert!(status.contains(r#""epoch""#) || !there, "{status}");
        assert!(!status.contains(SECRET), "{status}");
        assert_eq!(host.close().await, Some(0));
        assert!(home.stderr().contains(" INFO ") || home.stderr().contains(" DEBUG "), "it logs: {}", home.stderr());
        if !there {
            fs::write(home.path("cache.json"), "").unwrap(); // there was nothing to keep
        }
        assert_silent(&home);
    }
    // The server got them.
    let seen = format!("{:?}", server.ledger().entries());
    assert!(seen.contains("Http"), "{seen}");
}

#[tokio::test]
async fn of_a_command() {
    let (home, server) = (Home::new(), process("call write exit 3"));
    let options = ["--log", "trace", "--record", "trace.jsonl", "--cache", "cache.json"];
    // What a shell is given after its script is nobody's business.
    let mut command = home.command(["proxy"]);
    command.args(options).args(["--", "sh", "-c", r#"shift; exec "$@""#, "sh", SECRET]);
    let mut host = Host::start(command.arg(server.program()).args(server.args()).env("TOKEN", SECRET));
    host.initialize().await;
    host.echo("x").await;
    let answer = host.call("write", SECRET).await; // what tools are given is not logged either
    assert!(!answer.to_string().contains(SECRET), "{answer}");
    assert_eq!(host.close().await, Some(0));
    assert_silent(&home);
    nothing_is_left(&server);
}
