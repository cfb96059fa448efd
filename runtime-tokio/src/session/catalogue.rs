//! A server's tools, prompts, resources and templates: listed page by page, and compared.

use std::collections::{BTreeMap, HashSet};
use std::mem::discriminant;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use mcp_reconnect_core::replay::Effect;
use rmcp::model::{ErrorCode, Prompt, Resource, ResourceTemplate, ServerCapabilities, Tool};
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_json::value::RawValue;
use tokio::time::Instant;

use crate::protocol::frame::{RpcError, excerpt, is_null};
use crate::session::established::Established;
use crate::wire::{CallFailure, Change, ListChanges, RequestOptions, Wire};

/// How many pages of a list are read.
pub(crate) const MAX_PAGES: usize = 1_000;
/// How many items of a list are kept.
pub(crate) const MAX_ITEMS: usize = 100_000;

/// The lists of a server. Cheap to clone; a set is swapped in whole.
#[derive(Clone, Debug, Default)]
pub struct Catalogue {
    /// The tools.
    pub tools: Part<Tool>,
    /// The prompts.
    pub prompts: Part<Prompt>,
    /// The resources.
    pub resources: Part<Resource>,
    /// Patterns of what can be read.
    pub templates: Part<ResourceTemplate>,
}

/// One list of a catalogue.
#[derive(Debug, Default)]
#[non_exhaustive]
pub enum Part<T> {
    /// Not asked for yet.
    #[default]
    Unlisted,
    /// As the server listed it.
    Listed(Arc<[Item<T>]>),
    /// As it was listed before the last attempt to list it failed.
    Stale {
        /// The items of the last list that did not fail; empty where there is none.
        items: Arc<[Item<T>]>,
        /// Why the last one failed.
        error: Arc<str>,
    },
}

/// One entry of a list: rmcp's type, and the JSON text that it was read from (with the members that rmcp does not know).
#[derive(Clone, Debug)]
pub struct Item<T> {
    value: T,
    json: Box<RawValue>,
}

impl<T: DeserializeOwned> Item<T> {
    /// Reads an entry from the text that [`json`](Self::json) gave.
    ///
    /// # Errors
    ///
    /// The text is not one.
    pub fn from_json(json: Box<RawValue>) -> serde_json::Result<Self> {
        Ok(Self { value: serde_json::from_str(json.get())?, json })
    }
}

impl<T> Item<T> {
    /// The entry as the server wrote it.
    pub fn json(&self) -> &RawValue {
        &self.json
    }

    #[cfg(test)]
    pub(crate) fn from_text(text: &str) -> Self
    where
        T: DeserializeOwned,
    {
        let value = serde_json::from_str(text).unwrap();
        Self { value, json: RawValue::from_string(text.to_owned()).unwrap() }
    }
}

impl<T> Deref for Item<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> Clone for Part<T> {
    fn clone(&self) -> Self {
        match self {
            Self::Unlisted => Self::Unlisted,
            Self::Listed(items) => Self::Listed(items.clone()),
            Self::Stale { items, error } => Self::Stale { items: items.clone(), error: error.clone() },
        }
    }
}

impl<T> Part<T> {
    /// The items, stale ones included, to be kept.
    pub(crate) fn shared(&self) -> Arc<[Item<T>]> {
        match self {
            Self::Unlisted => Arc::default(),
            Self::Listed(items) | Self::Stale { items, .. } => items.clone(),
        }
    }

    /// The items, stale ones included.
    pub fn items(&self) -> &[Item<T>] {
        match self {
            Self::Unlisted => &[],
            Self::Listed(items) | Self::Stale { items, .. } => items,
        }
    }

    /// Whether it is this one to the letter.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        let (one, two) = (self.items(), other.items());
        let same_kind = match (self, other) {
            (Self::Stale { error: one, .. }, Self::Stale { error: two, .. }) => one == two,
            _ => discriminant(self) == discriminant(other),
        };
        same_kind && one.len() == two.len() && one.iter().zip(two).all(|(one, two)| one.json.get() == two.json.get())
    }

    /// Marks the items as not up to date.
    pub(crate) fn stale(&self, error: impl Into<Arc<str>>) -> Self {
        Self::Stale { items: self.shared(), error: error.into() }
    }
}

impl Catalogue {
    /// The tool with this name.
    pub fn tool(&self, name: &str) -> Option<&Tool> {
        self.tools.items().iter().find(|tool| tool.name == name).map(|tool| &**tool)
    }

