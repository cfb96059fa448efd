//! Connections that are Ready and idle, for measurements of their memory and wake-ups.

use std::sync::Arc;
use std::time::Duration;

use mcp_reconnect::core::{Config, Status};
use mcp_reconnect::{Connection, EraPolicy};
use rmcp::RoleClient;
use rmcp::service::RunningService;
use tokio::time::{Instant, sleep, sleep_until};

use crate::least::{Least, Server, bare};

/// Kind of the things that are held.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Supervised connections.
    Supervised,
    /// rmcp's services on the least transport.
    Rmcp,
    /// Timers, one for each keepalive.
    Timers,
}

/// So many of one kind, until they are dropped.
#[derive(Debug)]
pub struct Held {
    kind: Kind,
    count: u32,
    supervised: Vec<Connection>,
    rmcp: Vec<RunningService<RoleClient, ()>>,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Supervised, Self::Rmcp, Self::Timers];

    /// Its name on a command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Supervised => "supervised",
            Self::Rmcp => "rmcp",
            Self::Timers => "timers",
        }
    }

    /// The one of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

impl Held {
    /// Room for the handles, which are the caller's; nothing runs yet.
    pub fn new(kind: Kind, count: u32) -> Self {
        let room = |wanted| if kind == wanted { count as usize } else { 0 };
        Self {
            kind,
            count,
            supervised: Vec::with_capacity(room(Kind::Supervised)),
            rmcp: Vec::with_capacity(room(Kind::Rmcp)),
        }
    }

    /// Starts them, so far apart that the timers of one do not hide those of another.
    ///
    /// # Panics
    ///
    /// Outside a runtime, and when there is no session.
    pub async fn start(&mut self, server: &Arc<Server>, apart: Duration) {
        let keepalive = Config::default().keepalive();
        let began = Instant::now();
        for started in 0..self.count {
            match self.kind {
                Kind::Supervised => self.supervised.push(supervise(server, started)),
                Kind::Rmcp => self.rmcp.push(bare(server).await),
                Kind::Timers => drop(tokio::spawn(async move {
                    loop {
                        sleep(keepalive).await;
                    }
                })),
            }
            if !apart.is_zero() {
                sleep_until(began + apart * (started + 1)).await;
            }
        }
    }

    /// How many of them have a session now.
    pub fn ready(&self) -> usize {
        let supervised = self.supervised.iter().filter(|one| matches!(one.snapshot().status, Status::Ready(_)));
        supervised.count() + self.rmcp.iter().filter(|one| !one.is_closed()).count()
    }
}

/// A connection without anything random about it, and with jitter of its own.
fn supervise(server: &Arc<Server>, number: u32) -> Connection {
    let builder = Connection::builder(Least(server.clone())).name("held").seed(number.into()).era(EraPolicy::Legacy);
    builder.build().expect("inside a runtime")
}
