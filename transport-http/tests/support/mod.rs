//! A hand-made HTTP/1.1 server that does exactly what a test says, mistakes included.

#![allow(dead_code, reason = "each test binary uses its part")]

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;

/// One request as it came.
#[derive(Clone, Debug, Default)]
pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) path: String,
    /// Names in lower case.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
    /// Which connection it came on, counted from 0.
    pub(crate) connection: usize,
}

impl Request {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap_or_default()
    }

    /// The JSON-RPC method.
    pub(crate) fn rpc(&self) -> String {
        self.json()["method"].as_str().unwrap_or_default().to_owned()
    }

    /// The JSON-RPC id as it is written.
    pub(crate) fn id(&self) -> String {
        self.json()["id"].to_string()
    }

    pub(crate) fn session(&self) -> Option<&str> {
        self.header("mcp-session-id")
    }

    /// A result for it.
    pub(crate) fn result(&self, result: &str) -> String {
        format!(r#"{{"jsonrpc":"2.0","id":{},"result":{result}}}"#, self.id())
    }
}

/// What the server does with a request, step by step.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Write(Vec<u8>),
    /// Waits until the test gives a permit.
    Wait(Arc<Semaphore>),
    /// Until the client hangs up.
    Hold,
    Close,
    Reset,
}

/// How a stream ends.
#[derive(Clone, Debug)]
pub(crate) enum End {
    Clean,
    Cut,
    Hold,
    Reset,
}

