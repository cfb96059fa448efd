//! No fault of the server ends the host's session.

use mcp_reconnect_tests::fake::ReservedPort;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use tokio::process::Command;

use super::*;
use crate::support::process;

/// The server's last process.
fn last_pid(server: &FakeProcess) -> Pid {
    let pid = *server.ledger().unwrap().pids().last().expect("it was started");
    Pid::from_raw(pid.try_into().unwrap()).unwrap()
}

/// Killed again and again: calls that may be sent again are answered, and what is called between is.
#[tokio::test]
async fn killed() {
    let (home, server) = (Home::new(), process("spawn 1:\n call echo#2 kill"));
    let mut host = Host::of(&home, &[], &server);
    host.initialize().await;
    host.echo("before").await;
    host.echo("under it").await; // `echo` is annotated: it is sent again
    assert_eq!(server.ledger().unwrap().calls("echo"), 3);
    kill_process(last_pid(&server), Signal::KILL).unwrap();
    soon(server.watch().wait_until(|ledger| ledger.notifications("notifications/initialized") == 3)).await;
    assert_eq!(host.call("write", "after").await["result"]["content"][0]["text"], "after");
    assert_eq!(server.ledger().unwrap().executions("write"), 1);
    assert_eq!(host.told, Vec::<Value>::new(), "nothing has changed");
    assert_eq!(host.close().await, Some(0));
    nothing_is_left(&server);
}

#[tokio::test]
async fn back_with_other_tools() {
    let (home, server) = (Home::new(), process("call write exit 0\nspawn 2..:\n tools echo(readOnly), new"));
    let mut host = Host::of(&home, &[], &server);
    host.initialize().await;
    host.request("tools/list", json!({})).await;
    let answer = host.call("write", "x").await;
    assert_eq!(answer["error"]["data"]["outcome"], "unknown", "{answer}");
    host.until_told("notifications/tools/list_changed").await;
    let list = host.request("tools/list", json!({})).await;
    assert_eq!(list["result"]["tools"][1]["name"], "new", "{list}");
    assert_eq!(host.close().await, Some(0));
}

/// What may have run is sent again only if that is wanted.
#[tokio::test]
async fn replay() {
    for (replay, tool, runs) in [
        ("never", "echo", None),
        ("annotated", "write", None),
        ("annotated", "echo", Some(2)),
        ("always", "write", Some(2)),
    ] {
        let (home, server) = (Home::new(), process("spawn 1:\n call * commit, kill"));
        let mut host = Host::of(&home, &["--replay", replay], &server);
        host.initialize().await;
        let answer = host.call(tool, "x").await;
        match runs {
            Some(runs) => {
                assert_eq!(answer["result"]["content"][0]["text"], "x", "{replay}, {tool}: {answer}");
                assert_eq!(server.ledger().unwrap().executions(tool), runs, "{replay}, {tool}");
            }
            None => {
                assert_eq!(answer["error"]["code"], -32011, "{replay}, {tool}: {answer}");
                assert_eq!(answer["error"]["data"]["outcome"], "unknown", "{replay}, {tool}: {answer}");
                assert_eq!(server.ledger().unwrap().executions(tool), 1, "{replay}, {tool}");
            }
        }
        assert_eq!(host.close().await, Some(0));
    }
}

/// Asserts that a call was refused as not sent, in words that name the server and have this in them.
#[track_caller]
fn assert_not_sent(answer: &Value, class: &str, words: &str) {
    let error = &answer["error"];
    assert_eq!((&error["code"], &error["data"]["outcome"]), (&json!(-32010), &json!("not_sent")), "{answer}");
    assert_eq!(error["data"]["class"], class, "{answer}");
    assert!(error["message"].as_str().is_some_and(|message| message.contains(words)), "{answer}");
}

#[tokio::test]
async fn a_command_that_is_not_found() {
    let home = Home::new();
    let mut host = Host::start(&mut home.command(["proxy", "--", "/nowhere/server", "--flag"]));
    let greeting = host.initialize().await;
    assert_eq!(greeting["serverInfo"]["name"], "server");
    assert_eq!(greeting["capabilities"]["tools"]["listChanged"], true);
    for (method, member) in [("tools/list", "tools"), ("prompts/list", "prompts"), ("resources/list", "resources")] {
        let list = host.request(method, json!({})).await;
        assert_eq!(list["result"][member], json!([]), "{list}");
    }
    let answer = host.call("echo", "x").await;
    assert_not_sent(&answer, "permanent", "/nowhere/server");
    assert_eq!(host.request("ping", json!({})).await["result"], json!({}));
    assert_eq!(host.close().await, Some(0));
}

