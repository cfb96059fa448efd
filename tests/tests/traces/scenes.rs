//! One short life of a connection for each kind of fault that a machine is told of, on a paused clock: recorded again,
//! each gives the same trace.
//!
//! Kinds that a machine never sees as such have none: K11 and K22 end in a lost link or in nothing.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::FutureExt as _;
use futures::future::{BoxFuture, join_all};
use mcp_reconnect::Connection;
use mcp_reconnect::core::{
    Config, ConfigBuilder, Failure, FailureClass, Memory as Kept, ParkReason, PingSupport, Status, WakeCause,
};
use mcp_reconnect::link::{Attempt, ConnectError, Connector, Ended, Link, LinkControl, LinkFacts};
use mcp_reconnect::trace::Recorder;
use mcp_reconnect_tests::fake::FakeServer;
use mcp_reconnect_tests::link::MemoryConnector;

use super::Memory;
use crate::support::*;

/// What somebody does.
pub(super) enum Act {
    /// Nothing, for so many seconds.
    Wait(u64),
    /// A call to a tool without annotation, with a timeout of so many seconds.
    Call(u64),
    /// So many at once.
    Calls(usize, u64),
    Park,
    Wake(WakeCause),
    /// The host sleeps for so many hours.
    Sleep(u64),
    /// A caller has given up on this epoch.
    Invalidate(u64),
    Retune(fn(ConfigBuilder) -> ConfigBuilder),
    /// The server's spawns to come do this.
    Script(&'static str),
}

/// A scene: its server, its knobs, and what is done.
pub(super) struct Scene {
    pub(super) name: &'static str,
    script: &'static str,
    config: fn(ConfigBuilder) -> ConfigBuilder,
    /// What keeps the dial of this number from opening a link.
    refused: fn(u64) -> Option<Failure>,
    /// As what the end of a link counts.
    ends: FailureClass,
    kept: Option<Kept>,
    acts: &'static [Act],
}

use Act::{Call, Calls, Invalidate, Park, Retune, Script, Sleep, Wait, Wake};

const SCENE: Scene = Scene {
    name: "",
    script: "",
    config: |config| config,
    refused: |_| None,
    ends: FailureClass::Transport,
    kept: None,
    acts: &[],
};

pub(super) const SCENES: &[Scene] = &[
    Scene {
        name: "k01_crash_then_call",
        script: "spawn 1:\n after 12s exit 1",
        acts: &[Call(10), Wait(12), Call(10), Wait(5)],
        ..SCENE
    },
    Scene {
        name: "k02_session_gone",
        script: "spawn 1..2:\n after 15s exit 0",
        config: |config| config.redial_spread(millis(250)),
        ends: FailureClass::SessionGone,
        acts: &[Wait(35), Call(10)],
        ..SCENE
    },
    Scene {
        name: "k03_gone_again_and_again",
        script: "spawn 1..4:\n after 2s exit 0",
        ends: FailureClass::SessionGone,
        acts: &[Wait(40)],
        ..SCENE
    },
    Scene {
        name: "k04_permanent",
        script: "initialize only 2031-01-01",
        acts: &[Wait(1), Call(10), Wait(70), Script(""), Wake(WakeCause::Config), Wait(2)],
        ..SCENE
    },
    Scene {
        name: "k05_deaf_bridge",
        script: "spawn 1:\n call *#2.. commit, never\n ping never\n ignore EOF\n ignore TERM",
        acts: &[Call(5), Wait(1), Call(5), Wait(60)],
        ..SCENE
    },
    Scene { name: "k06_silent_start", script: "spawn 1:\n initialize never", acts: &[Wait(60)], ..SCENE },
    Scene { name: "k07_slow_launcher", script: "initialize delay 100s", acts: &[Wait(240), Call(10)], ..SCENE },
    Scene { name: "k08_outage", script: "until 120s:\n start exit 1", acts: &[Wait(100), Call(1), Wait(150)], ..SCENE },
    Scene {
        name: "k08_park_on_request",
        acts: &[Wait(5), Park, Wait(1), Call(5), Wake(WakeCause::Credentials), Wake(WakeCause::Operator), Wait(5)],
        ..SCENE
    },
    Scene {
        name: "k09_caller_storm",
        script: "until 20s:\n start exit 1",
        acts: &[Calls(5, 20), Calls(5, 20), Wait(10)],
        ..SCENE
    },
    Scene { name: "k10_flapping", script: "after 2s exit 0", acts: &[Wait(150), Script(""), Wait(200)], ..SCENE },
    Scene { name: "k12_no_ping", script: "ping error -32601 \"unknown\"", acts: &[Wait(200)], ..SCENE },
    Scene { name: "k12_silence", script: "ping never", acts: &[Wait(300)], ..SCENE },
    Scene { name: "k12_pings", acts: &[Wait(400)], ..SCENE },
    Scene {
        name: "k13_deaf_after_wake",
        script: "spawn 1:\n ignore TERM\n after 20s deaf",
        config: |config| config.redial_spread(millis(250)),
        acts: &[Wait(30), Sleep(8), Wait(60)],
        ..SCENE
    },
    Scene {
        name: "k13_sleep_in_an_outage",
        script: "spawn 1:\n after 20s exit 1\nspawn 2..:\n initialize exit 1",
        acts: &[Wait(40), Sleep(2), Wait(5), Script(""), Wait(10)],
        ..SCENE
    },
    Scene {
        name: "k14_stubborn",
        script: "ignore EOF\nignore TERM",
        acts: &[Wait(1), Invalidate(1), Wait(20)],
        ..SCENE
    },
    Scene { name: "k15_callers_at_once", script: "initialize delay 2s", acts: &[Calls(10, 10), Wait(5)], ..SCENE },
    Scene { name: "k16_closed_while_dialling", script: "initialize never", acts: &[Wait(5)], ..SCENE },
    Scene {
        name: "k17_commit_then_die",
        script: "spawn 1:\n call write commit, delay 3s, kill",
        acts: &[Wait(11), Call(30), Call(30)],
        ..SCENE
    },
    Scene { name: "k18_list_fails", script: "spawn 1..2:\n list error -32603 \"no\"", acts: &[Wait(10)], ..SCENE },
    Scene {
        name: "k19_login",
        refused: |dial| (dial < 3).then(|| FailureClass::NeedsAuth.into()),
        acts: &[Wait(5), Call(5), Wake(WakeCause::Operator), Wait(5), Wake(WakeCause::Credentials), Wait(5)],
        ..SCENE
    },
    Scene {
        name: "k20_breaker",
        script: "call write#1..5 never",
        config: |config| config.breaker_strikes(3),
        acts: &[Wait(1), Call(2), Call(2), Call(2), Call(2), Wait(30), Call(2), Wait(30), Call(2), Wait(30), Call(2)],
        ..SCENE
    },
    Scene {
        name: "k21_rate_limited",
        refused: |dial| (dial < 4).then(|| hinted(FailureClass::RateLimited, 15 * dial)),
        acts: &[Wait(20), Call(5), Wait(120)],
        ..SCENE
    },
    Scene {
        name: "k21_unavailable_with_a_hint",
        refused: |dial| (dial < 3).then(|| hinted(FailureClass::Transport, 20)),
        acts: &[Wait(60)],
        ..SCENE
    },
    Scene {
        name: "k23_probe_kills",
        script: "exit-unless-initialize",
        acts: &[Wait(20), Invalidate(1), Wait(20)],
        ..SCENE
    },
    Scene {
        name: "k24_stuck",
        script: "spawn 1:\n call write deaf, never",
        acts: &[Wait(1), Call(5), Call(100), Wait(5)],
        ..SCENE
    },
    Scene {
        name: "k25_one_epoch_reported_twice",
        acts: &[Wait(12), Invalidate(1), Invalidate(1), Wait(5), Invalidate(1), Wait(5)],
        ..SCENE
    },
    Scene {
        name: "k26_nobody_listens",
        refused: |dial| (dial < 5).then(|| FailureClass::Transport.into()),
        acts: &[Wait(40)],
        ..SCENE
    },
    Scene {
        name: "tour",
        script: "spawn 1:\n after 15s exit 1\nspawn 2:\n call write never\n ping never",
        config: |config| config.keepalive(secs(20)).ping_timeout(secs(5)).breaker_strikes(2).breaker_open(secs(10)),
        acts: &[
            Wait(20),
            Calls(3, 2),
            Call(1),
            Wait(30),
            Retune(|config| config.keepalive(secs(30)).ping_timeout(secs(5))),
            Wait(100),
            Sleep(0),
            Wait(5),
            Park,
            Call(1),
            Wait(5),
            Wake(WakeCause::Operator),
            Wait(20),
            Script("start exit 1"),
            Invalidate(4),
            Wait(130),
        ],
        ..SCENE
    },
    Scene {
        name: "rest_and_renewal",
        config: |config| config.idle_timeout(Some(secs(30))).max_lifetime(Some(secs(100))),
        acts: &[Call(5), Wait(70), Call(5), Wait(25), Call(5), Wait(25), Call(5), Wait(25), Call(5), Wait(50)],
        ..SCENE
    },
    Scene {
        name: "retuned",
        acts: &[Wait(10), Retune(|config| config.keepalive(secs(20)).ping_misses(1)), Script("ping never"), Wait(100)],
        ..SCENE
    },
    Scene {
        name: "restored_parked",
        kept: Some(Kept {
            status: Status::Parked(ParkReason::Exhausted),
            next_dial_in: Some(secs(50)),
            start_timeout: secs(60),
            pings: PingSupport::Unknown,
            probe_doublings: 1,
            failure: None,
            hint_in: None,
            last_dial_ago: None,
        }),
        script: "spawn 1:\n start exit 1",
        acts: &[Wait(300)],
        ..SCENE
    },
];

fn hinted(class: FailureClass, seconds: u64) -> Failure {
    Failure { class, retry_after: Some(secs(seconds)) }
}

impl Scene {
    /// Plays it on a clock of its own, and gives what was recorded.
    pub(super) fn record(&'static self) -> Vec<u8> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        let recorded = Memory::default();
        runtime.block_on(async {
            let server = memory(self.script);
            let stage = Stage { inner: MemoryConnector(server.clone()), scene: self };
            let mut builder = Connection::builder(stage)
                .name(self.name)
                .seed(7)
                .config(config(self.config))
                .record(Recorder::new(recorded.clone()).outputs(true));
            if let Some(kept) = self.kept {
                builder = builder.restore(kept);
            }
            let connection = builder.build().unwrap();
            for act in self.acts {
                act.play(&connection, &server).await;
            }
            connection.shutdown().await;
        });
        recorded.bytes()
    }
}

impl Act {
    async fn play(&self, connection: &Connection, server: &Arc<FakeServer>) {
        match *self {
            Wait(seconds) => tokio::time::sleep(secs(seconds)).await,
            Call(timeout) => call(connection, timeout).await,
            Calls(count, timeout) => {
                join_all((0..count).map(|_| call(connection, timeout))).await;
            }
            Park => connection.park(),
            Wake(cause) => connection.wake(cause),
            Sleep(hours) => {
                connection.resumed();
                tokio::time::advance(secs(3600 * hours)).await;
            }
            Invalidate(number) => connection.invalidate(epoch(number), "a caller says so"),
            Retune(knobs) => {
                let mut tuning = connection.tuning();
                tuning.config = config(knobs);
                connection.retune(tuning).unwrap();
            }
            Script(script) => server.set_script(script).unwrap(),
        }
    }
}

/// What comes of it is the caller's, not the machine's.
async fn call(connection: &Connection, timeout: u64) {
    drop(connection.call_tool_with(tool("write"), &within(secs(timeout))).await);
}

/// The links to a fake server, with the failures of a scene.
struct Stage {
    inner: MemoryConnector,
    scene: &'static Scene,
}

#[async_trait]
impl Connector for Stage {
    async fn connect(&self, attempt: Attempt) -> Result<Link, ConnectError> {
        if let Some(failure) = (self.scene.refused)(attempt.epoch.get()) {
            return Err(ConnectError::new(failure, "refused"));
        }
        let link = self.inner.connect(attempt).await?;
        let control = Arc::new(Ending { inner: link.control, ends: self.scene.ends });
        Ok(Link { control, ..link })
    }

    fn config(&self) -> Config {
        self.inner.config()
    }

    fn close_bound(&self) -> Duration {
        self.inner.close_bound()
    }
}

/// A link that ends as something else.
struct Ending {
    inner: Arc<dyn LinkControl>,
    ends: FailureClass,
}

impl LinkControl for Ending {
    fn kill(&self) {
        self.inner.kill();
    }

    fn close(&self) -> BoxFuture<'_, Ended> {
        async { Ended { failure: self.ends.into(), ..self.inner.close().await } }.boxed()
    }

    fn facts(&self) -> LinkFacts {
        self.inner.facts()
    }

    fn why(&self) -> BoxFuture<'_, Ended> {
        async { Ended { failure: self.ends.into(), ..self.inner.why().await } }.boxed()
    }
}
