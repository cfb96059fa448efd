//! K26: tunnels to a server with TLS, and names that are resolved by the host.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use mcp_reconnect::core::{FailureClass, ParkReason, Status};
use mcp_reconnect::http::HttpConnector;
use mcp_reconnect::{Builder, Connection, HttpServer, Resolve};
use mcp_reconnect_tests::fake::FakeHttp;

use super::k02::{soon, wave};
use super::k04::{fast, next_failure, until_back};
use super::k26::{Proxy, in_a_process, told};
use super::serve;
use super::tls::{Face, Tls, trusting};
use crate::support::*;

/// A resolver that gives one answer after the other, the last of them for ever.
struct Answers {
    left: Mutex<VecDeque<Vec<IpAddr>>>,
    asked: Mutex<usize>,
}

impl Answers {
    fn new(answers: &[&[IpAddr]]) -> Arc<Self> {
        Arc::new(Self {
            left: Mutex::new(answers.iter().map(|addresses| addresses.to_vec()).collect()),
            asked: Mutex::default(),
        })
    }

    fn asked(&self) -> usize {
        *self.asked.lock().unwrap()
    }
}

#[async_trait]
impl Resolve for Answers {
    async fn resolve(&self, host: &str) -> io::Result<Vec<IpAddr>> {
        assert!(matches!(host, "server.localhost" | "server.example"), "{host}");
        *self.asked.lock().unwrap() += 1;
        let mut left = self.left.lock().unwrap();
        let answer = if left.len() > 1 { left.pop_front() } else { left.front().cloned() };
        answer.ok_or_else(|| io::Error::other("unknown here"))
    }
}

const FOUR: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const OTHER: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));
const SIX: IpAddr = IpAddr::V6(Ipv6Addr::LOCALHOST);

fn to(server: HttpServer) -> Builder {
    Connection::builder(HttpConnector::new(server)).name("fake").seed(7)
}

fn named(server: &FakeHttp, resolver: &Arc<Answers>) -> HttpServer {
    let url = format!("http://server.localhost:{}/mcp", server.address().port());
    HttpServer::new(&url).unwrap().resolver(resolver.clone())
}

/// A tunnel to a server with TLS, by variables in both cases; what NO_PROXY names is reached directly.
#[tokio::test]
async fn k26_tunnel() {
    if let Some(url) = told() {
        let connection = to(trusting(&url).resolver(Answers::new(&[&[FOUR]]))).build().unwrap();
        assert_eq!(soon(until_ready(&mut connection.events())).await, 1);
        wave(&connection, 3).await;
        return soon(connection.shutdown()).await;
    }
    let server = serve("").await;
    let mut served = 0;
    for face in [Face::Good, Face::Http2] {
        let tls = Tls::start(&server, face).await;
        let url = format!("https://server.example:{}/mcp", tls.address.port());
        for (variables, tunnelled) in [
            (&["HTTPS_PROXY"][..], true),
            (&["https_proxy"], true),
            (&["ALL_PROXY"], true),
            (&["all_proxy"], true),
            (&["HTTP_PROXY", "http_proxy"], false),
            (&["HTTPS_PROXY", "NO_PROXY"], false),
            (&["https_proxy", "no_proxy"], false),
        ] {
            let proxy = Proxy::start("200 OK", tls.address).await;
            let via = proxy.url();
            let environment = variables.iter().map(|name| {
                (*name, if name.eq_ignore_ascii_case("NO_PROXY") { "elsewhere.example,server.example" } else { &*via })
            });
            in_a_process("http::k26_tls::k26_tunnel", &url, &environment.collect::<Vec<_>>()).await;
            assert_eq!(proxy.tunnels() > 0, tunnelled, "{face:?} {variables:?}");
            served += 3;
            assert_eq!(server.ledger().executions("write"), served, "{face:?} {variables:?}");
        }
        assert_eq!(tls.http2() > 0, face == Face::Http2);
    }
}

