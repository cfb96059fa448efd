//! Calls of a server that is somewhere else, timed. `tests/bench/servers/rmcp`'s `rmcp-calls` does the same without us.

use std::error::Error;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::time::{Duration, Instant};

use mcp_reconnect::http::HttpConnector;
use mcp_reconnect::stdio::StdioConnector;
use mcp_reconnect::{Connection, EraPolicy, HttpServer, ServerCommand};
use mcp_reconnect_tests::pipe::echo;
use tokio::io::{AsyncBufReadExt as _, BufReader, stdin};

/// Prints `ready`; then each number on stdin is so many calls, whose nanoseconds are printed in one line: `took 4711 …`.
pub(crate) async fn time(caller: &str, server: &[&str]) -> Result<(), Box<dyn Error>> {
    let builder = match server {
        ["http", url] => Connection::builder(HttpConnector::new(HttpServer::new(url)?)),
        ["stdio", program, arguments @ ..] => {
            let mut command = ServerCommand::new(program);
            command.args = arguments.iter().map(OsString::from).collect();
            Connection::builder(StdioConnector::new(command))
        }
        _ => return Err("neither `stdio PROGRAM …` nor `http URL`".into()),
    };
    let connection = builder.era(EraPolicy::Legacy).build()?;
    let session = connection.session().await?;
    println!("ready");
    let mut counts = BufReader::new(stdin()).lines();
    while let Some(count) = counts.next_line().await? {
        let mut took = "took".to_owned();
        for _ in 0..count.parse()? {
            let began = Instant::now();
            match caller {
                "service" => drop(session.service().call_tool(echo()).await?),
                _ => drop(connection.call_tool(echo()).await?),
            }
            let nanos = Duration::as_nanos(&began.elapsed());
            write!(took, " {nanos}")?;
        }
        println!("{took}");
    }
    connection.shutdown().await;
    Ok(())
}
