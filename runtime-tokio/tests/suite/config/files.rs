//! The files of several clients, each in the shape that its documentation gives, and how they are read.

use std::fmt::Write as _;
use std::path::Path;

use mcp_reconnect::CallOptions;
use mcp_reconnect::config::{Endpoint, FleetConfig, Http, ServerConfig, Stdio};
use mcp_reconnect::core::Config;

/// Everything that was read, secrets included, in lines; what has its default is left out.
fn reading(text: &str, source: &str) -> String {
    let parsed = FleetConfig::parse(text, source, super::env).unwrap_or_else(|errors| panic!("{errors}"));
    let mut lines = String::new();
    if parsed.config.max_dials != 32 {
        writeln!(lines, "max_dials {}", parsed.config.max_dials).unwrap();
    }
    for (name, server) in &parsed.config.servers {
        writeln!(lines, "{name}{}", if server.enabled { "" } else { " (disabled)" }).unwrap();
        write_endpoint(&mut lines, &server.endpoint);
        write_rest(&mut lines, server);
    }
    for warning in &parsed.warnings {
        writeln!(lines, "warning: {warning}").unwrap();
    }
    lines
}

fn write_endpoint(lines: &mut String, endpoint: &Endpoint) {
    match endpoint {
        Endpoint::Stdio(stdio) => {
            writeln!(lines, "  {:?} {:?}", stdio.program, stdio.args).unwrap();
            for (name, value) in &stdio.env {
                writeln!(lines, "  env {name:?} {value:?}").unwrap();
            }
            let default = Stdio::new("");
            if let Some(cwd) = &stdio.cwd {
                writeln!(lines, "  cwd {cwd:?}").unwrap();
            }
            let Stdio { clean_env, frame_limit, close_eof, close_term, close_kill, .. } = stdio;
            if (clean_env, frame_limit) != (&default.clean_env, &default.frame_limit) {
                writeln!(lines, "  clean_env {clean_env} frame_limit {frame_limit:?}").unwrap();
            }
            if (close_eof, close_term, close_kill) != (&default.close_eof, &default.close_term, &default.close_kill) {
                writeln!(lines, "  close {close_eof:?} {close_term:?} {close_kill:?}").unwrap();
            }
        }
        Endpoint::Http(Http { url, headers, proxy, frame_limit, .. }) => {
            writeln!(lines, "  {url} {headers:?}").unwrap();
            if (proxy, frame_limit) != (&None, &None) {
                writeln!(lines, "  proxy {proxy:?} frame_limit {frame_limit:?}").unwrap();
            }
        }
        Endpoint::Refused(why) => writeln!(lines, "  refused: {why}").unwrap(),
        other => panic!("{other:?}"),
    }
}

fn write_rest(lines: &mut String, server: &ServerConfig) {
    let default = ServerConfig::new(server.endpoint.clone());
    if server.machine != default.machine {
        let (knobs, defaults) = (knobs(&server.machine), knobs(&default.machine));
        for (knob, value) in knobs.iter().filter(|(knob, value)| defaults.get(*knob) != Some(value)) {
            writeln!(lines, "  {knob} {value}").unwrap();
        }
    }
    if server.calls != CallOptions::default() {
        writeln!(lines, "  {:?}", server.calls).unwrap();
    }
    let rest = |server: &ServerConfig| {
        [
            format!("{:?}", server.connect),
            format!("max_in_flight {:?}", server.max_in_flight),
            format!("era {:?}", server.era),
            format!("require {:?}", server.require),
            format!("probe_patience {:?}", server.probe_patience),
            format!("{:?}", server.tools),
            format!("on_change {:?}", server.on_change),
            format!("on_park {:?}", server.on_park),
        ]
    };
    for (line, default) in rest(server).into_iter().zip(rest(&default)) {
        if line != default {
            writeln!(lines, "  {line}").unwrap();
        }
    }
}

