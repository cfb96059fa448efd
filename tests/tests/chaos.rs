//! The chaos proxy itself, in front of a server that says everything back.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;

use mcp_reconnect_tests::chaos::{ChaosProxy, Cut, Direction, End, Faults, Flow};
use mcp_reconnect_tests::fake::ReservedPort;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};
use tokio::task::JoinSet;

/// Far beyond anything a slow machine needs; reaching it is a failure, not a measurement.
const SOON: Duration = Duration::from_secs(60);

async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(SOON, future).await.expect("it should have happened by now")
}

/// Says back what it hears, per connection; ends when dropped.
async fn echo() -> (SocketAddr, JoinSet<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let mut connections = JoinSet::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            connections.spawn(async move {
                let (mut from, mut to) = stream.split();
                // Whatever breaks it is what the test is about.
                drop(tokio::io::copy(&mut from, &mut to).await);
                drop(to.shutdown().await);
            });
        }
    });
    (address, tasks)
}

async fn proxied() -> (ChaosProxy, JoinSet<()>) {
    let (upstream, tasks) = echo().await;
    (ChaosProxy::start(upstream).await.unwrap(), tasks)
}

async fn connected(proxy: &ChaosProxy) -> TcpStream {
    TcpStream::connect(proxy.address()).await.unwrap()
}

/// Says so, and hears it back.
async fn says(stream: &mut TcpStream, what: &[u8]) {
    stream.write_all(what).await.unwrap();
    let mut heard = vec![0; what.len()];
    soon(stream.read_exact(&mut heard)).await.unwrap();
    assert_eq!(heard, what);
}

/// Everything until the end, and how it ended.
async fn rest(stream: &mut TcpStream) -> (Vec<u8>, Result<(), ErrorKind>) {
    let mut heard = Vec::new();
    let ended = soon(stream.read_to_end(&mut heard)).await;
    (heard, ended.map(drop).map_err(|error| error.kind()))
}

#[tokio::test]
async fn bytes_and_ends_pass() {
    let (proxy, _upstream) = proxied().await;
    let mut stream = connected(&proxy).await;
    says(&mut stream, b"one").await;
    says(&mut stream, &vec![7; 300_000]).await;
    stream.shutdown().await.unwrap();
    assert_eq!(rest(&mut stream).await, (Vec::new(), Ok(())));
    let stats = soon(proxy.wait_until(|stats| stats.open == 0)).await;
    assert_eq!((stats.accepted, stats.cut, stats.reset, stats.unreachable), (1, 0, 0, 0));
    for bytes in [stats.requests, stats.responses] {
        assert_eq!((bytes.read, bytes.forwarded), (300_003, 300_003));
    }
}

/// Old connections and new ones; what was in it comes out late.
#[tokio::test]
async fn black_hole() {
    let (proxy, _upstream) = proxied().await;
    let mut old = connected(&proxy).await;
    says(&mut old, b"before").await;
    proxy.set(Faults::BLACK_HOLE).await.unwrap();
    old.write_all(b"old").await.unwrap();
    let mut new = connected(&proxy).await;
    new.write_all(b"new").await.unwrap();
    let stats = soon(proxy.wait_until(|stats| stats.requests.read == 12)).await;
    assert_eq!((stats.accepted, stats.open, stats.requests.forwarded, stats.responses.read), (2, 2, 6, 6));
    proxy.set(Faults::PASS).await.unwrap();
    for stream in [&mut old, &mut new] {
        let mut heard = [0; 3];
        soon(stream.read_exact(&mut heard)).await.unwrap();
        says(stream, b"after").await;
    }
}

#[tokio::test]
async fn one_direction_is_held() {
    let (proxy, _upstream) = proxied().await;
    let mut stream = connected(&proxy).await;
    proxy.set(Faults::only(Direction::Responses, Flow::Hold)).await.unwrap();
    stream.write_all(b"held").await.unwrap();
    let stats = soon(proxy.wait_until(|stats| stats.responses.read == 4)).await;
    assert_eq!((stats.requests.forwarded, stats.responses.forwarded), (4, 0));
    proxy.set(Faults::PASS).await.unwrap();
    soon(stream.read_exact(&mut [0; 4])).await.unwrap();
}

#[tokio::test]
async fn freeze_is_for_those_that_are_there() {
    let (proxy, _upstream) = proxied().await;
    let mut old = connected(&proxy).await;
    says(&mut old, b"before").await;
    assert_eq!(proxy.freeze().await.unwrap(), 1);
    let mut new = connected(&proxy).await;
    says(&mut new, b"new").await;
    old.write_all(b"old").await.unwrap();
    let stats = soon(proxy.wait_until(|stats| stats.requests.read == 12)).await;
    assert_eq!(stats.requests.forwarded, 9);
    proxy.set(Faults::PASS).await.unwrap();
    soon(old.read_exact(&mut [0; 3])).await.unwrap();
}

