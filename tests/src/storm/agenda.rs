use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// What is to happen, by time; what is due at one time happens in the order in which it was added.
pub(super) struct Agenda<T> {
    heap: BinaryHeap<Entry<T>>,
    added: u64,
}

struct Entry<T> {
    /// Time and number in one: unoptimised builds run this millions of times.
    key: u128,
    what: T,
}

impl<T> Agenda<T> {
    pub(super) const fn new() -> Self {
        Self { heap: BinaryHeap::new(), added: 0 }
    }

    pub(super) fn add(&mut self, at: u64, what: T) {
        self.added += 1;
        self.heap.push(Entry { key: (u128::from(at) << 64) | u128::from(self.added), what });
    }

    pub(super) fn next(&mut self) -> Option<(u64, T)> {
        let entry = self.heap.pop()?;
        Some(((entry.key >> 64) as u64, entry.what))
    }
}

impl<T> PartialEq for Entry<T> {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl<T> Eq for Entry<T> {}

impl<T> PartialOrd for Entry<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }

    fn le(&self, other: &Self) -> bool {
        self.key >= other.key
    }
}

impl<T> Ord for Entry<T> {
    /// The earliest is the greatest: the heap gives the greatest first.
    fn cmp(&self, other: &Self) -> Ordering {
        other.key.cmp(&self.key)
    }
}
