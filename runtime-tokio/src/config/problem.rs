//! Problems of a config, in words that name the place and never a secret.

use std::error::Error;
use std::fmt::{self, Write as _};

/// One thing that is wrong with a config, or looks like it.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Problem {
    /// The file, as it was named to the reader.
    pub source: Box<str>,
    /// The server that it concerns; `None`: the file as a whole, or the defaults for all servers.
    pub server: Option<Box<str>>,
    /// The field, dotted where it is within another: `url`, `env.TOKEN`, `mcp-reconnect.keepalive`.
    pub field: Option<Box<str>>,
    /// Its kind.
    pub kind: ProblemKind,
    /// The rest in words: what is wrong, and what would be right.
    pub text: Box<str>,
}

/// The kind of a problem.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ProblemKind {
    /// The file cannot be read.
    Unreadable,
    /// It is no JSON.
    Syntax {
        /// The line, counted from 1.
        line: usize,
        /// The column in bytes, counted from 1.
        column: usize,
    },
    /// It names no servers, in no form that is known.
    NoServers,
    /// A name is there twice.
    Duplicate,
    /// A key that nobody knows.
    UnknownKey {
        /// The known key that is nearest to it, if any is near.
        suggestion: Option<&'static str>,
    },
    /// A key of another client that means nothing here.
    Ignored,
    /// A value of the wrong type.
    Type,
    /// A value of the right type that the field cannot have.
    Value,
    /// A needed field is not there.
    Missing,
    /// Two fields contradict each other.
    Conflict,
    /// A variable that is not set, or a reference that cannot be read.
    Variable,
    /// A transport that is not spoken: the server is refused, the others start.
    Unsupported,
    /// A number whose unit differs among clients; the text says how it was read.
    Unit,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.source)?;
        if let Some(server) = &self.server {
            write!(f, "server `{}`: ", server.escape_debug())?;
        }
        if let Some(field) = &self.field {
            write!(f, "`{}`: ", field.escape_debug())?;
        }
        // A name of the file's own within it may hold anything.
        for c in self.text.chars() {
            if c.is_control() { write!(f, "{}", c.escape_debug())? } else { f.write_char(c)? }
        }
        Ok(())
    }
}

/// Everything that is wrong with a config: none of it is used.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ConfigErrors {
    /// The problems, at least one, in the order of the file.
    pub problems: Vec<Problem>,
    /// The warnings that a usable config would have come with.
    pub warnings: Vec<Problem>,
}

impl fmt::Display for ConfigErrors {
    /// One line for each problem.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, problem) in self.problems.iter().enumerate() {
            let end = if at == 0 { "" } else { "\n" };
            write!(f, "{end}{problem}")?;
        }
        Ok(())
    }
}

impl Error for ConfigErrors {}
