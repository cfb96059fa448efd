//! The proxy's faults as lines of text, for the binary `chaos-proxy`.

use std::error::Error;
use std::fmt;
use std::io;
use std::str::FromStr;

use super::faults::{Cut, Direction, End, Faults, Flow};
use super::{ChaosProxy, Stats};
use crate::fake::duration;

/// What a line tells a proxy to do. Each fault replaces the one before.
///
/// | line | |
/// |---|---|
/// | `pass` | nothing goes wrong; what was held or frozen goes on |
/// | `blackhole` | connections are accepted and stay open, nothing passes |
/// | `hold responses` | the same in one direction (`requests` or `responses`); without it, in both |
/// | `freeze` | connections that are open now forward nothing; new ones work |
/// | `reset` | every open connection is reset, now |
/// | `reset accept` | every new connection is reset at once |
/// | `refuse` | new connections are refused |
/// | `cut 100` | each connection is closed after so many bytes more of its response; also, in any order, `requests`, `reset` for a reset, `once` for the first connection only |
/// | `delay 250ms` | each piece waits this long (`ms`, `s`, `m`, `h`) in both directions; or in one of them, named after it |
/// | `stats` | only asks for the counters |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Any of the faults.
    Set(Faults),
    /// `freeze`
    Freeze,
    /// `reset`
    Reset,
    /// `stats`
    Stats,
}

/// What every command is, for whoever mistyped one.
const COMMANDS: &str = "pass, blackhole, hold, freeze, reset, reset accept, refuse, cut BYTES, delay DURATION or stats";

/// A line that is no [`Command`], with the word that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandError(String);

impl fmt::Display for CommandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for CommandError {}

impl FromStr for Command {
    type Err = CommandError;

    fn from_str(line: &str) -> Result<Self, CommandError> {
        let mut words = line.split_whitespace();
        let command = match words.next() {
            Some("pass") => Self::Set(Faults::PASS),
            Some("blackhole") => Self::Set(Faults::BLACK_HOLE),
            Some("refuse") => Self::Set(Faults::REFUSE),
            Some("freeze") => Self::Freeze,
            Some("stats") => Self::Stats,
            Some("reset") => match words.next() {
                None => Self::Reset,
                Some("accept") => Self::Set(Faults::RESET_AT_ACCEPT),
                Some(other) => return Err(unexpected(other, "accept, or nothing")),
            },
            Some("hold") => Self::Set(either(words.next(), Flow::Hold)?),
            Some("delay") => {
                let word = words.next().unwrap_or_default();
                let time = duration(word).ok_or_else(|| unexpected(word, "a duration such as 250ms or 2s"))?;
                Self::Set(either(words.next(), Flow::Delay(time))?)
            }
            Some("cut") => Self::Set(cut(&mut words)?),
            other => return Err(unexpected(other.unwrap_or_default(), COMMANDS)),
        };
        match words.next() {
            None => Ok(command),
            Some(word) => Err(unexpected(word, "the end of the line")),
        }
    }
}

fn unexpected(found: &str, wanted: &str) -> CommandError {
    CommandError(format!("`{found}` is not {wanted}"))
}

fn either(direction: Option<&str>, flow: Flow) -> Result<Faults, CommandError> {
    match direction {
        None => Ok(Faults { requests: flow, responses: flow, ..Faults::PASS }),
        Some("requests") => Ok(Faults::only(Direction::Requests, flow)),
        Some("responses") => Ok(Faults::only(Direction::Responses, flow)),
        Some(other) => Err(unexpected(other, "requests or responses")),
    }
}

fn cut<'a>(words: &mut impl Iterator<Item = &'a str>) -> Result<Faults, CommandError> {
    let word = words.next().unwrap_or_default();
    let after = word.parse().map_err(|_| unexpected(word, "a number of bytes"))?;
    let (mut cut, mut direction) = (Cut { after, end: End::Close, once: false }, Direction::Responses);
    for word in words {
        match word {
            "reset" => cut.end = End::Reset,
            "once" => cut.once = true,
            "requests" => direction = Direction::Requests,
            "responses" => direction = Direction::Responses,
            other => return Err(unexpected(other, "reset, once, requests or responses")),
        }
    }
    Ok(Faults::only(direction, Flow::Cut(cut)))
}

impl Command {
    /// Does it; gives the counters afterwards.
    ///
    /// # Errors
    ///
    /// The port cannot be opened again.
    pub async fn carry_out(self, proxy: &ChaosProxy) -> io::Result<Stats> {
        match self {
            Self::Set(faults) => proxy.set(faults).await?,
            Self::Freeze => drop(proxy.freeze().await?),
            Self::Reset => drop(proxy.reset().await?),
            Self::Stats => {}
        }
        Ok(proxy.stats())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn lines() {
        let delay = Flow::Delay(Duration::from_millis(250));
        let cut = |after, end, once| Flow::Cut(Cut { after, end, once });
        for (line, faults) in [
            ("pass", Faults::PASS),
            (" blackhole ", Faults::BLACK_HOLE),
            ("refuse", Faults::REFUSE),
            ("reset accept", Faults::RESET_AT_ACCEPT),
            ("hold", Faults::BLACK_HOLE),
            ("hold responses", Faults::only(Direction::Responses, Flow::Hold)),
            ("delay 250ms", Faults::delay(Duration::from_millis(250))),
            ("delay 250ms requests", Faults::only(Direction::Requests, delay)),
            ("cut 100", Faults::cut(100)),
            ("cut 0 once reset", Faults::only(Direction::Responses, cut(0, End::Reset, true))),
            ("cut 7 requests", Faults::only(Direction::Requests, cut(7, End::Close, false))),
        ] {
            assert_eq!(line.parse(), Ok(Command::Set(faults)), "{line}");
        }
        for (line, command) in [("freeze", Command::Freeze), ("reset", Command::Reset), ("stats", Command::Stats)] {
            assert_eq!(line.parse(), Ok(command), "{line}");
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (line, word) in [
            ("", "``"),
            ("pas", "`pas`"),
            ("pass it", "`it`"),
            ("cut", "``"),
            ("cut -1", "`-1`"),
            ("cut 10 twice", "`twice`"),
            ("delay 250", "`250`"),
            ("delay 1s both", "`both`"),
            ("hold 3s", "`3s`"),
            ("reset all", "`all`"),
            ("stats now", "`now`"),
        ] {
            let error = line.parse::<Command>().unwrap_err().to_string();
            assert!(error.contains(word), "{line}: {error}");
        }
    }
}
