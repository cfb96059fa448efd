//! The Inspector's command line: a host that connects, asks once, and ends.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::Value;
use tokio::process::Command;
use tokio::time::timeout;

use crate::between::{Between, Middle};
use crate::host::KEPT_IN;
use crate::upstream::{Served, Upstream};

/// Within what it must have an answer: its own patience is 15 s for the session and 60 s for a request.
const BOUND: Duration = Duration::from_secs(90);

const LIST: &[&str] = &["--method", "tools/list"];
const CALL: &[&str] = &["--method", "tools/call", "--tool-name", "echo", "--tool-arg", "text=hello"];

/// What it said with the server healthy, and with the server down from the start.
pub(crate) async fn run(
    between: Between,
    served: Served,
    installed: &Path,
    scratch: PathBuf,
) -> Result<String, String> {
    std::fs::create_dir_all(&scratch).map_err(|error| error.to_string())?;
    let mut upstream = Upstream::start(served).await?;
    let mut middle = Middle::new(between, installed, &upstream, &scratch).await?;
    let ask = |what| ask(what, installed, &middle, &scratch);
    let (listed, called) = (ask(LIST).await?, ask(CALL).await?);
    let tools = listed["result"]["tools"].as_array().map_or(0, Vec::len);
    if tools != 6 || called["result"]["content"][0]["text"] != "hello" {
        return Err(format!("with a healthy server: {listed}, {called}"));
    }
    upstream.go_down().await?;
    let mut down = Vec::new();
    for what in [LIST, CALL] {
        let said = ask(what).await.map_err(|why| format!("with the server down, {}: {why}", what[1]))?;
        down.push(format!("{}: {}", what[1], short(&said)));
    }
    if !middle.ended().await {
        return Err("what it started outlived it".to_owned());
    }
    Ok(format!("healthy: {tools} tools, a call answered; down at start: {}", down.join(", ")))
}

/// Its one JSON document. No session is no answer.
async fn ask(what: &[&str], installed: &Path, middle: &Middle, scratch: &Path) -> Result<Value, String> {
    let launcher = "node/node_modules/@modelcontextprotocol/inspector/clients/launcher/build/index.js";
    let mut command = Command::new(crate::host::node(installed));
    command.arg(installed.join(launcher)).args(["--cli", "--format", "json", "--quiet"]).args(what);
    match middle.server.as_slice() {
        [option, url] if option == "--url" => command.arg("--server-url").arg(url).args(["--transport", "http"]),
        server => command.arg("--").args(server),
    };
    command.envs(KEPT_IN.map(|variable| (variable, scratch))).env("HOME", scratch);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.process_group(0).kill_on_drop(true).spawn().map_err(|error| error.to_string())?;
    let group = Group(child.id().and_then(|id| Pid::from_raw(id.cast_signed())).ok_or("a process without an id")?);
    let output = timeout(BOUND, child.wait_with_output()).await.map_err(|_| format!("no answer within {BOUND:?}"))?;
    drop(group);
    let output = output.map_err(|error| error.to_string())?;
    // A result goes to stdout, an error to stderr, which is the server's as well.
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    let documents = said.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let answer = documents.into_iter().find(|value| value.get("result").or(value.get("error")).is_some());
    match answer {
        Some(answer) if !short(&answer).contains("onnection closed") => Ok(answer),
        _ => Err(format!("{}: {}", output.status, said.trim())),
    }
}

fn short(answer: &Value) -> String {
    match (&answer["error"]["message"], answer["result"]["tools"].as_array()) {
        (Value::String(message), _) => format!("\"{message}\""),
        (_, Some(tools)) => format!("{} tools", tools.len()),
        _ => answer["result"].to_string(),
    }
}

/// Whatever the Inspector leaves in its group is killed with it.
struct Group(Pid);

impl Drop for Group {
    fn drop(&mut self) {
        _ = kill_process_group(self.0, Signal::KILL); // mostly there is nothing
    }
}