    /// The catalogue that a new session starts with: the items as they were, marked as not listed in it yet.
    pub(crate) fn carried_over(&self) -> Self {
        fn carried<T>(part: &Part<T>) -> Part<T> {
            if matches!(part, Part::Unlisted) { Part::Unlisted } else { part.stale("not listed in this session yet") }
        }
        Self {
            tools: carried(&self.tools),
            prompts: carried(&self.prompts),
            resources: carried(&self.resources),
            templates: carried(&self.templates),
        }
    }

    /// Lists that the server says it does not have are empty: nobody asks for them.
    pub(crate) fn without_undeclared(mut self, capabilities: &ServerCapabilities) -> Self {
        fn leave_out<T: Entry>(catalogue: &mut Catalogue, capabilities: &ServerCapabilities) {
            if !T::is_declared(capabilities) {
                *T::part(catalogue) = Part::Listed(Arc::default());
            }
        }
        leave_out::<Tool>(&mut self, capabilities);
        leave_out::<Prompt>(&mut self, capabilities);
        leave_out::<Resource>(&mut self, capabilities);
        leave_out::<ResourceTemplate>(&mut self, capabilities);
        self
    }

    /// Whether nothing in it was ever listed.
    pub(crate) fn is_unlisted(&self) -> bool {
        matches!(
            self,
            Self {
                tools: Part::Unlisted,
                prompts: Part::Unlisted,
                resources: Part::Unlisted,
                templates: Part::Unlisted
            }
        )
    }

    /// Whether a tool may be called by what is known: one that is missing from an up-to-date list may not.
    pub fn offers(&self, tool: &str) -> bool {
        !matches!(self.tools, Part::Listed(_)) || self.tool(tool).is_some()
    }

    /// The effect of a second run of a tool: none that counts, if it is annotated as read-only or idempotent.
    pub fn effect(&self, tool: &str) -> Effect {
        let harmless = |tool: &Tool| {
            let annotations = tool.annotations.as_ref();
            annotations.is_some_and(|hints| hints.read_only_hint == Some(true) || hints.idempotent_hint == Some(true))
        };
        // Where a name is listed twice, nobody knows which one runs.
        let mut same_name = self.tools.items().iter().filter(|known| known.name == tool).peekable();
        if same_name.peek().is_some() && same_name.all(|tool| harmless(tool)) {
            Effect::Annotated
        } else {
            Effect::Unknown
        }
    }
}

/// The changes between two catalogues. A part that was not listed compares as empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CatalogueDiff {
    /// By name.
    pub tools: Changes,
    /// By name.
    pub prompts: Changes,
    /// By URI.
    pub resources: Changes,
    /// By URI template.
    pub templates: Changes,
}

/// The changes in one list, each in ascending order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// The keys that are new.
    pub added: Vec<String>,
    /// The keys that are gone.
    pub removed: Vec<String>,
    /// The keys of items that differ in any member.
    pub changed: Vec<String>,
}

impl Changes {
    /// Whether nothing changed.
    pub fn is_empty(&self) -> bool {
        self.added.is_empty() && self.removed.is_empty() && self.changed.is_empty()
    }
}

impl CatalogueDiff {
    /// Whether nothing changed.
    pub fn is_empty(&self) -> bool {
        self.tools.is_empty() && self.prompts.is_empty() && self.resources.is_empty() && self.templates.is_empty()
    }

    /// The changes that turn `old` into `new`.
    pub fn between(old: &Catalogue, new: &Catalogue) -> Self {
        Self {
            tools: changes(&old.tools, &new.tools),
            prompts: changes(&old.prompts, &new.prompts),
            resources: changes(&old.resources, &new.resources),
            templates: changes(&old.templates, &new.templates),
        }
    }
}

/// What turns one list into the other.
pub(crate) fn changes<T: Entry>(old: &Part<T>, new: &Part<T>) -> Changes {
    let by_key = |part: &Part<T>| -> BTreeMap<String, Vec<String>> {
        let mut entries = BTreeMap::<_, Vec<_>>::new();
        for item in part.items() {
            entries.entry(item.key().to_owned()).or_default().push(canonical(&item.json));
        }
        entries
    };
    let (old, new) = (by_key(old), by_key(new));
    let absent_from = |keys: &BTreeMap<String, Vec<String>>, of: &BTreeMap<String, Vec<String>>| {
        of.keys().filter(|key| !keys.contains_key(*key)).cloned().collect()
    };
    Changes {
        added: absent_from(&old, &new),
        removed: absent_from(&new, &old),
        changed: new
            .iter()
            .filter(|(key, now)| old.get(*key).is_some_and(|was| was != *now))
            .map(|(key, _)| key.clone())
            .collect(),
    }
}

