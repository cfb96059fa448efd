//! A proxy that breaks connections on purpose: faults in front of any TCP server, an MCP server behind HTTP for one.
//!
//! A [`ChaosProxy`] listens on loopback and forwards bytes to an upstream address. It understands none of them, so TLS,
//! HTTP of any version and event streams all pass. What it does wrong is set at run time, for each direction:
//!
//! | fault | in the field |
//! |---|---|
//! | [`Faults::BLACK_HOLE`] | a network that is away, a firewall that drops: connections are accepted and stay open, nothing passes |
//! | [`freeze`](ChaosProxy::freeze) | a NAT or a balancer that forgot its idle connections; new ones work |
//! | [`reset`](ChaosProxy::reset), [`Faults::RESET_AT_ACCEPT`] | a middlebox or a crashed peer: RST |
//! | [`Faults::REFUSE`] | nobody listens: connections are refused, those that are open stay |
//! | [`Faults::cut`] | an answer that breaks off after so many bytes |
//! | [`Faults::delay`] | a slow network |
//!
//! [`Stats`] counts what passed: the truth about what a client really sent and got. They can be waited for
//! ([`wait_until`](ChaosProxy::wait_until)), so that a test need not guess when its request is in the hole.
//!
//! # Example
//!
//! ```
//! # use mcp_reconnect_tests::chaos::{ChaosProxy, Faults};
//! # use mcp_reconnect_tests::fake::FakeHttp;
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let server = FakeHttp::start("").await?;
//! let proxy = ChaosProxy::start(server.address()).await?;
//! let url = format!("http://{}/mcp", proxy.address());
//! // … connect a client to `url`, then:
//! proxy.set(Faults::BLACK_HOLE).await?;
//! // … its next request is read, and held:
//! // proxy.wait_until(|stats| stats.requests.read > stats.requests.forwarded).await;
//! proxy.set(Faults::PASS).await?; // what was held goes on
//! proxy.reset().await?;
//! assert_eq!(proxy.stats().open, 0);
//! # Ok(())
//! # }
//! ```
//!
//! # What it keeps to
//!
//! - It reads at most one piece (64 KiB) of a direction ahead of what it forwards: a client that writes into a black
//!   hole is slowed down as by a real one, and what it had written by the time the hole closes is delivered then, late.
//! - It connects to the upstream when the first bytes of a connection are let through. No upstream: the connection is
//!   reset.
//! - The end of one direction is passed on as such, and subject to the same faults; a reset of one side resets the other.
//! - Nagle's algorithm is off on both sides. It uses tokio's clock and never polls.
//! - The binary `chaos-proxy` is the same for clients of other languages: it takes each [`Command`] as a line of its
//!   stdin.

mod command;
mod faults;
mod pipe;

use std::collections::BTreeSet;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{JoinHandle, JoinSet};

pub use command::{Command, CommandError};
pub use faults::{Cut, Direction, Door, End, Faults, Flow};
use pipe::carry;

/// How long it waits after the system refused to accept a connection, as it does when it runs out of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A proxy in front of one upstream, as tasks of this runtime. Dropping it closes its port and its connections.
#[derive(Debug)]
pub struct ChaosProxy {
    address: SocketAddr,
    upstream: SocketAddr,
    book: watch::Receiver<Book>,
    orders: mpsc::UnboundedSender<(Order, oneshot::Sender<io::Result<u64>>)>,
    task: JoinHandle<()>,
}

/// What passed a [`ChaosProxy`] so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Stats {
    /// Connections that were accepted, those that were reset at once included.
    pub accepted: u64,
    /// Connections that are open now, as far as the proxy knows: it does not see the end of one that it holds.
    pub open: u64,
    /// Connections that it cut ([`Flow::Cut`]).
    pub cut: u64,
    /// Connections that it reset, at accept or later.
    pub reset: u64,
    /// Connections that were reset because the upstream could not be reached.
    pub unreachable: u64,
    /// What came from clients.
    pub requests: Bytes,
    /// What came from the upstream.
    pub responses: Bytes,
}

/// The bytes of one direction, over all connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Bytes {
    /// How many it read.
    pub read: u64,
    /// How many of them it wrote to the other side. The rest is held, or was lost with its connection.
    pub forwarded: u64,
}

#[derive(Debug)]
enum Order {
    Set(Faults),
    Freeze,
    Reset,
}

/// What the connections go by.
#[derive(Clone, Copy, Debug, Default)]
struct Plan {
    faults: Faults,
    /// Grows with each setting: a cut counts the bytes since.
    setting: u64,
    /// Connections with a lower number are frozen.
    frozen_below: u64,
    /// Connections with a lower number reset themselves.
    reset_below: u64,
}

#[derive(Debug, Default)]
struct Book {
    stats: Stats,
    /// The numbers of the open connections.
    open: BTreeSet<u64>,
}

/// What the connections share.
#[derive(Debug)]
struct Shared {
    upstream: SocketAddr,
    plan: watch::Sender<Plan>,
    book: watch::Sender<Book>,
}

impl Shared {
    fn count(&self, what: impl FnOnce(&mut Stats)) {
        self.book.send_modify(|book| what(&mut book.stats));
    }
}

impl ChaosProxy {
    /// Starts on any port of 127.0.0.1, without a fault, within a tokio runtime.
    ///
    /// # Errors
    ///
    /// There is no port.
    pub async fn start(upstream: SocketAddr) -> io::Result<Self> {
        Self::start_on((Ipv4Addr::LOCALHOST, 0).into(), upstream).await
    }