/// The knobs by name, in nanoseconds.
fn knobs(config: &Config) -> serde_json::Map<String, serde_json::Value> {
    let serde_json::Value::Object(knobs) = serde_json::to_value(config).unwrap() else { panic!("an object") };
    knobs
}

/// Each file is read as the text beside it says; `UPDATE=1` writes the texts.
#[test]
fn files_of_other_clients_are_read_as_they_are() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/suite/config");
    let mut files: Vec<_> = std::fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "json"))
        .collect();
    files.sort();
    assert_eq!(files.len(), 13, "{files:?}");
    for file in files {
        let source = file.file_name().unwrap().to_str().unwrap();
        let reading = reading(&std::fs::read_to_string(&file).unwrap(), source);
        let expected = file.with_extension("txt");
        if std::env::var_os("UPDATE").is_some_and(|set| set == "1") {
            std::fs::write(&expected, &reading).unwrap();
        }
        assert_eq!(reading, std::fs::read_to_string(&expected).unwrap(), "{source}");
    }
}

/// The same, through the file system and with this process's environment.
#[test]
fn a_file_is_loaded_with_its_name_in_every_problem() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/suite/config");
    let parsed = FleetConfig::load(folder.join("claude-desktop.json")).unwrap();
    assert_eq!(parsed.config.servers.len(), 2);

    let missing = folder.join("missing.json");
    let errors = FleetConfig::load(&missing).unwrap_err();
    assert_eq!(errors.problems.len(), 1);
    let told = errors.to_string();
    assert!(told.starts_with(&format!("{}: cannot be read: ", missing.display())), "{told}");

    #[cfg(unix)]
    {
        // No UTF-8: this binary itself.
        let errors = FleetConfig::load(std::env::current_exe().unwrap()).unwrap_err();
        assert!(errors.to_string().contains("is not UTF-8 from byte "), "{errors}");
    }
}

/// What is read makes a connection, and what cannot be dialled says why.
#[tokio::test]
async fn a_server_that_is_refused_parks_with_the_reason() {
    use mcp_reconnect::core::{ParkReason, Status};

    let text = r#"{"mcpServers":{"old":{"type":"sse","url":"https://old.example.com/sse"}}}"#;
    let parsed = super::parse(text).unwrap();
    let connection = parsed.config.servers["old"].builder("old").build().unwrap();
    let mut events = connection.events();
    while connection.snapshot().status != Status::Parked(ParkReason::Permanent) {
        events.next().await.unwrap();
    }
    let error = connection.session().await.unwrap_err();
    assert!(error.to_string().contains("streamable HTTP endpoint"), "{error}");
    connection.shutdown().await;
}

#[test]
fn what_is_wrong_with_one_server_leaves_the_others_usable() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("mcp.json");
    let load = |text: &str| {
        std::fs::write(&path, text).unwrap();
        FleetConfig::load_usable(&path)
    };
    let text = r#"{ "mcpServers": {
        "good": { "command": "x" }, "bad": { "command": 7 },
        "unset": { "command": "y", "args": ["${NEVER_SET_BY_ANYBODY}"] } } }"#;
    let (parsed, left_out) = load(text).unwrap();
    assert_eq!(parsed.config.servers.keys().map(|name| &**name).collect::<Vec<_>>(), ["good"]);
    let named: Vec<_> = left_out.iter().map(|problem| problem.server.as_deref().unwrap()).collect();
    assert_eq!(named, ["bad", "unset"]);
    assert!(FleetConfig::load(&path).is_err());
    // What concerns the file is an error all the same.
    for text in ["{", "{}", r#"{ "mcp-reconnect": { "max_dials": 0 }, "mcpServers": { "good": { "command": "x" } } }"#]
    {
        let errors = load(text).unwrap_err();
        assert!(errors.problems.iter().all(|problem| problem.server.is_none()), "{text}: {errors}");
    }
}
