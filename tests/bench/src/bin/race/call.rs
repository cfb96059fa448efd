//! Cost of a call by each way to make it: in memory, where it can be counted, and on real transports.

use std::path::Path;
use std::time::Duration;

use mcp_reconnect_bench::count::{Caller, Work, allocations, instructions, valgrind};
use mcp_reconnect_bench::programs::{PATIENCE, Process};
use tokio::process::Command;

use crate::Race;
use crate::report::{Cell, Section, Table, median, percentile};

/// Blocks of calls, in turn by each client.
const BLOCKS: usize = 40;
const BLOCK: usize = 100;

pub(crate) async fn run(race: &Race) -> Result<Section, String> {
    let mut section = Section::new(
        "call",
        "The overhead of a call",
        "`tools/call` with one short argument, answered at once, everything at its defaults. In memory: one thread, lines over \
         `tokio::io::duplex`, a server that reads id and method and writes a fixed answer; instructions by callgrind and \
         allocations by DHAT, of each call between the 128th and the 640th, the server's and the pipe's share included. \
         bare rmcp is its client on its own `AsyncRwTransport`; ours is the line framing of the stdio link. On stdio and \
         HTTP: the same least server as a process, two sessions of ours and one of bare rmcp (`TokioChildProcess`, its \
         streamable HTTP client, which keeps no connection open between requests), each in a process of one thread, in turn by blocks of 100 calls; with times that small the \
         machine decides more than the client.",
    );
    match valgrind() {
        Ok(_) => {
            // Valgrind's processes are waited for.
            let counted = tokio::task::spawn_blocking(Counted::all).await.map_err(|error| error.to_string())??;
            counted.tell(&mut section);
        }
        Err(why) => section.not_run("instructions and allocations", why),
    }
    let peer = race.installed.join("rmcp/release/rmcp-calls");
    if peer.is_file() {
        timed(&mut section, &peer).await?;
    } else {
        section.not_run("rmcp on stdio and HTTP", "`rmcp-calls` is not installed");
    }
    Ok(section)
}

/// Instructions and allocations of each call.
struct Counted(Vec<(Work, f64, f64)>);

impl Counted {
    const WORKS: [(Work, &str); 9] = [
        (Work::Calls(Caller::Server), "the server and the pipe alone"),
        (Work::Calls(Caller::Rmcp), "bare rmcp"),
        (Work::Calls(Caller::Service), "`RunningService` of a session"),
        (Work::Calls(Caller::CallTool), "`Connection::call_tool`"),
        (Work::Calls(Caller::Request), "`Connection::request`"),
        (Work::Calls(Caller::Raw), "`Connection::request_raw`"),
        (Work::Calls64(Caller::Rmcp), "bare rmcp, 64 callers at once"),
        (Work::Calls64(Caller::Service), "`RunningService`, 64 callers at once"),
        (Work::Calls64(Caller::CallTool), "`call_tool`, 64 callers at once"),
    ];

    fn all() -> Result<Self, String> {
        let counted = |(work, _)| Ok::<_, String>((work, instructions(work)?, allocations(work)?));
        Self::WORKS.into_iter().map(counted).collect::<Result<_, _>>().map(Self)
    }

    fn of(&self, caller: Caller) -> (f64, f64) {
        self.find(Work::Calls(caller))
    }

    fn find(&self, work: Work) -> (f64, f64) {
        let found = self.0.iter().find(|(known, ..)| *known == work);
        found.map_or((f64::NAN, f64::NAN), |&(_, instructions, allocations)| (instructions, allocations))
    }

