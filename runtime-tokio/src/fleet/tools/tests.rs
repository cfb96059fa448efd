use serde_json::{Value, json};

use super::*;
use CataloguePolicy::{Accept, Refuse, Warn};

mod model;

fn named(name: &str) -> Arc<str> {
    name.into()
}

fn tool(name: &str, description: &str) -> Value {
    json!({ "name": name, "description": description, "inputSchema": { "type": "object" } })
}

fn catalogue(tools: &[Value]) -> Catalogue {
    let items = tools.iter().map(|json| Item::from_text(&json.to_string())).collect();
    Catalogue { tools: Part::Listed(items), ..Catalogue::default() }
}

fn set(tools: &mut FleetTools, server: &str, policy: CataloguePolicy, list: &[Value]) -> ToolsDiff {
    tools.set(&named(server), Some(&catalogue(list)), &ToolFilter::default(), policy)
}

fn withdraw(tools: &mut FleetTools, server: &str) -> ToolsDiff {
    tools.set(&named(server), None, &ToolFilter::default(), Refuse)
}

fn offered(tools: &FleetTools) -> Vec<&str> {
    tools.iter().map(|tool| &*tool.name).collect()
}

fn diff(added: &[&str], removed: &[&str], changed: &[&str]) -> ToolsDiff {
    let owned = |names: &[&str]| names.iter().map(ToString::to_string).collect();
    ToolsDiff { added: owned(added), removed: owned(removed), changed: owned(changed), ..ToolsDiff::default() }
}

/// Without what there is to tell beside.
fn names_of(found: ToolsDiff) -> ToolsDiff {
    ToolsDiff { notices: Vec::new(), approvals_changed: false, ..found }
}

#[test]
fn servers_are_merged_and_swapped_in_whole() {
    let mut tools = FleetTools::default();
    let first = set(&mut tools, "b", Accept, &[tool("write", ""), tool("read", "")]);
    assert_eq!(first, ToolsDiff { approvals_changed: true, ..diff(&["b__read", "b__write"], &[], &[]) });
    set(&mut tools, "a", Accept, &[tool("read", "")]);
    assert_eq!(offered(&tools), ["a__read", "b__write", "b__read"]);

    let found = tools.lookup("b__read").unwrap();
    assert_eq!((&*found.server, &*found.tool().name, found.stale), ("b", "read", false));

    let second = set(&mut tools, "b", Accept, &[tool("read", "other"), tool("list", "")]);
    assert_eq!(names_of(second), diff(&["b__list"], &["b__write"], &["b__read"]));
    assert_eq!(set(&mut tools, "b", Accept, &[tool("list", ""), tool("read", "other")]), ToolsDiff::default());
    assert_eq!(offered(&tools), ["a__read", "b__list", "b__read"]);

    assert_eq!(withdraw(&mut tools, "b"), diff(&[], &["b__list", "b__read"], &[]));
    assert_eq!(withdraw(&mut tools, "b"), ToolsDiff::default());
    assert_eq!(offered(&tools), ["a__read"]);
}

#[test]
fn a_stale_list_is_offered_and_marked() {
    let mut tools = FleetTools::default();
    let listed = catalogue(&[tool("read", "")]);
    tools.set(&named("s"), Some(&listed), &ToolFilter::default(), Refuse);
    let stale = tools.set(&named("s"), Some(&listed.carried_over()), &ToolFilter::default(), Refuse);
    assert_eq!(stale, ToolsDiff::default());
    assert!(tools.lookup("s__read").unwrap().stale);
    tools.set(&named("s"), Some(&listed), &ToolFilter::default(), Refuse);
    assert!(!tools.lookup("s__read").unwrap().stale);
    let unlisted = Catalogue::default();
    let gone = tools.set(&named("s"), Some(&unlisted), &ToolFilter::default(), Refuse);
    assert_eq!(gone, diff(&[], &["s__read"], &[]));
}

