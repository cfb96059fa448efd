//! Which server a request is for.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::future::join_all;
use serde_json::value::RawValue;
use tokio::time::timeout;

use super::hub::{Hub, unknown_method};
use super::member::Member;
use super::template;
use crate::config::near::near;
use crate::front::answer::{NOT_SENT, UNKNOWN};
use crate::front::asks::Answer;
use crate::front::changes::Kind;
use crate::front::control::Tool;
use crate::front::dispatch::INVALID_PARAMS;
use crate::front::greet::quoted;
use crate::front::offer::hidden;
use crate::protocol::frame::{self, RpcError, set_member};
use crate::session::catalogue::Part;
use crate::wire::relay::TakenBack;

/// Who has what.
#[derive(Default)]
pub(super) struct Routes(Mutex<Table>);

#[derive(Default)]
struct Table {
    /// By the name in the list that the host has seen last.
    lists: [HashMap<Box<str>, Route>; 4],
    /// By which server a resource is subscribed to.
    subscribed: HashMap<Box<str>, usize>,
    /// The names that two servers have, once told.
    clashes: HashSet<Box<str>>,
}

/// A server, and what it calls it.
#[derive(Clone)]
pub(super) struct Route {
    pub(super) member: usize,
    pub(super) name: Box<str>,
}

impl Routes {
    pub(super) fn set(&self, kind: Kind, list: HashMap<Box<str>, Route>) {
        self.lock().lists[kind as usize] = list;
    }

