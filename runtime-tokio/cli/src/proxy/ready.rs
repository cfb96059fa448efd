//! The process's own stdin and stdout where the system tells when they are ready.
//!
//! They may be shared with other processes, which expect them to block: no flag of them is changed. A pipe is opened once
//! more, by a description of its own; a socket, which Node and others use for pipes, is asked not to wait call by call.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use rustix::fs::FileType;
use rustix::net::{RecvFlags, SendFlags};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::unix::pipe;

/// Stdin; `None` where it can only be waited for by a thread.
pub(super) fn stdin() -> Option<Input> {
    let stdin = io::stdin();
    match kind(stdin.as_fd())? {
        Kind::Pipe => pipe::OpenOptions::new().open_receiver(Path::new("/proc/self/fd/0")).ok().map(Input::Pipe),
        Kind::Socket => socket(stdin.as_fd(), Interest::READABLE).map(Input::Socket),
    }
}

/// Stdout; as [`stdin`].
pub(super) fn stdout() -> Option<Output> {
    let stdout = io::stdout();
    match kind(stdout.as_fd())? {
        Kind::Pipe => pipe::OpenOptions::new().open_sender(Path::new("/proc/self/fd/1")).ok().map(Output::Pipe),
        Kind::Socket => socket(stdout.as_fd(), Interest::WRITABLE).map(Output::Socket),
    }
}

enum Kind {
    Pipe,
    Socket,
}

fn kind(fd: BorrowedFd<'_>) -> Option<Kind> {
    match FileType::from_raw_mode(rustix::fs::fstat(fd).ok()?.st_mode) {
        FileType::Fifo => Some(Kind::Pipe),
        FileType::Socket => Some(Kind::Socket),
        _ => None,
    }
}

#[expect(
    deprecated,
    reason = "an `OwnedFd` stays the same descriptor, which is what the safe constructor is blamed for"
)]
fn socket(fd: BorrowedFd<'_>, interest: Interest) -> Option<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(fd.try_clone_to_owned().ok()?, interest).ok()
}

pub(super) enum Input {
    Pipe(pipe::Receiver),
    Socket(AsyncFd<OwnedFd>),
}

impl AsyncRead for Input {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let socket = match self.get_mut() {
            Self::Pipe(pipe) => return Pin::new(pipe).poll_read(cx, buf),
            Self::Socket(socket) => socket,
        };
        loop {
            let mut ready = ready!(socket.poll_read_ready(cx))?;
            let room = buf.initialize_unfilled();
            match ready.try_io(|fd| Ok(rustix::net::recv(fd, &mut *room, RecvFlags::DONTWAIT)?.0)) {
                Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(count) => {
                    buf.advance(count?);
                    return Poll::Ready(Ok(()));
                }
                Err(_would_block) => {}
            }
        }
    }
}

pub(super) enum Output {
    Pipe(pipe::Sender),
    Socket(AsyncFd<OwnedFd>),
}

impl AsyncWrite for Output {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let socket = match self.get_mut() {
            Self::Pipe(pipe) => return Pin::new(pipe).poll_write(cx, bytes),
            Self::Socket(socket) => socket,
        };
        loop {
            let mut ready = ready!(socket.poll_write_ready(cx))?;
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            match ready.try_io(|fd| Ok(rustix::net::send(fd, bytes, flags)?)) {
                Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(count) => return Poll::Ready(count),
                Err(_would_block) => {}
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(())) // nothing is kept
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
