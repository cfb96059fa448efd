//! Traces: what a connection records, and the corpus of recordings that every change is replayed against.

mod corpus;
mod pongs;
mod recorder;
mod scenes;

use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use mcp_reconnect::trace::{self, Entry, Step, Trace};

/// A file in memory.
#[derive(Clone, Default)]
struct Memory(Arc<Mutex<Vec<u8>>>);

impl Memory {
    fn bytes(&self) -> Vec<u8> {
        self.0.lock().unwrap().clone()
    }

    fn trace(&self) -> Trace {
        let bytes = self.bytes();
        trace::read(&bytes[..]).unwrap_or_else(|error| panic!("{error} in {}", String::from_utf8_lossy(&bytes)))
    }
}

impl Write for Memory {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn steps(trace: &Trace) -> Vec<&Step> {
    let steps = trace.entries.iter().filter_map(|entry| match entry {
        Entry::Step(step) => Some(step),
        Entry::Dropped { .. } => None,
    });
    steps.collect()
}

/// How many inputs the trace says are missing.
fn dropped(trace: &Trace) -> u64 {
    let dropped = trace.entries.iter().map(|entry| match entry {
        Entry::Step(_) => 0,
        Entry::Dropped { count, .. } => count.get(),
    });
    dropped.sum()
}
