//! Calls of a tool, by each of the ways there are.

use std::future::Future;
use std::time::{Duration, Instant};

use mcp_reconnect::relay::RawRequest;
use mcp_reconnect::{CallOptions, Connection, Era, EraPolicy};
use rmcp::model::{CallToolRequest, ClientRequest};
use serde_json::value::RawValue;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, split};
use tokio::runtime::Builder;

use mcp_reconnect_tests::least::Server;
use mcp_reconnect_tests::pipe::{self, Piped, echo};

/// A way to call the tool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Caller {
    /// A line written and one read: the cost of the server and the pipe.
    Server,
    /// rmcp's service on its own transport.
    Rmcp,
    /// rmcp's service on a session of ours.
    Service,
    /// [`Connection::call_tool`].
    CallTool,
    /// [`Connection::request`].
    Request,
    /// [`Connection::request_raw`].
    Raw,
}

impl Caller {
    /// All of them.
    pub const ALL: [Self; 6] = [Self::Server, Self::Rmcp, Self::Service, Self::CallTool, Self::Request, Self::Raw];

    /// How long `count` calls take of so many callers at once, each call after a caller's last; the start is not in it.
    ///
    /// # Panics
    ///
    /// As [`Work::run`](super::Work::run).
    pub fn time(self, callers: u64, count: u64) -> Duration {
        run(self, callers, count)
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Server => "server",
            Self::Rmcp => "rmcp",
            Self::Service => "service",
            Self::CallTool => "call-tool",
            Self::Request => "request",
            Self::Raw => "raw",
        }
    }
}

/// `count` calls of so many callers, and how long they took.
pub(super) fn run(caller: Caller, callers: u64, count: u64) -> Duration {
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let server = Server::new(true);
        match caller {
            Caller::Server => {
                assert_eq!(callers, 1, "lines have one reader");
                let request = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"_meta":{"progressToken":1},"name":"echo","arguments":{"text":"hello"}}}"#;
                let (reader, mut writer) = split(pipe::pipe(&server));
                let (mut reader, mut line) = (BufReader::new(reader), String::new());
                let began = Instant::now();
                for _ in 0..count {
                    writer.write_all(request.as_bytes()).await.expect("room");
                    writer.write_all(b"\n").await.expect("room");
                    reader.read_line(&mut line).await.expect("an answer");
                    line.clear();
                }
                began.elapsed()
            }
            Caller::Rmcp => {
                let service = pipe::rmcp(&server).await;
                let call = || async { drop(service.call_tool(echo()).await.expect("an answer")) };
                each(callers, count, call).await
            }
            Caller::Service => {
                let connection = supervise(Piped(server));
                let session = connection.session().await.expect("a session");
                let call = || async { drop(session.service().call_tool(echo()).await.expect("an answer")) };
                each(callers, count, call).await
            }
            Caller::CallTool => {
                let connection = supervise(Piped(server));
                let call = || async { drop(connection.call_tool(echo()).await.expect("an answer")) };
                each(callers, count, call).await
            }
            Caller::Request => {
                let (connection, options) = (supervise(Piped(server)), CallOptions::default());
                let call = || async {
                    let request = ClientRequest::CallToolRequest(CallToolRequest::new(echo()));
                    drop(connection.request(request, &options).await.expect("an answer"));
                };
                each(callers, count, call).await
            }
            Caller::Raw => {
                let (connection, options) = (supervise(Piped(server)), CallOptions::default());
                let params: Box<RawValue> = serde_json::value::to_raw_value(&echo()).expect("JSON");
                let call = || async {
                    let request = RawRequest { method: "tools/call", params: Some(&params), era: Era::Legacy };
                    drop(connection.request_raw(request, &options).await.expect("an answer"));
                };
                each(callers, count, call).await
            }
        }
    })
}

/// A connection without anything random about it.
fn supervise(connector: Piped) -> Connection {
    Connection::builder(connector).name("count").seed(7).era(EraPolicy::Legacy).build().expect("inside a runtime")
}

/// Makes `count` calls, by so many callers at once on this task.
async fn each<F: Future<Output = ()>>(callers: u64, count: u64, call: impl Fn() -> F) -> Duration {
    call().await; // there is a session
    let began = Instant::now();
    let caller = || async {
        for _ in 0..count / callers {
            call().await;
        }
    };
    if callers == 1 {
        caller().await;
    } else {
        futures::future::join_all((0..callers).map(|_| caller())).await;
    }
    began.elapsed()
}
