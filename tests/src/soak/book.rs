//! The callers' side of the truth, and what the servers' side must say to it.

use std::fmt;

/// Which tool a call is of, by what its annotation allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tool {
    /// `echo`: read-only.
    ReadOnly,
    /// `put`: idempotent.
    Idempotent,
    /// `write`: no annotation, so never to be run twice.
    Plain,
}

impl Tool {
    pub(super) const ALL: [Self; 3] = [Self::ReadOnly, Self::Idempotent, Self::Plain];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::ReadOnly => "echo",
            Self::Idempotent => "put",
            Self::Plain => "write",
        }
    }

    /// An annotated call is sent once more at most.
    const fn most_runs(self) -> u8 {
        match self {
            Self::ReadOnly | Self::Idempotent => 2,
            Self::Plain => 1,
        }
    }
}

/// What a caller was told about the run of its call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// It brought its own result.
    Ran,
    /// Nobody knows, or the server answered with an error.
    MayHaveRun,
    /// It certainly did not run.
    NotRun,
}

/// Something that must never be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Whose; `None`: the run's.
    pub server: Option<usize>,
    /// Which call's.
    pub call: Option<usize>,
    /// What.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(server) = self.server {
            write!(f, "server {server}, ")?;
        }
        if let Some(call) = self.call {
            write!(f, "call {call}, ")?;
        }
        f.write_str(&self.what)
    }
}

#[derive(Clone, Copy, Debug)]
struct Call {
    tool: Tool,
    claim: Option<Claim>,
    runs: u8,
    /// So that it is told once.
    told: bool,
}

/// All calls of one server, each with its number.
#[derive(Debug)]
pub struct Book {
    server: usize,
    calls: Vec<Call>,
}

impl Book {
    /// Of a server without calls.
    pub fn new(server: usize) -> Self {
        Self { server, calls: Vec::new() }
    }

    /// How many calls were made.
    pub fn len(&self) -> usize {
        self.calls.len()
    }

    /// Whether there was none.
    pub fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// A call begins; its number.
    pub fn begin(&mut self, tool: Tool) -> usize {
        self.calls.push(Call { tool, claim: None, runs: 0, told: false });
        self.calls.len() - 1
    }

    /// Its caller was told this.
    ///
    /// # Errors
    ///
    /// It had been told something before, or made no such call.
    pub fn settle(&mut self, call: usize, claim: Claim) -> Result<(), Violation> {
        match self.calls.get_mut(call) {
            Some(Call { claim: open @ None, .. }) => {
                *open = Some(claim);
                Ok(())
            }
            Some(_) => Err(self.violation(call, "settled twice")),
            None => Err(self.violation(call, "settled, yet nobody made it")),
        }
    }

    /// The server ran it.
    ///
    /// # Errors
    ///
    /// Nobody made such a call.
    pub fn ran(&mut self, call: usize) -> Result<(), Violation> {
        match self.calls.get_mut(call) {
            Some(call) => {
                call.runs = call.runs.saturating_add(1);
                Ok(())
            }
            None => Err(self.violation(call, "ran, yet nobody made it")),
        }
    }

    /// How often calls of this tool ran, and how many of these runs were repeats.
    pub fn runs(&self, tool: Tool) -> (u64, u64) {
        let runs = self.calls.iter().filter(|call| call.tool == tool).map(|call| u64::from(call.runs));
        runs.fold((0, 0), |(all, repeats), runs| (all + runs, repeats + runs.saturating_sub(1)))
    }

    /// Everything that is wrong and was not told before. To be asked when no call is under way and the ledger of
    /// every server has been read; a run may still come to light later.
    pub fn audit(&mut self) -> Vec<Violation> {
        let mut found = Vec::new();
        for number in 0..self.calls.len() {
            let call = self.calls[number];
            let wrong: String = match (call.claim, call.runs) {
                (None, _) => "lost: it was never settled".into(),
                (Some(Claim::Ran), 0) => "answered, yet it never ran".into(),
                (Some(Claim::NotRun), runs @ 1..) => format!("said not to have run, yet its runs are {runs}"),
                (_, runs) if runs > call.tool.most_runs() => format!("its runs are {runs}"),
                _ => continue,
            };
            let wrong = format!("{}: {wrong}", call.tool.name());
            if !call.told {
                self.calls[number].told = true;
                found.push(self.violation(number, wrong));
            }
        }
        found
    }

    fn violation(&self, call: usize, what: impl Into<String>) -> Violation {
        Violation { server: Some(self.server), call: Some(call), what: what.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the audit says of one call of this tool that ran so often and was settled so.
    fn audit(tool: Tool, claim: Option<Claim>, runs: usize) -> Option<String> {
        let mut book = Book::new(3);
        let call = book.begin(tool);
        if let Some(claim) = claim {
            book.settle(call, claim).unwrap();
        }
        (0..runs).for_each(|_| book.ran(call).unwrap());
        let found = book.audit();
        assert!(book.audit().is_empty(), "told once");
        assert!(found.len() <= 1);
        found.first().map(ToString::to_string)
    }

    #[test]
    fn what_may_be() {
        for (tool, claim, most) in [
            (Tool::Plain, Claim::Ran, 1..=1),
            (Tool::Plain, Claim::MayHaveRun, 0..=1),
            (Tool::Plain, Claim::NotRun, 0..=0),
            (Tool::ReadOnly, Claim::Ran, 1..=2),
            (Tool::Idempotent, Claim::MayHaveRun, 0..=2),
            (Tool::Idempotent, Claim::NotRun, 0..=0),
        ] {
            for runs in 0..4 {
                let found = audit(tool, Some(claim), runs);
                assert_eq!(found.is_none(), most.contains(&runs), "{tool:?} {claim:?} {runs}: {found:?}");
            }
        }
    }

    #[test]
    fn what_must_not_be_is_named() {
        for (tool, claim, runs, said) in [
            (Tool::Plain, None, 0, "server 3, call 0, write: lost: it was never settled"),
            (Tool::Plain, Some(Claim::Ran), 0, "server 3, call 0, write: answered, yet it never ran"),
            (Tool::Plain, Some(Claim::Ran), 2, "server 3, call 0, write: its runs are 2"),
            (
                Tool::ReadOnly,
                Some(Claim::NotRun),
                1,
                "server 3, call 0, echo: said not to have run, yet its runs are 1",
            ),
        ] {
            assert_eq!(audit(tool, claim, runs).as_deref(), Some(said));
        }
        let mut book = Book::new(0);
        let call = book.begin(Tool::Plain);
        book.settle(call, Claim::Ran).unwrap();
        assert_eq!(book.settle(call, Claim::NotRun).unwrap_err().what, "settled twice");
        assert_eq!(book.ran(7).unwrap_err().what, "ran, yet nobody made it");
    }

    #[test]
    fn a_run_that_comes_to_light_late_is_seen_by_the_next_audit() {
        let mut book = Book::new(0);
        let call = book.begin(Tool::Plain);
        book.settle(call, Claim::NotRun).unwrap();
        assert!(book.audit().is_empty());
        book.ran(call).unwrap();
        assert_eq!(book.audit().len(), 1);
        assert_eq!((book.runs(Tool::Plain), book.runs(Tool::ReadOnly)), ((1, 0), (0, 0)));
    }
}