#[tokio::test]
async fn reset_is_for_those_that_are_there() {
    let (proxy, _upstream) = proxied().await;
    let mut streams = Vec::new();
    for _ in 0..3 {
        let mut stream = connected(&proxy).await;
        says(&mut stream, b"before").await;
        streams.push(stream);
    }
    assert_eq!(soon(proxy.reset()).await.unwrap(), 3);
    assert_eq!((proxy.stats().open, proxy.stats().reset), (0, 3));
    for stream in &mut streams {
        assert_eq!(rest(stream).await, (Vec::new(), Err(ErrorKind::ConnectionReset)));
    }
    says(&mut connected(&proxy).await, b"new").await;
    assert_eq!(soon(proxy.reset()).await.unwrap(), 1);
}

#[tokio::test]
async fn reset_at_accept() {
    let (proxy, _upstream) = proxied().await;
    let mut old = connected(&proxy).await;
    says(&mut old, b"before").await;
    proxy.set(Faults::RESET_AT_ACCEPT).await.unwrap();
    let mut new = connected(&proxy).await;
    assert_eq!(rest(&mut new).await, (Vec::new(), Err(ErrorKind::ConnectionReset)));
    says(&mut old, b"old ones live").await;
    let stats = proxy.stats();
    assert_eq!((stats.accepted, stats.open, stats.reset), (2, 1, 1));
}

#[tokio::test]
async fn refuse_and_open_again() {
    let (proxy, _upstream) = proxied().await;
    let mut old = connected(&proxy).await;
    says(&mut old, b"before").await;
    for _ in 0..3 {
        proxy.set(Faults::REFUSE).await.unwrap();
        let refused: io::Result<TcpStream> = TcpStream::connect(proxy.address()).await;
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::ConnectionRefused);
        says(&mut old, b"old ones live").await;
        proxy.set(Faults::PASS).await.unwrap();
        says(&mut connected(&proxy).await, b"new").await;
    }
    assert_eq!(proxy.stats().accepted, 4);
}

/// To the byte, and counted from when it was set.
#[tokio::test]
async fn cut() {
    let (proxy, _upstream) = proxied().await;
    for (end, ended) in [(End::Close, Ok(())), (End::Reset, Err(ErrorKind::ConnectionReset))] {
        for after in [0, 1, 99, 100] {
            let mut stream = connected(&proxy).await;
            says(&mut stream, b"before").await;
            let cut = Cut { after, end, once: false };
            proxy.set(Faults::only(Direction::Responses, Flow::Cut(cut))).await.unwrap();
            stream.write_all(&[7; 100]).await.unwrap();
            let (heard, how) = rest(&mut stream).await;
            assert_eq!((heard.len() as u64, how), (after, ended), "{cut:?}");
            proxy.set(Faults::PASS).await.unwrap();
        }
    }
    let stats = soon(proxy.wait_until(|stats| stats.open == 0)).await;
    assert_eq!((stats.cut, stats.reset, stats.responses.forwarded), (8, 0, 8 * 6 + 2 * 200));
}

#[tokio::test]
async fn cut_of_a_request() {
    let (proxy, _upstream) = proxied().await;
    let cut = Cut { after: 40, end: End::Reset, once: true };
    proxy.set(Faults::only(Direction::Requests, Flow::Cut(cut))).await.unwrap();
    let mut stream = connected(&proxy).await;
    stream.write_all(&[7; 100]).await.unwrap();
    assert_eq!(rest(&mut stream).await.1, Err(ErrorKind::ConnectionReset));
    assert_eq!((proxy.stats().requests.read, proxy.stats().requests.forwarded), (100, 40));
    says(&mut connected(&proxy).await, &[7; 100]).await;
}

#[tokio::test]
async fn cut_once() {
    let (proxy, _upstream) = proxied().await;
    let mut streams = Vec::new();
    for _ in 0..10 {
        streams.push(connected(&proxy).await);
    }
    let cut = Cut { after: 5, end: End::Close, once: true };
    proxy.set(Faults::only(Direction::Responses, Flow::Cut(cut))).await.unwrap();
    let mut lengths = Vec::new();
    for stream in &mut streams {
        stream.write_all(&[7; 10]).await.unwrap();
        stream.shutdown().await.ok(); // it may be cut already
    }
    for stream in &mut streams {
        lengths.push(rest(stream).await.0.len());
    }
    lengths.sort_unstable();
    assert_eq!(lengths, [vec![5], vec![10; 9]].concat());
    assert_eq!(proxy.stats().cut, 1);
}

