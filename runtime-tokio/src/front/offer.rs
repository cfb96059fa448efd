//! What the host gets to see of a server's tools, and the tools that the front adds. Every other byte stays.

use serde_json::value::RawValue;

use super::asks::Answer;
use super::changes::Kind;
use super::control::{Subject, Tool};
use super::dispatch::{INVALID_PARAMS, METHOD_NOT_FOUND, Session, Upstream};
use crate::config::ToolFilter;
use crate::protocol::frame::{self, Object, RpcError, is_null, member, set_member, with_first};
use crate::session::catalogue::Catalogue;

impl Session {
    /// A list of tools as the host gets it.
    pub(super) fn shown(&self, upstream: &Upstream, list: Answer) -> Answer {
        let own = self.options.control_tools.then(|| Tool::definitions(|name| self.is_taken(upstream, name)));
        let page = match list {
            Ok(page) => filtered(&page, &self.options.tools).unwrap_or(page),
            Err(error) if own.is_some() && RpcError::parse(&error).code == i64::from(METHOD_NOT_FOUND) => {
                Kind::Tools.page(&Catalogue::default())
            }
            Err(error) => return Err(error),
        };
        let longer = own.and_then(|own| with_tools(&page, &own));
        Ok(longer.unwrap_or(page))
    }

    /// The answer to what is not for the server: a call of one of the front's tools, or of one that is hidden.
    pub(super) async fn own_answer(
        &self,
        upstream: &Upstream,
        method: &str,
        params: Option<&RawValue>,
    ) -> Option<Answer> {
        if method != "tools/call" {
            return None;
        }
        let name = frame::text_of(params?, "name")?;
        let connection = &upstream.connection;
        if self.options.control_tools
            && let Some(tool) = Tool::called(&name, |name| self.is_taken(upstream, name))
        {
            let (connection, server) = (connection.clone(), connection.name().into());
            let subject = Subject { name: server, connection: Some(connection), enabled: true };
            return Some(tool.run(params, &[subject], self.options.start_wait).await);
        }
        (!self.options.tools.allows(&name)).then(|| Err(hidden(&name, connection.name())))
    }

    /// What the server says of itself, with the tools that are added.
    pub(super) fn promised(&self, greeting: Answer) -> Answer {
        greeting.map(|greeting| {
            let promised = self.options.control_tools.then(|| with_tools_promised(&greeting)).flatten();
            promised.unwrap_or(greeting)
        })
    }

    /// Whether a tool that the host gets to see has this name.
    fn is_taken(&self, upstream: &Upstream, name: &str) -> bool {
        self.options.tools.allows(name) && upstream.connection.known_catalogue().tool(name).is_some()
    }
}

/// The refusal of a tool that the config hides.
pub(super) fn hidden(tool: &str, server: &str) -> Box<RawValue> {
    let why = format!("tool `{tool}` of server `{server}` is hidden by the configuration");
    frame::error_body(INVALID_PARAMS, &why, None)
}

/// A page of tools without those that are hidden; `None` where none is.
pub(super) fn filtered(page: &RawValue, filter: &ToolFilter) -> Option<Box<RawValue>> {
    if *filter == ToolFilter::default() {
        return None;
    }
    let Object(members) = serde_json::from_str(page.get()).ok()?;
    let tools: Vec<&RawValue> = serde_json::from_str(member(&members, "tools")?.get()).ok()?;
    let seen = |tool: &&RawValue| frame::text_of(tool, "name").is_some_and(|name| filter.allows(&name));
    let kept: Vec<_> = tools.iter().copied().filter(seen).map(RawValue::get).collect();
    (kept.len() < tools.len()).then(|| set_member(page, "tools", &format!("[{}]", kept.join(",")))).flatten()
}

/// The last page of a list of tools with these as well; `None` for another page.
fn with_tools(page: &RawValue, tools: &[String]) -> Option<Box<RawValue>> {
    let Object(members) = serde_json::from_str(page.get()).ok()?;
    if member(&members, "nextCursor").is_some_and(|cursor| !is_null(cursor)) {
        return None;
    }
    let listed = member(&members, "tools")?.get().trim_end().strip_suffix(']')?;
    let comma = if listed.trim_end().ends_with('[') { "" } else { "," };
    set_member(page, "tools", &format!("{listed}{comma}{}]", tools.join(",")))
}

/// A greeting that promises tools; `None` where it does.
pub(super) fn with_tools_promised(greeting: &RawValue) -> Option<Box<RawValue>> {
    let Object(members) = serde_json::from_str(greeting.get()).ok()?;
    match member(&members, "capabilities") {
        Some(capabilities) => {
            let Object(declared) = serde_json::from_str(capabilities.get()).ok()?;
            let promised = || set_member(greeting, "capabilities", &with_first(capabilities.get(), "tools", "{}"));
            member(&declared, "tools").is_none().then(promised).flatten()
        }
        None => RawValue::from_string(with_first(greeting.get(), "capabilities", r#"{"tools":{}}"#)).ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(text: &str) -> Box<RawValue> {
        RawValue::from_string(text.to_owned()).unwrap()
    }

    #[test]
    fn what_is_hidden_goes_and_every_other_byte_stays() {
        let page = raw(r#"{ "tools" : [{"name":"a", "x" :1.0}, {"name":"b"}] ,"_meta":{ } }"#);
        let mut filter = ToolFilter::default();
        assert!(filtered(&page, &filter).is_none());
        filter.exclude = vec!["c".into()];
        assert!(filtered(&page, &filter).is_none());
        filter.exclude = vec!["b".into()];
        let kept = filtered(&page, &filter).unwrap();
        assert_eq!(kept.get(), r#"{ "tools" : [{"name":"a", "x" :1.0}] ,"_meta":{ } }"#);
    }

    #[test]
    fn tools_are_added_to_the_last_page() {
        let own = [r#"{"name":"x"}"#.to_owned(), r#"{"name":"y"}"#.to_owned()];
        let added = |page: &str| with_tools(&raw(page), &own).map(|page| page.get().to_owned());
        assert_eq!(added(r#"{"tools":[ ]}"#).unwrap(), r#"{"tools":[ {"name":"x"},{"name":"y"}]}"#);
        let longer = r#"{"tools":[{"name":"a"},{"name":"x"},{"name":"y"}],"nextCursor":null}"#;
        assert_eq!(added(r#"{"tools":[{"name":"a"}],"nextCursor":null}"#).unwrap(), longer);
        assert_eq!(added(r#"{"tools":[],"nextCursor":"2"}"#), None);
    }

    #[test]
    fn tools_are_promised_once() {
        let promised = |text: &str| with_tools_promised(&raw(text)).map(|text| text.get().to_owned());
        assert_eq!(promised(r#"{"capabilities":{"tools":{}}}"#), None);
        let both = r#"{"capabilities":{"tools":{},"logging":{}},"x":1}"#;
        assert_eq!(promised(r#"{"capabilities":{"logging":{}},"x":1}"#).unwrap(), both);
        assert_eq!(promised(r#"{"capabilities":{}}"#).unwrap(), r#"{"capabilities":{"tools":{}}}"#);
        assert_eq!(promised("{}").unwrap(), r#"{"capabilities":{"tools":{}}}"#);
    }
}
