//! A file as a whole: which of its members hold servers.

use std::collections::BTreeSet;
use std::path::Path;

use super::expand::Env;
use super::json::{Json, Members};
use super::near::near;
use super::problem::{Problem, ProblemKind};
use super::scope::{Log, Scope, join};
use super::server::{self, Dialect};
use super::settings::{self, OURS, Settings};
use super::{ConfigErrors, FleetConfig, Parsed, ServerConfig};

/// The members of a file that may hold its servers; the first that is there, and not null, is read. In an `mcp`, a
/// member
/// `servers` whose members are all objects holds them.
pub const CONTAINERS: [&str; 4] = ["mcpServers", "servers", "context_servers", "mcp"];

/// The one setting that only the file as a whole has.
const MAX_DIALS: &str = "max_dials";

impl FleetConfig {
    /// Reads a config. `source` is what the file is called in problems, `env` where variables are looked up.
    ///
    /// # Errors
    ///
    /// Everything that is wrong, at once; none of it is used then, so that a slip of the pen stops no server that runs.
    pub fn parse(text: &str, source: &str, env: impl Fn(&str) -> Option<String>) -> Result<Parsed, ConfigErrors> {
        let mut log = Log::new(source);
        let config = document(&mut log, text, &env);
        log.finish(config)
    }

    /// Reads the file at this path, with the variables of this process. One that is not UTF-8 counts as not set.
    ///
    /// Blocks while it reads.
    ///
    /// # Errors
    ///
    /// A file that cannot be read, and everything that is wrong with it.
    pub fn load(path: impl AsRef<Path>) -> Result<Parsed, ConfigErrors> {
        let (log, config) = read(path.as_ref());
        log.finish(config)
    }

    /// Reads the file and leaves out the servers that something is wrong with: their problems are the second of the
    /// pair. For hosts that can use the others.
    ///
    /// # Errors
    ///
    /// A file that cannot be read, and what is wrong with it as a whole.
    pub fn load_usable(path: impl AsRef<Path>) -> Result<(Parsed, Vec<Problem>), ConfigErrors> {
        let (mut log, mut config) = read(path.as_ref());
        let (left_out, errors) = log.errors.into_iter().partition(|problem| problem.server.is_some());
        log.errors = errors;
        let left_out: Vec<Problem> = left_out;
        config.servers.retain(|name, _| left_out.iter().all(|problem| problem.server.as_ref() != Some(name)));
        log.finish(config).map(|parsed| (parsed, left_out))
    }
}

/// Reads the file at this path, with all problems and warnings.
fn read(path: &Path) -> (Log, FleetConfig) {
    let mut log = Log::new(&path.display().to_string());
    let text = match std::fs::read(path).map(String::from_utf8) {
        Ok(Ok(text)) => Ok(text),
        Ok(Err(error)) => Err(format!("is not UTF-8 from byte {} on", error.utf8_error().valid_up_to())),
        Err(error) => Err(format!("cannot be read: {error}")),
    };
    let config = match text {
        Ok(text) => document(&mut log, &text, &|name| std::env::var(name).ok()),
        Err(why) => {
            Scope::of_file(&mut log, &|_| None).error("", ProblemKind::Unreadable, why);
            FleetConfig::default()
        }
    };
    (log, config)
}

impl Log {
    fn new(source: &str) -> Self {
        Self { source: source.into(), errors: Vec::new(), warnings: Vec::new() }
    }

    fn finish(self, config: FleetConfig) -> Result<Parsed, ConfigErrors> {
        if self.errors.is_empty() {
            Ok(Parsed { config, warnings: self.warnings })
        } else {
            Err(ConfigErrors { problems: self.errors, warnings: self.warnings })
        }
    }
}

impl<'a> Scope<'a> {
    fn of_file(log: &'a mut Log, env: Env<'a>) -> Self {
        Scope { log, server: None, env, unset: None }
    }
}