    fn get(&self, kind: Kind, name: &str) -> Option<Route> {
        self.lock().lists[kind as usize].get(name).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Hub {
    /// Says once that two servers have a name, of which the first counts.
    pub(super) fn tell_clash(&self, kind: Kind, name: &str, first: usize, second: usize) {
        let server = |index: usize| self.members.get(index).map_or("", |member| &member.name);
        if self.routes.lock().clashes.insert(name.into()) {
            tracing::warn!(
                name,
                first = server(first),
                second = server(second),
                "listed twice in {}: the first counts",
                kind.member()
            );
        }
    }

    /// Who has this, by what the host has seen, else by what is known.
    pub(super) fn find(&self, kind: Kind, public: &str) -> Option<(usize, Box<str>)> {
        if let Some(Route { member, name }) = self.routes.get(kind, public) {
            return Some((member, name));
        }
        self.members.iter().enumerate().find_map(|(index, member)| {
            let catalogue = member.catalogue();
            let keys = kind.keys(&catalogue);
            let key = keys.into_iter().find(|key| *self.public(kind, member, key) == *public)?;
            Some((index, key.into()))
        })
    }

    /// The same, once every server of which nothing is known has had its time to say.
    async fn locate(&self, kind: Kind, public: &str) -> Option<(usize, Box<str>)> {
        if let Some(found) = self.find(kind, public) {
            return Some(found);
        }
        // Nobody waits longer than this for what may not be there.
        drop(timeout(self.options.start_wait, join_all(self.members.iter().map(Member::known))).await);
        self.find(kind, public).or_else(|| if kind == Kind::Tools { self.read_plainly(public) } else { None })
    }

    /// A tool of a server that has not said which it has.
    fn read_plainly(&self, public: &str) -> Option<(usize, Box<str>)> {
        let naming = &self.options.naming;
        self.members.iter().enumerate().find_map(|(index, member)| {
            let tool = public.strip_prefix(&*member.name)?.strip_prefix(naming.separator())?;
            let is_open = matches!(member.catalogue().tools, Part::Unlisted);
            (is_open && naming.public_name(&member.name, tool) == public).then(|| (index, tool.into()))
        })
    }

    /// The refusal of what nobody has, with what may have been meant.
    fn unknown(&self, kind: Kind, public: &str) -> Box<RawValue> {
        let (what, mut known) = (if kind == Kind::Tools { "tool" } else { "prompt" }, Vec::new());
        for member in &self.members {
            let catalogue = member.catalogue();
            let keys = kind.keys(&catalogue).into_iter();
            let shown = keys.filter(|key| kind != Kind::Tools || member.tools.allows(key));
            known.extend(shown.map(|key| self.public(kind, member, key)));
        }
        let why = match near(public, known.iter().map(AsRef::as_ref)) {
            Some(near) => format!("no server has a {what} `{public}`; there is `{near}`"),
            None => format!("no server has a {what} `{public}`"),
        };
        frame::error_body(INVALID_PARAMS, &why, None)
    }

    async fn ask(&self, index: usize, method: &str, params: Option<&RawValue>, taken_back: &TakenBack) -> Answer {
        match self.members.get(index) {
            Some(member) => member.request(method, params, taken_back).await,
            None => Err(unknown_method(method)),
        }
    }

    /// The answer to a call: of the server that has the tool, under the name that it knows.
    pub(super) async fn call(&self, params: Option<&RawValue>, taken_back: &TakenBack) -> Answer {
        let (params, public) = named(params, "name")?;
        if self.options.control_tools
            && let Some(tool) = Tool::called(&public, |name| self.find(Kind::Tools, name).is_some())
        {
            return tool.run(Some(params), &self.subjects(), self.options.start_wait).await;
        }
        let Some((index, tool)) = self.locate(Kind::Tools, &public).await else {
            return Err(self.unknown(Kind::Tools, &public));
        };
        if let Some(member) = self.members.get(index).filter(|member| !member.tools.allows(&tool)) {
            return Err(hidden(&public, &member.name));
        }
        let renamed = (*tool != *public).then(|| set_member(params, "name", &quoted(&tool))).flatten();
        self.ask(index, "tools/call", Some(renamed.as_deref().unwrap_or(params)), taken_back).await
    }

    /// The answer to a request for a prompt.
    pub(super) async fn prompt(&self, params: Option<&RawValue>, taken_back: &TakenBack) -> Answer {
        let (params, name) = named(params, "name")?;
        match self.locate(Kind::Prompts, &name).await {
            Some((index, _)) => self.ask(index, "prompts/get", Some(params), taken_back).await,
            None => Err(self.unknown(Kind::Prompts, &name)),
        }
    }

    /// The answer to a request about a resource.
    pub(super) async fn resource(&self, method: &str, params: Option<&RawValue>, taken_back: &TakenBack) -> Answer {
        let (params, uri) = named(params, "uri")?;
        let subscribed = self.routes.lock().subscribed.get(&*uri).copied();
        let subscribed = subscribed.filter(|_| method == "resources/unsubscribe");
        let found = subscribed.or_else(|| self.find(Kind::Resources, &uri).map(|(index, _)| index));
        let (index, answer) = match found.or_else(|| self.by_template(&uri)) {
            Some(index) => (index, self.ask(index, method, Some(params), taken_back).await),
            None => self.in_turn(method, params, taken_back).await,
        };
        if answer.is_ok() {
            let mut table = self.routes.lock();
            match method {
                "resources/subscribe" => drop(table.subscribed.insert(uri.into(), index)),
                "resources/unsubscribe" => drop(table.subscribed.remove(&*uri)),
                _ => {}
            }
        }
        answer
    }

    /// Who has a template that this fits best: by the one with the most that is no variable.
    pub(super) fn by_template(&self, uri: &str) -> Option<usize> {
        let listed: Vec<_> = {
            let table = self.routes.lock();
            let listed = table.lists[Kind::Templates as usize].iter();
            listed.map(|(template, route)| (template.clone(), route.member)).collect()
        };
        let known = self.members.iter().enumerate().flat_map(|(index, member)| {
            let catalogue = member.catalogue();
            let keys = Kind::Templates.keys(&catalogue).into_iter();
            keys.map(|template| (template.into(), index)).collect::<Vec<(Box<str>, usize)>>()
        });
        let fitting = listed.into_iter().chain(known);
        let fitting = fitting.filter_map(|(template, index)| Some((template::fits(&template, uri)?, index)));
        // Of equals the first server.
        fitting.max_by_key(|(literal, index)| (*literal, std::cmp::Reverse(*index))).map(|(_, index)| index)
    }

    /// Asks one server after another, those that are there first, until one knows it.
    async fn in_turn(&self, method: &str, params: &RawValue, taken_back: &TakenBack) -> (usize, Answer) {
        let having = self.members.iter().enumerate().filter(|(_, member)| member.declares("resources"));
        let (ready, others): (Vec<_>, Vec<_>) = having.partition(|(_, member)| member.is_ready());
        let mut refused = (0, Err(unknown_method(method)));
        let mut first = true;
        for (index, member) in ready.into_iter().chain(others) {
            match member.request(method, Some(params), taken_back).await {
                Ok(result) => return (index, Ok(result)),
                Err(error) if first => (refused, first) = ((index, Err(error)), false),
                Err(_) => {}
            }
        }
        refused
    }

    /// The answer to a request for completions: of the server that has what is completed.
    pub(super) async fn complete(&self, params: Option<&RawValue>, taken_back: &TakenBack) -> Answer {
        const METHOD: &str = "completion/complete";
        let invalid = || frame::error_body(INVALID_PARAMS, "`ref` is missing, or names nothing", None);
        let params = params.ok_or_else(invalid)?;
        let reference = frame::member_of(params, "ref").ok_or_else(invalid)?;
        let found = if let Some(uri) = frame::text_of(reference, "uri") {
            let listed = self.find(Kind::Templates, &uri).or_else(|| self.find(Kind::Resources, &uri));
            match listed.map(|(index, _)| index).or_else(|| self.by_template(&uri)) {
                Some(index) => Some(index),
                None => self.locate(Kind::Templates, &uri).await.map(|(index, _)| index),
            }
        } else {
            let name = frame::text_of(reference, "name").ok_or_else(invalid)?;
            self.locate(Kind::Prompts, &name).await.map(|(index, _)| index)
        };
        match found {
            Some(index) => self.ask(index, METHOD, Some(params), taken_back).await,
            None => Err(frame::error_body(INVALID_PARAMS, &format!("no server has {}", reference.get()), None)),
        }
    }

    /// The answer to a log level: it is every server's.
    pub(super) async fn set_level(self: &Arc<Self>, params: Option<&RawValue>) -> Answer {
        const METHOD: &str = "logging/setLevel";
        let having: Vec<_> = (0..self.members.len())
            .filter(|&at| self.members.get(at).is_some_and(|it| it.declares("logging")))
            .collect();
        if having.is_empty() {
            return Err(unknown_method(METHOD));
        }
        let asked = having.into_iter().map(|index| {
            let (hub, params) = (self.clone(), params.map(ToOwned::to_owned));
            // A server that takes long gets it all the same.
            self.tasks.spawn(async move {
                let answer = hub.ask(index, METHOD, params.as_deref(), &TakenBack::default()).await;
                let connection = hub.members.get(index).and_then(|member| member.connection());
                if let (Err(error), Some(connection), Some(params)) = (&answer, connection, &params)
                    && [NOT_SENT, UNKNOWN].map(i64::from).contains(&RpcError::parse(error).code)
                {
                    // Its next session gets it.
                    connection.0.spec.wanted.update(|wanted| wanted.keep(METHOD, params));
                }
                answer
            })
        });
        let answers = join_all(asked.map(|asked| timeout(self.options.start_wait, asked))).await;
        let mut refused = None;
        for answer in answers {
            match answer {
                Ok(Ok(Err(error))) => refused = refused.or(Some(error)),
                Ok(Ok(Ok(answer))) => return Ok(answer),
                Ok(Err(_)) | Err(_) => {}
            }
        }
        refused.map_or_else(|| Ok(RawValue::from_string("{}".into()).unwrap_or_default()), Err)
    }
}

/// Parameters, and the text of the member that names what they are about.
fn named<'a>(params: Option<&'a RawValue>, member: &str) -> Result<(&'a RawValue, String), Box<RawValue>> {
    let named = params.and_then(|params| Some((params, frame::text_of(params, member)?)));
    named.ok_or_else(|| frame::error_body(INVALID_PARAMS, &format!("`{member}` is missing, or no string"), None))
}