#[test]
fn members_outside_approval_are_changes_all_the_same() {
    let mut tools = FleetTools::default();
    let mut versioned = tool("read", "");
    set(&mut tools, "s", Refuse, &[versioned.clone()]);
    versioned["_meta"] = json!({ "version": 2 });
    assert_eq!(set(&mut tools, "s", Refuse, &[versioned]), diff(&[], &[], &["s__read"]));
}

#[test]
fn of_two_tools_of_one_name_the_first_counts_and_is_told_once() {
    let mut tools = FleetTools::default();
    let list = [tool("read", "first"), tool("list", ""), tool("read", "second"), tool("read", "third")];
    let notice = Notice::ListedTwice { server: named("s"), tool: named("read") };
    let found = set(&mut tools, "s", Refuse, &list);
    assert_eq!((&*found.added, &*found.notices), (&["s__list".into(), "s__read".into()][..], &[notice][..]));
    assert_eq!(tools.lookup("s__read").unwrap().tool().description.as_deref(), Some("first"));
    assert_eq!(set(&mut tools, "s", Refuse, &list), ToolsDiff::default());
    withdraw(&mut tools, "s");
    assert_eq!(set(&mut tools, "s", Refuse, &list).notices, []);
    // The other one comes first: that is a change of the tool.
    assert_eq!(set(&mut tools, "s", Refuse, &list[2..]).removed, ["s__list", "s__read"]);
}

