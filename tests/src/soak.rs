//! The chaos soak: the runtime as hosts use it, many real servers, and random faults for a given time.
//!
//! Each server is a process of the scripted [fake server](crate::fake), half of them over stdio, half over HTTP, and of
//! these every other one behind a [chaos proxy](crate::chaos). Each has one [`Connection`] and a few callers that call
//! tools with and without annotation, all with deadlines of their own. Faults come from outside (SIGKILL, SIGSTOP, the
//! network), from inside on a signal, and from inside by the script that is drawn for each spawn.
//!
//! What must hold:
//!
//! - Every call is settled, once, by its deadline. How late that may be told is measured by how late a timer is.
//! - What was answered ran, what was said not to have run did not, a call without annotation ran at most once, an
//!   annotated one at most twice, and every answer is that of its own call. The servers' ledgers say what ran.
//! - A server's old process tree is gone when the next one starts: each holds a lock for as long as one of its processes
//!   lives, and says so when it finds it held.
//! - Every server is back soon after the last fault.
//! - At rest there are as many tasks and descriptors as at the start; memory does not grow; in the end there is nothing.
//!
//! It rests at its start and then every tenth of its time: no fault, no call, first with every session Ready, then with
//! every connection parked, where nothing but the connections themselves may be left.
//!
//! Everything is drawn from a seed. When it happens is the machine's, so the same seed gives the same kind of run.

mod book;
mod callers;
mod faults;
mod growth;
mod plan;
mod report;
mod spawn;
mod stage;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use mcp_reconnect::core::{Config, ConfigBuilder, Status, WakeCause};
use mcp_reconnect::http::HttpConnector;
use mcp_reconnect::{Connection, Event, Events, HttpServer};
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

pub use book::{Book, Claim, Tool, Violation};
use callers::{Heartbeat, Outcomes, call, call_until};
pub use growth::Held;
use plan::Nature;
pub use report::{Report, Rest};
use stage::{Children, Stage, reserve, supervise};

use crate::chaos::ChaosProxy;
use crate::storm::dice::Dice;

/// How long a server may take to be back after the last fault.
const BACK: Duration = Duration::from_secs(60);
/// How long one call is given while it is waited for the server to be back.
const PROBE: Duration = Duration::from_secs(2);
/// How long the last process of a parked server may take to go, and of one that is shut down.
const GONE: Duration = Duration::from_secs(15);
/// By how much memory at rest may exceed that of the first rest after faults: a quarter, and this many KiB.
const MEMORY_SLACK: u64 = 8 << 10;

/// A run to be made.
#[derive(Clone, Debug)]
pub struct Soak {
    /// For how long, rests included.
    pub lasts: Duration,
    /// For everything that is drawn.
    pub seed: u64,
    /// How many servers over stdio, and as many over HTTP.
    pub servers: usize,
    /// How many callers each server has.
    pub callers: usize,
    /// The binary `fake-server`.
    pub program: PathBuf,
}

/// One server, its connection and its calls.
#[derive(Debug)]
struct Server {
    number: usize,
    connection: Connection,
    stage: Arc<Stage>,
    proxy: Option<ChaosProxy>,
    heartbeat: Arc<Heartbeat>,
    book: Mutex<Book>,
    outcomes: Mutex<Outcomes>,
    violations: Arc<Violations>,
}

impl Server {
    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add_outcome(&self, tool: Tool, outcome: &'static str, late: Duration) {
        let mut outcomes = self.outcomes.lock().unwrap_or_else(PoisonError::into_inner);
        *outcomes.counts.entry((tool.name(), outcome)).or_default() += 1;
        outcomes.latest = outcomes.latest.max(late);
    }

    fn accuse(&self, violation: Violation) {
        self.violations.add(violation);
    }

    fn accuse_of(&self, what: impl Into<String>) {
        self.accuse(Violation { server: Some(self.number), call: None, what: what.into() });
    }

    /// Calls it until it answers.
    async fn back(&self) {
        let until = Instant::now() + BACK;
        while !call(self, Tool::ReadOnly, PROBE, false).await {
            if Instant::now() > until {
                let status = self.connection.status();
                return self.accuse_of(format!("not back {BACK:?} after the last fault: {status:?}"));
            }
        }
    }
}

#[derive(Debug, Default)]
struct Violations(Mutex<Vec<Violation>>);

impl Violations {
    fn add(&self, violation: Violation) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(violation);
    }
}

/// Removes the directory of the run.
struct Root(PathBuf);

