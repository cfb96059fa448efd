//! Stdin and stdout as a host's end: a line is a message.
//!
//! Pipes that the system tells the readiness of are read and written as a task: no message costs a change of threads. The
//! rest is on threads of its own, which the exit does not wait for: a read cannot be called off there.

use std::io::{self, BufRead, Read, Write as _};
use std::thread;
use std::time::Duration;

use mcp_reconnect::front::HostEnd;
use mcp_reconnect_stdio::framing::one_line;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::io::{AsyncBufRead, AsyncBufReadExt as _, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use super::ready::{self, Input};

/// Number of bytes that a message of either side may have.
pub(super) const MESSAGE_LIMIT: usize = 64 * 1024 * 1024;
/// Time for the host to read the last messages.
pub(super) const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// Number of bytes that are read at once.
const BUFFER: usize = 64 * 1024;

const INVALID_REQUEST: i32 = -32_600;
const PARSE_ERROR: i32 = -32_700;

/// The process's own pipes, joined to a front.
pub(super) struct Pipes {
    /// Each ends with its thread.
    read: oneshot::Receiver<()>,
    written: oneshot::Receiver<()>,
}

impl Pipes {
    pub(super) fn connect(HostEnd { to_front, from_front }: HostEnd) -> Self {
        let (refuse, refusals) = mpsc::channel(1);
        let read = match ready::stdin() {
            Some(input) => task(read_ready(tokio::io::BufReader::with_capacity(BUFFER, input), to_front, refuse)),
            None => spawn("stdin", move || read_from(&mut io::stdin().lock(), &to_front, &refuse)),
        };
        let written = match ready::stdout() {
            Some(output) => task(write_ready(output, from_front, refusals)),
            None => {
                let runtime = Handle::current();
                spawn("stdout", move || write(&runtime, from_front, refusals))
            }
        };
        Self { read, written }
    }

    /// The host has said all.
    pub(super) async fn end_of_input(&mut self) {
        drop((&mut self.read).await); // the thread sends nothing
    }

    /// Everything is written, or the host has had its time to read it.
    pub(super) async fn flushed(self) {
        drop(timeout(FLUSH_TIMEOUT, self.written).await); // either way it is time to go
    }
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> oneshot::Receiver<()> {
    let (running, ended) = oneshot::channel();
    let run = move || {
        let _running = running;
        run();
    };
    if let Err(error) = thread::Builder::new().name(name.into()).spawn(run) {
        tracing::error!(%error, pipe = name, "no thread for a pipe of the host");
    }
    ended
}

fn task(run: impl Future<Output = ()> + Send + 'static) -> oneshot::Receiver<()> {
    let (running, ended) = oneshot::channel();
    tokio::spawn(async move {
        let _running = running;
        run.await;
    });
    ended
}

/// Passes lines on as [`read`] does, which takes over where a line is too long for a message.
async fn read_ready(
    mut input: tokio::io::BufReader<Input>,
    to_front: mpsc::Sender<Box<str>>,
    refuse: mpsc::Sender<Box<str>>,
) {
    if let Some(begun) = pass_on(&mut input, MESSAGE_LIMIT, &to_front, &refuse).await {
        let begun = [begun.as_slice(), input.buffer()].concat();
        drop(input); // its bytes are taken over, and nobody else reads
        let rest = move || {
            read_from(
                &mut io::BufReader::new(Read::chain(io::Cursor::new(begun), io::stdin().lock())),
                &to_front,
                &refuse,
            )
        };
        drop(spawn("stdin", rest).await); // the thread sends nothing
    }
}

/// Passes lines on until they end or nobody takes them; a line that is too long stops it, and its beginning is given
/// back.
async fn pass_on(
    input: &mut (impl AsyncBufRead + Unpin),
    limit: usize,
    to_front: &mpsc::Sender<Box<str>>,
    refuse: &mpsc::Sender<Box<str>>,
) -> Option<Vec<u8>> {
    let mut line = Vec::new();
    loop {
        line.clear();
        line.shrink_to(BUFFER);
        match (&mut *input).take(limit as u64 + 1).read_until(b'\n', &mut line).await {
            Ok(0) => return None,
            Ok(_) if line.len() > limit && line.last() != Some(&b'\n') => return Some(line),
            Ok(_) => {}
            Err(error) => {
                tracing::error!(%error, "stdin cannot be read: the session ends");
                return None;
            }
        }
        let (to, message) = match message(&line) {
            Ok("") => continue,
            Ok(text) => (to_front, text.into()),
            Err(refusal) => (refuse, refusal),
        };
        if to.send(message).await.is_err() {
            return None; // the writer finds out too
        }
    }
}

/// The message that a line holds; the answer to one that cannot be shown to the front.
fn message(line: &[u8]) -> Result<&str, Box<str>> {
    std::str::from_utf8(line.trim_ascii()).map_err(|error| {
        let id = id_in(String::from_utf8_lossy(line).as_bytes());
        refusal(id.as_deref(), PARSE_ERROR, &format!("the message is no UTF-8: {error}")).into()
    })
}

fn read_from(input: &mut dyn BufRead, to_front: &mpsc::Sender<Box<str>>, refuse: &mpsc::Sender<Box<str>>) {
    read(input, MESSAGE_LIMIT, to_front, |refusal| {
        refuse.blocking_send(refusal.into()).map_err(|_| io::ErrorKind::BrokenPipe.into())
    });
}

/// Passes lines on until they end or nobody takes them. One that is no message gets its error at once.
fn read(
    input: &mut dyn BufRead,
    limit: usize,
    to_front: &mpsc::Sender<Box<str>>,
    mut answer: impl FnMut(&str) -> io::Result<()>,
) {
    loop {
        let mut line = Vec::new();
        match (&mut *input).take(limit as u64 + 1).read_until(b'\n', &mut line) {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) => {
                tracing::error!(%error, "stdin cannot be read: the session ends");
                return;
            }
        }
        let told = if line.len() > limit && line.last() != Some(&b'\n') {
            let id = id_in(io::BufReader::new(Read::chain(
                line.as_slice(),
                RestOfLine { input: &mut *input, ended: false },
            )));
            answer(&refusal(id.as_deref(), INVALID_REQUEST, &format!("the message is longer than {limit} bytes")))
        } else {
            match message(&line) {
                Ok("") => Ok(()),
                Ok(text) => match to_front.blocking_send(text.into()) {
                    Ok(()) => Ok(()),
                    Err(_) => return,
                },
                Err(refusal) => answer(&refusal),
            }
        };
        if told.is_err() {
            return; // the writer finds out too
        }
    }
}

/// The rest of a line that is not kept.
struct RestOfLine<'a> {
    input: &'a mut dyn BufRead,
    ended: bool,
}

