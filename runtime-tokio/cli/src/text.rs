//! Servers' texts made fit to be shown, and values as people read them.

use std::borrow::Cow;
use std::time::Duration;

use mcp_reconnect::{ServerState, ServerStatus, SessionStatus};

/// The text without control characters, which could steer a terminal: each is shown as `�`, and the end of a line as ` `.
pub(super) fn printable(text: &str) -> Cow<'_, str> {
    if !text.contains(char::is_control) {
        return Cow::Borrowed(text);
    }
    let shown = |c: char| match c {
        '\n' | '\r' | '\t' => ' ',
        c if c.is_control() => char::REPLACEMENT_CHARACTER,
        c => c,
    };
    Cow::Owned(text.trim_end().chars().map(shown).collect())
}

/// Like [`printable`], for texts of several lines.
pub(super) fn printable_lines(text: &str) -> String {
    text.split('\n').map(printable).collect::<Vec<_>>().join("\n")
}

/// The first line that is not empty, fit to be shown.
pub(super) fn first_line(text: &str) -> Cow<'_, str> {
    printable(text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default())
}

/// The state in words, with the reason of a park.
pub(super) fn state(status: &ServerStatus) -> String {
    match status.park_reason {
        Some(reason) => format!("parked: {}", reason.as_str().replace('_', " ")),
        None => state_name(status.state).replace('_', " "),
    }
}

/// The name that a state has in JSON.
pub(super) const fn state_name(state: ServerState) -> &'static str {
    match state {
        ServerState::Idle => "idle",
        ServerState::Connecting => "connecting",
        ServerState::Ready => "ready",
        ServerState::TransientFailure => "transient_failure",
        ServerState::Parked => "parked",
        ServerState::Shutdown => "shutdown",
        ServerState::Disabled => "disabled",
        _ => "unknown",
    }
}

/// The era and version that a session speaks.
pub(super) fn spoken(session: &SessionStatus) -> String {
    format!("{} {}", session.era, printable(&session.version))
}

/// The server's own name and version, where it tells them.
pub(super) fn named(session: &SessionStatus) -> Option<String> {
    let (name, version) = session.server.as_ref()?;
    Some(format!("{} {}", printable(name), printable(version)).trim().to_owned())
}

/// A duration in at most two units.
pub(super) fn age(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let (minutes, hours, days) = (seconds / 60, seconds / 3_600, seconds / 86_400);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, _) => format!("{minutes}m{:02}", seconds % 60),
        (0, ..) => format!("{hours}h{:02}", minutes % 60),
        _ => format!("{days}d{:02}h", hours % 24),
    }
}

/// The time until something happens: `1s` in the last second before it.
pub(super) fn countdown(duration: Duration) -> String {
    if duration.is_zero() { "now".into() } else { age(Duration::from_secs(duration.as_secs_f64().ceil() as u64)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_steers_the_terminal() {
        assert_eq!(printable("plain ünïcode"), "plain ünïcode");
        assert_eq!(printable("a\x1b[2Jb\r\nc\u{9b}d\n"), "a\u{fffd}[2Jb  c\u{fffd}d");
        assert_eq!(printable_lines("a\x1b\nb\n"), "a\u{fffd}\nb\n");
        assert_eq!(first_line("\n  \n Reads a file.\x07\nMore"), "Reads a file.\u{fffd}");
        assert_eq!(first_line(""), "");
    }

    #[test]
    fn durations_have_at_most_two_units() {
        let of = |seconds| age(Duration::from_secs(seconds));
        assert_eq!([0, 59, 60, 3_599].map(of), ["0s", "59s", "1m00", "59m59"]);
        assert_eq!([3_600, 86_399, 86_400, 400_000].map(of), ["1h00", "23h59", "1d00h", "4d15h"]);
        assert_eq!([0, 1, 1_000, 1_001].map(|ms| countdown(Duration::from_millis(ms))), ["now", "1s", "1s", "2s"]);
    }
}
