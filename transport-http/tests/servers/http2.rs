//! A server that speaks HTTP/2 and nothing else.

use std::future::poll_fn;
use std::io;
use std::sync::Arc;

use h2::{Reason, RecvStream};
use http::{Response, header::CONTENT_TYPE};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy, sink};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::tls::accept;

/// The server's answer to a request that it has read.
#[derive(Clone, Debug)]
pub(crate) enum Fate {
    Answer(&'static str),
    /// The stream is reset: the request was not processed.
    Refuse,
    /// The connection is closed with a GOAWAY that lets no answer through.
    GoAway,
    /// The connection is closed without a word.
    Hangup,
    /// GOAWAY at once, the answer when the test gives a permit.
    Leave(&'static str, Arc<Semaphore>),
}

/// The server. Dropping it closes every socket.
pub(crate) struct Http2Server {
    port: u16,
    /// Each request that was read: the number of its connection, from 0, and its body.
    runs: watch::Sender<Vec<(usize, String)>>,
    _tasks: JoinSet<()>,
}

type Handler = Arc<dyn Fn(usize) -> Fate + Send + Sync>;

impl Http2Server {
    /// `handler`: what becomes of each request, counted from 0.
    pub(crate) async fn start(acceptor: TlsAcceptor, handler: impl Fn(usize) -> Fate + Send + Sync + 'static) -> Self {
        Self::leaving(acceptor, 0, handler).await
    }

    /// So many of its first connections say that they are about to leave before they have looked at the request.
    pub(crate) async fn leaving(
        acceptor: TlsAcceptor,
        connections_that_leave: usize,
        handler: impl Fn(usize) -> Fate + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (runs, handler): (_, Handler) = (watch::Sender::new(Vec::new()), Arc::new(handler));
        let mut tasks = JoinSet::new();
        let log = runs.clone();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            for number in 0.. {
                let Ok((socket, _)) = listener.accept().await else { return };
                let (acceptor, log, handler) = (acceptor.clone(), log.clone(), handler.clone());
                connections.spawn(async move {
                    match accept(&acceptor, socket).await {
                        Some(stream) if number < connections_that_leave => drop(leave(stream).await),
                        Some(stream) => drop(serve(stream, number, &log, &handler).await),
                        None => {}
                    }
                });
            }
        });
        Self { port, runs, _tasks: tasks }
    }

    pub(crate) fn url(&self) -> String {
        format!("https://localhost:{}/mcp", self.port)
    }

    pub(crate) fn runs(&self) -> Vec<(usize, String)> {
        self.runs.borrow().clone()
    }

    /// Waits until this many requests have run.
    pub(crate) async fn until_runs(&self, number: usize) {
        let mut runs = self.runs.subscribe();
        drop(crate::in_time(runs.wait_for(|runs| runs.len() == number)).await);
    }
}

/// One request at a time.
async fn serve(
    stream: TlsStream<TcpStream>,
    number: usize,
    runs: &watch::Sender<Vec<(usize, String)>>,
    handler: &Handler,
) -> Result<(), h2::Error> {
    let mut connection = h2::server::handshake(stream).await?;
    while let Some(request) = connection.accept().await {
        let (request, mut respond) = request?;
        // The connection moves only while it is polled.
        let body = tokio::select! {
            body = read(request.into_body()) => body?,
            ended = poll_fn(|context| connection.poll_closed(context)) => return ended,
        };
        let mut run = 0;
        runs.send_modify(|runs| {
            run = runs.len();
            runs.push((number, body));
        });
        let answer = match handler(run) {
            Fate::Answer(answer) => answer,
            Fate::Refuse => {
                respond.send_reset(Reason::REFUSED_STREAM);
                continue;
            }
            Fate::GoAway => {
                connection.abrupt_shutdown(Reason::NO_ERROR);
                continue;
            }
            Fate::Hangup => return Ok(()),
            Fate::Leave(answer, permits) => {
                connection.graceful_shutdown();
                tokio::select! {
                    permit = permits.acquire() => permit.unwrap().forget(),
                    ended = poll_fn(|context| connection.poll_closed(context)) => return ended,
                }
                answer
            }
        };
        let head = Response::builder().header(CONTENT_TYPE, "application/json").body(()).unwrap();
        respond.send_response(head, false)?.send_data(answer.into(), true)?;
    }
    Ok(())
}

/// Reads up to the end of the first request and says GOAWAY, with no stream among those that could have been processed
/// (RFC 9113, 6.8).
async fn leave(mut stream: TlsStream<TcpStream>) -> io::Result<()> {
    const HEAD: usize = 9;
    const SETTINGS: [u8; HEAD] = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    const GOAWAY: [u8; HEAD + 8] = [0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    stream.write_all(&SETTINGS).await?;
    stream.read_exact(&mut [0; b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".len()]).await?;
    loop {
        let mut head = [0; HEAD];
        stream.read_exact(&mut head).await?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        stream.read_exact(&mut vec![0; length as usize]).await?;
        if (head[3], head[4] & 1) == (0, 1) {
            break;
        }
    }
    stream.write_all(&GOAWAY).await?;
    stream.flush().await?;
    drop(copy(&mut stream, &mut sink()).await); // until the client hangs up
    Ok(())
}

async fn read(mut body: RecvStream) -> Result<String, h2::Error> {
    let mut read = Vec::new();
    while let Some(chunk) = body.data().await {
        let chunk = chunk?;
        body.flow_control().release_capacity(chunk.len())?;
        read.extend_from_slice(&chunk);
    }
    Ok(String::from_utf8_lossy(&read).into_owned())
}
