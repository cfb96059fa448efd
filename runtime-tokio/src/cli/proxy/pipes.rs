//! Stdin and stdout as a host's end: a line is a message. On threads of their own, which the exit does not wait for: a read
//! of stdin cannot be called off.

use std::io::{self, BufRead, Read, Write as _};
use std::thread;
use std::time::Duration;

use mcp_reconnect::front::HostEnd;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

/// How many bytes a message may have, of either side.
pub(super) const MESSAGE_LIMIT: usize = 64 * 1024 * 1024;
/// How long the last messages may take to be read by the host.
pub(super) const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

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
        Self {
            read: spawn("stdin", move || read(&mut io::stdin().lock(), MESSAGE_LIMIT, &to_front, write_line)),
            written: spawn("stdout", move || write(from_front)),
        }
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
            let id = id_in(io::BufReader::new(line.as_slice().chain(RestOfLine { input: &mut *input, ended: false })));
            answer(&refusal(id.as_deref(), INVALID_REQUEST, &format!("the message is longer than {limit} bytes")))
        } else {
            match std::str::from_utf8(line.trim_ascii()) {
                Ok("") => Ok(()),
                Ok(text) => match to_front.blocking_send(text.into()) {
                    Ok(()) => Ok(()),
                    Err(_) => return,
                },
                Err(error) => {
                    let id = id_in(String::from_utf8_lossy(&line).as_bytes());
                    answer(&refusal(id.as_deref(), PARSE_ERROR, &format!("the message is no UTF-8: {error}")))
                }
            }
        };
        if told.is_err() {
            return; // whoever writes finds out too
        }
    }
}

/// What is left of a line that is not kept.
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
    drop(io::copy(&mut line, &mut io::sink())); // what cannot be read is found out at the next line
    request?.id
}

/// The answer to what the front is not shown.
fn refusal(id: Option<&RawValue>, code: i32, why: &str) -> String {
    tracing::warn!("a message of the host was refused: {why}");
    let id = id.unwrap_or(RawValue::NULL);
    let error = serde_json::json!({ "code": code, "message": why });
    format!(r#"{{"jsonrpc":"2.0","id":{},"error":{error}}}"#, id.get())
}

fn write(mut from_front: mpsc::Receiver<Box<str>>) {
    while let Some(frame) = from_front.blocking_recv() {
        // A message of the other side may hold line ends between its members.
        let frame = if frame.contains(['\n', '\r']) { frame.replace(['\n', '\r'], " ").into() } else { frame };
        if let Err(error) = write_line(&frame) {
            tracing::info!(%error, "the host has closed stdout: the session ends");
            return;
        }
    }
}

fn write_line(frame: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(frame.as_bytes())?;
    stdout.write_all(b"\n")?;
    stdout.flush()
}

#[cfg(test)]
mod tests {
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

    /// What is passed on of this input, and what is answered.
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
    fn what_is_no_utf_8_is_refused_and_never_passed_on_as_something_else() {
        let (said, answers) = taken(b"{\"id\":3,\"method\":\"\xff\"}\n{}\n", 4_096);
        assert_eq!(said, ["{}"]);
        assert!(answers[0].starts_with(r#"{"jsonrpc":"2.0","id":3,"error":{"code":-32700,"#), "{answers:?}");
    }
}
