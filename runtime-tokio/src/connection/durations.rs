//! How long calls have taken on one connection: from this it is known when one that is not answered is hung.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How many methods and tools are remembered; the oldest goes.
const NAMES: usize = 1000;
/// How many answers there must be before any call counts as hung.
const ENOUGH: u32 = 10;
/// How many times as long as the longest one a call may take before it counts as hung.
const FACTOR: u32 = 10;

/// The longest that each method or tool has taken.
#[derive(Default)]
pub(crate) struct Durations(Mutex<Table>);

#[derive(Default)]
struct Table {
    answers: u32,
    longest: HashMap<Arc<str>, Duration>,
    /// The names, oldest first.
    names: VecDeque<Arc<str>>,
}

impl Durations {
    /// After how long an unanswered call of this name counts as hung: `hung_after`, or longer where it has taken long
    /// before. `None` while too little is known.
    pub(crate) fn hung_after(&self, name: &str, hung_after: Duration) -> Option<Duration> {
        let table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let longest = table.longest.get(name).copied().unwrap_or_default();
        (table.answers >= ENOUGH).then(|| hung_after.max(longest.saturating_mul(FACTOR)))
    }

    /// A call was answered after so long.
    pub(crate) fn answered(&self, name: &str, took: Duration) {
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        table.answers = table.answers.saturating_add(1);
        table.note(name, took);
    }

    /// A call was given up as hung after so long: it counts as having taken twice that long, so that a second try ends.
    pub(crate) fn given_up(&self, name: &str, after: Duration) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).note(name, after.saturating_mul(2));
    }
}

impl Table {
    fn note(&mut self, name: &str, took: Duration) {
        if let Some(longest) = self.longest.get_mut(name) {
            *longest = took.max(*longest);
            return;
        }
        if self.names.len() >= NAMES
            && let Some(oldest) = self.names.pop_front()
        {
            self.longest.remove(&oldest);
        }
        let name = Arc::<str>::from(name);
        self.names.push_back(name.clone());
        self.longest.insert(name, took);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_call_is_hung_after_ten_times_its_longest_and_ten_answers() {
        let durations = Durations::default();
        for _ in 0..9 {
            durations.answered("slow", SECOND * 3);
        }
        assert_eq!(durations.hung_after("slow", SECOND * 25), None);
        durations.answered("quick", SECOND);
        assert_eq!(durations.hung_after("slow", SECOND * 25), Some(SECOND * 30));
        assert_eq!(durations.hung_after("quick", SECOND * 25), Some(SECOND * 25));
        assert_eq!(durations.hung_after("another", SECOND * 25), Some(SECOND * 25));
    }

    #[test]
    fn one_that_was_given_up_has_taken_twice_that_long() {
        let durations = Durations::default();
        for _ in 0..10 {
            durations.answered("act", SECOND);
        }
        durations.given_up("act", SECOND * 25);
        assert_eq!(durations.hung_after("act", SECOND * 25), Some(SECOND * 500));
    }

    #[test]
    fn the_oldest_of_a_thousand_names_goes() {
        let durations = Durations::default();
        for name in 0..=NAMES {
            durations.answered(&name.to_string(), SECOND);
        }
        let table = durations.0.lock().unwrap();
        assert_eq!((table.longest.len(), table.names.len()), (NAMES, NAMES));
        assert!(!table.longest.contains_key("0") && table.longest.contains_key("1000"));
    }
}
