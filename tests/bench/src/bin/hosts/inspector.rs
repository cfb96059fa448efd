//! The Inspector's command line: a host that connects, asks once, and ends.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::Value;
use tokio::process::Command;
use tokio::time::timeout;

use crate::between::{Between, Middle};
use crate::upstream::{Served, Upstream};
use mcp_reconnect_bench::programs::KEPT_IN;

/// Within what it must have an answer.
const BOUND: Duration = Duration::from_secs(90);
/// Its own patience with a session, in milliseconds: more than its 15 s, for machines that are busy.
const PATIENCE: &str = "60000";

const LIST: &[&str] = &["--method", "tools/list"];
const CALL: &[&str] = &["--method", "tools/call", "--tool-name", "echo", "--tool-arg", "text=hello"];

/// Runs the Inspector; its output with the server down at a first start, healthy, and down at a later start.
pub(crate) async fn run(
    between: Between,
    served: Served,
    installed: &Path,
    scratch: PathBuf,
) -> Result<String, String> {
    std::fs::create_dir_all(&scratch).map_err(|error| error.to_string())?;
    let mut upstream = Upstream::start(served).await?;
    let mut middle = Middle::new(between, installed, &upstream, &scratch).await?;
    upstream.go_down().await?;
    // Whatever is listed then: a host that gets an error here has no session.
    let first = tools_of("down at a first start", &ask(LIST, installed, &middle, &scratch).await?)?;
    upstream.come_back().await?;
    let healthy = tools_of("healthy", &ask(LIST, installed, &middle, &scratch).await?)?;
    let called = ask(CALL, installed, &middle, &scratch).await?;
    if healthy != 6 || called["result"]["content"][0]["text"] != "hello" {
        return Err(format!("with a healthy server: {healthy} tools, {called}"));
    }
    upstream.go_down().await?;
    let later = tools_of("down at a later start", &ask(LIST, installed, &middle, &scratch).await?)?;
    let called = ask(CALL, installed, &middle, &scratch).await?;
    if !middle.ended().await {
        return Err("what it started outlived it".to_owned());
    }
    let called = called["error"]["message"].as_str().map_or_else(|| called["result"].to_string(), str::to_owned);
    Ok(format!(
        "down at a first start: {first} tools; healthy: {healthy} tools, a call answered; down at a later start: {later} tools, \
         a call told \"{called}\""
    ))
}

fn tools_of(when: &str, answer: &Value) -> Result<usize, String> {
    answer["result"]["tools"].as_array().map(Vec::len).ok_or_else(|| format!("{when}: {answer}"))
}

/// Its one JSON document.
async fn ask(what: &[&str], installed: &Path, middle: &Middle, scratch: &Path) -> Result<Value, String> {
    let launcher = "node/node_modules/@modelcontextprotocol/inspector/clients/launcher/build/index.js";
    let mut command = Command::new(mcp_reconnect_bench::programs::node(installed));
    command
        .arg(installed.join(launcher))
        .args(["--cli", "--format", "json", "--quiet", "--connect-timeout", PATIENCE])
        .args(what);
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
        Some(answer) => Ok(answer),
        None => Err(format!("{}: {}", output.status, said.trim())),
    }
}

/// Whatever the Inspector leaves in its group is killed with it.
struct Group(Pid);

impl Drop for Group {
    fn drop(&mut self) {
        _ = kill_process_group(self.0, Signal::KILL); // mostly there is nothing
    }
}
