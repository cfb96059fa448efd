//! One connection through the proxy: two directions, each subject to its faults.

use std::io;
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::faults::{Direction, End, Flow};
use super::{Bytes, Plan, Shared, Stats};

/// How much is read ahead of what is forwarded.
const PIECE: usize = 64 * 1024;

/// Forwards until the connection ends, one way or another.
pub(super) async fn carry(client: TcpStream, number: u64, shared: Arc<Shared>) {
    // Struck from the book when the sockets below are closed: what is declared later is dropped earlier.
    let entry = Entry { number, shared };
    let (mut client, mut upstream) = (client, None);
    let shared = &*entry.shared;
    let mut plan = shared.plan.subscribe();
    let end = tokio::select! {
        biased;
        _ = plan.wait_for(|plan| number < plan.reset_below) => {
            shared.count(|stats| stats.reset += 1);
            End::Reset
        }
        end = relay(&mut client, &mut upstream, number, shared) => end,
    };
    if end == End::Reset {
        for socket in [Some(&client), upstream.as_ref()].into_iter().flatten() {
            // What is gone already needs no reset.
            socket.set_zero_linger().ok();
        }
    }
}

/// An open connection, in the book.
struct Entry {
    number: u64,
    shared: Arc<Shared>,
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.shared.book.send_modify(|book| {
            book.open.remove(&self.number);
            book.stats.open -= 1;
        });
    }
}

async fn relay(client: &mut TcpStream, upstream: &mut Option<TcpStream>, number: u64, shared: &Shared) -> End {
    // A connection that is broken already shows it soon enough.
    client.set_nodelay(true).ok();
    let mut requests = Pipe::new(Direction::Requests, number, shared);
    let mut responses = Pipe::new(Direction::Responses, number, shared);
    // The upstream hears of a client when it hears something from it.
    let first = match requests.read(client).await {
        Ok(0) => return End::Close,
        Ok(_) => requests.released().await,
        Err(_) => return End::Reset,
    };
    let Ok(server) = TcpStream::connect(shared.upstream).await else {
        shared.count(|stats| stats.unreachable += 1);
        return End::Reset;
    };
    server.set_nodelay(true).ok();
    let (mut from_upstream, mut to_upstream) = upstream.insert(server).split();
    let (mut from_client, mut to_client) = client.split();
    let there = async {
        requests.forward(&mut to_upstream, first).await?;
        requests.run(&mut from_client, &mut to_upstream).await
    };
    let ended = tokio::try_join!(there, responses.run(&mut from_upstream, &mut to_client));
    ended.err().unwrap_or(End::Close)
}

/// How much of a piece may pass.
#[derive(Clone, Copy, Debug)]
enum Let {
    All,
    /// So many bytes, then the connection ends.
    Cut(usize, End),
}

/// One direction of a connection.
struct Pipe<'a> {
    direction: Direction,
    number: u64,
    shared: &'a Shared,
    plan: watch::Receiver<Plan>,
    piece: Vec<u8>,
    read_at: Instant,
    /// How many bytes passed under this setting of the faults.
    passed: u64,
    setting: u64,
}

impl<'a> Pipe<'a> {
    fn new(direction: Direction, number: u64, shared: &'a Shared) -> Self {
        let plan = shared.plan.subscribe();
        Self { direction, number, shared, plan, piece: Vec::new(), read_at: Instant::now(), passed: 0, setting: 0 }
    }

    /// Reads the next piece; 0 for the end of this direction.
    async fn read(&mut self, from: &mut (impl AsyncRead + Unpin)) -> io::Result<usize> {
        self.piece.clear();
        self.piece.reserve(PIECE);
        let read = from.read_buf(&mut self.piece).await?;
        self.read_at = Instant::now();
        self.count(|bytes| bytes.read += read as u64);
        Ok(read)
    }

    /// Waits until the piece may pass.
    async fn released(&mut self) -> Let {
        loop {
            let plan = *self.plan.borrow_and_update();
            if plan.setting != self.setting {
                (self.setting, self.passed) = (plan.setting, 0);
            }
            let frozen = self.number < plan.frozen_below;
            match if frozen { Flow::Hold } else { plan.faults.flow(self.direction) } {
                Flow::Pass => return Let::All,
                Flow::Hold => self.changed().await,
                Flow::Delay(time) => {
                    let due = self.read_at.checked_add(time);
                    if due.is_some_and(|due| due <= Instant::now()) {
                        return Let::All;
                    }
                    tokio::select! {
                        () = sleep_until(due.unwrap_or(self.read_at)), if due.is_some() => {}
                        () = self.changed() => {}
                    }
                }
                Flow::Cut(cut) => {
                    let left = usize::try_from(cut.after.saturating_sub(self.passed)).unwrap_or(usize::MAX);
                    if self.piece.is_empty() || self.piece.len() < left {
                        return Let::All;
                    }
                    if self.claim_cut(plan.setting) {
                        return Let::Cut(left, cut.end);
                    }
                }
            }
        }
    }

    async fn changed(&mut self) {
        // The sender lives in `shared`.
        self.plan.changed().await.ok();
    }

    /// Whether this connection is one of those that are cut: under a setting that still holds.
    fn claim_cut(&self, setting: u64) -> bool {
        let mut claimed = false;
        self.shared.plan.send_if_modified(|plan| {
            let flow = plan.faults.flow_mut(self.direction);
            let Flow::Cut(cut) = *flow else { return false };
            claimed = plan.setting == setting;
            if claimed && cut.once {
                *flow = Flow::Pass;
            }
            claimed && cut.once
        });
        claimed
    }

    /// Writes the piece, or what of it may pass.
    async fn forward(&mut self, to: &mut (impl AsyncWrite + Unpin), how: Let) -> Result<(), End> {
        let (length, end) = match how {
            Let::All => (self.piece.len(), None),
            Let::Cut(length, end) => (length, Some(end)),
        };
        to.write_all(&self.piece[..length]).await.map_err(|_| End::Reset)?;
        self.passed += length as u64;
        self.count(|bytes| bytes.forwarded += length as u64);
        match end {
            Some(end) => {
                self.shared.count(|stats| stats.cut += 1);
                Err(end)
            }
            None => Ok(()),
        }
    }

    /// Forwards until this direction ends, and passes the end on.
    async fn run(
        &mut self,
        from: &mut (impl AsyncRead + Unpin),
        to: &mut (impl AsyncWrite + Unpin),
    ) -> Result<(), End> {
        loop {
            let read = self.read(from).await.map_err(|_| End::Reset)?;
            let how = self.released().await;
            if read == 0 {
                return to.shutdown().await.map_err(|_| End::Reset);
            }
            self.forward(to, how).await?;
        }
    }

    fn count(&self, what: impl FnOnce(&mut Bytes)) {
        self.shared.count(|Stats { requests, responses, .. }| match self.direction {
            Direction::Requests => what(requests),
            Direction::Responses => what(responses),
        });
    }
}
