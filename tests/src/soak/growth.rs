//! What this process holds.

use std::fmt;
use std::fs;
use std::io;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::sleep;

/// The least that was seen of each while nothing was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// Live tasks of the runtime.
    pub tasks: usize,
    /// Open file descriptors.
    pub descriptors: usize,
    /// Resident memory in KiB.
    pub memory: u64,
}

impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tasks, descriptors, memory } = self;
        write!(f, "{tasks} tasks, {descriptors} fds, {:.1} MiB", *memory as f64 / 1024.0)
    }
}

impl Held {
    /// Looks once every [`EVERY`](Self::EVERY), for half a second at least, and for ten seconds if until then there is more than
    /// `hoped`. What closes a socket behind the last session does so some turns later and says nothing.
    pub(super) async fn at_rest(hoped: Option<Self>) -> io::Result<Self> {
        const LOOKS: (u32, u32) = (5, 100);
        let mut least = Self::now()?;
        for look in 0..LOOKS.1 {
            let enough = hoped.is_none_or(|hoped| !least.outgrows(&hoped));
            if look >= LOOKS.0 && enough {
                break;
            }
            sleep(Self::EVERY).await;
            let now = Self::now()?;
            least = Self {
                tasks: least.tasks.min(now.tasks),
                descriptors: least.descriptors.min(now.descriptors),
                memory: least.memory.min(now.memory),
            };
        }
        Ok(least)
    }

    const EVERY: Duration = Duration::from_millis(100);

    fn now() -> io::Result<Self> {
        let tasks = Handle::current().metrics().num_alive_tasks();
        // One of them is the directory that is read.
        let descriptors = fs::read_dir("/proc/self/fd")?.count().saturating_sub(1);
        let status = fs::read_to_string("/proc/self/status")?;
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let memory = resident.and_then(|kib| kib.trim().strip_suffix(" kB")?.parse().ok());
        let memory = memory.ok_or_else(|| io::Error::other("/proc/self/status without VmRSS"))?;
        Ok(Self { tasks, descriptors, memory })
    }

    /// Whether there are more tasks or descriptors.
    pub(super) const fn outgrows(&self, first: &Self) -> bool {
        self.tasks > first.tasks || self.descriptors > first.descriptors
    }
}

/// The pids of this process's children, zombies included.
pub(super) fn children() -> io::Result<Vec<String>> {
    let mut pids = Vec::new();
    for task in fs::read_dir("/proc/self/task")? {
        match fs::read_to_string(task?.path().join("children")) {
            Ok(children) => pids.extend(children.split_whitespace().map(str::to_owned)),
            // The thread has ended meanwhile.
            Err(error) if gone(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(pids)
}

fn gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error())
}
