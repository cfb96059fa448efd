//! The arguments of the demo, and their `--help`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::ArgGroup;
use mcp_reconnect::HttpServer;

use super::faults::Fault;
use super::stage::Misdeed;

const HELP: &str = "\
Exit status:
  0    no call was lost, none ran twice that may not, and every rebuild came in time
  1    otherwise
  2    bad arguments
  130  interrupted (143: terminated)

Lost: no outcome by the deadline, or a wrong one, such as another call's answer, or `not sent` for a call that ran.
A call in flight when the session dies may have run: `outcome unknown` says so and is not lost, nor is
`deadline exceeded` on a server that hangs. Only a tool without a read-only or idempotent annotation can be doubled;
the runs are counted by the embedded server itself, in a ledger.

With --http nobody but the demo brings the server back: a killed one is started again at once, on the same port and
knowing no session; a frozen one is continued, and one that answers 503 recovers, a while after the loss was noticed.

A COMMAND is run as it is, a URL is called as it is. Its tools that need no arguments are looked through for one that is
read-only, else idempotent, else without annotation, never one annotated as destructive; that one is called some 15
times a second. Where there is none, the server is only pinged. What ran there only its server knows: nothing counts as
doubled. A URL whose server is down when the time is over is an error.

JSON lines (--json): one object per line, each with `event` and `elapsed_ms`, and by event:
  start    server, rounds and faults (none with --url), seconds (--for), knobs
  calling  tool, annotated
  status   status (IDLE, CONNECTING, READY, TRANSIENT_FAILURE, PARKED, SHUTDOWN), epoch, pid (none with --url),
           session (how the HTTP session's id begins), failure (its class), cause (in words)
  fault    round, fault (kill, hang, crash_loop; with --http restart, freeze, unavailable), epoch, pid
  relief   round, fault, pid: with --http, the server is back (after a restart as another process)
  call     tool, call, outcome (server_error, outcome_unknown, deadline_exceeded, not_sent, lost), epoch, cause;
           of equal outcomes in a row server_error and not_sent are told once
  rebuilt  round, fault, epoch, rebuild_ms (from the fault to the first answer; with --url, where round and fault are
           null, from when the loss was noticed)
  summary  ok, error, lost, doubled, epochs (sessions that became ready), rebuilds, tools: each with tool,
           annotated, calls, answered, server_error, outcome_unknown, deadline_exceeded, not_sent, lost, and by the
           ledger runs, repeats, uncertain_ran
Fields that do not apply are null or missing; others may be added.";

/// Kill a server again and again, and show that no call is lost
///
/// Calls a server steadily while it is killed, stopped, and made to crash right after its start. Without a COMMAND the
/// server is an embedded one, with a tool that is annotated as read-only and one that is not; with --http it is reached
/// over streamable HTTP, and restarted, frozen, and made to answer 503. With --url it is any HTTP server that runs
/// already: you restart it by hand.
#[derive(clap::Args)]
#[command(after_long_help = HELP, group = ArgGroup::new("named").args(["url", "command"]))]
pub(crate) struct DemoArgs {
    /// Print JSON lines instead of a timeline
    #[arg(long)]
    pub(super) json: bool,
    /// How often each fault is injected
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    #[arg(conflicts_with = "url")]
    pub(super) rounds: u32,
    /// Which faults, in which order [default: all that the server can be made to suffer]
    #[arg(long, value_name = "FAULT", value_delimiter = ',', value_enum, conflicts_with = "url")]
    faults: Vec<Fault>,
    /// How long a call may take
    #[arg(long, value_name = "SECONDS", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=600))]
    call_timeout: u64,
    /// Call this tool of the COMMAND's or URL's, without arguments, instead of choosing one
    #[arg(long, value_name = "NAME", requires = "named")]
    pub(super) tool: Option<String>,
    /// Make the embedded server do something wrong, which the demo must notice
    #[arg(long, hide = true, value_enum, conflicts_with = "named")]
    pub(super) misdeed: Option<Misdeed>,
    /// Do it to an embedded server behind streamable HTTP, on a loopback port of its own
    #[arg(long, conflicts_with = "named")]
    pub(super) http: bool,
    /// A running server behind streamable HTTP, only to call it while you restart it by hand
    #[arg(long, value_parser = HttpServer::new)]
    url: Option<HttpServer>,
    /// A header for every request to the URL; may be given several times
    #[arg(long = "header", value_name = "NAME: VALUE", requires = "url", value_parser = header)]
    headers: Vec<Header>,
    /// How long the URL is called
    #[arg(long = "for", value_name = "SECONDS", requires = "url", default_value_t = 10)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,
    /// Record the connection into this file, for `mcp-reconnect replay`
    #[arg(long, value_name = "FILE")]
    pub(super) record: Option<PathBuf>,
    /// A stdio MCP server to do it to, instead of the embedded one
    #[arg(last = true, value_name = "COMMAND")]
    pub(super) command: Vec<OsString>,
}

impl DemoArgs {
    /// Checks what clap cannot check by itself.
    pub(crate) fn check(&self) -> Result<(), String> {
        let possible = self.possible_faults();
        let Some(wrong) = self.faults.iter().find(|fault| !possible.contains(fault)) else { return Ok(()) };
        let needs = match wrong {
            Fault::Restart | Fault::Freeze | Fault::Unavailable => "'--http'",
            Fault::CrashLoop if !self.http => "the embedded server: leave COMMAND out",
            Fault::CrashLoop | Fault::Kill | Fault::Hang => "a stdio server: leave '--http' out",
        };
        Err(format!("the value '{}' for '--faults <FAULT>' needs {needs}", wrong.value()))
    }

    pub(super) fn faults(&self) -> &[Fault] {
        if self.faults.is_empty() { self.possible_faults() } else { &self.faults }
    }

    fn possible_faults(&self) -> &'static [Fault] {
        match (self.http, &self.url, &self.command[..]) {
            (true, ..) => &Fault::HTTP,
            (false, Some(_), _) => &[],
            (false, None, []) => &Fault::STDIO,
            (false, None, [_, ..]) => &Fault::SIGNALS,
        }
    }

    pub(super) fn call_timeout(&self) -> Duration {
        Duration::from_secs(self.call_timeout)
    }

    /// The running server that was named, with the headers for it.
    pub(super) fn server(&self) -> Option<HttpServer> {
        let server = self.url.clone()?;
        // Each header was tried when it was parsed.
        self.headers.iter().try_fold(server, |server, Header { name, value }| server.header(name, value)).ok()
    }

    /// The time for which a running server is called.
    pub(super) fn watch(&self) -> Option<Duration> {
        self.url.is_some().then(|| Duration::from_secs(self.seconds))
    }
}

/// A header that may be sent.
#[derive(Clone)]
struct Header {
    name: String,
    value: String,
}

fn header(text: &str) -> Result<Header, String> {
    let (name, value) = text.split_once(':').ok_or("there is no colon in it")?;
    let (name, value) = (name.trim(), value.trim());
    let server = HttpServer::new("http://localhost/").and_then(|server| server.header(name, value));
    server.map_err(|error| error.to_string())?;
    Ok(Header { name: name.into(), value: value.into() })
}

/// A URL as it may be shown: without login, query and fragment, which may be secret.
pub(super) fn shown(url: &str) -> String {
    let url = url.split(['?', '#']).next().unwrap_or_default();
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    format!("{scheme}://{host}/{path}")
}

#[cfg(test)]
mod tests {
    use super::shown;

    #[test]
    fn what_may_be_secret_in_a_url_is_not_shown() {
        for (url, safe) in [
            ("http://127.0.0.1:80/mcp", "http://127.0.0.1:80/mcp"),
            ("https://me:p%40ss@host/a/@b?key=k#f", "https://host/a/@b"),
            ("http://host?key=a/b@c", "http://host/"),
        ] {
            assert_eq!(shown(url), safe);
        }
    }
}
