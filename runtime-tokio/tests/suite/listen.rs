//! The listener on real sockets: what needs a connection to be seen.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use mcp_reconnect::front::HostEnd;
use mcp_reconnect::front::listen::{Exposure, ListenError, ListenOptions, Listener, Opener, SessionKind};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// For what must come: a machine that is busy.
const LONG: Duration = Duration::from_secs(30);
const LOOPBACK: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

struct Far {
    kind: SessionKind,
    from_host: mpsc::Receiver<Box<str>>,
    to_host: mpsc::Sender<Box<str>>,
}

impl Far {
    async fn heard(&mut self) -> Option<Value> {
        let message = timeout(LONG, self.from_host.recv()).await.expect("nothing was said")?;
        Some(serde_json::from_str(&message).expect("JSON"))
    }

    async fn answer(&self, request: &Value, result: Value) {
        let answer = json!({ "jsonrpc": "2.0", "id": request["id"], "result": result });
        self.to_host.send(answer.to_string().into()).await.expect("nobody listens");
    }
}

struct Served {
    address: SocketAddr,
    fronts: mpsc::UnboundedReceiver<Far>,
    stop: CancellationToken,
    serving: JoinHandle<()>,
}

impl Served {
    async fn start() -> Self {
        let (opened, fronts) = mpsc::unbounded_channel();
        let opener: Opener = Arc::new(move |kind| {
            let (to_front, from_host) = mpsc::channel(16);
            let (to_host, from_front) = mpsc::channel(16);
            drop(opened.send(Far { kind, from_host, to_host }));
            HostEnd { to_front, from_front }
        });
        let listener = Listener::bind(LOOPBACK, ListenOptions::default()).await.expect("a listener");
        let address = listener.local_addr().expect("an address");
        let stop = CancellationToken::new();
        let serving = tokio::spawn(listener.serve(opener, stop.clone()));
        Self { address, fronts, stop, serving }
    }

    async fn front(&mut self) -> Far {
        timeout(LONG, self.fronts.recv()).await.expect("no front was opened").expect("the listener has gone")
    }

    async fn send(&self, method: &str, headers: &[(&str, &str)], body: &str) -> Connection {
        let mut stream = TcpStream::connect(self.address).await.expect("a connection");
        let mut head =
            format!("{method} /mcp HTTP/1.1\r\nhost: {}\r\ncontent-length: {}\r\n", self.address, body.len());
        head.push_str("content-type: application/json\r\naccept: application/json, text/event-stream\r\n");
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        stream.write_all(format!("{head}\r\n{body}").as_bytes()).await.expect("sent");
        Connection(BufReader::new(stream))
    }

    async fn initialize(&mut self) -> (String, Far) {
        let message = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}"#;
        let mut connection = self.send("POST", &[], message).await;
        let mut far = self.front().await;
        assert_eq!(far.kind, SessionKind::Legacy);
        let request = far.heard().await.expect("a request");
        far.answer(&request, json!({ "protocolVersion": "2025-11-25" })).await;
        let (status, headers) = connection.head().await;
        assert_eq!(status, 200);
        (headers["mcp-session-id"].clone(), far)
    }

    /// Stops, and sees it end.
    async fn stop(self) {
        self.stop.cancel();
        timeout(LONG, self.serving).await.expect("the listener ends").expect("no panic");
        TcpStream::connect(self.address).await.expect_err("nobody listens");
    }
}

struct Connection(BufReader<TcpStream>);

impl Connection {
    async fn line(&mut self) -> String {
        let mut line = String::new();
        timeout(LONG, self.0.read_line(&mut line)).await.expect("a line").expect("text");
        line.trim_end().to_owned()
    }

    /// The status, and the headers by their names.
    async fn head(&mut self) -> (u16, HashMap<String, String>) {
        let first = self.line().await;
        let status = first.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
        let mut headers = HashMap::new();
        loop {
            let line = self.line().await;
            let Some((name, value)) = line.split_once(": ") else { return (status, headers) };
            headers.insert(name.to_ascii_lowercase(), value.to_owned());
        }
    }

    /// Reads until a line of the body begins with this.
    async fn until(&mut self, start: &str) -> String {
        loop {
            let line = self.line().await;
            if line.starts_with(start) {
                return line;
            }
        }
    }
}

const MODERN: [(&str, &str); 2] = [("mcp-protocol-version", "2026-07-28"), ("mcp-method", "tools/list")];

fn modern(id: u64) -> String {
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    json!({ "jsonrpc": "2.0", "id": id, "method": "tools/list", "params": { "_meta": meta } }).to_string()
}

#[tokio::test]
async fn addresses_that_others_reach_are_bound_on_demand_alone() {
    let everywhere = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
    let refused = Listener::bind(everywhere, ListenOptions::default()).await;
    assert!(matches!(refused, Err(ListenError::NotLoopback(address)) if address == everywhere));
    let mut options = ListenOptions::default();
    options.exposure = Exposure::Any;
    let listener = Listener::bind(everywhere, options).await.expect("as it was asked for");
    let taken = Listener::bind(listener.local_addr().unwrap(), ListenOptions::default()).await;
    assert!(taken.is_err());
}

#[tokio::test]
async fn a_connection_that_closes_cancels_what_has_no_session() {
    let mut served = Served::start().await;
    let connection = served.send("POST", &MODERN, &modern(7)).await;
    let mut far = served.front().await;
    assert_eq!(far.kind, SessionKind::Modern);
    let request = far.heard().await.expect("a request");
    drop(connection);
    let cancelled = far.heard().await.expect("a notice");
    assert_eq!(cancelled["method"], "notifications/cancelled");
    assert_eq!(cancelled["params"]["requestId"], request["id"]);
    drop(far);
    served.stop().await;
}

#[tokio::test]
async fn a_closed_connection_leaves_a_sessions_requests_alone() {
    let mut served = Served::start().await;
    let (session, mut far) = served.initialize().await;
    let session = [("mcp-session-id", &*session)];
    let call = r#"{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"t"}}"#;
    let mut connection = served.send("POST", &session, call).await;
    let request = far.heard().await.expect("a request");
    assert_eq!(connection.head().await.0, 200);
    let place = connection.until("id: ").await;
    drop(connection);
    far.answer(&request, json!("done")).await;
    let place = place.strip_prefix("id: ").expect("a place");
    let mut resumed = served.send("GET", &[session[0], ("last-event-id", place)], "").await;
    assert!(resumed.until("data: ").await.contains(r#""result":"done""#));
    resumed.until("0").await; // the last chunk
    drop(far);
    served.stop().await;
}

#[tokio::test]
async fn a_stop_ends_streams_fronts_and_hosts_that_say_nothing() {
    let mut served = Served::start().await;
    let (session, mut far) = served.initialize().await;
    let mut standing = served.send("GET", &[("mcp-session-id", &session)], "").await;
    assert_eq!(standing.head().await.0, 200);
    let mut half = TcpStream::connect(served.address).await.expect("a connection");
    half.write_all(b"POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-le").await.expect("sent");
    let stop = served.stop.clone();
    let ended = tokio::spawn(async move {
        let end = far.heard().await;
        (end, far)
    });
    stop.cancel();
    standing.until("0").await; // the last chunk
    let (end, far) = timeout(LONG, ended).await.expect("the front is told").expect("no panic");
    assert_eq!(end, None, "the end of the host's input");
    assert!(!served.serving.is_finished(), "the front is waited for");
    drop(far);
    served.stop().await;
    drop(half);
}
