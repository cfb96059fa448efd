//! A connection over streamable HTTP, against a server that does exactly what a test says.

mod credentials;
mod limits;
mod loss;
mod streams;

use std::collections::HashSet;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures::future::join_all;
use mcp_reconnect::core::{Config, FailureClass, ParkReason, Refusal, Status};
use mcp_reconnect::http::HttpConnector;
use mcp_reconnect::{CallError, CallOptions, Connection, Credentials, Event, HttpServer, Refresh};
use rmcp::model::CallToolRequestParams;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::time::timeout;

use crate::http_support::{End, PATIENCE, Request, Server, Step, answer, event, json, sse, status};

/// The bodies that servers refuse a stale session with, as seen in the field; and one in a 200.
const STALE: [(u16, &str); 7] = [
    (404, ""),
    (404, r#"{"jsonrpc":"2.0","error":{"code":-32600,"message":"Session not found"},"id":"server-error"}"#),
    (400, r#"{"jsonrpc":"2.0","error":{"code":-32000,"message":"Bad Request: No valid session ID provided"}}"#),
    (400, r#"{"jsonrpc":"2.0","error":{"code":-32000,"message":"Bad Request: Server not initialized"},"id":null}"#),
    (401, "Unauthorized: Session not found"),
    (200, r#"{"jsonrpc":"2.0","error":{"code":-32000,"message":"Server not initialized"},"id":null}"#),
    (200, r#"{"jsonrpc":"2.0","error":{"code":-32001,"message":"Session not found"},"id":$ID}"#),
];

fn server_of(server: &Server) -> HttpServer {
    HttpServer::new(&server.url()).unwrap()
}

fn connect(server: &Server) -> Connection {
    connect_with(server_of(server))
}

fn connect_with(server: HttpServer) -> Connection {
    let short = Duration::from_millis(20);
    let config = Config::builder()
        .min_dial_interval(short / 2)
        .backoff(short)
        .demand_interval(short)
        .stable_after(Duration::from_millis(1))
        .build();
    Connection::builder(HttpConnector::new(server)).config(config.unwrap()).seed(7).build().unwrap()
}

/// A server with one tool, `add`, and sessions `S1`, `S2`, …, until a test takes them away.
#[derive(Default)]
struct Legacy {
    sessions: AtomicU32,
    lost: Mutex<HashSet<String>>,
    /// How often a tool has run.
    calls: AtomicU32,
}

impl Legacy {
    /// Whether the request comes with a session that the server does not know (any more).
    fn is_stale(&self, request: &Request) -> bool {
        request.session().is_some_and(|session| self.lost.lock().unwrap().contains(session))
    }

    fn forget_all(&self) {
        let sessions = 1..=self.sessions.load(Ordering::SeqCst);
        self.lost.lock().unwrap().extend(sessions.map(|number| format!("S{number}")));
    }

    fn calls(&self) -> u32 {
        self.calls.load(Ordering::SeqCst)
    }

    /// What a healthy server does.
    fn serve(&self, request: &Request) -> Vec<Step> {
        if request.method != "POST" {
            return status(405);
        }
        match request.rpc().as_str() {
            "server/discover" => answer(400, &[], "Bad Request: Server not initialized"),
            "initialize" => {
                let session = format!("S{}", self.sessions.fetch_add(1, Ordering::SeqCst) + 1);
                let result = r#"{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"s","version":"1"}}"#;
                let headers = [("content-type", "application/json"), ("mcp-session-id", session.as_str())];
                answer(200, &headers, &request.result(result))
            }
            "tools/list" => json(&request.result(r#"{"tools":[{"name":"add","inputSchema":{"type":"object"}}]}"#)),
            "tools/call" => {
                self.calls.fetch_add(1, Ordering::SeqCst);
                sse(&[], &[&event(&request.result(r#"{"content":[]}"#))], End::Clean)
            }
            "ping" => json(&request.result("{}")),
            _ => status(202),
        }
    }
}

/// A healthy server but for what `other` answers.
async fn legacy(
    other: impl Fn(&Legacy, &Request) -> Option<Vec<Step>> + Send + Sync + 'static,
) -> (Server, Arc<Legacy>) {
    let legacy = Arc::new(Legacy::default());
    let own = legacy.clone();
    let server = Server::start(move |request| other(&own, request).unwrap_or_else(|| own.serve(request))).await;
    (server, legacy)
}

async fn in_time<T>(future: impl Future<Output = T>) -> T {
    timeout(PATIENCE, future).await.expect("the test hangs")
}

async fn add(connection: &Connection) -> Result<(), CallError> {
    in_time(connection.call_tool(CallToolRequestParams::new("add"))).await.map(drop)
}

async fn epoch(connection: &Connection) -> u64 {
    in_time(connection.session()).await.unwrap().epoch().get()
}

async fn until_status(connection: &Connection, wanted: impl Fn(Status) -> bool) -> (Option<FailureClass>, Arc<str>) {
    let mut events = connection.events();
    if wanted(connection.snapshot().status) {
        return (None, connection.last_failure().unwrap_or_default());
    }
    in_time(async {
        while let Some(event) = events.next().await {
            if let Event::Status { status, failure, cause } = event
                && wanted(status)
            {
                return (failure, cause.unwrap_or_default());
            }
        }
        panic!("the connection ended");
    })
    .await
}

#[tokio::test]
async fn a_legacy_server_is_called_and_its_session_deleted() {
    let (server, _) = legacy(|_, _| None).await;
    let connection = connect(&server);
    add(&connection).await.unwrap();
    let session = connection.session().await.unwrap();
    assert_eq!(session.facts().session_id.as_deref(), Some("S1"));
    assert!(session.facts().last_byte.is_some());
    drop(session);
    in_time(connection.shutdown()).await;
    server.until_open(0).await;
    assert_eq!((server.count("initialize"), server.count("DELETE"), server.count("GET")), (1, 1, 1));
    for request in server.requests() {
        let begins = matches!(request.rpc().as_str(), "server/discover" | "initialize");
        assert_eq!(request.session(), (!begins).then_some("S1"), "{request:?}");
        let version = match request.rpc().as_str() {
            "initialize" => None,
            "server/discover" => Some("2026-07-28"),
            _ => Some("2025-11-25"),
        };
        assert_eq!(request.header("mcp-protocol-version"), version, "{request:?}");
    }
}

#[tokio::test]
async fn an_endpoint_of_2024_11_05_is_refused_with_a_hint() {
    let server = Server::start(|request| match request.method.as_str() {
        "GET" => sse(&[], &["event: endpoint\ndata: /messages?s=1\n\n"], End::Hold),
        _ => status(405),
    })
    .await;
    let connection = connect(&server);
    let (_, cause) = until_status(&connection, |status| status == Status::Parked(ParkReason::Permanent)).await;
    assert!(cause.contains("2024-11-05") && cause.contains("/mcp"), "{cause}");
    in_time(connection.shutdown()).await;
    server.until_open(0).await;
}

#[tokio::test]
async fn a_modern_server_gets_the_standard_headers_and_no_session() {
    let server = Server::start(|request| {
        let tool = |name: &str, header: &str| {
            json!({ "name": name, "inputSchema": { "type": "object", "properties": {
                "region": { "type": "string", "x-mcp-header": header } } } })
        };
        match request.rpc().as_str() {
            "server/discover" => {
                let result = json!({ "resultType": "complete", "supportedVersions": ["2026-07-28"],
                    "capabilities": { "tools": {} }, "serverInfo": { "name": "s", "version": "1" } });
                json(&request.result(&result.to_string()))
            }
            "tools/list" => {
                let tools = json!({ "tools": [tool("add", "Region"), tool("bad", "no token")] });
                json(&request.result(&tools.to_string()))
            }
            "tools/call" => json(&request.result(r#"{"resultType":"complete","content":[]}"#)),
            _ => status(405),
        }
    })
    .await;
    let connection = connect(&server);
    let arguments = json!({ "region": "Zürich" }).as_object().unwrap().clone();
    let params = CallToolRequestParams::new("add").with_arguments(arguments);
    in_time(connection.call_tool(params)).await.unwrap();
    assert!(connection.catalogue().unwrap().tool("bad").is_none());
    in_time(connection.shutdown()).await;
    server.until_open(0).await;
    let requests = server.requests();
    for request in &requests {
        assert_eq!(request.header("mcp-protocol-version"), Some("2026-07-28"), "{request:?}");
        assert_eq!(request.header("mcp-method"), Some(request.rpc().as_str()), "{request:?}");
        assert_eq!((request.session(), request.method.as_str()), (None, "POST"));
    }
    let call = requests.iter().find(|request| request.rpc() == "tools/call").unwrap();
    assert_eq!(call.header("mcp-name"), Some("add"));
    assert_eq!(call.header("mcp-param-region"), Some("=?base64?WsO8cmljaA==?="));
}

#[tokio::test]
async fn a_call_that_is_given_up_ends_on_the_wire() {
    let (server, _) = legacy(|_, request| (request.rpc() == "tools/call").then(|| vec![Step::Hold])).await;
    let connection = connect(&server);
    in_time(connection.session()).await.unwrap();
    let called = |log: &Vec<Request>| log.iter().any(|request| request.rpc() == "tools/call");
    tokio::select! {
        answer = connection.call_tool(CallToolRequestParams::new("add")) => panic!("{answer:?}"),
        () = server.until("the call", called) => {}
    }
    let cancelled = |log: &Vec<Request>| log.iter().any(|request| request.rpc() == "notifications/cancelled");
    server.until("the cancellation", cancelled).await;
    let held = server.requests().into_iter().find(|request| request.rpc() == "tools/call").unwrap().connection;
    // The held socket is gone; what is left are idle ones of the pool.
    server.until_closed(held).await;
}

#[tokio::test]
async fn k16_twenty_healthy_reconnects_leave_nothing() {
    let (server, server_state) =
        legacy(|_, request| (request.method == "GET").then(|| sse(&[], &[": hi\n\n"], End::Hold))).await;
    let connection = connect(&server);
    for _ in 0..20 {
        let session = in_time(connection.session()).await.unwrap();
        connection.invalidate(session.epoch(), "the test wants another one");
        in_time(connection.session_after(session.epoch())).await.unwrap();
    }
    in_time(connection.shutdown()).await;
    server.until_open(0).await;
    let sessions = server_state.sessions.load(Ordering::SeqCst) as usize;
    let deleted: HashSet<_> = server
        .requests()
        .iter()
        .filter(|request| request.method == "DELETE")
        .filter_map(|request| request.session().map(str::to_owned))
        .collect();
    assert_eq!((sessions, deleted.len(), server.count("DELETE")), (21, 21, 21));
}