/// Time passes in steps, so the length of the delay is no matter of the machine.
#[tokio::test]
async fn delay() {
    let (proxy, _upstream) = proxied().await;
    let mut stream = connected(&proxy).await;
    says(&mut stream, b"before").await;
    let hour = Duration::from_secs(3600);
    proxy.set(Faults::only(Direction::Responses, Flow::Delay(hour))).await.unwrap();
    stream.write_all(b"late").await.unwrap();
    soon(proxy.wait_until(|stats| stats.responses.read == 10)).await;
    skip(hour / 2).await;
    assert_eq!(proxy.stats().responses.forwarded, 6);
    skip(hour).await;
    soon(stream.read_exact(&mut [0; 4])).await.unwrap();
    // What waits hears of a change.
    stream.write_all(b"late").await.unwrap();
    soon(proxy.wait_until(|stats| stats.responses.read == 14)).await;
    proxy.set(Faults::delay(Duration::ZERO)).await.unwrap();
    soon(stream.read_exact(&mut [0; 4])).await.unwrap();
}

async fn skip(time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn no_upstream() {
    let port = ReservedPort::new().unwrap();
    let proxy = ChaosProxy::start(port.address().unwrap()).await.unwrap();
    let mut stream = connected(&proxy).await;
    stream.write_all(b"hello").await.unwrap();
    assert_eq!(rest(&mut stream).await, (Vec::new(), Err(ErrorKind::ConnectionReset)));
    let stats = soon(proxy.wait_until(|stats| stats.open == 0)).await;
    assert_eq!((stats.unreachable, stats.reset), (1, 0));
}

/// Nothing of it is left, what it held included.
#[tokio::test]
async fn dropped() {
    let (proxy, _upstream) = proxied().await;
    let address = proxy.address();
    let mut stream = connected(&proxy).await;
    says(&mut stream, b"before").await;
    proxy.set(Faults::BLACK_HOLE).await.unwrap();
    drop(proxy);
    // With FIN or RST, as it happens.
    drop(rest(&mut stream).await);
    assert_eq!(TcpStream::connect(address).await.unwrap_err().kind(), ErrorKind::ConnectionRefused);
}

/// The binary, as a test in another language would use it.
struct Spoken {
    child: Child,
    answers: tokio::io::Lines<BufReader<tokio::process::ChildStdout>>,
}

impl Spoken {
    fn start(args: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_chaos-proxy"));
        command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().unwrap();
        let answers = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, answers }
    }

    async fn answer(&mut self) -> Value {
        serde_json::from_str(&soon(self.answers.next_line()).await.unwrap().unwrap()).unwrap()
    }

    async fn order(&mut self, line: &str) -> Value {
        self.child.stdin.as_mut().unwrap().write_all(format!("{line}\n").as_bytes()).await.unwrap();
        self.answer().await
    }
}

#[tokio::test]
async fn binary() {
    let (upstream, _tasks) = echo().await;
    let mut proxy = Spoken::start(&["--upstream", &upstream.to_string()]);
    let listening = proxy.answer().await["listening"].as_str().unwrap().to_owned();
    let mut stream = TcpStream::connect(&listening).await.unwrap();
    says(&mut stream, b"hello").await;
    let stats = proxy.order("stats").await;
    assert_eq!((&stats["done"], &stats["stats"]["accepted"]), (&"stats".into(), &1.into()));
    assert_eq!(stats["stats"]["responses"]["forwarded"], 5);
    let wrong = proxy.order("cut ten").await;
    assert!(wrong["error"].as_str().unwrap().contains("`ten`"), "{wrong}");
    assert_eq!(proxy.order("cut 3 once").await["done"], "cut 3 once");
    stream.write_all(b"hello").await.unwrap();
    assert_eq!(rest(&mut stream).await.0, b"hel");
    for order in ["blackhole", "freeze", "delay 250ms", "hold requests", "reset accept", "refuse"] {
        assert_eq!(proxy.order(order).await["done"], order);
    }
    assert_eq!(TcpStream::connect(&listening).await.unwrap_err().kind(), ErrorKind::ConnectionRefused);
    assert_eq!(proxy.order("pass").await["done"], "pass");
    says(&mut TcpStream::connect(&listening).await.unwrap(), b"hello").await;
    assert_eq!(proxy.order("reset").await["stats"]["open"], 0);
    drop(proxy.child.stdin.take());
    assert!(soon(proxy.child.wait()).await.unwrap().success());
}

#[tokio::test]
async fn arguments_of_the_binary() {
    for (args, says) in [
        (&["--upstream"][..], "--upstream needs a value"),
        (&[], "--upstream is missing"),
        (&["--upstream", "nowhere"], "nowhere"),
        (&["--upstream", "127.0.0.1:1", "--listen", "4000"], "--listen 4000"),
        (&["--upstream", "127.0.0.1:1", "--port", "4000"], "unknown option --port"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_chaos-proxy"));
        let output = soon(command.args(args).stdin(Stdio::null()).output()).await.unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {stderr}");
        assert!(stderr.contains(says), "{args:?}: {stderr}");
    }
}