/// Down at the start, and there later: the host is told.
#[tokio::test]
async fn down_at_the_start() {
    let (home, server) = (Home::new(), process(""));
    let port = ReservedPort::new().unwrap();
    let address = port.address().unwrap();
    let url = format!("http://{address}/mcp");
    let options = ["proxy", "--url", &url, "--start-wait", "200ms", "--max-wait", "1s"];
    let mut host = Host::start(&mut home.command(options));
    host.initialize().await;
    assert_eq!(host.request("tools/list", json!({})).await["result"]["tools"], json!([]));
    assert_not_sent(&host.call("echo", "x").await, "transport", &address.to_string());

    let mut child = at(&server, address.port()).spawn().unwrap();
    host.until_told("notifications/tools/list_changed").await;
    assert_eq!(host.request("tools/list", json!({})).await["result"]["tools"][0]["name"], "echo");
    host.echo("there").await;

    assert_eq!(host.close().await, Some(0));
    soon(child.kill()).await.unwrap();
}

/// The server behind HTTP at this port.
fn at(server: &FakeProcess, port: u16) -> Command {
    let mut command = Command::new(server.program());
    command.args(server.http_args(port)).stdout(std::process::Stdio::null()).kill_on_drop(true);
    command
}

/// A restart forgets the session; the next call goes on the new one, whether it finds the old one gone or nobody there yet.
#[tokio::test]
async fn restarted_behind_http() {
    let (home, server) = (Home::new(), process(""));
    let port = ReservedPort::new().unwrap();
    let address = port.address().unwrap();
    let mut host = Host::start(&mut home.command(["proxy", "--url", &format!("http://{address}/mcp")]));
    let mut child = at(&server, address.port()).spawn().unwrap();
    host.initialize().await;
    for text in ["first", "second"] {
        assert_eq!(host.call("write", text).await["result"]["content"][0]["text"], text);
        soon(child.kill()).await.unwrap();
        child = at(&server, address.port()).spawn().unwrap();
    }
    assert_eq!(host.call("write", "third").await["result"]["content"][0]["text"], "third");
    assert_eq!(host.close().await, Some(0));
    soon(child.kill()).await.unwrap();
    assert_eq!(server.ledger().unwrap().executions("write"), 3);
}

/// Within `--max-wait` a call joins the rebuild; beyond it is told.
#[tokio::test]
async fn a_call_waits_for_a_server_that_comes_back() {
    let (home, server) = (Home::new(), process("call write kill\nspawn 2..3:\n start exit 9"));
    let mut host = Host::of(&home, &["--max-wait", "1m"], &server);
    host.initialize().await;
    host.call("write", "x").await;
    host.echo("joined").await;
    assert_eq!(server.ledger().unwrap().spawns(), 4);
    assert_eq!(host.close().await, Some(0));
}

/// The names, the knobs and the ladder of a config's server are its own.
#[tokio::test]
async fn a_server_of_a_config() {
    let (home, server) = (Home::new(), process(""));
    let args: Vec<_> = server.args().iter().map(|arg| arg.to_str().unwrap().to_owned()).collect();
    // What is wrong with another server is none of its business.
    let config = json!({ "mcpServers": { "mine": { "command": server.program(), "args": args }, "other": {} } });
    fs::write(home.path("mcp.json"), config.to_string()).unwrap();
    let mut host = Host::start(&mut home.command(["proxy", "--config", "mcp.json", "--server", "mine"]));
    host.initialize().await;
    host.echo("hello").await;
    assert_eq!(host.close().await, Some(0));
    nothing_is_left(&server);
    // What it said is kept for the next start, in which it is not there.
    server.set_script("start exit 9").unwrap();
    let options = ["proxy", "--config", "mcp.json", "--server", "mine", "--start-wait", "100ms"];
    let mut host = Host::start(&mut home.command(options));
    assert_eq!(host.initialize().await["serverInfo"]["name"], "fake");
    let list = host.request("tools/list", json!({})).await;
    assert_eq!(list["result"]["tools"][0]["name"], "echo", "{list}");
    assert_eq!(host.close().await, Some(0));
}
