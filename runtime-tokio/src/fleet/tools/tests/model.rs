//! Any sequence of steps, beside a model that keeps everything and decides in the plainest way.

use proptest::prelude::*;
use proptest::sample::{select, subsequence};

use super::*;

/// Servers and tools, two pairs of which have the same public name.
const SERVERS: [&str; 3] = ["a", "é", "ü"];

fn tool_names() -> Vec<String> {
    let [one, other] = of_one_name();
    vec!["read".into(), "write".into(), "write.all".into(), one.1, other.1]
}

#[derive(Clone, Debug)]
struct Listed {
    name: String,
    /// Counts for approval.
    description: u8,
    /// Does not.
    meta: u8,
    /// Changes nothing.
    spelling: bool,
}

impl Listed {
    fn item(&self) -> Item<Tool> {
        let Self { name, description, meta, spelling } = self;
        let (described, noted) =
            (format!(r#""description":"{description}""#), format!(r#""_meta":{{"version":{meta}}}"#));
        let rest = if *spelling { format!("{noted}, {described} ") } else { format!("{described},{noted}") };
        Item::from_text(&format!(r#"{{"name":"{name}","inputSchema":{{}},{rest}}}"#))
    }

    fn content(&self) -> Value {
        content(&self.item())
    }
}

fn content(tool: &Item<Tool>) -> Value {
    serde_json::from_str(tool.json().get()).unwrap()
}

#[derive(Clone, Debug)]
enum Step {
    Set { server: &'static str, list: Option<Vec<Listed>>, stale: bool, exclude: bool, policy: CataloguePolicy },
    Approve { server: &'static str, tool: String, seen: Option<u8> },
    Forget { server: &'static str },
    Restart,
}

fn list() -> impl Strategy<Value = Vec<Listed>> {
    let listed = |name: String| {
        (0..2_u8, 0..2_u8, any::<bool>()).prop_map(move |(description, meta, spelling)| Listed {
            name: name.clone(),
            description,
            meta,
            spelling,
        })
    };
    let once = subsequence(tool_names(), 0..=5).prop_shuffle();
    let again = proptest::option::weighted(0.1, select(tool_names()));
    (once, again).prop_flat_map(move |(names, again)| names.into_iter().chain(again).map(listed).collect::<Vec<_>>())
}

fn step() -> impl Strategy<Value = Step> {
    let policy = select(vec![Accept, Warn, Refuse, Refuse, Refuse]);
    let set = (select(&SERVERS[..]), proptest::option::weighted(0.8, list()), any::<bool>(), any::<bool>(), policy);
    let approve = (select(&SERVERS[..]), select(tool_names()), proptest::option::of(0..2_u8));
    prop_oneof![
        10 => set.prop_map(|(server, list, stale, exclude, policy)| Step::Set { server, list, stale, exclude, policy }),
        4 => approve.prop_map(|(server, tool, seen)| Step::Approve { server, tool, seen }),
        1 => select(&SERVERS[..]).prop_map(|server| Step::Forget { server }),
        1 => Just(Step::Restart),
    ]
}

#[derive(Clone)]
struct Rules {
    list: Vec<Listed>,
    stale: bool,
    exclude: bool,
    policy: CataloguePolicy,
}

type Pair = (&'static str, String);

#[derive(Default)]
struct Model {
    rules: BTreeMap<&'static str, Rules>,
    approved: BTreeMap<Pair, u8>,
    owners: BTreeMap<String, Pair>,
    /// The decisions on each server's tools when it was last reviewed, in listing order.
    offered: BTreeMap<&'static str, Vec<(String, bool, Value)>>,
    reasons: BTreeMap<&'static str, Vec<(String, LookupError)>>,
}

fn public_name(server: &str, tool: &str) -> String {
    ToolNaming::default().public_name(server, tool)
}

impl Model {
    fn review(&mut self, server: &'static str) {
        let Some(rules) = self.rules.get(server).cloned() else { return };
        let (mut offered, mut reasons) = (Vec::new(), Vec::new());
        for (at, listed) in rules.list.iter().enumerate() {
            let name = public_name(server, &listed.name);
            let pair = (server, listed.name.clone());
            let (of, tool) = (named(server), named(&listed.name));
            if rules.list[..at].iter().any(|before| before.name == listed.name) {
                continue;
            }
            if rules.exclude && listed.name.starts_with("write") {
                reasons.push((name, LookupError::Filtered { server: of, tool }));
                continue;
            }
            let approved = *self.approved.get(&pair).unwrap_or(&listed.description);
            if approved != listed.description && rules.policy == Refuse {
                let changed = vec![Aspect::Description];
                reasons.push((name, LookupError::AwaitsApproval { server: of, tool, changed }));
                continue;
            }
            self.approved.insert(pair.clone(), listed.description);
            if *self.owners.entry(name.clone()).or_insert_with(|| pair.clone()) == pair {
                offered.push((name, rules.stale, listed.content()));
            }
        }
        self.offered.insert(server, offered);
        self.reasons.insert(server, reasons);
    }

    fn approve(&mut self, server: &'static str, meant: impl Fn(&Listed) -> bool) {
        let waiting = self.reasons.get(server).cloned().unwrap_or_default();
        let waits = |listed: &Listed| waiting.iter().any(|(_, why)| is_waiting_for(why, &listed.name));
        let list = self.rules.get(server).map(|rules| rules.list.clone()).unwrap_or_default();
        let mut names = HashSet::new();
        let before = self.approved.clone();
        for listed in list.iter().filter(|listed| names.insert(listed.name.clone())) {
            if waits(listed) && meant(listed) {
                self.approved.insert((server, listed.name.clone()), listed.description);
            }
        }
        // Nothing is decided anew because of an approval that changes nothing.
        if self.approved != before {
            self.review(server);
        }
    }

    /// The answer for a name.
    fn reason(&self, name: &str) -> LookupError {
        let Some((server, tool)) = self.owners.get(name) else {
            let first = self.reasons.values().flatten().filter(|(of, _)| of == name);
            // Of one server's, what awaits approval comes first.
            return first.map(|(_, why)| why.clone()).next().unwrap_or(LookupError::Unknown);
        };
        let own = self.reasons.get(server).into_iter().flatten().find(|(of, why)| {
            of == name
                && match why {
                    LookupError::Filtered { tool: of, .. } | LookupError::AwaitsApproval { tool: of, .. } => {
                        **of == **tool
                    }
                    _ => false,
                }
        });
        own.map_or(LookupError::NotOffered { server: named(server), tool: named(tool) }, |(_, why)| why.clone())
    }
}

fn is_waiting_for(why: &LookupError, of: &str) -> bool {
    matches!(why, LookupError::AwaitsApproval { tool, .. } if **tool == *of)
}

fn fingerprint(tool: &str, description: u8) -> Fingerprint {
    Fingerprint::of(&Listed { name: tool.into(), description, meta: 0, spelling: false }.item())
}

/// Knows only what the diffs said, and looked up what they named.
#[derive(Default)]
struct Observer(BTreeMap<String, Value>);

impl Observer {
    fn apply(&mut self, diff: &ToolsDiff, tools: &FleetTools) {
        for names in [&diff.added, &diff.removed, &diff.changed] {
            assert!(names.is_sorted_by(|a, b| a < b), "{names:?}");
        }
        for name in &diff.removed {
            assert!(self.0.remove(name).is_some(), "{name} was not there");
        }
        for name in &diff.changed {
            let now = content(tools.lookup(name).unwrap().tool());
            let was = self.0.insert(name.clone(), now.clone());
            assert!(was.is_some_and(|was| was != now), "{name} is what it was, or was not there");
        }
        for name in &diff.added {
            let now = content(tools.lookup(name).unwrap().tool());
            assert!(self.0.insert(name.clone(), now).is_none(), "{name} was there");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn the_list_is_what_the_model_says_and_what_the_diffs_add_up_to(steps in prop::collection::vec(step(), 1..30)) {
        let mut tools = FleetTools::default();
        let (mut model, mut observer) = (Model::default(), Observer::default());
        let exclusion = ToolFilter { exclude: vec!["write*".into()], ..ToolFilter::default() };
        for step in steps {
            let approvals = tools.approvals().clone();
            let diff = match step {
                Step::Set { server, list, stale, exclude, policy } => {
                    let items = list.iter().flatten().map(Listed::item).collect();
                    let part = Part::Listed(items);
                    let part = if stale { part.stale("why not") } else { part };
                    let catalogue = Catalogue { tools: part, ..Catalogue::default() };
                    let filter = if exclude { exclusion.clone() } else { ToolFilter::default() };
                    let catalogue = list.is_some().then_some(&catalogue);
                    model.rules.insert(server, Rules { list: list.clone().unwrap_or_default(), stale, exclude, policy });
                    model.review(server);
                    tools.set(&named(server), catalogue, &filter, policy)
                }
                Step::Approve { server, tool, seen } => {
                    model.approve(server, |listed| listed.name == tool && seen.is_none_or(|seen| seen == listed.description));
                    let seen = seen.map(|seen| fingerprint(&tool, seen));
                    tools.approve(&named(server), &tool, seen.as_ref())
                }
                Step::Forget { server } => {
                    model.rules.remove(server);
                    model.offered.remove(server);
                    model.reasons.remove(server);
                    model.approved.retain(|(of, _), _| *of != server);
                    model.owners.retain(|_, (of, _)| *of != server);
                    tools.forget(&named(server))
                }
                Step::Restart => {
                    let kept = serde_json::to_value(tools.approvals()).unwrap();
                    tools = FleetTools::new(ToolNaming::default(), serde_json::from_value(kept).unwrap());
                    model = Model { approved: model.approved, ..Model::default() };
                    observer = Observer::default();
                    ToolsDiff::default()
                }
            };
            observer.apply(&diff, &tools);
            prop_assert_eq!(diff.approvals_changed, approvals != *tools.approvals());

            let offered = |tool: &FleetTool| (tool.name.to_string(), tool.stale, content(tool.tool()));
            let current: Vec<_> = tools.iter().map(offered).collect();
            let expected: Vec<_> = model.offered.values().flatten().cloned().collect();
            prop_assert_eq!(&current, &expected);
            let current: BTreeMap<_, _> = current.into_iter().map(|(name, _, content)| (name, content)).collect();
            prop_assert_eq!(&current, &observer.0);
            for (server, tool) in SERVERS.iter().flat_map(|server| tool_names().into_iter().map(move |tool| (server, tool))) {
                let name = public_name(server, &tool);
                match tools.lookup(&name) {
                    Ok(found) => prop_assert_eq!(Some(&content(found.tool())), current.get(&name)),
                    Err(why) => prop_assert_eq!((why, current.get(&name)), (model.reason(&name), None)),
                }
            }
            let waiting = model.reasons.values().flatten();
            let waiting = waiting.filter(|(_, why)| matches!(why, LookupError::AwaitsApproval { .. })).count();
            prop_assert_eq!(tools.withheld().count(), waiting);
        }
    }
}
