//! Allocations of a call.

use allocation_counter::measure;
use mcp_reconnect::relay::RawRequest;
use mcp_reconnect::{CallOptions, Era};
use rmcp::model::{CallToolRequest, CallToolRequestParams, ClientRequest};
use serde_json::value::RawValue;
use tokio::runtime::Runtime;

use crate::{each, hold, runtime, show, supervise, table};
use mcp_reconnect_tests::least::{Least, Server, bare};
use mcp_reconnect_tests::pipe::{self, Piped};

const CALLS: u32 = 1_000;

/// Allocations of each of a thousand calls one after the other, the server's included.
fn per_call<F: Future<Output = ()>>(runtime: &Runtime, call: impl Fn() -> F) -> f64 {
    let run = |calls| {
        runtime.block_on(async {
            for _ in 0..calls {
                call().await;
            }
        });
    };
    // Channels grow to their size first.
    run(100);
    each(measure(|| run(CALLS)).count_total, CALLS)
}

fn echo() -> CallToolRequestParams {
    CallToolRequestParams::new("echo")
}

/// Each side carries lines over a pipe in memory by its own code.
#[test]
fn a_call_over_lines_allocates_no_more_than_rmcps_own() {
    let (runtime, server) = (runtime(), Server::new(true));
    let bare = runtime.block_on(pipe::rmcp(&server));
    let bare = per_call(&runtime, || async { drop(bare.call_tool(pipe::echo()).await.expect("an answer")) });
    let connection = runtime.block_on(async { supervise(Piped(server)) });
    let session = runtime.block_on(connection.session()).expect("a session");
    let view =
        per_call(&runtime, || async { drop(session.service().call_tool(pipe::echo()).await.expect("an answer")) });

    table("allocations per call over lines, the server's included");
    show("rmcp on its own `AsyncRwTransport`", bare);
    hold("`RunningService` of a session, over that", view - bare, -8, "6");
}

#[test]
fn a_call_allocates_no_more_than_this() {
    let (runtime, server) = (runtime(), Server::new(true));
    let bare = runtime.block_on(bare(&server));
    let bare = per_call(&runtime, || async { drop(bare.call_tool(echo()).await.expect("an answer")) });

    let connection = runtime.block_on(async { supervise(Least(server)) });
    let session = runtime.block_on(connection.session()).expect("a session");
    let view = per_call(&runtime, || async { drop(session.service().call_tool(echo()).await.expect("an answer")) });
    let call = per_call(&runtime, || async { drop(connection.call_tool(echo()).await.expect("an answer")) });
    let options = CallOptions::default();
    let request = per_call(&runtime, || async {
        let request = ClientRequest::CallToolRequest(CallToolRequest::new(echo()));
        drop(connection.request(request, &options).await.expect("an answer"));
    });
    let params: Box<RawValue> = serde_json::value::to_raw_value(&echo()).expect("JSON");
    let raw = per_call(&runtime, || async {
        let request = RawRequest { method: "tools/call", params: Some(&params), era: Era::Legacy };
        drop(connection.request_raw(request, &options).await.expect("an answer"));
    });

    table("allocations per call, the server's included");
    show("rmcp on the least transport", bare);
    show("`RunningService` of a session", view);
    hold("`RunningService` of a session, over rmcp", view - bare, -12, "6");
    hold("`call_tool`", call, 25, "");
    hold("`call_tool`, over `RunningService`", call - view, -66, "0");
    hold("`request`", request, 92, "");
    hold("`request`, over `RunningService`", request - view, 0, "0");
    hold("`request_raw`", raw, 20, "");
}
