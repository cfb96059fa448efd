//! The tools of many servers as one list.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use rmcp::model::Tool;

use super::approval::{Approvals, Aspect, Fingerprint, Vetting};
use super::names::ToolNaming;
use crate::config::ToolFilter;
use crate::options::CataloguePolicy;
use crate::session::catalogue::{Catalogue, Item, Part, canonical};

mod report;

pub use report::{LookupError, Notice, ToolsDiff};

/// Of how many tools that a server does not list at present something is remembered.
const MAX_ABSENT: usize = 10_000;

/// The tools that several servers offer, each under its [public name](ToolNaming).
///
/// A server's list is swapped in whole, and each change is told as a [`ToolsDiff`]: an observer that applies every
/// diff in order knows at any time exactly what is offered.
///
/// A tool is not offered while its server's filter leaves it out, while it awaits approval, or when it is listed under a
/// name that its server has listed before it: then the first one counts. A public name is for good that of the first tool
/// that was offered under it. Should a tool come to a name that another one has had (see [`ToolNaming`]), it is not
/// offered, even when that other one is gone: no call ever reaches a tool that the caller has not seen under this name.
/// The name of a tool depends on the order of the servers' coming there, and on that alone.
///
/// Tools that a server no longer lists are remembered, up to 10,000 a server: then those are forgotten, with a notice.
#[derive(Clone, Debug, Default)]
pub(crate) struct FleetTools {
    naming: ToolNaming,
    approvals: Approvals,
    servers: BTreeMap<Arc<str>, Server>,
    /// Whose name it is, for all that ever were offered.
    owners: HashMap<Arc<str>, Owner>,
}

#[derive(Clone, Debug, Default)]
struct Server {
    listed: Part<Tool>,
    filter: ToolFilter,
    policy: CataloguePolicy,
    /// In listing order.
    offered: Vec<FleetTool>,
    /// Where in `offered` a public name is.
    index: HashMap<Arc<str>, usize>,
    withheld: Vec<Withheld>,
    /// The server's name of what the filter leaves out, by public name.
    filtered: HashMap<Arc<str>, Arc<str>>,
    /// Tools that are listed twice, and tools whose name is another's: what was reported.
    reported: [BTreeSet<Arc<str>>; 2],
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Owner {
    server: Arc<str>,
    tool: Arc<str>,
}

/// A tool as it is offered. Cheap to clone.
#[derive(Clone, Debug)]
pub struct FleetTool {
    /// Its name in the list of all.
    pub name: Arc<str>,
    /// Whose it is.
    pub server: Arc<str>,
    /// Whether it comes from a list that is not up to date ([`Part::Stale`]).
    pub stale: bool,
    listed: Arc<[Item<Tool>]>,
    at: usize,
}

impl FleetTool {
    /// The tool as its server lists it, with the name that it has there.
    pub fn tool(&self) -> &Item<Tool> {
        &self.listed[self.at]
    }

    /// Whether the server says the same of both, in whatever order and spacing.
    fn reads_like(&self, other: &Self) -> bool {
        let (one, other) = (self.tool().json(), other.tool().json());
        one.get() == other.get() || canonical(one) == canonical(other)
    }
}

/// A tool that is listed and not offered, since it is not the one that was approved.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Withheld {
    /// The tool as it would be offered.
    pub tool: FleetTool,
    /// In what it differs from the approved one.
    pub changed: Vec<Aspect>,
    /// Tells this version of it from others.
    pub fingerprint: Fingerprint,
}

impl FleetTools {
    /// Nothing yet; with what was approved before.
    pub(crate) fn new(naming: ToolNaming, approvals: Approvals) -> Self {
        Self { naming, approvals, ..Self::default() }
    }

    /// How tools are named.
    pub(crate) fn naming(&self) -> &ToolNaming {
        &self.naming
    }

    /// The approvals, to be kept for the next [`new`](Self::new).
    pub(crate) fn approvals(&self) -> &Approvals {
        &self.approvals
    }

