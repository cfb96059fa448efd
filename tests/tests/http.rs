//! The scenarios over streamable HTTP: real sockets on loopback, so nothing here asserts a time.

mod clock;
mod front;
mod k02;
mod k03;
mod k04;
mod k04_tls;
mod k05;
mod k06;
mod k08;
mod k09;
mod k11;
mod k12;
mod k13;
mod k15;
mod k16;
mod k17;
mod k18;
mod k19;
mod k20;
mod k21;
mod k23;
mod k24;
mod k25;
mod k26;
mod k26_tls;
mod oauth;
mod tls;

use mcp_reconnect::http::HttpConnector;
use mcp_reconnect::{Builder, Connection, Events, HttpServer};
use mcp_reconnect_tests::fake::FakeHttp;

use crate::support::until_ready;

/// A fake server on a port of its own.
async fn serve(script: &str) -> FakeHttp {
    FakeHttp::start(script).await.unwrap_or_else(|error| panic!("{error}"))
}

/// A connection to it, before it is built: default knobs, a fixed seed.
fn builder(server: &FakeHttp) -> Builder {
    Connection::builder(HttpConnector::new(HttpServer::new(&server.url()).unwrap())).name("fake").seed(7)
}

/// A Ready connection with its first session, and what it tells from then on.
async fn ready(script: &str) -> (FakeHttp, Connection, Events) {
    let server = serve(script).await;
    let connection = builder(&server).build().unwrap();
    let mut events = connection.events();
    assert_eq!(until_ready(&mut events).await, 1);
    (server, connection, events)
}