fn document(log: &mut Log, text: &str, env: Env<'_>) -> FleetConfig {
    let mut config = FleetConfig::default();
    let mut scope = Scope::of_file(log, env);
    let members = match Json::parse(text) {
        Ok(Json::Object(members)) => members,
        Ok(other) => {
            scope.wrong_type("", &other, "an object");
            return config;
        }
        Err(error) => {
            let kind = ProblemKind::Syntax { line: error.line(), column: error.column() };
            scope.error("", kind, format!("is no JSON: {error}"));
            return config;
        }
    };
    // Whole settings files are read, whose other members are not our business.
    let (mut members, others): (Members, Members) =
        members.into_iter().partition(|(key, _)| key == OURS || CONTAINERS.contains(&key.as_str()));
    for (key, _) in others {
        if near(&key, ["mcpServers", OURS]).is_some() {
            scope.unknown(&key, &key, ["mcpServers", OURS]);
        }
    }
    members = scope.unique("", members, false).into_iter().filter(|(_, value)| *value != Json::Null).collect();
    let mut take = |key: &str| members.iter().position(|(name, _)| name == key).map(|at| members.remove(at));
    let ours = take(OURS);
    let container = CONTAINERS.into_iter().find_map(&mut take);
    if let Some((read, _)) = &container {
        // Gemini CLI has an `mcp` that holds no servers.
        for (key, _) in members.iter().filter(|(key, _)| key != "mcp") {
            scope.warn(key, ProblemKind::Ignored, format!("is not read beside `{read}`"));
        }
    }
    let ours = ours.and_then(|(_, value)| scope.object(OURS, value)).unwrap_or_default();
    let defaults = defaults(&mut scope, ours, &mut config);
    match container {
        Some((key, value)) => servers(&mut scope, &key, value, &defaults, &mut config),
        None => scope.error("", ProblemKind::NoServers, "has no `mcpServers`"),
    }
    config
}

/// The settings for all servers, which must be right by themselves, so that what is wrong with them is told once.
fn defaults(scope: &mut Scope<'_>, members: Members, config: &mut FleetConfig) -> Settings {
    let (dials, members): (Members, Members) = members.into_iter().partition(|(key, _)| key == MAX_DIALS);
    for (_, value) in dials.into_iter().filter(|(_, value)| *value != Json::Null) {
        let most = mcp_reconnect_core::DialGate::MAX_DIALS;
        if let Some(dials) = settings::number(scope, &join(OURS, MAX_DIALS), &value, most.into()) {
            config.max_dials = u8::try_from(dials).unwrap_or(most);
        }
    }
    let settings = Settings::read(scope, members);
    settings.apply(scope, ServerConfig::stdio("", [""; 0])).1
}

fn servers(scope: &mut Scope<'_>, key: &str, value: Json, defaults: &Settings, config: &mut FleetConfig) {
    let (field, dialect, value) = match (key, value) {
        ("mcp", Json::Object(members)) => match members.iter().position(|(key, value)| is_container(key, value)) {
            Some(at) => ("mcp.servers", Dialect::Common, members.into_iter().nth(at).map_or(Json::Null, |(_, it)| it)),
            None => ("mcp", Dialect::OpenCode, Json::Object(members)),
        },
        (key, value) => (key, Dialect::Common, value),
    };
    let Json::Object(servers) = value else { return scope.wrong_type(field, &value, "an object") };
    let mut names = BTreeSet::new();
    for (name, value) in servers {
        let mut scope = Scope { log: &mut *scope.log, server: Some(&name), env: scope.env, unset: None };
        if name.trim().is_empty() || name.contains(char::is_control) {
            scope.error("", ProblemKind::Value, "a name must not be empty, nor hold control characters");
        } else if !names.insert(name.clone()) {
            scope.error("", ProblemKind::Duplicate, "is there twice");
        } else if let Some(server) = server::read(&mut scope, value, defaults, dialect) {
            config.servers.insert(name.into(), server);
        }
    }
}

/// Whether a member of `mcp` holds the servers (VS Code), and is not one of them (opencode) that has this name.
fn is_container(key: &str, value: &Json) -> bool {
    let Json::Object(members) = value else { return false };
    key == "servers" && members.iter().all(|(_, value)| matches!(value, Json::Object(_)))
}
