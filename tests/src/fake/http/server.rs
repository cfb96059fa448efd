//! A fake HTTP server in this process, from the outside.

use std::future::pending;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

use super::PATH;
use super::port::Door;
use super::serve::Incarnation;
use crate::fake::ledger::{Event, Ledger, LedgerWatch, LedgerWriter};
use crate::fake::lex::ScriptError;
use crate::fake::script::{Plan, Script};

/// A server that plays a script over HTTP on a loopback port of its own, as tasks of this process.
///
/// A spawn of its script is one incarnation: [`restart`](Self::restart) begins the next, with an empty session table.
/// When a script ends an incarnation (`exit`, `kill`), its connections are closed and its port refuses until the
/// restart. Sockets are real, so time must not be paused. An order is carried out when its method returns. Dropping it ends every task and closes every socket.
#[derive(Debug)]
pub struct FakeHttp {
    address: SocketAddr,
    script: Arc<Mutex<Script>>,
    ledger: watch::Sender<Ledger>,
    orders: mpsc::UnboundedSender<(Order, oneshot::Sender<()>)>,
    task: JoinHandle<()>,
}

#[derive(Debug)]
enum Order {
    Restart,
    Down(Option<Duration>),
    Up,
    Freeze(bool),
    Forget,
    Disconnect,
    Replan,
}

impl FakeHttp {
    /// Starts the first incarnation on any port of 127.0.0.1, within a tokio runtime.
    ///
    /// # Errors
    ///
    /// The script does not follow the grammar, or there is no port.
    pub async fn start(script: &str) -> io::Result<Self> {
        Self::start_on((Ipv4Addr::LOCALHOST, 0).into(), script).await
    }

    /// The same on this address.
    ///
    /// # Errors
    ///
    /// As above, or the address cannot be bound.
    pub async fn start_on(address: SocketAddr, script: &str) -> io::Result<Self> {
        let script = Script::parse(script).map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        let mut door = Door::on(address)?;
        let address = door.address()?;
        door.open()?;
        let script = Arc::new(Mutex::new(script));
        let ledger = watch::Sender::new(Ledger::default());
        let (orders, inbox) = mpsc::unbounded_channel();
        let mut supervisor = Supervisor {
            script: Arc::clone(&script),
            ledger: ledger.clone(),
            made: Instant::now(),
            spawned: 0,
            door,
            up_at: None,
            incarnation: None,
        };
        supervisor.spawn();
        let task = tokio::spawn(supervisor.run(inbox));
        Ok(Self { address, script, ledger, orders, task })
    }

    /// Its endpoint.
    pub fn url(&self) -> String {
        format!("http://{}{PATH}", self.address)
    }

    /// Where it listens, in all incarnations.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What its incarnations saw and did.
    pub fn ledger(&self) -> Ledger {
        self.ledger.borrow().clone()
    }

    /// The same, to wait for.
    pub fn watch(&self) -> LedgerWatch {
        LedgerWatch::new(self.ledger.subscribe())
    }

    /// Replaces the script, at once: for the running incarnation from its next request on, and for those to come.
    /// What its lines for the start and for times after the start say is not made up for.
    ///
    /// # Errors
    ///
    /// The script does not follow the grammar; the old one stays.
    pub async fn set_script(&self, script: &str) -> Result<(), ScriptError> {
        *lock(&self.script) = Script::parse(script)?;
        self.order(Order::Replan).await;
        Ok(())
    }

    /// Ends the incarnation as a kill would and begins the next on the same port, opening it if it was closed. When
    /// this returns, every old connection is closed; no connection was refused meanwhile.
    pub async fn restart(&self) {
        self.order(Order::Restart).await;
    }

    /// Closes the port and every connection: from now on connections are refused. The incarnation lives on, with its
    /// sessions.
    pub async fn down(&self) {
        self.order(Order::Down(None)).await;
    }

    /// The same for this long.
    pub async fn down_for(&self, time: Duration) {
        self.order(Order::Down(Some(time))).await;
    }

    /// Opens the port again; begins the next incarnation if a script has ended the last one.
    pub async fn up(&self) {
        self.order(Order::Up).await;
    }