impl Root {
    fn new() -> io::Result<Self> {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let name = format!("soak-{}-{}", process::id(), MADE.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        // What cannot be removed lies in the system's temporary directory.
        drop(fs::remove_dir_all(&self.0));
    }
}

/// Short times, so that a minute holds hundreds of faults; long enough for a slow machine.
fn knobs() -> ConfigBuilder {
    let millis = Duration::from_millis;
    Config::builder()
        .connect_timeout(millis(3_000))
        .connect_timeout_max(millis(6_000))
        .backoff(millis(100))
        .backoff_max(millis(400))
        .stable_after(millis(300))
        .keepalive(millis(400))
        .ping_timeout(millis(400))
        .redial_spread(millis(20))
        .breaker_open(millis(300))
        .close_timeout(millis(10_000))
        .park_after(millis(2_000))
        .park_probe(millis(300))
        .park_probe_max(millis(600))
        .demand_interval(millis(60))
        .min_dial_interval(millis(50))
        .retry_after_max(millis(300))
}

impl Soak {
    /// Runs it, on a runtime with time and I/O enabled on which nothing else happens.
    ///
    /// # Errors
    ///
    /// The system refuses what the run itself needs: files, processes, ports. What the servers and their connections do
    /// wrong is in the report.
    pub async fn run(&self) -> io::Result<Report> {
        let root = Root::new()?;
        let before = Held::at_rest(None).await?;
        let heartbeat = Arc::new(Heartbeat::new());
        let mut permanent = JoinSet::new();
        permanent.spawn(Arc::clone(&heartbeat).run());
        let stop = CancellationToken::new();
        let mut supervisors = JoinSet::new();
        let violations = Arc::new(Violations::default());
        let mut servers = Vec::new();
        for number in 0..self.servers * 2 {
            let parts = (root.0.as_path(), &heartbeat, &violations);
            let server = self.set_up(number, parts, &mut supervisors, &stop).await?;
            let events = server.connection.events();
            permanent.spawn(listen(events, Arc::clone(&server)));
            servers.push(server);
        }
        let mut report = Report::new(self);
        let began = Instant::now();
        self.play(&servers, began, &mut report).await?;
        report.take(&servers, &heartbeat);

        for server in &servers {
            server.connection.shutdown().await;
        }
        stop.cancel();
        while let Some(stopped) = supervisors.join_next().await {
            joined(stopped)?;
        }
        for server in &servers {
            gone(server, "shut down").await?;
        }
        audit(&servers)?;
        permanent.shutdown().await;
        servers.clear();
        let after = Held::at_rest(Some(before)).await?;
        let mut found = std::mem::take(&mut *violations.0.lock().unwrap_or_else(PoisonError::into_inner));
        let whole = |what| Violation { server: None, call: None, what };
        if after.outgrows(&before) {
            found.push(whole(format!("after the end: {after}, before the start: {before}")));
        }
        let children = growth::children()?;
        if !children.is_empty() {
            found.push(whole(format!("processes are left: {}", children.join(", "))));
        }
        found.extend(report.growth().map(whole));
        report.violations = found;
        report.before_and_after = Some((before, after));
        Ok(report)
    }

    async fn set_up(
        &self,
        number: usize,
        (root, heartbeat, violations): (&Path, &Arc<Heartbeat>, &Arc<Violations>),
        supervisors: &mut JoinSet<io::Result<()>>,
        stop: &CancellationToken,
    ) -> io::Result<Arc<Server>> {
        let http = number >= self.servers;
        let nature = Nature::of(number % self.servers, http);
        let stage = Stage::new(number, &self.program, root, nature, self.dice(number, 0))?;
        let stage = Arc::new(stage);
        let mut proxy = None;
        let builder = if http {
            let (port, mut address) = reserve()?;
            supervisors.spawn(supervise(Arc::clone(&stage), port, stop.clone()));
            if behind_proxy(number) {
                let in_front = ChaosProxy::start(address).await?;
                address = in_front.address();
                proxy = Some(in_front);
            }
            let server = HttpServer::new(&format!("http://{address}/mcp")).map_err(io::Error::other)?;
            let server = server.connect_timeout(Duration::from_secs(1)).close_timeout(Duration::from_millis(500));
            Connection::builder(HttpConnector::new(server))
        } else {
            Connection::builder(Children(Arc::clone(&stage)))
        };
        let config = knobs().build().map_err(io::Error::other)?;
        let builder = builder.name(format!("server {number}")).config(config).seed(self.dice(number, 1).roll());
        let connection = builder.probe_patience(Duration::from_millis(500)).build().map_err(io::Error::other)?;
        let (book, outcomes) = (Mutex::new(Book::new(number)), Mutex::default());
        let (heartbeat, violations) = (Arc::clone(heartbeat), Arc::clone(violations));
        Ok(Arc::new(Server { number, connection, stage, proxy, heartbeat, book, outcomes, violations }))
    }

