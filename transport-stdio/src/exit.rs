use std::fmt;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use mcp_reconnect_core::FailureClass;

/// How many of the last lines of stderr [`Exit`] shows as text.
const SHOWN_LINES: usize = 5;
/// How many of their last characters.
const SHOWN_CHARS: usize = 1000;

/// How a server ended: `exited with status 3; stderr: …`, `killed by signal 9 (SIGKILL)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exit {
    /// The exit status of the process that was started; `None` if it is not known, because the process withstood
    /// SIGKILL for the whole grace (it sits in the kernel) or another part of the program reaped it.
    pub status: Option<ExitStatus>,
    /// The last lines that the process group wrote to stderr, oldest first.
    pub stderr: Vec<String>,
}

impl Exit {
    /// [`Finished`](FailureClass::Finished) for status 0, else [`Transport`](FailureClass::Transport). Of a server that
    /// was closed or killed it says nothing: it has not ended by itself.
    pub fn class(&self) -> FailureClass {
        if self.status.is_some_and(|status| status.success()) {
            FailureClass::Finished
        } else {
            FailureClass::Transport
        }
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.status {
            Some(status) => match (status.code(), status.signal()) {
                (Some(code), _) => write!(f, "exited with status {code}")?,
                (None, Some(signal)) => {
                    write!(f, "killed by signal {signal}")?;
                    if let Some(name) = signal_name(signal) {
                        write!(f, " ({name})")?;
                    }
                }
                (None, None) => write!(f, "{status}")?,
            },
            None => f.write_str("ended with an unknown status")?,
        }
        f.write_str(&last_words(&self.stderr))
    }
}

/// The end of stderr as the end of a cause: `; stderr: …`, or nothing where there is none.
pub fn last_words(stderr: &[String]) -> String {
    let shown = stderr[stderr.len().saturating_sub(SHOWN_LINES)..].join(" | ");
    match shown.char_indices().nth_back(SHOWN_CHARS - 1) {
        _ if shown.is_empty() => shown,
        None | Some((0, _)) => format!("; stderr: {shown}"),
        Some((at, _)) => format!("; stderr: …{}", &shown[at..]),
    }
}

/// The names of the signals that servers die of.
fn signal_name(signal: i32) -> Option<&'static str> {
    use rustix::process::Signal;
    Some(match Signal::from_named_raw(signal)? {
        Signal::HUP => "SIGHUP",
        Signal::INT => "SIGINT",
        Signal::QUIT => "SIGQUIT",
        Signal::ILL => "SIGILL",
        Signal::TRAP => "SIGTRAP",
        Signal::ABORT => "SIGABRT",
        Signal::BUS => "SIGBUS",
        Signal::FPE => "SIGFPE",
        Signal::KILL => "SIGKILL",
        Signal::USR1 => "SIGUSR1",
        Signal::USR2 => "SIGUSR2",
        Signal::SEGV => "SIGSEGV",
        Signal::PIPE => "SIGPIPE",
        Signal::ALARM => "SIGALRM",
        Signal::TERM => "SIGTERM",
        Signal::XCPU => "SIGXCPU",
        Signal::XFSZ => "SIGXFSZ",
        Signal::SYS => "SIGSYS",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    use mcp_reconnect_core::FailureClass;

    use super::Exit;

    fn exit(raw: Option<i32>, lines: usize) -> String {
        let stderr = (0..lines).map(|n| format!("line {n}")).collect();
        Exit { status: raw.map(ExitStatus::from_raw), stderr }.to_string()
    }

    #[test]
    fn only_status_0_is_an_end_of_its_own_accord() {
        let class = |raw: Option<i32>| Exit { status: raw.map(ExitStatus::from_raw), stderr: Vec::new() }.class();
        assert_eq!(class(Some(0)), FailureClass::Finished);
        for raw in [Some(1 << 8), Some(9), Some(15), None] {
            assert_eq!(class(raw), FailureClass::Transport, "{raw:?}");
        }
    }

    #[test]
    fn an_exit_says_how_and_shows_the_last_lines() {
        assert_eq!(exit(Some(0), 0), "exited with status 0");
        assert_eq!(exit(Some(3 << 8), 2), "exited with status 3; stderr: line 0 | line 1");
        assert_eq!(
            exit(Some(9), 9),
            "killed by signal 9 (SIGKILL); stderr: line 4 | line 5 | line 6 | line 7 | line 8"
        );
        assert_eq!(exit(Some(11 | 0x80), 0), "killed by signal 11 (SIGSEGV)");
        assert_eq!(exit(Some(40), 0), "killed by signal 40");
        assert_eq!(exit(None, 0), "ended with an unknown status");

        let text = |line: String| Exit { status: None, stderr: vec![line] }.to_string();
        assert_eq!(text("é".repeat(1000)), format!("ended with an unknown status; stderr: {}", "é".repeat(1000)));
        assert_eq!(text("é".repeat(1001)), format!("ended with an unknown status; stderr: …{}", "é".repeat(1000)));
    }
}
