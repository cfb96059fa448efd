//! The private directory through which the demo and its embedded server talk behind the protocol's back: the ledger of
//! what ran, and orders to misbehave.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use clap::ValueEnum;

/// A mistake that the embedded server is told to make once, to show that the demo would notice.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(super) enum Misdeed {
    /// Answer a call with another one's text.
    WrongAnswer,
    /// Run a call of the tool without annotation twice.
    DoubleRun,
}

impl Misdeed {
    const fn file(self) -> &'static str {
        match self {
            Self::WrongAnswer => "wrong-answer",
            Self::DoubleRun => "double-run",
        }
    }
}

const CRASHES: &str = "crashes";
const UNAVAILABLE: &str = "unavailable";
const LEDGER: &str = "ledger";

/// Either end of the directory.
#[derive(Clone, Debug)]
pub(super) struct Stage {
    dir: PathBuf,
}

impl Stage {
    pub(super) fn new(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into() }
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Orders the next so many servers to exit at once. Not while one starts: it would race with its reading.
    pub(super) fn order_crashes(&self, spawns: u32) -> io::Result<()> {
        fs::write(self.dir.join(CRASHES), spawns.to_string())
    }

    /// Takes one of the ordered crashes; whether there was one.
    pub(super) fn take_crash(&self) -> io::Result<bool> {
        let left = match fs::read_to_string(self.dir.join(CRASHES)) {
            Ok(text) => text.parse::<u32>().map_err(io::Error::other)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
            Err(error) => return Err(error),
        };
        match left.checked_sub(1) {
            Some(left) => self.order_crashes(left).map(|()| true),
            None => Ok(false),
        }
    }

    /// Orders one misdeed.
    pub(super) fn order(&self, misdeed: Misdeed) -> io::Result<()> {
        File::create(self.dir.join(misdeed.file())).map(drop)
    }

    /// Takes an ordered misdeed; whether there was one.
    pub(super) fn take(&self, misdeed: Misdeed) -> bool {
        fs::remove_file(self.dir.join(misdeed.file())).is_ok()
    }

    /// Orders that everything is refused, or that it is not any more.
    pub(super) fn set_unavailable(&self, unavailable: bool) -> io::Result<()> {
        let order = self.dir.join(UNAVAILABLE);
        if unavailable { File::create(order).map(drop) } else { fs::remove_file(order) }
    }

    /// Whether everything is to be refused.
    pub(super) fn is_unavailable(&self) -> bool {
        self.dir.join(UNAVAILABLE).exists()
    }

    /// Records that a call ran. One write, so that a kill leaves a whole line or none.
    pub(super) fn record(&self, call: &str) -> io::Result<()> {
        let mut ledger = OpenOptions::new().append(true).create(true).open(self.dir.join(LEDGER))?;
        ledger.write_all(format!("{call}\n").as_bytes())
    }

    /// The calls that ran, in order.
    pub(super) fn ledger(&self) -> io::Result<Vec<String>> {
        match fs::read_to_string(self.dir.join(LEDGER)) {
            Ok(text) => Ok(text.lines().map(str::to_owned).collect()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Misdeed, Stage};

    #[test]
    fn an_order_is_taken_as_often_as_it_was_given() {
        let dir = tempfile::tempdir().unwrap();
        let stage = Stage::new(dir.path());
        assert!(!stage.take_crash().unwrap());
        stage.order_crashes(2).unwrap();
        assert!(stage.take_crash().unwrap());
        assert!(stage.take_crash().unwrap());
        assert!(!stage.take_crash().unwrap());

        assert!(!stage.take(Misdeed::DoubleRun));
        stage.order(Misdeed::DoubleRun).unwrap();
        assert!(!stage.take(Misdeed::WrongAnswer));
        assert!(stage.take(Misdeed::DoubleRun));
        assert!(!stage.take(Misdeed::DoubleRun));
    }

    #[test]
    fn the_ledger_keeps_what_ran_in_order() {
        let dir = tempfile::tempdir().unwrap();
        let stage = Stage::new(dir.path());
        assert!(stage.ledger().unwrap().is_empty());
        for call in ["append-1", "echo-1", "append-1"] {
            stage.record(call).unwrap();
        }
        assert_eq!(stage.ledger().unwrap(), ["append-1", "echo-1", "append-1"]);
    }
}
