use std::convert::Infallible;
use std::fmt;
use std::future::{pending, ready};
use std::io;
use std::pin::Pin;
use std::process::ExitStatus;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::thread;
use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use process_wrap::tokio::ChildWrapper;
use rustix::process::{Pid, Signal, WaitOptions};
use tokio::io::{AsyncRead, ReadBuf};
use tokio::process::{ChildStdin, ChildStdout};
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, sleep, timeout};

use crate::command::CloseGraces;
use crate::exit::Exit;
use crate::group::Group;
use crate::read::{FrameReader, Traffic};
use crate::stderr::{Tail, drain};
use crate::write::FrameWriter;

/// How often, at most, one step of closing looks whether a group without its leader is empty.
const LOOKS: u32 = 8;
/// How long a close waits for the end of stderr once the group is gone: a process that left the group may hold it.
pub(crate) const STDERR_WAIT: Duration = Duration::from_millis(100);

/// A server that was started.
#[derive(Debug)]
pub struct Server {
    /// Frames from the server.
    pub stdout: FrameReader<ServerStdout>,
    /// Frames to the server.
    pub stdin: FrameWriter<ChildStdin>,
    /// The process itself. Dropping the last handle of it kills the server.
    pub control: Arc<ServerControl>,
}

impl Server {
    pub(crate) fn new(mut child: Box<dyn ChildWrapper>, frame_limit: usize, graces: CloseGraces) -> io::Result<Self> {
        let pid = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        let (Some(pid), Some(stdin), Some(stdout), Some(mut stderr)) =
            (pid, child.stdin().take(), child.stdout().take(), child.stderr().take())
        else {
            // All three pipes were asked for, and the process was not waited for yet.
            return Err(child.start_kill().err().unwrap_or_else(|| io::Error::other("the child has no pid or pipes")));
        };
        let (close, closed) = watch::channel(false);
        let (give_back, given_back) = oneshot::channel();
        let group = Arc::new(Group::new(pid));
        let exit = {
            let group = Arc::clone(&group);
            async move {
                // Not the wrapper's own wait: where this process adopts orphans, that one blocks a thread until the
                // last member of the group has ended.
                let status = child.inner_mut().wait().await.ok();
                group.look();
                status
            }
        };
        let traffic = Arc::new(Traffic::new());
        let tail = Arc::new(Tail::default());
        let stderr = {
            let (tail, traffic) = (Arc::clone(&tail), Arc::clone(&traffic));
            async move {
                let keep = |bytes: &[u8]| {
                    tail.push(bytes);
                    traffic.server_spoke();
                };
                drain(&mut stderr, keep).await;
            }
        };
        let unread = async move {
            if let Ok(mut stdout) = given_back.await {
                drain(&mut stdout, |_| {}).await;
            }
        };
        let control = ServerControl {
            group,
            exit: exit.boxed().shared(),
            stderr: stderr.boxed().shared(),
            unread: unread.boxed().shared(),
            tail,
            traffic: Arc::clone(&traffic),
            close,
            graces,
        };
        let stdout = ServerStdout { pipe: Some(stdout), give_back: Some(give_back) };
        Ok(Self {
            stdout: FrameReader::noting(stdout, frame_limit, traffic),
            stdin: FrameWriter::closable(stdin, closed),
            control: Arc::new(control),
        })
    }
}

/// Which steps a close begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ladder {
    /// The server may end by itself once its input has ended; then SIGTERM, then SIGKILL.
    Polite,
    /// SIGTERM at once, then SIGKILL: a server that has read nothing for long will not read the end of its input either.
    Wedged,
}

/// The process group of a server: its end, by whatever way.
///
/// Dropping it kills what is left of the group, whether a runtime is there or not, and has the leader reaped by a
/// thread of its own, which lives until the kernel has cleared the leader away.
pub struct ServerControl {
    group: Arc<Group>,
    // Any number of tasks may drive these at once, and none holds up another.
    exit: Shared<BoxFuture<'static, Option<ExitStatus>>>,
    stderr: Shared<BoxFuture<'static, ()>>,
    /// The server's stdout, after its reader was dropped.
    unread: Shared<BoxFuture<'static, ()>>,
    tail: Arc<Tail>,
    traffic: Arc<Traffic>,
    close: watch::Sender<bool>,
    graces: CloseGraces,
}

impl ServerControl {
    /// The id of the process that was started, which is its group's too. It stays known after the end.
    pub fn pid(&self) -> u32 {
        self.group.leader().as_raw_nonzero().get().cast_unsigned()
    }

    /// Waits until the process that was started has ended, and reaps it; others of its group may live on.
    ///
    /// `None` if the status is not known because another part of the program reaped the process. Cancel safe; any number
    /// of callers.
    pub async fn exited(&self) -> Option<ExitStatus> {
        self.exit.clone().await
    }

    /// How the server ended, with what it has written to stderr by now; `None` while no end is known.
    pub fn exit(&self) -> Option<Exit> {
        self.exit.peek().map(|&status| Exit { status, stderr: self.stderr_tail() })
    }

    /// Reads stderr until its end, which comes when the last process that holds it has ended.
    ///
    /// It has to be driven while the server lives, or the server freezes when the pipe is full. Cancel safe; any
    /// number of callers. [`close`](Self::close) does it too.
    pub async fn drain_stderr(&self) {
        self.stderr.clone().await;
    }

