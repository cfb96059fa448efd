//! `--status-socket` and `mcp-reconnect status`.

use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::os::unix::net::{UnixListener, UnixStream};

use rustix::process::Signal;
use serde_json::json;

use super::*;
use crate::support::process;

impl Home {
    /// The exit status, stdout as JSON lines, and stderr.
    async fn status(&self, args: &[&str]) -> (Option<i32>, Vec<Value>, String) {
        let output = self.run(["status", "--json"].iter().chain(args)).await;
        let lines = String::from_utf8(output.stdout).unwrap();
        let lines = lines.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
        (output.status.code(), lines, String::from_utf8(output.stderr).unwrap())
    }

    /// The one front at this socket.
    async fn status_of(&self, socket: &str) -> Value {
        let (status, mut lines, stderr) = self.status(&[socket]).await;
        assert_eq!((status, lines.len()), (Some(0), 1), "{stderr}");
        lines.remove(0)
    }

    /// The sockets with names of their own.
    fn sockets(&self) -> Vec<String> {
        let Ok(files) = fs::read_dir(self.path("run/mcp-reconnect")) else { return Vec::new() };
        files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect()
    }
}

/// Waits until a front with a socket serves.
async fn pinged(host: &mut Host) {
    assert_eq!(host.request("ping", json!({})).await["result"], json!({}));
}

#[tokio::test]
async fn how_a_front_stands() {
    let (home, server) = (Home::new(), process("call write never\ncall echo request roots wait, ok"));
    let mut host = Host::of(&home, &["--status-socket", "s", "--name", "mine"], &server);
    pinged(&mut host).await;
    let file = fs::metadata(home.path("s")).unwrap();
    assert!(file.file_type().is_socket() && file.mode() & 0o777 == 0o600, "{:o}", file.mode());
    let status = home.status_of("s").await;
    assert_eq!(status["host"], json!({ "era": null, "version": null, "open": 0, "asked": 0 }), "{status}");
    assert_eq!((&status["servers"], &status["name"]), (&json!([]), &json!("mine")));
    assert_eq!(status["pid"], host.front.id().unwrap());

    host.initialize().await;
    for tool in ["write", "echo"] {
        host.ask("tools/call", json!({ "name": tool })).await;
    }
    host.until_told("roots/list").await;
    soon(server.watch().wait_until(|ledger| ledger.calls("write") == 1)).await;
    let status = home.status_of("s").await;
    assert_eq!(status["host"], json!({ "era": "legacy", "version": "2025-11-25", "open": 2, "asked": 1 }), "{status}");
    let mine = &status["servers"][0];
    assert_eq!((&mine["name"], &mine["state"], &mine["in_flight"]), (&json!("mine"), &json!("ready"), &json!(2)));
    assert_eq!(mine["session"]["pid"], server.ledger().unwrap().pids()[0], "{status}");
    assert!(status["uptime"].as_f64().is_some_and(|uptime| uptime > 0.0), "{status}");

    let words = home.run(["status", "s"]).await;
    let words = String::from_utf8(words.stdout).unwrap();
    let head = format!("mine: pid {}, up ", host.front.id().unwrap());
    assert!(words.starts_with(&head), "{words}");
    assert!(words.contains("2 requests open, 1 question to the host open\n  mine ready for "), "{words}");
    assert_eq!(host.close().await, Some(0));
    assert!(!home.path("s").exists(), "it is removed");
}

#[tokio::test]
async fn why_a_server_is_not_there() {
    let home = Home::new();
    let mut host = Host::start(&mut home.command(["proxy", "--status-socket", "s", "--", "/nowhere/server"]));
    host.initialize().await;
    let status = home.status_of("s").await;
    let server = &status["servers"][0];
    assert_eq!((&server["state"], &server["park_reason"]), (&json!("parked"), &json!("permanent")), "{status}");
    let words = home.run(["status", "s"]).await;
    let words = String::from_utf8(words.stdout).unwrap();
    assert!(words.contains("server parked: permanent") && words.contains("/nowhere/server"), "{words}");
    host.signal(Signal::TERM);
    assert_eq!(host.ended().await.code(), Some(143));
    assert!(!home.path("s").exists(), "it is removed then too");
}

