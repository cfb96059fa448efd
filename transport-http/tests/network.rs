//! The way to the server: redirects, proxies, pooled connections.

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use mcp_reconnect_core::FailureClass;
use mcp_reconnect_core::replay::Sent;
use mcp_reconnect_http::{HttpServer, Reach};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use crate::addresses::fixed;
use crate::servers::tls::{Front, Passes, acceptor, root};
use crate::servers::tunnel::tunnels;
use crate::support::{Server, Step, answer, json};
use crate::{CALL, Peer, RESULT, in_time};

#[tokio::test]
async fn a_refused_connection_has_sent_nothing_and_is_named() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let error = Peer::of(&HttpServer::new(&format!("http://{address}/")).unwrap()).exchange(CALL).await.unwrap_err();
    assert_eq!((error.sent, error.failure.class, error.reach), (Sent::No, FailureClass::Refused, Reach::Doubt));
    assert!(error.cause.contains(&address.to_string()) && error.cause.contains("refused"), "{error}");
}

#[tokio::test]
async fn a_connection_that_is_not_made_in_time_has_sent_nothing() {
    // A backlog that is full takes no more connections.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(1).unwrap();
    let address = listener.local_addr().unwrap();
    let _full = full(listener).await;
    let server = HttpServer::new(&format!("http://{address}/")).unwrap().connect_timeout(Duration::from_millis(50));
    let error = Peer::of(&server).exchange(CALL).await.unwrap_err();
    assert_eq!((error.sent, error.failure.class), (Sent::No, FailureClass::Transport), "{error}");
    assert!(error.cause.contains(&address.to_string()), "{error}");
}

/// Fills the backlog of this listener: no more connections are made as long as this is kept.
async fn full(listener: TcpListener) -> (TcpListener, Vec<TcpStream>) {
    let address = listener.local_addr().unwrap();
    let mut fillers = Vec::new();
    let patience = Duration::from_millis(100);
    while let Ok(Ok(filler)) = tokio::time::timeout(patience, TcpStream::connect(address)).await {
        fillers.push(filler);
    }
    (listener, fillers)
}

#[tokio::test]
async fn redirects_keep_method_body_and_origin() {
    let elsewhere = Server::start(|_| json(RESULT)).await;
    let other_origin = elsewhere.url();
    for (code, location, followed) in [
        (307, "/moved", true),
        (308, "/moved", true),
        (301, "/moved", false),
        (302, "/moved", false),
        (303, "/moved", false),
        (307, &*other_origin, false),
    ] {
        let location = location.to_owned();
        let server = Server::start(move |request| match request.path.as_str() {
            "/moved" => json(RESULT),
            _ => answer(code, &[("location", &location)], ""),
        })
        .await;
        let with_secret = HttpServer::new(&server.url()).unwrap().header("Authorization", "Bearer s").unwrap();
        let outcome = Peer::of(&with_secret).exchange(CALL).await;
        assert_eq!(outcome.is_ok(), followed, "{code}: {outcome:?}");
        let requests = server.requests();
        assert_eq!(requests.len(), 1 + usize::from(followed));
        assert!(requests.iter().all(|request| request.method == "POST" && request.body == CALL));
    }
    assert!(elsewhere.requests().is_empty());
}

#[tokio::test]
async fn redirects_end() {
    let server = Server::start(|_| answer(307, &[("location", "/again")], "")).await;
    let error = Peer::new(&server).exchange(CALL).await.unwrap_err();
    assert_eq!(error.sent, Sent::Maybe, "{error}");
    assert_eq!(server.requests().len(), 11);
}

#[tokio::test]
async fn a_closed_pooled_connection_costs_no_second_execution() {
    let leave = Arc::new(Semaphore::new(0));
    let permits = leave.clone();
    let server = Server::start(move |request| {
        let mut steps = json(RESULT);
        if request.connection == 0 {
            // Closed once the test says so, while it is idle in the client's pool.
            steps.extend([Step::Wait(permits.clone()), Step::Close]);
        }
        steps
    })
    .await;
    let peer = Peer::new(&server);
    peer.exchange(CALL).await.unwrap();
    leave.add_permits(1);
    server.until_closed(0).await;
    peer.exchange(CALL).await.unwrap();
    assert_eq!(server.requests().len(), 2);
    assert_eq!(server.requests()[1].connection, 1);
}

