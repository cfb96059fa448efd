//! stderr: always read to its end, the last lines kept.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::io::{AsyncRead, AsyncReadExt};

/// How many of the last lines of stderr are kept.
pub const STDERR_LINES: usize = 64;
/// How many bytes of a line of stderr are kept in one; a longer line is kept in pieces that count as lines.
pub const STDERR_LINE_BYTES: usize = 1024;

/// The last lines.
#[derive(Debug, Default)]
pub(crate) struct Tail(Mutex<Lines>);

#[derive(Debug, Default)]
struct Lines {
    whole: VecDeque<String>,
    /// The line that has not ended yet.
    open: Vec<u8>,
}

impl Tail {
    /// The last lines, the unfinished one included, oldest first.
    pub(crate) fn lines(&self) -> Vec<String> {
        let lines = self.lock();
        let mut all: Vec<_> = lines.whole.iter().cloned().collect();
        all.extend(text(&lines.open));
        all
    }

    pub(crate) fn push(&self, bytes: &[u8]) {
        let mut lines = self.lock();
        for part in bytes.split_inclusive(|&byte| byte == b'\n') {
            let (mut rest, ended) = match part.split_last() {
                Some((b'\n', line)) => (line, true),
                _ => (part, false),
            };
            while lines.open.len() + rest.len() > STDERR_LINE_BYTES {
                let (now, later) = rest.split_at(STDERR_LINE_BYTES - lines.open.len());
                lines.open.extend_from_slice(now);
                lines.end_line();
                rest = later;
            }
            lines.open.extend_from_slice(rest);
            if ended {
                lines.end_line();
            }
        }
    }

    /// A panic between two statements of `push` leaves no line half done, so poison says nothing.
    fn lock(&self) -> MutexGuard<'_, Lines> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Lines {
    fn end_line(&mut self) {
        if let Some(line) = text(&self.open) {
            if self.whole.len() == STDERR_LINES {
                self.whole.pop_front();
            }
            self.whole.push_back(line);
        }
        self.open.clear();
    }
}

/// The line as text; `None` for a blank one.
fn text(line: &[u8]) -> Option<String> {
    let line = line.trim_ascii_end();
    (!line.is_empty()).then(|| String::from_utf8_lossy(line).into_owned())
}

/// Reads a pipe to its end.
///
/// Cancel safe: every byte that was read was given to `sink`. A read error is an end: there is nothing to read any more.
pub(crate) async fn drain(pipe: &mut (impl AsyncRead + Unpin), mut sink: impl FnMut(&[u8])) {
    let mut buffer = vec![0; 8 * 1024];
    while let Ok(count @ 1..) = pipe.read(&mut buffer).await {
        sink(&buffer[..count]);
    }
}

#[cfg(test)]
mod tests {
    use super::{STDERR_LINE_BYTES, STDERR_LINES, Tail};

    #[test]
    fn lines_are_kept_whole_whatever_the_reads_were() {
        let tail = Tail::default();
        for byte in b"one\r\n\n  \ntwo \xff\nthree" {
            tail.push(&[*byte]);
        }
        assert_eq!(tail.lines(), ["one", "two \u{fffd}", "three"]);
        tail.push(b" goes on\n");
        assert_eq!(tail.lines().last().map(String::as_str), Some("three goes on"));
    }

    #[test]
    fn k22_stderr_is_bounded_in_lines_and_bytes_and_keeps_the_end() {
        let tail = Tail::default();
        for number in 0..1000 {
            tail.push(format!("line {number}\n").as_bytes());
        }
        assert_eq!(tail.lines().len(), STDERR_LINES);
        assert_eq!(tail.lines().first().map(String::as_str), Some("line 936"));

        tail.push(&vec![b'x'; 1 << 20]);
        tail.push(b"the end");
        let lines = tail.lines();
        assert!(lines.len() <= STDERR_LINES + 1);
        assert!(lines.iter().all(|line| line.len() <= STDERR_LINE_BYTES));
        assert!(lines.last().is_some_and(|line| line.ends_with("the end")));
    }
}
