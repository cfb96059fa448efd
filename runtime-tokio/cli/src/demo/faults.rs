//! The faults that the server is made to suffer.

use std::io;
use std::time::Duration;

use clap::ValueEnum;
use rustix::process::{Pid, Signal, kill_process_group};
use serde::Serialize;

use super::stage::Stage;

/// Number of servers in a crash loop that exit right after their start.
const CRASHES: u32 = 3;

/// A way to lose the server.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Fault {
    /// SIGKILL to its process group
    Kill,
    /// SIGSTOP to its process group; nobody ever continues it
    Hang,
    /// SIGKILL, and the next three servers exit with status 3 right after their start
    CrashLoop,
    /// With --http: SIGKILL, and a fresh process on the same port
    Restart,
    /// With --http: SIGSTOP, and SIGCONT a second after the loss was noticed
    Freeze,
    /// With --http: every request is answered 503 with `Retry-After: 1`, until two seconds after the loss was noticed
    Unavailable,
}

impl Fault {
    /// The faults of the embedded stdio server.
    pub(super) const STDIO: [Self; 3] = [Self::Kill, Self::Hang, Self::CrashLoop];
    /// The faults of any stdio server.
    pub(super) const SIGNALS: [Self; 2] = [Self::Kill, Self::Hang];
    /// The faults of the embedded server behind HTTP.
    pub(super) const HTTP: [Self; 3] = [Self::Restart, Self::Freeze, Self::Unavailable];

    /// Inflicts it on the server with this process group.
    pub(super) fn inject(self, group: Pid, stage: Option<&Stage>) -> io::Result<()> {
        match (self, stage) {
            (Self::CrashLoop, Some(stage)) => stage.order_crashes(CRASHES)?,
            (Self::Unavailable, Some(stage)) => stage.set_unavailable(true)?,
            _ => {}
        }
        let signal = match self {
            Self::Kill | Self::CrashLoop | Self::Restart => Signal::KILL,
            Self::Hang | Self::Freeze => Signal::STOP,
            Self::Unavailable => return Ok(()),
        };
        Ok(kill_process_group(group, signal)?)
    }

    /// The time that it goes on after the loss was noticed, where it does not end by itself.
    pub(super) const fn goes_on(self) -> Option<Duration> {
        match self {
            Self::Freeze => Some(Duration::from_secs(1)),
            Self::Unavailable => Some(Duration::from_secs(2)),
            Self::Kill | Self::Hang | Self::CrashLoop | Self::Restart => None,
        }
    }

    /// The value of the argument.
    pub(super) fn value(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Kill => "SIGKILL",
            Self::Hang => "hang",
            Self::CrashLoop => "crash loop",
            Self::Restart => "restart",
            Self::Freeze => "freeze",
            Self::Unavailable => "503",
        }
    }
}
