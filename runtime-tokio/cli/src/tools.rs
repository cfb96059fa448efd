//! `mcp-reconnect tools`: lists the tools of a config's servers.

use std::io::{self, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use mcp_reconnect::fleet::FleetTool;
use serde::Serialize;
use serde_json::value::RawValue;

use super::attempt::{Failed, NO_SESSION, Tried, end, try_each};
use super::source::{self, ConfigArgs, WRONG, known, shown};
use super::text::{first_line, printable};

const HELP: &str = "\
Exit status:
  0    every server that is not disabled was listed
  2    bad arguments, or a config that is wrong
  3    some server has no session: which, and why, is told on stderr
  130  interrupted (143: terminated)

JSON lines (--json): one object per tool, each with server, name (the public one) and tool, which is what the server
lists, under its own name.";

/// List the tools that the servers offer, by the names under which a fleet offers them
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub(crate) struct ToolsArgs {
    /// Only this server
    server: Option<String>,
    #[command(flatten)]
    config: ConfigArgs,
    /// Print JSON lines, with all that the servers say of their tools
    #[arg(long)]
    json: bool,
    /// How long a server may take, its start included
    #[arg(long, value_name = "DURATION", default_value = "20s", value_parser = source::duration)]
    wait: Duration,
}

pub(crate) async fn run(args: &ToolsArgs) -> ExitCode {
    let source = match args.config.load() {
        Ok(source) => source,
        Err(status) => return ExitCode::from(status),
    };
    let mut config = source.parsed.config;
    if let Some(server) = &args.server {
        match config.servers.get(server.as_str()).map(|server| server.enabled) {
            Some(true) => config.servers.retain(|name, _| **name == **server),
            Some(false) => {
                anstream::eprintln!("error: server `{}` is disabled in {}", printable(server), shown(&source.path));
                return ExitCode::from(WRONG);
            }
            None => {
                let (server, path, known) = (printable(server), shown(&source.path), known(&config));
                anstream::eprintln!("error: no server `{server}` in {path}; {known}");
                return ExitCode::from(WRONG);
            }
        }
    }
    let Tried { fleet, attempts } = match try_each(config, args.wait).await {
        Ok(tried) => tried,
        Err(status) => return ExitCode::from(status),
    };
    let told = if args.json { json(&fleet.tools()) } else { table(&fleet.tools()) };
    let mut status = u8::from(told.is_err());
    for (server, attempt) in &attempts {
        match &attempt.result {
            Ok(_) | Err(Failed::Disabled) => {}
            Err(failed) => {
                anstream::eprintln!("error: {}: {}", printable(server), failed.words());
                status = NO_SESSION;
            }
        }
    }
    end(&fleet, status).await
}

fn table(tools: &[FleetTool]) -> io::Result<()> {
    let rows: Vec<_> = tools
        .iter()
        .map(|tool| {
            let description = tool.tool().description.as_deref().unwrap_or_default();
            [printable(&tool.server), printable(&tool.name), first_line(description)]
        })
        .collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or_default();
    let (servers, names) = (width(0), width(1));
    let mut out = anstream::stdout().lock();
    for [server, name, description] in &rows {
        let line = format!("{server:<servers$}  {name:<names$}  {description}");
        writeln!(out, "{}", line.trim_end())?;
    }
    Ok(())
}

fn json(tools: &[FleetTool]) -> io::Result<()> {
    #[derive(Serialize)]
    struct Line<'a> {
        server: &'a str,
        name: &'a str,
        tool: &'a RawValue,
    }
    let mut out = io::stdout().lock();
    for tool in tools {
        let line = Line { server: &tool.server, name: &tool.name, tool: tool.tool().json() };
        writeln!(out, "{}", serde_json::to_string(&line)?)?;
    }
    Ok(())
}