impl Read for RestOfLine<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.ended {
            return Ok(0);
        }
        let there = self.input.fill_buf()?;
        let line = there.iter().position(|&byte| byte == b'\n').map_or(there.len(), |at| at + 1);
        let taken = line.min(into.len());
        into[..taken].copy_from_slice(&there[..taken]);
        self.ended = taken == 0 || there[taken - 1] == b'\n';
        self.input.consume(taken);
        Ok(taken)
    }
}

/// The id of a request, wherever in it that stands; reads to the end of it.
fn id_in(mut line: impl Read) -> Option<Box<RawValue>> {
    #[derive(Deserialize)]
    struct Request {
        id: Option<Box<RawValue>>,
        #[serde(rename = "method")]
        _method: serde::de::IgnoredAny,
    }
    let request: Option<Request> = serde_json::from_reader(&mut line).ok();
    drop(io::copy(&mut line, &mut io::sink())); // a failure shows again at the next line
    request?.id
}

/// The answer to a line that the front is not shown.
fn refusal(id: Option<&RawValue>, code: i32, why: &str) -> String {
    tracing::warn!("a message of the host was refused: {why}");
    let id = id.unwrap_or(RawValue::NULL);
    let error = serde_json::json!({ "code": code, "message": why });
    format!(r#"{{"jsonrpc":"2.0","id":{},"error":{error}}}"#, id.get())
}

/// The next message to the host: from the front, or from the reader. Nothing more when the front has ended.
async fn next(from_front: &mut mpsc::Receiver<Box<str>>, refusals: &mut mpsc::Receiver<Box<str>>) -> Option<Box<str>> {
    tokio::select! {
        biased;
        Some(refusal) = refusals.recv() => Some(refusal),
        frame = from_front.recv() => frame,
    }
}

/// A message as a line.
fn line(frame: &str) -> String {
    let frame = one_line(frame);
    let mut line = String::with_capacity(frame.len() + 1);
    line.push_str(&frame);
    line.push('\n');
    line
}

fn closed(error: &io::Error) {
    tracing::info!(%error, "the host has closed stdout: the session ends");
}

fn write(runtime: &Handle, mut from_front: mpsc::Receiver<Box<str>>, mut refusals: mpsc::Receiver<Box<str>>) {
    while let Some(frame) = runtime.block_on(next(&mut from_front, &mut refusals)) {
        let mut stdout = io::stdout().lock();
        if let Err(error) = stdout.write_all(line(&frame).as_bytes()).and_then(|()| stdout.flush()) {
            return closed(&error);
        }
    }
}

async fn write_ready(
    mut output: impl AsyncWrite + Unpin,
    mut from_front: mpsc::Receiver<Box<str>>,
    mut refusals: mpsc::Receiver<Box<str>>,
) {
    while let Some(frame) = next(&mut from_front, &mut refusals).await {
        if let Err(error) = output.write_all(line(&frame).as_bytes()).await {
            return closed(&error);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    fn id(line: &[u8]) -> Option<String> {
        id_in(line).map(|id| id.get().to_owned())
    }

    #[test]
    fn the_id_is_found_wherever_it_stands() {
        assert_eq!(id(br#"{"id":7,"method":"m","params":{"id":1}}"#).as_deref(), Some("7"));
        assert_eq!(id(br#"{"method":"m","params":{"id":1},"id":"a\"b"}"#).as_deref(), Some(r#""a\"b""#));
        assert_eq!(id(br#"{"method":"m"}"#), None, "a notification");
        assert_eq!(id(br#"{"id":7,"result":{}}"#), None, "an answer gets none");
        assert_eq!(id(br#"{"id":7,"method":"#), None);
    }

    /// The messages that are passed on of this input, and the answers.
    fn taken(input: &[u8], chunk: usize) -> (Vec<String>, Vec<String>) {
        let (to_front, mut said) = mpsc::channel(8);
        let mut answers = Vec::new();
        read(&mut io::BufReader::with_capacity(chunk, input), 32, &to_front, |answer| {
            answers.push(answer.to_owned());
            Ok(())
        });
        drop(to_front);
        (std::iter::from_fn(|| said.blocking_recv().map(String::from)).collect(), answers)
    }

    /// Like [`taken`], read by a task; and the bytes that are left to a thread.
    async fn passed_on(input: &[u8], chunk: usize) -> (Vec<String>, Vec<String>, Option<Vec<u8>>) {
        let ((to_front, mut said), (refuse, mut refused)) = (mpsc::channel(8), mpsc::channel(8));
        let mut input = tokio::io::BufReader::with_capacity(chunk, input);
        let left = pass_on(&mut input, 32, &to_front, &refuse).await;
        let left = left.map(|begun| [begun.as_slice(), input.buffer(), input.get_ref()].concat());
        drop((to_front, refuse));
        let all = |queue: &mut mpsc::Receiver<Box<str>>| {
            std::iter::from_fn(|| queue.try_recv().ok().map(String::from)).collect()
        };
        (all(&mut said), all(&mut refused), left)
    }

    #[test]
    fn a_task_passes_on_as_a_thread_does_and_leaves_a_long_line() {
        let line = "x".repeat(32);
        let input = [b"  {\"a\":1}\r\n\n", line.as_bytes(), b"\n{\"id\":3,\"method\":\"\xff\"}\n"].concat();
        let long = format!("{line}x and more\n{{}}\n").into_bytes();
        for chunk in [1, 7, 4_096] {
            let (said, refused, left) = passed_on(&input, chunk).now_or_never().expect("it is all there");
            assert_eq!((&said, &refused), (&taken(&input, chunk).0, &taken(&input, chunk).1));
            assert_eq!((said.len(), refused.len(), left), (2, 1, None));
            let (said, _, left) =
                passed_on(&[input.as_slice(), &long].concat(), chunk).now_or_never().expect("it is all there");
            assert_eq!((said.len(), left), (2, Some(long.clone())), "in pieces of {chunk}");
        }
    }

    #[tokio::test]
    async fn a_message_is_one_line_whatever_it_holds() {
        let ((told, from_front), (refuse, refusals)) = (mpsc::channel(2), mpsc::channel(2));
        told.send("{\n\"a\":1\r\n}".into()).await.unwrap();
        refuse.send("{}".into()).await.unwrap();
        drop((told, refuse));
        let mut output = Vec::new();
        write_ready(&mut output, from_front, refusals).await;
        assert_eq!(output, b"{}\n{ \"a\":1  }\n");
    }

    #[test]
    fn a_line_that_is_too_long_is_refused_and_what_follows_is_read() {
        let long = format!(r#"{{"method":"{}","id":9}}"#, "x".repeat(100));
        let input = format!("{{\"a\":1}}\r\n\n{long}\n  {{\"b\":2}}  \n{{\"c\":3}}");
        for chunk in [1, 7, 4_096] {
            let (said, answers) = taken(input.as_bytes(), chunk);
            assert_eq!(said, [r#"{"a":1}"#, r#"{"b":2}"#, r#"{"c":3}"#]);
            let error = r#"{"code":-32600,"message":"the message is longer than 32 bytes"}"#;
            assert_eq!(answers, [format!(r#"{{"jsonrpc":"2.0","id":9,"error":{error}}}"#)]);
        }
    }

    #[test]
    fn nothing_is_left_of_a_long_line_that_is_no_json() {
        let (said, answers) = taken(format!("{{}}}}{}\n{{}}", "x".repeat(10_000)).as_bytes(), 7);
        assert_eq!((said, answers.len()), (vec!["{}".to_owned()], 1));
        assert!(answers[0].contains(r#""id":null"#), "{answers:?}");
    }

    #[test]
    fn a_line_of_the_very_limit_is_taken() {
        let line = "x".repeat(32);
        let (said, answers) = taken(format!("{line}\n{line}x\n{line}").as_bytes(), 4_096);
        assert_eq!((said, answers.len()), (vec![line.clone(), line], 1));
    }

    #[test]
    fn what_is_no_utf_8_is_refused_and_never_passed_on() {
        let (said, answers) = taken(b"{\"id\":3,\"method\":\"\xff\"}\n{}\n", 4_096);
        assert_eq!(said, ["{}"]);
        assert!(answers[0].starts_with(r#"{"jsonrpc":"2.0","id":3,"error":{"code":-32700,"#), "{answers:?}");
    }
}