#[tokio::test]
async fn a_pooled_connection_that_dies_under_a_request_is_no_retry() {
    let server = Server::start(|request| match server_has_seen(request) {
        0 => json(RESULT),
        _ => vec![Step::Reset],
    })
    .await;
    let peer = Peer::new(&server);
    peer.exchange(CALL).await.unwrap();
    let error = peer.exchange(&CALL.replace('7', "8")).await.unwrap_err();
    assert_eq!(error.sent, Sent::Maybe, "{error}");
    assert_eq!(server.requests().len(), 2);
}

fn server_has_seen(request: &crate::support::Request) -> u32 {
    u32::from(request.id() != "7")
}

#[tokio::test]
async fn a_configured_proxy_is_used_even_for_loopback() {
    let proxy = Server::start(|_| json(RESULT)).await;
    let server =
        HttpServer::new("http://localhost:1/mcp").unwrap().proxy(&format!("http://{}", proxy.address)).unwrap();
    Peer::of(&server).exchange(CALL).await.unwrap();
    assert_eq!(proxy.requests()[0].path, "http://localhost:1/mcp");
}

/// The content of a tunnel is between the client and the server; both hops are named when it fails.
#[tokio::test]
async fn a_tunnel_carries_tls_to_the_server() {
    let server = Server::start(|_| json(RESULT)).await;
    for (protocols, known_root) in [(&["http/1.1"][..], true), (&[], false)] {
        let front = Front::start(&server, acceptor(protocols, false), Passes::All).await;
        let proxy = tunnels(([127, 0, 0, 1], front.port).into()).await;
        let through = HttpServer::new("https://server.example/mcp").unwrap().proxy(&proxy.url).unwrap();
        let through = if known_root { through.extra_roots([root()]) } else { through };
        let outcome = Peer::of(&through).exchange(CALL).await;
        assert_eq!(*proxy.asked.borrow(), ["CONNECT server.example:443 HTTP/1.1"]);
        if known_root {
            outcome.unwrap();
        } else {
            let error = outcome.unwrap_err();
            assert_eq!((error.failure.class, error.sent), (FailureClass::Permanent, Sent::No), "{error}");
            assert!(error.cause.contains("TLS with server.example:443 through the proxy 127.0.0.1:"), "{error}");
        }
    }
    assert_eq!(server.requests().len(), 1);
}

#[tokio::test]
async fn a_proxy_that_refuses_a_tunnel_is_named_with_its_status() {
    let proxy = Server::start(|_| answer(502, &[], "")).await;
    let with_user = format!("http://user:secret@{}", proxy.address);
    let server = HttpServer::new("https://server.invalid/mcp").unwrap().proxy(&with_user).unwrap();
    let error = Peer::of(&server).exchange(CALL).await.unwrap_err();
    assert_eq!((error.sent, error.failure.class), (Sent::No, FailureClass::Transport));
    for part in ["the proxy", &proxy.address.to_string(), "server.invalid", "HTTP 502"] {
        assert!(error.cause.contains(part), "{error}");
    }
    assert!(!error.cause.contains("secret"), "{error}");
    // Both times as it was told to.
    let requests = proxy.requests();
    assert!(requests.iter().all(|request| {
        (&*request.method, &*request.path) == ("CONNECT", "server.invalid:443")
            && request.header("proxy-authorization") == Some("Basic dXNlcjpzZWNyZXQ=")
    }));
    assert_eq!(requests.len(), 2);
}

/// To a tunnel and to a request that it passes on.
#[tokio::test]
async fn a_proxy_that_wants_a_login_is_permanent_and_named() {
    for (url, sent) in [("https://server.invalid/mcp", Sent::No), ("http://server.invalid/mcp", Sent::Refused)] {
        let proxy = Server::start(|_| answer(407, &[("proxy-authenticate", "Basic")], "")).await;
        let with_user = format!("http://user:secret@{}", proxy.address);
        let server = HttpServer::new(url).unwrap().proxy(&with_user).unwrap();
        let error = Peer::of(&server).exchange(CALL).await.unwrap_err();
        assert_eq!((error.sent, error.failure.class), (sent, FailureClass::Permanent), "{error}");
        assert!(error.cause.contains(&proxy.address.to_string()) && error.cause.contains("authentication"), "{error}");
        assert!(!error.cause.contains("secret"), "{error}");
        assert_eq!(proxy.requests().len(), 1);
    }
}

