//! Arbitrary text, arbitrary JSON, arbitrary servers.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::time::Duration;

use mcp_reconnect::CallOptions;
use mcp_reconnect::config::{CataloguePolicy, Connect, Endpoint, Http, ServerConfig, Stdio};
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use serde_json::{Map, Value};

use super::parse;

/// Keys that mean something, and some that do not.
fn key() -> impl Strategy<Value = String> {
    let known: &[&str] = &[
        "mcpServers",
        "servers",
        "mcp",
        "context_servers",
        "mcp-reconnect",
        "command",
        "args",
        "env",
        "cwd",
        "url",
        "headers",
        "type",
        "disabled",
        "enabled",
        "timeout",
        "tools",
        "include",
        "backoff",
        "keepalive",
        "close_timeout",
        "max_dials",
        "frame_limit",
        "connect",
        "x",
        "",
    ];
    prop_oneof![9 => proptest::sample::select(known).prop_map(str::to_owned), 1 => any::<String>()]
}

fn json() -> impl Strategy<Value = Value> {
    let word = proptest::sample::select(
        &["stdio", "http", "sse", "30s", "0s", "http://h/", "${A}", "${", "$${x}", "off", ""][..],
    );
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        word.prop_map(Value::from),
        any::<String>().prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 64, 8, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(Value::from),
            vec((key(), inner), 0..8).prop_map(|members| Value::Object(members.into_iter().collect::<Map<_, _>>())),
        ]
    })
}

/// A file of which a good part is right.
fn document() -> impl Strategy<Value = Value> {
    let container = prop_oneof![9 => Just("mcpServers".to_owned()), 1 => key()];
    let setting = (
        proptest::sample::select(&["keepalive", "backoff", "backoff_max", "close_timeout", "close_eof", "x"][..]),
        prop_oneof![4 => (1..100_u64).prop_map(Value::from), 1 => json()],
    );
    let settings = vec(setting, 0..3)
        .prop_map(|members| members.into_iter().map(|(key, value)| (key.to_owned(), value)).collect::<Map<_, _>>());
    let ours = prop_oneof![9 => settings.prop_map(Value::from), 1 => json()];
    let whole = (any::<bool>(), ours.clone()).prop_map(|(stdio, ours)| match stdio {
        true => serde_json::json!({ "command": "a", "mcp-reconnect": ours }),
        false => serde_json::json!({ "url": "http://h/", "mcp-reconnect": ours }),
    });
    let server = prop_oneof![3 => whole, 1 => json()];
    (container, ours, btree_map(any::<String>(), server, 0..4)).prop_map(|(container, ours, servers)| {
        let servers = servers.into_iter().collect::<Map<_, _>>();
        let mut members = Map::new();
        members.insert("mcp-reconnect".into(), ours);
        members.insert(container, servers.into());
        members.into()
    })
}