/// Both hops are named, whichever fails: the proxy that refuses is tried again, the certificate behind it is not.
#[tokio::test]
async fn k26_tunnel_fails() {
    let server = serve("").await;
    let tls = Tls::start(&server, Face::SelfSigned).await;
    for (answer, expected, says) in [
        ("502 Bad Gateway", (Status::TransientFailure, FailureClass::Transport), "the proxy to server.example:443"),
        ("403 Forbidden", (Status::TransientFailure, FailureClass::Transport), "the proxy to server.example:443"),
        ("200 OK", (Status::Parked(ParkReason::Permanent), FailureClass::Permanent), "TLS with server.example:443"),
    ] {
        let proxy = Proxy::start(answer, tls.address).await;
        let through = trusting("https://server.example/mcp").proxy(&proxy.url()).unwrap();
        let connection = to(through).build().unwrap();
        let (state, class, cause) = next_failure(&mut connection.events()).await;
        assert_eq!((state, class), expected, "{answer}: {cause}");
        let via = format!("through the proxy {}", proxy.url().trim_start_matches("http://"));
        assert!(cause.contains(says) && cause.contains(&via), "{answer}: {cause}");
        soon(connection.shutdown()).await;
    }
    assert_eq!(server.ledger().posts(), 0);
}

/// Also R108, whatever this machine's resolver says: one dial finds the address that lives, whichever comes first.
#[tokio::test]
async fn k26_dual_stack_in_one_dial() {
    for live in [FOUR, SIX] {
        for order in [[FOUR, SIX], [SIX, FOUR]] {
            let server = FakeHttp::start_on((live, 0).into(), "").await.unwrap();
            let resolver = Answers::new(&[&order]);
            let connection = to(named(&server, &resolver)).build().unwrap();
            assert_eq!(soon(until_ready(&mut connection.events())).await, 1, "{live} {order:?}");
            wave(&connection, 3).await;
            let stats = connection.snapshot().stats;
            assert_eq!((stats.dials, stats.failures, server.ledger().initializes()), (1, 0, 1), "{live} {order:?}");
            soon(connection.shutdown()).await;
        }
    }
}

/// A server that comes back at another address, under its name: nothing of the old one is remembered.
#[tokio::test]
async fn k26_another_address() {
    let old = FakeHttp::start_on((FOUR, 0).into(), "").await.unwrap();
    let port = old.address().port();
    let resolver = Answers::new(&[&[FOUR]]);
    let connection = fast(to(named(&old, &resolver))).build().unwrap();
    let mut events = connection.events();
    assert_eq!(soon(until_ready(&mut events)).await, 1);
    let new = FakeHttp::start_on((OTHER, port).into(), "").await.unwrap();
    *resolver.left.lock().unwrap() = [vec![OTHER]].into();
    let before = resolver.asked();
    drop(old);
    until_status(&mut events, |status| status == Status::TransientFailure).await;
    until_back(&mut events).await;
    wave(&connection, 3).await;
    assert!(resolver.asked() > before);
    assert_eq!((new.ledger().initializes(), new.ledger().executions("write")), (1, 3));
    soon(connection.shutdown()).await;
}

/// A name that is unknown for a while is an outage like any other.
#[tokio::test]
async fn k26_a_name_that_comes_back() {
    let server = serve("").await;
    let resolver = Answers::new(&[]);
    let connection = fast(to(named(&server, &resolver))).build().unwrap();
    let mut events = connection.events();
    let (state, class, cause) = next_failure(&mut events).await;
    assert_eq!((state, class), (Status::TransientFailure, FailureClass::Transport));
    assert!(cause.contains("resolver") && cause.contains("unknown here"), "{cause}");
    resolver.left.lock().unwrap().push_back(vec![FOUR]);
    until_back(&mut events).await;
    wave(&connection, 1).await;
    soon(connection.shutdown()).await;
}
