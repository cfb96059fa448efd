//! K26: the way to the server: proxies, both address families, names.
//!
//! Proxy variables belong to a process: such a scenario has its servers here, and its connection in a process of its own,
//! which is this test again, told where to go.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use mcp_reconnect::core::{FailureClass, ParkReason, Status};
use mcp_reconnect::http::HttpConnector;
use mcp_reconnect::{Builder, Connection, HttpServer};
use mcp_reconnect_tests::fake::FakeHttp;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::k02::soon;
use super::serve;
use crate::support::*;

const URL: &str = "MCP_RECONNECT_TEST_URL";
const VARIABLES: [&str; 8] =
    ["HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy", "NO_PROXY", "no_proxy"];

/// Where to go, in a process that another one has started.
pub(super) fn told() -> Option<String> {
    std::env::var(URL).ok()
}

/// Runs the test's other half with these variables, and no other that is about proxies.
pub(super) async fn in_a_process(test: &str, url: &str, variables: &[(&str, &str)]) {
    let mut command = tokio::process::Command::new(std::env::current_exe().unwrap());
    command.args([test, "--exact", "--nocapture"]).env(URL, url).kill_on_drop(true);
    for name in VARIABLES {
        command.env_remove(name);
    }
    command.envs(variables.iter().copied());
    let run = timeout(secs(60), command.output()).await.expect("no hang").unwrap();
    let said = String::from_utf8_lossy(&run.stdout);
    assert!(run.status.success() && said.contains("1 passed"), "{said}{}", String::from_utf8_lossy(&run.stderr));
}

fn to(url: &str) -> Builder {
    Connection::builder(HttpConnector::new(HttpServer::new(url).unwrap())).name("fake").seed(7)
}

/// Ready at the first attempt, and serving.
async fn serves(url: &str) {
    let connection = to(url).build().unwrap();
    assert_eq!(until_ready(&mut connection.events()).await, 1);
    assert_eq!(text(connection.call_tool(tool_with("write", "one")).await), "one");
    connection.shutdown().await;
}

/// The first attempt fails for now; why, in words.
async fn fails(builder: Builder) -> Arc<str> {
    let connection = builder.build().unwrap();
    until_status(&mut connection.events(), |status| status == Status::TransientFailure).await;
    let failure = connection.snapshot().failure;
    assert!(matches!(failure, Some(FailureClass::Transport | FailureClass::Refused | FailureClass::StartTimeout)));
    connection.last_failure().unwrap()
}