#[tokio::test]
async fn sockets_with_names_of_their_own() {
    let (home, server) = (Home::new(), process(""));
    let (status, lines, stderr) = home.status(&[]).await;
    assert_eq!((status, lines), (Some(0), vec![]));
    assert!(stderr.contains("run/mcp-reconnect"), "{stderr}");
    let mut hosts = Vec::new();
    for name in ["a/../b", "two"] {
        let mut host = Host::of(&home, &["--status-socket", "auto", "--name", name], &server);
        pinged(&mut host).await;
        hosts.push(host);
    }
    let folder = fs::metadata(home.path("run/mcp-reconnect")).unwrap();
    assert_eq!(folder.mode() & 0o777, 0o700);
    let (status, lines, _) = home.status(&[]).await;
    let names: Vec<_> = lines.iter().map(|line| line["name"].as_str().unwrap()).collect();
    assert_eq!((status, names), (Some(0), vec!["a/../b", "two"]));

    // One that is killed leaves its socket: it is passed over, and removed by the next.
    soon(hosts[0].front.kill()).await.unwrap();
    assert_eq!(home.sockets().len(), 2);
    let (status, lines, _) = home.status(&[]).await;
    assert_eq!((status, lines.len()), (Some(0), 1));
    let mut third = Host::of(&home, &["--status-socket", "auto"], &server);
    pinged(&mut third).await;
    assert_eq!(home.sockets().len(), 2);
    for mut host in [hosts.remove(1), third] {
        assert_eq!(host.close().await, Some(0));
    }
    assert_eq!(home.sockets(), [""; 0]);
}

/// A folder that others can write to is not used.
#[tokio::test]
async fn a_folder_of_everybody_is_refused() {
    use std::os::unix::fs::PermissionsExt as _;
    let home = Home::new();
    fs::create_dir_all(home.path("run/mcp-reconnect")).unwrap();
    fs::set_permissions(home.path("run/mcp-reconnect"), fs::Permissions::from_mode(0o777)).unwrap();
    let refused = home.run(["proxy", "--status-socket", "auto", "--", "x"]).await;
    let stderr = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("'auto' for '--status-socket <PATH>'") && stderr.contains("this user alone"), "{stderr}");
}

#[tokio::test]
async fn a_stale_socket_is_replaced_and_a_successors_left_alone() {
    let (home, server) = (Home::new(), process(""));
    drop(UnixListener::bind(home.path("s")).unwrap());
    let mut host = Host::of(&home, &["--status-socket", "s"], &server);
    pinged(&mut host).await;
    assert_eq!(home.status_of("s").await["pid"], host.front.id().unwrap());
    let second = home.run(in_front_of(&["--status-socket", "s"], &server)).await;
    assert_eq!(second.status.code(), Some(2), "there is one already");
    assert_eq!(home.status_of("s").await["pid"], host.front.id().unwrap(), "which goes on");
    // Somebody else has put another in its place.
    fs::remove_file(home.path("s")).unwrap();
    let _theirs = UnixListener::bind(home.path("s")).unwrap();
    assert_eq!(host.close().await, Some(0));
    assert!(home.path("s").exists());
}

#[tokio::test]
async fn who_does_not_answer_and_who_does_not_read() {
    let (home, server) = (Home::new(), process(""));
    let mut host = Host::of(&home, &["--status-socket", "s"], &server);
    pinged(&mut host).await;
    let _idle: Vec<_> = (0..50).map(|_| UnixStream::connect(home.path("s")).unwrap()).collect();
    assert_eq!(home.status_of("s").await["pid"], host.front.id().unwrap());
    host.signal(Signal::STOP);
    let (status, lines, _) = home.status(&["s", "nowhere"]).await;
    host.signal(Signal::CONT);
    assert_eq!(status, Some(1));
    assert_eq!(lines[0], json!({ "socket": "s", "error": "no answer" }));
    assert_eq!(lines[1]["socket"], "nowhere");
    pinged(&mut host).await;
    assert_eq!(host.close().await, Some(0));
}
