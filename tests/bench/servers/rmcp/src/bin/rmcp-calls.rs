//! rmcp's own client, timed: `rmcp-calls stdio PROGRAM ARGUMENT… | http URL`. Prints `ready`; then each number on stdin is so
//! many calls, whose nanoseconds are printed in one line: `took 4711 …`.

use std::fmt::Write as _;
use std::time::Instant;

use rmcp::ServiceExt as _;
use rmcp::model::CallToolRequestParams;
use rmcp::transport::{StreamableHttpClientTransport, TokioChildProcess};
use tokio::io::{AsyncBufReadExt as _, BufReader, stdin};
use tokio::process::Command;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let service = match &arguments[..] {
        [transport, url] if transport == "http" => {
            ().serve(StreamableHttpClientTransport::from_uri(url.as_str())).await?
        }
        [transport, program, arguments @ ..] if transport == "stdio" => {
            let mut command = Command::new(program);
            command.args(arguments);
            ().serve(TokioChildProcess::new(command)?).await?
        }
        _ => return Err("usage: rmcp-calls stdio PROGRAM ARGUMENT… | http URL".into()),
    };
    println!("ready");
    let mut counts = BufReader::new(stdin()).lines();
    while let Some(count) = counts.next_line().await? {
        let mut took = "took".to_owned();
        for _ in 0..count.parse()? {
            let began = Instant::now();
            let text = [("text".to_owned(), "hello".into())];
            let echo = CallToolRequestParams::new("echo").with_arguments(text.into_iter().collect());
            drop(service.call_tool(echo).await?);
            let nanos = began.elapsed().as_nanos();
            write!(took, " {nanos}")?;
        }
        println!("{took}");
    }
    service.cancel().await?;
    Ok(())
}
