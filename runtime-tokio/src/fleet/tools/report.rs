//! Reports on a list of tools: its changes, notices for an operator, and why a tool is not there.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use super::FleetTool;
use crate::fleet::approval::Aspect;
#[cfg(doc)]
use crate::fleet::tools::FleetTools;

/// The changes of one step in the tools that are offered, by public name, each in ascending order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ToolsDiff {
    /// Tools that were not offered before.
    pub added: Vec<String>,
    /// Tools that are no longer offered.
    pub removed: Vec<String>,
    /// Tools that are offered as before, with any member of them different. Whether one is stale does not count.
    pub changed: Vec<String>,
    /// Notices for an operator.
    pub notices: Vec<Notice>,
    /// Whether the approvals have changed.
    pub approvals_changed: bool,
}

impl ToolsDiff {
    /// Whether the same is offered as before, whatever else there is to tell.
    pub fn is_empty(&self) -> bool {
        self.added.is_empty() && self.removed.is_empty() && self.changed.is_empty()
    }

    pub(super) fn between(old: &[FleetTool], new: &[FleetTool]) -> Self {
        let by_name = |tools: &[FleetTool]| -> BTreeMap<Arc<str>, FleetTool> {
            tools.iter().map(|tool| (tool.name.clone(), tool.clone())).collect()
        };
        let (old, new) = (by_name(old), by_name(new));
        let mut diff = Self::default();
        diff.removed.extend(old.keys().filter(|name| !new.contains_key(*name)).map(ToString::to_string));
        for (name, tool) in &new {
            match old.get(name) {
                None => diff.added.push(name.to_string()),
                Some(was) if !was.reads_like(tool) => diff.changed.push(name.to_string()),
                Some(_) => {}
            }
        }
        diff
    }
}

/// Something about a server's list that an operator should know.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Notice {
    /// The server lists two tools of this name; the first counts. Told once.
    ListedTwice {
        /// The server.
        server: Arc<str>,
        /// Its name of the tool.
        tool: Arc<str>,
    },
    /// The public name of this tool has been another one's: it is not offered. Told once.
    NameTaken {
        /// The public name.
        name: Arc<str>,
        /// The server.
        server: Arc<str>,
        /// Its name of the tool.
        tool: Arc<str>,
    },
    /// The tool is not what was approved, and is offered as it is now
    /// ([`CataloguePolicy::Warn`](crate::config::CataloguePolicy::Warn)).
    Changed {
        /// The server.
        server: Arc<str>,
        /// Its name of the tool.
        tool: Arc<str>,
        /// In what it differs.
        changed: Vec<Aspect>,
    },
    /// The server has listed so many tools that of those it does not list now all was forgotten: whether they change is
    /// not found out, and another tool may come to have their names.
    Forgotten {
        /// The server.
        server: Arc<str>,
    },
    /// The tool is not what was approved, and is withheld
    /// ([`CataloguePolicy::Refuse`](crate::config::CataloguePolicy::Refuse)). Told once for each version of it.
    Withheld {
        /// The server.
        server: Arc<str>,
        /// Its name of the tool.
        tool: Arc<str>,
        /// In what it differs.
        changed: Vec<Aspect>,
    },
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ListedTwice { server, tool } => {
                write!(f, "{server:?} lists {tool:?} more than once: the first one counts")
            }
            Self::NameTaken { name, server, tool } => {
                write!(f, "{tool:?} of {server:?} is not offered: {name:?} is the name of another tool")
            }
            Self::Changed { server, tool, changed } => {
                write!(f, "{tool:?} of {server:?} is not what it was: {} changed", Aspects(changed))
            }
            Self::Forgotten { server } => {
                write!(f, "{server:?} has listed too many tools: those that it does not list now are forgotten")
            }
            Self::Withheld { server, tool, changed } => {
                write!(f, "{tool:?} of {server:?} awaits approval: {} changed", Aspects(changed))
            }
        }
    }
}

struct Aspects<'a>(&'a [Aspect]);

impl fmt::Display for Aspects<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, aspect) in self.0.iter().enumerate() {
            write!(f, "{}{aspect}", if at == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

/// Why no tool is offered under a public name.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LookupError {
    /// None ever was.
    Unknown,
    /// The server lists it, and its filter leaves it out.
    Filtered {
        /// The server.
        server: Arc<str>,
        /// Its name of the tool.
        tool: Arc<str>,
    },
    /// The server lists it, and it is not the one that was approved.
    AwaitsApproval {
        /// The server.
        server: Arc<str>,
        /// Its name of the tool.
        tool: Arc<str>,
        /// In what it differs.
        changed: Vec<Aspect>,
    },
    /// One was; its server does not list it now, or is withdrawn.
    NotOffered {
        /// The server.
        server: Arc<str>,
        /// Its name of the tool.
        tool: Arc<str>,
    },
}

impl fmt::Display for LookupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown => f.write_str("no server offers a tool of this name"),
            Self::Filtered { server, tool } => write!(f, "{tool:?} of {server:?} is filtered out"),
            Self::AwaitsApproval { server, tool, changed } => {
                write!(f, "{tool:?} of {server:?} awaits approval: {} changed", Aspects(changed))
            }
            Self::NotOffered { server, tool } => write!(f, "{server:?} does not offer {tool:?} any more"),
        }
    }
}

impl std::error::Error for LookupError {}
