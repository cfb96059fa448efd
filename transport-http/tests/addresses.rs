//! Names and addresses: who is asked, what is tried.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use mcp_reconnect_core::FailureClass;
use mcp_reconnect_core::replay::Sent;
use mcp_reconnect_http::{HttpServer, Resolve};
use tokio::net::TcpListener;

use crate::support::{Server, json};
use crate::{CALL, Peer, RESULT};

/// A resolver that gives one answer after the other, the last of them for ever.
pub(crate) struct Answers {
    left: Mutex<VecDeque<Vec<IpAddr>>>,
    asked: Mutex<Vec<String>>,
}

impl Answers {
    fn new(answers: &[&[&str]]) -> Arc<Self> {
        let parsed = answers.iter().map(|addresses| addresses.iter().map(|text| text.parse().unwrap()).collect());
        Arc::new(Self { left: Mutex::new(parsed.collect()), asked: Mutex::default() })
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

/// A resolver that knows these addresses for every name.
pub(crate) fn fixed(addresses: &[&str]) -> Arc<Answers> {
    Answers::new(&[addresses])
}

#[async_trait]
impl Resolve for Answers {
    async fn resolve(&self, host: &str) -> io::Result<Vec<IpAddr>> {
        self.asked.lock().unwrap().push(host.to_owned());
        let mut left = self.left.lock().unwrap();
        let answer = if left.len() > 1 { left.pop_front() } else { left.front().cloned() };
        answer.ok_or_else(|| io::Error::other("the zone is gone"))
    }
}

async fn on(address: IpAddr, port: u16) -> Server {
    Server::start_on(TcpListener::bind(SocketAddr::new(address, port)).await.unwrap(), |_| json(RESULT))
}

/// Whichever comes first, and whichever is dead: one exchange, one question.
#[tokio::test]
async fn both_address_families_are_tried() {
    let (four, six) = (IpAddr::from(Ipv4Addr::LOCALHOST), IpAddr::from(Ipv6Addr::LOCALHOST));
    for live in [four, six] {
        for order in [["::1", "127.0.0.1"], ["127.0.0.1", "::1"]] {
            // Nobody listens at the other address: ports are drawn per address, and this one was free a moment ago.
            let server = on(live, 0).await;
            let resolver = fixed(&order);
            let url = format!("http://Server.localhost:{}/mcp", server.address.port());
            let peer = Peer::of(&HttpServer::new(&url).unwrap().resolver(resolver.clone()));
            peer.exchange(CALL).await.unwrap();
            assert_eq!((server.requests().len(), resolver.asked()), (1, vec!["server.localhost".to_owned()]));
        }
    }
}

/// Nor is one address of a family all of it.
#[tokio::test]
async fn every_address_is_tried() {
    let server = on(Ipv4Addr::LOCALHOST.into(), 0).await;
    let url = format!("http://server.localhost:{}/mcp", server.address.port());
    let resolver = fixed(&["127.0.0.3", "127.0.0.2", "127.0.0.1"]);
    Peer::of(&HttpServer::new(&url).unwrap().resolver(resolver)).exchange(CALL).await.unwrap();
    assert_eq!(server.requests().len(), 1);
}

#[tokio::test]
async fn names_are_resolved_anew() {
    let old = on(Ipv4Addr::LOCALHOST.into(), 0).await;
    let new = on(Ipv4Addr::new(127, 0, 0, 2).into(), old.address.port()).await;
    let resolver = Answers::new(&[&["127.0.0.1"], &["127.0.0.2"]]);
    let url = format!("http://server.localhost:{}/mcp", old.address.port());
    let server = HttpServer::new(&url).unwrap().resolver(resolver.clone());
    let first = Peer::of(&server);
    first.exchange(CALL).await.unwrap();
    // A connection that is there needs no address.
    first.exchange(CALL).await.unwrap();
    assert_eq!((old.requests().len(), resolver.asked().len()), (2, 1));
    // Another session, though the first address still serves.
    Peer::of(&server).exchange(CALL).await.unwrap();
    assert_eq!((old.requests().len(), new.requests().len(), resolver.asked().len()), (2, 1, 2));
    // The first session too, once its connection is gone.
    old.stop().await;
    if first.exchange(CALL).await.is_err() {
        first.exchange(CALL).await.unwrap();
    }
    assert_eq!((new.requests().len(), resolver.asked().len()), (2, 3));
}

#[tokio::test]
async fn addresses_are_not_resolved() {
    let server = on(Ipv4Addr::LOCALHOST.into(), 0).await;
    let resolver = Answers::new(&[]);
    Peer::of(&HttpServer::new(&server.url()).unwrap().resolver(resolver.clone())).exchange(CALL).await.unwrap();
    assert!(resolver.asked().is_empty());
}

/// The proxy's name is ours to resolve, the server's is the proxy's.
#[tokio::test]
async fn behind_a_proxy_only_its_own_name_is_resolved() {
    let proxy = on(Ipv4Addr::LOCALHOST.into(), 0).await;
    let resolver = fixed(&["127.0.0.1"]);
    let via = format!("http://proxy.localhost:{}", proxy.address.port());
    let server = HttpServer::new("http://server.invalid/mcp").unwrap().proxy(&via).unwrap().resolver(resolver.clone());
    Peer::of(&server).exchange(CALL).await.unwrap();
    assert_eq!((proxy.requests().len(), resolver.asked()), (1, vec!["proxy.localhost".to_owned()]));
}

#[tokio::test]
async fn a_name_without_address_is_the_resolvers_fault() {
    let unknown = HttpServer::new("http://no-such-host.invalid/").unwrap();
    let server = || HttpServer::new("http://server.localhost/").unwrap();
    for (server, says) in [
        (unknown, "no-such-host.invalid"),
        (server().resolver(Answers::new(&[])), "the zone is gone"),
        (server().resolver(fixed(&[])), "no address"),
    ] {
        let error = Peer::of(&server).exchange(CALL).await.unwrap_err();
        assert_eq!((error.sent, error.failure.class), (Sent::No, FailureClass::Transport));
        assert!(error.cause.contains("the resolver, for") && error.cause.contains(says), "{error}");
    }
}
