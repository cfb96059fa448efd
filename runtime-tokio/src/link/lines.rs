//! A [`Link`] over any two streams of bytes, one message on each line, as over stdio: a socket, a terminal of a container,
//! a pipe in memory.

use std::pin::pin;
use std::sync::{Arc, OnceLock};

use futures::FutureExt as _;
use futures::future::{BoxFuture, FusedFuture as _};
use mcp_reconnect_core::FailureClass;
use mcp_reconnect_stdio::{FrameReader, FrameWriter, ReadError, Traffic};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::link::{
    Attempt, Ended, INBOUND_CAPACITY, Link, LinkControl, LinkFacts, OUTBOUND_CAPACITY, Outbound, SendFailure,
};

/// A link over these streams, for a [`Connector`](crate::link::Connector) that opens them. A line may have `frame_limit`
/// bytes; a longer one ends the link. What is no message is left out, and counted.
///
/// The link ends with either of its streams, which are dropped when it is closed.
///
/// # Panics
///
/// Outside a tokio runtime.
pub fn link<R, W>(reader: R, writer: W, frame_limit: usize, attempt: &Attempt) -> Link
where
    R: AsyncRead + Send + Unpin + 'static,
    W: AsyncWrite + Send + Unpin + 'static,
{
    let (outbound, frames_out) = mpsc::channel(OUTBOUND_CAPACITY);
    let (frames_in, inbound) = mpsc::channel(INBOUND_CAPACITY);
    let end = Arc::new(End::default());
    let stop = attempt.cancel.child_token();
    let reader = FrameReader::new(reader, frame_limit);
    let control = StreamControl { traffic: reader.traffic().clone(), end: end.clone(), stop: stop.clone() };
    // The rest is not worth waiting for when the other direction has failed.
    let read = read(reader, |_| Ok(None), std::future::pending::<()>(), frames_in, end.clone());
    attempt.tasks.spawn(stop.clone().run_until_cancelled_owned(read));
    attempt.tasks.spawn(stop.run_until_cancelled_owned(write(FrameWriter::new(writer), frames_out, end)));
    Link { outbound, inbound, control: Arc::new(control) }
}

/// The end of a link, which both of its directions share.
#[derive(Debug, Default)]
pub(crate) struct End {
    token: CancellationToken,
    cause: OnceLock<Cause>,
}

#[derive(Debug)]
pub(crate) enum Cause {
    /// The server's output ended.
    Eof,
    /// The server takes no more input.
    Deaf(Arc<str>),
    /// The server did what no link survives.
    Fault(Arc<str>),
}

impl End {
    /// Ends both directions. The first cause stays.
    fn because(&self, cause: Cause) {
        self.cause.get_or_init(|| cause);
        self.token.cancel();
    }

    /// Whether it has come.
    pub(crate) fn has_come(&self) -> bool {
        self.token.is_cancelled()
    }

    /// Why, if it has come.
    pub(crate) fn cause(&self) -> Option<&Cause> {
        self.cause.get()
    }
}

/// Carries frames in until the server has `exited`, its output ends, or the other direction has. What the server has
/// written by then is still delivered, as far as `leftover` finds it.
pub(crate) async fn read<R: AsyncRead + Unpin, T>(
    mut output: FrameReader<R>,
    leftover: impl Fn(&mut FrameReader<R>) -> Result<Option<Box<str>>, ReadError>,
    exited: impl Future<Output = T>,
    frames: mpsc::Sender<Box<str>>,
    end: Arc<End>,
) {
    // However the reader ends, the writer ends with it.
    let _end = end.token.clone().drop_guard();
    let over = async {
        tokio::select! {
            // A process that the server left behind may hold its output open.
            _ = exited => {}
            () = end.token.cancelled() => {}
        }
    };
    let mut over = pin!(over.fuse());
    loop {
        let frame = if over.is_terminated() {
            leftover(&mut output)
        } else {
            tokio::select! {
                frame = output.next() => frame,
                () = &mut over => continue,
            }
        };
        match frame {
            Ok(Some(frame)) => {
                if frames.send(frame).await.is_err() {
                    return;
                }
            }
            Ok(None) => return end.because(Cause::Eof),
            Err(error) => return end.because(Cause::Fault(error.to_string().into())),
        }
    }
}

/// Carries frames out until the link ends. Those that are queued then are dropped, which reports them as not sent.
pub(crate) async fn write<W: AsyncWrite + Unpin>(
    mut input: FrameWriter<W>,
    mut frames: mpsc::Receiver<Outbound>,
    end: Arc<End>,
) {
    let carry = async {
        loop {
            let mut frame = tokio::select! {
                biased;
                () = input.closed() => return,
                frame = frames.recv() => match frame {
                    Some(frame) => frame,
                    None => return,
                },
            };
            if !frame.begin() {
                continue;
            }
            match input.write(frame.frame()).await {
                Ok(()) => frame.finish(Ok(())),
                Err(error) => {
                    let cause: Arc<str> = error.to_string().into();
                    let failure = FailureClass::Transport.into();
                    // A server that may still talk but hears nothing is of no use.
                    end.because(Cause::Deaf(Arc::clone(&cause)));
                    return frame.finish(Err(SendFailure { failure, sent: error.sent, cause, doubt: None }));
                }
            }
        }
    };
    end.token.run_until_cancelled(carry).await;
}

struct StreamControl {
    traffic: Arc<Traffic>,
    end: Arc<End>,
    /// Stops the link's tasks, which drops its streams.
    stop: CancellationToken,
}

impl StreamControl {
    fn ended(&self) -> Ended {
        let cause = match self.end.cause() {
            Some(Cause::Fault(cause) | Cause::Deaf(cause)) => Arc::clone(cause),
            Some(Cause::Eof) => "the server closed the connection".into(),
            None => "the connection was closed".into(),
        };
        Ended { failure: FailureClass::Transport.into(), cause }
    }
}

impl LinkControl for StreamControl {
    fn kill(&self) {
        self.stop.cancel();
    }

    fn close(&self) -> BoxFuture<'_, Ended> {
        self.stop.cancel();
        std::future::ready(self.ended()).boxed()
    }

    fn facts(&self) -> LinkFacts {
        LinkFacts { last_byte: self.traffic.last_byte(), noise: self.traffic.noise(), ..LinkFacts::default() }
    }

    fn first_byte(&self) -> BoxFuture<'_, ()> {
        self.traffic.first_byte().boxed()
    }

    fn survives(&self) -> bool {
        !self.stop.is_cancelled() && !self.end.has_come()
    }

    fn why(&self) -> BoxFuture<'_, Ended> {
        std::future::ready(self.ended()).boxed()
    }
}

impl Drop for StreamControl {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}
