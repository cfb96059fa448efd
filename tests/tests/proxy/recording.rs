//! The session of the docs, as it really was.

use rustix::process::{Pid, Signal, kill_process};

use super::*;
use crate::support::process;

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../runtime-tokio/cli/docs/proxy-session.txt");

/// A session under way, and what there is to show of it.
struct Recording {
    host: Host,
    text: String,
}

impl Recording {
    fn note(&mut self, line: &str) {
        self.text += line;
        self.text.push('\n');
    }

    /// What the host says, and what it is answered, to the letter.
    async fn asked(&mut self, id: u64, method: &str, params: &str) {
        let request = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#);
        self.note(&format!("host   {request}"));
        self.host.write(&(request + "\n")).await;
        let answer = soon(self.host.stdout.next_line()).await.expect("UTF-8").expect("an answer");
        self.note(&format!("front  {answer}"));
    }
}

/// The text with what differs from run to run in one form.
fn normalised(text: &str) -> String {
    let mut last = "";
    let words = text.split_inclusive([' ', '\n']).map(|word| {
        let bare = word.trim_end_matches([' ', '\n', ',']);
        let varies = matches!(last, "pid" | "up" | "for") && bare.starts_with(|c: char| c.is_ascii_digit());
        last = bare;
        if varies { word.replace(bare, "…") } else { word.to_owned() }
    });
    words.collect()
}

#[tokio::test]
async fn the_session_of_the_docs() {
    let home = Home::new();
    let server = process("info notes 1.0\ntools search(readOnly), add");
    let host = Host::of(&home, &["--name", "notes", "--status-socket", "auto"], &server);
    let mut session = Recording { host, text: String::new() };
    session.note("$ mcp-reconnect proxy --name notes --status-socket auto -- notes-server");
    let initialize = r#"{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"host","version":"1"}}"#;
    session.asked(1, "initialize", initialize).await;
    session.asked(2, "tools/call", r#"{"name":"add","arguments":{"text":"milk"}}"#).await;

    session.note("       (the server is killed by SIGKILL)");
    let pid = Pid::from_raw(server.ledger().unwrap().pids()[0].try_into().unwrap()).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
    soon(server.watch().wait_until(|ledger| ledger.notifications("notifications/initialized") == 2)).await;
    session.asked(3, "tools/call", r#"{"name":"add","arguments":{"text":"bread"}}"#).await;

    session.note("$ mcp-reconnect status");
    let status = home.run(["status"]).await;
    session.text += &String::from_utf8(status.stdout).unwrap();
    session.note("       (the host closes stdin)");
    let status = session.host.close().await;
    session.note("$ echo $?");
    session.note(&status.expect("a status").to_string());
    nothing_is_left(&server);
    assert_eq!(server.ledger().unwrap().executions("add"), 2);

    let text = normalised(&session.text);
    if std::env::var_os("UPDATE").is_some() {
        fs::write(FILE, &text).unwrap();
    }
    let kept = fs::read_to_string(FILE).unwrap_or_default();
    assert_eq!(text, kept, "UPDATE=1 writes it anew");
}