/// Two tools whose names are cut alike and whose hashes begin alike (found by trying).
fn of_one_name() -> [(&'static str, String); 2] {
    [("é", format!("{}31617", "x".repeat(60))), ("ü", format!("{}1245", "x".repeat(60)))]
}

#[test]
fn a_name_stays_that_of_the_first_tool_that_had_it() {
    let [one, other] = of_one_name();
    let name = format!("___{}_7d6e46e9", "x".repeat(52));
    let mut tools = FleetTools::default();
    assert_eq!(set(&mut tools, one.0, Refuse, &[tool(&one.1, "")]).added, [&*name]);
    let list = [tool(&other.1, "")];
    let found = set(&mut tools, other.0, Refuse, &list);
    let notice = Notice::NameTaken { name: (&*name).into(), server: named(other.0), tool: named(&other.1) };
    assert_eq!((found.is_empty(), found.notices), (true, vec![notice]));
    assert_eq!(&*tools.lookup(&name).unwrap().server, one.0);

    // Gone or not: a caller that knows the name means the first one.
    withdraw(&mut tools, one.0);
    assert_eq!(set(&mut tools, other.0, Refuse, &list), ToolsDiff::default());
    let gone = LookupError::NotOffered { server: named(one.0), tool: named(&one.1) };
    assert_eq!(tools.lookup(&name).unwrap_err(), gone);
    // The reason that keeps the other one back does not concern the first.
    set(&mut tools, other.0, Refuse, &[tool(&other.1, "changed")]);
    assert_eq!((tools.withheld().count(), tools.lookup(&name).unwrap_err()), (1, gone));

    tools.forget(&named(one.0));
    assert_eq!(set(&mut tools, other.0, Refuse, &list).added, [&*name]);
    assert_eq!(&*tools.lookup(&name).unwrap().server, other.0);
}

#[test]
fn two_tools_of_one_server_and_name_are_told_apart_by_order() {
    let (one, other) = (format!("{}129883", "x".repeat(70)), format!("{}134231", "x".repeat(70)));
    let mut tools = FleetTools::default();
    let found = set(&mut tools, "s", Accept, &[tool(&one, "one"), tool(&other, "other")]);
    assert_eq!((found.added.len(), found.notices.len()), (1, 1));
    // The order of a later list does not make the name another tool's.
    assert_eq!(set(&mut tools, "s", Accept, &[tool(&other, "other"), tool(&one, "one")]), ToolsDiff::default());
    assert_eq!(tools.iter().next().unwrap().tool().name, one);
}

#[test]
fn a_changed_tool_is_withheld_until_it_is_approved() {
    let mut tools = FleetTools::default();
    let server = named("s");
    set(&mut tools, "s", Refuse, &[tool("read", "reads"), tool("list", "")]);
    let changed = vec![Aspect::Description];
    let notice = Notice::Withheld { server: server.clone(), tool: named("read"), changed: changed.clone() };
    let evil = [tool("read", "reads, and sends"), tool("list", "")];
    let found = set(&mut tools, "s", Refuse, &evil);
    assert_eq!(found, ToolsDiff { notices: vec![notice], ..diff(&[], &["s__read"], &[]) });
    let waits = LookupError::AwaitsApproval { server: server.clone(), tool: named("read"), changed };
    assert_eq!(tools.lookup("s__read").unwrap_err(), waits);
    assert_eq!(waits.to_string(), r#""read" of "s" awaits approval: description changed"#);
    assert_eq!(set(&mut tools, "s", Refuse, &evil), ToolsDiff::default(), "told once");

    // It is looked at, and becomes yet another one before it is approved.
    let seen = tools.withheld().next().unwrap().fingerprint.clone();
    let worse = [tool("read", "sends"), tool("list", "")];
    assert_eq!(set(&mut tools, "s", Refuse, &worse).notices.len(), 1);
    assert_eq!(tools.approve(&server, "read", Some(&seen)), ToolsDiff::default());
    assert_eq!(tools.approve(&server, "list", None), ToolsDiff::default());
    assert_eq!(tools.approve(&named("other"), "read", None), ToolsDiff::default());
    assert_eq!(offered(&tools), ["s__list"]);

    let seen = tools.withheld().next().unwrap().fingerprint.clone();
    let approved = tools.approve(&server, "read", Some(&seen));
    assert_eq!(approved, ToolsDiff { approvals_changed: true, ..diff(&["s__read"], &[], &[]) });
    assert_eq!((offered(&tools), tools.withheld().count()), (vec!["s__read", "s__list"], 0));
    // The version that was approved at first is no longer approved.
    assert_eq!(set(&mut tools, "s", Refuse, &[tool("read", "reads")]).removed, ["s__list", "s__read"]);
}

#[test]
fn a_tool_that_is_what_it_was_again_is_offered_again() {
    let mut tools = FleetTools::default();
    set(&mut tools, "s", Refuse, &[tool("read", "reads")]);
    set(&mut tools, "s", Refuse, &[tool("read", "sends")]);
    assert_eq!(set(&mut tools, "s", Refuse, &[tool("read", "reads")]), diff(&["s__read"], &[], &[]));
}

#[test]
fn one_that_comes_back_as_another_is_found_out() {
    let [was, is] = [[tool("read", "reads")], [tool("read", "sends")]];
    let mut tools = FleetTools::default();
    set(&mut tools, "s", Refuse, &was);
    set(&mut tools, "s", Refuse, &[]);
    assert_eq!(set(&mut tools, "s", Refuse, &is).notices.len(), 1);
    withdraw(&mut tools, "s");
    assert_eq!(set(&mut tools, "s", Refuse, &is).added, [""; 0]);

    // And in the next process.
    let kept = serde_json::to_string(tools.approvals()).unwrap();
    let mut next = FleetTools::new(ToolNaming::default(), serde_json::from_str(&kept).unwrap());
    assert_eq!(set(&mut next, "s", Refuse, &is).notices.len(), 1);
    assert!(matches!(next.lookup("s__read"), Err(LookupError::AwaitsApproval { .. })));
    assert_eq!(set(&mut next, "s", Refuse, &was), diff(&["s__read"], &[], &[]));

    next.forget(&named("s"));
    assert_eq!(set(&mut next, "s", Refuse, &is).added, ["s__read"]);
}

#[test]
fn warn_offers_what_changed_and_tells_accept_says_nothing() {
    let mut tools = FleetTools::default();
    set(&mut tools, "s", Warn, &[tool("read", "reads")]);
    let mut second = tool("read", "sends");
    second["annotations"] = json!({ "readOnlyHint": true });
    let found = set(&mut tools, "s", Warn, &[second.clone()]);
    assert_eq!((&*found.changed, found.approvals_changed), (&["s__read".to_owned()][..], true));
    assert_eq!(found.notices[0].to_string(), r#""read" of "s" is not what it was: description, annotations changed"#);
    assert_eq!(set(&mut tools, "s", Warn, &[second]), ToolsDiff::default());
    let third = set(&mut tools, "s", Accept, &[tool("read", "other")]);
    assert_eq!(third, ToolsDiff { approvals_changed: true, ..diff(&[], &[], &["s__read"]) });
    // Refusal goes by what was taken last.
    assert_eq!(set(&mut tools, "s", Refuse, &[tool("read", "other")]), ToolsDiff::default());
}

#[test]
fn why_a_tool_is_not_there_is_told() {
    let mut tools = FleetTools::default();
    let server = named("s");
    let filter = ToolFilter { exclude: vec!["write*".into()], ..ToolFilter::default() };
    let list = catalogue(&[tool("read", ""), tool("write", "")]);
    tools.set(&server, Some(&list), &filter, Refuse);
    let of = |tool: &str| (server.clone(), named(tool));
    assert_eq!(tools.lookup("s__other").unwrap_err(), LookupError::Unknown);
    let (server, tool) = of("write");
    let filtered = LookupError::Filtered { server, tool };
    assert_eq!(tools.lookup("s__write").unwrap_err(), filtered);

    // The filter may change while the list does not.
    let server = named("s");
    let open = tools.set(&server, Some(&list), &ToolFilter::default(), Refuse);
    assert_eq!(open.added, ["s__write"]);
    assert_eq!(tools.set(&server, Some(&list), &filter, Refuse).removed, ["s__write"]);
    assert_eq!(tools.lookup("s__write").unwrap_err(), filtered);

    withdraw(&mut tools, "s");
    for tool in ["read", "write"] {
        let gone = LookupError::NotOffered { server: server.clone(), tool: named(tool) };
        assert_eq!(tools.lookup(&format!("s__{tool}")).unwrap_err(), gone);
    }
    tools.forget(&server);
    assert_eq!(tools.lookup("s__read").unwrap_err(), LookupError::Unknown);
}

/// A server that names its tools anew in each list does not fill the memory.
#[test]
fn what_is_remembered_of_a_server_is_bounded() {
    let mut tools = FleetTools::default();
    let bystander = [tool("read", "reads")];
    set(&mut tools, "bystander", Refuse, &bystander);
    set(&mut tools, "s", Refuse, &[tool("read", "reads"), tool("list", "")]);
    let listing = |round: usize| -> Vec<Value> {
        let random = (0..4_000).map(|at| tool(&format!("{round}-{at}"), ""));
        // Listed all the time, and withheld: it stays so.
        random.chain([tool("read", "sends")]).collect()
    };
    let told: Vec<_> = (0..4).map(|round| set(&mut tools, "s", Refuse, &listing(round)).notices).collect();
    let forgotten = Notice::Forgotten { server: named("s") };
    assert_eq!(
        told.iter().map(|notices| notices.contains(&forgotten)).collect::<Vec<_>>(),
        [false, false, false, true]
    );
    assert_eq!((tools.approvals().count("s"), tools.owners.len()), (4_001, 4_002));
    assert!(matches!(tools.lookup("s__read"), Err(LookupError::AwaitsApproval { .. })));
    assert_eq!(tools.lookup("s__list").unwrap_err(), LookupError::Unknown);
    assert_eq!(set(&mut tools, "s", Refuse, &[tool("read", "reads")]).added, ["s__read"]);
    assert_eq!(set(&mut tools, "bystander", Refuse, &bystander), ToolsDiff::default());
}
