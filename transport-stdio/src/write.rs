use std::error::Error;
use std::fmt;
use std::io::{self, ErrorKind, IoSlice};

use mcp_reconnect_core::replay::Sent;
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::watch;

use crate::framing::one_line;

/// Writes frames to a server, one per line.
///
/// Dropping it closes the server's stdin.
#[derive(Debug)]
pub struct FrameWriter<W> {
    /// `None` once the boundary between frames is lost, or the pipe is.
    pipe: Option<W>,
    /// Turns true, or loses its sender, when stdin is to be closed.
    close: Option<watch::Receiver<bool>>,
}

impl<W: AsyncWrite + Unpin> FrameWriter<W> {
    /// Writes to any pipe.
    pub fn new(pipe: W) -> Self {
        Self { pipe: Some(pipe), close: None }
    }

    pub(crate) fn closable(pipe: W, close: watch::Receiver<bool>) -> Self {
        Self { pipe: Some(pipe), close: Some(close) }
    }

    /// Writes a frame and its line end.
    ///
    /// Line ends in the frame, which in JSON can only be white space, are written as spaces.
    ///
    /// Not cancel safe: a write that is dropped closes stdin, since the server could not tell the next frame from the
    /// rest of this one. Every later write fails with [`Sent::No`].
    ///
    /// # Errors
    ///
    /// The pipe is broken or was closed, now or before; the error says whether any byte of the frame was written. The
    /// writer is of no use after it.
    pub async fn write(&mut self, frame: &str) -> Result<(), WriteError> {
        let Some(mut pipe) = self.pipe.take() else {
            return Err(WriteError { sent: Sent::No, cause: io::Error::new(ErrorKind::BrokenPipe, "stdin is closed") });
        };
        let line = one_line(frame);
        let mut slices = [IoSlice::new(line.as_bytes()), IoSlice::new(b"\n")];
        let mut sent = Sent::No;
        let written = tokio::select! {
            biased;
            () = asked_to_close(&mut self.close) => {
                Err(io::Error::new(ErrorKind::BrokenPipe, "stdin was closed"))
            }
            written = write_all(&mut pipe, &mut slices, &mut sent) => written,
        };
        match written {
            Ok(()) => {
                self.pipe = Some(pipe);
                Ok(())
            }
            Err(cause) => Err(WriteError { sent, cause }),
        }
    }

    /// Waits until [`close`](crate::ServerControl::close) wants stdin closed, or the control is gone: drop the writer
    /// then. A write that is stuck is given up by itself.
    ///
    /// Cancel safe.
    pub async fn closed(&mut self) {
        asked_to_close(&mut self.close).await;
    }
}

async fn asked_to_close(close: &mut Option<watch::Receiver<bool>>) {
    match close {
        // An error says that the control is gone, which asks for the same.
        Some(close) => drop(close.wait_for(|&close| close).await),
        None => std::future::pending().await,
    }
}

async fn write_all(
    pipe: &mut (impl AsyncWrite + Unpin),
    mut slices: &mut [IoSlice<'_>],
    sent: &mut Sent,
) -> io::Result<()> {
    while !slices.is_empty() {
        let count = pipe.write_vectored(slices).await?;
        if count == 0 {
            return Err(ErrorKind::WriteZero.into());
        }
        *sent = Sent::Maybe;
        IoSlice::advance_slices(&mut slices, count);
    }
    pipe.flush().await
}

/// Why a frame was not written.
#[derive(Debug)]
pub struct WriteError {
    /// How far the frame got: [`Sent::No`] or [`Sent::Maybe`].
    pub sent: Sent,
    cause: io::Error,
}

impl fmt::Display for WriteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "writing to stdin failed: {}", self.cause)
    }
}

impl Error for WriteError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.cause)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_now::now;
    use mcp_reconnect_core::replay::Sent;
    use tokio::io::{AsyncReadExt, DuplexStream, duplex};
    use tokio::sync::watch;
    use tokio::time::timeout;

    use super::FrameWriter;

    /// Polls a future once.
    mod futures_now {
        use std::future::Future;
        use std::pin::pin;
        use std::task::{Context, Poll, Waker};

        pub(super) fn now<T>(future: impl Future<Output = T>) -> Option<T> {
            match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(value) => Some(value),
                Poll::Pending => None,
            }
        }
    }

    fn writer(buffer: usize) -> (FrameWriter<DuplexStream>, DuplexStream, watch::Sender<bool>) {
        let (ours, theirs) = duplex(buffer);
        let (close, closed) = watch::channel(false);
        (FrameWriter::closable(ours, closed), theirs, close)
    }

    async fn all(mut pipe: DuplexStream) -> String {
        let mut text = String::new();
        pipe.read_to_string(&mut text).await.expect("UTF-8");
        text
    }

    #[tokio::test]
    async fn a_frame_is_one_line() {
        let (mut writer, theirs, _close) = writer(1024);
        writer.write("{}").await.expect("room");
        writer.write("{\n\t\"a\":\r\n\"b\\n\"}\n").await.expect("room");
        drop(writer);
        assert_eq!(all(theirs).await, "{}\n{ \t\"a\":  \"b\\n\"} \n");
    }

    #[tokio::test]
    async fn nothing_written_is_told_from_something_written() {
        let (mut closed, theirs, _close) = writer(4);
        drop(theirs);
        assert_eq!(closed.write("{\"id\":1}").await.expect_err("the pipe has no reader").sent, Sent::No);
        assert_eq!(closed.write("{\"id\":2}").await.expect_err("still").sent, Sent::No);

        let (mut broken, mut theirs, _close) = writer(4);
        let read_some = async {
            theirs.read_exact(&mut [0; 2]).await.expect("the first bytes");
            drop(theirs);
        };
        let (written, ()) = tokio::join!(broken.write("{\"id\":1}"), read_some);
        assert_eq!(written.expect_err("broken in the middle").sent, Sent::Maybe);
    }

    #[tokio::test]
    async fn a_dropped_write_loses_the_boundary_so_nothing_follows_it() {
        let (mut writer, theirs, _close) = writer(4);
        assert!(now(writer.write("{\"id\":1}")).is_none(), "stuck in the middle");
        assert_eq!(writer.write("{}").await.expect_err("poisoned").sent, Sent::No);
        assert_eq!(all(theirs).await, "{\"id", "stdin is closed at once");
    }

    #[tokio::test(start_paused = true)]
    async fn a_stuck_write_is_given_up_when_stdin_is_to_be_closed() {
        let (mut stuck, theirs, close) = writer(4);
        let both = async { tokio::join!(stuck.write("{\"id\":1}"), async { close.send(true) }) };
        let (written, _) = timeout(Duration::from_secs(1), both).await.expect("it stays stuck");
        assert_eq!(written.expect_err("closed").sent, Sent::Maybe);
        assert_eq!(all(theirs).await, "{\"id");

        let (mut idle, _theirs, close) = writer(4);
        drop(close);
        idle.closed().await;
        assert_eq!(idle.write("{}").await.expect_err("closed").sent, Sent::No);
    }
}
