//! One spawn's ledger, read into the book of its server.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Seek as _, SeekFrom};
use std::path::PathBuf;

use super::book::{Book, Violation};
use crate::fake::{Entry, Event};

/// Faults by their names.
pub(super) type Tally = BTreeMap<&'static str, u64>;

/// A spawn, as far as its ledger was read.
#[derive(Debug)]
pub(super) struct Spawn {
    ledger: PathBuf,
    in_calls: Vec<(usize, &'static str)>,
    read: u64,
    calls: usize,
    /// The calls that it was asked, by the JSON of their ids.
    asked: HashMap<String, usize>,
}

/// The argument of a call that names it.
pub(super) fn label(server: usize, call: usize) -> String {
    format!("{server}-{call}")
}

impl Spawn {
    pub(super) fn new(ledger: PathBuf, in_calls: Vec<(usize, &'static str)>) -> Self {
        Self { ledger, in_calls, read: 0, calls: 0, asked: HashMap::new() }
    }

    pub(super) fn ledger(&self) -> &PathBuf {
        &self.ledger
    }

    /// Reads what is new. One that never came as far as its ledger has none.
    pub(super) fn read_into(
        &mut self,
        server: usize,
        book: &mut Book,
        faults: &mut Tally,
        wrong: &mut Vec<Violation>,
    ) -> io::Result<()> {
        let mut file = match File::open(&self.ledger) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        file.seek(SeekFrom::Start(self.read))?;
        let mut lines = BufReader::new(file);
        let mut line = Vec::new();
        loop {
            line.clear();
            let read = lines.read_until(b'\n', &mut line)?;
            if line.last() != Some(&b'\n') {
                // The end, or a line that is being written.
                return Ok(());
            }
            self.read += read as u64;
            let entry: Entry = serde_json::from_slice(&line)?;
            if let Err(what) = self.enter(server, entry.event, book, faults) {
                wrong.push(what);
            }
        }
    }

    fn enter(&mut self, server: usize, event: Event, book: &mut Book, faults: &mut Tally) -> Result<(), Violation> {
        let violation = |what: String| Violation { server: Some(server), call: None, what };
        match event {
            Event::Crowded => Err(violation("started while a process of its last tree still lived".into())),
            Event::Request { tool: Some(_), id, params, .. } => {
                self.calls += 1;
                let due = self.in_calls.iter().filter(|(call, _)| *call == self.calls);
                due.for_each(|(_, name)| *faults.entry(name).or_default() += 1);
                let text = params["arguments"]["text"].as_str().unwrap_or_default();
                let call = text.split_once('-').and_then(|(of, call)| Some((of.parse().ok()?, call.parse().ok()?)));
                let call = call.filter(|(of, _): &(usize, usize)| *of == server).map(|(_, call)| call);
                let call = call.ok_or_else(|| violation(format!("was asked a call of another: {text:?}")))?;
                self.asked.insert(id.to_string(), call);
                Ok(())
            }
            Event::Executed { id, .. } => match self.asked.get(&id.to_string()) {
                Some(call) => book.ran(*call),
                None => Err(violation(format!("ran a call with the id {id}, which it was not asked"))),
            },
            _ => Ok(()),
        }
    }
}