    /// The last lines of stderr that were read, oldest first.
    pub fn stderr_tail(&self) -> Vec<String> {
        self.tail.lines()
    }

    /// How many lines on stdout were no frames.
    pub fn noise(&self) -> u64 {
        self.traffic.noise()
    }

    /// When the last byte was read from stdout.
    pub fn last_byte(&self) -> Option<Instant> {
        self.traffic.last_byte()
    }

    /// Waits until the first byte was read, from stdout or stderr.
    ///
    /// Cancel safe; any number of callers.
    pub async fn first_byte(&self) {
        self.traffic.first_byte().await;
    }

    /// Kills the whole group now.
    ///
    /// Idempotent; takes no lock and waits for nothing. Signals nothing once the group is known to be gone.
    pub fn kill(&self) {
        self.group.signal(Signal::KILL);
    }

    /// Ends the server completely, within [`CloseGraces::total`].
    ///
    /// Closes stdin, waits if the ladder is polite; sends SIGTERM to the group, waits; sends SIGKILL, waits until the
    /// kernel has cleared everything away. The server may go on writing meanwhile: it is read and, on stdout, thrown away. When the server has
    /// ended but others of its group live on, they get SIGTERM at once and SIGKILL after its grace. The kernel does not
    /// tell when a group is empty, so it is looked at up to eight times in either of these graces; a zombie that its init
    /// is slow to reap counts as a member.
    ///
    /// Stdin is the [`FrameWriter`]'s: it gives up a stuck write by itself, and its owner drops it when
    /// [`FrameWriter::closed`] says so. Where that is not done, the server sees no end of input and gets SIGTERM.
    ///
    /// Cancel safe: another call starts the ladder anew.
    pub async fn close(&self, ladder: Ladder) -> Exit {
        self.close.send_replace(true);
        tokio::select! {
            biased;
            () = self.end(ladder) => {}
            never = self.keep_reading() => match never {},
        }
        if self.exit.peek().is_some() {
            // Late is no error: what was read by then is reported.
            drop(timeout(STDERR_WAIT, self.drain_stderr()).await);
        }
        self.exit().unwrap_or_else(|| Exit { status: None, stderr: self.stderr_tail() })
    }

    async fn end(&self, ladder: Ladder) {
        let CloseGraces { eof, term, kill } = self.graces;
        if ladder == Ladder::Polite && self.ended_within(eof, 1).await {
            return;
        }
        self.group.signal(Signal::TERM);
        if self.ended_within(term, LOOKS).await {
            return;
        }
        self.group.signal(Signal::KILL);
        self.ended_within(kill, LOOKS).await;
    }

    /// Waits for the leader, then looks whether the others are gone as well, the pauses doubling, for `grace` in all.
    async fn ended_within(&self, grace: Duration, looks: u32) -> bool {
        let start = Instant::now();
        if timeout(grace, self.exited()).await.is_err() {
            return false;
        }
        let left = grace.saturating_sub(start.elapsed());
        for later in (0..looks).rev() {
            if self.group.look() {
                return true;
            }
            if later > 0 {
                sleep(left / (1 << later)).await;
            }
        }
        false
    }

    async fn keep_reading(&self) -> Infallible {
        futures::join!(self.drain_stderr(), self.unread.clone());
        pending().await
    }
}

impl Drop for ServerControl {
    fn drop(&mut self) {
        self.kill();
        if self.group.is_gone() {
            return;
        }
        let group = Arc::clone(&self.group);
        let exit = std::mem::replace(&mut self.exit, ready(None).boxed().shared());
        let reap = move || {
            if exit.peek().is_none() {
                group.wait_for_leader();
            }
            // The child's own drop reaps it, now that it has ended.
            drop(exit);
            group.reap_adopted(WaitOptions::empty());
        };
        // Without a thread, tokio reaps it when it comes to it.
        drop(thread::Builder::new().name("mcp-reconnect-reap".into()).spawn(reap));
    }
}

impl fmt::Debug for ServerControl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerControl").field("pid", &self.pid()).field("exit", &self.exit()).finish_non_exhaustive()
    }
}

/// The stdout of a server.
///
/// When it is dropped the pipe stays open until the server's [`ServerControl`] is dropped or has closed the server: one
/// that is shutting down should not die of SIGPIPE over a last message.
#[derive(Debug)]
pub struct ServerStdout {
    /// `None` only while it is dropped.
    pipe: Option<ChildStdout>,
    give_back: Option<oneshot::Sender<ChildStdout>>,
}

impl ServerStdout {
    /// Reads what is there, without waiting and without the runtime, which may not have heard yet that something is.
    pub(crate) fn read_now(&self, buffer: &mut [u8]) -> rustix::io::Result<usize> {
        self.pipe.as_ref().map_or(Ok(0), |pipe| rustix::io::read(pipe, buffer))
    }
}

impl AsyncRead for ServerStdout {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match &mut self.pipe {
            Some(pipe) => Pin::new(pipe).poll_read(cx, buf),
            None => Poll::Ready(Ok(())),
        }
    }
}

impl Drop for ServerStdout {
    fn drop(&mut self) {
        if let (Some(pipe), Some(give_back)) = (self.pipe.take(), self.give_back.take()) {
            // Without a control it is not wanted any more, and is closed.
            drop(give_back.send(pipe));
        }
    }
}
