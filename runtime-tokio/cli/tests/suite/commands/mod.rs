//! The commands over a config, with real servers in shell.

mod call;
mod check;
mod install;
mod listen;
mod proxy_all;
mod secrets;
mod tools;
mod watch;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};
use serde_json::{Value, json};
use tempfile::TempDir;

/// A server whose tools do as their names say. Its process id is put into the file `$PIDS/$NAME` before it answers
/// anything; each later one of the same name is appended.
const SERVER: &str = r#"
reply() { printf '{"jsonrpc":"2.0","id":%s,%s}\n' "$id" "$1"; }
text() { printf '"content":[{"type":"text","text":"%s"}]' "$1"; }
tool() { printf '{"name":"%s","description":"%s","inputSchema":{"type":"object"}}' "$1" "$2"; }
echo $$ >>"$PIDS/$NAME"
while read -r line; do
    id=${line#*\"id\":}
    id=${id%%[,\}]*}
    case $line in
    *'"method":"initialize"'*)
        reply '"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"shell","version":"1"}}' ;;
    *'"method":"tools/list"'*)
        reply "\"result\":{\"tools\":[$(tool say 'Says hello.\nAnd more.'),$(tool fail ''),$(tool refuse ''),$(tool die ''),$(tool hang ''),$(tool picture '')]}" ;;
    *'"method":"tools/call"'*)
        case $line in
        *'"name":"say"'*) reply "\"result\":{$(text hello)}" ;;
        *'"name":"fail"'*) reply "\"result\":{$(text 'it broke'),\"isError\":true}" ;;
        *'"name":"refuse"'*) reply '"error":{"code":-32000,"message":"not today"}' ;;
        *'"name":"picture"'*) reply '"result":{"content":[{"type":"image","data":"AAAA","mimeType":"image/png"}]}' ;;
        *'"name":"die"'*) exit 3 ;;
        *'"name":"hang"'*) ;;
        esac ;;
    *'"method":"ping"'*) reply '"result":{}' ;;
    *'"method":"server/discover"'*) reply '"error":{"code":-32601,"message":"no such method"}' ;;
    esac
done
"#;

/// A directory with a config and the traces of its servers.
struct Home {
    dir: TempDir,
}

impl Home {
    fn new(servers: &Value) -> Self {
        let home = Self { dir: tempfile::tempdir().expect("a directory") };
        fs::create_dir(home.dir.path().join("pids")).expect("a directory");
        home.write(&json!({ "mcpServers": home.servers(servers) }).to_string());
        home
    }

    /// Puts another config in the place of the one that is there, as editors do.
    fn write(&self, config: &str) {
        let next = self.dir.path().join("next");
        fs::write(&next, config).expect("written");
        fs::rename(&next, self.config()).expect("renamed");
    }

    /// The config of these servers: `"shell"` stands for one that runs [`SERVER`].
    fn servers(&self, servers: &Value) -> Value {
        let servers = servers.as_object().expect("servers by name").iter();
        let script = SERVER.replace("${", "$${"); // for the shell, not the config
        let server = |name: &str| {
            json!({ "command": "sh", "args": ["-c", script], "env": { "PIDS": self.pids(), "NAME": name },
                "mcp-reconnect": { "stable_after": "1s" } })
        };
        servers.map(|(name, it)| (name.clone(), if it == "shell" { server(name) } else { it.clone() })).collect()
    }

    fn config(&self) -> PathBuf {
        self.dir.path().join("mcp-reconnect.json")
    }

    fn pids(&self) -> PathBuf {
        self.dir.path().join("pids")
    }

    /// The command over this config.
    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_mcp-reconnect"));
        command.args(args).arg("--config").arg(self.config());
        command.env_remove("MCP_RECONNECT_LOG").stdin(Stdio::null());
        command
    }

    fn run(&self, args: &[&str]) -> Done {
        let done = Done::of(&mut self.command(args));
        self.assert_clean();
        done
    }

    /// The process groups of all servers of this name, in the order of their starts.
    fn groups(&self, name: &str) -> Vec<Pid> {
        groups(&self.pids().join(name))
    }

    fn was_started(&self, name: &str) -> bool {
        self.pids().join(name).exists()
    }

    /// Asserts that no server is left.
    fn assert_clean(&self) {
        for group in self.all() {
            assert_eq!(test_kill_process_group(group), Err(Errno::SRCH), "a server lives on: {group:?}");
        }
    }

    fn all(&self) -> Vec<Pid> {
        let files = self.pids().read_dir().into_iter().flatten().flatten();
        files.flat_map(|file| groups(&file.path())).collect()
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        for group in self.all() {
            _ = kill_process_group(group, Signal::KILL); // nothing is left, unless the test fails
        }
    }
}

fn groups(file: &Path) -> Vec<Pid> {
    let text = fs::read_to_string(file).unwrap_or_default();
    text.lines().map(|line| line.parse().ok().and_then(Pid::from_raw).expect("a pid")).collect()
}

/// A command that has ended.
#[derive(Debug)]
struct Done {
    status: Option<i32>,
    stdout: String,
    stderr: String,
}

impl Done {
    fn of(command: &mut Command) -> Self {
        let Output { status, stdout, stderr } = command.output().expect("the command starts");
        let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
        Self { status: status.code(), stdout: text(stdout), stderr: text(stderr) }
    }

    /// Asserts the exit status, and that stderr has all of this in it.
    #[track_caller]
    fn assert_ended(&self, status: i32, told: &[&str]) {
        assert_eq!(self.status, Some(status), "{self:?}");
        for told in told {
            assert!(self.stderr.contains(told), "{told}: {self:?}");
        }
    }
}