/// A proxy that makes tunnels to one server, whatever it is asked for.
pub(super) struct Proxy {
    address: SocketAddr,
    tunnels: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

impl Proxy {
    /// `answer`: the status line for a CONNECT.
    pub(super) async fn start(answer: &'static str, target: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let tunnels = Arc::new(AtomicUsize::new(0));
        let count = tunnels.clone();
        let task = tokio::spawn(async move {
            let mut open = tokio::task::JoinSet::new();
            while let Ok((mut client, _)) = listener.accept().await {
                let count = count.clone();
                open.spawn(async move {
                    let mut head = Vec::new();
                    while !head.ends_with(b"\r\n\r\n") {
                        head.push(client.read_u8().await.unwrap_or(b'\n'));
                    }
                    if head.starts_with(b"CONNECT ") {
                        count.fetch_add(1, Ordering::SeqCst);
                        drop(client.write_all(format!("HTTP/1.1 {answer}\r\n\r\n").as_bytes()).await);
                        let Ok(mut server) = TcpStream::connect(target).await else { return };
                        drop(tokio::io::copy_bidirectional(&mut client, &mut server).await);
                    }
                });
            }
        });
        Self { address, tunnels, task }
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(super) fn tunnels(&self) -> usize {
        self.tunnels.load(Ordering::SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// An address where connections are neither accepted nor refused, while this lives.
struct BlackHole {
    address: SocketAddr,
    _listener: TcpListener,
    _queue: Vec<TcpStream>,
}

impl BlackHole {
    async fn new() -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let listener = socket.listen(1).unwrap();
        let address = listener.local_addr().unwrap();
        let mut queue = Vec::new();
        while let Ok(Ok(stream)) = timeout(millis(100), TcpStream::connect(address)).await {
            queue.push(stream);
        }
        Self { address, _listener: listener, _queue: queue }
    }
}

/// Also R106, with NO_PROXY and without, and however the loopback is written.
#[tokio::test]
async fn k26_loopback_with_proxy() {
    if let Some(url) = told() {
        return serves(&url).await;
    }
    let (server, proxy) = (serve("").await, serve("").await);
    let via = format!("http://{}", proxy.address());
    let port = server.address().port();
    for no_proxy in ["localhost,127.0.0.1", "", "elsewhere.example"] {
        for host in ["127.0.0.1", "localhost"] {
            let variables =
                [("HTTP_PROXY", &*via), ("http_proxy", &*via), ("ALL_PROXY", &*via), ("NO_PROXY", no_proxy)];
            let url = format!("http://{host}:{port}/mcp");
            in_a_process("http::k26::k26_loopback_with_proxy", &url, &variables).await;
        }
    }
    assert_eq!((proxy.ledger().connections(), server.ledger().executions("write")), (0, 6));
}

/// What is not loopback goes through the proxy, in both spellings of the variables; what NO_PROXY names does not.
#[tokio::test]
async fn k26_proxy_variables() {
    if let Some(url) = told() {
        let why = fails(to(&url)).await;
        let direct = std::env::var("NO_PROXY").is_ok();
        assert_eq!(why.contains("resolver"), direct, "{why}");
        return;
    }
    for (variable, no_proxy) in [
        ("HTTP_PROXY", None),
        ("http_proxy", None),
        ("ALL_PROXY", None),
        ("all_proxy", None),
        ("HTTP_PROXY", Some("server.invalid")),
        ("HTTP_PROXY", Some(".invalid")),
    ] {
        // It knows no such path: the client has got through to the proxy, and no further.
        let proxy = serve("").await;
        let via = format!("http://{}", proxy.address());
        let mut variables = vec![(variable, &*via)];
        variables.extend(no_proxy.map(|names| ("NO_PROXY", names)));
        in_a_process("http::k26::k26_proxy_variables", "http://server.invalid/mcp", &variables).await;
        let asked = proxy.ledger().asked().filter(|asked| asked.path.contains("server.invalid/mcp")).count();
        assert_eq!(asked > 0, no_proxy.is_none(), "{variable} {no_proxy:?}: {asked}");
    }
}

/// A tunnel that the proxy refuses: transient, or for a user to repair, and the hop is named. Beyond one that it makes, the server is asked.
#[tokio::test]
async fn k26_a_proxy_that_refuses() {
    if let Some(url) = told() {
        let connection = to(&url).build().unwrap();
        let failed = |status| matches!(status, Status::TransientFailure | Status::Parked(_));
        let status = until_status(&mut connection.events(), failed).await.pop();
        let why = connection.last_failure().unwrap();
        for part in ["the proxy", "127.0.0.1:", "server.invalid"] {
            assert!(why.contains(part), "{why}");
        }
        // A login at the proxy is a user's to repair.
        match status {
            Some(Status::TransientFailure) => assert!(why.contains("HTTP 502 Bad Gateway"), "{why}"),
            Some(Status::Parked(ParkReason::Permanent)) => assert!(why.contains("authentication"), "{why}"),
            other => panic!("{other:?}: {why}"),
        }
        return;
    }
    let server = serve("").await;
    for answer in ["502 Bad Gateway", "407 Proxy Authentication Required"] {
        let proxy = Proxy::start(answer, server.address()).await;
        let via = proxy.url();
        in_a_process("http::k26::k26_a_proxy_that_refuses", "https://server.invalid/mcp", &[("HTTPS_PROXY", &via)])
            .await;
        assert!(proxy.tunnels() >= 1, "{answer}");
    }
    assert_eq!(server.ledger().posts(), 0);
}

/// The half of `H-proxy-only` and R107 without the proxy: a port that swallows what is sent to it ends the attempt at the
/// dial deadline, for now, and the address is named.
#[tokio::test]
async fn k26_proxy_only_black_hole() {
    let hole = BlackHole::new().await;
    let knobs = config(|knobs| knobs.connect_timeout(millis(300)));
    let why = fails(to(&format!("http://{}/mcp", hole.address)).config(knobs)).await;
    assert!(why.contains(&hole.address.to_string()), "{why}");
}

/// The same where the connection has its own deadline, which is shorter by far.
#[tokio::test]
async fn k26_proxy_only_black_hole_with_a_connect_timeout() {
    let hole = BlackHole::new().await;
    let server = HttpServer::new(&format!("http://{}/mcp", hole.address)).unwrap().connect_timeout(millis(100));
    let knobs = config(|knobs| knobs.connect_timeout(secs(1800)).connect_timeout_max(secs(1800)));
    let why = soon(fails(Connection::builder(HttpConnector::new(server)).seed(7).config(knobs))).await;
    assert!(why.contains(&hole.address.to_string()), "{why}");
}

#[tokio::test]
async fn k26_the_failing_hop_is_named() {
    let server = serve("").await;
    server.down().await;
    let refused = fails(to(&server.url())).await;
    assert!(refused.contains(&server.address().to_string()) && refused.contains("refused"), "{refused}");
    let unknown = fails(to("http://no-such-host.invalid/mcp")).await;
    assert!(unknown.contains("resolver") && unknown.contains("no-such-host.invalid"), "{unknown}");
}

/// Also R108: `localhost` is both; the server is on one of them, and after its restart on the other. Where this machine's
/// resolver knows one address only, there is no other half.
#[tokio::test]
async fn k26_dual_stack() {
    let server = serve("").await;
    let port = server.address().port();
    let url = format!("http://localhost:{port}/mcp");
    let connection = to(&url).build().unwrap();
    let mut events = connection.events();
    assert_eq!(until_ready(&mut events).await, 1);
    let mut addresses = tokio::net::lookup_host(("localhost", port)).await.unwrap();
    if !addresses.any(|address| address.is_ipv6()) {
        return;
    }
    drop(server);
    until_status(&mut events, |status| status == Status::TransientFailure).await;
    let server = FakeHttp::start_on((Ipv6Addr::LOCALHOST, port).into(), "").await.unwrap();
    until_ready(&mut events).await;
    assert_eq!(text(connection.call_tool(tool_with("write", "on six")).await), "on six");
    assert_eq!(server.ledger().initializes(), 1);
    // And for who begins there.
    serves(&url).await;
}
