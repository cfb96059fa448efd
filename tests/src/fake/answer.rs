//! The answers of a well-behaved server.

use serde_json::{Map, Value, json};

use super::host::Route;
use super::script::{Era, Item, MODERN, Paging, Plan};

/// A JSON-RPC error.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) code: Option<i64>,
    pub(crate) text: String,
    pub(crate) data: Option<Value>,
}

impl Refusal {
    pub(crate) fn new(code: i64, text: impl Into<String>) -> Self {
        Self { code: Some(code), text: text.into(), data: None }
    }

    fn unknown_method(method: &str) -> Self {
        Self::new(-32601, format!("Unknown method: {method}"))
    }

    /// The refusal of a version, which lists those that would do.
    pub(crate) fn version(request: &Request, supported: &[&str]) -> Self {
        let code = if request.method == "initialize" { -32602 } else { -32022 };
        let data = json!({"supported": supported, "requested": request.requested_version()});
        Self { data: Some(data), ..Self::new(code, "Unsupported protocol version") }
    }
}

/// A request, as it was read.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) id: Value,
    pub(crate) params: Value,
    pub(crate) route: Route,
    /// A request of HTTP about which its message has no say yet; `method` is then the name of the lines about it.
    pub(crate) gate: bool,
}

pub(crate) const VERSION_KEY: &str = "io.modelcontextprotocol/protocolVersion";
pub(crate) const SUBSCRIPTION_KEY: &str = "io.modelcontextprotocol/subscriptionId";

impl Request {
    /// The version that its `_meta` states.
    pub(crate) fn meta_version(&self) -> Option<&str> {
        self.params["_meta"][VERSION_KEY].as_str()
    }

    /// The version that it asks for or states.
    pub(crate) fn requested_version(&self) -> Option<&str> {
        self.params["protocolVersion"].as_str().or_else(|| self.meta_version())
    }

    pub(crate) fn is_modern(&self) -> bool {
        self.meta_version().is_some_and(|version| version >= MODERN)
    }

    pub(crate) fn tool(&self) -> Option<&str> {
        if self.method == "tools/call" { self.params["name"].as_str() } else { None }
    }

    /// Whether it goes on with what an `input_required` result asked for.
    pub(crate) fn continues(&self) -> bool {
        !self.params["inputResponses"].is_null() || !self.params["requestState"].is_null()
    }
}

/// What a well-behaved server answers; `None`: the request stays open.
pub(crate) fn answer(plan: &Plan, tools: &[Item], request: &Request) -> Result<Option<Value>, Refusal> {
    check_era(plan, request)?;
    let mut result = match &*request.method {
        "initialize" => initialize(plan, request, None),
        "server/discover" => json!({
            "supportedVersions": plan.versions(true),
            "capabilities": capabilities(plan),
            "_meta": {"io.modelcontextprotocol/serverInfo": {"name": plan.name, "version": plan.version}},
        }),
        "tools/list" => page(plan.paging, "tools", tools.iter().map(tool), request)?,
        "tools/call" => {
            let name = request.tool().unwrap_or_default();
            if !tools.iter().any(|tool| tool.name == name) {
                return Err(Refusal::new(-32602, format!("Unknown tool: {name}")));
            }
            let arguments = &request.params["arguments"];
            content(arguments["text"].as_str().map_or_else(|| arguments.to_string(), str::to_owned))
        }
        "prompts/list" => page(plan.paging, "prompts", plan.prompts.iter().map(prompt), request)?,
        "prompts/get" => {
            let text = format!("prompt {}", request.params["name"]);
            json!({"messages": [{"role": "user", "content": {"type": "text", "text": text}}]})
        }
        "resources/list" => page(plan.paging, "resources", plan.resources.iter().map(resource), request)?,
        "resources/templates/list" => {
            page(plan.paging, "resourceTemplates", plan.templates.iter().map(template), request)?
        }
        "resources/read" => {
            let uri = &request.params["uri"];
            json!({"contents": [{"uri": uri, "mimeType": "text/plain", "text": format!("contents of {uri}")}]})
        }
        "completion/complete" => json!({"completion": {"values": [], "total": 0, "hasMore": false}}),
        "tasks/get" if request.is_modern() => {
            let mut task = task("completed");
            task.insert("result".into(), content("done".into()));
            Value::Object(task)
        }
        "tasks/get" | "tasks/cancel" => Value::Object(task("completed")),
        "tasks/result" => content("done".into()),
        "ping" | "logging/setLevel" | "resources/subscribe" | "resources/unsubscribe" => json!({}),
        "subscriptions/listen" => return Ok(None),
        unknown => return Err(Refusal::unknown_method(unknown)),
    };
    if request.is_modern() {
        complete(&request.method, &mut result);
    }
    Ok(Some(result))
}

/// Refuses what the server's era does not know, and versions that it does not speak.
fn check_era(plan: &Plan, request: &Request) -> Result<(), Refusal> {
    const LEGACY_ONLY: [&str; 6] =
        ["initialize", "ping", "logging/setLevel", "resources/subscribe", "resources/unsubscribe", "tasks/result"];
    const MODERN_ONLY: [&str; 2] = ["server/discover", "subscriptions/listen"];
    let method = &*request.method;
    let unknown = match plan.era {
        Era::Legacy => MODERN_ONLY.contains(&method),
        Era::Modern => LEGACY_ONLY.contains(&method),
        Era::Both => false,
    };
    if unknown {
        return Err(Refusal::unknown_method(method));
    }
    let supported = plan.versions(true);
    match request.meta_version() {
        Some(version) if plan.era != Era::Legacy && !supported.contains(&version) => {
            Err(Refusal::version(request, &supported))
        }
        None if plan.era == Era::Modern => Err(Refusal::new(-32602, format!("Missing _meta key {VERSION_KEY}"))),
        _ => Ok(()),
    }
}