    /// The same on this address.
    ///
    /// # Errors
    ///
    /// The address cannot be bound.
    pub async fn start_on(listen: SocketAddr, upstream: SocketAddr) -> io::Result<Self> {
        let mut door = crate::fake::Door::on(listen)?;
        let address = door.address()?;
        door.open()?;
        let (book, following) = watch::channel(Book::default());
        let shared = Arc::new(Shared { upstream, plan: watch::Sender::default(), book });
        let (orders, inbox) = mpsc::unbounded_channel();
        let task = tokio::spawn(Acceptor { door, shared, connections: JoinSet::new() }.run(inbox));
        Ok(Self { address, upstream, book: following, orders, task })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where it forwards to.
    pub fn upstream(&self) -> SocketAddr {
        self.upstream
    }

    /// Replaces the faults. They hold for what is forwarded when this has returned; what was held or frozen goes on if
    /// they let it. [`Door::Refuse`] leaves open connections alone.
    ///
    /// # Errors
    ///
    /// The port cannot be opened again.
    pub async fn set(&self, faults: Faults) -> io::Result<()> {
        self.order(Order::Set(faults)).await.map(drop)
    }

    /// From now on the connections that it has accepted so far are open and forward nothing, until the next
    /// [`set`](Self::set). New ones are not concerned. Gives the number of open ones.
    ///
    /// # Errors
    ///
    /// The proxy has ended.
    pub async fn freeze(&self) -> io::Result<u64> {
        self.order(Order::Freeze).await
    }

    /// Resets every open connection, towards the client and the upstream; returns when they are gone, with their
    /// number.
    ///
    /// # Errors
    ///
    /// The proxy has ended.
    pub async fn reset(&self) -> io::Result<u64> {
        let all = self.book.borrow().stats.accepted;
        let number = self.order(Order::Reset).await?;
        let gone = |book: &Book| book.open.range(..all).next().is_none();
        self.book.clone().wait_for(gone).await.map(|_| number).map_err(|_| ended())
    }

    /// What passed so far.
    pub fn stats(&self) -> Stats {
        self.book.borrow().stats
    }

    /// Waits until the stats say so, and returns them as they are then. Nothing is missed and nothing is polled; there is
    /// no deadline.
    pub async fn wait_until(&self, mut done: impl FnMut(&Stats) -> bool) -> Stats {
        match self.book.clone().wait_for(|book| done(&book.stats)).await.map(|book| book.stats) {
            Ok(stats) => stats,
            // The proxy is gone and nothing will change any more.
            Err(_) => std::future::pending().await,
        }
    }

    async fn order(&self, order: Order) -> io::Result<u64> {
        let (done, doing) = oneshot::channel();
        self.orders.send((order, done)).map_err(|_| ended())?;
        doing.await.unwrap_or_else(|_| Err(ended()))
    }
}

impl Drop for ChaosProxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn ended() -> io::Error {
    io::Error::other("the proxy has ended")
}

struct Acceptor {
    door: crate::fake::Door,
    shared: Arc<Shared>,
    connections: JoinSet<()>,
}

impl Acceptor {
    async fn run(mut self, mut orders: mpsc::UnboundedReceiver<(Order, oneshot::Sender<io::Result<u64>>)>) {
        loop {
            tokio::select! {
                biased;
                order = orders.recv() => {
                    let Some((order, done)) = order else { return };
                    let carried_out = self.carry_out(order);
                    // Nobody waits any more.
                    done.send(carried_out).ok();
                }
                Some(ended) = self.connections.join_next(), if !self.connections.is_empty() => {
                    // A task that panicked must not look like a fault.
                    if let Err(Ok(panic)) = ended.map_err(tokio::task::JoinError::try_into_panic) {
                        std::panic::resume_unwind(panic);
                    }
                }
                accepted = self.door.accept() => match accepted {
                    Ok(client) => self.accept(client),
                    Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
                },
            }
        }
    }

    fn carry_out(&mut self, order: Order) -> io::Result<u64> {
        let (accepted, open) = {
            let book = self.shared.book.borrow();
            (book.stats.accepted, book.stats.open)
        };
        match order {
            Order::Set(faults) => {
                if faults.door == Door::Refuse {
                    self.door.close();
                } else {
                    self.door.open()?;
                }
                self.shared.plan.send_modify(|plan| {
                    *plan = Plan { faults, setting: plan.setting + 1, frozen_below: 0, ..*plan };
                });
            }
            Order::Freeze => self.shared.plan.send_modify(|plan| plan.frozen_below = accepted),
            Order::Reset => self.shared.plan.send_modify(|plan| plan.reset_below = accepted),
        }
        Ok(open)
    }

    fn accept(&mut self, client: TcpStream) {
        let resets = self.shared.plan.borrow().faults.door == Door::Reset;
        let mut number = 0;
        self.shared.book.send_modify(|book| {
            number = book.stats.accepted;
            book.stats.accepted += 1;
            if resets {
                book.stats.reset += 1;
            } else {
                book.open.insert(number);
                book.stats.open += 1;
            }
        });
        if resets {
            // A client that is gone needs no reset.
            client.set_zero_linger().ok();
        } else {
            self.connections.spawn(carry(client, number, Arc::clone(&self.shared)));
        }
    }
}