    /// The dice of one role at one server.
    fn dice(&self, server: usize, role: u64) -> Dice {
        let mut dice = Dice::new(self.seed.wrapping_mul(1_000_003).wrapping_add(server as u64 * 1_000 + role));
        Dice::new(dice.roll())
    }

    /// Times of faults, and rests between them.
    async fn play(&self, servers: &[Arc<Server>], began: Instant, report: &mut Report) -> io::Result<()> {
        let parts = u32::try_from(self.lasts.as_secs() / 15).unwrap_or(u32::MAX).clamp(2, 10);
        rest(servers, began, report).await?;
        for part in 1..=parts {
            let until = began + self.lasts * part / parts;
            let mut running = JoinSet::new();
            for server in servers {
                server.stage.set_benign(false);
                for caller in 0..self.callers {
                    let dice = self.dice(server.number, u64::from(part) * 100 + 10 + caller as u64);
                    let server = Arc::clone(server);
                    running.spawn(async move {
                        call_until(&server, until, dice).await;
                        Ok(())
                    });
                }
                let (server, dice) = (Arc::clone(server), self.dice(server.number, u64::from(part) * 100 + 2));
                running.spawn(async move { faults::inject(&server, until, dice).await });
            }
            while let Some(ended) = running.join_next().await {
                joined(ended)?;
            }
            rest(servers, began, report).await?;
        }
        Ok(())
    }
}

/// Of the servers over HTTP.
fn behind_proxy(number: usize) -> bool {
    number.is_multiple_of(2)
}

/// A task that failed or panicked ends the run.
fn joined(ended: Result<io::Result<()>, JoinError>) -> io::Result<()> {
    ended.map_err(io::Error::other)?
}

/// Nothing goes wrong any more: every server comes back, is parked, is compared with its book, and is woken.
async fn rest(servers: &[Arc<Server>], began: Instant, report: &mut Report) -> io::Result<()> {
    let healing = Instant::now();
    let mut probes = JoinSet::new();
    for server in servers {
        server.stage.set_benign(true);
        let server = Arc::clone(server);
        probes.spawn(async move { server.back().await });
    }
    while let Some(back) = probes.join_next().await {
        back.map_err(io::Error::other)?;
    }
    let healed = healing.elapsed();
    let ready = Held::at_rest(None).await?;
    for server in servers {
        server.connection.park();
    }
    for server in servers.iter().filter(|server| !server.stage.nature.http) {
        gone(server, "parked").await?;
        server.stage.forget_process();
    }
    for proxy in servers.iter().filter_map(|server| server.proxy.as_ref()) {
        // What a server holds open that reads nothing any more is no socket of the client.
        proxy.reset().await?;
    }
    let parked = Held::at_rest(report.rests.first().map(|rest| rest.parked)).await?;
    audit(servers)?;
    report.rests.push(Rest { at: began.elapsed(), healed, ready, parked });
    for server in servers {
        server.connection.wake(WakeCause::Operator);
    }
    Ok(())
}

/// No process of it may be left.
async fn gone(server: &Server, why: &str) -> io::Result<()> {
    match timeout(GONE, server.stage.alone()).await {
        Ok(alone) => alone,
        Err(_) => {
            server.accuse_of(format!("a process lives {GONE:?} after it was {why}"));
            Ok(())
        }
    }
}

fn audit(servers: &[Arc<Server>]) -> io::Result<()> {
    for server in servers {
        let mut book = server.book();
        let read = server.stage.read_into(&mut book)?;
        read.into_iter().chain(book.audit()).for_each(|violation| server.accuse(violation));
    }
    Ok(())
}

/// Epochs only grow, and every change is told.
async fn listen(mut events: Events, server: Arc<Server>) {
    let mut last = 0;
    while let Some(event) = events.next().await {
        match event {
            Event::Status { status: Status::Ready(epoch), .. } => {
                if epoch.get() <= last {
                    server.accuse_of(format!("epoch {epoch} was Ready after {last}"));
                }
                last = epoch.get();
            }
            Event::Missed { count } => server.accuse_of(format!("{count} events were missed")),
            _ => {}
        }
    }
}
