//! `chaos-proxy --upstream HOST:PORT [--listen ADDRESS:PORT]`: a proxy that breaks connections on command, for tests of
//! clients in any language.
//!
//! It prints `{"listening":"127.0.0.1:4000"}` when it accepts connections; without `--listen`, or with port 0, on any
//! port of 127.0.0.1. Then it carries out each line of its stdin, in order, and answers each with one line of JSON:
//!
//! ```text
//! cut 100 once
//! {"done":"cut 100 once","stats":{"accepted":1,"open":1,"cut":0,"reset":0,"unreachable":0,"requests":{…},"responses":{…}}}
//! cut ten
//! {"error":"`ten` is not a number of bytes"}
//! ```
//!
//! The answer comes when the order is carried out. [`Command`] lists the lines. It ends, and closes everything, at the
//! end of its stdin. Exit code 2: an argument or an address that it cannot use, named on stderr.

use std::ffi::OsString;
use std::io;
use std::net::SocketAddr;
use std::process::ExitCode;

use mcp_reconnect_tests::chaos::{ChaosProxy, Command};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Stdout};

const USAGE: &str = "usage: chaos-proxy --upstream HOST:PORT [--listen ADDRESS:PORT]";

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match run(std::env::args_os().skip(1)).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("chaos-proxy: {error}");
            ExitCode::from(2)
        }
    }
}

async fn run(args: impl Iterator<Item = OsString>) -> io::Result<()> {
    let Options { listen, upstream } = options(args)?;
    let looked_up = tokio::net::lookup_host(&upstream).await;
    let address = looked_up.map_err(|error| invalid(format!("--upstream {upstream}: {error}")))?.next();
    let address = address.ok_or_else(|| invalid(format!("--upstream {upstream}: it has no address")))?;
    let proxy = ChaosProxy::start_on(listen, address).await;
    let proxy = proxy.map_err(|error| invalid(format!("--listen {listen}: {error}")))?;
    let mut output = tokio::io::stdout();
    say(&mut output, &json!({ "listening": proxy.address().to_string() })).await?;
    let mut lines = BufReader::new(tokio::io::stdin()).split(b'\n');
    while let Some(line) = lines.next_segment().await? {
        let line = String::from_utf8_lossy(&line);
        let line = line.trim();
        let answer = match line.parse::<Command>() {
            Ok(command) => match command.carry_out(&proxy).await {
                Ok(stats) => json!({ "done": line, "stats": stats }),
                Err(error) => json!({ "error": format!("{line}: {error}") }),
            },
            Err(error) => json!({ "error": error.to_string() }),
        };
        say(&mut output, &answer).await?;
    }
    Ok(())
}

async fn say(output: &mut Stdout, what: &Value) -> io::Result<()> {
    output.write_all(format!("{what}\n").as_bytes()).await?;
    output.flush().await
}

struct Options {
    listen: SocketAddr,
    upstream: String,
}

fn options(mut args: impl Iterator<Item = OsString>) -> io::Result<Options> {
    let (mut listen, mut upstream) = (SocketAddr::from(([127, 0, 0, 1], 0)), None);
    while let Some(name) = args.next() {
        let name = name.to_string_lossy().into_owned();
        if !["--listen", "--upstream"].contains(&&*name) {
            return Err(invalid(format!("unknown option {name}; {USAGE}")));
        }
        let value = args.next().ok_or_else(|| invalid(format!("{name} needs a value; {USAGE}")))?;
        let value = value.to_string_lossy().into_owned();
        if name == "--listen" {
            listen = value.parse().map_err(|_| invalid(format!("--listen {value} is no ADDRESS:PORT")))?;
        } else {
            upstream = Some(value);
        }
    }
    let upstream = upstream.ok_or_else(|| invalid(format!("--upstream is missing; {USAGE}")))?;
    Ok(Options { listen, upstream })
}

fn invalid(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, what)
}
