//! When a list is asked for again, by the clock alone.

use super::*;
use crate::session::catalogue::Item;

/// A list that is asked for whenever it is due.
struct Listed {
    pace: Pace,
    change: Change,
    now: Instant,
}

impl Listed {
    fn new() -> Self {
        let now = Instant::now();
        let tools = ToolList { listed: Some(now), is_own: true, ..ToolList::UNLISTED };
        Self { pace: Pace::new(tools), change: Change::default(), now }
    }

    /// How long until it is listed, which brings news or not.
    fn wait(&mut self, change: impl FnOnce(&mut Change), is_news: bool) -> Option<u128> {
        change(&mut self.change);
        let due = self.pace.due(self.change, self.now)?;
        let waited = due - self.now;
        self.now = due;
        self.pace.listed(self.change, is_news, self.now);
        Some(waited.as_millis())
    }
}

fn told(change: &mut Change) {
    change.told += 1;
}

fn presumed(change: &mut Change) {
    change.presumed += 1;
}

fn asked(change: &mut Change) {
    change.asked += 1;
}

#[test]
fn nothing_is_listed_without_a_reason() {
    let mut list = Listed::new();
    assert_eq!(list.wait(|_| {}, false), None);
    list.pace = Pace::new(ToolList::UNLISTED);
    assert_eq!(list.wait(|_| {}, false), Some(0));
    assert_eq!(list.wait(|_| {}, false), None);
}

#[test]
fn lists_without_news_space_themselves_out_up_to_a_minute() {
    let mut list = Listed::new();
    let waits = [false; 10].map(|news| list.wait(told, news).unwrap());
    assert_eq!(waits, [250, 500, 1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000]);
    assert_eq!(list.wait(told, true), Some(60_000));
    assert_eq!(
        [list.wait(told, true), list.wait(told, false), list.wait(told, false)].map(Option::unwrap),
        [250, 250, 500]
    );
}

#[test]
fn presumed_changes_space_lists_out_up_to_a_quarter_of_an_hour() {
    let mut list = Listed::new();
    let waits = [false; 14].map(|news| list.wait(presumed, news).unwrap());
    assert_eq!(waits[..4], [250, 500, 1_000, 2_000]);
    assert_eq!(waits[11..], [512_000, 900_000, 900_000]);
    // What is told does not wait for that.
    assert_eq!(list.wait(told, false), Some(250));
    assert_eq!(list.wait(presumed, true), Some(900_000));
    assert_eq!(list.wait(presumed, false), Some(250));
}

#[test]
fn a_list_that_was_left_alone_for_long_is_asked_for_soon() {
    let mut list = Listed::new();
    for _ in 0..10 {
        list.wait(told, false);
    }
    list.now += Duration::from_secs(61);
    assert_eq!([list.wait(told, false), list.wait(told, false)].map(Option::unwrap), [250, 500]);
}

#[test]
fn callers_get_a_list_at_once_and_rest_longer_while_it_brings_nothing() {
    let mut list = Listed::new();
    let mut rests = Vec::new();
    for is_news in [false, false, false, false, false, true, false] {
        assert_eq!(list.wait(asked, is_news), Some(0));
        rests.push(list.pace.asked.wait.as_secs());
    }
    assert_eq!(rests, [10, 20, 40, 60, 60, 5, 10]);
}

fn part(tools: &[&str]) -> Part<Tool> {
    let item = |name: &&str| Item::from_text(&format!(r#"{{"name":"{name}","inputSchema":{{"type":"object"}}}}"#));
    Part::Listed(tools.iter().map(item).collect())
}

/// The session before had a tool; this one begins with an empty list.
fn doubting() -> Listed {
    let mut list = Listed::new();
    list.pace = Pace { doubts_empty: true, ..Pace::new(ToolList { listed: Some(list.now), ..ToolList::UNLISTED }) };
    list
}

/// How long until it is listed again, and whether that is believed.
fn again(list: &mut Listed, change: impl FnOnce(&mut Change), tools: &Part<Tool>) -> Option<(u128, bool)> {
    change(&mut list.change);
    let due = list.pace.due(list.change, list.now)?;
    let waited = (due - list.now).as_millis();
    list.now = due;
    let believed = list.pace.believes(&part(&["old"]), tools, list.change);
    list.pace.listed(list.change, false, list.now);
    Some((waited, believed))
}

#[test]
fn an_empty_list_at_the_start_is_believed_after_five_more() {
    let mut list = doubting();
    let waits: Vec<_> = std::iter::from_fn(|| again(&mut list, |_| {}, &part(&[]))).collect();
    assert_eq!(waits, [(1_000, false), (2_000, false), (4_000, false), (8_000, false), (16_000, true)]);
}

#[test]
fn an_empty_list_is_believed_at_once_when_the_server_has_said_so() {
    let mut list = doubting();
    assert_eq!(again(&mut list, |_| {}, &part(&[])), Some((1_000, false)));
    assert_eq!(again(&mut list, told, &part(&[])), Some((250, true)));
    assert_eq!(again(&mut list, |_| {}, &part(&[])), None);
}

#[test]
fn a_list_with_something_in_it_ends_the_doubt() {
    let mut list = doubting();
    assert_eq!(again(&mut list, |_| {}, &part(&["new"])), Some((1_000, true)));
    assert_eq!(again(&mut list, |_| {}, &part(&[])), None);
    assert_eq!(again(&mut list, presumed, &part(&[])), Some((250, true)));
}

#[test]
fn lists_that_fail_count_among_the_five() {
    let mut list = doubting();
    let failed = part(&["old"]).stale("broken");
    let waits: Vec<_> = std::iter::from_fn(|| again(&mut list, |_| {}, &failed)).collect();
    assert_eq!(waits.len(), 5, "{waits:?}");
    assert!(list.pace.doubts_empty);
    assert_eq!(again(&mut list, told, &part(&[])), Some((250, true)));
}