/// The text with members in one order and no spaces, so that equal values have equal texts.
pub(crate) fn canonical(json: &RawValue) -> String {
    let Ok(mut value) = serde_json::from_str::<Value>(json.get()) else { return json.get().to_owned() };
    // They are sorted already, unless some crate of the program has turned on serde_json's `preserve_order`.
    value.sort_all_objects();
    value.to_string()
}

/// An item of a catalogue's list.
pub(crate) trait Entry: DeserializeOwned {
    /// The request that lists it.
    const METHOD: &str;
    /// The member of the result that holds the items.
    const MEMBER: &str;

    /// Whether the server says that it has such a list.
    fn is_declared(capabilities: &ServerCapabilities) -> bool;

    /// Whether the server says that it tells when the list changes.
    fn is_announced(capabilities: &ServerCapabilities) -> bool;

    /// The list in a catalogue.
    fn part(catalogue: &mut Catalogue) -> &mut Part<Self>
    where
        Self: Sized;

    /// The changes of the list.
    fn change(changes: ListChanges) -> Change;

    /// Tells one item from another.
    fn key(&self) -> &str;

    /// Whether this entry can be used over this link.
    fn vet(json: &RawValue, wire: &Wire) -> Result<(), String> {
        _ = (json, wire);
        Ok(())
    }
}

impl Entry for Tool {
    const METHOD: &str = "tools/list";
    const MEMBER: &str = "tools";

    fn is_declared(capabilities: &ServerCapabilities) -> bool {
        capabilities.tools.is_some()
    }

    fn is_announced(capabilities: &ServerCapabilities) -> bool {
        capabilities.tools.as_ref().is_some_and(|tools| tools.list_changed == Some(true))
    }

    fn part(catalogue: &mut Catalogue) -> &mut Part<Self> {
        &mut catalogue.tools
    }

    fn change(changes: ListChanges) -> Change {
        changes.tools
    }

    fn key(&self) -> &str {
        &self.name
    }

    fn vet(json: &RawValue, wire: &Wire) -> Result<(), String> {
        wire.control().offered(json)
    }
}

impl Entry for Prompt {
    const METHOD: &str = "prompts/list";
    const MEMBER: &str = "prompts";

    fn is_declared(capabilities: &ServerCapabilities) -> bool {
        capabilities.prompts.is_some()
    }

    fn is_announced(capabilities: &ServerCapabilities) -> bool {
        capabilities.prompts.as_ref().is_some_and(|prompts| prompts.list_changed == Some(true))
    }

    fn part(catalogue: &mut Catalogue) -> &mut Part<Self> {
        &mut catalogue.prompts
    }

    fn change(changes: ListChanges) -> Change {
        changes.prompts
    }

    fn key(&self) -> &str {
        &self.name
    }
}

impl Entry for Resource {
    const METHOD: &str = "resources/list";
    const MEMBER: &str = "resources";

    fn is_declared(capabilities: &ServerCapabilities) -> bool {
        capabilities.resources.is_some()
    }

    fn is_announced(capabilities: &ServerCapabilities) -> bool {
        capabilities.resources.as_ref().is_some_and(|resources| resources.list_changed == Some(true))
    }

    fn part(catalogue: &mut Catalogue) -> &mut Part<Self> {
        &mut catalogue.resources
    }

    fn change(changes: ListChanges) -> Change {
        changes.resources
    }

    fn key(&self) -> &str {
        &self.uri
    }
}

impl Entry for ResourceTemplate {
    const METHOD: &str = "resources/templates/list";
    const MEMBER: &str = "resourceTemplates";

    fn is_declared(capabilities: &ServerCapabilities) -> bool {
        capabilities.resources.is_some()
    }

    fn is_announced(capabilities: &ServerCapabilities) -> bool {
        capabilities.resources.as_ref().is_some_and(|resources| resources.list_changed == Some(true))
    }

    fn part(catalogue: &mut Catalogue) -> &mut Part<Self> {
        &mut catalogue.templates
    }

    fn change(changes: ListChanges) -> Change {
        changes.resources
    }

    fn key(&self) -> &str {
        &self.uri_template
    }
}

/// A list as the server gave it.
#[derive(Debug)]
pub(crate) struct Listing<T> {
    pub(crate) items: Arc<[Item<T>]>,
    /// The items that were left out, each with the reason.
    pub(crate) warnings: Vec<String>,
    /// The longest that a page has taken; zero where none was asked for.
    pub(crate) slowest: Duration,
}

/// Why there is no list.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ListError {
    /// The server refused, or answered with something else.
    Server(RpcError),
    /// There was no answer.
    Failed(CallFailure),
}

