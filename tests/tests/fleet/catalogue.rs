//! The common list of tools: what is in it, when, and whom a call by name reaches.

use mcp_reconnect::CallError;
use mcp_reconnect::ServerState;
use mcp_reconnect::config::{CataloguePolicy, Connect, FleetConfig, OnPark};
use mcp_reconnect::core::{ParkReason, Status, WakeCause};
use mcp_reconnect::fleet::{Aspect, Fingerprint, FleetCallError, FleetEvent, LookupError, Notice, Outcome};
use rmcp::model::CallToolRequestParams;
use tokio::time::sleep;

use super::support::*;
use crate::support::{config as knobs, epoch, memory, millis, secs};

const LISTENING: &str = "tools a\ncapabilities tools(listChanged)\n";

fn not_offered(called: Result<rmcp::model::CallToolResponse, FleetCallError>) -> LookupError {
    match called {
        Err(FleetCallError::NotOffered { why, .. }) => why,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_park_withdraws_once_a_revival_publishes_once_before_ready() {
    let (server, other) = (memory("spawn 1:\n after 20s exit 1"), memory("tools b"));
    let (fleet, mut events) = watched();
    fleet.apply(config(&[("a", &server), ("b", &other)]));
    all_ready(&fleet, &["a", "b"]).await;
    drop(told(&mut events));
    server.set_script("initialize exit 1").unwrap();
    let mut words = Vec::new();
    while words.last().is_none_or(|word| word != "PARKED(exhausted)") {
        words.extend(word(&next(&mut events).await));
    }
    assert_eq!(words, ["tools -a__echo -a__write", "PARKED(exhausted)"]);
    assert_eq!(tools(&fleet), ["b__b"]);
    // A call asks for it all the same.
    let refused = fleet.call_tool("a__echo", None).await;
    assert!(matches!(refused, Err(FleetCallError::Call { error: CallError::Refused { .. }, .. })), "{refused:?}");
    server.set_script("").unwrap();
    let mut revived = Vec::new();
    loop {
        let event = next(&mut events).await;
        revived.extend(word(&event));
        if matches!(event, FleetEvent::Tools(_)) {
            assert!(tools(&fleet).contains(&"a__echo".to_owned()));
        }
        if matches!(status_in(&event, "a"), Some(Status::Ready(_))) {
            break;
        }
    }
    assert_eq!(revived.len(), 2, "{revived:?}");
    assert_eq!(revived[0], "tools +a__echo +a__write");
    assert_eq!(super::support::words(&mut events, secs(600)).await, [""; 0]);
    // On request, the same.
    fleet.park("a");
    assert_eq!(super::support::words(&mut events, secs(60)).await, ["tools -a__echo -a__write", "PARKED(requested)"]);
    fleet.wake("a", WakeCause::Operator);
    let words = super::support::words(&mut events, secs(60)).await;
    assert_eq!((words.len(), &*words[0]), (2, "tools +a__echo +a__write"));
    assert_eq!(other.ledger().spawns(), 1);
    fleet.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_rebuild_keeps_what_is_offered_and_swaps_it_with_one_diff() {
    let server = memory(
        "tools b(desc \"v2\"), c\nlist delay 5s\nspawn 1:\n list ok\n tools a, b(desc \"v1\")\n after 20s exit 1",
    );
    let (fleet, mut events) = watched();
    fleet.apply(config(&[("s", &server)]));
    all_ready(&fleet, &["s"]).await;
    assert!(fleet.tools().iter().all(|tool| !tool.stale));
    drop(told(&mut events));
    until(&mut events, "s", |status| status == Status::TransientFailure).await;
    assert_eq!(tools(&fleet), ["s__a", "s__b"]);
    assert!(fleet.tools().iter().all(|tool| tool.stale), "there is no session to speak for them");
    assert_eq!(words(&mut events, secs(60)).await, ["tools +s__c -s__a ~s__b", "READY(2)"]);
    assert_eq!(tools(&fleet), ["s__b", "s__c"]);
    assert!(fleet.tools().iter().all(|tool| !tool.stale));
    let why = not_offered(fleet.call_tool("s__a", None).await);
    assert_eq!(why, LookupError::NotOffered { server: "s".into(), tool: "a".into() });
    assert_eq!(server.ledger().calls("a"), 0, "it failed here");
    assert_eq!(not_offered(fleet.call_tool("s__z", None).await), LookupError::Unknown);
    fleet.shutdown().await;
}

/// A call that was made while the list was the old one, and meets the new one.
#[tokio::test(start_paused = true)]
async fn a_call_that_waited_through_a_rebuild_meets_the_new_list() {
    let server = memory("tools b\nlist delay 5s\nspawn 1:\n list ok\n tools a, b\n after 20s exit 1");
    let (fleet, mut events) = watched();
    fleet.apply(config(&[("s", &server)]));
    all_ready(&fleet, &["s"]).await;
    until(&mut events, "s", |status| status == Status::TransientFailure).await;
    let (gone, kept) = tokio::join!(fleet.call_tool("s__a", None), fleet.call_tool("s__b", None));
    assert!(
        matches!(&gone, Err(FleetCallError::Call { error: CallError::NotOffered { epoch: of, .. }, .. }) if *of == epoch(2)),
        "{gone:?}"
    );
    assert!(kept.is_ok(), "{kept:?}");
    assert_eq!(server.ledger().calls("a"), 0);
    fleet.shutdown().await;
}

/// Whoever follows the diffs knows what is offered, at every moment: through rebuilds, changes, parks, filters and
/// registrations.
#[tokio::test(start_paused = true)]
async fn the_diffs_in_order_are_the_list() {
    let changing = memory(&format!(
        "{LISTENING}after 3s set-tools a b, notify tools/list_changed\nafter 6s set-tools c, notify tools/list_changed
         after 9s exit 1\nspawn 2..:\n tools d, e\n after 40s exit 1"
    ));
    let flapping = memory("tools x, y\nafter 700ms exit 1");
    let steady = memory("tools p, q, r");
    let (fleet, mut events) = watched();
    let mut mirror = Mirror::default();
    let parts = |exclude: &str, version| {
        let mut filtered = server(&steady, version);
        filtered.tools.exclude = vec![exclude.into()];
        config(&[("changing", &changing), ("flapping", &flapping)]).with("steady", filtered)
    };
    let mut diffs = 0;
    for round in 0..60_u32 {
        match round % 10 {
            0 => drop(fleet.apply(parts("p", 1))),
            2 => drop(fleet.apply(parts("q", 1))),
            4 => drop(fleet.apply(parts("q", 2))),
            6 => _ = fleet.park("steady"),
            7 => _ = fleet.wake("steady", WakeCause::Operator),
            9 if round > 30 => drop(fleet.apply(config(&[("changing", &changing)]))),
            _ => {}
        }
        let began = tokio::time::Instant::now();
        mirror.follow(&fleet, told(&mut events));
        // Whatever is told in the next seconds, one after another.
        while let Ok(Some(event)) = tokio::time::timeout_at(began + secs(2), events.next()).await {
            diffs += u32::from(matches!(event, FleetEvent::Tools(_)));
            let rest = told(&mut events);
            mirror.follow(&fleet, std::iter::once(event).chain(rest));
        }
    }
    assert!(diffs > 30, "{diffs}");
    fleet.shutdown().await;
    mirror.follow(&fleet, told(&mut events));
}

#[tokio::test(start_paused = true)]
async fn a_burst_of_announcements_makes_two_lists_one_diff_at_most() {
    let server = memory(&format!("{LISTENING}after 20s set-tools a b, notify tools/list_changed x30 every 3ms"));
    let other = memory("tools a");
    let (fleet, mut events) = watched();
    fleet.apply(config(&[("s", &server), ("t", &other)]));
    all_ready(&fleet, &["s", "t"]).await;
    drop(told(&mut events));
    assert_eq!(words(&mut events, secs(60)).await, ["tools +s__b"]);
    assert!(server.ledger().requests("tools/list") <= 1 + 2);
    assert_eq!(other.ledger().requests("tools/list"), 1);
    fleet.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_call_goes_to_the_server_that_has_the_name() {
    let servers = ["one", "two", "three"]
        .map(|name| (name, memory(&format!("tools same, only_{name}\ncall same reply \"{name}\""))));
    let fleet = fleet();
    fleet.apply(config(&servers.each_ref().map(|(name, server)| (*name, server))));
    all_ready(&fleet, &["one", "two", "three"]).await;
    for (name, server) in &servers {
        assert_eq!(text(fleet.call_tool(&format!("{name}__same"), None).await), *name);
        let params = CallToolRequestParams::new(format!("{name}__only_{name}"))
            .with_arguments([("text".to_owned(), "hello".into())].into_iter().collect());
        assert_eq!(text(fleet.call_tool_with(params, None).await), "hello");
        assert_eq!((server.ledger().calls("same"), server.ledger().executions(&format!("only_{name}"))), (1, 1));
    }
    assert_eq!(not_offered(fleet.call_tool("one__only_two", None).await), LookupError::Unknown);
    assert_eq!(not_offered(fleet.call_tool("same", None).await), LookupError::Unknown);
    fleet.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn filters_are_retuned_without_a_reconnect() {
    let server = memory("tools read, read_all, write");
    let filtered = |include: Option<&[&str]>, exclude: &[&str]| {
        only(
            "s",
            with(&server, |server| {
                server.tools.include = include.map(|include| include.iter().map(|name| (*name).into()).collect());
                server.tools.exclude = exclude.iter().map(|name| (*name).into()).collect();
            }),
        )
    };
    let (fleet, mut events) = watched();
    fleet.apply(filtered(Some(&["read*"]), &[]));
    all_ready(&fleet, &["s"]).await;
    assert_eq!(tools(&fleet), ["s__read", "s__read_all"]);
    let why = not_offered(fleet.call_tool("s__write", None).await);
    assert_eq!(why, LookupError::Filtered { server: "s".into(), tool: "write".into() });
    drop(told(&mut events));
    assert_eq!(outcomes(&fleet.apply(filtered(None, &["read_all"]))), ["s: retuned"]);
    assert_eq!(tools(&fleet), ["s__read", "s__write"]);
    fleet.apply(filtered(Some(&[]), &[]));
    assert_eq!(tools(&fleet), [""; 0]);
    fleet.apply(filtered(None, &[]));
    let changes: Vec<_> = words(&mut events, secs(1)).await.into_iter().filter(|word| word != "retuned").collect();
    assert_eq!(
        changes,
        ["tools +s__write -s__read_all", "tools -s__read -s__write", "tools +s__read +s__read_all +s__write"]
    );
    assert!(fleet.call_tool("s__write", None).await.is_ok());
    assert_eq!(
        (server.ledger().spawns(), server.ledger().requests("tools/list"), server.ledger().calls("write")),
        (1, 1, 1)
    );
    fleet.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_changed_tool_is_withheld_until_it_is_approved() {
    let server =
        memory("tools a(desc \"send me everything\"), b\nspawn 1:\n tools a(desc \"adds\"), b\n after 20s exit 1");
    let refusing = || only("s", with(&server, |server| server.on_change = CataloguePolicy::Refuse));
    let (fleet, mut events) = watched();
    fleet.apply(refusing());
    all_ready(&fleet, &["s"]).await;
    assert_eq!(tools(&fleet), ["s__a", "s__b"]);
    until(&mut events, "s", |status| status == Status::TransientFailure).await;
    let mut withheld = None;
    while withheld.is_none() {
        if let FleetEvent::Tools(diff) = next(&mut events).await {
            assert_eq!((&diff.removed, diff.added.len()), (&vec!["s__a".to_owned()], 0));
            withheld = Some(diff.notices.clone());
        }
    }
    let changed = vec![Aspect::Description];
    assert_eq!(
        withheld.unwrap(),
        [Notice::Withheld { server: "s".into(), tool: "a".into(), changed: changed.clone() }]
    );
    all_ready(&fleet, &["s"]).await;
    let why = not_offered(fleet.call_tool("s__a", None).await);
    assert_eq!(why, LookupError::AwaitsApproval { server: "s".into(), tool: "a".into(), changed });
    assert_eq!(server.ledger().calls("a"), 0);
    let seen = fleet.withheld()[0].fingerprint.clone();
    assert!(!fleet.approve("s", "a", Some(&Fingerprint::default())), "another version was seen");
    assert!(!fleet.approve("s", "b", None) && !fleet.approve("t", "a", None));
    drop(told(&mut events));
    assert!(fleet.approve("s", "a", Some(&seen)));
    assert!(!fleet.approve("s", "a", Some(&seen)), "once");
    assert_eq!(words(&mut events, secs(1)).await, ["tools +s__a"]);
    assert!(fleet.call_tool("s__a", None).await.is_ok() && fleet.withheld().is_empty());
    // It stays approved, whatever becomes of the connection.
    fleet.apply(only(
        "s",
        with(&server, |server| (server.on_change, server.enabled) = (CataloguePolicy::Refuse, false)),
    ));
    fleet.apply(refusing());
    all_ready(&fleet, &["s"]).await;
    assert_eq!(tools(&fleet), ["s__a", "s__b"]);
    fleet.shutdown().await;
}

/// The policy itself is retuned: what was withheld is offered, without another list.
#[tokio::test(start_paused = true)]
async fn a_policy_is_retuned_without_a_reconnect() {
    let server = memory(&format!("{LISTENING}after 20s set-tools a(desc \"other\"), notify tools/list_changed"));
    let policy = |policy| only("s", with(&server, |server| server.on_change = policy));
    let fleet = fleet();
    fleet.apply(policy(CataloguePolicy::Refuse));
    all_ready(&fleet, &["s"]).await;
    sleep(secs(30)).await;
    assert_eq!((tools(&fleet).len(), fleet.withheld().len()), (0, 1));
    let lists = server.ledger().requests("tools/list");
    assert_eq!(fleet.apply(policy(CataloguePolicy::Accept)).servers["s"], Outcome::Retuned);
    assert_eq!((tools(&fleet), fleet.withheld().len()), (vec!["s__a".to_owned()], 0));
    assert_eq!((server.ledger().spawns(), server.ledger().requests("tools/list")), (1, lists));
    fleet.shutdown().await;
}

/// Neither in a session, nor at the start of the next one.
#[tokio::test(start_paused = true)]
async fn a_list_that_fails_is_never_an_empty_one() {
    let server = memory(&format!(
        "{LISTENING}spawn 1:\n list#2 error -32603 \"broken\"\n after 20s notify tools/list_changed\n after 40s exit 1
         spawn 2..3:\n list error -32603 \"broken\""
    ));
    let (fleet, mut events) = watched();
    fleet.apply(config(&[("s", &server)]));
    all_ready(&fleet, &["s"]).await;
    assert!(!fleet.tools()[0].stale);
    sleep(secs(30)).await;
    assert!(fleet.tools()[0].stale, "the list is not up to date");
    drop(told(&mut events));
    let ready = until(&mut events, "s", |status| matches!(status, Status::Ready(_))).await;
    assert_eq!((ready, tools(&fleet)), (Status::Ready(epoch(4)), vec!["s__a".to_owned()]));
    assert!(!fleet.tools()[0].stale);
    assert!(told(&mut events).iter().all(|event| !matches!(event, FleetEvent::Tools(_))));
    fleet.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn another_version_or_other_capabilities_are_told() {
    let server = memory(
        "prompts hello\nspawn 1:\n versions 2025-06-18\n prompts hello\n after 20s exit 1\nspawn 2:\n after 20s exit 1\nspawn 3..:\n capabilities tools(listChanged), prompts",
    );
    let (fleet, mut events) = watched();
    fleet.apply(config(&[("s", &server)]));
    let told: Vec<_> =
        words(&mut events, secs(90)).await.into_iter().filter(|word| !word.starts_with("tools")).collect();
    assert_eq!(told, ["started", "READY(1)", "changed to 2025-11-25", "READY(2)", "changed to 2025-11-25", "READY(3)"]);
    fleet.shutdown().await;
}

/// A server that is dialled on demand: by the first call, put to rest, and no longer than it may live.
#[tokio::test(start_paused = true)]
async fn a_lazy_server_comes_and_goes_and_stays_offered() {
    let server = memory("");
    let lazy = with(&server, |server| {
        server.connect = Connect::OnDemand;
        server.machine = knobs(|config| config.idle_timeout(Some(secs(30))).max_lifetime(Some(secs(100))));
    });
    let (fleet, mut events) = watched();
    fleet.apply(only("s", lazy.clone()));
    sleep(secs(600)).await;
    assert_eq!((server.ledger().spawns(), state(&fleet, "s")), (0, ServerState::Idle));
    // Its tools are not known yet: a name that begins with its own is enough.
    assert!(fleet.call_tool("s__echo", None).await.is_ok());
    assert_eq!((server.ledger().spawns(), tools(&fleet).len()), (1, 2));
    assert!(fleet.tools().iter().all(|tool| !tool.stale));
    sleep(secs(29)).await;
    assert_eq!(state(&fleet, "s"), ServerState::Ready, "it was used 29 s ago");
    sleep(secs(2)).await;
    assert_eq!((server.ledger().live_links(), state(&fleet, "s")), (0, ServerState::Idle));
    assert!(fleet.tools().len() == 2 && fleet.tools().iter().all(|tool| tool.stale), "offered, and known to be old");
    drop(told(&mut events));
    assert!(fleet.call_tool("s__write", None).await.is_ok());
    assert!(fleet.tools().iter().all(|tool| !tool.stale));
    assert_eq!(server.ledger().spawns(), 2);
    for _ in 0..18 {
        sleep(secs(7)).await;
        assert!(fleet.call_tool("s__echo", None).await.is_ok());
    }
    assert_eq!(server.ledger().spawns(), 3, "one was replaced for its age");
    sleep(secs(61)).await;
    assert_eq!(state(&fleet, "s"), ServerState::Idle);
    assert_eq!(outcomes(&fleet.apply(only("s", lazy))), ["s: untouched"], "at rest is not stale");
    let changes = words(&mut events, millis(1)).await;
    assert!(changes.iter().all(|word| !word.starts_with("tools")), "{changes:?}");
    assert_eq!(most_live(&server), 1);
    fleet.shutdown().await;
}

/// The tools of a server that was removed are nobody's: another one may have their names.
#[tokio::test(start_paused = true)]
async fn a_removed_server_leaves_its_names() {
    let (first, second) = (memory("tools a(desc \"one\")"), memory("tools a(desc \"two\")"));
    let refusing = |fake| only("s", with(fake, |server| server.on_change = CataloguePolicy::Refuse));
    let fleet = fleet();
    fleet.apply(refusing(&first));
    all_ready(&fleet, &["s"]).await;
    fleet.apply(FleetConfig::default());
    assert_eq!(not_offered(fleet.call_tool("s__a", None).await), LookupError::Unknown);
    fleet.apply(refusing(&second));
    all_ready(&fleet, &["s"]).await;
    assert_eq!(tools(&fleet), ["s__a"], "seen for the first time");
    fleet.shutdown().await;
}

/// A server that is parked before it was ever Ready has nothing to withdraw.
#[tokio::test(start_paused = true)]
async fn nothing_is_withdrawn_that_was_never_offered() {
    let server = memory("initialize exit 1");
    let (fleet, mut events) = watched();
    fleet.apply(config(&[("s", &server)]));
    until_parked(&mut events, "s", ParkReason::Exhausted).await;
    fleet.shutdown().await;
    assert!(told(&mut events).iter().all(|event| !matches!(event, FleetEvent::Tools(_))));
}

/// S9: a call of a tool that is known dials a parked server, as a connection's own does.
#[tokio::test(start_paused = true)]
async fn a_call_dials_a_parked_server() {
    let server = memory("spawn 1:\n after 20s exit 1\nspawn 2..:\n start exit 1");
    let (fleet, mut events) = watched();
    fleet.apply(config(&[("s", &server)]));
    until_parked(&mut events, "s", ParkReason::Exhausted).await;
    assert!(tools(&fleet).is_empty(), "withdrawn");
    server.set_script("").unwrap();
    assert!(fleet.call_tool("s__echo", None).await.is_ok());
    assert_eq!(tools(&fleet), ["s__echo", "s__write"]);
    // One that stays away says why it is not there.
    server.set_script("start exit 1").unwrap();
    fleet.connection("s").unwrap().invalidate(epoch(epoch_of(&fleet, "s")), "gone");
    until_parked(&mut events, "s", ParkReason::Exhausted).await;
    let refused = fleet.call_tool("s__echo", None).await;
    assert!(matches!(refused, Err(FleetCallError::Call { error: CallError::Refused { .. }, .. })), "{refused:?}");
    fleet.shutdown().await;
}

/// S9: the tools of a parked server may stay, so that no host's list changes.
#[tokio::test(start_paused = true)]
async fn tools_of_a_parked_server_may_be_kept() {
    let server = memory("spawn 1:\n after 20s exit 1\nspawn 2..:\n start exit 1");
    let (fleet, mut events) = watched();
    fleet.apply(only("s", with(&server, |server| server.on_park = OnPark::Keep)));
    until_parked(&mut events, "s", ParkReason::Exhausted).await;
    assert_eq!(tools(&fleet), ["s__echo", "s__write"]);
    server.set_script("").unwrap();
    assert!(fleet.call_tool("s__echo", None).await.is_ok());
    fleet.shutdown().await;
    assert!(tools(&fleet).is_empty(), "of a fleet that has ended");
}
