//! Parts that the tests with real children share.

use std::ffi::OsString;
use std::fs;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use mcp_reconnect_stdio::{CloseGraces, Exit, FrameWriter, Ladder, ServerCommand, ServerControl};
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe::{self, Receiver};
use tokio::process::ChildStdin;
use tokio::time::timeout;

/// A grace that is used up at once.
pub(crate) const SHORT: Duration = Duration::from_millis(20);
/// A grace that nothing uses up on a working machine, however slow.
pub(crate) const LONG: Duration = Duration::from_secs(30);
/// A grace that outlasts every test.
#[allow(dead_code, reason = "not every test binary closes a wedged server")]
pub(crate) const HOUR: Duration = Duration::from_secs(3600);
/// When a test is given up.
const GIVE_UP: Duration = Duration::from_secs(60);

/// A shell script as a server, which is given its holder's path as `$HOLD`, and these graces.
pub(crate) fn script(text: &str, hold: &Hold, [eof, term, kill]: [Duration; 3]) -> ServerCommand {
    let mut command = ServerCommand::new("sh");
    command.args = ["-c", text].map(OsString::from).into();
    command.env.insert("HOLD".into(), Some(hold.fifo.clone().into()));
    command.graces = CloseGraces { eof, term, kill };
    command
}

/// The test fails rather than hangs.
pub(crate) async fn in_time<T>(future: impl Future<Output = T>) -> T {
    timeout(GIVE_UP, future).await.expect("the test hangs")
}

/// Closes as an owner of a writer does.
pub(crate) async fn close(control: &ServerControl, stdin: FrameWriter<ChildStdin>) -> Exit {
    close_by(Ladder::Polite, control, stdin).await
}

/// Closes by this ladder as an owner of a writer does.
pub(crate) async fn close_by(ladder: Ladder, control: &ServerControl, mut stdin: FrameWriter<ChildStdin>) -> Exit {
    let drop_stdin = async {
        stdin.closed().await;
        drop(stdin);
    };
    in_time(async { tokio::join!(control.close(ladder), drop_stdin).0 }).await
}

/// A pipe that a process tree holds open (`exec 3<>"$HOLD"`): its end tells that the whole tree is gone.
pub(crate) struct Hold {
    dir: PathBuf,
    fifo: PathBuf,
}

impl Hold {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let unique = format!("mcp-reconnect-stdio-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let dir = std::env::temp_dir().join(unique);
        fs::create_dir(&dir).expect("a new directory");
        let fifo = dir.join("hold");
        shell(&format!("mkfifo {}", fifo.display()));
        Self { dir, fifo }
    }

    /// A directory for the test's files.
    #[allow(dead_code, reason = "not every test binary has files")]
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Opens the reading end; to be called before the tree starts.
    pub(crate) fn open(&self) -> Receiver {
        pipe::OpenOptions::new().open_receiver(&self.fifo).expect("the FIFO is there")
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.dir));
    }
}

/// Waits until no process holds the pipe any more; to be called when one does.
pub(crate) async fn gone(mut held: Receiver) {
    in_time(held.read_to_end(&mut Vec::new())).await.expect("readable");
}

/// Runs a command to its end. Files that are to be executed are written by one, so that no child of another test
/// inherits a handle that would make them busy.
pub(crate) fn shell(text: &str) {
    assert!(Command::new("sh").args(["-c", text]).status().expect("there is a shell").success(), "{text}");
}