/// The members that every result has since 2026-07-28.
fn complete(method: &str, result: &mut Value) {
    if let Value::Object(result) = result {
        result.insert("resultType".into(), "complete".into());
        if method.ends_with("/list") || ["server/discover", "resources/read"].contains(&method) {
            result.insert("ttlMs".into(), 0.into());
            result.insert("cacheScope".into(), "private".into());
        }
    }
}

/// The result of `initialize`: the version asked for if the server speaks it, else its best.
pub(crate) fn initialize(plan: &Plan, request: &Request, version: Option<&str>) -> Value {
    let spoken = plan.versions(false);
    let asked = request.requested_version().filter(|asked| spoken.contains(asked));
    let version = version.or(asked).or_else(|| spoken.first().copied()).unwrap_or_default();
    json!({
        "protocolVersion": version,
        "capabilities": capabilities(plan),
        "serverInfo": {"name": plan.name, "version": plan.version},
    })
}

fn capabilities(plan: &Plan) -> Value {
    let mut capabilities = Map::new();
    if let Some(items) = &plan.capabilities {
        for item in items {
            let flags = item.flags.iter().map(|flag| (flag.clone(), Value::Bool(true)));
            capabilities.insert(item.name.clone(), Value::Object(flags.collect()));
        }
    } else {
        capabilities.insert("tools".into(), json!({"listChanged": true}));
        if !plan.prompts.is_empty() {
            capabilities.insert("prompts".into(), json!({"listChanged": true}));
        }
        if !plan.resources.is_empty() || !plan.templates.is_empty() {
            capabilities.insert("resources".into(), json!({"listChanged": true, "subscribe": true}));
        }
    }
    Value::Object(capabilities)
}

fn page(paging: Paging, key: &str, items: impl Iterator<Item = Value>, request: &Request) -> Result<Value, Refusal> {
    let items: Vec<Value> = items.collect();
    let cursor = request.params["cursor"].as_str();
    let number = |cursor: &str| cursor.strip_prefix("page-").and_then(|n| n.parse::<usize>().ok());
    let index = match (cursor, paging) {
        (None, _) | (Some(_), Paging::Repeat) => 0,
        (Some(cursor), _) => number(cursor).ok_or_else(|| Refusal::new(-32602, format!("Unknown cursor: {cursor}")))?,
    };
    let (items, next) = match paging {
        Paging::Pages(pages) => {
            let size = items.len().div_ceil(pages).max(1);
            let page: Vec<Value> = items.into_iter().skip(index.saturating_mul(size)).take(size).collect();
            (page, (index < pages - 1).then(|| format!("page-{}", index + 1)))
        }
        Paging::Repeat => (items, Some("again".to_owned())),
        Paging::Endless => {
            let page = if index == 0 { items } else { Vec::new() };
            (page, Some(format!("page-{}", index.saturating_add(1))))
        }
    };
    let mut result = Map::from_iter([(key.to_owned(), Value::Array(items))]);
    if let Some(next) = next {
        result.insert("nextCursor".into(), next.into());
    }
    Ok(Value::Object(result))
}

fn tool(item: &Item) -> Value {
    let mut annotations = Map::new();
    for flag in &item.flags {
        let (name, value) = flag.split_once('=').map_or((&**flag, true), |(name, value)| (name, value == "true"));
        annotations.insert(format!("{name}Hint"), value.into());
    }
    let description = item.description.as_deref().unwrap_or("a scripted tool");
    let mut tool = json!({"name": item.name, "description": description, "inputSchema": {"type": "object"}});
    if !annotations.is_empty() {
        tool["annotations"] = Value::Object(annotations);
    }
    tool
}

fn prompt(item: &Item) -> Value {
    described(json!({"name": item.name}), item)
}

fn resource(item: &Item) -> Value {
    described(json!({"uri": item.name, "name": item.name}), item)
}

fn template(item: &Item) -> Value {
    described(json!({"uriTemplate": item.name, "name": item.name}), item)
}

fn described(mut value: Value, item: &Item) -> Value {
    if let Some(description) = &item.description {
        value["description"] = description.as_str().into();
    }
    value
}

/// The result of a call.
pub(crate) fn content(text: String) -> Value {
    json!({"content": [{"type": "text", "text": text}], "isError": false})
}

/// A task in this state.
pub(crate) fn task(status: &str) -> Map<String, Value> {
    const WHEN: &str = "2026-01-01T00:00:00Z";
    let members: [(&str, Value); 7] = [
        ("taskId", "task-1".into()),
        ("status", status.into()),
        ("createdAt", WHEN.into()),
        ("lastUpdatedAt", WHEN.into()),
        ("ttl", Value::Null),
        ("ttlMs", Value::Null),
        ("pollInterval", 50.into()),
    ];
    members.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}
