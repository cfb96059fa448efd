//! Stdin and stdout as a host's end: a line is a message. On threads of their own, which the exit does not wait for: a read
//! of stdin cannot be called off.

use std::io::{self, BufRead as _, Read as _, Write as _};
use std::thread;
use std::time::Duration;

use mcp_reconnect::front::HostEnd;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

/// How many bytes a message of the host may have.
const LINE_LIMIT: u64 = 64 * 1024 * 1024;
/// How long the last messages may take to be read by the host.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// Joins the process's own pipes to a front. What is returned resolves when everything is written, or soon.
pub(super) fn connect(HostEnd { to_front, from_front }: HostEnd) -> impl Future<Output = ()> {
    let (done, written) = oneshot::channel();
    let started = [
        spawn("stdin", move || read(&to_front)),
        spawn("stdout", move || {
            write(from_front);
            done.send(()).unwrap_or_default();
        }),
    ];
    for error in started.into_iter().filter_map(Result::err) {
        tracing::error!(%error, "no thread for a pipe of the host");
    }
    async move {
        drop(timeout(FLUSH_TIMEOUT, written).await); // either way it is time to go
    }
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::Builder::new().name(name.into()).spawn(run).map(drop)
}

fn read(to_front: &mpsc::Sender<Box<str>>) {
    let mut stdin = io::stdin().lock();
    loop {
        let mut line = Vec::new();
        match stdin.by_ref().take(LINE_LIMIT + 1).read_until(b'\n', &mut line) {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => {
                tracing::error!(%error, "stdin cannot be read");
                return;
            }
        }
        if line.len() as u64 > LINE_LIMIT && line.last() != Some(&b'\n') {
            tracing::error!(limit = LINE_LIMIT, "a message of the host is too long: the session ends");
            return;
        }
        // What is no UTF-8 is no message either, and is told so.
        let text = String::from_utf8_lossy(&line);
        let text = text.trim_ascii();
        if !text.is_empty() && to_front.blocking_send(text.into()).is_err() {
            return;
        }
    }
}

fn write(mut from_front: mpsc::Receiver<Box<str>>) {
    let mut stdout = io::stdout().lock();
    while let Some(frame) = from_front.blocking_recv() {
        // A message of the other side may hold line ends between its members.
        let frame = if frame.contains(['\n', '\r']) { frame.replace(['\n', '\r'], " ").into() } else { frame };
        let written = stdout.write_all(frame.as_bytes()).and_then(|()| stdout.write_all(b"\n"));
        if let Err(error) = written.and_then(|()| stdout.flush()) {
            tracing::info!(%error, "the host has closed stdout: the session ends");
            return;
        }
    }
}
