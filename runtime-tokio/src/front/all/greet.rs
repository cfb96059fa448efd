//! What the host is told of all servers when its session begins.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use rmcp::model::ProtocolVersion;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value, json};
use tokio::time::timeout;

use super::hub::{Hub, unknown_method};
use crate::front::asks::Answer;
use crate::front::dispatch::INVALID_REQUEST;
use crate::front::greet::{EVERYTHING, Greeting};
use crate::protocol::{Era, frame};
use crate::wire::relay::TakenBack;

/// How much longer than a server's front may take its answer is waited for.
const GRACE: Duration = Duration::from_secs(1);
/// What no request can be sent to the right server for: a task's id says nothing of its server.
const LEFT_OUT: [&str; 1] = ["tasks"];
const TASKS_EXTENSION: &str = "io.modelcontextprotocol/tasks";

impl Hub {
    /// The answer to `initialize` or `server/discover`: each server's front is greeted with the host's words.
    pub(super) async fn greet(self: &Arc<Self>, method: &str, params: Option<&RawValue>) -> Answer {
        if method == "initialize" && self.greeted.is_cancelled() {
            return Err(frame::error_body(INVALID_REQUEST, "the session is initialized already", None));
        }
        let asked = (0..self.members.len()).map(|index| {
            let (hub, method, params) = (self.clone(), method.to_owned(), params.map(ToOwned::to_owned));
            // A front that takes long is not told to forget it.
            self.tasks.spawn(async move {
                match hub.members.get(index) {
                    Some(member) => member.request(&method, params.as_deref(), &TakenBack::default()).await.ok(),
                    None => None,
                }
            })
        });
        let wait = self.options.start_wait + GRACE;
        let answers = join_all(asked.map(|asked| timeout(wait, asked))).await;

        let mut capabilities = Map::new();
        let mut instructions = Vec::new();
        for (member, answer) in self.members.iter().zip(answers) {
            // Either way it has not said anything.
            let said = answer.ok().and_then(Result::ok).flatten();
            let promised = match &said {
                Some(said) => frame::member_of(said, "capabilities").map(RawValue::get),
                None => Some(EVERYTHING),
            };
            let promised = promised.and_then(|promised| RawValue::from_string(promised.to_owned()).ok());
            if let Some(promised) = promised {
                if let Ok(promised) = serde_json::from_str(promised.get()) {
                    unite(&mut capabilities, promised);
                }
                drop(member.promised.set(promised)); // the first words count
            }
            if let Some(text) = said.and_then(|said| frame::text_of(&said, "instructions")) {
                instructions.push(format!("# {}\n\n{}", member.name, text.trim_end()));
            }
        }
        for name in LEFT_OUT {
            capabilities.remove(name);
        }
        if let Some(Value::Object(extensions)) = capabilities.get_mut("extensions") {
            extensions.remove(TASKS_EXTENSION);
        }
        if self.options.control_tools {
            capabilities.entry("tools").or_insert_with(|| json!({}));
        }
        let mut greeting = json!({
            "protocolVersion": ProtocolVersion::LATEST_WITH_INITIALIZE.as_str(),
            "capabilities": capabilities,
            "serverInfo": { "name": &*self.options.name, "version": env!("CARGO_PKG_VERSION") },
        });
        if !instructions.is_empty() {
            greeting["instructions"] = instructions.join("\n\n").into();
        }
        let raw = to_raw_value(&greeting).unwrap_or_else(|_| RawValue::NULL.to_owned());
        let greeting = Greeting { era: Era::Legacy, raw };
        match self.begun.get() {
            Some((Era::Modern, version)) if method == "server/discover" => Ok(greeting.discovered(version)),
            Some((Era::Legacy, version)) if method == "initialize" => Ok(greeting.initialized(version)),
            _ => Err(unknown_method(method)),
        }
    }
}

/// Adds to what can be done; of two answers that are no sets the yes counts, else the first.
fn unite(all: &mut Map<String, Value>, more: Map<String, Value>) {
    for (name, value) in more {
        match (all.get_mut(&name), value) {
            (Some(Value::Object(known)), Value::Object(value)) => unite(known, value),
            (Some(known), value) => {
                if value == Value::Bool(true) && *known == Value::Bool(false) {
                    *known = value;
                }
            }
            (None, value) => {
                all.insert(name, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_are_united() {
        let mut all = Map::new();
        for said in [
            json!({ "tools": { "listChanged": false }, "logging": {}, "x": 1 }),
            json!({ "tools": { "listChanged": true }, "resources": { "subscribe": true }, "x": 2 }),
            json!({ "tools": {}, "resources": { "listChanged": true, "subscribe": false } }),
        ] {
            unite(&mut all, said.as_object().unwrap().clone());
        }
        let united = json!({
            "tools": { "listChanged": true }, "logging": {}, "x": 1,
            "resources": { "listChanged": true, "subscribe": true },
        });
        assert_eq!(Value::Object(all), united);
    }
}
