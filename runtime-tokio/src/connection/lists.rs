//! Keeps the lists of a session as the server has them, each by itself, for as long as the session lasts.

use std::convert::Infallible;
use std::future::pending;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::future::OptionFuture;
use rmcp::model::{Prompt, Resource, ResourceTemplate, Tool};
use tokio::time::{Instant, sleep_until, timeout};

use crate::connection::messages::What;
use crate::link::Ended;
use crate::session::catalogue::{Catalogue, Entry, Part, changes, list};
use crate::session::{Session, ToolList};
use crate::wire::Change;

/// How long after a first announcement of a change a list is asked for: what is announced in a burst is listed once. Lists
/// that bring nothing new double it.
const SETTLE: Duration = Duration::from_millis(250);
/// The longest time between two lists of a server that announces changes and has none.
const MOST_TOLD: Duration = Duration::from_secs(60);
/// The longest time between two lists where changes are merely presumed and there are none.
const MOST_PRESUMED: Duration = Duration::from_secs(15 * 60);
/// How long after a list no caller has it listed again. Lists that bring nothing new double it.
pub(super) const REST: Duration = Duration::from_secs(5);
const MOST_REST: Duration = Duration::from_secs(60);
/// How often a list of tools that is empty where the session before had some is asked for again before it is believed:
/// after 1, 2, 4, 8 and 16 s.
const RETRIES: u32 = 5;
/// What is said of tools that a session does not list, though the one before did.
pub(super) const EMPTY: &str = "the server lists no tools in this session, so far";

/// The lists of one session.
pub(crate) struct Lists<'a> {
    pub(crate) session: &'a Session,
    /// What was listed last, in any session.
    pub(crate) known: &'a Mutex<Arc<Catalogue>>,
    /// How long a list as a whole may take.
    pub(crate) patience: Duration,
    /// Takes what is to be reported.
    pub(crate) note: &'a (dyn Fn(What) + Sync),
    /// The longest that a page was known to take.
    pub(crate) slowest: Mutex<Duration>,
}

impl Lists<'_> {
    /// Lists what was not needed for Ready, then whatever may have changed, until the end of the link.
    pub(crate) async fn keep(&self) -> Ended {
        let lists = async {
            tokio::join!(
                self.keep_list::<Tool>(),
                self.keep_list::<Prompt>(),
                self.keep_list::<Resource>(),
                self.keep_list::<ResourceTemplate>(),
            )
        };
        tokio::select! {
            biased;
            ended = self.session.wire().ended() => ended,
            (never, ..) = lists => match never {},
        }
    }

    async fn keep_list<T: Entry + Kept>(&self) -> Infallible {
        if !T::is_declared(&self.session.server().capabilities) {
            return pending().await;
        }
        let wire = self.session.wire();
        let mut pace = T::begin(self.session);
        loop {
            let (all, change) = (wire.list_changes(), self.change::<T>());
            let now = Instant::now();
            match pace.due(change, now) {
                Some(due) if due <= now => self.list_again::<T>(&mut pace, change).await,
                due => {
                    let due = OptionFuture::from(due.map(sleep_until));
                    tokio::select! {
                        more = wire.list_changes_since(all) => if more.is_err() {
                            return pending().await;
                        },
                        Some(()) = due => {}
                    }
                }
            }
        }
    }

    /// The changes of a list. Nothing is presumed of one whose changes would not be told.
    fn change<T: Entry>(&self) -> Change {
        let change = T::change(self.session.wire().list_changes());
        let is_announced = T::is_announced(&self.session.server().capabilities);
        Change { presumed: if is_announced { change.presumed } else { 0 }, ..change }
    }

    /// Lists once, which covers these changes.
    async fn list_again<T: Entry + Kept>(&self, pace: &mut Pace, change: Change) {
        let old = T::part(&mut self.session.catalogue().as_ref().clone()).clone();
        let listing = timeout(self.patience, list::<T>(self.session.wire(), self.session.established())).await;
        let part = match listing {
            Ok(Ok(listing)) => {
                self.took(listing.slowest);
                Part::Listed(listing.items)
            }
            Ok(Err(error)) => old.stale(error.to_string()),
            Err(_) => old.stale(format!("no answer to {} within {:?}", T::METHOD, self.patience)),
        };
        let part = if pace.believes(&old, &part, change) { part } else { old.stale(EMPTY) };
        // Callers that came meanwhile have what they asked for.
        let covered = Change { asked: self.change::<T>().asked, ..change };
        pace.listed(covered, !changes(&old, &part).is_empty(), Instant::now());
        self.take(&old, part);
        T::listed(self.session, pace);
    }

    fn take<T: Entry>(&self, old: &Part<T>, part: Part<T>) {
        if part.is_same(old) {
            return;
        }
        let catalogue = self.session.update_catalogue(|catalogue| *T::part(catalogue) = part);
        *self.known.lock().unwrap_or_else(PoisonError::into_inner) = catalogue.clone();
        (self.note)(What::Relisted(catalogue));
    }

    /// Tells how long a page took, if none took longer before.
    fn took(&self, page: Duration) {
        let mut slowest = self.slowest.lock().unwrap_or_else(PoisonError::into_inner);
        if page > *slowest {
            *slowest = page;
            (self.note)(What::Listed(page));
        }
    }
}

