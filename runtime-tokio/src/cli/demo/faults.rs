//! What is done to the server.

use std::io;

use clap::ValueEnum;
use rustix::process::{Pid, Signal, kill_process_group};
use serde::Serialize;

use super::stage::Stage;

/// How many servers of a crash loop exit right after their start.
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
}

impl Fault {
    /// What the embedded server can be made to suffer.
    pub(super) const ALL: [Self; 3] = [Self::Kill, Self::Hang, Self::CrashLoop];
    /// What any server can.
    pub(super) const SIGNALS: [Self; 2] = [Self::Kill, Self::Hang];

    /// Does it to the server whose process group this is.
    pub(super) fn inject(self, group: Pid, stage: Option<&Stage>) -> io::Result<()> {
        if let (Self::CrashLoop, Some(stage)) = (self, stage) {
            stage.order_crashes(CRASHES)?;
        }
        let signal = match self {
            Self::Kill | Self::CrashLoop => Signal::KILL,
            Self::Hang => Signal::STOP,
        };
        Ok(kill_process_group(group, signal)?)
    }

    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Kill => "SIGKILL",
            Self::Hang => "hang",
            Self::CrashLoop => "crash loop",
        }
    }
}