impl std::fmt::Display for ListError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Server(error) => error.fmt(f),
            Self::Failed(failure) => f.write_str(&failure.cause),
        }
    }
}

/// Asks the server for all pages of a list. A list that it does not declare or know is empty; an item that cannot be
/// read is left out; what is beyond the bounds is left out.
///
/// # Errors
///
/// The first page that fails, whatever came before it.
pub(crate) async fn list<T: Entry>(wire: &Wire, session: &Established) -> Result<Listing<T>, ListError> {
    let listing = list_up_to(wire, session, MAX_PAGES, MAX_ITEMS).await?;
    for warning in &listing.warnings {
        tracing::warn!(epoch = %wire.epoch(), "{}: {warning}", T::METHOD);
    }
    Ok(listing)
}

async fn list_up_to<T: Entry>(
    wire: &Wire,
    session: &Established,
    pages: usize,
    most: usize,
) -> Result<Listing<T>, ListError> {
    let mut items = Vec::new();
    let mut warnings = Vec::new();
    let mut slowest = Duration::ZERO;
    if T::is_declared(&session.peer.capabilities) {
        let mut cursors = HashSet::new();
        let mut cursor: Option<Box<RawValue>> = None;
        for page in 1.. {
            let asked = Instant::now();
            let found = read_page::<T>(wire, session, cursor.as_deref(), &mut warnings).await?;
            slowest = slowest.max(asked.elapsed());
            let Some((found, next)) = found else { break };
            items.extend(found);
            if items.len() > most {
                items.truncate(most);
                warnings.push(format!("more than {most} items"));
                break;
            }
            let Some(next) = next else { break };
            if !cursors.insert(next.get().to_owned()) {
                warnings.push(format!("page {page} repeats the cursor {}", excerpt(next.get())));
                break;
            }
            if page >= pages {
                warnings.push(format!("more than {pages} pages"));
                break;
            }
            cursor = Some(next);
        }
    }
    // The empty list that is there already, where it is one.
    let items = if items.is_empty() { Arc::default() } else { items.into() };
    Ok(Listing { items, warnings, slowest })
}

type Page<T> = (Vec<Item<T>>, Option<Box<RawValue>>);

/// One page and the cursor of the next; `None` when the server does not know the list.
async fn read_page<T: Entry>(
    wire: &Wire,
    session: &Established,
    cursor: Option<&RawValue>,
    warnings: &mut Vec<String>,
) -> Result<Option<Page<T>>, ListError> {
    let params = cursor.and_then(|cursor| RawValue::from_string(format!(r#"{{"cursor":{}}}"#, cursor.get())).ok());
    let options = RequestOptions { meta: &session.meta, uncounted: true, ..Default::default() };
    let answer = wire.request(T::METHOD, params.as_deref(), options).answer().await.map_err(ListError::Failed)?;
    let result = match answer {
        Ok(result) => result,
        Err(error) if error.code == i64::from(ErrorCode::METHOD_NOT_FOUND.0) => return Ok(None),
        Err(error) => return Err(ListError::Server(error)),
    };
    let unreadable =
        |why: String| ListError::Server(RpcError { code: 0, message: why, data: None, json: "null".into() });
    let crate::protocol::frame::Object(members) =
        serde_json::from_str(result.get()).map_err(|error| unreadable(format!("unreadable answer: {error}")))?;
    let member = |name: &str| {
        members.iter().find(|(known, _)| known == name).map(|(_, value)| *value).filter(|value| !is_null(value))
    };
    let Some(list) = member(T::MEMBER) else {
        return Err(unreadable(format!("answered without {}: {}", T::MEMBER, excerpt(result.get()))));
    };
    let list: Vec<&RawValue> =
        serde_json::from_str(list.get()).map_err(|error| unreadable(format!("{} is no list: {error}", T::MEMBER)))?;
    let mut items = Vec::with_capacity(list.len());
    for json in list {
        match serde_json::from_str(json.get()) {
            Ok(value) => match T::vet(json, wire) {
                Ok(()) => items.push(Item { value, json: json.to_owned() }),
                Err(why) => warnings.push(format!("left out an item ({why}): {}", excerpt(json.get()))),
            },
            Err(error) => warnings.push(format!("skipped an item ({error}): {}", excerpt(json.get()))),
        }
    }
    // An empty cursor is how some servers say that there is no further page.
    let next = member("nextCursor").filter(|cursor| cursor.get() != "\"\"");
    Ok(Some((items, next.map(ToOwned::to_owned))))
}

#[cfg(test)]
mod tests;