/// What is kept of a list beside its items.
trait Kept {
    /// Where a session begins.
    fn begin(session: &Session) -> Pace {
        _ = session;
        Pace::new(ToolList::UNLISTED)
    }

    /// Notes a listing.
    fn listed(session: &Session, pace: &Pace) {
        _ = (session, pace);
    }
}

impl Kept for Prompt {}
impl Kept for Resource {}
impl Kept for ResourceTemplate {}

impl Kept for Tool {
    fn begin(session: &Session) -> Pace {
        let tools = session.tools();
        Pace { doubts_empty: !tools.is_own, ..Pace::new(tools) }
    }

    fn listed(session: &Session, pace: &Pace) {
        let Pace { covered, listed, .. } = *pace;
        session.set_tools(ToolList { covered, listed, rest: pace.asked.wait, is_own: !pace.doubts_empty });
    }
}

/// When a list is asked for again.
#[derive(Debug)]
struct Pace {
    /// What the last listing covers.
    covered: Change,
    /// When that was; `None` before the first.
    listed: Option<Instant>,
    /// When something was noticed first that it does not cover.
    noticed: Option<Instant>,
    told: Spacing,
    presumed: Spacing,
    asked: Spacing,
    /// Whether an empty list is no news of this session: nothing was listed in it.
    doubts_empty: bool,
    /// How often it was empty so far.
    empty: u32,
}

impl Pace {
    fn new(ToolList { covered, listed, .. }: ToolList) -> Self {
        Self {
            covered,
            listed,
            noticed: None,
            told: Spacing::new(SETTLE, MOST_TOLD),
            presumed: Spacing::new(SETTLE, MOST_PRESUMED),
            asked: Spacing::new(REST, MOST_REST),
            doubts_empty: false,
            // One that was listed already and is doubted was empty.
            empty: u32::from(listed.is_some()),
        }
    }

    /// When to list, as things stand; `None` when there is no reason.
    fn due(&mut self, change: Change, now: Instant) -> Option<Instant> {
        let Some(listed) = self.listed else { return Some(now) };
        let (told, presumed) = (change.told != self.covered.told, change.presumed != self.covered.presumed);
        let settled = if told || presumed { *self.noticed.get_or_insert(now) + SETTLE } else { now };
        let doubted = self.doubts_empty && (1..=RETRIES).contains(&self.empty);
        let retry = doubted.then(|| listed + Duration::from_secs(1 << (self.empty - 1)));
        [
            told.then_some(settled.max(listed + self.told.wait)),
            presumed.then_some(settled.max(listed + self.presumed.wait)),
            // Callers see to it that there is time between them.
            (change.asked != self.covered.asked).then_some(now),
            retry,
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Whether a list is taken as it is: not an empty one where another session had something, unless the server has said
    /// since that it changed, or it was empty so often.
    fn believes<T>(&mut self, old: &Part<T>, new: &Part<T>, change: Change) -> bool {
        let Part::Listed(items) = new else {
            self.empty += u32::from(self.empty > 0);
            return true;
        };
        let told = self.listed.is_some() && change.told != self.covered.told;
        self.doubts_empty &= items.is_empty() && !old.items().is_empty() && !told && self.empty < RETRIES;
        self.empty += u32::from(self.doubts_empty);
        !self.doubts_empty
    }

    /// A listing has ended, which was to cover these changes.
    fn listed(&mut self, covered: Change, is_news: bool, now: Instant) {
        let quiet = self.listed.map_or(Duration::MAX, |listed| self.noticed.unwrap_or(now) - listed);
        for (spacing, concerned) in [
            (&mut self.told, covered.told != self.covered.told),
            (&mut self.presumed, covered.presumed != self.covered.presumed),
            (&mut self.asked, covered.asked != self.covered.asked),
        ] {
            spacing.next(is_news, concerned, quiet);
        }
        self.covered = covered;
        self.listed = Some(now);
        self.noticed = None;
    }
}

/// How far lists are apart that are asked for one reason.
#[derive(Debug)]
struct Spacing {
    wait: Duration,
    least: Duration,
    most: Duration,
}

impl Spacing {
    const fn new(least: Duration, most: Duration) -> Self {
        Self { wait: least, least, most }
    }

    /// There was a list. After one with news, or after a long time, it begins anew.
    fn next(&mut self, is_news: bool, concerned: bool, quiet: Duration) {
        if is_news || quiet > self.most {
            self.wait = self.least;
        }
        if concerned && !is_news {
            self.wait = (self.wait * 2).min(self.most);
        }
    }
}

#[cfg(test)]
mod tests;