pub(crate) fn answer(status: u16, headers: &[(&str, &str)], body: &str) -> Vec<Step> {
    let mut text = format!("HTTP/1.1 {status} X\r\ncontent-length: {}\r\n", body.len());
    for (name, value) in headers {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    text.push_str("\r\n");
    text.push_str(body);
    vec![Step::Write(text.into_bytes())]
}

pub(crate) fn json(body: &str) -> Vec<Step> {
    answer(200, &[("content-type", "application/json")], body)
}

pub(crate) fn status(status: u16) -> Vec<Step> {
    answer(status, &[], "")
}

pub(crate) fn sse(headers: &[(&str, &str)], events: &[&str], end: End) -> Vec<Step> {
    let mut text = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n".to_owned();
    for (name, value) in headers {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    text.push_str("\r\n");
    let mut steps = vec![Step::Write(text.into_bytes())];
    steps.extend(events.iter().map(|event| event_chunk(event)));
    steps.push(match end {
        End::Clean => Step::Write(b"0\r\n\r\n".to_vec()),
        End::Cut => Step::Close,
        End::Hold => Step::Hold,
        End::Reset => Step::Reset,
    });
    steps
}

pub(crate) fn event_chunk(event: &str) -> Step {
    Step::Write(format!("{:x}\r\n{event}\r\n", event.len()).into_bytes())
}

/// A `message` event with this frame.
pub(crate) fn event(frame: &str) -> String {
    format!("data: {frame}\n\n")
}

type Handler = Arc<dyn Fn(&Request) -> Vec<Step> + Send + Sync>;

/// The server. Dropping it closes every socket.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    log: watch::Sender<Vec<Request>>,
    open: watch::Sender<HashSet<usize>>,
    tasks: JoinSet<()>,
}

impl Server {
    pub(crate) async fn start(handler: impl Fn(&Request) -> Vec<Step> + Send + Sync + 'static) -> Self {
        Self::start_on(TcpListener::bind("127.0.0.1:0").await.unwrap(), handler)
    }

    pub(crate) fn start_on(
        listener: TcpListener,
        handler: impl Fn(&Request) -> Vec<Step> + Send + Sync + 'static,
    ) -> Self {
        let address = listener.local_addr().unwrap();
        let (log, open) = (watch::Sender::new(Vec::new()), watch::Sender::new(HashSet::new()));
        let handler: Handler = Arc::new(handler);
        let mut tasks = JoinSet::new();
        tasks.spawn(accept(listener, handler, log.clone(), open.clone()));
        Self { address, log, open, tasks }
    }

    /// Closes every socket; the address is free when it returns.
    pub(crate) async fn stop(mut self) {
        self.tasks.shutdown().await;
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/mcp", self.address)
    }

    pub(crate) fn requests(&self) -> Vec<Request> {
        self.log.borrow().clone()
    }

    /// How many requests had this method: an HTTP one in upper case, or a JSON-RPC one.
    pub(crate) fn count(&self, method: &str) -> usize {
        self.requests().iter().filter(|request| request.method == method || request.rpc() == method).count()
    }

    /// Waits until the log is like this.
    pub(crate) async fn until(&self, what: &str, done: impl FnMut(&Vec<Request>) -> bool) {
        let mut log = self.log.subscribe();
        if timeout(PATIENCE, log.wait_for(done)).await.is_err() {
            panic!("{what} did not come: {:#?}", self.requests());
        }
    }

    /// Waits until this many sockets are open.
    pub(crate) async fn until_open(&self, sockets: usize) {
        let mut open = self.open.subscribe();
        let found = timeout(PATIENCE, open.wait_for(|open| open.len() == sockets)).await.is_ok();
        assert!(found, "{:?} are open, not {sockets}", *self.open.borrow());
    }

    /// Waits until this connection is closed.
    pub(crate) async fn until_closed(&self, connection: usize) {
        let mut open = self.open.subscribe();
        let found = timeout(PATIENCE, open.wait_for(|open| !open.contains(&connection))).await.is_ok();
        assert!(found, "connection {connection} is open");
    }
}

/// How long a test waits for what must come.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

async fn accept(
    listener: TcpListener,
    handler: Handler,
    log: watch::Sender<Vec<Request>>,
    open: watch::Sender<HashSet<usize>>,
) {
    let mut connections = JoinSet::new();
    for number in 0.. {
        let Ok((socket, _)) = listener.accept().await else { return };
        drop(socket.set_nodelay(true));
        let (handler, log, open) = (handler.clone(), log.clone(), open.clone());
        open.send_modify(|open| _ = open.insert(number));
        connections.spawn(async move {
            serve(socket, number, &handler, &log).await;
            open.send_modify(|open| _ = open.remove(&number));
        });
    }
}

async fn serve(mut socket: TcpStream, connection: usize, handler: &Handler, log: &watch::Sender<Vec<Request>>) {
    let mut buffer = Vec::new();
    while let Some(mut request) = read_request(&mut socket, &mut buffer).await {
        request.connection = connection;
        // What the handler does is known before the test hears of the request.
        let steps = handler(&request);
        log.send_modify(|log| log.push(request));
        for step in steps {
            match step {
                Step::Write(bytes) => {
                    if socket.write_all(&bytes).await.is_err() {
                        return;
                    }
                }
                Step::Wait(permits) => {
                    let mut byte = [0];
                    tokio::select! {
                        permit = permits.acquire() => permit.unwrap().forget(),
                        _ = socket.read(&mut byte) => return,
                    }
                }
                Step::Hold => {
                    let mut byte = [0];
                    drop(socket.read(&mut byte).await);
                    return;
                }
                Step::Close => return,
                Step::Reset => {
                    drop(socket.set_zero_linger());
                    return;
                }
            }
        }
    }
}

async fn read_request(socket: &mut TcpStream, buffer: &mut Vec<u8>) -> Option<Request> {
    let head_end = loop {
        if let Some(at) = buffer.windows(4).position(|window| window == b"\r\n\r\n") {
            break at + 4;
        }
        if socket.read_buf(buffer).await.ok()? == 0 {
            return None;
        }
    };
    let head = String::from_utf8_lossy(&buffer[..head_end]).into_owned();
    let mut lines = head.lines();
    let mut start = lines.next()?.split(' ');
    let mut request = Request {
        method: start.next()?.to_owned(),
        path: start.next()?.to_owned(),
        headers: lines
            .filter_map(|line| line.split_once(": "))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
            .collect(),
        ..Request::default()
    };
    let length: usize = request.header("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
    while buffer.len() < head_end + length {
        if socket.read_buf(buffer).await.ok()? == 0 {
            return None;
        }
    }
    request.body = String::from_utf8_lossy(&buffer[head_end..head_end + length]).into_owned();
    buffer.drain(..head_end + length);
    Some(request)
}
