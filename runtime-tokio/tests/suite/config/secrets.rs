//! What is secret stays so, whatever is shown.

use mcp_reconnect::config::{Endpoint, FleetConfig, ServerConfig};

use super::parse;

const SECRET: &str = "s3cret";

#[test]
fn nothing_that_was_read_shows_a_secret() {
    let text = r#"{"mcpServers":{
        "stdio":{"command":"a","args":["--key=s3cret"],"env":{"TOKEN":"s3cret"}},
        "http":{"url":"https://me:s3cret@host/s3cret?key=s3cret#s3cret","headers":{"X-Key":"s3cret"},
                "mcp-reconnect":{"proxy":"http://me:s3cret@proxy/"}},
        "slash":{"url":"https://host/s3cret","headers":{"Authorization":"Bearer s3cret"}}
    }}"#;
    let parsed = parse(text).unwrap();
    let shown = format!("{parsed:?} {:?}", parsed.config.servers["http"].builder("http"));
    assert!(!shown.contains(SECRET), "{shown}");
    for name in ["TOKEN", "X-Key", "https://host"] {
        assert!(shown.contains(name), "{name} in {shown}");
    }
    for server in parsed.config.servers.values() {
        let digest = server.digest();
        assert!(!format!("{digest} {digest:?} {}", serde_json::to_string(&digest).unwrap()).contains(SECRET));
    }
}

/// Each place for a secret, with each thing that can be wrong with it.
#[test]
fn no_problem_tells_a_secret() {
    for server in [
        r#"{"command":{"path":"s3cret"}}"#,
        r#"{"command":["a",{"b":"s3cret"}]}"#,
        r#"{"command":"a","args":"s3cret"}"#,
        r#"{"command":"a","args":[["s3cret"]]}"#,
        r#"{"command":"a","args":["s3cret${NOT_SET}"]}"#,
        r#"{"command":"a","args":["${NOT_SET}s3cret${"]}"#,
        r#"{"command":"a","args":["${s3cret !}"]}"#,
        r#"{"command":"a","args":["${A:-${s3cret}}"]}"#,
        r#"{"command":"a","args":["s3cret ${input:s3cret !}"]}"#,
        r#"{"command":"a","env":"s3cret"}"#,
        r#"{"command":"a","env":{"A":["s3cret"]}}"#,
        r#"{"command":"a","env":{"A":"s3cret","A":"s3cret"}}"#,
        r#"{"command":"a","env":{"A":"s3cret\u0000"}}"#,
        r#"{"command":"a","env":{"A":"s3cret{env:B}"}, "x":1}"#,
        r#"{"url":"s3cret"}"#,
        r#"{"url":"s3cret/s3cret://host/"}"#,
        r#"{"url":"ftp://me:s3cret@host/"}"#,
        r#"{"url":"https://me:s3/s3cret@host:s3cret/"}"#,
        r#"{"url":"https://host:99999/s3cret?s3cret"}"#,
        r#"{"url":["https://s3cret"]}"#,
        r#"{"url":"http://h/","headers":"s3cret"}"#,
        r#"{"url":"http://h/","headers":{"A":{"s3cret":1}}}"#,
        r#"{"url":"http://h/","headers":{"A":"s3cret\n"}}"#,
        r#"{"url":"http://h/","headers":{"a b":"s3cret"}}"#,
        r#"{"url":"http://h/","headers":{"Accept":"s3cret"}}"#,
        r#"{"url":"http://h/","headers":{"A":"s3cret","a":"s3cret"}}"#,
        r#"{"url":"http://h/","mcp-reconnect":{"proxy":"s3cret"}}"#,
        r#"{"url":"http://h/","mcp-reconnect":{"proxy":["s3cret"]}}"#,
        r#"{"url":"http://h/","unknown":"s3cret"}"#,
        r#"{"command":"a","url":"http://s3cret/"}"#,
        r#"{"command":"a","headers":{"A":"s3cret"}}"#,
        r#"{"command":"a","oauth":{"secret":"s3cret"}}"#,
        r#"{"command":"a","disabled":true,"env":{"A":"${NOT_SET}s3cret"}}"#,
        r#"{"type":"sse","url":"http://me:s3cret@h/s3cret"}"#,
    ] {
        let text = format!(r#"{{"mcpServers":{{"x":{server}}}}}"#);
        let (problems, shown) = match parse(&text) {
            Ok(parsed) => (parsed.warnings.clone(), format!("{parsed:?}")),
            Err(errors) => {
                ([errors.problems.clone(), errors.warnings.clone()].concat(), format!("{errors:?} {errors}"))
            }
        };
        assert!(!problems.is_empty() || server.contains("unknown"), "nothing is wrong with {server}");
        let told: String = problems.iter().map(ToString::to_string).collect();
        assert!(!told.contains(SECRET) && !shown.contains(SECRET), "{server}: {told} {shown}");
    }
    let syntax =
        FleetConfig::parse(r#"{"mcpServers":{"x":{"env":{"A":"s3cret" "s3cret"}}}}"#, "f", |_| None).unwrap_err();
    assert!(!format!("{syntax} {syntax:?}").contains(SECRET), "{syntax}");
}

#[test]
fn what_a_variable_holds_is_as_secret_as_what_is_written() {
    let text =
        r#"{"mcpServers":{"x":{"command":"${BAD}","args":["${BAD}"],"env":{"A":"${BAD}"}},"y":{"url":"${BAD}"}}}"#;
    let env = |_: &str| Some("s3cret\0".to_owned());
    let errors = FleetConfig::parse(text, "f", env).unwrap_err();
    assert_eq!(errors.problems.len(), 4, "{errors}");
    assert!(!format!("{errors} {errors:?}").contains(SECRET), "{errors}");
}

#[test]
fn a_server_built_in_code_keeps_its_secrets_too() {
    let mut server = ServerConfig::http("http://localhost/mcp?key=s3cret");
    let Endpoint::Http(http) = &mut server.endpoint else { panic!("HTTP") };
    http.headers.insert("Accept".into(), SECRET.into());
    let shown = format!("{server:?} {:?}", http.clone().server());
    assert!(!shown.contains(SECRET), "{shown}");
}