#[tokio::test]
async fn a_proxy_that_is_down_is_named() {
    let server = HttpServer::new("http://server.invalid/mcp").unwrap().proxy("http://user:secret@127.0.0.1:1").unwrap();
    let error = Peer::of(&server).exchange(CALL).await.unwrap_err();
    assert_eq!((error.sent, error.failure.class), (Sent::No, FailureClass::Transport));
    assert!(error.cause.contains("server.invalid:80 through the proxy 127.0.0.1:1"), "{error}");
    assert!(!error.cause.contains("secret"), "{error}");
}

/// Nobody listens at any address: only then nothing can have been reached.
#[tokio::test]
async fn refused_is_what_is_refused_everywhere_and_at_once() {
    // Both are free: nobody else uses this port, on the second address or the third.
    let listener = TcpListener::bind("127.0.0.2:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let to = |addresses: &[&str]| {
        let url = format!("http://server.localhost:{port}/");
        HttpServer::new(&url).unwrap().resolver(fixed(addresses))
    };
    let class = async |server: &HttpServer| Peer::of(server).exchange(CALL).await.unwrap_err().failure.class;
    assert_eq!(class(&to(&["127.0.0.3", "127.0.0.4"])).await, FailureClass::Refused);
    assert_eq!(class(&to(&["::1", "127.0.0.4"])).await, FailureClass::Refused);
    // One that does not answer, with a backlog that is full, beside one that refuses.
    drop(listener);
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.set_reuseaddr(true).unwrap();
    socket.bind(([127, 0, 0, 2], port).into()).unwrap();
    let _full = full(socket.listen(1).unwrap()).await;
    for addresses in [["127.0.0.2", "127.0.0.4"], ["127.0.0.4", "127.0.0.2"], ["::1", "127.0.0.2"]] {
        let slow = to(&addresses).connect_timeout(Duration::from_millis(400));
        assert_eq!(class(&slow).await, FailureClass::Transport, "{addresses:?}");
    }
    // A proxy that is down, and a name without an address.
    let proxied = to(&["127.0.0.4"]).proxy(&format!("http://127.0.0.4:{port}")).unwrap();
    assert_eq!(class(&proxied).await, FailureClass::Transport);
    assert_eq!(class(&to(&[])).await, FailureClass::Transport);
}

/// The environment belongs to a process: the cases run in one of their own.
#[tokio::test]
async fn proxies_of_the_environment_are_honoured_but_for_loopback() {
    let direct = Server::start(|_| json(RESULT)).await;
    for (variable, no_proxy, url, proxied) in [
        ("http_proxy", "", "http://server.invalid/", true),
        ("HTTP_PROXY", "", "http://server.invalid/", true),
        ("ALL_PROXY", "", "http://server.invalid/", true),
        ("HTTP_PROXY", "server.invalid", "http://server.invalid/", false),
        ("HTTP_PROXY", "", &direct.url(), false),
        // The empty one in upper case goes before it: for dialling and for words.
        ("http_proxy", "empty", "http://server.invalid/", false),
    ] {
        let proxy = Server::start(|_| json(RESULT)).await;
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "network::one_exchange_in_a_process_of_its_own", "--ignored"]);
        for name in ["http_proxy", "HTTP_PROXY", "ALL_PROXY", "all_proxy", "NO_PROXY", "no_proxy"] {
            command.env_remove(name);
        }
        match no_proxy {
            "empty" => command.env("HTTP_PROXY", ""),
            no_proxy => command.env("NO_PROXY", no_proxy),
        };
        command.env(variable, format!("http://{}", proxy.address)).env("TEST_URL", url).arg("--nocapture");
        let output = in_time(tokio::task::spawn_blocking(move || command.output())).await.unwrap().unwrap();
        assert_eq!(proxy.requests().len(), usize::from(proxied), "{variable} {no_proxy} {url}: {output:?}");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let target = said.lines().find_map(|line| line.strip_prefix("target: ")).unwrap();
        assert_eq!(target.contains(&proxy.address.to_string()), proxied, "{target}");
    }
    assert_eq!(direct.requests().len(), 1);
}

#[tokio::test]
#[ignore = "run by another test, with an environment"]
async fn one_exchange_in_a_process_of_its_own() {
    if let Ok(url) = std::env::var("TEST_URL") {
        let peer = Peer::of(&HttpServer::new(&url).unwrap());
        println!("\ntarget: {}", peer.client.target());
        drop(peer.exchange(CALL).await);
    }
}
