//! `mcp-reconnect status`: the state of running fronts.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use serde_json::{Value, json};

use super::proxy::socket;
use super::source::shown;
use super::text::{age, countdown, printable};

const HELP: &str = "\
Without a path: every front that was started with `--status-socket auto`, by the sockets in
$XDG_RUNTIME_DIR/mcp-reconnect (else mcp-reconnect-UID in the folder for temporary files). Those that nobody answers at any
more are passed over there.

Exit status:
  0  every front has answered, or none runs
  1  one that was named has not answered, or the folder or stdout failed
  2  bad arguments";

/// Show what running fronts are doing
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub(crate) struct StatusArgs {
    /// The sockets of the fronts
    #[arg(value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Print a JSON line for each: socket, and error or name, pid, uptime, host, servers; durations in seconds
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &StatusArgs) -> ExitCode {
    let named = !args.paths.is_empty();
    let sockets = if named { Ok(args.paths.clone()) } else { socket::sockets() };
    let sockets = match sockets {
        Ok(sockets) => sockets,
        Err(error) => {
            anstream::eprintln!("error: {}: {error}", shown(&socket::folder()));
            return ExitCode::FAILURE;
        }
    };
    let mut shown_any = false;
    let mut failed = false;
    for path in sockets {
        let answer = socket::ask(&path).and_then(|document| serde_json::from_str(&document).map_err(io::Error::from));
        if !named && answer.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused) {
            continue; // its process is gone
        }
        failed |= answer.is_err();
        let text = if args.json { line(&path, answer) } else { paragraph(&path, &answer) };
        if writeln!(anstream::stdout(), "{text}").is_err() {
            return ExitCode::FAILURE;
        }
        shown_any = true;
    }
    if !shown_any {
        anstream::eprintln!("no front with a socket in {} is running", shown(&socket::folder()));
    }
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn line(path: &Path, answer: io::Result<Value>) -> String {
    let mut line = match answer {
        Ok(document) => document,
        Err(error) => json!({ "error": error.to_string() }),
    };
    if let Some(line) = line.as_object_mut() {
        line.insert("socket".into(), path.display().to_string().into());
    }
    line.to_string()
}

/// A front's answer in words. Members that it does not have are left out: it may be of another version.
fn paragraph(path: &Path, answer: &io::Result<Value>) -> String {
    let document = match answer {
        Ok(document) => document,
        Err(error) => return format!("{}: {error}", shown(path)),
    };
    let host = &document["host"];
    let mut head = vec![format!("pid {}", document["pid"])];
    head.extend(seconds(&document["uptime"]).map(|uptime| format!("up {}", age(uptime))));
    head.push(match host["era"].as_str() {
        Some(era) => format!("host speaks {era} {}", text(&host["version"])),
        None => "no word of the host yet".into(),
    });
    head.extend(count(&host["open"], "request", "open"));
    head.extend(count(&host["asked"], "question", "to the host open"));
    let mut paragraph = format!("{}: {}", text(&document["name"]), head.join(", "));
    for server in document["servers"].as_array().into_iter().flatten() {
        for line in server_lines(server) {
            _ = write!(paragraph, "\n  {line}"); // writing to a string cannot fail
        }
    }
    paragraph
}

fn server_lines(server: &Value) -> Vec<String> {
    let state = match server["park_reason"].as_str() {
        Some(reason) => format!("parked: {}", reason.replace('_', " ")),
        None => text(&server["state"]).replace('_', " "),
    };
    let since = seconds(&server["since"]).map(|since| format!(" for {}", age(since)));
    let mut first = vec![format!("{} {state}{}", text(&server["name"]), since.unwrap_or_default())];
    let session = &server["session"];
    if session.is_object() {
        first.push(format!("epoch {}", session["epoch"]));
        first.push(format!("{} {}", text(&session["era"]), text(&session["version"])));
        if let [name, version] = session["server"].as_array().map_or(&[][..], Vec::as_slice) {
            first.push(format!("{} {}", text(name), text(version)).trim().to_owned());
        }
        first.extend(session["pid"].as_u64().map(|pid| format!("pid {pid}")));
        first.extend(session["address"].as_str().map(|address| printable(address).into_owned()));
    }
    let mut second: Vec<_> = count(&server["tools"], "tool", "").into_iter().collect();
    second.extend(count(&server["in_flight"], "call", "in flight"));
    second.extend(count(&server["waiting"], "call", "waiting"));
    second.extend(count(&server["failures_in_a_row"], "failure", "in a row"));
    second.extend(seconds(&server["next_dial"]).map(|left| format!("next dial in {}", countdown(left))));
    second.extend(seconds(&server["breaker_open"]).map(|left| format!("breaker open for {}", countdown(left))));
    let mut lines = vec![first.join(", ")];
    if !second.is_empty() {
        lines.push(second.join(", "));
    }
    if let Some(class) = server["last_failure"]["class"].as_str() {
        lines.push(format!("{}: {}", class.replace('_', " "), text(&server["last_failure"]["cause"])));
    }
    lines
}

/// So many of these; nothing where there are none.
fn count(count: &Value, what: &str, how: &str) -> Option<String> {
    let count = count.as_u64().filter(|count| *count > 0)?;
    let plural = if count == 1 { "" } else { "s" };
    Some(format!("{count} {what}{plural} {how}").trim_end().to_owned())
}

fn seconds(value: &Value) -> Option<Duration> {
    Duration::try_from_secs_f64(value.as_f64()?).ok()
}

/// A text of a front or its server, in one line.
fn text(value: &Value) -> String {
    let text = value.as_str().map_or("?".into(), printable);
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_front_says_is_shown_and_steers_no_terminal() {
        let document = json!({
            "name": "files\u{1b}", "pid": 7, "uptime": 62.4,
            "host": { "era": "legacy", "version": "2025-11-25", "open": 2, "asked": 1 },
            "servers": [
                { "name": "files", "state": "ready", "since": 3.0, "tools": 13, "in_flight": 1,
                  "session": { "epoch": 2, "era": "modern", "version": "2026-07-28", "server": ["every\nthing", "1"], "pid": 8 } },
                { "name": "other", "state": "parked", "park_reason": "needs_auth", "since": 0.2, "next_dial": 0.5,
                  "breaker_open": null, "last_failure": { "class": "needs_auth", "cause": "401" } },
            ],
        });
        let lines = [
            "files\u{fffd}: pid 7, up 1m02, host speaks legacy 2025-11-25, 2 requests open, 1 question to the host open",
            "  files ready for 3s, epoch 2, modern 2026-07-28, every thing 1, pid 8",
            "  13 tools, 1 call in flight",
            "  other parked: needs auth for 0s",
            "  next dial in 1s",
            "  needs auth: 401",
        ];
        assert_eq!(paragraph(Path::new("/s"), &Ok(document)), lines.join("\n"));
        let empty = json!({ "name": "x", "pid": 1, "host": { "era": null }, "servers": [] });
        assert_eq!(paragraph(Path::new("/s"), &Ok(empty)), "x: pid 1, no word of the host yet");
        let gone = Err(io::ErrorKind::ConnectionRefused.into());
        assert_eq!(paragraph(Path::new("/a\n"), &gone), "/a: connection refused");
        assert_eq!(line(Path::new("/a"), Err(io::Error::other("x"))), r#"{"error":"x","socket":"/a"}"#);
    }
}
