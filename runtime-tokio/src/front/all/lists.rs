//! The lists of all servers as one.

use std::collections::HashMap;

use futures::future::join_all;
use serde_json::value::RawValue;
use tokio::time::timeout;

use super::hub::{Hub, unknown_method};
use super::member::Member;
use super::route::Route;
use crate::front::asks::Answer;
use crate::front::changes::Kind;
use crate::front::control::Tool;
use crate::front::dispatch::{INVALID_PARAMS, METHOD_NOT_FOUND};
use crate::front::greet::quoted;
use crate::protocol::frame::{self, RpcError, is_null, set_member, with_first};
use crate::session::catalogue::{Catalogue, Entry, MAX_ITEMS, MAX_PAGES};
use crate::wire::relay::TakenBack;

impl Kind {
    /// What a server declares that has such a list.
    const fn capability(self) -> &'static str {
        match self {
            Self::Tools => "tools",
            Self::Prompts => "prompts",
            Self::Resources | Self::Templates => "resources",
        }
    }

    /// The member of an entry that tells it from another.
    const fn key(self) -> &'static str {
        match self {
            Self::Tools | Self::Prompts => "name",
            Self::Resources => "uri",
            Self::Templates => "uriTemplate",
        }
    }

    /// These members of all entries.
    pub(super) fn keys(self, catalogue: &Catalogue) -> Vec<&str> {
        match self {
            Self::Tools => catalogue.tools.items().iter().map(|item| item.key()).collect(),
            Self::Prompts => catalogue.prompts.items().iter().map(|item| item.key()).collect(),
            Self::Resources => catalogue.resources.items().iter().map(|item| item.key()).collect(),
            Self::Templates => catalogue.templates.items().iter().map(|item| item.key()).collect(),
        }
    }
}

impl Hub {
    /// One page of what all servers list, in the order of their names.
    pub(super) async fn list(
        &self,
        kind: Kind,
        method: &str,
        params: Option<&RawValue>,
        taken_back: &TakenBack,
    ) -> Answer {
        if params.and_then(|params| frame::member_of(params, "cursor")).is_some_and(|cursor| !is_null(cursor)) {
            return Err(frame::error_body(INVALID_PARAMS, "no such cursor: the list has one page", None));
        }
        let own = kind == Kind::Tools && self.options.control_tools;
        let having = self.members.iter().enumerate().filter(|(_, member)| member.declares(kind.capability()));
        let asked: Vec<_> =
            having.map(|(index, member)| self.items(index, member, kind, method, params, taken_back)).collect();
        if asked.is_empty() && !own {
            return Err(unknown_method(method));
        }
        let mut texts = Vec::new();
        let mut routes = HashMap::<Box<str>, Route>::new();
        for (index, member, items) in join_all(asked).await {
            for item in items {
                let Some(name) = frame::text_of(&item, kind.key()) else {
                    tracing::warn!(server = %member.name, "an entry of {method} without `{}` is left out", kind.key());
                    continue;
                };
                let public = self.public(kind, member, &name);
                if let Some(first) = routes.get(&*public) {
                    self.tell_clash(kind, &public, first.member, index);
                    continue;
                }
                let renamed = (*public != *name).then(|| set_member(&item, kind.key(), &quoted(&public))).flatten();
                texts.push(renamed.unwrap_or(item));
                routes.insert(public, Route { member: index, name: name.into() });
            }
        }
        self.routes.set(kind, routes);
        let mut texts: Vec<String> = texts.into_iter().map(|text| text.get().to_owned()).collect();
        if own {
            texts.extend(Tool::definitions(|name| self.find(Kind::Tools, name).is_some()));
        }
        Ok(kind.page_of(&texts))
    }

    /// What an entry is called among those of all servers.
    pub(super) fn public(&self, kind: Kind, member: &Member, name: &str) -> Box<str> {
        match kind {
            Kind::Tools => self.options.naming.public_name(&member.name, name).into(),
            Kind::Prompts | Kind::Resources | Kind::Templates => name.into(),
        }
    }

    /// What this server lists, or what is known of it where the list does not come in time.
    async fn items<'a>(
        &self,
        index: usize,
        member: &'a Member,
        kind: Kind,
        method: &str,
        params: Option<&RawValue>,
        taken_back: &TakenBack,
    ) -> (usize, &'a Member, Vec<Box<RawValue>>) {
        let cause = match timeout(self.options.start_wait, drain(member, kind, method, params, taken_back)).await {
            Ok(Ok(items)) => return (index, member, items),
            Ok(Err(error)) if RpcError::parse(&error).code == i64::from(METHOD_NOT_FOUND) => {
                return (index, member, Vec::new());
            }
            Ok(Err(error)) => RpcError::parse(&error).to_string(),
            Err(_) => "no answer in time".to_owned(),
        };
        tracing::info!(server = %member.name, method, %cause, "the list has what is known of this server");
        let catalogue = member.catalogue();
        let shown = |item: &&RawValue| {
            kind != Kind::Tools || frame::text_of(item, "name").is_some_and(|name| member.tools.allows(&name))
        };
        let known = kind.items(&catalogue);
        let known: Vec<_> = known.into_iter().filter_map(|text| RawValue::from_string(text.to_owned()).ok()).collect();
        (index, member, known.into_iter().filter(|item| shown(&&**item)).collect())
    }
}

/// All pages of a server's list.
async fn drain(
    member: &Member,
    kind: Kind,
    method: &str,
    params: Option<&RawValue>,
    taken_back: &TakenBack,
) -> Result<Vec<Box<RawValue>>, Box<RawValue>> {
    let unreadable = || frame::error_body(-32_603, "the list cannot be read", None);
    let mut items = Vec::new();
    let mut cursor: Option<Box<RawValue>> = None;
    for _ in 0..MAX_PAGES {
        let next = cursor.as_ref().map(|cursor| {
            let first = with_first(params.map_or("{}", RawValue::get), "cursor", cursor.get());
            RawValue::from_string(first).map_err(|_| unreadable())
        });
        let next = next.transpose()?;
        let page = member.request(method, next.as_deref().or(params), taken_back).await?;
        let listed = frame::member_of(&page, kind.member()).ok_or_else(unreadable)?;
        let listed: Vec<Box<RawValue>> = serde_json::from_str(listed.get()).map_err(|_| unreadable())?;
        items.extend(listed);
        let following = frame::member_of(&page, "nextCursor").filter(|cursor| !is_null(cursor));
        let is_new = |following: &&RawValue| cursor.as_ref().is_none_or(|cursor| cursor.get() != following.get());
        match following.filter(is_new) {
            Some(following) if items.len() < MAX_ITEMS => cursor = Some(following.to_owned()),
            Some(_) | None => return Ok(items),
        }
    }
    tracing::warn!(server = %member.name, method, "the list has more than {MAX_PAGES} pages: the rest is left out");
    Ok(items)
}