    fn tell(&self, section: &mut Section) {
        let columns = ["in memory, each call", "instructions", "of bare rmcp's", "allocations", "over bare rmcp's"];
        let mut table = Table::new("", &columns);
        let bare = self.of(Caller::Rmcp);
        for (work, name) in Self::WORKS {
            let (instructions, allocations) = self.find(work);
            table.row(
                name,
                [
                    Cell::Count(instructions.round() as u64),
                    Cell::ratio(instructions / bare.0),
                    allocations.into(),
                    (allocations - bare.1).into(),
                ],
            );
        }
        section.tables.push(table);

        let service = self.of(Caller::Service);
        for (what, caller) in [("call_tool", Caller::CallTool), ("request", Caller::Request)] {
            let supervised = self.of(caller);
            let (instructions, allocations) = (supervised.0 - service.0, supervised.1 - service.1);
            section.goal(
                format!("`{what}` over `RunningService` of the same session"),
                "≤ 4,000 instructions, ≤ 0 allocations",
                format!("{instructions:+.0}, {allocations:+.1}"),
                instructions <= 4_000.0 && allocations <= 0.0,
            );
        }
        let (over, more) = (service.0 / bare.0 - 1.0, service.1 - bare.1);
        section.goal(
            "link and typed view over bare rmcp",
            "≤ +8 % instructions, ≤ +6 allocations",
            format!("{:+.1} %, {more:+.1}", over * 100.0),
            over <= 0.08 && more <= 6.0,
        );
        let raw = self.of(Caller::Raw).0 / bare.0;
        section.goal("`request_raw`, of bare rmcp's instructions", "≤ 0.4 ×", format!("{raw:.2} ×"), raw <= 0.4);
        let many = self.find(Work::Calls64(Caller::CallTool)).0 / self.of(Caller::CallTool).0 - 1.0;
        section.goal(
            "`call_tool`, 64 callers over one, instructions of each call",
            "≤ +2 %",
            format!("{:+.1} %", many * 100.0),
            many <= 0.02,
        );
    }
}

/// The clients on real transports, in turn.
async fn timed(section: &mut Section, peer: &Path) -> Result<(), String> {
    let count = std::env::current_exe().map_err(|error| error.to_string())?.with_file_name("count");
    let mut table = Table::new("", &["each call, wall time", "p50", "of bare rmcp's", "p90", "p99"]);
    for transport in ["stdio", "HTTP"] {
        // Gone, with its port, when this is dropped.
        let mut served = None;
        let server: Vec<String> = if transport == "stdio" {
            vec!["stdio".into(), count.to_string_lossy().into(), "serve".into(), "stdio".into()]
        } else {
            let process = Process::start(Command::new(&count).args(["serve", "http"]), "port ").await?;
            let said = process.tail();
            let port = said.iter().find_map(|line| line.strip_prefix("port ")).ok_or("the server says no port")?;
            let url = format!("http://127.0.0.1:{port}/mcp");
            served = Some(process);
            vec!["http".into(), url]
        };
        let mut clients = Vec::new();
        for (name, program, arguments) in [
            ("bare rmcp", peer, &[][..]),
            ("`RunningService` of a session", &count, &["time", "service"]),
            ("`Connection::call_tool`", &count, &["time", "call-tool"]),
        ] {
            let process = Process::start(Command::new(program).args(arguments).args(&server), "ready").await?;
            clients.push((name, process, Vec::new()));
        }
        for block in 0..=BLOCKS {
            for (_, process, times) in &mut clients {
                let took = calls(process).await?;
                if block > 0 {
                    times.extend(took); // the first is to warm up
                }
            }
        }
        let bare = clients.first().and_then(|(_, _, times)| median(times)).ok_or("no times")?;
        for (name, process, times) in clients {
            let of = |share| Cell::from(percentile(&times, share).map(Duration::from_nanos));
            let p50 = median(&times).ok_or("no times")?;
            let ratio = p50 as f64 / bare as f64;
            table.row(format!("{name}, {transport}"), [of(0.5), Cell::ratio(ratio), of(0.9), of(0.99)]);
            if name != "bare rmcp" {
                let measured = format!("{:+.1} %", (ratio - 1.0) * 100.0);
                section.goal(format!("p50 of {name} over bare rmcp, {transport}"), "≤ +2 %", measured, ratio <= 1.02);
            }
            process.kill().await?;
        }
        if let Some(process) = served {
            process.kill().await?;
        }
    }
    section.tables.push(table);
    Ok(())
}

/// A block of calls: the nanoseconds of each.
async fn calls(process: &mut Process) -> Result<Vec<u64>, String> {
    let so_far = process.count("took ");
    process.tell(&BLOCK.to_string()).await?;
    let took = |lines: &[String]| lines.iter().filter(|line| line.starts_with("took ")).count() > so_far;
    process.until(PATIENCE, took).await?;
    let said = process.tail();
    let took = said.iter().rev().find_map(|line| line.strip_prefix("took ")).ok_or("no times")?;
    took.split(' ').map(|nanos| nanos.parse().map_err(|_| format!("{nanos}: no time"))).collect()
}