/// Endpoints that are mostly alike, so that two of them differ in one place, or in how their parts are cut.
fn endpoint() -> impl Strategy<Value = Endpoint> {
    let text = || proptest::sample::select(&["", "a", "b", "aargb", "ab"][..]).prop_map(str::to_owned);
    let maybe = || prop_oneof![3 => Just(None), 1 => text().prop_map(Some)];
    let env = prop_oneof![2 => Just(BTreeMap::new()), 1 => btree_map(text(), proptest::option::of(text()), 1..3)];
    let limit = || proptest::sample::select(vec![None, None, NonZeroUsize::new(1), NonZeroUsize::new(2)]);
    let grace = proptest::sample::select(&[0, 0, 0, 1][..]).prop_map(Duration::from_secs);
    let stdio = (maybe(), vec(text(), 0..3), env, proptest::bool::weighted(0.1), maybe(), limit(), vec(grace, 3))
        .prop_map(|(program, args, env, clean_env, cwd, frame_limit, graces)| {
            let mut stdio = Stdio::new(program.unwrap_or_default());
            stdio.args = args.into_iter().map(Into::into).collect();
            stdio.env = env.into_iter().map(|(name, value)| (name.into(), value.map(Into::into))).collect();
            stdio.clean_env = clean_env;
            stdio.cwd = cwd.map(Into::into);
            stdio.frame_limit = frame_limit;
            stdio.close_eof += graces[0];
            stdio.close_term += graces[1];
            stdio.close_kill += graces[2];
            Endpoint::from(stdio)
        });
    let http =
        (maybe(), btree_map(text(), text(), 0..3), maybe(), limit()).prop_map(|(url, headers, proxy, frame_limit)| {
            let mut http = Http::new(url.unwrap_or_default());
            http.headers = headers;
            http.proxy = proxy;
            http.frame_limit = frame_limit;
            Endpoint::from(http)
        });
    prop_oneof![4 => stdio, 2 => http, 1 => text().prop_map(|why| Endpoint::Refused(why.into()))]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_text_is_read_or_refused(text in any::<String>()) {
        drop(parse(&text));
    }

    #[test]
    fn any_text_like_json_is_read_or_refused(text in r#"[\[\]{},:/* "\\a1\n$]{0,60}"#) {
        drop(parse(&text));
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in vec(any::<u8>(), 0..200)) {
        drop(parse(&String::from_utf8_lossy(&bytes)));
    }

    /// Whatever is refused says why; whatever is read can be built.
    #[test]
    fn any_json_is_read_or_refused(document in document()) {
        match parse(&document.to_string()) {
            Ok(parsed) => for (name, server) in &parsed.config.servers {
                prop_assert!(!name.trim().is_empty());
                prop_assert!(server.machine.close_timeout() > server.connector().close_bound());
            },
            Err(errors) => prop_assert!(!errors.problems.is_empty()),
        }
    }

    /// Comments and trailing commas change nothing.
    #[test]
    fn json_with_comments_is_the_same(document in document()) {
        let plain = document.to_string();
        let pretty = serde_json::to_string_pretty(&document).unwrap();
        let mut lines = pretty.lines().peekable();
        let mut commented = String::new();
        while let Some(line) = lines.next() {
            let last = lines.peek().is_some_and(|next| next.trim_start().starts_with([']', '}']));
            commented += &format!("/* \" */ {line} {} // , ]\n", if last { "," } else { "" });
        }
        match (parse(&plain), parse(&commented)) {
            (Ok(plain), Ok(commented)) => prop_assert_eq!(plain, commented),
            (Err(plain), Err(commented)) => prop_assert_eq!(plain, commented),
            (plain, commented) => prop_assert!(false, "{:?} {:?}", plain, commented),
        }
    }

    #[test]
    fn digests_are_equal_where_endpoints_are(endpoints in vec(endpoint(), 2..60)) {
        let digests: Vec<_> = endpoints.iter().map(|endpoint| ServerConfig::new(endpoint.clone()).digest()).collect();
        for (at, one) in endpoints.iter().enumerate() {
            for (other, digest) in endpoints.iter().zip(&digests) {
                prop_assert!((digests[at] == *digest) == (one == other), "{:?} {:?}", one, other);
            }
        }
        let is_hex = |digest: &String| digest.len() == 32 && digest.bytes().all(|byte| byte.is_ascii_hexdigit());
        prop_assert!(digests.iter().all(is_hex), "{:?}", digests);
    }
}

/// What can be changed while the connection lives does not count.
#[test]
fn only_what_needs_a_new_connection_is_in_the_digest() {
    let plain = ServerConfig::stdio("server", ["--stdio"]);
    let same = |change: fn(&mut ServerConfig)| {
        let mut server = plain.clone();
        change(&mut server);
        assert_ne!(server, plain);
        server.digest() == plain.digest()
    };
    assert!(same(|s| s.enabled = false));
    assert!(same(|s| s.connect = Connect::OnDemand));
    assert!(same(|s| s.calls = CallOptions { max_timeout: Some(std::time::Duration::from_secs(9)), ..s.calls }));
    assert!(same(|s| s.machine = mcp_reconnect::core::Config::builder().ping_misses(9).build().unwrap()));
    assert!(same(|s| s.max_in_flight = std::num::NonZeroU32::new(9)));
    assert!(same(|s| s.tools.exclude.push("a".into())));
    assert!(same(|s| s.on_change = CataloguePolicy::Refuse));
    assert!(!same(|s| s.on_park = mcp_reconnect::OnPark::Keep));
    assert!(!same(|s| s.era = mcp_reconnect::EraPolicy::Legacy));
    assert!(!same(|s| s.require = mcp_reconnect::Require::None));
}

/// A digest is the key of what was kept about a server: it must be the same tomorrow.
#[test]
fn digests_are_what_they_were() {
    let mut stdio = Stdio::new("npx");
    stdio.args = ["-y", "server"].map(Into::into).into();
    stdio.env = BTreeMap::from([("A".into(), Some("1".into())), ("B".into(), None)]);
    stdio.cwd = Some("/srv".into());
    let mut http = Http::new("https://example.com/mcp");
    http.headers.insert("Authorization".into(), "Bearer t".into());
    let digests = [Endpoint::from(stdio), http.into(), Endpoint::Refused("no".into())]
        .map(|endpoint| ServerConfig::new(endpoint).digest());
    // Counted by another program, from the encoding as it is described.
    let expected =
        ["f7852b0aafff47394c2f6635e645ce87", "de1d4e8b30ff1d29c52a6f1659eb6603", "c5266bea5781c8abe131ea772fb10be2"];
    assert_eq!(digests, expected);
}