    /// From now on it accepts connections and reads and writes nothing.
    pub async fn freeze(&self) {
        self.order(Order::Freeze(true)).await;
    }

    /// Goes on where it was frozen.
    pub async fn thaw(&self) {
        self.order(Order::Freeze(false)).await;
    }

    /// Forgets every session, as the action `forget` does.
    pub async fn forget_sessions(&self) {
        self.order(Order::Forget).await;
    }

    /// Resets every connection, as the action `disconnect` does; the port stays open.
    pub async fn disconnect(&self) {
        self.order(Order::Disconnect).await;
    }

    async fn order(&self, order: Order) {
        let (done, doing) = oneshot::channel();
        // A server that panicked takes no orders; what waits for this one tells.
        self.orders.send((order, done)).ok();
        doing.await.expect("the server lives as long as this");
    }
}

impl Drop for FakeHttp {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Supervisor {
    script: Arc<Mutex<Script>>,
    ledger: watch::Sender<Ledger>,
    made: Instant,
    spawned: u32,
    door: Door,
    up_at: Option<Instant>,
    incarnation: Option<(LedgerWriter, Incarnation)>,
}

impl Supervisor {
    async fn run(mut self, mut orders: mpsc::UnboundedReceiver<(Order, oneshot::Sender<()>)>) {
        loop {
            let due = self.up_at;
            tokio::select! {
                biased;
                order = orders.recv() => {
                    let Some((order, done)) = order else { return };
                    self.carry_out(order).await;
                    // Nobody waits any more.
                    done.send(()).ok();
                }
                () = async {
                    match due {
                        Some(due) => sleep_until(due).await,
                        None => pending().await,
                    }
                } => {
                    self.up();
                }
                _ = async {
                    match &mut self.incarnation {
                        Some((_, incarnation)) => incarnation.exited().await,
                        None => pending().await,
                    }
                } => {
                    self.door.close();
                    let respawn = self.incarnation.as_ref().and_then(|(_, i)| i.host.plan.get().http.respawn);
                    self.end().await;
                    self.up_at = respawn.map(|delay| Instant::now() + delay);
                }
                stream = self.door.accept() => {
                    if let (Ok(stream), Some((_, incarnation))) = (stream, &mut self.incarnation) {
                        incarnation.accept(stream);
                    }
                }
            }
        }
    }

    async fn carry_out(&mut self, order: Order) {
        match order {
            Order::Restart => {
                self.end().await;
                self.up();
            }
            Order::Down(time) => {
                self.door.close();
                self.up_at = time.map(|time| Instant::now() + time);
                if let Some((_, incarnation)) = &mut self.incarnation {
                    incarnation.disconnect().await;
                }
            }
            Order::Up => self.up(),
            Order::Freeze(frozen) => {
                if let Some((_, incarnation)) = &self.incarnation {
                    incarnation.host.freeze(frozen);
                }
            }
            Order::Forget => {
                if let Some((_, incarnation)) = &self.incarnation {
                    incarnation.host.forget_all();
                }
            }
            Order::Disconnect => {
                if let Some((_, incarnation)) = &self.incarnation {
                    incarnation.host.disconnect();
                }
            }
            Order::Replan => {
                if let Some((ledger, incarnation)) = &self.incarnation {
                    incarnation.host.plan.set(self.plan(ledger.spawn()));
                }
            }
        }
    }

    fn plan(&self, spawn: u32) -> Plan {
        lock(&self.script).plan(spawn, self.made.elapsed())
    }

    fn spawn(&mut self) {
        self.spawned += 1;
        let writer = LedgerWriter::memory(self.ledger.clone(), self.made, self.spawned);
        drop(writer.record(Event::Spawned { pid: None })); // memory cannot refuse
        let (_, signals) = mpsc::unbounded_channel();
        self.incarnation = Some((writer.clone(), Incarnation::new(self.plan(self.spawned), writer, signals)));
    }

    async fn end(&mut self) {
        if let Some((writer, incarnation)) = self.incarnation.take() {
            incarnation.end().await;
            drop(writer.record(Event::Ended)); // memory cannot refuse
        }
    }

    fn up(&mut self) {
        self.up_at = None;
        if self.incarnation.is_none() {
            self.spawn();
        }
        self.door.open().expect("the port is ours");
    }
}
