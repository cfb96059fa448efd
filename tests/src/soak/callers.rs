//! Calls, what became of each, and whether it was told in time.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use mcp_reconnect::{CallError, CallOptions};
use rmcp::model::{CallToolRequestParams, CallToolResponse, ContentBlock, JsonObject};
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use super::Server;
use super::book::{Claim, Tool, Violation};
use super::spawn::label;
use crate::storm::dice::Dice;

/// How long after its deadline a call is given up as lost.
const LOST: Duration = Duration::from_secs(30);
/// How late a call may be told on a machine that is not late itself.
const LATE: Duration = Duration::from_millis(250);
/// How many times as late as the machine it may be: it is told in a few turns of a few tasks.
const TURNS: u32 = 8;
/// The shortest and the longest time that a caller gives a call, in milliseconds.
const TIMEOUTS: (u64, u64) = (50, 2_500);
/// How long a caller pauses at most, in milliseconds.
const PAUSE: u64 = 150;
/// What fills a pipe that nobody reads.
const LARGE: usize = 100 << 10;

/// How late a timer is, all the time.
#[derive(Debug)]
pub(super) struct Heartbeat(Mutex<Beats>);

#[derive(Debug)]
struct Beats {
    next: Instant,
    /// The late ones of the last minute.
    late: VecDeque<(Instant, Duration)>,
    worst: Duration,
}

impl Heartbeat {
    const EVERY: Duration = Duration::from_millis(10);
    const KEPT: Duration = Duration::from_secs(60);

    pub(super) fn new() -> Self {
        Self(Mutex::new(Beats { next: Instant::now(), late: VecDeque::new(), worst: Duration::ZERO }))
    }

    fn beats(&self) -> MutexGuard<'_, Beats> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Beats for ever.
    pub(super) async fn run(self: Arc<Self>) {
        loop {
            let next = Instant::now() + Self::EVERY;
            self.beats().next = next;
            sleep_until(next).await;
            let (now, mut beats) = (Instant::now(), self.beats());
            let late = now - next;
            beats.worst = beats.worst.max(late);
            if late > Duration::from_millis(2) {
                beats.late.push_back((now, late));
            }
            while beats.late.front().is_some_and(|(at, _)| now - *at > Self::KEPT) {
                beats.late.pop_front();
            }
        }
    }

    /// How late it was at most since then; a beat that is overdue counts.
    fn worst_since(&self, since: Instant) -> Duration {
        let beats = self.beats();
        let overdue = Instant::now().saturating_duration_since(beats.next);
        beats.late.iter().rev().take_while(|(at, _)| *at >= since).map(|(_, late)| *late).fold(overdue, Duration::max)
    }

    pub(super) fn worst(&self) -> Duration {
        self.beats().worst
    }
}

/// What became of the calls.
#[derive(Clone, Debug, Default)]
pub(super) struct Outcomes {
    /// By tool and outcome.
    pub(super) counts: BTreeMap<(&'static str, &'static str), u64>,
    /// How late a call was told at most.
    pub(super) latest: Duration,
}

/// Calls the server until then, one call after another.
pub(super) async fn call_until(server: &Server, until: Instant, mut dice: Dice) {
    while Instant::now() < until {
        let (least, most) = TIMEOUTS;
        let timeout = Duration::from_millis(least + dice.up_to(most - least));
        call(server, dice.one(Tool::ALL), timeout, dice.once_in(30)).await;
        sleep(Duration::from_millis(dice.up_to(PAUSE))).await;
    }
}

/// Makes one call; whether it was answered.
pub(super) async fn call(server: &Server, tool: Tool, timeout: Duration, large: bool) -> bool {
    let number = server.book().begin(tool);
    let text = label(server.number, number);
    let mut arguments = JsonObject::new();
    arguments.insert("text".into(), text.clone().into());
    if large {
        arguments.insert("padding".into(), "x".repeat(LARGE).into());
    }
    let params = CallToolRequestParams::new(tool.name()).with_arguments(arguments);
    let options = CallOptions { timeout, max_wait: Duration::from_secs(2), ..CallOptions::default() };
    let began = Instant::now();
    let due = began + timeout;
    let result = timeout_at(due + LOST, server.connection.call_tool_with(params, &options)).await;
    let late = Instant::now().saturating_duration_since(due);
    let violation = |what| Violation { server: Some(server.number), call: Some(number), what };
    let Ok(result) = result else {
        server.add_outcome(tool, "lost", late);
        return false;
    };
    let allowed = LATE + TURNS * server.heartbeat.worst_since(began);
    if late > allowed {
        server.accuse(violation(format!("told {late:.0?} after its deadline, where {allowed:.0?} are allowed")));
    }
    let (claim, outcome) = match &result {
        Ok(answer) => {
            if answer_of(answer) != Some(&*text) {
                server.accuse(violation(format!("got the answer of another: {answer:?}")));
            }
            (Claim::Ran, "answered")
        }
        Err(error) => (if error.not_run() { Claim::NotRun } else { Claim::MayHaveRun }, word(error)),
    };
    server.add_outcome(tool, outcome, late);
    if let Err(twice) = server.book().settle(number, claim) {
        server.accuse(twice);
    }
    claim == Claim::Ran
}

fn answer_of(response: &CallToolResponse) -> Option<&str> {
    match response {
        CallToolResponse::Complete(result) => match result.content.as_slice() {
            [ContentBlock::Text(text)] => Some(&text.text),
            _ => None,
        },
        _ => None,
    }
}

fn word(error: &CallError) -> &'static str {
    match error {
        CallError::Server { .. } => "server error",
        CallError::Refused { .. } => "refused, no session",
        CallError::NotSent { .. } => "not sent",
        CallError::OutcomeUnknown { .. } => "outcome unknown",
        CallError::RateLimited { .. } => "rate limited",
        CallError::DeadlineExceeded { .. } if error.not_run() => "deadline, not run",
        CallError::DeadlineExceeded { .. } => "deadline, may have run",
        CallError::UnexpectedAnswer { .. } => "unreadable answer",
        CallError::NotOffered { .. } => "not offered",
        CallError::Busy => "busy",
        CallError::Closed => "closed",
        _ => "another error",
    }
}