    /// All tools that are offered, by server in ascending order, then as the server lists them.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &FleetTool> {
        self.servers.values().flat_map(|server| &server.offered)
    }

    /// All tools that await approval, in the same order.
    pub(crate) fn withheld(&self) -> impl Iterator<Item = &Withheld> {
        self.servers.values().flat_map(|server| &server.withheld)
    }

    /// The tool that is offered under this public name.
    ///
    /// # Errors
    ///
    /// Why there is none.
    pub(crate) fn lookup(&self, name: &str) -> Result<&FleetTool, LookupError> {
        let owner = self.owners.get(name);
        let offered = owner.and_then(|owner| {
            let server = self.servers.get(&owner.server)?;
            server.offered.get(*server.index.get(name)?)
        });
        if let Some(offered) = offered {
            return Ok(offered);
        }
        // The answer for a name is that for its owner, where it has one.
        let speaks =
            |server: &Arc<str>, tool: &str| owner.is_none_or(|owner| owner.server == *server && *owner.tool == *tool);
        for (server, entry) in &self.servers {
            let withheld = entry.withheld.iter().find(|withheld| *withheld.tool.name == *name);
            if let Some(Withheld { tool, changed, .. }) = withheld
                && speaks(server, &tool.tool().name)
            {
                let tool = tool.tool().name.as_ref().into();
                return Err(LookupError::AwaitsApproval { server: server.clone(), tool, changed: changed.clone() });
            }
            if let Some(tool) = entry.filtered.get(name)
                && speaks(server, tool)
            {
                return Err(LookupError::Filtered { server: server.clone(), tool: tool.clone() });
            }
        }
        Err(owner.map_or(LookupError::Unknown, |Owner { server, tool }| LookupError::NotOffered {
            server: server.clone(),
            tool: tool.clone(),
        }))
    }

    /// Swaps in what a server lists, and what is wanted of it; `None` withdraws all of it.
    pub(crate) fn set(
        &mut self,
        server: &Arc<str>,
        catalogue: Option<&Catalogue>,
        filter: &ToolFilter,
        policy: CataloguePolicy,
    ) -> ToolsDiff {
        let entry = self.servers.entry(server.clone()).or_default();
        entry.listed = catalogue.map(|catalogue| catalogue.tools.clone()).unwrap_or_default();
        entry.filter.clone_from(filter);
        entry.policy = policy;
        self.review(server)
    }

    /// Approves a tool that is withheld, by its server's name of it: as it is listed now, or only if it still is the
    /// version that was `seen`. Of a tool that is not withheld it says nothing.
    pub(crate) fn approve(&mut self, server: &Arc<str>, tool: &str, seen: Option<&Fingerprint>) -> ToolsDiff {
        let meant = |withheld: &Withheld| {
            withheld.tool.tool().name == tool && seen.is_none_or(|seen| *seen == withheld.fingerprint)
        };
        let Some(entry) = self.servers.get(server) else { return ToolsDiff::default() };
        let mut approved = false;
        for withheld in entry.withheld.iter().filter(|withheld| meant(withheld)) {
            self.approvals.approve(server, &withheld.tool.tool().name, withheld.fingerprint.clone());
            approved = true;
        }
        if !approved {
            return ToolsDiff::default();
        }
        ToolsDiff { approvals_changed: true, ..self.review(server) }
    }

    /// Withdraws a server and forgets all about it: its approvals, and the names that were its tools'. Another tool that
    /// was not offered because of such a name is offered when its own server is set next.
    pub(crate) fn forget(&mut self, server: &Arc<str>) -> ToolsDiff {
        let old = self.servers.remove(server).unwrap_or_default();
        self.owners.retain(|_, owner| owner.server != *server);
        let approvals_changed = self.approvals.forget(server);
        ToolsDiff { approvals_changed, ..ToolsDiff::between(&old.offered, &[]) }
    }

    /// Decides anew what of a server is offered.
    fn review(&mut self, server: &Arc<str>) -> ToolsDiff {
        let Some(entry) = self.servers.get_mut(server) else { return ToolsDiff::default() };
        let listed = entry.listed.shared();
        let stale = matches!(entry.listed, Part::Stale { .. });
        let (mut offered, mut withheld, mut filtered) = (Vec::new(), Vec::<Withheld>::new(), HashMap::new());
        let mut notices = Vec::new();
        let mut approvals_changed = false;
        let [twice, taken] = &mut entry.reported;
        let mut names = HashSet::new();
        for (at, item) in listed.iter().enumerate() {
            let (server, tool) = (server.clone(), Arc::<str>::from(&*item.name));
            if !names.insert(tool.clone()) {
                if twice.insert(tool.clone()) {
                    notices.push(Notice::ListedTwice { server, tool });
                }
                continue;
            }
            let name = Arc::<str>::from(self.naming.public_name(&server, &tool));
            if !entry.filter.allows(&tool) {
                filtered.insert(name, tool);
                continue;
            }
            let candidate = FleetTool { name: name.clone(), server: server.clone(), stale, listed: listed.clone(), at };
            let fingerprint = Fingerprint::of(item);
            match self.approvals.vet(entry.policy, &server, &tool, &fingerprint) {
                Vetting::Approved => {}
                Vetting::FirstSeen => approvals_changed = true,
                Vetting::Taken { changed } => {
                    approvals_changed = true;
                    if entry.policy == CataloguePolicy::Warn {
                        notices.push(Notice::Changed { server: server.clone(), tool: tool.clone(), changed });
                    }
                }
                Vetting::Withheld { changed } => {
                    let known = |old: &Withheld| old.tool.name == name && old.fingerprint == fingerprint;
                    if !entry.withheld.iter().any(known) {
                        notices.push(Notice::Withheld { server, tool, changed: changed.clone() });
                    }
                    withheld.push(Withheld { tool: candidate, changed, fingerprint });
                    continue;
                }
            }
            let owner = Owner { server, tool };
            if *self.owners.entry(name.clone()).or_insert_with(|| owner.clone()) == owner {
                offered.push(candidate);
            } else if taken.insert(owner.tool.clone()) {
                notices.push(Notice::NameTaken { name, server: owner.server, tool: owner.tool });
            }
        }
        if self.approvals.count(server) > names.len() + MAX_ABSENT {
            self.approvals.retain(server, |tool| names.contains(tool));
            self.owners.retain(|_, owner| owner.server != *server || names.contains(&owner.tool));
            entry.reported = Default::default();
            notices.push(Notice::Forgotten { server: server.clone() });
            approvals_changed = true;
        }
        let diff = ToolsDiff::between(&entry.offered, &offered);
        entry.index = offered.iter().enumerate().map(|(at, tool)| (tool.name.clone(), at)).collect();
        (entry.offered, entry.withheld, entry.filtered) = (offered, withheld, filtered);
        ToolsDiff { notices, approvals_changed, ..diff }
    }
}

#[cfg(test)]
mod tests;
